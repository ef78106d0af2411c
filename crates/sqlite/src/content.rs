//! Whether the content of the files is still what SQLite left in them.
//!
//! A program that truncates a file of a database or copies another one onto it leaves the identity as it was: device, inode
//! and birth are the same, and the locks stand. SQLite takes what it finds. So each look at the generation is also a look at
//! the content (`examine.rs` says at what, and what it cannot see), and costs two small reads beside the three `statx` calls
//! that are made anyway. What was found once stays found: a handle that has seen its content destroyed never believes it again,
//! and begins anew with another record, after a proof of all of it (`proof.rs`).

use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::examine::{Examiner, Finding, Look, Seen, Stamp};
use crate::family::{Family, Generation, Member, Status};
use crate::index::Index;
use crate::known::Stamps;
use crate::remembered::Span;
use crate::{locks, proof, written};

/// What one handle has seen of the content of its generation.
#[derive(Debug, Default)]
pub(crate) struct Content(Mutex<Seen>);

/// When the index was changed last before it was found whole, if that was seen, and how often its locks were taken again by then.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexMark {
    whole: Option<Stamp>,
    retaken: u64,
}

impl Content {
    /// Proves, as far as a look can, that nobody has destroyed the content. `index` must have been read before `statuses`.
    pub(crate) fn check(
        &self,
        family: &Family,
        generation: &Generation,
        index: std::io::Result<Option<Index>>,
        statuses: [Option<Status>; 3],
        believed: Stamps,
    ) -> Result<()> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(verdict) = &seen.verdict {
            return Err(verdict.again());
        }
        let examiner = Examiner { family, generation };
        let finding = match index {
            Ok(index) => {
                let Some(look) = Look::with(index, statuses, generation) else { return Ok(()) };
                if examiner.finds_nothing(&mut seen, &look, believed) { None } else { examiner.look_again(&mut seen) }
            }
            // The lock core has met the end of a mapping before anybody looked.
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::STALE.raw_os_error()) => {
                Some(Finding::Destroyed(Member::Shm, "cut off under this process by another program".into()))
            }
            Err(_) => None,
        };
        let error = match finding {
            None => return Ok(()),
            Some(Finding::MadeAnew) => Error::Retired { members: vec![Member::Shm] },
            Some(Finding::Doubt) => Error::Doubtful { path: family.main() },
            Some(Finding::Destroyed(member, what)) => {
                // What runs at this moment must not write into what is left, nor touch memory that is gone.
                generation.main.into_iter().for_each(locks::give_up);
                examiner.destroyed(&seen, member, what)
            }
        };
        seen.verdict = Some(error.again());
        Err(error)
    }

    /// What the index said when a look last found everything whole.
    pub(crate) fn index(&self) -> Option<Index> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).index
    }

    /// Takes note of a commit that this process has made. `before` was read in its transaction.
    pub(crate) fn committed(&self, before: Option<Index>, after: Option<Index>) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(before), Some(after), Some(base)) = (before, after, seen.base.as_mut()) {
            base.goes_on_in(&before, &after);
        }
    }

    /// The index as the last look found it.
    pub(crate) fn index_mark(&self) -> IndexMark {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        IndexMark { whole: seen.whole, retaken: seen.retaken }
    }

    /// Takes note that locks are about to be taken again.
    pub(crate) fn retake(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retaken += 1;
    }

    /// True if locks were taken again since the mark.
    pub(crate) fn was_retaken(&self, since: IndexMark) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retaken != since.retaken
    }

    /// True if nobody has changed the length of the index since the mark; or, if that cannot be told and this process is `idle`,
    /// if every frame is found in it.
    pub(crate) fn index_survived(
        &self,
        family: &Family,
        generation: &Generation,
        before: IndexMark,
        idle: bool,
    ) -> bool {
        Examiner { family, generation }.index_survived(before.whole, idle)
    }

    /// True destruction of the log, if it lacks what the last look at the index found in it alone.
    pub(crate) fn log_went_with_the_index(&self, family: &Family, generation: &Generation) -> Option<Error> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let examiner = Examiner { family, generation };
        let error = examiner.log_went_with_the_index(&seen)?;
        seen.verdict = Some(error.again());
        Some(error)
    }

    /// Proves that the log has what a commit of this process has written there.
    pub(crate) fn wrote(&self, family: &Family, generation: &Generation, span: Span) -> Result<()> {
        let examiner = Examiner { family, generation };
        let Some(log) = examiner.file(Member::Wal) else { return Ok(()) };
        if !written::is_missing(&log, span, || examiner.index()) {
            return Ok(());
        }
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generation.main.into_iter().for_each(locks::give_up);
        let what = "cut off or overwritten by another program while a commit was written behind that".to_owned();
        let error = examiner.destroyed(&seen, Member::Wal, what);
        seen.verdict = Some(error.again());
        Err(error)
    }

    /// As [`Content::check`], after SQLite has said that something is damaged: the log is read from its beginning.
    pub(crate) fn search(&self, family: &Family, generation: &Generation) -> Result<()> {
        let found = proof::agreement(family, generation);
        let Ok(Some((member, what))) = found else { return found.map(drop) };
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        generation.main.into_iter().for_each(locks::give_up);
        let error = Examiner { family, generation }.destroyed(&seen, member, what);
        seen.verdict = Some(error.again());
        Err(error)
    }
}
