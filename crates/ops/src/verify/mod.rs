//! `verify`: the proof that a database is healthy, after a restart, after a recovery, or because somebody asks.
//!
//! First everything that can be seen from outside. Only when no holder makes it dangerous is the database opened: for a
//! write that another process reads back through the path, if that was asked for, and for a check of its structure.
//!
//! `view` is what is seen from outside, `written` the write of this process, `members` the writes of every live process of ours,
//! `wait` the write of a program that is not ours and `whose` whether it was that program's, `integrity` the structure.

mod integrity;
mod members;
mod position;
mod view;
mod wait;
mod whose;
mod written;

use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use statehouse_sessions::sqlite::APPLICATION_ID;
use statehouse_sqlite::destroyed::{self, Mark};
use statehouse_sqlite::headers;
use statehouse_sqlite::holders::{self, Verdict};
use statehouse_sqlite::secure::{self, Purpose};
use statehouse_sqlite::shell::word;
use statehouse_sqlite::words;
use statehouse_sqlite::{Error, Family, Reason, Result};

use crate::check::{Check, Found, Outcome, run};
use crate::{attach, incidents};
use integrity::cannot_judge;
use view::{View, name};

pub(crate) use integrity::is_of_search_index;
pub use position::{LogEnd, Position};

/// The role under which the canary of `verify` is written.
pub const ROLE: &str = "verify";

/// What is to be proved, and with what.
pub struct Proof<'a> {
    /// The database.
    pub path: &'a Path,
    /// It is where our own store belongs, so that another program's database there is a finding.
    pub own: bool,
    /// Prove that a write works.
    pub write: bool,
    /// Wait so long for a write of the program that uses the database.
    pub wait_for_write: Option<Duration>,
    /// Called when such a write counts, so that a person can be asked for it.
    pub ask: &'a dyn Fn(),
    /// How long a lock is waited for.
    pub patience: Duration,
    /// A directory for a private image of a database that cannot be read in place.
    pub scratch: &'a Path,
    /// How another process reads.
    pub other: &'a dyn OtherProcess,
}

/// The second process of the proof; this crate does not know how to start one.
pub trait OtherProcess {
    /// The token of the newest canary of `role` in the store at `database`.
    ///
    /// # Errors
    /// Why it could not be read, in words.
    fn canary(&self, database: &Path, role: &str) -> std::result::Result<Option<String>, String>;

    /// What another process reads of any database.
    ///
    /// # Errors
    /// Why it could not be read, in words.
    fn read(&self, database: &Path) -> std::result::Result<Seen, String>;
}

/// What a process reads of a database that it knows nothing about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// SQLite's own number of the schema.
    pub schema_version: i64,
    /// Number of pages as of the last commit.
    pub page_count: i64,
    /// Number of tables, indexes, views and triggers.
    pub objects: i64,
    /// The number of the newest message, in a store of ours: what its services write by themselves does not change it.
    #[serde(default)]
    pub newest_message: Option<i64>,
    /// Which commit that is, as the files say.
    #[serde(default)]
    pub position: Option<Position>,
}

impl Seen {
    fn by(connection: &Connection) -> rusqlite::Result<Seen> {
        connection.query_row(
            "SELECT (SELECT schema_version FROM pragma_schema_version), (SELECT page_count FROM pragma_page_count),
                    (SELECT count(*) FROM sqlite_schema)",
            [],
            |r| {
                let (schema_version, page_count, objects) = (r.get(0)?, r.get(1)?, r.get(2)?);
                Ok(Seen { schema_version, page_count, objects, newest_message: None, position: None })
            },
        )
    }

    /// What it sees of the database, and not which commit that was.
    fn content(&self) -> (i64, i64, i64) {
        (self.schema_version, self.page_count, self.objects)
    }
}

/// The document of `statehouse verify`.
#[derive(Debug, Serialize)]
pub struct Verification {
    /// The main file; what is not UTF-8 in its name is replaced.
    pub path: String,
    /// True if no check warns or fails.
    pub healthy: bool,
    /// The checks, in the order in which they were made.
    pub checks: Vec<Check>,
}

/// Reads what [`OtherProcess::read`] is to answer; for the second process itself.
///
/// # Errors
/// A refusal, or SQLite's answer.
pub fn read(path: &Path, scratch: &Path, patience: Duration) -> Result<Seen> {
    let family = Family::of(path)?;
    let inspected = secure::inspect(&family, Purpose::Look)?;
    inspected.require_main()?;
    let ours = match headers::check(&inspected)? {
        headers::Headers::Database { header, .. } => header.application_id == APPLICATION_ID.cast_unsigned(),
        headers::Headers::New | headers::Headers::InUse => false,
    };
    refuse_alarming(&family)?;
    let held = holders::scan(&family)?.verdict != Verdict::Quiet;
    // Before the connection: what SQLite reads after it is that commit or a later one.
    let position = Position::of(&family)?;
    let connection = attach::read(&inspected, held, scratch, patience)?;
    let newest_message = match ours {
        true => connection.query_row("SELECT max(n) FROM message", [], |r| r.get(0))?,
        false => None,
    };
    Ok(Seen { newest_message, position: Some(position), ..Seen::by(&connection)? })
}

