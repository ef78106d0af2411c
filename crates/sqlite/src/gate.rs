//! Whether the handle is in use, fenced or closed, and the threads that wait for that to change.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::generation::Record;

#[derive(Debug)]
struct State {
    /// The generation in use, or the last one that was.
    record: Record,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Open,
    /// The handle has seen its generation retire, or its connection fail; nothing is read or written.
    Fenced(Error),
    /// The handle has closed everything for somebody who does structural work, and comes back by itself.
    Parked(Error),
    Closed,
}

/// The one predicate that every read, write and checkpoint of a handle asks.
#[derive(Debug)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn open(record: Record) -> Gate {
        Gate { state: Mutex::new(State { record, phase: Phase::Open }), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of the generation in use, if the handle is open and the paths still name it. A difference that is
    /// seen here fences the handle.
    pub(crate) fn check(&self) -> Result<Record> {
        let record = {
            let state = self.lock();
            match &state.phase {
                Phase::Open => state.record.clone(),
                Phase::Fenced(why) | Phase::Parked(why) => return Err(why.again()),
                Phase::Closed => return Err(Error::Closed),
            }
        };
        match record.check() {
            Ok(()) => Ok(record),
            Err(why) => {
                self.fence(why.again());
                Err(why)
            }
        }
    }

    /// As [`Gate::check`], but waits while the handle is fenced or parked.
    pub(crate) fn wait(&self, patience: Duration) -> Result<Record> {
        let begun = Instant::now();
        loop {
            match self.check() {
                Err(Error::Closed) => return Err(Error::Closed),
                Ok(record) => return Ok(record),
                Err(why) => {
                    let state = self.lock();
                    if !matches!(state.phase, Phase::Fenced(_) | Phase::Parked(_)) {
                        continue;
                    }
                    if let Phase::Fenced(why) = &state.phase
                        && why.needs_a_person()
                    {
                        // It does not pass with time.
                        return Err(why.again());
                    }
                    let waited = begun.elapsed();
                    let Some(left) = patience.checked_sub(waited) else { return Err(why.after(waited)) };
                    drop(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }

    /// The generation in use, or the last one that was, without a look at the paths.
    pub(crate) fn record(&self) -> Record {
        self.lock().record.clone()
    }

    pub(crate) fn fenced(&self) -> bool {
        matches!(self.lock().phase, Phase::Fenced(_))
    }

    /// Why the handle is fenced or parked, if it is.
    pub(crate) fn cause(&self) -> Option<Error> {
        match &self.lock().phase {
            Phase::Fenced(why) | Phase::Parked(why) => Some(why.again()),
            Phase::Open | Phase::Closed => None,
        }
    }

    /// Cuts the handle off. The first reason stays, unless it was only that locks were lost, or it has turned out to be
    /// destruction.
    pub(crate) fn fence(&self, why: Error) {
        let mut state = self.lock();
        match &state.phase {
            Phase::Open => state.phase = Phase::Fenced(why),
            Phase::Fenced(before) if why.needs_a_person() || matches!(before, Error::LocksLost) => {
                state.phase = Phase::Fenced(why);
            }
            Phase::Fenced(_) | Phase::Parked(_) | Phase::Closed => {}
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Lets nobody in for the sake of structural work, or says once more why not. False if the handle is cut off meanwhile or
    /// closed.
    pub(crate) fn park(&self, why: Error) -> bool {
        let mut state = self.lock();
        let may = matches!(state.phase, Phase::Open | Phase::Parked(_));
        if may {
            state.phase = Phase::Parked(why);
        }
        may
    }

    /// Lets the handle go on in a new generation.
    pub(crate) fn reopen(&self, record: Record) {
        let mut state = self.lock();
        if !matches!(state.phase, Phase::Closed) {
            *state = State { record, phase: Phase::Open };
        }
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn close(&self) {
        self.lock().phase = Phase::Closed;
        self.changed.notify_all();
    }
}
