//! What other processes have left beside the database.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use statehouse_testkit::TestDir;
use statehouse_testkit::visitor::Python;

use super::{TABLE, content, copy_all, database, expected, fill, restore, sql};

/// A good copy of 300 rows, and beside it the database of which a killed process has 5 rows in a log that was never copied.
fn deleted_and_killed(directory: &Path) -> (PathBuf, PathBuf) {
    let path = database(&directory.join("s.db"), "wal", 4096, 300, "old");
    let good = directory.join("good.db");
    fs::copy(&path, &good).unwrap();
    let mut python = Python::open(&path);
    python.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    python.sql("DELETE FROM t WHERE id > 5").unwrap();
    // Dropped is killed.
    drop(python);
    assert!(fs::metadata(directory.join("s.db-wal")).unwrap().len() > 0, "its log is left");
    (path, good)
}

/// The usual way to restore: the good file is copied over the bad one.
fn control(directory: &Path, good: &Path) -> Result<Value, String> {
    let there = directory.join("control");
    copy_all(directory, &there);
    fs::copy(good, there.join("s.db")).unwrap();
    content(&there.join("s.db"))
}

#[test]
fn case_021_beside_the_log_of_a_killed_process_the_restored_rows_are_there() {
    let directory = TestDir::new();
    let (path, good) = deleted_and_killed(directory.path());
    assert_eq!(control(directory.path(), &good), expected(5, "old"), "the control: the log has the last word");

    let done = restore(&good, &path, &[]).success().json();
    assert_eq!((&done["how"], &done["verified"]), (&json!("live"), &json!(true)), "{done}");
    assert_eq!(
        done["tables"]["t"],
        json!({"here": 5, "there": 300, "only_here": 0, "only_there": 295, "different": 0}),
        "{done}"
    );
    assert_eq!(content(&path), expected(300, "old"));
    let before = PathBuf::from(done["before"]["path"].as_str().unwrap());
    assert_eq!(content(&before), expected(5, "old"), "what was replaced is kept");
    // And the way back is the same command.
    let back = restore(Path::new(done["before"]["id"].as_str().unwrap()), &path, &[]).success().json();
    assert_eq!((&back["kind"], &back["tables"]["t"]["only_here"]), (&json!("snapshot"), &json!(295)), "{back}");
    assert_eq!(content(&path), expected(5, "old"));
}

#[test]
fn case_021_beside_the_log_of_another_database_the_restored_file_is_whole() {
    let directory = TestDir::new();
    let (path, good) = deleted_and_killed(directory.path());
    let other = directory.join("other.db");
    let mut python = Python::open(&other);
    for statement in ["PRAGMA journal_mode=wal", "PRAGMA wal_autocheckpoint=0", TABLE] {
        python.sql(statement).unwrap();
    }
    python.sql(&fill(1, 200, "xyz")).unwrap();
    drop(python);
    fs::rename(directory.join("other.db-wal"), directory.join("s.db-wal")).unwrap();
    fs::remove_file(directory.join("s.db-shm")).unwrap();
    let foreign = fs::read(directory.join("s.db-wal")).unwrap();
    assert_ne!(control(directory.path(), &good), expected(300, "old"), "the control: the log is taken for its own");

    let done = restore(&good, &path, &[]).success().json();
    assert_eq!(content(&path), expected(300, "old"), "{done}");
    let kept = match done["replaced"].as_str() {
        Some(aside) => fs::read(Path::new(aside).join("wal.replaced")).ok(),
        None => None,
    };
    let snapshot = done["before"]["id"].is_string();
    assert!(snapshot || kept.is_some_and(|kept| kept == foreign), "what was there is kept: {done}");
}

#[test]
fn beside_a_damaged_database_its_files_are_kept_and_a_good_one_takes_its_place() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 300, "old");
    let good = directory.join("good.db");
    fs::copy(&path, &good).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    for page in bytes.chunks_mut(4096).skip(1).step_by(2) {
        page[..64].fill(0xa5);
    }
    fs::write(&path, &bytes).unwrap();
    let done = restore(&good, &path, &[]).success().json();
    assert_eq!((&done["how"], &done["before"]["id"]), (&json!("rename"), &Value::Null), "{done}");
    assert!(done["before"]["reason"].as_str().unwrap().contains("damaged"), "{done}");
    let kept = Path::new(done["before"]["path"].as_str().unwrap()).join("main.replaced");
    assert!(fs::read(kept).unwrap() == bytes, "the damaged file is kept as it was");
    assert_eq!(content(&path), expected(300, "old"));
    assert_eq!(sql(&path, &["PRAGMA journal_mode"]), [json!(["wal"])]);
}

