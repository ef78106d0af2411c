//! The generation that a handle uses, and whether the paths still name it.
//!
//! The check is three `statx` calls by path, a look at the two owner descriptors that hold this process's locks, and a look at
//! the content (`content.rs`). It opens nothing, takes no lock, and is made before and after every commit, before every
//! read, and four times a second on an idle handle.

use std::sync::Arc;

use crate::content::Content;
use crate::error::{Error, Result};
use crate::family::{Family, Generation, Member};
use crate::index::Index;
use crate::locks::{self, OpenFile};

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
    /// [`Error::LocksLost`] when an owner descriptor was taken away, [`Error::Destroyed`], or [`Error::Doubtful`].
    pub fn check(&self) -> Result<()> {
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
        self.content.check(&self.family, &self.generation, index, statuses)
    }

    /// Which making of the index this process has used.
    pub(crate) fn making(&self) -> Option<u32> {
        self.content.making()
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

    /// True if this process holds, by the lock core's own account, both locks that keep the generation in place.
    pub fn locked(&self) -> bool {
        let holds = |member, (start, end)| {
            self.generation.get(member).and_then(locks::owned).is_some_and(|o| o.covers(start, end))
        };
        holds(Member::Main, SHARED_BYTES) && holds(Member::Shm, PRESENCE_BYTE)
    }
}
