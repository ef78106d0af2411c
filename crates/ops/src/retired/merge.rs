//! Bringing back what only a capture has: into the live database in one transaction, or into a new file.
//!
//! The comparison runs once more inside the transaction, so what is written is what is missing at that moment. Before the
//! commit it is proved that nothing refers to what is not there and that nothing is missing any more; after it the same is read back
//! by a fresh connection. Killed at any point the database is the old one or the new one, and a second merge brings nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde::Serialize;
use statehouse_sqlite::Family;
use statehouse_sqlite::capture::{self, Capture, Merge};

use super::apply::{Apply, Sessions};
use super::base::Base;
use super::compare::{Comparison, Counts, count};
use super::conflicts::List;
use super::doubt;
use super::error::{Error, Result};
use super::live::{self, Reading, Writing};
use super::pair::{Pair, pairs, unkept};
use super::proved::{Dangling, missing_now, read_back};
use super::quiet::Quiet;
use super::renames;
use super::rest::Rest;
use super::room::Weight;
use super::rules::Rules;
use super::schema::Schema;
use super::show::{
    Asked, Compared, Listing, Shown, UNPLACED, changing, compare, is_suspicious, lacks, looked, ruined, shown,
};
use super::source::Source;
use super::told::{self, record, settle, tell};
use super::unplaced;
use crate::maintenance::{look, whole};
use crate::progress::Progress;

/// Keeps a copy of the database as it is, before anything is changed, and says where.
pub type Evidence<'a> = &'a dyn Fn() -> Result<PathBuf>;

/// The answer of `retired merge`.
#[derive(Debug, Serialize)]
pub struct Merged {
    /// How the capture stood to the database.
    #[serde(flatten)]
    pub shown: Shown,
    /// True if only a preview was asked for.
    pub dry_run: bool,
    /// True if the database, or the new file, was written.
    pub done: bool,
    /// Rows that were brought back.
    pub rows: u64,
    /// The same by table; empty for a store of Statehouse, whose opening takes over all captures at once.
    pub brought: BTreeMap<String, u64>,
    /// The new file, with `--into`.
    pub into: Option<PathBuf>,
    /// Where the rows are listed that stand against each other; `null` if there are none.
    pub conflicts: Option<PathBuf>,
    /// The copy of the database as it was before.
    pub before: Option<PathBuf>,
    /// True if a fresh connection found every row there afterwards; `null` if nothing was written.
    pub read_back: Option<bool>,
}

impl Merged {
    fn of(shown: Shown) -> Merged {
        Merged {
            shown,
            dry_run: false,
            done: false,
            rows: 0,
            brought: BTreeMap::new(),
            into: None,
            conflicts: None,
            before: None,
            read_back: None,
        }
    }

    fn bringing(self, brought: BTreeMap<String, u64>) -> Merged {
        Merged { done: true, rows: brought.values().sum(), brought, ..self }
    }

    /// The answer where a store of ours has taken the rows over by itself when it was opened.
    pub fn taken(self, path: &Path, rows: u64) -> Merged {
        let merged = Merged { dry_run: false, done: true, rows, ..self };
        if let Ok(family) = Family::of(path) {
            tell(&family, &merged);
            let captures = capture::list(&family).unwrap_or_default();
            // Where a reader keeps the log from being copied, the mark comes later.
            let is_in = |c: &&Capture| c.id == merged.shown.id && (c.is_merged() || c.is_in_the_log());
            if let Some(capture) = captures.iter().find(is_in) {
                let before = capture.merge().unwrap_or_default();
                settle(&family, told::ROLE, capture, &Merge { rows: before.rows + rows, ..before });
            }
        }
        merged
    }
}

/// Says what [`merge`] would do. Nothing is changed.
///
/// # Errors
/// [`Error`].
pub fn preview(path: &Path, id: &str, asked: &Asked<'_>) -> Result<Merged> {
    let mut shown = looked(path, id, false, true, asked)?;
    // It is looked for first.
    if let Err(e) = live::refuse_danger(&Family::of(path)?) {
        (shown.would_refuse, shown.refused_because) = (Some(e.code().to_owned()), Some(e.damage()));
    }
    Ok(Merged { dry_run: true, ..Merged::of(shown) })
}

