//! What is proved of a merge before it is committed, and after it: nothing refers to what is not there, and no row that was to come is
//! missing.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Connection;
use statehouse_sqlite::words::{count as count_of, verb};

use super::compare::Comparison;
use super::error::{Error, Result};
use super::live::Reading;
use super::pair::{Pair, pairs};
use super::renames;
use super::rules::Rules;
use super::schema::Schema;
use super::show::{Asked, Listing};
use super::source::Source;
use crate::maintenance::quoted;
use crate::progress::Progress;

/// Rows that refer to nothing, by table, parent and reference.
pub(super) struct Dangling(BTreeMap<(String, String, i64), u64>);

impl Dangling {
    pub(super) fn count(connection: &Connection, tables: &[&Pair]) -> Result<Dangling> {
        let mut found = BTreeMap::new();
        let referring = tables.iter().filter(|p| !p.live.as_ref().unwrap_or(&p.theirs).references.is_empty());
        for pair in referring {
            let sql = format!("PRAGMA foreign_key_check({})", quoted(&pair.name));
            // A reference that does not fit its parent is a fault of the schema that nobody can violate.
            let Ok(mut check) = connection.prepare(&sql) else { continue };
            let mut rows = check.query([])?;
            loop {
                match rows.next() {
                    Ok(Some(row)) => *found.entry((row.get(0)?, row.get(2)?, row.get(3)?)).or_default() += 1,
                    Ok(None) => break,
                    Err(e) if e.to_string().contains("foreign key mismatch") => break,
                    Err(e) => return Err(e.into()),
                }
            }
        }
        Ok(Dangling(found))
    }

    pub(super) fn compare(&self, after: &Dangling) -> Result<()> {
        let more: Vec<String> = after
            .0
            .iter()
            .filter(|(of, n)| self.0.get(of).unwrap_or(&0) < n)
            .map(|((table, parent, _), n)| {
                let refer = verb(*n, "refers", "refer");
                format!("{} of {table} {refer} to rows of {parent} that are not there", count_of(*n, "row"))
            })
            .collect();
        if more.is_empty() { Ok(()) } else { Err(Error::Dangling { found: more.join("; ") }) }
    }
}

/// How many rows of the tables that were written are missing, beyond those that a table refused.
fn still_missing(
    live: &Connection,
    source: &Source,
    brought: &BTreeMap<String, u64>,
    refused: &BTreeMap<String, u64>,
) -> Result<Vec<String>> {
    let schema = Schema::read(live)?;
    let rules = Rules::of(&schema);
    let mut missing: BTreeMap<String, u64> = BTreeMap::new();
    for rows in source.parts() {
        let theirs = renames::read(live, &schema, source, rows)?;
        let mut again = Comparison::new(live, rows, &schema, &theirs, rules);
        for pair in pairs(&schema, &theirs, rules).iter().filter(|p| brought.contains_key(&p.name)) {
            // What a trigger has taken away again was wanted so.
            if pair.live.as_ref().is_none_or(|t| t.triggers > 0) {
                continue;
            }
            let counts = match again.table(pair, &mut Listing { rows: None }) {
                // It is named as one that was not compared.
                Err(e) if pair.is_virtual && e.may_be_of_a_module() => continue,
                counts => counts?,
            };
            *missing.entry(pair.name.clone()).or_default() += counts.missing + counts.renumbered;
        }
    }
    let beyond = |table: &str, n: u64| n.saturating_sub(refused.get(table).copied().unwrap_or(0));
    let found = missing.iter().map(|(table, n)| (table, beyond(table, *n))).filter(|(_, n)| *n > 0);
    Ok(found.map(|(table, n)| format!("{table}: {} {} missing", count_of(n, "row"), verb(n, "is", "are"))).collect())
}

/// Fails if a row is missing that was to come.
pub(super) fn missing_now(
    writer: &Connection,
    source: &Source,
    brought: &BTreeMap<String, u64>,
    refused: &BTreeMap<String, u64>,
) -> Result<()> {
    let found = still_missing(writer, source, brought, refused)?;
    if found.is_empty() { Ok(()) } else { Err(Error::Miscounted { found: found.join("; ") }) }
}

/// A fresh connection reads what was written.
pub(super) fn read_back(
    path: &Path,
    source: &Source,
    brought: &BTreeMap<String, u64>,
    refused: &BTreeMap<String, u64>,
    asked: &Asked<'_>,
) -> Result<bool> {
    (asked.watch)(Progress::Begins { what: "reading back", bytes: None });
    let reading = Reading::open(path, asked.scratch, asked.patience)?;
    Ok(still_missing(&reading, source, brought, refused)?.is_empty())
}
