//! The reader of pages gives what SQLite gives, row by row, on databases of many kinds.

use std::ops::ControlFlow;
use std::path::Path;

use statehouse_sqlite::pages::{self, Encoding, FilePages, PageSource, Record, Value};
use statehouse_sqlite::rusqlite::types::ValueRef;
use statehouse_sqlite::rusqlite::{Connection, params};

use crate::support::Random;

/// A value as text that tells any two of them apart.
pub(crate) fn shown(value: Value<'_>, encoding: Encoding) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Integer(n) => format!("i{n}"),
        Value::Real(n) => format!("r{:016x}", n.to_bits()),
        Value::Text(bytes) => format!("t{}", encoding.decode(bytes).unwrap()),
        Value::Blob(bytes) => format!("b{bytes:02x?}"),
    }
}

pub(crate) fn shown_by_sqlite(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "null".into(),
        ValueRef::Integer(n) => format!("i{n}"),
        ValueRef::Real(n) => format!("r{:016x}", n.to_bits()),
        ValueRef::Text(bytes) => format!("t{}", std::str::from_utf8(bytes).unwrap()),
        ValueRef::Blob(bytes) => format!("b{bytes:02x?}"),
    }
}

/// Inserts a row of random values into columns that take any.
fn insert(connection: &Connection, table: &str, key: i64, random: &mut Random) {
    let length = match random.below(12) {
        0 => random.below(70_000),
        1 => random.below(5_000),
        _ => random.below(60),
    } as usize;
    let text: String = (0..length).map(|n| ['a', 'ß', '漢', '𝄞'][(n + key as usize) % 4]).collect();
    let number = (random.next() as i64) >> random.below(63);
    let real = f64::from_bits(random.next());
    let blob = vec![random.next() as u8; (length / 2).min(20_000)];
    connection
        .execute(
            &format!("INSERT OR REPLACE INTO {table} VALUES(?1, ?2, ?3, ?4, ?5)"),
            params![key, text, (random.below(4) > 0).then_some(number), real, blob],
        )
        .unwrap();
}

fn build(path: &Path, random: &mut Random, page_size: u32) -> Connection {
    let encoding = ["UTF-8", "UTF-16le", "UTF-16be"][random.below(3) as usize];
    let vacuum = ["NONE", "FULL", "INCREMENTAL"][random.below(3) as usize];
    let connection = Connection::open(path).unwrap();
    connection
        .execute_batch(&format!(
            "PRAGMA page_size={page_size}; PRAGMA encoding='{encoding}'; PRAGMA auto_vacuum={vacuum}; PRAGMA synchronous=OFF;
             CREATE TABLE r(k INTEGER PRIMARY KEY, a, b, c, d); CREATE INDEX ri ON r(b, a);
             CREATE TABLE n(k, a, b, c, d);
             CREATE TABLE w(k, a, b, c, d, PRIMARY KEY(b, k)) WITHOUT ROWID"
        ).replace("PRIMARY KEY(b, k)", "PRIMARY KEY(k, b)").replace("k, a, b, c, d, PRIMARY", "k, a, b NOT NULL DEFAULT 7, c, d, PRIMARY"))
        .unwrap();
    for _ in 0..4 {
        connection.execute_batch("BEGIN").unwrap();
        for _ in 0..random.below(400) {
            let key = match random.below(20) {
                0 => (random.next() >> 1) as i64,
                1 => -((random.next() >> 40) as i64),
                _ => random.below(2000) as i64,
            }
            .wrapping_abs();
            insert(&connection, "r", key, random);
            insert(&connection, "n", key, random);
            connection
                .execute(
                    "INSERT OR REPLACE INTO w SELECT k, a, ifnull(b, 7), c, d FROM n ORDER BY rowid DESC LIMIT 1",
                    [],
                )
                .unwrap();
        }
        let part = random.below(7) as i64;
        for table in ["r", "n", "w"] {
            connection.execute(&format!("DELETE FROM {table} WHERE k % 7 = ?1"), [part]).unwrap();
        }
        connection.execute_batch("COMMIT").unwrap();
        match random.below(4) {
            0 => connection.execute_batch("VACUUM").unwrap(),
            1 => connection.execute_batch("PRAGMA incremental_vacuum(20)").unwrap(),
            _ => {}
        }
    }
    connection
}

