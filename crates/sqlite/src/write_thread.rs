//! The thread of a handle that writes: it commits what was asked for, turn by turn, and when the handle was cut off from its
//! files, it keeps what they held, puts them right, and goes on.
//!
//! Its connection is the only one that writes, and it alone opens and closes it; so between the moment at which a look finds
//! the files gone and the moment at which the handle goes on, no write of this process can happen.

mod end;
mod over;

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::error::Result;
use crate::flush::Committer;
use crate::generation::Record;
use crate::incidents::Story;
use crate::keeper;
use crate::members::{self, Registration};
use crate::opening::Opened;
use crate::options::Event;
use crate::remembered::Remembered;
use crate::retired::Kept;
use crate::shared::Shared;
use crate::turnstile::Turnstile;
use crate::writer;
use crate::{captures, destroyed, heal, park, secure};

/// How long the writer waits inside SQLite for a stranger's lock before it looks at the generation again.
const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// Until the handle is closed and everybody was answered.
pub(crate) fn run(shared: &Shared, mut turnstile: Turnstile, opened: Opened) {
    let mut held = Held::new(shared, opened);
    while shared.queue.next() {
        let goes_on = if shared.gate.fenced() {
            let recorded = match heal::goes_on(&shared.gate, &shared.options) {
                heal::Verdict::GoesOn => continue,
                heal::Verdict::CutOff { recorded } => recorded,
            };
            if let Some(why) = shared.gate.cause() {
                held.story = Some(shared.begin_story(&held.record, &why, recorded));
                shared.options.tell(&Event::Fenced { cause: why.to_string() });
            }
            held.fenced_since = Instant::now();
            over::reopen(shared, &mut held)
        } else if shared.entry.drain_wanted() && !shared.queue.stopping() {
            // One that is closed has only to answer what it was asked for, and lets go of everything after that.
            park::park(shared, &mut held)
        } else {
            // It costs others time when this process is not known, and nothing else.
            let _ = held.register_again(shared);
            let _ = shared.entry.stay(&shared.family);
            if let Err(e) = turn(shared, &turnstile, &mut held) {
                shared.gate.fence(e);
            }
            continue;
        };
        if !goes_on {
            break;
        }
        // Its files may have been removed as well, and others would take turns at new ones. The old ones serve as well.
        if let Ok(again) = Turnstile::open(&shared.family.side_directory()) {
            turnstile = again;
        }
    }
    if !held.parked {
        end::rescue(shared, &mut held);
        end::leave(shared, &mut held);
    }
    drop(held);
    shared.queue.abandon();
}

/// Waits for this process's turn and commits what has gathered by then.
fn turn(shared: &Shared, turnstile: &Turnstile, held: &mut Held) -> Result<()> {
    let Held { connection: Some(connection), record, memory, .. } = held else { return Ok(()) };
    if !shared.queue.has_work() {
        return Ok(());
    }
    let turn = turnstile.enter()?;
    if let Some(why) = destroyed::told(&shared.family, &record.generation()) {
        return Err(why);
    }
    let mut batch = shared.queue.take();
    let (gate, queue, options, signals) = (&shared.gate, &shared.queue, &shared.options, &shared.signals);
    let writing = writer::Writing { connection, record, gate, queue, options, signals };
    match writer::commit(&writing, &mut batch) {
        Ok(span) if keeper::log_is_long(shared) => {
            writer::acknowledge(&writing, memory, batch, span);
            keeper::finish(shared);
        }
        Ok(span) => {
            // The next process goes on while this one flushes and wakes up those who wait.
            drop(turn);
            writer::acknowledge(&writing, memory, batch, span);
        }
        Err(e) => writer::recover(&writing, memory, batch, e),
    }
    Ok(())
}

/// What the writer's thread has open.
pub(crate) struct Held {
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
    /// The writes that only the log has.
    memory: Remembered,
    /// What this process knew was added to what was put together; how far that was then.
    told: Option<(u64, u64)>,
    /// How often it could not be added, and when it is tried again.
    refused: Option<(u32, Instant)>,
    /// Everything is closed for the sake of structural work.
    parked: bool,
    /// What is told beside the database of being cut off, until the handle goes on.
    story: Option<Story>,
    member: Registration,
}

impl Held {
    pub(crate) fn new(shared: &Shared, opened: Opened) -> Held {
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
            memory: Remembered::default(),
            told: None,
            refused: None,
            parked: false,
            story: None,
            member,
        }
    }

    /// The generation in use, or the last one that was.
    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    pub(crate) fn connection(&self) -> Option<&Connection> {
        self.connection.as_deref()
    }

    /// True if the log holds something that no flush has confirmed.
    pub(crate) fn is_in_doubt(&self) -> bool {
        self.unflushed || self.connection.as_ref().is_some_and(Committer::owes)
    }

    /// Closes everything while nobody reads, for the sake of structural work. The record says so to everybody.
    pub(crate) fn park(&mut self, shared: &Shared) {
        *shared.checkpointer.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.connection = None;
        self.parked = true;
        // Without its record others take longer to see it, and nothing else.
        let _ = self.member.set_parked(true);
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
