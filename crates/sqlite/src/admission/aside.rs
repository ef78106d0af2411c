//! What an anchor is to admission: a member that steps aside as soon as somebody asks for it, and the one who asks.
//!
//! An anchor holds the two locks which structural work cannot have beside it, so it must know of that work before it is
//! begun. It has a seat: a record by which others know it, and the members' byte while it holds anything. Asking is a lock on
//! the anchors' byte, and the answer is the word "parked" in each anchor's record.
//!
//! Invariant: an anchor takes the word back *before* it looks whether it is wanted aside, and who asks has the lock *before*
//! it reads the word. So at least one of the two sees the other, whoever is faster.
//!
//! An anchor leaves nothing beside a database of another program: what it had to make there goes when it goes.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::AtFlags;

use super::ANCHOR;
use super::lock::{self, AdmissionLock};
use crate::error::{Error, Result};
use crate::family::Family;
use crate::members::{self, Record, Registration};
use crate::secure::Inspected;
use crate::side;

/// How often somebody who waits looks again.
const AGAIN: Duration = Duration::from_millis(10);
/// How often a seat is taken anew because another anchor that left took the directory away in between.
const TRIES: usize = 5;

/// The place of an anchor among the members. It begins outside: nothing may be held before [`Seat::enter`].
#[derive(Debug)]
pub struct Seat {
    family: Family,
    /// Nothing when the volume had no room for it, or somebody has removed it; it is made again as soon as that can be done.
    lock: Option<AdmissionLock>,
    registration: Option<Registration>,
    /// It is a member, or is one as soon as there is a file.
    entered: bool,
    /// The side directory holds nothing but what anchors made, so the last of them takes it away.
    passing: bool,
}

impl Seat {
    /// Registers this process as an anchor. Makes the side directory if it is not there.
    ///
    /// On a full volume there is no record and no lock; the anchor is a stranger to the others then, which makes them more
    /// careful, and a later [`Seat::look_after`] makes up for it.
    ///
    /// # Errors
    /// A refusal when something else stands where the side directory must be, or the system's answer.
    pub fn take(inspected: &Inspected) -> Result<Seat> {
        let family = inspected.family().clone();
        let passing = made_by_anchors_alone(&family);
        let mut seat = Seat { family, lock: None, registration: None, entered: false, passing };
        let mut tries = 0;
        loop {
            match seat.sit_down(inspected) {
                Ok(()) | Err(Error::Full) => return Ok(seat),
                Err(e) => {
                    tries += 1;
                    let vanished =
                        matches!(&e, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound);
                    if !vanished || tries >= TRIES {
                        seat.leave();
                        return Err(e);
                    }
                }
            }
        }
    }

    /// Makes what is missing of record and lock.
    fn sit_down(&mut self, inspected: &Inspected) -> Result<()> {
        if self.registration.as_ref().is_none_or(Registration::is_gone) {
            let parked = self.registration.as_ref().is_some_and(|r| r.record().parked);
            let anew = members::register(inspected, ANCHOR)?;
            anew.set_parked(parked)?;
            self.registration = Some(anew);
        }
        if self.lock.as_ref().is_none_or(|l| !l.is_named()) {
            self.lock = Some(AdmissionLock::make(inspected)?);
            self.entered = false;
        }
        Ok(())
    }

    /// Whether record and lock are where others look for them: somebody may remove the side directory.
    pub fn is_in_place(&self) -> bool {
        self.lock.as_ref().is_some_and(AdmissionLock::is_named)
            && self.registration.as_ref().is_some_and(|r| !r.is_gone())
    }

    /// Makes record and lock again where they are gone, and is a member again if it was one.
    ///
    /// # Errors
    /// [`Error::Busy`] when somebody is admitted by now, so that the anchor has to step aside; else as [`Seat::take`].
    pub fn look_after(&mut self, inspected: &Inspected) -> Result<()> {
        let was = self.entered;
        self.sit_down(inspected)?;
        if was && !self.entered {
            return self.enter(Duration::ZERO);
        }
        Ok(())
    }

    /// True while somebody wants anchors to step aside.
    pub fn unwanted(&self) -> bool {
        self.lock.as_ref().is_some_and(AdmissionLock::anchors_unwanted)
    }

    /// Becomes a member, after which locks of the database may be taken.
    ///
    /// # Errors
    /// [`Error::Busy`], naming what is being done, when anchors are not wanted or the gate is shut for longer than `patience`.
    pub fn enter(&mut self, patience: Duration) -> Result<()> {
        self.say_parked(false)?;
        let entered = self.pass(patience);
        if entered.is_err() {
            self.step_aside()?;
        }
        entered
    }

    fn pass(&mut self, patience: Duration) -> Result<()> {
        let Some(lock) = &self.lock else {
            // As soon as there is a file it will be a member by it.
            self.entered = true;
            return Ok(());
        };
        let begun = Instant::now();
        while lock.anchors_unwanted() {
            if begun.elapsed() >= patience {
                return Err(Error::Busy { waited: begun.elapsed(), holder: Some(lock.doing()) });
            }
            std::thread::sleep(AGAIN);
        }
        lock.enter(patience.saturating_sub(begun.elapsed()))?;
        self.entered = true;
        Ok(())
    }

