//! The image of a live generation, made from its bytes alone, is the database that SQLite shows.

use std::path::Path;

use statehouse_sqlite::image::{ImageError, overlay};
use statehouse_sqlite::rusqlite::{Connection, OpenFlags};
use statehouse_sqlite::wal;

use crate::support::{Random, with};

/// Every row and every object of a database, as text.
fn content(connection: &Connection) -> Vec<String> {
    let text = |sql: &str| {
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |r| r.get::<_, String>(0)).unwrap();
        rows.map(|r| r.unwrap()).collect::<Vec<_>>()
    };
    let mut all = text("SELECT coalesce(sql, name) FROM sqlite_master ORDER BY name");
    all.extend(text("SELECT id || ':' || hex(b) FROM m ORDER BY id"));
    all.extend(text("PRAGMA integrity_check"));
    all
}

fn open_plain(image: &Path) -> Connection {
    let uri = format!("file:{}?immutable=1", image.display());
    Connection::open_with_flags(uri, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI).unwrap()
}

#[test]
fn an_image_has_the_rows_of_the_live_database() {
    let mut random = Random::new("an_image_has_the_rows_of_the_live_database");
    for page_size in [512, 4096, 65536] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.db");
        let live = Connection::open(&path).unwrap();
        live.execute_batch(&format!(
            "PRAGMA page_size={page_size}; PRAGMA auto_vacuum=INCREMENTAL; PRAGMA journal_mode=WAL; \
             PRAGMA wal_autocheckpoint=0; CREATE TABLE m(id INTEGER PRIMARY KEY, b BLOB)"
        ))
        .unwrap();
        for round in 0..40 {
            match random.below(10) {
                0 => live.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap(),
                1 => live.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).unwrap(),
                2 => {
                    live.execute("DELETE FROM m WHERE id % 3 = ?1", [random.below(3) as i64]).unwrap();
                    live.execute_batch("PRAGMA incremental_vacuum(50)").unwrap();
                }
                3 => {
                    live.execute_batch("BEGIN; DELETE FROM m; ROLLBACK").unwrap();
                }
                4 => live.execute_batch(&format!("CREATE INDEX i{round} ON m(b)")).unwrap(),
                _ => {
                    live.execute_batch("BEGIN").unwrap();
                    for _ in 0..1 + random.below(20) {
                        let blob = vec![random.next() as u8; random.below(3000) as usize];
                        live.execute("INSERT INTO m(b) VALUES(?1)", [blob]).unwrap();
                    }
                    live.execute_batch("COMMIT").unwrap();
                }
            }
            let main = std::fs::read(&path).unwrap();
            let log = std::fs::read(with(&path, "-wal")).unwrap();
            let copy = directory.path().join("image");
            let mut output = std::fs::File::create(&copy).unwrap();
            let image = overlay(&main, &log, &mut output).unwrap();
            assert_eq!(image.page_size, page_size);
            assert_eq!(std::fs::metadata(&copy).unwrap().len(), image.pages * u64::from(page_size));
            assert_eq!(content(&open_plain(&copy)), content(&live), "page size {page_size}, round {round}");
            if let Some(commit) = wal::last_commit(&log).unwrap() {
                assert_eq!((u64::from(commit.pages), commit.frames), (image.pages, image.frames));
            }
        }
    }
}

