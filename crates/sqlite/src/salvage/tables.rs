//! The tables of a salvaged file: made as they were, and told apart by what their records may look like.

use std::collections::HashSet;

use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

use crate::pages::{Encoding, Object, Record, Value};

/// How a column changes what is stored in it. <https://www.sqlite.org/datatype3.html#determination_of_column_affinity>
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Affinity {
    Text,
    Number,
    None,
}

impl Affinity {
    fn of(declared: &str, strict: bool) -> Affinity {
        let declared = declared.to_ascii_uppercase();
        let has = |word: &str| declared.contains(word);
        if has("INT") {
            Affinity::Number
        } else if has("CHAR") || has("CLOB") || has("TEXT") {
            Affinity::Text
        } else if declared.is_empty() || has("BLOB") || strict && declared == "ANY" {
            Affinity::None
        } else {
            Affinity::Number
        }
    }
}

/// A column of a record.
#[derive(Debug, Clone)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) affinity: Affinity,
    pub(super) not_null: bool,
    /// True for one whose value SQLite works out.
    pub(super) generated: bool,
}

/// A table that was made in the salvaged file.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) name: String,
    /// What its records consist of, in their order.
    pub(super) columns: Vec<Column>,
    /// Which of them is another name for the rowid, and is stored as NULL.
    pub(super) alias: Option<usize>,
    /// The name under which a rowid can be given where no column stands for it.
    pub(super) rowid: Option<&'static str>,
    pub(super) without_rowid: bool,
}

impl Table {
    /// True if SQLite could have stored this record in this table.
    pub(super) fn fits(&self, record: &Record<'_>, encoding: Encoding) -> bool {
        let mut fields = 0;
        for (n, value) in record.values().enumerate() {
            fields = n + 1;
            let Some(column) = self.columns.get(n) else { return false };
            if self.alias == Some(n) {
                if value != Value::Null {
                    return false;
                }
                continue;
            }
            let possible = match value {
                Value::Null => !column.not_null,
                Value::Blob(_) => true,
                Value::Integer(_) | Value::Real(_) => column.affinity != Affinity::Text,
                Value::Text(bytes) => column.affinity != Affinity::Number || !looks_like_number(bytes, encoding),
            };
            if !possible {
                return false;
            }
        }
        fields > 0 && record.is_exact()
    }
}

/// True for text that a column of numbers would not have kept as text. Rare spellings are not recognised, which only makes
/// a table fit that does not.
fn looks_like_number(bytes: &[u8], encoding: Encoding) -> bool {
    let text = encoding.decode(bytes).unwrap_or_default();
    let text = text.trim_matches([' ', '\t', '\n', '\r']);
    text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) && text.parse::<f64>().is_ok()
}

/// Makes a table as it was created. What cannot be made, for it needs what this SQLite does not have, is answered with why.
pub(super) fn make(output: &mut Connection, object: &Object) -> Result<Table, rusqlite::Error> {
    // Whatever stands in a damaged schema is run here: it may make a table and nothing else.
    output.authorizer(Some(|context: AuthContext<'_>| match context.action {
        AuthAction::CreateTable { .. }
        | AuthAction::CreateIndex { .. }
        | AuthAction::Insert { .. }
        | AuthAction::Update { .. }
        | AuthAction::Read { .. }
        | AuthAction::Function { .. } => Authorization::Allow,
        _ => Authorization::Deny,
    }))?;
    let made = output.execute(&object.sql, []);
    output.authorizer(None::<fn(AuthContext<'_>) -> Authorization>)?;
    made?;
    describe(output, &object.name)
}

/// What the records of a table look like whose rows are not taken over; `None` if nobody knows. Only the columns are taken from
/// how it was created, for its name may be one that SQLite keeps for itself.
pub(super) fn shape(sql: &str) -> Option<Table> {
    let columns = &sql[sql.find('(')?..];
    let mut scratch = Connection::open_in_memory().ok()?;
    let object = Object {
        kind: "table".to_owned(),
        name: "scratch".to_owned(),
        table: "scratch".to_owned(),
        root: 0,
        sql: format!("CREATE TABLE scratch {columns}"),
    };
    make(&mut scratch, &object).ok()
}

fn describe(output: &Connection, name: &str) -> Result<Table, rusqlite::Error> {
    let (without_rowid, strict): (bool, bool) = output.query_row(
        "SELECT wr, strict FROM pragma_table_list WHERE schema = 'main' AND name = ?1 COLLATE NOCASE",
        [name],
        |r| Ok((r.get(0)?, r.get(1)?)),
    )?;
    let mut statement = output.prepare("SELECT name, type, \"notnull\", pk, hidden FROM pragma_table_xinfo(?1)")?;
    let mut columns = statement
        .query_map([name], |r| {
            let (declared, hidden, key): (String, i64, i64) = (r.get(1)?, r.get(4)?, r.get(3)?);
            let column = Column {
                name: r.get(0)?,
                affinity: Affinity::of(&declared, strict),
                not_null: r.get(2)?,
                generated: hidden != 0,
            };
            Ok((column, hidden, key))
        })?
        .collect::<Result<Vec<_>, _>>()?;
    let names: HashSet<String> = columns.iter().map(|(c, ..)| c.name.to_ascii_lowercase()).collect();
    // A generated column that is not stored has no place in a record.
    columns.retain(|(_, hidden, _)| *hidden != 2);
    let key_index: i64 =
        output.query_row("SELECT count(*) FROM pragma_index_list(?1) WHERE origin = 'pk'", [name], |r| r.get(0))?;
    let mut alias = None;
    if without_rowid {
        // The columns of the key come first, in the order of the key.
        columns.sort_by_key(|(_, _, key)| if *key == 0 { i64::MAX } else { *key });
    } else if key_index == 0 {
        alias = columns.iter().position(|(_, _, key)| *key == 1);
    }
    let rowid = ["rowid", "_rowid_", "oid"].into_iter().find(|n| !names.contains(*n));
    Ok(Table {
        name: name.to_owned(),
        columns: columns.into_iter().map(|(column, ..)| column).collect(),
        alias,
        rowid: rowid.filter(|_| !without_rowid && alias.is_none()),
        without_rowid,
    })
}

/// True for a table whose rows follow from others or belong to SQLite itself, and are not taken over.
pub(super) fn is_derived(object: &Object, objects: &[Object]) -> bool {
    const PARTS: [&str; 12] = [
        "content", "segments", "segdir", "docsize", "stat", "data", "idx", "config", "node", "rowid", "parent", "vocab",
    ];
    let name = object.name.to_ascii_lowercase();
    name.starts_with("sqlite_")
        || objects.iter().filter(|o| o.kind == "table" && o.root == 0).any(|o| {
            let part = name.strip_prefix(&o.name.to_ascii_lowercase()).and_then(|rest| rest.strip_prefix('_'));
            part.is_some_and(|part| PARTS.contains(&part))
        })
}

/// A name as SQL takes any name.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
