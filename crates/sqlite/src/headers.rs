//! What the first bytes of main file, log and journal say, judged before SQLite opens them.
//!
//! Page 1 on disk may be garbage while the log carries a good one, and a log with a damaged header is ignored by SQLite
//! in silence although its frames hold committed data: so both are read together, and the frames are tried even when the
//! header is not valid.
//!
//! Reading needs an ordinary descriptor. It is opened on the inode that was checked, and only when no connection of this
//! process has that inode open: closing it would drop the record locks that a connection without the lock core relies on.

use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Reason, Result};
use crate::family::Member;
use crate::secure::{Inspected, Seen};
use crate::wal::{
    Checksum, FRAME_HEADER_BYTES, Frames, HEADER_BYTES, Header, ReadAt, checksum_frame, frame_offset, stored_checksum,
    word,
};

pub use crate::header::{Journal, MAIN_HEADER_BYTES, MainHeader};

/// How far into a log with a damaged header its frames are looked for.
const SEARCHED_BYTES: u64 = 16 << 20;

/// What the headers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Headers {
    /// A connection of this process has the database open, so it was judged when that was opened.
    InUse,
    /// There is no main file, or an empty one, or what a power cut left of the transaction that created it: nothing was
    /// created yet.
    New,
    /// A database. A newer page 1 may be in the log; it is looked for only when the main file has no good one, for a
    /// log may be large and opening must be quick.
    Database {
        /// The header of the main file, or of the log's newest page 1.
        header: MainHeader,
        /// True if the main file's own page 1 is no header; the next checkpoint heals it.
        from_log: bool,
    },
}

/// Reads and judges the headers of an inspected family.
///
/// # Errors
/// [`Reason::NotDatabase`], [`Reason::WalHeader`], [`Reason::EmptyBesideWal`] (a main file of zero bytes beside the
/// journal of a database that had content), or [`Error::Io`].
pub fn check(inspected: &Inspected) -> Result<Headers> {
    let family = inspected.family();
    let Some(main) = inspected.get(Member::Main) else { return Ok(Headers::New) };
    if crate::locks::in_use(main.status.identity.device, main.status.identity.inode) {
        return Ok(Headers::InUse);
    }
    let io = |member, e| Error::io("read the header of", &family.path(member), e);
    if main.status.size == 0 {
        check_journal_of_empty(inspected)?;
        return Ok(Headers::New);
    }
    let wal = match inspected.get(Member::Wal).filter(|wal| wal.status.size >= HEADER_BYTES) {
        Some(wal) => Some(open(wal).map_err(|e| io(Member::Wal, e))?),
        None => None,
    };
    if let Some(wal) = &wal
        && let Some(detail) = hidden_frames(wal).map_err(|e| io(Member::Wal, e))?
    {
        return Err(Error::refused(Reason::WalHeader, family.path(Member::Wal), detail));
    }
    if let Some(header) = open(main).and_then(|f| MainHeader::read(&f)).map_err(|e| io(Member::Main, e))? {
        return Ok(Headers::Database { header, from_log: false });
    }
    let page = wal.map(|w| log_page_one(&w)).transpose().map_err(|e| io(Member::Wal, e))?.flatten();
    match page.as_deref().and_then(MainHeader::parse) {
        Some(header) => Ok(Headers::Database { header, from_log: true }),
        None if was_being_created(inspected, main)? => Ok(Headers::New),
        None => Err(Error::refused(Reason::NotDatabase, family.main(), "its header is not that of SQLite")),
    }
}

/// Opens the checked inode for reading, without changing its time of access where the system lets us.
pub(crate) fn open(seen: &Seen) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let path = seen.magic_path();
    match rustix::fs::openat(CWD, &path, flags | OFlags::NOATIME, Mode::empty()) {
        // Only the owner may ask for that.
        Err(Errno::PERM) => Ok(rustix::fs::openat(CWD, &path, flags, Mode::empty())?),
        other => Ok(other?),
    }
}

/// The first byte of a file that was inspected; `None` if it is empty.
pub(crate) fn first_byte(seen: &Seen) -> std::io::Result<Option<u8>> {
    let mut byte = [0];
    Ok(open(seen)?.fill_at(&mut byte, 0)?.then_some(byte[0]))
}

