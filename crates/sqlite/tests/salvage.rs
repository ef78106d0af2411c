//! The rows of a ghost whose main file another generation has written over.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use statehouse_sqlite::image::overlay;
use statehouse_sqlite::rusqlite::Connection;
use statehouse_sqlite::salvage::{self, SalvageError, Salvaged};
use statehouse_sqlite::wal::{Upto, lacking};

use crate::support::{Random, Sibling, with};

const SCHEMA: &str = "
    CREATE TABLE session(id TEXT PRIMARY KEY, title TEXT, started REAL) WITHOUT ROWID;
    CREATE TABLE message(id INTEGER PRIMARY KEY AUTOINCREMENT, session TEXT NOT NULL, body TEXT, tokens INTEGER);
    CREATE INDEX by_session ON message(session, id);
    CREATE TABLE note(key TEXT, value BLOB);
";

/// A ghost and what it wrote.
struct Ghost {
    process: Sibling,
    rows: BTreeSet<String>,
    /// What was there before it.
    base: BTreeSet<String>,
}

impl Ghost {
    fn log(&self) -> File {
        let fds = format!("/proc/{}/fd", self.process.pid());
        let log = std::fs::read_dir(fds)
            .unwrap()
            .flatten()
            .find(|f| std::fs::read_link(f.path()).is_ok_and(|l| l.to_string_lossy().ends_with("-wal (deleted)")));
        File::open(log.expect("the ghost has its log").path()).unwrap()
    }

    fn write(&mut self, random: &mut Random, who: &str, rounds: u64) {
        for _ in 0..rounds {
            self.process.sql("BEGIN");
            for _ in 0..1 + random.below(30) {
                let (sql, row) = row(random, who);
                if self.process.order(serde_json::json!({ "sql": sql })).is_ok() {
                    self.rows.insert(row);
                }
            }
            self.process.sql("COMMIT");
        }
    }
}

/// A statement that inserts a row, and the row's mark, which is nowhere else.
fn row(random: &mut Random, who: &str) -> (String, String) {
    let mark = format!("{who}-{:016x}", random.next());
    let length = if random.below(15) == 0 { random.below(9000) } else { random.below(200) } as usize;
    let text = format!("{mark} {}", "lorem ".repeat(length / 6));
    let sql = match random.below(4) {
        0 => format!("INSERT INTO session VALUES('{mark}', '{text}', {})", random.below(100_000)),
        1 => format!("INSERT INTO note VALUES('{mark}', '{text}')"),
        _ => format!("INSERT INTO message(session, body, tokens) VALUES('{who}', '{text}', {})", random.below(100)),
    };
    (sql, mark)
}

/// The marks of rows that a file has in its tables, and those that it has only in `lost_and_found`.
fn marks(path: &Path, tables: bool) -> BTreeSet<String> {
    let connection = Connection::open(path).unwrap();
    let sql = if tables {
        "SELECT id FROM session UNION ALL SELECT substr(body, 1, instr(body, ' ') - 1) FROM message UNION ALL SELECT key FROM note"
    } else {
        "SELECT coalesce(c0, '') || coalesce(c2, '') || coalesce(c1, '') FROM lost_and_found"
    };
    let mut statement = connection.prepare(sql).unwrap();
    statement.query_map([], |r| r.get::<_, String>(0)).unwrap().map(Result::unwrap).collect()
}

/// Makes a database, and a ghost on it whose log is unlinked.
fn haunted(path: &Path, random: &mut Random, page_size: u32) -> Ghost {
    let connection = Connection::open(path).unwrap();
    connection.execute_batch(&format!("PRAGMA page_size={page_size}; PRAGMA journal_mode=WAL; {SCHEMA}")).unwrap();
    connection.execute_batch("BEGIN").unwrap();
    for _ in 0..3000 {
        connection.execute_batch(&row(random, "base").0).unwrap();
    }
    connection.execute_batch("COMMIT").unwrap();
    // So that the log of the ghost begins with the ghost.
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    drop(connection);
    let base = marks(path, true);
    let mut process = Sibling::connected(path);
    process.sql("PRAGMA wal_autocheckpoint=0");
    process.sql("SELECT count(*) FROM message");
    let mut ghost = Ghost { process, rows: BTreeSet::new(), base };
    ghost.write(random, "early", 1);
    // A copy of its log is all that is needed for it to be cut off; nothing of it was copied into the main file.
    std::fs::remove_file(with(path, "-wal")).unwrap();
    std::fs::remove_file(with(path, "-shm")).unwrap();
    ghost
}

/// What a second generation does meanwhile, and copies into the main file.
fn succeed(path: &Path, random: &mut Random, rounds: u64) {
    let second = Connection::open(path).unwrap();
    for _ in 0..rounds {
        second.execute_batch("BEGIN").unwrap();
        for _ in 0..40 {
            second.execute_batch(&row(random, "second").0).unwrap();
        }
        second.execute_batch("COMMIT").unwrap();
    }
    second.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
}

fn check(salvaged: &Salvaged, path: &Path) {
    let connection = Connection::open(path).unwrap();
    let whole: String = connection.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
    assert_eq!(whole, "ok");
    for (table, rows) in &salvaged.tables {
        let there: i64 = connection.query_row(&format!("SELECT count(*) FROM {table}"), [], |r| r.get(0)).unwrap();
        assert_eq!(there as u64, *rows, "{table}");
    }
}

#[test]
fn every_row_of_a_ghost_comes_back_although_another_generation_wrote_over_its_main_file() {
    let mut random = Random::new("every_row_of_a_ghost_comes_back");
    let mut useless = 0;
    for page_size in [512, 1024, 4096] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.db");
        let mut ghost = haunted(&path, &mut random, page_size);
        for _ in 0..4 {
            ghost.write(&mut random, "ghost", 5);
            succeed(&path, &mut random, 5);
        }
        let (main, log) = (std::fs::read(&path).unwrap(), ghost.log());
        assert!(lacking(&main, &log).unwrap().missing > 0);

        // The control: the log over that main file is no database, or not the ghost's, whatever a quick check says.
        let image = directory.path().join("image");
        let made = overlay(&main, &log, &mut File::create(&image).unwrap());
        let sound = made.is_ok()
            && Connection::open(&image)
                .unwrap()
                .query_row("PRAGMA integrity_check(1)", [], |r| r.get::<_, String>(0))
                .is_ok_and(|answer| answer == "ok");
        let whole: BTreeSet<String> = ghost.rows.union(&ghost.base).cloned().collect();
        useless += u64::from(!sound || marks(&image, true) != whole);

        let output = directory.path().join("salvaged");
        let salvaged = salvage::from_log(&main, &log, &output).unwrap();
        println!("page size {page_size}: {salvaged:?}");
        check(&salvaged, &output);
        let there = marks(&output, true);
        let missing = |there: &BTreeSet<String>| ghost.rows.difference(there).cloned().collect::<Vec<_>>();
        assert_eq!(missing(&there), [""; 0], "of {} rows", ghost.rows.len());
        assert!(ghost.rows.len() > 200, "the ghost wrote {} rows", ghost.rows.len());
        assert!(matches!(salvage::from_log(&main, &log, &output), Err(SalvageError::Exists)));
        let upto = statehouse_sqlite::wal::Contents::read(&log, Upto::Last).unwrap();
        assert_eq!((salvaged.frames, salvaged.transactions), (upto.frames, upto.transactions));
    }
    assert!(useless > 0, "each image was as good, so nothing was proved");
}
