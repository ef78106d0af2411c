//! Onto a database that programs of others have open, and refused where that cannot be.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use serde_json::{Value, json};
use statehouse_testkit::visitor::Python;
use statehouse_testkit::volume::Volume;
use statehouse_testkit::{Snapshot, TestDir};

use super::{content, copy_all, database, expected, restore, sql};

#[test]
fn onto_a_database_that_two_programs_have_open_both_see_the_new_rows_in_the_same_file() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 300, "old");
    let good = database(&directory.join("good.db"), "wal", 4096, 500, "new");
    let (mut reader, mut writer) = (Python::open(&path), Python::open(&path));
    let count = "SELECT count(*), min(substr(x, 1, 3)) FROM t";
    assert_eq!(reader.sql(count).unwrap(), [json!([300, "old"])]);
    writer.sql("UPDATE t SET x = x WHERE id = 1").unwrap();
    let inode = fs::metadata(&path).unwrap().ino();

    // The control: who puts a file there by a rename leaves both in the old one.
    let there = directory.join("control");
    copy_all(directory.path(), &there);
    let mut left = Python::open(&there.join("s.db"));
    assert_eq!(left.sql(count).unwrap(), [json!([300, "old"])]);
    fs::rename(there.join("good.db"), there.join("s.db")).unwrap();
    assert_eq!(left.sql(count).unwrap(), [json!([300, "old"])], "the control");
    drop(left);

    let done = restore(&good, &path, &[]).success().json();
    assert_eq!((&done["how"], &done["verified"]), (&json!("live"), &json!(true)), "{done}");
    for pid in [reader.pid(), writer.pid()] {
        let named =
            done["held_by"].as_array().unwrap().iter().any(|h| h.as_str().unwrap().contains(&format!("PID {pid} ")));
        assert!(named, "PID {pid} is not named: {done}");
    }
    assert_eq!(reader.sql(count).unwrap(), [json!([500, "new"])]);
    writer.sql("INSERT INTO t VALUES(1000, 'written after')").unwrap();
    assert_eq!(reader.sql("SELECT max(id) FROM t").unwrap(), [json!([1000])]);
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    reader.quit();
    writer.quit();
    assert_eq!(sql(&path, &["PRAGMA integrity_check"]), [json!(["ok"])]);
    assert_eq!(sql(&path, &["SELECT count(*) FROM t"]), [json!([501])]);
}

#[test]
fn what_cannot_be_put_in_live_is_refused_while_somebody_has_it_open_and_names_him() {
    for (mode, page_size) in [("wal", 8192), ("delete", 4096)] {
        let directory = TestDir::new();
        let path = database(&directory.join("s.db"), mode, 4096, 30, "old");
        let good = database(&directory.join("good.db"), "wal", page_size, 50, "new");
        let mut holder = Python::open(&path);
        holder.sql("SELECT * FROM t").unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        let refused = restore(&good, &path, &["--patience", "1"]);
        let error = &refused.json()["error"];
        assert_eq!((refused.code(), &error["code"]), (4, &json!("refused_held")), "{refused:#?}");
        assert!(error["detail"].as_str().unwrap().contains(&format!("PID {} ", holder.pid())), "{error}");
        let dry = restore(&good, &path, &["--dry-run"]).success().json();
        assert_eq!((&dry["how"], &dry["refused"]["code"]), (&json!("rename"), &json!("refused_held")), "{dry}");
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
        assert_eq!(holder.sql("SELECT count(*) FROM t").unwrap(), [json!([30])]);
        holder.quit();
        let done = restore(&good, &path, &[]).success().json();
        assert_eq!(done["how"], "rename", "{done}");
        assert_eq!(content(&path), expected(50, "new"), "{mode}");
        assert_eq!(sql(&path, &["PRAGMA journal_mode"]), [json!([mode])], "it has the mode that it had");
    }
}

#[test]
fn a_dry_run_says_what_would_be_replaced_and_changes_nothing() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 30, "old");
    let good = database(&directory.join("good.db"), "wal", 4096, 20, "new");
    sql(&good, &["INSERT INTO t VALUES(77, 'there')", "CREATE TABLE more(a PRIMARY KEY) WITHOUT ROWID"]);
    let before = Snapshot::of(directory.path(), &[]);
    let dry = restore(&good, &path, &["--dry-run"]).success().json();
    assert_eq!((&dry["how"], &dry["refused"]), (&json!("live"), &Value::Null), "{dry}");
    let tables = json!({
        "t": {"here": 30, "there": 21, "only_here": 10, "only_there": 1, "different": 20},
        "more": {"here": null, "there": 0, "only_here": 0, "only_there": 0, "different": 0},
    });
    assert_eq!(dry["tables"], tables, "{dry}");
    before.assert_unchanged(directory.path(), &[]);
}

#[test]
fn case_026_with_a_kilobyte_too_little_it_is_refused_with_the_numbers_and_nothing_is_changed() {
    let Some(volume) = Volume::new(4 << 10) else { return };
    let outside = TestDir::new();
    for page_size in [4096, 8192] {
        let path = volume.join(&format!("s{page_size}.db"));
        database(&path, "wal", 4096, 300, "old");
        let good = database(&outside.join(format!("good{page_size}.db")), "wal", page_size, 1000, "new");
        let dry = restore(&good, &path, &["--dry-run"]).success().json();
        let part = |name: &str| dry["room"][name].as_u64().unwrap();
        let needs = part("before") + part("new") + part("grows");
        volume.fill(needs / 4096 * 4096 - 4096);
        let before = Snapshot::of(volume.path(), &[]);
        let refused = restore(&good, &path, &[]);
        let error = &refused.json()["error"];
        assert_eq!((refused.code(), &error["code"]), (4, &json!("no_room")), "{refused:#?}");
        assert!(error["detail"].as_str().unwrap().contains(&needs.to_string()), "{needs}: {error}");
        before.assert_unchanged(volume.path(), &[]);
        // With as much as it says it needs, and a page, it is done.
        volume.clear();
        volume.fill(needs / 4096 * 4096 + 4096);
        let done = restore(&good, &path, &[]).success().json();
        assert_eq!(done["verified"], true, "{done}");
        volume.clear();
        assert_eq!(content(&path), expected(1000, "new"));
    }
}
