//! Record locks that belong to an open file description instead of a process (`F_OFD_*`, Linux 3.15).
//!
//! A POSIX record lock is dropped when its process closes *any* descriptor of the file. A lock of an open file description
//! lives until it is released or the last descriptor of that description closes, and it excludes POSIX locks of other
//! processes, and even of its own, as one of another process would.

#![expect(unsafe_code, reason = "rustix offers record locks only for whole files, and SQLite locks ranges of bytes")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// A range of bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first byte.
    pub start: i64,
    /// How many; 0 reaches to the end of the file, whatever that is.
    pub length: i64,
}

impl Range {
    /// The last byte that belongs to it.
    pub fn last(self) -> i64 {
        if self.length == 0 { i64::MAX } else { self.start.saturating_add(self.length - 1) }
    }
}

/// SQLite's pending byte in the main file: taken for the moment in which a shared lock is acquired.
pub const PENDING: Range = Range { start: 0x4000_0000, length: 1 };
/// SQLite's reserved byte in the main file, of a writer in rollback mode.
pub const RESERVED: Range = Range { start: 0x4000_0001, length: 1 };
/// SQLite's shared range in the main file: whoever has the database open holds a read lock on it.
pub const SHARED: Range = Range { start: 0x4000_0002, length: 510 };
/// The byte of `-shm` on which every connection in WAL mode holds a read lock ("dead man's switch").
pub const DMS: Range = Range { start: 128, length: 1 };
/// The byte of `-shm` that a writer in WAL mode holds.
pub const WAL_WRITE: Range = Range { start: 120, length: 1 };
/// The byte of `-shm` that a checkpointer holds.
pub const WAL_CHECKPOINT: Range = Range { start: 121, length: 1 };
/// The first of the five bytes of `-shm` that readers hold.
pub const WAL_READ0: i64 = 123;

/// Shared or exclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Others may read-lock too.
    Read,
    /// Nobody else.
    Write,
}

fn flock(kind: libc::c_int, range: Range) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: range.start,
        l_len: range.length,
        l_pid: 0,
    }
}

fn call(fd: impl AsFd, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    // SAFETY: the descriptor is borrowed for the call, the command is one of the F_OFD_* that take a pointer to a
    // `flock`, and the pointer leads to a whole, initialised one that outlives the call.
    match unsafe { libc::fcntl(fd.as_fd().as_raw_fd(), command, std::ptr::from_mut(lock)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Takes or converts a lock without waiting; false if somebody else's is in the way.
///
/// # Errors
/// The system's answer; a read lock needs a descriptor for reading and a write lock one for writing.
pub fn try_lock(fd: impl AsFd, kind: Kind, range: Range) -> io::Result<bool> {
    let kind = match kind {
        Kind::Read => libc::F_RDLCK,
        Kind::Write => libc::F_WRLCK,
    };
    match call(fd, libc::F_OFD_SETLK, &mut flock(kind, range)) {
        Ok(()) => Ok(true),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Releases whatever this description holds in the range.
///
/// # Errors
/// The system's answer.
pub fn unlock(fd: impl AsFd, range: Range) -> io::Result<()> {
    call(fd, libc::F_OFD_SETLK, &mut flock(libc::F_UNLCK, range))
}

/// A lock that is in the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    /// Shared or exclusive.
    pub kind: Kind,
    /// The process of a POSIX lock; `None` for a lock of an open file description and for a process of a namespace that
    /// this one cannot see.
    pub pid: Option<i32>,
}

/// Somebody else's lock that a lock of `kind` on the range would wait for. Takes nothing.
///
/// # Errors
/// The system's answer.
pub fn conflict(fd: impl AsFd, kind: Kind, range: Range) -> io::Result<Option<Conflict>> {
    let wanted = match kind {
        Kind::Read => libc::F_RDLCK,
        Kind::Write => libc::F_WRLCK,
    };
    let mut lock = flock(wanted, range);
    call(fd, libc::F_OFD_GETLK, &mut lock)?;
    let kind = match libc::c_int::from(lock.l_type) {
        libc::F_UNLCK => return Ok(None),
        libc::F_WRLCK => Kind::Write,
        _ => Kind::Read,
    };
    Ok(Some(Conflict { kind, pid: (lock.l_pid > 0).then_some(lock.l_pid) }))
}
