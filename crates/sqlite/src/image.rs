//! The database as of the last complete transaction, made from a main file and its log without opening either by SQLite.
//!
//! This is how a retired generation is read: a ghost's deleted log and main file are only reachable as descriptors,
//! and SQLite pairs files by name. The image is a plain file in rollback mode, so it opens with `immutable=1` and
//! leaves no trace.

use std::io;

use crate::wal::{Contents, ReadAt, Upto, read_again, valid_page_size, word};

const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// How many pages beyond those that are written anywhere a commit may claim. SQLite may leave pages unwritten that were
/// allocated and freed in one transaction; more than this is no database but a crafted number.
const UNWRITTEN_PAGES: u64 = 1 << 20;

/// Where an image is written.
pub trait Sink {
    /// Writes all of `bytes` at `offset`.
    ///
    /// # Errors
    /// The system's answer.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Makes the file exactly `length` bytes long.
    ///
    /// # Errors
    /// The system's answer.
    fn set_length(&mut self, length: u64) -> io::Result<()>;
}

impl Sink for Vec<u8> {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let end = start.checked_add(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        if self.len() < end {
            self.resize(end, 0);
        }
        self[start..end].copy_from_slice(bytes);
        Ok(())
    }

    fn set_length(&mut self, length: u64) -> io::Result<()> {
        self.resize(usize::try_from(length).map_err(io::Error::other)?, 0);
        Ok(())
    }
}

impl Sink for std::fs::File {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        #[cfg(unix)]
        return std::os::unix::fs::FileExt::write_all_at(self, bytes, offset);
        #[cfg(windows)]
        {
            io::Seek::seek(self, io::SeekFrom::Start(offset))?;
            io::Write::write_all(self, bytes)
        }
    }

    fn set_length(&mut self, length: u64) -> io::Result<()> {
        self.set_len(length)
    }
}

/// What an image was made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Image {
    /// Bytes of a page.
    pub page_size: u32,
    /// Pages of the image.
    pub pages: u64,
    /// Frames of the log up to and with the last commit.
    pub frames: u64,
    /// Transactions of the log that are in the image.
    pub transactions: u64,
    /// Pages that were taken from the log.
    pub from_log: u64,
    /// Pages that neither file has; they are zero in the image.
    pub missing: u64,
}

/// Why no image could be made.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Neither the main file nor the log says that this is a database.
    #[error("neither the main file nor its log is an SQLite database")]
    NotDatabase,
    /// The log was restarted while it was read; the caller may try again.
    #[error("the log changed while it was read")]
    Changed,
    /// The last commit claims a size that nothing supports.
    #[error("the log claims {pages} pages and holds nothing like it")]
    Size {
        /// The claimed size.
        pages: u32,
    },
    /// The log has fewer transactions than were asked for.
    #[error("the log holds {there} transactions, not {asked}")]
    NoCommit {
        /// The transaction that was asked for.
        asked: u64,
        /// How many there are.
        there: u64,
    },
}

/// Writes the database as of the log's last commit to `output`: the pages of the main file, those of the log over them,
/// cut to the size that the commit says. The file that results is in rollback mode whatever `main` was.
///
/// A torn or stale tail of the log is left out as SQLite leaves it out. Every frame is verified again when its page is
/// copied, so a log that is restarted meanwhile cannot put a later page into an earlier image.
///
/// # Errors
/// [`ImageError`].
pub fn overlay(main: &dyn ReadAt, wal: &dyn ReadAt, output: &mut dyn Sink) -> Result<Image, ImageError> {
    overlay_at(main, wal, Upto::Last, output)
}

/// As [`overlay`], as of any transaction of the log.
///
/// The main file must not have pages of later ones, or they are in the image: [`crate::wal::lacking`] tells how many of the
/// log's transactions it contains already, and an image is right from that one on.
///
/// # Errors
/// [`ImageError`].
pub fn overlay_at(main: &dyn ReadAt, wal: &dyn ReadAt, upto: Upto, output: &mut dyn Sink) -> Result<Image, ImageError> {
    let log = Contents::read(wal, upto)?;
    if let Upto::Commit(asked) = upto
        && asked > log.transactions
    {
        return Err(ImageError::NoCommit { asked, there: log.transactions });
    }
    let page_size = match &log.header {
        Some(header) => header.page_size,
        None => main_page_size(main)?.ok_or(ImageError::NotDatabase)?,
    };
    let mut image =
        Image { page_size, pages: 0, frames: log.frames, transactions: log.transactions, from_log: 0, missing: 0 };
    let step = u64::from(page_size);
    let mut page = vec![0; page_size as usize];
    let limit = if log.header.is_some() { u64::from(log.size) } else { u64::MAX };
    let mut highest = log.pages.keys().next_back().map_or(0, |p| u64::from(*p));
    let mut main_ended = false;
    let mut number: u64 = 0;
    while number < limit {
        let offset = number * step;
        number += 1;
        let frame = u32::try_from(number).ok().and_then(|n| log.pages.get(&n));
        match (frame, &log.header) {
            (Some(frame), Some(header)) => {
                if !read_again(wal, header, frame, &mut page)? {
                    return Err(ImageError::Changed);
                }
                image.from_log += 1;
            }
            _ if !main_ended && main.fill_at(&mut page, offset)? => highest = highest.max(number),
            _ => {
                main_ended = true;
                if log.header.is_none() {
                    number -= 1;
                    break;
                }
                if number > highest {
                    check_size(log.size, highest)?;
                    image.missing += limit - number + 1;
                    number = limit;
                    break;
                }
                image.missing += 1;
                continue;
            }
        }
        if number == 1 {
            if !page.starts_with(MAGIC) {
                return Err(ImageError::NotDatabase);
            }
            (page[18], page[19]) = (1, 1);
        }
        output.write_at(&page, offset)?;
    }
    if number == 0 {
        return Err(ImageError::NotDatabase);
    }
    image.pages = number;
    output.set_length(number * step)?;
    Ok(image)
}

fn check_size(claimed: u32, highest: u64) -> Result<(), ImageError> {
    if u64::from(claimed) > highest.saturating_add(UNWRITTEN_PAGES) {
        return Err(ImageError::Size { pages: claimed });
    }
    Ok(())
}

fn main_page_size(main: &dyn ReadAt) -> io::Result<Option<u32>> {
    let mut start = [0; 100];
    if !main.fill_at(&mut start, 0)? || !start.starts_with(MAGIC) {
        return Ok(None);
    }
    // The value 1 stands for 65536, which two bytes cannot hold.
    let size = match word(&start, 16) >> 16 {
        1 => 65536,
        size => size,
    };
    Ok(valid_page_size(size).then_some(size))
}
