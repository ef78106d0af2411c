//! A reader's lock on the retired log, so that its process does not begin it anew while it is copied.
//!
//! A process that copies its log into the main file and begins it anew with every transaction never stands still for as long
//! as a copy takes. SQLite begins no log anew that somebody reads: so for the time of the copy a read mark of the shared index is
//! locked, as any reader of that generation would lock it. The process goes on, and its log grows a little further.
//!
//! To others this process would look as if it had lost its locks for so long, so it takes those of a reader too: the shared
//! range of the main file, and byte 128 of the index. The latter never as the first one on an index that its path still
//! names: it would tell an opener that the index is alive.

use std::fs::File;
use std::time::{Duration, Instant};

use crate::ofd::{DMS, Kind, PENDING, Range, SHARED, WAL_READ0, conflict, try_lock, unlock};

const TRIES: usize = 200;
const PAUSE: Duration = Duration::from_micros(100);

/// How long the end of a transaction in rollback mode is waited for.
const TRANSACTION: Duration = Duration::from_secs(5);

/// Held while the files are copied. Without it the copy is tried again until nothing has moved.
pub(super) struct Pin<'a> {
    main: &'a File,
    index: Option<&'a File>,
    marks: Vec<Range>,
}

impl<'a> Pin<'a> {
    /// Takes what can be had without waiting for anybody for long.
    pub(super) fn take(main: &'a File, index: &'a File, index_is_at_its_path: bool) -> Pin<'a> {
        let mut pin = Pin { main, index: Some(index), marks: Vec::new() };
        let _ = try_lock(main, Kind::Read, SHARED);
        let alone = || conflict(index, Kind::Write, DMS).is_ok_and(|held| held.is_none());
        if !index_is_at_its_path || !alone() {
            let _ = try_lock(index, Kind::Read, DMS);
        }
        // The first mark is of readers that need no log. Of the others one is enough, and the process may hold any of them for
        // the moment in which it moves it.
        for _ in 0..TRIES {
            for n in (1..5).rev() {
                let mark = Range { start: WAL_READ0 + n, length: 1 };
                match try_lock(index, Kind::Read, mark) {
                    Ok(true) => {
                        pin.marks.push(mark);
                        return pin;
                    }
                    Ok(false) => {}
                    Err(_) => return pin,
                }
            }
            std::thread::sleep(PAUSE);
        }
        pin
    }

    /// A database without a log is written to in place, and by nobody while somebody reads it. `None` if a transaction did not
    /// end in time.
    pub(super) fn without_log(main: &'a File) -> Option<Pin<'a>> {
        let begun = Instant::now();
        loop {
            // As SQLite does it: who waits for readers to leave holds the pending byte, and lets no other one in.
            let pending = try_lock(main, Kind::Read, PENDING).unwrap_or(true);
            let shared = pending && try_lock(main, Kind::Read, SHARED).unwrap_or(true);
            let _ = unlock(main, PENDING);
            if shared {
                return Some(Pin { main, index: None, marks: Vec::new() });
            }
            if begun.elapsed() > TRANSACTION {
                return None;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            for mark in &self.marks {
                let _ = unlock(index, *mark);
            }
            let _ = unlock(index, DMS);
        }
        let _ = unlock(self.main, SHARED);
    }
}
