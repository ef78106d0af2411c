//! The transactions of a log one by one, and what lies behind the last of them.

use std::collections::HashSet;
use std::io;

use super::{FRAME_HEADER_BYTES, Frames, Header, ReadAt, checksum_frame, frame_offset, stored_checksum, word};

/// One complete transaction of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transaction {
    /// Which one it is, counted from one.
    pub number: u64,
    /// Its first frame, counted from zero.
    pub first: u64,
    /// Its last frame, which is the one that says it is complete.
    pub last: u64,
    /// How many different pages it wrote.
    pub pages: u64,
    /// Size of the database in pages after it.
    pub size: u32,
}

/// The complete transactions of a log in order.
pub struct Transactions<'a> {
    frames: Option<Frames<'a>>,
    next: Transaction,
    seen: HashSet<u32>,
}

impl<'a> Transactions<'a> {
    /// The transactions of a log; none if its header is not valid.
    ///
    /// # Errors
    /// The system's answer.
    pub fn of(wal: &'a dyn ReadAt) -> io::Result<Transactions<'a>> {
        let frames = Header::read(wal)?.map(|header| Frames::new(wal, header));
        let next = Transaction { number: 1, first: 0, last: 0, pages: 0, size: 0 };
        Ok(Transactions { frames, next, seen: HashSet::new() })
    }

    fn advance(&mut self) -> io::Result<Option<Transaction>> {
        let Some(frames) = &mut self.frames else { return Ok(None) };
        while let Some(frame) = frames.next()? {
            self.seen.insert(frame.page);
            if frame.commit != 0 {
                let done =
                    Transaction { last: frame.index, pages: self.seen.len() as u64, size: frame.commit, ..self.next };
                self.next = Transaction { number: done.number + 1, first: frame.index + 1, ..self.next };
                self.seen.clear();
                return Ok(Some(done));
            }
        }
        self.frames = None;
        Ok(None)
    }
}

impl Iterator for Transactions<'_> {
    type Item = io::Result<Transaction>;

    fn next(&mut self) -> Option<Self::Item> {
        self.advance().transpose()
    }
}

/// What a log consists of, from its start to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// Frames of complete transactions.
    pub committed: u64,
    /// Valid frames behind them, of a transaction that was not completed.
    pub unfinished: u64,
    /// Frames of an older round behind those: the log was restarted and is not filled again up to there. They are in the main
    /// file, unless a second process ruined it, and so they are evidence.
    pub stale: u64,
    /// How many of the stale frames complete a transaction.
    pub stale_commits: u64,
    /// Bytes after all that, which are no frame of this log.
    pub rest: u64,
}

impl Extent {
    /// Reads all of a log.
    ///
    /// # Errors
    /// The system's answer.
    pub fn of(wal: &dyn ReadAt) -> io::Result<Extent> {
        let mut extent = Extent::default();
        let Some(header) = Header::read(wal)? else { return Ok(Extent { rest: length(wal, 0)?, ..extent }) };
        let mut frames = Frames::new(wal, header);
        let mut valid = 0;
        while let Some(frame) = frames.next()? {
            valid = frame.index + 1;
            if frame.commit != 0 {
                extent.committed = valid;
            }
        }
        extent.unfinished = valid - extent.committed;
        extent.stale(wal, &header, valid)?;
        let end = frame_offset(header.page_size, valid + extent.stale);
        extent.rest = length(wal, end)?;
        Ok(extent)
    }

    /// Counts frames of older rounds from `at` on. The checksum before the first of a run is not known any more, so that one
    /// counts only if its salts are those of an older round, or the next one's checksum follows from its own.
    fn stale(&mut self, wal: &dyn ReadAt, header: &Header, at: u64) -> io::Result<()> {
        let mut bytes = vec![0; FRAME_HEADER_BYTES as usize + header.page_size as usize];
        let mut before = None;
        // A frame that is proved only if the next one follows from it.
        let mut doubtful: Option<(u64, u64)> = None;
        let mut index = at;
        while wal.fill_at(&mut bytes, frame_offset(header.page_size, index))? {
            let salts = [word(&bytes, 8), word(&bytes, 12)];
            if word(&bytes, 0) == 0 || salts == header.salts {
                break;
            }
            let commit = u64::from(word(&bytes, 4) != 0);
            let after = stored_checksum(&bytes);
            let follows = before
                .is_some_and(|(old, sum)| old == salts && checksum_frame(sum, &bytes, header.big_endian) == after);
            let (frames, commits) = if follows { doubtful.take().unwrap_or((0, 0)) } else { (0, 0) };
            if follows || is_older(salts[0], header.salts[0]) {
                if doubtful.is_some() {
                    break;
                }
                self.stale += frames + 1;
                self.stale_commits += commits + commit;
            } else if before.is_none() {
                doubtful = Some((1, commit));
            } else {
                break;
            }
            before = Some((salts, after));
            index += 1;
        }
        Ok(())
    }
}

/// SQLite adds one to the first salt at every restart; the second is random.
fn is_older(salt: u32, now: u32) -> bool {
    (1..=1 << 16).contains(&now.wrapping_sub(salt))
}

/// How many bytes there are from `start` on.
fn length(wal: &dyn ReadAt, start: u64) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 16];
    let mut at = start;
    loop {
        match wal.read_at(&mut buffer, at) {
            Ok(0) => return Ok(at - start),
            Ok(n) => at = at.saturating_add(n as u64),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}