    /// Is a member no more, and says so in its record. Everything that was held of the database must be let go before.
    ///
    /// # Errors
    /// The system's answer.
    pub fn step_aside(&mut self) -> Result<()> {
        self.entered = false;
        let left = self.lock.as_ref().map_or(Ok(()), AdmissionLock::leave);
        self.say_parked(true)?;
        left
    }

    /// What somebody who wants anchors aside is doing, in words.
    pub fn doing(&self) -> String {
        self.lock.as_ref().map_or_else(|| "maintenance".to_owned(), AdmissionLock::doing)
    }

    fn say_parked(&self, parked: bool) -> Result<()> {
        match &self.registration {
            Some(registration) if registration.record().parked != parked => registration.set_parked(parked),
            _ => Ok(()),
        }
    }

    /// Gives the seat up, and takes away what only anchors needed.
    pub fn leave(self) {
        let Seat { family, lock, registration, passing, .. } = self;
        drop((lock, registration));
        if passing {
            // What cannot be removed is left; it is a few empty files.
            let _ = take_away(&family);
        }
    }
}

/// True if nothing is there yet, or nothing but what anchors leave while they run.
fn made_by_anchors_alone(family: &Family) -> bool {
    let Ok(side) = side::open(&family.side_directory()) else { return false };
    let Some(side) = side else { return true };
    let anchors = |records: Vec<Record>| records.iter().all(|r| r.role == ANCHOR);
    // A directory that somebody else made has something else in it, or is empty.
    names(&side).is_some_and(|names| names == ours()) && members::list(family).is_ok_and(anchors)
}

fn ours() -> BTreeSet<Vec<u8>> {
    [members::DIRECTORY, lock::FILE].map(|name| name.as_bytes().to_vec()).into()
}

fn names(directory: &OwnedFd) -> Option<BTreeSet<Vec<u8>>> {
    let mut names = BTreeSet::new();
    for entry in rustix::fs::Dir::read_from(directory).ok()? {
        let name = entry.ok()?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.insert(name);
        }
    }
    Some(names)
}

/// Removes the side directory if nobody else is there and nothing else is in it.
fn take_away(family: &Family) -> Result<(), rustix::io::Errno> {
    let path = family.side_directory();
    let Ok(Some(side)) = side::open(&path) else { return Ok(()) };
    if names(&side).is_none_or(|names| !names.is_subset(&ours())) {
        return Ok(());
    }
    // First of all, because it fails where somebody else has a record.
    match rustix::fs::unlinkat(&side, members::DIRECTORY, AtFlags::REMOVEDIR) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => {}
        Err(e) => return Err(e),
    }
    let Ok(lock) = AdmissionLock::find(family) else { return Ok(()) };
    if let Some(lock) = lock {
        // Held until the name is gone, so that nobody takes it meanwhile and believes that others see it.
        if !lock.take_everything().unwrap_or(false) || !lock.is_named() {
            return Ok(());
        }
        rustix::fs::unlinkat(&side, lock::FILE, AtFlags::empty())?;
    }
    rustix::fs::rmdir(&path)
}

/// Keeps anchors aside until it is dropped, or its process ends in whatever way.
#[derive(Debug)]
pub struct Aside {
    lock: Option<AdmissionLock>,
}

/// Why anchors are not aside.
#[derive(Debug, thiserror::Error)]
pub enum AsideError {
    /// Anchors that did not step aside in time. They may be stopped, hang, or be of an earlier version.
    #[error("{} did not step aside", named(.0))]
    Stays(Vec<Record>),
    /// Anything else.
    #[error(transparent)]
    Other(#[from] Error),
}

fn named(staying: &[Record]) -> String {
    let names: Vec<String> = staying.iter().map(|r| format!("the anchor with PID {}", r.process.pid)).collect();
    if names.is_empty() { "an anchor that is about to end".to_owned() } else { names.join(", ") }
}

impl Aside {
    /// Asks all anchors of the database to step aside, and waits at most `patience` until they have. Makes nothing: where no
    /// anchor has ever been there is nothing to ask.
    ///
    /// # Errors
    /// [`AsideError::Stays`] with those that stay.
    pub fn ask(family: &Family, patience: Duration) -> Result<Aside, AsideError> {
        let begun = Instant::now();
        let mut aside = Aside { lock: None };
        loop {
            if aside.lock.as_ref().is_none_or(|l| !l.is_named()) {
                aside.lock = None;
            }
            let mut asked = aside.lock.is_some();
            if !asked {
                match AdmissionLock::find(family)? {
                    // An anchor that leaves may have it for a moment; then it takes it away.
                    Some(lock) if lock.send_anchors_aside()? => (aside.lock, asked) = (Some(lock), true),
                    Some(_) => {}
                    None => asked = true,
                }
            }
            let staying: Vec<Record> =
                members::list(family)?.into_iter().filter(|r| r.role == ANCHOR && !r.parked).collect();
            if asked && staying.is_empty() && aside.lock.as_ref().is_none_or(AdmissionLock::is_named) {
                return Ok(aside);
            }
            if begun.elapsed() >= patience {
                return Err(AsideError::Stays(staying));
            }
            std::thread::sleep(AGAIN);
        }
    }
}
