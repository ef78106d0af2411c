//! Writers of our own processes take turns.
//!
//! SQLite's write lock is neither fair nor in order: a process that commits and begins again at once gets it again and
//! again while the others sleep between two tries. Two kernel locks make a queue of it. A writer takes `next`, then
//! `hold`, and then lets `next` go: whoever has `next` gets `hold` as soon as it is free, and the one who had it must
//! stand at `next` again. The kernel releases both when a process dies, and wakes the waiting one without polling.
//!
//! A queue is fair to those who stand in it. A writer whose thread the system has put aside between two requests does not,
//! and meanwhile another could have dozens of turns. So the lock's file says who had the last turns, and whoever has had two
//! in a row steps back for a moment if somebody else had one just before.
//!
//! The turn only orders our own writers; that two do not write at once is SQLite's own lock. So strangers, who do not
//! know the turnstile, and a side directory that somebody removed, cost fairness and nothing else.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use crate::error::{Error, Result};
use crate::files;

/// How many turns in a row one process may have while another was here just before.
pub const MOST: u64 = 2;

/// What "just before" means, in nanoseconds: longer than a busy system puts a thread aside. It is also the most that a
/// writer loses, once, when another stops writing.
pub const JUST_BEFORE: u64 = 20_000_000;

/// How long one who steps back stays away at a time.
const STEP_BACK: Duration = Duration::from_micros(200);

/// Who had the last turns. Kept in the lock's own file, and read and written only while it is held.
#[derive(Debug, Clone, Copy, Default)]
struct Last {
    /// A random number for each process; 0 at first.
    owner: u64,
    /// How many turns in a row it has had.
    run: u64,
    /// When the last of them ended, on the clock that all processes of the machine share.
    at: u64,
    /// When the last turn of somebody else ended before that.
    other_at: u64,
}

impl Last {
    fn read(file: &File) -> Last {
        let mut bytes = [0; 32];
        // A new file is empty, and an unreadable one costs fairness and nothing else.
        let _ = file.read_exact_at(&mut bytes, 0);
        let word = |n: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[n * 8 + i]));
        Last { owner: word(0), run: word(1), at: word(2), other_at: word(3) }
    }

    fn write(self, file: &File) {
        let words = [self.owner, self.run, self.at, self.other_at];
        let mut bytes = [0; 32];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let _ = file.write_all_at(&bytes, 0);
    }

    /// The entry for a turn of `owner` that begins at `now`; `None` if it should let others go first.
    fn next(self, owner: u64, now: u64) -> Option<Last> {
        if self.owner != owner {
            return Some(Last { owner, run: 1, at: now, other_at: self.at });
        }
        let crowded = now.saturating_sub(self.other_at) < JUST_BEFORE;
        (self.run < MOST || !crowded).then_some(Last { run: self.run.saturating_add(1), at: now, ..self })
    }
}

/// A number that no other process has, whatever pid namespace it lives in.
fn this_process() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| getrandom::u64().unwrap_or_else(|_| u64::from(std::process::id())).max(1))
}

fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.cast_unsigned())
}

/// The two locks of one database, opened by one writer of one process.
#[derive(Debug)]
pub struct Turnstile {
    directory: PathBuf,
    next: File,
    hold: File,
}

/// The turn. Dropping it lets the next writer in.
#[derive(Debug)]
pub struct Turn<'a> {
    turnstile: &'a Turnstile,
    /// What the file will say when the turn has ended; nothing if it was not used.
    entry: Option<Last>,
}

impl Turnstile {
    /// Opens the locks below the side directory, which must exist.
    ///
    /// # Errors
    /// The system's answer.
    pub fn open(side_directory: &Path) -> Result<Turnstile> {
        let file = |name: &str| {
            let path = side_directory.join(name);
            files::open_private(&path).map_err(|e| Error::io("open", &path, e))
        };
        Ok(Turnstile { directory: side_directory.to_owned(), next: file("turn.next")?, hold: file("turn.hold")? })
    }

    /// Waits for the turn. There is no limit of time here: those who wait for an answer have one of their own.
    ///
    /// # Errors
    /// The system's answer.
    pub fn enter(&self) -> Result<Turn<'_>> {
        loop {
            self.lock(&self.next, FlockOperation::LockExclusive)?;
            let entered = self.lock(&self.hold, FlockOperation::LockExclusive);
            self.lock(&self.next, FlockOperation::Unlock)?;
            entered?;
            let turn = Turn { turnstile: self, entry: Last::read(&self.hold).next(this_process(), now()) };
            if turn.entry.is_some() {
                return Ok(turn);
            }
            drop(turn);
            std::thread::sleep(STEP_BACK);
        }
    }

    /// The path of the lock that the one whose turn it is holds; who that is, `/proc/locks` tells.
    pub fn held_by(&self) -> PathBuf {
        self.directory.join("turn.hold")
    }

    fn lock(&self, file: &File, operation: FlockOperation) -> Result<()> {
        loop {
            match flock(file, operation) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(Error::io("lock the turnstile in", &self.directory, e)),
            }
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let hold = &self.turnstile.hold;
        if let Some(entry) = self.entry {
            // The time at which the turn ends: one who had it may have been put aside meanwhile.
            Last { at: now(), ..entry }.write(hold);
        }
        // An unlock of a lock that is held does not fail; if it did, the lock would end with the process.
        let _ = self.turnstile.lock(hold, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn one_who_had_its_turns_lets_others_go_first_but_not_for_ever() {
        let mut last = Last::default().next(1, 10).unwrap().next(2, 20).unwrap();
        for n in 1..MOST {
            last = last.next(2, 20 + n).unwrap();
        }
        assert!(last.next(2, 100).is_none(), "the other was here just before");
        assert!(last.next(1, 100).is_some());
        assert!(last.next(2, 10 + JUST_BEFORE).is_some(), "the other has not come back");
    }

    #[test]
    fn one_who_is_alone_never_waits() {
        let mut last = Last::default();
        for n in 0..100 {
            last = last.next(7, JUST_BEFORE + n).unwrap();
        }
    }

    #[test]
    fn a_file_with_any_content_is_an_entry() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[0xff; 32], 0).unwrap();
        assert!(Last::read(&file).next(1, 5).is_some());
    }
}
