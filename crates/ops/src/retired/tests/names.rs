//! Tables and columns that were renamed after the two had parted.

use super::*;

const BASE: &str =
    "CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT, b INT); INSERT INTO t VALUES(1, 'x', 1), (2, 'y', 2)";
const CAPTURED: &str = "INSERT INTO t VALUES(3, 'z', 3)";

fn aside(two: &Two, table: &str) -> Vec<String> {
    let shown = two.show();
    let t = &shown.tables[table];
    assert_eq!((t.missing, t.conflicting), (0, two.conflicting(table)), "{t:?}");
    let merged = two.merge();
    assert_eq!(
        (merged.rows, merged.shown.tables[table].conflicting),
        (0, t.conflicting),
        "a merge counts as a look does"
    );
    two.conflicts().iter().map(|c| c["why"].as_str().unwrap().to_owned()).collect()
}

impl Two {
    fn conflicting(&self, table: &str) -> u64 {
        self.show().tables[table].conflicting
    }
}

#[test]
fn a_row_of_a_table_whose_column_was_renamed_comes_back_with_all_of_its_values() {
    let two = Two::new(BASE, "ALTER TABLE t RENAME COLUMN a TO title", CAPTURED);
    let shown = two.show();
    assert_eq!(counts(&shown, "t"), [1, 2, 0, 0, 0]);
    assert_eq!(shown.tables["t"].columns_captured_as["title"], "a");
    let merged = two.merge();
    assert_eq!((merged.rows, counts(&merged.shown, "t")), (1, [1, 2, 0, 0, 0]));
    assert_eq!(two.rows("SELECT * FROM t"), ["1|\"x\"|1", "2|\"y\"|2", "3|\"z\"|3"]);
    assert_eq!(two.merge().rows, 0);
}

#[test]
fn a_column_that_was_renamed_and_others_that_were_added_after_it_are_told_apart() {
    let live = "ALTER TABLE t RENAME COLUMN b TO n; ALTER TABLE t ADD COLUMN c DEFAULT 7; ALTER TABLE t RENAME COLUMN id TO no";
    let two = Two::new(BASE, live, CAPTURED);
    assert_eq!(counts(&two.show(), "t"), [1, 2, 0, 0, 0]);
    assert_eq!(two.merge().rows, 1);
    assert_eq!(two.rows("SELECT * FROM t WHERE no = 3"), ["3|\"z\"|3|7"]);
}

#[test]
fn rows_of_a_table_that_was_renamed_come_into_that_one_and_no_second_table_is_made() {
    let refers =
        "CREATE TABLE child(n PRIMARY KEY, t REFERENCES t(id)) WITHOUT ROWID; INSERT INTO child VALUES('one', 1);";
    let two = Two::new(
        &format!("{BASE}; {refers}"),
        "ALTER TABLE t RENAME TO people; ALTER TABLE child RENAME COLUMN t TO person",
        &format!("{CAPTURED}; INSERT INTO child VALUES('three', 3)"),
    );
    let shown = two.show();
    assert_eq!((counts(&shown, "people"), shown.tables["people"].captured_as.as_deref()), ([1, 2, 0, 0, 0], Some("t")));
    assert_eq!((counts(&shown, "child"), shown.tables.len()), ([1, 1, 0, 0, 0], 2));
    assert_eq!(two.merge().rows, 2);
    assert_eq!(two.rows("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY 1"), ["\"child\"", "\"people\""]);
    assert_eq!(two.rows("SELECT person, a FROM child JOIN people ON id = person"), ["1|\"x\"", "3|\"z\""]);
}

#[test]
fn a_table_renamed_behind_a_view_of_its_old_name_gets_its_rows() {
    let two = Two::new(BASE, "ALTER TABLE t RENAME TO base; CREATE VIEW t AS SELECT * FROM base", CAPTURED);
    assert_eq!(two.merge().rows, 1);
    assert_eq!(two.rows("SELECT a FROM t WHERE id = 3"), ["\"z\""]);
}

#[test]
fn what_may_be_a_rename_and_cannot_be_shown_to_be_one_is_listed_and_never_put_in_half() {
    // Made anew the table begins on another page.
    let rebuilt =
        "CREATE TABLE n(id INTEGER PRIMARY KEY, title TEXT, b INT); INSERT INTO n SELECT * FROM t; DROP TABLE t;
        ALTER TABLE n RENAME TO t";
    let two = Two::new(BASE, rebuilt, CAPTURED);
    let why = aside(&two, "t");
    assert!(why.len() == 1 && why[0].contains("the capture alone has a and the database alone has title"), "{why:?}");
    assert_eq!(two.rows("SELECT count(*) FROM t"), ["2"]);
    let two = Two::new(
        BASE,
        "CREATE TABLE n(id INTEGER PRIMARY KEY, a TEXT, b INT); INSERT INTO n SELECT * FROM t; DROP TABLE t",
        CAPTURED,
    );
    let why = aside(&two, "t");
    assert!(why.len() == 3 && why[0].contains("its table n has the same columns"), "{why:?}");
    assert_eq!(two.rows("SELECT count(*) FROM sqlite_schema"), ["1"]);
}

#[test]
fn another_table_on_the_page_of_one_that_was_dropped_is_not_taken_for_it() {
    let live =
        "DROP TABLE t; CREATE TABLE u(id INTEGER PRIMARY KEY, a TEXT, b INT); INSERT INTO u VALUES(1, 'other', 9)";
    let two = Two::new(BASE, live, CAPTURED);
    assert!(two.show().tables["t"].only_captured);
    assert_eq!(two.merge().rows, 3);
    assert_eq!(
        (two.rows("SELECT count(*) FROM u"), two.rows("SELECT count(*) FROM t")),
        (vec!["1".into()], vec!["3".into()])
    );
}
