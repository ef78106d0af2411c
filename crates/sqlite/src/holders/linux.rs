//! Linux: from what each process has to who holds the database, and how sure that is.

use std::time::Duration;

use rustix::fs::{Mode, OFlags};

use super::describe::{About, file_locks, held_locks};
use super::walk::{Facts, FileId, Seen, Target, Walker};
use super::{Evidence, HeldFile, Holder, Namespace, Report, Standing, Verdict, Via, judge};
use crate::error::Result;
use crate::family::{Family, Member, Status};
use crate::holders::text::Lock;
use crate::ofd::{self, DMS, SHARED};
use crate::process::{Powers, ProcessId, Stat};

/// How often something is looked at before it is called wrong, and the time between: an opener that lost the processor
/// between two system calls looks naked for as long as it waits.
const LOOKS: usize = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

/// How often the whole machine is looked at again because something is not explained. Between the look at the descriptors and
/// the one at the table of locks busy writers have taken and released others, and the kernel hands the table out a page at a
/// time; only what is unexplained each time is.
const SCANS: usize = 8;

/// A process that may not be looked at.
struct Opaque {
    pid: i32,
    stat: Stat,
}

/// Locks that nobody was seen to hold.
struct Unexplained {
    unowned: Vec<(Member, FileId, Lock)>,
    owners: Vec<i32>,
}

/// One look at everything.
struct Picture {
    target: Target,
    holders: Vec<Facts>,
    opaque: Vec<Opaque>,
    pids: Vec<i32>,
    locks: Vec<(Member, FileId, Lock)>,
}

fn picture(walker: &mut Walker, family: &Family, maps: bool) -> Result<Picture> {
    let target = Target::of(family)?;
    let pids = walker.processes()?;
    let (mut holders, mut opaque) = (Vec::new(), Vec::new());
    for &pid in &pids {
        match walker.look(&target, pid, maps) {
            Seen::Holder(facts) => holders.push(facts),
            Seen::Denied(stat) => opaque.push(Opaque { pid, stat }),
            Seen::Nothing => {}
        }
    }
    Ok(Picture { target, holders, opaque, pids, locks: Vec::new() })
}

pub(super) fn dangerous(family: &Family) -> Result<Vec<Holder>> {
    let mut walker = Walker::new()?;
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let mut picture = picture(&mut walker, family, false)?;
    picture.holders.retain(|f| f.process.pid != own && suspicious(f));
    let mut dangerous = Vec::new();
    if picture.holders.is_empty() {
        return Ok(dangerous);
    }
    let about = About::read(family);
    for facts in picture.holders {
        let Some(facts) = confirm(&mut walker, family, facts)? else { continue };
        let holder = about.holder(&mut walker, facts);
        if holder.naked && !holder.fenced || holder.ghost {
            dangerous.push(holder);
        }
    }
    Ok(dangerous)
}

pub(super) fn mapping_index(family: &Family) -> Result<Vec<i32>> {
    let mut walker = Walker::new()?;
    let target = Target::of(family)?;
    let pids = walker.processes()?;
    Ok(pids.into_iter().filter(|pid| walker.maps_index(&target, *pid)).collect())
}

