//! What was acknowledged is kept when the files are unlinked or replaced under open handles.

use std::path::{Path, PathBuf};

use statehouse_testkit::home::TestDir;
use statehouse_testkit::kernel::{Standing, generation};
use statehouse_testkit::visitor::shell_once;
use statehouse_testkit::wait::until;
use std::time::Duration;

use crate::holder::Holder;

const SOON: Duration = Duration::from_secs(20);

fn fresh() -> (TestDir, PathBuf) {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    (directory, path)
}

fn member(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// The keys that a process sees which opens the path now and knows nothing of Statehouse.
fn seen(path: &Path) -> Vec<String> {
    let mut reader = Holder::start();
    reader.ok(&format!("connect r rw {}", path.display()));
    let keys = reader.ok("sql r SELECT coalesce(group_concat(key, ','), '') FROM (SELECT key FROM k ORDER BY key)");
    assert_eq!(reader.ok("sql r PRAGMA integrity_check"), "ok");
    keys.split(',').map(str::to_owned).collect()
}

fn put_range(holder: &mut Holder, name: &str, range: std::ops::Range<u32>) -> Vec<String> {
    range
        .map(|n| {
            let key = format!("{name}{n:03}");
            holder.ok(&format!("put {key}"));
            key
        })
        .collect()
}

fn assert_all_kept(path: &Path, mut acknowledged: Vec<String>) {
    acknowledged.sort();
    assert_eq!(seen(path), acknowledged, "each acknowledged key exactly once, and nothing else");
}

/// Unlinks these members under one open handle, goes on, and looks from outside.
fn removing(suffixes: &[&str]) {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    let mut keys = put_range(&mut holder, "before", 0..20);
    for suffix in suffixes {
        std::fs::remove_file(member(&path, suffix)).unwrap();
    }
    keys.extend(put_range(&mut holder, "after", 0..20));
    assert_eq!(holder.ok("count"), "40");
    assert!(Standing::of(holder.pid(), &path).whole(), "{:?}", holder.events());
    assert_all_kept(&path, keys);
}

#[test]
fn removed_log_and_index() {
    removing(&["-wal", "-shm"]);
}

#[test]
fn removed_log_alone() {
    removing(&["-wal"]);
}

#[test]
fn removed_index_alone() {
    removing(&["-shm"]);
}

#[test]
fn without_replay_the_rows_of_a_removed_log_are_gone() {
    // The control for the tests above: an ordinary program in the same situation loses what it was told is kept.
    let (_directory, path) = fresh();
    let mut holder = Holder::with_database(&path, false);
    holder.lose(&path);
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(member(&path, suffix)).unwrap();
    }
    holder.ok("sql a INSERT INTO m(t) VALUES('acknowledged')");
    let mut other = Holder::start();
    other.ok(&format!("connect r rw {}", path.display()));
    let seen = other.order("sql r SELECT count(*) FROM m");
    assert_ne!(seen.as_deref(), Ok("2"), "the row must be invisible from outside");
}

#[test]
fn an_idle_handle_notices_within_a_second_and_goes_on_by_itself() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    let keys = put_range(&mut holder, "k", 0..5);
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(member(&path, suffix)).unwrap();
    }
    let removed = std::time::Instant::now();
    until("the handle notices", SOON, || holder.events().contains("Fenced"));
    let noticed = removed.elapsed();
    eprintln!("noticed after {noticed:?}");
    until("the handle goes on", SOON, || holder.events().contains("Reopened"));
    // Nobody asked for anything, and still the rows are where the path leads.
    assert_all_kept(&path, keys);
    assert!(Standing::of(holder.pid(), &path).whole());
}

#[test]
fn a_main_file_that_was_replaced_by_an_older_copy() {
    let (directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    let mut keys = put_range(&mut holder, "early", 0..10);
    let copy = directory.join("copy");
    let mut other = Holder::start();
    other.ok(&format!("connect r rw {}", path.display()));
    other.ok(&format!("sql r VACUUM INTO '{}'", copy.display()));
    drop(other);
    keys.extend(put_range(&mut holder, "later", 0..10));
    std::fs::rename(&copy, &path).unwrap();
    keys.extend(put_range(&mut holder, "after", 0..10));
    assert_eq!(holder.ok("count"), "30");
    assert_all_kept(&path, keys);
    assert!(Standing::of(holder.pid(), &path).whole());
}

#[test]
fn rows_of_a_process_that_is_gone_live_on_in_those_that_stayed() {
    let (_directory, path) = fresh();
    let mut stayed = Holder::with_store(&path);
    let mut second = Holder::with_store(&path);
    let mut keys = put_range(&mut stayed, "a", 0..5);
    keys.extend(put_range(&mut second, "b", 0..5));
    let mut gone = Holder::with_store(&path);
    keys.extend(put_range(&mut gone, "c", 0..5));
    gone.kill();
    drop(gone);
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(member(&path, suffix)).unwrap();
    }
    keys.extend(put_range(&mut second, "d", 0..5));
    keys.extend(put_range(&mut stayed, "e", 0..5));
    assert_eq!(stayed.ok("count"), "25");
    assert_eq!(second.ok("count"), "25");
    assert_all_kept(&path, keys);
}

