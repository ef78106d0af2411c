//! Copies of a database that were proved to be good: while others write, of any database, and never in the place of a better one.

use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use statehouse_ops::snapshots;
use statehouse_sqlite::Family;
use statehouse_testkit::visitor::{Python, python, shell_once};
use statehouse_testkit::{Child, Finished, Home, Snapshot, TestDir, run, until};

use crate::health::Holder;
use crate::house::{Client, PATIENCE, Service, Up, answer, beside, binary, cli, error_code, furnished};

/// Inserts into two tables in one transaction as fast as it can, and says so each time it was told that it is kept.
const WRITER: &str = r#"
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
n = 0
while True:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO m(t) VALUES(?)", ("row %d" % n,))
    connection.execute("INSERT INTO twin(t) VALUES(?)", ("row %d" % n,))
    connection.execute("COMMIT")
    n += 1
    print(n, flush=True)
"#;

pub(crate) fn foreign_at(path: &Path, mode: &str, rows: u32) {
    let mut python = Python::open(path);
    for sql in [
        &format!("PRAGMA journal_mode={mode}"),
        "CREATE TABLE m(id INTEGER PRIMARY KEY, t)",
        "CREATE TABLE twin(id INTEGER PRIMARY KEY, t)",
        "CREATE INDEX m_t ON m(length(t), id)",
        "PRAGMA synchronous=OFF",
        &format!(
            "INSERT INTO m(t) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<{rows}) \
             SELECT hex(randomblob(500)) FROM n"
        ),
    ] {
        python.sql(sql).unwrap();
    }
    python.quit();
}

/// A closed database of another program with so many rows of 1000 bytes, each also in an index.
pub(crate) fn foreign(directory: &Path, mode: &str, rows: u32) -> PathBuf {
    let path = directory.join("other.db");
    foreign_at(&path, mode, rows);
    path
}

pub(crate) fn command_on(path: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).arg(path).arg("--json").env("STATEHOUSE_HOME", "/nonexistent");
    command
}

/// The program on a path, away from any home.
pub(crate) fn on(path: &Path, arguments: &[&str]) -> Finished {
    run(&mut command_on(path, arguments), PATIENCE)
}

pub(crate) fn taken(path: &Path) -> Value {
    on(path, &["snapshot"]).success().json()
}

pub(crate) fn listed(path: &Path) -> Vec<Value> {
    on(path, &["snapshots"]).success().json().as_array().unwrap().clone()
}

/// Whether a snapshot can be opened by another program, is whole, and has the rows that its record says.
#[track_caller]
pub(crate) fn assert_good(snapshot: &Value) {
    assert_eq!(snapshot["verified"], true, "{snapshot}");
    let path = Path::new(snapshot["path"].as_str().unwrap());
    assert_eq!(fs::metadata(path).unwrap().len(), snapshot["bytes"].as_u64().unwrap(), "{snapshot}");
    let before = Snapshot::of(path.parent().unwrap(), &[]);
    for (table, rows) in snapshot["rows"].as_object().unwrap() {
        let sql = format!("PRAGMA integrity_check; SELECT count(*) FROM \"{table}\"");
        let Some(seen) = shell_once(path, &sql) else { return };
        assert_eq!(seen.success().stdout, format!("ok\n{rows}\n"), "{table}: {snapshot}");
    }
    before.assert_unchanged(path.parent().unwrap(), &[]);
}

#[test]
fn a_snapshot_beside_writers_is_one_moment_and_has_all_that_was_acknowledged_before_it() {
    for mode in ["wal", "delete"] {
        let directory = TestDir::new();
        let path = foreign(directory.path(), mode, 8000);
        let mut writers: Vec<Child> =
            (0..2).map(|_| Child::spawn(Command::new(python()).args(["-I", "-c", WRITER]).arg(&path))).collect();
        let mut acknowledged = [0u64; 2];
        for _ in 0..4 {
            for (writer, n) in writers.iter_mut().zip(&mut acknowledged) {
                *n = writer.pending_lines().last().map_or(*n, |l| l.parse().unwrap());
                *n = writer.line(PATIENCE).parse().unwrap();
            }
            let snapshot = taken(&path);
            assert_good(&snapshot);
            let (m, twin) = (&snapshot["rows"]["m"], snapshot["rows"]["twin"].as_u64().unwrap());
            assert_eq!(m.as_u64().unwrap(), 8000 + twin, "both or neither row of a transaction: {snapshot}");
            assert!(twin >= acknowledged.iter().sum::<u64>(), "{mode}: {acknowledged:?} were kept before {snapshot}");
            assert_eq!((&snapshot["journal_mode"], &snapshot["notes"]), (&json!(mode), &json!([])), "{snapshot}");
        }
        for writer in &mut writers {
            let before = writer.pending_lines().len();
            writer.line(PATIENCE);
            assert!(before > 0, "{mode}: nobody was kept from writing");
            writer.kill();
        }
        assert_eq!(listed(&path).len(), 4);
    }
}

