//! The generation that a handle uses, and whether the paths still name it.
//!
//! The check is three `statx` calls by path, a question to the kernel for the locks of this process (`heal.rs` says why), and
//! a look at the content (`content.rs`). It opens none of the files, takes no lock, and is made before and after every commit, before every
//! read, and four times a second on an idle handle.

use std::sync::Arc;

use crate::content::{Content, IndexMark};
use crate::error::{Error, Result};
use crate::family::{Family, Generation, Member};
use crate::index::Index;
use crate::known::Stamps;
use crate::locks::{self, OpenFile, Standing};
use crate::remembered::Span;

/// The bytes of the main file that every connection to a generation holds a shared lock on (os_unix.c, `SHARED_FIRST`).
pub const SHARED_BYTES: (i64, i64) = (0x4000_0002, 0x4000_0002 + 510);

/// The byte of the index that says that somebody is there (os_unix.c, `UNIX_SHM_DMS`).
pub const PRESENCE_BYTE: (i64, i64) = (128, 129);

/// A recorded generation of a family.
#[derive(Debug, Clone)]
pub struct Record {
    family: Family,
    generation: Generation,
    content: Arc<Content>,
}

impl Record {
    /// The two locks that stand as long as a connection does, and keep the generation in place.
    pub(crate) const STANDING: [(Member, (i64, i64)); 2] = [(Member::Main, SHARED_BYTES), (Member::Shm, PRESENCE_BYTE)];

    /// Records what SQLite really has open in this process, and proves that the paths name exactly that.
    ///
    /// Any descriptor of the family that this process has open must be of this generation: SQLite shares one index
    /// between all connections of a process to one main file, so a connection that joins an old index while it opens a
    /// new log by name would mix two generations.
    ///
    /// # Errors
    /// [`Error::Retired`] when a descriptor and its path disagree.
    pub fn take(family: &Family) -> Result<Record> {
        let named = family.generation().map_err(|e| Error::io("look at", &family.main(), e))?;
        let differs = |member: &Member| {
            let open = locks::descriptors(&family.path(*member));
            open.is_empty() || open.iter().any(|d| Some(d.identity) != named.get(*member))
        };
        let members: Vec<Member> = [Member::Main, Member::Wal, Member::Shm].into_iter().filter(differs).collect();
        if members.is_empty() {
            Ok(Record { family: family.clone(), generation: named, content: Arc::default() })
        } else {
            Err(Error::Retired { members })
        }
    }

    /// Proves that SQLite has no file of these names open in this process but those of this generation. To be asked after a
    /// connection was opened beside the first one: SQLite opens by name, and the name may lead elsewhere since the last check. One
    /// that mixes a new log with the index of this generation would read nonsense, or copy it into the main file.
    ///
    /// # Errors
    /// [`Error::Retired`].
    pub(crate) fn has_only_its_files(&self) -> Result<()> {
        let strange = |member: &Member| {
            let wanted = self.generation.get(*member);
            locks::descriptors(&self.family.path(*member)).iter().any(|d| Some(d.identity) != wanted)
        };
        let members: Vec<Member> = [Member::Main, Member::Wal, Member::Shm].into_iter().filter(strange).collect();
        if members.is_empty() { Ok(()) } else { Err(Error::Retired { members }) }
    }

    /// Whose generation it is.
    pub fn family(&self) -> &Family {
        &self.family
    }

    /// What was recorded.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Proves that the paths still name what was recorded, that this process still has the locks on it that it took, and that
    /// nobody has destroyed the content in place.
    ///
    /// # Errors
    /// [`Error::Retired`] with the members that differ (a path that cannot be looked at counts as one that does),
    /// [`Error::LocksLost`] when a lock is gone, [`Error::Destroyed`], or [`Error::Doubtful`].
    pub fn check(&self) -> Result<()> {
        self.look(Stamps::OnceOld)
    }

    /// As [`Record::check`], but a write into the main file in the same tick of the clock as the look before is left to the look
    /// that follows. Nothing may be acknowledged after this one alone.
    ///
    /// # Errors
    /// As [`Record::check`].
    pub(crate) fn check_quickly(&self) -> Result<()> {
        self.look(Stamps::Always)
    }

