//! What happened to a database while processes of ours used it, kept beside it: `X.statehouse/incidents/`.
//!
//! One file an incident, private to the owner of the database, with a name that sorts by time. None holds anything of the content.
//! There are never more than [`MOST_FILES`] files nor more than [`MOST_BYTES`] bytes; the oldest go first, and of
//! those the closed ones. What happens again within a minute, or while the incident is open, raises its count, so that
//! something which happens a hundred times a second fills nothing.
//!
//! **One incident for what is one.** Each process of a house that loses its files notices that by itself. What they tell is about
//! the same generation, so it becomes one incident with a timeline: who noticed, captured, brought back, went on ([`Story`]).
//!
//! **Open or closed.** A healed incident is closed from the beginning: nothing was lost, and it only says that something in that
//! process drops locks. One that cut processes off is open until each of them has opened the database again or has ended, and is
//! closed by the last of them if what was checked proves that nothing is lost. Whatever needs a person stays open until somebody
//! has looked at it and calls [`close`].
//!
//! A record that cannot be written (the disk is full, the directory was removed) stops nobody: the observer of the handle is
//! told in any case.

mod brought;
mod put_in_place;
mod record;
mod shelf;
mod story;
#[cfg(test)]
mod tests;

use std::path::Path;

use crate::error::{Error, Result};
use crate::family::{Family, Generation};
use crate::process::ProcessId;
use crate::words::{count, verb};
use shelf::Shelf;

pub use brought::brought_back;
pub use put_in_place::put_in_place;
pub use record::{Affected, Entry, Incident, Kind, Outcome, Report};
pub use story::Story;

/// The most files that are kept.
pub const MOST_FILES: usize = 500;

/// The most bytes that they have together.
pub const MOST_BYTES: u64 = 4 * 1024 * 1024;

fn now_us() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

fn entry(role: &str, sentence: impl Into<String>) -> Entry {
    Entry { at: now_us(), pid: std::process::id(), role: role.to_owned(), sentence: sentence.into() }
}

/// What every incident about a generation has in common. The index is left out: it can be lost alone, and is made anew.
fn about_generation(generation: &Generation) -> String {
    let word = |identity: Option<crate::family::Identity>| match identity {
        Some(i) => format!("{:x}-{:x}-{:x}", i.device, i.inode, i.born_ns.unwrap_or(0)),
        None => "none".to_owned(),
    };
    format!("generation {} {}", word(generation.main), word(generation.wal))
}

/// The incidents of a database, the oldest first. A file that is no incident is none.
///
/// # Errors
/// [`Error::Io`].
pub fn list(family: &Family) -> Result<Vec<Incident>> {
    Shelf::Beside(family.clone()).all()
}

/// As [`list`], of a directory that is not beside a database.
///
/// # Errors
/// As [`list`].
pub fn list_in(directory: &Path) -> Result<Vec<Incident>> {
    Shelf::In(directory.to_owned()).all()
}

/// How many incidents nobody has closed.
///
/// # Errors
/// As [`list`].
pub fn count_open(family: &Family) -> Result<u64> {
    Ok(list(family)?.iter().filter(|i| i.is_open()).count() as u64)
}

/// Records that locks of this process were gone. Returns what the incident is about, for what is to be told of it later.
pub(crate) fn record(family: &Family, role: &str, what: String, outcome: Outcome) -> Result<String> {
    let (kind, open, sentence) = match outcome {
        Outcome::Healed => (Kind::LocksHealed, false, "took locks again that were gone; the files were the same"),
        _ => (Kind::LocksLost, true, "noticed that locks were gone, and cut itself off"),
    };
    let process = ProcessId::own().map_or(0, |p| p.start_ticks);
    let about = format!("locks {} {process} {role} {outcome:?} {what}", std::process::id());
    let healed = outcome == Outcome::Healed;
    let report = Report {
        kind,
        role: role.to_owned(),
        what,
        cause: "something in that process closes or unlocks descriptors that are not its own, or somebody else did who has \
                the same description; which one is not known"
            .to_owned(),
        evidence: Vec::new(),
        done: if healed { "the locks were taken again, before anything had happened to the files" } else { "" }.to_owned(),
        lost: None,
        next: String::new(),
        outcome,
        open,
    };
    add(&Shelf::Beside(family.clone()), &about, report, sentence)?;
    Ok(about)
}

