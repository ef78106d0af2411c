//! Writers of our own processes take turns.
//!
//! SQLite's write lock is neither fair nor in order: a process that commits and begins again at once gets it again and
//! again while the others sleep between two tries. Two kernel locks make a queue of it. A writer takes `next`, then
//! `hold`, and then lets `next` go: whoever has `next` gets `hold` as soon as it is free, and the one who had it must
//! stand at `next` again. The kernel releases both when a process dies, and wakes the waiting one without polling.
//!
//! The turn only orders our own writers; that two do not write at once is SQLite's own lock. So strangers, who do not
//! know the turnstile, and a side directory that somebody removed, cost fairness and nothing else.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::files;

/// The two locks of one database, opened by one writer of one process.
#[derive(Debug)]
pub struct Turnstile {
    directory: PathBuf,
    next: File,
    hold: File,
}

/// The turn. Dropping it lets the next writer in.
#[derive(Debug)]
pub struct Turn<'a>(&'a Turnstile);

impl Turnstile {
    /// Opens the locks below the side directory, which must exist.
    ///
    /// # Errors
    /// The system's answer.
    pub fn open(side_directory: &Path) -> Result<Turnstile> {
        let file = |name: &str| {
            let path = side_directory.join(name);
            files::open_private(&path).map_err(|e| Error::io("open", &path, e))
        };
        Ok(Turnstile { directory: side_directory.to_owned(), next: file("turn.next")?, hold: file("turn.hold")? })
    }

    /// Waits for the turn. There is no limit of time here: those who wait for an answer have one of their own.
    ///
    /// # Errors
    /// The system's answer.
    pub fn enter(&self) -> Result<Turn<'_>> {
        self.lock(&self.next, FlockOperation::LockExclusive)?;
        let entered = self.lock(&self.hold, FlockOperation::LockExclusive);
        self.lock(&self.next, FlockOperation::Unlock)?;
        entered.map(|()| Turn(self))
    }

    /// The path of the lock that the one whose turn it is holds; who that is, `/proc/locks` tells.
    pub fn held_by(&self) -> PathBuf {
        self.directory.join("turn.hold")
    }

    fn lock(&self, file: &File, operation: FlockOperation) -> Result<()> {
        loop {
            match flock(file, operation) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(Error::io("lock the turnstile in", &self.directory, e)),
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // An unlock of a lock that is held does not fail; if it did, the lock would end with the process.
        let _ = self.0.lock(&self.0.hold, FlockOperation::Unlock);
    }
}
