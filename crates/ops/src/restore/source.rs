//! What is restored from: a snapshot, a capture, or any SQLite file, and the proof that it is good.
//!
//! A file is read as its own program would read it: beside a log with content through that log, for the main file alone would
//! be an older state; in a transaction that lasts until it was copied, so that what was verified is what is put in place.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use statehouse_sessions::sqlite::{APPLICATION_ID, SessionsSchema};
use statehouse_sqlite::headers::{self, Headers, Journal, MainHeader};
use statehouse_sqlite::secure::{self, Purpose};
use statehouse_sqlite::shell::word;
use statehouse_sqlite::words;
use statehouse_sqlite::{Error as DatabaseError, Family, Member, Reason, Schema as _, holders};

use super::error::{Error, Result};
use super::found::{Found, Ready};
use crate::attach::{self, Attached};
use crate::maintenance::whole::{self, Depth, Rows};
use crate::maintenance::{self};
use crate::progress::{Progress, Watch};

/// A source that was proved to be good, and is read in one transaction until it is dropped.
pub(crate) struct Source {
    pub(crate) found: Found,
    pub(crate) header: MainHeader,
    pub(crate) pages: u64,
    pub(crate) rows: Rows,
    /// Names of the tables that programs made.
    pub(crate) tables: Vec<String>,
    /// For a store of ours: it will be migrated when it is opened next.
    pub(crate) older_schema: bool,
    /// What somebody should know about it, each a sentence.
    pub(crate) notes: Vec<String>,
    attached: Attached,
    // Goes after what reads it.
    _ready: Ready,
}

impl Source {
    pub(crate) fn connection(&self) -> &Connection {
        &self.attached
    }

    pub(crate) fn uri(&self) -> &str {
        self.attached.uri()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.pages * u64::from(self.header.page_size)
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.header.application_id == APPLICATION_ID.cast_unsigned()
    }

    /// Opens it and looks at all of it.
    ///
    /// # Errors
    /// What makes it unfit, with nothing changed.
    pub(crate) fn verified(found: Found, scratch: &Path, patience: Duration, watch: Watch<'_>) -> Result<Source> {
        let begun = Instant::now();
        let ready = found.ready(scratch, watch)?;
        let family = Family::to_look_at(&ready.path)?;
        Source::read(found, ready, &family, scratch, patience, watch).map_err(|e| e.naming(&family, begun))
    }

    fn read(
        found: Found,
        ready: Ready,
        family: &Family,
        scratch: &Path,
        patience: Duration,
        watch: Watch<'_>,
    ) -> Result<Source> {
        // What is told of a file that was made for this would name a directory that is gone by then.
        let path = found.path().to_owned();
        let inspected = secure::inspect(family, Purpose::Look)?;
        inspected.require_main()?;
        let hot = |m| inspected.get(m).is_some_and(|s| s.status.size > 0);
        if hot(Member::Journal) {
            let found = format!("{} belongs to an interrupted transaction", family.path(Member::Journal).display());
            let hint = "Nothing was changed. Copy the file and its journal, open the copy with its own program, which rolls that back, and restore from the copy.";
            return Err(Error::SourceUnfit { path, found, hint });
        }
        // From here on the process has it open, and only the connection tells.
        let Headers::Database { header, .. } = headers::check(&inspected)? else {
            return Err(DatabaseError::refused(Reason::NotDatabase, path, "its header cannot be read").into());
        };
        let report = holders::scan(family)?;
        if let Some(naked) = report.holders.iter().find(|h| h.naked && !h.fenced) {
            // Opening it could cut the shared index off under that process.
            let pid = naked.pid.map_or_else(|| "a process".to_owned(), |pid| format!("PID {pid}"));
            let detail = format!("{pid}; {}", naked.to_stop());
            let reason = if naked.ghost { Reason::HeldRetired } else { Reason::HeldNaked };
            return Err(DatabaseError::refused(reason, path, detail).into());
        }
        let ghost = report.holders.iter().find(|h| h.ghost && !h.fenced).map(|h| {
            let pid = h.pid.map_or_else(|| "a process".to_owned(), |pid| format!("PID {pid}"));
            format!("{pid} writes into deleted or replaced files of the source; what it has there is not restored")
        });
        let held = attach::may_join(&report);
        let damaged = |e: maintenance::Error| match e {
            maintenance::Error::Unsound { path, found } => Error::SourceDamaged { path, found },
            maintenance::Error::Database(DatabaseError::Damaged { detail }) => {
                Error::SourceDamaged { path: path.clone(), found: detail }
            }
            e => e.into(),
        };
        let attached = attach::read(&inspected, held, scratch, patience).map_err(|e| damaged(e.into()))?;
        // The first read fixes what all that follow see.
        attached.execute_batch("BEGIN")?;
        // A snapshot is to the byte the file that was looked at as a whole when it was taken.
        if !matches!(found, Found::Snapshot(_)) {
            watch(Progress::Begins { what: "checking the source", bytes: None });
            whole::require_as(&attached, &path, Depth::Full).map_err(damaged)?;
        }
        // The newest header may be in the log alone.
        let number = |name: &str| attached.pragma_query_value(None, name, |r| r.get::<_, u32>(0));
        let header = MainHeader {
            page_size: number("page_size")?,
            application_id: attached
                .pragma_query_value(None, "application_id", |r| r.get::<_, i32>(0))?
                .cast_unsigned(),
            user_version: attached.pragma_query_value(None, "user_version", |r| r.get::<_, i32>(0))?.cast_unsigned(),
            ..header
        };
        let pages: i64 = attached.pragma_query_value(None, "page_count", |r| r.get(0))?;
        let rows = Rows::count(&attached, |_| true)?;
        let tables = super::compare::tables(&attached, "main")?;
        let mut source = Source {
            found,
            header,
            pages: pages.unsigned_abs(),
            rows,
            tables,
            older_schema: false,
            notes: ghost.into_iter().collect(),
            attached,
            _ready: ready,
        };
        source.judge(&path, hot(Member::Wal))?;
        Ok(source)
    }

