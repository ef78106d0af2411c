//! The acceptance run: gateway, dashboard and scheduler stay on one store while fifty workers and a hundred strangers come
//! and go, and while our own processes open and close all three files by ordinary means between their writes.
//!
//! The same run is done four times. With the lock core and the anchor both out of action it must lose the sidecars:
//! otherwise it would provoke nothing, and the other three would prove nothing. Nothing in the product knows of this: the
//! sabotage comes from outside (`statehouse_testkit::stray`), and what happened is read from the kernel.

use std::fs;
use std::time::Duration;

use serde_json::Value;
use statehouse_testkit::kernel::{self, FileId, Standing};
use statehouse_testkit::stray::Stray;
use statehouse_testkit::visitor::{Python, shell_once};
use statehouse_testkit::{Finished, Home, need, run, until};

use crate::house::{Client, PATIENCE, Service, error_code, furnished, integrity, messages, statehouse};

const WORKERS: usize = 50;
const RESIDENTS: [&str; 3] = ["gateway", "dashboard", "scheduler"];

/// What of the product is in action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Protection {
    lock_core: bool,
    anchor: bool,
}

/// A house in the middle of an acceptance run.
struct Run {
    home: Home,
    stray: Stray,
    residents: Vec<Service>,
    anchor: Option<Service>,
    /// What the three names led to when the run began.
    generation: [Option<FileId>; 3],
    /// What the gateway has acknowledged.
    acknowledged: Vec<String>,
    /// Rows that strangers were told are committed.
    visits: Vec<String>,
    seen: Seen,
}

/// What was seen on the way, at the end of each round.
#[derive(Debug, Default)]
struct Seen {
    /// The names led to other files than at the beginning, or to none.
    sidecars_lost: Vec<usize>,
    /// A resident held a deleted file.
    deleted: Vec<(usize, String)>,
    /// A resident had lost a lock.
    naked: Vec<(usize, String)>,
    /// A worker did not do its work.
    workers_failed: Vec<Finished>,
    /// A stranger did not do its work.
    strangers_failed: Vec<String>,
    /// The dashboard did not show its list.
    pages_failed: Vec<String>,
    /// A message was not acknowledged.
    messages_failed: Vec<String>,
}

impl Run {
    fn new(protection: Protection) -> Run {
        let home = furnished(Home::new());
        fs::write(home.path().join("config.toml"), "[scheduler]\nhousekeeping_every = \"1s\"\n").unwrap();
        let mut stray = Stray::at(&home.store(), &home.around().join("tally")).only_in(&[
            "gateway",
            "dashboard",
            "scheduler",
            "worker",
        ]);
        if !protection.lock_core {
            // Inside a transaction the write lock would be dropped with the others, and two writers at once destroy a
            // database whatever holds the sidecars in place. The core has to stand that too; an anchor cannot.
            // And while one of ours is naked, no other of ours opens the store: all must be there before it begins.
            stray = stray.without_lock_core().between_transactions().held_back();
        }
        let anchor = protection.anchor.then(|| Service::start(&home, "anchor", |_| {}));
        let residents = RESIDENTS
            .map(|name| {
                Service::start(&home, name, |c| {
                    stray.arms(c);
                })
            })
            .into();
        let mut run = Run {
            home,
            stray,
            residents,
            anchor,
            generation: [None; 3],
            acknowledged: Vec::new(),
            visits: Vec::new(),
            seen: Seen::default(),
        };
        run.say(0);
        run.stray.begin();
        run.generation = kernel::generation(&run.home.store());
        assert!(run.generation.iter().all(Option::is_some), "all three files are there");
        run
    }

    fn gateway(&self) -> Client {
        Client::new(&self.residents[0].url, &self.home.token())
    }

    fn dashboard(&self) -> Client {
        Client::new(&self.residents[1].url, &self.home.token())
    }

    fn say(&mut self, round: usize) {
        let text = format!("round {round} of the acceptance run");
        match self.gateway().message("acceptance", &format!("round-{round}"), &text) {
            Ok(answered) if answered.status == 200 => self.acknowledged.push(text),
            other => self.seen.messages_failed.push(format!("{other:?}")),
        }
    }

    /// A look at the dashboard, as a browser that is left open takes it.
    fn watch(&mut self) {
        match self.dashboard().get("/") {
            Ok((200, _)) => {}
            other => self.seen.pages_failed.push(format!("{other:?}")),
        }
    }

