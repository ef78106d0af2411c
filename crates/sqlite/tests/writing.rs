//! What a writer is told when its write cannot be kept, and what others are told then.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use statehouse_sqlite::rusqlite::Connection;
use statehouse_sqlite::{Database, Error, Failure, Options, Result, Schema};
use statehouse_testkit::home::TestDir;
use statehouse_testkit::visitor::Shell;

use crate::holder::Holder;

struct Blobs;

impl Schema for Blobs {
    fn current(&self, connection: &Connection) -> Result<bool> {
        Ok(connection.table_exists(None, "b")?)
    }

    fn migrate(&self, transaction: &Connection) -> Result<(), Failure> {
        Ok(transaction.execute_batch("CREATE TABLE b(id INTEGER PRIMARY KEY, body BLOB) STRICT")?)
    }

    fn merge(&self, _: &Connection, _: &Connection) -> Result<u64, Failure> {
        Ok(0)
    }
}

fn open(path: &Path, patience: Duration) -> Database {
    let schema: Option<Arc<dyn Schema>> = Some(Arc::new(Blobs));
    Database::open(path, Options { create: true, patience, schema, ..Options::default() }).unwrap()
}

fn insert(size: usize) -> impl Fn(&Connection) -> Result<i64, Failure> + Send + 'static {
    move |c| {
        c.execute("INSERT INTO b(body) VALUES(zeroblob(?1))", [size as i64])?;
        Ok(c.last_insert_rowid())
    }
}

fn count(database: &Database) -> i64 {
    database.read(|c| Ok(c.query_row("SELECT count(*) FROM b", [], |r| r.get(0))?)).unwrap()
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_full_disk_refuses_the_write_that_does_not_fit_and_keeps_the_others() {
    let Some(volume) = crate::support::Volume::new(2048) else { return };
    let path = volume.join("s.db");
    let database = open(&path, LONG);
    let mut kept = 0;
    let ballast = volume.join("ballast");
    std::fs::write(&ballast, vec![1; 512 << 10]).unwrap();
    let refused = loop {
        match database.write(insert(100_000)) {
            Ok(_) => kept += 1,
            Err(e) => break e,
        }
        assert!(kept < 100, "the volume never filled");
    };
    assert!(matches!(refused, Error::Full), "{refused}");
    assert_eq!(count(&database), kept, "reading works on a full disk");
    // Several at once: what fits is kept although it shared a batch with what does not.
    let tickets: Vec<_> = [10, 4_000_000, 10].map(|size| database.submit(insert(size))).into();
    let answers: Vec<bool> = tickets.into_iter().map(|t| t.wait().is_ok()).collect();
    assert!(!answers[1], "{answers:?}");
    kept += answers.iter().filter(|a| **a).count() as i64;
    std::fs::remove_file(&ballast).unwrap();
    database.write(insert(10)).unwrap();
    kept += 1;
    assert_eq!(count(&database), kept);
    drop(database);
    let again = open(&path, LONG);
    assert_eq!(count(&again), kept);
}

#[test]
fn a_request_that_refuses_is_undone_alone() {
    let directory = TestDir::new();
    let database = open(&directory.join("s.db"), LONG);
    let before = database.submit(insert(10));
    let refused = database.submit(|c: &Connection| -> Result<(), Failure> {
        c.execute("INSERT INTO b(body) VALUES(x'00')", [])?;
        Err(Failure::abort(std::fmt::Error))
    });
    let wrong = database.submit(|c: &Connection| Ok(c.execute("INSERT INTO nowhere VALUES(1)", [])?));
    let panics = database.submit(|_: &Connection| -> Result<(), Failure> { panic!("a bug in a request") });
    let after = database.submit(insert(10));
    before.wait().unwrap();
    assert!(matches!(refused.wait(), Err(Error::Aborted(_))));
    assert!(matches!(wrong.wait(), Err(Error::Sqlite(_))));
    assert!(matches!(panics.wait(), Err(Error::Aborted(_))));
    after.wait().unwrap();
    assert_eq!(count(&database), 2);
}

#[test]
fn a_busy_error_names_the_stranger_who_has_the_write_lock() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let database = open(&path, Duration::from_millis(300));
    let Some(mut shell) = Shell::open(&path) else { return };
    shell.sql("BEGIN IMMEDIATE;");
    let error = database.write(insert(10)).unwrap_err();
    let Error::Busy { waited, holder } = &error else { panic!("{error}") };
    assert!(*waited >= Duration::from_millis(300), "{waited:?}");
    let holder = holder.as_deref().unwrap_or_default();
    assert!(holder.contains(&format!("PID {}", shell.pid())) && holder.contains("sqlite3"), "{error}");
    shell.sql("COMMIT;");
    database.write(insert(10)).unwrap();
    assert_eq!(count(&database), 1, "the write that was given up was not kept");
}