/// Brings the rows that only the capture has into the database at `path`.
///
/// # Errors
/// [`Error`], with the database as it was.
pub fn merge(path: &Path, id: &str, evidence: Evidence<'_>, asked: &Asked<'_>) -> Result<Merged> {
    let seen = look(path)?;
    let family = seen.family().clone();
    live::refuse_danger(&family)?;
    (asked.watch)(Progress::Begins { what: "opening the capture", bytes: None });
    let source = Source::find(&family, id, &asked.opening(true))?;
    let lacks = lacks(&family, &source);
    let mut list = List::of(&family, &source.id);
    // Most captures are looked at first, and many were merged before: then nothing is touched.
    let first = {
        let said = |e: Error| if e.is_of_the_database() { ruined(&family, &source, e.damage()) } else { e };
        let reading = Reading::open(path, asked.scratch, asked.patience).map_err(said)?;
        let proved = match is_suspicious(&source, lacks) {
            true => whole::require(&reading, path).map_err(Error::from),
            false => Ok(()),
        };
        let first = proved.and_then(|()| compare(&reading, &source, asked.watch, &mut list)).map_err(said)?;
        reading.confirm()?;
        first
    };
    let before = shown(&family, &source, first, lacks);
    if before.to_bring_back() == 0 {
        let mut merged = Merged::of(before);
        merged.conflicts = list.publish()?;
        // One before this was ended when it had written the rows and had not said so.
        if let Some(begun) = told::begun(&family, &source) {
            (merged.rows, merged.before) = (begun.rows, begun.before);
            record(&family, &source, &merged);
            tell(&family, &merged);
            told::ended(&family, &source);
            (merged.rows, merged.before) = (0, None);
        } else {
            record(&family, &source, &merged);
        }
        return Ok(merged);
    }
    if let Some(needs) = before.room {
        needs.require_beside(&family)?;
    }
    // Written anew in the transaction, for it is about what is there then.
    drop(list);
    (asked.watch)(Progress::Begins { what: "keeping a copy of the database", bytes: None });
    let kept = evidence().map_err(|e| match e.code() {
        "unverified" => ruined(&family, &source, e.damage()),
        _ => e,
    })?;
    let written = write(path, &family, &source, &before, &kept, asked);
    if written.is_err() {
        // Nothing was changed, so there is nothing to go back from.
        super::evidence::forget(&family, &kept);
        told::ended(&family, &source);
    }
    let Written { compared, brought, refused, conflicts } = written?;
    let mut merged = Merged::of(shown(&family, &source, compared, lacks));
    (merged.before, merged.conflicts) = (Some(kept), conflicts);
    if brought.is_empty() {
        // Another merge was quicker, or a rule of the database refused every row: nothing has changed.
        merged.before.take().inspect(|kept| super::evidence::forget(&family, kept));
        told::ended(&family, &source);
        record(&family, &source, &merged);
        return Ok(merged);
    }
    merged.read_back = Some(read_back(path, &source, &brought, &refused, asked)?);
    let merged = merged.bringing(brought);
    if merged.read_back == Some(true) {
        record(&family, &source, &merged);
    }
    tell(&family, &merged);
    told::ended(&family, &source);
    Ok(merged)
}

struct Written {
    compared: Compared,
    brought: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
    conflicts: Option<PathBuf>,
}

/// The transaction, from its beginning to its commit. On an error the database is as it was, and its log is no longer than it was where
/// nobody else needs that.
fn write(
    path: &Path,
    family: &Family,
    source: &Source,
    before: &Shown,
    kept: &Path,
    asked: &Asked<'_>,
) -> Result<Written> {
    // The snapshot may have taken more than was thought.
    if let Some(needs) = before.room {
        needs.after_the_copy().require_beside(family)?;
    }
    let writing = Writing::open(&look(path)?, asked.patience)?;
    let log = writing.log_size();
    let tried = (|| {
        writing.begin()?;
        let reader = writing.reader(asked.patience)?;
        let list = List::of(family, &source.id);
        let (writer, create) = (&writing.writer, source.is_whole());
        let work = Work { writer, reader, source, asked, first: Some(before), create, is_new: false };
        let Done { compared, brought, refused, list } = work.run(list)?;
        let conflicts = list.publish()?;
        told::begin(family, source, brought.values().sum(), kept);
        writing.commit()?;
        Ok(Written { compared, brought, refused, conflicts })
    })();
    if tried.is_err() {
        writing.give_back(log);
    }
    tried
}

