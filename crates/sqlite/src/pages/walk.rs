//! All rows of one b-tree in order, as many as can be had.
//!
//! A page is visited once, whatever points at it, and depth is bounded as SQLite bounds it, so a crafted file costs no more than
//! reading it once. What lies below a page that cannot be read is named and left out. On the tree of a table the rowids
//! of a page must lie where the page above says: a page that does not belong there is taken for unread rather than for rows.

use std::io;
use std::ops::ControlFlow;

use super::{Chain, Claims, Page, PageSource};

/// SQLite's own limit.
const DEEPEST: usize = 20;

/// One row of a table, or one entry of an index.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The page with its cell.
    pub page: u32,
    /// The rowid; `None` in an index and in a `WITHOUT ROWID` table.
    pub rowid: Option<i64>,
    /// The record.
    pub payload: &'a [u8],
}

/// Why something was not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// There is no such page.
    Absent,
    /// It is not a page of such a tree.
    Shape,
    /// It was visited already, so one of the two ways to it is wrong.
    Again,
    /// The tree is deeper than any that SQLite makes.
    Deep,
    /// Its rowids do not lie where the page above says.
    Range,
    /// A cell cannot be read; the others of the page were.
    Cell,
    /// The chain of pages on which a payload goes on is broken; the other cells of the page were read.
    Overflow,
}

/// A page that was not read, or not all of it. What is below it was not read either unless it is a matter of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread {
    /// The page.
    pub page: u32,
    /// The page that points at it; zero for a root.
    pub parent: u32,
    /// Why.
    pub why: Why,
}

/// What a walk came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Walk {
    /// Rows that were given.
    pub rows: u64,
    /// What was not read, at most a thousand of them.
    pub unread: Vec<Unread>,
    /// How many there were.
    pub unread_count: u64,
}

impl Walk {
    fn miss(&mut self, page: u32, parent: u32, why: Why) {
        self.unread_count += 1;
        if self.unread.len() < 1000 {
            self.unread.push(Unread { page, parent, why });
        }
    }
}

/// What is still to be done, the next last.
enum Step {
    Visit {
        page: u32,
        parent: u32,
        depth: usize,
        after: Option<i64>,
        upto: Option<i64>,
    },
    /// An entry that stands between two pages of an index.
    Entry {
        page: u32,
        cell: u16,
    },
}