    fn judge(&mut self, path: &Path, through_log: bool) -> Result<()> {
        if let Found::Capture(capture) = &self.found {
            self.notes.push(format!(
                "the source is a capture, and all of it takes the place of what is there; to see and to bring back only the rows \
                 that the database lacks: `statehouse retired show {id}` and `statehouse retired merge {id}` with its path",
                id = word(&capture.id)
            ));
        }
        if through_log {
            self.notes.push("the source was read through its log, which holds its newest rows".to_owned());
        }
        if self.header.journal == Journal::Wal && !through_log && matches!(self.found, Found::File(_)) {
            self.notes.push(
                "the source is a file that once had a log and has none beside it; if it was copied without it, its newest rows are missing"
                    .to_owned(),
            );
        }
        if self.is_ours() {
            let current = SessionsSchema.current(&self.attached).map_err(|e| match e {
                DatabaseError::Refused(r) => DatabaseError::refused(r.reason, path, r.detail.clone()),
                e => e,
            })?;
            self.older_schema = !current;
            if self.older_schema {
                self.notes.push("its schema is older, and is brought up to date when it is opened next".to_owned());
            }
        }
        let broken = foreign_keys(&self.attached)?;
        if broken > 0 {
            let found = format!(
                "{} {} to rows that are not there (PRAGMA foreign_key_check)",
                words::count(broken, "row"),
                words::verb(broken, "refers", "refer")
            );
            if self.is_ours() && !matches!(self.found, Found::Snapshot(_)) {
                return Err(Error::SourceDamaged { path: path.to_owned(), found });
            }
            // Many programs do not have them enforced, and such rows say nothing about the file. A snapshot has those that the
            // database had.
            self.notes.push(found);
        }
        Ok(())
    }

    /// Whether it may take the place of a database with this header and these tables. `ours` says that a store of ours
    /// belongs there.
    pub(crate) fn fits(&self, there: Option<&MainHeader>, tables: Option<&[String]>, ours: bool) -> Result<()> {
        let other = |found: String| Err(Error::OtherProgram { path: self.found.path().to_owned(), found });
        let id = |n: u32| format!("{n:#010x}");
        if ours && !self.is_ours() {
            return other(format!(
                "a store of Statehouse belongs there, and its application id is {}",
                id(self.header.application_id)
            ));
        }
        if let Some(there) = there
            && there.application_id != self.header.application_id
        {
            let (here, new) = (id(there.application_id), id(self.header.application_id));
            return other(format!("the application id of the database is {here}, that of the source is {new}"));
        }
        let Some(tables) = tables else { return Ok(()) };
        if !tables.is_empty() && !self.tables.is_empty() && !tables.iter().any(|t| self.tables.contains(t)) {
            return other(format!(
                "they have no table in common: {} there, {} in the source",
                some(tables),
                some(&self.tables)
            ));
        }
        Ok(())
    }
}

fn some(names: &[String]) -> String {
    let mut shown = names.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
    if names.len() > 5 {
        shown.push_str(", ...");
    }
    shown
}

fn foreign_keys(connection: &Connection) -> Result<u64> {
    let mut statement = match connection.prepare("PRAGMA foreign_key_check") {
        Ok(statement) => statement,
        // A key that names a table or columns that do not exist cannot be checked; the structure is sound.
        Err(rusqlite::Error::SqliteFailure(e, _)) if e.code == rusqlite::ErrorCode::Unknown => return Ok(0),
        Err(e) => return Err(e.into()),
    };
    let mut rows = statement.query([])?;
    let mut broken = 0;
    loop {
        match rows.next() {
            Ok(Some(_)) => broken += 1,
            Ok(None) => return Ok(broken),
            Err(rusqlite::Error::SqliteFailure(e, _)) if e.code == rusqlite::ErrorCode::Unknown => return Ok(broken),
            Err(e) => return Err(e.into()),
        }
    }
}
