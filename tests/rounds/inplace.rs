//! Somebody destroys bytes in place under the house, while clients talk: it is noticed within a second and before the next
//! acknowledgement, writing stops, everybody says the same words, and of what was acknowledged before nothing is missing from what
//! is left, but for what the deed itself has taken.
//!
//! Putting together a new verified file from what is left is not looked at here.

use std::collections::HashSet;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use serde_json::Value;
use statehouse_testkit::visitor::Python;
use statehouse_testkit::{Home, Seed, until, until_some};

use super::say;
use super::traffic::Traffic;
use crate::house::{Client, PATIENCE, Up, cli, integrity};

/// Rounds that are run with the suite: each deed once. A round needs a house of its own.
const ROUNDS: u64 = 6;

/// How often in a row a deed may come to nothing, or need a full check.
const IN_VAIN_AT_MOST: u32 = 5;

/// Within this it is noticed, on a machine that does nothing else.
const NOTICED: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    /// `: > state.db-wal`
    EmptyLog,
    /// The log loses the second half of what is in use of it.
    HalveLog,
    /// `cp` of an older copy onto the main file.
    OlderOnto,
    /// `: > state.db`
    EmptyMain,
    /// The main file loses its second half.
    HalveMain,
    /// A page in the middle of the main file is overwritten.
    Scribble,
}

const DEEDS: [Deed; 6] =
    [Deed::EmptyLog, Deed::HalveLog, Deed::OlderOnto, Deed::EmptyMain, Deed::HalveMain, Deed::Scribble];

/// How many frames of the log are in use by the word of the index. A log that was begun anew is longer than what is in it.
fn frames_in_use(home: &Home) -> u64 {
    until_some("frames are in use", PATIENCE, || {
        let index = fs::read(home.member("-shm")).ok()?;
        let frames = u32::from_ne_bytes(*index.get(16..20)?.first_chunk()?);
        (frames > 4).then_some(u64::from(frames))
    })
}

fn act(deed: Deed, home: &Home, seed: &mut Seed) {
    let cut = |suffix: &str, to: fn(u64) -> u64| {
        let file = fs::OpenOptions::new().write(true).open(home.member(suffix)).unwrap();
        file.set_len(to(file.metadata().unwrap().len())).unwrap();
    };
    match deed {
        Deed::EmptyLog => cut("-wal", |_| 0),
        Deed::HalveLog => {
            let file = fs::OpenOptions::new().write(true).open(home.member("-wal")).unwrap();
            file.set_len(32 + frames_in_use(home) / 2 * (4096 + 24)).unwrap();
        }
        Deed::OlderOnto => drop(fs::copy(home.path().join("older"), home.store()).unwrap()),
        Deed::EmptyMain => cut("", |_| 0),
        Deed::HalveMain => cut("", |length| length / 2),
        Deed::Scribble => {
            let file = fs::OpenOptions::new().write(true).open(home.store()).unwrap();
            let pages = file.metadata().unwrap().len() / 4096;
            file.write_all_at(&seed.bytes(4096), (1 + seed.below(pages - 1)) * 4096).unwrap();
        }
    }
}

/// What came of a deed.
enum Came {
    /// When it was done; from then on messages are refused.
    Noticed(Instant),
    /// A page that has no sum was overwritten while a checkpoint wrote others.
    NeedsAFullCheck,
}

