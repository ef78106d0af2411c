//! Capturing what other processes have: who is meant, what is told of it, and what could not be done.

use super::find::{self, name};
use super::make::make;
use super::{Capture, TakeError};
use crate::admission::ANCHOR;
use crate::error::Result;
use crate::family::{Family, Member};
use crate::holders::{self, Holder, Standing, Via};
use crate::incidents::{self, Kind, Outcome};
use crate::words::count;
use crate::{files, wal};

/// Whose files are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Those of one process.
    Pid(u32),
    /// Those of every process that has any.
    All,
}

/// What is wanted.
pub struct Wanted<'a> {
    /// Whose files.
    pub whose: Whose,
    /// The role of this process, for the record of what happened.
    pub role: &'a str,
    /// Is told how many bytes of how many were read.
    pub watch: &'a dyn Fn(u64, u64),
}

/// One capture that was made, or was there.
#[derive(Debug)]
pub struct Took {
    /// The capture.
    pub capture: Capture,
    /// True if it was there, and the generation has nothing that it lacks.
    pub already: bool,
    /// The processes that have the files.
    pub pids: Vec<u32>,
    /// What ends the processes, now that they may be ended.
    pub stop: String,
    /// What to type to end them without losing what was written since the copy, in this order.
    pub end: Vec<String>,
    /// True if one of them must not be asked to end, for it could copy its old log over what others have written.
    pub kill: bool,
    /// The incident that tells it.
    pub incident: Option<String>,
}

/// A process of which nothing could be captured.
#[derive(Debug)]
pub struct Failed {
    /// The process.
    pub pid: Option<u32>,
    /// Why.
    pub why: TakeError,
}

/// What was captured.
#[derive(Debug, Default)]
pub struct Taken {
    /// The captures.
    pub captures: Vec<Took>,
    /// What could not be captured.
    pub failed: Vec<Failed>,
    /// What could not be seen, in words.
    pub limits: Vec<String>,
}

/// Captures what other processes have in files of this database that its paths do not name any more. Nobody is stopped or
/// kept waiting for it. Several processes with the same files make one capture.
///
/// # Errors
/// [`TakeError`] when one process was asked for and nothing of it could be captured; or the processes cannot be looked at.
pub fn take(family: &Family, wanted: &Wanted<'_>) -> Result<Taken, TakeError> {
    let mut taken = Taken::default();
    let holders = match wanted.whose {
        Whose::Pid(pid) => vec![asked(family, pid)?],
        Whose::All => {
            let report = holders::scan(family)?;
            taken.limits = report.limits;
            let has_something = |h: &Holder| !h.is_self && !find::only_reads_what_is_there(family, h);
            report.holders.into_iter().filter(has_something).collect()
        }
    };
    each(family, holders, wanted, true, &mut taken);
    match (wanted.whose, taken.captures.is_empty(), taken.failed.pop()) {
        (Whose::Pid(_), true, Some(failed)) => Err(failed.why),
        (_, _, failed) => {
            taken.failed.extend(failed);
            Ok(taken)
        }
    }
}

/// As [`take`] from all other processes, for one who is about to open a database whose main file is missing: whoever can still read
/// what was removed need not be one who would put it back. What comes of it is told by who opens.
pub(crate) fn of_others(family: &Family) -> Result<Taken> {
    let mut taken = Taken::default();
    let holders = holders::scan(family)?.holders.into_iter().filter(|h| !h.is_self).collect();
    each(family, holders, &Wanted { whose: Whose::All, role: "", watch: &|_, _| {} }, false, &mut taken);
    Ok(taken)
}

/// As [`take`], of what this process itself keeps by descriptors of its own and without a connection.
pub(crate) fn own(family: &Family) -> Result<Taken> {
    let mut taken = Taken::default();
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let holders = holders::one(family, pid)?.into_iter().collect();
    each(family, holders, &Wanted { whose: Whose::All, role: "", watch: &|_, _| {} }, false, &mut taken);
    Ok(taken)
}

/// Captures what each of these has. `tells` makes an incident of what was not captured before.
fn each(family: &Family, holders: Vec<Holder>, wanted: &Wanted<'_>, tells: bool, taken: &mut Taken) {
    let denied = |h: &Holder| not_allowed(family, name(h), h.pid);
    for ghost in find::ghosts(holders) {
        let pids: Vec<u32> = ghost.holders.iter().filter_map(|h| u32::try_from(h.pid?).ok()).collect();
        match make(family, &ghost, &denied, wanted.watch) {
            Ok((capture, already)) => {
                let users = users(&ghost);
                let stop = users.iter().map(|h| h.stop.as_str()).collect::<Vec<_>>().join("; ");
                let kill = ghost.holders.iter().any(|h| h.ghost);
                let end = holders::steps(&users, true);
                // An anchor only keeps what somebody else has lost.
                let foreign = ghost.holders.iter().all(|h| h.role.as_deref().is_none_or(|r| r == ANCHOR));
                let idle = ghost.holders.iter().all(|h| find::only_reads_what_is_there(family, h));
                let told = tells && foreign && !already && !idle;
                let incident = told.then(|| report(family, wanted.role, &ghost, &capture)).flatten();
                taken.captures.push(Took { capture, already, pids, stop, end, kill, incident });
            }
            Err(why) => taken.failed.push(Failed { pid: pids.first().copied(), why }),
        }
    }
}

