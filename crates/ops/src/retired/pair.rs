//! One table as both sides have it: what can be compared, by which key, and in which order tables are taken.

use std::collections::{BTreeMap, BTreeSet};

use super::rules::Rules;
use super::schema::{Key, Schema, Table};
use super::virtuals::{Holds, Virtual};
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
    pub(super) left_alone: Option<String>,
    /// True if they are left alone because of what this program cannot do, and not because of what they say.
    pub(super) is_beyond_us: bool,
    /// Why it cannot be compared.
    pub(super) incomparable: Option<String>,
    /// True if rows of it are read and written by a module.
    pub(super) is_virtual: bool,
    /// Why rows of it that the database lacks are listed and not brought back.
    pub(super) aside: Option<String>,
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
            left_alone: rules.left_alone(&name).map(str::to_owned),
            live: live.cloned(),
            theirs: theirs.clone(),
            columns: both,
            name,
            compared,
            key,
            numbered,
            incomparable,
            is_virtual: false,
            is_beyond_us: false,
            aside: theirs.aside.clone(),
        }
    }

    /// The name that the table has in the capture, if that is another one.
    pub(super) fn captured_as(&self) -> Option<&str> {
        (self.live.is_some() && !self.theirs.stored.eq_ignore_ascii_case(&self.name)).then_some(&self.theirs.stored)
    }

    /// The columns that have another name in the capture: the name here, and that one.
    pub(super) fn columns_captured_as(&self) -> BTreeMap<String, String> {
        let renamed = |c: &&String| !self.theirs.stored_column(c).eq_ignore_ascii_case(c);
        self.columns.iter().filter(renamed).map(|c| (c.clone(), self.theirs.stored_column(c).to_owned())).collect()
    }

    /// As [`Pair::selected`], in the capture.
    pub(super) fn selected_of_theirs(&self) -> String {
        if self.columns.is_empty() {
            return "NULL".to_owned();
        }
        self.columns.iter().map(|c| quoted(self.theirs.stored_column(c))).collect::<Vec<_>>().join(", ")
    }

    /// A table of which nothing can be said but why.
    pub(super) fn unread(name: &str, in_live: bool, why: String) -> Pair {
        let table = Table {
            name: name.to_owned(),
            stored: name.to_owned(),
            root: 0,
            aside: None,
            columns: Vec::new(),
            key: Key::None,
            rowid: None,
            uniques: Vec::new(),
            references: Vec::new(),
            triggers: 0,
            indexes: 0,
        };
        Pair { incomparable: Some(why), ..Pair::new(name.to_owned(), in_live.then_some(&table), &table, Rules::None) }
    }

    /// True if a row that is brought back may get another number than it had.
    fn may_renumber(&self, rules: Rules) -> bool {
        rules != Rules::None || !matches!(self.key, PairKey::Number(_))
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

/// The tables of the capture in the order in which they are taken: those that others refer to first, and those whose triggers write
/// into others before these.
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
    for pair in &mut waiting {
        if let Some(owner) = live.may_be_kept_by(&pair.name).or_else(|| theirs.may_be_kept_by(&pair.name)) {
            let why = format!(
                "it may be where the virtual table {owner} keeps what it holds, and the module of that is not here"
            );
            pair.left_alone.get_or_insert(why);
        }
    }
    let of_modules: Vec<Pair> = theirs.virtuals.values().filter_map(|v| of_module(v, live, &waiting, rules)).collect();
    let of_logs: Vec<Pair> = live.virtuals.iter().filter_map(|(lower, v)| of_log(lower, v, live, theirs)).collect();
    waiting.extend(of_modules.into_iter().chain(of_logs));
    for pair in &mut waiting {
        pair.is_beyond_us = pair.left_alone.is_some() && rules.left_alone(&pair.name).is_none();
    }
    ordered(waiting, live)
}

