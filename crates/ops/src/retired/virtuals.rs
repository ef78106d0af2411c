//! Virtual tables: which of them hold rows of their own, and how these are read and written.
//!
//! A module keeps what it holds in tables of its own, which nobody but the module may write. So its rows are read and written
//! through it, by their numbers, and only where it is known to have rows that can be read and given back: a search index
//! that keeps its text, an R-tree. Whatever cannot be read here is named with the reason, for it may hold rows that are
//! nowhere else; it is never passed over in silence.

use rusqlite::Connection;

use super::schema::{Column, Key, Table};
use super::sql::{Token, tokens};
use crate::maintenance::quoted;
use crate::maintenance::vacuum::{split, unquote};

/// A virtual table.
#[derive(Debug, Clone)]
pub(super) struct Virtual {
    pub(super) name: String,
    pub(super) holds: Holds,
    /// Why its rows can be read and not written.
    pub(super) unwritable: Option<String>,
}

/// What a virtual table holds.
#[derive(Debug, Clone)]
pub(super) enum Holds {
    /// Rows of its own, known by their numbers.
    Rows(Table),
    /// Nothing: it shows what other tables hold.
    Nothing,
    /// A search index over the rows of this table or view.
    Index(String),
    /// A search index that keeps no text.
    Words,
    /// What cannot be read here, and why. `foreign` if its module is not in this SQLite, so that its own tables look like any
    /// others.
    Unread { why: String, foreign: bool },
}

/// Modules that show what others hold.
const VIEWS: [&str; 4] = ["fts5vocab", "fts4aux", "fts3tokenize", "dbstat"];
const SEARCH: [&str; 3] = ["fts3", "fts4", "fts5"];
const TREES: [&str; 3] = ["rtree", "rtree_i32", "geopoly"];

impl Virtual {
    /// Looks at the virtual table that this statement made.
    pub(super) fn read(connection: &Connection, name: String, text: &str) -> Virtual {
        let module = module(text).unwrap_or_default().to_ascii_lowercase();
        let is_one_of = |all: &[&str]| all.contains(&module.as_str());
        let holds = if is_one_of(&VIEWS) {
            Holds::Nothing
        } else if is_one_of(&SEARCH) {
            match option(text, "content") {
                Some(content) if content.is_empty() => Holds::Words,
                Some(content) => Holds::Index(content),
                None => rows(connection, &name, option(text, "languageid").as_deref(), false),
            }
        } else if is_one_of(&TREES) {
            rows(connection, &name, None, true)
        } else {
            let why = match connection.prepare(&format!("SELECT 1 FROM {}", quoted(&name))) {
                Ok(_) => format!("only its module {module} knows what it holds"),
                Err(_) => format!("its module {module} is not in this SQLite"),
            };
            Holds::Unread { why, foreign: true }
        };
        let is_index = is_one_of(&SEARCH) && matches!(holds, Holds::Rows(_));
        let unwritable = is_index.then(|| tokenizer(connection, &name)).flatten();
        Virtual { name, holds, unwritable }
    }

    /// The table in which a search index keeps its text.
    pub(super) fn content_table(&self) -> String {
        format!("{}_content", self.name.to_ascii_lowercase())
    }
}

/// The module of a `CREATE VIRTUAL TABLE`.
fn module(text: &str) -> Option<String> {
    let tokens = tokens(text);
    let using = tokens.iter().skip(3).position(|t| t.is("using"))? + 3;
    tokens.get(using + 1).map(|t| unquote(t.text))
}

/// The value of an argument `key=value` of the module.
fn option(text: &str, key: &str) -> Option<String> {
    let all: Vec<Token<'_>> = tokens(text);
    let open = all.iter().find(|t| t.text == "(" && t.depth == 0)?;
    let arguments = text.get(open.from + 1..)?.trim_end();
    let arguments = arguments.strip_suffix(')').unwrap_or(arguments);
    split(arguments).into_iter().find_map(|argument| {
        let (k, value) = argument.split_once('=')?;
        k.trim().eq_ignore_ascii_case(key).then(|| unquote(value.trim()))
    })
}

/// The rows that a module gives. `hidden` is a column that it shows only to those who name it.
fn rows(connection: &Connection, name: &str, hidden: Option<&str>, numbered: bool) -> Holds {
    match described(connection, name, hidden, numbered) {
        Ok(table) => Holds::Rows(table),
        Err(e) => {
            let why = format!("this SQLite cannot read it ({e})");
            Holds::Unread { why, foreign: e.to_string().contains("no such module") }
        }
    }
}

/// Why a search index cannot take a text. It looks for its tokenizer only when it has something to take apart.
fn tokenizer(connection: &Connection, name: &str) -> Option<String> {
    let name = quoted(name);
    let asked = connection.prepare(&format!("SELECT 1 FROM {name} WHERE {name} MATCH 'a' LIMIT 1"));
    let found = asked.and_then(|mut q| q.query([])?.next().map(drop));
    found.err().map(|e| format!("this SQLite cannot write it ({e})"))
}

