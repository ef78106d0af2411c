//! A file that is being made, under a name that nobody takes for a snapshot: `ID.partial.PID`.
//!
//! It lies where the finished one will, so that its room is that of the right volume and its name is given by a rename. Whoever
//! makes it holds an advisory lock on it (`flock`), which ends with the process however that ends. What the next one finds
//! without a lock was left behind by a dead process, also by one that another container cannot see or whose number was given
//! to another since.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use statehouse_sqlite::secure::Inspected;
use statehouse_sqlite::{files, side};

use super::error::{Result, io};
use super::record;

const PARTIAL: &str = ".partial.";

/// The directory of the snapshots, which goes again if it was made for nothing.
pub(super) struct Place {
    pub(super) path: PathBuf,
    made: Vec<PathBuf>,
}

impl Place {
    /// Makes it if it is not there, private to the owner of the database.
    pub(super) fn create(inspected: &Inspected) -> Result<Place> {
        let path = record::directory(inspected.family());
        let above = inspected.family().side_directory();
        let made = [&path, &above].into_iter().filter(|p| !p.exists()).cloned().collect();
        // From here on what was made goes again if the next step fails.
        let place = Place { path, made };
        let side = side::create(inspected)?;
        side::subdirectory(inspected, side.as_fd(), "snapshots", &place.path)?;
        if place.made.contains(&above) {
            record::sync(inspected.family().directory())?;
        }
        if !place.made.is_empty() {
            record::sync(&above)?;
        }
        Ok(place)
    }

    /// Removes what dead processes have left. What cannot be removed is there the next time.
    pub(super) fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return };
        for entry in entries.flatten() {
            if !entry.file_name().to_string_lossy().contains(PARTIAL) {
                continue;
            }
            let path = entry.path();
            let Ok(file) = files::open(&path) else { continue };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && still(&file, &path) {
                let _ = std::fs::remove_file(&path);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        for directory in &self.made {
            // Only an empty one goes.
            let _ = std::fs::remove_dir(directory);
        }
    }
}

/// True if a path still names a file.
fn still(file: &File, path: &Path) -> bool {
    let here = rustix::fs::stat(path).map(|s| (s.st_dev, s.st_ino));
    matches!((here, rustix::fs::fstat(file)), (Ok(here), Ok(s)) if here == (s.st_dev, s.st_ino))
}

/// A file that is being made; it goes with its owner unless it was published.
pub(super) struct Staged {
    pub(super) path: PathBuf,
    pub(super) file: File,
    published: bool,
}

impl Staged {
    /// A new empty file for `name` in `place`.
    pub(super) fn create(inspected: &Inspected, place: &Path, name: &str) -> Result<Staged> {
        let path = place.join(format!("{name}{PARTIAL}{}", std::process::id()));
        loop {
            let file = files::open_private(&path).map_err(|e| io("create", &path, e))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // Between the two calls another process may have taken it for left behind.
                Ok(()) if !still(&file, &path) => {}
                Ok(()) => {
                    let staged = Staged { path, file, published: false };
                    inspected.hand_over(staged.file.as_fd()).map_err(|e| io("give away", &staged.path, e))?;
                    return Ok(staged);
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::yield_now(),
                Err(e) => return Err(io("lock", &path, e)),
            }
        }
    }

    /// Gives it its name. Its content must be on the disk.
    pub(super) fn publish(mut self, name: &Path) -> Result<()> {
        match renameat_with(CWD, &self.path, CWD, name, RenameFlags::NOREPLACE) {
            Ok(()) => {}
            // Not every file system can; names are not used twice.
            Err(Errno::INVAL | Errno::NOSYS) => {
                std::fs::rename(&self.path, name).map_err(|e| io("rename", &self.path, e))?;
            }
            Err(e) => return Err(io("rename", &self.path, e)),
        }
        self.published = true;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}