/// Does it. What hits a log that is begun anew at that moment, with everything in the main file, or a page that a checkpoint
/// overwrites, has destroyed nothing: then everything that was acknowledged must be there, and it is done again.
fn destroy(deed: Deed, home: &Home, seed: &mut Seed, traffic: &Traffic) -> Came {
    for _ in 0..IN_VAIN_AT_MOST {
        let before = salts(home);
        act(deed, home, seed);
        let done = Instant::now();
        let noticed = until_some("a message is answered", PATIENCE, || {
            let ledger = traffic.ledger();
            let destroyed = ledger.refused.iter().any(|r| r.0 == "destroyed");
            let late = ledger.acknowledged.values().any(|a| a.sent > done);
            (destroyed || late).then_some(destroyed)
        });
        match deed {
            _ if noticed => return Came::Noticed(done),
            // What is in use of the log is never gone unnoticed.
            Deed::EmptyLog | Deed::HalveLog => assert_ne!(before, salts(home), "{deed:?}: acknowledged after it"),
            Deed::Scribble => {
                if let Some(verdict) = integrity(&home.store()).filter(|verdict| verdict != "ok") {
                    say(&format!("{deed:?} is found by a full check only: {}", verdict.lines().next().unwrap_or("")));
                    return Came::NeedsAFullCheck;
                }
            }
            Deed::OlderOnto | Deed::EmptyMain | Deed::HalveMain => panic!("{deed:?}: acknowledged after it"),
        }
        let acknowledged: Vec<String> = traffic.ledger().acknowledged.keys().cloned().collect();
        let rows = super::judge::rows_by_sqlite3(home, "user");
        let missing: Vec<&String> = acknowledged.iter().filter(|text| !rows.contains_key(*text)).collect();
        assert!(missing.is_empty(), "{deed:?}: missing though nothing was noticed: {missing:?}");
        assert!(integrity(&home.store()).is_none_or(|verdict| verdict == "ok"), "{deed:?}");
        say(&format!("{deed:?} has hit what was not in use any more, and is done again"));
    }
    panic!("{deed:?} was never noticed");
}

/// The salts of the log by the word of the index.
fn salts(home: &Home) -> Vec<u8> {
    fs::read(home.member("-shm")).unwrap()[32..40].to_vec()
}

/// How long it took until a message was refused because of it, and until the mark was there.
/// `None` if only a full check finds it.
fn round(deed: Deed, seed: &mut Seed) -> Option<(Duration, Duration)> {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let token = home.token();
    let traffic = Traffic::new(up.url("gateway"), token.clone());
    let took = std::thread::scope(|scope| {
        for name in ["eve", "finn"] {
            let traffic = &traffic;
            scope.spawn(move || traffic.talk(name));
        }
        let all = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let enough =
                |n: usize| until("rows are acknowledged", PATIENCE, || traffic.ledger().acknowledged.len() > n);
            enough(20);
            let mut python = Python::open(&home.store());
            python.sql(&format!("VACUUM INTO '{}'", home.path().join("older").display())).unwrap();
            python.quit();
            enough(20 + seed.below(150) as usize);
            std::thread::sleep(Duration::from_micros(seed.below(50_000)));
            let done = match destroy(deed, &home, seed, &traffic) {
                Came::Noticed(done) => done,
                Came::NeedsAFullCheck => return None,
            };
            let mark = home.path().join("state.db.statehouse/destroyed.json");
            let refused = || {
                let ledger = traffic.ledger();
                ledger.refused.iter().any(|r| r.0 == "destroyed").then(|| done.elapsed())
            };
            let told = until_some("a message is refused", PATIENCE, refused);
            until("the mark", PATIENCE, || mark.exists());
            Some((done, told, done.elapsed()))
        }));
        traffic.end();
        all.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let (done, told, marked) = took?;

    // A scribbled page that was in the log as well may be read from there until a look finds the file changed.
    let late: Vec<String> = {
        let ledger = traffic.ledger();
        ledger.acknowledged.iter().filter(|a| a.1.sent > done).map(|a| a.0.clone()).collect()
    };
    assert!(late.is_empty(), "{deed:?}: acknowledged after the destruction: {late:?}");

    // The same words everywhere: a process that has found it by itself says its own until it has read the mark.
    let marked_text = fs::read_to_string(home.path().join("state.db.statehouse/destroyed.json")).unwrap();
    let mark: Value = serde_json::from_str(&marked_text).unwrap();
    let sentence = mark["sentence"].as_str().unwrap().to_owned();
    let gateway = Client::new(up.url("gateway"), &token);
    let dashboard = Client::new(up.url("dashboard"), &token);
    let said = |client: &Client, path: &str| client.get(path).unwrap();
    let error = |error: &Value| error["code"] == "destroyed" && error["message"] == sentence.as_str();
    until(&format!("the gateway says {sentence:?}"), PATIENCE, || {
        let refused = gateway.message("after", "after", "after").unwrap();
        assert_eq!((refused.status, &refused.body["error"]["code"]), (503, &Value::from("destroyed")), "{refused:?}");
        error(&refused.body["error"])
    });
    until(&format!("the dashboard says {sentence:?}"), PATIENCE, || {
        let page = said(&dashboard, "/api/sessions");
        page.0 == 503 && serde_json::from_str(&page.1).is_ok_and(|document: Value| error(&document["error"]))
    });
    assert_eq!(said(&gateway, "/readyz").0, 503);
    let verified: Value = serde_json::from_str(&cli(&home, ["--json", "verify"]).stdout).unwrap();
    let check = &verified["checks"][0];
    assert_eq!((&check["id"], &check["status"]), (&Value::from("content.whole"), &Value::from("fail")), "{check}");
    let log = |name: &str| fs::read_to_string(home.path().join(format!("logs/{name}.log"))).unwrap_or_default();
    let end = sentence.split(": ").last().unwrap_or_default().to_owned();
    until("the scheduler says so in its log", PATIENCE, || {
        log("scheduler").contains("destroyed") || log("scheduler").contains(&end)
    });

    // Whoever looks with another program finds what was left.
    let left = what_is_left(&home);
    let acknowledged: Vec<String> = traffic.ledger().acknowledged.keys().cloned().collect();
    let missing = acknowledged.iter().filter(|text| !left.contains(*text)).count();
    say(&format!("{deed:?}: {} acknowledged, {missing} not in what is left", acknowledged.len()));
    up.stop();
    Some((told, marked))
}

