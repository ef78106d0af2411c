//! From a snapshot by its id, and from what a capture of another program has.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde_json::{Value, json};
use statehouse_testkit::visitor::Python;
use statehouse_testkit::{Snapshot, TestDir, run};

use super::{command, content, database, expected, fill, restore, sql};
use crate::house::PATIENCE;

fn snapshots(path: &Path) -> Vec<Value> {
    run(&mut command(&["snapshots"], &[path]), PATIENCE).success().json().as_array().unwrap().clone()
}

#[test]
fn a_compressed_snapshot_is_restored_by_the_path_of_its_file_too_also_in_the_place_of_another_database() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 300, "old");
    let taken = run(&mut command(&["snapshot", "--zstd"], &[&path]), PATIENCE).success().json();
    let other = database(&directory.join("other.db"), "wal", 4096, 10, "new");
    let file = Path::new(taken["path"].as_str().unwrap());
    for place in [&path, &other] {
        let done = restore(file, place, &[]).success().json();
        assert_eq!((&done["kind"], &done["source"]), (&json!("snapshot"), &taken["id"]), "{done}");
        assert_eq!(content(place), expected(300, "old"));
    }
    // The control: what only has the ending is no snapshot.
    let stray = directory.join("stray.zst");
    std::fs::copy(file, &stray).unwrap();
    assert_eq!(restore(&stray, &path, &[]).code(), 4);
}

#[test]
fn a_half_written_mark_of_a_killed_restore_is_gone_after_the_next_one() {
    for mode in ["wal", "delete"] {
        let directory = TestDir::new();
        let path = database(&directory.join("s.db"), mode, 4096, 30, "old");
        let good = database(&directory.join("good.db"), "wal", 4096, 50, "new");
        restore(&good, &path, &[]).success();
        let half = directory.join("s.db.statehouse/restoring.json.4711.new");
        std::fs::write(&half, "{").unwrap();
        restore(&good, &path, &[]).success();
        assert!(!half.exists(), "{mode}");
    }
}

#[test]
fn a_snapshot_is_restored_by_its_id_compressed_or_not_and_never_after_somebody_has_changed_it() {
    for more in [&[][..], &["--zstd"]] {
        let directory = TestDir::new();
        let path = database(&directory.join("s.db"), "wal", 4096, 300, "old");
        let taken = run(command(&["snapshot"], &[&path]).args(more), PATIENCE).success().json();
        let id = Path::new(taken["id"].as_str().unwrap());
        sql(&path, &["DELETE FROM t WHERE id > 100", "INSERT INTO t VALUES(1000, 'newer')"]);
        let done = restore(id, &path, &[]).success().json();
        assert_eq!((&done["kind"], &done["source"]), (&json!("snapshot"), &taken["id"]), "{done}");
        assert_eq!(
            done["tables"]["t"],
            json!({"here": 101, "there": 300, "only_here": 1, "only_there": 200, "different": 0}),
            "{done}"
        );
        assert_eq!(content(&path), expected(300, "old"));

        // What was replaced is a snapshot like any other.
        let all = snapshots(&path);
        assert_eq!(all.len(), 2, "{all:#?}");
        let before = &all[0];
        assert_eq!((&before["id"], &before["reason"]), (&done["before"]["id"], &json!("before-restore")), "{before}");
        assert_eq!((&before["verified"], &before["rows"]["t"]), (&json!(true), &json!(101)), "{before}");
        assert!(before["blake3"].is_string(), "{before}");
        restore(Path::new(before["id"].as_str().unwrap()), &path, &[]).success();
        assert_eq!(sql(&path, &["SELECT x FROM t WHERE id = 1000"]), [json!(["newer"])]);

        // One byte of it is another one, and nothing else shows it.
        let file = fs::OpenOptions::new().write(true).open(taken["path"].as_str().unwrap()).unwrap();
        let at = fs::metadata(taken["path"].as_str().unwrap()).unwrap().len() / 2;
        file.write_all_at(&[0xa5, 0x5a], at).unwrap();
        let before = Snapshot::of(directory.path(), &[]);
        for dry in [&[][..], &["--dry-run"]] {
            let refused = restore(id, &path, dry);
            let error = &refused.json()["error"];
            assert_eq!((refused.code(), &error["code"]), (4, &json!("snapshot_changed")), "{refused:#?}");
        }
        before.assert_unchanged(directory.path(), &[]);
    }
}

#[test]
fn a_copy_that_hermes_agent_made_of_its_own_files_is_restored_with_its_log() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 100, "new");
    let copy = directory.join("s.db.retired-wal-20261130-130000-77");
    fs::create_dir(&copy).unwrap();
    let mut program = Python::open(&path);
    program.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    program.sql(&fill(101, 200, "new")).unwrap();
    for suffix in ["", "-wal"] {
        let name = format!("s.db{suffix}");
        fs::copy(directory.join(&name), copy.join(&name)).unwrap();
    }
    program.sql("DELETE FROM t").unwrap();
    program.quit();
    let done = restore(Path::new("s.db.retired-wal-20261130-130000-77"), &path, &[]).success().json();
    assert_eq!((&done["kind"], &done["how"]), (&json!("capture"), &json!("live")), "{done}");
    assert_eq!(content(&path), expected(200, "new"), "{done}");
}

#[test]
fn a_database_with_an_index_that_lacks_rows_is_replaced_and_its_files_are_kept() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 100, "old");
    let good = database(&directory.join("good.db"), "wal", 4096, 200, "new");
    let root =
        &sql(&path, &["CREATE INDEX t_x ON t(x)", "SELECT rootpage FROM sqlite_schema WHERE name = 't_x'"])[0][0];
    let entry = format!("INSERT INTO sqlite_schema VALUES('index', 't_x', 't', {root}, 'CREATE INDEX t_x ON t(x)')");
    let writable = "PRAGMA writable_schema=ON";
    sql(&path, &[writable, "DELETE FROM sqlite_schema WHERE name = 't_x'"]);
    sql(&path, &["INSERT INTO t VALUES(777, 'not in the index')"]);
    sql(&path, &[writable, &entry]);
    assert_eq!(sql(&path, &["PRAGMA quick_check"]), [json!(["ok"])]);
    assert_ne!(sql(&path, &["PRAGMA integrity_check"]), [json!(["ok"])], "the control");
    let done = restore(&good, &path, &[]).success().json();
    assert_eq!((&done["how"], &done["before"]["id"]), (&json!("rename"), &Value::Null), "{done}");
    let kept = Path::new(done["before"]["path"].as_str().unwrap()).join("main.replaced");
    assert_eq!(sql(&kept, &["SELECT x FROM t WHERE id = 777"]), [json!(["not in the index"])]);
    assert_eq!(content(&path), expected(200, "new"));
}
