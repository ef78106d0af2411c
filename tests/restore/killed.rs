//! Killed right before each call that changes something: the old database or the new one, whole, and the next restore works.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use statehouse_testkit::killat::run_killed;
use statehouse_testkit::visitor::Python;
use statehouse_testkit::{Seed, TestDir};

use super::sidecars::interrupted;
use super::{command, content, database, expected, restore};

/// A way to be: makes the database, and says what a fresh process may see of it when nothing was done.
type Make = fn(&Path) -> PathBuf;

fn plain(directory: &Path) -> PathBuf {
    let path = database(&directory.join("s.db"), "wal", 4096, 300, "old");
    // Rows in a log that was never copied.
    let mut python = Python::open(&path);
    python.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    python.sql("UPDATE t SET x = x").unwrap();
    drop(python);
    path
}

fn missing(directory: &Path) -> PathBuf {
    let path = plain(directory);
    fs::remove_file(&path).unwrap();
    path
}

fn zeroed(directory: &Path) -> PathBuf {
    let path = plain(directory);
    fs::write(&path, []).unwrap();
    path
}

/// How many points of each are tried; all of them with `STATEHOUSE_EVERY_POINT`.
const POINTS: u64 = 25;

fn killed(name: &str, make: Make, page_size: u32, old: Option<Result<Value, String>>) {
    let mut seed = Seed::of_run(name);
    let sources = TestDir::new();
    let good = database(&sources.join("good.db"), "wal", page_size, 400, "new");
    let new = expected(400, "new");
    let trial = |n: u64| {
        let directory = TestDir::new();
        let path = make(directory.path());
        let killed = run_killed(&command(&["restore"], &[&good, &path]), n, &sources.join("notes"));
        (directory, path, killed)
    };
    let (_directory, path, whole) = trial(0);
    assert!(whole.call.is_none() && whole.finished.code() == 0, "{whole:#?}");
    assert_eq!(content(&path), new);
    let every = std::env::var_os("STATEHOUSE_EVERY_POINT").is_some();
    let step = if every { 1 } else { whole.at.div_ceil(POINTS).max(1) };
    let (mut olds, mut news) = (0, 0);
    let mut n = if every { 1 } else { 1 + seed.below(step) };
    while n <= whole.at {
        let (directory, path, killed) = trial(n);
        let Some(call) = &killed.call else { break };
        let context = format!("killed before change {n} of {}, {call}", whole.at);
        // Looking at it must not be what puts it right or wrong, so the next command has files of its own.
        let there = directory.join("looked at");
        super::copy_all(directory.path(), &there);
        let seen = match there.join("s.db").exists() && fs::metadata(there.join("s.db")).unwrap().len() > 0 {
            true => Some(content(&there.join("s.db"))),
            false => None,
        };
        match &seen {
            seen if *seen == Some(new.clone()) => news += 1,
            seen if *seen == old => olds += 1,
            seen => panic!(
                "{context}: neither old nor new: {seen:?}\n{:#?}",
                statehouse_testkit::Snapshot::of(directory.path(), &[])
            ),
        }
        let again = restore(&good, &path, &[]);
        assert_eq!(again.code(), 0, "{context}: {again:#?}");
        assert_eq!(content(&path), new, "{context}");
        n += if every { 1 } else { step };
    }
    println!("{name}: {olds} times the old database, {news} times the new one, of {} points", whole.at);
    assert!(olds > 0 && news > 0, "{olds} old, {news} new");
}

#[test]
fn killed_at_every_stage_of_one_transaction_it_is_the_old_or_the_new_one() {
    killed("live", plain, 4096, Some(expected(300, "old")));
}

#[test]
fn killed_at_every_stage_of_a_rename_it_is_the_old_or_the_new_one() {
    killed("another page size", plain, 8192, Some(expected(300, "old")));
}

#[test]
fn killed_at_every_stage_where_the_main_file_is_missing_it_is_missing_or_the_new_one() {
    killed("missing", missing, 4096, None);
}

#[test]
fn killed_at_every_stage_where_the_main_file_is_empty_it_is_empty_or_the_new_one() {
    killed("zeroed", zeroed, 4096, None);
}

#[test]
fn killed_at_every_stage_beside_a_hot_journal_it_is_the_old_or_the_new_one() {
    killed("hot journal", interrupted, 4096, Some(expected(300, "old")));
}