/// What a crash leaves: a log cut or damaged anywhere is worth its complete transactions before that, and not one more.
#[test]
fn a_torn_log_gives_the_transactions_before_the_tear() {
    let mut random = Random::new("a_torn_log_gives_the_transactions_before_the_tear");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    let live = Connection::open(&path).unwrap();
    live.execute_batch("PRAGMA page_size=1024; PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0; CREATE TABLE m(id INTEGER PRIMARY KEY, b BLOB)").unwrap();
    live.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    let mut ends = vec![0];
    for _ in 0..30 {
        live.execute("INSERT INTO m(b) VALUES(randomblob(?1))", [random.below(4000) as i64]).unwrap();
        ends.push(std::fs::metadata(with(&path, "-wal")).unwrap().len());
    }
    let (main, log) = (std::fs::read(&path).unwrap(), std::fs::read(with(&path, "-wal")).unwrap());
    for _ in 0..300 {
        let at = random.below(log.len() as u64);
        let mut torn = log.clone();
        if random.below(2) == 0 {
            torn.truncate(at as usize);
        } else {
            torn[at as usize] ^= 1 + random.below(255) as u8;
        }
        // A transaction is whole when it ended before the damage; a damaged header takes all of them.
        let expected = if at < 32 { 0 } else { ends.iter().filter(|e| **e <= at).count() as u64 - 1 };
        let mut output = Vec::new();
        let image = overlay(&main, &torn, &mut output).unwrap();
        assert_eq!(image.transactions, expected, "damage at {at}");
        let copy = directory.path().join("image");
        std::fs::write(&copy, &output).unwrap();
        let rows: i64 = open_plain(&copy).query_row("SELECT count(*) FROM m", [], |r| r.get(0)).unwrap();
        assert_eq!(rows as u64, expected, "damage at {at}");
    }
}

#[test]
fn any_bytes_give_an_answer_and_no_panic() {
    let mut random = Random::new("any_bytes_give_an_answer_and_no_panic");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    let live = Connection::open(&path).unwrap();
    live.execute_batch("PRAGMA page_size=512; PRAGMA journal_mode=WAL; CREATE TABLE m(id INTEGER PRIMARY KEY, b BLOB); INSERT INTO m(b) VALUES(randomblob(3000))").unwrap();
    let (main, log) = (std::fs::read(&path).unwrap(), std::fs::read(with(&path, "-wal")).unwrap());
    for _ in 0..2000 {
        let (mut main, mut log) = (main.clone(), log.clone());
        for bytes in [&mut main, &mut log] {
            for _ in 0..random.below(6) {
                if bytes.is_empty() {
                    break;
                }
                let at = random.below(bytes.len() as u64) as usize;
                match random.below(4) {
                    0 => bytes.truncate(at),
                    1 => bytes[at] = random.next() as u8,
                    2 => bytes[at..].iter_mut().for_each(|b| *b = random.next() as u8),
                    _ => {
                        let end = (at + 40).min(bytes.len());
                        bytes[at..end].fill(0);
                    }
                }
            }
        }
        let mut output = Vec::new();
        if let Ok(image) = overlay(&main, &log, &mut output) {
            assert_eq!(output.len() as u64, image.pages * u64::from(image.page_size));
            assert_eq!(output[18..20], [1, 1]);
        }
    }
}

#[test]
fn a_commit_of_an_absurd_size_is_refused() {
    let mut log = Vec::new();
    let mut header = [0u8; 24];
    header[..4].copy_from_slice(&0x377f_0683u32.to_be_bytes());
    header[4..8].copy_from_slice(&3_007_000u32.to_be_bytes());
    header[8..12].copy_from_slice(&512u32.to_be_bytes());
    let seed = wal::Checksum::default().mix(&header, true);
    log.extend(header);
    log.extend(seed.0.to_be_bytes());
    log.extend(seed.1.to_be_bytes());
    let mut page = [0u8; 512];
    page[..16].copy_from_slice(b"SQLite format 3\0");
    let mut frame = Vec::from(1u32.to_be_bytes());
    frame.extend(u32::MAX.to_be_bytes());
    let sum = seed.mix(&frame, true).mix(&page, true);
    frame.extend([0; 8]);
    frame.extend(sum.0.to_be_bytes());
    frame.extend(sum.1.to_be_bytes());
    frame.extend(page);
    log.extend(frame);
    assert_eq!(wal::last_commit(&log).unwrap().unwrap().pages, u32::MAX);
    let answer = overlay(&Vec::new(), &log, &mut Vec::new());
    assert!(matches!(answer, Err(ImageError::Size { pages: u32::MAX })), "{answer:?}");
}
