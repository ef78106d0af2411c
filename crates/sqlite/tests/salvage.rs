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

    /// Writes until it is done, or until it stumbles over what the other generation did to its main file.
    fn write(&mut self, random: &mut Random, who: &str, rounds: u64) {
        for _ in 0..rounds {
            let rows: Vec<_> = (0..1 + random.below(30)).map(|_| row(random, who)).collect();
            let mut statements =
                ["BEGIN"].into_iter().chain(rows.iter().map(|(sql, _)| sql.as_str())).chain(["COMMIT"]);
            let done = statements.try_for_each(|sql| self.process.order(serde_json::json!({ "sql": sql })).map(drop));
            if let Err(refused) = done {
                println!("the ghost stops: {refused}");
                let _ = self.process.order(serde_json::json!({ "sql": "ROLLBACK" }));
                return;
            }
            // Only what it was told OK for.
            self.rows.extend(rows.iter().map(|(_, mark)| mark.clone()));
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
        let table = format!("\"{}\"", table.replace('"', "\"\""));
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
        ghost.write(&mut random, "ghost", 5);
        assert!(ghost.rows.len() > 20, "the ghost wrote {} rows", ghost.rows.len());
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
        assert!(matches!(salvage::from_log(&main, &log, &output), Err(SalvageError::Exists)));
        let upto = statehouse_sqlite::wal::Contents::read(&log, Upto::Last).unwrap();
        assert_eq!((salvaged.frames, salvaged.transactions), (upto.frames, upto.transactions));
    }
    assert!(useless > 0, "each image was as good, so nothing was proved");
}

/// All rows of a table, with their rowids if it has them, as text.
fn content(connection: &Connection, table: &str, columns: &str, order: &str) -> Vec<String> {
    let mut statement = connection.prepare(&format!("SELECT {columns} FROM {table} ORDER BY {order}")).unwrap();
    let width = statement.column_count();
    let mut rows = statement.query([]).unwrap();
    let mut all = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let values: Vec<_> = (0..width).map(|n| format!("{:?}", row.get_ref(n).unwrap())).collect();
        all.push(values.join("|"));
    }
    all
}

const MANY_KINDS: &str = "
    CREATE TABLE plain(a, b);
    CREATE TABLE \"odd \"\"name\"\"\"(\"rowid\" TEXT, [select] INT, `x y` DEFAULT 'q');
    CREATE TABLE three(rowid, _rowid_, oid);
    CREATE TABLE keyed(id INTEGER PRIMARY KEY, t TEXT NOT NULL CHECK(length(t) > 2), r REAL, n NUMERIC, parent REFERENCES keyed(id));
    CREATE TABLE descending(id INTEGER PRIMARY KEY DESC, t);
    CREATE TABLE strict_one(id INT PRIMARY KEY, any_ ANY, t TEXT) STRICT;
    CREATE TABLE pair(a TEXT COLLATE NOCASE, v, b INT, PRIMARY KEY(b, a)) WITHOUT ROWID;
    CREATE TABLE made(a INT, twice INT AS (a * 2) VIRTUAL, thrice INT AS (a * 3) STORED, b UNIQUE);
    CREATE TABLE lost_and_found(x);
    CREATE TABLE gone(x);
    CREATE VIEW seen AS SELECT a FROM plain;
    CREATE INDEX idx ON plain(b, a);
    CREATE UNIQUE INDEX part ON keyed(t) WHERE r > 5;
    CREATE TRIGGER no_more BEFORE INSERT ON keyed WHEN new.t = 'never' BEGIN SELECT raise(ABORT, 'never'); END;
    CREATE VIRTUAL TABLE search USING fts5(t);
";

const TABLES: [(&str, &str, &str); 9] = [
    ("plain", "rowid, *", "rowid"),
    ("\"odd \"\"name\"\"\"", "_rowid_, *, later", "_rowid_"),
    ("three", "*", "1, 2, 3"),
    ("keyed", "*, later, also", "id"),
    ("descending", "rowid, *", "rowid"),
    ("strict_one", "rowid, *", "rowid"),
    ("pair", "*, later", "b, a"),
    ("made", "rowid, *", "rowid"),
    ("lost_and_found", "rowid, *", "rowid"),
];

fn insert_many(connection: &Connection, random: &mut Random, count: u64) {
    for _ in 0..count {
        let n = (random.next() >> (1 + random.below(62))) as i64;
        let longest = if random.below(9) == 0 { 12_000 } else { 50 };
        let long = "z".repeat(random.below(longest) as usize);
        let t = format!("{n:x}ä{long}");
        for (sql, odd) in [
            ("INSERT INTO plain VALUES(?1, ?2)", false),
            ("INSERT INTO plain VALUES(CAST(x'ff00fe' AS TEXT), randomblob(?1 % 300))", true),
            ("INSERT INTO plain VALUES(-0.0, 1e999)", true),
            ("INSERT INTO \"odd \"\"name\"\"\"(rowid, [select]) VALUES(?2, ?1)", false),
            ("INSERT INTO three VALUES(?1, ?2, NULL)", false),
            ("INSERT OR IGNORE INTO keyed(id, t, r, n) VALUES(?1, ?2, ?1 % 9, ?2)", false),
            ("INSERT OR IGNORE INTO descending VALUES(?1, ?2)", false),
            ("INSERT OR IGNORE INTO strict_one VALUES(?1, '12', ?2)", false),
            ("INSERT OR IGNORE INTO pair(a, v, b) VALUES(?2, ?1, ?1 % 50)", false),
            ("INSERT OR IGNORE INTO made(a, b) VALUES(?1 % 1000, ?2)", false),
            ("INSERT INTO lost_and_found VALUES(?2)", false),
            ("INSERT INTO gone VALUES(?2)", false),
            ("INSERT INTO search VALUES(?2)", false),
        ] {
            if !odd || random.below(10) == 0 {
                connection.prepare_cached(sql).unwrap().raw_execute_with(n, &t);
            }
        }
    }
}

