//! The pool of read-only connections of one handle.
//!
//! All of them must be closed before the handle can go on in a new generation, because SQLite shares one index between
//! all connections of a process to one main file. So the pool knows who is out, can interrupt them, and waits.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::{Connection, InterruptHandle};

use crate::connect;
use crate::error::{Error, Result};
use crate::family::Family;

/// How long a query may go on after its generation was retired before it is interrupted.
const GRACE: Duration = Duration::from_millis(200);

#[derive(Default)]
struct Pool {
    shut: bool,
    idle: Vec<Connection>,
    out: HashMap<u64, Option<InterruptHandle>>,
    next: u64,
}

pub(crate) struct Readers {
    family: Family,
    limit: usize,
    pool: Mutex<Pool>,
    changed: Condvar,
}

impl Readers {
    pub(crate) fn new(family: Family, limit: usize) -> Readers {
        Readers { family, limit: limit.max(1), pool: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `query` inside one read transaction. A connection that is new is used only if `proof` says that SQLite has opened
    /// what it should have.
    pub(crate) fn read<T>(
        &self,
        patience: Duration,
        proof: impl FnOnce() -> Result<()>,
        query: impl FnOnce(&Connection) -> Result<T>,
    ) -> Result<T> {
        let (id, idle) = self.enter(patience)?;
        let place = Place { readers: self, id };
        let connection = match idle {
            Some(connection) => connection,
            None => {
                let connection = connect::reader(&self.family, patience)?;
                proof()?;
                connection
            }
        };
        if let Some(handle) = self.lock().out.get_mut(&id) {
            *handle = Some(connection.get_interrupt_handle());
        }
        connection.execute_batch("BEGIN")?;
        let answer = query(&connection);
        let ended = connection.execute_batch("ROLLBACK");
        if ended.is_ok() && answer.is_ok() {
            place.give_back(connection);
        }
        answer
    }

    /// A place among those who read, and an idle connection if there is one.
    fn enter(&self, patience: Duration) -> Result<(u64, Option<Connection>)> {
        let begun = Instant::now();
        let mut pool = self.lock();
        while pool.shut || pool.out.len() >= self.limit {
            let Some(left) = patience.checked_sub(begun.elapsed()) else {
                return Err(Error::Busy {
                    waited: begun.elapsed(),
                    holder: Some("other readers of this process".into()),
                });
            };
            pool = self.changed.wait_timeout(pool, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let id = pool.next;
        pool.next += 1;
        pool.out.insert(id, None);
        Ok((id, pool.idle.pop()))
    }

    /// Lets nobody in and interrupts who is still reading; true when every connection is closed. A query that does
    /// something else than SQLite's work, such as waiting for a slow client, cannot be interrupted, so there is a limit.
    pub(crate) fn shut(&self, limit: Duration) -> bool {
        let begun = Instant::now();
        let mut pool = self.lock();
        pool.shut = true;
        pool.idle.clear();
        while !pool.out.is_empty() {
            if begun.elapsed() >= limit {
                return false;
            }
            if begun.elapsed() >= GRACE {
                pool.out.values().flatten().for_each(InterruptHandle::interrupt);
            }
            pool = self.changed.wait_timeout(pool, GRACE).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Lets nobody in, and closes what is idle; true if nobody reads any more. Disturbs nobody who does.
    pub(crate) fn hold_back(&self, limit: Duration) -> bool {
        let mut pool = self.lock();
        pool.shut = true;
        pool.idle.clear();
        let wait = self.changed.wait_timeout_while(pool, limit, |pool| !pool.out.is_empty());
        let pool = wait.unwrap_or_else(PoisonError::into_inner).0;
        pool.out.is_empty()
    }

    /// Lets readers in again.
    pub(crate) fn admit(&self) {
        self.lock().shut = false;
        self.changed.notify_all();
    }
}

/// One of the places; leaving it is what `shut` waits for.
struct Place<'a> {
    readers: &'a Readers,
    id: u64,
}

impl Place<'_> {
    fn give_back(&self, connection: Connection) {
        let mut pool = self.readers.lock();
        if !pool.shut {
            pool.idle.push(connection);
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.readers.lock().out.remove(&self.id);
        self.readers.changed.notify_all();
    }
}