fn ordered(mut waiting: Vec<Pair>, live: &Schema) -> Vec<Pair> {
    let mut ordered = Vec::new();
    let mut done: BTreeSet<String> = BTreeSet::new();
    let all: BTreeSet<String> = waiting.iter().map(|p| p.name.to_ascii_lowercase()).collect();
    let before: BTreeMap<String, BTreeSet<String>> = waiting
        .iter()
        .map(|p| {
            let own = p.name.to_ascii_lowercase();
            let earlier = parents(p)
                .chain(live.triggers.feeders(&own).iter().cloned())
                .filter(|t| *t != own && all.contains(t))
                .collect();
            (own, earlier)
        })
        .collect();
    while !waiting.is_empty() {
        let ready = |p: &Pair| before.get(&p.name.to_ascii_lowercase()).is_none_or(|b| b.is_subset(&done));
        // Tables that refer to each other in a circle are taken in any order; references are checked at the end.
        let at = waiting.iter().position(ready).unwrap_or(0);
        let pair = waiting.remove(at);
        done.insert(pair.name.to_ascii_lowercase());
        ordered.push(pair);
    }
    ordered
}

/// A virtual table of the capture; `None` if it has nothing of its own.
fn of_module(theirs: &Virtual, live: &Schema, plain: &[Pair], rules: Rules) -> Option<Pair> {
    let lower = theirs.name.to_ascii_lowercase();
    let own = live.virtuals.get(&lower);
    if own.is_none() && live.taken.contains(&lower) {
        return None;
    }
    let unread = |why: &str| Some(Pair::unread(&theirs.name, own.is_some(), why.to_owned()));
    let feeders = live.triggers.feeders(&lower);
    let feeding: Vec<&Pair> = plain.iter().filter(|p| feeders.contains(&p.name.to_ascii_lowercase())).collect();
    match (&theirs.holds, own.map(|o| &o.holds)) {
        (Holds::Nothing, _) => None,
        (Holds::Index(_), None) => unread("the database has no such search index; its program makes one"),
        // It follows from the rows of its table: by triggers, or when somebody makes it anew.
        (Holds::Index(_), Some(_)) => None,
        // What it holds comes with the rows of the tables whose triggers fill it, under the numbers that these get.
        (Holds::Rows(_) | Holds::Words, Some(_)) if feeding.iter().any(|p| p.may_renumber(rules)) => None,
        (Holds::Words, Some(_)) if !feeding.is_empty() => None,
        (Holds::Words, _) => {
            unread("it is a search index that keeps no text; its program must index the rows that come back once more")
        }
        (Holds::Unread { why, .. }, _) | (_, Some(Holds::Unread { why, .. })) => unread(why),
        (Holds::Rows(table), Some(Holds::Rows(here))) => {
            let left_alone = own.and_then(|o| o.unwritable.clone());
            Some(Pair { is_virtual: true, left_alone, ..Pair::new(here.name.clone(), Some(here), table, rules) })
        }
        (Holds::Rows(table), None) => {
            let left_alone = theirs.unwritable.clone();
            Some(Pair { is_virtual: true, left_alone, ..Pair::new(table.name.clone(), None, table, rules) })
        }
        (Holds::Rows(_), Some(_)) => unread("it is of another kind in the database"),
    }
}

/// A virtual table of which a log has pages, but not the statement that made it.
fn of_log(lower: &str, own: &Virtual, live: &Schema, theirs: &Schema) -> Option<Pair> {
    let kept = [own.content_table(), format!("{lower}_rowid")];
    let has_pages = !theirs.virtuals.contains_key(lower) && kept.iter().any(|t| theirs.tables.contains_key(t));
    let fed = !live.triggers.feeders(lower).is_empty();
    let why =
        "the capture has the pages of its log alone, and what a module keeps there cannot be read without the others";
    (has_pages && !fed && matches!(own.holds, Holds::Rows(_))).then(|| Pair::unread(&own.name, true, why.to_owned()))
}

/// Search indexes over tables of the database that no trigger keeps, each with the table or view that it is over.
pub(super) fn unkept(live: &Schema) -> Vec<(String, String)> {
    let over = |v: &Virtual| match &v.holds {
        Holds::Index(table) => Some((v.name.clone(), table.clone())),
        _ => None,
    };
    let unkept = |(lower, _): &(&String, &Virtual)| live.triggers.feeders(lower).is_empty();
    live.virtuals.iter().filter(unkept).filter_map(|(_, v)| over(v)).collect()
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
