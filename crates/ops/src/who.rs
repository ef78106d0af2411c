//! Who uses a database, in words for one who waits for it in vain. SQLite says neither how long it waited nor for whom.

use std::path::Path;
use std::time::Instant;

use statehouse_sqlite::holders::{self, Holder};
use statehouse_sqlite::{Error, Family, Member};

/// A process as a person would name it.
pub fn name(h: &Holder) -> String {
    let program = h.command.first().map(|c| Path::new(c).file_name().unwrap_or(c.as_ref()).to_string_lossy());
    let what = h.role.clone().or_else(|| program.map(|p| p.into_owned()));
    match (h.pid, what) {
        (Some(pid), Some(what)) => format!("PID {pid} ({what})"),
        (Some(pid), None) => format!("PID {pid}"),
        (None, _) => "a process that is not visible here".to_owned(),
    }
}

/// Whoever holds the lock of writers, or else everybody who uses the database, with what stops each; `None` if nobody is seen.
pub fn holds(family: &Family) -> Option<String> {
    let others: Vec<Holder> =
        holders::scan(family).ok()?.holders.into_iter().filter(|h| !h.is_self && !h.files.is_empty()).collect();
    let named = |h: &Holder| format!("{}; {}", name(h), h.to_stop());
    if let Some(writer) = others.iter().find(|h| h.locks.write) {
        return Some(named(writer));
    }
    let all: Vec<String> = others.iter().map(named).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Whoever is in a transaction that writes, with what stops it; `None` if nobody is seen.
pub fn writes(family: &Family) -> Option<String> {
    let writing = |h: &&Holder| {
        let journal = h.files.iter().any(|f| f.member == Member::Journal && !f.deleted);
        !h.is_self && (journal || h.locks.reserved || h.locks.write)
    };
    let report = holders::scan(family).ok()?;
    report.holders.iter().find(writing).map(|h| format!("{}; to stop it: {}", name(h), h.stop))
}

/// Says of a lock that was waited for in vain since `begun` who holds it, where nobody has said so yet.
pub fn named(e: Error, family: &Family, begun: Instant) -> Error {
    match e {
        Error::Busy { holder: None, waited } => {
            Error::Busy { waited: waited.max(begun.elapsed()), holder: holds(family) }
        }
        e => e,
    }
}
