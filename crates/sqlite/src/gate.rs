//! Whether the handle is in use, fenced or closed, and the threads that wait for that to change.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::generation::Record;

#[derive(Debug)]
enum Phase {
    Open(Record),
    /// The handle has seen its generation retire, or its connection fail; nothing is read or written.
    Fenced(Error),
    Closed,
}

/// The one predicate that every read, write and checkpoint of a handle asks.
#[derive(Debug)]
pub(crate) struct Gate {
    phase: Mutex<Phase>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn open(record: Record) -> Gate {
        Gate { phase: Mutex::new(Phase::Open(record)), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The record of the generation in use, if the handle is open and the paths still name it. A difference that is
    /// seen here fences the handle.
    pub(crate) fn check(&self) -> Result<Record> {
        let record = match &*self.lock() {
            Phase::Open(record) => record.clone(),
            Phase::Fenced(why) => return Err(why.again()),
            Phase::Closed => return Err(Error::Closed),
        };
        match record.check() {
            Ok(()) => Ok(record),
            Err(why) => {
                self.fence(why.again());
                Err(why)
            }
        }
    }

    /// As [`Gate::check`], but waits while the handle is fenced.
    pub(crate) fn wait(&self, patience: Duration) -> Result<Record> {
        let begun = Instant::now();
        loop {
            match self.check() {
                Err(Error::Closed) => return Err(Error::Closed),
                Ok(record) => return Ok(record),
                Err(why) => {
                    let phase = self.lock();
                    if !matches!(*phase, Phase::Fenced(_)) {
                        continue;
                    }
                    let Some(left) = patience.checked_sub(begun.elapsed()) else { return Err(why) };
                    drop(self.changed.wait_timeout(phase, left).unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }

    /// The record without a look at the paths; `None` unless open.
    pub(crate) fn record(&self) -> Option<Record> {
        match &*self.lock() {
            Phase::Open(record) => Some(record.clone()),
            _ => None,
        }
    }

    pub(crate) fn fenced(&self) -> bool {
        matches!(&*self.lock(), Phase::Fenced(_))
    }

    /// Why the handle is fenced, as text.
    pub(crate) fn cause(&self) -> String {
        match &*self.lock() {
            Phase::Fenced(why) => why.to_string(),
            Phase::Open(_) | Phase::Closed => String::new(),
        }
    }

    /// Cuts the handle off. The first reason stays.
    pub(crate) fn fence(&self, why: Error) {
        let mut phase = self.lock();
        if matches!(*phase, Phase::Open(_)) {
            *phase = Phase::Fenced(why);
        }
        drop(phase);
        self.changed.notify_all();
    }

    /// Lets the handle go on in a new generation.
    pub(crate) fn reopen(&self, record: Record) {
        let mut phase = self.lock();
        if !matches!(*phase, Phase::Closed) {
            *phase = Phase::Open(record);
        }
        drop(phase);
        self.changed.notify_all();
    }

    pub(crate) fn close(&self) {
        *self.lock() = Phase::Closed;
        self.changed.notify_all();
    }
}
