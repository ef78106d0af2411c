//! The queue of write requests, and how a batch of them becomes one commit.
//!
//! A batch is one `BEGIN IMMEDIATE`, a savepoint for each request, one `COMMIT`, a flush of the log, and a look at the
//! generation before and after. Only then is anybody answered. A request is a closure that can run again: when its batch was lost with
//! its generation, or failed because of another request in it, it is run anew.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::error::{Error, Failure, Result};
use crate::family::Family;
use crate::flush::Committer;
use crate::gate::Gate;
use crate::generation::Record;
use crate::options::Options;
use crate::remembered::{Again, Remembered, Span};
use crate::signals::Signals;
use crate::ticket::Answer;
use crate::{busy, doubt, heal};

/// The most requests that one commit takes. It bounds how long one process keeps the turn.
const BATCH: usize = 256;

/// How often a request is run anew after SQLite could not use the files, before its error is given to the one who asked.
/// After a lost generation, or lost locks, it is run anew until its patience is over.
const ATTEMPTS: u32 = 5;

/// A write that somebody waits for.
pub(crate) trait Request: Send {
    /// Runs the closure and keeps its value.
    fn run(&mut self, connection: &Connection) -> Result<(), Failure>;
    /// Gives the kept value, or the error. What can be run once more is given back.
    fn answer(self: Box<Self>, outcome: Result<()>) -> Box<dyn Again>;
    /// True when nobody waits any more.
    fn abandoned(&self) -> bool;
}

pub(crate) struct Typed<T, F> {
    request: F,
    value: Option<T>,
    answer: Answer<T>,
}

impl<T, F> Typed<T, F> {
    pub(crate) fn new(request: F, answer: Answer<T>) -> Typed<T, F> {
        Typed { request, value: None, answer }
    }
}

