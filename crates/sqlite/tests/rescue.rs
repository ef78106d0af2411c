//! What was acknowledged is kept though the handle is closed, a read does not end, or a checkpoint was cut off.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use statehouse_sqlite::rusqlite::Connection;
use statehouse_sqlite::{Database, Failure, Options, Result, Schema};
use statehouse_testkit::home::TestDir;
use statehouse_testkit::wait::until;

use crate::holder::Holder;
use crate::support::{Sibling, visitor, with};

const SOON: Duration = Duration::from_secs(20);

fn fresh() -> (TestDir, PathBuf) {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    (directory, path)
}

fn member(path: &Path, suffix: &str) -> PathBuf {
    crate::support::with(path, suffix)
}

fn remove_sidecars(path: &Path) {
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(member(path, suffix)).unwrap();
    }
}

/// How many keys a process sees that opens the path now and knows nothing of Statehouse.
fn seen(path: &Path) -> String {
    let mut reader = Holder::start();
    reader.ok(&format!("connect r rw {}", path.display()));
    assert_eq!(reader.ok("sql r PRAGMA integrity_check"), "ok");
    assert_eq!(reader.ok("sql r SELECT count(*) = count(DISTINCT key) FROM k"), "1");
    reader.ok("sql r SELECT count(*) FROM k")
}

#[test]
fn a_handle_that_is_closed_right_after_its_log_was_removed_leaves_no_row_behind() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    for n in 0..10 {
        holder.ok(&format!("put {n}"));
    }
    remove_sidecars(&path);
    holder.ok("leave");
    drop(holder);
    drop(Holder::with_store(&path));
    assert_eq!(seen(&path), "10");
}

/// The log that is in use: its bytes, its page size, and where in it the frames are that were written since it began anew.
fn log(path: &Path) -> (Vec<u8>, usize, Vec<usize>) {
    let log = std::fs::read(member(path, "-wal")).unwrap();
    let page_size = u32::from_be_bytes(log[8..12].try_into().unwrap()) as usize;
    let all = (0..(log.len() - 32) / (24 + page_size)).map(|n| 32 + n * (24 + page_size));
    let frames = all.take_while(|at| log[at + 8..at + 16] == log[16..24]).collect();
    (log, page_size, frames)
}

/// Leaves in the main file what a checkpoint that is killed half-way leaves: every second page of the log is copied.
fn cut_off_checkpoint(path: &Path) {
    let (log, page_size, frames) = log(path);
    let page = |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().unwrap());
    let pages: std::collections::BTreeMap<u32, usize> = frames.iter().map(|at| (page(*at), at + 24)).collect();
    // As a checkpoint does it: first it says how far it will go.
    let index = std::fs::OpenOptions::new().write(true).open(member(path, "-shm")).unwrap();
    index.write_all_at(&(frames.len() as u32).to_ne_bytes(), 128).unwrap();
    let main = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    for (page, at) in pages.into_iter().step_by(2) {
        main.write_all_at(&log[at..at + page_size], u64::from(page - 1) * page_size as u64).unwrap();
    }
}

#[test]
fn a_checkpoint_that_was_killed_half_way_before_the_log_was_removed_damages_nothing() {
    for (closes, late) in [(false, false), (false, true), (true, false)] {
        let (directory, path) = fresh();
        let mut holder = Holder::with_store(&path);
        let mut rows: usize = holder.ok(&format!("tight 1 {}", directory.join("log").display())).parse().unwrap();
        // The log may have begun anew a moment ago.
        while log(&path).2.len() < 20 {
            rows += 1;
            holder.ok(&format!("put more {rows}"));
        }
        let mut second = Holder::with_store(&path);
        cut_off_checkpoint(&path);
        if late {
            // The second one is stopped until the first has gone on; the same log must not be put back twice.
            stop(&second, true);
        }
        remove_sidecars(&path);
        if closes {
            second.kill();
            holder.ok("leave");
            drop(holder);
            drop(Holder::with_store(&path));
            assert_eq!(seen(&path), rows.to_string());
            continue;
        }
        holder.ok("put after");
        if late {
            stop(&second, false);
        }
        second.ok("put later");
        assert_eq!(holder.ok("count"), (rows + 2).to_string());
        assert_eq!(seen(&path), (rows + 2).to_string(), "{}", holder.events());
    }
}

