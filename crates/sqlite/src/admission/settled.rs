//! Waiting until everybody has added what he remembers to what is put together of a destroyed database.
//!
//! Whoever restores from that file, or puts another in the place of the database, ends the time in which anything can be added.

use std::time::{Duration, Instant};

use super::{AGAIN, ANCHOR};
use crate::error::{Error, Result};
use crate::family::Family;
use crate::members::{self, Record};
use crate::{destroyed, recovery};

/// Waits until every process of ours that had a destroyed database open has added what it remembers, so that the new file and
/// its account change no more. Does nothing about a database that was not destroyed.
///
/// # Errors
/// [`Error::Busy`] that names who has not; he may be stopped, and is the only one who can.
pub fn settled(family: &Family, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    while destroyed::mark(family)?.is_some() {
        // Each says that it is cut off, and adds what it has, under one and the same lock.
        let lock = recovery::exclusive(family, patience.saturating_sub(begun.elapsed()))?;
        let waits = |r: &Record| r.role != ANCHOR && !r.fenced && !r.parked;
        let waiting: Vec<Record> = members::list(family)?.into_iter().filter(waits).collect();
        if waiting.is_empty() {
            return Ok(());
        }
        if begun.elapsed() >= patience {
            let names: Vec<String> = waiting.iter().map(|r| format!("PID {} ({})", r.process.pid, r.role)).collect();
            let holder = format!("{}, which has not added what it remembers yet", names.join("; "));
            return Err(Error::Busy { waited: begun.elapsed(), holder: Some(holder) });
        }
        drop(lock);
        std::thread::sleep(AGAIN);
    }
    Ok(())
}
