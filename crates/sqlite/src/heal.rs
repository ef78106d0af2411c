//! Takes the two locks that keep a generation in place again when they are gone.
//!
//! The lock core holds them on a description of its own, and no close of another descriptor can drop them. What still can: a
//! library that closes every number it finds, or puts another file there; and whoever has the same description (a process made by
//! a bare `clone`, one that was passed the descriptor) and unlocks it. The first is seen by `fstat`, the second by nobody
//! but the kernel. So every look at the generation asks the kernel (`locks.rs`): before and after each commit, before each
//! read, four times a second on an idle handle, and after each opening. And a read asks once more before it answers: if byte 128 is
//! gone by then, or was taken again meanwhile, and the index has changed since the look before, it may have read by an empty one.
//!
//! Without the locks the next stranger that closes the database deletes log and index, and the next that opens it empties the
//! index under our map. Nothing of that has happened as long as the files are the same, so the locks are taken again, and what
//! was acknowledged before and after is in one generation. When it is safe, and why:
//!
//! * **Only if nothing else is gone.** A lock of a transaction (a reader's mark, the lock of a writer or of a checkpoint)
//!   that is gone, or was gone when it was released, means that others may have written over what that transaction
//!   used. It proves nothing then: the handle is fenced, every connection closed, and nothing of it acknowledged.
//! * **On the writer's thread, between two transactions of it.** A handle is fenced by whoever saw it, so no read begins
//!   either. A commit that was made and not answered yet is answered only after this.
//! * **First the locks, then the look.** Once both are held nobody can begin to delete or to empty, so the look at the three
//!   files that follows is final. While a stranger who takes itself for the last one has the exclusive lock, it is
//!   waited for; if it has deleted the files then, they are retired and captured like any others.
//! * **Byte 128 vouches for the index.** Whoever takes it as the first one must empty the index, for it might be older than
//!   the log. Ours is not: this process has had it mapped all the time, so it is what all of us wrote, unless somebody emptied it
//!   meanwhile. Emptying changes its length, and that leaves a time of change behind. So if the time is still the one of
//!   the last look that found the index whole, nobody did, and what reads at this moment goes on reading what is true.
//! * **If the time has changed** (the system also sets it now and then when somebody writes to a map), whoever read meanwhile
//!   may have read by an empty index. Then it is good only if no transaction of this process is open, every frame of
//!   the log is found in it, and it is of the same making: SQLite compares its head at the start of each transaction,
//!   and what was rebuilt from the same log is the same. Else the handle is fenced, and recovery begins with a new connection.
//!
//! Whether it healed or not, an incident says so ([`crate::incidents`]), for something in this process does what it should not.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::family::Member;
use crate::gate::Gate;
use crate::generation::Record;
use crate::incidents::{self, Outcome};
use crate::locks::{self, Standing};
use crate::options::{Event, Options};

/// How long a stranger is waited for that has the database to itself. It copies the log into the main file meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(2);

/// What becomes of a handle that was fenced.
pub(crate) enum Verdict {
    /// It goes on as if nothing had been.
    GoesOn,
    /// It must be opened anew. `recorded` names the incident that was told already, if locks were gone.
    CutOff {
        /// What the incident is about.
        recorded: Option<String>,
    },
}

/// To be called by the writer's thread with a handle that was fenced, before anything else.
pub(crate) fn goes_on(gate: &Gate, options: &Options) -> Verdict {
    let record = gate.record();
    let what = missing(&record);
    let healed = match gate.cause() {
        None => return Verdict::GoesOn,
        // Its other reason counts; but it may well be that the locks went first.
        Some(why) if !matches!(why, Error::LocksLost) => Err(why),
        Some(_) => retake(&record, options),
    };
    match healed {
        Ok(()) => gate.reopen(record),
        Err(why) => {
            let record = || incidents::record(record.family(), &options.role, what.clone(), Outcome::Fenced);
            let recorded = if what.is_empty() { None } else { record().ok() };
            // It says more than that the locks were lost.
            gate.fence(why);
            return Verdict::CutOff { recorded };
        }
    }
    Verdict::GoesOn
}

/// Takes the locks of a generation again and proves that it is still the same. To be called on the writer's thread
/// with no transaction of it open. Does nothing if they stand: another handle of this process may have been first.
///
/// # Errors
/// [`Error::LocksLost`] when it cannot be proved, or what [`Record::check`] found. Nothing may be acknowledged then.
pub(crate) fn retake(record: &Record, options: &Options) -> Result<()> {
    let what = missing(record);
    // Before the locks are there, for from then on another thread's look may note what it sees.
    let before = record.index_mark();
    if !what.is_empty() {
        record.retake();
    }
    for (member, bytes) in Record::STANDING {
        take(record, member, bytes)?;
    }
    record.check()?;
    if what.is_empty() {
        return Ok(());
    }
    if !record.index_survived(before) {
        return Err(Error::LocksLost);
    }
    let _ = incidents::record(record.family(), &options.role, what.clone(), Outcome::Healed);
    options.tell(&Event::Healed { what });
    Ok(())
}

fn take(record: &Record, member: Member, bytes: (i64, i64)) -> Result<()> {
    let identity = record.generation().get(member).ok_or(Error::LocksLost)?;
    let begun = Instant::now();
    loop {
        match locks::retake(identity, bytes).map_err(|e| Errno::from_io_error(&e)) {
            Ok(()) => return Ok(()),
            Err(Some(Errno::AGAIN | Errno::ACCESS)) if begun.elapsed() < PATIENCE => {}
            Err(_) => return Err(Error::LocksLost),
        }
        let members = record.lost();
        if !members.is_empty() {
            return Err(Error::Retired { members });
        }
        std::thread::sleep(PAUSE);
    }
}

/// What is gone, as the fragment of a sentence; empty if nothing is.
fn missing(record: &Record) -> String {
    let mut gone = Vec::new();
    for (member, bytes) in Record::STANDING {
        let Some(identity) = record.generation().get(member) else { continue };
        let name = if member == Member::Main { "the shared range of the main file" } else { "byte 128 of the index" };
        match locks::standing(identity, bytes) {
            Standing::Stands => continue,
            Standing::Fell => gone.push(name.to_owned()),
            Standing::Broken => gone.push(format!("{name} or the lock of a transaction")),
        }
        if locks::owned(identity).is_none() {
            gone.push("the descriptor that holds it".into());
        }
    }
    gone.join(", ")
}
