//! The member's side of admission: a handle's place among those who have the database open.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::lock::AdmissionLock;
use crate::error::Result;
use crate::family::Family;
use crate::secure::{self, Inspected};

/// A member's place: held while the handle has files of the database open.
#[derive(Debug)]
pub(crate) struct Entry(Mutex<AdmissionLock>);

impl Entry {
    /// A place, if the database has been opened by us before; else there is nobody yet who could be admitted.
    ///
    /// # Errors
    /// [`crate::Error::Busy`] with what is being done, when the gate stays shut for longer than `patience`.
    pub(crate) fn find(family: &Family, patience: Duration) -> Result<Option<Entry>> {
        while let Some(lock) = AdmissionLock::find(family)? {
            lock.enter(patience)?;
            if lock.is_named() {
                return Ok(Some(Entry(Mutex::new(lock))));
            }
        }
        Ok(None)
    }

    /// A place; the lock file is made if it is missing.
    ///
    /// # Errors
    /// As [`Entry::find`].
    pub(crate) fn make(inspected: &Inspected, patience: Duration) -> Result<Entry> {
        loop {
            let lock = AdmissionLock::make(inspected)?;
            lock.enter(patience)?;
            if lock.is_named() {
                return Ok(Entry(Mutex::new(lock)));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, AdmissionLock> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True while somebody wants members to park.
    pub(crate) fn drain_wanted(&self) -> bool {
        self.lock().drain_wanted()
    }

    /// True while newcomers wait.
    pub(crate) fn is_shut(&self) -> bool {
        self.lock().is_shut()
    }

    /// What is being done, as a person would say it.
    pub(crate) fn doing(&self) -> String {
        self.lock().doing()
    }

    /// Gives the place up, but not the wish to come back.
    pub(crate) fn leave(&self) -> Result<()> {
        self.lock().leave()
    }

    /// Takes the place again, by the file that is there now.
    ///
    /// # Errors
    /// As [`Entry::find`].
    pub(crate) fn again(&self, family: &Family, patience: Duration) -> Result<()> {
        if self.is_named() {
            return self.lock().enter(patience);
        }
        self.renew(family, patience)
    }

    /// True while others look for the place where it is.
    pub(crate) fn is_named(&self) -> bool {
        self.lock().is_named()
    }

    /// Keeps the place: when somebody has removed its file it is taken in the file that is there now, unless newcomers wait.
    ///
    /// # Errors
    /// As [`Entry::find`].
    pub(crate) fn stay(&self, family: &Family) -> Result<()> {
        if self.is_named() { Ok(()) } else { self.renew(family, Duration::ZERO) }
    }

    fn renew(&self, family: &Family, patience: Duration) -> Result<()> {
        let fresh = Entry::make(&secure::inspect_place(family)?, patience)?;
        *self.lock() = fresh.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(())
    }
}
