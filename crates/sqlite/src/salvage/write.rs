//! Rows into the salvaged file: into their table where it takes them, else into `lost_and_found`.

use std::collections::BTreeMap;

use rusqlite::types::{ToSqlOutput, Value as Owned, ValueRef};
use rusqlite::{Connection, ErrorCode, ToSql, params_from_iter};

use super::tables::{Table, quoted};
use crate::pages::{Encoding, Record, Value};

/// SQLite allows no table more columns; some are needed for what is not a value.
const MOST_FIELDS: usize = 1900;

/// Where a row lies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    pub(super) root: Option<u32>,
    pub(super) page: u32,
    pub(super) rowid: Option<i64>,
}

/// The salvaged file while it is written.
pub(super) struct Output<'a> {
    connection: &'a Connection,
    encoding: Encoding,
    /// The name of the table for what has no place; made when there is something to put into it.
    lost: Option<String>,
    lost_fields: usize,
    /// Rows a table.
    pub(super) rows: BTreeMap<String, u64>,
    pub(super) unplaced: u64,
}

/// What is bound: a value as it is stored, a number of ours, or text that only a cast keeps as it is.
enum Bound<'a> {
    Stored(Value<'a>),
    Decoded(String),
    Number(Option<i64>),
}

impl ToSql for Bound<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Bound::Decoded(text) => ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())),
            Bound::Number(Some(n)) => ToSqlOutput::Owned(Owned::Integer(*n)),
            Bound::Number(None) => ToSqlOutput::Owned(Owned::Null),
            Bound::Stored(value) => ToSqlOutput::Borrowed(match value {
                Value::Null => ValueRef::Null,
                Value::Integer(n) => ValueRef::Integer(*n),
                Value::Real(n) => ValueRef::Real(*n),
                // Text that is none in UTF-16 goes in as bytes, and the statement says that they are text.
                Value::Text(bytes) | Value::Blob(bytes) => ValueRef::Blob(bytes),
            }),
        })
    }
}

impl<'a> Output<'a> {
    pub(super) fn new(connection: &'a Connection, encoding: Encoding, tables: &[String]) -> Output<'a> {
        let rows = tables.iter().map(|name| (name.clone(), 0)).collect();
        Output { connection, encoding, lost: None, lost_fields: 0, rows, unplaced: 0 }
    }

    pub(super) fn lost_and_found(&self) -> Option<String> {
        self.lost.clone()
    }

    /// Puts a row into its table. One that the table does not take is kept beside.
    pub(super) fn put(&mut self, table: &Table, place: Place, record: &Record<'_>) -> rusqlite::Result<()> {
        if !table.fits(record, self.encoding) {
            return self.lose(place, record);
        }
        let (mut names, mut marks, mut values) = (Vec::new(), Vec::new(), Vec::new());
        if let Some(rowid) = table.rowid {
            names.push(rowid.to_owned());
            marks.push("?");
            values.push(Bound::Number(place.rowid));
        }
        // A record is shorter than its table if columns were added later: those get their default by not being named.
        for (n, (column, value)) in table.columns.iter().zip(record.values()).enumerate() {
            if column.generated {
                continue;
            }
            names.push(quoted(&column.name));
            if table.alias == Some(n) {
                marks.push("?");
                values.push(Bound::Number(place.rowid));
            } else {
                let (mark, value) = self.bind(value);
                marks.push(mark);
                values.push(value);
            }
        }
        let target = quoted(&table.name);
        let sql = if names.is_empty() {
            format!("INSERT INTO {target} DEFAULT VALUES")
        } else {
            format!("INSERT INTO {target} ({}) VALUES ({})", names.join(", "), marks.join(", "))
        };
        let mut statement = self.connection.prepare_cached(&sql)?;
        match statement.execute(params_from_iter(values)) {
            Ok(_) => {
                *self.rows.entry(table.name.clone()).or_default() += 1;
                Ok(())
            }
            Err(e) if is_of_the_disk(&e) => Err(e),
            // A constraint that another row of the salvaged file stands against, or a function that is not here.
            Err(_) => self.lose(place, record),
        }
    }

    /// Keeps a row that has no table, under the names that `sqlite3 .recover` uses.
    pub(super) fn lose(&mut self, place: Place, record: &Record<'_>) -> rusqlite::Result<()> {
        let (mut marks, mut values) = (Vec::new(), Vec::new());
        let fields = record.values().count();
        for number in [place.root.map(i64::from), Some(i64::from(place.page)), i64::try_from(fields).ok(), place.rowid]
        {
            marks.push("?");
            values.push(Bound::Number(number));
        }
        for value in record.values().take(MOST_FIELDS) {
            let (mark, value) = self.bind(value);
            marks.push(mark);
            values.push(value);
        }
        let kept = fields.min(MOST_FIELDS);
        let target = quoted(&self.lost_table(kept)?);
        let names: String = (0..kept).map(|n| format!(", c{n}")).collect();
        let sql = format!("INSERT INTO {target} (rootpgno, pgno, nfield, id{names}) VALUES ({})", marks.join(", "));
        self.connection.prepare_cached(&sql)?.execute(params_from_iter(values))?;
        self.unplaced += 1;
        Ok(())
    }

    fn bind<'v>(&self, value: Value<'v>) -> (&'static str, Bound<'v>) {
        match value {
            Value::Text(bytes) => match self.encoding.decode(bytes) {
                Some(text) => ("?", Bound::Decoded(text)),
                // A cast takes the bytes for text of the file's encoding without looking at them.
                None => ("CAST(? AS TEXT)", Bound::Stored(value)),
            },
            _ => ("?", Bound::Stored(value)),
        }
    }

    fn lost_table(&mut self, fields: usize) -> rusqlite::Result<String> {
        let name = match self.lost.clone() {
            Some(name) => name,
            None => {
                let taken = |name: &str| self.rows.keys().any(|t| t.eq_ignore_ascii_case(name));
                let mut name = "lost_and_found".to_owned();
                let mut n = 0;
                while taken(&name) {
                    name = format!("lost_and_found_{n}");
                    n += 1;
                }
                self.connection.execute_batch(&format!(
                    "CREATE TABLE {name} (rootpgno INTEGER, pgno INTEGER, nfield INTEGER, id INTEGER)"
                ))?;
                self.lost.insert(name).clone()
            }
        };
        for n in self.lost_fields..fields {
            self.connection.execute_batch(&format!("ALTER TABLE {name} ADD COLUMN c{n}"))?;
            self.lost_fields = n + 1;
        }
        Ok(name)
    }
}

/// True for what will not go better with the next row.
pub(super) fn is_of_the_disk(error: &rusqlite::Error) -> bool {
    use ErrorCode::{
        CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull, OutOfMemory, ReadOnly, SystemIoFailure,
    };
    matches!(
        error.sqlite_error_code(),
        Some(
            DiskFull
                | SystemIoFailure
                | OutOfMemory
                | ReadOnly
                | DatabaseCorrupt
                | CannotOpen
                | DatabaseBusy
                | DatabaseLocked
        )
    )
}
