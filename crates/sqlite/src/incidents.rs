//! What happened to the locks of our own processes, kept beside the database: `X.statehouse/incidents/`.
//!
//! One file an incident, private to the owner of the database, with a name that sorts by time. None holds anything of the content.
//! There are never more than [`MOST_FILES`] files nor more than [`MOST_BYTES`] bytes; the oldest go first. What happens to the
//! same process in the same way again within a minute raises the count of the incident that is there, so that
//! something which drops locks a hundred times a second fills nothing.
//!
//! **Open or closed.** A healed incident is closed from the beginning: nothing was lost, and it only says that something in that
//! process drops locks. One that ended in a fence is open until the same process has opened the database again. If it
//! ended before that, the incident stays open until somebody has looked at it and calls [`close`].
//!
//! A process writes and closes only its own incidents, so no lock is needed. A record that cannot be written (the disk is
//! full, the directory was removed) stops nobody: the observer of the handle is told in any case.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::captures::sync_directory;
use crate::error::{Error, Result};
use crate::family::{Family, is_too_long};
use crate::{files, secure, side};

/// The most files that are kept.
pub const MOST_FILES: usize = 100;

/// The most bytes that they have together.
pub const MOST_BYTES: u64 = 1024 * 1024;

/// The longest that is read of one.
const LONGEST: u64 = 64 * 1024;

/// Within this time the same is one incident.
const SAME_US: u64 = 60 * 1_000_000;

const DIRECTORY: &str = "incidents";

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Locks were gone and were taken again; the files are the same.
    LocksHealed,
    /// Locks were gone, and what had happened meanwhile could not be ruled out.
    LocksLost,
    /// Files that a process uses were removed, and what it wrote into them was captured.
    RetiredGeneration,
    /// Another file took the place of the main file.
    ReplacedFile,
    /// A file was truncated or overwritten in place.
    Destroyed,
    /// A process of ours refused to open the database.
    RefusedOpen,
    /// Rows that only a capture had were brought back.
    Merged,
    /// Another content was put in the place of the database because somebody asked for it.
    Restored,
    /// Something was repaired.
    Repaired,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The process went on as if nothing had been.
    Healed,
    /// It cut itself off, captured what it had, and opened the database anew.
    Fenced,
    /// What was at risk was captured or put back; nothing is left to do but to know it.
    Kept,
    /// A person must do something.
    Waits,
}

/// What somebody reports who is not the writer's own thread.
#[derive(Debug, Clone)]
pub struct Report {
    /// What happened.
    pub kind: Kind,
    /// The role of the process that reports it.
    pub role: String,
    /// What happened to what, as a fragment.
    pub what: String,
    /// Why, as far as it is known.
    pub cause: String,
    /// What shows it: identities, sizes, paths of copies.
    pub evidence: Vec<String>,
    /// What was done about it.
    pub done: String,
    /// What is lost, to the row where that is known; `None` if nothing is.
    pub lost: Option<String>,
    /// What to type next; empty if nothing needs to be done.
    pub next: String,
    /// How it ended.
    pub outcome: Outcome,
    /// True if it stays open until somebody has looked at it.
    pub open: bool,
}

/// One incident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// The name of its file without the ending.
    pub id: String,
    /// When it happened first, in microseconds since 1970.
    pub at: u64,
    /// What happened.
    pub kind: Kind,
    /// The role of the process.
    pub role: String,
    /// The process.
    pub pid: u32,
    /// What was gone, as a fragment ("byte 128 of the index").
    pub what: String,
    /// How it ended.
    pub outcome: Outcome,
    /// How often it happened.
    pub count: u64,
    /// When it happened last, in microseconds since 1970.
    pub last_at: u64,
    /// When it was closed; `None` while it is open.
    pub closed_at: Option<u64>,
    /// Why, as far as it is known.
    #[serde(default)]
    pub cause: String,
    /// What shows it.
    #[serde(default)]
    pub evidence: Vec<String>,
    /// What was done about it.
    #[serde(default)]
    pub done: String,
    /// What is lost; `None` if nothing is.
    #[serde(default)]
    pub lost: Option<String>,
    /// What to type next.
    #[serde(default)]
    pub next: String,
}

impl Incident {
    /// True if nobody has closed it.
    pub fn is_open(&self) -> bool {
        self.closed_at.is_none()
    }

    fn is_again(&self, new: &Incident) -> bool {
        let same = (self.kind, self.pid, self.outcome) == (new.kind, new.pid, new.outcome);
        same && self.role == new.role && self.what == new.what && new.at.saturating_sub(self.last_at) < SAME_US
    }
}

fn directory(family: &Family) -> PathBuf {
    family.side_directory().join(DIRECTORY)
}

