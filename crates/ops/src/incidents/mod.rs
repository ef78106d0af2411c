//! What happened to a database, gathered from where it is kept, as programs and people read it.
//!
//! Incidents lie beside the database. Only a start that was refused is told elsewhere, below the `logs` of the home, because a
//! refusal changes nothing beside the database.

mod markdown;

use std::path::PathBuf;

use serde::Serialize;
use statehouse_sqlite::incidents::{self, Incident};
use statehouse_sqlite::{Family, Result};

pub use markdown::markdown;

/// Where a home keeps what is told of starts that were refused.
pub fn of_home(family: &Family) -> PathBuf {
    family.directory().join("logs").join("incidents")
}

/// Every incident of a database, the oldest first.
///
/// # Errors
/// The system's answer.
pub fn list(family: &Family) -> Result<Vec<Incident>> {
    let mut all = incidents::list(family)?;
    all.extend(incidents::list_in(&of_home(family))?);
    all.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
    Ok(all)
}

/// What a name may mean.
#[derive(Debug)]
pub enum Found {
    /// This one.
    One(Box<Incident>),
    /// Nothing has this id.
    None,
    /// More than one begins or ends like this.
    Several(Vec<String>),
}

/// The incident with this id, or the only one whose id, or the part after its last hyphen, begins so.
///
/// # Errors
/// As [`list`].
pub fn find(family: &Family, id: &str) -> Result<Found> {
    let mut all = list(family)?;
    if let Some(at) = all.iter().position(|i| i.id == id) {
        return Ok(Found::One(Box::new(all.swap_remove(at))));
    }
    let begins = |i: &Incident| i.id.starts_with(id) || i.id.rsplit('-').next().is_some_and(|end| end.starts_with(id));
    all.retain(|i| !id.is_empty() && begins(i));
    Ok(match all.len() {
        0 => Found::None,
        1 => Found::One(Box::new(all.swap_remove(0))),
        _ => Found::Several(all.into_iter().map(|i| i.id).collect()),
    })
}

/// Closes an incident by its whole id; false if there is none.
///
/// # Errors
/// The system's answer, or a refusal of the side directory.
pub fn close(family: &Family, id: &str) -> Result<bool> {
    Ok(incidents::close(family, id)? || incidents::close_in(&of_home(family), id)?)
}

/// How many are open, and how many of these need a person.
///
/// # Errors
/// As [`list`].
pub fn open(family: &Family) -> Result<(u64, u64)> {
    let all = list(family)?;
    let count = |wanted: fn(&Incident) -> bool| all.iter().filter(|i| wanted(i)).count() as u64;
    Ok((count(Incident::is_open), count(Incident::needs_a_person)))
}

/// One incident as a document.
#[derive(Debug, Clone, Serialize)]
pub struct IncidentDocument {
    /// Names it; the beginning is enough where it is the only one.
    pub id: String,
    /// What happened, for programs.
    pub kind: &'static str,
    /// What happened, for people.
    pub title: &'static str,
    /// When it began.
    pub at: String,
    /// When it happened, or something was added, last.
    pub last_at: String,
    /// When it was closed, `null` while it is open.
    pub closed_at: Option<String>,
    /// True while nobody has closed it.
    pub open: bool,
    /// True if a person must do something.
    pub needs_person: bool,
    /// How often it happened.
    pub count: u64,
    /// The role of the process that told of it first.
    pub role: String,
    /// The process that told of it first.
    pub pid: u32,
    /// What happened to what.
    pub what: String,
    /// How it ended: `healed`, `fenced` (not over yet), `kept`, `waits`.
    pub outcome: incidents::Outcome,
    /// Why, as far as it is known.
    pub cause: String,
    /// What shows it.
    pub evidence: Vec<String>,
    /// What was done.
    pub done: String,
    /// What is lost, `null` if nothing is known to be.
    pub lost: Option<String>,
    /// True if what was checked proves that nothing that was acknowledged is lost.
    pub nothing_lost: bool,
    /// What was proved, where that is less than that nothing is lost; empty for nothing.
    pub proved: String,
    /// What to type next.
    pub next: String,
    /// Processes that were cut off.
    pub affected: Vec<AffectedDocument>,
    /// What happened, in the order of time.
    pub timeline: Vec<EntryDocument>,
    /// Entries that were left out of the middle of the timeline.
    pub timeline_left_out: u64,
}

/// A process that was cut off.
#[derive(Debug, Clone, Serialize)]
pub struct AffectedDocument {
    /// The process.
    pub pid: i32,
    /// Its role.
    pub role: String,
    /// Since when.
    pub cut_off_at: String,
    /// Until when, `null` if it never came back.
    pub back_at: Option<String>,
    /// For how long, in milliseconds.
    pub ms: Option<f64>,
}

/// A line of a timeline.
#[derive(Debug, Clone, Serialize)]
pub struct EntryDocument {
    /// When.
    pub at: String,
    /// The process that did or saw it.
    pub pid: u32,
    /// Its role, empty for a person.
    pub role: String,
    /// What, as a sentence.
    pub sentence: String,
}

/// Microseconds since 1970 as RFC 3339 in UTC.
fn time(micros: u64) -> String {
    let at = i64::try_from(micros).ok().and_then(|m| jiff::Timestamp::from_microsecond(m).ok());
    at.map_or_else(|| "unknown".to_owned(), |t| format!("{t:.6}"))
}

impl From<&Incident> for IncidentDocument {
    fn from(i: &Incident) -> IncidentDocument {
        let affected = i.affected.iter().map(|a| AffectedDocument {
            pid: a.process.pid,
            role: a.role.clone(),
            cut_off_at: time(a.cut_off_at),
            back_at: a.back_at.map(time),
            ms: a.back_at.map(|back| back.saturating_sub(a.cut_off_at) as f64 / 1000.0),
        });
        let entry = |e: &incidents::Entry| EntryDocument {
            at: time(e.at),
            pid: e.pid,
            role: e.role.clone(),
            sentence: e.sentence.clone(),
        };
        IncidentDocument {
            id: i.id.clone(),
            kind: i.kind.word(),
            title: i.kind.title(),
            at: time(i.at),
            last_at: time(i.last_at),
            closed_at: i.closed_at.map(time),
            open: i.is_open(),
            needs_person: i.needs_a_person(),
            count: i.count,
            role: i.role.clone(),
            pid: i.pid,
            what: i.what.clone(),
            outcome: i.outcome,
            cause: i.cause.clone(),
            evidence: i.evidence.clone(),
            done: i.done.clone(),
            lost: i.lost.clone(),
            nothing_lost: i.nothing_is_lost(),
            proved: i.proved.clone(),
            next: i.next.clone(),
            affected: affected.collect(),
            timeline: i.timeline.iter().map(entry).collect(),
            timeline_left_out: i.left_out,
        }
    }
}
