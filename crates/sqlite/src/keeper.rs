//! The thread that looks after an open handle: it notices a retired generation while nobody writes, keeps the log
//! bounded, and answers requests that have waited too long.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use crate::connect;
use crate::database::Shared;
use crate::error::{Error, Result};
use crate::{members, recovery, secure, side};

/// How often the generation is looked at. A retired one must be noticed within a second.
const TICK: Duration = Duration::from_millis(250);

/// A checkpoint begins when so many frames are in the log that are not in the main file.
const CHECKPOINT_FRAMES: i64 = 400;

/// From this length on our own writers wait while the rest is copied, so that the log can begin anew. A checkpoint beside
/// writers never catches up with the last frame, and then the log grows for ever.
const RESTART_FRAMES: i64 = 600;

/// What the writer tells the keeper.
#[derive(Default)]
pub(crate) struct Signals {
    /// Frames in the log after the last commit of this process.
    frames: AtomicI64,
    /// Frames of the log that are in the main file, as of the last checkpoint of this process.
    copied: AtomicI64,
    state: Mutex<Wanted>,
    changed: Condvar,
}

#[derive(Default)]
struct Wanted {
    checkpoint: bool,
    stop: bool,
}

impl Signals {
    /// Called after each commit, on the writer's thread.
    pub(crate) fn committed(&self, frames: i64) {
        self.frames.store(frames, Ordering::Relaxed);
        if frames < self.copied.load(Ordering::Relaxed) {
            self.copied.store(0, Ordering::Relaxed);
        }
        if self.backlog() >= CHECKPOINT_FRAMES {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).checkpoint = true;
            self.changed.notify_all();
        }
    }

    fn backlog(&self) -> i64 {
        self.frames.load(Ordering::Relaxed) - self.copied.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.changed.notify_all();
    }

    /// Waits for a tick or a signal; false when the keeper shall end.
    fn wait(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.stop && !state.checkpoint {
            state = self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.checkpoint = false;
        !state.stop
    }
}

pub(crate) fn run(shared: &Shared) {
    while shared.signals.wait() {
        // The writer registers anew when somebody has removed the record: without one this process looks like a stranger.
        if shared.gate.check().is_err() || !members::are_recorded(&shared.family) {
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

/// Copies the log into the main file, beside the writers.
fn checkpoint(shared: &Shared) -> Result<()> {
    let mut place = shared.checkpointer.lock().unwrap_or_else(PoisonError::into_inner);
    let lock = recovery::try_shared(&shared.family);
    if let Err(Error::Io { .. }) = &lock {
        // Somebody removed the side directory. It must not let the log grow for ever.
        side::create(&secure::inspect_place(&shared.family)?)?;
    }
    let _lock = lock?;
    shared.gate.check()?;
    let connection = match place.take() {
        Some(connection) => connection,
        None => connect::checkpointer(&shared.family, shared.options.patience)?,
    };
    passive(shared, &connection)?;
    *place = Some(connection);
    Ok(())
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

fn passive(shared: &Shared, connection: &Connection) -> Result<()> {
    let copied = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |r| r.get(2))?;
    // The log may have grown since; what was copied is what counts.
    shared.signals.copied.store(copied, Ordering::Relaxed);
    Ok(())
}
