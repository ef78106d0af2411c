//! `retired show` and `retired merge` where the database cannot take the rows as it is: damaged by half a checkpoint, renamed
//! since, or on a volume without room.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use statehouse_testkit::visitor::python;
use statehouse_testkit::volume::Volume;
use statehouse_testkit::{Child, Snapshot, TestDir, run};

use crate::house::{PATIENCE, beside, error_code};
use crate::retired_merge::{Program, command, merge, retired, show, sql};

/// Captures what every process has in deleted files, and says under which id.
fn captured(path: &Path) -> String {
    let taken: Value = retired(&["capture", "--all"], path).success().json();
    taken["captures"][0]["id"].as_str().unwrap().to_owned()
}

fn incident(path: &Path, kind: &str) -> Value {
    let all: Value = run(command(&["incidents", "--all", "--json"]).arg(path), PATIENCE).success().json();
    all.as_array().unwrap().iter().find(|i| i["kind"] == kind).cloned().unwrap()
}

/// A program whose checkpoint of a deleted log is held up half-way by a reader of its own.
const HELD_UP: &str = r#"
import sqlite3, sys, os
path = sys.argv[1]
def connect():
    c = sqlite3.connect(path, isolation_level=None, timeout=10)
    c.execute("PRAGMA wal_autocheckpoint=0")
    return c
def put(first, last):
    for i in range(first, last):
        c.execute("INSERT INTO t VALUES(?, hex(randomblob(200)))", (f"ghost{i}",))
c, reader = connect(), connect()
put(0, 1)
reader.execute("SELECT count(*) FROM t").fetchall()
for suffix in ("-wal", "-shm"): os.remove(path + suffix)
put(1, 40)
reader.execute("BEGIN")
reader.execute("SELECT count(*) FROM t").fetchall()
put(40, 80)
print(c.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone(), flush=True)
sys.stdin.read()
"#;

#[test]
fn where_half_a_checkpoint_has_damaged_the_database_everything_names_the_restore_that_puts_it_right() {
    let directory = TestDir::new();
    let path = directory.join("app.db");
    sql(
        &path,
        "PRAGMA page_size=1024;PRAGMA journal_mode=wal;CREATE TABLE t(id TEXT PRIMARY KEY, v);CREATE INDEX tv ON t(v);\
         CREATE TABLE log(w);\
         WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300) INSERT INTO t SELECT 'base' || i, hex(randomblob(30)) FROM n",
    );
    let mut ghost = Child::spawn(Command::new(python()).args(["-I", "-c", HELD_UP]).arg(&path));
    let copied = ghost.line(PATIENCE);
    let id = captured(&path);
    ghost.kill();
    let restore = format!("statehouse restore {id} {}", path.display());
    assert!(incident(&path, "retired_generation")["next"].as_str().unwrap().contains(&restore), "{copied}");
    // The control: the capture is whole, and the database is not.
    let image = beside(&path, ".statehouse").join("retired").join(&id).join("main.captured");
    assert_eq!(sql(&image, "PRAGMA integrity_check;SELECT count(*) FROM t"), ["ok", "380"]);
    let checked = run(command(&["doctor", "--deep", "--json"]).arg(&path), PATIENCE);
    assert_ne!(checked.status.code(), Some(0), "{checked:?}");

    let before = Snapshot::of(directory.path(), &[]);
    let shown = show(&id, &path);
    assert_eq!(shown["restore"], restore.as_str(), "{shown:#}");
    let plan: Value = retired(&["merge", &id, "--dry-run"], &path).success().json();
    assert_eq!(
        (&plan["would_refuse"], &plan["restore"]),
        (&"damaged_database".into(), &restore.as_str().into()),
        "{plan:#}"
    );
    let refused = retired(&["merge", &id], &path);
    assert_eq!((refused.status.code(), error_code(&refused)), (Some(4), "damaged_database".to_owned()), "{refused:?}");
    let error: Value = serde_json::from_str(&refused.stdout).unwrap();
    assert!(error["error"]["hint"].as_str().unwrap().contains(&restore), "{error:#}");
    before.assert_unchanged(directory.path(), &[]);

    let restored: Value = run(command(&["restore", &id, "--json"]).arg(&path), PATIENCE).success().json();
    assert_eq!(restored["verified"], true, "{restored:#}");
    assert_eq!(sql(&path, "PRAGMA integrity_check;SELECT count(*) FROM t"), ["ok", "380"]);
    let told = incident(&path, "retired_generation");
    assert_eq!(told["open"], false, "nothing is left to do: {told:#}");
    assert_eq!(merge(&id, &path)["rows"], 0);
}