/// Gives every row of the tree with this root, in the order of their keys, until there are no more or `each` says stop.
///
/// # Errors
/// The system's answer, or what `each` answers.
pub fn walk(
    source: &dyn PageSource,
    root: u32,
    each: &mut dyn FnMut(Row<'_>) -> io::Result<ControlFlow<()>>,
) -> io::Result<Walk> {
    let mut walk = Walk::default();
    let mut visited = Claims::default();
    let (mut bytes, mut payload) = (Vec::new(), Vec::new());
    let mut table = None;
    let mut steps = vec![Step::Visit { page: root, parent: 0, depth: 0, after: None, upto: None }];
    while let Some(step) = steps.pop() {
        let (number, range, first) = match step {
            Step::Visit { page, parent, depth, after, upto } => {
                let sound = enter(source, page, depth, &mut visited, &mut bytes)?;
                let parsed = sound.and_then(|()| {
                    let parsed = Page::parse(&bytes, page, source.layout()).ok_or(Why::Shape)?;
                    // Every page of a tree is of the kind that its root is of.
                    if *table.get_or_insert(parsed.kind.is_table()) != parsed.kind.is_table() {
                        return Err(Why::Shape);
                    }
                    if within(&parsed, after, upto) { Ok(parsed) } else { Err(Why::Range) }
                });
                match parsed {
                    Err(why) => {
                        walk.miss(page, parent, why);
                        continue;
                    }
                    Ok(parsed) if parsed.kind.is_interior() => {
                        descend(&parsed, page, depth, (after, upto), &mut steps, &mut walk);
                        continue;
                    }
                    Ok(parsed) => (page, 0..parsed.cells, parent),
                }
            }
            Step::Entry { page, cell } => {
                if !source.read(page, &mut bytes)? {
                    continue;
                }
                (page, cell..cell.saturating_add(1), 0)
            }
        };
        let Some(parsed) = Page::parse(&bytes, number, source.layout()) else { continue };
        for n in range {
            let Some((cell, content)) = parsed.cell(n).and_then(|c| Some((c, c.payload?))) else {
                walk.miss(number, first, Why::Cell);
                continue;
            };
            let chain = visited.gather(source, &content, &mut payload, &|_| false)?;
            if chain != Chain::Whole {
                walk.miss(number, first, Why::Overflow);
                continue;
            }
            walk.rows += 1;
            let rowid = parsed.kind.is_table().then_some(cell.rowid);
            if each(Row { page: number, rowid, payload: &payload })?.is_break() {
                return Ok(walk);
            }
        }
    }
    Ok(walk)
}

fn enter(
    source: &dyn PageSource,
    page: u32,
    depth: usize,
    visited: &mut Claims,
    bytes: &mut Vec<u8>,
) -> io::Result<Result<(), Why>> {
    Ok(if page == 0 || page > source.count() {
        Err(Why::Absent)
    } else if depth > DEEPEST {
        Err(Why::Deep)
    } else if !visited.take(page) {
        Err(Why::Again)
    } else if source.read(page, bytes)? {
        Ok(())
    } else {
        Err(Why::Absent)
    })
}

/// Puts the pages below an interior page, and the entries between them, before everything else that is to be done.
fn descend(
    page: &Page<'_>,
    number: u32,
    depth: usize,
    (mut after, upto): (Option<i64>, Option<i64>),
    steps: &mut Vec<Step>,
    walk: &mut Walk,
) {
    let first = steps.len();
    let is_table = page.kind.is_table();
    for n in 0..page.cells {
        let Some(cell) = page.cell(n) else {
            walk.miss(number, 0, Why::Cell);
            continue;
        };
        let bound = is_table.then_some(cell.rowid);
        steps.push(Step::Visit { page: cell.left, parent: number, depth: depth + 1, after, upto: bound });
        if is_table {
            after = bound;
        } else {
            steps.push(Step::Entry { page: number, cell: n });
        }
    }
    steps.push(Step::Visit { page: page.right, parent: number, depth: depth + 1, after, upto });
    steps[first..].reverse();
}

/// True if the rowids of a table's page rise and lie where they should. A page of an index is not looked at: its order
/// depends on collations that nobody here knows.
pub(crate) fn within(page: &Page<'_>, after: Option<i64>, upto: Option<i64>) -> bool {
    let mut last = after;
    !page.kind.is_table()
        || (0..page.cells).filter_map(|n| page.cell(n)).all(|cell| {
            let rises = last.is_none_or(|l| cell.rowid > l);
            last = Some(cell.rowid);
            rises && upto.is_none_or(|u| cell.rowid <= u)
        })
}

/// Finds the leaf page that has a rowid, if it is where it should be, reads it into `bytes`, and answers its number and the cell.
///
/// # Errors
/// The system's answer.
pub fn seek(source: &dyn PageSource, root: u32, rowid: i64, bytes: &mut Vec<u8>) -> io::Result<Option<(u32, u16)>> {
    let mut number = root;
    for _ in 0..=DEEPEST {
        if number == 0 || number > source.count() || !source.read(number, bytes)? {
            return Ok(None);
        }
        let Some(page) = Page::parse(bytes, number, source.layout()).filter(|p| p.kind.is_table()) else {
            return Ok(None);
        };
        let place = (0..page.cells).find_map(|n| page.cell(n).filter(|c| c.rowid >= rowid).map(|c| (n, c)));
        match place {
            _ if page.kind.is_interior() => number = place.map_or(page.right, |(_, cell)| cell.left),
            Some((n, cell)) if cell.rowid == rowid => return Ok(Some((number, n))),
            _ => return Ok(None),
        }
    }
    Ok(None)
}
