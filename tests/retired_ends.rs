//! How a process that lost its files is ended, as it is told: what others have written since stays whole, and no row is lost
//! between the copy and the end. And what is said where nothing can be told for certain.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use statehouse_testkit::{Child, TestDir, run};

use crate::house::{PATIENCE, beside, binary, error_code};
use crate::retired_merge::{Program, command, merge, number, retired, sql};

/// A program that has lost its locks, of which a visitor has removed the log, and that goes on with five rows; others have written 300
/// since.
fn ghost_beside_a_second_generation(path: &Path) -> Program {
    sql(path, "PRAGMA journal_mode=wal;CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    let mut ghost = Program::on(path);
    ghost.sql(&["INSERT INTO m(t) VALUES('before')"]);
    ghost.touch(&[path.to_owned(), beside(path, "-shm")]);
    sql(path, "SELECT count(*) FROM m");
    assert!(!beside(path, "-wal").exists(), "the visitor was the last to close, as it believes");
    ghost.sql(&["INSERT INTO m(t) VALUES('ghost')"; 5]);
    sql(
        path,
        "CREATE TABLE other(a PRIMARY KEY, b) WITHOUT ROWID;\
         INSERT INTO other WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<300) \
         SELECT i, hex(zeroblob(250)) FROM n",
    );
    ghost
}

/// Types a line into a shell.
fn typed(line: &str) -> String {
    let path = format!("{}:{}", binary().parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).env("PATH", path).env("STATEHOUSE_HOME", "/nonexistent");
    run(&mut shell, PATIENCE).success().stdout
}

fn words(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect()
}

/// Everything that asks a process to end in an orderly way: the signal of a `kill` that names none asks for that.
fn orderly_stops(text: &str) -> Vec<&str> {
    let asks = |rest: &&str| rest.starts_with(|c: char| c.is_ascii_digit()) || rest.starts_with("-TERM");
    text.split("kill ").skip(1).filter(asks).collect()
}

fn said(arguments: &[&str], path: &Path) -> String {
    let done = run(command(arguments).arg(path), PATIENCE);
    done.stdout + &done.stderr
}

#[test]
fn a_ghost_that_is_ended_as_told_leaves_whole_what_others_wrote_since_and_loses_no_row() {
    let directory = TestDir::new();
    let path = directory.join("app.db");
    let mut ghost = ghost_beside_a_second_generation(&path);
    let taken: Value = retired(&["capture", "--all"], &path).success().json();
    let end = words(&taken["captures"][0]["end"]);
    let pid = ghost.0.pid();
    assert!(end[0].ends_with(&format!("kill -STOP {pid}")), "{end:?}");
    assert!(end[2].contains(&format!("kill -KILL {pid}")), "{end:?}");
    ghost.sql(&["INSERT INTO m(t) VALUES('between the copy and the end')"]);
    typed(&end[0]);
    typed(&end[1]);
    let held: Value = retired(&["capture", "--all"], &path).success().json();
    assert_eq!(words(&held["captures"][0]["end"]).len(), 1, "who is held needs no other copy: {held}");
    typed(&end[2]);
    ghost.0.wait(PATIENCE);
    assert_eq!(sql(&path, "PRAGMA integrity_check"), ["ok"]);
    merge(held["captures"][0]["id"].as_str().unwrap(), &path);
    assert_eq!((number(&path, "SELECT count(*) FROM m"), number(&path, "SELECT count(*) FROM other")), (7, 300));
    assert_eq!(sql(&path, "PRAGMA integrity_check"), ["ok"]);
}

#[test]
fn an_orderly_stop_of_a_ghost_is_what_would_destroy_the_second_generation() {
    let directory = TestDir::new();
    let path = directory.join("app.db");
    let mut ghost = ghost_beside_a_second_generation(&path);
    ghost.0.signal(Signal::TERM);
    ghost.0.wait(PATIENCE);
    let script = "import sqlite3, sys\nc = sqlite3.connect(sys.argv[1])\n\
                  try: print(c.execute('PRAGMA integrity_check').fetchall() == [('ok',)] \
                  and c.execute('SELECT count(*) FROM other').fetchone() == (300,))\n\
                  except sqlite3.DatabaseError: print(False)";
    let mut ask = Command::new(statehouse_testkit::visitor::python());
    let whole = run(ask.args(["-I", "-c", script]).arg(&path), PATIENCE).success().stdout;
    assert_eq!(whole.trim(), "False", "the control");
}

#[test]
fn nothing_that_is_printed_beside_a_ghost_asks_it_to_end_in_an_orderly_way_or_before_its_rows_are_copied() {
    let directory = TestDir::new();
    let path = directory.join("app.db");
    let ghost = ghost_beside_a_second_generation(&path);
    let source = directory.join("source.db");
    sql(&source, "CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    let source = source.to_str().unwrap().to_owned();
    retired(&["capture", "--all"], &path).success();
    let incident: Value = run(command(&["incidents", "--json"]).arg(&path), PATIENCE).success().json();
    let incident = incident[0]["id"].as_str().unwrap().to_owned();
    let mut told = 0;
    for arguments in [
        &["holders"][..],
        &["holders", "--json"],
        &["retired", "capture", "--all"],
        &["retired", "capture", "--all", "--json"],
        &["verify"],
        &["verify", "--json"],
        &["snapshot"],
        &["snapshot", "--json"],
        &["checkpoint"],
        &["vacuum"],
        &["optimize", "--json"],
        &["journal-mode", "delete"],
        &["restore", &source],
        &["restore", "--dry-run", &source, "--json"],
        &["incidents", "show", &incident],
        &["incidents", "show", &incident, "--json"],
        &["incidents", "show", &incident, "--markdown"],
    ] {
        let out = said(arguments, &path);
        assert_eq!(orderly_stops(&out), Vec::<&str>::new(), "{arguments:?}: {out}");
        if let Some(kill) = out.find("kill -KILL") {
            told += 1;
            let first = out.find("retired capture").unwrap_or(usize::MAX);
            assert!(first < kill, "{arguments:?}: {out}");
        }
    }
    assert!(told >= 12, "the control: {told} of these name what ends it");
    drop(ghost);
}

#[test]
fn a_snapshot_beside_a_ghost_without_locks_is_refused_for_its_rows_and_says_to_copy_them_first() {
    let directory = TestDir::new();
    let path = directory.join("app.db");
    let ghost = ghost_beside_a_second_generation(&path);
    let refused = run(command(&["snapshot", "--json"]).arg(&path), PATIENCE);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_held_retired"), "{refused:?}");
    let text = said(&["snapshot"], &path);
    let capture = text.find(&format!("statehouse retired capture --pid {}", ghost.0.pid()));
    assert!(capture.is_some() && capture < text.find(&format!("kill -KILL {}", ghost.0.pid())), "{text}");
}

#[test]
fn a_capture_whose_image_does_not_fit_says_that_of_the_image_and_not_of_the_database() {
    let directory = TestDir::new();
    let path = directory.join("app.db");
    let _ghost = ghost_beside_a_second_generation(&path);
    let taken: Value = retired(&["capture", "--all"], &path).success().json();
    let capture = &taken["captures"][0];
    assert_eq!(capture["sound"], false, "the control: {capture}");
    let detail = capture["detail"].as_str().unwrap();
    assert!(detail.contains("image") && !detail.contains("the database is damaged"), "{detail}");
    assert_eq!(sql(&path, "PRAGMA integrity_check"), ["ok"]);
}

#[test]
fn rows_lost_between_two_main_files_with_one_log_are_told_before_and_never_called_kept_after() {
    let directory = TestDir::new();
    let path = directory.join("app.db");
    sql(
        &path,
        "PRAGMA journal_mode=wal;CREATE TABLE a(id TEXT PRIMARY KEY, t);\
         INSERT INTO a WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<300) \
         SELECT 'base'||i, hex(randomblob(30)) FROM n",
    );
    let mut acknowledged = 300;
    let mut add = |program: &mut Program, who: &str, n: u64| {
        for _ in 0..n {
            program.sql(&[&format!("INSERT INTO a VALUES('{who}{acknowledged}', hex(randomblob(300)))")]);
            acknowledged += 1;
        }
    };
    let mut old = Program::on(&path);
    add(&mut old, "p", 50);
    let copy = directory.join("new.db");
    // Page by page, as a backup is.
    sql(&path, "PRAGMA wal_checkpoint(PASSIVE)");
    fs::copy(&path, &copy).unwrap();
    fs::rename(&copy, &path).unwrap();
    add(&mut old, "p", 20);
    let mut new = Program::on(&path);
    new.sql(&["PRAGMA wal_autocheckpoint=5"]);
    add(&mut new, "q", 30);
    new.sql(&["PRAGMA wal_checkpoint(PASSIVE)"]);
    add(&mut old, "p", 20);
    let (p, q) = (old.0.pid(), new.0.pid());
    let told = run(command(&["holders"]).arg(&path), PATIENCE);
    assert_eq!(told.code(), 3);
    assert!(told.stdout.contains("use its log with another main file"), "{told:?}");
    for signal in ["-STOP", "-KILL"] {
        let both = [format!("kill {signal} {p} {q}"), format!("kill {signal} {q} {p}")];
        assert!(both.iter().any(|line| told.stdout.contains(line)), "one of them alone is no end of it: {told:?}");
    }
    let taken: Value = retired(&["capture", "--all"], &path).success().json();
    let id = taken["captures"][0]["id"].as_str().unwrap().to_owned();
    for line in words(&taken["captures"][0]["end"]) {
        typed(&line);
    }
    old.0.wait(PATIENCE);
    new.0.wait(PATIENCE);
    let shown = said(&["retired", "show", &id], &path);
    assert!(!shown.contains("every row of it is in the database"), "{shown}");
    assert!(shown.contains("cannot be counted"), "{shown}");
    for capture in retired(&["list"], &path).success().json().as_array().unwrap() {
        merge(capture["id"].as_str().unwrap(), &path);
    }
    let there = number(&path, "SELECT count(*) FROM a");
    assert!(there < acknowledged, "the control: SQLite has lost rows, {there} of {acknowledged} are there");
    let open: Value = run(command(&["incidents", "--json"]).arg(&path), PATIENCE).success().json();
    assert!(open.as_array().unwrap().iter().any(|i| i["needs_person"] == true), "{open:#}");
    assert_eq!(run(command(&["verify"]).arg(&path), PATIENCE).code(), 3, "a person is still needed");
}

/// `tail -f` of a file.
fn follower(file: &Path) -> Child {
    let child = Child::spawn(Command::new("tail").args(["-f", "-n", "1"]).arg(file));
    let has = |pid: u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.filter_map(|e| fs::read_link(e.path()).ok()).any(|target| target == file)
    };
    statehouse_testkit::wait::until("tail has the file open", PATIENCE, || has(child.pid()));
    child
}

#[test]
fn a_program_that_follows_the_log_of_a_clean_last_close_is_neither_a_finding_nor_an_incident() {
    let directory = TestDir::new();
    let path: PathBuf = directory.join("app.db");
    sql(&path, "PRAGMA journal_mode=wal;CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    let mut program = Program::on(&path);
    program.sql(&["INSERT INTO m(t) VALUES('kept')"]);
    let follows = follower(&beside(&path, "-wal"));
    program.0.signal(Signal::TERM);
    program.0.wait(PATIENCE);
    assert!(!beside(&path, "-wal").exists(), "the last close was clean");
    let verified = run(command(&["verify"]).arg(&path), PATIENCE);
    assert_eq!(verified.code(), 0, "{verified:?}");
    let taken: Value = retired(&["capture", "--all"], &path).success().json();
    assert_eq!(taken["captures"].as_array().map(Vec::len), Some(0), "{taken}");
    let open: Value = run(command(&["incidents", "--json", "--all"]).arg(&path), PATIENCE).success().json();
    assert_eq!(open, serde_json::json!([]));
    drop(follows);

    // The control: what only the follower still has is copied.
    let mut program = Program::on(&path);
    program.sql(&["INSERT INTO m(t) VALUES('also kept')"]);
    let follows = follower(&beside(&path, "-wal"));
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(&path, suffix)).unwrap();
    }
    program.sql(&["INSERT INTO m(t) VALUES('nowhere else')"]);
    program.0.kill();
    assert_eq!(run(command(&["verify"]).arg(&path), PATIENCE).code(), 3);
    let taken: Value = retired(&["capture", "--all"], &path).success().json();
    assert_eq!(taken["captures"].as_array().map(Vec::len), Some(1), "{taken}");
    drop(follows);
}
