//! Comparing one table of a capture with the same table of the database.
//!
//! Both sides grew from one database, so nearly every row is the same under the same number. Two cursors in the order of the
//! numbers find those, each side read once. Only what is left over is looked up: by its key, and where a table has no key by
//! its content. Nothing is kept in memory but what is left over of tables without a key, and that goes to a temporary
//! file when it is much.
//!
//! A row that only the capture has is *missing*, unless something in the database stands against it: then it is *conflicting*,
//! like a row whose key has another content here. What is done with either is the sink's affair.

use std::collections::HashSet;

use rusqlite::{Connection, Row};

use super::cell::{Cell, digest, same};
use super::error::Result;
use super::pair::{Pair, PairKey};
use super::probe::{ByKey, Collision, Parent, Standing, Twins, cells};
use super::rules::Rules;
use super::schema::Schema;
use super::scratch::Leftover;
use crate::maintenance::quoted;

/// How the rows of a table stand.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) missing: u64,
    pub(super) same: u64,
    pub(super) conflicting: u64,
    pub(super) only_here: u64,
    pub(super) renumbered: u64,
}

/// A row that only the capture has.
pub(super) struct New<'a> {
    pub(super) cells: &'a [Cell],
    /// The number that it had, if that is free here.
    pub(super) rowid: Option<i64>,
    /// True if its number is taken by another row, so that it must be given one.
    pub(super) renumber: bool,
}

/// A row of the capture that cannot be here beside what is here.
pub(super) struct Conflict<'a> {
    pub(super) theirs: &'a [Cell],
    pub(super) ours: Option<&'a [Cell]>,
    pub(super) why: &'a str,
}

/// What became of a new row.
pub(super) enum Landed {
    In,
    Refused(String),
}

/// Is given what is found.
pub(super) trait Sink {
    fn missing(&mut self, pair: &Pair, new: &New<'_>) -> Result<Landed>;
    fn conflict(&mut self, pair: &Pair, conflict: &Conflict<'_>) -> Result<()>;
}

/// A capture beside a database.
pub(super) struct Comparison<'a> {
    pub(super) live: &'a Connection,
    pub(super) theirs: &'a Connection,
    pub(super) schema: &'a Schema,
    pub(super) rules: Rules,
    /// The tables of the capture, by the names that they have here.
    captured: &'a Schema,
    /// True if `live` is written into while it is read, so that a table must be read to its end before its rows are taken.
    moving: bool,
    /// True if nothing is brought anywhere, so that what would stand against that is not asked for.
    rows_alone: bool,
    /// Rows to which others may refer and which will not be here.
    refused: HashSet<[u8; 32]>,
}

pub(super) const TAKEN: &str = "another row has this key here";
const ONE_EACH: &str = "each side has one row, which says something about its file";
const UNSURE_INDEX: &str = "a search index of the program refers to rows by number, and the number is taken";

impl<'a> Comparison<'a> {
    pub(super) fn new(
        live: &'a Connection,
        theirs: &'a Connection,
        schema: &'a Schema,
        captured: &'a Schema,
        rules: Rules,
    ) -> Self {
        Comparison { live, theirs, schema, rules, captured, moving: false, rows_alone: false, refused: HashSet::new() }
    }

    /// Only finds out which rows each side has.
    pub(super) fn of_rows_alone(self) -> Self {
        Comparison { rows_alone: true, ..self }
    }

    /// What comes now is compared with what `live` sees. `moving` if that is written into meanwhile.
    pub(super) fn beside(&mut self, live: &'a Connection, moving: bool) {
        (self.live, self.moving) = (live, moving);
    }

    /// Compares one table. Tables must come in the order of [`super::pair::pairs`].
    pub(super) fn table(&mut self, pair: &Pair, sink: &mut dyn Sink) -> Result<Counts> {
        let Some(table) = &pair.live else { return self.only_captured(pair, sink) };
        let totals = (count(self.live, &pair.name)?, count(self.theirs, &pair.theirs.stored)?);
        let brings = !self.rows_alone;
        let says_something = brings && (pair.key == PairKey::Content || pair.columns.len() == 1);
        let mut job = Job {
            by_key: ByKey::new(self.live, pair)?,
            collisions: if brings { Collision::all(self.live, pair, table) } else { Vec::new() },
            parents: if brings { Parent::all(self.live, self.theirs, self.captured, pair, table) } else { Vec::new() },
            twins: Twins::new(self.live, self.theirs, pair, self.rules)?,
            one_each: totals == (1, 1) && says_something,
            by_number: brings
                && table.triggers == 0
                && self.schema.indexed.contains_key(&pair.name.to_ascii_lowercase()),
            pair,
            counts: Counts::default(),
            matched: 0,
            all: self,
            sink,
        };
        if pair.numbered {
            job.join()?
        } else {
            job.look_up_each()?
        }
        let Job { mut counts, matched, .. } = job;
        counts.only_here = totals.0.saturating_sub(matched);
        Ok(counts)
    }

