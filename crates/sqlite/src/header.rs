//! The format of the first hundred bytes of a main file.
//!
//! Takes any bytes, so that a captured file and a page of a log are read alike; what follows from it is decided elsewhere.

use crate::wal::{ReadAt, valid_page_size, word};

/// Bytes of the header of a main file.
pub const MAIN_HEADER_BYTES: usize = 100;

/// How a database keeps its changes until they are in the main file, as its header says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Journal {
    /// A rollback journal.
    Rollback,
    /// A write-ahead log.
    Wal,
}

/// The header of a main file. <https://www.sqlite.org/fileformat2.html#the_database_header>
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MainHeader {
    /// Bytes of a page: a power of two from 512 to 65536.
    pub page_size: u32,
    /// Rollback journal or log.
    pub journal: Journal,
    /// The number that a program marks its databases with; 0 if it does not.
    pub application_id: u32,
    /// The number that a program may keep its schema version in.
    pub user_version: u32,
    /// Pages of the database; `None` where a version before 3.7.0 wrote last, which did not keep this number.
    pub pages: Option<u32>,
    /// How many of them are on the list of free pages.
    pub free_pages: u32,
}

impl MainHeader {
    /// Parses a header; `None` if SQLite would say that this is not a database.
    pub fn parse(bytes: &[u8]) -> Option<MainHeader> {
        let bytes = bytes.get(..MAIN_HEADER_BYTES)?;
        // The value 1 stands for 65536, which two bytes cannot hold.
        let page_size = match word(bytes, 16) >> 16 {
            1 => 65536,
            size => size,
        };
        let fractions = [bytes[21], bytes[22], bytes[23]] == [64, 32, 32];
        let valid =
            bytes.starts_with(b"SQLite format 3\0") && valid_page_size(page_size) && bytes[19] <= 2 && fractions;
        valid.then(|| MainHeader {
            page_size,
            journal: if bytes[19] == 2 { Journal::Wal } else { Journal::Rollback },
            application_id: word(bytes, 68),
            user_version: word(bytes, 60),
            pages: Some(word(bytes, 28)).filter(|pages| *pages > 0 && word(bytes, 24) == word(bytes, 92)),
            free_pages: word(bytes, 36),
        })
    }

    /// The header of a main file; `None` if it is shorter or not valid.
    ///
    /// # Errors
    /// The system's answer.
    pub fn read(main: &dyn ReadAt) -> std::io::Result<Option<MainHeader>> {
        let mut bytes = [0; MAIN_HEADER_BYTES];
        Ok(if main.fill_at(&mut bytes, 0)? { MainHeader::parse(&bytes) } else { None })
    }
}
