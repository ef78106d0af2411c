//! Putting together what is left of a database that was destroyed in place, in a new file beside the evidence.
//!
//! Four places may still have rows: the files that were not destroyed, what is left of the one that was, the newest snapshot
//! that was proved good, and the memory of the processes that wrote (`remembered.rs`). None of them is changed. The first
//! process that notices makes the new file, `rebuilt.captured`, from the files; each one adds what it remembers. All of it
//! happens with the exclusive side of the recovery lock held, so they come one after the other. What does not succeed, because it
//! needs what another process has not added yet, is tried again after that one.
//!
//! What is lost is told by two accounts, both written to `account.json`:
//! * *by frames*: which frames of the log no file and nobody's memory has. None, and nothing that was acknowledged is lost with
//!   the log;
//! * *by rows*: the owner of the content knows from each source what there must be ([`crate::Schema::inventory`]), and what of that is
//!   not in the new file ([`crate::Schema::missing`]).
//!
//! Nothing is put in the place of the database: what a person wants to go on with is theirs to say.

mod behind;
mod sources;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};
use serde::{Deserialize, Serialize};

use crate::error::{Destruction, Error, Failure, Result};
use crate::family::{Family, Generation, Member};
use crate::index::Index;
use crate::options::Options;
use crate::remembered::{Remembered, uncovered};
use crate::{captures, files};

const ACCOUNT: &str = "account.json";
const IN_PLACE: &str = "in-place.json";
const LONGEST: u64 = 16 << 20;

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
    /// Which round of the log it was, by its salts.
    #[serde(default)]
    pub salts: Option<[u8; 8]>,
    /// True if a checkpoint may not have come to the end of the log: then the main file is between two commits.
    #[serde(default)]
    pub torn: bool,
    /// Which of them some process still knew the content of.
    pub remembered: Vec<(u32, u32)>,
    /// How many acknowledged writes were run once more.
    pub run_again: u64,
    /// How many of these have not succeeded.
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
    /// What it says now.
    pub(crate) now: Option<Index>,
}

/// Makes the new file if there is none, and adds what this process remembers; of that it remembers after it what did not
/// succeed. `again` says that it did so before. Returns the account as it is then.
pub(crate) fn put_together(
    what: &Destroyed<'_>,
    options: &Options,
    memory: &mut Remembered,
    again: bool,
) -> Result<Account> {
    let path = what.evidence.join(ACCOUNT);
    let mut account = match read(&path).filter(|account| account.rebuilt.is_some()) {
        Some(account) => account,
        None => {
            let of_log = what.index.filter(|_| what.destruction.member == Member::Wal);
            let torn = of_log.is_some_and(|index| !memory.is_whole_without(&index));
            let made = sources::put_together(what, options)?;
            Account { salts: what.index.map(|index| index.salts), torn, ..made }
        }
    };
    // One process that knows better is enough.
    account.torn &= !what.index.is_some_and(|index| memory.is_whole_without(&index));
    if what.destruction.member == Member::Wal {
        // What the main file has by now is right as it is there. The last look may have been before the log was begun anew.
        let of = |index: Option<Index>| index.map(|index| index.salts);
        match of(what.now) {
            Some(now) if Some(now) == account.salts => memory.forget_all_but(&[now]),
            now => {
                let rounds: Vec<_> = [account.salts, now, of(what.index)].into_iter().flatten().collect();
                memory.forget_all_but(&rounds);
            }
        }
        memory.forget(what.index.filter(|index| Some(index.salts) == account.salts), None);
    }
    let succeeded = match account.rebuilt.clone() {
        Some(rebuilt) => add(&rebuilt, what, options, memory, again, &mut account)?,
        None => Vec::new(),
    };
    conclude(what, &mut account);
    let text = serde_json::to_vec_pretty(&account).map_err(|e| Error::io("write", &path, std::io::Error::from(e)))?;
    files::replace(&path, &text).map_err(|e| Error::io("write", &path, e))?;
    memory.keep_failed(&succeeded);
    Ok(account)
}

fn read(path: &Path) -> Option<Account> {
    serde_json::from_str(&files::read_to_string(path, LONGEST).ok()?).ok()
}