fn refuse_alarming(family: &Family) -> Result<()> {
    match holders::dangerous(family)?.first() {
        None => Ok(()),
        Some(h) => {
            let reason = if h.ghost { Reason::HeldRetired } else { Reason::HeldNaked };
            Err(Error::refused(reason, family.main(), name(h)))
        }
    }
}

/// Proves it.
///
/// # Errors
/// When there is nothing to verify: no database, or files that are not safe to look at.
pub fn verify(proof: &Proof<'_>) -> Result<Verification> {
    let family = Family::of(proof.path)?;
    if let Some(not_whole) = not_whole(&family)? {
        // Whatever else could be found out would be about something else than what was acknowledged.
        let mut checks = vec![not_whole];
        checks.extend(told_incidents(&family));
        return Ok(Verification { path: family.main().to_string_lossy().into_owned(), healthy: false, checks });
    }
    let view = View::of(&family)?;
    let mut checks = view.seen_from_outside();
    if proof.own {
        checks.insert(0, run("store.ours", || view.is_ours()));
    }
    checks.extend(view.written(proof));
    if view.ours && proof.write {
        checks.push(run("canary.members", || view.written_by_members(proof)));
    }
    if let Some(limit) = proof.wait_for_write {
        checks.push(run("write.seen", || view.write_of_program(proof, limit)));
    }
    let mut of_search_indexes = Vec::new();
    checks.push(run("integrity.quick", || view.integrity(proof, &mut of_search_indexes)));
    if !of_search_indexes.is_empty() {
        checks.push(run("integrity.search", || cannot_judge(&of_search_indexes)));
    }
    checks.extend(told_incidents(&family));
    let healthy = !checks.iter().any(|c| c.status.unhealthy());
    Ok(Verification { path: family.main().to_string_lossy().into_owned(), healthy, checks })
}

/// What is to be said of files that are not the whole database.
fn not_whole(family: &Family) -> Result<Option<Check>> {
    if let Some(mark) = destroyed::mark(family)? {
        return Ok(Some(run("content.whole", || ruined(family, &mark))));
    }
    match destroyed::refuse(family) {
        Err(e) if e.reason() == Some(Reason::HalfRestored) => {
            Ok(Some(run("content.whole", || Found::error("a restore was ended before it was done", &e))))
        }
        _ => Ok(None),
    }
}

/// What is to be said of a database that was destroyed under a process of ours.
fn ruined(family: &Family, mark: &Mark) -> Found {
    let copies = match (&mark.evidence, &mark.missing) {
        (Some(place), None) => format!("copies of the other files are in {}", place.display()),
        (Some(place), Some(why)) => format!("what could be copied is in {}: {why}", place.display()),
        (None, why) => format!("nothing could be copied: {}", why.as_deref().unwrap_or("it is not known why")),
    };
    let account = mark.account.as_ref();
    let told = account.map(|a| format!("; {}", a.sentence())).unwrap_or_default();
    let remedy = match account.and_then(|a| a.rebuilt.as_ref()) {
        Some(rebuilt) => format!(
            "Put what is left in its place: statehouse restore {} {}. To go on with something else, put that in order with every \
             program stopped, and then remove",
            word(&rebuilt.to_string_lossy()),
            word(&family.main().to_string_lossy())
        ),
        None => {
            "Put the database in order from the copies, a snapshot or a backup, with every program stopped; then remove"
                .to_owned()
        }
    };
    Found::new(Outcome::Fail, "a file of it was truncated or overwritten while it was in use")
        .detail(format!("{} {copies}{told}", mark.sentence))
        .hint(format!("Keep every file. {remedy} {}, and verify again.", destroyed::mark_path(family).display()))
}

/// Incidents that nobody has closed; nothing where there is none.
fn told_incidents(family: &Family) -> Option<Check> {
    let check = run("incidents.open", || match incidents::open(family) {
        Ok((0, _)) => Found::new(Outcome::Ok, "no incident is open"),
        Ok((open, 0)) => Found::new(Outcome::Info, {
            let (are, close) =
                (words::verb(open, "is", "are"), words::verb(open, "closes by itself", "close by themselves"));
            format!("{} {are} open, and {close}", words::count(open, "incident"))
        })
        .hint("`statehouse incidents` lists them."),
        Ok((_, waiting)) => Found::new(Outcome::Warn, {
            format!("{} {} for a person", words::count(waiting, "incident"), words::verb(waiting, "waits", "wait"))
        })
        .hint("`statehouse incidents` lists them; `statehouse incidents show ID` says what to do."),
        Err(e) => Found::error("the incidents cannot be read", &e),
    });
    (check.status != Outcome::Ok).then_some(check)
}
