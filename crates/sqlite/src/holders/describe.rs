//! How a holder is described to a person: who it is, what it is to the database, which of SQLite's locks it holds.

use super::target::FileId;
use super::text::Lock;
use super::walk::{Facts, Walker};
use super::{Evidence, FileLock, HeldFile, HeldLocks, Holder, Namespace, Standing, Via, judge, stop};
use crate::family::{Family, Member};
use crate::members::{self, Record};
use crate::ofd::{DMS, RESERVED, Range, SHARED, WAL_CHECKPOINT, WAL_READ0, WAL_WRITE};
use crate::process::{self, Powers, ProcessId, Users};

pub(super) fn file_locks(facts: &Facts) -> Vec<FileLock> {
    let reduce = |&((device, inode), lock): &(FileId, Lock)| FileLock {
        device,
        inode,
        shared: lock.covers(SHARED),
        dms: lock.covers(DMS),
    };
    facts.locks.iter().map(reduce).collect()
}

/// What is needed to describe a holder to a person.
pub(super) struct About {
    pub(super) own: Option<i32>,
    pub(super) own_namespace: Option<u64>,
    /// In how many pid namespaces this process has a number, from the one of `/proc` down to its own.
    own_depth: usize,
    /// The records of our own processes, and whether the process of each was found.
    pub(super) records: Vec<(Record, bool)>,
    pub(super) members_unread: bool,
    pub(super) users: Users,
    pub(super) boot_id: String,
    boot: Option<std::time::SystemTime>,
}

impl About {
    pub(super) fn read(walker: &mut Walker, family: &Family) -> About {
        let members = members::list(family);
        About {
            own: walker.own(),
            own_namespace: process::namespace("self", "pid"),
            own_depth: walker
                .own()
                .and_then(|own| walker.read(own, "status"))
                .map_or(0, |s| process::namespace_pids(s).len()),
            members_unread: members.is_err(),
            records: members.unwrap_or_default().into_iter().map(|r| (r, false)).collect(),
            users: Users::read(),
            boot_id: members::boot_id(),
            boot: process::boot_time(),
        }
    }

    pub(super) fn holder(&mut self, walker: &mut Walker, facts: Facts) -> Holder {
        let mut holder = self.stranger(walker, Some(facts.process));
        let (naked, ghost) = judge(&facts.files, &file_locks(&facts));
        holder.locks = held_locks(&locks_by_member(&facts));
        holder.naked = naked;
        holder.ghost = ghost && !holder.fenced;
        holder.evidence = Evidence::Identity;
        holder.files = facts.files;
        holder
    }

    /// A process of which no file is known.
    pub(super) fn stranger(&mut self, walker: &mut Walker, id: Option<ProcessId>) -> Holder {
        let mut holder = Holder {
            pid: id.map(|id| id.pid),
            start_ticks: id.map(|id| id.start_ticks).filter(|t| *t > 0),
            start_time: None,
            command: Vec::new(),
            user: None,
            role: None,
            fenced: false,
            parked: false,
            is_self: id.is_some_and(|id| Some(id.pid) == self.own),
            pid_namespace: Namespace::Unknown,
            files: Vec::new(),
            locks: HeldLocks::default(),
            naked: false,
            ghost: false,
            kept_back: false,
            evidence: Evidence::Lock,
            held_bytes: 0,
            hold: None,
            capture: None,
            stop: "sudo statehouse holders, run on the host, names it".to_owned(),
            signal: None,
            halted: false,
        };
        let Some(id) = id else { return holder };
        holder.start_time = self.boot.zip(holder.start_ticks).map(|(boot, ticks)| process::start_time(boot, ticks));
        let papers = walker.papers(id).unwrap_or_default();
        holder.command = process::command(&papers.command);
        let asking = rustix::process::getuid().as_raw();
        holder.stop = stop::stop(
            &stop::Process {
                pid: id.pid,
                command: &holder.command,
                cgroup: &papers.cgroup,
                uid: Some(asking).filter(|u| *u != 0),
            },
            &stop::docker_name,
        );
        let runs_as = Powers::parse(&papers.status).map(|p| p.euid);
        holder.user = runs_as.map(|uid| self.users.name(uid));
        let pids = process::namespace_pids(&papers.status);
        let foreign = asking != 0 && runs_as != Some(asking);
        // The kernel drops even SIGKILL that comes from within to the first process of a pid namespace.
        holder.signal = (pids != [1]).then_some(if foreign { "sudo kill" } else { "kill" });
        holder.halted = halted(&papers.status);
        if let Some(instead) = deaf(id.pid, &pids, &papers.status, &holder.command)
            && holder.stop.starts_with("kill ")
        {
            holder.stop = instead;
        }
        holder.pid_namespace = match (papers.pid_namespace, self.own_namespace) {
            (Some(theirs), Some(ours)) if theirs == ours => Namespace::Same,
            (Some(_), Some(_)) => Namespace::Other,
            _ => by_numbers(&pids, self.own_depth),
        };
        let mut role = None;
        for (record, found) in &mut self.records {
            // A record carries the number that its process has in its own pid namespace. Which one that is cannot be seen
            // of a process of another user; then the number and the start to the tick must do.
            let same_number = match papers.pid_namespace {
                Some(n) if n == record.pid_namespace => {
                    record.process.pid == id.pid || pids.last() == Some(&record.process.pid)
                }
                Some(_) => false,
                None => pids.last() == Some(&record.process.pid),
            };
            if same_number && record.process.start_ticks == id.start_ticks && record.boot_id == self.boot_id {
                *found = true;
                holder.fenced |= record.fenced;
                role.get_or_insert_with(|| record.role.clone());
            }
        }
        if let Some(up) = role.as_deref().and_then(|role| supervisor(role, &holder))
            && holder.stop.starts_with("kill ")
        {
            holder.stop = up;
        }
        // Nobody but root may send a signal to a process of another user; and one of this user's own would say whose it is.
        if foreign && holder.stop.starts_with("kill ") {
            holder.stop.insert_str(0, "sudo ");
        }
        holder.role = role;
        holder
    }
}

