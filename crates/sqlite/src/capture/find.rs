//! What of a database other processes have that its paths do not name, and which of these files belong together.
//!
//! A log belongs to one main file. Where a process has several of either it is not known which; then the main files are tried
//! in the order of likelihood, and the first with which SQLite finds the result whole is taken.

use super::open::open;
use crate::family::{Family, Member};
use crate::files;
use crate::holders::{HeldFile, Holder, Standing, Via};
use crate::wal;

/// Files of one process that belong together.
#[derive(Debug, Clone)]
pub(super) struct Set {
    /// The main file; where several come into question the likeliest first.
    pub(super) mains: Vec<HeldFile>,
    pub(super) log: Option<HeldFile>,
    pub(super) index: Option<HeldFile>,
}

/// A retired generation, and every process that has it.
#[derive(Debug)]
pub(super) struct Ghost {
    pub(super) holders: Vec<Holder>,
    /// What each of them has, in the same order.
    pub(super) sets: Vec<Set>,
}

impl Set {
    /// What tells one generation from another: its log, or without one its main file.
    fn key(&self) -> Option<(Member, u64, u64)> {
        let file = self.log.as_ref().or(self.mains.first())?;
        Some((file.member, file.device, file.inode))
    }
}

/// What a process has of retired generations.
pub(super) fn sets(holder: &Holder) -> Vec<Set> {
    // What only a lock shows cannot be read.
    let of = |member: Member, standing: Standing| {
        let wanted = move |f: &&HeldFile| f.member == member && f.generation == standing && f.via != Via::Lock;
        holder.files.iter().filter(wanted).cloned().collect::<Vec<_>>()
    };
    let (retired, current) = (of(Member::Main, Standing::Retired), of(Member::Main, Standing::Current));
    let logs = of(Member::Wal, Standing::Retired);
    let indexes = of(Member::Shm, Standing::Retired);
    let index = |otherwise: Vec<HeldFile>| match indexes.as_slice() {
        [one] => Some(one.clone()),
        [] => otherwise.into_iter().next(),
        _ => None,
    };
    if !logs.is_empty() {
        let mains: Vec<HeldFile> = retired.into_iter().chain(current).collect();
        return logs
            .into_iter()
            .map(|log| Set { mains: mains.clone(), log: Some(log), index: index(Vec::new()) })
            .collect();
    }
    // Only the main file was replaced: its log is the one that the path still names, unless that belongs to the new main file.
    let alone = current.is_empty() && retired.len() == 1;
    let still = |member| if alone { of(member, Standing::Current) } else { Vec::new() };
    let set = |main: HeldFile| Set {
        mains: vec![main],
        log: still(Member::Wal).into_iter().next(),
        index: if alone { index(still(Member::Shm)) } else { None },
    };
    retired.into_iter().map(set).collect()
}

/// True if all that a process has of the database is a log that it reads, and the main file at the path has everything of that: a
/// program that follows a file, not one that uses the database.
pub fn only_reads_what_is_there(family: &Family, holder: &Holder) -> bool {
    let locks = &holder.locks;
    let locked =
        locks.shared || locks.dms || locks.reserved || locks.write || locks.checkpoint || !locks.readers.is_empty();
    let reads = |f: &HeldFile| f.member == Member::Wal && !f.writable && f.via == Via::Descriptor;
    if holder.role.is_some() || locked || holder.files.is_empty() || !holder.files.iter().all(reads) {
        return false;
    }
    let Ok(main) = files::open(&family.main()) else { return false };
    holder.files.iter().filter(|f| f.generation == Standing::Retired).all(|log| {
        let Ok(log) = open(holder, log) else { return false };
        wal::lacking(&main, &log.file).is_ok_and(|l| l.missing == 0 && !l.torn)
    })
}

/// Gathers the processes that share one generation.
pub(super) fn ghosts(holders: Vec<Holder>) -> Vec<Ghost> {
    let mut found: Vec<Ghost> = Vec::new();
    for holder in holders {
        for set in sets(&holder) {
            let Some(key) = set.key() else { continue };
            match found.iter_mut().find(|g| g.sets.iter().any(|s| s.key() == Some(key))) {
                Some(ghost) => {
                    ghost.holders.push(holder.clone());
                    ghost.sets.push(set);
                }
                None => found.push(Ghost { holders: vec![holder.clone()], sets: vec![set] }),
            }
        }
    }
    found
}

/// Who it is, as a person would name it.
pub(super) fn name(holder: &Holder) -> String {
    let program = holder.role.clone().or_else(|| holder.command.first().cloned());
    match (holder.pid, program) {
        (Some(pid), Some(program)) => format!("PID {pid} ({})", crate::words::one_line(&[program])),
        (Some(pid), None) => format!("PID {pid}"),
        (None, _) => "a process that cannot be seen".to_owned(),
    }
}
