//! The thread that looks after an open handle: it notices a retired generation while nobody writes, keeps the log
//! bounded, and answers requests that have waited too long.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::connect;
use crate::error::{Error, Result};
use crate::generation::Record;
use crate::remembered::Copied;
use crate::shared::Shared;
use crate::signals::CHECKPOINT_FRAMES;
use crate::{destroyed, flush, members, recovery, secure, side};

/// From this length on our own writers wait while the rest is copied, so that the log can begin anew. A checkpoint beside
/// writers never catches up with the last frame, and then the log grows for ever.
const RESTART_FRAMES: i64 = 600;

/// How long a handle that parks tries to copy the log, and how often.
const PARKING: Duration = Duration::from_millis(300);
const AGAIN: Duration = Duration::from_millis(5);

pub(crate) fn run(shared: &Shared) {
    copy_what_nobody_remembers(shared);
    while shared.signals.wait() {
        if !shared.gate.fenced()
            && let Some(why) = destroyed::told(&shared.family, &shared.gate.record().generation())
        {
            shared.gate.fence(why);
        }
        // The writer registers anew when somebody has removed the record: without one this process looks like a stranger. And it
        // takes its place anew when somebody has removed that file: without one it would never hear that it shall park.
        if shared.entry.drain_wanted()
            || shared.gate.check().is_err()
            || !members::are_recorded(&shared.family)
            || !shared.entry.is_named()
        {
            shared.queue.rouse();
        } else if shared.signals.backlog() >= CHECKPOINT_FRAMES {
            // A checkpoint that does not succeed is tried again at the next tick; nothing depends on this one.
            let _ = checkpoint(shared);
        }
        if shared.queue.has_expired() {
            let why = shared.why_waiting();
            shared.queue.expire(|waited| match &why {
                Error::Busy { holder, .. } => Error::Busy { waited, holder: holder.clone() },
                why => why.again(),
            });
        }
    }
}

/// What was in the log when the index was made from it is in nobody's memory. Until it is copied, and the index says so, it
/// would be lost if somebody destroyed the log.
fn copy_what_nobody_remembers(shared: &Shared) {
    let index = shared.gate.record().index();
    if index.is_some_and(|i| i.copied == 0 && i.attempted > 0) {
        // If it does not succeed, the first checkpoint that does copies it as well.
        let _ = checkpoint(shared);
    }
}

/// Copies the log into the main file, beside the writers.
fn checkpoint(shared: &Shared) -> Result<()> {
    let mut place = shared.checkpointer.lock().unwrap_or_else(PoisonError::into_inner);
    let lock = recovery::try_shared(&shared.family);
    if let Err(Error::Io { .. }) = &lock {
        // Somebody removed the side directory. It must not let the log grow for ever.
        side::create(&secure::inspect_place(&shared.family)?)?;
    }
    let _lock = lock?;
    let record = shared.gate.check()?;
    let connection = match place.take() {
        Some(connection) => connection,
        None => {
            let connection = connect::checkpointer(&shared.family, shared.options.patience)?;
            record.has_only_its_files().inspect_err(|why| shared.gate.fence(why.again()))?;
            connection
        }
    };
    passive(shared, &record, &connection)?;
    *place = Some(connection);
    // Now the log still says what was written into the main file; once it is begun anew nobody can tell.
    shared.gate.check().map(drop)
}

/// True if the log has grown so long that the writers should wait for the rest to be copied.
pub(crate) fn log_is_long(shared: &Shared) -> bool {
    shared.signals.frames.load(Ordering::Relaxed) >= RESTART_FRAMES
}

/// Copies the little that the checkpoint beside the writers has left, so that the next commit begins the log anew. Called by
/// the writer between two commits, after everybody was answered and while it still has the turn.
pub(crate) fn finish(shared: &Shared) {
    // One that fails is tried again after the next commit; nothing depends on this one.
    let _ = checkpoint(shared);
}

/// Copies the log by the writer's own connection, for a handle that lets nobody in any more and is about to close its files.
pub(crate) fn copy_before_parking(shared: &Shared, record: &Record, connection: &Connection) -> Result<()> {
    let begun = Instant::now();
    loop {
        let copied = recovery::try_shared(&shared.family).and_then(|_lock| {
            record.check()?;
            flush::copy_beside_readers(connection)
        });
        // Several that park at once are in each other's way for a moment.
        if copied.is_ok() || begun.elapsed() >= PARKING || record.check().is_err() {
            return copied;
        }
        std::thread::sleep(AGAIN);
    }
}

fn passive(shared: &Shared, record: &Record, connection: &Connection) -> Result<()> {
    let before = record.index();
    let (busy, frames, copied): (i64, i64, i64) =
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
    // The log may have grown since; what was copied is what counts.
    shared.signals.copied.store(copied, Ordering::Relaxed);
    // Between two looks with the same salts nobody has begun the log anew.
    if let (Some(before), Some(after), Ok(last)) = (before, record.index(), u32::try_from(copied))
        && before.salts == after.salts
        && (busy, frames) == (0, copied)
    {
        shared.signals.prove(Copied { salts: after.salts, last });
    }
    Ok(())
}
