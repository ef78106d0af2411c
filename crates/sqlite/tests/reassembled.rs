//! What is left of a database that was destroyed in place is put together, and what is lost is said.

use std::path::{Path, PathBuf};
use std::time::Duration;

use statehouse_sqlite::reassemble::{self, Account};
use statehouse_testkit::home::TestDir;
use statehouse_testkit::wait::until;

use crate::holder::Holder;
use crate::support::{Sibling, visitor, with};

pub(crate) const SOON: Duration = Duration::from_secs(20);

pub(crate) fn empty(file: &Path) {
    std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(0).unwrap();
}

pub(crate) fn checkpoint(path: &Path) {
    visitor(path, "PRAGMA busy_timeout=5000; PRAGMA wal_checkpoint(TRUNCATE)");
}

pub(crate) fn evidence(path: &Path) -> Option<PathBuf> {
    let retired = with(path, ".statehouse").join("retired");
    let mut all = std::fs::read_dir(retired).ok()?.map(|e| e.unwrap().path());
    all.find(|p| p.file_name().unwrap().to_string_lossy().starts_with("destroyed-"))
}

/// The account when so many writes were run once more in all.
pub(crate) fn account(path: &Path, run_again: u64) -> Account {
    let mut found = None;
    until("the account", SOON, || {
        found = evidence(path).and_then(|place| reassemble::account(&place)).filter(|a| a.run_again >= run_again);
        if found.is_none() {
            eprintln!("{}", std::fs::read_to_string(with(path, ".statehouse/destroyed.json")).unwrap_or_default());
        }
        found.is_some()
    });
    found.unwrap()
}

pub(crate) fn keys(database: &Path) -> Vec<String> {
    visitor(database, "SELECT key FROM k ORDER BY key").lines().map(str::to_owned).collect()
}

pub(crate) fn put(holder: &mut Holder, name: &str, count: usize, kept: &mut Vec<String>) {
    for n in 0..count {
        holder.ok(&format!("put {name}{n}"));
        kept.push(format!("{name}{n}"));
    }
}

/// A snapshot as it is recorded, made by the stock program.
fn snapshot(path: &Path, name: &str) {
    let place = with(path, ".statehouse").join("snapshots");
    std::fs::create_dir_all(&place).unwrap();
    let file = place.join(format!("{name}.snapshot"));
    visitor(path, &format!("VACUUM INTO '{}'", file.display()));
    let record = serde_json::json!({"id": name, "path": file, "created_at": "2026-01-01T00:00:00Z", "verified": true});
    std::fs::write(place.join(format!("{name}.json")), record.to_string()).unwrap();
}

#[test]
fn of_an_emptied_log_the_processes_still_know_everything() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let (mut one, mut two) = (Holder::with_store(&path), Holder::with_store(&path));
    let mut kept = Vec::new();
    put(&mut one, "early", 20, &mut kept);
    checkpoint(&path);
    put(&mut one, "one", 7, &mut kept);
    put(&mut two, "two", 9, &mut kept);
    put(&mut one, "three", 3, &mut kept);
    empty(&with(&path, "-wal"));
    let account = account(&path, 19);
    assert_eq!((account.verified, account.complete, account.failed), (true, true, 0), "{account:#?}");
    assert!(account.lost.is_empty(), "{account:#?}");
    kept.sort();
    assert_eq!(keys(account.rebuilt.as_ref().unwrap()), kept);
    let files_alone = directory.join("alone.db");
    std::fs::copy(evidence(&path).unwrap().join("main.captured"), &files_alone).unwrap();
    assert_eq!(keys(&files_alone).len(), 20, "the files alone have not");
    // Whoever is refused is told where it is.
    until("whoever is refused is told", SOON, || {
        let refused = Holder::start().order(&format!("open {}", path.display())).unwrap_err();
        refused.contains("rebuilt.captured; nothing that was acknowledged is lost")
    });
}

#[test]
fn what_a_process_knew_that_has_ended_is_named_as_lost() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let (mut one, mut two) = (Holder::with_store(&path), Holder::with_store(&path));
    let mut kept = Vec::new();
    put(&mut one, "early", 20, &mut kept);
    checkpoint(&path);
    put(&mut one, "one", 4, &mut kept);
    put(&mut two, "gone", 5, &mut Vec::new());
    put(&mut one, "after", 4, &mut kept);
    two.kill();
    empty(&with(&path, "-wal"));
    let account = account(&path, 8);
    assert_eq!((account.verified, account.lost.len()), (true, 1), "{account:#?}");
    let (first, last) = account.at_risk.unwrap();
    assert_eq!(first, 1);
    let known: u32 = account.remembered.iter().map(|(from, to)| to - from + 1).sum();
    assert!(known > 0 && known < last, "{account:#?}");
    assert!(account.lost[0].starts_with("frames "), "{account:#?}");
    kept.sort();
    assert_eq!(keys(account.rebuilt.as_ref().unwrap()), kept, "and everything else is there");
}

