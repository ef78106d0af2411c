//! What stands in the way of a merge, and what one that was ended has left.

use super::*;

const BASE: &str =
    "CREATE TABLE t(id INTEGER PRIMARY KEY, a); CREATE TABLE n(id INTEGER PRIMARY KEY, n); INSERT INTO n VALUES(1, 0)";

fn preview_of(two: &Two) -> Merged {
    with(two.directory.path(), |asked| preview(&two.live(), &two.id(), asked)).unwrap()
}

fn snapshots(two: &Two) -> usize {
    let all = std::fs::read_dir(two.directory.path().join("live.db.statehouse/snapshots"));
    all.map_or(0, |all| all.flatten().filter(|e| e.path().extension().is_some_and(|e| e == "snapshot")).count())
}

#[test]
fn a_trigger_that_ends_the_transaction_is_named_with_its_table_and_nothing_is_left_behind() {
    let stop =
        "CREATE TRIGGER stop BEFORE INSERT ON t WHEN new.id = 2 BEGIN SELECT RAISE(ROLLBACK, 'not this one'); END";
    let two = Two::new(BASE, stop, "INSERT INTO t VALUES(1, 'a'), (2, 'b')");
    let e = two.try_merge().unwrap_err();
    assert_eq!((e.code(), e.is_refusal()), ("ended_by_trigger", true));
    assert!(
        e.to_string().contains("table t") && e.detail().contains("stop") && e.detail().contains("not this one"),
        "{e} {}",
        e.detail()
    );
    assert_eq!((two.rows("SELECT count(*) FROM t"), snapshots(&two)), (vec!["0".into()], 0));
    two.run("DROP TRIGGER stop", "");
    assert_eq!((two.merge().rows, snapshots(&two)), (2, 1));
}

#[test]
fn rows_that_a_trigger_may_change_or_take_away_are_not_said_to_stay_as_they_are() {
    let count =
        "CREATE TRIGGER counts AFTER INSERT ON t BEGIN UPDATE n SET n = n + 1; DELETE FROM t WHERE a = 'old'; END";
    let two = Two::new(BASE, count, "INSERT INTO t VALUES(1, 'a')");
    let shown = preview_of(&two).shown;
    let expected = |table: &str| shown.may_change.get(table).cloned();
    assert_eq!(expected("n"), Some(vec!["the trigger counts".to_owned()]));
    assert_eq!(expected("t"), Some(vec!["the trigger counts".to_owned()]));
    let plain = Two::new(
        BASE,
        "CREATE TRIGGER adds AFTER INSERT ON t BEGIN INSERT INTO n(n) VALUES(5); END",
        "INSERT INTO t VALUES(1, 'a')",
    );
    assert!(preview_of(&plain).shown.may_change.is_empty(), "what is only added changes nothing");
}

