//! The thread of a handle that writes: it commits what was asked for, turn by turn, and when the handle was cut off from its
//! files, it keeps what they held, puts them right, and goes on.
//!
//! Its connection is the only one that writes, and it alone opens and closes it; so between the moment at which a look finds
//! the files gone and the moment at which the handle goes on, no write of this process can happen.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::error::{Destruction, Error, Result};
use crate::family::Member;
use crate::flush::Committer;
use crate::generation::Record;
use crate::incidents::Story;
use crate::index::Index;
use crate::keeper;
use crate::members::{self, Registration};
use crate::opening::{self, Opened};
use crate::options::Event;
use crate::reassemble::Destroyed;
use crate::remembered::Remembered;
use crate::retired::Kept;
use crate::shared::{RETRY, Shared};
use crate::turnstile::Turnstile;
use crate::writer;
use crate::{
    captures, destroyed, doubt, flush, heal, incidents, park, proof, putback, reassemble, recovery, retired, secure,
    side,
};

/// How long a recovery waits for the reads of its own process at a time. It holds a lock meanwhile that others want.
const READS_END: Duration = Duration::from_millis(600);

/// How long a recovery leaves it to other processes of ours to notice that their files were replaced. One that was stopped
/// notices nothing, and shall not keep the others for ever.
const CONSIDERATE: Duration = Duration::from_secs(2);

/// The first pause before opening again is tried once more; each further one is twice as long, up to [`RETRY`]. What is in the
/// way is most often another process of ours that notices the same a moment later.
const FIRST_PAUSE: Duration = Duration::from_millis(30);

/// How long a handle that is closed goes on trying to put removed files back before it keeps what it can. A supervisor does
/// not wait for ever.
const RESCUE: Duration = Duration::from_secs(4);

/// How long the last attempt of a handle that is closed waits for another process of ours to end its recovery.
const LAST_WAIT: Duration = Duration::from_secs(2);

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
            reopen(shared, &mut held)
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
        rescue(shared, &mut held);
        leave(shared, &mut held);
    }
    drop(held);
    shared.queue.abandon();
}

/// Has what this process wrote copied into the main file, for when it has ended nobody remembers it any more. Whoever is in
/// the way does so soon.
fn leave(shared: &Shared, held: &mut Held) {
    held.memory.forget(held.record.index());
    if held.memory.is_empty() || shared.gate.fenced() {
        return;
    }
    if let (Some(connection), Ok(_lock)) = (&held.connection, recovery::try_shared(&shared.family))
        && shared.gate.check().is_ok()
    {
        let _ = flush::copy_beside_readers(connection);
    }
}

