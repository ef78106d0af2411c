//! What our own program knows of the pages of a store, behind what is left of its main file.
//!
//! A young store has its tables where its program puts them in every new file, and nothing moves them but a rewrite of the whole
//! file. So where the pages are gone that say which tables there are, a new and empty store says it: its pages stand for
//! those that neither the log nor the main file has any more. The rows are on the pages of the log, and most of what the
//! round of the log before this one wrote is still there behind its end.
//!
//! Where the store was laid out in another way the pages fit together no more, and that shows: SQLite does not find the
//! whole sound, and a row goes into a table only if it has the shape of its rows.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::captures;
use crate::error::{Error, Result};
use crate::header::MainHeader;
use crate::options::{Options, Schema};
use crate::wal::ReadAt;

use super::{connect, mark_ours};

/// What is left of a main file, and behind it the pages of a new store.
pub(super) struct Behind {
    main: Option<File>,
    /// Where what is left of the main file begins and ends.
    kept: std::ops::Range<u64>,
    new: Vec<u8>,
}

impl Behind {
    /// Makes a new store at `scratch`, which the caller removes, and puts what is left of the main file before it.
    pub(super) fn of(
        main: Option<File>,
        page_size: u32,
        schema: &dyn Schema,
        options: &Options,
        scratch: &Path,
    ) -> Result<Behind> {
        drop(captures::create(scratch)?);
        let connection = connect(scratch)?;
        connection.pragma_update(None, "page_size", page_size)?;
        mark_ours(&connection, options)?;
        super::transaction(&connection, &|c| schema.migrate(c))?;
        drop(connection);
        let file = crate::files::open(scratch).map_err(|e| Error::io("read", scratch, e))?;
        let length = file.metadata().map_err(|e| Error::io("read", scratch, e))?.len();
        let mut new = vec![0; usize::try_from(length).unwrap_or(0)];
        let whole = file.fill_at(&mut new, 0).map_err(|e| Error::io("read", scratch, e))?;
        let kept = main.as_ref().map(|main| left(main, page_size, options)).transpose();
        let kept = kept.map_err(|e| Error::io("read what is left beside", scratch, e))?.unwrap_or(0..0);
        Ok(Behind { main, kept, new: if whole { new } else { Vec::new() } })
    }

    /// True if the first page is that of the new store.
    pub(super) fn is_needed(&self) -> bool {
        self.kept.start > 0 || self.kept.end < self.new.len() as u64
    }
}

/// What of a main file is the store's own: all of it, all but a first page that is no page any more, or nothing where it is the
/// database of another program.
fn left(main: &File, page_size: u32, options: &Options) -> io::Result<std::ops::Range<u64>> {
    let page = u64::from(page_size);
    let length = main.metadata()?.len() / page * page;
    let mut head = [0; 100];
    if !main.fill_at(&mut head, 0)? {
        return Ok(0..0);
    }
    Ok(match MainHeader::parse(&head) {
        Some(header) if header.application_id != options.application_id.cast_unsigned() => 0..0,
        Some(header) if header.page_size == page_size => 0..length,
        Some(_) => 0..0,
        None => page.min(length)..length,
    })
}

impl ReadAt for Behind {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if let Some(main) = &self.main
            && self.kept.contains(&offset)
        {
            let most = usize::try_from(self.kept.end - offset).unwrap_or(usize::MAX).min(buffer.len());
            return main.read_at(&mut buffer[..most], offset);
        }
        let before_what_is_kept = self.kept.start.checked_sub(offset).filter(|n| *n > 0);
        let most = before_what_is_kept.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX).min(buffer.len());
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.new.len());
        let given = &self.new[from..];
        let most = most.min(given.len());
        buffer[..most].copy_from_slice(&given[..most]);
        Ok(most)
    }
}
