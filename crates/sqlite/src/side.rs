//! The directory beside a database in which the crate keeps what it must remember (`X.statehouse`).
//!
//! Nothing is created there until an operation has something to remember, everything in it is private to the owner of
//! the database, and it is entered by descriptors, never through a symbolic link.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Reason, Result};
use crate::family::Family;
use crate::secure::{self, Inspected};

/// The name of the marker that says that a database was created here, so that its absence is never taken for a new home.
pub const CREATED: &str = "created";

pub(crate) const DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// The side directory, created if it is not there (mode 0700, owned as the database is).
///
/// # Errors
/// A refusal when something else stands there, or the system's answer.
pub fn create(inspected: &Inspected) -> Result<OwnedFd> {
    let path = inspected.family().side_directory();
    let name = path.file_name().unwrap_or(OsStr::new(""));
    subdirectory(inspected, inspected.directory(), name, &path)
}

/// The side directory of a database that this process has open, made again with everything above it that somebody has
/// removed. It says from the first moment on that a database was here, so that nobody takes the place for a new home.
///
/// # Errors
/// As [`create`]; the system's answer when the database's own directory cannot be made again.
pub(crate) fn make_again(family: &Family) -> Result<Inspected> {
    let directory = family.directory();
    let io = |e: std::io::Error| Error::io("make again the directory", directory, e);
    let missing: Vec<_> = directory.ancestors().take_while(|d| !d.exists()).collect();
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(io)?;
    // What is acknowledged from now on must not lose its directory in a power cut.
    for parent in missing.iter().filter_map(|made| made.parent()) {
        sync(parent).map_err(io)?;
    }
    let place = secure::inspect_place(family)?;
    create(&place)?;
    if !place.created_before() {
        mark_created(&place)?;
        sync(directory).map_err(io)?;
    }
    Ok(place)
}

fn sync(directory: &Path) -> std::io::Result<()> {
    Ok(rustix::fs::open(directory, DIRECTORY, Mode::empty()).and_then(rustix::fs::fsync)?)
}

/// A private directory inside `parent`, created if it is not there. `path` is what an error names.
///
/// # Errors
/// As [`create`].
pub fn subdirectory(
    inspected: &Inspected,
    parent: BorrowedFd<'_>,
    name: impl AsRef<OsStr>,
    path: &Path,
) -> Result<OwnedFd> {
    let name = name.as_ref();
    let made = match rustix::fs::mkdirat(parent, name, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(Errno::NOSPC | Errno::DQUOT) => return Err(Error::Full),
        Err(Errno::NAMETOOLONG) => return Err(Error::refused(Reason::NameTooLong, inspected.family().main(), "")),
        Err(e) => return Err(Error::io("create", path, e)),
    };
    let directory = rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()).map_err(|e| match e {
        Errno::LOOP | Errno::MLINK => Error::refused(Reason::Symlink, path, ""),
        Errno::NOTDIR => Error::refused(Reason::NotRegular, path, "a directory is expected here"),
        e => Error::io("open", path, e),
    })?;
    if made {
        rustix::fs::fchmod(&directory, Mode::RWXU).map_err(|e| Error::io("create", path, e))?;
        inspected.hand_over(directory.as_fd()).map_err(|e| Error::io("create", path, e))?;
        // Whoever flushes what is put into it relies on its own name, which a power cut would take away with all of it. The
        // parent may be a descriptor that only names it, so it is opened.
        let flushed = rustix::fs::openat(parent, ".", DIRECTORY, Mode::empty()).and_then(rustix::fs::fsync);
        flushed.map_err(|e| Error::io("flush the directory of", path, e))?;
    }
    Ok(directory)
}

/// The side directory if it is there.
///
/// # Errors
/// As [`create`].
pub fn open(directory: &Path) -> Result<Option<OwnedFd>> {
    match rustix::fs::open(directory, DIRECTORY, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        // A name that cannot be there is not there.
        Err(Errno::NOENT | Errno::NAMETOOLONG) => Ok(None),
        Err(Errno::LOOP | Errno::MLINK) => Err(Error::refused(Reason::Symlink, directory, "")),
        Err(Errno::NOTDIR) => Err(Error::refused(Reason::NotRegular, directory, "a directory is expected here")),
        Err(Errno::ACCESS | Errno::PERM) => Err(Error::refused(Reason::Permission, directory, "")),
        Err(e) => Err(Error::io("open", directory, e)),
    }
}

/// Writes the marker that a database was created here. To be called after the first commit: from then on a missing main
/// file is an error and not a new home.
///
/// # Errors
/// As [`create`].
pub fn mark_created(inspected: &Inspected) -> Result<()> {
    let path = inspected.family().side_directory().join(CREATED);
    let side = create(inspected)?;
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let io = |e: Errno| Error::io("create", &path, e);
    let file = rustix::fs::openat(&side, CREATED, flags, Mode::RUSR | Mode::WUSR).map_err(io)?;
    inspected.hand_over(file.as_fd()).map_err(|e| Error::io("create", &path, e))?;
    rustix::fs::fsync(&file).map_err(io)?;
    rustix::fs::fsync(&side).map_err(io)
}