#[test]
fn a_ghosts_rows_come_back_whole_into_a_table_whose_column_or_name_was_changed_since() {
    for (rename, read) in [
        ("ALTER TABLE t RENAME COLUMN v TO title", "SELECT id, title FROM t"),
        ("ALTER TABLE t RENAME TO people", "SELECT id, v FROM people"),
    ] {
        let directory = TestDir::new();
        let path = directory.join("app.db");
        sql(
            &path,
            "PRAGMA journal_mode=wal;CREATE TABLE t(id INTEGER PRIMARY KEY, v TEXT, n INT);INSERT INTO t VALUES(1, 'a', 1)",
        );
        let mut ghost = Program::on(&path);
        ghost.sql(&["CREATE TABLE both(x)"]);
        ghost.touch(&[path.clone(), beside(&path, "-shm")]);
        // A visitor takes itself for the last one, copies the log and removes it.
        sql(&path, "SELECT count(*) FROM t");
        assert!(!beside(&path, "-wal").exists());
        ghost.sql(&["INSERT INTO t VALUES(2, 'b', 2)", "INSERT INTO t VALUES(3, 'c', 3)"]);
        let id = captured(&path);
        ghost.0.kill();
        sql(&path, rename);
        let tables = |answer: &Value| {
            let all = answer["tables"].as_object().unwrap().values();
            let sum = |field: &str| all.clone().map(|t| t[field].as_u64().unwrap()).sum::<u64>();
            (sum("missing"), sum("conflicting"))
        };
        assert_eq!(tables(&show(&id, &path)), (2, 0), "{rename}");
        assert_eq!(tables(&retired(&["merge", &id, "--dry-run"], &path).success().json()), (2, 0), "{rename}");
        let merged = merge(&id, &path);
        assert_eq!(
            (tables(&merged), &merged["rows"], &merged["conflicts"]),
            ((2, 0), &2.into(), &Value::Null),
            "{merged:#}"
        );
        assert_eq!(sql(&path, &format!("{read} ORDER BY id")), ["1 a", "2 b", "3 c"]);
        assert_eq!(sql(&path, "SELECT count(*) FROM sqlite_master WHERE type = 'table'"), ["2"], "{rename}");
        assert_eq!(incident(&path, "retired_generation")["open"], false);
    }
}

#[test]
fn a_volume_without_room_for_a_merge_is_told_before_anything_is_made_and_each_try_leaves_it_as_it_was() {
    let Some(volume) = Volume::new(24 << 10) else { return };
    let path = volume.join("app.db");
    sql(
        &path,
        "PRAGMA journal_mode=wal;CREATE TABLE t(id INTEGER PRIMARY KEY, v);\
         WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) INSERT INTO t SELECT i, zeroblob(2000) FROM n",
    );
    let mut ghost = Program::on(&path);
    ghost.sql(&["INSERT INTO t VALUES(1001, 'both')"]);
    ghost.touch(&[path.clone(), beside(&path, "-shm")]);
    sql(&path, "SELECT count(*) FROM t");
    ghost.sql(&["WITH n(i) AS (SELECT 2000 UNION ALL SELECT i + 1 FROM n WHERE i < 2999) INSERT INTO t SELECT i, zeroblob(2000) FROM n"]);
    let id = captured(&path);
    ghost.0.kill();
    let main = fs::metadata(&path).unwrap().len();
    // Room for the snapshot and more, and not for what is written.
    for beyond in [300 << 10, 1 << 20, 2 << 20] {
        volume.fill(main + beyond);
        let before = Snapshot::of(volume.path(), &[]);
        let plan: Value = retired(&["merge", &id, "--dry-run"], &path).success().json();
        assert_eq!(plan["would_refuse"], "no_room", "{plan:#}");
        for arguments in
            [&["merge", id.as_str()][..], &["merge", id.as_str(), "--into", volume.join("into.db").to_str().unwrap()]]
        {
            let refused = retired(arguments, &path);
            assert_eq!((refused.status.code(), error_code(&refused)), (Some(4), "no_room".to_owned()), "{refused:?}");
            assert!(refused.stdout.contains("bytes may be needed"), "{refused:?}");
        }
        before.assert_unchanged(volume.path(), &[]);
        volume.clear();
    }
    // The control: with as much as is said to be needed it is done.
    let room = &show(&id, &path)["room"];
    let needed: u64 = ["copy", "log", "grows"].iter().map(|f| room[f].as_u64().unwrap()).sum();
    volume.fill(needed + (64 << 10));
    assert_eq!(merge(&id, &path)["rows"], 1000);
    volume.clear();
    assert_eq!(sql(&path, "PRAGMA integrity_check;SELECT count(*) FROM t"), ["ok", "2001"]);
}
