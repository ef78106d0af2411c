//! Copying the log into the main file, beside everybody or with the log emptied after it.
//!
//! The passive kind disturbs nobody and needs no admission: SQLite's own locks order it. It copies as far as the readers let
//! it, and the answer says who they are. A long log that is copied whole is no sickness: the next commit begins it anew.
//!
//! A database of another program that nobody has open is checkpointed as any last close does it: by an ordinary connection,
//! whose close takes log and index away. One of ours keeps its files.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, FileControl, OpenFlags};
use serde::Serialize;
use statehouse_sqlite::backlog::{self, Backlog};
use statehouse_sqlite::headers::Journal;
use statehouse_sqlite::holders::{self, Report, Standing, Verdict};
use statehouse_sqlite::secure::{self, Purpose};
use statehouse_sqlite::words;
use statehouse_sqlite::{Error as DatabaseError, Family, Member, Reason, protect};

use super::error::{Error, Result};
use super::{Admission, Forecast, Look, Plan, Step, Wanted, Watch, size};

/// How often a checkpoint is tried again while another process is making one.
const AGAIN: Duration = Duration::from_millis(20);

/// Which kind of checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Beside everybody, as far as readers let it.
    Passive,
    /// All of it, and the log is empty after it.
    Truncate,
}

/// The answer of `checkpoint`.
#[derive(Debug, Serialize)]
pub struct Checkpointed {
    /// The main file.
    pub path: String,
    /// Which kind.
    pub mode: Mode,
    /// True if SQLite could not run it to its end.
    pub busy: bool,
    /// Frames in the log.
    pub log: u64,
    /// Frames of it that are in the main file.
    pub checkpointed: u64,
    /// Bytes of the log before.
    pub wal_size_before: u64,
    /// Bytes of the log after.
    pub wal_size_after: u64,
    /// True if all of the log is in the main file.
    pub done: bool,
    /// Why it is not, or why there was nothing to do.
    pub reason: Option<String>,
    /// Who keeps it from being copied.
    pub pinned_by: Vec<Pin>,
    /// What `--force` went on beside.
    pub overridden: Vec<String>,
}

impl Checkpointed {
    /// The answer where there is nothing to copy.
    fn of(look: &Look, mode: Mode) -> Checkpointed {
        Checkpointed {
            path: look.family().main().to_string_lossy().into_owned(),
            mode,
            busy: false,
            log: 0,
            checkpointed: 0,
            wal_size_before: look.size(Member::Wal),
            wal_size_after: look.size(Member::Wal),
            done: true,
            reason: None,
            pinned_by: Vec::new(),
            overridden: Vec::new(),
        }
    }

    fn without_log(self) -> Checkpointed {
        let reason = Some("it is in rollback mode, so there is no log".to_owned());
        Checkpointed { done: false, reason, ..self }
    }
}

/// A reader that keeps a part of the log from being copied.
#[derive(Debug, Serialize)]
pub struct Pin {
    /// Its number, if it can be seen.
    pub pid: Option<i32>,
    /// What it is to the database, if it is one of ours.
    pub role: Option<String>,
    /// Its command line.
    pub command: Vec<String>,
    /// The number of the read mark whose lock it holds.
    pub mark: u8,
    /// The last frame that it lets be copied; 0 if none.
    pub up_to: u32,
    /// What to stop.
    pub stop: String,
}

/// How the log stands, for a dry run.
#[derive(Debug, Serialize)]
pub struct Pending {
    /// Which kind.
    pub mode: Mode,
    /// Bytes of the log.
    pub wal_size: u64,
    /// Frames in the log.
    pub log: u64,
    /// Frames of it that are in the main file.
    pub checkpointed: u64,
    /// Who would keep it from being copied.
    pub pinned_by: Vec<Pin>,
}

