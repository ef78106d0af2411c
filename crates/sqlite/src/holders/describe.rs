//! How a holder is described to a person: who it is, what it is to the database, which of SQLite's locks it holds.

use super::text::Lock;
use super::walk::{Facts, FileId, Walker};
use super::{Evidence, FileLock, HeldLocks, Holder, Namespace, judge};
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
    pub(super) own: i32,
    pub(super) own_namespace: Option<u64>,
    members: Vec<Record>,
    pub(super) members_unread: bool,
    users: Users,
    boot: Option<std::time::SystemTime>,
}

impl About {
    pub(super) fn read(family: &Family) -> About {
        let members = members::list(family);
        About {
            own: rustix::process::getpid().as_raw_nonzero().get(),
            own_namespace: process::namespace("self", "pid"),
            members_unread: members.is_err(),
            members: members.unwrap_or_default(),
            users: Users::read(),
            boot: process::boot_time(),
        }
    }

    pub(super) fn holder(&self, walker: &mut Walker, facts: Facts) -> Holder {
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
    pub(super) fn stranger(&self, walker: &mut Walker, id: Option<ProcessId>) -> Holder {
        let mut holder = Holder {
            pid: id.map(|id| id.pid),
            start_ticks: id.map(|id| id.start_ticks).filter(|t| *t > 0),
            start_time: None,
            command: Vec::new(),
            user: None,
            role: None,
            fenced: false,
            is_self: id.is_some_and(|id| id.pid == self.own),
            pid_namespace: Namespace::Unknown,
            files: Vec::new(),
            locks: HeldLocks::default(),
            naked: false,
            ghost: false,
            evidence: Evidence::Lock,
            stop: "sudo statehouse holders, run on the host, names it".to_owned(),
        };
        let Some(id) = id else { return holder };
        holder.start_time = self.boot.zip(holder.start_ticks).map(|(boot, ticks)| process::start_time(boot, ticks));
        holder.command = walker.read(id.pid, "cmdline").map(process::command).unwrap_or_default();
        holder.stop = process::stop(id.pid, &holder.command, walker.read(id.pid, "cgroup").unwrap_or(b""));
        let status = walker.read(id.pid, "status").unwrap_or(b"").to_vec();
        holder.user = Powers::parse(&status).map(|p| self.users.name(p.euid));
        let namespace = process::namespace(&id.pid.to_string(), "pid");
        holder.pid_namespace = match (namespace, self.own_namespace) {
            (Some(theirs), Some(ours)) if theirs == ours => Namespace::Same,
            (Some(_), Some(_)) => Namespace::Other,
            _ => Namespace::Unknown,
        };
        // A record carries the number that its process has in its own pid namespace.
        let pids = process::namespace_pids(&status);
        let of_process = |r: &&Record| {
            r.process.start_ticks == id.start_ticks
                && (r.process.pid == id.pid && holder.pid_namespace == Namespace::Same
                    || namespace == Some(r.pid_namespace) && pids.last() == Some(&r.process.pid))
        };
        let mut records = self.members.iter().filter(of_process);
        if let Some(first) = records.next() {
            holder.role = Some(first.role.clone());
            holder.fenced = first.fenced || records.any(|r| r.fenced);
        }
        holder
    }
}

/// Which of SQLite's locks these are. Bytes of the index are meant only on the index and those of the main file only there,
/// for the ranges overlap in number.
pub(super) fn held_locks(locks: &[(Member, Lock)]) -> HeldLocks {
    let any = |member: Member, range: Range| locks.iter().any(|(m, l)| *m == member && l.touches(range));
    let read_mark = |n: &u8| any(Member::Shm, Range { start: WAL_READ0 + i64::from(*n), length: 1 });
    HeldLocks {
        shared: any(Member::Main, SHARED),
        dms: any(Member::Shm, DMS),
        reserved: any(Member::Main, RESERVED),
        write: any(Member::Shm, WAL_WRITE),
        checkpoint: any(Member::Shm, WAL_CHECKPOINT),
        readers: (0..5).filter(read_mark).collect(),
    }
}

pub(super) fn locks_by_member(facts: &Facts) -> Vec<(Member, Lock)> {
    let member = |id: FileId| facts.files.iter().find(|f| (f.device, f.inode) == id).map(|f| f.member);
    facts.locks.iter().filter_map(|(id, lock)| Some((member(*id)?, *lock))).collect()
}
