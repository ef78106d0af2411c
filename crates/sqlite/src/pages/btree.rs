//! One page of a b-tree: its header, its cells, and what of a payload lies on it.

use super::Layout;
use super::record::varint;
use crate::wal::word;

/// What a page of a b-tree is. <https://www.sqlite.org/fileformat2.html#b_tree_pages>
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Rows of a table with rowids.
    TableLeaf,
    /// The way to them.
    TableInterior,
    /// Entries of an index, or rows of a `WITHOUT ROWID` table.
    IndexLeaf,
    /// The way to them, which holds such entries itself.
    IndexInterior,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        match byte {
            0x0d => Some(Kind::TableLeaf),
            0x05 => Some(Kind::TableInterior),
            0x0a => Some(Kind::IndexLeaf),
            0x02 => Some(Kind::IndexInterior),
            _ => None,
        }
    }

    /// True for a page of a table with rowids.
    pub fn is_table(self) -> bool {
        matches!(self, Kind::TableLeaf | Kind::TableInterior)
    }

    /// True for a page that has pages below it.
    pub fn is_interior(self) -> bool {
        matches!(self, Kind::TableInterior | Kind::IndexInterior)
    }
}

/// A page that has the shape of one of a b-tree.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    /// What it is.
    pub kind: Kind,
    /// How many cells it says it has. Each may still be unreadable.
    pub cells: u16,
    /// For an interior page the page after the last cell.
    pub right: u32,
    bytes: &'a [u8],
    start: usize,
    layout: Layout,
}

/// The content of a cell that is a row or an entry, or of which some lies on other pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Payload<'a> {
    /// Bytes of all of it.
    pub length: u64,
    /// The part that lies on the page.
    pub local: &'a [u8],
    /// The first page of the chain that has the rest; zero if there is none.
    pub overflow: u32,
}

/// One cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell<'a> {
    /// For an interior page the page with what comes before this cell.
    pub left: u32,
    /// The rowid; for an interior page the largest one below `left`. Zero on pages of an index.
    pub rowid: i64,
    /// The content; on an interior page of a table there is none.
    pub payload: Option<Payload<'a>>,
}

impl<'a> Page<'a> {
    /// Looks at a page; `None` if it cannot be one of a b-tree.
    pub fn parse(bytes: &'a [u8], number: u32, layout: Layout) -> Option<Page<'a>> {
        let bytes = bytes.get(..layout.usable as usize)?;
        // The header of the file comes before that of the first page.
        let start = if number == 1 { 100 } else { 0 };
        let kind = Kind::of(*bytes.get(start)?)?;
        let cells = u16::from_be_bytes([*bytes.get(start + 3)?, *bytes.get(start + 4)?]);
        let right = if kind.is_interior() { word(bytes, start + 8) } else { 0 };
        let page = Page { kind, cells, right, bytes, start, layout };
        (page.first_pointer() + 2 * usize::from(cells) <= bytes.len()).then_some(page)
    }

    fn first_pointer(&self) -> usize {
        self.start + if self.kind.is_interior() { 12 } else { 8 }
    }

    /// True if the header says what SQLite writes: the area of the cells begins behind the pointers, and every cell can be read.
    /// Content that happens to begin like a page of a b-tree hardly passes this.
    pub fn is_whole(&self) -> bool {
        let at = |offset| match self.bytes.get(offset..offset + 2) {
            Some(&[a, b]) => usize::from(u16::from_be_bytes([a, b])),
            _ => 0,
        };
        let content = match at(self.start + 5) {
            0 => 65536,
            content => content,
        };
        let pointers_end = self.first_pointer() + 2 * usize::from(self.cells);
        let fragments = self.bytes.get(self.start + 7).copied().unwrap_or(0);
        content >= pointers_end
            && content <= self.bytes.len()
            && fragments <= 60
            && (0..self.cells).all(|n| at(self.first_pointer() + 2 * usize::from(n)) >= content)
            && (0..self.cells).all(|n| self.cell(n).is_some())
    }

    /// A cell, counted from zero; `None` if it is not there or cannot be read.
    pub fn cell(&self, n: u16) -> Option<Cell<'a>> {
        if n >= self.cells {
            return None;
        }
        let pointer = self.first_pointer() + 2 * usize::from(n);
        let offset = usize::from(u16::from_be_bytes([*self.bytes.get(pointer)?, *self.bytes.get(pointer + 1)?]));
        let mut rest = self.bytes.get(offset..).filter(|_| offset > pointer)?;
        let mut left = 0;
        if self.kind.is_interior() {
            left = word(rest.get(..4)?, 0);
            rest = &rest[4..];
        }
        if self.kind == Kind::TableInterior {
            let (rowid, _) = varint(rest)?;
            return Some(Cell { left, rowid: rowid as i64, payload: None });
        }
        let (length, used) = varint(rest)?;
        rest = &rest[used..];
        let mut rowid = 0;
        if self.kind == Kind::TableLeaf {
            let (id, used) = varint(rest)?;
            rowid = id as i64;
            rest = &rest[used..];
        }
        Some(Cell { left, rowid, payload: Some(self.payload(length, rest)?) })
    }

    /// How much of a payload lies on the page: <https://www.sqlite.org/fileformat2.html#cell_payload_overflow_pages>.
    fn payload(&self, length: u64, rest: &'a [u8]) -> Option<Payload<'a>> {
        let usable = u64::from(self.layout.usable);
        let most = if self.kind == Kind::TableLeaf { usable - 35 } else { (usable - 12) * 64 / 255 - 23 };
        if length <= most {
            let local = rest.get(..usize::try_from(length).ok()?)?;
            return Some(Payload { length, local, overflow: 0 });
        }
        if length > super::payload::LONGEST {
            return None;
        }
        let least = (usable - 12) * 32 / 255 - 23;
        let fitting = least + (length - least) % (usable - 4);
        let local = usize::try_from(if fitting <= most { fitting } else { least }).ok()?;
        let overflow = word(rest.get(local..local + 4)?, 0);
        (overflow != 0).then_some(Payload { length, local: &rest[..local], overflow })
    }
}