/// The header in the newest committed page 1 of the log, if the log has one: what SQLite will see in place of the main
/// file's. Reads the whole log.
///
/// # Errors
/// [`Error::Io`].
pub fn in_log(inspected: &Inspected) -> Result<Option<MainHeader>> {
    let Some(wal) = inspected.get(Member::Wal) else { return Ok(None) };
    let page = open(wal).and_then(|file| log_page_one(&file));
    let page = page.map_err(|e| Error::io("read", &inspected.family().path(Member::Wal), e))?;
    Ok(page.as_deref().and_then(MainHeader::parse))
}

/// A journal beside an empty main file: harmless when it belongs to the transaction that creates the database (it
/// restores zero pages), but SQLite deletes any, and the journal of a database that was truncated is all that is left of it.
fn check_journal_of_empty(inspected: &Inspected) -> Result<()> {
    match pages_of_journal(inspected)? {
        None | Some(0) => Ok(()),
        Some(pages) => Err(Error::refused(
            Reason::EmptyBesideWal,
            inspected.family().main(),
            format!("the journal belongs to a database of {pages} pages"),
        )),
    }
}

/// How many pages a journal that SQLite would play back restores; `None` if there is no such journal.
fn pages_of_journal(inspected: &Inspected) -> Result<Option<u32>> {
    const MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    let Some(journal) = inspected.get(Member::Journal).filter(|j| j.status.size > 0) else { return Ok(None) };
    let mut start = [0; 28];
    let whole = open(journal)
        .and_then(|f| f.fill_at(&mut start, 0))
        .map_err(|e| Error::io("read the header of", &inspected.family().path(Member::Journal), e))?;
    Ok((whole && start.starts_with(&MAGIC)).then(|| word(&start, 16)))
}

/// True if the power failed while the very first transaction was written: the disk has the file's length and not its first
/// sector, and the journal restores zero pages. SQLite makes the file empty again then.
fn was_being_created(inspected: &Inspected, main: &Seen) -> Result<bool> {
    const SECTOR: usize = 512;
    if inspected.get(Member::Wal).is_some_and(|wal| wal.status.size > 0) || pages_of_journal(inspected)? != Some(0) {
        return Ok(false);
    }
    let mut first = [0; SECTOR];
    let whole = open(main).and_then(|f| f.fill_at(&mut first, 0));
    let whole = whole.map_err(|e| Error::io("read the header of", &inspected.family().main(), e))?;
    Ok(whole && first == [0; SECTOR])
}

/// The start of the newest committed page 1 of a log, if it has one.
fn log_page_one(wal: &dyn ReadAt) -> std::io::Result<Option<Vec<u8>>> {
    let Some(header) = Header::read(wal)? else { return Ok(None) };
    let mut frames = Frames::new(wal, header);
    let (mut newest, mut pending) = (None, None);
    while let Some(frame) = frames.next()? {
        if frame.page == 1 {
            pending = Some(frames.page()[..MAIN_HEADER_BYTES].to_vec());
        }
        if frame.commit != 0 {
            newest = pending.take().or(newest);
        }
    }
    Ok(newest)
}

/// Looks for valid frames behind a header that SQLite would not accept; says what was found. The page size and the byte order are unknown then, so each is tried.
///
/// Two frames in a row prove each other: their salts are equal and the checksum of the second continues the stored one of
/// the first. A single frame is proved by the header as it must have been: what is left of it, with the frame's own salts.
fn hidden_frames(wal: &dyn ReadAt) -> std::io::Result<Option<String>> {
    let mut left = [0; HEADER_BYTES as usize];
    if !wal.fill_at(&mut left, 0)? || Header::parse(&left).is_some() {
        return Ok(None);
    }
    for page_size in (9..=16).map(|shift| 1u32 << shift) {
        if single_frame(wal, &left, page_size)? || frame_pair(wal, page_size)? {
            return Ok(Some(format!("its frames are valid with pages of {page_size} bytes")));
        }
    }
    Ok(None)
}

