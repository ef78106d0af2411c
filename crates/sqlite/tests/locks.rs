//! Every corner of the lock core, in a process of its own and by the kernel's word.

use std::path::{Path, PathBuf};
use std::time::Duration;

use statehouse_testkit::home::TestDir;
use statehouse_testkit::kernel::{Standing, generation};
use statehouse_testkit::visitor::{Shell, shell_once};
use statehouse_testkit::wait::until;

use crate::holder::Holder;

/// A stock visitor that opens, reads and closes; what it read.
fn visit(path: &Path) -> Option<String> {
    Some(shell_once(path, "SELECT count(*) FROM m")?.success().stdout.trim().to_owned())
}

/// A stock writer that does not wait must be told that the database is locked.
fn stock_writer_is_locked_out(path: &Path) {
    let Some(mut shell) = Shell::open(path) else { return };
    shell.sql(".timeout 0");
    let said = shell.sql("INSERT INTO m(t) VALUES('stock');");
    // Errors come by another pipe than answers, and may arrive later.
    until(&format!("the stock writer is locked out; it said {said:?}"), Duration::from_secs(10), || {
        shell.errors().contains("locked")
    });
}

fn standing(holder: &Holder, path: &Path) -> Standing {
    Standing::of(holder.pid(), path)
}

fn fresh() -> (TestDir, PathBuf) {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    (directory, path)
}

#[test]
fn stray_closes_take_the_sidecars_away_without_the_core() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_database(&path, false);
    assert!(standing(&holder, &path).whole());
    holder.lose(&path);
    let after = standing(&holder, &path);
    assert!(!after.shared && !after.dms, "the control must lose both locks: {after:?}");
    if visit(&path).is_some() {
        assert!(standing(&holder, &path).deleted, "the visitor must have unlinked the sidecars");
    }
}

#[test]
fn stray_closes_and_visitors_leave_everything_in_place_with_the_core() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_database(&path, true);
    let before = generation(&path);
    for round in 0..5 {
        holder.lose(&path);
        let (owner, main) = (holder.ok(&format!("owner {}", path.display())), path.display().to_string());
        holder.ok(&format!("dup {owner}"));
        holder.ok(&format!("stray /proc/self/fd/{owner}"));
        assert!(standing(&holder, &path).whole(), "round {round}: {main}");
        if let Some(count) = visit(&path) {
            assert_eq!(count, (round + 1).to_string());
        }
        holder.ok("sql a INSERT INTO m(t) VALUES('more')");
        assert_eq!(generation(&path), before);
    }
    assert!(standing(&holder, &path).whole());
}

#[test]
fn ours_and_stock_processes_exclude_each_other_in_both_directions() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_database(&path, true);
    holder.ok("sql a BEGIN IMMEDIATE");
    stock_writer_is_locked_out(&path);
    holder.ok("sql a COMMIT");
    let Some(mut shell) = Shell::open(&path) else { return };
    shell.sql("BEGIN IMMEDIATE;");
    let error = holder.order("sql a INSERT INTO m(t) VALUES('ours')").unwrap_err();
    assert!(error.contains("locked"), "{error}");
    shell.sql("COMMIT;");
    holder.ok("sql a INSERT INTO m(t) VALUES('ours')");
}

#[test]
fn closing_the_last_connection_leaves_no_lock_and_no_descriptor() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_database(&path, true);
    holder.ok(&format!("connect b rw {}", path.display()));
    assert_eq!(holder.ok("sql b SELECT count(*) FROM m"), "1");
    holder.ok("close a");
    assert!(standing(&holder, &path).whole(), "the second connection still holds the generation");
    holder.ok("close b");
    assert_eq!(holder.ok("counts"), "0 0");
    let after = standing(&holder, &path);
    assert!(!after.has_main && !after.has_shm && !after.shared && !after.dms, "{after:?}");
    // Nobody is locked out of what needs the file alone.
    if let Some(changed) = shell_once(&path, "PRAGMA journal_mode=DELETE") {
        assert_eq!(changed.success().stdout.trim(), "delete");
    }
}