/// Before the last descriptor is closed: what was acknowledged may be in files that somebody has removed a moment ago, and
/// this process the last that can read them. Once they are captured and the main file is in its place, the next opener
/// takes over the rest.
fn rescue(shared: &Shared, held: &mut Held) {
    let begun = Instant::now();
    while !held.is_safe(shared) && (shared.gate.fenced() || shared.gate.check().is_err()) {
        if held.story.is_none() {
            held.story = shared.gate.cause().map(|why| shared.begin_story(&held.record, &why, None));
        }
        let Err(why) = recover(shared, held) else { return shared.end_story(held.story.take()) };
        if held.is_safe(shared) {
            if let Some(story) = held.story.take() {
                let _ = story.kept(&shared.family);
            }
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
    let (lost, seen) = (held.record.lost(), held.record.seen());
    let capture = || match (&held.connection, &held.kept) {
        (Some(connection), _) if !held.captured => retired::capture(family, generation, &lost, connection, seen),
        (_, Some(kept)) => retired::capture_kept(family, generation, &lost, kept, seen, true),
        _ => Ok(()),
    };
    let kept = side::make_again(family).and_then(|_| recovery::exclusive(family, LAST_WAIT)).and_then(|_lock| {
        retired::make_room(family, capture).or_else(|_| retired::keep_log(family, generation, &lost))
    });
    let story = held.story.take();
    if kept.is_ok() {
        drop(story.map(|story| story.kept(family)));
        return;
    }
    *shared.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(why.again());
    // What was moved away still has a name somewhere.
    if let Some(transactions) = retired::nameless_transactions(family, generation, &lost) {
        let cause = match retired::leave_log(family, generation) {
            Ok(place) => format!("{why}; a copy of the log is left in {}", place.display()),
            Err(_) => why.to_string(),
        };
        let what = format!("up to {transactions} transactions of a log that has no name any more: {cause}");
        drop(story.map(|story| story.lost(family, what)));
        shared.options.tell(&Event::Lost { cause, transactions });
    }
}

/// Tries until the handle goes on; false when it is to be closed before that.
fn reopen(shared: &Shared, held: &mut Held) -> bool {
    let mut told_of = None;
    let mut pause = FIRST_PAUSE;
    loop {
        let recovered = recover(shared, held);
        if recovered.is_err() {
            // One that is cut off never keeps anybody from structural work; only while it recovers it must be alone with others
            // like it.
            let _ = shared.entry.leave();
        }
        match recovered {
            Ok(()) => {
                shared.options.tell(&Event::Reopened);
                shared.queue.rouse();
                // Nobody waits for that any more.
                shared.end_story(held.story.take());
                let _ = incidents::close_own(&shared.family, &shared.options.role);
                return true;
            }
            Err(_) if shared.queue.stopping() => return false,
            Err(e) => {
                if let Some(why) = shared.gate.cause().filter(Error::needs_a_person) {
                    shared.queue.refuse(&why);
                }
                // The same obstacle is told once, not four times a second.
                let cause = e.to_string();
                if told_of.as_ref() != Some(&cause) {
                    if let Some(story) = &mut held.story {
                        story.tell(format!("cannot open the database again yet: {cause}"));
                        let _ = story.write(&shared.family);
                    }
                    shared.options.tell(&Event::NotReopened { cause: cause.clone() });
                    told_of = Some(cause);
                }
                shared.queue.pause(pause);
                pause = RETRY.min(pause * 2);
            }
        }
    }
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

/// How long a process waits before it tries again to add to what is put together what it could not; twice as long each time. On
/// a full disk each attempt takes what is left of it for a while.
const ADD_AGAIN: Duration = Duration::from_secs(5);

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

/// Captures what the retired generation held, closes every connection, opens what the paths name now, and takes over
/// what only the capture has. Can be called again after an error; what was done stays done.
fn recover(shared: &Shared, held: &mut Held) -> Result<()> {
    let family = &shared.family;
    if held.captured {
        // Before the lock is taken, which others want: a read that does not end shall keep nobody else waiting.
        close_readers(shared)?;
    }
    let mut why = shared.gate.cause();
    // Whoever removed the files may have removed the side directory too, and the directory above it.
    match side::make_again(family) {
        // A destroyed file may not pass any check; the directory is there most often.
        Err(_) if matches!(why, Some(Error::Destroyed(_))) => {}
        made => drop(made?),
    }
    // Openers wait for one that they know to be ours.
    held.register_again(shared)?;
    shared.entry.again(family, RETRY)?;
    let patience = if shared.queue.stopping() { RETRY } else { shared.options.patience };
    let _lock = recovery::exclusive(family, patience)?;
    // Not before the lock is held: an opener that finds nobody unfenced on a retired generation goes on.
    held.member.set_fenced(true)?;
    if let Some(worse) = worse(held.record(), why.as_ref()) {
        shared.gate.fence(worse.again());
        why = Some(worse);
    }
    if let Some(Error::Destroyed(destruction)) = &why
        && destruction.member != Member::Shm
    {
        // Whoever has put the files in order has removed the mark. If they are not in order, the proof below says so, and it is made
        // once more; nothing else is a reason, for somebody may be putting them in order at this moment.
        if !held.marked || destroyed::mark(family)?.is_some() {
            let told = destroyed::keep(family, &held.record.generation(), destruction)?;
            put_together(shared, held, &told)?;
            held.marked = true;
            if told != **destruction {
                shared.gate.fence(Error::Destroyed(Box::new(told)));
            }
        }
    }
    let considerate = held.fenced_since.elapsed() < CONSIDERATE;
    let lost = held.record.lost();
    if let Some(connection) = &held.connection
        && !held.captured
    {
        retired::capture(family, held.record.generation(), &lost, connection, held.record.seen())?;
        held.kept = retired::keep(family, held.record.generation())?;
        held.captured = true;
        if let Some(story) = &mut held.story {
            // Under the lock, so that of several processes one tells after the other.
            story.captured(family);
            let _ = story.write(family);
        }
    }
    if let Some(kept) = held.kept.as_ref().filter(|_| lost.contains(&Member::Main)) {
        // The main file may have been removed after the log, and the capture too; else this does nothing.
        retired::capture_kept(family, held.record.generation(), &lost, kept, held.record.seen(), !considerate)?;
    }
    close_readers(shared)?;
    held.unflushed |= held.connection.take().is_some_and(|c| c.owes());
    putback::move_aside(family, held.record.generation(), &lost)?;
    let missing = captures::main_is_missing(family)?;
    if putback::main_file(family, considerate)? {
        if let Some(story) = held.story.as_mut().filter(|_| missing) {
            story.did("put the main file back at its path, from what was captured");
        }
        if lost.contains(&Member::Wal) {
            putback::move_headless_log(family)?;
        }
        putback::log(family)?;
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
        held.marked = false;
        return Err(e);
    }
    if let Some(kept) = &held.kept
        && (before.wal != now.wal || before.main != now.main)
    {
        // More may have been removed than when this process looked, or the capture itself; then it is made once more, and else
        // this does nothing. The new connection stays open: what was merged into its log is in no other place.
        side::make_again(family)?;
        retired::capture_kept(family, before, &before.differences(&now), kept, held.record.seen(), false)?;
        putback::settle(family)?;
        putback::succeed(family)?;
        opening::merge(&opened.record, &shared.options, &opened.connection)?;
    }
    // What no flush has confirmed is kept before anybody is told of it by a later write.
    if held.unflushed {
        doubt::settle(family, &opened.connection)?;
    }
    let record = opened.record.clone();
    let story = held.story.take();
    // The log may be the same, and then it alone still has what was written before. Another one begins with what was captured.
    let same = (before.main, before.wal) == (now.main, now.wal);
    let memory = if same { std::mem::take(&mut held.memory) } else { Remembered::default() };
    if same {
        // Of an index that was made anew nobody can tell how much of the log is in the main file already.
        let _ = flush::copy_beside_readers(&opened.connection);
    }
    *held = Held { story, memory, ..Held::new(shared, opened) };
    shared.readers.admit();
    shared.gate.reopen(record);
    Ok(())
}

/// An index can be made anew from its log. If the log was destroyed with it, it would be made from nothing, and what the log alone
/// had would be gone without a word.
fn worse(record: &Record, why: Option<&Error>) -> Option<Error> {
    match why {
        Some(Error::Destroyed(destruction)) if destruction.member == Member::Shm => {}
        _ => return None,
    }
    destroyed::told(record.family(), &record.generation()).or_else(|| record.log_went_with_the_index())
}

/// Adds what this process still has of a destroyed database to what is put together of it: once, and what did not succeed then
/// whenever another process has added something. What keeps it from it, a full disk for example, is written into the mark, and
/// it is tried again now and then.
fn put_together(shared: &Shared, held: &mut Held, destruction: &Destruction) -> Result<()> {
    let family = &shared.family;
    let Some(evidence) = destroyed::mark(family)?.and_then(|mark| mark.evidence) else { return Ok(()) };
    let nothing_new =
        |told| held.memory.is_empty() || reassemble::account(&evidence).is_some_and(|a| a.progress() == told);
    if held.told.is_some_and(nothing_new) || held.refused.is_some_and(|(_, until)| Instant::now() < until) {
        return Ok(());
    }
    let generation = held.record.generation();
    let index = held.record.seen();
    // As long as the connections stand. Their own descriptors are read by nobody any more.
    let now = retired::descriptor(family, Member::Shm, generation.shm)?.and_then(|file| Index::read(&file).ok()?);
    let what = Destroyed { family, generation: &generation, destruction, evidence: &evidence, index, now };
    let commits = held.memory.len();
    let account = match reassemble::put_together(&what, &shared.options, &mut held.memory, held.told.is_some()) {
        Ok(account) => {
            (held.told, held.refused) = (Some(account.progress()), None);
            account
        }
        Err(e) => {
            let times = held.refused.map_or(0, |(times, _)| times + 1);
            held.refused = Some((times, Instant::now() + ADD_AGAIN * (1 << times.min(6))));
            let why = format!("what PID {} still has could not be added yet: {e}", std::process::id());
            let mut account = reassemble::account(&evidence).unwrap_or_default();
            account.lost.push(why.clone());
            account.unusable.push(why);
            account
        }
    };
    if let Some(story) = &mut held.story {
        story.put_together(&account, commits);
        let _ = story.write(family);
    }
    destroyed::put_together(family, &account)
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