    fn look(&self, believed: Stamps) -> Result<()> {
        // Before the files: what the index says was true of them when it was read.
        let index = self.generation.shm.map_or(Ok(None), |shm| Index::read(&OpenFile(shm)));
        let Ok(statuses) = self.family.statuses() else { return Err(Error::Retired { members: vec![Member::Main] }) };
        let members = self.generation.differences(&Generation::of(&statuses));
        if !members.is_empty() {
            return Err(Error::Retired { members });
        }
        if !self.locked() {
            return Err(Error::LocksLost);
        }
        self.content.check(&self.family, &self.generation, index, statuses, believed)
    }

    /// What the index says now; `None` if it says nothing at this moment.
    pub(crate) fn index(&self) -> Option<Index> {
        self.generation.shm.and_then(|shm| Index::read(&OpenFile(shm)).ok()?)
    }

    /// Takes note of a commit that this process has made: what the index said in its transaction, and after it.
    pub(crate) fn committed(&self, before: Option<Index>, after: Option<Index>) {
        self.content.committed(before, after);
    }

    /// Proves that the log has the frames that a commit of this process has made, joined to those before them.
    ///
    /// # Errors
    /// [`Error::Destroyed`].
    pub(crate) fn wrote(&self, span: Option<Span>) -> Result<()> {
        span.filter(|span| span.first <= span.last)
            .map_or(Ok(()), |span| self.content.wrote(&self.family, &self.generation, span))
    }

    /// Which making of the index this process has used.
    pub(crate) fn making(&self) -> Option<u32> {
        self.seen().map(|index| index.making)
    }

    /// What the index said when a look last found everything whole.
    pub(crate) fn seen(&self) -> Option<Index> {
        self.content.index()
    }

    /// Asked when the index was destroyed: whether the log was destroyed with it.
    pub(crate) fn log_went_with_the_index(&self) -> Option<Error> {
        self.content.log_went_with_the_index(&self.family, &self.generation)
    }

    /// As [`Record::check`], after SQLite has said that the content is damaged: looks further than each commit can afford.
    ///
    /// # Errors
    /// As [`Record::check`].
    pub(crate) fn search(&self) -> Result<()> {
        self.check()?;
        self.content.search(&self.family, &self.generation)
    }

    /// The members whose paths name something else now, or nothing.
    pub(crate) fn lost(&self) -> Vec<Member> {
        match self.check() {
            Err(Error::Retired { members }) => members,
            _ => Vec::new(),
        }
    }

    /// True if this process holds, by the kernel's account, both locks that keep the generation in place, and every lock of
    /// its transactions.
    pub fn locked(&self) -> bool {
        let stands = |(member, bytes)| {
            self.generation.get(member).is_some_and(|file| locks::standing(file, bytes) == Standing::Stands)
        };
        Record::STANDING.into_iter().all(stands)
    }

    /// True if what was read in a transaction since the mark proves nothing: a lock of a transaction of this process is gone, or
    /// byte 128 is, or was, and the index may have been emptied meanwhile. To be asked before the transaction ends.
    pub(crate) fn is_betrayed(&self, since: IndexMark) -> bool {
        let Some(shm) = self.generation.shm else { return false };
        match locks::standing(shm, PRESENCE_BYTE) {
            Standing::Broken => true,
            Standing::Stands if !self.content.was_retaken(since) => false,
            // Only that transaction can say that it was there all the time, so it is not idle.
            _ => !self.content.index_survived(&self.family, &self.generation, since, false),
        }
    }

    /// Takes note that locks are about to be taken again.
    pub(crate) fn retake(&self) {
        self.content.retake();
    }

    /// The index as the last look found it. No look notes anything while a lock is missing.
    pub(crate) fn index_mark(&self) -> IndexMark {
        self.content.index_mark()
    }

    /// True if the index is the one that this process has used all along, though its lock was gone since that mark.
    pub(crate) fn index_survived(&self, before: IndexMark) -> bool {
        let only = |file| locks::owned(file).is_some_and(|owned| owned.ranges.len() == 1);
        let idle = self.generation.shm.is_some_and(only);
        let survived = self.content.index_survived(&self.family, &self.generation, before, idle);
        if !survived {
            // Who reads by it at this moment is to be told.
            self.generation.shm.into_iter().for_each(locks::betray);
        }
        survived
    }
}
