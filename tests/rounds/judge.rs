//! What must be so after each round: every row that was acknowledged is there, once; every service uses what the paths name;
//! the whole house answers; and what happened is an incident.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::{Duration, Instant};

use serde_json::Value;
use statehouse_testkit::kernel::{FileId, Standing};
use statehouse_testkit::visitor::shell_once;
use statehouse_testkit::{Home, until, until_some};

use super::deeds::Deed;
use super::traffic::Traffic;
use crate::house::{Client, PATIENCE, Up, answer};

/// How long after a deed each part of the house answered for the first time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Took {
    /// The first row that was sent and acknowledged.
    pub(crate) message: Duration,
    /// The dashboard's list.
    pub(crate) page: Duration,
    /// A proof of readiness that is about the present files.
    pub(crate) ready: Duration,
    /// Every service has what the paths name, and its locks.
    pub(crate) whole: Duration,
}

impl Took {
    pub(crate) fn all(self) -> [Duration; 4] {
        [self.message, self.page, self.ready, self.whole]
    }

    pub(crate) fn longest(self) -> Duration {
        self.all().into_iter().max().unwrap_or_default()
    }
}

/// Waits until everything answers again.
pub(crate) fn answers_again(home: &Home, up: &Up, traffic: &Traffic, since: Instant) -> Took {
    let token = home.token();
    let gateway = Client::new(up.url("gateway"), &token);
    let dashboard = Client::new(up.url("dashboard"), &token);
    let services = ["gateway", "dashboard", "scheduler"].map(|name| (name, up.pid(name)));
    let anchor = up.pid("anchor");
    let (message, page, ready, whole) = std::thread::scope(|scope| {
        let page = scope.spawn(|| {
            until("the dashboard shows its list", PATIENCE, || matches!(dashboard.get("/"), Ok((200, _))));
            since.elapsed()
        });
        let ready = scope.spawn(|| {
            until("the gateway is ready", PATIENCE, || is_ready(home, &gateway));
            since.elapsed()
        });
        let files = scope.spawn(|| {
            for (name, pid) in services {
                let whole = || Standing::of(pid, &home.store()).whole();
                until(&format!("the {name} uses what the paths name"), PATIENCE, whole);
            }
            let took = since.elapsed();
            let anchored = || {
                let standing = Standing::of(anchor, &home.store());
                standing.shared && standing.dms
            };
            until("the anchor holds what the paths name", PATIENCE, anchored);
            took
        });
        let first = until_some("a row is acknowledged", PATIENCE, || traffic.first_after(since));
        let of = |thread: std::thread::ScopedJoinHandle<'_, Duration>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        (first.duration_since(since), of(page), of(ready), of(files))
    });
    Took { message, page, ready, whole }
}

fn is_ready(home: &Home, gateway: &Client) -> bool {
    let Ok((200, text)) = gateway.get("/readyz") else { return false };
    let document: Value = serde_json::from_str(&text).unwrap_or_default();
    // An answer may be a second old, and then it may be about files that are gone.
    [("main", ""), ("wal", "-wal"), ("shm", "-shm")].iter().all(|(member, suffix)| {
        let inode = document["generation"][member]["inode"].as_u64();
        inode.is_some() && inode == FileId::of(&home.member(suffix)).map(|f| f.inode)
    })
}

/// Every acknowledged row, and no row twice, as a fresh process of another program reads it through the path.
pub(crate) fn nothing_is_lost(home: &Home, traffic: &Traffic) {
    // Clients go on meanwhile: what was acknowledged before the look must be there, what is there must have been sent by
    // the end of it.
    let acknowledged: Vec<String> = traffic.ledger().acknowledged.keys().cloned().collect();
    let seen = rows_by_sqlite3(home, "user");
    let lost: Vec<&String> = acknowledged.iter().filter(|text| !seen.contains_key(*text)).collect();
    assert!(lost.is_empty(), "{} acknowledged rows are lost: {lost:#?}", lost.len());
    let ledger = traffic.ledger();
    for (text, count) in &seen {
        assert_eq!(*count, 1, "stored more than once: {text}");
        assert!(ledger.acknowledged.contains_key(text) || ledger.unanswered.contains(text), "nobody sent this: {text}");
    }
    assert!(ledger.odd.is_empty(), "{:#?}", ledger.odd);
}

