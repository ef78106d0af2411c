//! How much of the log is not in the main file yet, and how far each reader keeps a checkpoint from going.
//!
//! The length of a log says nothing about that: a log that was copied whole keeps its length and is begun anew with the next
//! commit. What counts are the frames that are committed and not copied, and where readers stand. A checkpoint goes no
//! further than the mark of a reader, and copies nothing beside one that reads by the main file alone (mark 0).
//!
//! Read through an ordinary descriptor, or through SQLite's own where this process has the database open; nothing is locked,
//! so what comes out is how it stood at one moment.

use crate::error::{Error, Result};
use crate::family::Member;
use crate::headers;
use crate::index::Index;
use crate::locks::{self, OpenFile};
use crate::secure::{Inspected, Seen};
use crate::wal::{self, ReadAt};

/// How many marks there are.
pub const MARKS: usize = 5;

/// Where the marks stand in the index, a word each (wal.c, `WalCkptInfo`).
const MARKS_AT: u64 = 100;

/// How the log of a database stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Frames that are committed.
    pub frames: u64,
    /// How many of these are in the main file.
    pub copied: u64,
    /// Up to which frame those read who hold the lock of this mark. Mark 0 is for who reads by the main file alone.
    marks: [u32; MARKS],
}

impl Backlog {
    /// The last frame that a checkpoint may copy beside a reader with this mark; `None` for a mark that does not exist.
    pub fn mark(&self, number: u8) -> Option<u32> {
        self.marks.get(usize::from(number)).copied()
    }

    /// Frames that are not in the main file yet.
    pub fn pending(&self) -> u64 {
        self.frames.saturating_sub(self.copied)
    }

    /// True if a reader with this mark keeps the next checkpoint from copying all.
    pub fn pins(&self, number: u8) -> bool {
        match (number, self.mark(number)) {
            (0, _) => self.pending() > 0,
            (_, Some(mark)) => u64::from(mark) < self.frames,
            (_, None) => false,
        }
    }
}

/// How the log stands. `live` says that a process has the database open: only then its index is to be believed. `None` without
/// a log.
///
/// # Errors
/// The system's answer.
pub fn look(inspected: &Inspected, live: bool) -> Result<Option<Backlog>> {
    let family = inspected.family();
    let Some(log) = inspected.get(Member::Wal).filter(|wal| wal.status.size >= wal::HEADER_BYTES) else {
        return Ok(None);
    };
    let io = |member, e| Error::io("read", &family.path(member), e);
    if let Some(shm) = inspected.get(Member::Shm).filter(|_| live) {
        let file = open(shm).map_err(|e| io(Member::Shm, e))?;
        if let Some(index) = Index::read(&*file).map_err(|e| io(Member::Shm, e))? {
            let mut words = [0; MARKS * 4];
            file.fill_at(&mut words, MARKS_AT).map_err(|e| io(Member::Shm, e))?;
            let mut marks = [0; MARKS];
            for (mark, bytes) in marks.iter_mut().zip(words.as_chunks::<4>().0) {
                *mark = u32::from_ne_bytes(*bytes);
            }
            return Ok(Some(Backlog { frames: index.frames.into(), copied: index.copied.into(), marks }));
        }
    }
    // Nobody vouches for an index, and SQLite itself would make it anew from the log and copy all of it.
    let file = open(log).map_err(|e| io(Member::Wal, e))?;
    let commit = wal::last_commit(&*file).map_err(|e| io(Member::Wal, e))?;
    Ok(commit.map(|c| Backlog { frames: c.frames, copied: 0, marks: [0; MARKS] }))
}

fn open(seen: &Seen) -> std::io::Result<Box<dyn ReadAt>> {
    let identity = seen.status.identity;
    if locks::in_use(identity.device, identity.inode) {
        return Ok(Box::new(OpenFile(identity)));
    }
    Ok(Box::new(headers::open(seen)?))
}