/// Records what somebody else than the writer's thread has found or done. Returns its id. The same again within a minute, or
/// while it is open, is the same incident.
///
/// # Errors
/// [`Error::Io`], or a refusal of the side directory.
pub fn report(family: &Family, report: Report) -> Result<String> {
    let about = format!("{} {} {}", report.kind.word(), report.role, report.what);
    report_about(family, &about, report)
}

/// As [`report`], of something that is the same incident whoever tells of it: `about` names it.
///
/// # Errors
/// As [`report`].
pub fn report_about(family: &Family, about: &str, report: Report) -> Result<String> {
    let sentence = sentence(&report);
    add(&Shelf::Beside(family.clone()), about, report, &sentence)
}

/// Records that a database was not opened, in a directory that is not beside it: a refused start changes nothing there.
///
/// # Errors
/// [`Error::Io`].
pub fn refused(directory: &Path, role: &str, code: &str, what: &str, next: &str) -> Result<()> {
    let report = Report {
        kind: Kind::RefusedOpen,
        role: role.to_owned(),
        what: what.to_owned(),
        cause: format!("the files are not safe to open as they are ({code})"),
        evidence: Vec::new(),
        done: "nothing was opened, and no file of the database was changed".to_owned(),
        lost: None,
        next: next.to_owned(),
        outcome: Outcome::Waits,
        open: true,
    };
    add(&Shelf::In(directory.to_owned()), &format!("refused {role} {code}"), report, "did not open the database")
        .map(drop)
}

/// Closes what [`refused`] has recorded for this role, for the database is open now.
///
/// # Errors
/// [`Error::Io`].
pub fn opened(directory: &Path, role: &str) -> Result<()> {
    let changed = Shelf::In(directory.to_owned()).change_all(|mut incident| {
        if incident.kind != Kind::RefusedOpen || incident.role != role || !incident.is_open() {
            return None;
        }
        incident.tell(vec![entry(role, "opened the database")]);
        (incident.outcome, incident.closed_at, incident.next) = (Outcome::Kept, Some(now_us()), String::new());
        Some(incident)
    });
    changed.map(drop)
}

/// The file of an incident.
pub(crate) fn path(family: &Family, id: &str) -> std::path::PathBuf {
    Shelf::Beside(family.clone()).path(id)
}

/// What a report says, as the sentence of a timeline.
fn sentence(report: &Report) -> String {
    if report.done.is_empty() { report.what.clone() } else { format!("{}: {}", report.what, report.done) }
}

fn add(shelf: &Shelf, about: &str, report: Report, sentence: &str) -> Result<String> {
    let line = entry(&report.role, sentence);
    let mut new = Incident::new(about.to_owned(), line.at, report);
    new.tell(vec![line]);
    let id = shelf.change(about, |before| {
        Some(match before {
            Some(before) if before.goes_on(new.at) => before.again(new),
            _ => new,
        })
    })?;
    Ok(id.unwrap_or_default())
}

/// Closes what this process left open because it had lost its locks, for it has the database open again.
pub(crate) fn close_own(family: &Family, role: &str) -> Result<()> {
    let pid = std::process::id();
    let closed = Shelf::Beside(family.clone()).change_all(|mut incident| {
        // One that has processes which were cut off is closed by the last of these.
        if incident.pid != pid
            || incident.kind != Kind::LocksLost
            || !incident.is_open()
            || !incident.affected.is_empty()
        {
            return None;
        }
        incident.tell(vec![entry(role, "opened the database again")]);
        incident.done = "the process opened the database again".to_owned();
        (incident.outcome, incident.closed_at) = (Outcome::Kept, Some(now_us()));
        Some(incident)
    });
    closed.map(drop)
}

