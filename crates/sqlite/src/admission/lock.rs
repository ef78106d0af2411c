//! The lock file of admission, `X.statehouse/admission.lock`: four bytes, each a kernel lock of its own.
//!
//! | byte | read lock | write lock |
//! |---|---|---|
//! | members | each of our processes, for as long as it has files of the database open | who was admitted |
//! | gate | a newcomer, for the moment in which it becomes a member | who was admitted, or waits for it |
//! | drain | who wants members to park | |
//! | anchors | who wants anchors to step aside | |
//!
//! All of them are locks of open file descriptions: they can be asked for without being taken, no stray close drops them, and
//! they end with the process that holds them in whatever way it ends. So nothing has to be cleaned up, and nobody stays parked
//! for somebody who is gone. What the file says is for people and is believed only while somebody holds the gate.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Reason, Result};
use crate::family::Family;
use crate::ofd::{self, Conflict, Kind, Range};
use crate::process::ProcessId;
use crate::secure::Inspected;
use crate::side;

pub(super) const FILE: &str = "admission.lock";
const MEMBERS: Range = Range { start: 0, length: 1 };
const GATE: Range = Range { start: 1, length: 1 };
const DRAIN: Range = Range { start: 2, length: 1 };
const ANCHORS: Range = Range { start: 3, length: 1 };
const ALL: Range = Range { start: 0, length: 4 };
/// Where the text for people begins.
const TEXT: u64 = 16;
const TEXT_BYTES: usize = 512;
/// How often a lock that is in the way is tried again.
const AGAIN: Duration = Duration::from_millis(5);

/// How long it is tried to make the file in a directory that others remove.
const AT_ONCE: Duration = Duration::from_secs(1);

/// Who holds the gate, in words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Doing {
    /// What is done ("vacuum").
    pub(crate) what: String,
    #[serde(flatten)]
    pub(crate) process: ProcessId,
}

/// The file, by a description of its own. Dropping it releases what it holds.
#[derive(Debug)]
pub(crate) struct AdmissionLock {
    file: OwnedFd,
    path: PathBuf,
    /// The process that opened it.
    process: u32,
}

impl Drop for AdmissionLock {
    fn drop(&mut self) {
        // A child that was forked off shares the description. Closing it here would leave the locks with the child, and what the
        // child lets go of is not its own.
        if self.process == std::process::id() {
            let _ = self.release(ALL);
        }
    }
}

impl AdmissionLock {
    /// Opens the file; makes it, and the side directory, if they are not there.
    pub(crate) fn make(inspected: &Inspected) -> Result<AdmissionLock> {
        let path = path(inspected.family());
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let begun = Instant::now();
        let file = loop {
            let side = side::create(inspected)?;
            match rustix::fs::openat(&side, FILE, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => break file,
                // Whoever was admitted took the empty directory away between the two calls.
                Err(Errno::NOENT) if begun.elapsed() < AT_ONCE => {}
                Err(e) => {
                    // A directory that was made for nothing goes; one in which something lies stays.
                    let _ = std::fs::remove_dir(inspected.family().side_directory());
                    return Err(refuse(&path, e));
                }
            }
        };
        inspected.hand_over(file.as_fd()).map_err(|e| Error::io("create", &path, e))?;
        Ok(AdmissionLock { file, path, process: std::process::id() })
    }

    /// The file if it is there.
    pub(crate) fn find(family: &Family) -> Result<Option<AdmissionLock>> {
        let path = path(family);
        let Some(side) = side::open(&family.side_directory())? else { return Ok(None) };
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::openat(&side, FILE, flags, Mode::empty()) {
            Ok(file) => Ok(Some(AdmissionLock { file, path, process: std::process::id() })),
            Err(Errno::NOENT) => Ok(None),
            Err(e) => Err(refuse(&path, e)),
        }
    }

    /// False when somebody has removed the file or a directory above it: others will lock another one.
    pub(crate) fn is_named(&self) -> bool {
        let (here, there) = (rustix::fs::fstat(&self.file), rustix::fs::lstat(&self.path));
        matches!((here, there), (Ok(h), Ok(t)) if (h.st_dev, h.st_ino) == (t.st_dev, t.st_ino))
    }

    fn take(&self, kind: Kind, range: Range) -> Result<bool> {
        ofd::try_lock(&self.file, kind, range).map_err(|e| Error::io("lock", &self.path, e))
    }

    fn release(&self, range: Range) -> Result<()> {
        ofd::unlock(&self.file, range).map_err(|e| Error::io("unlock", &self.path, e))
    }

    /// True if somebody else holds the byte in a way that keeps this one from writing. What cannot be found out counts as held.
    fn held(&self, range: Range) -> bool {
        !matches!(ofd::conflict(&self.file, Kind::Write, range), Ok(None))
    }

