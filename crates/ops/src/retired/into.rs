//! A new file that holds the database with what was brought back. It appears under its name when it is whole and proved, and never takes
//! the place of a file that is there.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use statehouse_sqlite::{files, immutable};

use super::error::{Error, Result, io};
use crate::maintenance::whole;

/// How many pages are copied at a time.
const STEP: i32 = 4096;

/// A file that is being made.
pub(super) struct Copy {
    to: PathBuf,
    partial: PathBuf,
    /// Open as long as connections to it are: closing it would drop their locks.
    _owned: File,
}

const PARTIAL: &str = ".partial.";

/// Refuses where the file is there already.
pub(super) fn refuse_there(to: &Path) -> Result<()> {
    match std::fs::symlink_metadata(to) {
        Ok(_) => Err(Error::Exists { path: to.to_owned() }),
        Err(_) => Ok(()),
    }
}

/// Removes what is left of this file by processes that were ended: nobody has a lock on it. What cannot be removed is there the
/// next time.
fn sweep(to: &Path) {
    let Some(name) = to.file_name().map(|n| n.to_string_lossy().into_owned()) else { return };
    let parent = to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = std::fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let found = entry.file_name().to_string_lossy().into_owned();
        let pid = found.strip_prefix(&name).and_then(|rest| rest.strip_prefix(PARTIAL));
        if pid.is_none_or(|pid| pid.is_empty() || !pid.bytes().all(|b| b.is_ascii_digit())) {
            continue;
        }
        let path = entry.path();
        let Ok(file) = files::open(&path) else { continue };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            remove(&path);
        }
    }
}

fn remove(partial: &Path) {
    for suffix in ["", "-journal", "-wal", "-shm"] {
        let mut name = partial.as_os_str().to_owned();
        name.push(suffix);
        let _ = std::fs::remove_file(PathBuf::from(name));
    }
}

impl Copy {
    /// Refuses where the file is there already. What processes that are dead have left of the same file goes.
    pub(super) fn new(to: &Path) -> Result<Copy> {
        refuse_there(to)?;
        sweep(to);
        let mut partial = to.as_os_str().to_owned();
        partial.push(format!("{PARTIAL}{}", std::process::id()));
        let partial = PathBuf::from(partial);
        let file = files::open_private(&partial).map_err(|e| io("create", &partial, e))?;
        file.set_len(0).map_err(|e| io("write", &partial, e))?;
        // It ends with this process, however that ends.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(Copy { to: to.to_owned(), partial, _owned: file })
    }

    /// Where it is to be.
    pub(super) fn to(&self) -> &Path {
        &self.to
    }

    /// Copies the database, and opens the copy for writing. Nobody else has it, and it is flushed at the end.
    pub(super) fn take(&self, from: &Connection) -> Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let mut copy = Connection::open_with_flags(&self.partial, flags)?;
        {
            let backup = Backup::new(from, &mut copy)?;
            loop {
                match backup.step(STEP)? {
                    StepResult::Done => break,
                    StepResult::More => {}
                    _ => std::thread::sleep(Duration::from_millis(20)),
                }
            }
        }
        copy.pragma_update(None, "journal_mode", "delete")?;
        copy.pragma_update(None, "synchronous", 0)?;
        copy.pragma_update(None, "trusted_schema", 0)?;
        copy.pragma_update(None, "foreign_keys", 1)?;
        Ok(copy)
    }

    /// Another connection, which sees the copy as it was.
    pub(super) fn reader(&self) -> Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let reader = Connection::open_with_flags(&self.partial, flags)?;
        reader.execute_batch("BEGIN")?;
        reader.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        Ok(reader)
    }

    /// Proves it, flushes it, and gives it its name. Every connection to it is closed.
    pub(super) fn publish(&self) -> Result<()> {
        whole::require(&immutable(&self.partial)?, &self.partial)?;
        let flush = |path: &Path| files::open(path).and_then(|f| f.sync_all()).map_err(|e| io("flush", path, e));
        flush(&self.partial)?;
        renameat_with(CWD, &self.partial, CWD, &self.to, RenameFlags::NOREPLACE).map_err(|e| match e {
            rustix::io::Errno::EXIST => Error::Exists { path: self.to.clone() },
            e => io("rename", &self.partial, e),
        })?;
        flush_directory(self.to.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))
    }
}

/// Makes the names in a directory outlive a power cut.
pub(super) fn flush_directory(directory: &Path) -> Result<()> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(directory, flags, rustix::fs::Mode::empty())
        .and_then(rustix::fs::fsync)
        .map_err(|e| io("flush", directory, e))
}

impl Drop for Copy {
    fn drop(&mut self) {
        // After it was published there is nothing of this name.
        remove(&self.partial);
    }
}
