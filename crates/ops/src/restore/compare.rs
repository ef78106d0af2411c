//! What is replaced, table by table: rows here, rows in the source, and how many of those here the source does not have.
//!
//! Rows are told apart by primary key, or by rowid where a table has none. SQLite compares them, with its own
//! collations, by looking each key up in the other's index; nothing is kept in memory.

use std::collections::BTreeMap;

use rusqlite::{Connection, OpenFlags};
use serde::Serialize;

use super::error::Result;
use crate::maintenance::quoted;

/// One table in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Rows in the database that is replaced; `null` where it has no such table or cannot be read.
    pub here: Option<i64>,
    /// Rows in the source; `null` where it has no such table.
    pub there: Option<i64>,
    /// Rows here whose key the source does not have; `null` where it cannot be told.
    pub only_here: Option<i64>,
}

/// All tables that programs made, by name.
pub type Tables = BTreeMap<String, Table>;

/// The tables that programs made, without those that search indexes keep for themselves.
pub(crate) fn tables(connection: &Connection, schema: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(
        "SELECT name FROM pragma_table_list WHERE schema = ?1 AND type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name",
    )?;
    statement.query_map([schema], |r| r.get(0))?.collect()
}

/// Compares two databases that are named as [`statehouse_sqlite::uri`] does; `here` may be missing or beyond reading.
pub(crate) fn compare(here: Option<&str>, there: &str) -> Result<Tables> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_in_memory_with_flags(flags)?;
    connection.pragma_update(None, "trusted_schema", 0)?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    connection.execute("ATTACH ?1 AS there", [there])?;
    let mut found = Tables::new();
    for name in tables(&connection, "there")? {
        let rows = count(&connection, "there", &name)?;
        found.insert(name, Table { here: None, there: Some(rows), only_here: None });
    }
    let Some(here) = here else { return Ok(found) };
    connection.execute("ATTACH ?1 AS here", [here])?;
    for name in tables(&connection, "here")? {
        let rows = count(&connection, "here", &name)?;
        let table = found.entry(name.clone()).or_insert(Table { here: None, there: None, only_here: None });
        table.here = Some(rows);
        table.only_here = match table.there {
            None => Some(rows),
            Some(_) => only_here(&connection, &name)?,
        };
    }
    Ok(found)
}

fn count(connection: &Connection, schema: &str, table: &str) -> rusqlite::Result<i64> {
    connection.query_row(&format!("SELECT count(*) FROM {schema}.{}", quoted(table)), [], |r| r.get(0))
}

fn only_here(connection: &Connection, table: &str) -> rusqlite::Result<Option<i64>> {
    let key = match key(connection, "here", table)? {
        Some(key) if key.is_empty() => vec!["rowid".to_owned()],
        Some(key) if key_fits(connection, table, &key)? => key,
        _ => return Ok(None),
    };
    let same: Vec<String> = key.iter().map(|c| format!("t.{0} IS h.{0}", quoted(c))).collect();
    let table = quoted(table);
    let sql = format!(
        "SELECT count(*) FROM here.{table} AS h WHERE NOT EXISTS (SELECT 1 FROM there.{table} AS t WHERE {})",
        same.join(" AND ")
    );
    connection.query_row(&sql, [], |r| r.get(0)).map(Some)
}

/// The columns of the primary key in their order; empty for a table that has rowids alone, `None` where a column hides those.
fn key(connection: &Connection, schema: &str, table: &str) -> rusqlite::Result<Option<Vec<String>>> {
    let mut statement = connection.prepare("SELECT name, pk FROM pragma_table_info(?1, ?2) ORDER BY pk, cid")?;
    let columns: Vec<(String, i64)> =
        statement.query_map([table, schema], |r| Ok((r.get(0)?, r.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
    let key: Vec<String> = columns.iter().filter(|(_, pk)| *pk > 0).map(|(name, _)| name.clone()).collect();
    let hidden = key.is_empty() && columns.iter().any(|(name, _)| name.eq_ignore_ascii_case("rowid"));
    Ok((!hidden).then_some(key))
}

/// True if the other has the same key, so that each row is looked up by an index.
fn key_fits(connection: &Connection, table: &str, wanted: &[String]) -> rusqlite::Result<bool> {
    Ok(key(connection, "there", table)?.as_deref() == Some(wanted))
}
