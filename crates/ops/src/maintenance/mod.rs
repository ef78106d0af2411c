//! What is done to a whole database for its own good: copying its log, rewriting it, merging its indexes, changing its
//! journal mode.
//!
//! Invariant: whatever rewrites structure takes an [`Admission`] as an argument, so it cannot be called while anybody else
//! uses the database, and nobody comes in before it has ended. Before that there is a look that opens nothing and changes
//! nothing ([`look`]): it says what would be gained, so that nobody is asked to stand aside for nothing.
//!
//! A failed or killed operation leaves the database as it was: each is one transaction of SQLite.

pub mod checkpoint;
pub mod error;
pub mod journal_mode;
pub mod optimize;
pub mod policy;
pub(crate) mod room;
pub mod vacuum;
pub(crate) mod whole;

use std::path::Path;
use std::time::Instant;

use rusqlite::Connection;
use serde::Serialize;
use statehouse_sessions::sqlite::APPLICATION_ID;
use statehouse_sqlite::headers::{self, Headers, Journal, MainHeader};
use statehouse_sqlite::secure::{self, Inspected, Purpose};
use statehouse_sqlite::{Family, Member, Reason, Status, destroyed};

pub use error::{Error, Result};
pub use room::{Room, Temporary};
pub use statehouse_sqlite::admission::{Admission, Forecast, Wanted, forecast, refuse_first};

/// A database as it looks from outside.
#[derive(Debug)]
pub struct Look {
    /// The files that were looked at.
    pub inspected: Inspected,
    /// The header that holds: the main file's, or the newest one in the log.
    pub header: MainHeader,
}

impl Look {
    /// The names of the files.
    pub fn family(&self) -> &Family {
        self.inspected.family()
    }

    /// True for a store of Statehouse.
    pub fn is_ours(&self) -> bool {
        self.header.application_id == APPLICATION_ID.cast_unsigned()
    }

    /// Bytes of a member, 0 if it is not there.
    pub fn size(&self, member: Member) -> u64 {
        self.inspected.get(member).map_or(0, |seen| seen.status.size)
    }

    /// How its pages are used.
    pub fn pages(&self) -> Pages {
        let page_size = u64::from(self.header.page_size);
        let pages = self.header.pages.map_or_else(|| self.size(Member::Main) / page_size, u64::from);
        Pages { page_size, pages, free: u64::from(self.header.free_pages).min(pages) }
    }

    /// The mode that the header says.
    pub fn mode(&self) -> &'static str {
        mode_of(self.header.journal)
    }
}

fn mode_of(journal: Journal) -> &'static str {
    match journal {
        Journal::Wal => "wal",
        Journal::Rollback => "delete",
    }
}

/// Looks at the database at `path` without opening it by SQLite. To be called in a process that has no connection to it.
///
/// # Errors
/// A refusal when there is no database here or its files are not safe, with nothing changed; or the system's answer.
pub fn look(path: &Path) -> Result<Look> {
    let family = Family::of(path)?;
    destroyed::refuse(&family)?;
    let inspected = secure::inspect(&family, Purpose::Look)?;
    let main = inspected.require_main()?;
    let header = match headers::check(&inspected)? {
        // In WAL mode the newest page 1 may be in the log alone.
        Headers::Database { header, from_log: false } if header.journal == Journal::Wal => {
            headers::in_log(&inspected)?.unwrap_or(header)
        }
        Headers::Database { header, .. } => header,
        Headers::New | Headers::InUse => {
            let detail = format!("its header cannot be read ({} bytes)", main.status.size);
            return Err(statehouse_sqlite::Error::refused(Reason::NotDatabase, family.main(), detail).into());
        }
    };
    Ok(Look { inspected, header })
}

/// How the pages of a database are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Pages {
    /// Bytes of a page.
    pub page_size: u64,
    /// Pages altogether.
    pub pages: u64,
    /// Pages that hold nothing.
    pub free: u64,
}

impl Pages {
    fn of(connection: &Connection) -> Result<Pages> {
        let number = |name: &str| -> Result<u64> {
            let n: i64 = connection.pragma_query_value(None, name, |r| r.get(0))?;
            Ok(n.unsigned_abs())
        };
        Ok(Pages { page_size: number("page_size")?, pages: number("page_count")?, free: number("freelist_count")? })
    }

    /// Bytes that a rewrite gives back.
    pub fn reclaimable(self) -> u64 {
        self.free * self.page_size
    }

    /// The share of free pages, from 0 to 1.
    pub fn share(self) -> f64 {
        if self.pages == 0 { 0.0 } else { self.free as f64 / self.pages as f64 }
    }

    /// Pages that a rewrite keeps.
    pub fn kept(self) -> u64 {
        self.pages.saturating_sub(self.free)
    }
}

/// What is being done, for whoever watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The log is copied into the main file.
    Copying,
    /// The structure is checked.
    Checking,
    /// Rows are counted.
    Counting,
    /// The database is rewritten.
    Rewriting {
        /// About how many bytes will be written to files on the way.
        bytes: u64,
    },
    /// A search index is merged.
    Merging,
}

/// Is told each step when it begins.
pub type Watch<'a> = &'a dyn Fn(Step);

/// Milliseconds since `begun`.
fn ms(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1000.0
}

/// Bytes of a member now, 0 if it is not there.
fn size(family: &Family, member: Member) -> Result<u64> {
    let path = family.path(member);
    Ok(Status::of(&path).map_err(|e| error::io("look at", &path, e))?.map_or(0, |s| s.size))
}

/// Quotes a name for SQL.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// What a dry run of any of these says: what would be done, and what would refuse it now.
#[derive(Debug, Serialize)]
pub struct Plan<T> {
    /// The main file.
    pub path: String,
    /// Always true.
    pub dry_run: bool,
    /// Always false.
    pub done: bool,
    /// What would be done, in words.
    pub would: String,
    /// What it would be done to and what it would gain.
    #[serde(flatten)]
    pub about: T,
    /// The holders that were found, as `holders` shows them.
    pub holders: Vec<statehouse_sqlite::holders::Holder>,
    /// What would refuse it now; the caller fills in its own shape of an error.
    #[serde(skip)]
    pub refused: Option<Error>,
}

impl<T> Plan<T> {
    fn new(look: &Look, would: impl Into<String>, about: T, forecast: Forecast, against: Option<Error>) -> Plan<T> {
        Plan {
            path: look.family().main().to_string_lossy().into_owned(),
            dry_run: true,
            done: false,
            would: would.into(),
            about,
            holders: forecast.report.holders,
            refused: forecast.refused.map(Error::Database).or(against),
        }
    }
}
