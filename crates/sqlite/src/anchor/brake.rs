//! Keeps who goes on in a retired generation from copying its log into the main file.
//!
//! *On a napkin.* A program that goes on in a deleted log copies it into the main file now and then, as every program does. A second
//! generation at the same path copies its own log into the same main file. Then one writes its pages over those of the other, and rows
//! are gone that nobody can bring back. So an anchor whose index was removed holds the checkpoint lock of that index, shared. Who
//! still writes there can commit, but copies nothing into the main file; and since SQLite begins a log anew only when all of
//! it was copied, everything from then on stays in that log, where a capture finds it.
//!
//! *When.* The harm needs an index that is not at its path, and a main file that is. Where the index lies at its path those who
//! open the database need the byte themselves. Where main file and index were moved away together they are a whole
//! database under another name, whose next opener may have to make the index anew and needs the byte for that. So the lock is held
//! on an index that has no name any more (nobody can ever come to it by a path again), and on one that was moved while the
//! main file stayed, for as long as somebody may write there. It is let go of when the index comes back.
//!
//! *The last close* of a program takes no lock of the index. SQLite takes the main file alone for itself instead, copies the log, and
//! deletes what the paths of log and index name by then. What keeps it from that is the shared lock of whoever else has the main
//! file, which the anchor has again as soon as it holds the next generation. A program whose main file is not at its path
//! any more does none of that.
//!
//! *What it cannot do.* A checkpoint that is on its way is waited for, and whoever opens the database before its end reads a main
//! file that is half copied. A program that had its log for itself (`locking_mode=EXCLUSIVE`) asks for no lock; none can be in that
//! mode while an anchor holds the database. Two programs with the same removed index get along, but where one is killed in
//! the middle of a commit the others have to make the index anew, cannot, and are told that the database is locked.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Held;
use crate::family::{Family, Identity, Member, Status};
use crate::ofd::{self, DMS, Kind, WAL_CHECKPOINT};

/// The index of a generation, and its checkpoint lock as far as that is held.
#[derive(Debug)]
pub(super) struct Brake {
    pub(super) index: Held,
    held: AtomicBool,
}

/// Whether those who go on in a generation are kept from copying its log into the main file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeptBack {
    /// They need not be, or nobody can.
    No,
    /// They will be as soon as somebody's checkpoint has ended, which is in the way at this moment.
    Soon,
    /// They are.
    Yes,
}

impl Brake {
    pub(super) fn on(index: Held) -> Brake {
        Brake { index, held: AtomicBool::new(false) }
    }

    /// Takes the lock where it is wanted, and lets go of it where it is not. `main` is the main file of the generation; `written` is
    /// false if it is known that nobody can write there.
    pub(super) fn tend(&self, family: &Family, main: Identity, written: bool) -> KeptBack {
        match self.wanted(family, main, written) {
            // Taken again each time, for it costs one call and somebody may have released it.
            Some(true) => match ofd::try_lock(&self.index.file, Kind::Read, WAL_CHECKPOINT) {
                Ok(taken) => {
                    self.held.store(taken, Ordering::Relaxed);
                    if taken { KeptBack::Yes } else { KeptBack::Soon }
                }
                Err(_) => KeptBack::No,
            },
            Some(false) => {
                if self.held.swap(false, Ordering::Relaxed) {
                    let _ = ofd::unlock(&self.index.file, WAL_CHECKPOINT);
                }
                KeptBack::No
            }
            None if self.held.load(Ordering::Relaxed) => KeptBack::Yes,
            None => KeptBack::No,
        }
    }

    /// `None` if the files cannot be looked at.
    fn wanted(&self, family: &Family, main: Identity, written: bool) -> Option<bool> {
        let at_path = |member, identity| {
            let found = Status::of(&family.path(member)).ok()?;
            Some(found.is_some_and(|s| s.identity == identity))
        };
        if at_path(Member::Shm, self.index.identity)? {
            return Some(false);
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
