//! The gate, shut: newcomers of ours wait before it, and those who are in let go.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::lock::{AdmissionLock, Doing};
use super::{AGAIN, ANCHOR, Wanted};
use crate::error::{Error, Reason, Result};
use crate::family::Family;
use crate::members::{self as records, Record};
use crate::process::ProcessId;
use crate::secure::Inspected;

/// How long anchors are waited for, which look ten times a second, and processes that are about to end.
pub(super) const ASIDE: Duration = Duration::from_secs(3);
/// How often somebody is told who is still waited for.
const TELL: Duration = Duration::from_secs(1);

/// The lock file with the gate shut. A side directory that holds nothing else goes with it.
pub(super) struct Shut {
    pub(super) lock: AdmissionLock,
    directory: PathBuf,
}

impl Shut {
    pub(super) fn make(inspected: &Inspected, wanted: &Wanted<'_>) -> Result<Shut> {
        let directory = inspected.family().side_directory();
        let process = ProcessId::own().map_err(|e| Error::io("look at", "/proc/self/stat".as_ref(), e))?;
        let doing = Doing { what: wanted.what.to_owned(), process };
        let begun = Instant::now();
        loop {
            let shut = Shut { lock: AdmissionLock::make(inspected)?, directory: directory.clone() };
            shut.lock.shut(&doing, wanted.patience.saturating_sub(begun.elapsed()))?;
            // Whoever was admitted before may just have taken the file away.
            if shut.lock.is_named() {
                return Ok(shut);
            }
        }
    }

    /// Until no process of ours has files of the database open. Gives back who was left, for whom force goes on.
    pub(super) fn wait_for_members(&self, family: &Family, wanted: &Wanted<'_>) -> Result<Vec<String>> {
        let begun = Instant::now();
        let limit = wanted.drain.unwrap_or(ASIDE);
        let mut told: Option<Instant> = None;
        loop {
            if self.lock.take_all()? {
                return Ok(Vec::new());
            }
            let left: Vec<Record> = records::list(family)?.into_iter().filter(|r| !r.parked && !r.fenced).collect();
            let others = left.iter().any(|r| r.role != ANCHOR);
            if begun.elapsed() >= limit || (wanted.drain.is_none() && others) {
                // One that has just ended or parked has taken its record along and its lock not yet.
                if left.is_empty() && begun.elapsed() < limit.max(ASIDE) {
                    std::thread::sleep(AGAIN);
                    continue;
                }
                let names = name_records(&left);
                if wanted.force {
                    return Ok(vec![names]);
                }
                let detail = match wanted.drain {
                    Some(drain) => format!("{names}: did not let go of it within {} s", drain.as_secs_f64()),
                    None => names,
                };
                return Err(Error::refused(Reason::Held, family.main(), detail));
            }
            if begun.elapsed() >= TELL && told.is_none_or(|t| t.elapsed() >= TELL) {
                told = Some(Instant::now());
                (wanted.tell)(&format!("waiting for {} to let go of the database", name_records(&left)));
            }
            std::thread::sleep(AGAIN);
        }
    }
}

impl Drop for Shut {
    fn drop(&mut self) {
        // Only what is empty but for the lock file goes; members and whatever else was put there meanwhile keep it. So does
        // another who has the gate.
        if std::fs::read_dir(&self.directory).is_ok_and(|entries| entries.count() == 1)
            && self.lock.is_named()
            && self.lock.has_everything().unwrap_or(false)
        {
            self.lock.remove();
            let _ = std::fs::remove_dir(&self.directory);
        }
    }
}

/// A record as a person would name it.
fn name_record(record: &Record) -> String {
    let place = if record.is_local() { "" } else { " in another container or on another machine" };
    format!("PID {} ({}{place})", record.process.pid, record.role)
}

fn name_records(records: &[Record]) -> String {
    match records {
        [] => "a process of ours that has no record".to_owned(),
        records => records.iter().map(name_record).collect::<Vec<_>>().join("; "),
    }
}
