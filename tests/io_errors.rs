//! A disk that answers with an I/O error, at each change that a command makes: it says so, what it was about is the old or the
//! new one, whole, and nothing half is listed as good.
//!
//! What a command may go on without (the record of what happened, tidying up) may fail unsaid; everything else may not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use statehouse_testkit::killat::{Failing, Fault, run_failing};
use statehouse_testkit::visitor::{Python, python_once as sql};
use statehouse_testkit::{Seed, TestDir, run};

use crate::house::{PATIENCE, beside, binary};

/// How many points of each are tried; all of them with `STATEHOUSE_EVERY_POINT`.
const POINTS: u64 = 12;

fn command(arguments: &[&str], path: &Path) -> Command {
    let mut line = Command::new(binary());
    line.arg("--json").args(arguments).arg(path).env("STATEHOUSE_HOME", "/nonexistent").env_remove("SQLITE_TMPDIR");
    line
}

fn database(path: &Path, page_size: u32, rows: u32, word: &str) -> PathBuf {
    let page_size = format!("PRAGMA page_size={page_size}");
    let fill = format!(
        "INSERT INTO t WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<{rows}) SELECT i, '{word}' FROM n"
    );
    sql(path, &[&page_size, "PRAGMA journal_mode=wal", "CREATE TABLE t(id INTEGER PRIMARY KEY, x)", &fill]);
    path.to_owned()
}

/// Whether all is sound, how many rows there are, and of which words.
fn content(path: &Path) -> Value {
    let sound = sql(path, &["PRAGMA integrity_check"]);
    json!([sound, sql(path, &["SELECT x, count(*) FROM t GROUP BY x ORDER BY x"])])
}

fn whole(rows: &[(&str, u32)]) -> Value {
    let rows: Vec<Value> = rows.iter().map(|(word, n)| json!([word, n])).collect();
    json!([[["ok"]], rows])
}

/// What may fail without a word: what happened is not written down, or something is left to be tidied up.
fn is_aside(failing: &Failing, all: u64) -> bool {
    let call = failing.call.as_deref().unwrap_or_default();
    let tidying = ["unlink", "unlinkat", "rmdir"].contains(&call);
    // SQLite tightens the files that it makes, and goes on without.
    let tightening = call == "fchmod";
    // It flushes the directory of a log that it makes, and goes on without; the log is emptied before the end.
    let directory = call == "fdatasync" && Path::new(&failing.file).is_dir();
    // A connection that only reads opens the log as one that may make it, and then to read alone.
    let reading = call == "create" && failing.file.ends_with("-wal");
    // Records are kept apart by names too, so the lock on them is not essential.
    // A capture and a merge are what they are without the record of them, for which the directory is flushed first.
    let made_again = call == "mkdirat" && (failing.file.ends_with(".statehouse") || failing.file == "incidents");
    // The record itself; that of a snapshot has a `Z` in its name.
    let record = failing.file.contains(".json.") && !failing.file.contains("Z-");
    let given_up = call == "fsync" && failing.file.ends_with(".statehouse") && {
        let incidents = fs::read_dir(Path::new(&failing.file).join("incidents"));
        !incidents.is_ok_and(|mut all| all.any(|e| e.unwrap().path().extension().is_some_and(|x| x == "json")))
    };
    // SQLite keeps a log that could not be copied when its last connection went.
    // It flushes that once more before it copies it, and copies nothing then.
    let once_more = call == "fdatasync" && failing.file.ends_with("-wal") && failing.calls < all;
    let in_the_log =
        once_more || ["pwrite", "fdatasync", "ftruncate"].contains(&call) && failing.file.ends_with("/s.db");
    // A merge that is not marked can be done again, and brings nothing twice. Rows of a log are looked for beside an image that has them all.
    let told_by_nobody =
        ["/lock", "/admission.lock", "-shm", "/index", "/rows-of-the-log", "/incidents", "shm.captured", "/merged"];
    tidying
        || tightening
        || directory
        || reading
        || record
        || given_up
        || made_again
        || in_the_log
        || told_by_nobody.iter().any(|f| failing.file.contains(f))
}

/// A command, and the process beside which it runs.
struct Ready {
    command: Command,
    _beside: Option<Python>,
}

impl Ready {
    fn alone(command: Command) -> Ready {
        Ready { command, _beside: None }
    }

    fn run(&self, fault: Fault, n: u64, notes: &Path) -> Failing {
        run_failing(&self.command, fault, n, notes)
    }
}

