//! Tables into which triggers of others write: after a merge they have neither fewer nor more rows than there were.

use super::*;

const AUDITED: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, v);
    CREATE TRIGGER note AFTER INSERT ON t BEGIN INSERT INTO audit(what, at) VALUES('added ' || new.id, AT); END;";

fn audited(audit: &str, at: &str) -> String {
    format!("{audit}; {}; INSERT INTO t VALUES(1, 'both')", AUDITED.replace("AT)", &format!("{at})")))
}

/// The times of day at which `t`'s rows came, made such that each side has its own.
fn at_other_times(two: &Two) {
    two.run("UPDATE audit SET at = 'of the database'", "UPDATE audit SET at = 'of the capture'");
}

#[test]
fn an_audit_log_without_a_key_has_what_triggers_wrote_once() {
    let two = Two::new(
        &audited("CREATE TABLE audit(what, at)", "'then'"),
        "INSERT INTO t VALUES(2, 'here')",
        "INSERT INTO t VALUES(3, 'there'), (4, 'there'); INSERT INTO audit VALUES('of a person', 'then')",
    );
    let merged = two.merge();
    assert_eq!((merged.read_back, merged.shown.conflicting()), (Some(true), 0));
    let all = ["\"added 1\"", "\"added 2\"", "\"added 3\"", "\"added 4\"", "\"of a person\""];
    assert_eq!(two.rows("SELECT what FROM audit ORDER BY what"), all);
    assert_eq!(two.merge().rows, 0);
    assert_eq!(two.rows("SELECT what FROM audit ORDER BY what"), all);
}

#[test]
fn an_audit_log_keeps_the_times_at_which_it_was_written() {
    for key in ["", "n INTEGER PRIMARY KEY, ", "n INTEGER PRIMARY KEY AUTOINCREMENT, "] {
        let two = Two::new(
            &audited(&format!("CREATE TABLE audit({key}what, at)"), "datetime('now')"),
            "",
            "INSERT INTO t VALUES(3, 'there'), (4, 'there')",
        );
        two.run(
            "UPDATE audit SET at = 'before'",
            "UPDATE audit SET at = CASE what WHEN 'added 1' THEN 'before' ELSE 'of the capture' END",
        );
        let merged = two.merge();
        assert_eq!((merged.rows, merged.shown.conflicting()), (4, 0), "{key}");
        let all = ["\"added 1\"|\"before\"", "\"added 3\"|\"of the capture\"", "\"added 4\"|\"of the capture\""];
        assert_eq!(two.rows("SELECT what, at FROM audit ORDER BY what"), all, "{key}");
        assert_eq!(two.merge().rows, 0);
    }
}

#[test]
fn an_audit_log_with_a_key_that_both_sides_went_on_writing_lists_what_stands_against_what() {
    let two = Two::new(
        &audited("CREATE TABLE audit(n INTEGER PRIMARY KEY, what, at)", "'then'"),
        "INSERT INTO t VALUES(2, 'here')",
        "INSERT INTO t VALUES(3, 'there'), (4, 'there')",
    );
    let merged = two.merge();
    // Number 2 is another row on each side, and number 3 is free here.
    assert_eq!(counts(&merged.shown, "audit"), [1, 1, 1, 0, 0]);
    assert_eq!(two.rows("SELECT n, what FROM audit ORDER BY n"), ["1|\"added 1\"", "2|\"added 2\"", "3|\"added 4\""]);
    assert_eq!(two.conflicts()[0]["captured"]["what"], "added 3");
    assert_eq!(two.merge().rows, 0);
}

#[test]
fn what_the_capture_has_no_trigger_for_is_still_written_by_ours() {
    let two = Two::new(
        &audited("CREATE TABLE audit(what, at)", "'then'"),
        "",
        "DROP TRIGGER note; INSERT INTO t VALUES(3, 'there'); INSERT INTO audit VALUES('added 3', 'then')",
    );
    two.merge();
    assert_eq!(
        two.rows("SELECT what FROM audit ORDER BY what"),
        ["\"added 1\"", "\"added 3\""],
        "written by one of them"
    );
    let two = Two::new(
        &audited("CREATE TABLE audit(what, at)", "'then'"),
        "",
        "DROP TRIGGER note; INSERT INTO t VALUES(3, 'there')",
    );
    two.merge();
    assert_eq!(two.rows("SELECT what FROM audit ORDER BY what"), ["\"added 1\"", "\"added 3\""]);
}

#[test]
fn rows_that_a_table_adds_to_itself_come_once() {
    let base = "CREATE TABLE t(id INTEGER PRIMARY KEY, kind, of);
        CREATE TRIGGER reply AFTER INSERT ON t WHEN new.kind = 'ask' BEGIN INSERT INTO t(kind, of) VALUES('answer', new.id); END;";
    let two = Two::new(base, "INSERT INTO t(kind) VALUES('other'), ('other'), ('other')", "");
    two.run("", "INSERT INTO t(id, kind) VALUES(10, 'ask')");
    let merged = two.merge();
    assert_eq!((merged.rows, merged.shown.conflicting(), merged.read_back), (2, 0, Some(true)));
    assert_eq!(
        two.rows("SELECT id, kind, of FROM t WHERE kind <> 'other' ORDER BY id"),
        ["10|\"ask\"|null", "11|\"answer\"|10"]
    );
}

#[test]
fn counts_that_triggers_keep_are_raised_and_a_chain_of_triggers_is_followed() {
    let base =
        "CREATE TABLE t(id INTEGER PRIMARY KEY, v); CREATE TABLE counts(k TEXT PRIMARY KEY, n); CREATE TABLE log(what);
        CREATE TRIGGER c AFTER INSERT ON t BEGIN
          INSERT INTO counts VALUES(new.v, 1) ON CONFLICT(k) DO UPDATE SET n = n + 1; END;
        CREATE TRIGGER l AFTER UPDATE ON counts BEGIN INSERT INTO log VALUES(new.k || new.n); END;
        INSERT INTO t(v) VALUES('a');";
    let two = Two::new(base, "", "INSERT INTO t(v) VALUES('a'), ('a'), ('b')");
    let merged = two.merge();
    assert_eq!(two.rows("SELECT k, n FROM counts ORDER BY k"), ["\"a\"|3", "\"b\"|1"]);
    assert_eq!(
        (merged.shown.conflicting(), two.rows("SELECT what FROM log ORDER BY what")),
        (0, vec!["\"a2\"".to_owned(), "\"a3\"".to_owned()])
    );
    assert_eq!(two.merge().rows, 0);
}

#[test]
fn a_new_file_has_what_triggers_wrote_once_too_and_no_trigger_of_the_merge() {
    let two =
        Two::new(&audited("CREATE TABLE audit(what, at)", "datetime('now')"), "", "INSERT INTO t VALUES(3, 'there')");
    at_other_times(&two);
    let out = two.directory.path().join("out.db");
    with(two.directory.path(), |asked| merge_into(&two.live(), &two.id(), &out, asked)).unwrap();
    assert_eq!(rows(&out, "SELECT count(*) FROM audit WHERE what = 'added 3'"), ["1"]);
    assert_eq!(rows(&out, "SELECT name FROM sqlite_schema WHERE type = 'trigger'"), ["\"note\""]);
    Connection::open(&out).unwrap().execute_batch("INSERT INTO t VALUES(9, 'later')").unwrap();
    assert_eq!(rows(&out, "SELECT count(*) FROM audit WHERE what = 'added 9'"), ["1"]);
}
