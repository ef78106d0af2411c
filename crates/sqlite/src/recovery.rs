//! One process at a time deals with a retired generation; openers wait for it.
//!
//! The lock is a file of its own beside the database. Whoever opens the database holds its shared side until the
//! connection stands; whoever captures, moves aside and merges holds the exclusive side. So nobody opens between
//! the moment at which an old log still lies at its path and the moment at which its rows are in the live database.

use std::fs::File;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::family::Family;
use crate::files;

/// Held until dropped.
#[derive(Debug)]
pub(crate) struct RecoveryLock(#[expect(dead_code, reason = "the lock lives as long as its descriptor")] File);

/// Waits for the shared side.
pub(crate) fn shared(family: &Family, patience: Duration) -> Result<RecoveryLock> {
    lock(family, FlockOperation::NonBlockingLockShared, patience)
}

/// Waits for the exclusive side.
pub(crate) fn exclusive(family: &Family, patience: Duration) -> Result<RecoveryLock> {
    lock(family, FlockOperation::NonBlockingLockExclusive, patience)
}

/// The shared side if nobody is recovering now. Held while the log is copied into the main file: a copy that went on beside
/// a recovery would put pages of a retired generation into a main file that has moved on.
pub(crate) fn try_shared(family: &Family) -> Result<RecoveryLock> {
    shared(family, Duration::ZERO)
}

/// True if somebody has taken the lock before, so that the file is there.
pub(crate) fn was_taken(family: &Family) -> bool {
    path(family).exists()
}

fn path(family: &Family) -> PathBuf {
    family.side_directory().join("recovery.lock")
}

fn lock(family: &Family, operation: FlockOperation, patience: Duration) -> Result<RecoveryLock> {
    let path = path(family);
    let open = || files::open_private(&path).map_err(|e| Error::io("open", &path, e));
    let mut file = open()?;
    let begun = Instant::now();
    loop {
        match flock(&file, operation) {
            Ok(()) if is_named(&file, &path) => return Ok(RecoveryLock(file)),
            // Somebody removed the directory meanwhile; the lock that others will take is another file.
            Ok(()) => file = open()?,
            Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) if begun.elapsed() < patience => std::thread::sleep(Duration::from_millis(5)),
            Err(Errno::WOULDBLOCK) => {
                let holder = Some("a process that is recovering the database".to_owned());
                return Err(Error::Busy { waited: begun.elapsed(), holder });
            }
            Err(e) => return Err(Error::io("lock", &path, e)),
        }
    }
}

fn is_named(file: &File, path: &std::path::Path) -> bool {
    let (Ok(here), Ok(there)) = (rustix::fs::fstat(file), rustix::fs::lstat(path)) else { return false };
    (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
}
