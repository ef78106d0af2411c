//! The schema and how it moves forward.
//!
//! Migrations are numbered and never change once released; each leaves a row in the ledger `migration`. `meta` says
//! which is the oldest program that may read the store (`min_reader`) and write it (`min_writer`), so an old program
//! refuses a store that it would damage, and goes on using one that only gained something it can ignore.
//! A settled store is opened with reads alone: [`Schema::current`] answers yes and nothing else happens.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rusqlite::{Connection, OptionalExtension, params};
use statehouse_sqlite::{Error, Failure, Reason, Result, Schema};

use super::inventory;
use crate::types::Micros;

/// What the header of our databases carries as `application_id`: the letters `StHs`.
pub const APPLICATION_ID: i32 = 0x5374_4873;

/// The schema that this program writes.
pub const SCHEMA: i64 = 1;

struct Step {
    number: i64,
    name: &'static str,
    sql: &'static str,
    /// The oldest schema whose programs may still read, and write, the store after this step.
    min_reader: i64,
    min_writer: i64,
}

const STEPS: &[Step] = &[Step {
    number: 1,
    name: "conversations, turns and jobs",
    sql: include_str!("schema_1.sql"),
    min_reader: 1,
    min_writer: 1,
}];

/// Tells the database layer how to keep this store's schema and how to merge a retired generation of it.
#[derive(Debug, Clone, Copy, Default)]
pub struct SessionsSchema;

struct Versions {
    schema: i64,
    min_reader: i64,
    min_writer: i64,
}

fn meta(connection: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    connection.query_row("SELECT value FROM meta WHERE key = ?1", [key], |r| r.get(0)).optional()
}

/// `None` when the database has no tables yet.
fn versions(connection: &Connection) -> Result<Option<Versions>> {
    let (tables, ours): (i64, i64) = connection.query_row(
        "SELECT count(*), count(*) FILTER (WHERE name IN ('meta', 'migration')) FROM sqlite_schema WHERE type = 'table'",
        [],
        |r| Ok((r.get(0)?, r.get(1)?)),
    )?;
    if tables == 0 {
        return Ok(None);
    }
    let path = connection.path().map(PathBuf::from).unwrap_or_default();
    let foreign = |detail: &str| Error::refused(Reason::OtherApplication, &path, detail);
    if ours != 2 {
        return Err(foreign("it has tables, and not those of a store of conversations"));
    }
    let number = |key: &str| -> Result<i64> {
        meta(connection, key)?
            .and_then(|v| v.parse().ok())
            .ok_or_else(|| foreign(&format!("its table meta has no number under {key}")))
    };
    Ok(Some(Versions {
        schema: number("schema")?,
        min_reader: number("min_reader")?,
        min_writer: number("min_writer")?,
    }))
}

fn newer(connection: &Connection, what: &str, needs: i64, found: i64) -> Error {
    Error::refused(
        Reason::NewerSchema,
        connection.path().map(PathBuf::from).unwrap_or_default(),
        format!("it has schema {found}, {what} needs a program for schema {needs}, and this one is for {SCHEMA}"),
    )
}

/// Refuses a store that this program must not even read.
///
/// # Errors
/// [`Reason::NewerSchema`], or SQLite's error.
pub fn may_read(connection: &Connection) -> Result<()> {
    match versions(connection)? {
        Some(v) if v.min_reader > SCHEMA => Err(newer(connection, "reading", v.min_reader, v.schema)),
        _ => Ok(()),
    }
}

impl Schema for SessionsSchema {
    fn current(&self, connection: &Connection) -> Result<bool> {
        match versions(connection)? {
            None => Ok(false),
            Some(v) if v.min_reader > SCHEMA => Err(newer(connection, "reading", v.min_reader, v.schema)),
            Some(v) if v.min_writer > SCHEMA => Err(newer(connection, "writing", v.min_writer, v.schema)),
            Some(v) => Ok(v.schema >= SCHEMA),
        }
    }

    fn migrate(&self, transaction: &Connection) -> Result<(), Failure> {
        // Another process may have migrated, even to a newer schema, before this one got its turn.
        if self.current(transaction).map_err(Failure::abort)? {
            return Ok(());
        }
        let from = versions(transaction).map_err(Failure::abort)?.map_or(0, |v| v.schema);
        let now = Micros::now();
        for step in STEPS.iter().filter(|s| s.number > from) {
            transaction.execute_batch(step.sql)?;
            let program = concat!("statehouse ", env!("CARGO_PKG_VERSION"));
            transaction.execute(
                "INSERT INTO migration(step, name, program, applied_at) VALUES (?1, ?2, ?3, ?4)",
                params![step.number, step.name, program, now.0],
            )?;
            for (key, value) in
                [("schema", step.number), ("min_reader", step.min_reader), ("min_writer", step.min_writer)]
            {
                set_meta(transaction, key, &value.to_string())?;
            }
        }
        if from == 0 {
            set_meta(transaction, "store_id", &uuid::Uuid::now_v7().hyphenated().to_string())?;
            set_meta(transaction, "created_at", &now.0.to_string())?;
        }
        Ok(())
    }

    fn merge(&self, transaction: &Connection, retired: &Connection) -> Result<u64, Failure> {
        super::merge::merge(transaction, retired)
    }

    fn adopt(&self, transaction: &Connection) -> Result<(), Failure> {
        super::merge::adopt(transaction)
    }

    fn inventory(&self, image: &Connection) -> Result<BTreeMap<String, u64>> {
        inventory::of(image)
    }

    fn missing(&self, database: &Connection, expected: &BTreeMap<String, u64>) -> Result<Vec<String>> {
        inventory::missing(database, expected)
    }
}

fn set_meta(transaction: &Connection, key: &str, value: &str) -> rusqlite::Result<()> {
    transaction
        .execute(
            "INSERT INTO meta(key, value) VALUES (?1, ?2) ON CONFLICT(key) DO UPDATE SET value = excluded.value",
            [key, value],
        )
        .map(drop)
}
