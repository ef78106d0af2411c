//! The format of a write-ahead log: header, frames, salts, checksums, commit boundaries.
//!
//! Reads any source of bytes, so that a captured log, a descriptor of a deleted one and a test's vector are all the same.
//! No length is trusted: a log ends where the first frame is that its salts and its running checksum do not prove, as
//! SQLite itself decides it. The format: <https://www.sqlite.org/fileformat2.html#the_write_ahead_log>.

mod contents;
mod earlier;
mod lacking;
mod piece;
mod transactions;

use std::io;

pub use contents::{Contents, Upto};
pub use earlier::{Earlier, earlier_round, end_of_round};
pub use lacking::{Lacking, lacking};
pub(crate) use piece::Piece;
pub use transactions::{Extent, Transaction, Transactions};

/// Bytes of the header of a log.
pub const HEADER_BYTES: u64 = 32;
/// Bytes of the header of a frame; the page follows.
pub const FRAME_HEADER_BYTES: u64 = 24;

const MAGIC: u32 = 0x377f_0682;
const VERSION: u32 = 3_007_000;

/// A source of bytes that is read at a position, without one of its own.
pub trait ReadAt {
    /// Reads into `buffer` from `offset`. Fewer bytes than asked for, or none, mean the end or an interruption.
    ///
    /// # Errors
    /// The system's answer.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Reads as much of `buffer` from `offset` as the source has there, and says how much that is.
    ///
    /// # Errors
    /// The system's answer.
    fn read_most_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.read_at(&mut buffer[done..], offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(n) => done += n.min(buffer.len() - done),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Fills `buffer` from `offset`; false if the source ends before that.
    ///
    /// # Errors
    /// The system's answer.
    fn fill_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
        Ok(self.read_most_at(buffer, offset)? == buffer.len())
    }
}

impl ReadAt for [u8] {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(self.len());
        let n = buffer.len().min(self.len() - start);
        buffer[..n].copy_from_slice(&self[start..start + n]);
        Ok(n)
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.as_slice().read_at(buffer, offset)
    }
}

impl ReadAt for std::fs::File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        #[cfg(unix)]
        return Ok(rustix::io::pread(self, buffer, offset)?);
        // This moves the position of the file, which nothing here relies on.
        #[cfg(windows)]
        std::os::windows::fs::FileExt::seek_read(self, buffer, offset)
    }
}

#[cfg(unix)]
impl ReadAt for std::os::fd::OwnedFd {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(self, buffer, offset)?)
    }
}

#[cfg(unix)]
impl ReadAt for std::os::fd::BorrowedFd<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pread(self, buffer, offset)?)
    }
}

/// The running checksum of a log: two words that every eight bytes are mixed into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checksum(pub u32, pub u32);

impl Checksum {
    /// Mixes `bytes` in; what is beyond a multiple of eight is not looked at.
    pub fn mix(self, bytes: &[u8], big_endian: bool) -> Checksum {
        // One loop for each, for this is what a look at a log costs most.
        if big_endian { self.mix_words(bytes, u32::from_be_bytes) } else { self.mix_words(bytes, u32::from_le_bytes) }
    }

    fn mix_words(self, bytes: &[u8], word: impl Fn([u8; 4]) -> u32) -> Checksum {
        let Checksum(mut first, mut second) = self;
        let (pairs, _) = bytes.as_chunks::<8>();
        for [a, b, c, d, e, f, g, h] in pairs.iter().copied() {
            first = first.wrapping_add(word([a, b, c, d])).wrapping_add(second);
            second = second.wrapping_add(word([e, f, g, h])).wrapping_add(first);
        }
        Checksum(first, second)
    }
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..at + 4) {
        Some(&[a, b, c, d]) => u32::from_be_bytes([a, b, c, d]),
        _ => 0,
    }
}

/// The header of a log, its checksum verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// True if the checksums are computed over big-endian words.
    pub big_endian: bool,
    /// Bytes of a page: a power of two from 512 to 65536.
    pub page_size: u32,
    /// How often the log was restarted.
    pub sequence: u32,
    /// Two words that every frame of this round repeats. They change at each restart, so they are no identity.
    pub salts: [u32; 2],
    /// The checksum of the header, which seeds that of the first frame.
    pub checksum: Checksum,
}

impl Header {
    /// Parses and verifies a header; `None` if SQLite would not accept it.
    pub fn parse(bytes: &[u8; HEADER_BYTES as usize]) -> Option<Header> {
        let magic = word(bytes, 0);
        let big_endian = magic & 1 == 1;
        let page_size = word(bytes, 8);
        let stored = Checksum(word(bytes, 24), word(bytes, 28));
        let valid = magic & !1 == MAGIC
            && word(bytes, 4) == VERSION
            && valid_page_size(page_size)
            && Checksum::default().mix(&bytes[..24], big_endian) == stored;
        valid.then(|| Header {
            big_endian,
            page_size,
            sequence: word(bytes, 12),
            salts: [word(bytes, 16), word(bytes, 20)],
            checksum: stored,
        })
    }

    /// The header at the start of a log; `None` if the log is shorter than a header or the header is not valid.
    ///
    /// # Errors
    /// The system's answer.
    pub fn read(wal: &dyn ReadAt) -> io::Result<Option<Header>> {
        let mut bytes = [0; HEADER_BYTES as usize];
        Ok(if wal.fill_at(&mut bytes, 0)? { Header::parse(&bytes) } else { None })
    }