    /// One worker, one `sqlite3`, one Python; each opens, writes, changes the schema and closes. A message comes in while
    /// they are at it.
    fn round(&mut self, round: usize) {
        let job = if round.is_multiple_of(2) { "ddl-check" } else { "housekeeping" };
        let mut worker = statehouse(&self.home, ["worker", "run", job, "--json"]);
        self.stray.arms(&mut worker);
        let store = self.home.store();
        let (by_shell, by_python) = (format!("shell {round}"), format!("python {round}"));
        let visit = |who: &str| {
            format!(
                "CREATE TABLE IF NOT EXISTS visit(who TEXT PRIMARY KEY);\n\
                 BEGIN IMMEDIATE; INSERT INTO visit VALUES('{who}'); COMMIT;\n\
                 CREATE TABLE \"scratch {who}\"(x); INSERT INTO \"scratch {who}\" VALUES(1); DROP TABLE \"scratch {who}\";"
            )
        };
        let (worked, shell, python) = std::thread::scope(|scope| {
            let worker = scope.spawn(|| run(&mut worker, PATIENCE));
            let shell = scope.spawn(|| shell_once(&store, &visit(&by_shell)).expect("there is a sqlite3"));
            let python = scope.spawn(|| {
                let mut python = Python::open(&store);
                let statements = visit(&by_python).replace('\n', " ");
                let outcome: Result<Vec<_>, _> =
                    statements.split(';').filter(|s| !s.trim().is_empty()).map(|s| python.sql(s)).collect();
                python.quit();
                outcome.map(|_| ())
            });
            self.say(round);
            self.watch();
            (worker.join().unwrap(), shell.join().unwrap(), python.join().unwrap())
        });
        if !worked.status.success() {
            self.seen.workers_failed.push(worked);
        }
        match shell.status.success() && shell.stderr.is_empty() {
            true => self.visits.push(by_shell),
            false => self.seen.strangers_failed.push(format!("{by_shell}: {}", shell.stderr)),
        }
        match python {
            Ok(()) => self.visits.push(by_python),
            Err(error) => self.seen.strangers_failed.push(format!("{by_python}: {error}")),
        }
        self.look(round);
    }

    fn look(&mut self, round: usize) {
        let store = self.home.store();
        if kernel::generation(&store) != self.generation {
            self.seen.sidecars_lost.push(round);
        }
        for resident in &self.residents {
            let standing = Standing::of(resident.pid(), &store);
            if standing.deleted {
                self.seen.deleted.push((round, resident.name.clone()));
            }
            if !standing.whole() {
                self.seen.naked.push((round, format!("{} {standing:?}", resident.name)));
            }
        }
    }

    fn all_rounds(&mut self) {
        for round in 1..=WORKERS {
            self.round(round);
        }
    }

    /// The sabotage really happened, in each resident, on each of the three files.
    fn assert_sabotaged(&self, protection: Protection) {
        for resident in &self.residents {
            let tally = self.stray.tally(resident.pid()).unwrap_or_else(|| panic!("{} was spared", resident.name));
            // Between transactions there are as many gaps as transactions; a scheduler has few.
            let least = if protection.lock_core { 20 } else { 3 };
            assert!(tally.opened.iter().all(|n| *n >= least), "{}: {tally:?}", resident.name);
            assert_eq!(tally.translated > 0, !protection.lock_core, "{}: {tally:?}", resident.name);
            let naked = self.seen.naked.iter().any(|(_, what)| what.starts_with(&resident.name));
            assert_eq!(naked, !protection.lock_core, "{}: {:#?}", resident.name, self.seen);
        }
        let workers = self.stray.victims().len() - self.residents.len();
        assert!(workers >= WORKERS, "only {workers} workers were sabotaged");
    }

    /// Nothing happened to the files, and everything that was acknowledged is there.
    fn assert_files_kept(&self) {
        let seen = &self.seen;
        assert!(seen.sidecars_lost.is_empty(), "sidecars replaced: {seen:#?}");
        assert!(seen.deleted.is_empty(), "deleted files held: {seen:#?}");
        assert_eq!(kernel::generation(&self.home.store()), self.generation);
    }

    fn assert_all_worked(&self) {
        let seen = &self.seen;
        assert!(seen.workers_failed.is_empty(), "{seen:#?}");
        assert!(seen.strangers_failed.is_empty(), "{seen:#?}");
        assert!(seen.messages_failed.is_empty(), "{seen:#?}");
        assert!(seen.pages_failed.is_empty(), "{seen:#?}");
    }

    fn assert_rows_kept(&self) {
        let rows = messages(&self.home);
        for text in &self.acknowledged {
            let count = rows.iter().filter(|r| r.1 == "user" && r.2 == *text).count();
            assert_eq!(count, 1, "acknowledged, and {count} times there: {text}");
        }
        let visits = shell_once(&self.home.store(), "SELECT who FROM visit").expect("there is a sqlite3").success();
        let there: Vec<&str> = visits.stdout.lines().collect();
        for who in &self.visits {
            assert!(there.contains(&who.as_str()), "the committed visit of {who} is lost");
        }
        assert_eq!(integrity(&self.home.store()).as_deref(), Some("ok"));
    }