/// The texts of all messages of a role, and how often each is there.
pub(crate) fn rows_by_sqlite3(home: &Home, role: &str) -> HashMap<String, u32> {
    let sql = format!("SELECT text FROM message WHERE role = '{role}'");
    let mut seen = HashMap::new();
    if let Some(done) = shell_once(&home.store(), &sql) {
        for line in done.success().stdout.lines() {
            *seen.entry(line.to_owned()).or_default() += 1;
        }
    }
    seen
}

/// As above, for one round, by the command line.
pub(crate) fn the_round_is_shown(home: &Home, traffic: &Traffic, round: u64) {
    let mark = format!(" of round {round}");
    let (acknowledged, sessions) = {
        let ledger = traffic.ledger();
        let rows: Vec<String> = ledger.acknowledged.keys().filter(|t| t.ends_with(&mark)).cloned().collect();
        let here = |conversation: &&String| conversation.ends_with(&format!(" in round {round}"));
        let sessions: Vec<String> = ledger.sessions.keys().filter(here).map(|c| ledger.sessions[c].clone()).collect();
        (rows, sessions)
    };
    let mut shown: HashMap<String, u32> = HashMap::new();
    for session in sessions {
        let document = answer(home, ["sessions", "show", &session]);
        for message in document["messages"].as_array().unwrap().iter().filter(|m| m["role"] == "user") {
            *shown.entry(message["text"].as_str().unwrap().to_owned()).or_default() += 1;
        }
    }
    for text in acknowledged {
        assert_eq!(shown.get(&text), Some(&1), "`sessions show` has not once: {text}");
    }
}

/// The incidents that lie beside the store.
pub(crate) fn incidents(home: &Home) -> Vec<Value> {
    let directory = home.path().join("state.db.statehouse/incidents");
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let read = |path: &std::path::Path| serde_json::from_str(&fs::read_to_string(path).ok()?).ok();
    entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .filter_map(|p| read(&p))
        .collect()
}

/// When something happened last by the word of the incidents, in microseconds since 1970. Not their number: old ones are removed.
pub(crate) fn last_incident(home: &Home) -> u64 {
    incidents(home).iter().filter_map(|i| i["last_at"].as_u64()).max().unwrap_or(0)
}

/// The names of the incidents that lie there.
pub(crate) fn named_incidents(home: &Home) -> HashSet<String> {
    incidents(home).iter().filter_map(|i| i["id"].as_str().map(str::to_owned)).collect()
}

/// A deed that took files away is one incident since `before`, which says what it was, and is closed without a person.
pub(crate) fn the_deed_is_one_closed_incident(home: &Home, before: &HashSet<String>, deed: Deed) {
    let (kinds, word): (&[&str], &str) = match deed {
        Deed::Remove(members) => {
            let word = match members {
                [""] | ["", ..] => "main file",
                ["-shm"] => "shared index",
                _ => "log",
            };
            (&["retired_generation"], word)
        }
        Deed::MoveAway => (&["retired_generation"], "main file"),
        Deed::OlderOver | Deed::PresentOver => (&["replaced_file"], "main file"),
        Deed::ForeignOver => (&["replaced_file", "retired_generation"], "main file"),
        Deed::Unlock => return,
    };
    let new = until_some(&format!("what {deed:?} has done is told to its end"), PATIENCE, || {
        let new: Vec<Value> =
            incidents(home).into_iter().filter(|i| i["id"].as_str().is_some_and(|id| !before.contains(id))).collect();
        (!new.is_empty() && new.iter().all(|i| !i["closed_at"].is_null())).then_some(new)
    });
    let [incident] = &new[..] else { panic!("{deed:?} is not one incident: {new:#?}") };
    let (kind, what) = (incident["kind"].as_str().unwrap_or_default(), incident["what"].as_str().unwrap_or_default());
    assert!(kinds.contains(&kind) && what.contains(word), "{deed:?} is told as {kind}: {what}");
    assert!(incident["lost"].is_null(), "{deed:?}: {incident:#}");
}
