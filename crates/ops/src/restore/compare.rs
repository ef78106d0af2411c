//! What is replaced: table by table the rows that only one of the two has and those that are different, and how the schemas
//! differ.
//!
//! Rows are told apart by key and compared by content, as `statehouse retired show` does it. A row that was changed since a
//! snapshot is as gone after a restore as one that was added, so both are told.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use serde::Serialize;
use statehouse_sqlite::words;

use super::error::Result;
use super::schema::{self, Change};
use crate::retired::stand;

/// How long a lock is waited for that somebody has for a moment.
const PATIENCE: Duration = Duration::from_secs(5);

/// One table in both.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Table {
    /// Rows in the database that is replaced; `null` where it has no such table or cannot be read.
    pub here: Option<i64>,
    /// Rows in the source; `null` where it has no such table.
    pub there: Option<i64>,
    /// Rows that only the database has; `null` where it cannot be told.
    pub only_here: Option<i64>,
    /// Rows that only the source has; `null` where it cannot be told.
    pub only_there: Option<i64>,
    /// Rows that both have and whose content is not the same; `null` where it cannot be told.
    pub different: Option<i64>,
    /// Columns that only the database has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns_only_here: Vec<String>,
    /// Columns that only the source has. Only columns that both have are compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns_only_there: Vec<String>,
    /// Why it was not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_compared: Option<String>,
}

/// All tables that programs made, by name.
pub type Tables = BTreeMap<String, Table>;

/// Two databases beside each other.
#[derive(Debug, Default)]
pub struct Compared {
    /// Their tables.
    pub tables: Tables,
    /// How their schemas differ.
    pub schema: Vec<Change>,
}

impl Compared {
    /// The tables that the database has.
    pub(crate) fn of_here(&self) -> Vec<String> {
        self.tables.iter().filter(|(_, t)| t.here.is_some()).map(|(name, _)| name.clone()).collect()
    }

    /// What the database has and the source does not, in words; `None` if that is nothing, and known to be nothing.
    pub(crate) fn lost(&self) -> Option<String> {
        let sum = |of: fn(&Table) -> Option<i64>| self.tables.values().filter_map(of).sum::<i64>().unsigned_abs();
        let (only, different) = (sum(|t| t.only_here), sum(|t| t.different));
        let mut lost = Vec::new();
        if only > 0 {
            let (was, is) = (words::verb(only, "was", "were"), words::verb(only, "is", "are"));
            lost.push(format!("{} {was} there before and {is} only in what was kept", words::count(only, "row")));
        }
        if different > 0 {
            let (was, they) = (words::verb(different, "was", "were"), words::verb(different, "it", "they"));
            let rows = words::count(different, "row");
            lost.push(format!("{rows} {was} different before, and what {they} held is only in what was kept"));
        }
        let schema: Vec<String> = self.schema.iter().filter(|c| c.is_replaced()).map(Change::sentence).collect();
        if !schema.is_empty() {
            lost.push(format!("the schema was another: {}", schema.join(", ")));
        }
        let unknown: Vec<&str> =
            self.tables.iter().filter(|(_, t)| t.not_compared.is_some()).map(|(n, _)| n.as_str()).collect();
        if !unknown.is_empty() {
            lost.push(format!("it is not known what only these tables had: {}", unknown.join(", ")));
        }
        (!lost.is_empty()).then(|| lost.join("; "))
    }
}

/// The tables that programs made, without those that search indexes keep for themselves.
pub(crate) fn tables(connection: &Connection, schema: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(
        "SELECT name FROM pragma_table_list WHERE schema = ?1 AND type IN ('table', 'virtual')
           AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name",
    )?;
    statement.query_map([schema], |r| r.get(0))?.collect()
}

/// Compares two databases that are named as [`statehouse_sqlite::uri`] does; `here` may be missing or beyond reading.
pub(crate) fn compare(here: Option<&str>, there: &str) -> Result<Compared> {
    let there = open(there)?;
    let Some(here) = here else {
        let mut compared = Compared::default();
        for name in tables(&there, "main")? {
            let rows = crate::retired::counted(&there, &name)?;
            compared.tables.insert(name, Table::of_source(rows));
        }
        return Ok(compared);
    };
    let here = open(here)?;
    let number = |n: Option<u64>| n.and_then(|n| i64::try_from(n).ok());
    let tables = stand(&here, &there)?.into_iter().map(|(name, s)| {
        let table = Table {
            here: number(s.here),
            there: number(s.there),
            only_here: number(s.rows.map(|r| r.only_here)),
            only_there: number(s.rows.map(|r| r.only_there)),
            different: number(s.rows.map(|r| r.different)),
            columns_only_here: s.columns_only_here,
            columns_only_there: s.columns_only_there,
            not_compared: s.not_compared,
        };
        (name, table)
    });
    let tables = tables.collect();
    let schema = schema::changes(&here, &there, &tables)?;
    Ok(Compared { tables, schema })
}

impl Table {
    fn of_source(rows: Option<u64>) -> Table {
        Table {
            here: None,
            there: rows.and_then(|n| i64::try_from(n).ok()),
            only_here: None,
            only_there: None,
            different: None,
            columns_only_here: Vec::new(),
            columns_only_there: Vec::new(),
            not_compared: None,
        }
    }
}

/// A connection that only reads, and in one state until it is closed.
fn open(uri: &str) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(uri, flags)?;
    connection.busy_timeout(PATIENCE)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "trusted_schema", 0)?;
    connection.execute_batch("BEGIN")?;
    Ok(connection)
}
