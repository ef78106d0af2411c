//! Keeps who goes on in a retired generation, and who has begun another one beside it, from copying their logs into one main file.
//!
//! *On a napkin.* A program that goes on in a deleted log copies it into the main file now and then, as every program does. A second
//! generation at the same path copies its own log into the same main file. Then one writes its pages over those of the other, and rows
//! are gone that nobody can bring back. So an anchor whose index was removed holds the checkpoint lock of that index, shared. Who
//! still writes there can commit, but copies nothing into the main file; and since SQLite begins a log anew only when all of
//! it was copied, everything from then on stays in that log, where a capture finds it.
//!
//! *The other side as well.* Who goes on there reads through the main file what is not in its log. Pages that a second generation copied
//! there would be read as its own, and what it builds on them is no tree: its rows would be in its log, on pages of which
//! nobody can say what they belong to. So as long as somebody goes on there, the anchor holds the checkpoint lock of the index at the
//! path, too. The main file stays as it was, and each log is whole with it. Not beside a store of ours: our processes copy
//! at once what must not be in a log alone, and open nothing beside a stranger who goes on in what was removed.
//!
//! *When.* The harm needs an index that is not at its path, and a main file that is. Where main file and index were moved away
//! together they are a whole database under another name. So the lock is held on an index that has no name any more (nobody can
//! ever come to it by a path again), and on one that was moved while the main file stayed, for as long as somebody may write
//! there. It is let go of when the index comes back. Whoever opens an index that was not made yet, or has to make it anew after
//! somebody was killed in the middle of a commit, needs this byte for it: so it is held only where the index has a good head.
//!
//! *The last close* of a program takes no lock of the index. SQLite takes the main file alone for itself instead, copies the log, and
//! deletes what the paths of log and index name by then. What keeps it from that is the shared lock of whoever else has the main
//! file, which the anchor has again as soon as it holds the next generation. A program whose main file is not at its path
//! any more does none of that.
//!
//! *What it cannot do.* A checkpoint that is on its way is waited for, and whoever opens the database before its end reads a main
//! file that is half copied. Where only the log or only the index was removed both sides share the other one, and write over each
//! other there. A program that had its log for itself (`locking_mode=EXCLUSIVE`) asks for no lock; none can be in that mode while an
//! anchor holds the database.
//! The logs grow for as long as it lasts.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::Held;
use crate::family::{Family, Identity, Member, Status};
use crate::index::Index;
use crate::ofd::{self, DMS, Kind, WAL_CHECKPOINT};

/// How often an index is looked at that has no good head, and the time between.
const LOOKS: usize = 4;
const BETWEEN: Duration = Duration::from_micros(500);

/// The index of a generation, and its checkpoint lock as far as that is held.
#[derive(Debug)]
pub(super) struct Brake {
    pub(super) index: Held,
    held: AtomicBool,
    /// Somebody goes on in another generation of the same main file.
    beside: AtomicBool,
}

/// Whether those who go on in a generation are kept from copying its log into the main file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptBack {
    /// They need not be, or nobody can.
    No,
    /// They will be as soon as the checkpoint of somebody has ended that is on its way, or somebody has made the index.
    Soon,
    /// They are.
    Yes,
}

impl Brake {
    pub(super) fn on(index: Held) -> Brake {
        Brake { index, held: AtomicBool::new(false), beside: AtomicBool::new(false) }
    }

    /// Whether the lock is wanted on an index that is at its path.
    pub(super) fn beside(&self, somebody: bool) {
        self.beside.store(somebody, Ordering::Relaxed);
    }

    /// Takes the lock where it is wanted, and lets go of it where it is not. `main` is the main file of the generation; `written` is
    /// false if it is known that nobody can write there.
    pub(super) fn tend(&self, family: &Family, main: Identity, written: bool) -> KeptBack {
        match self.wanted(family, main, written) {
            Some(true) if !self.is_made() => {
                self.let_go();
                // Whoever makes it next begins a generation, or goes on after somebody else was killed, which is rare.
                if self.beside.load(Ordering::Relaxed) { KeptBack::Soon } else { KeptBack::No }
            }
            // Taken again each time, for it costs one call and somebody may have released it.
            Some(true) => match ofd::try_lock(&self.index.file, Kind::Read, WAL_CHECKPOINT) {
                Ok(taken) => {
                    self.held.store(taken, Ordering::Relaxed);
                    if taken { KeptBack::Yes } else { KeptBack::Soon }
                }
                Err(_) => KeptBack::No,
            },
            Some(false) => {
                self.let_go();
                KeptBack::No
            }
            None if self.held.load(Ordering::Relaxed) => KeptBack::Yes,
            None => KeptBack::No,
        }
    }

    fn let_go(&self) {
        if self.held.swap(false, Ordering::Relaxed) {
            let _ = ofd::unlock(&self.index.file, WAL_CHECKPOINT);
        }
    }

    /// False for an index that its next user has to make first. One that is written at this moment looks so for an instant.
    pub(super) fn is_made(&self) -> bool {
        (0..LOOKS).any(|n| {
            if n > 0 {
                std::thread::sleep(BETWEEN);
            }
            !matches!(Index::read(&self.index.file), Ok(None))
        })
    }

    /// `None` if the files cannot be looked at.
    fn wanted(&self, family: &Family, main: Identity, written: bool) -> Option<bool> {
        let at_path = |member, identity| {
            let found = Status::of(&family.path(member)).ok()?;
            Some(found.is_some_and(|s| s.identity == identity))
        };
        if at_path(Member::Shm, self.index.identity)? {
            return Some(self.beside.load(Ordering::Relaxed));
        }
        Some(self.index.is_nameless() || written && at_path(Member::Main, main)?)
    }

    /// True if somebody holds the index where the lock is wanted, whoever it is: also one that cannot be looked at.
    pub(super) fn somebody_is_there(&self, family: &Family, main: Identity) -> bool {
        self.wanted(family, main, true) == Some(true)
            && ofd::conflict(&self.index.file, Kind::Write, DMS).is_ok_and(|held| held.is_some())
    }

    /// Lets go of the byte that says to openers that the generation is in use.
    pub(super) fn leave(&self) -> bool {
        ofd::unlock(&self.index.file, DMS).is_ok()
    }
}

impl Held {
    pub(super) fn is_nameless(&self) -> bool {
        Status::of_descriptor(self.file.as_fd()).is_ok_and(|s| s.links == 0)
    }
}
