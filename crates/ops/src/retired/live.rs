//! The database that a capture is compared with and merged into.
//!
//! To compare, it is only read: beside its holders by an ordinary read-only attachment, otherwise without a trace. Beside a
//! process that writes into deleted files or has lost its locks it is not opened by SQLite at all, for that could do
//! damage; then a private image of it is read. To merge, it must be opened for writing, and beside such a process that is refused.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, FileControl, OpenFlags};
use statehouse_sqlite::holders::{self, Holder, Report, Verdict};
use statehouse_sqlite::{Family, Identity, Member, Reason, Status, protect};

use super::error::{Error, Result, io};
use crate::attach::{self, Attached};
use crate::maintenance::{Look, look};

/// A database that is being read.
pub(super) struct Reading {
    attached: Attached,
    family: Family,
    /// How the main file was when it was opened without a lock; `None` if locks keep it as it is.
    before: Option<Content>,
}

impl std::ops::Deref for Reading {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.attached
    }
}

/// The first of the holders beside whom the database must not be opened.
fn danger(report: &Report) -> Option<&Holder> {
    report.holders.iter().find(|h| (h.ghost || h.naked) && !h.fenced)
}

impl Reading {
    /// Opens the database at `path` in one read transaction.
    pub(super) fn open(path: &Path, scratch: &Path, patience: Duration) -> Result<Reading> {
        let look = look(path)?;
        let report = holders::scan(look.family())?;
        let held = attach::may_join(&report);
        let before = if held { None } else { main_status(look.family())? };
        let attached = attach::read(&look.inspected, held, scratch, patience)?;
        attached.execute_batch("BEGIN")?;
        attached.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
        Ok(Reading { attached, family: look.family().clone(), before })
    }

    /// Fails if somebody has written into what was read without a lock.
    pub(super) fn confirm(&self) -> Result<()> {
        let Some(before) = &self.before else { return Ok(()) };
        let now = main_status(&self.family)?;
        if now.as_ref() == Some(before) {
            return Ok(());
        }
        let why = "somebody began to use it while it was read; try again";
        Err(statehouse_sqlite::Error::refused(Reason::Changed, self.family.main(), why).into())
    }
}

/// What changes with the content of a file.
type Content = (Identity, u64, i64, i64);

fn main_status(family: &Family) -> Result<Option<Content>> {
    let status = Status::of(&family.main()).map_err(|e| io("look at", &family.main(), e))?;
    Ok(status.map(|s| (s.identity, s.size, s.modified_ns, s.changed_ns)))
}

/// A database that is open for writing.
pub(super) struct Writing {
    pub(super) writer: Connection,
    family: Family,
}

impl Writing {
    /// Opens the database that was looked at.
    pub(super) fn open(look: &Look, patience: Duration) -> Result<Writing> {
        let family = look.family().clone();
        let report = refuse_danger(&family)?;
        let held = report.verdict != Verdict::Quiet;
        if !held && look.size(Member::Journal) > 0 {
            let why = "an interrupted transaction must be rolled back first";
            return Err(statehouse_sqlite::Error::refused(Reason::HotJournal, family.path(Member::Journal), why).into());
        }
        protect()?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let writer = Connection::open_with_flags(family.main(), flags)?;
        if held || look.size(Member::Wal) > 0 {
            // A log that was there stays; files that only this connection made may go with it.
            writer.file_control(None::<&str>, FileControl::PersistWal(&mut 1))?;
            writer.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        }
        settle(&writer, patience)?;
        let mode: String = writer.pragma_query_value(None, "journal_mode", |r| r.get(0))?;
        if !mode.eq_ignore_ascii_case("wal") {
            // There a page that is written before the end needs the lock that keeps out readers, and one of them is the merge's own.
            writer.pragma_update(None, "cache_spill", 0)?;
        }
        Ok(Writing { writer, family })
    }

    /// Takes the write lock.
    pub(super) fn begin(&self) -> Result<()> {
        self.run("BEGIN IMMEDIATE")
    }

    /// Ends it. In a database that keeps a rollback journal this waits for readers.
    pub(super) fn commit(&self) -> Result<()> {
        self.run("COMMIT")
    }

    /// Bytes of the log; 0 if there is none.
    pub(super) fn log_size(&self) -> u64 {
        Status::of(&self.family.path(Member::Wal)).ok().flatten().map_or(0, |s| s.size)
    }

    /// Undoes what was begun, and gives back what the log has grown by meanwhile, if nobody reads in it just now.
    pub(super) fn give_back(&self, before: u64) {
        if !self.writer.is_autocommit() {
            let _ = self.writer.execute_batch("ROLLBACK");
        }
        if self.log_size() > before && self.writer.busy_timeout(Duration::ZERO).is_ok() {
            let _ = self.writer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        }
    }

    fn run(&self, statement: &str) -> Result<()> {
        let begun = Instant::now();
        self.writer.execute_batch(statement).map_err(|e| match statehouse_sqlite::Error::from(e) {
            statehouse_sqlite::Error::Busy { .. } => {
                statehouse_sqlite::Error::Busy { waited: begun.elapsed(), holder: writer_of(&self.family) }.into()
            }
            e => Error::from(e),
        })
    }

    /// A connection that sees the database as it is before the transaction.
    pub(super) fn reader(&self, patience: Duration) -> Result<Connection> {
        reader(&self.family, patience)
    }
}

/// Another connection, which only reads.
pub(super) fn reader(family: &Family, patience: Duration) -> Result<Connection> {
    protect()?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let reader = Connection::open_with_flags(family.main(), flags)?;
    settle(&reader, patience)?;
    reader.pragma_update(None, "query_only", 1)?;
    reader.execute_batch("BEGIN")?;
    reader.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(reader)
}

pub(super) fn settle(connection: &Connection, patience: Duration) -> Result<()> {
    connection.busy_timeout(patience)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "synchronous", 2)?;
    connection.pragma_update(None, "trusted_schema", 0)?;
    connection.pragma_update(None, "foreign_keys", 1)?;
    connection.pragma_update(None, "cell_size_check", 1)?;
    // Housekeeping of the log is its owner's affair.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    Ok(())
}

/// Refuses beside a process that writes into deleted files, which may yet copy them into this main file, and beside one that
/// has lost its locks.
pub(super) fn refuse_danger(family: &Family) -> Result<Report> {
    let report = holders::scan(family)?;
    if let Some(danger) = danger(&report) {
        let reason = if danger.ghost { Reason::HeldRetired } else { Reason::HeldNaked };
        let pid = danger.pid.map_or_else(|| "a process that is not visible here".into(), |p| format!("PID {p}"));
        let detail = format!("{pid}; {}", danger.to_stop());
        return Err(statehouse_sqlite::Error::refused(reason, family.main(), detail).into());
    }
    Ok(report)
}

/// Who keeps others from writing, in words.
fn writer_of(family: &Family) -> Option<String> {
    let holders = holders::scan(family).ok()?.holders;
    let named = |h: &Holder| Some(format!("PID {}; {}", h.pid?, h.to_stop()));
    let writer = holders.iter().find(|h| h.locks.write && !h.is_self).and_then(named);
    writer.or_else(|| {
        let all: Vec<String> = holders.iter().filter(|h| !h.is_self).filter_map(named).collect();
        (!all.is_empty()).then(|| all.join("; "))
    })
}
