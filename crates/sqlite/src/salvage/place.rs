//! Which table each page of a log belongs to.
//!
//! A page that a generation allocates is named by a page above it in the same transaction. So the pages of a log form pieces of
//! trees, and each piece hangs on a root, or on a page that was there before the log. The pieces are placed in this order, from
//! what is proved to what is only likely: below a root that the log has; below the other pages of the log's own view; below the
//! main file's pages, which a second generation may have changed; by the shape of the records, if one tree alone fits. What
//! is left has no place.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use super::survey::{Survey, chain, each_child};
use super::tables::Table;
use crate::pages::{Encoding, Page, PageSource, Record, Value, gather};

/// One tree of the database.
pub(super) struct Tree {
    /// The table, if it is one whose rows are taken over.
    pub(super) table: Option<Table>,
    /// True for a table with rowids; otherwise an index, or a `WITHOUT ROWID` table.
    pub(super) has_rowids: bool,
    /// Its root as the log knows it.
    pub(super) root: u32,
    /// Its root in the main file, where there is one of that name.
    pub(super) main_root: Option<u32>,
    /// True for what follows from other rows, or belongs to SQLite itself.
    pub(super) is_derived: bool,
    /// True for an index of a table with rowids, whose entries end with one.
    pub(super) ends_with_rowid: bool,
}

impl Tree {
    /// A table whose rows are taken over, or one that could not be made.
    pub(super) fn of(table: Result<Table, bool>, root: u32, main_root: Option<u32>) -> Tree {
        let has_rowids = table.as_ref().map_or_else(|has_rowids| *has_rowids, |t| !t.without_rowid);
        Tree { table: table.ok(), has_rowids, root, main_root, is_derived: false, ends_with_rowid: false }
    }

    /// A table whose rows are not taken over.
    pub(super) fn derived(table: Option<Table>, has_rowids: bool, root: u32, main_root: Option<u32>) -> Tree {
        Tree { table, has_rowids, root, main_root, is_derived: true, ends_with_rowid: false }
    }

    /// An index.
    pub(super) fn index(ends_with_rowid: bool, root: u32, main_root: Option<u32>) -> Tree {
        Tree { table: None, has_rowids: false, root, main_root, is_derived: true, ends_with_rowid }
    }

    fn fits(&self, record: &Record<'_>, encoding: Encoding) -> bool {
        match &self.table {
            Some(table) => table.fits(record, encoding),
            // Nobody knows more of its records, so nothing speaks against it.
            None if self.ends_with_rowid => {
                record.is_exact() && matches!(record.values().last(), Some(Value::Integer(_)))
            }
            None => record.is_exact(),
        }
    }
}

/// The pages of the log by the tree that they belong to.
pub(super) struct Placer<'a> {
    pub(super) log: &'a dyn PageSource,
    pub(super) main: Option<&'a dyn PageSource>,
    pub(super) survey: &'a Survey,
    pub(super) trees: &'a [Tree],
    owners: BTreeMap<u32, usize>,
}

