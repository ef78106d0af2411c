//! Corners of the lock core in which a program does what it may, and the file ended damaged or a lock stayed behind.

use std::path::{Path, PathBuf};

use statehouse_testkit::home::TestDir;
use statehouse_testkit::kernel::Standing;
use statehouse_testkit::visitor::shell_once;

use crate::holder::Holder;

fn fresh() -> (TestDir, PathBuf) {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    (directory, path)
}

/// What a process sees that opens the path now and knows nothing of Statehouse.
fn seen(path: &Path, sql: &str) -> String {
    let mut reader = Holder::start();
    reader.ok(&format!("connect r rw {}", path.display()));
    assert_eq!(reader.ok("sql r PRAGMA integrity_check"), "ok");
    reader.ok(&format!("sql r {sql}"))
}

/// Five thousand rows do not fit into a small cache: pages of a transaction that is not committed are on disk.
const SPILL: &str = "INSERT INTO m(t) WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < 5000) \
                     SELECT hex(randomblob(50)) FROM c";

#[test]
fn a_large_transaction_survives_a_child_that_drops_its_inherited_connection() {
    for mode in ["WAL", "DELETE", "TRUNCATE", "PERSIST"] {
        for child_does in ["close a", "sql a ROLLBACK", "sql a COMMIT"] {
            for (end, rows) in [("COMMIT", "5001"), ("ROLLBACK", "1")] {
                let (_directory, path) = fresh();
                let mut holder = Holder::start();
                holder.ok("protect");
                holder.ok(&format!("connect a rw {}", path.display()));
                holder.ok(&format!("sql a PRAGMA journal_mode={mode}"));
                holder.ok("sql a CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
                holder.ok("sql a INSERT INTO m(t) VALUES('one')");
                holder.ok("sql a PRAGMA cache_size=5");
                holder.ok("sql a BEGIN IMMEDIATE");
                holder.ok(&format!("sql a {SPILL}"));
                holder.ok("sql a UPDATE m SET t = 'changed' WHERE id = 1");
                holder.fork(child_does);
                holder.ok(&format!("sql a {end}"));
                let what = format!("{mode}, the child does {child_does}, the parent {end}");
                assert_eq!(holder.ok("sql a PRAGMA integrity_check"), "ok", "{what}");
                assert_eq!(holder.ok("sql a SELECT count(*) FROM m"), rows, "{what}");
                assert_eq!(seen(&path, "SELECT count(*) FROM m"), rows, "{what}");
            }
        }
    }
}

#[test]
fn a_database_that_left_wal_mode_is_not_overlaid_with_its_old_log() {
    for exclusive in [false, true] {
        for mode in ["delete", "truncate", "persist", "memory", "off"] {
            let (_directory, path) = fresh();
            let mut holder = Holder::with_database(&path, true);
            if exclusive {
                holder.ok("sql a PRAGMA locking_mode=EXCLUSIVE");
            }
            assert_eq!(holder.ok(&format!("sql a PRAGMA journal_mode={mode}")), mode);
            holder.ok(&format!("sql a {SPILL}"));
            holder.ok("close a");
            assert_eq!(holder.ok("counts"), "0 0");
            let what = format!("{mode}, exclusive: {exclusive}");
            assert_eq!(seen(&path, "SELECT count(*) FROM m"), "5001", "{what}");
            assert_ne!(seen(&path, "PRAGMA journal_mode"), "wal", "{what}");
        }
    }
}

#[test]
fn the_page_size_can_be_changed_by_way_of_rollback_mode() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_database(&path, true);
    holder.ok("sql a PRAGMA journal_mode=DELETE");
    holder.ok("sql a PRAGMA page_size=8192");
    holder.ok("sql a VACUUM");
    holder.ok("sql a PRAGMA journal_mode=WAL");
    holder.ok("sql a INSERT INTO m(t) VALUES('after')");
    assert!(Standing::of(holder.pid(), &path).whole());
    assert_eq!(seen(&path, "SELECT count(*) FROM m"), "2");
    assert_eq!(seen(&path, "PRAGMA page_size"), "8192");
}

#[test]
fn closing_releases_the_locks_though_a_bare_clone_of_the_process_lives_on() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_database(&path, true);
    holder.ok("shadow");
    holder.ok("close a");
    if let Some(changed) = shell_once(&path, "PRAGMA journal_mode=DELETE") {
        assert_eq!(changed.success().stdout.trim(), "delete");
    }
    assert!(!Standing::of(holder.pid(), &path).shared);
}

#[test]
fn a_number_that_somebody_else_opened_is_neither_written_nor_closed_by_sqlite() {
    let (directory, path) = fresh();
    let other = directory.join("other");
    std::fs::write(&other, "somebody else's").unwrap();
    let mut holder = Holder::with_database(&path, true);
    holder.ok("sql a BEGIN IMMEDIATE");
    holder.ok("sql a INSERT INTO m(t) VALUES('lost')");
    let wal = path.with_file_name("s.db-wal");
    let number = statehouse_testkit::kernel::descriptors(holder.pid())
        .into_iter()
        .find(|d| d.path == wal)
        .expect("the log is open")
        .number;
    holder.ok(&format!("replace {number} {}", other.display()));
    let error = holder.order("sql a COMMIT").unwrap_err();
    assert!(error.contains("I/O error"), "{error}");
    holder.ok("close a");
    assert_eq!(std::fs::read_to_string(&other).unwrap(), "somebody else's");
    let still = statehouse_testkit::kernel::descriptors(holder.pid()).into_iter().any(|d| d.path == other);
    assert!(still, "the descriptor belongs to somebody else");
}
