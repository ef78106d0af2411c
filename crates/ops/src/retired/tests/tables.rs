//! One kind of table after the other: what is counted, and what is there after a merge.

use super::*;

#[test]
fn rows_that_only_the_capture_has_come_back_and_nothing_of_the_database_is_changed() {
    let two = Two::new(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, v); INSERT INTO t VALUES(1,'a'),(2,'b'),(3,'c');",
        "INSERT INTO t VALUES(10,'here'); UPDATE t SET v = 'changed here' WHERE id = 2; DELETE FROM t WHERE id = 3",
        "INSERT INTO t VALUES(4,'d'),(5,x'00ff')",
    );
    assert_eq!(counts(&two.show(), "t"), [3, 1, 1, 1, 0], "the row that was deleted here comes back");
    let before = std::fs::read(two.live()).unwrap();
    let merged = two.merge();
    assert_eq!((merged.rows, merged.read_back), (3, Some(true)));
    let all = ["1|\"a\"", "2|\"changed here\"", "3|\"c\"", "4|\"d\"", "5|{\"blob\":\"00ff\"}", "10|\"here\""];
    assert_eq!(two.rows("SELECT * FROM t ORDER BY id"), all);
    let kept = merged.before.unwrap();
    assert_eq!(rows(&kept, "SELECT count(*) FROM t"), ["3"]);
    assert!(!before.is_empty());
    let again = two.merge();
    assert_eq!((again.rows, counts(&again.shown, "t")), (0, [0, 4, 1, 1, 0]));
    assert_eq!(two.rows("SELECT * FROM t ORDER BY id"), all);
}

