//! Rows of a log that fit no table, put where a person can look at them: a table of the new file.

use rusqlite::{Connection, params_from_iter};

use super::error::Result;
use super::probe::cells;
use super::schema::Table;
use crate::maintenance::quoted;

/// Copies a table of rows without a place, under its own name, into a database that has none of that name. Returns how many.
pub(super) fn keep(writer: &Connection, rows: &Connection, table: &Table) -> Result<u64> {
    let name = quoted(&table.stored);
    let columns: Vec<String> = table.columns.iter().map(|c| quoted(&c.stored)).collect();
    let columns = columns.join(", ");
    writer.execute_batch(&format!("CREATE TABLE IF NOT EXISTS main.{name}({columns})"))?;
    let holes = vec!["?"; table.columns.len()].join(", ");
    let mut insert = writer.prepare(&format!("INSERT INTO main.{name}({columns}) VALUES ({holes})"))?;
    let mut all = rows.prepare(&format!("SELECT {columns} FROM {name}"))?;
    let mut all = all.query([])?;
    let mut n = 0;
    while let Some(row) = all.next()? {
        insert.execute(params_from_iter(cells(row, 0, table.columns.len())?))?;
        n += 1;
    }
    Ok(n)
}
