//! `anchor`: it waits for what it can hold, is known to others, steps aside and comes back, tells what it sees, and keeps what
//! would be nowhere else.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use statehouse_testkit::kernel::{self, Standing};
use statehouse_testkit::peers::hermes_python;
use statehouse_testkit::user::{User, runnable_by_all};
use statehouse_testkit::visitor::python;
use statehouse_testkit::{Child, Finished, Snapshot, TestDir, need, run, wait::until};

use crate::house::{PATIENCE, beside, binary, error_code};

/// A database of another program, closed.
fn database(directory: &TestDir, mode: &str) -> PathBuf {
    let path = directory.join("other.db");
    sql(
        &path,
        &format!("PRAGMA journal_mode={mode}; CREATE TABLE m(id INTEGER PRIMARY KEY, t); INSERT INTO m(t) VALUES('a')"),
    );
    path
}

/// A stranger that opens, works and closes.
fn sql(path: &Path, statements: &str) -> Finished {
    let mut python = Command::new(python());
    python.args(["-I", "-c"]).arg(
        "import sqlite3, sys\n\
         c = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)\n\
         for s in sys.argv[2].split(';'):\n    print(*[r[0] for r in c.execute(s)])\n\
         c.close()",
    );
    run(python.arg(path).arg(statements), PATIENCE).success()
}

/// A process that keeps a database open, with a row that is in the log alone.
struct Victim(Child);

const VICTIM: &str = r#"
import json, os, sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None)
for line in sys.stdin:
    order = json.loads(line)
    if "touch" in order:
        open(order["touch"], "rb").close()
    elif "fork" in order:
        child = os.fork()
        if child == 0:
            time.sleep(3600)
        print(child, flush=True)
        continue
    else:
        connection.execute(order["sql"]).fetchall()
    print("done", flush=True)
"#;

impl Victim {
    fn of(path: &Path) -> Victim {
        let mut victim = Victim(Child::spawn(Command::new(python()).args(["-I", "-c", VICTIM]).arg(path)));
        victim.sql("PRAGMA wal_autocheckpoint=0");
        victim.sql("INSERT INTO m(t) VALUES('held')");
        victim
    }

    fn order(&mut self, order: Value) -> String {
        self.0.send(&order.to_string());
        self.0.line(PATIENCE)
    }

    fn sql(&mut self, sql: &str) {
        assert_eq!(self.order(json!({ "sql": sql })), "done");
    }

    fn loses_its_locks(&mut self, path: &Path) {
        for file in [path, &beside(path, "-shm")] {
            self.order(json!({ "touch": file }));
        }
    }
}

/// The program on a path, away from any home.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).env("STATEHOUSE_HOME", "/nonexistent");
    command
}

pub(crate) struct Anchor(pub(crate) Child);

impl Anchor {
    /// Started, and not waited for.
    fn begin(arguments: &[&str], path: &Path) -> Anchor {
        Anchor(Child::spawn(command(arguments).arg("--json").arg(path)))
    }

    pub(crate) fn on(path: &Path) -> Anchor {
        let mut anchor = Anchor::begin(&["anchor"], path);
        anchor.told("ready");
        anchor
    }

    /// The next event of this name.
    #[track_caller]
    pub(crate) fn told(&mut self, event: &str) -> Value {
        let is = |l: &str| serde_json::from_str::<Value>(l).is_ok_and(|v| v["event"] == event);
        serde_json::from_str(&self.0.line_where(event, PATIENCE, is)).unwrap()
    }

    pub(crate) fn holds(&self, path: &Path) -> bool {
        let standing = Standing::of(self.0.pid(), path);
        standing.shared && standing.dms
    }

    #[track_caller]
    pub(crate) fn stop(mut self) -> Vec<Value> {
        let status = self.0.stop(PATIENCE);
        assert!(status.success(), "{status}: {}", self.0.stderr_text());
        std::iter::from_fn(|| self.0.try_line(PATIENCE)).map(|l| serde_json::from_str(&l).unwrap()).collect()
    }
}

fn pause(path: &Path, program: &[&str]) -> Command {
    let mut command = command(&["anchor", "pause"]);
    command.arg(path).arg("--").args(program);
    command
}

