//! Whether the volumes have room for a rewrite, and where its copy goes.
//!
//! A rewrite builds the new database in a temporary file and then writes every page of it through the log (in rollback mode:
//! every old page into the journal), so twice the kept pages are written before anything is given back. SQLite puts the
//! temporary file where the environment says, which is often a small volume or memory. So the place is chosen here: a place
//! that a person named (`SQLITE_TMPDIR`), else the database's own volume, which must have room for the log anyway, else any
//! other place with enough room.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rustix::fs::{CWD, Mode, OFlags};
use serde::Serialize;
use statehouse_sqlite::Family;

use super::Pages;
use super::error::{Error, Result, io};

/// What the rewrite needs beyond the pages themselves: headers, the index of the log, directories.
const MARGIN: u64 = 64 << 10;

/// Where temporary files may go.
#[derive(Debug, Clone, Default)]
pub struct Temporary {
    /// Where a person said that they go (`SQLITE_TMPDIR`).
    pub chosen: Option<PathBuf>,
    /// Other places, in the order in which they are tried after the database's own volume.
    pub others: Vec<PathBuf>,
}

/// What a rewrite takes, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Room {
    /// Bytes that the log, or the journal, takes on the database's volume.
    pub log_needs: u64,
    /// Bytes that the copy takes.
    pub copy_needs: u64,
    /// Bytes that are free on the database's volume.
    pub free: u64,
    /// Where the copy goes; `None` if no place has room for it.
    #[serde(serialize_with = "path")]
    pub copy_at: Option<PathBuf>,
}

fn path<S: serde::Serializer>(path: &Option<PathBuf>, to: S) -> std::result::Result<S::Ok, S::Error> {
    path.as_ref().map(|p| p.to_string_lossy()).serialize(to)
}

/// Bytes that this user may still write on the volume of a directory, and which volume that is.
pub(crate) fn free(directory: &Path) -> std::io::Result<(u64, u64)> {
    let volume = rustix::fs::statvfs(directory)?;
    let device = rustix::fs::stat(directory)?.st_dev;
    Ok((volume.f_bavail.saturating_mul(volume.f_frsize), device))
}

impl Room {
    /// Whether the main file can take so many bytes more, which the log holds and it does not.
    ///
    /// # Errors
    /// [`Error::NoRoom`] with the numbers.
    pub(super) fn to_grow(family: &Family, bytes: u64) -> Result<()> {
        let directory = family.directory();
        let (now, _) = free(directory).map_err(|e| io("ask for the free space of", directory, e))?;
        if now >= bytes {
            return Ok(());
        }
        let numbers = format!(
            "{now} bytes are free at {}; the main file needs {bytes} bytes more before its log can be given back",
            directory.display()
        );
        Err(Error::NoRoom { numbers })
    }

    /// What a rewrite of these pages takes. `returned` are bytes on the database's volume that will be given back before it
    /// begins (the present log), `wal` says that the pages go through a log.
    ///
    /// # Errors
    /// [`Error::NoRoom`] with the numbers of every place that was thought of.
    pub(super) fn find(family: &Family, pages: Pages, wal: bool, returned: u64, temporary: &Temporary) -> Result<Room> {
        let copy_needs = pages.kept() * pages.page_size + MARGIN;
        let log_needs = MARGIN
            + match wal {
                // Header of a frame, and its place in the index.
                true => pages.kept() * (pages.page_size + 24 + 8),
                false => pages.pages * (pages.page_size + 8),
            };
        let directory = family.directory();
        let (now, device) = free(directory).map_err(|e| io("ask for the free space of", directory, e))?;
        let free_here = now + returned;
        let mut room = Room { log_needs, copy_needs, free: free_here, copy_at: None };
        let mut elsewhere = Vec::new();
        let own = directory.to_owned();
        let candidates = temporary.chosen.iter().chain([&own]).chain(&temporary.others);
        for place in candidates {
            let Ok((there, on)) = free(place) else { continue };
            let same = on == device;
            let fits =
                if same { free_here >= log_needs + copy_needs } else { there >= copy_needs && free_here >= log_needs };
            if fits {
                room.copy_at = Some(place.clone());
                return Ok(room);
            }
            if !same {
                elsewhere.push(format!("{} has {there}", place.display()));
            }
        }
        elsewhere.dedup();
        let mut numbers = format!(
            "{} bytes are free at {}; the rewrite writes {log_needs} bytes to the {} there and {copy_needs} bytes to a \
             temporary copy, there or elsewhere",
            free_here,
            directory.display(),
            if wal { "log" } else { "journal" },
        );
        if !elsewhere.is_empty() {
            numbers.push_str(&format!(" ({})", elsewhere.join(", ")));
        }
        Err(Error::NoRoom { numbers })
    }
}

/// While it lives SQLite puts the temporary files of this process into one directory.
pub(super) struct Place<'a> {
    connection: &'a Connection,
    _directory: OwnedFd,
}

impl<'a> Place<'a> {
    /// Sends them to `directory`. Its name may be anything: SQLite is given a path of the kernel that leads to it.
    pub(super) fn set(connection: &'a Connection, directory: &Path) -> Result<Place<'a>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::openat(CWD, directory, flags, Mode::empty()).map_err(|e| io("open", directory, e))?;
        connection.execute_batch("PRAGMA temp_store = FILE")?;
        let place = format!("PRAGMA temp_store_directory = '/proc/self/fd/{}'", handle.as_raw_fd());
        connection.execute_batch(&place)?;
        Ok(Place { connection, _directory: handle })
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        // Without it the next temporary file of this process would find no directory, and SQLite would say so.
        let _ = self.connection.execute_batch("PRAGMA temp_store_directory = ''");
    }
}