#[test]
fn a_snapshot_of_a_running_house_has_every_message_that_was_acknowledged() {
    let home = furnished(Home::new());
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    for n in 0..20 {
        client.talk("c", &format!("id {n}"), "hello");
    }
    let snapshot = answer(&home, ["snapshot", "--reason", "by-hand"]);
    assert_good(&snapshot);
    assert!(snapshot["rows"]["message"].as_u64().unwrap() >= 20, "{snapshot}");
    assert_eq!(snapshot["reason"], "by-hand");
    let status = answer(&home, ["status"]);
    assert_eq!(status["last_snapshot"]["id"], snapshot["id"], "{status}");
    assert_eq!((&status["last_snapshot_error"], &status["snapshot_warning"]), (&Value::Null, &Value::Null));
    assert_eq!(answer(&home, ["snapshots"])[0]["id"], snapshot["id"]);
    let report = answer(&home, ["holders"]);
    assert!(report["holders"].as_array().unwrap().iter().all(|h| h["naked"] == false), "{report}");
    up.stop();
}

#[test]
fn everything_is_private_and_a_closed_database_is_not_touched() {
    let directory = TestDir::new();
    for (name, mode) in [("we#ird?%20 'n\"ame.db", "wal"), ("ümläut\n.db", "delete"), ("-dash", "wal")] {
        let path = directory.join(name);
        foreign_at(&path, mode, 100);
        let side = beside(&path, ".statehouse");
        let left_out = [side.file_name().unwrap().to_str().unwrap()];
        let before = Snapshot::of(directory.path(), &left_out);
        let snapshot = taken(&path);
        assert_good(&snapshot);
        assert_eq!(snapshot["rows"], json!({"m": 100, "twin": 0}));
        before.assert_unchanged(directory.path(), &left_out);
        let bits = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o7777;
        assert_eq!((bits(&side), bits(&side.join("snapshots"))), (0o700, 0o700));
        for entry in fs::read_dir(side.join("snapshots")).unwrap() {
            assert_eq!(bits(&entry.unwrap().path()), 0o600);
        }
        fs::remove_dir_all(&side).unwrap();
    }
}

#[test]
fn case_024_what_is_only_in_the_log_is_in_the_snapshot_and_nobody_has_to_have_it_open() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 100);
    let mut python = Python::open(&path);
    python.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    python.sql("INSERT INTO m(t) VALUES('only in the log')").unwrap();
    // What a killed program leaves: main file and log, and nobody who has them open.
    let copy = directory.join("left");
    fs::create_dir(&copy).unwrap();
    for suffix in ["", "-wal"] {
        fs::copy(beside(&path, suffix), copy.join(format!("other.db{suffix}"))).unwrap();
    }
    python.quit();
    let left = copy.join("other.db");
    let left_out = ["other.db.statehouse"];
    let before = Snapshot::of(&copy, &left_out);
    let snapshot = taken(&left);
    assert_good(&snapshot);
    assert_eq!(snapshot["rows"]["m"], 101, "{snapshot}");
    before.assert_unchanged(&copy, &left_out);
}

#[test]
fn a_compressed_one_comes_out_again_as_it_went_in_and_a_changed_one_does_not() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 2000);
    let snapshot = on(&path, &["snapshot", "--zstd"]).success().json();
    let file = PathBuf::from(snapshot["path"].as_str().unwrap());
    assert!(file.to_str().unwrap().ends_with(".snapshot.zst") && snapshot["compressed"] == true, "{snapshot}");
    assert!(snapshot["bytes"].as_u64() < snapshot["plain_bytes"].as_u64(), "{snapshot}");
    let family = Family::of(&path).unwrap();
    let found = snapshots::find(&family, snapshot["id"].as_str().unwrap()).unwrap();
    let plain = directory.join("plain.db");
    snapshots::check(&found, &|_| {}).unwrap();
    snapshots::unpack(&found, &plain, &|_| {}).unwrap();
    if let Some(seen) = shell_once(&plain, "PRAGMA integrity_check; SELECT count(*) FROM m") {
        assert_eq!(seen.success().stdout, "ok\n2000\n");
    }
    assert!(snapshots::unpack(&found, &plain, &|_| {}).is_err(), "nothing is overwritten");
    // One bit in the middle.
    let handle = fs::OpenOptions::new().read(true).write(true).open(&file).unwrap();
    let mut byte = [0];
    handle.read_exact_at(&mut byte, found.bytes / 2).unwrap();
    handle.write_all_at(&[byte[0] ^ 4], found.bytes / 2).unwrap();
    let again = directory.join("again.db");
    assert_eq!(snapshots::unpack(&found, &again, &|_| {}).unwrap_err().code(), "snapshot_changed");
    assert_eq!(snapshots::check(&found, &|_| {}).unwrap_err().code(), "snapshot_changed");
    assert!(!again.exists());
    let listed = listed(&path);
    assert_eq!((&listed[0]["changed"], &listed[0]["missing"]), (&json!(true), &json!(false)), "{listed:?}");
    fs::remove_file(&file).unwrap();
    assert_eq!(on(&path, &["snapshots"]).success().json()[0]["missing"], true);
}

