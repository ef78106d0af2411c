//! Which page images a log contributes to the database as of one of its commits.
//!
//! Only places are kept, some thirty bytes for each page that was written, so that a log of gigabytes is no matter of memory.
//! A page is read again, and verified again, when it is wanted.

use std::collections::BTreeMap;
use std::io;

use super::{Frame, Frames, Header, ReadAt, read_again};

/// Where to stop in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Upto {
    /// At its last complete transaction.
    Last,
    /// At the end of that many transactions, counted from the start of the log; zero takes nothing of it.
    Commit(u64),
}

/// The pages of a log as of one of its commits.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// The header; `None` if the log holds no transaction that counts.
    pub header: Option<Header>,
    /// The frame that has the image of each page. Pages that were cut off by a later transaction are not in it.
    pub pages: BTreeMap<u32, Frame>,
    /// Size of the database in pages after the commit; zero without a transaction.
    pub size: u32,
    /// Frames up to and with the commit.
    pub frames: u64,
    /// Transactions up to and with the commit.
    pub transactions: u64,
}

impl Contents {
    /// Reads the frames of a log up to a commit. A log with fewer transactions is read to its last; the answer says how many.
    ///
    /// # Errors
    /// The system's answer.
    pub fn read(wal: &dyn ReadAt, upto: Upto) -> io::Result<Contents> {
        let mut contents = Contents::default();
        let Some(header) = Header::read(wal)? else { return Ok(contents) };
        let mut frames = Frames::new(wal, header);
        let mut pending = Vec::new();
        while !contents.is_at(upto)
            && let Some(frame) = frames.next()?
        {
            pending.push(frame);
            if frame.commit == 0 {
                continue;
            }
            contents.pages.extend(pending.drain(..).map(|f| (f.page, f)));
            contents.size = frame.commit;
            contents.frames = frame.index + 1;
            contents.transactions += 1;
            contents.header = Some(header);
        }
        // A transaction that made the database smaller leaves frames of pages that are gone.
        let _ = contents.pages.split_off(&contents.size.saturating_add(1));
        Ok(contents)
    }

    fn is_at(&self, upto: Upto) -> bool {
        matches!(upto, Upto::Commit(n) if self.transactions >= n)
    }

    /// Reads the image of a page; `None` if the log does not have it, `Some(false)` if the log was restarted over it.
    ///
    /// # Errors
    /// The system's answer.
    pub fn fetch(&self, wal: &dyn ReadAt, number: u32, page: &mut Vec<u8>) -> io::Result<Option<bool>> {
        match (&self.header, self.pages.get(&number)) {
            (Some(header), Some(frame)) => read_again(wal, header, frame, page).map(Some),
            _ => Ok(None),
        }
    }
}