#[test]
fn closing_answers_everything_and_leaves_nothing_open() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let database = open(&path, LONG);
    let tickets: Vec<_> = (0..500).map(|_| database.submit(insert(10))).collect();
    database.close().unwrap();
    for ticket in tickets {
        ticket.wait().unwrap();
    }
    assert!(matches!(database.write(insert(10)), Err(Error::Closed)));
    assert!(matches!(database.read(|_| Ok(())), Err(Error::Closed)));
    assert!(statehouse_sqlite::locks::descriptors(&path).is_empty());
    assert_eq!(count(&open(&path, LONG)), 500);
}

#[test]
fn a_settled_database_is_opened_without_a_write() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    open(&path, LONG).write(insert(10)).unwrap();
    let size = || std::fs::metadata(directory.join("s.db-wal")).unwrap().len();
    let before = size();
    // A stranger who has the write lock keeps nobody from opening and reading.
    let Some(mut shell) = Shell::open(&path) else { return };
    shell.sql("BEGIN IMMEDIATE;");
    let database = open(&path, Duration::from_millis(300));
    assert_eq!(count(&database), 1);
    assert_eq!(size(), before);
}

#[test]
fn a_process_that_is_stopped_while_it_has_the_turn_is_named_and_keeps_nobody_for_ever() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let database = open(&path, Duration::from_millis(400));
    let mut holder = Holder::start();
    holder.ok(&format!("take-turn {}", directory.join("s.db.statehouse").display()));
    let error = database.write(insert(10)).unwrap_err();
    let Error::Busy { holder: Some(named), .. } = &error else { panic!("{error}") };
    assert!(named.contains(&holder.pid().to_string()), "{named}");
    let begun = std::time::Instant::now();
    database.close().unwrap();
    eprintln!("closed after {:?}", begun.elapsed());
    drop(holder);
    assert_eq!(count(&open(&path, LONG)), 0, "what was given up was not kept");
}

#[test]
fn a_side_directory_that_was_removed_with_the_log_is_made_again() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let database = open(&path, LONG);
    database.write(insert(10)).unwrap();
    std::fs::remove_dir_all(directory.join("s.db.statehouse")).unwrap();
    for sidecar in ["s.db-wal", "s.db-shm"] {
        std::fs::remove_file(directory.join(sidecar)).unwrap();
    }
    database.write(insert(10)).unwrap();
    assert!(directory.join("s.db.statehouse/members").is_dir());
}

/// How often a key is in the main file without its log: what is left of it whatever a power cut does to a log whose flush
/// failed. A main file to which nothing was copied yet has no table.
fn in_the_main_file_alone(directory: &TestDir, path: &Path, key: &str) -> i64 {
    let alone = directory.join("alone.db");
    std::fs::copy(path, &alone).unwrap();
    let main = Connection::open(&alone).unwrap();
    main.query_row("SELECT count(*) FROM k WHERE key = ?1", [key], |r| r.get(0)).unwrap_or(0)
}

