//! From what was seen to the answer: who shows only by a lock, who is cleared, and how sure all that is.
//!
//! Whoever may not be looked at is cleared when every lock on the family has an owner and its command line does not speak for
//! it, or when its user cannot open the file. So an ordinary user beside the ordinary services of root gets an answer, and
//! what stays unproved all the same is said in `limits`.

use rustix::fs::FileType;

use super::argv::{self, Speaks};
use super::describe::{About, held_locks, table_files};
use super::linux::{self, Picture, Unexplained};
use super::target::FileId;
use super::text::Lock;
use super::walk::{Opaque, Walker};
use super::{Evidence, Holder, Namespace, Report, Verdict, elsewhere};
use crate::error::Result;
use crate::family::{Family, Member, Status};
use crate::ofd::Range;
use crate::process::{self, Powers, ProcessId, Stat};
use crate::shell;

/// `PROC_PID_INIT_INO` of `linux/proc_ns.h`.
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;

/// How many processes a sentence names at most.
const NAMED: usize = 10;

/// Locks whose owner was not seen.
#[derive(Debug, Default)]
pub(super) struct Loose(pub(super) Vec<(Member, FileId, Lock)>);

impl Loose {
    pub(super) fn has(&self, range: Range) -> bool {
        self.0.iter().any(|(_, _, l)| l.covers(range))
    }

    /// Takes out one lock that covers the range.
    pub(super) fn take_one(&mut self, range: Range) -> Loose {
        let at = self.0.iter().position(|(_, _, l)| l.covers(range));
        Loose(at.map(|at| self.0.swap_remove(at)).into_iter().collect())
    }
}

/// Who shows by locks alone.
fn by_lock(holder: &mut Holder, locks: &[(Member, FileId, Lock)]) {
    holder.files = table_files(locks);
    holder.locks = held_locks(&locks.iter().map(|(m, _, l)| (*m, *l)).collect::<Vec<_>>());
}

pub(super) fn conclude(
    walker: &mut Walker,
    family: &Family,
    about: &mut About,
    picture: Picture,
    unexplained: Unexplained,
    mut holders: Vec<Holder>,
) -> Result<Report> {
    let mut limits = Vec::new();
    let opaque = |pid: i32| picture.opaque.iter().any(|o| o.pid == pid);
    let inspected = |pid: i32| picture.pids.contains(&pid) && !opaque(pid);
    for pid in unexplained.owners {
        // Whoever can be looked at and has no file of the family any more has just let go.
        if inspected(pid) {
            continue;
        }
        let start_ticks = walker.read(pid, "stat").and_then(Stat::parse).map_or(0, |s| s.start_ticks);
        let locks: Vec<_> = picture.locks.iter().copied().filter(|(_, _, l)| l.pid == pid).collect();
        let mut holder = about.stranger(walker, Some(ProcessId { pid, start_ticks }));
        by_lock(&mut holder, &locks);
        let index = holder.files.iter().any(|f| f.member == Member::Shm);
        holder.naked =
            index && !(holder.locks.shared && holder.locks.dms) && linux::stays_naked(walker, &picture.target, pid)?;
        holders.push(holder);
    }
    let mut unowned = Loose(unexplained.unowned);
    let mut hidden = Loose(unexplained.hidden);
    holders.extend(elsewhere::holders(walker, about, &picture.pids, &inspected, &mut unowned, &mut hidden));
    // Several owners may be behind these locks, so a missing one says nothing about any of them.
    if !unowned.0.is_empty() {
        let mut holder = about.stranger(walker, None);
        holder.pid_namespace = if picture.opaque.is_empty() { Namespace::Other } else { Namespace::Unknown };
        by_lock(&mut holder, &unowned.0);
        holders.push(holder);
    }
    if !hidden.0.is_empty() {
        let mut holder = about.stranger(walker, None);
        holder.pid_namespace = Namespace::Other;
        if hidden.0.iter().any(|(_, _, l)| l.pid < -1) {
            holder.stop = "statehouse holders, run on the machine that holds it, names it".to_owned();
        }
        by_lock(&mut holder, &hidden.0);
        holders.push(holder);
    }
    let uncleared = uncleared(walker, family, about, &picture, &unowned, &mut holders);
    limits.extend(words(family, about, &picture, &uncleared));
    holders.sort_by_key(|h| (h.pid.is_none(), h.pid));
    let verdict = match (uncleared.is_empty(), holders.is_empty()) {
        (false, _) => Verdict::Unknown,
        (true, true) => Verdict::Quiet,
        (true, false) => Verdict::Held,
    };
    let path = family.main().display().to_string();
    Ok(Report { path, verdict, uninspected: picture.opaque.len(), limits, holders })
}