#[test]
fn a_read_only_connection_first_and_a_writer_later_both_keep_their_locks() {
    let (_directory, path) = fresh();
    // Somebody else keeps the log, so that a reader may attach to it.
    let mut other = Holder::with_database(&path, true);
    let mut holder = Holder::start();
    holder.ok("protect");
    holder.ok(&format!("connect r ro {}", path.display()));
    assert_eq!(holder.ok("sql r SELECT count(*) FROM m"), "1");
    assert!(standing(&holder, &path).shared);
    holder.ok(&format!("connect w rw {}", path.display()));
    holder.ok("sql w INSERT INTO m(t) VALUES('written')");
    assert_eq!(holder.ok("sql r SELECT count(*) FROM m"), "2");
    holder.lose(&path);
    assert!(standing(&holder, &path).whole());
    holder.ok("close r");
    assert!(standing(&holder, &path).whole());
    assert_eq!(other.ok("sql a SELECT count(*) FROM m"), "2");
}

#[test]
fn a_rollback_database_whose_read_only_owner_becomes_a_writer_excludes_others() {
    let (_directory, path) = fresh();
    let mut holder = Holder::start();
    holder.ok("protect");
    holder.ok(&format!("connect w rw {}", path.display()));
    holder.ok("sql w CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    holder.ok("close w");
    holder.ok(&format!("connect r ro {}", path.display()));
    // The read-only connection is in a read transaction: its owner was opened read-only and holds the shared range.
    holder.ok("sql r BEGIN");
    holder.ok("sql r SELECT count(*) FROM m");
    holder.ok(&format!("connect w rw {}", path.display()));
    holder.ok("sql w BEGIN IMMEDIATE");
    holder.ok("sql w INSERT INTO m(t) VALUES('x')");
    assert!(standing(&holder, &path).shared, "the read lock moved to the new owner");
    stock_writer_is_locked_out(&path);
    holder.ok("sql r COMMIT");
    holder.ok("sql w COMMIT");
    assert_eq!(visit(&path).unwrap_or("1".into()), "1");
}

#[test]
fn a_child_that_closes_an_inherited_connection_leaves_its_parent_alone() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_database(&path, true);
    let before = generation(&path);
    let (child, parent) = holder.fork("close a");
    assert_eq!((child.as_str(), parent.as_str()), ("child ok ", "ok 0"));
    assert_eq!(generation(&path), before, "the child unlinked the sidecars under its parent");
    assert!(standing(&holder, &path).whole());
    holder.ok("sql a INSERT INTO m(t) VALUES('after')");
    visit(&path);
    assert_eq!(generation(&path), before);
    assert_eq!(holder.ok("sql a SELECT count(*) FROM m"), "2");
}

#[test]
fn a_child_reads_through_an_inherited_connection_with_locks_of_its_own() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_database(&path, true);
    let (child, _) = holder.fork("sql a SELECT count(*) FROM m");
    assert_eq!(child, "child ok 1");
    let (child, _) = holder.fork("sql a INSERT INTO m(t) VALUES('child')");
    assert_eq!(child, "child ok ");
    assert!(standing(&holder, &path).whole());
    assert_eq!(holder.ok("sql a SELECT count(*) FROM m"), "2");
}

#[test]
fn a_child_never_inherits_a_write_lock() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_database(&path, true);
    holder.ok("sql a BEGIN IMMEDIATE");
    holder.ok("sql a INSERT INTO m(t) VALUES('parent')");
    // Ending the transaction in the child would release the parent's lock, or write beside it.
    let (child, _) = holder.fork("sql a COMMIT");
    assert!(child.starts_with("child error disk I/O error"), "{child}");
    stock_writer_is_locked_out(&path);
    holder.ok("sql a COMMIT");
    assert_eq!(holder.ok("sql a SELECT count(*) FROM m"), "2");
    assert_eq!(holder.ok("sql a PRAGMA integrity_check"), "ok");
}

