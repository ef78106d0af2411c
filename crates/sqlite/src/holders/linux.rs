//! Linux: one look at everything, again where something moved meanwhile, and what looks wrong again and again.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::conclude::conclude;
use super::describe::{About, file_locks, held_locks};
use super::probe;
use super::target::{FileId, Target};
use super::text::Lock;
use super::walk::{Facts, Opaque, Seen, Walker};
use super::{HeldFile, Holder, Report, Standing, judge};
use crate::error::Result;
use crate::family::{Family, Member};
use crate::ofd::WAL_CHECKPOINT;

/// How often something is looked at before it is called wrong, and the time between: an opener that lost the processor
/// between two system calls looks naked for as long as it waits.
const LOOKS: usize = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

/// How often the whole machine is looked at again because something is not explained. Between the look at the descriptors and
/// the one at the table of locks busy writers have taken and released others, and the kernel hands the table out a page at a
/// time; only what is unexplained each time is.
const SCANS: usize = 8;

/// From so many processes on they are shared out among threads, and so many are taken at a time.
const MANY: usize = 128;
const SHARE: usize = 16;
const THREADS: usize = 4;

/// The checkpointer's byte, as the table of locks has it.
const BYTE: (i64, i64) = (WAL_CHECKPOINT.start, WAL_CHECKPOINT.start);

/// One look at everything.
pub(super) struct Picture {
    pub(super) target: Target,
    pub(super) holders: Vec<Facts>,
    pub(super) opaque: Vec<Opaque>,
    pub(super) pids: Vec<i32>,
    /// The locks on the family whose owners `/proc` can name, and those of open file descriptions.
    pub(super) locks: Vec<(Member, FileId, Lock)>,
    /// Locks of processes that cannot be seen from here.
    pub(super) hidden: Vec<(Member, FileId, Lock)>,
    pub(super) unasked: Vec<(Member, String)>,
    /// The question had no answer in time.
    pub(super) never_answered: bool,
    pub(super) is_sqlite: Option<bool>,
}

/// What a walk through all processes gave.
#[derive(Default)]
struct Sweep {
    holders: Vec<Facts>,
    opaque: Vec<Opaque>,
}

impl Sweep {
    fn add(&mut self, seen: Seen) {
        match seen {
            Seen::Holder(facts) => self.holders.push(facts),
            Seen::Denied(opaque) => self.opaque.push(opaque),
            Seen::Nothing => {}
        }
    }
}

fn sweep(walker: &mut Walker, target: &Target, pids: &[i32], maps: bool) -> Sweep {
    let next = AtomicUsize::new(0);
    let work = |walker: &mut Walker| {
        let mut sweep = Sweep::default();
        while let Some(share) = pids.chunks(SHARE).nth(next.fetch_add(1, Ordering::Relaxed)) {
            share.iter().for_each(|pid| sweep.add(walker.look(target, *pid, maps)));
        }
        sweep
    };
    if pids.len() < MANY {
        return work(walker);
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS);
    std::thread::scope(|scope| {
        // A thread that cannot be had leaves its share to the others.
        let spawn = |_| {
            let mut walker = Walker::new().ok()?;
            std::thread::Builder::new().spawn_scoped(scope, move || work(&mut walker)).ok()
        };
        let helpers: Vec<_> = (1..threads).filter_map(spawn).collect();
        let mut all = work(walker);
        for sweep in helpers.into_iter().filter_map(|h| h.join().ok()) {
            all.holders.extend(sweep.holders);
            all.opaque.extend(sweep.opaque);
        }
        all
    })
}

