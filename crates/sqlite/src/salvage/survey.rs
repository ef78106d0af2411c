//! The pages of a log that are pages of a b-tree, and which of them lies below which.
//!
//! A page that was freed later stays in the log as it was when it was in use, and its rows are deleted ones; so what the list of
//! free pages names, as far as the log itself has written that list, is left out.

use std::collections::{BTreeMap, HashSet};
use std::io;

use crate::pages::{Kind, Page, PageSource, Payload};
use crate::wal::{Contents, word};

/// What is kept of a page of the log, so that it need not be read again to be placed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    pub(super) kind: Kind,
    /// The smallest and the largest rowid on it, if it has cells and is a table's.
    pub(super) span: Option<(i64, i64)>,
}

impl Found {
    /// True if its rowids lie behind the first and not beyond the second.
    pub(super) fn within(&self, after: Option<i64>, upto: Option<i64>) -> bool {
        self.span.is_none_or(|(least, most)| after.is_none_or(|a| least > a) && upto.is_none_or(|u| most <= u))
    }

    /// True if some of its rowids may lie there.
    pub(super) fn meets(&self, after: Option<i64>, upto: Option<i64>) -> bool {
        self.span.is_none_or(|(least, most)| after.is_none_or(|a| most > a) && upto.is_none_or(|u| least <= u))
    }
}

/// What the log wrote.
#[derive(Default)]
pub(super) struct Survey {
    /// Pages of b-trees.
    pub(super) found: BTreeMap<u32, Found>,
    /// Pages that begin like one of a b-tree and are not whole. Most are no pages of one.
    pub(super) broken: Vec<u32>,
    /// Pages that were free after the last commit.
    pub(super) free: HashSet<u32>,
}

impl Survey {
    /// Looks at every page of the log.
    pub(super) fn of(source: &dyn PageSource, contents: &Contents) -> io::Result<Survey> {
        let mut survey = Survey { free: free_pages(source, contents)?, ..Survey::default() };
        let layout = source.layout();
        let mut bytes = Vec::new();
        for number in contents.pages.keys().copied() {
            if layout.is_pointer_map(number) || survey.free.contains(&number) || !source.read(number, &mut bytes)? {
                continue;
            }
            let Some(page) = Page::parse(&bytes, number, layout) else { continue };
            if !page.is_whole() || !crate::pages::within(&page, None, None) {
                survey.broken.push(number);
                continue;
            }
            let rowid = |n: u16| page.cell(n).map(|c| c.rowid).filter(|_| page.kind.is_table());
            let span = page.cells.checked_sub(1).and_then(|last| Some((rowid(0)?, rowid(last)?)));
            survey.found.insert(number, Found { kind: page.kind, span });
        }
        Ok(survey)
    }

    /// The pages below an interior page that the log has too, as far as they are of its kind and their rowids lie where it says.
    pub(super) fn children(&self, source: &dyn PageSource, number: u32) -> io::Result<Vec<u32>> {
        let mut children = Vec::new();
        each_child(source, number, &mut |child, after, upto, kind| {
            if self.found.get(&child).is_some_and(|f| f.kind.is_table() == kind.is_table() && f.within(after, upto)) {
                children.push(child);
            }
        })?;
        Ok(children)
    }
}

/// Gives each page that an interior page points at, with the rowids between which it must lie. Answers false if the page is not
/// an interior one.
pub(super) fn each_child(
    source: &dyn PageSource,
    number: u32,
    give: &mut dyn FnMut(u32, Option<i64>, Option<i64>, Kind),
) -> io::Result<bool> {
    let mut bytes = Vec::new();
    if !source.read(number, &mut bytes)? {
        return Ok(false);
    }
    let Some(page) = Page::parse(&bytes, number, source.layout()).filter(|p| p.kind.is_interior()) else {
        return Ok(false);
    };
    let mut after = None;
    for cell in (0..page.cells).filter_map(|n| page.cell(n)) {
        let upto = page.kind.is_table().then_some(cell.rowid);
        give(cell.left, after, upto, page.kind);
        after = upto;
    }
    give(page.right, after, None, page.kind);
    Ok(true)
}

/// The pages of a chain on which a payload goes on, as far as it can be followed.
pub(super) fn chain(source: &dyn PageSource, payload: &Payload<'_>) -> io::Result<Vec<u32>> {
    let each = u64::from(source.layout().usable) - 4;
    let most = (payload.length - payload.local.len() as u64).div_ceil(each).min(u64::from(source.count()));
    let (mut pages, mut bytes, mut next) = (Vec::new(), Vec::new(), payload.overflow);
    while (pages.len() as u64) < most && next != 0 && next <= source.count() && source.read(next, &mut bytes)? {
        pages.push(next);
        next = word(&bytes, 0);
    }
    Ok(pages)
}

/// The free pages that the log says are free. <https://www.sqlite.org/fileformat2.html#the_freelist>
///
/// Freeing a page writes the trunk page that lists it, so trunk pages that the log did not write list no page that it did;
/// they are only passed, and as a second generation may have changed them the way ends where they make no sense.
fn free_pages(source: &dyn PageSource, contents: &Contents) -> io::Result<HashSet<u32>> {
    let mut free = HashSet::new();
    let mut bytes = Vec::new();
    if !contents.pages.contains_key(&1) || !source.read(1, &mut bytes)? {
        return Ok(free);
    }
    let (mut trunk, mut passed) = (word(&bytes, 32), HashSet::new());
    while trunk != 0 && trunk <= source.count() && passed.insert(trunk) && source.read(trunk, &mut bytes)? {
        let listed = word(&bytes, 4);
        if listed > source.layout().usable / 4 - 2 {
            break;
        }
        if contents.pages.contains_key(&trunk) {
            free.insert(trunk);
            free.extend((0..listed as usize).map(|n| word(&bytes, 8 + 4 * n)));
        }
        trunk = word(&bytes, 0);
    }
    Ok(free)
}
