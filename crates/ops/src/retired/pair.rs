//! One table as both sides have it: what can be compared, by which key, and in which order tables are taken.

use std::collections::BTreeSet;

use super::rules::Rules;
use super::schema::{Key, Schema, Table};
use crate::maintenance::quoted;

/// A table of the capture with the same table of the database.
#[derive(Debug)]
pub(super) struct Pair {
    /// Its name, as the database writes it; the capture's, if the database has none.
    pub(super) name: String,
    /// The table of the database; `None` if only the capture has it.
    pub(super) live: Option<Table>,
    /// The table of the capture.
    pub(super) theirs: Table,
    /// The columns that both have, which are read in this order.
    pub(super) columns: Vec<String>,
    /// The places in `columns` that decide whether two rows are the same.
    pub(super) compared: Vec<usize>,
    /// By what a row is known, as places in `columns`.
    pub(super) key: PairKey,
    /// True if rows are matched by their numbers first, because both sides number them.
    pub(super) numbered: bool,
    /// Columns that only one side has.
    pub(super) only_live: Vec<String>,
    pub(super) only_theirs: Vec<String>,
    /// Why its rows are compared and not brought back.
    pub(super) left_alone: Option<&'static str>,
    /// Why it cannot be compared.
    pub(super) incomparable: Option<String>,
}

/// By what a row of both sides is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PairKey {
    /// The number of the row, which is this column.
    Number(usize),
    /// These columns, each with its collation.
    Columns(Vec<(usize, String)>),
    /// All of its content.
    Content,
}

impl Pair {
    fn new(name: String, live: Option<&Table>, theirs: &Table, rules: Rules) -> Pair {
        let model = live.unwrap_or(theirs);
        let both: Vec<String> = model.columns.iter().map(|c| c.name.clone()).filter(|c| theirs.has(c)).collect();
        let names = |of: &Table, without: &Table| -> Vec<String> {
            of.columns.iter().map(|c| c.name.clone()).filter(|c| !without.has(c)).collect()
        };
        let derived = rules.derived(&name);
        let compared = (0..both.len()).filter(|i| !derived.iter().any(|d| both[*i].eq_ignore_ascii_case(d))).collect();
        let place = |column: &str| both.iter().position(|c| c.eq_ignore_ascii_case(column));
        let mut incomparable = None;
        let mut no_key = |column: &str| {
            incomparable = Some(format!("its key column {column} is not in the capture"));
            PairKey::Content
        };
        let key = match &model.key {
            Key::None => PairKey::Content,
            Key::Number(column) => place(column).map_or_else(|| no_key(column), PairKey::Number),
            Key::Columns(columns) => {
                match columns.iter().map(|(n, c)| Some((place(n)?, c.clone()))).collect::<Option<Vec<_>>>() {
                    Some(places) => PairKey::Columns(places),
                    None => no_key(&columns.iter().map(|(n, _)| n.as_str()).collect::<Vec<_>>().join(", ")),
                }
            }
        };
        let same_number = live.is_none_or(|live| match (&live.key, &theirs.key) {
            (Key::Number(a), Key::Number(b)) => a.eq_ignore_ascii_case(b),
            (Key::Number(_), _) | (_, Key::Number(_)) => false,
            _ => true,
        });
        let numbered = same_number && model.rowid.is_some() && theirs.rowid.is_some();
        Pair {
            only_live: live.map_or_else(Vec::new, |live| names(live, theirs)),
            only_theirs: live.map_or_else(Vec::new, |live| names(theirs, live)),
            left_alone: rules.left_alone(&name),
            live: live.cloned(),
            theirs: theirs.clone(),
            columns: both,
            name,
            compared,
            key,
            numbered,
            incomparable,
        }
    }

    /// The place of a column.
    pub(super) fn place(&self, column: &str) -> Option<usize> {
        self.columns.iter().position(|c| c.eq_ignore_ascii_case(column))
    }

    /// The columns for a SELECT; `NULL` where there is none that both have.
    pub(super) fn selected(&self) -> String {
        if self.columns.is_empty() {
            return "NULL".to_owned();
        }
        self.columns.iter().map(|c| quoted(c)).collect::<Vec<_>>().join(", ")
    }
}

/// The tables of the capture in the order in which they are taken: those that others refer to first.
pub(super) fn pairs(live: &Schema, theirs: &Schema, rules: Rules) -> Vec<Pair> {
    let mut waiting: Vec<Pair> = theirs
        .tables
        .iter()
        .filter_map(|(lower, table)| match live.tables.get(lower) {
            Some(own) => Some(Pair::new(own.name.clone(), Some(own), table, rules)),
            // The name of something else in the database is not taken away from it.
            None if live.taken.contains(lower) => None,
            None => Some(Pair::new(table.name.clone(), None, table, rules)),
        })
        .collect();
    let mut ordered = Vec::new();
    let mut done: BTreeSet<String> = BTreeSet::new();
    let all: BTreeSet<String> = waiting.iter().map(|p| p.name.to_ascii_lowercase()).collect();
    while !waiting.is_empty() {
        let ready = |p: &Pair| {
            let own = p.name.to_ascii_lowercase();
            parents(p).all(|parent| parent == own || done.contains(&parent) || !all.contains(&parent))
        };
        // Tables that refer to each other in a circle are taken in any order; references are checked at the end.
        let at = waiting.iter().position(ready).unwrap_or(0);
        let pair = waiting.remove(at);
        done.insert(pair.name.to_ascii_lowercase());
        ordered.push(pair);
    }
    ordered
}

fn parents(pair: &Pair) -> impl Iterator<Item = String> {
    pair.live.as_ref().unwrap_or(&pair.theirs).references.iter().map(|r| r.parent.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use rusqlite::Connection;

    use super::*;

    fn schema(sql: &str) -> Schema {
        let c = Connection::open_in_memory().unwrap();
        c.execute_batch(sql).unwrap();
        Schema::read(&c).unwrap()
    }

    #[test]
    fn parents_come_before_children_and_circles_end() {
        let s = schema(
            "CREATE TABLE a(id INTEGER PRIMARY KEY, b REFERENCES b); CREATE TABLE b(id INTEGER PRIMARY KEY, c REFERENCES c);
             CREATE TABLE c(id INTEGER PRIMARY KEY, self REFERENCES c, gone REFERENCES gone);
             CREATE TABLE x(id INTEGER PRIMARY KEY, y REFERENCES y); CREATE TABLE y(id INTEGER PRIMARY KEY, x REFERENCES x);",
        );
        let order: Vec<_> = pairs(&s, &s, Rules::None).into_iter().map(|p| p.name).collect();
        assert_eq!(order, ["c", "b", "a", "x", "y"]);
    }

    #[test]
    fn what_only_one_side_has_is_said() {
        let live = schema("CREATE TABLE t(id INTEGER PRIMARY KEY, a, added); CREATE VIEW v AS SELECT 1;");
        let theirs =
            schema("CREATE TABLE T(ID INTEGER PRIMARY KEY, dropped, A); CREATE TABLE v(x); CREATE TABLE n(x);");
        let found = pairs(&live, &theirs, Rules::None);
        let names: Vec<_> = found.iter().map(|p| (p.name.as_str(), p.live.is_some())).collect();
        assert_eq!(names, [("n", false), ("t", true)]);
        let t = &found[1];
        assert_eq!(
            (&t.columns[..], &t.only_live[..], &t.only_theirs[..]),
            (&["id".to_owned(), "a".to_owned()][..], &["added".to_owned()][..], &["dropped".to_owned()][..])
        );
        assert!(t.numbered);
    }
}