#[test]
fn case_023_where_only_a_log_is_left_it_is_kept_and_the_file_is_back() {
    for zeroed in [false, true] {
        let directory = TestDir::new();
        let (path, good) = deleted_and_killed(directory.path());
        let log = fs::read(directory.join("s.db-wal")).unwrap();
        match zeroed {
            true => fs::write(&path, []).unwrap(),
            false => fs::remove_file(&path).unwrap(),
        }
        // The control: any opening of what lies there takes the log away.
        let there = directory.join("control");
        copy_all(directory.path(), &there);
        let _ = content(&there.join("s.db"));
        assert!(fs::metadata(there.join("s.db-wal")).map_or(0, |m| m.len()) == 0, "the control: the log is gone");

        let done = restore(&good, &path, &[]).success().json();
        assert_eq!(done["how"], "rename", "{done}");
        let kept = Path::new(done["before"]["path"].as_str().unwrap()).join("wal.replaced");
        assert!(fs::read(kept).unwrap() == log, "the log is kept: {done}");
        assert_eq!(content(&path), expected(300, "old"));
    }
}

/// A database in rollback mode whose process was killed in a transaction that had reached the main file.
pub(super) fn interrupted(directory: &Path) -> PathBuf {
    let path = database(&directory.join("s.db"), "delete", 4096, 300, "old");
    let mut python = Python::open(&path);
    for statement in ["PRAGMA cache_size=4", "BEGIN IMMEDIATE", "UPDATE t SET x = 'torn' || x"] {
        python.sql(statement).unwrap();
    }
    drop(python);
    assert!(fs::metadata(directory.join("s.db-journal")).unwrap().len() > 0, "its journal is left");
    path
}

#[test]
fn case_021_beside_a_hot_journal_the_restored_file_is_whole() {
    let directory = TestDir::new();
    let path = interrupted(directory.path());
    let good = database(&directory.join("good.db"), "delete", 4096, 400, "new");
    assert_ne!(
        control(directory.path(), &good),
        expected(400, "new"),
        "the control: the journal is rolled back into it"
    );
    let journal = fs::read(directory.join("s.db-journal")).unwrap();

    let dry = restore(&good, &path, &["--dry-run"]).success().json();
    assert_eq!(dry["refused"], Value::Null, "{dry}");
    let done = restore(&good, &path, &[]).success().json();
    assert_eq!((&done["how"], &done["before"]["id"]), (&json!("rename"), &Value::Null), "{done}");
    assert_eq!(
        done["tables"]["t"],
        json!({"here": 300, "there": 400, "only_here": 0, "only_there": 100, "different": 300}),
        "{done}"
    );
    assert_eq!(content(&path), expected(400, "new"));
    assert_eq!(sql(&path, &["PRAGMA journal_mode"]), [json!(["delete"])], "it has the mode that it had");
    let retired = directory.join("s.db.statehouse/retired");
    let copied = fs::read_dir(retired)
        .unwrap()
        .any(|place| fs::read(place.unwrap().path().join("journal.copied")).is_ok_and(|bytes| bytes == journal));
    assert!(copied, "the journal is kept as it was: {done}");
}

#[test]
fn a_link_in_the_place_of_the_database_is_refused_and_nothing_is_changed() {
    let directory = TestDir::new();
    let good = database(&directory.join("good.db"), "wal", 4096, 10, "new");
    let path = database(&directory.join("real.db"), "wal", 4096, 10, "old");
    let (link, hard) = (directory.join("link.db"), directory.join("hard.db"));
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let refused = restore(&good, &link, &[]);
    assert_eq!((refused.code(), &refused.json()["error"]["code"]), (4, &json!("refused_symlink")), "{refused:#?}");
    fs::hard_link(&path, &hard).unwrap();
    let refused = restore(&good, &hard, &[]);
    assert_eq!((refused.code(), &refused.json()["error"]["code"]), (4, &json!("refused_hard_link")), "{refused:#?}");
    assert_eq!(content(&path), expected(10, "old"));
}
