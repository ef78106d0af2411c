//! Every row that can still be read of a database in which some pages are destroyed, in a fresh file.
//!
//! Each table is walked from its root; what lies below a page that cannot be read is left out and counted. Where the log has a
//! page, it is taken from there.

use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use super::write::{Output, Place};
use super::{SalvageError, create, trees};
use crate::pages::{FilePages, LogPages, Object, PageSource, Record, schema, walk};
use crate::wal::{Contents, ReadAt, Upto};

/// What could be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Readable {
    /// Rows that are in the new file.
    pub rows: u64,
    /// Rows that fit no table, in `lost_and_found`.
    pub unplaced: u64,
    /// Pages, or cells of pages, that could not be read.
    pub unread: u64,
    /// What else its schema names and is not in the new file.
    pub others: Vec<Other>,
}

/// An index, a trigger, a view or a virtual table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Other {
    /// `index`, `trigger`, `view` or `virtual table`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// The statement that makes it.
    pub sql: String,
}

/// Writes every row that can be read of `main`, with the pages of the log over it, to a new SQLite file at `output`. What of
/// that file is there after an error is worth nothing, and the caller removes it.
///
/// # Errors
/// [`SalvageError`]; [`SalvageError::Empty`] where the first page of neither file tells what a page is.
pub fn readable(main: &dyn ReadAt, wal: &dyn ReadAt, output: &Path) -> Result<Readable, SalvageError> {
    let contents = Contents::read(wal, Upto::Last)?;
    let (log, file) = (LogPages::of(main, wal, &contents)?, FilePages::of(main)?);
    let source: &dyn PageSource = match (&log, &file) {
        (Some(log), _) => log,
        (None, Some(file)) => file,
        (None, None) => return Err(SalvageError::Empty),
    };
    let mut connection = create(output, source)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let (trees, _) = trees(&mut connection, source, None, None)?;
    let names: Vec<String> =
        trees.iter().filter(|t| !t.is_derived).filter_map(|t| t.table.as_ref()).map(|t| t.name.clone()).collect();
    let mut output = Output::new(&connection, source.layout().encoding, &names);
    let mut unread = 0;
    for tree in trees.iter().filter(|t| !t.is_derived) {
        let mut stopped = None;
        let walked = walk(source, tree.root, &mut |row| {
            let place = Place { root: Some(tree.root), page: row.page, rowid: row.rowid };
            let Some(record) = Record::parse(row.payload) else {
                unread += 1;
                return Ok(ControlFlow::Continue(()));
            };
            let put = match &tree.table {
                Some(table) => output.put(table, place, &record),
                None => output.lose(place, &record),
            };
            put.map_err(|e| {
                stopped = Some(e);
                io::Error::other("it cannot be written")
            })?;
            Ok(ControlFlow::Continue(()))
        });
        match (walked, stopped) {
            (_, Some(e)) => return Err(e.into()),
            (walked, None) => unread += walked?.unread_count,
        }
    }
    let found =
        Readable { rows: output.rows.values().sum(), unplaced: output.unplaced, unread, others: others(source)? };
    connection.execute_batch("COMMIT")?;
    Ok(found)
}

fn others(source: &dyn PageSource) -> io::Result<Vec<Other>> {
    let objects = schema(source)?.0.into_iter().filter(|o| !o.sql.is_empty());
    let other = |o: Object| {
        let kind = match o.kind.as_str() {
            "table" if o.root == 0 => "virtual table".to_owned(),
            "table" => return None,
            _ => o.kind,
        };
        Some(Other { kind, name: o.name, sql: o.sql })
    };
    Ok(objects.filter_map(other).collect())
}