    pub(crate) fn frame_offset(&self, index: u64) -> u64 {
        frame_offset(self.page_size, index)
    }
}

pub(crate) fn valid_page_size(size: u32) -> bool {
    size.is_power_of_two() && (512..=65536).contains(&size)
}

pub(crate) fn frame_offset(page_size: u32, index: u64) -> u64 {
    index.saturating_mul(FRAME_HEADER_BYTES + u64::from(page_size)).saturating_add(HEADER_BYTES)
}

/// One frame whose salts and checksum were verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Position in the log, from zero.
    pub index: u64,
    /// The number of the page that it carries, from one.
    pub page: u32,
    /// For the last frame of a transaction the size of the database in pages after it; otherwise zero.
    pub commit: u32,
    /// The running checksum before this frame, with which it can be verified again by itself.
    pub before: Checksum,
}

/// The valid frames of a log in order. Ends at the first that is torn, stale or damaged.
pub struct Frames<'a> {
    wal: &'a dyn ReadAt,
    header: Header,
    next: u64,
    checksum: Checksum,
    piece: Piece,
    ended: bool,
}

impl<'a> Frames<'a> {
    /// The frames after a header.
    pub fn new(wal: &'a dyn ReadAt, header: Header) -> Frames<'a> {
        Frames { wal, header, next: 0, checksum: header.checksum, piece: Piece::new(header.page_size), ended: false }
    }

    /// The next valid frame; `None` from the first invalid one on.
    ///
    /// # Errors
    /// The system's answer.
    #[expect(
        clippy::should_implement_trait,
        reason = "the page is lent from one buffer, which Iterator cannot express"
    )]
    pub fn next(&mut self) -> io::Result<Option<Frame>> {
        if self.ended {
            return Ok(None);
        }
        if self.piece.frame(self.next).is_none() {
            self.piece.read(self.wal, self.next..u64::MAX)?;
        }
        let bytes = self.piece.frame(self.next);
        match bytes.and_then(|bytes| verify(&self.header, bytes, self.next, self.checksum)) {
            Some((frame, checksum)) => {
                self.checksum = checksum;
                self.next += 1;
                Ok(Some(frame))
            }
            None => {
                self.ended = true;
                Ok(None)
            }
        }
    }

    /// The page of the frame that `next` gave last.
    pub fn page(&self) -> &[u8] {
        let last = self.next.checked_sub(1).and_then(|last| self.piece.frame(last));
        last.and_then(|frame| frame.get(FRAME_HEADER_BYTES as usize..)).unwrap_or_default()
    }
}

/// Verifies one frame given the running checksum before it; returns it with the checksum after it.
pub(crate) fn verify(header: &Header, bytes: &[u8], index: u64, before: Checksum) -> Option<(Frame, Checksum)> {
    let page = word(bytes, 0);
    if page == 0 || [word(bytes, 8), word(bytes, 12)] != header.salts {
        return None;
    }
    let after = checksum_frame(before, bytes, header.big_endian);
    (after == stored_checksum(bytes)).then(|| (Frame { index, page, commit: word(bytes, 4), before }, after))
}

/// The checksum of a frame covers page number, commit size and page; the salts and the checksum itself are left out.
pub(crate) fn checksum_frame(before: Checksum, bytes: &[u8], big_endian: bool) -> Checksum {
    before.mix(&bytes[..8], big_endian).mix(&bytes[FRAME_HEADER_BYTES as usize..], big_endian)
}

pub(crate) fn stored_checksum(frame: &[u8]) -> Checksum {
    Checksum(word(frame, 16), word(frame, 20))
}

/// Reads one frame again and verifies it by itself; false if the log was restarted over it meanwhile.
///
/// # Errors
/// The system's answer.
pub fn read_again(wal: &dyn ReadAt, header: &Header, frame: &Frame, page: &mut Vec<u8>) -> io::Result<bool> {
    page.resize(FRAME_HEADER_BYTES as usize + header.page_size as usize, 0);
    let read = wal.fill_at(page, header.frame_offset(frame.index))?;
    if !read || verify(header, page, frame.index, frame.before).map(|(f, _)| f) != Some(*frame) {
        return Ok(false);
    }
    page.drain(..FRAME_HEADER_BYTES as usize);
    Ok(true)
}

/// The last transaction of a log that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// Frames up to and with the commit.
    pub frames: u64,
    /// Size of the database in pages after it.
    pub pages: u32,
    /// Salts of the log when it was read.
    pub salts: [u32; 2],
    /// Bytes of a page.
    pub page_size: u32,
    /// How many transactions the log holds up to it.
    pub transactions: u64,
}

/// The last complete transaction of a log; `None` if it holds none that SQLite would accept.
///
/// # Errors
/// The system's answer.
pub fn last_commit(wal: &dyn ReadAt) -> io::Result<Option<Commit>> {
    let Some(header) = Header::read(wal)? else { return Ok(None) };
    let mut frames = Frames::new(wal, header);
    let mut last = None;
    let mut transactions = 0;
    while let Some(frame) = frames.next()? {
        if frame.commit != 0 {
            transactions += 1;
            last = Some(Commit {
                frames: frame.index + 1,
                pages: frame.commit,
                salts: header.salts,
                page_size: header.page_size,
                transactions,
            });
        }
    }
    Ok(last)
}
