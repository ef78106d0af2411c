//! What a restore replaces is told as it is, row by row and deed by deed, and a refusal has replaced nothing.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use statehouse_testkit::visitor::Python;
use statehouse_testkit::{Snapshot, TestDir, run};

use super::sidecars::interrupted;
use super::{command, database, restore, sql};
use crate::house::PATIENCE;

fn incidents(path: &Path) -> Vec<Value> {
    run(&mut command(&["incidents", "--all"], &[path]), PATIENCE).success().json().as_array().unwrap().clone()
}

fn snapshot(path: &Path) -> PathBuf {
    let taken = run(&mut command(&["snapshot"], &[path]), PATIENCE).success().json();
    PathBuf::from(taken["id"].as_str().unwrap())
}

#[test]
fn rows_that_were_changed_since_the_snapshot_and_a_column_that_was_added_are_not_called_nothing() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 1000, "old");
    sql(&path, &["PRAGMA user_version=1", "CREATE TABLE keyless(a)", "INSERT INTO keyless VALUES(1),(2)"]);
    sql(&path, &["CREATE VIRTUAL TABLE notes USING fts5(body)", "INSERT INTO notes VALUES('kept')"]);
    let id = snapshot(&path);
    // The control: beside the database as the snapshot has it nothing is replaced.
    let dry = restore(&id, &path, &["--dry-run"]).success().json();
    let same = json!({"here": 1000, "there": 1000, "only_here": 0, "only_there": 0, "different": 0});
    assert_eq!((&dry["tables"]["t"], &dry["schema"]), (&same, &json!([])), "{dry}");

    sql(&path, &["UPDATE t SET x = 'new'", "ALTER TABLE t ADD COLUMN extra", "CREATE TABLE z(a)"]);
    sql(&path, &["PRAGMA user_version=2", "CREATE INDEX by_x ON t(x)", "UPDATE keyless SET a = 3 WHERE a = 2"]);
    sql(&path, &["UPDATE notes SET body = 'another' "]);
    let dry = restore(&id, &path, &["--dry-run"]).success().json();
    let done = restore(&id, &path, &[]).success().json();
    for told in [&dry, &done] {
        let t = &told["tables"]["t"];
        assert_eq!((&t["only_here"], &t["different"]), (&json!(0), &json!(1000)), "{told}");
        assert_eq!(t["columns_only_here"], json!(["extra"]), "{told}");
        let keyless = &told["tables"]["keyless"];
        assert_eq!((&keyless["only_here"], &keyless["only_there"]), (&json!(1), &json!(1)), "{told}");
        assert_eq!(told["tables"]["notes"]["different"], json!(1), "rows of a search index: {told}");
        let expected = json!([
            {"what": "user_version", "name": null, "stands": "different", "here": 2, "there": 1},
            {"what": "index", "name": "by_x", "stands": "only_here"},
            {"what": "table", "name": "z", "stands": "only_here"},
            {"what": "column", "name": "t.extra", "stands": "only_here"},
        ]);
        assert_eq!(told["schema"], expected, "{told}");
    }
    let all = incidents(&path);
    let lost = all[0]["lost"].as_str().unwrap_or_default();
    assert_eq!(all[0]["nothing_lost"], json!(false), "{all:#?}");
    for said in ["1 row was there before", "1001 rows were different before", "the table z", "the column t.extra"] {
        assert!(lost.contains(said), "{said}: {lost}");
    }
}

#[test]
fn restoring_what_is_there_already_loses_nothing_and_says_so() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 20, "old");
    let id = snapshot(&path);
    restore(&id, &path, &[]).success();
    let all = incidents(&path);
    assert_eq!((&all[0]["nothing_lost"], &all[0]["lost"]), (&json!(true), &Value::Null), "{all:#?}");
}

#[test]
fn beside_a_hot_journal_a_refused_restore_has_changed_nothing_and_the_dry_run_foretells_it() {
    let directory = TestDir::new();
    let path = interrupted(directory.path());
    let other = directory.join("other.db");
    sql(&other, &["CREATE TABLE m(a)", "INSERT INTO m VALUES(1)"]);
    let before = Snapshot::of(directory.path(), &[]);
    let dry = restore(&other, &path, &["--dry-run"]).success().json();
    assert_eq!(dry["refused"]["code"], json!("refused_other_application"), "{dry}");
    assert_eq!((&dry["tables"]["t"]["here"], &dry["tables"]["t"]["only_here"]), (&json!(300), &json!(300)), "{dry}");
    let refused = restore(&other, &path, &[]);
    assert_eq!((refused.code(), &refused.json()["error"]["code"]), (4, &json!("refused_other_application")));
    before.assert_unchanged(directory.path(), &[]);
}

#[test]
fn a_restore_that_is_refused_because_of_another_program_leaves_no_snapshot_behind() {
    for mode in ["delete", "wal"] {
        let directory = TestDir::new();
        let path = database(&directory.join("s.db"), mode, 4096, 20, "old");
        let other = directory.join("other.db");
        sql(&other, &["CREATE TABLE m(a)", "INSERT INTO m VALUES(1)"]);
        let refused = restore(&other, &path, &[]);
        assert_eq!((refused.code(), &refused.json()["error"]["code"]), (4, &json!("refused_other_application")));
        let kept = run(&mut command(&["snapshots"], &[&path]), PATIENCE).success().json();
        assert_eq!(kept, json!([]), "{mode}");
    }
}

#[test]
fn three_restores_within_a_minute_are_three_incidents_and_each_names_its_own_way_back() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 20, "old");
    let one = database(&directory.join("one.db"), "wal", 4096, 20, "one");
    let two = database(&directory.join("two.db"), "wal", 4096, 20, "two");
    let done: Vec<Value> = [&one, &two, &one].map(|s| restore(s, &path, &[]).success().json()).to_vec();
    let all = incidents(&path);
    assert_eq!(all.len(), 3, "{all:#?}");
    let named = |n: usize| {
        let id = done[n]["before"]["id"].as_str().unwrap();
        all.iter().filter(|i| i["next"].as_str().unwrap().contains(id) && i["count"] == json!(1)).count()
    };
    assert_eq!([named(0), named(1), named(2)], [1, 1, 1], "{all:#?}");
}

#[test]
fn no_new_file_is_written_where_a_database_would_take_it_for_its_own() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 20, "old");
    let id = snapshot(&path);
    let mut ghost = Python::open(&path);
    ghost.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    ghost.sql("INSERT INTO t VALUES(100, 'x')").unwrap();
    drop(ghost);
    std::fs::rename(directory.join("s.db-wal"), directory.join("put.aside")).unwrap();
    let side = directory.join("s.db.statehouse");
    let places =
        ["s.db-wal", "s.db-journal", "s.db-shm", "s.db.statehouse/x.db", "s.db.statehouse/snapshots/evil.snapshot"]
            .map(|name| directory.join(name));
    let before = Snapshot::of(directory.path(), &[]);
    for to in &places {
        let commands: [&[&str]; 2] = [&["restore", "--to"], &["retired", "merge", "--into"]];
        for arguments in commands {
            let refused = run(&mut command(arguments, &[to, &id, &path]), PATIENCE);
            let code = &refused.json()["error"]["code"];
            assert_eq!((refused.code(), code), (4, &json!("of_database")), "{}: {refused:#?}", to.display());
        }
    }
    before.assert_unchanged(directory.path(), &[]);
    assert!(side.is_dir());
    // The control: a name of its own is written.
    run(&mut command(&["restore", "--to"], &[&directory.join("new.db"), &id, &path]), PATIENCE).success();
}
