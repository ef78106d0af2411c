//! How a database stands with its snapshots: the last good one, and what has failed since.

use std::time::Duration;

use serde::Serialize;
use statehouse_sqlite::secure::{self, Purpose};
use statehouse_sqlite::words;
use statehouse_sqlite::{Family, Status};

use super::error::{Error, Result};
use super::record;
use super::staged::Place;

/// How a database stands with its snapshots, as `status` shows it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct State {
    /// The newest good one whose file is as it was recorded.
    pub last: Option<Last>,
    /// What has failed since then.
    pub failed: Option<Failed>,
    /// Why a person should look after it, where one is to be taken every so often; `None` if all is well.
    pub warning: Option<String>,
}

/// The newest good snapshot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Last {
    /// Its name.
    pub id: String,
    /// When it was taken, RFC 3339.
    pub created_at: String,
    /// Seconds since then.
    pub age_s: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// The last attempt that failed.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Failed {
    /// When, RFC 3339.
    pub at: String,
    /// The code of the error.
    pub code: Option<String>,
    /// What was said.
    pub error: String,
    /// How many in a row.
    pub failures: u64,
}

/// How the database stands. `every` is the time between two, where one is taken every so often; one that is older than twice
/// that is told.
///
/// # Errors
/// The system's answer.
pub fn state(family: &Family, every: Option<Duration>) -> Result<State> {
    let all = record::all(family)?;
    let good = all.iter().rev().find(|s| s.is_good());
    let failed = all.iter().rev().find(|s| !s.verified).filter(|f| good.is_none_or(|g| f.serial > g.serial));
    let last = good.map(|s| Last {
        id: s.id.clone(),
        created_at: s.created_at.clone(),
        age_s: s.age().as_secs(),
        bytes: s.bytes,
    });
    let failed = failed.map(|f| Failed {
        at: f.created_at.clone(),
        code: f.error_code.clone(),
        error: f.error.clone().unwrap_or_default(),
        failures: f.failures,
    });
    let warning = every.and_then(|every| {
        let limit = every * 2;
        match good {
            Some(s) if s.age() > limit => Some(format!("the last good snapshot is {} old", told(s.age()))),
            Some(_) => None,
            None => {
                let age = age_of(family)?;
                (age > limit).then(|| format!("there is no good snapshot, and the database is {} old", told(age)))
            }
        }
    });
    Ok(State { last, failed, warning })
}

/// How long the database has been here, as far as that is known.
fn age_of(family: &Family) -> Option<Duration> {
    let born = Status::of(&family.main()).ok()??.identity.born_ns?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?;
    now.checked_sub(Duration::from_nanos(u64::try_from(born).ok()?))
}

/// A time as a person would say it.
fn told(age: Duration) -> String {
    match age.as_secs() {
        s if s < 120 => words::count(s, "second"),
        s if s < 2 * 3600 => format!("{} minutes", s / 60),
        s if s < 2 * 86400 => format!("{} hours", s / 3600),
        s => format!("{} days", s / 86400),
    }
}

/// Remembers that a snapshot which was to be taken by itself was refused; what failed when it was tried is remembered already.
///
/// # Errors
/// The system's answer; on a full disk nothing can be remembered.
pub fn remember_failure(family: &Family, reason: &str, error: &Error) -> Result<()> {
    let inspected = secure::inspect(family, Purpose::Look)?;
    let place = Place::create(&inspected)?;
    let id = record::new_id();
    record::write(&inspected, &place.path, &record::failed(family, &id, reason, error)?)
}
