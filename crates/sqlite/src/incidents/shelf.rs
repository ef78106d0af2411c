//! The directory of the incidents: finding, writing, and keeping it bounded.
//!
//! The name of a file is the time at which the incident began and a number made of what it is about, so that a process
//! which has to tell of the same finds it without reading the others. Several processes tell of one retirement at
//! once, so a change is read, made and written under a lock. A process that was stopped while it had the lock delays the others
//! by a moment and no longer: an entry that is lost then is a smaller harm than a database that does not come back.
//!
//! Root tells of databases of other users, who can put a link in the place of any directory of theirs at any moment. So what is
//! changed is changed through a descriptor of the directory, which was entered without following one.

use std::fs::File;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, flock};
use rustix::io::Errno;

use super::{Incident, MOST_BYTES, MOST_FILES};
use crate::captures::{private_directory, sync_directory};
use crate::error::{Error, Result};
use crate::family::{Family, is_too_long};
use crate::words::rfc3339;
use crate::{files, secure, side};

const DIRECTORY: &str = "incidents";
const ENDING: &str = ".json";

/// The longest that is read of one.
const LONGEST: u64 = 256 * 1024;

/// How long the lock is waited for.
const PATIENCE: Duration = Duration::from_millis(300);

/// Where incidents are kept.
#[derive(Debug, Clone)]
pub(super) enum Shelf {
    /// Beside a database, in its side directory, which is made if it is missing.
    Beside(Family),
    /// In this directory, whose parent is there.
    In(PathBuf),
}

impl Shelf {
    pub(super) fn directory(&self) -> PathBuf {
        match self {
            Shelf::Beside(family) => family.side_directory().join(DIRECTORY),
            Shelf::In(directory) => directory.clone(),
        }
    }

    /// The file of an incident.
    pub(super) fn path(&self, id: &str) -> PathBuf {
        self.directory().join(format!("{id}{ENDING}"))
    }

    pub(super) fn make(&self) -> Result<Entered> {
        let place = self.directory();
        match self {
            Shelf::Beside(family) => {
                let inspected = secure::inspect_place(family)?;
                let side = side::create(&inspected)?;
                side::subdirectory(&inspected, side.as_fd(), DIRECTORY, &place).map(Entered::of)
            }
            Shelf::In(_) => private_directory(&place).map(|()| Entered { path: place, _held: None }),
        }
    }

    /// The directory if it is there.
    fn enter(&self) -> Result<Option<Entered>> {
        let Shelf::Beside(family) = self else { return Ok(Some(Entered { path: self.directory(), _held: None })) };
        let Some(side) = side::open(&family.side_directory())? else { return Ok(None) };
        match rustix::fs::openat(&side, DIRECTORY, side::DIRECTORY, Mode::empty()) {
            Ok(directory) => Ok(Some(Entered::of(directory))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(e) => Err(Error::io("open", &self.directory(), e)),
        }
    }

    /// All of them, the oldest first. A file that is no incident is none.
    pub(super) fn all(&self) -> Result<Vec<Incident>> {
        Ok(paths(&self.directory())?.iter().filter_map(|path| read(path)).collect())
    }

    /// Changes the newest incident about this, or makes one. `change` gets the one that is there and returns what is to be
    /// kept; `None` leaves everything as it is. Returns the id.
    pub(super) fn change(
        &self,
        about: &str,
        change: impl FnOnce(Option<Incident>) -> Option<Incident>,
    ) -> Result<Option<String>> {
        self.change_which(about, |_| true, change)
    }

    /// The same with the newest one that is `which`.
    pub(super) fn change_which(
        &self,
        about: &str,
        which: impl Fn(&Incident) -> bool,
        change: impl FnOnce(Option<Incident>) -> Option<Incident>,
    ) -> Result<Option<String>> {
        let place = self.make()?;
        let _lock = lock(&place.path);
        let Some(mut incident) = change(place.about(about, which)) else { return Ok(None) };
        let new = incident.id.is_empty();
        if new {
            // The number of this process would not tell two of the same moment apart, for one incident has several.
            incident.id = format!("{}-{}", moment(incident.at), number(about));
        }
        place.write(self, &incident)?;
        if new {
            prune(&place.path, MOST_FILES, MOST_BYTES)?;
        }
        sync_directory(&place.path)?;
        Ok(Some(incident.id))
    }

    /// Changes every incident that `change` returns something for.
    pub(super) fn change_all(&self, change: impl Fn(Incident) -> Option<Incident>) -> Result<u64> {
        let Some(place) = self.enter()? else { return Ok(0) };
        if paths(&place.path)?.is_empty() {
            return Ok(0);
        }
        let _lock = lock(&place.path);
        let mut changed = 0;
        for incident in paths(&place.path)?.iter().filter_map(|path| read(path)).filter_map(change) {
            place.write(self, &incident)?;
            changed += 1;
        }
        if changed > 0 {
            sync_directory(&place.path)?;
        }
        Ok(changed)
    }
}

/// The directory for as long as something in it is changed.
pub(super) struct Entered {
    /// Leads into it, whatever becomes of its name.
    path: PathBuf,
    _held: Option<OwnedFd>,
}

impl Entered {
    fn of(directory: OwnedFd) -> Entered {
        Entered { path: secure::magic_path(directory.as_fd()), _held: Some(directory) }
    }