    /// Gateway and dashboard still read and write, and say themselves that they are well.
    fn assert_alive(&self) {
        let told = self.gateway().talk("acceptance", "afterwards", "are you still there?");
        let session = told["session_id"].as_str().unwrap().to_owned();
        let (status, ready) = self.gateway().get("/readyz").unwrap();
        let ready: Value = serde_json::from_str(&ready).unwrap();
        assert!(status == 200 && ready["ready"] == true, "{ready}");
        let dashboard = self.dashboard();
        let page = format!("/sessions/{session}");
        until("the dashboard shows the newest message", PATIENCE, || {
            dashboard.get(&page).is_ok_and(|(status, body)| status == 200 && body.contains("are you still there?"))
        });
    }

    /// `kill -9` with a turn in the air; the new gateway takes it up, and the conversation is the same one.
    fn assert_resumes(&mut self) {
        let before = self.gateway().talk("acceptance", "before the kill", "who am I?");
        let pending = self.gateway().message("acceptance", "in the air", "answer me after the kill").unwrap();
        self.residents[0].child.kill();
        let stray = &self.stray;
        self.residents[0] = Service::start(&self.home, "gateway", |c| {
            stray.arms(c);
        });
        let after = self.gateway().talk("acceptance", "after the kill", "and now?");
        assert_eq!(before["session_id"], after["session_id"]);
        assert_eq!(before["session_id"], pending.body["session_id"]);
        until("the interrupted turn is answered, once", Duration::from_secs(60), || {
            let rows = messages(&self.home);
            let of =
                |role: &str| rows.iter().filter(|r| r.1 == role && r.2.contains("answer me after the kill")).count();
            assert!(of("user") == 1 && of("assistant") <= 1, "{rows:?}");
            of("assistant") == 1
        });
        let again = self.gateway().message("acceptance", "in the air", "answer me after the kill").unwrap();
        assert_eq!(again.body["duplicate"], true, "{again:?}");
    }

    fn assert_anchored(&self) {
        let anchor = self.anchor.as_ref().expect("this run has an anchor");
        let standing = Standing::of(anchor.pid(), &self.home.store());
        assert!(standing.shared && standing.dms && !standing.deleted, "{standing:?}");
    }
}

fn with_everything(protection: Protection) {
    if need::command("sqlite3").is_none() {
        return;
    }
    let mut run = Run::new(protection);
    run.all_rounds();
    run.assert_sabotaged(protection);
    run.assert_files_kept();
    assert!(run.seen.naked.is_empty(), "locks lost: {:#?}", run.seen);
    if protection.anchor {
        run.assert_anchored();
    }
    run.assert_all_worked();
    run.assert_rows_kept();
    run.assert_alive();
    run.assert_resumes();
    run.look(WORKERS + 1);
    run.assert_files_kept();
    assert!(run.seen.naked.is_empty(), "locks lost after the restart: {:#?}", run.seen);
    run.assert_rows_kept();
}

#[test]
fn with_lock_core_and_anchor() {
    with_everything(Protection { lock_core: true, anchor: true });
}

#[test]
fn with_the_lock_core_alone() {
    with_everything(Protection { lock_core: true, anchor: false });
}

#[test]
fn with_the_anchor_alone_the_files_stay_though_our_locks_are_lost() {
    let protection = Protection { lock_core: false, anchor: true };
    if need::command("sqlite3").is_none() {
        return;
    }
    let mut run = Run::new(protection);
    run.all_rounds();
    run.assert_sabotaged(protection);
    assert!(!run.seen.naked.is_empty(), "the lock core was in action in the run without it");
    run.assert_files_kept();
    run.assert_anchored();
    run.assert_rows_kept();
    // Strangers are served; a worker of ours may see that others are naked, and then says so instead of joining them.
    assert!(run.seen.strangers_failed.is_empty(), "{:#?}", run.seen);
    for worker in &run.seen.workers_failed {
        assert_eq!(error_code(worker), "refused_held_naked", "{worker:#?}");
    }
}

#[test]
fn with_neither_the_sidecars_are_lost() {
    let protection = Protection { lock_core: false, anchor: false };
    if need::command("sqlite3").is_none() {
        return;
    }
    let mut run = Run::new(protection);
    for round in 1..=WORKERS {
        run.round(round);
        if !run.seen.sidecars_lost.is_empty() {
            break;
        }
    }
    assert!(!run.seen.naked.is_empty(), "no lock was lost: the sabotage does nothing");
    assert!(
        !run.seen.sidecars_lost.is_empty(),
        "the sidecars survived, so the other runs prove nothing: {:#?}",
        run.seen
    );
}