/// The texts of the messages that can be read from the evidence that was copied: its main file (or the path's) with its log.
fn what_is_left(home: &Home) -> HashSet<String> {
    let mark: Value =
        serde_json::from_slice(&fs::read(home.path().join("state.db.statehouse/destroyed.json")).unwrap()).unwrap();
    let Some(evidence) = mark["evidence"].as_str().map(std::path::Path::new) else { return HashSet::new() };
    let place = home.around().join("left");
    fs::create_dir_all(&place).unwrap();
    for (member, suffix) in [("main", ""), ("wal", "-wal")] {
        let (kept, to) = (evidence.join(format!("{member}.captured")), place.join(format!("state.db{suffix}")));
        let _ = fs::copy(kept, &to).or_else(|_| fs::copy(home.member(suffix), &to));
    }
    let script = "
import sqlite3, sys
try:
    for (text,) in sqlite3.connect(sys.argv[1]).execute(\"SELECT text FROM message WHERE role='user'\"):
        print(text)
except sqlite3.Error as e:
    print(e, file=sys.stderr)
";
    let mut python = std::process::Command::new(statehouse_testkit::visitor::python());
    python.args(["-I", "-c", script]).arg(place.join("state.db"));
    statehouse_testkit::run(&mut python, PATIENCE).stdout.lines().map(str::to_owned).collect()
}

#[test]
fn what_destroys_bytes_in_place_stops_the_house_before_the_next_acknowledgement() {
    let mut seed = Seed::of_run("what_destroys_bytes_in_place_stops_the_house");
    let rounds = std::env::var("STATEHOUSE_ROUNDS").ok().map_or(ROUNDS, |n| n.parse().unwrap());
    for n in 0..rounds {
        let deed = DEEDS[(n % DEEDS.len() as u64) as usize];
        let (told, marked) = (0..IN_VAIN_AT_MOST)
            .find_map(|_| round(deed, &mut seed))
            .unwrap_or_else(|| panic!("{deed:?} was never noticed"));
        say(&format!("round {n}, {deed:?}: refused after {told:?}, marked after {marked:?}"));
        let _ = std::io::stderr().flush();
        if super::judged() {
            assert!(told < NOTICED && marked < NOTICED, "{deed:?}: {told:?}, {marked:?}");
        }
    }
}
