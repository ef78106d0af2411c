//! Whose commit it was: how much each program has written while the commit came about, as its kernel counts it.
//!
//! That a commit is seen and one program has the database open proves nothing about that program: anybody can open, write
//! and close between two looks. Whoever made a commit has written at least a page of it by a system call, and the kernel counts
//! the bytes that each process writes that way (`wchar` of `/proc/PID/io`, proc(5)). So a program that has written less
//! did not make it. One that has written as much may have written something else; more cannot be had from outside.

use std::collections::BTreeMap;
use std::path::Path;

use statehouse_sqlite::files;
use statehouse_sqlite::holders::Holder;

use super::view::name;

/// The smallest page.
const PAGE: u64 = 512;

/// The longest that is read of what the kernel counts.
const LONGEST: u64 = 4096;

/// A process by its number and its start.
type Key = (i32, Option<u64>);

/// What the programs had written at some moment; `None` where it may not be asked.
pub(super) type Written = BTreeMap<Key, Option<u64>>;

/// What the kernel has counted for these programs by now.
pub(super) fn written(programs: &[Holder]) -> Written {
    let count = |h: &Holder| Some(((h.pid?, h.start_ticks), bytes(h.pid?)));
    programs.iter().filter_map(count).collect()
}

fn bytes(pid: i32) -> Option<u64> {
    let text = files::read_to_string(Path::new(&format!("/proc/{pid}/io")), LONGEST).ok()?;
    text.lines().find_map(|line| line.strip_prefix("wchar:"))?.trim().parse().ok()
}

/// Which of the programs that were there before can have made a commit.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Whose {
    /// These have written as much as a page.
    pub(super) wrote: Vec<String>,
    /// These have not, so they did not make it.
    pub(super) idle: Vec<String>,
    /// Of these it is not known.
    pub(super) unknown: Vec<String>,
}

impl Whose {
    /// Compares what `programs` have written now with what they had written before the commit.
    pub(super) fn of(programs: &[Holder], before: &Written) -> Whose {
        let now = written(programs);
        let mut whose = Whose::default();
        for h in programs {
            let Some(key) = h.pid.map(|pid| (pid, h.start_ticks)) else { continue };
            let Some(then) = before.get(&key) else { continue };
            let which = match (then, now.get(&key).copied().flatten()) {
                (Some(then), Some(now)) if now.saturating_sub(*then) >= PAGE => &mut whose.wrote,
                (Some(_), Some(_)) => &mut whose.idle,
                _ => &mut whose.unknown,
            };
            which.push(name(h));
        }
        whose
    }
}
