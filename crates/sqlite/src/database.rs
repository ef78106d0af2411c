//! One database, open in this process: a writer, readers, and the watch over its generation.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::error::{Error, Failure, Result};
use crate::family::{Family, Generation, Member};
use crate::flush::Committer;
use crate::gate::Gate;
use crate::generation::Record;
use crate::keeper::{self, Signals};
use crate::members::{self, Registration};
use crate::opening::{self, Opened};
use crate::readers::Readers;
use crate::retired::Kept;
use crate::ticket::{Ticket, ticket};
use crate::turnstile::Turnstile;
use crate::writer::{self, Queue, Typed};
use crate::{busy, captures, destroyed, doubt, locks, proof, putback, recovery, retired, secure, side};

/// How often a handle that could not be reopened tries again.
const RETRY: Duration = Duration::from_millis(250);

/// How long a recovery waits for the reads of its own process at a time. It holds a lock meanwhile that others want.
const READS_END: Duration = Duration::from_millis(600);

/// How long a recovery leaves it to other processes of ours to notice that their files were replaced. One that was stopped
/// notices nothing, and shall not keep the others for ever.
const CONSIDERATE: Duration = Duration::from_secs(2);

/// How long a handle that is closed goes on trying to put removed files back before it keeps what it can. A supervisor does
/// not wait for ever.
const RESCUE: Duration = Duration::from_secs(4);

/// How long the writer waits inside SQLite for a stranger's lock before it looks at the generation again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

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
    /// The handle was closed before what only this process had of removed files could be kept: it is gone now.
    Lost {
        /// What kept it from being kept, as text.
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
}

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

/// What the threads of one handle share.
pub(crate) struct Shared {
    pub(crate) family: Family,
    pub(crate) options: Options,
    pub(crate) gate: Gate,
    pub(crate) queue: Queue,
    pub(crate) signals: Arc<Signals>,
    pub(crate) checkpointer: Mutex<Option<Connection>>,
    readers: Readers,
    /// Why the last files that this handle had could not be kept when it was closed.
    lost: Mutex<Option<Error>>,
}

