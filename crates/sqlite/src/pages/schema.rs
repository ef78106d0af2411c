//! What a database says of its tables and indexes: the rows of its first tree.

use std::io;
use std::ops::ControlFlow;

use super::{PageSource, Record, Value, Walk, walk};

/// One row of `sqlite_schema`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// `table`, `index`, `view` or `trigger`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The table that it belongs to.
    pub table: String,
    /// The root of its tree; zero if it has none.
    pub root: u32,
    /// How it was created; empty for an index that a constraint made.
    pub sql: String,
}

/// The objects of a database, as many as can be read.
///
/// # Errors
/// The system's answer.
pub fn schema(source: &dyn PageSource) -> io::Result<(Vec<Object>, Walk)> {
    let mut objects = Vec::new();
    let encoding = source.layout().encoding;
    let walked = walk(source, 1, &mut |row| {
        let Some(record) = Record::parse(row.payload) else { return Ok(ControlFlow::Continue(())) };
        let mut values = record.values();
        let mut text = || match values.next() {
            Some(Value::Text(bytes)) => encoding.decode(bytes),
            Some(Value::Null) => Some(String::new()),
            _ => None,
        };
        let names = (text(), text(), text());
        let root = match values.next() {
            Some(Value::Integer(root)) => u32::try_from(root).ok(),
            Some(Value::Null) => Some(0),
            _ => None,
        };
        let sql = match values.next() {
            Some(Value::Text(bytes)) => encoding.decode(bytes),
            _ => Some(String::new()),
        };
        if let ((Some(kind), Some(name), Some(table)), Some(root), Some(sql)) = (names, root, sql) {
            objects.push(Object { kind, name, table, root, sql });
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((objects, walked))
}
