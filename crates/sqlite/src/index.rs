//! The head of the shared index (`-shm`): what it says about the log and about the checkpoint.
//!
//! The index is shared memory that others write at this moment, so what is read may be half of one state and half of
//! another. Its header is there twice and carries a checksum; a head whose two copies differ is no statement at all (SQLite
//! waits then, or rebuilds the index from the log). The words of the checkpoint have no checksum.
//!
//! One word that SQLite leaves alone (`notUsed0`) says how often a process of ours had the index made anew: whoever has read by
//! the old one may have pages in its cache that are older than they look, and nothing else tells it.
//!
//! Behind the head, each region has the page number of each frame and a hash table that finds a frame by it. An index that
//! was cut off and made longer again by somebody who opened the database has a whole head before a hole: whoever reads by it
//! misses frames, and what he writes undoes them ([`Index::is_whole`]).
//!
//! Layout: wal.c of SQLite, `WalIndexHdr` and `WalCkptInfo`; all numbers in the byte order of the machine.

use std::io;

use crate::wal::{Checksum, FRAME_HEADER_BYTES, HEADER_BYTES, ReadAt, valid_page_size};

/// Bytes that are mapped at a time; an index is never shorter while somebody uses it.
pub(crate) const REGION_BYTES: u64 = 32 * 1024;

/// Frames whose page numbers fit into the first region, and into each further one.
const FRAMES_IN_FIRST: u64 = 4096 - 34;
const FRAMES_IN_OTHER: u64 = 4096;

/// Slots of the hash table of a region.
const SLOTS: usize = 8192;

/// Bytes of the part that is looked at.
const LOOKED_AT: usize = 136;
const COPY_BYTES: usize = 48;
/// Bytes of the header, which is there twice.
pub(crate) const HEAD_BYTES: usize = 2 * COPY_BYTES;

/// What the head says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Index {
    /// Bytes of a page.
    pub(crate) page_size: u32,
    /// Frames of the log that are committed.
    pub(crate) frames: u32,
    /// Pages of the database after the last commit.
    pub(crate) pages: u32,
    /// The checksum of the last frame that is committed.
    pub(crate) checksum: [u32; 2],
    /// The salts of the log as they stand in its header. The first grows by one at each restart and the second is random, so
    /// a pair never comes back.
    pub(crate) salts: [u8; 8],
    /// Frames that are in the main file.
    pub(crate) copied: u32,
    /// Frames that are in the main file or were being copied there. Written before the first page is.
    pub(crate) attempted: u32,
    /// Which making of the index it is.
    pub(crate) making: u32,
}

/// Where the number of the making stands.
pub(crate) const MAKING_AT: u64 = 132;

/// The part of an index that a checkpoint, and nothing else, moves while it writes into the main file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Checkpoint {
    pub(crate) salts: [u8; 8],
    pub(crate) copied: u32,
    pub(crate) attempted: u32,
}

impl Index {
    /// Parses a head; `None` if it is too short, being written, damaged, or of a log that nobody has used yet.
    pub(crate) fn parse(head: &[u8]) -> Option<Index> {
        let head = head.get(..LOOKED_AT)?;
        let word = |at: usize| match head.get(at..at + 4) {
            Some(&[a, b, c, d]) => u32::from_ne_bytes([a, b, c, d]),
            _ => 0,
        };
        // Same words, in the order of this machine.
        let stored = Checksum(word(40), word(44));
        let sum = Checksum::default().mix(&head[..40], cfg!(target_endian = "big"));
        if head[..COPY_BYTES] != head[COPY_BYTES..2 * COPY_BYTES] || head[12] != 1 || sum != stored {
            return None;
        }
        let page_size = match u32::from(u16::from_ne_bytes([head[14], head[15]])) {
            // The value 1 stands for 65536, which two bytes cannot hold.
            1 => 65536,
            size => size,
        };
        let mut salts = [0; 8];
        salts.copy_from_slice(&head[32..40]);
        let index = Index {
            page_size,
            frames: word(16),
            pages: word(20),
            checksum: [word(24), word(28)],
            salts,
            copied: word(96),
            attempted: word(128),
            making: word(132),
        };
        (index.frames == 0 || valid_page_size(page_size)).then_some(index)
    }

    /// The head of an index; `None` as [`Index::parse`].
    ///
    /// # Errors
    /// The system's answer.
    pub(crate) fn read(index: &dyn ReadAt) -> io::Result<Option<Index>> {
        let mut head = [0; LOOKED_AT];
        Ok(if index.fill_at(&mut head, 0)? { Index::parse(&head) } else { None })
    }

    /// The least length of the log that this index speaks of.
    pub(crate) fn log_bytes(&self) -> u64 {
        match self.frames {
            0 => 0,
            n => HEADER_BYTES + u64::from(n) * (FRAME_HEADER_BYTES + u64::from(self.page_size)),
        }
    }

    /// The least length of the index itself.
    pub(crate) fn bytes(&self) -> u64 {
        let more = u64::from(self.frames).saturating_sub(FRAMES_IN_FIRST).div_ceil(FRAMES_IN_OTHER);
        (1 + more) * REGION_BYTES
    }

    /// True if every frame is found by its page number. One read for every region.
    ///
    /// # Errors
    /// The system's answer.
    pub(crate) fn is_whole(&self, index: &dyn ReadAt) -> io::Result<bool> {
        const HASH_AT: usize = REGION_BYTES as usize / 2;
        let mut region = vec![0; REGION_BYTES as usize];
        let mut left = u64::from(self.frames);
        for number in 0.. {
            if left == 0 {
                break;
            }
            if !index.fill_at(&mut region, number * REGION_BYTES)? {
                return Ok(false);
            }
            let (first, room) = if number == 0 { (LOOKED_AT, FRAMES_IN_FIRST) } else { (0, FRAMES_IN_OTHER) };
            let here = left.min(room) as usize;
            left -= here as u64;
            for frame in 1..=here {
                let at = first + (frame - 1) * 4;
                let page = u32::from_ne_bytes([region[at], region[at + 1], region[at + 2], region[at + 3]]);
                let slot = |n: usize| {
                    let at = HASH_AT + 2 * n;
                    usize::from(u16::from_ne_bytes([region[at], region[at + 1]]))
                };
                let start = page.wrapping_mul(383) as usize % SLOTS;
                let mut chain = (0..SLOTS).map(|n| slot((start + n) % SLOTS)).take_while(|found| *found != 0);
                if page == 0 || !chain.any(|found| found == frame) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// How far the checkpoint is, if none is on its way or was broken off. A log that is begun anew is neither for a moment.
    pub(crate) fn quiet(&self) -> Option<Checkpoint> {
        (self.copied == self.attempted && self.copied <= self.frames).then_some(self.checkpoint())
    }

    /// How far the checkpoint is.
    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint { salts: self.salts, copied: self.copied, attempted: self.attempted }
    }
}
