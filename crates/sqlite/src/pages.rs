//! The pages of a database file, read without SQLite: b-trees, records, overflow chains.
//!
//! For what SQLite cannot open: pages that lie in the log of a retired generation, a file whose tree is broken somewhere.
//! Nothing that stands in a page is trusted: depth, lengths, counts and page numbers are all bounded, a page is
//! visited once, and what cannot be read is named and left out while the rest is read.
//! The format: <https://www.sqlite.org/fileformat2.html>.

mod btree;
mod payload;
mod record;
mod schema;
mod walk;

use std::io;

pub use btree::{Cell, Kind, Page, Payload};
pub use payload::{Chain, Claims, gather};
pub use record::{Encoding, Record, Value};
pub use schema::{Object, schema};
pub(crate) use walk::within;
pub use walk::{Row, Unread, Walk, Why, seek, walk};

use crate::wal::{Contents, ReadAt, valid_page_size, word};

/// A source of the pages of one database.
pub trait PageSource {
    /// How they are laid out.
    fn layout(&self) -> Layout;

    /// How many pages there may be; no page beyond is asked for.
    fn count(&self) -> u32;

    /// Reads a page, numbered from one, all of it; false if it is not there.
    ///
    /// # Errors
    /// The system's answer.
    fn read(&self, number: u32, page: &mut Vec<u8>) -> io::Result<bool>;
}

/// What must be known of a database before its pages can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a page.
    pub page_size: u32,
    /// Bytes of a page that are used; some extensions keep a few at the end for themselves.
    pub usable: u32,
    /// How text is stored.
    pub encoding: Encoding,
    /// True if the file has pages that say where each page belongs, as incremental vacuum needs them.
    pub pointer_map: bool,
}

impl Layout {
    /// What the first page says; `None` if it is not that of a database with pages of this size.
    pub fn of(first: &[u8], page_size: u32) -> Option<Layout> {
        let head = first.get(..100)?;
        let stated = match word(head, 16) >> 16 {
            1 => 65536,
            size => size,
        };
        let usable = page_size.checked_sub(u32::from(head[20]))?;
        let encoding = Encoding::of(word(head, 56))?;
        let valid = head.starts_with(b"SQLite format 3\0") && stated == page_size && usable >= 480;
        valid.then_some(Layout { page_size, usable, encoding, pointer_map: word(head, 52) != 0 })
    }

    /// What is true of nearly every database with pages of this size, where no first page says it.
    pub fn usual(page_size: u32) -> Layout {
        Layout { page_size, usable: page_size, encoding: Encoding::Utf8, pointer_map: false }
    }

    /// True for a page that only says where others belong, if the database has such.
    /// <https://www.sqlite.org/fileformat2.html#pointer_map_or_ptrmap_pages>
    pub fn is_pointer_map(&self, number: u32) -> bool {
        let lock_byte_page = (1 << 30) / self.page_size + 1;
        let group = self.usable / 5 + 1;
        let first = number.wrapping_sub(2) / group * group + 2;
        let place = if first == lock_byte_page { first + 1 } else { first };
        self.pointer_map && number >= 2 && place == number
    }
}

/// The pages of one file: a main file without its log, or an image.
pub struct FilePages<'a> {
    file: &'a dyn ReadAt,
    layout: Layout,
    count: u32,
}

impl<'a> FilePages<'a> {
    /// Looks at the first page; `None` if it is not that of a database.
    ///
    /// # Errors
    /// The system's answer.
    pub fn of(file: &'a dyn ReadAt) -> io::Result<Option<FilePages<'a>>> {
        let mut head = [0; 100];
        if !file.fill_at(&mut head, 0)? {
            return Ok(None);
        }
        let page_size = match word(&head, 16) >> 16 {
            1 => 65536,
            size => size,
        };
        let layout = if valid_page_size(page_size) { Layout::of(&head, page_size) } else { None };
        layout.map(|layout| Ok(FilePages { file, layout, count: count_pages(file, page_size)? })).transpose()
    }

    /// The pages of a file of which something else says how they are laid out.
    ///
    /// # Errors
    /// The system's answer.
    pub fn with(file: &'a dyn ReadAt, layout: Layout) -> io::Result<FilePages<'a>> {
        Ok(FilePages { file, layout, count: count_pages(file, layout.page_size)? })
    }
}

impl PageSource for FilePages<'_> {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn count(&self) -> u32 {
        self.count
    }

    fn read(&self, number: u32, page: &mut Vec<u8>) -> io::Result<bool> {
        read_page(self.file, self.layout.page_size, number, page)
    }
}

/// The pages of a log over those of a main file, as of one of its commits.
pub struct LogPages<'a> {
    main: &'a dyn ReadAt,
    wal: &'a dyn ReadAt,
    contents: &'a Contents,
    layout: Layout,
}

impl<'a> LogPages<'a> {
    /// Puts the two together. Without a first page in either the layout is the usual one; `None` if the log is empty.
    ///
    /// # Errors
    /// The system's answer.
    pub fn of(main: &'a dyn ReadAt, wal: &'a dyn ReadAt, contents: &'a Contents) -> io::Result<Option<LogPages<'a>>> {
        let Some(header) = &contents.header else { return Ok(None) };
        let mut pages = LogPages { main, wal, contents, layout: Layout::usual(header.page_size) };
        let mut first = Vec::new();
        if pages.read(1, &mut first)?
            && let Some(layout) = Layout::of(&first, header.page_size)
        {
            pages.layout = layout;
        }
        Ok(Some(pages))
    }
}

impl PageSource for LogPages<'_> {
    fn layout(&self) -> Layout {
        self.layout
    }

    fn count(&self) -> u32 {
        self.contents.size
    }

    fn read(&self, number: u32, page: &mut Vec<u8>) -> io::Result<bool> {
        match self.contents.fetch(self.wal, number, page)? {
            Some(true) => Ok(true),
            Some(false) => Err(io::Error::other("the log changed while it was read")),
            None => read_page(self.main, self.layout.page_size, number, page),
        }
    }
}

fn read_page(file: &dyn ReadAt, page_size: u32, number: u32, page: &mut Vec<u8>) -> io::Result<bool> {
    page.resize(page_size as usize, 0);
    let Some(before) = number.checked_sub(1) else { return Ok(false) };
    file.fill_at(page, u64::from(before) * u64::from(page_size))
}

/// How many whole pages a file has, found by trying, for not every source of bytes has a length.
fn count_pages(file: &dyn ReadAt, page_size: u32) -> io::Result<u32> {
    let mut byte = [0];
    let mut has = |pages: u64| file.fill_at(&mut byte, pages * u64::from(page_size) - 1);
    let (mut low, mut high) = (0, 1);
    while high <= u64::from(u32::MAX) && has(high)? {
        (low, high) = (high, high * 2);
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if has(middle)? {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(u32::try_from(low).unwrap_or(u32::MAX))
}