    /// The newest one about this that is `which`.
    fn about(&self, about: &str, which: impl Fn(&Incident) -> bool) -> Option<Incident> {
        let end = format!("-{}{ENDING}", number(about));
        let ends = |path: &&PathBuf| path.to_string_lossy().ends_with(&end);
        let found = paths(&self.path).unwrap_or_default();
        found.iter().rev().filter(ends).filter_map(|path| read(path)).find(|i| i.about == about && which(i))
    }

    /// Puts a record in its place, whole and on the disk. `shelf` has the name that an error gives it.
    pub(super) fn write(&self, shelf: &Shelf, incident: &Incident) -> Result<()> {
        let io = |e: std::io::Error| Error::io("write", &shelf.path(&incident.id), e);
        let text = serde_json::to_vec(incident).map_err(|e| io(e.into()))?;
        files::replace(&self.path.join(format!("{}{ENDING}", incident.id)), &text).map_err(io)
    }
}

fn read(path: &Path) -> Option<Incident> {
    let incident: Incident = serde_json::from_str(&files::read_to_string(path, LONGEST).ok()?).ok()?;
    // Its name is what a change goes to, and a text from elsewhere must not lead it out of the directory.
    (path.file_stem()? == incident.id.as_str()).then_some(incident)
}

/// A time as the beginning of a name: sorts as time does, and reads as one.
fn moment(at: u64) -> String {
    rfc3339(at).chars().filter(|c| !matches!(c, '-' | ':' | 'Z')).collect()
}

/// A number for what an incident is about (FNV-1a), the same in every version of this program.
fn number(about: &str) -> String {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = about.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    format!("{:08x}", (hash >> 32) ^ (hash & 0xffff_ffff))
}

/// The files of the directory in the order of their names, which is that of time.
pub(super) fn paths(directory: &Path) -> Result<Vec<PathBuf>> {
    let io = |e: std::io::Error| Error::io("read the incidents in", directory, e);
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) || is_too_long(&e) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(io(e)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|e| e == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The lock of the directory; `None` when it cannot be had in time.
fn lock(directory: &Path) -> Option<File> {
    let file = files::open_private(&directory.join("lock")).ok()?;
    give_to_the_owner(directory, &file);
    let begun = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Some(file),
            Err(Errno::INTR | Errno::WOULDBLOCK) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(_) => return None,
        }
    }
}

/// What root makes in somebody's directory belongs to whom the directory belongs, or he could not use it. Only a file is given
/// away that has no other name: else its owner could have been given any file of root's.
fn give_to_the_owner(directory: &Path, file: &File) {
    let (Ok(of), Ok(made)) = (rustix::fs::stat(directory), rustix::fs::fstat(file)) else { return };
    if of.st_uid != 0 && made.st_uid == 0 && made.st_nlink == 1 && rustix::process::geteuid().is_root() {
        let (uid, gid) = (rustix::fs::Uid::from_raw(of.st_uid), rustix::fs::Gid::from_raw(of.st_gid));
        // Without it the owner's own records are made without the lock, and nothing else.
        let _ = rustix::fs::fchown(file, Some(uid), Some(gid));
    }
}

/// Removes the oldest until there are no more than `most` files with `bytes` bytes: first of those that are closed, for
/// nobody has looked at the others yet.
pub(super) fn prune(directory: &Path, most: usize, bytes: u64) -> Result<()> {
    // Another process may have removed one.
    let sized = |path: PathBuf| std::fs::symlink_metadata(&path).ok().map(|status| (path, status.len()));
    let mut kept: Vec<(PathBuf, u64)> = paths(directory)?.into_iter().filter_map(sized).collect();
    let too_much = |kept: &[(PathBuf, u64)]| kept.len() > most || kept.iter().map(|k| k.1).sum::<u64>() > bytes;
    for closed_only in [true, false] {
        let mut at = 0;
        // The newest is what was just told.
        while too_much(&kept) && at + 1 < kept.len() {
            if closed_only && read(&kept[at].0).is_some_and(|i| i.is_open()) {
                at += 1;
                continue;
            }
            let _ = std::fs::remove_file(kept.remove(at).0);
        }
    }
    Ok(())
}