/// A store whose main file has pages of different commits: a checkpoint that a reader holds up leaves out the pages that were
/// changed after what he reads, also their earlier content. Its process is stopped, and then these members are removed.
fn between_two_commits(path: &Path, members: &[&str]) -> (Holder, u32) {
    let mut holder = Holder::with_store(path);
    let mut rows = 0;
    let mut put = |holder: &mut Holder, letter: char| {
        for n in 0..60 {
            holder.ok(&format!("put {letter}{n:02}{}", "x".repeat(300)));
        }
        rows += 60;
    };
    put(&mut holder, 'm');
    crate::inplace::checkpoint(path, "TRUNCATE");
    put(&mut holder, 'a');
    let mut reader = Sibling::connected(path);
    reader.sql("BEGIN");
    reader.sql("SELECT count(*) FROM k");
    put(&mut holder, 'z');
    crate::inplace::checkpoint(path, "PASSIVE");
    let index = std::fs::read(member(path, "-shm")).unwrap();
    let word = |at: usize| u32::from_ne_bytes(index[at..at + 4].try_into().unwrap());
    let (frames, copied, attempted) = (word(16), word(96), word(128));
    assert!(0 < copied && copied == attempted && copied < frames, "{copied} {attempted} {frames}");
    stop(&holder, true);
    drop(reader);
    for suffix in members {
        std::fs::remove_file(member(path, suffix)).unwrap();
    }
    // The control: what is left without the log is no database.
    let copy = with(path, ".copy");
    std::fs::copy(path, &copy).unwrap();
    assert_ne!(visitor(&copy, "PRAGMA journal_mode=delete; PRAGMA integrity_check"), "delete\nok");
    (holder, rows)
}

#[test]
fn a_log_that_was_removed_when_a_reader_had_held_up_its_checkpoint_leaves_no_damaged_database() {
    for members in [&["-wal"][..], &["-wal", "-shm"]] {
        let (_directory, path) = fresh();
        let (mut holder, rows) = between_two_commits(&path, members);
        stop(&holder, false);
        holder.ok("put after");
        assert_eq!(holder.ok("count"), (rows + 1).to_string(), "{}", holder.events());
        assert_eq!(seen(&path), (rows + 1).to_string(), "{}", holder.events());
    }
}

#[test]
fn a_log_that_was_put_back_is_not_paired_with_another_main_file_that_is_put_there_after_it() {
    let (directory, path) = fresh();
    let older = directory.join("older");
    let (mut holder, rows) = between_two_commits(&path, &["-wal", "-shm"]);
    stop(&holder, false);
    holder.ok("put after");
    // A part of what a person has, as he has it: without what is in the log.
    visitor(&path, &format!("VACUUM INTO '{}'", older.display()));
    visitor(&older, "DELETE FROM k WHERE key LIKE 'a%'; VACUUM; PRAGMA journal_mode=wal");
    let theirs = visitor(&older, "SELECT count(*) FROM k");
    holder.kill();
    assert!(member(&path, "-wal").exists(), "the log was put back");
    std::fs::rename(&older, &path).unwrap();
    let mut next = Holder::with_store(&path);
    let count: u32 = next.ok("count").parse().unwrap();
    assert!(count >= theirs.parse().unwrap() && count <= rows + 1, "{count}");
    assert_eq!(visitor(&path, "PRAGMA integrity_check"), "ok");
}

#[test]
fn where_a_stranger_has_begun_another_log_by_then_what_was_captured_takes_the_place_of_the_rubble_when_he_is_gone() {
    let (_directory, path) = fresh();
    let (mut holder, rows) = between_two_commits(&path, &["-wal", "-shm"]);
    let mut stranger = Sibling::connected(&path);
    stranger.sql("CREATE TABLE theirs(a)");
    stop(&holder, false);
    until("it is said who is in the way", SOON, || holder.events().contains("has open what lies in the place"));
    drop(stranger);
    holder.ok("put after");
    assert_eq!(holder.ok("count"), (rows + 1).to_string(), "{}", holder.events());
    assert_eq!(visitor(&path, "PRAGMA integrity_check"), "ok");
    // What he wrote is kept.
    let kept = std::fs::read_dir(member(&path, ".statehouse/retired")).unwrap().map(|e| e.unwrap().file_name());
    assert!(kept.into_iter().any(|name| name.to_string_lossy().starts_with("unsound-")));
}