/// One look at all processes and all locks.
fn picture(walker: &mut Walker, family: &Family) -> Result<Picture> {
    let target = Target::of(family)?;
    let pids = walker.processes()?;
    let Sweep { holders, opaque } = sweep(walker, &target, &pids, true);
    let table = walker.lock_table()?;
    let of_family = |l: Lock| target.shown(l.device, l.inode).map(|(member, id)| (member, id, l));
    let locks = table.into_iter().filter_map(of_family).collect();
    let own = walker.own();
    let answer = probe::ask(family);
    let mut picture = Picture {
        target,
        holders,
        opaque,
        pids,
        locks,
        hidden: Vec::new(),
        unasked: answer.unasked,
        never_answered: answer.never_answered,
        is_sqlite: answer.is_sqlite,
    };
    // Numbers of processes mean the same to the child and to `/proc` if both are of one pid namespace.
    let same_numbers = own == Some(rustix::process::getpid().as_raw_nonzero().get());
    picture.compare(&answer.conflicts, same_numbers);
    Ok(picture)
}

impl Picture {
    /// Compares the table of locks with what the kernel answered about each range. What the table lacks is added to it where
    /// the owner has a number here, and is hidden otherwise.
    fn compare(&mut self, conflicts: &[probe::Conflict], same_numbers: bool) {
        for c in conflicts {
            // A path that names another file by now is for the next look.
            if self.target.current(c.file) != Some(c.member) {
                continue;
            }
            let in_table =
                self.locks.iter().filter(|(m, _, l)| *m == c.member && l.touches(c.range)).map(|(_, _, l)| l);
            let in_descriptors = self.holders.iter().flat_map(|h| h.locks.iter());
            let in_descriptors = in_descriptors.filter(|(id, l)| *id == c.file && l.touches(c.range)).map(|(_, l)| l);
            let mut seen = in_table.chain(in_descriptors);
            let known = match c.pid {
                -1 => seen.any(|l| l.ofd),
                pid if pid > 0 => {
                    seen.any(|l| !l.ofd && (l.pid == pid || !same_numbers))
                        || same_numbers && self.holders.iter().any(|h| h.process.pid == pid)
                }
                // The owner has no number in the namespace of this process, but in that of `/proc`, if they are two.
                0 => !same_numbers && seen.any(|l| !l.ofd && l.pid > 0),
                _ => false,
            };
            if known {
                continue;
            }
            let (start, end) = (c.range.start, c.range.last());
            let lock =
                Lock { ofd: c.pid == -1, write: c.write, pid: c.pid, device: (0, 0), inode: c.file.1, start, end };
            let named = c.pid == -1 || c.pid > 0 && same_numbers;
            if named { &mut self.locks } else { &mut self.hidden }.push((c.member, c.file, lock));
        }
    }