#[test]
fn beside_a_ghost_the_path_is_copied_and_it_is_said_what_is_not_in_it() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 100);
    let mut python = Python::open(&path);
    python.sql("INSERT INTO m(t) VALUES('before')").unwrap();
    python.sql("PRAGMA wal_checkpoint").unwrap();
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(&path, suffix)).unwrap();
    }
    python.sql("INSERT INTO m(t) VALUES('into the deleted log')").unwrap();
    let snapshot = taken(&path);
    assert_good(&snapshot);
    assert_eq!(snapshot["rows"]["m"], 101, "{snapshot}");
    let note = snapshot["notes"][0].as_str().unwrap();
    assert!(note.contains(&format!("PID {}", python.pid())) && note.contains("retired capture"), "{note}");
    for suffix in ["-wal", "-shm"] {
        assert!(!beside(&path, suffix).exists(), "no second generation is begun beside it");
    }
    assert_eq!(python.sql("SELECT count(*) FROM m").unwrap(), [json!([102])]);
}

#[test]
fn beside_a_process_that_has_lost_its_locks_nothing_is_opened() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 100);
    let mut holder = Holder::of(&path);
    holder.loses_its_locks(&path);
    let before = Snapshot::of(directory.path(), &[]);
    let refused = on(&path, &["snapshot"]);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_held_naked"), "{refused:#?}");
    before.assert_unchanged(directory.path(), &[]);
}

#[test]
fn a_journal_that_must_be_rolled_back_first_is_refused_and_stays() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "delete", 3000);
    let mut python = Python::open(&path);
    for sql in ["PRAGMA cache_size=5", "BEGIN IMMEDIATE", "UPDATE m SET t = 'half'"] {
        python.sql(sql).unwrap();
    }
    let copy = directory.join("left");
    fs::create_dir(&copy).unwrap();
    for suffix in ["", "-journal"] {
        fs::copy(beside(&path, suffix), copy.join(format!("other.db{suffix}"))).unwrap();
    }
    let left = copy.join("other.db");
    let before = Snapshot::of(&copy, &[]);
    let refused = on(&left, &["snapshot"]);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_hot_journal"), "{refused:#?}");
    before.assert_unchanged(&copy, &[]);
    // While its program lives it is a transaction like any other, which keeps everybody else from reading.
    let busy = on(&path, &["snapshot", "--patience", "0.2"]);
    assert_eq!((busy.code(), error_code(&busy).as_str()), (5, "busy"), "{busy:#?}");
    let said = busy.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(said.contains(&format!("PID {}", python.pid())), "{said}");
    python.sql("ROLLBACK").unwrap();
    let snapshot = taken(&path);
    assert_good(&snapshot);
    assert_eq!(snapshot["rows"]["m"], 3000);
}

#[test]
fn the_scheduler_takes_them_and_status_says_when_it_cannot() {
    let home = furnished(Home::new());
    let configure = |text: &str| fs::write(home.path().join("config.toml"), text).unwrap();
    configure("[snapshots]\nevery = \"1s\"\nkeep = 3\n");
    let scheduler = Service::start(&home, "scheduler", |_| {});
    let list = || answer(&home, ["snapshots"]).as_array().unwrap().clone();
    let good = || list().into_iter().filter(|s| s["verified"] == true).count();
    until("four were taken, and three are kept", PATIENCE, || {
        good() == 3 && list()[0]["serial"].as_u64().unwrap() >= 4
    });
    assert!(list().iter().all(|s| s["reason"] == "scheduled"));
    drop(scheduler);
    assert_good(&list()[0]);
    // From here on none fits.
    configure("[snapshots]\nevery = \"1s\"\ndisk_share = 0.0\n");
    let kept: Vec<_> = list();
    let scheduler = Service::start(&home, "scheduler", |_| {});
    until("two attempts have failed", PATIENCE, || {
        answer(&home, ["status"])["last_snapshot_error"]["failures"].as_u64().is_some_and(|n| n >= 2)
    });
    drop(scheduler);
    let status = answer(&home, ["status"]);
    assert_eq!(status["last_snapshot_error"]["code"], "no_room", "{status}");
    // Two attempts may fail within one second of the last good one, which is old after two.
    until("the last good one is told to be old", PATIENCE, || {
        answer(&home, ["status"])["snapshot_warning"].as_str().is_some_and(|w| w.contains("old"))
    });
    let people = cli(&home, ["status"]).success().stdout;
    assert!(people.contains("warning: ") && people.contains("snapshots in a row have failed"), "{people}");
    let ids = |l: &[Value]| l.iter().filter(|s| s["verified"] == true).map(|s| s["id"].clone()).collect::<Vec<_>>();
    assert_eq!(ids(&list()), ids(&kept), "nothing good was evicted");
    configure("[snapshots]\nevery = \"1s\"\n");
    answer(&home, ["snapshot"]);
    let status = answer(&home, ["status"]);
    assert_eq!((&status["last_snapshot_error"], &status["snapshot_warning"]), (&Value::Null, &Value::Null));
}