    fn only_captured(&self, pair: &Pair, sink: &mut dyn Sink) -> Result<Counts> {
        let mut counts = Counts::default();
        if let Some(why) = &pair.aside {
            return self.only_listed(pair, why, sink);
        }
        let mut all = self.theirs.prepare(&select_of_theirs(pair, &pair.theirs.rowid))?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            let new = New { cells: &cells(row, 1, pair.columns.len())?, rowid: row.get(0)?, renumber: false };
            match sink.missing(pair, &new)? {
                Landed::In => counts.missing += 1,
                Landed::Refused(why) => {
                    counts.conflicting += 1;
                    sink.conflict(pair, &Conflict { theirs: new.cells, ours: None, why: &why })?;
                }
            }
        }
        Ok(counts)
    }

    /// Lists all rows of a table that only the capture has.
    fn only_listed(&self, pair: &Pair, why: &str, sink: &mut dyn Sink) -> Result<Counts> {
        let mut counts = Counts::default();
        let mut all = self.theirs.prepare(&select_of_theirs(pair, &None))?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            counts.conflicting += 1;
            let theirs = cells(row, 1, pair.columns.len())?;
            sink.conflict(pair, &Conflict { theirs: &theirs, ours: None, why })?;
        }
        Ok(counts)
    }

    /// The values by which a table is referred to, for each way in which others do.
    fn referred(&self, pair: &Pair, row: &[Cell]) -> Vec<[u8; 32]> {
        let references = self.schema.tables.values().flat_map(|t| &t.references);
        references
            .filter(|r| r.parent.eq_ignore_ascii_case(&pair.name))
            .filter_map(|r| {
                let values: Vec<&Cell> = r.to.iter().map(|c| pair.place(c).map(|p| &row[p])).collect::<Option<_>>()?;
                Some(named(&r.parent, &values))
            })
            .collect()
    }
}

/// How many rows a table has.
pub(super) fn count(connection: &Connection, table: &str) -> Result<u64> {
    let sql = format!("SELECT count(*) FROM {}", quoted(table));
    let n: i64 = connection.query_row(&sql, [], |r| r.get(0))?;
    Ok(n.unsigned_abs())
}

fn named(table: &str, values: &[&Cell]) -> [u8; 32] {
    let name = Cell::Text(table.to_ascii_lowercase().into_bytes());
    digest(std::iter::once(&name).chain(values.iter().copied()).map(Cell::as_ref))
}

/// The number first, then the columns of the pair. In the order of the numbers, where there are some. `at_once` has all of them
/// read before the first one is given, so that rows which are written meanwhile are not among them.
fn select(pair: &Pair, rowid: &Option<String>, at_once: bool) -> String {
    // Without an index to go by they are sorted.
    let plus = if at_once { "+" } else { "" };
    let (number, order) = match rowid {
        Some(rowid) => (rowid.as_str(), format!(" ORDER BY {plus}{rowid}")),
        None => ("NULL", String::new()),
    };
    format!("SELECT {number}, {} FROM {}{order}", pair.selected(), quoted(&pair.name))
}

/// As [`select`], in the capture, which nobody writes into.
fn select_of_theirs(pair: &Pair, rowid: &Option<String>) -> String {
    let (number, order) = match rowid {
        Some(rowid) => (rowid.as_str(), format!(" ORDER BY {rowid}")),
        None => ("NULL", String::new()),
    };
    format!("SELECT {number}, {} FROM {}{order}", pair.selected_of_theirs(), quoted(&pair.theirs.stored))
}