#[test]
fn what_was_copied_into_the_main_file_is_not_remembered_any_more() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mut one = Holder::with_store(&path);
    put(&mut one, "early", 30, &mut Vec::new());
    checkpoint(&path);
    put(&mut one, "late", 2, &mut Vec::new());
    empty(&with(&path, "-wal"));
    let account = account(&path, 2);
    assert_eq!((account.run_again, account.lost.len()), (2, 0), "{account:#?}");
}

/// A checkpoint that a reader holds up leaves out the pages that were changed after what he reads, also their earlier content.
#[test]
fn what_a_reader_has_kept_out_of_the_main_file_is_still_remembered() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mut one = Holder::with_store(&path);
    let mut kept = Vec::new();
    let long = "x".repeat(300);
    put(&mut one, &format!("m{long}"), 60, &mut kept);
    checkpoint(&path);
    put(&mut one, &format!("a{long}"), 60, &mut kept);
    let mut reader = Sibling::connected(&path);
    reader.sql("BEGIN");
    reader.sql("SELECT count(*) FROM k");
    put(&mut one, &format!("z{long}"), 60, &mut kept);
    visitor(&path, "PRAGMA wal_checkpoint(PASSIVE)");
    put(&mut one, "last", 1, &mut kept);
    empty(&with(&path, "-wal"));
    let account = account(&path, 1);
    kept.sort();
    assert_eq!(keys(account.rebuilt.as_ref().unwrap()), kept, "{account:#?}");
    assert!(account.verified, "{account:#?}");
}

#[test]
fn of_an_overwritten_main_file_the_snapshot_and_the_memory_are_put_together() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mut one = Holder::with_store(&path);
    let mut kept = Vec::new();
    put(&mut one, "early", 2000, &mut kept);
    checkpoint(&path);
    snapshot(&path, "a");
    put(&mut one, "late", 40, &mut kept);
    let garbage = vec![0xa5; 8192];
    std::os::unix::fs::FileExt::write_all_at(
        &std::fs::OpenOptions::new().write(true).open(&path).unwrap(),
        &garbage,
        0,
    )
    .unwrap();
    let account = account(&path, 40);
    assert!(account.verified && account.sources.iter().any(|s| s.contains("snapshot")), "{account:#?}");
    kept.sort();
    assert_eq!(keys(account.rebuilt.as_ref().unwrap()), kept, "{account:#?}");
    assert!(!account.complete, "what only the main file had since the snapshot nobody knows: {account:#?}");
}

#[test]
fn of_an_older_copy_over_the_main_file_the_rows_of_both_and_of_the_log_are_put_together() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mut one = Holder::with_store(&path);
    let mut kept = Vec::new();
    put(&mut one, "early", 300, &mut kept);
    checkpoint(&path);
    let older = std::fs::read(&path).unwrap();
    put(&mut one, "middle", 300, &mut Vec::new());
    checkpoint(&path);
    put(&mut one, "late", 20, &mut kept);
    std::fs::write(&path, older).unwrap();
    let account = account(&path, 20);
    assert!(account.verified && !account.complete, "{account:#?}");
    let found = keys(account.rebuilt.as_ref().unwrap());
    for key in &kept {
        assert!(found.contains(key), "{key} is missing: {account:#?}");
    }
}

#[test]
fn of_a_scribbled_main_file_every_row_of_the_other_pages_is_put_together() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mut one = Holder::with_store(&path);
    put(&mut one, "early", 3000, &mut Vec::new());
    checkpoint(&path);
    put(&mut one, "late", 10, &mut Vec::new());
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // A leaf of the table: it has most of a page of keys.
    let bytes = std::fs::read(&path).unwrap();
    let leaf = bytes.chunks(4096).position(|page| page[0] == 0x0d && page.windows(5).any(|w| w == b"early")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[0xa5; 4096], leaf as u64 * 4096).unwrap();
    let account = account(&path, 10);
    assert!(account.verified && !account.complete, "{account:#?}");
    let found = keys(account.rebuilt.as_ref().unwrap());
    let lost = 3010 - found.len();
    assert!((1..400).contains(&lost), "{lost} rows of one page are lost: {account:#?}");
}

#[test]
fn what_is_left_in_the_log_of_the_round_before_is_put_together_too() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mut one = Holder::with_store(&path);
    let mut kept = Vec::new();
    put(&mut one, "early", 300, &mut kept);
    checkpoint(&path);
    let older = std::fs::read(&path).unwrap();
    let mut middle = Vec::new();
    put(&mut one, "middle", 100, &mut middle);
    visitor(&path, "PRAGMA busy_timeout=5000; PRAGMA wal_checkpoint(PASSIVE)");
    put(&mut one, "late", 2, &mut kept);
    std::fs::write(&path, older).unwrap();
    let account = account(&path, 2);
    assert!(account.verified && account.sources.iter().any(|s| s.contains("begun anew")), "{account:#?}");
    let found = keys(account.rebuilt.as_ref().unwrap());
    assert!(kept.iter().all(|key| found.contains(key)), "{account:#?}");
    let back = middle.iter().filter(|key| found.contains(key)).count();
    assert!(back >= 90, "{back} of 100 rows that only the main file and the old frames had: {account:#?}");
}
