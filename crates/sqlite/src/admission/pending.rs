//! SQLite's pending byte, by which strangers are kept from opening a database in WAL mode.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use super::AGAIN;
use crate::error::{Error, Reason, Result};
use crate::family::{Family, Identity};
use crate::ofd::{self, Kind, PENDING};

/// The main file by a description that belongs to no connection, for the pending byte.
#[derive(Debug)]
pub(super) struct Pending {
    file: OwnedFd,
    path: PathBuf,
    process: u32,
}

impl Drop for Pending {
    fn drop(&mut self) {
        // As the lock file's (`lock.rs`).
        if self.process == std::process::id() {
            let _ = self.release();
        }
    }
}

impl Pending {
    /// To be called before the connection is opened: nothing opens a file of the family by ordinary means after that.
    pub(super) fn open(family: &Family, identity: Identity) -> Result<Pending> {
        Pending::of(&family.main(), identity)
    }

    /// As [`Pending::open`] for a file by its own name.
    pub(super) fn of(path: &Path, identity: Identity) -> Result<Pending> {
        let path = path.to_owned();
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(|e| Error::io("open", &path, e))?;
        let status = rustix::fs::fstat(&file).map_err(|e| Error::io("look at", &path, e))?;
        if (status.st_dev, status.st_ino) != (identity.device, identity.inode) {
            return Err(Error::refused(Reason::Changed, path, "another file took its place"));
        }
        Ok(Pending { file, path, process: std::process::id() })
    }

    pub(super) fn take(&self, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        let io = |e| Error::io("lock", &self.path, e);
        while !ofd::try_lock(&self.file, Kind::Write, PENDING).map_err(io)? {
            if begun.elapsed() >= patience {
                let owner = ofd::conflict(&self.file, Kind::Write, PENDING).map_err(io)?.and_then(|c| c.pid);
                return Err(Error::Busy { waited: begun.elapsed(), holder: owner.map(|pid| format!("PID {pid}")) });
            }
            std::thread::sleep(AGAIN);
        }
        Ok(())
    }

    pub(super) fn release(&self) -> Result<()> {
        ofd::unlock(&self.file, PENDING).map_err(|e| Error::io("unlock", &self.path, e))
    }
}
