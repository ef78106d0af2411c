//! Going over to what the paths name, after the handle was cut off from its files: what they held is kept, what lies at the paths
//! is put right, and the database is opened again. Under the exclusive side of the recovery lock, and tried until it succeeds.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::Held;
use crate::error::{Destruction, Error, Reason, Result};
use crate::family::Member;
use crate::flush::Committer;
use crate::generation::Record;
use crate::index::Index;
use crate::options::Event;
use crate::reassemble::Destroyed;
use crate::remembered::Remembered;
use crate::shared::{RETRY, Shared};
use crate::{
    captures, destroyed, doubt, flush, incidents, opening, proof, putback, reassemble, recovery, retired, side, suspect,
};

/// How long a recovery waits for the reads of its own process at a time. It holds a lock meanwhile that others want.
const READS_END: Duration = Duration::from_millis(600);

/// How long a recovery leaves it to other processes of ours to notice that their files were replaced. One that was stopped
/// notices nothing, and shall not keep the others for ever.
const CONSIDERATE: Duration = Duration::from_secs(2);

/// The first pause before opening again is tried once more; each further one is twice as long, up to [`RETRY`]. What is in the
/// way is most often another process of ours that notices the same a moment later.
const FIRST_PAUSE: Duration = Duration::from_millis(30);

/// How long a process waits before it tries again to add to what is put together what it could not; twice as long each time. On
/// a full disk each attempt takes what is left of it for a while.
const ADD_AGAIN: Duration = Duration::from_secs(5);

/// True if the files that lie there are not such as a database of ours has.
fn is_about_the_content(e: &Error) -> bool {
    use Reason::{EmptyBesideWal, NotDatabase, OtherApplication, RollbackMode, WalHeader, WalWithoutMain};
    let reasons = [EmptyBesideWal, NotDatabase, OtherApplication, RollbackMode, WalHeader, WalWithoutMain];
    matches!(e, Error::Damaged { .. }) || e.reason().is_some_and(|reason| reasons.contains(&reason))
}

/// Tries until the handle goes on; false when it is to be closed before that.
pub(super) fn reopen(shared: &Shared, held: &mut Held) -> bool {
    let mut told_of = None;
    let mut pause = FIRST_PAUSE;
    loop {
        let recovered = recover(shared, held);
        if let Err(e) = &recovered {
            held.marked &= !is_about_the_content(e);
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
                        story.needs(putback::in_the_way(&shared.family));
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

/// Captures what the retired generation held, closes every connection, opens what the paths name now, and takes over
/// what only the capture has. Can be called again after an error; what was done stays done.
pub(super) fn recover(shared: &Shared, held: &mut Held) -> Result<()> {
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
        // once more, as it is where the files are none of a database in WAL mode of ours; nothing else is a reason, for somebody may be
        // putting them in order at this moment.
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
    if lost.contains(&Member::Main) && !captures::main_is_missing(family)? {
        suspect::suspect(family)?;
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
    let was = held.record.generation().main;
    let mut found_unsound = Vec::new();
    let opened =
        opening::reopen(family, &shared.options, considerate, was, &mut |sentence| found_unsound.push(sentence));
    if let Some(story) = held.story.as_mut().filter(|_| !found_unsound.is_empty()) {
        found_unsound.into_iter().for_each(|sentence| story.did(sentence));
        let _ = story.write(family);
    }
    let opened = opened.map_err(|e| {
        held.unflushed |= e.poisons();
        match (&why, e) {
            // Opening needs a page that was written into: that is the proof.
            (Some(Error::Doubtful { .. }), Error::Damaged { detail }) => {
                let worse = proof::damaged(family, &held.record.generation(), &detail);
                shared.gate.fence(worse.again());
                held.marked = false;
                worse
            }
            (_, e) => e,
        }
    })?;
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
    if before.main != now.main {
        run_again(held, &opened.connection)?;
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

/// Runs once more what this process remembers, where another program has begun the log anew, or emptied it, after it had copied it into
/// a main file that is not ours: then neither the old main file nor the log has what was acknowledged. To be called after all that
/// was captured is merged; a request that finds there what it was to make changes nothing.
fn run_again(held: &mut Held, connection: &Committer) -> Result<()> {
    let (Some(seen), Some(kept)) = (held.record.seen(), &held.kept) else { return Ok(()) };
    if kept.has_all_of(&seen)? {
        return Ok(());
    }
    held.memory.forget_all_but(&[seen.salts]);
    if held.memory.is_empty() {
        return Ok(());
    }
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let run = held.memory.run(connection).map_err(Error::from);
    let done = run.and_then(|run| Ok(connection.execute_batch("COMMIT").map(|()| run)?));
    let done = done.inspect_err(|_| {
        if !connection.is_autocommit() {
            let _ = connection.execute_batch("ROLLBACK");
        }
    })?;
    if flush::copy_beside_readers(connection).is_err() {
        connection.flush()?;
    }
    let again = done.iter().filter(|done| **done).count();
    if let Some(story) = &mut held.story {
        story.did(format!(
            "ran {again} of {} acknowledged requests once more, for another program had taken the log away that had them",
            done.len()
        ));
    }
    Ok(())
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
    let there = reassemble::account(&evidence).is_some_and(|account| account.rebuilt.is_some());
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
        story.put_together(&account, commits, !there);
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
