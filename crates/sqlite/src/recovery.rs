//! One process at a time deals with a retired generation; openers wait for it.
//!
//! The lock is a file of its own beside the database. Whoever opens the database holds its shared side until the
//! connection stands; whoever captures, moves aside and merges holds the exclusive side. So nobody opens between
//! the moment at which an old log still lies at its path and the moment at which its rows are in the live database.

use std::fs::File;
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

fn lock(family: &Family, operation: FlockOperation, patience: Duration) -> Result<RecoveryLock> {
    let path = family.side_directory().join("recovery.lock");
    let file = files::open_private(&path).map_err(|e| Error::io("open", &path, e))?;
    let begun = Instant::now();
    loop {
        match flock(&file, operation) {
            Ok(()) => return Ok(RecoveryLock(file)),
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
