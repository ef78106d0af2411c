//! How the rows of two databases stand to each other, for whoever puts one in the place of the other.
//!
//! The comparison is that of `show`, without what only a merge must know: a row that one side has alone is that, whatever would
//! stand against bringing it to the other. A row that both know by its key and whose content is not the same is *different*: it
//! is as gone as one that only one side had, when the other takes its place.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::compare::{Comparison, Conflict, Counts, Landed, New, Sink, count};
use super::error::{Error, Result};
use super::pair::{Pair, pairs};
use super::rules::Rules;
use super::schema::Schema;
use super::virtuals::Holds;

/// One table in both.
#[derive(Debug, Default)]
pub(crate) struct Stand {
    /// Rows here; `None` without such a table.
    pub(crate) here: Option<u64>,
    /// Rows there; `None` without such a table.
    pub(crate) there: Option<u64>,
    /// How they stand; `None` where that could not be found out.
    pub(crate) rows: Option<Rows>,
    /// Why it could not be.
    pub(crate) not_compared: Option<String>,
    pub(crate) columns_only_here: Vec<String>,
    pub(crate) columns_only_there: Vec<String>,
}

/// Rows by where they are.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) only_here: u64,
    pub(crate) only_there: u64,
    pub(crate) different: u64,
}

/// All tables of both that hold rows of their own. Each side must be in one state all the time.
pub(crate) fn stand(here: &Connection, there: &Connection) -> Result<BTreeMap<String, Stand>> {
    let (mine, theirs) = (Schema::read(here)?, Schema::read(there)?);
    let mut all = BTreeMap::new();
    for name in names(&mine) {
        let mut stand = Stand::default();
        match tried(here, &name)? {
            Ok(n) => (stand.here, stand.rows) = (Some(n), Some(Rows { only_here: n, ..Rows::default() })),
            Err(why) => stand.not_compared = Some(why),
        }
        all.insert(name, stand);
    }
    for name in names(&theirs) {
        // SQLite tells names apart without their case.
        let known = all.keys().find(|n| n.eq_ignore_ascii_case(&name)).cloned().unwrap_or_else(|| name.clone());
        let is_here = all.contains_key(&known);
        let stand: &mut Stand = all.entry(known).or_default();
        stand.rows = None;
        match tried(there, &name)? {
            Ok(n) => {
                stand.there = Some(n);
                stand.rows = (!is_here).then_some(Rows { only_there: n, ..Rows::default() });
            }
            Err(why) => stand.not_compared = Some(why),
        }
    }
    let mut comparison = Comparison::new(here, there, &mine, &theirs, Rules::None).of_rows_alone();
    for pair in pairs(&mine, &theirs, Rules::None) {
        let Some(stand) = all.get_mut(&pair.name).filter(|s| s.here.is_some() && s.there.is_some()) else { continue };
        (stand.columns_only_here, stand.columns_only_there) = (pair.only_live.clone(), pair.only_theirs.clone());
        match compared(&mut comparison, &pair)? {
            Ok(counts) => {
                stand.rows = Some(Rows {
                    only_here: counts.only_here,
                    only_there: counts.missing + counts.renumbered,
                    different: counts.conflicting,
                });
            }
            Err(why) => stand.not_compared = Some(why),
        }
    }
    for stand in all.values_mut().filter(|s| s.rows.is_none()) {
        stand.not_compared.get_or_insert_with(|| "what it holds cannot be read here".to_owned());
    }
    Ok(all)
}

/// Rows of one table that may be beyond this SQLite.
fn compared(comparison: &mut Comparison<'_>, pair: &Pair) -> Result<std::result::Result<Counts, String>> {
    if let Some(why) = &pair.incomparable {
        return Ok(Err(why.clone()));
    }
    match comparison.table(pair, &mut Nothing) {
        Ok(counts) => Ok(Ok(counts)),
        // A collation, a function or a module of its program.
        Err(e) if is_unknown_here(&e) || (pair.is_virtual && e.may_be_of_a_module()) => Ok(Err(said(&e))),
        Err(e) => Err(e),
    }
}

fn is_unknown_here(e: &Error) -> bool {
    use crate::maintenance::Error as Work;
    let Error::Maintenance(Work::Database(statehouse_sqlite::Error::Sqlite(e))) = e else { return false };
    e.sqlite_error_code() == Some(rusqlite::ErrorCode::Unknown)
}

/// The tables that hold rows of their own, as the database writes their names.
fn names(schema: &Schema) -> Vec<String> {
    let own = schema.virtuals.values().filter(|v| matches!(v.holds, Holds::Rows(_) | Holds::Unread { .. }));
    schema.tables.values().map(|t| t.name.clone()).chain(own.map(|v| v.name.clone())).collect()
}

/// How many rows a table has, or why it cannot be read here.
fn tried(connection: &Connection, name: &str) -> Result<std::result::Result<u64, String>> {
    match count(connection, name) {
        Err(e) if is_unknown_here(&e) => Ok(Err(said(&e))),
        counted => counted.map(Ok),
    }
}

/// How many rows a table has; `None` where it cannot be read here.
pub(crate) fn counted(connection: &Connection, name: &str) -> Result<Option<u64>> {
    Ok(tried(connection, name)?.ok())
}

/// What SQLite says.
fn said(e: &Error) -> String {
    match e.detail() {
        detail if detail.is_empty() => e.to_string(),
        detail => detail,
    }
}

/// Only the numbers are wanted.
struct Nothing;

impl Sink for Nothing {
    fn missing(&mut self, _: &Pair, _: &New<'_>) -> Result<Landed> {
        Ok(Landed::In)
    }

    fn conflict(&mut self, _: &Pair, _: &Conflict<'_>) -> Result<()> {
        Ok(())
    }
}