/// One table while it is compared.
struct Job<'j, 'a> {
    pair: &'j Pair,
    all: &'j mut Comparison<'a>,
    sink: &'j mut dyn Sink,
    by_key: Option<ByKey<'a>>,
    collisions: Vec<Collision<'a>>,
    parents: Vec<Parent<'a>>,
    twins: Option<Twins<'a>>,
    one_each: bool,
    /// Its rows must keep their numbers, for a search index that no trigger keeps refers to them.
    by_number: bool,
    counts: Counts,
    /// Rows of the database that were found in the capture, the same or not.
    matched: u64,
}

impl Job<'_, '_> {
    fn join(&mut self) -> Result<()> {
        let pair = self.pair;
        let live_rowid = pair.live.as_ref().and_then(|t| t.rowid.clone());
        let (mut ours, mut theirs) = (
            self.all.live.prepare(&select(pair, &live_rowid, self.all.moving))?,
            self.all.theirs.prepare(&select_of_theirs(pair, &pair.theirs.rowid))?,
        );
        let (mut ours, mut theirs) = (ours.query([])?, theirs.query([])?);
        let mut leftover = Leftover::new();
        let (mut our, mut their) = (ours.next()?, theirs.next()?);
        while let Some(row) = their {
            let number: i64 = row.get(0)?;
            while let Some(o) = our
                && o.get::<_, i64>(0)? < number
            {
                self.only_here(o, &mut leftover)?;
                our = ours.next()?;
            }
            let here = match our {
                Some(o) if o.get::<_, i64>(0)? == number => Some(o),
                _ => None,
            };
            if here.is_some_and(|o| self.is_same(row, o)) {
                self.counts.same += 1;
                self.matched += 1;
            } else {
                let their_cells = cells(row, 1, pair.columns.len())?;
                if self.by_content(&their_cells) {
                    leftover.theirs(number, here.is_some(), &self.digest(&their_cells))?;
                } else {
                    let our_cells = here.map(|o| cells(o, 1, pair.columns.len())).transpose()?;
                    self.settle(Some(number), &their_cells, our_cells.as_deref())?;
                }
                if let Some(o) = here {
                    self.only_here(o, &mut leftover)?;
                }
            }
            if here.is_some() {
                our = ours.next()?;
            }
            their = theirs.next()?;
        }
        while let Some(o) = our {
            self.only_here(o, &mut leftover)?;
            our = ours.next()?;
        }
        self.by_their_content(&leftover)
    }

    fn is_same(&self, their: &Row<'_>, our: &Row<'_>) -> bool {
        self.pair.compared.iter().all(|i| match (their.get_ref(i + 1), our.get_ref(i + 1)) {
            (Ok(a), Ok(b)) => same(a, b),
            _ => false,
        })
    }

    fn equal(&self, theirs: &[Cell], ours: &[Cell]) -> bool {
        self.pair.compared.iter().all(|i| theirs[*i] == ours[*i])
    }

    fn digest(&self, row: &[Cell]) -> [u8; 32] {
        digest(self.pair.compared.iter().map(|i| row[*i].as_ref()))
    }

    /// True if a row is known by nothing but its content.
    fn by_content(&self, row: &[Cell]) -> bool {
        self.by_key.as_ref().is_none_or(|k| k.is_open(row))
    }

    /// A row of the database that is not the capture's row of the same number.
    fn only_here(&mut self, row: &Row<'_>, leftover: &mut Leftover) -> Result<()> {
        let may_be_open = self.by_key.is_none() || matches!(self.pair.key, PairKey::Columns(_));
        if may_be_open {
            let row = cells(row, 1, self.pair.columns.len())?;
            if self.by_content(&row) {
                leftover.ours(&self.digest(&row))?;
            }
        }
        Ok(())
    }

    /// Rows without a key: as many of one content as the database has beyond those that were matched are the same.
    fn by_their_content(&mut self, leftover: &Leftover) -> Result<()> {
        let Some(rowid) = &self.pair.theirs.rowid else { return Ok(()) };
        let (columns, table) = (self.pair.selected_of_theirs(), quoted(&self.pair.theirs.stored));
        let sql = format!("SELECT {columns} FROM {table} WHERE {rowid} = ?1");
        let mut again = self.all.theirs.prepare(&sql)?;
        leftover.each(|number, taken, is_here| {
            if is_here {
                self.counts.same += 1;
                self.matched += 1;
                return Ok(());
            }
            let row = again.query_row([number], |r| cells(r, 0, self.pair.columns.len()))?;
            if self.one_each {
                return self.conflict(&row, None, ONE_EACH);
            }
            if taken && self.by_number {
                return self.conflict(&row, None, UNSURE_INDEX);
            }
            self.only_captured(&row, Some(number).filter(|_| !taken), false)
        })
    }

