//! The reader of logs, told apart transaction by transaction.

use std::path::Path;

use statehouse_sqlite::image::{ImageError, overlay_at};
use statehouse_sqlite::rusqlite::Connection;
use statehouse_sqlite::wal::{
    Checksum, Extent, FRAME_HEADER_BYTES, HEADER_BYTES, Header, Lacking, Transactions, Upto, lacking, last_commit,
};

use crate::support::{Random, with};

/// The same log as a machine of the other byte order would have written it: only the checksums differ.
fn in_byte_order(log: &[u8], big_endian: bool) -> Vec<u8> {
    let mut log = log.to_vec();
    let page_size = u32::from_be_bytes(log[8..12].try_into().unwrap()) as usize;
    log[..4].copy_from_slice(&(0x377f_0682 | u32::from(big_endian)).to_be_bytes());
    let mut sum = Checksum::default().mix(&log[..24], big_endian);
    let put = |at: &mut [u8], sum: Checksum| {
        at[..4].copy_from_slice(&sum.0.to_be_bytes());
        at[4..8].copy_from_slice(&sum.1.to_be_bytes());
    };
    put(&mut log[24..32], sum);
    for frame in log[32..].chunks_exact_mut(FRAME_HEADER_BYTES as usize + page_size) {
        sum = sum.mix(&frame[..8], big_endian).mix(&frame[24..], big_endian);
        put(&mut frame[16..24], sum);
    }
    log
}

fn live(path: &Path, page_size: u32) -> Connection {
    let live = Connection::open(path).unwrap();
    live.execute_batch(&format!(
        "PRAGMA page_size={page_size}; PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL; \
         PRAGMA wal_autocheckpoint=0; CREATE TABLE m(id INTEGER PRIMARY KEY, b BLOB); \
         PRAGMA wal_checkpoint(TRUNCATE)"
    ))
    .unwrap();
    live
}

fn files(path: &Path) -> (Vec<u8>, Vec<u8>) {
    (std::fs::read(path).unwrap(), std::fs::read(with(path, "-wal")).unwrap())
}

/// SQLite is asked too: it recovers a log of either order.
#[test]
fn a_log_of_the_other_byte_order_is_the_same_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    let connection = live(&path, 1024);
    for _ in 0..20 {
        connection.execute("INSERT INTO m(b) VALUES(randomblob(700))", []).unwrap();
    }
    let (main, log) = files(&path);
    for big_endian in [true, false] {
        let log = in_byte_order(&log, big_endian);
        assert_eq!(Header::read(&log).unwrap().unwrap().big_endian, big_endian);
        assert_eq!(last_commit(&log).unwrap().unwrap().transactions, 20);
        let copy = directory.path().join(format!("copy-{big_endian}"));
        std::fs::write(&copy, &main).unwrap();
        std::fs::write(with(&copy, "-wal"), &log).unwrap();
        let rows: i64 = Connection::open(&copy).unwrap().query_row("SELECT count(*) FROM m", [], |r| r.get(0)).unwrap();
        assert_eq!(rows, 20);
        // The control: the mark of one order with the checksums of the other is no log to anybody.
        let mut wrong = log;
        wrong[3] ^= 1;
        assert_eq!(last_commit(&wrong).unwrap(), None);
    }
}

#[test]
fn a_log_can_be_stopped_at_each_of_its_transactions() {
    let mut random = Random::new("a_log_can_be_stopped_at_each_of_its_transactions");
    for page_size in [512, 4096, 65536] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.db");
        let connection = live(&path, page_size);
        let base = std::fs::read(&path).unwrap();
        let mut states = vec![(Vec::new(), 0)];
        for _ in 0..25 {
            match random.below(5) {
                0 => {
                    connection.execute("DELETE FROM m WHERE id % 2 = ?1", [random.below(2) as i64]).unwrap();
                    connection.execute_batch("PRAGMA incremental_vacuum(30)").unwrap();
                }
                _ => {
                    connection.execute("INSERT INTO m(b) VALUES(randomblob(?1))", [random.below(9000) as i64]).unwrap();
                }
            }
            // A step of the vacuum is a transaction of its own, and what found nothing to do is none.
            let Some(there) = last_commit(&files(&path).1).unwrap() else { continue };
            states.resize(there.transactions as usize, (Vec::new(), u64::MAX));
            if states.len() as u64 == there.transactions {
                states.push((rows(&connection), there.frames));
            }
        }
        let (_, log) = files(&path);
        let listed: Vec<_> = Transactions::of(&log).unwrap().map(Result::unwrap).collect();
        assert_eq!(listed.len(), states.len() - 1);
        for (n, transaction) in listed.iter().enumerate() {
            let (expected, frames) = &states[n + 1];
            assert_eq!(transaction.number as usize, n + 1);
            assert_eq!(transaction.first, if n == 0 { 0 } else { listed[n - 1].last + 1 });
            assert!(transaction.pages > 0 && transaction.pages <= transaction.last - transaction.first + 1);
            let copy = directory.path().join("image");
            let mut output = std::fs::File::create(&copy).unwrap();
            let image = overlay_at(&base, &log, Upto::Commit(transaction.number), &mut output).unwrap();
            assert_eq!((image.pages, image.frames), (u64::from(transaction.size), transaction.last + 1));
            if *frames == u64::MAX {
                continue;
            }
            assert_eq!(*frames, transaction.last + 1);
            let image = Connection::open(&copy).unwrap();
            assert_eq!(&rows(&image), expected, "page size {page_size}, transaction {}", n + 1);
            let whole: String = image.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
            assert_eq!(whole, "ok");
        }
        let beyond = listed.len() as u64 + 1;
        let answer = overlay_at(&base, &log, Upto::Commit(beyond), &mut Vec::new());
        assert!(matches!(answer, Err(ImageError::NoCommit { .. })), "{answer:?}");
        let mut none = Vec::new();
        assert_eq!(overlay_at(&base, &log, Upto::Commit(0), &mut none).unwrap().frames, 0);
        assert_eq!(none.len(), base.len());
    }
}