fn described(connection: &Connection, name: &str, hidden: Option<&str>, numbered: bool) -> rusqlite::Result<Table> {
    let mut columns = Vec::new();
    let mut info = connection.prepare("SELECT name, hidden FROM pragma_table_xinfo(?1) ORDER BY cid")?;
    let mut rows = info.query([name])?;
    while let Some(row) = rows.next()? {
        let (column, is_hidden): (String, bool) = (row.get(0)?, row.get(1)?);
        if !is_hidden || hidden.is_some_and(|h| h.eq_ignore_ascii_case(&column)) {
            columns.push(Column { stored: column.clone(), name: column, kind: String::new() });
        }
    }
    let number = match columns.first() {
        // The first column of such a table is the number of the row.
        Some(first) if numbered => first.name.clone(),
        _ => {
            let has = |n: &str| columns.iter().any(|c| c.name.eq_ignore_ascii_case(n));
            let free = ["rowid", "_rowid_", "oid"].into_iter().find(|n| !has(n)).unwrap_or("rowid").to_owned();
            columns.insert(0, Column { name: free.clone(), stored: free.clone(), kind: String::new() });
            free
        }
    };
    // Only a row that was read shows that all of its module is there.
    let names: Vec<String> = columns.iter().map(|c| quoted(&c.name)).collect();
    let mut one = connection.prepare(&format!("SELECT {} FROM {} LIMIT 1", names.join(", "), quoted(name)))?;
    one.query([])?.next()?;
    Ok(Table {
        name: name.to_owned(),
        stored: name.to_owned(),
        root: 0,
        aside: None,
        columns,
        rowid: Some(quoted(&number)),
        key: Key::Number(number),
        uniques: Vec::new(),
        references: Vec::new(),
        triggers: 0,
        indexes: 0,
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn read(sql: &str) -> Virtual {
        let c = Connection::open_in_memory().unwrap();
        c.execute_batch(sql).unwrap();
        let text: String = c.query_row("SELECT sql FROM sqlite_schema WHERE name = 'v'", [], |r| r.get(0)).unwrap();
        Virtual::read(&c, "v".to_owned(), &text)
    }

    fn holds(sql: &str) -> String {
        match read(sql).holds {
            Holds::Rows(t) => t.columns.iter().map(|c| c.name.as_str()).collect::<Vec<_>>().join(" "),
            Holds::Unread { why, foreign } => format!("{why} {foreign}"),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn what_a_virtual_table_holds_is_known_by_its_module_and_its_arguments() {
        assert_eq!(holds("CREATE VIRTUAL TABLE v USING fts5(a, b UNINDEXED)"), "rowid a b");
        assert_eq!(holds("CREATE VIRTUAL TABLE IF NOT EXISTS v USING FTS4(a, languageid='lid')"), "rowid a lid");
        assert_eq!(holds("CREATE VIRTUAL TABLE v USING fts5(a, content='')"), "Words");
        assert_eq!(holds("CREATE VIRTUAL TABLE v USING fts4(content=\"using t\", a)"), "Index(\"using t\")");
        assert_eq!(holds("CREATE VIRTUAL TABLE v USING rtree(id, x0, x1, +name)"), "id x0 x1 name");
        assert_eq!(
            holds("CREATE VIRTUAL TABLE f USING fts5(a); CREATE VIRTUAL TABLE v USING fts5vocab(f, row)"),
            "Nothing"
        );
    }

    #[test]
    fn an_index_whose_tokenizer_is_not_here_can_be_read_and_not_written() {
        let index = |tokenizer: &str| {
            format!(
                "CREATE VIRTUAL TABLE v USING fts5(a); INSERT INTO v VALUES('x'); PRAGMA writable_schema = ON;
                 UPDATE sqlite_schema SET sql = 'CREATE VIRTUAL TABLE v USING fts5(a, tokenize=''{tokenizer}'')'
                   WHERE name = 'v'; PRAGMA writable_schema = RESET"
            )
        };
        let of_program = read(&index("cjk_unicode61"));
        assert!(matches!(of_program.holds, Holds::Rows(_)), "{of_program:?}");
        assert!(of_program.unwritable.unwrap().contains("cjk_unicode61"));
        assert_eq!(read(&index("porter")).unwritable, None);
    }

    #[test]
    fn a_module_or_a_tokenizer_that_is_not_here_is_named() {
        let foreign = |sql: &str| {
            holds(&format!(
                "CREATE VIRTUAL TABLE v USING fts5(a); PRAGMA writable_schema = ON;
                 UPDATE sqlite_schema SET sql = '{sql}' WHERE name = 'v'; PRAGMA writable_schema = RESET"
            ))
        };
        assert_eq!(
            foreign("CREATE VIRTUAL TABLE v USING vec0(a float[4])"),
            "its module vec0 is not in this SQLite true"
        );
        let older = foreign("CREATE VIRTUAL TABLE v USING fts4(a, tokenize=cjk)");
        assert!(older.contains("cjk") && older.ends_with("false"), "{older}");
    }
}