/// Binds as many of the two as a statement takes.
trait RawExecute {
    fn raw_execute_with(&mut self, n: i64, t: &str);
}

impl RawExecute for statehouse_sqlite::rusqlite::CachedStatement<'_> {
    fn raw_execute_with(&mut self, n: i64, t: &str) {
        for place in 1..=self.parameter_count() {
            if place == 1 {
                self.raw_bind_parameter(place, n).unwrap();
            } else {
                self.raw_bind_parameter(place, t).unwrap();
            }
        }
        self.raw_execute().unwrap();
    }
}

fn delete_some(connection: &Connection, random: &mut Random) {
    for (table, ..) in TABLES {
        let part = random.below(3) as i64;
        let key = if table == "pair" {
            "b"
        } else if table == "three" {
            "abs(\"rowid\")"
        } else {
            "_rowid_"
        };
        connection.execute(&format!("DELETE FROM {table} WHERE {key} % 3 = ?1"), [part]).unwrap();
    }
}

/// Where the log has all of a database, what is salvaged is that database: no row less, and none that was deleted.
#[test]
fn a_log_that_holds_everything_gives_every_row_as_it_is_and_no_deleted_one() {
    let mut random = Random::new("a_log_that_holds_everything_gives_every_row_as_it_is_and_no_deleted_one");
    for page_size in [512, 1024, 4096, 65536] {
        let encoding = ["UTF-8", "UTF-16le", "UTF-16be"][random.below(3) as usize];
        let vacuum = ["NONE", "FULL", "INCREMENTAL"][random.below(3) as usize];
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.db");
        let live = Connection::open(&path).unwrap();
        live.execute_batch(&format!(
            "PRAGMA page_size={page_size}; PRAGMA encoding='{encoding}'; PRAGMA auto_vacuum={vacuum};
             PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0; PRAGMA user_version=77; {MANY_KINDS}"
        ))
        .unwrap();
        for _ in 0..3 {
            live.execute_batch("BEGIN").unwrap();
            insert_many(&live, &mut random, 60);
            live.execute_batch("COMMIT").unwrap();
            delete_some(&live, &mut random);
        }
        live.execute_batch(
            "ALTER TABLE \"odd \"\"name\"\"\" ADD COLUMN later DEFAULT 'ten'; ALTER TABLE keyed ADD COLUMN later TEXT DEFAULT 7;
             ALTER TABLE keyed ADD COLUMN also REAL NOT NULL DEFAULT 1; ALTER TABLE pair ADD COLUMN later DEFAULT x'00ff';
             DROP TABLE gone",
        )
        .unwrap();
        if random.below(2) == 0 {
            live.execute_batch("BEGIN").unwrap();
            insert_many_again(&live, &mut random);
            live.execute_batch("COMMIT; PRAGMA incremental_vacuum(7)").unwrap();
        }
        let log = std::fs::read(with(&path, "-wal")).unwrap();
        // What is at the start of the main file was written by the change of the journal mode, and says nothing of the rest.
        let output = directory.path().join("salvaged");
        let salvaged = salvage::from_log(&Vec::new(), &log, &output).unwrap();
        println!("page size {page_size}, {encoding}, {vacuum}: {salvaged:?}");
        check(&salvaged, &output);
        assert_eq!(
            (salvaged.unplaced, salvaged.broken, salvaged.unreadable.len(), salvaged.unmade.len()),
            (0, 0, 0, 0)
        );
        let copy = Connection::open(&output).unwrap();
        for (table, columns, order) in TABLES {
            let (ours, theirs) = (content(&copy, table, columns, order), content(&live, table, columns, order));
            assert_eq!(ours, theirs, "{table}");
            assert!(!ours.is_empty(), "{table} is empty, so nothing was compared");
        }
        let objects: Vec<String> =
            content(&copy, "(SELECT name FROM sqlite_schema WHERE type <> 'index')", "name", "name");
        assert_eq!(objects.len(), TABLES.len(), "{objects:?}");
        let version: i64 = copy.query_row("PRAGMA user_version", [], |r| r.get(0)).unwrap();
        assert_eq!(version, 77);
    }
}