#[test]
fn a_newcomer_waits_until_a_removed_log_has_been_taken_over() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    let mut keys = put_range(&mut holder, "old", 0..10);
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(member(&path, suffix)).unwrap();
    }
    let mut newcomer = Holder::with_store(&path);
    assert_eq!(newcomer.ok("count"), "10", "it must not begin on a store without the acknowledged rows");
    keys.extend(put_range(&mut newcomer, "new", 0..3));
    assert_eq!(holder.ok("count"), "13");
    assert_all_kept(&path, keys);
}

#[test]
fn sidecars_that_are_removed_again_and_again_under_three_writers() {
    let (directory, path) = fresh();
    let mut holders: Vec<Holder> = (0..3).map(|_| Holder::with_store(&path)).collect();
    let seconds = 6;
    for (n, holder) in holders.iter_mut().enumerate() {
        holder.send(&format!("tight {seconds} {}", directory.join(format!("log{n}")).display()));
    }
    let end = std::time::Instant::now() + Duration::from_secs(seconds - 2);
    let mut rounds = 0;
    while std::time::Instant::now() < end {
        let before = generation(&path);
        for suffix in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(member(&path, suffix));
        }
        rounds += 1;
        // The next removal comes when somebody has made a new log, or when all are done.
        while std::time::Instant::now() < end && (generation(&path)[1].is_none() || generation(&path)[1] == before[1]) {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    let mut expected = 0;
    for holder in &mut holders {
        expected += holder.answer().unwrap().parse::<usize>().unwrap();
    }
    assert!(rounds > 1, "{rounds}");
    let events: Vec<String> = holders.iter().map(Holder::events).collect();
    assert_eq!(seen(&path).len(), expected, "after {rounds} removals: {events:#?}");
}

#[test]
fn a_capture_that_its_process_did_not_live_to_merge_is_merged_by_the_next_opener() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    let keys = put_range(&mut holder, "k", 0..10);
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(member(&path, suffix)).unwrap();
    }
    // Dead as soon as the capture is in place: most often before the merge, and either way nothing may be missing.
    let retired = path.with_file_name("s.db.statehouse").join("retired");
    until("a capture", SOON, || {
        std::fs::read_dir(&retired).is_ok_and(|mut d| {
            d.any(|e| {
                e.is_ok_and(|e| {
                    e.path().join("manifest.json").exists() && !e.file_name().to_string_lossy().contains("partial")
                })
            })
        })
    });
    holder.kill();
    drop(holder);
    drop(Holder::with_store(&path));
    assert_all_kept(&path, keys);
}

#[test]
fn an_owner_descriptor_that_was_taken_away_is_replaced_and_nobody_notices() {
    let (directory, path) = fresh();
    let other = directory.join("other");
    std::fs::write(&other, "x").unwrap();
    let mut holder = Holder::with_store(&path);
    let mut keys = put_range(&mut holder, "k", 0..3);
    holder.ok(&format!("steal {} {}", member(&path, "-shm").display(), other.display()));
    keys.extend(put_range(&mut holder, "l", 0..3));
    assert!(Standing::of(holder.pid(), &path).whole());
    until("it says so", SOON, || holder.events().contains("Healed"));
    assert!(!holder.events().contains("Fenced"), "{}", holder.events());
    assert_all_kept(&path, keys);
}

#[test]
fn a_checkpoint_of_its_own_keeps_the_log_bounded() {
    let (directory, path) = fresh();
    let mut holders: Vec<Holder> = (0..2).map(|_| Holder::with_store(&path)).collect();
    for (n, holder) in holders.iter_mut().enumerate() {
        holder.send(&format!("tight 6 {}", directory.join(format!("log{n}")).display()));
    }
    let commits: u64 = holders.iter_mut().map(|h| h.answer().unwrap().parse::<u64>().unwrap()).sum();
    let bytes = std::fs::metadata(member(&path, "-wal")).unwrap().len();
    // Each commit writes two pages or more; without a restart of the log it would hold them all.
    let all = commits * 2 * 4096;
    eprintln!("{commits} commits, a log of {bytes} bytes; all frames would be {all}");
    if all > 64 << 20 {
        assert!(bytes < 48 << 20, "{bytes}");
    }
    if let Some(checked) = shell_once(&path, "PRAGMA integrity_check") {
        assert_eq!(checked.success().stdout.trim(), "ok");
    }
}
