//! Which stores are opened, and what opening does to them.

use statehouse_sessions::sqlite::{APPLICATION_ID, SCHEMA};
use statehouse_sessions::*;
use statehouse_sqlite::Reason;
use statehouse_sqlite::rusqlite::Connection;

use crate::House;

fn refused(path: &std::path::Path) -> Option<Reason> {
    match SqliteStore::open(path, "test", OpenMode::existing()).err().unwrap() {
        Error::Database(e) => e.reason(),
        e => panic!("{e}"),
    }
}

#[test]
fn a_new_store_says_what_it_is() {
    let house = House::new();
    let plain = Connection::open(house.path()).unwrap();
    let one = |sql: &str| plain.query_row(sql, [], |r| r.get::<_, i64>(0)).unwrap();
    assert_eq!(one("PRAGMA application_id"), i64::from(APPLICATION_ID));
    assert_eq!(one("SELECT count(*) FROM migration"), SCHEMA);
    assert_eq!(one("SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'schema'"), SCHEMA);
    assert_eq!(one("SELECT count(*) FROM pragma_foreign_key_check"), 0);
    let strict =
        "SELECT count(*) FROM pragma_table_list WHERE type = 'table' AND NOT strict AND name NOT LIKE 'sqlite%'";
    assert_eq!(one(strict), 0);
}

#[test]
fn opening_a_settled_store_writes_nothing() {
    let house = House::new();
    house.say(house.session(), "x");
    let plain = Connection::open(house.path()).unwrap();
    let version = || plain.query_row("PRAGMA data_version", [], |r| r.get::<_, i64>(0)).unwrap();
    let before = version();
    let again = SqliteStore::open(&house.path(), "again", OpenMode::existing()).unwrap();
    assert_eq!(again.sessions(&ListOptions::default()).unwrap().len(), 1);
    assert_eq!(version(), before);
    again.write_canary("test").unwrap();
    assert_ne!(version(), before, "the control: a write is seen");
}

#[test]
fn a_newer_schema_is_refused_only_if_it_says_so() {
    for (key, refusal) in [("min_writer", true), ("min_reader", true), ("schema", false)] {
        let house = House::new();
        let path = house.path();
        let plain = Connection::open(&path).unwrap();
        plain.execute("UPDATE meta SET value = ?2 WHERE key = ?1", (key, (SCHEMA + 1).to_string())).unwrap();
        house.store.close();
        if refusal {
            assert_eq!(refused(&path), Some(Reason::NewerSchema), "{key}");
        } else {
            SqliteStore::open(&path, "test", OpenMode::existing()).unwrap().write_canary("test").unwrap();
        }
    }
}

#[test]
fn a_database_of_another_program_is_not_taken_over() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("state.db");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE sessions(id TEXT)").unwrap();
    assert_eq!(refused(&path), Some(Reason::OtherApplication));
    let plain = Connection::open(&path).unwrap();
    let tables: i64 = plain.query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get(0)).unwrap();
    assert_eq!(tables, 1);
}

#[test]
fn the_file_keeps_its_own_rules() {
    let house = House::new();
    let id = house.session();
    house.say(id, "x");
    let plain = Connection::open(house.path()).unwrap();
    plain.pragma_update(None, "foreign_keys", true).unwrap();
    for bad in [
        "DELETE FROM session",
        "UPDATE message SET role = 'robot'",
        "UPDATE message SET session_id = zeroblob(16)",
        "INSERT INTO message SELECT NULL, randomblob(16), session_id, seq, role, 0, '', NULL, NULL, NULL, NULL, NULL FROM message",
        "UPDATE session SET id = 'text'",
    ] {
        assert!(plain.execute(bad, []).is_err(), "{bad}");
    }
}