#[test]
fn an_owner_number_that_another_file_took_over_is_never_locked() {
    let (directory, path) = fresh();
    let other = directory.join("other");
    std::fs::write(&other, "not a database").unwrap();
    let mut holder = Holder::with_database(&path, true);
    let shm = format!("{}-shm", path.display());
    holder.ok(&format!("steal {shm} {}", other.display()));
    // SQLite calls every failed lock of the index "busy" and gives up after a while.
    let error = holder.order("sql a INSERT INTO m(t) VALUES('lost')").unwrap_err();
    assert!(error.contains("locking protocol"), "{error}");
    let locked = statehouse_testkit::kernel::descriptors(holder.pid())
        .into_iter()
        .any(|d| d.path == other && !d.locks.is_empty());
    assert!(!locked, "the lock went to another file");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "not a database");
}

#[test]
fn an_owner_number_that_another_description_of_the_same_file_took_over_is_noticed() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_database(&path, true);
    let shm = format!("{}-shm", path.display());
    holder.ok(&format!("steal {shm} {shm}"));
    let error = holder.order("sql a INSERT INTO m(t) VALUES('lost')").unwrap_err();
    assert!(error.contains("locking protocol"), "device and inode agree, and still the locks are gone: {error}");
}

#[test]
fn two_hundred_databases_in_one_process_keep_their_locks() {
    let directory = TestDir::new();
    let mut holder = Holder::start();
    holder.ok("protect");
    let path = |n: usize| directory.join(format!("{n}.db"));
    for n in 0..200 {
        holder.ok(&format!("connect {n} rw {}", path(n).display()));
        holder.ok(&format!("sql {n} PRAGMA journal_mode=WAL"));
        holder.ok(&format!("sql {n} CREATE TABLE m(t)"));
    }
    for n in 0..200 {
        holder.lose(&path(n));
    }
    let missing: Vec<usize> = (0..200).filter(|n| !standing(&holder, &path(*n)).whole()).collect();
    assert!(missing.is_empty(), "{missing:?}");
    for n in 0..200 {
        holder.ok(&format!("close {n}"));
    }
    assert_eq!(holder.ok("counts"), "0 0");
}

#[test]
fn a_second_library_in_the_process_cannot_drop_the_locks() {
    let (_directory, path) = fresh();
    // The control: without the core, the other library's close takes the locks of this one away.
    let mut bare = Holder::with_database(&path, false);
    match bare.order(&format!("second {} SELECT count(*) FROM m", path.display())) {
        Err(why) => return statehouse_testkit::need::skip(&why),
        Ok(codes) => assert!(codes.starts_with('0'), "{codes}"),
    }
    assert!(!standing(&bare, &path).shared, "the control must lose the lock");
    drop(bare);
    let mut holder = Holder::with_database(&path, true);
    for _ in 0..3 {
        let codes = holder.ok(&format!("second {} INSERT INTO m(t) VALUES('second')", path.display()));
        assert_eq!(codes, "0 0 0");
        assert!(standing(&holder, &path).whole());
    }
    assert_eq!(holder.ok("sql a SELECT count(*) FROM m"), "5");
    holder.ok("sql a BEGIN IMMEDIATE");
    let codes = holder.ok(&format!("second {} INSERT INTO m(t) VALUES('second')", path.display()));
    assert_eq!(codes, "0 5 0", "the two libraries exclude each other even within a process");
}

#[test]
fn sqlite_cannot_unlink_a_sidecar_in_a_protected_process() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_database(&path, true);
    holder.ok("close a");
    let [main, wal, shm] = generation(&path);
    assert!(main.is_some() && wal.is_some() && shm.is_some(), "the last close left them");
    holder.kill();
}
