//! Payloads that do not fit on their page and go on in a chain of others.

use std::collections::HashSet;
use std::io;

use super::{PageSource, Payload};
use crate::wal::word;

/// The largest value that SQLite can store.
pub(super) const LONGEST: u64 = 0x7fff_ffff;

/// How a payload was put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chain {
    /// It is all there.
    Whole,
    /// A page of the chain is not there, was refused, or is not the last although it should be.
    Broken {
        /// The page at which it ended; zero where the chain ended too early.
        at: u32,
    },
}

/// Puts a payload together. `admit` is asked before each page of the chain and may refuse it, as it must for a page that belongs
/// to somebody else already: only so a crafted file cannot make one page be read for every cell.
///
/// # Errors
/// The system's answer.
pub fn gather(
    source: &dyn PageSource,
    payload: &Payload<'_>,
    bytes: &mut Vec<u8>,
    admit: &mut dyn FnMut(u32) -> bool,
) -> io::Result<Chain> {
    bytes.clear();
    bytes.extend_from_slice(payload.local);
    let each = source.layout().usable as usize - 4;
    let mut next = payload.overflow;
    let mut page = Vec::new();
    // What a file of this size cannot hold is not asked for at all.
    if payload.length > payload.local.len() as u64 + u64::from(source.count()) * each as u64 {
        return Ok(Chain::Broken { at: next });
    }
    while (bytes.len() as u64) < payload.length {
        if next == 0 || next > source.count() || !admit(next) || !source.read(next, &mut page)? {
            return Ok(Chain::Broken { at: next });
        }
        let missing = usize::try_from(payload.length).unwrap_or(usize::MAX) - bytes.len();
        bytes.extend_from_slice(&page[4..4 + missing.min(each)]);
        let following = word(&page, 0);
        if missing <= each && following != 0 {
            return Ok(Chain::Broken { at: next });
        }
        next = following;
    }
    Ok(Chain::Whole)
}

/// Which pages belong to something already, so that a crafted file cannot make one page be read for every cell.
///
/// A chain that turns out to be broken gives its pages back, for a cell that points where it should not must not take them from the
/// row that has them. As that costs time, only so many such chains are followed; after that they keep what they took.
#[derive(Debug, Default)]
pub struct Claims {
    taken: HashSet<u32>,
    last: Vec<u32>,
    wasted: u64,
}

impl Claims {
    /// Takes a page; false if it is taken.
    pub fn take(&mut self, page: u32) -> bool {
        self.taken.insert(page)
    }

    /// True if a page is taken.
    pub fn has(&self, page: u32) -> bool {
        self.taken.contains(&page)
    }

    /// Puts a payload together of pages that are not taken, and takes them. `exempt` names pages that may belong to several.
    ///
    /// # Errors
    /// The system's answer.
    pub fn gather(
        &mut self,
        source: &dyn PageSource,
        payload: &Payload<'_>,
        bytes: &mut Vec<u8>,
        exempt: &dyn Fn(u32) -> bool,
    ) -> io::Result<Chain> {
        self.last.clear();
        let (taken, last) = (&mut self.taken, &mut self.last);
        let chain = gather(source, payload, bytes, &mut |page| {
            let free = exempt(page) || taken.insert(page);
            last.extend(Some(page).filter(|_| free));
            free
        })?;
        if chain != Chain::Whole {
            self.give_back(source);
        }
        Ok(chain)
    }

    /// Gives back what the last payload took: it was not what it should be.
    pub fn give_back(&mut self, source: &dyn PageSource) {
        self.wasted += self.last.len() as u64;
        if self.wasted <= 4096 + 4 * u64::from(source.count()) {
            for page in self.last.drain(..) {
                self.taken.remove(&page);
            }
        }
    }
}
