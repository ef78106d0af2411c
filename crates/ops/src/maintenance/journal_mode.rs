//! Changing between a write-ahead log and a rollback journal, for a database that nobody uses meanwhile.
//!
//! SQLite answers that the mode changed in cases in which the file does not say so. So the log is emptied first (an old one
//! beside a database in rollback mode would be laid over it by the next opening), the wish to keep the log's file is taken
//! back, and when everything is closed the header is read from the disk.

use std::path::Path;

use rusqlite::FileControl;
use serde::Serialize;
use statehouse_sqlite::headers::Journal;
use statehouse_sqlite::{Error as DatabaseError, Member, Reason, filesystem};

use super::error::{Error, Result};
use super::{Admission, Forecast, Look, Plan, Step, Wanted, Watch, checkpoint, mode_of, policy, size};

/// The answer of `journal-mode`.
#[derive(Debug, Serialize)]
pub struct Changed {
    /// The main file.
    pub path: String,
    /// The mode that was wanted.
    pub wanted: &'static str,
    /// The mode that held before.
    pub before: &'static str,
    /// The mode that SQLite answered.
    pub after: String,
    /// The mode that the header on the disk says, read when everything was closed.
    pub on_disk: &'static str,
    /// False if it was in this mode already.
    pub changed: bool,
    /// Always true: a change that did not take is an error.
    pub done: bool,
    /// What `--force` went on beside.
    pub overridden: Vec<String>,
}

/// What a change would be about.
#[derive(Debug, Serialize)]
pub struct Change {
    /// The mode that is wanted.
    pub wanted: &'static str,
    /// The mode that holds, as the header says.
    pub before: &'static str,
    /// The same: what the header on the disk says.
    pub on_disk: &'static str,
}

/// What would be changed, and what would refuse it.
pub fn plan(look: &Look, to: Journal, forecast: Forecast) -> Plan<Change> {
    let (before, wanted) = (look.mode(), mode_of(to));
    let same = look.header.journal == to;
    let would = if same { "do nothing: it is in this mode".to_owned() } else { format!("change {before} to {wanted}") };
    let against = may(look, to).err().filter(|_| !same);
    // What no admission makes right is answered first.
    let forecast = Forecast { refused: forecast.refused.filter(|_| !same && against.is_none()), ..forecast };
    Plan::new(look, would, Change { wanted, before, on_disk: before }, forecast, against)
}

/// Refuses what no admission makes right.
fn may(look: &Look, to: Journal) -> Result<()> {
    match to {
        Journal::Rollback if look.is_ours() => Err(Error::WalOnly { path: look.family().main() }),
        Journal::Rollback => Ok(()),
        Journal::Wal => {
            let directory = look.family().directory();
            Ok(filesystem::classify(directory)?.require_wal(directory)?)
        }
    }
}

/// Everything from the look to the answer. A database that is in this mode already is left alone, whoever uses it.
///
/// # Errors
/// What refuses it, with nothing changed; [`Error::NotTaken`] when the disk says otherwise after it.
pub fn run(path: &Path, to: Journal, wanted: &Wanted<'_>, watch: Watch<'_>) -> Result<Changed> {
    let seen = super::look(path)?;
    let family = seen.family().clone();
    let before = seen.mode();
    let mut answer = Changed {
        path: family.main().to_string_lossy().into_owned(),
        wanted: mode_of(to),
        before,
        after: before.to_owned(),
        on_disk: before,
        changed: false,
        done: true,
        overridden: Vec::new(),
    };
    if seen.header.journal == to {
        return Ok(answer);
    }
    may(&seen, to)?;
    drop(seen);
    // Force goes on beside what could not be found out, and never changes the mode under somebody who uses it.
    if wanted.force
        && let Err(why) = super::refuse_first(&family, &Wanted { force: false, ..*wanted })
        && why.reason() == Some(Reason::Held)
    {
        return Err(why.into());
    }
    let admission = Admission::obtain(&family, wanted)?;
    if !admission.is_alone() {
        let beside = admission.overridden().join("; ");
        return Err(DatabaseError::refused(Reason::Held, family.main(), beside).into());
    }
    answer.after = change(&admission, to, watch)?;
    answer.overridden = admission.overridden().to_vec();
    if answer.after == answer.wanted {
        policy::remember_mode(&admission, before, answer.wanted);
    }
    drop(admission);
    let now = super::look(path)?;
    answer.on_disk = now.mode();
    answer.changed = true;
    if now.header.journal != to || answer.after != answer.wanted {
        let found = format!(
            "{} was wanted, SQLite answered {}, the header says {}",
            answer.wanted, answer.after, answer.on_disk
        );
        return Err(Error::NotTaken { found });
    }
    Ok(answer)
}

/// Changes the mode, and says what SQLite answered.
fn change(admission: &Admission, to: Journal, watch: Watch<'_>) -> Result<String> {
    let family = admission.family();
    if to == Journal::Rollback {
        checkpoint::empty_the_log(admission, watch)?;
    }
    watch(Step::Copying);
    let answered = admission.alone(|connection| {
        // A database that enters WAL mode in exclusive mode has its index in the memory of one process, for ever.
        connection.execute_batch("PRAGMA locking_mode = NORMAL; SELECT count(*) FROM sqlite_schema")?;
        if to == Journal::Rollback {
            connection.file_control(None::<&str>, FileControl::PersistWal(&mut 0))?;
        }
        let mut answered = String::new();
        connection.pragma_update_and_check(None, "journal_mode", mode_of(to), |r| {
            answered = r.get(0)?;
            Ok(())
        })?;
        Ok(answered)
    })?;
    if to == Journal::Rollback && size(family, Member::Wal)? > 0 {
        // It would be laid over the database by the next opening.
        return Err(DatabaseError::refused(Reason::Setting, family.path(Member::Wal), "it is still there").into());
    }
    Ok(answered)
}
