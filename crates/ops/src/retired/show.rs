//! The answer of `retired show`: how a capture stands to its database, table by table.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use serde::Serialize;
use serde_json::Value as Json;
use statehouse_sqlite::shell::word;
use statehouse_sqlite::wal::Lacking;
use statehouse_sqlite::words::{count as count_of, verb};
use statehouse_sqlite::{Family, files, wal};

use super::base::Base;
use super::compare::{Comparison, Conflict, Counts, Landed, New, Sink, count};
use super::conflicts::{List, key};
use super::doubt;
use super::error::{Error, Result};
use super::pair::{Pair, pairs, unkept};
use super::rebuild::{Rebuild, rebuild};
use super::renames;
use super::room::{Needs, Weighing, Weight};
use super::rules::Rules;
use super::schema::Schema;
use super::source::{Kind, Opening, Source};
use crate::maintenance::whole;
use crate::progress::{Progress, Watch};

/// How many rows of a table are listed at most.
const LISTED: usize = 1000;

/// What a comparison is given beside the database and the capture.
pub struct Asked<'a> {
    /// A directory for private images.
    pub scratch: &'a Path,
    /// How long a lock is waited for.
    pub patience: Duration,
    /// Is told how far it is.
    pub watch: Watch<'a>,
}

impl Asked<'_> {
    pub(super) fn opening(&self, prove: bool) -> Opening<'_> {
        Opening { scratch: self.scratch, patience: self.patience, prove }
    }
}

/// How a table of a capture stands to the same table of the database.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TableShown {
    /// Rows that only the capture has.
    pub missing: u64,
    /// Rows that both have.
    pub same: u64,
    /// Rows that cannot be here beside what is here.
    pub conflicting: u64,
    /// Rows that only the database has; `null` where the capture has only a part of its rows.
    pub only_here: Option<u64>,
    /// Rows that only the capture has and whose number is another row's here.
    pub renumbered: u64,
    /// True if the database has no such table.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_captured: bool,
    /// Columns that only the database has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns_only_here: Vec<String>,
    /// Columns that only the capture has. They are neither compared nor brought back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns_only_captured: Vec<String>,
    /// The name that it has in the capture, if that is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub captured_as: Option<String>,
    /// The columns that have another name in the capture, each with that one.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub columns_captured_as: BTreeMap<String, String>,
    /// Why rows of it that the database lacks are listed and not brought back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aside: Option<String>,
    /// Why its missing rows are not brought back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_alone: Option<String>,
    /// True if that is because of what this program cannot do.
    #[serde(skip)]
    pub(super) is_beyond_us: bool,
    /// Why it was not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_compared: Option<String>,
    /// The keys of what differs, if that was asked for: at most a thousand a kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<Listed>,
}

/// The keys of rows.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Listed {
    /// Of those that only the capture has.
    pub missing: Vec<Json>,
    /// Of those that cannot be here beside what is here.
    pub conflicting: Vec<Json>,
    /// True if there are more than are listed.
    pub truncated: bool,
}

/// How a capture stands to its database.
#[derive(Debug, Serialize)]
pub struct Shown {
    /// The capture.
    pub id: String,
    /// The database.
    pub path: String,
    /// When it was made.
    pub captured_at: Option<String>,
    /// The process whose files they were.
    pub pid: Option<u32>,
    /// Frames of its log.
    pub frames: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// Transactions that the database lacks; all of them where that cannot be told, and none where no row is missing.
    pub commits_missing: u64,
    /// Where the rows were read.
    pub source: Kind,
    /// Table by table.
    pub tables: BTreeMap<String, TableShown>,
    /// Rows of the log that fit no table.
    pub unplaced: u64,
    /// What is known to be in neither of the two, or may be, a sentence each.
    pub gone: Vec<String>,
    /// Search indexes of tables to which rows come, and which no trigger keeps.
    pub rebuild: Vec<Rebuild>,
    /// What puts all of the capture in the place of a database that is damaged itself, as it is typed; `null` where the
    /// database is not, or where the capture is not whole either.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restore: Option<String>,
    /// Rows that are there and that triggers may change or take away when rows come: each table, with the triggers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub may_change: BTreeMap<String, Vec<String>>,
    /// Bytes that a merge may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room: Option<Needs>,
    /// What a merge would be refused for now, by its code; `null` for nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub would_refuse: Option<String>,
    /// The numbers of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused_because: Option<String>,
}

impl Shown {
    /// Rows that a merge brings back.
    pub fn to_bring_back(&self) -> u64 {
        self.tables.values().filter(|t| t.left_alone.is_none()).map(|t| t.missing + t.renumbered).sum()
    }

