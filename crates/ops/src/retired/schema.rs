//! What a database says of its tables: columns, keys, what must be unique, who refers to whom.
//!
//! Only tables that hold rows of their own count. What SQLite or a module keeps for itself is derived from them, and so are
//! views and generated columns. Which virtual tables hold rows is told in [`super::virtuals`].

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;

use super::sql::{self, IndexText};
use super::triggers::Triggers;
use super::virtuals::{Holds, Virtual};
use crate::maintenance::quoted;

/// One column that can be read and written.
#[derive(Debug, Clone)]
pub(super) struct Column {
    pub(super) name: String,
    /// Its name where it is stored, if it has another one on the other side.
    pub(super) stored: String,
    /// The declared type.
    pub(super) kind: String,
}

/// By what a row is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    /// A column that is the number of the row (`INTEGER PRIMARY KEY`).
    Number(String),
    /// These columns, with the collation by which they are compared.
    Columns(Vec<(String, String)>),
    /// Nothing but the number that SQLite gave it.
    None,
}

/// What must be unique beside the key.
#[derive(Debug, Clone)]
pub(super) struct Unique {
    pub(super) name: String,
    /// Each an expression of SQL, with its collation.
    pub(super) terms: Vec<(String, String)>,
    /// The plain columns among them, as far as they are plain.
    pub(super) columns: Vec<String>,
    /// For which rows, as an expression.
    pub(super) only: Option<String>,
}

/// A reference to another table.
#[derive(Debug, Clone)]
pub(super) struct Reference {
    pub(super) parent: String,
    pub(super) from: Vec<String>,
    pub(super) to: Vec<String>,
}

/// One table.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) name: String,
    /// Its name where it is stored, if it has another one on the other side.
    pub(super) stored: String,
    /// The page at which it begins; 0 where that is not known.
    pub(super) root: u32,
    /// Why its rows are not brought back but listed.
    pub(super) aside: Option<String>,
    pub(super) columns: Vec<Column>,
    pub(super) key: Key,
    /// A name by which the number of a row can be asked for; `None` if there is none.
    pub(super) rowid: Option<String>,
    pub(super) uniques: Vec<Unique>,
    pub(super) references: Vec<Reference>,
    pub(super) triggers: i64,
    /// How many indexes it has.
    pub(super) indexes: u64,
}

impl Table {
    pub(super) fn has(&self, column: &str) -> bool {
        self.columns.iter().any(|c| c.name.eq_ignore_ascii_case(column))
    }
}

/// All tables of a database, by name in lower case, which is how SQLite tells them apart.
#[derive(Debug, Default)]
pub(super) struct Schema {
    pub(super) tables: BTreeMap<String, Table>,
    /// Every other name that is taken.
    pub(super) taken: BTreeSet<String>,
    /// Search indexes whose content is in a table, by that table's name in lower case.
    pub(super) indexed: BTreeMap<String, Vec<String>>,
    /// Virtual tables, by name in lower case.
    pub(super) virtuals: BTreeMap<String, Virtual>,
    pub(super) triggers: Triggers,
}

impl Schema {
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Schema> {
        let mut schema = Schema::default();
        let mut list = connection.prepare(
            "SELECT name, type, wr FROM pragma_table_list WHERE schema = 'main' ORDER BY name COLLATE NOCASE",
        )?;
        let mut rows = list.query([])?;
        while let Some(row) = rows.next()? {
            let (name, kind, without_rowid): (String, String, bool) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let lower = name.to_ascii_lowercase();
            schema.taken.insert(lower.clone());
            if kind == "table" && !lower.starts_with("sqlite_") {
                schema.tables.insert(lower, table(connection, name, without_rowid)?);
            }
        }
        let mut all = connection
            .prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND rootpage = 0 AND sql IS NOT NULL")?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            let (name, text): (String, String) = (row.get(0)?, row.get(1)?);
            if let Some(table) = crate::maintenance::vacuum::content_of_search_index(&text) {
                schema.indexed.entry(table.to_ascii_lowercase()).or_default().push(name.clone());
            }
            let found = Virtual::read(connection, name, &text);
            schema.virtuals.insert(found.name.to_ascii_lowercase(), found);
        }
        schema.triggers = Triggers::read(connection)?;
        Ok(schema)
    }

    /// The virtual table to which a table may belong, because its module is not here to say which tables are its own.
    pub(super) fn may_be_kept_by(&self, table: &str) -> Option<&str> {
        let table = table.to_ascii_lowercase();
        let mut foreign = self.virtuals.iter().filter(|(_, v)| matches!(v.holds, Holds::Unread { foreign: true, .. }));
        foreign
            .find(|(name, _)| table.strip_prefix(*name).is_some_and(|rest| rest.starts_with('_')))
            .map(|(_, v)| v.name.as_str())
    }

    pub(super) fn get(&self, name: &str) -> Option<&Table> {
        self.tables.get(&name.to_ascii_lowercase())
    }
}