    /// Both sides number their rows differently, or not at all: each row is looked up by its key.
    fn look_up_each(&mut self) -> Result<()> {
        let mut all = self.all.theirs.prepare(&select_of_theirs(self.pair, &None))?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            let row = cells(row, 1, self.pair.columns.len())?;
            self.settle(None, &row, None)?;
        }
        Ok(())
    }

    /// A row of the capture that has a key, and is not the row of the same number.
    fn settle(&mut self, number: Option<i64>, theirs: &[Cell], at_number: Option<&[Cell]>) -> Result<()> {
        let here = match (&mut self.by_key, &self.pair.key, number, at_number) {
            (_, PairKey::Number(_), Some(_), ours) => ours.map(<[Cell]>::to_vec),
            (Some(by_key), ..) => by_key.find(theirs)?,
            (None, ..) => None,
        };
        match here {
            Some(ours) if self.equal(theirs, &ours) => {
                self.counts.same += 1;
                self.matched += 1;
                Ok(())
            }
            Some(ours) if self.all.rules.are_two(self.pair, theirs, &ours) => {
                if self.is_there_under_another_number(theirs)? {
                    return Ok(());
                }
                self.only_captured(theirs, None, true)
            }
            Some(ours) => {
                self.matched += 1;
                self.conflict(theirs, Some(&ours), TAKEN)
            }
            None if self.is_there_under_another_number(theirs)? => Ok(()),
            None if self.one_each => self.conflict(theirs, None, ONE_EACH),
            None => {
                let taken = at_number.is_some();
                if taken && self.by_number {
                    return self.conflict(theirs, at_number, UNSURE_INDEX);
                }
                self.only_captured(theirs, number.filter(|_| !taken), false)
            }
        }
    }

    fn is_there_under_another_number(&mut self, theirs: &[Cell]) -> Result<bool> {
        let there = match &mut self.twins {
            Some(twins) => twins.is_there(theirs)?,
            None => false,
        };
        if there {
            self.counts.same += 1;
            self.matched += 1;
        }
        Ok(there)
    }

    /// A row that only the capture has, if nothing stands against it.
    fn only_captured(&mut self, row: &[Cell], rowid: Option<i64>, renumber: bool) -> Result<()> {
        if let Some(why) = &self.pair.aside {
            return self.conflict(row, None, why);
        }
        let mut row = row.to_vec();
        for collision in &mut self.collisions {
            let Some(ours) = collision.find(&row)? else { continue };
            if let Some(column) = self.all.rules.gives_up(&self.pair.name, &collision.columns)
                && let Some(place) = self.pair.place(column)
            {
                row[place] = Cell::Null;
                continue;
            }
            let why = format!("another row has what must be unique here ({})", collision.name);
            return self.conflict(&row, Some(&ours), &why);
        }
        for parent in &mut self.parents {
            let standing = parent.standing(&row)?;
            let refused = || self.all.refused.contains(&named(&parent.reference.parent, &parent.values(&row)));
            if standing == Standing::Nowhere || (standing == Standing::Captured && refused()) {
                let why = format!("the row of {} to which it refers is not here", parent.reference.parent);
                return self.conflict(&row, None, &why);
            }
        }
        if self.pair.left_alone.is_none() {
            let landed = self.sink.missing(self.pair, &New { cells: &row, rowid, renumber })?;
            if let Landed::Refused(why) = landed {
                return self.conflict(&row, None, &why);
            }
        }
        match renumber {
            true => self.counts.renumbered += 1,
            false => self.counts.missing += 1,
        }
        Ok(())
    }

    fn conflict(&mut self, theirs: &[Cell], ours: Option<&[Cell]>, why: &str) -> Result<()> {
        self.counts.conflicting += 1;
        // The row of the same key stands for it where others refer to it by that key.
        if why != TAKEN {
            let referred = self.all.referred(self.pair, theirs);
            self.all.refused.extend(referred);
        }
        self.sink.conflict(self.pair, &Conflict { theirs, ours, why })
    }
}