#[test]
fn a_write_that_the_disk_does_not_confirm_is_not_acknowledged_and_is_in_the_main_file_before_the_next_is() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mark = directory.join("the disk fails");
    let mut holder = Holder::on_a_disk_that_fails(&mark);
    holder.ok(&format!("open {}", path.display()));
    holder.ok("put before");
    std::fs::write(&mark, "").unwrap();
    let error = holder.order("put doubtful").unwrap_err();
    assert!(error.starts_with("not_durable "), "{error}");
    // The store goes on by itself, but not before the doubtful row is durable by another way.
    statehouse_testkit::until("the handle tries to go on", LONG, || holder.events().contains("NotReopened"));
    std::fs::remove_file(&mark).unwrap();
    holder.ok("put after");
    let kept = in_the_main_file_alone(&directory, &path, "doubtful");
    assert_eq!(kept, 1);
    assert_eq!(holder.ok("count"), "3");
}

#[test]
fn a_write_that_finds_its_row_there_is_not_acknowledged_before_that_row_is_durable() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mark = directory.join("the disk fails");
    Holder::with_store(&path).ok("put there");
    let mut holder = Holder::on_a_disk_that_fails(&mark);
    holder.ok(&format!("open {}", path.display()));
    holder.ok("put there");
    std::fs::write(&mark, "").unwrap();
    // It changes nothing, but whoever wrote the row may not have flushed it yet.
    let error = holder.order("put there").unwrap_err();
    assert!(error.starts_with("not_durable "), "{error}");
}

#[test]
fn a_row_that_another_process_left_unflushed_is_in_the_main_file_before_a_write_that_finds_it_is_acknowledged() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mark = directory.join("the disk fails");
    let mut writer = Holder::with_store(&path);
    let mut holder = Holder::on_a_disk_that_fails(&mark);
    holder.ok(&format!("open {}", path.display()));
    writer.ok("put there");
    // The one that wrote it may be killed before it could flush it; then nobody else hears that the disk did not take it.
    writer.kill();
    std::fs::write(&mark, "").unwrap();
    let error = holder.order("put there").unwrap_err();
    assert!(error.starts_with("not_durable "), "{error}");
    std::fs::remove_file(&mark).unwrap();
    // A second flush of the log says that all is well, whatever became of what the first one did not write.
    holder.ok("put there");
    let kept = in_the_main_file_alone(&directory, &path, "there");
    assert_eq!(kept, 1, "acknowledged, and in nothing but a log whose flush failed");
}

#[test]
fn who_opens_after_a_failed_flush_acknowledges_nothing_on_top_of_what_is_in_doubt() {
    for killed in [false, true] {
        let directory = TestDir::new();
        let path = directory.join("s.db");
        let mark = directory.join("the disk fails");
        let mut first = Holder::on_a_disk_that_fails(&mark);
        first.ok(&format!("open {}", path.display()));
        first.ok("put before");
        std::fs::write(&mark, "").unwrap();
        assert!(first.order("put doubtful").unwrap_err().starts_with("not_durable "));
        if killed {
            first.kill();
        }
        // The failure was reported to the first one alone; its rows may not be on the disk, and what lies behind them in the
        // log would be lost with them.
        let mut second = Holder::with_store(&path);
        second.ok("put after");
        let kept = in_the_main_file_alone(&directory, &path, "doubtful");
        assert_eq!(kept, 1, "killed: {killed}");
    }
}

#[test]
fn many_who_create_one_database_at_the_same_moment_all_get_it() {
    for _ in 0..5 {
        let directory = TestDir::new();
        let path = directory.join("new.db");
        let mut all: Vec<Holder> = (0..6).map(|_| Holder::start()).collect();
        for holder in &mut all {
            holder.send(&format!("open {}", path.display()));
        }
        for holder in &mut all {
            assert_eq!(holder.answer(), Ok(String::new()));
        }
        for (n, holder) in all.iter_mut().enumerate() {
            holder.ok(&format!("put {n}"));
        }
        assert_eq!(all[0].ok("count"), "6");
    }
}