/// Whoever uses the files. An anchor that keeps them lets go by itself when they were copied, and goes on with what the paths name.
fn users(ghost: &find::Ghost) -> Vec<Holder> {
    let others = ghost.holders.iter().filter(|h| h.role.as_deref() != Some(ANCHOR)).cloned().collect::<Vec<_>>();
    if others.is_empty() { ghost.holders.clone() } else { others }
}

/// The process that was asked for, if it has anything to capture.
fn asked(family: &Family, pid: u32) -> Result<Holder, TakeError> {
    let number = i32::try_from(pid).map_err(|_| TakeError::NoProcess { pid })?;
    let found = holders::one(family, number)?;
    let who = found.as_ref().map_or_else(|| format!("PID {pid}"), name);
    if let Some(holder) = found {
        if holder.is_self {
            return Err(TakeError::Own { who });
        }
        if !find::sets(&holder).is_empty() {
            return Ok(holder);
        }
        if holder.files.iter().any(|f| f.member == Member::Shm && f.generation == Standing::Retired) {
            return Err(TakeError::OnlyIndex { who });
        }
        if holder.files.iter().all(|f| f.via != Via::Lock) {
            return Err(TakeError::Nothing { who });
        }
    }
    match rustix::fs::open(
        format!("/proc/{pid}/fd"),
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    ) {
        Err(rustix::io::Errno::NOENT) => Err(TakeError::NoProcess { pid }),
        Err(rustix::io::Errno::ACCESS | rustix::io::Errno::PERM) => Err(not_allowed(family, who, Some(number))),
        _ => Err(TakeError::Nothing { who }),
    }
}

fn not_allowed(family: &Family, who: String, pid: Option<i32>) -> TakeError {
    TakeError::NotAllowed { who, command: format!("sudo {}", holders::capture_command(family, pid)) }
}

/// True if a checkpoint of the captured log has come half-way, as one does that a reader holds up.
fn is_half_copied(family: &Family, capture: &Capture) -> bool {
    let lacking = files::open(&family.main()).and_then(|main| wal::lacking(&main, &files::open(&capture.log())?));
    lacking.is_ok_and(|l| l.torn)
}

/// Writes down that it happened. A record that cannot be written makes the capture no worse.
fn report(family: &Family, role: &str, ghost: &find::Ghost, capture: &Capture) -> Option<String> {
    let manifest = &capture.manifest;
    let names: Vec<String> = ghost.holders.iter().map(name).collect();
    let names = names.join(", ");
    let end: Vec<String> = holders::steps(&users(ghost), true).iter().map(|line| format!("`{line}`")).collect();
    let why = match ghost.holders.iter().any(|h| h.ghost) {
        true if manifest.shares_log() => format!(", {}", holders::SHARED_LOG),
        true => format!(", {}", holders::NOT_ORDERLY),
        false => String::new(),
    };
    let replaced = manifest.members.iter().any(|m| m.member == Member::Main && (m.replaced || m.deleted));
    let members: Vec<String> = manifest.members_lost.iter().map(ToString::to_string).collect();
    let path = crate::shell::word(&family.main().display().to_string());
    let mut evidence = vec![format!(
        "{}: {} in {} of its log",
        capture.place.display(),
        count(manifest.transactions, "transaction"),
        count(manifest.frames, "frame")
    )];
    let identity = |m: &Member| Some(format!("{m}: inode {}", manifest.generation.get(*m)?.inode));
    evidence.extend(manifest.members_lost.iter().filter_map(identity));
    let id = &capture.id;
    let merge = format!("`statehouse retired merge {id} {path}`");
    let restore = format!("`statehouse restore {id} {path}`");
    let back = match manifest.sound == Some(true) && is_half_copied(family, capture) {
        true => format!(
            "A part of its log is in the main file and the rest is not, so without the process the database may be damaged. The \
             capture is whole: put all of it in its place: {restore}. If `show` finds the database sound, bring the rows back: {merge}"
        ),
        false if manifest.sound == Some(true) => {
            format!(
                "Bring it back: {merge}; where that finds the database itself damaged, put all of the capture in its place: {restore}"
            )
        }
        false => format!("Bring it back: {merge}"),
    };
    let incident = incidents::Report {
        kind: if replaced { Kind::ReplacedFile } else { Kind::RetiredGeneration },
        role: role.to_owned(),
        what: format!("files of {names} ({})", members.join(", ")),
        cause: "they were removed or replaced while the process used them; what did it is not known".into(),
        evidence,
        done: format!("what it had committed until then was captured as {}", capture.id),
        // What can be known of it is what the comparison says.
        lost: None,
        next: format!(
            "End the process, which has its files until then{why}: {}. See what only the capture has: `statehouse retired show {id} \
             {path}`. {back}",
            end.join(", then "),
            id = capture.id
        ),
        outcome: Outcome::Waits,
        open: true,
    };
    let id = incidents::report(family, incident).ok()?;
    super::place::give_as(family, &capture.place, &incidents::path(family, &id));
    Some(id)
}
