//! Takes the locks of an anchor again that somebody has released.
//!
//! They belong to descriptions that only this process has, so no close can drop them. But whoever copies a descriptor of
//! another process (`pidfd_getfd`, a bare `clone`) can unlock what it holds, and an anchor without locks protects nobody and
//! looks as before. So each look at the generation asks the kernel, too.
//!
//! Taking byte 128 again as the first one is sound: this process has lived all the time, so the machine has not gone down, and
//! an index that was in use since then never lags behind an acknowledged commit. Whoever emptied it meanwhile has also filled it
//! again from the log. Whoever is about to delete the files has the locks exclusively: then taking them again fails, and the next
//! look finds the generation retired.

use super::{Anchor, Held};
use crate::error::{Error, Result};
use crate::family::Member;
use crate::incidents::{self, Outcome};
use crate::locks;
use crate::ofd::{self, DMS, Kind, Range, SHARED};

impl Anchor {
    /// Takes again what is gone of the two locks, and leaves an incident. Returns what was gone, as a fragment. To be called while
    /// [`Anchor::current`] is true; whether the locks were taken before the files were deleted says [`Anchor::current`] after it.
    ///
    /// # Errors
    /// [`Error::Busy`] while somebody's exclusive lock is in the way, or the system's answer.
    pub fn heal(&self) -> Result<Option<String>> {
        let mut gone = Vec::new();
        for (member, held, range, name) in [
            (Member::Main, &self.main, SHARED, "the shared range of the main file"),
            (Member::Shm, &self.shm.index, DMS, "byte 128 of the index"),
        ] {
            if !self.holds(member, held, range)? {
                gone.push(name);
            }
        }
        if gone.is_empty() {
            return Ok(None);
        }
        let what = gone.join(", ");
        // Nothing depends on the record; whoever runs the anchor is told in any case.
        let _ = incidents::record(&self.family, "anchor", what.clone(), Outcome::Healed);
        Ok(Some(what))
    }

    /// True if the lock is there; else it is now.
    fn holds(&self, member: Member, held: &Held, range: Range) -> Result<bool> {
        if locks::holds(&held.file, range.start, range.last() + 1) {
            return Ok(true);
        }
        let path = self.family.path(member);
        if ofd::try_lock(&held.file, Kind::Read, range).map_err(|e| Error::io("lock", &path, e))? {
            return Ok(false);
        }
        Err(Error::Busy {
            waited: std::time::Duration::ZERO,
            holder: Some("a program that has the database alone".into()),
        })
    }
}
