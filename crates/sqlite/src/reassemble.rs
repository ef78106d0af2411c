//! Putting together what is left of a database that was destroyed in place, in a new file beside the evidence.
//!
//! Four places may still have rows: the files that were not destroyed, what is left of the one that was, the newest snapshot
//! that was proved good, and the memory of the processes that wrote ([`crate::remembered`]). None of them is changed. The first
//! process that notices makes the new file, `rebuilt.captured`, from the files; each one adds what it remembers. All of it
//! happens with the exclusive side of the recovery lock held, so they come one after the other.
//!
//! What is lost is told by two accounts, both written to `account.json`:
//! * *by frames*: which frames of the log no file and nobody's memory has. None, and nothing that was acknowledged is lost with
//!   the log;
//! * *by rows*: the owner of the content knows from each source what there must be ([`Schema::inventory`]), and what of that is
//!   not in the new file ([`Schema::missing`]).
//!
//! Nothing is put in the place of the database: what a person wants to go on with is theirs to say.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use serde::{Deserialize, Serialize};

use crate::captures::{self, sound};
use crate::error::{Destruction, Error, Failure, Result};
use crate::family::{Family, Generation, Member};
use crate::image::{self, ImageError};
use crate::index::Index;
use crate::options::{Options, Schema};
use crate::remembered::{Remembered, uncovered};
use crate::salvage::{self, SalvageError};
use crate::wal::ReadAt;
use crate::{files, retired};

/// The new file, and what it is called while it is made.
pub(crate) const REBUILT: &str = "rebuilt.captured";
const PARTIAL: &str = "rebuilt.partial";
const OVERLAY: &str = "overlay.partial";
const MAIN: &str = "main.partial";
const OF_LOG: &str = "log.partial";
const OF_TABLES: &str = "tables.partial";
const MADE_ON_THE_WAY: [&str; 5] = [PARTIAL, OVERLAY, MAIN, OF_LOG, OF_TABLES];
const ACCOUNT: &str = "account.json";
const LONGEST: u64 = 16 << 20;

/// Where the header of a main file says how it is written and read, and the value for a file without a log.
const VERSIONS: (u64, [u8; 2]) = (18, [1, 1]);

/// What was put together, and what is lost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Account {
    /// The new file; `None` if nothing could be put together.
    pub rebuilt: Option<PathBuf>,
    /// True if SQLite finds it whole.
    pub verified: bool,
    /// What it was made of, in words.
    pub sources: Vec<String>,
    /// What could not be used, and why.
    pub unusable: Vec<String>,
    /// Frames of the log that were committed and not in the main file, the first and the last; `None` if that is not known or
    /// the log was not what was destroyed.
    pub at_risk: Option<(u32, u32)>,
    /// Which of them some process still knew the content of.
    pub remembered: Vec<(u32, u32)>,
    /// How many acknowledged writes were run once more.
    pub run_again: u64,
    /// How many of these did not succeed.
    pub failed: u64,
    /// What there must be, by what the sources say.
    pub expected: BTreeMap<String, u64>,
    /// What is lost, a sentence each; empty if nothing is.
    pub lost: Vec<String>,
    /// True if `lost` is the whole truth: nothing that was acknowledged can be missing beside it.
    pub complete: bool,
}

/// What the files of one handle are that were destroyed under it.
pub(crate) struct Destroyed<'a> {
    pub(crate) family: &'a Family,
    pub(crate) generation: &'a Generation,
    pub(crate) destruction: &'a Destruction,
    /// Where the copies of what was whole are.
    pub(crate) evidence: &'a Path,
    /// What the index said when it was seen last.
    pub(crate) index: Option<Index>,
}

/// Makes the new file if there is none, and adds what this process remembers. Returns the account as it is then.
pub(crate) fn put_together(what: &Destroyed<'_>, options: &Options, memory: &Remembered) -> Result<Account> {
    let path = what.evidence.join(ACCOUNT);
    let mut account = match read(&path) {
        Some(account) => account,
        None => from_files(what, options.schema.as_deref()).inspect_err(|_| {
            // Half a file would be taken for a whole one, and keeps the disk full.
            for name in MADE_ON_THE_WAY {
                let _ = std::fs::remove_file(what.evidence.join(name));
            }
        })?,
    };
    if let Some(rebuilt) = account.rebuilt.clone() {
        add(&rebuilt, what, options, memory, &mut account)?;
    }
    conclude(what, &mut account);
    let text = serde_json::to_vec_pretty(&account).map_err(|e| Error::io("write", &path, std::io::Error::from(e)))?;
    files::replace(&path, &text).map_err(|e| Error::io("write", &path, e))?;
    Ok(account)
}