/// The processes that may hold it and could not be cleared, the likeliest first. Those whose command line speaks for it
/// become holders by that evidence.
fn uncleared(
    walker: &mut Walker,
    family: &Family,
    about: &mut About,
    picture: &Picture,
    unowned: &Loose,
    holders: &mut Vec<Holder>,
) -> Vec<i32> {
    let doors = Doors::of(family);
    let mut uncleared: Vec<(Speaks, i32)> = Vec::new();
    for &Opaque { pid, start_ticks } in &picture.opaque {
        if holders.iter().any(|h| h.pid == Some(pid)) {
            continue;
        }
        let papers = walker.papers(ProcessId { pid, start_ticks }).unwrap_or_default();
        let powers = Powers::parse(&papers.status);
        if powers.is_some_and(|p| !doors.open_to(p)) {
            continue;
        }
        let user_home = powers.and_then(|p| about.users.home(p.euid));
        let speaks = argv::speaks(&picture.target, &process::command(&papers.command), user_home);
        if speaks >= Speaks::Home {
            let mut holder = about.stranger(walker, Some(ProcessId { pid, start_ticks }));
            holder.evidence = Evidence::Argv;
            holders.push(holder);
        } else if unowned.0.is_empty() || speaks == Speaks::Elsewhere {
            continue;
        }
        uncleared.push((speaks, pid));
    }
    uncleared.sort_by_key(|(speaks, pid)| (std::cmp::Reverse(*speaks), *pid));
    uncleared.into_iter().map(|(_, pid)| pid).collect()
}

/// What stands between a user and the main file: the owner and mode of the file, and of each directory above it.
struct Doors(Vec<(u32, u32)>);

impl Doors {
    fn of(family: &Family) -> Doors {
        let above = family.directory().ancestors().map(std::path::Path::to_owned);
        let door = |path: std::path::PathBuf| Status::of(&path).ok().flatten().map(|s| (s.uid, s.mode, s.kind()));
        // Reading for the file, and passing for a directory. Groups are not asked for: who is in one may be let in.
        let needed = |(uid, mode, kind): (u32, u32, FileType)| {
            (uid, if kind == FileType::Directory { mode & 0o011 } else { mode & 0o066 })
        };
        Doors(above.chain([family.main()]).filter_map(door).map(needed).collect())
    }

    fn open_to(&self, powers: Powers) -> bool {
        powers.any_file || self.0.iter().all(|(uid, others)| *uid == powers.euid || *others != 0)
    }
}

/// What this look could not see.
fn words(family: &Family, about: &About, picture: &Picture, uncleared: &[i32]) -> Vec<String> {
    let mut limits = Vec::new();
    let sudo = format!("sudo statehouse holders {}", shell::word(&family.main().display().to_string()));
    if let Some((first, rest)) = uncleared.split_at_checked(uncleared.len().min(NAMED)).filter(|(f, _)| !f.is_empty()) {
        let pids: Vec<String> = first.iter().map(i32::to_string).collect();
        let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
        limits.push(format!("not cleared: pid {}{more}; this settles it: {sudo}", pids.join(", ")));
    }
    if !picture.opaque.is_empty() {
        // Root is refused only in a container, or by a process that may do more than itself.
        let root = rustix::process::geteuid().is_root();
        let settles = if root { "as root outside any container this shows them all" } else { &sudo };
        limits.push(format!(
            "the descriptors of {} processes of others cannot be listed; one that holds no lock, or has lost its locks, \
             could hide there: {settles}",
            picture.opaque.len(),
        ));
    }
    let initial = about.own_namespace == Some(INITIAL_PID_NAMESPACE);
    if !initial {
        limits.push(
            "this is not the machine's own pid namespace: a process outside it is not listed, and shows only by a lock; \
             of several locks on the same bytes the kernel names only one, so beside a listed process a hidden one may \
             not show"
                .to_owned(),
        );
    }
    for (member, why) in &picture.unasked {
        // In the first namespace the table of locks is whole, for files of this machine at least.
        if !initial || picture.never_answered {
            limits.push(format!("who else has locks on the {member} file could not be asked: {why}"));
        }
    }
    if !picture.pids.contains(&1) {
        limits.push("/proc hides the processes of other users (hidepid): they show only by their locks".to_owned());
    }
    if about.members_unread {
        limits.push("the records of our own processes cannot be read, so roles are missing".to_owned());
    }
    if picture.is_sqlite == Some(false) {
        limits
            .push("the file does not begin as a SQLite database does; what is listed has it open as a file".to_owned());
    }
    limits
}