    /// True if a merge writes into a table.
    pub(super) fn has_rows_to_come(&self, table: &str) -> bool {
        self.tables.get(table).is_some_and(|t| t.left_alone.is_none() && t.missing + t.renumbered > 0)
    }

    /// Tables of which it is not known how they stand.
    pub fn not_compared(&self) -> u64 {
        self.tables.values().filter(|t| t.not_compared.is_some()).count() as u64
    }

    /// True if it is known that the database has every row of the capture, and all of each row.
    pub fn is_all_here(&self) -> bool {
        self.to_bring_back() == 0 && self.conflicting() == 0 && self.left().is_empty() && self.of_the_file().is_empty()
    }

    /// Tables whose rows differ and are left where they are, because they say something about their file alone.
    pub(super) fn of_the_file(&self) -> Vec<String> {
        let is_left =
            |t: &TableShown| t.left_alone.is_some() && !t.is_beyond_us && t.missing + t.renumbered + t.conflicting > 0;
        self.tables.iter().filter(|(_, t)| is_left(t)).map(|(name, _)| name.clone()).collect()
    }

    /// What a merge leaves in the capture beside conflicts, or may leave there, a sentence each.
    pub(super) fn left(&self) -> Vec<String> {
        let mut left = Vec::new();
        for (name, table) in &self.tables {
            if let Some(why) = &table.not_compared {
                left.push(format!("the table {name} was not compared: {why}"));
            }
            let rows = table.missing + table.renumbered + table.conflicting;
            if let (Some(why), true) = (&table.left_alone, table.is_beyond_us && rows > 0) {
                let were = verb(rows, "was", "were");
                left.push(format!("{} of {name} {were} not brought back: {why}", count_of(rows, "row")));
            }
            if !table.columns_only_captured.is_empty() {
                left.push(format!(
                    "only the capture has these columns of {name}: {}",
                    table.columns_only_captured.join(", ")
                ));
            }
        }
        if self.unplaced > 0 {
            let fit = verb(self.unplaced, "fits", "fit");
            left.push(format!("{} of the log {fit} no table", count_of(self.unplaced, "row")));
        }
        left.extend(self.gone.iter().cloned());
        left
    }

    /// Rows that stand against each other.
    pub fn conflicting(&self) -> u64 {
        self.tables.values().filter(|t| t.left_alone.is_none()).map(|t| t.conflicting).sum()
    }
}

/// Compares a capture with the database at `path`. Nothing is changed.
///
/// # Errors
/// [`super::Error`].
pub fn show(path: &Path, id: &str, rows: bool, asked: &Asked<'_>) -> Result<Shown> {
    looked(path, id, rows, false, asked)
}

/// As [`show`]; with `foretold` it is also said what would refuse a merge.
pub(super) fn looked(path: &Path, id: &str, rows: bool, foretold: bool, asked: &Asked<'_>) -> Result<Shown> {
    let family = Family::of(path)?;
    (asked.watch)(Progress::Begins { what: "opening the capture", bytes: None });
    let source = Source::find(&family, id, &asked.opening(false))?;
    // Before the database is open in this process, for it is read as a file.
    let lacks = lacks(&family, &source);
    let mut live = Base::open(path, is_suspicious(&source, lacks), asked)?;
    let listing = || Listing { rows: rows.then(BTreeMap::new) };
    let mut listed = listing();
    let mut compared = compare(&live, &source, asked.watch, &mut listed);
    if let Err(damage) = &compared
        && damage.is_of_the_database()
        && live.said().is_none()
    {
        drop(live);
        live = Base::walk(path, damage, asked)?;
        listed = listing();
        compared = compare(&live, &source, asked.watch, &mut listed);
    }
    let (mut compared, listing) = (compared?, listed);
    live.confirm()?;
    for (name, listed) in listing.rows.into_iter().flatten() {
        if let Some(table) = compared.tables.get_mut(&name) {
            table.rows = Some(listed);
        }
    }
    let mut shown = shown(&family, &source, compared, lacks);
    if foretold {
        // A merge looks at its snapshot as closely, when there is something to do.
        let found = match (live.damage(), shown.to_bring_back()) {
            (Some(found), _) => Err(ruined(&family, &source, found.to_owned())),
            (None, 0) => Ok(()),
            (None, _) => whole::require(&live, path).map_err(|e| ruined(&family, &source, Error::from(e).damage())),
        };
        let refused = found.and_then(|()| match shown.room.filter(|_| shown.to_bring_back() > 0) {
            Some(needs) => needs.require_beside(&family),
            None => Ok(()),
        });
        if let Err(e) = refused {
            (shown.would_refuse, shown.refused_because) = (Some(e.code().to_owned()), Some(e.damage()));
            if let Error::Ruined { restore, .. } = e {
                shown.restore = restore;
            }
        }
    }
    if live.damage().is_some() {
        shown.restore = restore(&family, &source);
    }
    doubt::ruined(&mut shown, live.said());
    Ok(shown)
}