pub(super) fn scan(family: &Family) -> Result<Report> {
    let mut walker = Walker::new()?;
    let mut picture = picture_with_locks(&mut walker, family)?;
    let mut unexplained = Unexplained { unowned: picture.unowned(), owners: picture.unseen_owners() };
    for _ in 1..SCANS {
        if picture.explains(&unexplained) {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        picture = picture_with_locks(&mut walker, family)?;
        unexplained.keep(&picture);
    }
    let about = About::read(family);
    let mut holders = Vec::new();
    for facts in std::mem::take(&mut picture.holders) {
        let id = facts.process;
        if !suspicious(&facts) {
            holders.push(about.holder(&mut walker, facts));
            continue;
        }
        if let Some(facts) = confirm(&mut walker, family, facts)? {
            holders.push(about.holder(&mut walker, facts));
            continue;
        }
        // It looked wrong and did not stay so: it was opening or closing. It is shown as it is now, if it is still there, and
        // one more passing look is no proof against it.
        if let Seen::Holder(facts) = walker.look(&picture.target, id.pid, true)
            && facts.process == id
        {
            holders.push(Holder { naked: false, ghost: false, ..about.holder(&mut walker, facts) });
        }
    }
    Ok(conclude(&mut walker, family, &about, picture, unexplained, holders))
}

fn picture_with_locks(walker: &mut Walker, family: &Family) -> Result<Picture> {
    let mut picture = picture(walker, family, true)?;
    let table = walker.lock_table()?;
    let target = &picture.target;
    let of_family = |l: Lock| target.shown(l.device, l.inode).map(|(member, id)| (member, id, l));
    picture.locks = table.into_iter().filter_map(of_family).collect();
    Ok(picture)
}

impl Picture {
    /// Locks of open file descriptions that no process was seen to hold.
    fn unowned(&self) -> Vec<(Member, FileId, Lock)> {
        let key = |id: FileId, l: &Lock| (id, l.write, l.start, l.end);
        let mut seen: Vec<_> =
            self.holders.iter().flat_map(|h| &h.locks).filter(|(_, l)| l.ofd).map(|(id, l)| key(*id, l)).collect();
        let mut unowned = Vec::new();
        for &(member, id, lock) in self.locks.iter().filter(|(_, _, l)| l.ofd || l.pid <= 0) {
            match seen.iter().position(|s| *s == key(id, &lock)) {
                Some(at) => drop(seen.swap_remove(at)),
                None => unowned.push((member, id, lock)),
            }
        }
        unowned
    }

    /// Owners of process locks that were not seen to hold a file.
    fn unseen_owners(&self) -> Vec<i32> {
        let known = |pid: i32| self.holders.iter().any(|h| h.process.pid == pid);
        let mut pids: Vec<i32> =
            self.locks.iter().filter(|(_, _, l)| !l.ofd && l.pid > 0 && !known(l.pid)).map(|(_, _, l)| l.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// True if all locks are explained by what was seen, or by processes that cannot be seen.
    fn explains(&self, unexplained: &Unexplained) -> bool {
        let opaque = |pid: &i32| self.opaque.iter().any(|o| o.pid == *pid) || !self.pids.contains(pid);
        unexplained.unowned.is_empty() && unexplained.owners.iter().all(opaque)
    }
}

impl Unexplained {
    /// Keeps only what another look could not explain either.
    fn keep(&mut self, picture: &Picture) {
        let mut again = picture.unowned();
        self.unowned.retain(|(_, id, lock)| {
            let same = |(_, i, l): &(Member, FileId, Lock)| {
                (*i, l.write, l.start, l.end) == (*id, lock.write, lock.start, lock.end)
            };
            again.iter().position(same).map(|at| again.swap_remove(at)).is_some()
        });
        let owners = picture.unseen_owners();
        self.owners.retain(|pid| owners.contains(pid));
    }
}

fn suspicious(facts: &Facts) -> bool {
    let (naked, ghost) = judge(&facts.files, &file_locks(facts));
    naked || ghost
}

/// Looks at one process again and again. Returns what was seen last if it was the same process with the same files and
/// wrong every time, else `None`.
fn confirm(walker: &mut Walker, family: &Family, mut facts: Facts) -> Result<Option<Facts>> {
    for _ in 1..LOOKS {
        std::thread::sleep(BETWEEN_LOOKS);
        let target = Target::of(family)?;
        match walker.look(&target, facts.process.pid, true) {
            Seen::Holder(again) if again.process == facts.process && same_wrong(&facts, &again) => facts = again,
            _ => return Ok(None),
        }
    }
    Ok(Some(facts))
}

/// True if both looks found the same thing wrong with the same files.
fn same_wrong(before: &Facts, after: &Facts) -> bool {
    let (naked, ghost) = judge(&before.files, &file_locks(before));
    let (still_naked, still_ghost) = judge(&after.files, &file_locks(after));
    let kept = |wanted: fn(&HeldFile) -> bool| {
        let same =
            |f: &&HeldFile| after.files.iter().any(|a| (a.member, a.device, a.inode) == (f.member, f.device, f.inode));
        before.files.iter().filter(|f| wanted(f)).any(|f| same(&f))
    };
    (naked && still_naked && kept(|f| f.member == Member::Shm))
        || (ghost && still_ghost && kept(|f| f.generation == Standing::Retired))
}

fn table_files(locks: &[(Member, FileId, Lock)]) -> Vec<HeldFile> {
    let mut files: Vec<HeldFile> = Vec::new();
    for &(member, id, lock) in locks {
        match files.iter_mut().find(|f| f.member == member) {
            Some(file) => file.writable |= lock.write,
            None => files.push(HeldFile {
                member,
                generation: Standing::Current,
                deleted: false,
                via: Via::Lock,
                descriptor: None,
                writable: lock.write,
                size: None,
                device: id.0,
                inode: id.1,
            }),
        }
    }
    files
}

/// Adds who shows only by a lock, clears whom nothing speaks against, and says how sure all that is.
fn conclude(
    walker: &mut Walker,
    family: &Family,
    about: &About,
    picture: Picture,
    unexplained: Unexplained,
    mut holders: Vec<Holder>,
) -> Report {
    let Unexplained { unowned, owners } = unexplained;
    let mut limits = Vec::new();
    let by_lock = |holder: &mut Holder, locks: &[(Member, FileId, Lock)]| {
        holder.files = table_files(locks);
        holder.locks = held_locks(&locks.iter().map(|(m, _, l)| (*m, *l)).collect::<Vec<_>>());
        let index = holder.files.iter().any(|f| f.member == Member::Shm);
        holder.naked = index && !(holder.locks.shared && holder.locks.dms);
    };
    let seen = |pid: i32| picture.pids.contains(&pid) && !picture.opaque.iter().any(|o| o.pid == pid);
    for pid in owners {
        // Whoever can be looked at and has no file of the family any more has just let go.
        if seen(pid) {
            continue;
        }
        let start_ticks = walker.read(pid, "stat").and_then(Stat::parse).map_or(0, |s| s.start_ticks);
        let locks: Vec<_> = picture.locks.iter().copied().filter(|(_, _, l)| l.pid == pid).collect();
        let mut holder = about.stranger(walker, Some(ProcessId { pid, start_ticks }));
        by_lock(&mut holder, &locks);
        holders.push(holder);
    }
    if !unowned.is_empty() {
        let mut holder = about.stranger(walker, None);
        holder.pid_namespace = if picture.opaque.is_empty() { Namespace::Other } else { Namespace::Unknown };
        by_lock(&mut holder, &unowned);
        // Several owners may be behind these locks, so a missing one says nothing about any of them.
        holder.naked = false;
        holders.push(holder);
    }
    if about.own_namespace != Some(INITIAL_PID_NAMESPACE) {
        match hidden_locks(family, &picture, about.own) {
            Some(hidden) if !hidden.is_empty() => {
                let mut holder = about.stranger(walker, None);
                holder.pid_namespace = Namespace::Other;
                by_lock(&mut holder, &hidden);
                holder.naked = false;
                holders.push(holder);
            }
            Some(_) => {}
            None => limits.push(
                "locks of hidden processes were not asked for, because that could drop this process's own".to_owned(),
            ),
        }
        limits.push(
            "this is not the machine's own pid namespace: a process outside it is not listed, and shows only by a lock \
             that no listed process has too"
                .to_owned(),
        );
    }
    let owner = Status::of(&family.main()).ok().flatten();
    let mut unclear = Vec::new();
    for opaque in &picture.opaque {
        if holders.iter().any(|h| h.pid == Some(opaque.pid)) {
            continue;
        }
        let status = walker.read(opaque.pid, "status").map(Powers::parse);
        let may_open = match (status.flatten(), owner) {
            (Some(powers), Some(main)) => powers.any_file || powers.euid == main.uid || main.mode & 0o077 != 0,
            _ => true,
        };
        if !may_open {
            continue;
        }
        let command = walker.read(opaque.pid, "cmdline").unwrap_or(b"").to_vec();
        let speaks = named_member(&picture.target, &command).is_some();
        if speaks {
            let id = ProcessId { pid: opaque.pid, start_ticks: opaque.stat.start_ticks };
            let mut holder = about.stranger(walker, Some(id));
            holder.evidence = Evidence::Argv;
            holders.push(holder);
        }
        if speaks || !unowned.is_empty() {
            unclear.push(opaque.pid);
        }
    }
    let path = family.main().display().to_string();
    if !picture.opaque.is_empty() {
        limits.push(format!(
            "the descriptors of {} processes of other users cannot be listed; one that holds no lock could hide there: \
             sudo statehouse holders {}",
            picture.opaque.len(),
            quoted(&path)
        ));
    }
    if !unclear.is_empty() {
        let pids: Vec<String> = unclear.iter().map(i32::to_string).collect();
        limits.push(format!("not cleared: pid {}", pids.join(", ")));
    }
    if !picture.pids.contains(&1) {
        limits.push("/proc hides the processes of other users (hidepid): they show only by their locks".to_owned());
    }
    if about.members_unread {
        limits.push("the records of our own processes cannot be read, so roles are missing".to_owned());
    }
    holders.sort_by_key(|h| (h.pid.is_none(), h.pid));
    let verdict = match (unclear.is_empty(), holders.is_empty()) {
        (false, _) => Verdict::Unknown,
        (true, true) => Verdict::Quiet,
        (true, false) => Verdict::Held,
    };
    Report { path, verdict, uninspected: picture.opaque.len(), limits, holders }
}

/// The two locks of a generation, where the kernel says that they are taken and `/proc/locks` has nobody for them: it leaves
/// out what belongs to a process of a pid namespace that is not seen from here. `None` if it was not asked, because the
/// question needs an ordinary descriptor, whose close would drop locks that this process has by itself.
fn hidden_locks(family: &Family, picture: &Picture, own: i32) -> Option<Vec<(Member, FileId, Lock)>> {
    let main = Status::of(&family.main()).ok().flatten()?.identity;
    let protected = crate::locks::in_use(main.device, main.inode);
    if !protected && picture.locks.iter().any(|(_, _, l)| l.pid == own) {
        return None;
    }
    let mut hidden = Vec::new();
    for (member, range) in [(Member::Main, SHARED), (Member::Shm, DMS)] {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let path = family.path(member);
        let regular = |s: Status| s.kind() == rustix::fs::FileType::RegularFile;
        let Some(status) = Status::of(&path).ok().flatten().filter(|s| regular(*s)) else { continue };
        let Ok(file) = rustix::fs::open(&path, flags, Mode::empty()) else { continue };
        let known = picture.locks.iter().any(|(m, _, l)| *m == member && l.touches(range));
        if let Ok(Some(conflict)) = ofd::conflict(&file, ofd::Kind::Write, range)
            && !known
        {
            let id = (status.identity.device, status.identity.inode);
            let write = conflict.kind == ofd::Kind::Write;
            let (start, end) = (range.start, range.last());
            let lock = Lock { ofd: false, write, pid: 0, device: (0, 0), inode: id.1, start, end };
            hidden.push((member, id, lock));
        }
    }
    Some(hidden)
}

/// `PROC_PID_INIT_INO` of `linux/proc_ns.h`.
const INITIAL_PID_NAMESPACE: u64 = 0xefff_fffc;

/// An argument that is the path of a member, alone or after the `=` of an option.
fn named_member(target: &Target, command: &[u8]) -> Option<Member> {
    command.split(|b| *b == 0).find_map(|word| {
        let after = word.iter().position(|b| *b == b'=').map(|at| &word[at + 1..]);
        target.member_named(word).or_else(|| target.member_named(after?))
    })
}

/// A path as one word of a shell.
fn quoted(path: &str) -> String {
    if path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-".contains(&b)) {
        path.to_owned()
    } else {
        format!("'{}'", path.replace('\'', "'\\''"))
    }
}
