//! What one source of rows has beyond another one of the same capture.

use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use super::error::Result;
use super::source::Kind;
use crate::maintenance::quoted;

/// The rows that only a second source has, in a private file.
pub(super) struct Beyond {
    pub(super) rows: Connection,
    /// Where they are from.
    pub(super) kind: Kind,
}

/// Takes out of the private file `second` every row that `first` has as well, and the table `lost`; `None` if nothing is left.
pub(super) fn of(second: &Path, first: &Path, lost: Option<&str>, kind: Kind) -> Result<Option<Beyond>> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let rows = Connection::open_with_flags(second, flags)?;
    // It is the caller's own and goes with it.
    rows.execute_batch("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA foreign_keys=OFF")?;
    rows.execute("ATTACH ?1 AS first", [statehouse_sqlite::uri(first, "immutable=1")])?;
    let mut left = false;
    for (table, has_rowid) in tables(&rows)? {
        if lost.is_some_and(|lost| table.eq_ignore_ascii_case(lost)) || !subtract(&rows, &table, has_rowid)? {
            rows.execute_batch(&format!("DROP TABLE main.{}", quoted(&table)))?;
        } else {
            left = true;
        }
    }
    rows.execute_batch("DETACH first; PRAGMA query_only=1; PRAGMA trusted_schema=0")?;
    Ok(left.then_some(Beyond { rows, kind }))
}

fn tables(rows: &Connection) -> Result<Vec<(String, bool)>> {
    let mut all = rows.prepare(
        "SELECT name, NOT wr FROM pragma_table_list WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
    )?;
    let found = all.query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

/// Deletes what the first source has; true if rows are left.
fn subtract(rows: &Connection, table: &str, has_rowid: bool) -> Result<bool> {
    let name = quoted(table);
    let columns = |schema: &str| -> rusqlite::Result<Vec<String>> {
        let sql = "SELECT name FROM pragma_table_xinfo(?1, ?2) WHERE hidden <> 2";
        rows.prepare(sql)?.query_map([table, schema], |r| r.get(0))?.collect()
    };
    let (ours, theirs) = (columns("main")?, columns("first")?);
    if ours.iter().all(|c| theirs.iter().any(|t| t.eq_ignore_ascii_case(c))) {
        // Types and bytes, whatever the columns' own rules of comparing say.
        let mut same: Vec<String> = ours
            .iter()
            .map(|c| quoted(c))
            .map(|c| format!("f.{c} IS t.{c} COLLATE BINARY AND typeof(f.{c}) = typeof(t.{c})"))
            .collect();
        let number = ["rowid", "_rowid_", "oid"].into_iter().find(|n| !ours.iter().any(|c| c.eq_ignore_ascii_case(n)));
        same.extend(number.filter(|_| has_rowid).map(|n| format!("f.{n} = t.{n}")));
        let same = same.join(" AND ");
        rows.execute_batch(&format!(
            "DELETE FROM main.{name} AS t WHERE EXISTS (SELECT 1 FROM first.{name} AS f WHERE {same})"
        ))?;
    }
    Ok(rows.query_row(&format!("SELECT EXISTS (SELECT 1 FROM main.{name})"), [], |r| r.get(0))?)
}