impl Database {
    /// Opens the database at `path`.
    ///
    /// # Errors
    /// A refusal with its own code (nothing on disk has changed), or what SQLite answered.
    pub fn open(path: &Path, options: Options) -> Result<Database> {
        locks::protect()?;
        let family = Family::of(path)?;
        let opened = opening::open(&family, &options)?;
        let turnstile = Turnstile::open(&family.side_directory())?;
        let shared = Arc::new(Shared {
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
        spawn("statehouse-write", end.clone(), move || write_loop(&inner, turnstile, opened))?;
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
        match shared.readers.read(shared.options.patience, query) {
            // Nobody is let in to read while the handle is cut off.
            Err(Error::Busy { waited, holder }) => Err(shared.gate.cause().unwrap_or(Error::Busy { waited, holder })),
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
    /// the files were only moved away, those rows are lost then, and the observer was told [`Event::Lost`].
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
                    Err(_) => ended.1 = 0,
                }
            }
        }
        self.shared.gate.close();
        // A read that goes on closes its connection itself when it ends.
        self.shared.readers.shut(self.shared.options.patience);
        *self.shared.checkpointer.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// What keeps writers waiting: that the files are gone, or who writes.
    pub(crate) fn why_waiting(&self) -> Error {
        let busy = || Error::Busy { waited: Duration::ZERO, holder: busy::who_writes(&self.family) };
        self.gate.cause().unwrap_or_else(busy)
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

fn write_loop(shared: &Shared, mut turnstile: Turnstile, opened: Opened) {
    let mut held = Held::new(shared, opened);
    while shared.queue.next() {
        if !shared.gate.fenced() {
            // It costs others time when this process is not known, and nothing else.
            let _ = held.register_again(shared);
            if let Err(e) = turn(shared, &turnstile, &held) {
                shared.gate.fence(e);
            }
            continue;
        }
        if let Some(why) = shared.gate.cause() {
            shared.options.tell(&Event::Fenced { cause: why.to_string() });
        }
        held.fenced_since = Instant::now();
        if !reopen(shared, &mut held) {
            break;
        }
        // Its files may have been removed as well, and others would take turns at new ones. The old ones serve as well.
        if let Ok(again) = Turnstile::open(&shared.family.side_directory()) {
            turnstile = again;
        }
    }
    rescue(shared, &mut held);
    drop(held);
    shared.queue.abandon();
}

/// Before the last descriptor is closed: what was acknowledged may be in files that somebody has removed a moment ago, and
/// this process the last that can read them. Once they are captured and the main file is in its place, the next opener
/// takes over the rest.
fn rescue(shared: &Shared, held: &mut Held) {
    let begun = Instant::now();
    while !held.is_safe(shared) && (shared.gate.fenced() || shared.gate.check().is_err()) {
        let Err(why) = recover(shared, held) else { return };
        if held.is_safe(shared) {
            return;
        }
        if begun.elapsed() >= shared.options.patience.min(RESCUE) {
            return last_resort(shared, held, why);
        }
        std::thread::sleep(RETRY);
    }
}

/// What is left to try before the descriptors are closed, and the truth about it.
fn last_resort(shared: &Shared, held: &mut Held, why: Error) {
    let (family, generation) = (&shared.family, held.record.generation());
    let lost = held.record.lost();
    let capture = || match (&held.connection, &held.kept) {
        (Some(connection), _) if !held.captured => retired::capture(family, generation, &lost, connection),
        (_, Some(kept)) => retired::capture_kept(family, generation, &lost, kept, true),
        _ => Ok(()),
    };
    let kept = side::make_again(family).and_then(|_| recovery::exclusive(family, RETRY)).and_then(|_lock| {
        retired::make_room(family, capture).or_else(|_| retired::keep_log(family, generation, &lost))
    });
    if kept.is_ok() {
        return;
    }
    *shared.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.again());
    // What was moved away still has a name somewhere.
    if let Some(transactions) = retired::nameless_transactions(family, generation, &lost) {
        shared.options.tell(&Event::Lost { cause: why.to_string(), transactions });
    }
}

/// Tries until the handle goes on; false when it is to be closed before that.
fn reopen(shared: &Shared, held: &mut Held) -> bool {
    let mut told = None;
    loop {
        match recover(shared, held) {
            Ok(()) => {
                shared.options.tell(&Event::Reopened);
                shared.queue.rouse();
                return true;
            }
            Err(_) if shared.queue.stopping() => return false,
            Err(e) => {
                if let Some(why) = shared.gate.cause().filter(Error::needs_a_person) {
                    shared.queue.refuse(&why);
                }
                // The same obstacle is told once, not four times a second.
                let cause = e.to_string();
                if told.as_ref() != Some(&cause) {
                    shared.options.tell(&Event::NotReopened { cause: cause.clone() });
                    told = Some(cause);
                }
                shared.queue.pause(RETRY);
            }
        }
    }
}

/// Waits for this process's turn and commits what has gathered by then.
fn turn(shared: &Shared, turnstile: &Turnstile, held: &Held) -> Result<()> {
    let Some(connection) = &held.connection else { return Ok(()) };
    if !shared.queue.has_work() {
        return Ok(());
    }
    let turn = turnstile.enter()?;
    let mut batch = shared.queue.take();
    let (gate, queue) = (&shared.gate, &shared.queue);
    match writer::commit(connection, &held.record, &mut batch) {
        Ok(()) if keeper::log_is_long(shared) => {
            writer::acknowledge(connection, gate, &held.record, queue, batch);
            keeper::finish(shared);
        }
        Ok(()) => {
            // The next process goes on while this one flushes and wakes up those who wait.
            drop(turn);
            writer::acknowledge(connection, gate, &held.record, queue, batch);
        }
        Err(e) => writer::recover(connection, gate, &held.record, queue, batch, e),
    }
    Ok(())
}

/// What the writer's thread has open.
struct Held {
    connection: Option<Committer>,
    record: Record,
    captured: bool,
    /// What it had is captured, and the main file was in its place after that.
    settled: bool,
    /// When the handle was cut off.
    fenced_since: Instant,
    /// A flush of the log failed, or was not made before the connection was closed.
    unflushed: bool,
    /// The files of the generation, from the capture until the handle goes on.
    kept: Option<Kept>,
    /// What was destroyed in place was kept and marked.
    marked: bool,
    member: Registration,
}

impl Held {
    fn new(shared: &Shared, opened: Opened) -> Held {
        let Opened { mut connection, record, member } = opened;
        let signals = shared.signals.clone();
        // Without the hook the log would only be bounded by other processes' checkpoints; it cannot fail to be set.
        let _ = connection.on_commit(move |frames| signals.committed(i64::from(frames)));
        // As above. Whoever asks has a patience of their own, and the writer goes on trying until it is over.
        let _ = connection.busy_timeout(LOOK_AGAIN);
        Held {
            connection: Some(connection),
            record,
            captured: false,
            settled: false,
            fenced_since: Instant::now(),
            unflushed: false,
            kept: None,
            marked: false,
            member,
        }
    }

    /// Nothing is lost any more when this process ends.
    fn is_safe(&self, shared: &Shared) -> bool {
        self.settled && captures::main_is_missing(&shared.family).is_ok_and(|missing| !missing)
    }

    /// Without a record the others would take this process for a stranger. Whoever removed the side directory removed it too.
    fn register_again(&mut self, shared: &Shared) -> Result<()> {
        if self.member.is_gone() {
            let place = secure::inspect_place(&shared.family)?;
            self.member = members::register(&place, &shared.options.role)?;
        }
        Ok(())
    }
}

/// Captures what the retired generation held, closes every connection, opens what the paths name now, and takes over
/// what only the capture has. Can be called again after an error; what was done stays done.
fn recover(shared: &Shared, held: &mut Held) -> Result<()> {
    let family = &shared.family;
    if held.captured {
        // Before the lock is taken, which others want: a read that does not end shall keep nobody else waiting.
        close_readers(shared)?;
    }
    let why = shared.gate.cause();
    // Whoever removed the files may have removed the side directory too, and the directory above it.
    match side::make_again(family) {
        // A destroyed file may not pass any check; the directory is there most often.
        Err(_) if matches!(why, Some(Error::Destroyed(_))) => {}
        made => drop(made?),
    }
    // Openers wait for one that they know to be ours.
    held.register_again(shared)?;
    let patience = if shared.queue.stopping() { RETRY } else { shared.options.patience };
    let _lock = recovery::exclusive(family, patience)?;
    // Not before the lock is held: an opener that finds nobody unfenced on a retired generation goes on.
    held.member.set_fenced(true)?;
    if let Some(Error::Destroyed(destruction)) = &why
        && destruction.member != Member::Shm
    {
        // A person who has put the files in order has removed the mark. If they are not, it is made once more.
        held.marked = !held.marked || destroyed::mark(family)?.is_some();
        if held.marked {
            destroyed::keep(family, &held.record.generation(), destruction)?;
        }
    }
    let considerate = held.fenced_since.elapsed() < CONSIDERATE;
    let lost = held.record.lost();
    if let Some(connection) = &held.connection
        && !held.captured
    {
        retired::capture(family, held.record.generation(), &lost, connection)?;
        held.kept = retired::keep(family, held.record.generation())?;
        held.captured = true;
    }
    if let Some(kept) = held.kept.as_ref().filter(|_| lost.contains(&Member::Main)) {
        // The main file may have been removed after the log, and the capture too; else this does nothing.
        retired::capture_kept(family, held.record.generation(), &lost, kept, !considerate)?;
    }
    close_readers(shared)?;
    held.unflushed |= held.connection.take().is_some_and(|c| c.owes());
    putback::move_aside(family, held.record.generation(), &lost)?;
    if putback::main_file(family, considerate)? {
        if lost.contains(&Member::Wal) {
            putback::move_headless_log(family)?;
        }
        putback::settle(family)?;
        held.settled = true;
    }
    let in_doubt = matches!(why, Some(Error::Destroyed(_) | Error::Doubtful { .. }));
    if in_doubt {
        destroyed::refuse(family)?;
        destroyed::refuse_foreign(family)?;
        if why.as_ref().is_some_and(destroyed::index_is_void) {
            destroyed::reset_index(family, held.record.making())?;
        }
    }
    let opened =
        opening::reopen(family, &shared.options, considerate).inspect_err(|e| held.unflushed |= e.poisons())?;
    let (before, now) = (held.record.generation(), opened.record.generation());
    if in_doubt
        && let Err(e) = proof::prove(family, &now, &opened.connection)
        // Under files that were changed again meanwhile nothing is proved, and what was merged may be in them alone: the
        // handle begins with them, and its first look fences it.
        && opened.record.check().is_ok()
    {
        shared.gate.fence(e.again());
        return Err(e);
    }
    if let Some(kept) = &held.kept
        && (before.wal != now.wal || before.main != now.main)
    {
        // More may have been removed than when this process looked, or the capture itself; then it is made once more, and else
        // this does nothing. The new connection stays open: what was merged into its log is in no other place.
        side::make_again(family)?;
        retired::capture_kept(family, before, &before.differences(&now), kept, false)?;
        putback::settle(family)?;
        opening::merge(&opened.record, &shared.options, &opened.connection)?;
    }
    // What no flush has confirmed is kept before anybody is told of it by a later write.
    if held.unflushed {
        doubt::settle(family, &opened.connection)?;
    }
    let record = opened.record.clone();
    *held = Held::new(shared, opened);
    shared.readers.admit();
    shared.gate.reopen(record);
    Ok(())
}

/// Closes every connection of this handle but the writer's.
fn close_readers(shared: &Shared) -> Result<()> {
    let begun = Instant::now();
    *shared.checkpointer.lock().unwrap_or_else(PoisonError::into_inner) = None;
    if shared.readers.shut(READS_END) {
        return Ok(());
    }
    Err(Error::Busy { waited: begun.elapsed(), holder: Some("a read of this process that does not end".into()) })
}
