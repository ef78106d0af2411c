//! The only place that opens SQLite for a database that is in use: flags, pragmas, limits.
//!
//! Every setting that a promise depends on is set on every connection and read back, because SQLite answers "ok" to
//! some pragmas that it did not follow.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::Value;
use rusqlite::{Connection, FileControl, OpenFlags};

use crate::error::{Error, Reason, Result};
use crate::family::{Family, Identity};
use crate::locks;

/// The largest value that a row may have, in bytes. Larger ones are refused by SQLite before they are written.
const LARGEST_VALUE: i32 = 256 << 20;

/// Opens the connection that writes. The main file exists and was `checked`.
///
/// # Errors
/// [`Reason::Changed`] if SQLite has opened another file, into which nothing was written then.
pub(crate) fn writer(
    family: &Family,
    checked: Option<Identity>,
    application_id: i32,
    patience: Duration,
) -> Result<Connection> {
    let connection = open(family, OpenFlags::SQLITE_OPEN_READ_WRITE, patience)?;
    // What follows writes, and in the moment since the check somebody may have moved another program's database there.
    if locks::descriptors(&family.main()).iter().any(|d| Some(d.identity) != checked) {
        return Err(Error::refused(Reason::Changed, family.main(), "another file took its place"));
    }
    let fresh = connection.query_row("PRAGMA page_count", [], |r| r.get::<_, i64>(0))? == 0;
    if fresh && application_id != 0 {
        // Before the log exists: then the mark is in the main file's own header from the first moment on.
        connection.pragma_update(None, "application_id", application_id)?;
    }
    let mode: String = connection.pragma_query_value(None, "journal_mode", |r| r.get(0))?;
    if mode != "wal" {
        connection.pragma_update(None, "journal_mode", "wal")?;
    }
    settle(family, &connection, false)?;
    Ok(connection)
}

/// Opens the connection that copies the log into the main file.
pub(crate) fn checkpointer(family: &Family, patience: Duration) -> Result<Connection> {
    let connection = open(family, OpenFlags::SQLITE_OPEN_READ_WRITE, patience)?;
    settle(family, &connection, false)?;
    Ok(connection)
}

/// Opens a connection that only reads.
pub(crate) fn reader(family: &Family, patience: Duration) -> Result<Connection> {
    let connection = open(family, OpenFlags::SQLITE_OPEN_READ_ONLY, patience)?;
    settle(family, &connection, true)?;
    Ok(connection)
}

/// Opens the connection of somebody who was admitted to do structural work, on a database in whatever journal mode.
pub(crate) fn structural(family: &Family, patience: Duration) -> Result<Connection> {
    let connection = open(family, OpenFlags::SQLITE_OPEN_READ_WRITE, patience)?;
    pragma(family, &connection, "mmap_size", 0)?;
    pragma(family, &connection, "synchronous", 2)?;
    pragma(family, &connection, "cell_size_check", 1)?;
    pragma(family, &connection, "wal_autocheckpoint", 0)?;
    // In WAL mode a first statement attaches the log, and with it come the two locks that last.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(connection)
}

/// Opens a file that nobody changes meanwhile, without locks and without files beside it: an image, or a database that
/// nobody has open and that has no log.
///
/// # Errors
/// What SQLite answers.
pub fn immutable(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Ok(Connection::open_with_flags(uri(path, "immutable=1"), flags)?)
}

/// A path as SQLite reads it where it reads URIs, with parameters such as `mode=ro`.
pub fn uri(path: &Path, parameters: &str) -> String {
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        // `#`, `?` and `%` have a meaning in a URI and would cut the path short.
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => uri.push(char::from(*byte)),
            other => uri.push_str(&format!("%{other:02x}")),
        }
    }
    uri.push('?');
    uri.push_str(parameters);
    uri
}

fn open(family: &Family, access: OpenFlags, patience: Duration) -> Result<Connection> {
    locks::protect()?;
    let flags =
        access | OpenFlags::SQLITE_OPEN_NOFOLLOW | OpenFlags::SQLITE_OPEN_EXRESCODE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    // The path is absolute and SQLITE_OPEN_URI is not given, so no character of it has a meaning of its own.
    let connection = Connection::open_with_flags(family.main(), flags)?;
    // Tidiness before anything else; that our processes never unlink a sidecar does not rest on it.
    connection.file_control(None::<&str>, FileControl::PersistWal(&mut 1))?;
    connection.busy_timeout(patience)?;
    // The last connection of a process would checkpoint when it closes: for a fenced handle that would write the pages
    // of a retired generation into a main file that has moved on. Checkpoints are the keeper's work alone.
    expect(
        family,
        "no checkpoint on close",
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?,
    )?;
    expect(family, "defensive", connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?)?;
    connection.set_limit(Limit::SQLITE_LIMIT_LENGTH, LARGEST_VALUE)?;
    Ok(connection)
}

/// Sets what every connection needs, reads each back, and attaches the log and its index by a first statement.
fn settle(family: &Family, connection: &Connection, read_only: bool) -> Result<()> {
    pragma(family, connection, "mmap_size", 0)?;
    pragma(family, connection, "synchronous", 2)?;
    pragma(family, connection, "foreign_keys", 1)?;
    pragma(family, connection, "trusted_schema", 0)?;
    pragma(family, connection, "cell_size_check", 1)?;
    pragma(family, connection, "wal_autocheckpoint", 0)?;
    pragma(family, connection, "query_only", i64::from(read_only))?;
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    let mode: String = connection.pragma_query_value(None, "journal_mode", |r| r.get(0))?;
    if mode != "wal" {
        return Err(Error::refused(Reason::Setting, family.main(), format!("journal_mode is {mode}")));
    }
    connection.set_prepared_statement_cache_capacity(64);
    Ok(())
}

fn pragma(family: &Family, connection: &Connection, name: &str, wanted: i64) -> Result<()> {
    connection.pragma_update(None, name, wanted)?;
    // A build without memory-mapped files answers `mmap_size` with no row, which is as good as zero.
    let mut got = Value::Integer(0);
    connection.pragma_query(None, name, |row| {
        got = row.get(0)?;
        Ok(())
    })?;
    if got == Value::Integer(wanted) {
        return Ok(());
    }
    Err(Error::refused(Reason::Setting, family.main(), format!("{name} is {got:?}, not {wanted}")))
}

fn expect(family: &Family, what: &str, set: bool) -> Result<()> {
    if set { Ok(()) } else { Err(Error::refused(Reason::Setting, family.main(), format!("{what} is off"))) }
}