fn read(path: &Path) -> Option<Account> {
    serde_json::from_str(&files::read_to_string(path, LONGEST).ok()?).ok()
}

/// A file of the family: the copy that was made of it, else what is left of it.
fn member(what: &Destroyed<'_>, member: Member) -> Result<Option<File>> {
    let copy = what.evidence.join(format!("{member}.captured"));
    if copy.exists() {
        return files::open(&copy).map(Some).map_err(|e| Error::io("read", &copy, e));
    }
    retired::descriptor(what.family, member, what.generation.get(member))
}

fn from_files(what: &Destroyed<'_>, schema: Option<&dyn Schema>) -> Result<Account> {
    let mut account = Account { at_risk: at_risk(what), ..Account::default() };
    let path = |name: &str| what.evidence.join(name);
    let (partial, overlay) = (path(PARTIAL), path(OVERLAY));
    MADE_ON_THE_WAY.iter().for_each(|name| drop(std::fs::remove_file(path(name))));
    let mut images = Vec::new();
    match overlaid(what, true, &overlay) {
        Ok(()) => images.push((overlay.clone(), "the main file with its log")),
        Err(Error::Damaged { detail }) => account.unusable.push(format!("the main file with its log: {detail}")),
        Err(e) => return Err(e),
    }
    match snapshot(what.family) {
        Some(Ok(path)) => images.push((path, "the newest snapshot")),
        Some(Err(why)) => account.unusable.push(why),
        None => account.unusable.push("there is no snapshot".into()),
    }
    let mut whole = sound_ones(images, &mut account);
    let mut rows = Vec::new();
    if whole.first().is_none_or(|(path, _)| *path != overlay) {
        // The files are no database together any more. The main file may be one by itself, if it is an older copy, and most of
        // their pages are what they were.
        let main = path(MAIN);
        match overlaid(what, false, &main) {
            Ok(()) => whole.extend(sound_ones(vec![(main, "the main file alone")], &mut account)),
            Err(Error::Damaged { detail }) => account.unusable.push(format!("the main file alone: {detail}")),
            Err(e) => return Err(e),
        }
        rows = sound_ones(rows_of(what, &mut account)?, &mut account);
    }
    if let Some(schema) = schema {
        for (_, image) in whole.iter().chain(&rows) {
            for (key, count) in schema.inventory(image)? {
                let known = account.expected.entry(key).or_default();
                *known = count.max(*known);
            }
        }
    }
    // What only has rows has neither indexes nor constraints, so it serves as the base only where nobody knows a better one.
    let known_schema = schema.is_some();
    let mut sources = whole.into_iter().chain(rows.into_iter().filter(|_| known_schema)).peekable();
    let is_base = |path: &Path| ![OF_LOG, OF_TABLES].iter().any(|name| path.ends_with(name));
    let base = sources.next_if(|(path, _)| is_base(path));
    if base.is_none() && sources.peek().is_none() {
        return Ok(account);
    }
    let copy = match base {
        Some((base, image)) => {
            // A file that SQLite has open is read by nobody else in this process.
            drop(image);
            let source = files::open(&base).map_err(|e| Error::io("read", &base, e))?;
            captures::copy_file(&source, &base, &partial)?
        }
        None => captures::create(&partial)?,
    };
    let (at, versions) = VERSIONS;
    if copy.metadata().is_ok_and(|m| m.len() > 0) {
        copy.write_all_at(&versions, at).map_err(|e| Error::io("write", &partial, e))?;
    }
    drop(copy);
    if let Some(schema) = schema {
        merge_all(schema, &partial, sources, &mut account)?;
    }
    let rebuilt = path(REBUILT);
    std::fs::rename(&partial, &rebuilt).map_err(|e| Error::io("rename", &partial, e))?;
    account.rebuilt = Some(rebuilt);
    MADE_ON_THE_WAY.iter().for_each(|name| drop(std::fs::remove_file(path(name))));
    Ok(account)
}