    /// Locks of open file descriptions that no process was seen to hold.
    pub(super) fn unowned(&self) -> Vec<(Member, FileId, Lock)> {
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
    pub(super) fn unseen_owners(&self) -> Vec<i32> {
        let known = |pid: i32| self.holders.iter().any(|h| h.process.pid == pid);
        let mut pids: Vec<i32> =
            self.locks.iter().filter(|(_, _, l)| !l.ofd && l.pid > 0 && !known(l.pid)).map(|(_, _, l)| l.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Looks once more at those who own a lock and have shown no file: they came after the processes were listed, or have it
    /// in a thread with descriptors of its own.
    fn look_at_owners(&mut self, walker: &mut Walker) {
        let opaque = |pid: i32| self.opaque.iter().any(|o| o.pid == pid);
        let owners: Vec<i32> = self.unseen_owners().into_iter().filter(|pid| !opaque(*pid)).collect();
        for pid in owners {
            match again(walker, &self.target, pid) {
                Seen::Holder(facts) => self.holders.push(facts),
                Seen::Denied(opaque) => self.opaque.push(opaque),
                Seen::Nothing if walker.read(pid, "stat").is_none() => continue,
                Seen::Nothing => {}
            }
            if !self.pids.contains(&pid) {
                self.pids.push(pid);
            }
        }
    }
}

/// What no look could explain.
pub(super) struct Unexplained {
    /// Locks of open file descriptions.
    pub(super) unowned: Vec<(Member, FileId, Lock)>,
    /// Locks of processes that cannot be seen from here.
    pub(super) hidden: Vec<(Member, FileId, Lock)>,
    /// Processes that own locks and showed no file.
    pub(super) owners: Vec<i32>,
}

impl Unexplained {
    fn of(picture: &Picture) -> Unexplained {
        Unexplained { unowned: picture.unowned(), hidden: picture.hidden.clone(), owners: picture.unseen_owners() }
    }

    /// Keeps only what another look could not explain either.
    fn keep(&mut self, picture: &Picture) {
        let both = |known: &mut Vec<(Member, FileId, Lock)>, mut again: Vec<(Member, FileId, Lock)>| {
            let key = |id: FileId, l: &Lock| (id, l.write, l.start, l.end);
            known.retain(|(_, id, lock)| {
                let same = |(_, i, l): &(Member, FileId, Lock)| key(*i, l) == key(*id, lock);
                again.iter().position(same).map(|at| again.swap_remove(at)).is_some()
            });
        };
        both(&mut self.unowned, picture.unowned());
        both(&mut self.hidden, picture.hidden.clone());
        let owners = picture.unseen_owners();
        self.owners.retain(|pid| owners.contains(pid));
    }

    /// True if another look has nothing to explain: whoever may not be looked at shows no file in that one either.
    fn nothing_for(&self, picture: &Picture) -> bool {
        let opaque = |pid: &i32| picture.opaque.iter().any(|o| o.pid == *pid);
        self.unowned.is_empty() && self.hidden.is_empty() && self.owners.iter().all(opaque)
    }
}

/// Looks until every lock has an owner, or it has often been looked for in vain.
fn settled(walker: &mut Walker, family: &Family) -> Result<(Picture, Unexplained)> {
    let mut now = picture(walker, family)?;
    now.look_at_owners(walker);
    let mut unexplained = Unexplained::of(&now);
    for _ in 1..SCANS {
        if unexplained.nothing_for(&now) {
            break;
        }
        std::thread::sleep(BETWEEN_LOOKS);
        now = picture(walker, family)?;
        now.look_at_owners(walker);
        unexplained.keep(&now);
    }
    Ok((now, unexplained))
}

/// True if a process that shows by its locks alone lacks one of the two every time that it is looked at.
pub(super) fn stays_naked(walker: &mut Walker, target: &Target, pid: i32) -> Result<bool> {
    for _ in 1..LOOKS {
        std::thread::sleep(BETWEEN_LOOKS);
        let table = walker.lock_table()?;
        let own = table.into_iter().filter(|l| l.pid == pid && !l.ofd);
        let locks: Vec<_> =
            own.filter_map(|l| Some((target.shown(l.device, l.inode).map(|(member, _)| member)?, l))).collect();
        let index = locks.iter().any(|(member, _)| *member == Member::Shm);
        let held = held_locks(&locks);
        if !index || held.shared && held.dms {
            return Ok(false);
        }
    }
    Ok(true)
}

pub(super) fn dangerous(family: &Family) -> Result<Vec<Holder>> {
    let pids = Walker::new()?.processes()?;
    dangerous_among(family, pids)
}

pub(super) fn dangerous_among(family: &Family, pids: Vec<i32>) -> Result<Vec<Holder>> {
    let mut walker = Walker::new()?;
    let own = walker.own();
    let target = Target::of(family)?;
    let mut holders = sweep(&mut walker, &target, &pids, false).holders;
    holders.retain(|f| Some(f.process.pid) != own && suspicious(f));
    let mut dangerous = Vec::new();
    if holders.is_empty() {
        return Ok(dangerous);
    }
    let mut about = About::read(&mut walker, family);
    for facts in holders {
        let Some(facts) = confirm(&mut walker, family, facts)? else { continue };
        let holder = about.holder(&mut walker, facts);
        if holder.naked && !holder.fenced || holder.ghost {
            dangerous.push(holder);
        }
    }
    Ok(dangerous)
}

/// One look at one process.
pub(super) fn one(family: &Family, pid: i32) -> Result<Option<Holder>> {
    let mut walker = Walker::new()?;
    let target = Target::of(family)?;
    match again(&mut walker, &target, pid) {
        Seen::Holder(facts) => Ok(Some(About::read(&mut walker, family).holder(&mut walker, facts))),
        Seen::Nothing | Seen::Denied(_) => Ok(None),
    }
}

pub(super) fn mapping_index(family: &Family) -> Result<Vec<i32>> {
    let mut walker = Walker::new()?;
    let target = Target::of(family)?;
    let pids = walker.processes()?;
    Ok(pids.into_iter().filter(|pid| walker.maps_index(&target, *pid)).collect())
}

pub(super) fn scan(family: &Family) -> Result<Report> {
    let mut walker = Walker::new()?;
    let (picture, unexplained) = settled(&mut walker, family)?;
    let mut about = About::read(&mut walker, family);
    let mut holders = Vec::new();
    for facts in picture.holders.clone() {
        let id = facts.process;
        if !suspicious(&facts) {
            if !asks(&mut walker, &picture.target, &facts) {
                holders.push(about.holder(&mut walker, facts));
            }
            continue;
        }
        if let Some(facts) = confirm(&mut walker, family, facts)? {
            holders.push(about.holder(&mut walker, facts));
            continue;
        }
        // It looked wrong and did not stay so: it was opening or closing. It is shown as it is now, if it is still there, and
        // one more passing look is no proof against it.
        if let Seen::Holder(facts) = again(&mut walker, &picture.target, id.pid)
            && facts.process == id
        {
            holders.push(Holder { naked: false, ghost: false, ..about.holder(&mut walker, facts) });
        }
    }
    keep_back(&mut holders, &picture.holders);
    conclude(&mut walker, family, &mut about, picture, unexplained, holders)
}

/// Says of whom an anchor keeps the log out of the main file. Nobody else has the checkpointer's byte shared for longer than a moment.
fn keep_back(holders: &mut [Holder], facts: &[Facts]) {
    let shared = |lock: &Lock| lock.ofd && !lock.write && (lock.start, lock.end) == BYTE;
    let braked: Vec<FileId> =
        facts.iter().flat_map(|f| &f.locks).filter(|(_, l)| shared(l)).map(|(id, _)| *id).collect();
    for holder in holders.iter_mut().filter(|h| h.ghost) {
        let index = |f: &HeldFile| f.member == Member::Shm && braked.contains(&(f.device, f.inode));
        holder.kept_back = holder.files.iter().any(index);
    }
}

/// True if this was the child by which another look of the same moment asks about locks. It has the files open for an instant.
fn asks(walker: &mut Walker, target: &Target, facts: &Facts) -> bool {
    let pid = facts.process.pid;
    let named =
        |walker: &mut Walker| walker.read(pid, "comm").is_some_and(|c| c.trim_ascii_end() == probe::NAME.to_bytes());
    if !facts.locks.is_empty() || facts.files.iter().any(|f| f.writable) || !named(walker) {
        return false;
    }
    (1..LOOKS).any(|_| {
        std::thread::sleep(BETWEEN_LOOKS);
        !matches!(walker.look(target, pid, false), Seen::Holder(f) if f.process == facts.process)
    })
}

/// Looks at one process with all its threads.
fn again(walker: &mut Walker, target: &Target, pid: i32) -> Seen {
    match walker.look(target, pid, true) {
        Seen::Nothing => walker.look_at_threads(target, pid),
        seen => seen,
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
        match again(walker, &target, facts.process.pid) {
            Seen::Holder(now) if now.process == facts.process && same_wrong(&facts, &now) => facts = now,
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
