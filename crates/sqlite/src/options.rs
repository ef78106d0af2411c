//! How to open a database, what its owner knows of the content, and what a handle tells of itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use crate::error::{Failure, Result};

/// Is told what happens to a handle. Called on the handle's own threads; must not call the handle.
pub type Observer = Arc<dyn Fn(&Event) + Send + Sync>;

/// How to open.
#[derive(Clone)]
pub struct Options {
    /// What this process is to the database ("gateway", "worker"); shown by `holders`.
    pub role: String,
    /// Create the main file if it does not exist.
    pub create: bool,
    /// The `application_id` that the database must carry (set at creation); 0 accepts any.
    pub application_id: i32,
    /// How long a write waits for its turn, and a read for a place.
    pub patience: Duration,
    /// How many readers may be open at once.
    pub readers: usize,
    /// What the owner of the content knows; without it nothing is migrated, and captures are kept but not merged.
    pub schema: Option<Arc<dyn Schema>>,
    /// Is told what happens to the handle.
    pub observer: Option<Observer>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            role: "program".into(),
            create: false,
            application_id: 0,
            patience: Duration::from_secs(10),
            readers: 4,
            schema: None,
            observer: None,
        }
    }
}

impl Options {
    pub(crate) fn tell(&self, event: &Event) {
        if let Some(observer) = &self.observer {
            // A panic in it must not take the writer away from everybody.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| observer(event)));
        }
    }
}

/// What happens to a handle after it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The files were unlinked or replaced (or SQLite could not use them any more); nothing is read or written.
    Fenced {
        /// The error that everybody gets meanwhile, as text.
        cause: String,
    },
    /// Locks of this process were gone, and were taken again before anything had happened to the files. Nothing is lost; but
    /// something in this process drops locks that are not its own.
    Healed {
        /// Which locks, as a fragment.
        what: String,
    },
    /// A capture of a retired generation was taken over into the live database.
    Merged {
        /// Rows that only the capture had.
        rows: u64,
    },
    /// The handle goes on.
    Reopened,
    /// Going on was tried and did not succeed; it is tried again.
    NotReopened {
        /// The error, as text.
        cause: String,
    },
    /// The handle has closed everything, because somebody was admitted to do structural work and asked for it.
    Parked {
        /// Who, and what for, as a person would say it.
        by: String,
    },
    /// The handle goes on after it was parked.
    Resumed,
    /// The handle was closed before what only this process had of removed files could be kept: it is gone now, but for a copy
    /// of the log where one could be left for a person.
    Lost {
        /// What kept it from being kept, as text, and where the copy is.
        cause: String,
        /// How many transactions were in the log that is gone. What a checkpoint had copied of them is in the main file,
        /// unless that is gone, too.
        transactions: u64,
    },
}

/// What the owner of the content knows and this crate does not.
pub trait Schema: Send + Sync {
    /// True if the schema is the one that this program writes; must not write.
    ///
    /// # Errors
    /// A refusal (for example a newer schema), or SQLite's error.
    fn current(&self, connection: &Connection) -> Result<bool>;

    /// Brings the schema up to date. Runs inside a write transaction.
    ///
    /// # Errors
    /// Anything; the transaction is rolled back and opening fails.
    fn migrate(&self, transaction: &Connection) -> Result<(), Failure>;

    /// Copies what only `retired` (an image of a retired generation, read-only, attached to nothing) has into the live
    /// database. Runs inside a write transaction, must be idempotent, and never overwrites newer content.
    /// Returns the number of rows taken over.
    ///
    /// # Errors
    /// Anything; the transaction is rolled back.
    fn merge(&self, transaction: &Connection, retired: &Connection) -> Result<u64, Failure>;

    /// Gives rows that refer to what nobody has any more something to refer to, or takes the reference away, so that all
    /// constraints hold. Runs inside a write transaction on a database that was put together after a loss.
    ///
    /// # Errors
    /// Anything; the transaction is rolled back.
    fn adopt(&self, transaction: &Connection) -> Result<(), Failure> {
        let _ = transaction;
        Ok(())
    }

    /// How much there must be of each thing, by what `image` itself says: after a loss it is compared with what is there.
    ///
    /// # Errors
    /// What SQLite answered.
    fn inventory(&self, image: &Connection) -> Result<BTreeMap<String, u64>> {
        let _ = image;
        Ok(BTreeMap::new())
    }

    /// What of an inventory is not in a database, a sentence each, as exactly as it is known.
    ///
    /// # Errors
    /// What SQLite answered.
    fn missing(&self, database: &Connection, expected: &BTreeMap<String, u64>) -> Result<Vec<String>> {
        let _ = (database, expected);
        Ok(Vec::new())
    }
}