/// Runs what `make` makes with each of its changes failing, and lets `judge` look at what is there after it.
fn each(name: &str, make: &dyn Fn(&Path) -> Ready, judge: &dyn Fn(&Path, &Failing, &str)) {
    let mut seed = Seed::of_run(name);
    let notes = TestDir::new();
    let notes = notes.join("seen");
    let all = {
        let directory = TestDir::new();
        let ready = make(directory.path());
        let done = ready.run(Fault::Once, 0, &notes);
        assert!(done.call.is_none() && done.finished.code() == 0, "{done:#?}");
        judge(directory.path(), &done, "the control");
        done.calls
    };
    let every = std::env::var_os("STATEHOUSE_EVERY_POINT").is_some();
    let step = if every { 1 } else { all.div_ceil(POINTS).max(1) };
    let (mut said, mut unsaid) = (0, Vec::new());
    for fault in [Fault::Once, Fault::Dead] {
        let mut n = if every { 1 } else { 1 + seed.below(step) };
        while n <= all {
            let directory = TestDir::new();
            let ready = make(directory.path());
            let failing = ready.run(fault, n, &notes);
            let context = format!("{fault:?} at {n} of {all}: {:?} of {:?}", failing.call, failing.file);
            if failing.call.is_none() {
                break;
            }
            match failing.finished.code() {
                // What is not essential is said in a note.
                0 if ["could not be copied into the main file", "could not be written down", "\"incident\":null"]
                    .iter()
                    .any(|note| failing.finished.stdout.contains(note)) =>
                {
                    said += 1;
                }
                0 if is_aside(&failing, all) => unsaid.push(context.clone()),
                0 => panic!("{context}: not a word: {failing:#?}"),
                // A capture of which nothing could be made is a finding.
                1 | 3 => {
                    let answer = failing.finished.json();
                    // A list of what was captured has an error for each process.
                    let error =
                        if answer["error"].is_null() { &answer["failed"][0]["error"] } else { &answer["error"] };
                    let code = error["code"].as_str().unwrap_or_default();
                    // SQLite has one answer for an index that cannot be made longer, whatever the reason.
                    let index = code == "disk_full" && failing.file.ends_with("-shm");
                    // Nor does it say why it could not make a file.
                    let create = code == "read_only" && failing.call.as_deref() == Some("create");
                    assert!(index || create || ["io", "sqlite", "unverified"].contains(&code), "{context}: {answer}");
                    said += 1;
                }
                _ => panic!("{context}: {failing:#?}"),
            }
            judge(directory.path(), &failing, &context);
            n += step;
        }
    }
    println!("{name}: {all} changes, {said} failures were told, {} needed not be: {unsaid:#?}", unsaid.len());
    assert!(said > 0, "nothing failed");
}

/// The snapshots that are listed as good, each of which is.
fn good_snapshots(path: &Path, context: &str) -> usize {
    let listed = run(&mut command(&["snapshots"], path), PATIENCE);
    if listed.code() != 0 {
        return 0;
    }
    let good: Vec<Value> =
        listed.json().as_array().unwrap().iter().filter(|s| s["verified"] == true).cloned().collect();
    for snapshot in &good {
        let file = Path::new(snapshot["path"].as_str().unwrap());
        assert_eq!(
            (&snapshot["missing"], &snapshot["changed"]),
            (&json!(false), &json!(false)),
            "{context}: {snapshot}"
        );
        let bytes = fs::read(file).unwrap();
        assert_eq!(snapshot["blake3"], blake3::hash(&bytes).to_hex().as_str(), "{context}: {snapshot}");
        if snapshot["compressed"] == false {
            assert_eq!(content(file)[0], json!([["ok"]]), "{context}: {snapshot}");
        }
    }
    good.len()
}

#[test]
fn a_snapshot_on_a_disk_with_errors_is_told_or_good() {
    for (name, more) in
        [("snapshot with errors", &["snapshot"][..]), ("compressed snapshot with errors", &["snapshot", "--zstd"])]
    {
        let make = |directory: &Path| Ready::alone(command(more, &database(&directory.join("s.db"), 4096, 300, "old")));
        each(name, &make, &|directory, failing, context| {
            let path = directory.join("s.db");
            let good = good_snapshots(&path, context);
            // One whose name alone may not last is a failure that was told, and is whole as long as it is there.
            let told = failing.finished.code() != 0;
            assert!(good == 1 || told && good == 0, "{context}: {failing:#?}");
            assert_eq!(content(&path), whole(&[("old", 300)]), "{context}");
            // And the next one is good.
            run(&mut command(&["snapshot"], &path), PATIENCE).success();
            assert_eq!(good_snapshots(&path, context), good + 1, "{context}");
        });
    }
}