#[test]
fn a_conflict_is_listed_with_both_rows_and_only_its_owner_may_read_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let two = Two::new(
        "CREATE TABLE t(k TEXT PRIMARY KEY, v); INSERT INTO t VALUES('a', 1)",
        "UPDATE t SET v = 2",
        "UPDATE t SET v = 1.0",
    );
    let merged = two.merge();
    assert_eq!((merged.rows, counts(&merged.shown, "t")), (0, [0, 0, 1, 0, 0]));
    let list = two.conflicts();
    assert_eq!(list.len(), 1);
    assert_eq!(list[0]["table"], "t");
    assert_eq!(list[0]["key"], serde_json::json!({ "k": "a" }));
    assert_eq!((&list[0]["captured"]["v"], &list[0]["here"]["v"]), (&serde_json::json!(1.0), &serde_json::json!(2)));
    let mode = std::fs::metadata(merged.conflicts.unwrap()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn keys_of_every_kind_are_known_again() {
    let two = Two::new(
        "CREATE TABLE w(a TEXT COLLATE NOCASE, b, v, PRIMARY KEY(a, b)) WITHOUT ROWID;
         CREATE TABLE k(a TEXT PRIMARY KEY COLLATE NOCASE, v);
         CREATE TABLE b(\"quoted \"\"names\"\"\" BLOB PRIMARY KEY, \"select\");
         CREATE TABLE d(id INTEGER PRIMARY KEY DESC, v);
         CREATE TABLE r(rowid TEXT, oid TEXT, v, PRIMARY KEY(rowid));
         INSERT INTO w VALUES('x', 1, 0); INSERT INTO k VALUES('x', 0); INSERT INTO b VALUES(x'00', 0); INSERT INTO d VALUES(7, 0);",
        "INSERT INTO w VALUES('Here', 1, 1); INSERT INTO k VALUES('Here', 1); INSERT INTO b VALUES(x'01', 1);
         INSERT INTO d VALUES(9, 1); INSERT INTO r VALUES('here', 'o', 1)",
        "INSERT INTO w VALUES('HERE', 1.0, 2), ('there', 1, 2); INSERT INTO k VALUES('HERE', 2), ('there', 2);
         INSERT INTO b VALUES(x'01', 2), (x'0100', 2); INSERT INTO d VALUES(9, 2), (8, 2);
         INSERT INTO r VALUES('here', 'o', 2), ('there', 'o', 2)",
    );
    let shown = two.show();
    for table in ["w", "k", "b", "d"] {
        assert_eq!(counts(&shown, table), [1, 1, 1, 0, 0], "{table}");
    }
    assert_eq!(counts(&shown, "r"), [1, 0, 1, 0, 0]);
    assert_eq!(two.merge().rows, 5);
    assert_eq!(two.rows("SELECT a, v FROM w ORDER BY v"), ["\"x\"|0", "\"Here\"|1", "\"there\"|2"]);
    assert_eq!(two.rows("SELECT a, v FROM k ORDER BY v"), ["\"x\"|0", "\"Here\"|1", "\"there\"|2"]);
    assert_eq!(two.merge().rows, 0);
}

#[test]
fn rows_without_a_key_are_known_by_their_content_and_as_many_come_back_as_there_were() {
    let two = Two::new(
        "CREATE TABLE log(t); INSERT INTO log VALUES('a'),('tick')",
        "INSERT INTO log VALUES('here'),('tick')",
        "INSERT INTO log VALUES('tick'),('there'),('tick'),(NULL)",
    );
    // Three ticks there and two here: one is missing.
    assert_eq!(counts(&two.show(), "log"), [3, 3, 0, 1, 0]);
    assert_eq!(two.merge().rows, 3);
    let all = ["\"a\"", "\"here\"", "\"there\"", "\"tick\"", "\"tick\"", "\"tick\"", "null"];
    assert_eq!(two.rows("SELECT t FROM log ORDER BY t IS NULL, t"), all);
    assert_eq!((two.merge().rows, counts(&two.show(), "log")), (0, [0, 6, 0, 1, 0]));
}

#[test]
fn what_says_which_version_a_file_has_is_no_row_that_comes_back() {
    let two = Two::new(
        "CREATE TABLE schema_version(version INTEGER); CREATE TABLE alembic(v TEXT PRIMARY KEY);
         INSERT INTO schema_version VALUES(30); INSERT INTO alembic VALUES('abc')",
        "UPDATE schema_version SET version = 31; UPDATE alembic SET v = 'def'",
        "",
    );
    let merged = two.merge();
    assert_eq!(counts(&merged.shown, "schema_version"), [0, 0, 1, 1, 0]);
    assert_eq!(counts(&merged.shown, "alembic"), [0, 0, 1, 1, 0]);
    assert_eq!(two.rows("SELECT * FROM schema_version"), ["31"]);
    assert_eq!(two.rows("SELECT * FROM alembic"), ["\"def\""]);
}

#[test]
fn keys_without_a_value_name_no_row() {
    let two = Two::new(
        "CREATE TABLE t(a, b, v, PRIMARY KEY(a, b)); INSERT INTO t VALUES(NULL, 1, 'x'), (NULL, 1, 'x')",
        "INSERT INTO t VALUES(1, 1, 'here')",
        "INSERT INTO t VALUES(NULL, 1, 'y'), (NULL, 1, 'x')",
    );
    assert_eq!(counts(&two.show(), "t"), [2, 2, 0, 1, 0]);
    two.merge();
    assert_eq!(two.rows("SELECT v, count(*) FROM t GROUP BY v"), ["\"here\"|1", "\"x\"|3", "\"y\"|1"]);
    assert_eq!(two.merge().rows, 0);
}

#[test]
fn what_must_be_unique_beside_the_key_is_a_conflict() {
    let two = Two::new(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT UNIQUE COLLATE NOCASE, tag, gone INTEGER DEFAULT 0);
         CREATE UNIQUE INDEX part ON t(lower(tag)) WHERE gone = 0;",
        "INSERT INTO t VALUES(1, 'anna', 'X', 0), (2, 'old', 'y', 1)",
        "INSERT INTO t VALUES(3, 'ANNA', 'a', 0), (4, NULL, 'x', 0), (5, NULL, 'Y', 0), (6, NULL, 'X', 1), (7, 'neu', NULL, 0)",
    );
    let shown = two.show();
    assert_eq!(counts(&shown, "t"), [3, 0, 2, 2, 0]);
    let merged = two.merge();
    assert_eq!((merged.rows, counts(&merged.shown, "t")), (3, [3, 0, 2, 2, 0]));
    assert_eq!(two.rows("SELECT id FROM t ORDER BY id"), ["1", "2", "5", "6", "7"]);
    let mut keys: Vec<String> = two.conflicts().iter().map(|c| c["key"]["id"].to_string()).collect();
    keys.sort();
    assert_eq!(keys, ["3", "4"]);
}

#[test]
fn columns_that_one_side_has_and_generated_ones_are_left_to_their_side() {
    let two = Two::new(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, a, twice AS (a * 2) STORED, half AS (a / 2)); INSERT INTO t(id, a) VALUES(1, 10)",
        "ALTER TABLE t ADD COLUMN added TEXT DEFAULT 'new'",
        "ALTER TABLE t ADD COLUMN theirs; INSERT INTO t(id, a, theirs) VALUES(2, 20, 'x')",
    );
    let merged = two.merge();
    let t = &merged.shown.tables["t"];
    assert_eq!(
        (&t.columns_only_here[..], &t.columns_only_captured[..]),
        (&["added".to_owned()][..], &["theirs".to_owned()][..])
    );
    assert_eq!(two.rows("SELECT * FROM t ORDER BY id"), ["1|10|20|5|\"new\"", "2|20|40|10|\"new\""]);
}

#[test]
fn a_table_that_only_the_capture_has_comes_with_its_indexes() {
    let two = Two::new(
        "CREATE TABLE a(x)",
        "CREATE VIEW taken AS SELECT 1",
        "CREATE TABLE n(id INTEGER PRIMARY KEY, v UNIQUE); CREATE INDEX ni ON n(v, id); INSERT INTO n VALUES(3, 'x');
         CREATE TABLE taken(y); INSERT INTO taken VALUES(1)",
    );
    let shown = two.show();
    assert!(shown.tables["n"].only_captured);
    assert!(!shown.tables.contains_key("taken"), "the name is a view's here");
    assert_eq!(two.merge().rows, 1);
    assert_eq!(two.rows("SELECT * FROM n INDEXED BY ni WHERE v = 'x'"), ["3|\"x\""]);
    assert_eq!(two.merge().rows, 0);
}