impl<'a> Placer<'a> {
    pub(super) fn new(
        log: &'a dyn PageSource,
        main: Option<&'a dyn PageSource>,
        survey: &'a Survey,
        trees: &'a [Tree],
    ) -> Placer<'a> {
        Placer { log, main, survey, trees, owners: BTreeMap::new() }
    }

    /// Places what can be placed, and answers the tree of each page, and by how many of their cells each page is named as one
    /// on which a payload goes on.
    pub(super) fn place(mut self) -> io::Result<(BTreeMap<u32, usize>, HashMap<u32, u32>)> {
        for (n, tree) in self.trees.iter().enumerate() {
            if self.survey.found.get(&tree.root).is_some_and(|f| f.kind.is_table() == tree.has_rowids) {
                self.claim(tree.root, n)?;
            }
        }
        for (n, tree) in self.trees.iter().enumerate() {
            self.below(self.log, tree.root, n, true)?;
        }
        for strict in [true, false] {
            for (n, tree) in self.trees.iter().enumerate() {
                if let (Some(main), Some(root)) = (self.main, tree.main_root) {
                    self.below(main, root, n, strict)?;
                }
            }
        }
        let overflow = self.overflow_pages()?;
        self.by_shape(&overflow)?;
        Ok((self.owners, overflow))
    }

    fn is_free(&self, page: u32) -> bool {
        self.survey.found.contains_key(&page) && !self.owners.contains_key(&page)
    }

    /// Takes a page, and what of the log lies below it, for a tree.
    fn claim(&mut self, page: u32, tree: usize) -> io::Result<()> {
        for page in self.piece(page)? {
            self.owners.insert(page, tree);
        }
        Ok(())
    }

    /// A page and what of the log lies below it, as far as nobody owns it.
    fn piece(&self, page: u32) -> io::Result<Vec<u32>> {
        let (mut piece, mut seen, mut open) = (Vec::new(), HashSet::from([page]), vec![page]);
        while let Some(page) = open.pop() {
            piece.push(page);
            if self.survey.found.get(&page).is_some_and(|f| f.kind.is_interior()) {
                let children = self.survey.children(self.log, page)?;
                open.extend(children.into_iter().filter(|c| self.is_free(*c) && seen.insert(*c)));
            }
        }
        Ok(piece)
    }

    /// Goes down the interior pages of a tree and takes the pages of the log that they point at. Unless it is strict, the rowids of a
    /// page need only touch those between which it should lie: a second generation that had the same page may have divided it.
    fn below(&mut self, source: &dyn PageSource, root: u32, tree: usize, strict: bool) -> io::Result<()> {
        let mut seen = HashSet::from([root]);
        let mut open = vec![(root, 0)];
        if self.is_free(root)
            && self.survey.found.get(&root).is_some_and(|f| f.kind.is_table() == self.trees[tree].has_rowids)
        {
            self.take(root, tree)?;
        }
        while let Some((number, depth)) = open.pop() {
            let mut children = Vec::new();
            each_child(source, number, &mut |child, after, upto, kind| children.push((child, after, upto, kind)))?;
            // All pages below one page are on one level; so if one of them is a leaf, the others need not be read.
            let mut are_interior = None;
            for (child, after, upto, kind) in children {
                if kind.is_table() != self.trees[tree].has_rowids || child > source.count() || !seen.insert(child) {
                    continue;
                }
                if self.is_free(child)
                    && let Some(found) = self.survey.found.get(&child)
                    && found.kind.is_table() == kind.is_table()
                    && (found.within(after, upto) || !strict && found.meets(after, upto))
                {
                    self.take(child, tree)?;
                }
                let interior = match are_interior {
                    Some(known) => known,
                    None => *are_interior.insert(is_interior(source, child)?),
                };
                if interior && depth < 20 {
                    open.push((child, depth + 1));
                }
            }
        }
        Ok(())
    }

    /// Takes a page if its records can be of this tree.
    fn take(&mut self, page: u32, tree: usize) -> io::Result<()> {
        if self.records_fit(page, &self.trees[tree])? { self.claim(page, tree) } else { Ok(()) }
    }

    /// True if none of the records on a page speaks against a tree. Those that go on elsewhere are not looked at.
    fn records_fit(&self, number: u32, tree: &Tree) -> io::Result<bool> {
        let encoding = self.log.layout().encoding;
        let mut bytes = Vec::new();
        if !self.log.read(number, &mut bytes)? {
            return Ok(false);
        }
        let Some(page) = Page::parse(&bytes, number, self.log.layout()) else { return Ok(false) };
        let mut payloads = (0..page.cells).filter_map(|n| page.cell(n)).filter_map(|c| c.payload);
        Ok(page.kind.is_table() == tree.has_rowids
            && payloads.all(|p| p.overflow != 0 || Record::parse(p.local).is_some_and(|r| tree.fits(&r, encoding))))
    }

    /// The pages on which payloads of the pages that have a place go on, and how many say so of each.
    fn overflow_pages(&self) -> io::Result<HashMap<u32, u32>> {
        let mut pages: HashMap<u32, u32> = HashMap::new();
        let mut bytes = Vec::new();
        // More than this no sound log can need, however often it names the same pages.
        let mut budget = 4096 + 4 * u64::from(self.log.count());
        for number in self.owners.keys().copied() {
            self.log.read(number, &mut bytes)?;
            let Some(page) = Page::parse(&bytes, number, self.log.layout()) else { continue };
            for payload in (0..page.cells).filter_map(|n| page.cell(n)?.payload).filter(|p| p.overflow != 0) {
                let chain = if budget > 0 { chain(self.log, &payload)? } else { vec![payload.overflow] };
                budget = budget.saturating_sub(chain.len() as u64);
                chain.into_iter().for_each(|page| *pages.entry(page).or_default() += 1);
            }
        }
        Ok(pages)
    }

    /// Places pieces of which one tree alone can be the owner.
    fn by_shape(&mut self, overflow: &HashMap<u32, u32>) -> io::Result<()> {
        let open: Vec<u32> =
            self.survey.found.keys().copied().filter(|p| self.is_free(*p) && !overflow.contains_key(p)).collect();
        let mut below = HashSet::new();
        for page in &open {
            if self.survey.found.get(page).is_some_and(|f| f.kind.is_interior()) {
                below.extend(self.survey.children(self.log, *page)?);
            }
        }
        for top in open.into_iter().filter(|p| !below.contains(p)) {
            if !self.is_free(top) {
                continue;
            }
            let piece = self.piece(top)?;
            let mut fitting = Vec::new();
            let mut rows = 0;
            for (n, tree) in self.trees.iter().enumerate() {
                let mut fits = true;
                for page in &piece {
                    fits = fits && self.whole_records_fit(*page, tree, &mut rows)?;
                }
                if fits {
                    fitting.push(n);
                }
            }
            let alone = fitting.len() == 1 || fitting.iter().all(|n| self.trees[*n].is_derived);
            if let (Some(tree), true) = (fitting.first(), alone && rows > 0) {
                self.owners.extend(piece.into_iter().map(|page| (page, *tree)));
            }
        }
        Ok(())
    }

    /// As `records_fit`, with those that go on elsewhere; counts what it looked at.
    fn whole_records_fit(&self, number: u32, tree: &Tree, rows: &mut u64) -> io::Result<bool> {
        if !self.records_fit(number, tree)? {
            return Ok(false);
        }
        let (mut bytes, mut payload) = (Vec::new(), Vec::new());
        self.log.read(number, &mut bytes)?;
        let Some(page) = Page::parse(&bytes, number, self.log.layout()) else { return Ok(false) };
        let mut budget: u32 = 1 << 14;
        for content in (0..page.cells).filter_map(|n| page.cell(n)?.payload) {
            *rows += 1;
            if content.overflow == 0 {
                continue;
            }
            let mut admit = |_| {
                budget = budget.saturating_sub(1);
                budget > 0
            };
            if gather(self.log, &content, &mut payload, &mut admit)? == crate::pages::Chain::Whole
                && !Record::parse(&payload).is_some_and(|r| tree.fits(&r, self.log.layout().encoding))
            {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn is_interior(source: &dyn PageSource, number: u32) -> io::Result<bool> {
    let mut bytes = Vec::new();
    let read = source.read(number, &mut bytes)?;
    Ok(read && Page::parse(&bytes, number, source.layout()).is_some_and(|p| p.kind.is_interior()))
}