/// What the files say, before the database is open in this process.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stands {
    /// How the main file stands to the log of the capture.
    lacking: Option<Lacking>,
    /// True if the database has a log and not a journal.
    wal: bool,
}

/// Looks at the files of the database, which nothing in this process may have open.
pub(super) fn lacks(family: &Family, source: &Source) -> Stands {
    let main = files::open(&family.main()).ok();
    let lacking = main.as_ref().and_then(|main| {
        let log = files::open(source.log.as_deref()?).ok()?;
        wal::lacking(main, &log).ok()
    });
    let mut version = [0];
    // The version that is needed to write it, in the header.
    let read = main.as_ref().is_some_and(|main| main.read_exact_at(&mut version, 18).is_ok());
    Stands { lacking, wal: !read || version == [2] }
}

/// True if the structure of the database must be proved before anything is said of it: another generation may have changed its
/// main file, or a part of the log is in it and the rest is not.
pub(super) fn is_suspicious(source: &Source, lacks: Stands) -> bool {
    !source.is_whole() || lacks.lacking.is_some_and(|l| l.torn)
}

/// What is answered where the database is damaged itself.
pub(super) fn ruined(family: &Family, source: &Source, found: String) -> Error {
    Error::Ruined { path: family.main(), found, restore: restore(family, source) }
}

/// What puts all of a capture in the place of the database, if the capture is whole by itself.
fn restore(family: &Family, source: &Source) -> Option<String> {
    let place = match source.place() {
        Some(place) if source.is_known() => place.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        Some(place) => place.to_string_lossy().into_owned(),
        None => source.id.clone(),
    };
    let path = family.main();
    source.is_whole().then(|| format!("statehouse restore {} {}", word(&place), word(&path.to_string_lossy())))
}

pub(super) fn shown(family: &Family, source: &Source, compared: Compared, lacks: Stands) -> Shown {
    let mut shown = Shown {
        id: source.id.clone(),
        path: family.main().to_string_lossy().into_owned(),
        captured_at: source.captured_at.clone(),
        pid: source.pid,
        frames: source.frames,
        transactions: source.transactions,
        commits_missing: 0,
        source: source.kind,
        tables: compared.tables,
        unplaced: compared.unplaced,
        gone: source.gone.clone(),
        rebuild: Vec::new(),
        restore: None,
        may_change: BTreeMap::new(),
        room: compared.weight.map(|w| w.through(lacks.wal).needs()),
        would_refuse: None,
        refused_because: None,
    };
    for (from, trigger, table) in compared.changing {
        if shown.has_rows_to_come(&from) {
            let by = shown.may_change.entry(table).or_default();
            if !by.contains(&trigger) {
                by.push(trigger);
            }
        }
    }
    shown.rebuild = rebuild(&shown, compared.unkept, family);
    shown.gone.extend(doubt::overwritten(family, &shown, source));
    if shown.to_bring_back() + shown.conflicting() + shown.unplaced > 0 {
        shown.commits_missing = lacks.lacking.map_or(shown.transactions, |l| l.missing);
    }
    shown
}

/// What a comparison of all tables found.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub(super) tables: BTreeMap<String, TableShown>,
    pub(super) unplaced: u64,
    /// Search indexes that no trigger keeps, each with the table that it is over.
    pub(super) unkept: Vec<(String, String)>,
    /// What the rows take that come.
    pub(super) weight: Option<Weight>,
    /// A table, a trigger that a new row of it fires, and a table of which that changes rows or takes them away.
    pub(super) changing: Vec<(String, String, String)>,
}

/// Rows that were salvaged and belong to no table that is known.
pub(super) const UNPLACED: &str = "lost_and_found";

/// Compares all tables. `live` and `source` are each in one state all the time.
pub(super) fn compare(live: &Connection, source: &Source, watch: Watch<'_>, sink: &mut dyn Sink) -> Result<Compared> {
    let schema = Schema::read(live)?;
    let rules = Rules::of(&schema);
    let mut compared = Compared { unkept: unkept(&schema), changing: changing(&schema, rules), ..Compared::default() };
    let mut sink = Weighing { inner: sink, weight: Weight::of(live)? };
    for (part, rows) in source.parts().enumerate() {
        let theirs = renames::read(live, &schema, source, rows)?;
        let mut comparison = Comparison::new(live, rows, &schema, &theirs, rules);
        let is_all = part == 0 && source.is_whole();
        for pair in pairs(&schema, &theirs, rules) {
            if !is_all && pair.live.is_none() && pair.name == UNPLACED {
                compared.unplaced += count(rows, UNPLACED)?;
                continue;
            }
            watch(Progress::Begins { what: "comparing", bytes: None });
            let counts = match &pair.incomparable {
                Some(_) => Ok(Counts::default()),
                None => comparison.table(&pair, &mut sink),
            };
            compared.take(&pair, counts, is_all)?;
        }
    }
    compared.weight = Some(sink.weight);
    Ok(compared)
}

