//! Something else lies in the place of the store for a while: it is left alone, and when it is taken away the store is back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use statehouse_testkit::home::TestDir;
use statehouse_testkit::wait::until;

use crate::holder::Holder;
use crate::support::{visitor, with};

const SOON: Duration = Duration::from_secs(20);
const OTHER: &[u8] =
    b"this is no database, and somebody has moved it over one. It is longer than a header of a hundred bytes is.";

/// Two processes have the store open, and another file is renamed over it. Ends when both have noticed and cannot go on.
fn covered() -> (TestDir, PathBuf, [Holder; 2]) {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mut holders = [Holder::with_store(&path), Holder::with_store(&path)];
    for (n, holder) in holders.iter_mut().enumerate() {
        for key in 0..5 {
            holder.ok(&format!("put before{n}{key}"));
        }
    }
    let other = directory.join("other");
    std::fs::write(&other, OTHER).unwrap();
    std::fs::rename(other, &path).unwrap();
    for holder in &mut holders {
        until("it says what is in the way", SOON, || holder.events().contains("is not an SQLite database"));
    }
    (directory, path, holders)
}

fn uncover(path: &Path) {
    assert!(std::fs::read(path).unwrap() == OTHER, "nobody has touched it");
    std::fs::remove_file(path).unwrap();
}

fn assert_has(path: &Path, rows: u32) {
    let count = format!("SELECT count(*) FROM k WHERE key LIKE 'before%' OR key LIKE 'after%' -- {rows}");
    assert_eq!(visitor(path, &count), rows.to_string());
    assert_eq!(visitor(path, "PRAGMA integrity_check"), "ok");
}

#[test]
fn a_file_that_was_moved_over_the_store_and_away_again_leaves_everything_as_it_was() {
    let (_d, path, mut holders) = covered();
    uncover(&path);
    for (n, holder) in holders.iter_mut().enumerate() {
        holder.ok(&format!("put after{n}"));
    }
    assert_has(&path, 12);
}

#[test]
fn processes_that_end_while_another_file_lies_in_the_place_of_the_store_leave_it_to_the_next() {
    for killed in [true, false] {
        let (_d, path, holders) = covered();
        for mut holder in holders {
            if killed {
                holder.kill();
            } else {
                holder.ok("leave");
            }
        }
        uncover(&path);
        assert!(!with(&path, "-wal").exists() || path.exists() || !killed, "nothing pairs an old log with a new file");
        let mut next = Holder::with_store(&path);
        next.ok("put after");
        assert_has(&path, 11);
    }
}

/// An older copy is moved over the store that was just put back, and that nobody has opened yet.
#[test]
fn an_older_copy_that_is_moved_over_a_store_that_was_just_put_back_costs_no_row() {
    let directory = TestDir::new();
    let (path, older) = (directory.join("s.db"), directory.join("older"));
    let mut holder = Holder::with_store(&path);
    holder.ok("put before");
    visitor(&path, &format!("VACUUM INTO '{}'", older.display()));
    let mut stopped = Holder::with_store(&path);
    for key in 0..5 {
        holder.ok(&format!("put before-a{key}"));
        stopped.ok(&format!("put before-b{key}"));
    }
    // One of ours that does not notice keeps the other from going on for a while.
    stopped.signal(Signal::STOP);
    std::fs::remove_file(&path).unwrap();
    until("the store is back", SOON, || path.exists() && holder.events().contains("NotReopened"));
    std::fs::rename(&older, &path).unwrap();
    stopped.signal(Signal::CONT);
    for holder in [&mut holder, &mut stopped] {
        holder.ok(&format!("put after{}", holder.pid()));
    }
    assert_has(&path, 13);
}