/// What a checkpoint would copy, and what would refuse it.
///
/// # Errors
/// The system's answer.
pub fn plan(look: &Look, mode: Mode, mut forecast: Forecast) -> Result<Plan<Pending>> {
    let live = forecast.report.verdict != Verdict::Quiet;
    let state = backlog::look(&look.inspected, live)?;
    let pinned_by = pins(&forecast.report, state.as_ref());
    let (log, checkpointed) = state.map_or((0, 0), |b| (b.frames, b.copied));
    let would = match (look.header.journal, mode) {
        (Journal::Rollback, _) => NO_LOG.to_owned(),
        (_, Mode::Passive) => {
            format!("copy {} of the log into the main file", words::count(log - checkpointed.min(log), "frame"))
        }
        (_, Mode::Truncate) => {
            format!(
                "copy {} of the log into the main file and empty the log",
                words::count(log - checkpointed.min(log), "frame")
            )
        }
    };
    if look.header.journal == Journal::Rollback {
        forecast.refused = None;
    } else if mode == Mode::Passive {
        // It goes on beside everybody but those beside whom nothing is safe.
        forecast.refused = forecast.refused.filter(|_| forecast.report.alarming());
    }
    let about = Pending { mode, wal_size: look.size(Member::Wal), log, checkpointed, pinned_by };
    Ok(Plan::new(look, would, about, forecast, None))
}

const NO_LOG: &str = "do nothing: it is in rollback mode, so there is no log";

/// Copies what can be copied beside everybody. Opens the database, so nothing of this process may have it open.
///
/// # Errors
/// A refusal beside a process that goes on in retired files or has lost its locks; busy when another checkpoint outlasted the
/// patience; or SQLite's answer.
pub fn passive(path: &Path, patience: Duration) -> Result<Checkpointed> {
    let look = super::look(path)?;
    let family = look.family();
    let mut answer = Checkpointed::of(&look, Mode::Passive);
    let report = safe(family)?;
    if look.header.journal == Journal::Rollback {
        return Ok(answer.without_log());
    }
    let held = report.verdict != Verdict::Quiet;
    if !held && answer.wal_size_before == 0 {
        // An opening would only make files.
        return Ok(answer);
    }
    // What is ours keeps its files.
    let begun = Instant::now();
    let connection = open(family, held || look.is_ours(), patience).map_err(|e| match e {
        // Whoever does structural work keeps everybody from opening.
        Error::Database(DatabaseError::Busy { .. }) => {
            let others = report.holders.iter().filter_map(|h| h.pid).map(|p| format!("PID {p}"));
            let holder = Some(others.collect::<Vec<_>>().join(", ")).filter(|h| !h.is_empty());
            Error::Database(DatabaseError::Busy { waited: begun.elapsed(), holder })
        }
        e => e,
    })?;
    let (busy, log, copied) = loop {
        let row = once(&connection, Mode::Passive)?;
        if !row.0 {
            break row;
        }
        if begun.elapsed() >= patience {
            let holder = checkpointer(family);
            return Err(DatabaseError::Busy { waited: begun.elapsed(), holder }.into());
        }
        std::thread::sleep(AGAIN);
    };
    drop(connection);
    (answer.busy, answer.log, answer.checkpointed) = (busy, log, copied);
    answer.done = !busy && log == copied;
    answer.wal_size_after = size(family, Member::Wal)?;
    if !answer.done {
        let inspected = secure::inspect(family, Purpose::Look)?;
        answer.pinned_by = pins(&holders::scan(family)?, backlog::look(&inspected, true)?.as_ref());
        answer.reason = Some(why(&answer));
    }
    Ok(answer)
}

fn why(answer: &Checkpointed) -> String {
    let left = answer.log.saturating_sub(answer.checkpointed);
    let frames = format!("{} {}", words::count(left, "frame"), words::verb(left, "is", "are"));
    let Some(first) = answer.pinned_by.first() else {
        return format!("{frames} left: a reader was in the way, or the log has grown meanwhile");
    };
    let who = first.pid.map_or_else(|| "a process that cannot be seen".to_owned(), |p| format!("PID {p}"));
    let others = match answer.pinned_by.len() {
        1 => " reads".to_owned(),
        n => format!(" and {} more read", n - 1),
    };
    format!("{frames} left, because {who}{others} in a transaction that began before them")
}

fn pins(report: &Report, state: Option<&Backlog>) -> Vec<Pin> {
    let Some(state) = state else { return Vec::new() };
    let mut pins = Vec::new();
    for holder in &report.holders {
        let current = holder.files.iter().any(|f| f.generation == Standing::Current);
        for &mark in holder.locks.readers.iter().filter(|m| current && state.pins(**m)) {
            pins.push(Pin {
                pid: holder.pid,
                role: holder.role.clone(),
                command: holder.command.clone(),
                mark,
                up_to: state.mark(mark).filter(|_| mark > 0).unwrap_or(0),
                stop: holder.stop.clone(),
            });
        }
    }
    pins.sort_by_key(|p| (p.up_to, p.pid));
    pins
}