#[test]
fn what_a_killed_merge_has_left_beside_a_new_file_goes_with_the_next_try_and_nothing_else() {
    let two = Two::new(BASE, "", "INSERT INTO t VALUES(1, 'a')");
    let at = |name: &str| two.directory.path().join(name);
    for name in ["into.db.partial.1", "into.db.partial.1-journal", "into.db.partial.old", "other.db.partial.1"] {
        std::fs::write(at(name), "half").unwrap();
    }
    let owned = std::fs::File::create(at("into.db.partial.2")).unwrap();
    rustix::fs::flock(&owned, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let merged = with(two.directory.path(), |asked| merge_into(&two.live(), &two.id(), &at("into.db"), asked)).unwrap();
    assert_eq!(merged.rows, 1);
    let there: Vec<bool> = [
        "into.db.partial.1",
        "into.db.partial.1-journal",
        "into.db.partial.old",
        "other.db.partial.1",
        "into.db.partial.2",
    ]
    .map(|name| at(name).exists())
    .to_vec();
    assert_eq!(there, [false, false, true, true, true]);
}

#[test]
fn a_merge_that_was_ended_after_its_commit_is_on_record_when_the_next_one_has_looked() {
    let two = Two::new(BASE, "", "INSERT INTO t VALUES(1, 'a')");
    let merged = two.merge();
    let family = statehouse_sqlite::Family::of(&two.live()).unwrap();
    let told = || statehouse_sqlite::incidents::list(&family).unwrap();
    assert_eq!(told().len(), 1);
    std::fs::remove_dir_all(two.directory.path().join("live.db.statehouse/incidents")).unwrap();
    // As it is when the process ends between the commit and the record.
    with(two.directory.path(), |asked| {
        let source = Source::find(&family, &two.id(), &asked.opening(false)).unwrap();
        told::begin(&family, &source, merged.rows, merged.before.as_ref().unwrap());
    });
    let again = two.merge();
    assert_eq!((again.rows, again.done), (0, false));
    let incidents = told();
    assert_eq!(incidents.len(), 1);
    assert!(incidents[0].done.contains("1 row was brought back"), "{}", incidents[0].done);
    assert!(!two.directory.path().join("live.db.statehouse/begun").exists());
}

#[test]
fn a_database_that_is_damaged_itself_is_answered_with_what_puts_the_capture_in_its_place() {
    let rows = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500) INSERT INTO t SELECT i, zeroblob(100) FROM n";
    let more = "CREATE INDEX ia ON t(a); CREATE VIEW v AS SELECT a FROM t; CREATE TRIGGER tr AFTER INSERT ON t BEGIN INSERT INTO n(n) VALUES(new.id); END";
    let two = Two::new(&format!("{BASE}; {rows}; {more}"), "", "INSERT INTO t VALUES(501, 'late')");
    let page: i64 = two.rows("SELECT rootpage FROM sqlite_schema WHERE name = 't'")[0].parse().unwrap();
    let mut bytes = std::fs::read(two.live()).unwrap();
    let root = usize::try_from(page - 1).unwrap() * 4096;
    // Its second child is page 1.
    let cell = root + usize::from(u16::from_be_bytes([bytes[root + 14], bytes[root + 15]]));
    bytes[cell..cell + 4].copy_from_slice(&[0, 0, 0, 1]);
    std::fs::write(two.live(), &bytes).unwrap();
    let plan = preview_of(&two).shown;
    assert_eq!(plan.would_refuse.as_deref(), Some("damaged_database"));
    let command = format!("statehouse restore {} {}", two.id(), two.live().display());
    assert_eq!(plan.restore.as_deref(), Some(command.as_str()));
    assert!(!plan.gone.iter().any(|g| g.contains("()")), "{:?}", plan.gone);
    let e = two.try_merge().unwrap_err();
    assert_eq!((e.code(), e.is_refusal(), snapshots(&two)), ("damaged_database", true, 0));
    assert!(e.hint().contains(&command) && !e.detail().is_empty(), "{} {}", e.hint(), e.detail());
    let into = two.directory.path().join("into.db");
    let merged = with(two.directory.path(), |asked| merge_into(&two.live(), &two.id(), &into, asked)).unwrap();
    assert!(merged.rows > 0);
    let names = tests::rows(&into, "SELECT type || ' ' || name FROM sqlite_schema WHERE type <> 'table' ORDER BY 1");
    assert_eq!(names, ["\"index ia\"", "\"trigger tr\"", "\"view v\""]);
    assert_eq!(tests::rows(&into, "PRAGMA integrity_check"), ["\"ok\""]);
    assert_eq!(tests::rows(&into, "SELECT count(*) FROM t"), ["501"]);
}

#[test]
fn a_merge_in_which_every_row_is_refused_keeps_no_snapshot_and_is_told_as_none() {
    let refuses = "CREATE TRIGGER no BEFORE INSERT ON t BEGIN SELECT RAISE(ABORT, 'never'); END";
    let two = Two::new(BASE, refuses, "INSERT INTO t VALUES(1, 'a')");
    let merged = two.merge();
    assert_eq!((merged.rows, merged.done, &merged.before, snapshots(&two)), (0, false, &None, 0));
    assert_eq!((merged.shown.tables["t"].conflicting, two.conflicts().len()), (1, 1));
    let family = statehouse_sqlite::Family::of(&two.live()).unwrap();
    assert!(statehouse_sqlite::incidents::list(&family).unwrap().is_empty());
}