/// Writes the database at `path` with the rows that only the capture has to the new file `into`.
///
/// # Errors
/// [`Error`], with nothing left of the new file.
pub fn merge_into(path: &Path, id: &str, into: &Path, asked: &Asked<'_>) -> Result<Merged> {
    let family = Family::of(path)?;
    if let Some(found) = crate::target::belongs_to_a_database(into) {
        return Err(Error::OfDatabase { path: into.to_owned(), found });
    }
    super::into::refuse_there(into)?;
    let source = Source::find(&family, id, &asked.opening(true))?;
    let lacks = lacks(&family, &source);
    // What cannot be proved whole is not copied.
    let base = Base::open(path, true, asked)?;
    let is_ours = super::own::is_ours(&base)?;
    let mut needs = Weight::of(&base)?.needs();
    if is_ours {
        needs.grows = source.log.as_ref().and_then(|l| std::fs::metadata(l).ok()).map_or(0, |m| m.len());
    } else if let Some(weight) = compare(&base, &source, asked.watch, &mut Listing { rows: None })?.weight {
        needs = weight.needs();
    }
    needs.require(into.parent().unwrap_or(Path::new(".")))?;
    let copy = super::into::Copy::new(into)?;
    (asked.watch)(Progress::Begins { what: "copying the database", bytes: None });
    let writer = copy.take(&base)?;
    base.confirm()?;
    let (said, others) = (base.said(), base.others().to_vec());
    drop(base);
    let mut rest = Rest::of(&others);
    rest.before(&writer);
    writer.execute_batch("BEGIN IMMEDIATE")?;
    if is_ours {
        let rows = super::own::merge(&writer, &source)?;
        writer.execute_batch("COMMIT")?;
        drop(writer);
        copy.publish()?;
        let merged = preview(path, id, asked)?;
        return Ok(Merged { dry_run: false, done: true, rows, into: Some(into.to_owned()), ..merged });
    }
    let reader = copy.reader()?;
    let list = List::beside(copy.to());
    let work = Work { writer: &writer, reader, source: &source, asked, first: None, create: true, is_new: true };
    let Done { compared, brought, list, .. } = work.run(list)?;
    rest.after(&writer)?;
    writer.execute_batch("COMMIT")?;
    drop(writer);
    (asked.watch)(Progress::Begins { what: "checking the new file", bytes: None });
    copy.publish()?;
    let mut merged = Merged::of(shown(&family, &source, compared, lacks));
    doubt::ruined(&mut merged.shown, said);
    merged.shown.gone.extend(rest.said());
    merged.conflicts = list.publish()?;
    merged.into = Some(into.to_owned());
    Ok(merged.bringing(brought))
}

/// What a merge is about, with its transaction open on `writer`.
struct Work<'a> {
    writer: &'a Connection,
    /// Sees the database as it was when the transaction began.
    reader: Connection,
    source: &'a Source,
    asked: &'a Asked<'a>,
    /// What a first look found, if there was one.
    first: Option<&'a Shown>,
    /// True if tables that only the capture has are made.
    create: bool,
    /// True if it goes into a new file, which also takes rows that fit no table.
    is_new: bool,
}

struct Done {
    compared: Compared,
    brought: BTreeMap<String, u64>,
    refused: BTreeMap<String, u64>,
    list: List,
}