/// Tells that rows which only the capture of a retired generation had are in the database now.
pub(crate) fn merged(family: &Family, role: &str, generation: &Generation, rows: u64) -> Result<()> {
    let (line, done) = match rows {
        0 => (
            "found every row that was captured in the database".to_owned(),
            "every captured row was in the database already".to_owned(),
        ),
        rows => (
            format!("brought back {} that only the captured files had", count(rows, "row")),
            format!(
                "{} that only the captured files had {} brought back",
                count(rows, "row"),
                verb(rows, "was", "were")
            ),
        ),
    };
    let what = "rows that only a capture had were missing in the database";
    resolved(family, role, generation, line, done, (rows > 0).then_some((Kind::Merged, what)))
}

/// Tells that an opener has put the main file of a retired generation back at its path.
pub(crate) fn put_back(family: &Family, role: &str, generation: &Generation) -> Result<()> {
    let line = "put the main file back at its path, from what was captured, and opened it".to_owned();
    let done = "the main file was put back from what was captured".to_owned();
    resolved(family, role, generation, line, done, Some((Kind::RetiredGeneration, "the main file was missing")))
}

/// Adds what an opener has done about a retired generation, and closes the incident if nobody who lives is cut off any more. Where
/// nobody has told of it, it becomes one of this kind, if one is given.
fn resolved(
    family: &Family,
    role: &str,
    generation: &Generation,
    line: String,
    done: String,
    new: Option<(Kind, &str)>,
) -> Result<()> {
    let about = about_generation(generation);
    let line = entry(role, line);
    let changed = Shelf::Beside(family.clone()).change(&about, |before| {
        if let Some(mut incident) = before {
            incident.tell(vec![line]);
            incident.done = if incident.done.is_empty() { done } else { format!("{}; {done}", incident.done) };
            let cut_off = incident.affected.iter().any(Affected::is_waited_for);
            if incident.is_open() && !cut_off && incident.lost.is_none() {
                (incident.outcome, incident.closed_at) = (Outcome::Kept, Some(now_us()));
                incident.next = String::new();
            }
            return Some(incident);
        }
        let (kind, what) = new?;
        let report = Report {
            kind,
            role: role.to_owned(),
            what: what.to_owned(),
            cause: "the process that had captured them ended before it could go on; why is not known".to_owned(),
            evidence: Vec::new(),
            done,
            lost: None,
            next: String::new(),
            outcome: Outcome::Kept,
            open: false,
        };
        let mut incident = Incident::new(about.clone(), line.at, report);
        incident.tell(vec![line]);
        Some(incident)
    });
    changed.map(drop)
}

/// Closes an incident that somebody has looked at; false if there is none with this name.
///
/// # Errors
/// [`Error::Io`].
pub fn close(family: &Family, id: &str) -> Result<bool> {
    close_on(&Shelf::Beside(family.clone()), id)
}

/// As [`close`], of a directory that is not beside a database.
///
/// # Errors
/// As [`close`].
pub fn close_in(directory: &Path, id: &str) -> Result<bool> {
    close_on(&Shelf::In(directory.to_owned()), id)
}

fn close_on(shelf: &Shelf, id: &str) -> Result<bool> {
    let there = |shelf: &Shelf| Ok::<_, Error>(shelf.all()?.iter().any(|i| i.id == id));
    shelf.change_all(|mut incident| {
        if incident.id != id || !incident.is_open() {
            return None;
        }
        incident.tell(vec![entry("", "was closed by a person who has looked at it")]);
        incident.closed_at = Some(now_us());
        Some(incident)
    })?;
    there(shelf)
}
