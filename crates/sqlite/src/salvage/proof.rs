//! Whether what a row has on pages of the main file is still that row's.
//!
//! An overflow page that the log did not write is as it was before the log, unless a second generation has freed it and used
//! it for something else. It has not if the main file still has the row, going on over the very same pages.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::io;

use super::place::Tree;
use super::survey::chain;
use crate::pages::{Page, PageSource, Payload, seek};
use crate::wal::Contents;

/// The main file, and what was found out about it.
pub(super) struct Proof<'a> {
    contents: &'a Contents,
    log: &'a dyn PageSource,
    pub(super) main: Option<&'a dyn PageSource>,
    /// For each tree without rowids, by its root, its entries that go on elsewhere, by the first page of the chain. Found when the
    /// first is asked for, because it takes a walk through all of the tree's pages.
    entries: HashMap<u32, HashMap<u32, Mark>>,
}

/// What an entry is recognised by: the bytes of all of it, and a number that stands for those on its page.
type Mark = (u64, u64);

fn mark(payload: &Payload<'_>) -> Mark {
    let mut hasher = std::hash::DefaultHasher::new();
    payload.local.hash(&mut hasher);
    (payload.length, hasher.finish())
}

impl<'a> Proof<'a> {
    pub(super) fn new(contents: &'a Contents, log: &'a dyn PageSource, main: Option<&'a dyn PageSource>) -> Proof<'a> {
        Proof { contents, log, main, entries: HashMap::new() }
    }

    /// True if the main file has the very same row: the same bytes on its page, going on at the same page.
    pub(super) fn has(&mut self, tree: &Tree, rowid: Option<i64>, payload: &Payload<'_>) -> io::Result<bool> {
        let (Some(main), Some(root)) = (self.main, tree.main_root) else { return Ok(false) };
        if let Some(rowid) = rowid {
            let mut bytes = Vec::new();
            let Some((number, n)) = seek(main, root, rowid, &mut bytes)? else { return Ok(false) };
            let page = Page::parse(&bytes, number, main.layout());
            return Ok(page.and_then(|p| p.cell(n)?.payload) == Some(*payload));
        }
        if let Entry::Vacant(entry) = self.entries.entry(root) {
            entry.insert(all_entries(main, root)?);
        }
        let known = self.entries.get(&root).and_then(|entries| entries.get(&payload.overflow));
        Ok(known == Some(&mark(payload)))
    }

    /// True if the main file has the row and it goes on there over the same pages, as far as the log did not write them.
    pub(super) fn holds(&mut self, tree: &Tree, rowid: Option<i64>, payload: &Payload<'_>) -> io::Result<bool> {
        let Some(main) = self.main.filter(|_| payload.overflow != 0) else { return Ok(false) };
        if !self.has(tree, rowid, payload)? {
            return Ok(false);
        }
        let (ours, theirs) = (chain(self.log, payload)?, chain(main, payload)?);
        Ok(ours.len() == theirs.len()
            && ours.iter().zip(&theirs).all(|(ours, theirs)| ours == theirs || self.contents.pages.contains_key(ours)))
    }
}

fn all_entries(source: &dyn PageSource, root: u32) -> io::Result<HashMap<u32, Mark>> {
    let (mut entries, mut seen, mut open, mut bytes) = (HashMap::new(), HashSet::from([root]), vec![root], Vec::new());
    while let Some(number) = open.pop() {
        if number > source.count() || !source.read(number, &mut bytes)? {
            continue;
        }
        let Some(page) = Page::parse(&bytes, number, source.layout()) else { continue };
        for cell in (0..page.cells).filter_map(|n| page.cell(n)) {
            entries.extend(cell.payload.filter(|p| p.overflow != 0).map(|p| (p.overflow, mark(&p))));
            open.extend(Some(cell.left).filter(|p| page.kind.is_interior() && seen.insert(*p)));
        }
        open.extend(Some(page.right).filter(|p| page.kind.is_interior() && seen.insert(*p)));
    }
    Ok(entries)
}