/// Those of the images that SQLite finds whole, open.
fn sound_ones(images: Vec<(PathBuf, &str)>, account: &mut Account) -> Vec<(PathBuf, Connection)> {
    let mut whole = Vec::new();
    for (path, name) in images {
        match sound(&path) {
            Ok(image) => {
                account.sources.push(name.to_owned());
                whole.push((path, image));
            }
            Err(Error::Damaged { detail }) => account.unusable.push(format!("{name}: {detail}")),
            Err(e) => account.unusable.push(format!("{name}: {e}")),
        }
    }
    whole
}

/// The rows that can still be read of the files, each kind in a file of its own: those on the pages of the log, and those of
/// the tables as far as they can be walked.
fn rows_of(what: &Destroyed<'_>, account: &mut Account) -> Result<Vec<(PathBuf, &'static str)>> {
    let Some(main) = member(what, Member::Main)? else { return Ok(Vec::new()) };
    let log = member(what, Member::Wal)?;
    let mut found = Vec::new();
    let mut take = |name: &str, what_for: &'static str, made: std::result::Result<(), SalvageError>| match made {
        Ok(()) => found.push((what.evidence.join(name), what_for)),
        Err(e) => account.unusable.push(format!("{what_for}: {e}")),
    };
    if let Some(log) = &log {
        let made = salvage::from_log(&main, log, &what.evidence.join(OF_LOG));
        take(OF_LOG, "rows of the log", made.map(drop));
    }
    let nothing = Vec::new();
    let log: &dyn ReadAt = log.as_ref().map_or(&nothing, |log| log);
    let made = salvage::readable(&main, log, &what.evidence.join(OF_TABLES));
    take(OF_TABLES, "rows of the tables", made.map(drop));
    Ok(found)
}

/// Takes over into a copy of one image what only the others have. Rows whose parents nobody has any more get new ones.
fn merge_all(
    schema: &dyn Schema,
    base: &Path,
    images: impl Iterator<Item = (PathBuf, Connection)>,
    account: &mut Account,
) -> Result<()> {
    let live = connect(base)?;
    if !schema.current(&live)? {
        // A snapshot may be older than the program, and a new file has nothing yet.
        transaction(&live, &|c| schema.migrate(c))?;
    }
    live.pragma_update(None, "foreign_keys", 0)?;
    for (path, image) in images {
        // What one source lacks (a table, a column that nobody knows any more) is no reason to go without the others.
        if let Err(e) = transaction(&live, &|c| schema.merge(c, &image).map(drop)) {
            account.unusable.push(format!("{}: {e}", path.file_name().unwrap_or_default().display()));
        }
    }
    transaction(&live, &|c| schema.adopt(c))?;
    Ok(())
}

fn transaction(on: &Connection, work: &dyn Fn(&Connection) -> std::result::Result<(), Failure>) -> Result<()> {
    on.execute_batch("BEGIN IMMEDIATE")?;
    let done = work(on).map_err(Error::from).and_then(|()| Ok(on.execute_batch("COMMIT")?));
    if done.is_err() && !on.is_autocommit() {
        on.execute_batch("ROLLBACK")?;
    }
    done
}

/// Frames that only the log had, if it is the log that was destroyed.
fn at_risk(what: &Destroyed<'_>) -> Option<(u32, u32)> {
    let (frames, copied) = what.destruction.frames.zip(what.destruction.copied)?;
    (what.destruction.member == Member::Wal).then_some((copied.saturating_add(1), frames))
}

fn overlaid(what: &Destroyed<'_>, with_log: bool, to: &Path) -> Result<()> {
    let damaged = |detail: String| Error::Damaged { detail };
    let main = member(what, Member::Main)?.ok_or_else(|| damaged("there is no main file".into()))?;
    let mut output = captures::create(to)?;
    let made = match member(what, Member::Wal)? {
        Some(log) if with_log => image::overlay(&main, &log, &mut output),
        _ => image::overlay(&main, &Vec::new(), &mut output),
    };
    match made {
        Ok(_) => Ok(()),
        Err(ImageError::Io(e)) => Err(Error::io("write", to, e)),
        Err(e) => Err(damaged(e.to_string())),
    }
}