/// What may happen to rows that are there when rows come.
pub(super) fn changing(schema: &Schema, rules: Rules) -> Vec<(String, String, String)> {
    let mut all = Vec::new();
    for table in schema.tables.values() {
        all.extend(schema.triggers.changes(&table.name).into_iter().map(|(by, of)| {
            let of = schema.get(&of).map_or(of, |t| t.name.clone());
            (table.name.clone(), format!("the trigger {by}"), of)
        }));
    }
    if rules == Rules::Hermes {
        all.push((
            "messages".to_owned(),
            "the counts of a session, which are raised".to_owned(),
            "sessions".to_owned(),
        ));
    }
    all
}

impl Compared {
    /// As [`Compared::add`], of a comparison that may have failed. What a module keeps can be damaged while everything else is
    /// sound; then that table alone is not compared.
    pub(super) fn take(&mut self, pair: &Pair, counts: Result<Counts>, is_all: bool) -> Result<()> {
        match counts {
            Err(e) if pair.is_virtual && e.may_be_of_a_module() => {
                let why = format!("its module fails, so what that keeps is probably damaged ({e} {})", e.detail());
                self.add(&Pair::unread(&pair.name, pair.live.is_some(), why), Counts::default(), is_all);
            }
            counts => self.add(pair, counts?, is_all),
        }
        Ok(())
    }

    /// Adds what one part of a capture has of a table; `is_all` if that is all that the capture had of it.
    pub(super) fn add(&mut self, pair: &Pair, counts: Counts, is_all: bool) {
        let new = table(pair, counts, !is_all);
        let Some(known) = self.tables.get_mut(&pair.name) else {
            self.tables.insert(pair.name.clone(), new);
            return;
        };
        known.missing += new.missing;
        known.same += new.same;
        known.conflicting += new.conflicting;
        known.renumbered += new.renumbered;
        // A row of the second part is none that the database has alone.
        known.only_here = known.only_here.map(|n| n.saturating_sub(new.same));
        known.not_compared = known.not_compared.take().or(new.not_compared);
    }
}

fn table(pair: &Pair, counts: Counts, from_log: bool) -> TableShown {
    TableShown {
        missing: counts.missing,
        same: counts.same,
        conflicting: counts.conflicting,
        only_here: (!from_log && pair.incomparable.is_none()).then_some(counts.only_here),
        renumbered: counts.renumbered,
        only_captured: pair.live.is_none(),
        columns_only_here: pair.only_live.clone(),
        columns_only_captured: pair.only_theirs.clone(),
        captured_as: pair.captured_as().map(str::to_owned),
        columns_captured_as: pair.columns_captured_as(),
        aside: pair.aside.clone(),
        left_alone: pair.left_alone.clone(),
        is_beyond_us: pair.is_beyond_us,
        not_compared: pair.incomparable.clone(),
        rows: None,
    }
}

/// Lists what conflicts, and nothing else.
impl Sink for List {
    fn missing(&mut self, _: &Pair, _: &New<'_>) -> Result<Landed> {
        Ok(Landed::In)
    }

    fn conflict(&mut self, pair: &Pair, conflict: &Conflict<'_>) -> Result<()> {
        if pair.left_alone.is_some() { Ok(()) } else { self.add(pair, conflict) }
    }
}

/// Keeps the keys of what differs, if they are wanted.
pub(super) struct Listing {
    pub(super) rows: Option<BTreeMap<String, Listed>>,
}

impl Listing {
    fn add(&mut self, pair: &Pair, row: &[super::cell::Cell], which: impl Fn(&mut Listed) -> &mut Vec<Json>) {
        let Some(rows) = &mut self.rows else { return };
        let listed = rows.entry(pair.name.clone()).or_default();
        let list = which(listed);
        if list.len() < LISTED {
            list.push(key(pair, row));
        } else {
            listed.truncated = true;
        }
    }
}

impl Sink for Listing {
    fn missing(&mut self, pair: &Pair, new: &New<'_>) -> Result<Landed> {
        self.add(pair, new.cells, |l| &mut l.missing);
        Ok(Landed::In)
    }

    fn conflict(&mut self, pair: &Pair, conflict: &Conflict<'_>) -> Result<()> {
        self.add(pair, conflict.theirs, |l| &mut l.conflicting);
        Ok(())
    }
}
