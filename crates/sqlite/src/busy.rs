//! Who keeps a writer waiting, in words for the one who waits.

use crate::family::{Family, Status};
use crate::{files, holders};

/// How often the table of locks is looked at. The kernel hands it out a page at a time and counts entries to find its place
/// again, so while others take and release locks, one that is held all the time can be missing from a look.
const LOOKS: usize = 8;

/// The process that has the write lock, or whose turn it is among our own, as "PID 123 (command)".
pub(crate) fn who_writes(family: &Family) -> Option<String> {
    whose_turn(family).or_else(|| {
        let writer = holders::scan(family).ok()?.holders.into_iter().find(|h| h.locks.write && !h.is_self)?;
        let pid = writer.pid.map_or_else(|| "a process that is not visible here".into(), |pid| format!("PID {pid}"));
        Some(format!("{pid}; {}", writer.to_stop()))
    })
}

/// The other process of ours whose turn it is, if it has one.
fn whose_turn(family: &Family) -> Option<String> {
    let lock = Status::of(&family.side_directory().join("turn.hold")).ok()??;
    let pid = owner(lock.identity.inode)?;
    if pid == std::process::id() {
        return None;
    }
    let command = files::read_to_string(format!("/proc/{pid}/comm").as_ref(), 256).unwrap_or_default();
    Some(format!("PID {pid} ({})", command.trim_end()))
}

fn owner(inode: u64) -> Option<u32> {
    (0..LOOKS).find_map(|_| {
        let table = files::read_to_string("/proc/locks".as_ref(), 16 << 20).ok()?;
        table.lines().find_map(|line| flock_owner(line, inode))
    })
}

/// The pid of a line like `1: FLOCK  ADVISORY  WRITE 123 fe:00:456 0 EOF`; a line with `->` is one who waits.
fn flock_owner(line: &str, inode: u64) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, _, pid, file, ..] = words.as_slice() else { return None };
    (file.rsplit(':').next()?.parse() == Ok(inode)).then(|| pid.parse().ok())?
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use std::os::unix::fs::MetadataExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn who_has_the_turn_is_found_while_many_other_locks_come_and_go() {
        let held = tempfile::tempfile().unwrap();
        held.lock().unwrap();
        let inode = held.metadata().unwrap().ino();
        let others: Vec<_> = (0..300).map(|_| tempfile::tempfile().unwrap()).collect();
        let done = AtomicBool::new(false);
        let missed = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    others.iter().for_each(|f| f.lock().unwrap());
                    others.iter().for_each(|f| f.unlock().unwrap());
                }
            });
            let missed = (0..5000).filter(|_| owner(inode) != Some(std::process::id())).count();
            done.store(true, Ordering::Relaxed);
            missed
        });
        assert_eq!(missed, 0);
    }

    #[test]
    fn the_owner_of_a_lock_is_found_and_one_who_waits_is_not() {
        assert_eq!(flock_owner("12: FLOCK  ADVISORY  WRITE 123 fe:00:456 0 EOF", 456), Some(123));
        assert_eq!(flock_owner("12: -> FLOCK  ADVISORY  WRITE 124 fe:00:456 0 EOF", 456), None);
        assert_eq!(flock_owner("12: POSIX  ADVISORY  WRITE 123 fe:00:456 0 EOF", 456), None);
        assert_eq!(flock_owner("12: FLOCK  ADVISORY  WRITE 123 fe:00:457 0 EOF", 456), None);
        assert_eq!(flock_owner("", 456), None);
    }
}