/// Who makes a checkpoint at this moment.
fn checkpointer(family: &Family) -> Option<String> {
    let report = holders::scan(family).ok()?;
    let holder = report.holders.into_iter().find(|h| h.locks.checkpoint && !h.is_self)?;
    Some(holder.pid.map_or_else(|| "a process that is not visible here".to_owned(), |pid| format!("PID {pid}")))
}

pub(crate) fn open(family: &Family, keep: bool, patience: Duration) -> Result<Connection> {
    if keep {
        protect()?;
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let connection = Connection::open_with_flags(family.main(), flags)?;
    if keep {
        connection.file_control(None::<&str>, FileControl::PersistWal(&mut 1))?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    }
    connection.busy_timeout(patience)?;
    for (name, value) in [("mmap_size", 0), ("wal_autocheckpoint", 0), ("synchronous", 2), ("trusted_schema", 0)] {
        connection.pragma_update(None, name, value)?;
    }
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(connection)
}

/// One checkpoint: whether it was kept from its end, frames in the log, frames in the main file.
fn once(connection: &Connection, mode: Mode) -> Result<(bool, u64, u64)> {
    let sql = match mode {
        Mode::Passive => "PRAGMA wal_checkpoint(PASSIVE)",
        Mode::Truncate => "PRAGMA wal_checkpoint(TRUNCATE)",
    };
    let row: (i64, i64, i64) = connection.query_row(sql, [], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
    // Without a log SQLite says -1.
    Ok((row.0 != 0, u64::try_from(row.1).unwrap_or(0), u64::try_from(row.2).unwrap_or(0)))
}

/// Who uses the database, if nobody does in a way that makes every answer about its log worthless: beside a main file that was
/// replaced lies the log of another.
fn safe(family: &Family) -> Result<Report> {
    let report = holders::scan(family)?;
    if let Some(danger) = report.holders.iter().find(|h| (h.ghost || h.naked) && !h.fenced) {
        let reason = if danger.ghost { Reason::HeldRetired } else { Reason::HeldNaked };
        let pid = danger.pid.map_or_else(|| "a process that is not visible here".into(), |p| format!("PID {p}"));
        return Err(DatabaseError::refused(reason, family.main(), format!("{pid}; {}", danger.to_stop())).into());
    }
    Ok(report)
}

/// Copies all of the log and empties it: everything from the look to the answer.
///
/// # Errors
/// What refuses it, with nothing done; busy when somebody is in the way, which only `--force` lets happen; or SQLite's answer.
pub fn run(path: &Path, wanted: &Wanted<'_>, watch: Watch<'_>) -> Result<Checkpointed> {
    let look = super::look(path)?;
    let answer = Checkpointed::of(&look, Mode::Truncate);
    if look.header.journal == Journal::Rollback {
        safe(look.family())?;
        return Ok(answer.without_log());
    }
    super::refuse_first(look.family(), wanted)?;
    truncate(&Admission::obtain(look.family(), wanted)?, answer, watch)
}

fn truncate(admission: &Admission, answer: Checkpointed, watch: Watch<'_>) -> Result<Checkpointed> {
    // SQLite says how many frames there are after it, and that is none.
    let (_, log, _) = once(admission.connection(), Mode::Passive)?;
    if !empty_the_log(admission, watch)? {
        return Ok(answer.without_log());
    }
    let wal_size_after = size(admission.family(), Member::Wal)?;
    Ok(Checkpointed { log, checkpointed: log, wal_size_after, overridden: admission.overridden().to_vec(), ..answer })
}

/// Copies all of the log and empties it; false if there is none because of rollback mode.
pub(crate) fn empty_the_log(admission: &Admission, watch: Watch<'_>) -> Result<bool> {
    let connection = admission.connection();
    let mode: String = connection.pragma_query_value(None, "journal_mode", |r| r.get(0))?;
    if mode != "wal" {
        return Ok(false);
    }
    watch(Step::Copying);
    let begun = Instant::now();
    let (busy, ..) = once(connection, Mode::Truncate)?;
    if busy {
        let holder = admission.overridden().first().cloned();
        return Err(DatabaseError::Busy { waited: begun.elapsed(), holder }.into());
    }
    Ok(true)
}
