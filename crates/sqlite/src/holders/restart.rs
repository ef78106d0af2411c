//! Windows: what the Restart Manager's answers say, and what follows from them.
//!
//! No call of that system is made here, so all of it is tested wherever the crate is built. The Restart Manager names the
//! processes that have a file open or mapped, and no more: neither how they opened it nor which locks they hold. SQLite
//! opens its files so that nobody can remove or replace them meanwhile, so there are no ghosts and no retired files.
//!
//! It was made for installers, and what it leaves out it does not tell. So it must name this very process for a file that
//! this process has open, or nothing is concluded; and where this user may not ask every process, nothing is `quiet`.

use std::path::Path;

use super::{Evidence, HeldFile, HeldLocks, Holder, Namespace, Report, Standing, Verdict, Via};
use crate::family::{Member, Status};
use crate::words::rfc3339;

/// A process that the Restart Manager names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct User {
    pub(super) pid: u32,
    /// In units of 100 ns since 1601.
    pub(super) started: u64,
    /// What the program calls itself.
    pub(super) name: String,
    /// The short name of the service that the process runs; empty if it runs none.
    pub(super) service: String,
}

/// The answer for one member that is there.
pub(super) struct Asked {
    pub(super) member: Member,
    pub(super) status: Status,
    pub(super) users: Result<Vec<User>, String>,
}

/// All that was found out.
pub(super) struct Found {
    pub(super) asked: Vec<Asked>,
    /// The answer for a file that this process has open.
    pub(super) proof: Result<Vec<User>, String>,
    /// Processes that this user may not ask for anything.
    pub(super) uninspected: usize,
    pub(super) own: u32,
}

/// A field of fixed length, up to its first zero. It is a name to show: what is no text becomes a mark.
pub(super) fn text(field: &[u16]) -> String {
    let end = field.iter().position(|c| *c == 0).unwrap_or(field.len());
    String::from_utf16_lossy(&field[..end])
}

/// A path as the Restart Manager takes it, which does not know the prefix that makes a path literal. `None` if it has no
/// such form: without the prefix a long one would be cut.
pub(super) fn plain(path: &str) -> Option<String> {
    /// `MAX_PATH`, with the zero at the end.
    const LONGEST: usize = 260;
    let plain = match path.strip_prefix(r"\\?\") {
        Some(rest) => match rest.strip_prefix(r"UNC\") {
            Some(share) => format!(r"\\{share}"),
            None if rest.as_bytes().get(1) == Some(&b':') => rest.to_owned(),
            None => return None,
        },
        None => path.to_owned(),
    };
    (plain.encode_utf16().count() < LONGEST).then_some(plain)
}

/// True for a path to another machine.
fn remote(path: &str) -> bool {
    path.strip_prefix(r"\\?\").map_or(path.starts_with(r"\\"), |rest| rest.starts_with(r"UNC\"))
}

/// From 1601 to 1970, in microseconds.
const EPOCH: u64 = 11_644_473_600_000_000;

pub(super) fn conclude(main: &Path, found: Found) -> Report {
    let path = main.display().to_string();
    let mut limits = vec![
        "Windows does not tell how a process has opened a file, nor its locks: each holder counts as one that writes, and \
         whether one has lost its locks is not known"
            .to_owned(),
    ];
    let mut blind = Vec::new();
    match &found.proof {
        Ok(users) if users.iter().any(|u| u.pid == found.own) => {}
        Ok(_) => blind.push("the Restart Manager does not name this process for a file that it has open".to_owned()),
        Err(e) => blind.push(format!("the Restart Manager cannot be asked: {e}")),
    }
    if remote(&path) {
        blind.push("it is on another machine, whose processes are not listed here: ask on that machine".to_owned());
    }
    if found.uninspected > 0 {
        blind.push(format!(
            "{} processes of other users cannot be looked at, and any of them may use it: ask again as administrator",
            found.uninspected
        ));
    }
    let mut holders: Vec<Holder> = Vec::new();
    for Asked { member, status, users } in found.asked {
        let users = users.unwrap_or_else(|e| {
            blind.push(format!("who uses {member} cannot be found out: {e}"));
            Vec::new()
        });
        for user in users {
            // One process may be named several times, once for each service that it runs.
            let same = |h: &&mut Holder| h.pid == Some(user.pid.cast_signed());
            let holder = match holders.iter_mut().find(same) {
                Some(known) => known,
                None => {
                    holders.push(holder(&user, found.own));
                    let Some(new) = holders.last_mut() else { continue };
                    new
                }
            };
            if holder.files.iter().all(|f| f.member != member) {
                holder.files.push(file(member, &status));
            }
        }
    }
    holders.sort_by_key(|h| h.pid);
    let verdict = match (blind.is_empty(), holders.is_empty()) {
        (false, _) => Verdict::Unknown,
        (true, true) => Verdict::Quiet,
        (true, false) => Verdict::Held,
    };
    limits.append(&mut blind);
    Report { path, verdict, uninspected: found.uninspected, limits, holders }
}

fn file(member: Member, status: &Status) -> HeldFile {
    HeldFile {
        member,
        generation: Standing::Current,
        deleted: false,
        via: Via::Descriptor,
        descriptor: None,
        writable: true,
        size: Some(status.size),
        device: status.identity.device,
        inode: status.identity.inode,
    }
}

fn holder(user: &User, own: u32) -> Holder {
    let command: Vec<String> = Some(user.name.clone()).filter(|n| !n.is_empty()).into_iter().collect();
    // A service would be started again by its supervisor, so it is stopped there.
    let plain = |c: char| c.is_alphanumeric() || "._-$".contains(c);
    let stop = if !user.service.is_empty() && user.service.chars().all(plain) {
        format!("sc stop {}", user.service)
    } else {
        format!("taskkill /PID {}", user.pid)
    };
    Holder {
        pid: Some(user.pid.cast_signed()),
        start_ticks: None,
        start_time: (user.started / 10).checked_sub(EPOCH).map(rfc3339),
        command,
        user: None,
        role: None,
        fenced: false,
        parked: false,
        is_self: user.pid == own,
        pid_namespace: Namespace::Same,
        files: Vec::new(),
        locks: HeldLocks::default(),
        naked: false,
        ghost: false,
        kept_back: false,
        evidence: Evidence::Identity,
        held_bytes: 0,
        hold: None,
        capture: None,
        stop,
        signal: None,
        halted: false,
    }
}

#[cfg(test)]
#[path = "restart/tests.rs"]
mod tests;
