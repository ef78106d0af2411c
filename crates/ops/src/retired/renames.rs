//! Tables and columns that have another name in the database than in the capture.
//!
//! SQLite renames in place: the table keeps its first page, and its columns keep their places and types. That alone is no proof, for the
//! first page of a table that was dropped is given to the next one. So rows are looked at as well: one that both sides have, under
//! the same key and with the same content in every place, shows that the two are one table. Then what the capture has is
//! compared and brought back under the name that it has here.
//!
//! Where it looks like a rename and that cannot be shown, nothing is brought back: a row that is put in without the values of a
//! column, or into a second table, is worse than one that is still where it was. Its rows are listed with the reason.

use std::collections::BTreeMap;

use rusqlite::Connection;

use super::cell::same;
use super::error::Result;
use super::schema::{Column, Key, Schema, Table};
use super::source::Source;
use crate::maintenance::quoted;

/// How many rows are looked at for one that both sides have.
const LOOKED_AT: u32 = 100_000;

/// Reads what one part of a capture says of its tables, under the names that these have in the database `live`.
pub(super) fn read(live: &Connection, schema: &Schema, source: &Source, rows: &Connection) -> Result<Schema> {
    let mut theirs = Schema::read(rows)?;
    // In a file that a salvage has made they begin elsewhere.
    let roots = source.roots()?;
    for (name, table) in &mut theirs.tables {
        table.root = roots.get(name).copied().unwrap_or(0);
    }
    let first: &Connection = source;
    let mut moved = Vec::new();
    for (lower, table) in &mut theirs.tables {
        if let Some(here) = schema.tables.get(lower) {
            columns(live, first, table, here)?;
        } else {
            moved.push(lower.clone());
        }
    }
    for lower in moved {
        let Some(mut table) = theirs.tables.remove(&lower) else { continue };
        // What a module keeps moves with its module.
        let is_own = schema.may_be_kept_by(&lower).is_none() && theirs.may_be_kept_by(&lower).is_none();
        let free = schema.tables.iter().filter(|(name, _)| is_own && !theirs.tables.contains_key(*name));
        let alike: Vec<(&String, &Table)> = free.filter(|(_, here)| is_of_one_shape(&table, here)).collect();
        let mut to = lower.clone();
        for (name, here) in alike {
            if !share_a_row(live, first, &table, here)? {
                continue;
            }
            if table.root != 0 && table.root == here.root {
                table.under(here);
                to.clone_from(name);
                break;
            }
            table.aside = Some(format!(
                "the database has no table {}, and its table {} has the same columns and some of the same rows: it may be this one under \
                 another name, which cannot be shown",
                table.stored, here.name
            ));
        }
        theirs.tables.insert(to, table);
    }
    Ok(theirs)
}

/// Gives the columns of a table the names that they have here, if that is shown; says why its rows are kept aside, if it may be so.
fn columns(live: &Connection, first: &Connection, table: &mut Table, here: &Table) -> Result<()> {
    let only_theirs: Vec<&Column> = table.columns.iter().filter(|c| !here.has(&c.name)).collect();
    let only_here: Vec<&Column> = here.columns.iter().filter(|c| !table.has(&c.name)).collect();
    // A column that was renamed has the type that it had.
    if !only_theirs.iter().any(|a| only_here.iter().any(|b| a.kind.eq_ignore_ascii_case(&b.kind))) {
        return Ok(());
    }
    let names = |of: &[&Column]| of.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(", ");
    let (only_theirs, only_here) = (names(&only_theirs), names(&only_here));
    let one = table.root != 0 && table.root == here.root && is_of_one_shape(table, here);
    if one && (is_empty(live, &here.name)? || share_a_row(live, first, table, here)?) {
        table.under(here);
        return Ok(());
    }
    table.aside = Some(format!(
        "the capture alone has {only_theirs} and the database alone has {only_here}: these may be the same under other names, which \
         cannot be shown"
    ));
    Ok(())
}

