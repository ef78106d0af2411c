//! Who keeps a writer waiting, in words for the one who waits.

use crate::family::{Family, Status};
use crate::files;

/// The process whose turn it is among our own, as "PID 123 (command)"; `None` if nobody of ours has it.
pub(crate) fn who_writes(family: &Family) -> Option<String> {
    let lock = Status::of(&family.side_directory().join("turn.hold")).ok()??;
    let table = files::read_to_string("/proc/locks".as_ref(), 16 << 20).ok()?;
    let pid = table.lines().find_map(|line| flock_owner(line, lock.identity.inode))?;
    let command = files::read_to_string(format!("/proc/{pid}/comm").as_ref(), 256).unwrap_or_default();
    Some(format!("PID {pid} ({})", command.trim_end()))
}

/// The pid of a line like `1: FLOCK  ADVISORY  WRITE 123 fe:00:456 0 EOF`; a line with `->` is one who waits.
fn flock_owner(line: &str, inode: u64) -> Option<u32> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, "FLOCK", _, _, pid, file, ..] = words.as_slice() else { return None };
    (file.rsplit(':').next()?.parse() == Ok(inode)).then(|| pid.parse().ok())?
}