/// What stops a service of ours that a supervisor of ours would start again. It tells its services who it is.
fn supervisor(role: &str, holder: &Holder) -> Option<String> {
    let by = holder.command.iter().position(|word| word == "--supervised-by")?;
    let up: u32 = holder.command.get(by + 1)?.parse().ok()?;
    let alone = holder.pid?;
    (holder.pid_namespace == Namespace::Same)
        .then(|| format!("kill {up}  # statehouse up, which starts its {role} again when PID {alone} alone is stopped"))
}

/// What stops the first process of a pid namespace that has no handler for SIGTERM: the kernel drops such a signal, and from
/// within the namespace even SIGKILL (pid_namespaces(7)).
fn deaf(pid: i32, pids: &[i32], status: &[u8], command: &[String]) -> Option<String> {
    let text = status.split(|b| *b == b'\n').find_map(|l| l.strip_prefix(b"SigCgt:"))?;
    let caught = u64::from_str_radix(std::str::from_utf8(text).ok()?.trim(), 16).ok()?;
    if caught & (1 << (rustix::process::Signal::TERM.as_raw() - 1)) != 0 || pids.last() != Some(&1) {
        return None;
    }
    Some(match pids.len() {
        1 => "stop this container from outside: its first process takes no signal from within".to_owned(),
        _ => {
            let line = process::one_line(command);
            format!("kill -9 {pid}  # {line}; the first process of its pid namespace takes no other signal")
        }
    })
}

/// True if a signal has stopped the process (proc_pid_status(5)). A debugger that has it may let it go on at any time.
fn halted(status: &[u8]) -> bool {
    let line = status.split(|b| *b == b'\n').find_map(|l| l.strip_prefix(b"State:"));
    line.is_some_and(|l| l.trim_ascii_start().first().is_some_and(|b| *b == b'T'))
}

/// Where a process lives whose namespace may not be asked for, from its numbers, which everybody may read: one that has a
/// number in the namespace of `/proc` only lives there.
fn by_numbers(pids: &[i32], own_depth: usize) -> Namespace {
    match (pids.len(), own_depth) {
        (1, 1) => Namespace::Same,
        (0, _) | (_, 0) => Namespace::Unknown,
        (theirs, ours) if theirs != ours => Namespace::Other,
        _ => Namespace::Unknown,
    }
}

/// Which of SQLite's locks these are. Bytes of the index are meant only on the index and those of the main file only there,
/// for the ranges overlap in number.
pub(super) fn held_locks(locks: &[(Member, Lock)]) -> HeldLocks {
    let any = |member: Member, range: Range| locks.iter().any(|(m, l)| *m == member && l.touches(range));
    let copies = |(m, l): &(Member, Lock)| *m == Member::Shm && l.write && l.touches(WAL_CHECKPOINT);
    let read_mark = |n: &u8| any(Member::Shm, Range { start: WAL_READ0 + i64::from(*n), length: 1 });
    HeldLocks {
        shared: any(Member::Main, SHARED),
        dms: any(Member::Shm, DMS),
        reserved: any(Member::Main, RESERVED),
        write: any(Member::Shm, WAL_WRITE),
        checkpoint: locks.iter().any(copies),
        readers: (0..5).filter(read_mark).collect(),
    }
}

pub(super) fn locks_by_member(facts: &Facts) -> Vec<(Member, Lock)> {
    let member = |id: FileId| facts.files.iter().find(|f| (f.device, f.inode) == id).map(|f| f.member);
    facts.locks.iter().filter_map(|(id, lock)| Some((member(*id)?, *lock))).collect()
}

/// The files that are known by these locks alone.
pub(super) fn table_files(locks: &[(Member, FileId, Lock)]) -> Vec<HeldFile> {
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
