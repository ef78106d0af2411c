//! What a database with an interrupted transaction holds once that is rolled back, without touching it.
//!
//! A restore must know it before it changes anything, for what it finds can refuse it. So SQLite rolls back a private copy of
//! all files, as the next opener would the database itself.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use statehouse_sqlite::secure::Inspected;
use statehouse_sqlite::{Member, files, uri};

use super::compare::{self, Compared};
use super::error::Result;
use super::found::place;
use super::source::Source;
use crate::attach::Scratch;
use crate::maintenance::error::io;

/// The private copy.
pub(super) struct RolledBack {
    path: PathBuf,
    /// Its tables.
    pub(super) tables: Vec<String>,
    _scratch: Scratch,
}

impl RolledBack {
    /// Copies and rolls back.
    ///
    /// # Errors
    /// No room for the copy; SQLite's answer, which would be the same for the database.
    pub(super) fn of(inspected: &Inspected, scratch: &Path) -> Result<RolledBack> {
        let members = [Member::Main, Member::Wal, Member::Journal].into_iter().filter_map(|m| inspected.get(m));
        let bytes = members.clone().map(|m| m.status.size).sum();
        let scratch = place(scratch, bytes)?;
        let path = scratch.path().join("image");
        for seen in members {
            let suffix = match seen.member {
                Member::Wal => "-wal",
                Member::Journal => "-journal",
                _ => "",
            };
            let from = inspected.family().path(seen.member);
            let to = scratch.path().join(format!("image{suffix}"));
            let mut source = files::open(&seen.magic_path()).map_err(|e| io("read", &from, e))?;
            let mut copy = files::open_private(&to).map_err(|e| io("create", &to, e))?;
            std::io::copy(&mut source, &mut copy).map_err(|e| io("copy to", &to, e))?;
        }
        let flags =
            OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW | OpenFlags::SQLITE_OPEN_EXRESCODE;
        let connection = Connection::open_with_flags(&path, flags)?;
        connection.pragma_update(None, "trusted_schema", 0)?;
        let tables = compare::tables(&connection, "main")?;
        connection.close().map_err(|(_, e)| e)?;
        Ok(RolledBack { path, tables, _scratch: scratch })
    }

    /// Compares it with the source.
    pub(super) fn compare(&self, source: &Source) -> Result<Compared> {
        compare::compare(Some(&uri(&self.path, "immutable=1")), source.uri())
    }
}
