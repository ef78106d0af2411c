//! `PRAGMA optimize` for the planner's statistics, and the merging of search indexes.
//!
//! Each step is a transaction that is rolled back if it changes how many rows there are. An index is only merged where this
//! SQLite has everything that made it (the module and its tokenizer); it is never rebuilt: one that keeps no content of its own
//! would be empty after that.

use std::path::Path;
use std::time::Instant;

use rusqlite::Connection;
use serde::Serialize;
use statehouse_sqlite::{Error as DatabaseError, Member};

use super::error::{Error, Result};
use super::room::{Room, Temporary};
use super::whole::{self, Rows};
use super::{Admission, Forecast, Look, Pages, Plan, Step, Wanted, Watch, checkpoint, ms, quoted, size};

/// How many rows of an index are looked at for its statistics.
const ANALYSIS_LIMIT: u32 = 1000;

/// The answer of `optimize`.
#[derive(Debug, Serialize)]
pub struct Optimized {
    /// The main file.
    pub path: String,
    /// Always true.
    pub done: bool,
    /// What SQLite wanted to do for its statistics, as it says it.
    pub statistics: Vec<String>,
    /// The search indexes.
    pub search_indexes: Vec<SearchIndex>,
    /// Bytes of the main file before.
    pub size_before: u64,
    /// Bytes of the main file after.
    pub size_after: u64,
    /// How long it took.
    pub ms: f64,
    /// What `--force` went on beside.
    pub overridden: Vec<String>,
}

/// A search index.
#[derive(Debug, Serialize)]
pub struct SearchIndex {
    /// Its name.
    pub name: String,
    /// True if it was merged, or would be.
    pub done: bool,
    /// Why not.
    pub reason: Option<String>,
}

/// What it would be about.
#[derive(Debug, Serialize)]
pub struct About {
    /// How the pages are used.
    #[serde(flatten)]
    pub pages: Pages,
}

/// What would be done, and what would refuse it.
pub fn plan(look: &Look, forecast: Forecast) -> Plan<About> {
    let would = "refresh the planner's statistics and merge the search indexes that this SQLite can read";
    Plan::new(look, would, About { pages: look.pages() }, forecast, None)
}

/// Everything from the look to the answer.
///
/// # Errors
/// What refuses it, with nothing done; or what went wrong.
pub fn run(path: &Path, wanted: &Wanted<'_>, watch: Watch<'_>) -> Result<Optimized> {
    let seen = super::look(path)?;
    super::refuse_first(seen.family(), wanted)?;
    optimize(&Admission::obtain(seen.family(), wanted)?, watch)
}

/// Does it.
///
/// # Errors
/// [`Error::Unsound`], [`Error::NoRoom`] with nothing changed; [`Error::Undone`]; or SQLite's answer.
pub fn optimize(admission: &Admission, watch: Watch<'_>) -> Result<Optimized> {
    let begun = Instant::now();
    let (family, connection) = (admission.family(), admission.connection());
    connection.pragma_update(None, "trusted_schema", 0)?;
    let wal = checkpoint::empty_the_log(admission, watch)?;
    let size_before = size(family, Member::Main)?;
    watch(Step::Checking);
    whole::require(connection, &family.main())?;
    watch(Step::Counting);
    let mut search_indexes = Vec::new();
    for (name, module) in virtual_tables(connection)? {
        watch(Step::Merging);
        let reason = match unfit(connection, &name, &module)? {
            Some(reason) => Some(reason),
            None => {
                let pages = Pages { page_size: 1, pages: bytes_of(connection, &name)?, free: 0 };
                Room::find(family, pages, wal, 0, &Temporary::default())?;
                merge(connection, &name)?;
                None
            }
        };
        search_indexes.push(SearchIndex { name, done: reason.is_none(), reason });
    }
    let statistics = statistics(connection)?;
    match checkpoint::empty_the_log(admission, watch) {
        // It is done, and a reader that force went on beside keeps the log for a while.
        Ok(_) | Err(Error::Database(DatabaseError::Busy { .. })) => {}
        Err(e) => return Err(e),
    }
    Ok(Optimized {
        path: family.main().to_string_lossy().into_owned(),
        done: true,
        statistics,
        search_indexes,
        size_before,
        size_after: size(family, Member::Main)?,
        ms: ms(begun),
        overridden: admission.overridden().to_vec(),
    })
}

