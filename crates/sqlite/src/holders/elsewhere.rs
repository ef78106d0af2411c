//! Holders that only their own records tell of: processes of ours in another container, or on another machine.
//!
//! A record is locked as long as its process lives, and that lock is seen from wherever the directory is; so a record whose
//! process was not found among those that `/proc` shows is a holder all the same. Its locks may show too, without an owner.
//! Each of our processes holds one lock on each of the two ranges, so for each such record one of them is explained.

use super::conclude::Loose;
use super::describe::{About, held_locks, table_files};
use super::walk::Walker;
use super::{Holder, Namespace};
use crate::members::Record;
use crate::ofd::{DMS, SHARED};
use crate::process::{self, ProcessId, Stat};

/// The holders that only records tell of. What they explain is taken out of `unowned`, and out of `hidden` where there is
/// one candidate only.
pub(super) fn holders(
    walker: &mut Walker,
    about: &mut About,
    pids: &[i32],
    inspected: &dyn Fn(i32) -> bool,
    unowned: &mut Loose,
    hidden: &mut Loose,
) -> Vec<Holder> {
    let mut found: Vec<Holder> = Vec::new();
    // A process that has the database open twice has two records.
    let mut left: Vec<Record> = Vec::new();
    let mut parked: Vec<Record> = Vec::new();
    for (record, seen) in &about.records {
        let same = |r: &Record| {
            (r.process, r.pid_namespace, &r.boot_id) == (record.process, record.pid_namespace, &record.boot_id)
        };
        if *seen {
            continue;
        }
        if record.parked {
            parked.push(record.clone());
            continue;
        }
        match left.iter_mut().find(|r| same(r)) {
            Some(known) => known.fenced |= record.fenced,
            None => left.push(record.clone()),
        }
    }
    for record in left {
        match visible(walker, about, pids, &record) {
            // It can be looked at and has nothing: it is about to open, or about to go.
            Some(pid) if inspected(pid) => {}
            Some(pid) => {
                let id = ProcessId { pid, start_ticks: record.process.start_ticks };
                let mut holder = about.stranger(walker, Some(id));
                holder.role = Some(record.role.clone());
                holder.fenced = record.fenced;
                found.push(holder);
            }
            None => {
                let holder = elsewhere(walker, about, &record);
                found.push(holder);
            }
        }
    }
    for holder in &mut found {
        let mut locks = unowned.take_one(SHARED);
        locks.0.extend(unowned.take_one(DMS).0);
        give(holder, locks);
    }
    if let [only] = found.as_mut_slice() {
        // What else is held where one process is left to hold it.
        if !unowned.has(SHARED) && !unowned.has(DMS) && !only.files.is_empty() {
            give(only, std::mem::take(unowned));
        }
        // A lock of its own that the table shows is no hidden one; then that is of somebody else.
        if only.files.is_empty() {
            give(only, std::mem::take(hidden));
        }
    }
    // Whoever is parked has nothing and no lock, and is back in a moment: nobody may take the database for unused meanwhile.
    for record in parked {
        let mut holder = match visible(walker, about, pids, &record) {
            Some(pid) => about.stranger(walker, Some(ProcessId { pid, start_ticks: record.process.start_ticks })),
            None => elsewhere(walker, about, &record),
        };
        if found.iter().all(|h| (h.pid, h.start_ticks) != (holder.pid, holder.start_ticks)) {
            holder.role = Some(record.role);
            holder.parked = true;
            found.push(holder);
        }
    }
    found
}

fn elsewhere(walker: &mut Walker, about: &mut About, record: &Record) -> Holder {
    let mut holder = about.stranger(walker, None);
    holder.role = Some(record.role.clone());
    holder.fenced = record.fenced;
    holder.start_ticks = Some(record.process.start_ticks);
    holder.start_time = Some(record.start_time.clone()).filter(|t| !t.is_empty());
    holder.pid_namespace = Namespace::Other;
    holder.stop = stop(record, record.boot_id == about.boot_id);
    holder
}

fn give(holder: &mut Holder, locks: Loose) {
    if locks.0.is_empty() {
        return;
    }
    let more = held_locks(&locks.0.iter().map(|(m, _, l)| (*m, *l)).collect::<Vec<_>>());
    let have = &mut holder.locks;
    have.shared |= more.shared;
    have.dms |= more.dms;
    have.reserved |= more.reserved;
    have.write |= more.write;
    have.checkpoint |= more.checkpoint;
    have.readers.extend(more.readers);
    for file in table_files(&locks.0) {
        match holder.files.iter_mut().find(|f| f.member == file.member) {
            Some(known) => known.writable |= file.writable,
            None => holder.files.push(file),
        }
    }
}

/// The number of a record's process, if it is among those that `/proc` shows.
fn visible(walker: &mut Walker, about: &About, pids: &[i32], record: &Record) -> Option<i32> {
    if record.boot_id != about.boot_id {
        return None;
    }
    let same_start = |walker: &mut Walker, pid: i32| {
        walker.read(pid, "stat").and_then(Stat::parse).is_some_and(|s| s.start_ticks == record.process.start_ticks)
    };
    if about.own_namespace == Some(record.pid_namespace) && same_start(walker, record.process.pid) {
        return Some(record.process.pid);
    }
    pids.iter().copied().find(|pid| {
        let namespace = process::namespace(&pid.to_string(), "pid");
        namespace.is_none_or(|n| n == record.pid_namespace)
            && same_start(walker, *pid)
            && walker
                .read(*pid, "status")
                .is_some_and(|status| process::namespace_pids(status).last() == Some(&record.process.pid))
    })
}

/// What stops a process that cannot be reached from here: where it is.
fn stop(record: &Record, same_kernel: bool) -> String {
    let role = if record.role.is_empty() { "the process" } else { &record.role };
    let machine: String = record.machine_id.chars().take(8).collect();
    let machine = match machine.as_str() {
        "" => String::new(),
        id if record.machine_id.len() > id.len() => format!(", machine {id}…"),
        id => format!(", machine {id}"),
    };
    let place = if same_kernel { "in its own container or namespace" } else { "on another machine" };
    format!("stop {role} (PID {} {place}{machine})", record.process.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_elsewhere_is_stopped_there() {
        let record = |machine: &str| Record {
            role: "gateway".into(),
            process: ProcessId { pid: 17, start_ticks: 1 },
            start_time: String::new(),
            boot_id: "b".into(),
            machine_id: machine.into(),
            pid_namespace: 1,
            version: String::new(),
            sqlite: String::new(),
            fenced: false,
            parked: false,
        };
        for (machine, same, expected) in [
            (
                "3f2a1b2c4d5e6f708192a3b4c5d6e7f8",
                true,
                "stop gateway (PID 17 in its own container or namespace, machine 3f2a1b2c…)",
            ),
            ("3f2a1b2c4d5e", false, "stop gateway (PID 17 on another machine, machine 3f2a1b2c…)"),
            ("host", false, "stop gateway (PID 17 on another machine, machine host)"),
            ("", true, "stop gateway (PID 17 in its own container or namespace)"),
        ] {
            assert_eq!(stop(&record(machine), same), expected);
        }
    }
}
