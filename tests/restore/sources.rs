//! What may be restored from, and where else than into a database.

use std::fs;
use std::path::Path;

use serde_json::json;
use statehouse_testkit::visitor::Python;
use statehouse_testkit::{Snapshot, TestDir, run};

use super::{command, content, database, expected, fill, restore, sql};
use crate::house::PATIENCE;

fn to(source: &Path, file: &Path) -> statehouse_testkit::Finished {
    run(command(&["restore", "--to"], &[file, source]).arg("/nonexistent/state.db"), PATIENCE)
}

#[test]
fn case_024_a_file_with_a_log_beside_it_is_read_through_its_log() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 10, "old");
    let source = database(&directory.join("source.db"), "wal", 4096, 100, "new");
    let mut python = Python::open(&source);
    python.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    python.sql(&fill(101, 200, "new")).unwrap();
    // While its program runs, and after it was killed.
    let done = restore(&source, &path, &[]).success().json();
    assert!(done["notes"][0].as_str().unwrap().contains("through its log"), "{done}");
    assert_eq!(content(&path), expected(200, "new"));
    drop(python);
    let alone = directory.join("alone.db");
    fs::copy(&source, &alone).unwrap();
    assert_eq!(content(&alone), expected(100, "new"), "the control: the main file alone is older");
    restore(&alone, &path, &[]).success();
    restore(&source, &path, &[]).success();
    assert_eq!(content(&path), expected(200, "new"));
    assert!(directory.join("source.db-wal").exists(), "the source is as it was");
}

#[test]
fn a_source_that_is_not_good_is_refused_and_nothing_is_changed() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 10, "old");
    let damaged = database(&directory.join("damaged.db"), "wal", 4096, 300, "new");
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[4096 * 2..4096 * 3].fill(0xa5);
    fs::write(&damaged, &bytes).unwrap();
    let text = directory.join("text.db");
    fs::write(&text, "no database ".repeat(1000)).unwrap();
    let other = directory.join("other.db");
    sql(&other, &["CREATE TABLE elsewhere(a)", "PRAGMA application_id=77"]);
    let alien = directory.join("alien.db");
    sql(&alien, &["CREATE TABLE elsewhere(a)"]);
    let hot = directory.join("hot.db");
    fs::copy(&damaged, &hot).unwrap();
    fs::write(directory.join("hot.db-journal"), b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7rest").unwrap();
    let before = Snapshot::of(directory.path(), &[]);
    let cases = [
        (damaged.as_path(), "source_damaged", 4),
        (&text, "refused_not_database", 4),
        (&other, "refused_other_application", 4),
        (&hot, "source_unfit", 4),
        (&path, "same_file", 4),
        (Path::new("20260101T000000-1"), "not_found", 1),
    ];
    for (source, code, exit) in cases {
        for dry in [&["--dry-run"][..], &[]] {
            let refused = restore(source, &path, dry);
            // What is only not fit for this place is planned, and the plan says so.
            let document = refused.json();
            let (found, status) = match &document["refused"]["code"] {
                serde_json::Value::Null => (&document["error"]["code"], refused.code()),
                code => (code, exit),
            };
            assert_eq!((found, status), (&json!(code), exit), "{source:?} {dry:?}: {refused:#?}");
        }
    }
    before.assert_unchanged(directory.path(), &[]);
    // Only tables tell this one, and they are looked at when nobody else is in.
    let refused = restore(&alien, &path, &[]);
    assert_eq!(
        (refused.code(), &refused.json()["error"]["code"]),
        (4, &json!("refused_other_application")),
        "{refused:#?}"
    );
    assert_eq!(content(&path), expected(10, "old"));
    // Who asks for that gets it.
    restore(&other, &path, &["--force"]).success();
    assert_eq!(sql(&path, &["PRAGMA application_id"]), [json!([77])]);
}

#[test]
fn a_new_file_elsewhere_is_whole_and_nothing_is_written_over() {
    let directory = TestDir::new();
    let source = database(&directory.join("source.db"), "wal", 4096, 100, "new");
    let mut python = Python::open(&source);
    python.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    python.sql(&fill(101, 200, "new")).unwrap();
    let new = directory.join("new.db");
    let done = to(&source, &new).success().json();
    assert_eq!((&done["how"], &done["before"]), (&json!("to"), &serde_json::Value::Null), "{done}");
    assert_eq!(content(&new), expected(200, "new"));
    assert_eq!(sql(&new, &["PRAGMA journal_mode"]), [json!(["delete"])], "it is one file");
    python.quit();
    let before = Snapshot::of(directory.path(), &[]);
    let refused = to(&source, &new);
    assert_eq!((refused.code(), &refused.json()["error"]["code"]), (4, &json!("exists")), "{refused:#?}");
    before.assert_unchanged(directory.path(), &[]);
    // A log that lies there would be taken for its own.
    fs::write(directory.join("third.db-wal"), "left").unwrap();
    let refused = to(&source, &directory.join("third.db"));
    assert_eq!((refused.code(), &refused.json()["error"]["code"]), (4, &json!("exists")), "{refused:#?}");
}