impl Work<'_> {
    /// Everything up to the commit. On an error the transaction goes with its connection.
    fn run(self, list: List) -> Result<Done> {
        let schema = Schema::read(&self.reader)?;
        let rules = Rules::of(&schema);
        self.writer.execute_batch("PRAGMA defer_foreign_keys = ON")?;
        let unkept = unkept(&schema);
        let compared = Compared { unkept, changing: changing(&schema, rules), ..Compared::default() };
        let mut done = Done { compared, brought: BTreeMap::new(), refused: BTreeMap::new(), list };
        let mut sessions = Sessions::default();
        let mut made = BTreeSet::new();
        for (part, rows) in self.source.parts().enumerate() {
            let theirs = renames::read(&self.reader, &schema, self.source, rows)?;
            let is_all = part == 0 && self.source.is_whole();
            let (unplaced, pairs): (Vec<Pair>, Vec<Pair>) = pairs(&schema, &theirs, rules)
                .into_iter()
                .partition(|p| !is_all && p.live.is_none() && p.name == UNPLACED);
            for pair in pairs.iter().filter(|p| p.live.is_none() && self.is_written(p) && made.insert(p.name.clone())) {
                Apply::create(self.writer, rows, pair)?;
            }
            let touched: Vec<&Pair> = pairs.iter().filter(|p| self.is_written(p)).collect();
            let written: BTreeSet<String> = touched.iter().map(|p| p.name.to_ascii_lowercase()).collect();
            let dangling = Dangling::count(self.writer, &touched)?;
            let needed: Vec<&Pair> =
                touched.iter().filter(|p| self.first.is_some_and(|f| f.has_rows_to_come(&p.name))).copied().collect();
            let mut apply = Apply::new(self.writer, rows, rules, &needed, done.list, sessions)?;
            let mut comparison = Comparison::new(&self.reader, rows, &schema, &theirs, rules);
            for pair in &pairs {
                (self.asked.watch)(Progress::Begins { what: "bringing rows back", bytes: None });
                // What triggers have written by now counts as well.
                let feeders = schema.triggers.feeders(&pair.name);
                let is_fed = feeders.iter().any(|f| written.contains(f));
                comparison.beside(if is_fed { self.writer } else { &self.reader }, is_fed);
                let brings = self.first.is_none_or(|f| f.has_rows_to_come(&pair.name));
                let told = if is_all && brings {
                    self.told_there(pair, &touched, &schema, &theirs, rules)
                } else {
                    Vec::new()
                };
                let quiet = Quiet::over(self.writer, &told, &pair.name)?;
                apply.announces = quiet.is_over_its_own();
                let counts = self.by_itself(pair, &mut comparison, &mut apply);
                drop(quiet);
                done.compared.take(pair, counts, is_all)?;
                if pair.live.is_none()
                    && !self.create
                    && let Some(shown) = done.compared.tables.get_mut(&pair.name)
                {
                    let why = "the database has no such table; --into FILE writes one that has it";
                    (shown.left_alone, shown.is_beyond_us) = (Some(why.to_owned()), true);
                }
            }
            for pair in &unplaced {
                done.compared.unplaced += match self.is_new {
                    true => unplaced::keep(self.writer, rows, &pair.theirs)?,
                    false => count(rows, &pair.theirs.stored)?,
                };
            }
            for (sum, more) in [(&mut done.brought, apply.brought), (&mut done.refused, apply.refused)] {
                for (table, n) in more {
                    *sum.entry(table).or_default() += n;
                }
            }
            (done.list, sessions) = (apply.list, apply.sessions);
            (self.asked.watch)(Progress::Begins { what: "checking", bytes: None });
            dangling.compare(&Dangling::count(self.writer, &touched)?)?;
        }
        sessions.finish(self.writer, &schema)?;
        drop(self.reader);
        missing_now(self.writer, self.source, &done.brought, &done.refused)?;
        Ok(done)
    }

    fn is_written(&self, pair: &Pair) -> bool {
        pair.left_alone.is_none()
            && pair.incomparable.is_none()
            && (pair.live.is_some() || self.create && pair.aside.is_none())
    }

    /// Tables to which the triggers of `pair` have added rows in the capture, which are brought back from there.
    fn told_there(&self, pair: &Pair, touched: &[&Pair], live: &Schema, theirs: &Schema, rules: Rules) -> Vec<String> {
        // Where a row may get another number, what its trigger says of it is not what the capture says.
        if pair.live.is_none()
            || rules.identity(pair).is_some()
            || !live.triggers.fires_as(&pair.name, &theirs.triggers)
        {
            return Vec::new();
        }
        let fed = live.triggers.fed_by(&pair.name);
        let is_told = |p: &&&Pair| {
            let feed = fed.get(&p.name.to_ascii_lowercase());
            p.live.is_some() && !p.is_virtual && feed.is_some_and(|f| !f.changes)
        };
        touched.iter().filter(is_told).map(|p| p.name.clone()).collect()
    }

    /// What a module cannot take is undone alone. It keeps rows in memory until it must write them, and would else fail at the very end.
    fn by_itself(&self, pair: &Pair, comparison: &mut Comparison<'_>, apply: &mut Apply<'_>) -> Result<Counts> {
        if !pair.is_virtual || !self.is_written(pair) {
            return self.table(pair, comparison, apply);
        }
        self.writer.execute_batch("SAVEPOINT statehouse_module")?;
        let counts = self.table(pair, comparison, apply).and_then(|counts| {
            // A savepoint has it written down.
            self.writer.execute_batch("SAVEPOINT statehouse_written; RELEASE statehouse_written")?;
            Ok(counts)
        });
        if counts.as_ref().is_err_and(Error::may_be_of_a_module) {
            self.writer.execute_batch("ROLLBACK TO statehouse_module")?;
            apply.brought.remove(&pair.name);
            apply.refused.remove(&pair.name);
        }
        self.writer.execute_batch("RELEASE statehouse_module")?;
        counts
    }

    fn table(&self, pair: &Pair, comparison: &mut Comparison<'_>, apply: &mut Apply<'_>) -> Result<Counts> {
        match &pair.incomparable {
            Some(_) => Ok(Counts::default()),
            None if pair.live.is_none() && !self.create => comparison.table(pair, &mut Listing { rows: None }),
            None => comparison.table(pair, apply),
        }
    }
}
