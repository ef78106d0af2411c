//! One database, open in this process: a writer, readers, and the watch over its generation.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::Connection;

use crate::error::{Error, Failure, Result};
use crate::family::{Family, Generation};
use crate::gate::Gate;
use crate::keeper;
use crate::opening;
use crate::options::Options;
use crate::readers::Readers;
use crate::shared::{RETRY, Shared};
use crate::ticket::{Ticket, ticket};
use crate::turnstile::Turnstile;
use crate::writer::{Queue, Typed};
use crate::{locks, write_thread};

/// A handle to an open database. Clones share it; the last one closes it.
#[derive(Clone)]
pub struct Database {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    /// One message of each thread when it has ended, and how many are still to come.
    ended: Mutex<(Receiver<()>, usize)>,
}

impl Database {
    /// Opens the database at `path`.
    ///
    /// # Errors
    /// A refusal with its own code (nothing on disk has changed), or what SQLite answered.
    pub fn open(path: &Path, options: Options) -> Result<Database> {
        locks::protect()?;
        let family = Family::of(path)?;
        let (entry, opened) = opening::open(&family, &options)?;
        let turnstile = Turnstile::open(&family.side_directory())?;
        let shared = Arc::new(Shared {
            entry,
            gate: Gate::open(opened.record.clone()),
            queue: Queue::default(),
            signals: Arc::default(),
            checkpointer: Mutex::new(None),
            readers: Readers::new(family.clone(), options.readers),
            lost: Mutex::default(),
            family,
            options,
        });
        let (end, ended) = channel();
        let inner = shared.clone();
        spawn("statehouse-write", end.clone(), move || write_thread::run(&inner, turnstile, opened))?;
        let inner = shared.clone();
        spawn("statehouse-keep", end, move || keeper::run(&inner))?;
        Ok(Database { inner: Arc::new(Inner { shared, ended: Mutex::new((ended, 2)) }) })
    }

    /// Queues a write. `request` runs inside a savepoint of a larger transaction on the writer's thread; it may run
    /// more than once (after a lost generation), so it must not have effects outside the connection. The ticket is
    /// answered after the commit is durable and the generation was still current.
    pub fn submit<T, F>(&self, request: F) -> Ticket<T>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> Result<T, Failure> + Send + 'static,
    {
        let shared = &self.inner.shared;
        let waiting = shared.clone();
        let (t, answer) = ticket(move || waiting.why_waiting());
        shared.queue.push(Box::new(Typed::new(request, answer)), shared.options.patience);
        t
    }

    /// Queues a write and waits for it, at most for the handle's patience.
    ///
    /// # Errors
    /// The request's own; [`Error::Busy`] when the turn did not come in time, [`Error::Retired`] when the files were removed
    /// or replaced and could not be put back in time.
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
    /// [`Error::Retired`] on a fenced handle that could not be reopened in time, the closure's error, or SQLite's.
    pub fn read<T>(&self, query: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let shared = &self.inner.shared;
        if shared.gate.check().is_err() {
            shared.queue.rouse();
            shared.gate.wait(shared.options.patience)?;
        }
        // Until it has ended the handle goes on in no other generation.
        let query = |c: &Connection| {
            let record = shared.gate.record();
            // Of the last look: none notes anything while a lock is missing.
            let before = record.index_mark();
            match query(c) {
                Ok(_) if record.is_betrayed(before) => {
                    shared.gate.fence(Error::LocksLost);
                    shared.queue.rouse();
                    Err(Error::LocksLost)
                }
                answer => answer,
            }
        };
        let proof = || {
            let proved = shared.gate.record().has_only_its_files();
            proved.inspect_err(|why| {
                shared.gate.fence(why.again());
                shared.queue.rouse();
            })
        };
        match shared.readers.read(shared.options.patience, proof, query) {
            // Nobody is let in to read while the handle is cut off.
            Err(Error::Busy { waited, holder }) => {
                Err(shared.gate.cause().map_or(Error::Busy { waited, holder }, |why| why.after(waited)))
            }
            Err(why @ Error::Damaged { .. }) => match shared.gate.record().search() {
                Err(found @ Error::Destroyed(_)) => {
                    shared.gate.fence(found.again());
                    shared.queue.rouse();
                    Err(found)
                }
                _ => Err(why),
            },
            answer => answer,
        }
    }

    /// The names of the database's files.
    pub fn family(&self) -> &Family {
        &self.inner.shared.family
    }

    /// The generation that this handle uses, or while it is fenced the one that it used last.
    pub fn generation(&self) -> Generation {
        self.inner.shared.gate.record().generation()
    }

    /// Proves that the paths name what this handle uses.
    ///
    /// # Errors
    /// [`Error::Retired`], after which the handle is fenced until it has been reopened.
    pub fn check(&self) -> Result<()> {
        let checked = self.inner.shared.gate.check();
        if checked.is_err() {
            self.inner.shared.queue.rouse();
        }
        checked.map(drop)
    }

    /// True while the handle is cut off from a retired generation and has not been reopened yet.
    pub fn fenced(&self) -> bool {
        self.inner.shared.gate.fenced()
    }

    /// Waits until everything that was queued is answered, and closes all connections of this handle and its clones;
    /// later calls answer [`Error::Closed`].
    ///
    /// # Errors
    /// What kept this handle from keeping rows that only it still had, because the files were removed or replaced. Unless
    /// the files were only moved away, those rows are lost then, and the observer was told [`Event::Lost`](crate::Event::Lost).
    pub fn close(&self) -> Result<()> {
        self.inner.close();
        let lost = self.inner.shared.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.as_ref().map_or(Ok(()), |why| Err(why.again()))
    }
}

impl Inner {
    fn close(&self) {
        self.shared.queue.stop();
        self.shared.signals.stop();
        let mut left_behind = false;
        {
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            let mut again = 2;
            while ended.1 > 0 {
                // A process that was stopped while it had the turn keeps our writer waiting for ever. It is left behind then:
                // what it was asked for was answered when its patience was over.
                match ended.0.recv_timeout(self.shared.options.patience + RETRY) {
                    Ok(()) => ended.1 -= 1,
                    // It may be the last that can read a log that was removed, and gives up by itself.
                    Err(RecvTimeoutError::Timeout) if self.shared.gate.fenced() && again > 0 => again -= 1,
                    Err(why) => {
                        ended.1 = 0;
                        left_behind = why == RecvTimeoutError::Timeout;
                    }
                }
            }
        }
        self.shared.gate.close();
        // A read that goes on closes its connection itself when it ends.
        let ended = self.shared.readers.shut(self.shared.options.patience) && !left_behind;
        *self.shared.checkpointer.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if ended {
            // A ticket or a clone that somebody keeps has no file open and must not keep anybody from structural work. Without
            // this the place is given up when the last of them goes.
            let _ = self.shared.entry.leave();
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

fn spawn(name: &str, end: Sender<()>, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let body = move || {
        body();
        // Nobody may be waiting any more.
        let _ = end.send(());
    };
    let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
    spawned.map(drop).map_err(|e| Error::io("start a thread for", Path::new(name), e))
}