impl<T, F> Request for Typed<T, F>
where
    T: Send,
    F: Fn(&Connection) -> Result<T, Failure> + Send + 'static,
{
    fn run(&mut self, connection: &Connection) -> Result<(), Failure> {
        // A panic in one request must not take the writer away from all others.
        self.value = Some(run_caught(&self.request, connection)?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<()>) -> Box<dyn Again> {
        let Typed { request, value, answer } = *self;
        answer.give(outcome.and_then(|()| value.ok_or(Error::Closed)));
        Box::new(Answered(request))
    }

    fn abandoned(&self) -> bool {
        self.answer.abandoned()
    }
}

fn run_caught<T>(request: &impl Fn(&Connection) -> Result<T, Failure>, on: &Connection) -> Result<T, Failure> {
    let run = catch_unwind(AssertUnwindSafe(|| request(on)));
    run.unwrap_or_else(|_| Err(Failure::Abort("a write request panicked".into())))
}

/// A request that nobody waits for any more.
struct Answered<F>(F);

impl<T, F: Fn(&Connection) -> Result<T, Failure> + Send> Again for Answered<F> {
    fn again(&self, connection: &Connection) -> Result<(), Failure> {
        run_caught(&self.0, connection).map(drop)
    }
}

/// A request in the queue.
pub(crate) struct Queued {
    request: Box<dyn Request>,
    since: Instant,
    patience: Duration,
    attempts: u32,
    /// Its own refusal, when its savepoint was rolled back.
    refusal: Option<Error>,
}

impl Queued {
    fn expired(&self) -> bool {
        self.request.abandoned() || self.since.elapsed() > self.patience
    }

    /// Gives the answer. A request that was kept is given back.
    fn answer(self, outcome: Result<()>) -> Option<Box<dyn Again>> {
        let outcome = match (outcome, self.refusal) {
            (Ok(()), Some(refusal)) => Err(refusal),
            (outcome, _) => outcome,
        };
        let kept = outcome.is_ok();
        let again = self.request.answer(outcome);
        kept.then_some(again)
    }

    fn give_up(self, holder: Option<String>) {
        let waited = self.since.elapsed();
        self.request.answer(Err(Error::Busy { waited, holder }));
    }
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Queued>,
    stopping: bool,
    /// Something other than a request wants the writer: the handle was fenced.
    roused: bool,
}

/// The requests that wait for the writer.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, request: Box<dyn Request>, patience: Duration) {
        let queued = Queued { request, since: Instant::now(), patience, attempts: 0, refusal: None };
        let mut state = self.lock();
        if state.stopping {
            drop(state);
            queued.answer(Err(Error::Closed));
            return;
        }
        state.waiting.push_back(queued);
        drop(state);
        self.changed.notify_all();
    }

    /// Blocks until there is work or the writer was roused (true), or the handle is closing and nothing is left (false).
    pub(crate) fn next(&self) -> bool {
        let mut state = self.lock();
        loop {
            if std::mem::take(&mut state.roused) || !state.waiting.is_empty() {
                return true;
            }
            if state.stopping {
                return false;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// True if somebody waits.
    pub(crate) fn has_work(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    /// True if no more requests are taken.
    pub(crate) fn stopping(&self) -> bool {
        self.lock().stopping
    }

    /// What waits now, at most one batch. Called when the turn has come, so that everything that arrived while waiting
    /// for it shares the commit.
    pub(crate) fn take(&self) -> Vec<Queued> {
        let mut state = self.lock();
        let count = state.waiting.len().min(BATCH);
        state.waiting.drain(..count).filter(|queued| !queued.request.abandoned()).collect()
    }

    /// Puts requests back to the front, in their order, to be run anew.
    pub(crate) fn put_back(&self, batch: Vec<Queued>) {
        let mut state = self.lock();
        for queued in batch.into_iter().rev() {
            state.waiting.push_front(queued);
        }
    }

    /// Waits for `time`, or until the handle is to be closed.
    pub(crate) fn pause(&self, time: Duration) {
        let begun = Instant::now();
        let mut state = self.lock();
        while let Some(left) = time.checked_sub(begun.elapsed()).filter(|_| !state.stopping) {
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Answers everything that waits with an error that does not pass.
    pub(crate) fn refuse(&self, why: &Error) {
        let waiting: Vec<_> = self.lock().waiting.drain(..).collect();
        for queued in waiting {
            queued.answer(Err(why.again()));
        }
    }

    /// Wakes the writer though there may be no request.
    pub(crate) fn rouse(&self) {
        self.lock().roused = true;
        self.changed.notify_all();
    }

    /// True if some request has waited beyond its patience.
    pub(crate) fn has_expired(&self) -> bool {
        self.lock().waiting.iter().any(Queued::expired)
    }

    /// Answers those that have waited beyond their patience with what `why` says of so long a wait.
    pub(crate) fn expire(&self, why: impl Fn(Duration) -> Error) {
        let mut state = self.lock();
        let (gone, kept): (Vec<_>, Vec<_>) = state.waiting.drain(..).partition(Queued::expired);
        state.waiting = kept.into();
        drop(state);
        for queued in gone {
            let waited = queued.since.elapsed();
            queued.request.answer(Err(why(waited)));
        }
    }

    /// Takes no more requests; the writer finishes what is there.
    pub(crate) fn stop(&self) {
        self.lock().stopping = true;
        self.changed.notify_all();
    }

    /// Answers everything that is left: the writer is gone.
    pub(crate) fn abandon(&self) {
        let left: Vec<_> = self.lock().waiting.drain(..).collect();
        for queued in left {
            queued.answer(Err(Error::Closed));
        }
    }
}

fn answer(batch: Vec<Queued>, why: &Error) {
    for queued in batch {
        queued.answer(Err(why.again()));
    }
}

/// What a commit is made with.
pub(crate) struct Writing<'a> {
    pub(crate) connection: &'a Committer,
    pub(crate) record: &'a Record,
    pub(crate) gate: &'a Gate,
    pub(crate) queue: &'a Queue,
    pub(crate) options: &'a Options,
    pub(crate) signals: &'a Signals,
}

/// Makes one commit of the whole batch, in the generation that the paths name when it begins, and flushes nothing. Needs
/// the turn.
///
/// Returns the frames that it made, if that can be told.
pub(crate) fn commit(writing: &Writing<'_>, batch: &mut Vec<Queued>) -> Result<Option<Span>> {
    let Writing { connection, record, .. } = *writing;
    record.check_quickly()?;
    begin(connection, record, batch)?;
    let before = record.index();
    writing.signals.made.store(0, Ordering::Relaxed);
    // With an index that was cut off meanwhile the statements may have read pages that are older than the last commit, and
    // what was made from them must not become a commit.
    let done =
        statements(connection, batch).and_then(|()| record.check_quickly()).and_then(|()| Ok(connection.commit()?));
    if done.is_err() && !connection.is_autocommit() {
        // If even this fails the connection still has its transaction, and the next BEGIN says so.
        let _ = connection.execute_batch("ROLLBACK");
    }
    let last = u32::try_from(writing.signals.made.load(Ordering::Relaxed)).unwrap_or(0);
    done?;
    let after = record.index();
    record.committed(before, after);
    Ok(Span::of_commit(before, after, last))
}

/// Makes the commit durable and answers those who wait for it, if the paths still name the generation that it went to;
/// otherwise fences the handle and has them run anew. Needs no turn, and both take longer than the commit.
pub(crate) fn acknowledge(writing: &Writing<'_>, memory: &mut Remembered, batch: Vec<Queued>, span: Option<Span>) {
    let Writing { connection, gate, record, queue, options, .. } = *writing;
    if let Err(e) = make_durable(connection, record.family()) {
        // Not run anew: everybody can see the commit, and a request that is no new row by its id would count twice.
        answer(batch, &e);
        return gate.fence(e);
    }
    let looked = match record.check() {
        // If nothing but the standing locks is gone, the commit is where it should be, and need not be made twice.
        Err(Error::LocksLost) => heal::retake(record, options),
        looked => looked,
    };
    match looked.and_then(|()| record.wrote(span)) {
        Ok(()) => {
            // As of a look that has found the main file in its place: what is copied into another one is not in this one.
            memory.forget(record.seen(), writing.signals.proved());
            memory.keep(span, batch.into_iter().filter_map(|queued| queued.answer(Ok(()))).collect());
        }
        Err(e) => {
            memory.note(span);
            fence(gate, queue, batch, e);
        }
    }
}

fn make_durable(connection: &Committer, family: &Family) -> Result<()> {
    let flushed = connection.flush();
    if flushed.is_err() {
        doubt::raise(family);
    } else if doubt::raised(family) {
        // Another process heard of a failure, and this flush proves nothing about what lies before this commit.
        return Err(Error::Unflushed);
    }
    flushed
}

/// Deals with a batch whose commit failed. Needs the turn.
pub(crate) fn recover(writing: &Writing<'_>, memory: &mut Remembered, mut batch: Vec<Queued>, why: Error) {
    let Writing { gate, record, queue, .. } = *writing;
    // What SQLite finds damaged may have been destroyed by somebody else just now.
    let why = match why {
        Error::Damaged { .. } => record.search().err().unwrap_or(why),
        why => why,
    };
    if why.poisons() {
        return fence(gate, queue, batch, why);
    }
    if batch.len() == 1 {
        return answer(batch, &why);
    }
    // One request can make a commit impossible for all, for example by filling the disk: each for itself.
    while !batch.is_empty() {
        let rest = batch.split_off(1);
        match commit(writing, &mut batch) {
            Ok(span) => acknowledge(writing, memory, batch, span),
            Err(e) if e.poisons() => fence(gate, queue, batch, e),
            Err(e) => answer(batch, &e),
        }
        if gate.fenced() {
            return queue.put_back(rest);
        }
        batch = rest;
    }
}

fn fence(gate: &Gate, queue: &Queue, mut batch: Vec<Queued>, why: Error) {
    if !matches!(why, Error::Retired { .. } | Error::LocksLost | Error::Destroyed(_)) {
        for queued in &mut batch {
            queued.attempts += 1;
        }
    }
    let forever = why.needs_a_person();
    let (spent, again): (Vec<_>, Vec<_>) = batch.into_iter().partition(|q| forever || q.attempts >= ATTEMPTS);
    queue.put_back(again);
    answer(spent, &why);
    gate.fence(why);
}

/// Starts the transaction. Our own writers have had their turn by now; strangers are waited for with jitter, so that
/// two who wait do not meet again and again.
fn begin(connection: &Connection, record: &Record, batch: &mut Vec<Queued>) -> Result<()> {
    let begun = Instant::now();
    loop {
        match connection.prepare_cached("BEGIN IMMEDIATE").and_then(|mut s| s.execute([])) {
            Ok(_) => return Ok(()),
            Err(e) => match Error::from(e) {
                Error::Busy { .. } => {}
                e => return Err(e),
            },
        }
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(batch).into_iter().partition(Queued::expired);
        *batch = kept;
        if !gone.is_empty() {
            let holder = busy::who_writes(record.family());
            gone.into_iter().for_each(|queued| queued.give_up(holder.clone()));
        }
        if batch.is_empty() {
            return Err(Error::Busy { waited: begun.elapsed(), holder: None });
        }
        // A lock call that fails because the locks are gone looks like a lock that somebody else has.
        record.check()?;
        std::thread::sleep(Duration::from_micros(500 + u64::from(jitter()) * 40));
    }
}

/// A number below 256 from the clock's last digits; quality does not matter here.
fn jitter() -> u8 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (now.subsec_nanos() / 64) as u8
}

fn statements(connection: &Connection, batch: &mut [Queued]) -> Result<()> {
    for queued in batch {
        queued.refusal = None;
        connection.prepare_cached("SAVEPOINT request")?.execute([])?;
        match queued.request.run(connection) {
            Ok(()) => {}
            // SQLite ends the whole transaction by itself after some errors (disk full, I/O, out of memory).
            Err(failure) if connection.is_autocommit() => return Err(failure.into()),
            Err(failure) => {
                let refusal = Error::from(failure);
                if refusal.poisons() {
                    return Err(refusal);
                }
                connection.prepare_cached("ROLLBACK TO request")?.execute([])?;
                queued.refusal = Some(refusal);
            }
        }
        connection.prepare_cached("RELEASE request")?.execute([])?;
    }
    Ok(())
}
