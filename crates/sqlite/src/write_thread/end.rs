//! What is left to do before the last descriptor of a handle is closed: to keep what only this process has.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::{Held, over::recover};
use crate::error::Error;
use crate::options::Event;
use crate::shared::{RETRY, Shared};
use crate::{flush, recovery, retired, side};

/// How long a handle that is closed goes on trying to put removed files back before it keeps what it can. A supervisor does
/// not wait for ever.
const RESCUE: Duration = Duration::from_secs(4);

/// How long the last attempt of a handle that is closed waits for another process of ours to end its recovery.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Has what this process wrote copied into the main file, for when it has ended nobody remembers it any more. Whoever is in
/// the way does so soon.
pub(super) fn leave(shared: &Shared, held: &mut Held) {
    held.memory.forget(held.record.seen(), shared.signals.proved());
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
pub(super) fn rescue(shared: &Shared, held: &mut Held) {
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