fn rows(connection: &Connection) -> Vec<(i64, Vec<u8>)> {
    let mut statement = connection.prepare("SELECT id, b FROM m ORDER BY id").unwrap();
    statement.query_map([], |r| Ok((r.get(0)?, r.get(1)?))).unwrap().map(Result::unwrap).collect()
}

#[test]
fn what_a_restarted_log_has_left_is_counted_as_stale() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    let connection = live(&path, 1024);
    for _ in 0..30 {
        connection.execute("INSERT INTO m(b) VALUES(randomblob(400))", []).unwrap();
    }
    let before = Extent::of(&files(&path).1).unwrap();
    assert_eq!((before.stale, before.unfinished, before.rest), (0, 0, 0));
    connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap();
    connection.execute("INSERT INTO m(b) VALUES(x'01')", []).unwrap();
    let (_, mut log) = files(&path);
    let after = Extent::of(&log).unwrap();
    assert!(after.committed > 0 && after.committed < before.committed, "{after:?}");
    assert_eq!(after.committed + after.stale, before.committed, "{after:?} after {before:?}");
    assert!(after.stale_commits > 20 && after.rest == 0, "{after:?}");
    // A torn tail is neither: a frame of this round without its commit, and then half a frame.
    log.truncate(HEADER_BYTES as usize + after.committed as usize * (1024 + 24) - 1024 + 100);
    let torn = Extent::of(&log).unwrap();
    assert_eq!((torn.committed, torn.stale, torn.rest), (0, 0, 24 + 100), "{torn:?}");
    assert_eq!(torn.unfinished, after.committed - 1);
}

/// Main files as of each transaction, with nothing of the log, and with some pages of later transactions.
#[test]
fn the_transactions_that_a_main_file_lacks_are_counted() {
    let mut random = Random::new("the_transactions_that_a_main_file_lacks_are_counted");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    let connection = live(&path, 512);
    let base = std::fs::read(&path).unwrap();
    for n in 0..30 {
        connection.execute("INSERT INTO m(b) VALUES(randomblob(?1))", [random.below(3000) as i64]).unwrap();
        if n % 9 == 8 {
            connection.execute("DELETE FROM m WHERE id > ?1", [random.below(10) as i64]).unwrap();
            connection.execute_batch("PRAGMA incremental_vacuum").unwrap();
        }
    }
    let (_, log) = files(&path);
    let listed: Vec<_> = Transactions::of(&log).unwrap().map(Result::unwrap).collect();
    let transactions = listed.len() as u64;
    let nothing = Lacking { transactions, contained: 0, missing: transactions, torn: false };
    assert_eq!(lacking(&base, &log).unwrap(), nothing);
    assert_eq!(lacking(&Vec::new(), &log).unwrap(), nothing);
    let image = |n| {
        let mut image = Vec::new();
        overlay_at(&base, &log, Upto::Commit(n), &mut image).unwrap();
        image
    };
    for n in 0..=transactions {
        let whole = lacking(&image(n), &log).unwrap();
        assert_eq!(whole, Lacking { transactions, contained: n, missing: transactions - n, torn: false });
    }
    let (mut torn, mut rounds) = (0, 0);
    for _ in 0..200 {
        let (from, to) = (random.below(transactions), 1 + random.below(transactions));
        let (mut main, later) = (image(from.min(to)), image(from.max(to)));
        let page = random.below((later.len() / 512) as u64) as usize * 512;
        if page < main.len() && page > 0 && main[page..page + 512] != later[page..page + 512] {
            main[page..page + 512].copy_from_slice(&later[page..page + 512]);
            rounds += 1;
            let seen = lacking(&main, &log).unwrap();
            // It may be whole as of a transaction between the two, if that wrote this page alone; never beyond.
            assert!(seen.contained >= from.min(to) && seen.contained <= from.max(to), "{seen:?} of {from} and {to}");
            torn += u64::from(seen.torn);
        }
    }
    assert!(torn > 0, "none of {rounds} mixed files was called torn");
}
