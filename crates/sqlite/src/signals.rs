//! What the writer of a handle tells its keeper: how long the log is.

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::remembered::Copied;

/// How often the generation is looked at. A retired one must be noticed within a second.
const TICK: Duration = Duration::from_millis(250);

/// A checkpoint begins when so many frames are in the log that are not in the main file.
pub(crate) const CHECKPOINT_FRAMES: i64 = 400;

/// What the writer tells the keeper.
#[derive(Default)]
pub(crate) struct Signals {
    /// Frames in the log after the last commit of this process.
    pub(crate) frames: AtomicI64,
    /// The same for the commit that is being made; 0 as long as it has made none.
    pub(crate) made: AtomicI64,
    /// Frames of the log that are in the main file, as of the last checkpoint of this process.
    pub(crate) copied: AtomicI64,
    proved: Mutex<Option<Copied>>,
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
        self.made.store(frames, Ordering::Relaxed);
        if frames < self.copied.load(Ordering::Relaxed) {
            self.copied.store(0, Ordering::Relaxed);
        }
        if self.backlog() >= CHECKPOINT_FRAMES {
            self.state.lock().unwrap_or_else(PoisonError::into_inner).checkpoint = true;
            self.changed.notify_all();
        }
    }

    /// Notes that a checkpoint of this process came to the end of the log as it was then.
    pub(crate) fn prove(&self, copied: Copied) {
        *self.proved.lock().unwrap_or_else(PoisonError::into_inner) = Some(copied);
    }

    /// The last that was noted.
    pub(crate) fn proved(&self) -> Option<Copied> {
        *self.proved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frames of the log that are not in the main file.
    pub(crate) fn backlog(&self) -> i64 {
        self.frames.load(Ordering::Relaxed) - self.copied.load(Ordering::Relaxed)
    }

    pub(crate) fn stop(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.changed.notify_all();
    }

    /// Waits for a tick or a signal; false when the keeper shall end.
    pub(crate) fn wait(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.stop && !state.checkpoint {
            state = self.changed.wait_timeout(state, TICK).unwrap_or_else(PoisonError::into_inner).0;
        }
        state.checkpoint = false;
        !state.stop
    }
}
