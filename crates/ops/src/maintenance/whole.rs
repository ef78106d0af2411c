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
pub(crate) enum Closely {
    /// `PRAGMA quick_check`, which does not compare indexes with their tables.
    Quick,
    /// `PRAGMA integrity_check`.
    Full,
}

/// Refuses a database whose structure is damaged. What SQLite says of search indexes is not about the structure: tokenizers
/// differ between programs.
pub(crate) fn require(connection: &Connection, path: &Path) -> Result<()> {
    require_as(connection, path, Closely::Quick)
}

/// As [`require`], as closely as it is asked for.
pub(crate) fn require_as(connection: &Connection, path: &Path, closely: Closely) -> Result<()> {
    let check = match closely {
        Closely::Quick => "quick_check",
        Closely::Full => "integrity_check",
    };
    let unsound = |found: String| Err(Error::Unsound { path: path.to_owned(), found });
    let found = match lines(connection, &format!("PRAGMA {check}(20)")) {
        // Some damage is met before the check could put it in words.
        Err(e) if is_damage(&e) => return unsound(e.to_string()),
        // A search index with a tokenizer that this SQLite does not have keeps it from looking at anything; the tables one by
        // one can be looked at.
        Err(rusqlite::Error::SqliteFailure(e, _)) if e.code == rusqlite::ErrorCode::Unknown => {
            let mut found = Vec::new();
            for table in tables(connection)? {
                match lines(connection, &format!("PRAGMA {check}({})", quoted(&table))) {
                    Err(e) if is_damage(&e) => return unsound(format!("{table}: {e}")),
                    lines => found.extend(lines?),
                }
            }
            found
        }
        other => other?,
    };
    let found: Vec<String> = found.into_iter().filter(|l| l != "ok" && !is_of_search_index(l)).collect();
    if found.is_empty() {
        return Ok(());
    }
    unsound(found.join("; "))
}

fn is_damage(e: &rusqlite::Error) -> bool {
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

    /// The numbers by table.
    pub(crate) fn by_table(&self) -> &BTreeMap<String, i64> {
        &self.0
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
