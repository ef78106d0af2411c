//! The flush of a commit is made after the write lock was let go.
//!
//! SQLite flushes the log inside `COMMIT`, while it has the write lock: writers of several processes then wait for one
//! flush after the other, on a slow disk for nothing else. Here a commit is written and published under the lock, and
//! flushed without it, so that the next process writes meanwhile and flushes of several processes overlap.
//!
//! The invariant is that nobody is answered before a flush of the log that began after their commit. It holds for what
//! an answer rests on too: whoever read a commit of another process that is not durable yet flushes the same log before
//! answering, even if the request found nothing left to write. What a mere reader sees may be one flush ahead of the
//! disk, so after a power cut it can be gone, like everything for which nobody was told that it is kept.
//!
//! It is done where SQLite asks its file to be flushed, and only while [`Committer::commit`] runs. `synchronous` stays
//! FULL, so a migration, a merge, a checkpoint, and the header of a log that begins anew are flushed where SQLite says.
//! Frames that reach the disk in another order than they were written are no danger: their checksums chain, and a
//! checkpoint flushes the log before it copies from it.
#![expect(unsafe_code, reason = "stands between SQLite and the flush of its log")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Deref;
use std::ptr::{self, NonNull};

use rusqlite::{Connection, ffi};

use crate::error::{Error, Reason, Result};
use crate::family::Family;

/// The connection that commits for a handle.
#[derive(Debug)]
pub(crate) struct Committer {
    // Before `methods`, because closing it goes through them.
    connection: Connection,
    methods: Methods,
}

/// What SQLite calls for the log of one connection, in the place of its own functions.
#[derive(Debug)]
struct Methods(NonNull<Replaced>);

#[repr(C)]
struct Replaced {
    /// First, so that the pointer that the file has to it leads to all of this.
    methods: ffi::sqlite3_io_methods,
    original: *const ffi::sqlite3_io_methods,
    /// A flush may be put off.
    later: Cell<bool>,
    /// The log's header was written and not flushed yet.
    header: Cell<bool>,
    /// A flush was put off and not made yet, or it failed.
    owed: Cell<bool>,
}

// SAFETY: what the pointer leads to is owned by it alone, and is used only by whoever uses the connection beside it, which
// is one thread at a time.
unsafe impl Send for Methods {}

impl Drop for Methods {
    fn drop(&mut self) {
        // SAFETY: it is the box that `Committer::new` leaked, and the connection, whose file had the only other pointer, is closed.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Committer {
    /// Takes over a connection to a database in WAL mode that has run its first statement.
    ///
    /// # Errors
    /// [`Reason::Setting`] when the connection has no log.
    pub(crate) fn new(family: &Family, connection: Connection) -> Result<Committer> {
        let no_log = |detail: &str| Error::refused(Reason::Setting, family.main(), detail);
        let file = log_file(&connection).ok_or_else(|| no_log("SQLite does not show its log"))?;
        // SAFETY: SQLite answered that this is the connection's log, which stays where it is until the connection is closed
        // or leaves WAL mode; no other thread uses the connection meanwhile.
        let original = unsafe { (*file.as_ptr()).pMethods };
        // SAFETY: an open file's methods are a table that is never freed.
        let methods = unsafe { original.as_ref() }.ok_or_else(|| no_log("the log is not open"))?;
        let replaced = Replaced {
            methods: ffi::sqlite3_io_methods { xWrite: Some(write), xSync: Some(sync), ..*methods },
            original,
            later: Cell::new(false),
            header: Cell::new(false),
            owed: Cell::new(false),
        };
        let methods = Methods(NonNull::from(Box::leak(Box::new(replaced))));
        // SAFETY: as above; the new table lives longer than the connection, since it is dropped after it.
        unsafe { (*file.as_ptr()).pMethods = methods.0.as_ptr().cast() };
        Ok(Committer { connection, methods })
    }

    /// Commits without a flush: the commit is visible to everybody, and durable after [`Committer::flush`].
    ///
    /// # Errors
    /// What SQLite answers; then nothing was committed.
    pub(crate) fn commit(&self) -> rusqlite::Result<()> {
        self.state().later.set(true);
        let done = self.connection.prepare_cached("COMMIT").and_then(|mut s| s.execute([]));
        self.state().later.set(false);
        done.map(drop)
    }

    /// Makes durable whatever is in the log.
    ///
    /// # Errors
    /// [`Error::Unflushed`]. Then a commit is visible that may not be durable, and a later flush of the log proves nothing
    /// about it, since the system reports a failed write once. It may be another process's commit. [`Committer::owes`] is
    /// true from then on.
    pub(crate) fn flush(&self) -> Result<()> {
        // Also if this connection had nothing to write: others' commits are made durable by the same flush.
        self.state().owed.set(true);
        let file = log_file(&self.connection).ok_or(Error::Unflushed)?;
        // SAFETY: SQLite answered that this is the connection's log, and no other thread uses the connection meanwhile.
        let flush = unsafe { (*file.as_ptr()).pMethods.as_ref() }.and_then(|m| m.xSync).ok_or(Error::Unflushed)?;
        // SAFETY: the function belongs to this very file.
        if unsafe { flush(file.as_ptr(), ffi::SQLITE_SYNC_NORMAL) } != ffi::SQLITE_OK {
            return Err(Error::Unflushed);
        }
        self.state().owed.set(false);
        Ok(())
    }

    /// True if something in the log was to be flushed, and was not or that failed.
    pub(crate) fn owes(&self) -> bool {
        self.state().owed.get()
    }

    /// Calls `hook` with the number of frames in the log after each commit.
    pub(crate) fn on_commit(&mut self, mut hook: impl FnMut(i32) + Send + 'static) -> rusqlite::Result<()> {
        self.connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, frames| {
            hook(frames);
            Ok(())
        }))
    }

    fn state(&self) -> &Replaced {
        // SAFETY: it lives as long as `self`, and nobody has a mutable reference to it.
        unsafe { self.methods.0.as_ref() }
    }
}