/// Frames that only the log had, if it is the log that was destroyed.
fn at_risk(what: &Destroyed<'_>) -> Option<(u32, u32)> {
    let (frames, copied) = what.destruction.frames.zip(what.destruction.copied)?;
    (what.destruction.member == Member::Wal).then_some((copied.saturating_add(1), frames))
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

fn transaction(on: &Connection, work: &dyn Fn(&Connection) -> std::result::Result<(), Failure>) -> Result<()> {
    on.execute_batch("BEGIN IMMEDIATE")?;
    let done = work(on).map_err(Error::from).and_then(|()| Ok(on.execute_batch("COMMIT")?));
    if done.is_err() && !on.is_autocommit() {
        on.execute_batch("ROLLBACK")?;
    }
    done
}

/// Says in the header whose database it is, as every database of ours says it; without that it is put nowhere.
fn mark_ours(connection: &Connection, options: &Options) -> Result<()> {
    let says: i32 = connection.pragma_query_value(None, "application_id", |r| r.get(0))?;
    if options.application_id != 0 && says != options.application_id {
        connection.pragma_update(None, "application_id", options.application_id)?;
    }
    Ok(())
}

/// Runs what this process remembers, checks the whole file, and asks what is missing in it. Returns what succeeded.
fn add(
    rebuilt: &Path,
    what: &Destroyed<'_>,
    options: &Options,
    memory: &Remembered,
    again: bool,
    account: &mut Account,
) -> Result<Vec<bool>> {
    let connection = connect(rebuilt)?;
    mark_ours(&connection, options)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    if let Some(schema) = &options.schema
        && !schema.current(&connection)?
    {
        // A store that was just made may have its tables in the log alone.
        schema.migrate(&connection)?;
    }
    let succeeded = memory.run(&connection)?;
    connection.execute_batch("COMMIT")?;
    let run = succeeded.len() as u64;
    let failed = succeeded.iter().filter(|done| !**done).count() as u64;
    if again {
        account.failed = account.failed.saturating_sub(run - failed);
    } else {
        account.run_again += run;
        account.failed += failed;
        let salts = account.salts.or(what.index.map(|index| index.salts));
        account.remembered.extend(salts.into_iter().flat_map(|salts| memory.spans(salts)));
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
    file.sync_all().map_err(|e| Error::io("flush", rebuilt, e))?;
    Ok(succeeded)
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
            !account.torn
        }
        // All that was acknowledged since the last checkpoint is in the log, which is whole; before that, what the main file
        // alone had can be missing without anybody knowing it.
        None => what.destruction.member == Member::Wal && what.destruction.frames.is_some(),
    };
    if account.failed > 0 {
        account.lost.push(format!(
            "{} acknowledged writes that could not be made once more: they need what is lost, or what a process still has \
             to add",
            account.failed
        ));
    }
    if account.rebuilt.is_none() {
        account.lost.push("nothing could be put together".into());
    }
}

impl Account {
    /// Moves whenever a process has added something.
    pub(crate) fn progress(&self) -> (u64, u64) {
        (self.run_again, self.failed)
    }

    /// What is lost, as a fragment.
    pub fn loss(&self) -> String {
        match (self.lost.as_slice(), self.complete) {
            ([], true) => "nothing that was acknowledged is lost".to_owned(),
            ([], false) => "nothing is known to be lost".to_owned(),
            (lost, _) => format!("lost: {}", lost.join("; ")),
        }
    }

    /// Where what is left is, and what is lost, as one sentence for a person.
    pub fn sentence(&self) -> String {
        match &self.rebuilt {
            Some(path) => format!("what is left was put together in {}; {}", path.display(), self.loss()),
            None => self.loss(),
        }
    }
}

/// The account of a database that was destroyed; `None` if there is none yet.
pub fn account(evidence: &Path) -> Option<Account> {
    read(&evidence.join(ACCOUNT))
}

/// The directory of evidence in which `file` is what was put together of this database; `None` if it is no such file.
pub fn evidence_of(family: &Family, file: &Path) -> Option<PathBuf> {
    let file = std::fs::canonicalize(file).ok()?;
    let evidence = file.parent()?;
    let here = std::fs::canonicalize(captures::directory(family)).ok()?;
    (file.ends_with(sources::REBUILT) && evidence.parent() == Some(&here)).then(|| evidence.to_owned())
}

/// When what was put together was put in the place of the database, in microseconds since 1970.
#[derive(Serialize, Deserialize)]
struct InPlace {
    at_unix_us: u64,
}

/// When what lies in this directory of evidence was put in the place of the database; `None` if it never was.
pub fn put_in_place_at(evidence: &Path) -> Option<u64> {
    let in_place: InPlace =
        serde_json::from_str(&files::read_to_string(&evidence.join(IN_PLACE), LONGEST).ok()?).ok()?;
    Some(in_place.at_unix_us)
}

/// Writes down beside what was put together that it is in the place of the database: put there once more, it would take away
/// what was written since.
///
/// # Errors
/// [`Error::Io`].
pub fn note_in_place(evidence: &Path) -> Result<()> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let path = evidence.join(IN_PLACE);
    let in_place = InPlace { at_unix_us: u64::try_from(now.as_micros()).unwrap_or(u64::MAX) };
    let text = serde_json::to_vec(&in_place).map_err(|e| Error::io("write", &path, std::io::Error::from(e)))?;
    files::replace(&path, &text).map_err(|e| Error::io("write", &path, e))?;
    captures::sync_directory(evidence)
}