fn remove(path: &Path, suffixes: &[&str]) {
    for suffix in suffixes {
        fs::remove_file(beside(path, suffix)).unwrap();
    }
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_cannot_be_anchored_yet_is_waited_for_without_a_trace() {
    let directory = TestDir::new();
    let below = directory.join("not yet");
    let path = below.join("other.db");
    assert_eq!(run(command(&["anchor", "--json"]).arg(&path), PATIENCE).code(), 4, "without --wait it refuses");
    let mut anchor = Anchor::begin(&["anchor", "--wait"], &path);
    assert_eq!(anchor.told("waiting")["for"], "database");
    assert!(names(directory.path()).is_empty());
    fs::create_dir(&below).unwrap();
    sql(&path, "CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    assert_eq!(anchor.told("waiting")["for"], "wal_mode");
    assert_eq!(names(&below), ["other.db"]);
    assert!(kernel::locks().iter().all(|l| Some(l.file) != kernel::FileId::of(&path)), "it holds nothing");
    // What only somebody who is alone can do.
    sql(&path, "PRAGMA locking_mode=EXCLUSIVE; INSERT INTO m(t) VALUES('alone')");
    assert!(anchor.0.pending_lines().is_empty(), "told once");
    sql(&path, "PRAGMA journal_mode=WAL");
    assert_eq!(anchor.told("anchored")["path"], path.to_str().unwrap());
    anchor.told("ready");
    assert!(anchor.holds(&path));
    assert_eq!(anchor.stop().last().unwrap()["why"], "stopped");
    assert_eq!(names(&below), ["other.db", "other.db-shm"]);

    let never = Anchor::begin(&["anchor", "--wait"], &directory.join("never.db"));
    assert!(never.0.stderr_text().is_empty());
    let mut never = never;
    never.told("waiting");
    assert!(never.stop().is_empty(), "SIGTERM ends the waiting with 0");
}

#[test]
fn what_a_person_must_put_right_is_refused_also_with_wait() {
    let directory = TestDir::new();
    let letter = directory.join("letter.db");
    fs::write(&letter, "dear friend".repeat(100)).unwrap();
    symlink(&letter, directory.join("link.db")).unwrap();
    let before = Snapshot::of(directory.path(), &[]);
    for (name, code) in [("letter.db", "refused_not_database"), ("link.db", "refused_symlink")] {
        let done = run(command(&["anchor", "--wait", "--json"]).arg(directory.join(name)), PATIENCE);
        assert_eq!((done.code(), error_code(&done).as_str()), (4, code));
    }
    let rollback = TestDir::new();
    let done = run(command(&["anchor"]).arg(database(&rollback, "delete")), PATIENCE);
    assert!(done.code() == 4 && done.stderr.contains("--wait"), "{done:?}");
    before.assert_unchanged(directory.path(), &[]);
}

#[test]
fn an_anchor_is_known_and_leaves_nothing_beside_the_database_of_another_program() {
    let directory = TestDir::new();
    let path = database(&directory, "wal");
    let first = Anchor::on(&path);
    let second = Anchor::on(&path);
    let report = run(command(&["holders", "--json"]).arg(&path), PATIENCE).success().json();
    let roles: Vec<&Value> = report["holders"].as_array().unwrap().iter().map(|h| &h["role"]).collect();
    assert_eq!(roles, ["anchor", "anchor"], "{report}");
    let status = run(command(&["status", "--json"]).arg(&path), PATIENCE).success().json();
    assert_eq!(status["members"].as_array().unwrap().len(), 2, "{status}");
    assert!(first.holds(&path) && second.holds(&path));
    first.stop();
    assert!(second.holds(&path));
    assert!(beside(&path, ".statehouse").exists());
    second.stop();
    assert_eq!(names(directory.path()), ["other.db", "other.db-shm"]);

    // One that is killed cannot clear up; the next one does it.
    let mut killed = Anchor::on(&path);
    killed.0.kill();
    assert!(beside(&path, ".statehouse").exists());
    Anchor::on(&path).stop();
    assert_eq!(names(directory.path()), ["other.db", "other.db-shm"]);
}

#[test]
fn a_pause_lets_a_foreign_program_do_its_own_maintenance_and_the_anchor_comes_back() {
    let directory = TestDir::new();
    let path = database(&directory, "wal");
    let mut anchor = Anchor::on(&path);
    let flip = |mode: &str| format!("sqlite3 \"$1\" 'PRAGMA journal_mode={mode}' 2>&1");
    // The control: beside an anchor nobody leaves WAL mode.
    let mut beside_it = Command::new("sh");
    let refused = run(beside_it.args(["-c", &flip("DELETE"), "sh"]).arg(&path), PATIENCE);
    assert!(refused.stdout.contains("locked"), "{refused:?}");
    let script = format!("{}; umask; {}; exit 7", flip("DELETE"), flip("WAL"));
    let done = run(&mut pause(&path, &["sh", "-c", &script, "sh", path.to_str().unwrap()]), PATIENCE);
    assert_eq!(done.code(), 7, "{done:?}");
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!((lines[0], lines[2]), ("delete", "wal"), "{done:?}");
    let own = run(Command::new("sh").args(["-c", "umask"]), PATIENCE);
    assert_eq!(lines[1], own.stdout.trim(), "the command makes files as it would without us");
    let released = anchor.told("released");
    assert_eq!((&released["why"], &released["pid"]), (&json!("maintenance"), &json!(anchor.0.pid())));
    anchor.told("anchored");
    assert!(anchor.holds(&path));

    // By a signal, and without an anchor.
    assert_eq!(run(&mut pause(&path, &["sh", "-c", "kill -KILL $$"]), PATIENCE).code(), 128 + 9);
    assert_eq!(run(&mut pause(&path, &["/nonexistent/program"]), PATIENCE).code(), 1);
    anchor.told("anchored");
    anchor.stop();
    assert_eq!(run(&mut pause(&path, &["sh", "-c", "exit 3"]), PATIENCE).code(), 3);
    assert!(!beside(&path, ".statehouse").exists());
    assert_eq!(run(command(&["anchor", "pause"]).arg(&path), PATIENCE).code(), 2, "no command is an error of usage");
    let missing =
        run(command(&["anchor", "pause", "--json"]).arg(directory.join("no.db")).args(["--", "true"]), PATIENCE);
    assert_eq!((missing.code(), error_code(&missing).as_str()), (4, "no_store"));
}

#[test]
fn a_pause_passes_signals_on_and_a_killed_one_lets_the_anchor_come_back() {
    let directory = TestDir::new();
    let path = database(&directory, "wal");
    let mut anchor = Anchor::on(&path);
    for (signal, status) in [(Signal::TERM, 15), (Signal::INT, 2)] {
        let said = format!("trap 'echo told; exit {status}' TERM INT; echo begun; while :; do sleep 0.02; done");
        let mut paused = Child::spawn(&mut pause(&path, &["sh", "-c", &said]));
        assert_eq!(paused.line(PATIENCE), "begun");
        assert!(!anchor.holds(&path));
        paused.signal(signal);
        assert_eq!(paused.line(PATIENCE), "told");
        assert_eq!(paused.wait(PATIENCE).code(), Some(status));
        anchor.told("anchored");
    }
    let mut paused = Child::spawn(&mut pause(&path, &["sh", "-c", "echo begun; sleep 3600"]));
    assert_eq!(paused.line(PATIENCE), "begun");
    anchor.told("released");
    assert!(!anchor.holds(&path));
    paused.kill();
    anchor.told("anchored");
    assert!(anchor.holds(&path));
    anchor.stop();
}

#[test]
fn two_pauses_at_once_keep_the_anchor_aside_until_the_last_one_ends() {
    let directory = TestDir::new();
    let path = database(&directory, "wal");
    let mut anchor = Anchor::on(&path);
    let wait = ["sh", "-c", "echo begun; read line"];
    let mut first = Child::spawn(&mut pause(&path, &wait));
    let mut second = Child::spawn(&mut pause(&path, &wait));
    first.line(PATIENCE);
    second.line(PATIENCE);
    first.send("go on");
    assert!(first.wait(PATIENCE).success());
    // Whether it stays away can only be seen by asking for longer than it takes to come back.
    let begun = Instant::now();
    until("time to come back", PATIENCE, || {
        assert!(!anchor.holds(&path));
        begun.elapsed() > Duration::from_millis(800)
    });
    second.send("go on");
    assert!(second.wait(PATIENCE).success());
    anchor.told("released");
    anchor.told("anchored");
    assert_eq!(anchor.stop().len(), 1, "it went once and came back once");
}

#[test]
fn a_pause_is_refused_beside_a_process_that_needs_the_anchor() {
    let directory = TestDir::new();
    let path = database(&directory, "wal");
    let mut anchor = Anchor::on(&path);
    let mut victim = Victim::of(&path);
    victim.loses_its_locks(&path);
    let mark = directory.join("ran");
    let touch = ["touch", mark.to_str().unwrap()];
    let refuse = |code: &str, pid: u32| {
        let mut command = command(&["--json", "anchor", "pause"]);
        let done = run(command.arg(&path).arg("--").args(touch), PATIENCE);
        assert_eq!((done.code(), error_code(&done).as_str()), (4, code), "{done:?}");
        let error = &done.json()["error"];
        assert!(error["detail"].as_str().unwrap().contains(&format!("PID {pid} ")), "{error}");
        assert!(!error["hint"].as_str().unwrap().is_empty());
        assert!(!mark.exists(), "nothing was run");
    };
    refuse("refused_held_naked", victim.0.pid());
    assert!(anchor.holds(&path), "it stays");
    victim.0.kill();

    // A ghost: its files were removed.
    let ghost = Victim::of(&path);
    remove(&path, &["", "-wal", "-shm"]);
    anchor.told("ghost");
    sql(&path, "PRAGMA journal_mode=WAL; CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    anchor.told("anchored");
    refuse("refused_held_retired", ghost.0.pid());
    drop(ghost);
    anchor.stop();
}

#[test]
fn an_anchor_that_does_not_answer_is_named_and_nothing_is_run() {
    let directory = TestDir::new();
    let path = database(&directory, "wal");
    let anchor = Anchor::on(&path);
    anchor.0.signal(Signal::STOP);
    let begun = Instant::now();
    let mark = directory.join("ran");
    let done = run(pause(&path, &["touch", mark.to_str().unwrap()]).env("LANG", "C"), PATIENCE);
    assert_eq!(done.code(), 4, "{done:?}");
    assert!(done.stderr.contains(&format!("PID {}", anchor.0.pid())), "{done:?}");
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert!(!mark.exists());
    anchor.0.signal(Signal::CONT);
    assert!(anchor.holds(&path));
    anchor.stop();
}

#[test]
fn naked_processes_and_ghosts_are_told_within_two_seconds_and_the_anchor_never_tells_itself() {
    let directory = TestDir::new();
    let path = database(&directory, "wal");
    let (mut anchor, mut other) = (Anchor::on(&path), Anchor::on(&path));
    let mut victim = Victim::of(&path);
    // The anchor looks at everybody as long as the locks on the files have changed a moment ago, which must not help it here.
    let opened = Instant::now();
    until("the opening is old news", PATIENCE, || opened.elapsed() > Duration::from_secs(3));
    // A child has its parent's files and none of its locks, and nothing is lost by that which could be noticed.
    let begun = Instant::now();
    let child: u64 = victim.order(json!({ "fork": true })).parse().unwrap();
    let naked = anchor.told("naked_holder");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(naked["pid"], child, "{naked}");
    let begun = Instant::now();
    victim.loses_its_locks(&path);
    let naked = anchor.told("naked_holder");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(naked["pid"], victim.0.pid());
    let begun = Instant::now();
    remove(&path, &["-wal", "-shm"]);
    let ghost = anchor.told("ghost");
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!([u64::from(victim.0.pid()), child].contains(&ghost["pid"].as_u64().unwrap()), "{ghost}");
    other.told("ghost");
    let own = [anchor.0.pid(), other.0.pid()];
    drop(victim);
    for anchor in [anchor, other] {
        let told = anchor.stop();
        let of_own = |e: &&Value| ["ghost", "naked_holder"].contains(&e["event"].as_str().unwrap());
        let about: Vec<u32> =
            told.iter().filter(of_own).filter_map(|e| u32::try_from(e["pid"].as_u64()?).ok()).collect();
        assert!(about.iter().all(|pid| !own.contains(pid)), "{told:#?}");
    }
}

/// `rm state.db*`, then `kill -9` of the only process that had the files: every row is still to be had.
#[test]
fn after_rm_and_kill_every_row_can_be_read_through_the_anchor() {
    let directory = TestDir::new();
    let path = database(&directory, "wal");
    let mut anchor = Anchor::on(&path);
    let mut victim = Victim::of(&path);
    until("the log is held", PATIENCE, || {
        kernel::descriptors(anchor.0.pid()).iter().any(|d| d.path == beside(&path, "-wal"))
    });
    remove(&path, &["", "-wal", "-shm"]);
    assert_eq!(anchor.told("released")["why"], "retired");
    let keeping = anchor.told("keeping");
    assert!(!anchor.holds(&path));
    for n in 0..10 {
        victim.sql(&format!("INSERT INTO m(t) VALUES('into the void {n}')"));
    }
    victim.0.kill();
    // Others go on at once: it is in nobody's way.
    sql(
        &path,
        "PRAGMA journal_mode=WAL; CREATE TABLE m(id INTEGER PRIMARY KEY, t); PRAGMA journal_mode=DELETE; PRAGMA journal_mode=WAL",
    );
    anchor.told("anchored");
    let report = run(command(&["holders", "--json"]).arg(&path), PATIENCE).success().json();
    assert_eq!(report["holders"].as_array().unwrap().len(), 1, "{report}");
    assert_eq!((&report["holders"][0]["naked"], &report["holders"][0]["ghost"]), (&json!(false), &json!(false)));
    let proof = run(command(&["verify", "--write", "--json"]).arg(&path), PATIENCE).success().json();
    let current = proof["checks"].as_array().unwrap().iter().find(|c| c["id"] == "generation.current").unwrap();
    assert_eq!((&proof["healthy"], &current["status"]), (&json!(true), &json!("info")), "{proof}");

    let saved = directory.join("saved.db");
    for file in keeping["files"].as_array().unwrap() {
        let suffix = if file["member"] == "main" { "" } else { "-wal" };
        fs::copy(format!("/proc/{}/fd/{}", keeping["pid"], file["descriptor"]), beside(&saved, suffix)).unwrap();
    }
    assert_eq!(
        sql(&saved, "SELECT count(*) FROM m WHERE t IN ('a', 'held') OR t LIKE 'into the void %'").stdout.trim(),
        "12"
    );
    assert_eq!(sql(&saved, "PRAGMA integrity_check").stdout.trim(), "ok");
    let told = anchor.stop();
    assert!(
        told.iter().any(|e| e["event"] == "let_go" && e["why"] == "captured"),
        "it is said that they go: {told:#?}"
    );
    // They went into a capture first.
    let captures = run(command(&["retired", "list", "--json"]).arg(&path), PATIENCE).success().json();
    let image = Path::new(captures[0]["place"].as_str().unwrap()).join("main.captured");
    assert_eq!(
        sql(&image, "SELECT count(*) FROM m WHERE t IN ('a', 'held') OR t LIKE 'into the void %'").stdout.trim(),
        "12"
    );
}

#[test]
fn no_more_than_four_retired_generations_are_kept() {
    let directory = TestDir::new();
    let path = database(&directory, "wal");
    let mut anchor = Anchor::on(&path);
    for round in 0..6 {
        let victim = Victim::of(&path);
        until("the log is held", PATIENCE, || {
            kernel::descriptors(anchor.0.pid()).iter().any(|d| d.path == beside(&path, "-wal") && !d.deleted)
        });
        remove(&path, &["", "-wal", "-shm"]);
        if round >= 4 {
            assert_eq!(anchor.told("let_go")["why"], "crowded_out");
        }
        anchor.told("keeping");
        drop(victim);
        sql(&path, "PRAGMA journal_mode=WAL; CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
        anchor.told("anchored");
    }
    let deleted = kernel::descriptors(anchor.0.pid()).iter().filter(|d| d.deleted).count();
    assert_eq!(deleted, 12, "main file, log and index of four generations");
    anchor.stop();
}

#[test]
fn a_directory_that_is_removed_and_made_again_is_anchored_again() {
    let directory = TestDir::new();
    let below = directory.join("below");
    fs::create_dir(&below).unwrap();
    let path = below.join("other.db");
    let make = |path: &Path| sql(path, "PRAGMA journal_mode=WAL; CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    make(&path);
    // The way there leads through a link, as it does where a home lies on another disk.
    let link = directory.join("link");
    symlink(&below, &link).unwrap();
    let mut anchor = Anchor::on(&link.join("other.db"));
    assert!(anchor.holds(&path));
    fs::remove_dir_all(&below).unwrap();
    assert_eq!(anchor.told("released")["why"], "retired");
    assert_eq!(anchor.told("waiting")["for"], "database");
    fs::create_dir(&below).unwrap();
    make(&path);
    anchor.told("anchored");
    assert!(anchor.holds(&path));
    let done = run(&mut pause(&link.join("other.db"), &["true"]), PATIENCE);
    assert_eq!(done.code(), 0, "{done:?}");
    anchor.told("released");
    anchor.told("anchored");
    anchor.stop();
    assert_eq!(names(&below), ["other.db", "other.db-shm"]);
}

#[test]
fn root_anchors_the_database_of_another_user_who_goes_on_using_it() {
    if !need::root("acting as another user") {
        return;
    }
    let directory = TestDir::new();
    let path = database(&directory, "wal");
    User::OWNER.owns(directory.path());
    let mut anchor = Anchor::on(&path);
    let side = beside(&path, ".statehouse");
    for file in [beside(&path, "-shm"), side.clone(), side.join("members"), side.join("admission.lock")] {
        assert_eq!(fs::symlink_metadata(&file).unwrap().uid(), User::OWNER.0, "{}", file.display());
    }
    for record in fs::read_dir(side.join("members")).unwrap() {
        assert_eq!(record.unwrap().metadata().unwrap().uid(), User::OWNER.0);
    }
    // The owner writes, and asks root's anchor to step aside.
    let program = runnable_by_all(binary(), directory.path());
    let insert = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute(\"INSERT INTO m(t) VALUES('mine')\"); c.commit()";
    let mut owner = Command::new("python3");
    owner.args(["-I", "-c", insert]).arg(&path).current_dir(directory.path());
    run(User::OWNER.runs(&mut owner), PATIENCE).success();
    let mut paused = Command::new(program);
    paused
        .args(["anchor", "pause"])
        .arg(&path)
        .args(["--", "true"])
        .env("HOME", directory.path())
        .current_dir(directory.path());
    run(User::OWNER.runs(&mut paused), PATIENCE).success();
    assert_eq!(anchor.told("released")["why"], "maintenance");
    anchor.told("anchored");
    anchor.stop();
    assert!(!side.exists());
}

#[test]
fn systemd_takes_the_units_as_they_are() {
    let directory = TestDir::new();
    for odd in ["plain", "a b", "100% %h", "it's \"quoted\"", "back\\slash", "$HOME ${X}", "日本語", ";"] {
        let home = directory.join(odd);
        let database = home.join("state.db");
        for (what, path) in [("anchor", &database), ("up", &home)] {
            for user in [false, true] {
                let mut print = command(&["service", "print", what]);
                print.arg(path);
                if user {
                    print.arg("--user");
                }
                let unit = run(&mut print, PATIENCE).success().stdout;
                let start = unit.lines().find(|l| l.starts_with("ExecStart=")).unwrap();
                assert!(start.contains(binary().to_str().unwrap()), "{start}");
                verify(&directory, &unit, user);
            }
        }
    }
    // That the check finds anything at all.
    let wrong = run(&mut command(&["service", "print", "anchor", "/x.db"]), PATIENCE)
        .success()
        .stdout
        .replace("ExecStart=:/", "ExecStart=:/nonexistent/");
    if let Some(done) = verified(&directory, &wrong, false) {
        assert!(!done.status.success() || !done.stderr.is_empty(), "{done:?}");
    }
    let json = run(&mut command(&["service", "print", "anchor", "/srv/x.db", "--json"]), PATIENCE).success().json();
    assert_eq!(json["name"], "statehouse-anchor-srv-x.db.service");
    for missing in ["guard", "watch", "nonsense"] {
        let done = run(&mut command(&["service", "print", missing]), PATIENCE);
        assert_eq!(done.code(), 2, "{done:?}");
    }
}

fn verified(directory: &TestDir, unit: &str, user: bool) -> Option<Finished> {
    let program = need::command_of_the_system("systemd-analyze")?;
    let file = directory.join("statehouse-test.service");
    fs::write(&file, unit).unwrap();
    let mut analyze = Command::new(program);
    // A user's manager looks for a place to keep things in; none is made outside the test.
    analyze.env("XDG_RUNTIME_DIR", directory.path()).env("HOME", directory.path());
    analyze.args(["verify", "--man=no"]).args(user.then_some("--user")).arg(file);
    Some(run(&mut analyze, PATIENCE))
}

#[track_caller]
fn verify(directory: &TestDir, unit: &str, user: bool) {
    if let Some(done) = verified(directory, unit, user) {
        let about_it: Vec<&str> = done.stderr.lines().filter(|l| l.contains("statehouse")).collect();
        assert!(about_it.is_empty(), "{about_it:#?}\n{unit}");
    }
}

/// The unmodified hermes-agent with its store open, which appends and makes its own repair's backup when it is told to.
const HERMES: &str = r#"
import sys
from pathlib import Path
import hermes_state
path = Path(sys.argv[1])
store = hermes_state.SessionDB(db_path=path)
store.create_session("s1", "cli")
print("open", flush=True)
for n, line in enumerate(sys.stdin):
    if line.strip() == "backup":
        assert hermes_state._backup_db_file(path) is not None
    else:
        store.append_message("s1", "user", f"message {n}")
    print("done", flush=True)
"#;

struct Run {
    acknowledged: usize,
    kept: usize,
    sidecars_stayed: bool,
    told: Vec<String>,
}

fn hermes(interpreter: &Path, anchored: bool) -> Run {
    let directory = TestDir::new();
    let store = directory.join("state.db");
    let settings = |command: &mut Command| {
        command.env("HERMES_HOME", directory.path()).env("HOME", directory.path()).current_dir(directory.path());
    };
    let mut start = Command::new(interpreter);
    settings(start.args(["-c", HERMES]).arg(&store));
    let mut victim = Child::spawn(&mut start);
    assert_eq!(victim.line(PATIENCE), "open");
    let mut acknowledged = 0;
    let mut append = |victim: &mut Child, n: usize| {
        for _ in 0..n {
            victim.send("append");
            // Without an anchor it may die of what was done to its index.
            if victim.try_line(PATIENCE).is_none() {
                return;
            }
            acknowledged += 1;
        }
    };
    append(&mut victim, 10);
    let mut anchor = anchored.then(|| Anchor::on(&store));
    let before = kernel::generation(&store);
    victim.send("backup");
    assert_eq!(victim.line(PATIENCE), "done");
    let standing = Standing::of(victim.pid(), &store);
    assert!(!standing.shared && !standing.dms, "its own backup drops its locks: {standing:?}");
    let told = anchor.as_mut().map(|a| a.told("naked_holder")).filter(|e| e["pid"] == victim.pid());
    assert_eq!(told.is_some(), anchored);
    for _ in 0..3 {
        let mut stats = Command::new(interpreter.with_file_name("hermes"));
        settings(stats.args(["sessions", "stats"]));
        run(&mut stats, PATIENCE).success();
    }
    let sidecars_stayed = kernel::generation(&store) == before;
    append(&mut victim, 25);
    victim.kill();
    let told = anchor.map(|a| a.stop().iter().map(|e| e["event"].as_str().unwrap().to_owned()).collect());
    let count = sql(&store, "SELECT count(*) FROM messages WHERE session_id='s1'").stdout;
    assert_eq!(sql(&store, "PRAGMA integrity_check").stdout.trim(), "ok");
    Run { acknowledged, kept: count.trim().parse().unwrap(), sidecars_stayed, told: told.unwrap_or_default() }
}

#[test]
fn hermes_drops_its_own_locks_and_with_an_anchor_nothing_that_it_acknowledged_is_lost() {
    let Some(interpreter) = hermes_python() else { return };
    let (with, without) = std::thread::scope(|scope| {
        let with = scope.spawn(|| hermes(&interpreter, true));
        let without = scope.spawn(|| hermes(&interpreter, false));
        (with.join().unwrap(), without.join().unwrap())
    });
    assert!(with.sidecars_stayed, "nothing is unlinked");
    assert_eq!((with.acknowledged, with.kept), (35, 35));
    assert_eq!(with.told, ["released"], "and nothing else was wrong");
    assert!(!without.sidecars_stayed, "the control: a visitor of its own takes the files away");
    assert!(
        without.kept < without.acknowledged,
        "the control lost nothing: {} of {}",
        without.kept,
        without.acknowledged
    );
}

#[test]
fn an_idle_anchor_is_small() {
    let directory = TestDir::new();
    let path = database(&directory, "wal");
    let anchor = Anchor::on(&path);
    // A build without optimisation is larger than one that is used; `cargo xtask bench` has the figures of that.
    let limit = if cfg!(debug_assertions) { 8 << 20 } else { 6_000_000 };
    until("pages that only the start needed are given back", PATIENCE, || {
        kernel::usage(anchor.0.pid()).is_some_and(|(resident, _)| resident < limit)
    });
    anchor.stop();
}