fn statistics(connection: &Connection) -> statehouse_sqlite::Result<Vec<String>> {
    connection.pragma_update(None, "analysis_limit", ANALYSIS_LIMIT)?;
    // First what it would do (bit 0), then the same. The high bit asks for tables that were never analysed, too.
    let would = lines(connection, "PRAGMA optimize = 0x10003")?;
    lines(connection, "PRAGMA optimize = 0x10002")?;
    Ok(would)
}

fn lines(connection: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([], |r| r.get(0))?;
    rows.collect()
}

/// Virtual tables and their modules.
fn virtual_tables(connection: &Connection) -> Result<Vec<(String, String)>> {
    let mut statement = connection.prepare(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND rootpage = 0 AND sql IS NOT NULL ORDER BY name",
    )?;
    let rows = statement.query_map([], |r| Ok((r.get::<_, String>(0)?, r.get::<_, String>(1)?)))?;
    let mut found = Vec::new();
    for row in rows {
        let (name, sql) = row?;
        let head = sql.split('(').next().unwrap_or_default();
        let module = head.split_whitespace().next_back().unwrap_or_default().to_ascii_lowercase();
        if module.starts_with("fts") {
            found.push((name, module));
        }
    }
    Ok(found)
}

/// Why this SQLite may not merge an index; `None` if it may.
fn unfit(connection: &Connection, name: &str, module: &str) -> Result<Option<String>> {
    if module != "fts5" {
        return Ok(Some(format!("only FTS5 indexes are merged, and this one is {module}")));
    }
    // A query of a word connects the module, reads the format of the index, and needs the tokenizer.
    let table = quoted(name);
    match connection.prepare(&format!("SELECT rowid FROM {table} WHERE {table} MATCH 'a' LIMIT 1")).and_then(|mut s| {
        let mut rows = s.query([])?;
        rows.next().map(drop)
    }) {
        Ok(()) => Ok(None),
        Err(rusqlite::Error::SqliteFailure(e, text)) if e.code == rusqlite::ErrorCode::Unknown => {
            let text = text.unwrap_or_else(|| e.to_string());
            Ok(Some(format!("this SQLite cannot read it: {text}")))
        }
        Err(e) => Err(e.into()),
    }
}

/// Bytes of the segments of an index, which a merge writes once more.
fn bytes_of(connection: &Connection, name: &str) -> Result<u64> {
    let table = quoted(&format!("{name}_data"));
    let bytes: i64 =
        connection.query_row(&format!("SELECT coalesce(sum(length(block)), 0) FROM {table}"), [], |r| r.get(0))?;
    Ok(bytes.unsigned_abs())
}

/// Merges an index in one transaction, and rolls it back if anything but its segments has other numbers of rows after it.
fn merge(connection: &Connection, name: &str) -> Result<()> {
    let segments = [format!("{name}_data"), format!("{name}_idx")];
    let count = || Rows::count(connection, |table| !segments.iter().any(|s| s == table));
    let work = || -> Result<()> {
        let before = count()?;
        let table = quoted(name);
        connection.execute_batch(&format!("INSERT INTO {table}({table}) VALUES('optimize')"))?;
        let found = before.differences(&count()?);
        if found.is_empty() { Ok(connection.execute_batch("COMMIT")?) } else { Err(Error::Undone { found }) }
    };
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let done = work();
    if done.is_err() && !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK")?;
    }
    done
}
