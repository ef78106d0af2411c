//! Whether the volumes have room for a merge, before anything is made.
//!
//! A merge writes a snapshot of the database as it is, then every page that it touches into the log (in rollback mode what these pages were
//! into the journal), and the main file grows by what came. A volume that is full half-way leaves the program that owns the
//! database without room to write. So all of it is asked for first, and what a row takes is counted from the row itself.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Connection;
use serde::Serialize;
use statehouse_sqlite::Family;

use super::cell::Cell;
use super::compare::{Conflict, Landed, New, Sink};
use super::error::{Error, Result, io};
use super::pair::Pair;
use crate::maintenance::room::{MARGIN, free};
use crate::snapshots::reserve;

/// Header of a frame, and its place in the index of the log.
const FRAME: u64 = 24 + 8;

/// What rows take that come to a database.
#[derive(Debug, Clone, Default)]
pub(super) struct Weight {
    page_size: u64,
    pages: u64,
    wal: bool,
    /// Bytes of the pages that are added.
    added: u64,
    /// Pages that are there and are changed.
    touched: u64,
    /// The last row that came to each table.
    last: BTreeMap<String, i64>,
}

/// What a merge takes of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Needs {
    /// Bytes of the snapshot of the database as it is, or of its copy.
    pub copy: u64,
    /// Bytes by which the log, or the journal, may grow.
    pub log: u64,
    /// Bytes by which the main file may grow.
    pub grows: u64,
}

impl Weight {
    pub(super) fn of(live: &Connection) -> Result<Weight> {
        let number = |name: &str| live.pragma_query_value(None, name, |r| r.get::<_, i64>(0));
        let (page_size, pages) = (number("page_size")?.unsigned_abs().max(512), number("page_count")?.unsigned_abs());
        Ok(Weight { page_size, pages, ..Weight::default() })
    }

    /// Pages are written through a log, or are what they were in a journal.
    pub(super) fn through(self, wal: bool) -> Weight {
        Weight { wal, ..self }
    }

    fn add(&mut self, pair: &Pair, new: &New<'_>) {
        let length = |cell: &Cell| match cell.as_ref() {
            rusqlite::types::ValueRef::Text(b) | rusqlite::types::ValueRef::Blob(b) => b.len() as u64 + 4,
            _ => 9,
        };
        let bytes = 16 + new.cells.iter().map(length).sum::<u64>();
        let table = pair.live.as_ref().unwrap_or(&pair.theirs);
        // Each index may have all of the row; what triggers write of it is counted as once more.
        let others = table.indexes + u64::from(table.triggers > 0);
        self.added += self.in_pages(bytes) + others * self.in_pages(bytes) * 3 / 2;
        // Rows that follow each other lie on one page.
        let follows = match new.rowid {
            Some(n) => self.last.insert(pair.name.clone(), n).is_some_and(|last| last.wrapping_add(1) == n),
            None => false,
        };
        self.touched += others + u64::from(!follows);
    }

    /// What a cell of so many bytes takes of pages that hold nothing else.
    fn in_pages(&self, bytes: u64) -> u64 {
        let on_a_page = (self.page_size - 64) / bytes;
        match on_a_page {
            0 => (bytes / (self.page_size - 64) + 2) * self.page_size,
            n => self.page_size / n,
        }
    }

    /// What it takes to write them, beside a copy of the database.
    pub(super) fn needs(&self) -> Needs {
        let copy = self.pages * self.page_size + MARGIN;
        if self.added == 0 {
            return Needs { copy, log: 0, grows: 0 };
        }
        let touched = self.touched.min(self.pages) + 16;
        let grows = self.added + self.added / 16 + 8 * self.page_size;
        let log = match self.wal {
            true => (grows / self.page_size + touched) * (self.page_size + FRAME),
            false => touched * (self.page_size + 8),
        };
        Needs { copy, log: log + MARGIN, grows }
    }
}

impl Needs {
    /// What is needed when the copy has been made.
    pub(super) fn after_the_copy(self) -> Needs {
        Needs { copy: 0, ..self }
    }

    /// Refuses where a directory's volume has less room.
    pub(super) fn require(self, directory: &Path) -> Result<()> {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        let (room, _) = free(directory).map_err(|e| io("ask for the free space of", directory, e))?;
        // A snapshot leaves so much to the database.
        let all = self.copy + (self.log + self.grows).max(if self.copy > 0 { reserve(self.copy) } else { 0 });
        if room >= all {
            return Ok(());
        }
        let numbers = format!(
            "{room} bytes are free at {}; {all} bytes may be needed: {} for a copy of the database as it is, {} for its log or journal, \
             {} by which the main file grows",
            directory.display(),
            self.copy,
            self.log,
            self.grows
        );
        Err(Error::NoRoom { numbers })
    }

    /// As [`Needs::require`], on the volume of a database.
    pub(super) fn require_beside(self, family: &Family) -> Result<()> {
        self.require(family.directory())
    }
}

/// Counts what comes, on its way to another.
pub(super) struct Weighing<'a> {
    pub(super) inner: &'a mut dyn Sink,
    pub(super) weight: Weight,
}

impl Sink for Weighing<'_> {
    fn missing(&mut self, pair: &Pair, new: &New<'_>) -> Result<Landed> {
        self.weight.add(pair, new);
        self.inner.missing(pair, new)
    }

    fn conflict(&mut self, pair: &Pair, conflict: &Conflict<'_>) -> Result<()> {
        self.inner.conflict(pair, conflict)
    }
}