/// The file of an incident.
pub(crate) fn path(family: &Family, id: &str) -> PathBuf {
    directory(family).join(format!("{id}.json"))
}

fn now_us() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// The incidents of a database, the oldest first. A file that is no incident is none.
///
/// # Errors
/// [`Error::Io`].
pub fn list(family: &Family) -> Result<Vec<Incident>> {
    let read = |path: &PathBuf| serde_json::from_str(&files::read_to_string(path, LONGEST).ok()?).ok();
    Ok(paths(&directory(family))?.iter().filter_map(read).collect())
}

/// How many incidents nobody has closed.
///
/// # Errors
/// As [`list`].
pub fn count_open(family: &Family) -> Result<u64> {
    Ok(list(family)?.iter().filter(|i| i.is_open()).count() as u64)
}

/// The files of the directory in the order of their names, which is that of time.
fn paths(directory: &Path) -> Result<Vec<PathBuf>> {
    let io = |e: std::io::Error| Error::io("read the incidents in", directory, e);
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) || is_too_long(&e) => {
            return Ok(Vec::new());
        }
        Err(e) => return Err(io(e)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(io)?.path();
        if path.extension().is_some_and(|e| e == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Records that locks of this process were gone.
pub(crate) fn record(family: &Family, role: &str, what: String, outcome: Outcome) -> Result<()> {
    let pid = std::process::id();
    let at = now_us();
    let (kind, closed_at) = match outcome {
        Outcome::Healed => (Kind::LocksHealed, Some(at)),
        Outcome::Fenced | Outcome::Kept | Outcome::Waits => (Kind::LocksLost, None),
    };
    // As in the record of a member: a role is a word of our own.
    let role = role.chars().filter(|c| !c.is_control()).take(100).collect();
    let id = format!("{at:016}-{pid}");
    let (cause, done, next) = Default::default();
    let (evidence, lost) = (Vec::new(), None);
    let (count, last_at) = (1, at);
    let new = Incident {
        id,
        at,
        kind,
        role,
        pid,
        what,
        outcome,
        count,
        last_at,
        closed_at,
        cause,
        evidence,
        done,
        lost,
        next,
    };
    let again = list(family).unwrap_or_default().into_iter().rev().find(|i| i.is_again(&new));
    let incident = match again {
        Some(before) => Incident { count: before.count.saturating_add(1), last_at: at, closed_at, ..before },
        None => new,
    };
    write(family, &incident)
}

/// Records what somebody else than the writer's thread has found or done. Returns its id.
///
/// # Errors
/// [`Error::Io`], or a refusal of the side directory.
pub fn report(family: &Family, report: Report) -> Result<String> {
    let (pid, at) = (std::process::id(), now_us());
    let Report { kind, role, what, cause, evidence, done, lost, next, outcome, open } = report;
    let role = role.chars().filter(|c| !c.is_control()).take(100).collect();
    let id = format!("{at:016}-{pid}");
    let closed_at = (!open).then_some(at);
    let (count, last_at) = (1, at);
    let new = Incident {
        id,
        at,
        kind,
        role,
        pid,
        what,
        outcome,
        count,
        last_at,
        closed_at,
        cause,
        evidence,
        done,
        lost,
        next,
    };
    write(family, &new)?;
    Ok(new.id)
}

/// Closes what this process left open, for it has the database open again.
pub(crate) fn close_own(family: &Family) -> Result<()> {
    let pid = std::process::id();
    for incident in list(family)?.into_iter().filter(|i| i.pid == pid && i.is_open()) {
        write(family, &Incident { closed_at: Some(now_us()), ..incident })?;
    }
    Ok(())
}

/// Closes an incident that somebody has looked at; false if there is none with this name.
///
/// # Errors
/// [`Error::Io`], or a refusal of the side directory.
pub fn close(family: &Family, id: &str) -> Result<bool> {
    let Some(incident) = list(family)?.into_iter().find(|i| i.id == id) else { return Ok(false) };
    if incident.is_open() {
        write(family, &Incident { closed_at: Some(now_us()), ..incident })?;
    }
    Ok(true)
}

/// Puts a record in its place, whole and on the disk, and removes what is too much.
fn write(family: &Family, incident: &Incident) -> Result<()> {
    let place = directory(family);
    let path = place.join(format!("{}.json", incident.id));
    let io = |e: std::io::Error| Error::io("write", &path, e);
    let inspected = secure::inspect_place(family)?;
    let side = side::create(&inspected)?;
    side::subdirectory(&inspected, side.as_fd(), DIRECTORY, &place)?;
    let text = serde_json::to_vec(incident).map_err(|e| io(e.into()))?;
    files::replace(&path, &text).map_err(io)?;
    prune(&place, MOST_FILES, MOST_BYTES)?;
    sync_directory(&place)
}

/// Removes the oldest until there are no more than `most` files with `bytes` bytes.
fn prune(directory: &Path, most: usize, bytes: u64) -> Result<()> {
    let (mut files, mut sum) = (0, 0);
    for path in paths(directory)?.iter().rev() {
        // Another process may have removed it.
        let Ok(status) = std::fs::symlink_metadata(path) else { continue };
        files += 1;
        sum += status.len();
        if files > most || sum > bytes {
            let _ = std::fs::remove_file(path);
        }
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    fn family() -> (tempfile::TempDir, Family) {
        let directory = tempfile::tempdir().unwrap();
        let family = Family::of(&directory.path().join("s.db")).unwrap();
        (directory, family)
    }

    fn record(family: &Family, what: &str, outcome: Outcome) {
        super::record(family, "gateway", what.into(), outcome).unwrap();
    }

    #[test]
    fn what_happens_again_within_a_minute_is_one_incident() {
        let (_directory, family) = family();
        assert!(list(&family).unwrap().is_empty());
        for _ in 0..5 {
            record(&family, "byte 128", Outcome::Healed);
        }
        record(&family, "byte 128", Outcome::Fenced);
        record(&family, "the shared range", Outcome::Healed);
        let all = list(&family).unwrap();
        let told: Vec<_> = all.iter().map(|i| (i.kind, i.what.as_str(), i.count)).collect();
        assert_eq!(told[0], (Kind::LocksHealed, "byte 128", 5));
        assert_eq!(told[1..], [(Kind::LocksLost, "byte 128", 1), (Kind::LocksHealed, "the shared range", 1)]);
        assert!(all[0].last_at >= all[0].at && all.is_sorted_by(|a, b| a.id < b.id));
        let long_ago = Incident { last_at: all[0].last_at - 2 * SAME_US, ..all[0].clone() };
        write(&family, &long_ago).unwrap();
        record(&family, "byte 128", Outcome::Healed);
        assert_eq!(list(&family).unwrap().len(), 4, "a minute later it is another one");
    }

    #[test]
    fn a_healed_one_is_closed_at_once_and_a_fenced_one_when_the_process_goes_on() {
        let (_directory, family) = family();
        record(&family, "byte 128", Outcome::Healed);
        assert_eq!(count_open(&family).unwrap(), 0);
        record(&family, "byte 128", Outcome::Fenced);
        assert_eq!(count_open(&family).unwrap(), 1);
        close_own(&family).unwrap();
        assert_eq!(count_open(&family).unwrap(), 0);
        record(&family, "byte 128", Outcome::Fenced);
        assert_eq!(count_open(&family).unwrap(), 1, "it happened again");
        let id = list(&family).unwrap().pop().unwrap().id;
        assert!(close(&family, &id).unwrap() && !close(&family, "nothing").unwrap());
        assert_eq!(count_open(&family).unwrap(), 0);
    }

    #[test]
    fn an_incident_of_another_process_stays_open() {
        let (_directory, family) = family();
        record(&family, "byte 128", Outcome::Fenced);
        let mut other = list(&family).unwrap().pop().unwrap();
        (other.pid, other.id) = (1, "0000000000000001-1".into());
        write(&family, &other).unwrap();
        close_own(&family).unwrap();
        assert_eq!(count_open(&family).unwrap(), 1);
    }

    #[test]
    fn the_oldest_go_first_and_everything_is_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let (_directory, family) = family();
        for n in 0..MOST_FILES + 7 {
            record(&family, &format!("lock {n}"), Outcome::Healed);
        }
        let all = list(&family).unwrap();
        assert_eq!((all.len(), all[0].what.as_str()), (MOST_FILES, "lock 7"));
        let place = directory(&family);
        assert_eq!(place.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        for path in paths(&place).unwrap() {
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        }
        prune(&place, MOST_FILES, 1000).unwrap();
        let left = list(&family).unwrap();
        assert!(!left.is_empty() && left.len() < 10);
        assert_eq!(left.last(), all.last(), "the newest stays");
    }

    #[test]
    fn what_is_no_incident_harms_nobody() {
        let (_directory, family) = family();
        record(&family, "byte 128", Outcome::Healed);
        let place = directory(&family);
        #[expect(clippy::disallowed_methods, reason = "a file that lies there by accident")]
        for (name, content) in [("zz.json", &b"{\"id\": 7"[..]), ("a.json", b"\xff\xfe"), ("note.txt", b"")] {
            std::fs::write(place.join(name), content).unwrap();
        }
        std::os::unix::fs::symlink("/dev/zero", place.join("y.json")).unwrap();
        assert_eq!(list(&family).unwrap().len(), 1);
        record(&family, "byte 128", Outcome::Healed);
        assert_eq!(list(&family).unwrap()[0].count, 2);
    }
}