fn insert_many_again(live: &Connection, random: &mut Random) {
    live.execute_batch("CREATE TABLE gone(x)").unwrap();
    insert_many(live, random, 30);
    live.execute_batch("DROP TABLE gone").unwrap();
}

/// Half of the rows are in the main file alone, and what the log deleted was on pages that it had written before.
#[test]
fn rows_that_a_ghost_deleted_do_not_come_back() {
    let mut random = Random::new("rows_that_a_ghost_deleted_do_not_come_back");
    let mut freed = 0;
    for page_size in [512, 1024, 4096] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.db");
        let live = Connection::open(&path).unwrap();
        live.execute_batch(&format!(
            "PRAGMA page_size={page_size}; PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0; {SCHEMA} BEGIN"
        ))
        .unwrap();
        for _ in 0..2000 {
            live.execute_batch(&row(&mut random, "base").0).unwrap();
        }
        live.execute_batch("COMMIT").unwrap();
        live.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
        let before = marks(&path, true);
        for _ in 0..3 {
            live.execute_batch("BEGIN").unwrap();
            for _ in 0..300 {
                live.execute_batch(&row(&mut random, "ghost").0).unwrap();
            }
            live.execute_batch("COMMIT").unwrap();
            // Whole pages of what was just written, so that they are freed.
            live.execute_batch(
                "DELETE FROM message WHERE id > (SELECT max(id) - 90 FROM message);
                 DELETE FROM note WHERE rowid > (SELECT max(rowid) - 40 FROM note);
                 DELETE FROM session WHERE id > 'ghost-8'",
            )
            .unwrap();
        }
        let there = marks(&path, true);
        let (main, log) = (std::fs::read(&path).unwrap(), std::fs::read(with(&path, "-wal")).unwrap());
        freed += live.query_row("PRAGMA freelist_count", [], |r| r.get::<_, i64>(0)).unwrap();
        let output = directory.path().join("salvaged");
        let salvaged = salvage::from_log(&main, &log, &output).unwrap();
        check(&salvaged, &output);
        assert_eq!((salvaged.unplaced, salvaged.broken, salvaged.unreadable.len()), (0, 0, 0), "{salvaged:?}");
        let salvaged = marks(&output, true);
        assert_eq!(salvaged.difference(&there).count(), 0, "deleted rows of {} came back", salvaged.len());
        assert_eq!(there.difference(&before).filter(|m| !salvaged.contains(*m)).count(), 0);
    }
    assert!(freed > 0, "no page was freed, so nothing was proved");
}

/// The ways on which pages are placed are tried one at a time, by taking the others away.
#[test]
fn pages_without_a_way_to_them_are_placed_by_their_records_or_kept_beside() {
    let mut random = Random::new("pages_without_a_way_to_them");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    let live = Connection::open(&path).unwrap();
    live.execute_batch(
        "PRAGMA page_size=1024; PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0;
         CREATE TABLE three(id INTEGER PRIMARY KEY, a TEXT, b INT); CREATE TABLE two(a INT, b TEXT);
         CREATE TABLE twin(a INT, b TEXT); BEGIN",
    )
    .unwrap();
    for n in 0..2000 {
        let text = format!("text {n} {}", "x".repeat(random.below(60) as usize));
        live.execute("INSERT INTO three(a, b) VALUES(?1, ?2)", (&text, n)).unwrap();
        live.execute("INSERT INTO two VALUES(?2, ?1)", (&text, n)).unwrap();
    }
    live.execute_batch("COMMIT").unwrap();
    live.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
    // In the middle, so that no page above the leaves is written.
    live.execute_batch("UPDATE three SET b = b + 1 WHERE id = 1000; UPDATE two SET a = a + 1 WHERE rowid = 1000")
        .unwrap();
    let (main, log) = (std::fs::read(&path).unwrap(), std::fs::read(with(&path, "-wal")).unwrap());
    let take = |main: &[u8], name: &str| {
        let output = directory.path().join(name);
        let salvaged = salvage::from_log(&main.to_vec(), &log, &output).unwrap();
        check(&salvaged, &output);
        (salvaged, Connection::open(output).unwrap())
    };
    let (whole, _) = take(&main, "whole");
    assert!(whole.tables["three"] > 0 && whole.tables["two"] > 0 && whole.unplaced == 0, "{whole:?}");
    // Without the main file's pages but the first there is no way down, and two tables look the same.
    let (torn, copy) = take(&main[..1024], "torn");
    assert_eq!(torn.tables["three"], whole.tables["three"]);
    assert_eq!((torn.tables["two"], torn.tables["twin"], torn.unplaced), (0, 0, whole.tables["two"]));
    let kept: (i64, i64, Option<i64>, i64, String) = copy
        .query_row("SELECT id, nfield, rootpgno, c0, substr(c1, 1, 8) FROM lost_and_found WHERE id = 1000", [], |r| {
            Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?, r.get(4)?))
        })
        .unwrap();
    assert_eq!(kept, (1000, 2, None, 1000, "text 999".to_owned()));
    // And without the first there is no table at all.
    let (bare, _) = take(&[], "bare");
    assert_eq!((bare.tables.len(), bare.unplaced), (0, whole.tables["two"] + whole.tables["three"]));
}