#[test]
fn a_restore_on_a_disk_with_errors_is_told_and_the_database_is_the_old_or_the_new_one() {
    for (name, page_size, garbage) in [
        ("live restore with errors", 4096, false),
        ("restore by rename with errors", 8192, false),
        ("restore of what cannot be read with errors", 4096, true),
    ] {
        let sources = TestDir::new();
        let source = database(&sources.join("good.db"), page_size, 400, "new");
        let text = "no database ".repeat(2000);
        let make = |directory: &Path| {
            let path = database(&directory.join("s.db"), 4096, 300, "old");
            if garbage {
                fs::write(&path, &text).unwrap();
            }
            Ready::alone(command(&["restore", source.to_str().unwrap()], &path))
        };
        each(name, &make, &|directory, failing, context| {
            let path = directory.join("s.db");
            let there = directory.join("looked at");
            fs::create_dir(&there).unwrap();
            for suffix in ["", "-wal", "-shm", "-journal"] {
                let _ = fs::copy(beside(&path, suffix), beside(&there.join("s.db"), suffix));
            }
            let is_garbage = fs::read(&path).unwrap() == text.as_bytes();
            let seen = if is_garbage { Value::Null } else { content(&there.join("s.db")) };
            let new = seen == whole(&[("new", 400)]);
            assert!(
                new || if garbage { is_garbage } else { seen == whole(&[("old", 300)]) },
                "{context}: neither: {seen}"
            );
            assert!(new || failing.finished.code() != 0, "{context}: {failing:#?}");
            good_snapshots(&path, context);
            // What cannot be read is kept, wherever it ended.
            run(&mut command(&["restore", source.to_str().unwrap()], &path), PATIENCE).success();
            assert_eq!(content(&path), whole(&[("new", 400)]), "{context}");
            if garbage {
                let kept = fs::read_dir(beside(&path, ".statehouse").join("retired"))
                    .unwrap()
                    .any(|d| fs::read(d.unwrap().path().join("main.replaced")).is_ok_and(|b| b == text.as_bytes()));
                assert!(kept, "{context}: what was replaced is gone");
            }
        });
    }
}

/// A process that has written so many rows into files without a name.
fn ghost(path: &Path, rows: u32) -> Python {
    let mut ghost = Python::open(path);
    ghost.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    ghost.sql("SELECT count(*) FROM t").unwrap();
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(path, suffix)).unwrap();
    }
    for _ in 0..rows {
        ghost.sql("INSERT INTO t(x) VALUES('ghost')").unwrap();
    }
    ghost
}

#[test]
fn a_capture_on_a_disk_with_errors_is_told_or_whole() {
    let make = |directory: &Path| {
        let path = database(&directory.join("s.db"), 4096, 300, "old");
        let beside = Some(ghost(&path, 20));
        Ready { command: command(&["retired", "capture", "--all"], &path), _beside: beside }
    };
    each("capture with errors", &make, &|directory, failing, context| {
        let path = directory.join("s.db");
        let listed = || run(&mut command(&["retired", "list"], &path), PATIENCE).success().json();
        let check = || {
            for capture in listed().as_array().unwrap() {
                assert_eq!(capture["image"], true, "{context}: {capture}");
                let image = Path::new(capture["place"].as_str().unwrap()).join("main.captured");
                assert_eq!(content(&image), whole(&[("ghost", 20), ("old", 300)]), "{context}: {capture}");
            }
            listed().as_array().unwrap().len()
        };
        let there = check();
        assert!(there == 1 || failing.finished.code() != 0 && there == 0, "{context}: {failing:#?}");
        run(&mut command(&["retired", "capture", "--all"], &path), PATIENCE).success();
        assert_eq!(check(), 1, "{context}");
    });
}

#[test]
fn a_merge_on_a_disk_with_errors_is_told_and_brings_all_rows_or_none() {
    let make = |directory: &Path| {
        let path = database(&directory.join("s.db"), 4096, 300, "old");
        let ghost = ghost(&path, 20);
        let made = run(&mut command(&["retired", "capture", "--all"], &path), PATIENCE).success().json();
        drop(ghost);
        let id = made["captures"][0]["id"].as_str().unwrap().to_owned();
        Ready::alone(command(&["retired", "merge", &id], &path))
    };
    each("merge with errors", &make, &|directory, failing, context| {
        let path = directory.join("s.db");
        let seen = content(&path);
        let new = seen == whole(&[("ghost", 20), ("old", 300)]);
        assert!(new || seen == whole(&[("old", 300)]), "{context}: neither: {seen}");
        assert!(new || failing.finished.code() != 0, "{context}: {failing:#?}");
        good_snapshots(&path, context);
        let listed = run(&mut command(&["retired", "list"], &path), PATIENCE).success().json();
        let id = listed[0]["id"].as_str().unwrap();
        run(&mut command(&["retired", "merge", id], &path), PATIENCE).success();
        assert_eq!(content(&path), whole(&[("ghost", 20), ("old", 300)]), "{context}");
    });
}