#[test]
fn every_row_is_the_one_that_sqlite_reads() {
    let mut random = Random::new("every_row_is_the_one_that_sqlite_reads");
    let mut deep = 0;
    for page_size in [512, 1024, 4096, 8192, 65536] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.db");
        let connection = build(&path, &mut random, page_size);
        let bytes = std::fs::read(&path).unwrap();
        let source = FilePages::of(&bytes).unwrap().unwrap();
        assert_eq!(u64::from(source.count()) * u64::from(page_size), bytes.len() as u64);
        let encoding = source.layout().encoding;
        let (objects, walked) = pages::schema(&source).unwrap();
        assert_eq!((objects.len(), walked.unread_count), (4, 0), "{objects:?}");
        for (table, columns) in
            [("r", "k, NULL, a, b, c, d"), ("n", "rowid, k, a, b, c, d"), ("w", "NULL, k, b, a, c, d")]
        {
            let order = if table == "w" { "k, b" } else { "rowid" };
            let mut statement = connection.prepare(&format!("SELECT {columns} FROM {table} ORDER BY {order}")).unwrap();
            let mut expected = statement.query([]).unwrap();
            let object = objects.iter().find(|o| o.name == table).unwrap();
            let walked = pages::walk(&source, object.root, &mut |row| {
                let theirs = expected.next().unwrap().expect("SQLite has no such row");
                assert_eq!(row.rowid, theirs.get(0).unwrap());
                let record = Record::parse(row.payload).unwrap();
                assert!(record.is_exact());
                let ours: Vec<_> = record.values().map(|v| nan_is_null(shown(v, encoding), v)).collect();
                let theirs: Vec<_> = (1..6).map(|n| shown_by_sqlite(theirs.get_ref(n).unwrap())).collect();
                assert_eq!(ours, theirs, "{table} {:?}", row.rowid);
                Ok(ControlFlow::Continue(()))
            })
            .unwrap();
            assert!(expected.next().unwrap().is_none(), "{table}: SQLite has more rows than {}", walked.rows);
            assert_eq!(walked.unread_count, 0, "{:?}", walked.unread);
            deep += walked.rows;
        }
        let index = objects.iter().find(|o| o.name == "ri").unwrap();
        let entries = pages::walk(&source, index.root, &mut |_| Ok(ControlFlow::Continue(()))).unwrap();
        let rows: u64 = connection.query_row("SELECT count(*) FROM r", [], |r| r.get::<_, i64>(0)).unwrap() as u64;
        assert_eq!((entries.rows, entries.unread_count), (rows, 0));
        let mut bytes = Vec::new();
        let table = objects.iter().find(|o| o.name == "r").unwrap();
        let ids: Vec<i64> = connection
            .prepare("SELECT k FROM r LIMIT 50")
            .unwrap()
            .query_map([], |r| r.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        for id in ids {
            assert!(pages::seek(&source, table.root, id, &mut bytes).unwrap().is_some());
        }
        assert_eq!(pages::seek(&source, table.root, -1, &mut bytes).unwrap(), None);
    }
    assert!(deep > 1000, "only {deep} rows were compared");
}

/// SQLite stores no NaN and reads one as NULL.
fn nan_is_null(shown: String, value: Value<'_>) -> String {
    if matches!(value, Value::Real(n) if n.is_nan()) { "null".into() } else { shown }
}

/// What is scribbled over costs what lies below it, and is named; the rest is read.
#[test]
fn a_page_that_is_scribbled_over_is_named_and_the_rest_is_read() {
    let mut random = Random::new("a_page_that_is_scribbled_over_is_named_and_the_rest_is_read");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "PRAGMA page_size=1024; CREATE TABLE m(id INTEGER PRIMARY KEY, t);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
             INSERT INTO m SELECT i, 'row ' || i FROM n",
        )
        .unwrap();
    let good = std::fs::read(&path).unwrap();
    let root = 2;
    for _ in 0..100 {
        let mut bytes = good.clone();
        let page = 3 + random.below(good.len() as u64 / 1024 - 2);
        let at = (page as usize - 1) * 1024;
        bytes[at..at + 1024].iter_mut().for_each(|b| *b = random.next() as u8);
        bytes[at] = 0xff;
        let source = FilePages::of(&bytes).unwrap().unwrap();
        let walked = pages::walk(&source, root, &mut |_| Ok(ControlFlow::Continue(()))).unwrap();
        assert_eq!(walked.unread_count, 1, "{walked:?}");
        assert_eq!(u64::from(walked.unread[0].page), page);
        assert!(walked.rows < 5000 && walked.rows > 0, "{walked:?}");
    }
    // A page that points at itself, and one that points at another's child.
    let mut bytes = good.clone();
    let first = 1024 + 12;
    let cell = 1024 + usize::from(u16::from_be_bytes([good[first], good[first + 1]]));
    bytes[cell..cell + 4].copy_from_slice(&root.to_be_bytes());
    let source = FilePages::of(&bytes).unwrap().unwrap();
    let walked = pages::walk(&source, root, &mut |_| Ok(ControlFlow::Continue(()))).unwrap();
    assert_eq!((walked.unread_count, walked.unread[0].why), (1, pages::Why::Again));
}

#[test]
fn any_bytes_are_walked_to_an_end() {
    let mut random = Random::new("any_bytes_are_walked_to_an_end");
    let directory = tempfile::tempdir().unwrap();
    let connection = build(&directory.path().join("s.db"), &mut random, 512);
    drop(connection);
    let good = std::fs::read(directory.path().join("s.db")).unwrap();
    let good = &good[..good.len().min(512 * 600)];
    for _ in 0..300 {
        let mut bytes = good.to_vec();
        for _ in 0..1 + random.below(200) {
            let at = random.below(bytes.len() as u64 - 100) as usize + 100;
            match random.below(3) {
                0 => bytes[at] = random.next() as u8,
                // The headers of pages are where every length stands.
                1 => bytes[at / 512 * 512 + random.below(12) as usize % (512 - at % 512)] = random.next() as u8,
                _ => {
                    let from = random.below(bytes.len() as u64 / 512) as usize * 512;
                    let to = (1 + random.below(bytes.len() as u64 / 512 - 1) as usize) * 512;
                    bytes.copy_within(from..from + 512, to);
                }
            }
        }
        let Some(source) = FilePages::of(&bytes).unwrap() else { continue };
        let mut read = 0;
        for root in 0..10 {
            let walked = pages::walk(&source, root, &mut |row| {
                read += row.payload.len() as u64;
                let _ = Record::parse(row.payload).map(|r| r.values().count());
                Ok(ControlFlow::Continue(()))
            })
            .unwrap();
            assert!(walked.rows <= bytes.len() as u64);
        }
        assert!(read <= 10 * bytes.len() as u64 * 2, "{read} bytes of a file of {}", bytes.len());
    }
}