fn stop(holder: &Holder, stop: bool) {
    let signal = if stop { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
    holder.signal(signal);
}

struct Numbers;

impl Schema for Numbers {
    fn current(&self, connection: &Connection) -> Result<bool> {
        Ok(connection.table_exists(None, "k")?)
    }

    fn migrate(&self, transaction: &Connection) -> Result<(), Failure> {
        Ok(transaction
            .execute_batch("CREATE TABLE k(n INTEGER PRIMARY KEY, key TEXT UNIQUE NOT NULL, role TEXT) STRICT")?)
    }

    fn merge(&self, transaction: &Connection, retired: &Connection) -> Result<u64, Failure> {
        let keys: Vec<String> =
            retired.prepare("SELECT key FROM k")?.query_map([], |r| r.get(0))?.collect::<Result<_, _>>()?;
        let mut taken = 0;
        for key in keys {
            taken += transaction.execute("INSERT OR IGNORE INTO k(key, role) VALUES(?1, 'merged')", [key])? as u64;
        }
        Ok(taken)
    }
}

#[test]
fn a_read_that_does_not_end_keeps_other_processes_from_nothing() {
    let (_directory, path) = fresh();
    let schema: Option<Arc<dyn Schema>> = Some(Arc::new(Numbers));
    let options = Options { create: true, patience: Duration::from_secs(3), schema, ..Options::default() };
    let database = Database::open(&path, options).unwrap();
    database.write(|c| Ok(c.execute("INSERT INTO k(key, role) VALUES('kept', 'test')", [])?)).unwrap();
    let mut other = Holder::with_store(&path);
    let (go, end) = std::sync::mpsc::channel::<()>();
    let (tell, inside) = std::sync::mpsc::channel();
    let reader = database.clone();
    let slow = std::thread::spawn(move || {
        reader.read(|c| {
            c.query_row("SELECT count(*) FROM k", [], |_| Ok(()))?;
            tell.send(()).unwrap();
            // A client that takes its time, inside the read transaction.
            let _ = end.recv();
            Ok(())
        })
    });
    inside.recv().unwrap();
    remove_sidecars(&path);
    until("the handle is fenced", SOON, || database.fenced());
    let begun = Instant::now();
    other.ok("put other");
    assert_eq!(other.ok("count"), "2");
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert!(database.fenced(), "the old connection is still open");
    go.send(()).unwrap();
    slow.join().unwrap().unwrap();
    until("the handle goes on", SOON, || !database.fenced());
    let count: i64 = database.read(|c| Ok(c.query_row("SELECT count(*) FROM k", [], |r| r.get(0))?)).unwrap();
    assert_eq!(count, 2);
}

#[test]
fn closing_ends_though_a_read_does_not() {
    let (_directory, path) = fresh();
    let schema: Option<Arc<dyn Schema>> = Some(Arc::new(Numbers));
    let options = Options { create: true, patience: Duration::from_millis(300), schema, ..Options::default() };
    let database = Database::open(&path, options).unwrap();
    let begun = Instant::now();
    let closer = database.clone();
    database
        .read(|_| {
            let _ = closer.close();
            Ok(())
        })
        .unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn an_opener_that_meets_a_log_being_removed_begins_anew() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    holder.ok("put 0");
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (stopped, victim) = (stop.clone(), path.clone());
    let remover = std::thread::spawn(move || {
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            for suffix in ["-wal", "-shm"] {
                let _ = std::fs::remove_file(member(&victim, suffix));
            }
            std::thread::sleep(Duration::from_millis(60));
        }
    });
    let mut failed = Vec::new();
    for _ in 0..10 {
        let mut opener = Holder::start();
        if let Err(e) = opener.order(&format!("open {}", path.display())) {
            failed.push(e);
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    remover.join().unwrap();
    assert!(failed.is_empty(), "{failed:#?}");
    assert_eq!(holder.ok("count"), "1");
    assert_eq!(seen(&path), "1");
}