/// Makes durable by another way what a failed flush of the log has left in doubt: all of the log is copied into the main
/// file, and that is flushed.
///
/// # Errors
/// [`Error::Unflushed`] when a reader or writer of another process was in the way or the disk fails again; try again.
pub(crate) fn copy_all(connection: &Connection) -> Result<()> {
    copy(connection, "PRAGMA wal_checkpoint(FULL)")
}

/// As [`copy_all`], but keeps no writer waiting for a reader that is in the way.
///
/// # Errors
/// As [`copy_all`].
pub(crate) fn copy_beside_readers(connection: &Connection) -> Result<()> {
    copy(connection, "PRAGMA wal_checkpoint(PASSIVE)")
}

fn copy(connection: &Connection, sql: &str) -> Result<()> {
    let (busy, frames, copied) =
        connection.query_row(sql, [], |r| Ok((r.get::<_, i64>(0)?, r.get::<_, i64>(1)?, r.get::<_, i64>(2)?)))?;
    if busy == 0 && copied == frames { Ok(()) } else { Err(Error::Unflushed) }
}

impl Deref for Committer {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

/// The file of the connection's log. Asked for each time: it is another one after the log was closed and opened.
fn log_file(connection: &Connection) -> Option<NonNull<ffi::sqlite3_file>> {
    let mut file: *mut ffi::sqlite3_file = ptr::null_mut();
    let out: *mut c_void = (&raw mut file).cast();
    // SAFETY: the handle is open as long as the connection, the name is a C string, and SQLite writes one pointer to `out`.
    let rc = unsafe {
        ffi::sqlite3_file_control(connection.handle(), c"main".as_ptr(), ffi::SQLITE_FCNTL_JOURNAL_POINTER, out)
    };
    if rc == ffi::SQLITE_OK { NonNull::new(file) } else { None }
}

/// The state behind a log whose methods were replaced.
///
/// # Safety
/// The file must have the methods of a [`Replaced`], which is so when SQLite calls one of the two functions below.
unsafe fn replaced<'a>(file: *mut ffi::sqlite3_file) -> &'a Replaced {
    // SAFETY: as the caller promises; the table is the first field of a `Replaced` that outlives the open file.
    unsafe { &*(*file).pMethods.cast::<Replaced>() }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: SQLite calls this for files that have it among their methods.
    let state = unsafe { replaced(file) };
    let of_header = state.header.replace(false);
    if state.later.get() && !of_header {
        state.owed.set(true);
        return ffi::SQLITE_OK;
    }
    // SAFETY: the table that the file was opened with is never freed.
    match unsafe { (*state.original).xSync } {
        // SAFETY: the function belongs to this file.
        Some(original) => match unsafe { original(file, flags) } {
            ffi::SQLITE_OK => ffi::SQLITE_OK,
            failed => {
                // Whoever asked, this connection will not hear of it again.
                state.owed.set(true);
                failed
            }
        },
        None => ffi::SQLITE_IOERR_FSYNC,
    }
}

unsafe extern "C" fn write(file: *mut ffi::sqlite3_file, bytes: *const c_void, count: c_int, offset: i64) -> c_int {
    // SAFETY: SQLite calls this for files that have it among their methods.
    let state = unsafe { replaced(file) };
    if offset == 0 {
        state.header.set(true);
    }
    // SAFETY: the table that the file was opened with is never freed.
    match unsafe { (*state.original).xWrite } {
        // SAFETY: the function belongs to this file, and the arguments are SQLite's own.
        Some(original) => unsafe { original(file, bytes, count, offset) },
        None => ffi::SQLITE_IOERR_WRITE,
    }
}
