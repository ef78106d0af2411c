//! A source as a file of its own: written, flushed, and proved by opening it.

use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{CWD, Mode, OFlags};
use statehouse_sqlite::secure::Inspected;
use statehouse_sqlite::{files, immutable};

use super::error::{Error, Result};
use super::source::Source;
use crate::maintenance::error::io;
use crate::maintenance::whole::{self, Rows};
use crate::progress::{Progress, Watch};

/// Pages that are copied between two looks at how far it is.
pub(crate) const STEP: i32 = 1024;

/// Where the header of a main file says how it is written and read: 1 for a rollback journal, 2 for a log.
/// <https://www.sqlite.org/fileformat2.html#the_database_header>
const VERSIONS_AT: u64 = 18;

/// Writes `source` into the new private file `to`, as a database with a log if `wal` says so, and proves it.
pub(crate) fn write(source: &Source, to: &Path, wal: bool, watch: Watch<'_>) -> Result<()> {
    drop(files::open_private(to).map_err(|e| io("create", to, e))?);
    let mut new = unprotected(to)?;
    watch(Progress::Begins { what: "writing the new file", bytes: Some(source.bytes()) });
    let backup = Backup::new(source.connection(), &mut new)?;
    while backup.step(STEP)? != StepResult::Done {
        tell(&backup, source.header.page_size, watch);
    }
    drop(backup);
    new.close().map_err(|(_, e)| e)?;
    set_mode_of_file(to, wal)?;
    prove(source, to, watch)
}

/// How far a copy is.
pub(crate) fn tell(backup: &Backup<'_, '_>, page_size: u32, watch: Watch<'_>) {
    let at = backup.progress();
    let done = i64::from(at.pagecount) - i64::from(at.remaining);
    watch(Progress::At(done.unsigned_abs() * u64::from(page_size)));
}

/// A file that nobody else knows of yet, and that is worth nothing until it is flushed.
pub(crate) fn unprotected(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.pragma_update(None, "journal_mode", "off")?;
    connection.pragma_update(None, "synchronous", 0)?;
    Ok(connection)
}

/// Says in its header how the file is written and read from now on, and flushes all of it.
pub(crate) fn set_mode_of_file(path: &Path, wal: bool) -> Result<()> {
    let file = files::open_private(path).map_err(|e| io("open", path, e))?;
    let version = if wal { 2 } else { 1 };
    file.write_all_at(&[version, version], VERSIONS_AT)
        .and_then(|()| file.sync_all())
        .map_err(|e| io("write", path, e).into())
}

/// Opens the file anew and compares it with its source.
pub(crate) fn prove(source: &Source, path: &Path, watch: Watch<'_>) -> Result<()> {
    watch(Progress::Begins { what: "checking", bytes: None });
    let fresh = immutable(path)?;
    whole::require(&fresh, path)?;
    same(source, &fresh, None)
}

/// Whether a connection sees what the source holds.
pub(crate) fn same(source: &Source, fresh: &Connection, before: Option<&str>) -> Result<()> {
    let found = source.rows.differences(&Rows::count(fresh, |_| true)?);
    if found.is_empty() { Ok(()) } else { Err(Error::Differs { found, before: before.map(str::to_owned) }) }
}

/// Gives the new file the owner and the mode that the one before it had. What is ours is private.
pub(crate) fn hand_over(inspected: &Inspected, path: &Path, private: bool) -> Result<()> {
    let file = files::open_private(path).map_err(|e| io("open", path, e))?;
    inspected.hand_over(file.as_fd()).map_err(|e| io("write", path, e))?;
    if let Some(old) = inspected.get(statehouse_sqlite::Member::Main).filter(|_| !private) {
        rustix::fs::fchmod(&file, Mode::from_raw_mode(old.status.mode & 0o777)).map_err(|e| io("write", path, e))?;
    }
    file.sync_all().map_err(|e| io("write", path, e).into())
}

/// Makes names durable.
pub(crate) fn flush_directory(path: &Path) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
        .and_then(rustix::fs::fsync)
        .map_err(|e| io("flush", path, e).into())
}