/// The newest snapshot that was proved good; or why it cannot be used.
fn snapshot(family: &Family) -> Option<std::result::Result<PathBuf, String>> {
    let place = family.side_directory().join("snapshots");
    let record = |path: PathBuf| -> Option<(String, PathBuf)> {
        let record: serde_json::Value = serde_json::from_str(&files::read_to_string(&path, LONGEST).ok()?).ok()?;
        let good = record["verified"].as_bool()?;
        let file = place.join(Path::new(record["path"].as_str()?).file_name()?);
        (good && file.exists()).then_some((record["created_at"].as_str()?.to_owned(), file))
    };
    let entries = std::fs::read_dir(&place).ok()?.flatten().map(|e| e.path());
    let newest = entries.filter(|p| p.extension().is_some_and(|e| e == "json")).filter_map(record).max()?.1;
    if newest.extension().is_some_and(|e| e == "zst") {
        return Some(Err(format!("the newest snapshot is compressed: {}", newest.display())));
    }
    Some(Ok(newest))
}

fn connect(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NOFOLLOW
        | OpenFlags::SQLITE_OPEN_EXRESCODE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    for (name, value) in [("mmap_size", 0), ("foreign_keys", 1), ("trusted_schema", 0), ("cell_size_check", 1)] {
        connection.pragma_update(None, name, value)?;
    }
    Ok(connection)
}

/// Runs what this process remembers, checks the whole file, and asks what is missing in it.
fn add(
    rebuilt: &Path,
    what: &Destroyed<'_>,
    options: &Options,
    memory: &Remembered,
    account: &mut Account,
) -> Result<()> {
    let connection = connect(rebuilt)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    if let Some(schema) = &options.schema
        && !schema.current(&connection)?
    {
        // A store that was just made may have its tables in the log alone.
        schema.migrate(&connection)?;
    }
    let (run, failed) = memory.run(&connection)?;
    connection.execute_batch("COMMIT")?;
    account.run_again += run;
    account.failed += failed;
    if let Some(index) = what.index {
        account.remembered.extend(memory.spans(index.salts));
    }
    let verdict: String = connection.query_row("PRAGMA integrity_check(1)", [], |r| r.get(0))?;
    account.verified = verdict == "ok";
    if !account.verified {
        account.unusable.push(format!("what was put together: {verdict}"));
    }
    account.lost = match &options.schema {
        Some(schema) => schema.missing(&connection, &account.expected)?,
        None => Vec::new(),
    };
    drop(connection);
    let file = files::open(rebuilt).map_err(|e| Error::io("open", rebuilt, e))?;
    file.sync_all().map_err(|e| Error::io("flush", rebuilt, e))
}

/// Says what is lost beside the rows that are known by name, and whether that is the whole truth.
fn conclude(what: &Destroyed<'_>, account: &mut Account) {
    account.complete = match account.at_risk {
        Some((first, last)) => {
            let gaps = uncovered(first, last, account.remembered.clone());
            for (from, to) in &gaps {
                account.lost.push(format!(
                    "frames {from} to {to} of the log: what a process that has ended, or another program, wrote after the last \
                     checkpoint"
                ));
            }
            true
        }
        // All that was acknowledged since the last checkpoint is in the log, which is whole; before that, what the main file
        // alone had can be missing without anybody knowing it.
        None => what.destruction.member == Member::Wal && what.destruction.frames.is_some(),
    };
    if account.rebuilt.is_none() {
        account.lost.push("nothing could be put together".into());
    }
}

impl Account {
    /// What is lost, as one sentence for a person.
    pub fn sentence(&self) -> String {
        let lost = match (self.lost.as_slice(), self.complete) {
            ([], true) => "nothing that was acknowledged is lost".to_owned(),
            ([], false) => "nothing is known to be lost".to_owned(),
            (lost, _) => format!("lost: {}", lost.join("; ")),
        };
        match &self.rebuilt {
            Some(path) => format!("what is left was put together in {}; {lost}", path.display()),
            None => lost,
        }
    }
}

/// The account of a database that was destroyed; `None` if there is none yet.
pub fn account(evidence: &Path) -> Option<Account> {
    read(&evidence.join(ACCOUNT))
}