fn table(connection: &Connection, name: String, without_rowid: bool) -> rusqlite::Result<Table> {
    let mut columns = Vec::new();
    let mut key: Vec<(i64, String, String)> = Vec::new();
    let mut names = BTreeSet::new();
    let mut info = connection.prepare("SELECT name, type, pk, hidden FROM pragma_table_xinfo(?1) ORDER BY cid")?;
    let mut rows = info.query([&name])?;
    while let Some(row) = rows.next()? {
        let (column, kind, pk, hidden): (String, String, i64, i64) =
            (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        names.insert(column.to_ascii_lowercase());
        if pk > 0 {
            key.push((pk, column.clone(), kind.clone()));
        }
        if hidden == 0 {
            columns.push(Column { stored: column.clone(), name: column, kind });
        }
    }
    key.sort();
    let mut by_index = None;
    let mut uniques = Vec::new();
    let mut list =
        connection.prepare("SELECT name, origin, partial FROM pragma_index_list(?1) WHERE \"unique\" = 1")?;
    let mut rows = list.query([&name])?;
    while let Some(row) = rows.next()? {
        let (index, origin, partial): (String, String, bool) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let parts = parts(connection, &index)?;
        if origin == "pk" {
            by_index = Some(parts);
            continue;
        }
        uniques.extend(unique(connection, index, parts, partial)?);
    }
    let key = match (key.as_slice(), by_index) {
        ([], _) => Key::None,
        (_, Some(parts)) => {
            let plain = |(name, collation): (Option<String>, String)| name.map(|n| (n, collation));
            Key::Columns(parts.into_iter().filter_map(plain).collect())
        }
        ([(_, column, _)], None) if !without_rowid => Key::Number(column.clone()),
        (columns, None) => Key::Columns(columns.iter().map(|(_, n, _)| (n.clone(), "BINARY".to_owned())).collect()),
    };
    let rowid = match (&key, without_rowid) {
        (_, true) => None,
        (Key::Number(column), false) => Some(quoted(column)),
        _ => ["rowid", "_rowid_", "oid"].into_iter().find(|n| !names.contains(*n)).map(str::to_owned),
    };
    let triggers = connection.query_row(
        "SELECT count(*) FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?1 COLLATE NOCASE",
        [&name],
        |r| r.get(0),
    )?;
    let references = references(connection, &name)?;
    let indexes: i64 = connection.query_row("SELECT count(*) FROM pragma_index_list(?1)", [&name], |r| r.get(0))?;
    let indexes = indexes.unsigned_abs();
    let root = connection.query_row(
        "SELECT rootpage FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE",
        [&name],
        |r| r.get(0),
    )?;
    Ok(Table {
        stored: name.clone(),
        root,
        aside: None,
        name,
        columns,
        key,
        rowid,
        uniques,
        references,
        triggers,
        indexes,
    })
}

/// The terms of an index: the column, if a term is one, and the collation.
fn parts(connection: &Connection, index: &str) -> rusqlite::Result<Vec<(Option<String>, String)>> {
    let mut info = connection.prepare("SELECT name, coll FROM pragma_index_xinfo(?1) WHERE key = 1 ORDER BY seqno")?;
    info.query_map([index], |r| Ok((r.get(0)?, r.get(1)?)))?.collect()
}

fn unique(
    connection: &Connection,
    name: String,
    parts: Vec<(Option<String>, String)>,
    partial: bool,
) -> rusqlite::Result<Option<Unique>> {
    let plain: Vec<String> = parts.iter().filter_map(|(n, _)| n.clone()).collect();
    if !partial && plain.len() == parts.len() {
        let terms = parts.into_iter().filter_map(|(n, c)| Some((quoted(&n?), c))).collect();
        return Ok(Some(Unique { name, terms, columns: plain, only: None }));
    }
    let text: String =
        connection
            .query_row("SELECT sql FROM sqlite_schema WHERE type = 'index' AND name = ?1", [&name], |r| r.get(0))?;
    // What cannot be read here is found when the row is written, and is a conflict then.
    let Some(IndexText { terms, only }) = sql::index(&text) else { return Ok(None) };
    if terms.len() != parts.len() {
        return Ok(None);
    }
    let terms = terms
        .into_iter()
        .zip(parts)
        .map(|(text, (column, collation))| (column.map_or(text, |c| quoted(&c)), collation));
    Ok(Some(Unique { name, terms: terms.collect(), columns: plain, only }))
}

fn references(connection: &Connection, table: &str) -> rusqlite::Result<Vec<Reference>> {
    let mut list = connection
        .prepare("SELECT id, \"table\", \"from\", \"to\" FROM pragma_foreign_key_list(?1) ORDER BY id, seq")?;
    let mut rows = list.query([table])?;
    let mut by_id: BTreeMap<i64, (Reference, bool)> = BTreeMap::new();
    while let Some(row) = rows.next()? {
        let (id, parent, from, to): (i64, String, String, Option<String>) =
            (row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?);
        let (reference, to_key) =
            by_id.entry(id).or_insert_with(|| (Reference { parent, from: Vec::new(), to: Vec::new() }, false));
        reference.from.push(from);
        match to {
            Some(to) => reference.to.push(to),
            None => *to_key = true,
        }
    }
    let mut found = Vec::new();
    for (mut reference, to_key) in by_id.into_values() {
        if to_key {
            let mut info = connection.prepare("SELECT name FROM pragma_table_info(?1) WHERE pk > 0 ORDER BY pk")?;
            reference.to = info.query_map([&reference.parent], |r| r.get(0))?.collect::<rusqlite::Result<_>>()?;
        }
        // One that does not fit its parent is a fault of the schema, which SQLite reports by itself.
        if reference.to.len() == reference.from.len() {
            found.push(reference);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn tables_are_read_with_their_keys_and_what_is_derived_is_left_out() {
        let c = Connection::open_in_memory().unwrap();
        c.execute_batch(
            "CREATE TABLE n(id INTEGER PRIMARY KEY, a, g AS (a + 1), h AS (a + 2) STORED);
             CREATE TABLE k(a TEXT, b TEXT COLLATE NOCASE, c, PRIMARY KEY(b, a COLLATE RTRIM), UNIQUE(c));
             CREATE TABLE w(\"quoted \"\"names\"\"\" TEXT PRIMARY KEY, v) WITHOUT ROWID;
             CREATE TABLE bare(rowid, x);
             CREATE TABLE child(p REFERENCES n, q, FOREIGN KEY(q) REFERENCES k(c));
             CREATE VIRTUAL TABLE f USING fts5(a, content=n, content_rowid=id);
             CREATE VIRTUAL TABLE g USING fts5(x, content=bare);
             CREATE VIEW v AS SELECT 1;
             CREATE UNIQUE INDEX part ON n(lower(a), a COLLATE NOCASE DESC) WHERE a IS NOT NULL AND (a <> ')');
             CREATE TABLE d(id INTEGER PRIMARY KEY DESC);",
        )
        .unwrap();
        let s = Schema::read(&c).unwrap();
        assert_eq!(s.tables.keys().collect::<Vec<_>>(), ["bare", "child", "d", "k", "n", "w"]);
        let n = s.get("N").unwrap();
        assert_eq!(n.key, Key::Number("id".into()));
        assert_eq!(n.columns.len(), 2, "generated columns are derived");
        let part = &n.uniques[0];
        assert_eq!(
            part.terms,
            [("lower(a)".to_owned(), "BINARY".to_owned()), ("\"a\"".to_owned(), "NOCASE".to_owned())]
        );
        assert_eq!(part.only.as_deref(), Some("a IS NOT NULL AND (a <> ')')"));
        let key = |t: &str| s.get(t).unwrap().key.clone();
        let two = vec![("b".to_owned(), "NOCASE".to_owned()), ("a".to_owned(), "RTRIM".to_owned())];
        assert_eq!(key("k"), Key::Columns(two));
        assert_eq!(s.get("k").unwrap().uniques[0].columns, ["c"]);
        assert_eq!(key("w"), Key::Columns(vec![("quoted \"names\"".to_owned(), "BINARY".to_owned())]));
        assert_eq!(s.get("w").unwrap().rowid, None);
        assert_eq!((key("bare"), s.get("bare").unwrap().rowid.as_deref()), (Key::None, Some("_rowid_")));
        assert!(matches!(key("d"), Key::Columns(_)), "a descending one is no number of the row");
        let child = s.get("child").unwrap();
        let mut parents: Vec<_> = child.references.iter().map(|r| (r.parent.as_str(), r.to[0].as_str())).collect();
        parents.sort_unstable();
        assert_eq!(parents, [("k", "c"), ("n", "id")]);
        assert_eq!(s.indexed["bare"], ["g"]);
        assert!(!s.indexed.contains_key("n"), "it refers to the key");
    }

    #[test]
    fn a_search_index_with_a_tokenizer_of_its_program_is_no_obstacle() {
        let c = Connection::open_in_memory().unwrap();
        c.execute_batch(
            "CREATE TABLE m(id INTEGER PRIMARY KEY, a); CREATE VIRTUAL TABLE f USING fts5(a, content=m);
             PRAGMA writable_schema = ON;
             UPDATE sqlite_schema SET sql = 'CREATE VIRTUAL TABLE f USING fts5(a, content=m, tokenize=''cjk_unicode61'')'
               WHERE name = 'f';
             PRAGMA writable_schema = RESET;",
        )
        .unwrap();
        let s = Schema::read(&c).unwrap();
        assert_eq!(s.tables.keys().collect::<Vec<_>>(), ["m"]);
    }
}
