//! Whether a database is whole before it is rewritten, and whether it holds as much after.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::fallible_iterator::FallibleIterator as _;

use super::error::{Error, Result};
use super::quoted;
use crate::verify::is_of_search_index;

/// How closely a structure is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// The trees of pages (`PRAGMA quick_check`).
    Quick,
    /// Also that every index has exactly the rows of its table (`PRAGMA integrity_check`).
    Full,
}

impl Depth {
    fn pragma(self, argument: &str) -> String {
        let name = match self {
            Depth::Quick => "quick_check",
            Depth::Full => "integrity_check",
        };
        format!("PRAGMA {name}({argument})")
    }
}

/// Refuses a database whose structure is damaged. What SQLite says of search indexes is not about the structure: tokenizers
/// differ between programs.
pub(crate) fn require(connection: &Connection, path: &Path) -> Result<()> {
    require_as(connection, path, Depth::Quick)
}

/// As [`require`], as closely as it is asked for.
pub(crate) fn require_as(connection: &Connection, path: &Path, depth: Depth) -> Result<()> {
    let found: Vec<String> = faults(connection, depth, 20)?.into_iter().filter(|l| !is_of_search_index(l)).collect();
    if found.is_empty() {
        return Ok(());
    }
    Err(Error::Unsound { path: path.to_owned(), found: found.join("; ") })
}

/// What a check of the structure finds, at most `most` lines of it; empty if there is nothing. Damage that is met before the
/// check could put it in words is among it.
pub(crate) fn faults(connection: &Connection, depth: Depth, most: u32) -> rusqlite::Result<Vec<String>> {
    let mut found = Vec::new();
    match lines(connection, &depth.pragma(&most.to_string())) {
        Ok(lines) => found = lines,
        Err(e) if is_damage(&e) => found.push(e.to_string()),
        // A search index with a tokenizer that this SQLite does not have keeps it from looking at anything; the tables one by
        // one can be looked at.
        Err(rusqlite::Error::SqliteFailure(e, _)) if e.code == rusqlite::ErrorCode::Unknown => {
            for table in tables(connection)? {
                match lines(connection, &depth.pragma(&quoted(&table))) {
                    Ok(lines) => found.extend(lines),
                    Err(e) if is_damage(&e) => found.push(format!("{table}: {e}")),
                    Err(e) => return Err(e),
                }
            }
        }
        Err(e) => return Err(e),
    }
    found.retain(|line| line != "ok");
    Ok(found)
}

pub(crate) fn is_damage(e: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    matches!(e.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
}

fn lines(connection: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(sql)?;
    statement.query([])?.map(|r| r.get(0)).collect()
}

/// The tables that have pages of their own; those of search indexes are among them.
fn tables(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    lines(connection, "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 ORDER BY name")
}

/// How many rows each table has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rows(BTreeMap<String, i64>);

impl Rows {
    /// Counts the rows of every table that `wanted` names.
    pub(crate) fn count(connection: &Connection, wanted: impl Fn(&str) -> bool) -> Result<Rows> {
        let mut rows = BTreeMap::new();
        let objects = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get(0))?;
        rows.insert("sqlite_schema".to_owned(), objects);
        for table in tables(connection)?.into_iter().filter(|t| wanted(t)) {
            let n = connection.query_row(&format!("SELECT count(*) FROM {}", quoted(&table)), [], |r| r.get(0))?;
            rows.insert(table, n);
        }
        Ok(Rows(rows))
    }

    /// The numbers of the tables that programs made, by name.
    pub(crate) fn of_programs(self) -> BTreeMap<String, i64> {
        self.0.into_iter().filter(|(name, _)| !name.starts_with("sqlite_")).collect()
    }

    /// What is different in `after`; empty if nothing is.
    pub(crate) fn differences(&self, after: &Rows) -> String {
        let of = |rows: &Rows, name: &str| rows.0.get(name).map_or_else(|| "none".to_owned(), i64::to_string);
        let names: std::collections::BTreeSet<&String> = self.0.keys().chain(after.0.keys()).collect();
        let differing = names.into_iter().filter(|n| self.0.get(*n) != after.0.get(*n));
        differing
            .map(|n| format!("{n}: {} rows before, {} after", of(self, n), of(after, n)))
            .collect::<Vec<_>>()
            .join("; ")
    }
}