/// True if the columns of `theirs` are, one after the other, those with which `here` begins, whatever their names.
fn is_of_one_shape(theirs: &Table, here: &Table) -> bool {
    let place = |table: &Table, name: &str| table.columns.iter().position(|c| c.name.eq_ignore_ascii_case(name));
    let same_key = match (&theirs.key, &here.key) {
        (Key::None, Key::None) => true,
        (Key::Number(a), Key::Number(b)) => place(theirs, a) == place(here, b),
        (Key::Columns(a), Key::Columns(b)) => {
            let places = |table: &Table, key: &[(String, String)]| -> Vec<(Option<usize>, String)> {
                key.iter().map(|(name, collation)| (place(table, name), collation.to_ascii_lowercase())).collect()
            };
            places(theirs, a) == places(here, b)
        }
        _ => false,
    };
    let both = theirs.columns.iter().zip(&here.columns);
    let same_types = both.clone().all(|(a, b)| a.kind.eq_ignore_ascii_case(&b.kind));
    same_key && same_types && both.count() == theirs.columns.len() && theirs.rowid.is_some() == here.rowid.is_some()
}

fn is_empty(connection: &Connection, table: &str) -> Result<bool> {
    let sql = format!("SELECT NOT EXISTS (SELECT 1 FROM {})", quoted(table));
    Ok(connection.query_row(&sql, [], |r| r.get(0))?)
}

/// True if a row is in both under the same number or key, with the same content in every place.
fn share_a_row(live: &Connection, theirs: &Connection, table: &Table, here: &Table) -> Result<bool> {
    let key = |table: &Table| -> Vec<String> {
        match (&table.rowid, &table.key) {
            (Some(rowid), _) => vec![rowid.clone()],
            (None, Key::Columns(columns)) => {
                columns.iter().map(|(name, _)| quoted(table.stored_column(name))).collect()
            }
            (None, _) => Vec::new(),
        }
    };
    let (their_key, our_key) = (key(table), key(here));
    if their_key.is_empty() || their_key.len() != our_key.len() {
        return Ok(false);
    }
    let list = |key: &[String], table: &Table| -> String {
        let columns = table.columns.iter().map(|c| quoted(&c.stored));
        key.iter().cloned().chain(columns).collect::<Vec<_>>().join(", ")
    };
    // What is not in the first part, which a log that lacks its image may not have, shows nothing.
    let sql = format!("SELECT {} FROM {} LIMIT {LOOKED_AT}", list(&their_key, table), quoted(&table.stored));
    let Ok(mut all) = theirs.prepare(&sql) else { return Ok(false) };
    let terms: Vec<String> = our_key.iter().enumerate().map(|(n, term)| format!("{term} IS ?{}", n + 1)).collect();
    let sql = format!("SELECT {} FROM {} WHERE {}", list(&our_key, here), quoted(&here.stored), terms.join(" AND "));
    let mut find = live.prepare(&sql)?;
    let mut rows = all.query([])?;
    while let Some(row) = rows.next()? {
        for n in 0..their_key.len() {
            find.raw_bind_parameter(n + 1, super::cell::Cell::from(row.get_ref(n)?))?;
        }
        let mut found = find.raw_query();
        if let Some(ours) = found.next()? {
            let mut all = 0..their_key.len() + table.columns.len();
            if all.all(|n| matches!((row.get_ref(n), ours.get_ref(n)), (Ok(a), Ok(b)) if same(a, b))) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

impl Table {
    /// The name under which a column is stored on its own side.
    pub(super) fn stored_column<'a>(&'a self, name: &'a str) -> &'a str {
        let found = self.columns.iter().find(|c| c.name.eq_ignore_ascii_case(name));
        found.map_or(name, |c| &c.stored)
    }

    /// Takes the names of the table that it is here.
    fn under(&mut self, here: &Table) {
        let new: BTreeMap<String, String> = self
            .columns
            .iter()
            .zip(&here.columns)
            .map(|(own, here)| (own.name.to_ascii_lowercase(), here.name.clone()))
            .collect();
        let rename = |name: &mut String| {
            if let Some(new) = new.get(&name.to_ascii_lowercase()) {
                name.clone_from(new);
            }
        };
        for column in &mut self.columns {
            rename(&mut column.name);
        }
        match &mut self.key {
            Key::None => {}
            Key::Number(column) => rename(column),
            Key::Columns(columns) => columns.iter_mut().for_each(|(column, _)| rename(column)),
        }
        self.name.clone_from(&here.name);
    }
}