fn frame_pair(wal: &dyn ReadAt, page_size: u32) -> std::io::Result<bool> {
    let mut frame = vec![0; FRAME_HEADER_BYTES as usize + page_size as usize];
    let mut before = [0; FRAME_HEADER_BYTES as usize];
    let mut current = before;
    for index in 0.. {
        let offset = frame_offset(page_size, index);
        if offset > SEARCHED_BYTES || !wal.fill_at(&mut current, offset)? {
            break;
        }
        let plausible = word(&current, 0) != 0 && word(&before, 0) != 0 && current[8..16] == before[8..16];
        if plausible && wal.fill_at(&mut frame, offset)? {
            let stored = stored_checksum(&frame);
            let continues = |big_endian| checksum_frame(stored_checksum(&before), &frame, big_endian) == stored;
            if stored != Checksum::default() && (continues(false) || continues(true)) {
                return Ok(true);
            }
        }
        before = current;
    }
    Ok(false)
}

fn single_frame(wal: &dyn ReadAt, left: &[u8; 32], page_size: u32) -> std::io::Result<bool> {
    /// How many restarts of the log are tried when the count in the header is damaged as well.
    const SEQUENCES: u32 = 1024;
    let mut frame = vec![0; FRAME_HEADER_BYTES as usize + page_size as usize];
    if !wal.fill_at(&mut frame, HEADER_BYTES)? || word(&frame, 0) == 0 {
        return Ok(false);
    }
    let stored = stored_checksum(&frame);
    if stored == Checksum::default() {
        return Ok(false);
    }
    let mut header = [0; 24];
    header[4..8].copy_from_slice(&3_007_000u32.to_be_bytes());
    header[8..12].copy_from_slice(&page_size.to_be_bytes());
    header[16..24].copy_from_slice(&frame[8..16]);
    // The checksum is linear in its seed, so the frame is mixed once and each seed that is tried costs a few steps.
    let mixing = Linear::power(1 + u64::from(page_size) / 8);
    for big_endian in [false, true] {
        let from_zero = checksum_frame(Checksum::default(), &frame, big_endian);
        header[..4].copy_from_slice(&(0x377f_0682 | u32::from(big_endian)).to_be_bytes());
        let sequences = std::iter::once(word(left, 12)).chain(0..SEQUENCES);
        let reconstructed = sequences.map(|sequence| {
            header[12..16].copy_from_slice(&sequence.to_be_bytes());
            Checksum::default().mix(&header, big_endian)
        });
        let left_over = Checksum(word(left, 24), word(left, 28));
        if std::iter::once(left_over).chain(reconstructed).any(|seed| mixing.apply(seed, from_zero) == stored) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What a number of mixing steps does to a seed, as a matrix modulo 2^32: the checksum of given bytes is this matrix
/// applied to the seed plus the checksum of the same bytes from zero.
#[derive(Clone, Copy)]
struct Linear([[u32; 2]; 2]);

impl Linear {
    fn times(self, other: Linear) -> Linear {
        let (a, b) = (self.0, other.0);
        let cell = |r: usize, c: usize| a[r][0].wrapping_mul(b[0][c]).wrapping_add(a[r][1].wrapping_mul(b[1][c]));
        Linear([[cell(0, 0), cell(0, 1)], [cell(1, 0), cell(1, 1)]])
    }

    /// One step is `x += y; y += x`, which is the matrix [[1, 1], [1, 2]].
    fn power(mut steps: u64) -> Linear {
        let (mut result, mut square) = (Linear([[1, 0], [0, 1]]), Linear([[1, 1], [1, 2]]));
        while steps > 0 {
            if steps & 1 == 1 {
                result = result.times(square);
            }
            square = square.times(square);
            steps >>= 1;
        }
        result
    }

    fn apply(self, seed: Checksum, zero: Checksum) -> Checksum {
        let row = |r: [u32; 2]| r[0].wrapping_mul(seed.0).wrapping_add(r[1].wrapping_mul(seed.1));
        Checksum(row(self.0[0]).wrapping_add(zero.0), row(self.0[1]).wrapping_add(zero.1))
    }
}