    /// Waits until nobody is admitted nor about to be.
    ///
    /// # Errors
    /// [`Error::Busy`] with what is being done after `patience`.
    pub(crate) fn wait(&self, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        while self.is_shut() {
            if begun.elapsed() >= patience {
                return Err(Error::Busy { waited: begun.elapsed(), holder: Some(self.doing()) });
            }
            std::thread::sleep(AGAIN);
        }
        Ok(())
    }

    /// Becomes a member: through the gate, which is shut while somebody is admitted or waits for it.
    ///
    /// # Errors
    /// [`Error::Busy`] with what is being done after `patience`.
    pub(crate) fn enter(&self, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        loop {
            if self.take(Kind::Read, GATE)? {
                let entered = self.take(Kind::Read, MEMBERS);
                self.release(GATE)?;
                if entered? {
                    return Ok(());
                }
            }
            if begun.elapsed() >= patience {
                return Err(Error::Busy { waited: begun.elapsed(), holder: Some(self.doing()) });
            }
            std::thread::sleep(AGAIN);
        }
    }

    /// Is a member no more.
    pub(crate) fn leave(&self) -> Result<()> {
        self.release(MEMBERS)
    }

    /// Shuts the gate, waiting at most `patience` for another who has it, and asks anchors to step aside.
    pub(crate) fn shut(&self, doing: &Doing, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        while !self.take(Kind::Write, GATE)? {
            if begun.elapsed() >= patience {
                return Err(Error::Busy { waited: begun.elapsed(), holder: Some(self.in_the_gate()) });
            }
            std::thread::sleep(AGAIN);
        }
        self.say(doing);
        self.take(Kind::Read, ANCHORS).map(drop)
    }

    /// Asks all members to park, for as long as this lock is held.
    pub(crate) fn drain(&self) -> Result<()> {
        self.take(Kind::Read, DRAIN).map(drop)
    }

    /// True when nobody is a member any more and nobody can become one.
    pub(crate) fn take_all(&self) -> Result<bool> {
        self.take(Kind::Write, MEMBERS)
    }

    /// True if the gate is shut and nobody is a member, both by this lock.
    pub(crate) fn has_everything(&self) -> Result<bool> {
        Ok(self.take(Kind::Write, GATE)? && self.take_all()?)
    }

    /// Who has the gate, as a person would say it: what the file says is about somebody who shut it, not about a newcomer.
    fn in_the_gate(&self) -> String {
        match ofd::conflict(&self.file, Kind::Write, GATE) {
            Ok(Some(Conflict { kind: Kind::Read, .. })) => {
                "a process of ours that stopped while it opened it".to_owned()
            }
            _ => self.doing(),
        }
    }

    /// Takes all four bytes, if nobody else holds one of them.
    pub(crate) fn take_everything(&self) -> Result<bool> {
        self.take(Kind::Write, Range { start: MEMBERS.start, length: ANCHORS.last() + 1 })
    }

    /// Asks anchors to step aside, for as long as this lock is held. False while somebody takes the file away.
    pub(crate) fn send_anchors_aside(&self) -> Result<bool> {
        self.take(Kind::Read, ANCHORS)
    }

    /// Takes the file away. Whoever has it open notices that it is not named any more.
    pub(crate) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }

    /// True while somebody wants members to park.
    pub(crate) fn drain_wanted(&self) -> bool {
        self.held(DRAIN)
    }

    /// True while somebody wants anchors to step aside.
    pub(crate) fn anchors_unwanted(&self) -> bool {
        self.held(ANCHORS)
    }

    /// True while somebody is admitted or waits for it.
    pub(crate) fn is_shut(&self) -> bool {
        self.held(GATE)
    }

    /// Who holds the gate and what for, as a person would say it.
    pub(crate) fn doing(&self) -> String {
        match self.read() {
            Some(doing) => format!("maintenance ({}, PID {})", doing.what, doing.process.pid),
            None => "maintenance".to_owned(),
        }
    }

    fn read(&self) -> Option<Doing> {
        let mut text = [0; TEXT_BYTES];
        let read = rustix::io::pread(&self.file, &mut text, TEXT).unwrap_or(0);
        serde_json::from_slice(text.get(..read)?.split(|b| *b == b'\n').next()?).ok()
    }

    /// Writes it down for those who wait. Without room they are told less.
    fn say(&self, doing: &Doing) {
        if let Ok(mut text) = serde_json::to_vec(doing) {
            text.push(b'\n');
            if text.len() <= TEXT_BYTES {
                let _ = rustix::io::pwrite(&self.file, &text, TEXT);
            }
        }
    }
}

fn path(family: &Family) -> PathBuf {
    family.side_directory().join(FILE)
}

fn refuse(path: &std::path::Path, e: Errno) -> Error {
    match e {
        Errno::LOOP => Error::refused(Reason::Symlink, path, ""),
        Errno::ACCESS | Errno::PERM => Error::refused(Reason::Permission, path, ""),
        Errno::ISDIR => Error::refused(Reason::NotRegular, path, "a file is expected here"),
        e => Error::io("open", path, e),
    }
}
