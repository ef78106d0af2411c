//! Parking: a handle lets go of everything for as long as somebody does structural work, and comes back by itself.
//!
//! It parks between two commits and when its reads have ended, so nobody who was let in is disturbed. What is asked for
//! meanwhile waits, at most for its own patience. What keeps a handle parked is a kernel lock of somebody else
//! (`admission/lock.rs`): when that process ends in whatever way the handle goes on.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::keeper;
use crate::opening;
use crate::options::{Event, Options};
use crate::shared::{RETRY, Shared};
use crate::write_thread::Held;

/// How often it is looked whether the way is free again.
const LOOK: Duration = Duration::from_millis(20);

/// Called by the writer between two turns when somebody wants members to park. False when the handle is to be closed before it
/// can go on.
pub(crate) fn park(shared: &Shared, held: &mut Held) -> bool {
    // A generation that has retired is dealt with first: what it holds is nowhere else.
    if shared.gate.check().is_err() || held.is_in_doubt() {
        return true;
    }
    let by = shared.entry.doing();
    let busy = || Error::Busy { waited: Duration::ZERO, holder: Some(by.clone()) };
    if !shared.gate.park(busy()) {
        return true;
    }
    while !shared.readers.hold_back(LOOK) {
        if shared.queue.stopping() || !shared.entry.drain_wanted() || held.record().check().is_err() {
            return stay(shared, held);
        }
    }
    // Nobody who is parked keeps a log that somebody removes, so the log should hold nothing that the main file has not. Where
    // others are in the way of that they keep it, and the last of ours that parks finds nobody in the way.
    if let Some(connection) = held.connection() {
        let _ = keeper::copy_before_parking(shared, held.record(), connection);
    }
    // What was removed or replaced while the reads ended is in this process alone.
    if held.record().check().is_err() {
        return stay(shared, held);
    }
    held.park(shared);
    shared.options.tell(&Event::Parked { by: by.clone() });
    if let Err(e) = shared.entry.leave() {
        // Then whoever wants to be admitted waits in vain, until this handle is closed.
        shared.options.tell(&Event::NotReopened { cause: e.to_string() });
    }
    let mut told = None;
    loop {
        if shared.queue.stopping() {
            return false;
        }
        if shared.entry.drain_wanted() || shared.entry.is_shut() {
            shared.queue.pause(LOOK);
            continue;
        }
        match unpark(shared, held) {
            Ok(()) => {
                shared.options.tell(&Event::Resumed);
                shared.queue.rouse();
                return true;
            }
            Err(Error::Busy { .. }) => {}
            Err(e) => {
                let cause = e.to_string();
                shared.gate.park(e);
                if told.as_ref() != Some(&cause) {
                    shared.options.tell(&Event::NotReopened { cause: cause.clone() });
                    told = Some(cause);
                }
                shared.queue.pause(RETRY);
            }
        }
    }
}

fn unpark(shared: &Shared, held: &mut Held) -> Result<()> {
    shared.entry.again(&shared.family, RETRY)?;
    let options = Options { create: false, ..shared.options.clone() };
    let opened = match opening::open_as_member(&shared.family, &options) {
        Ok(opened) => opened,
        Err(e) => {
            // Others must not wait for one that has nothing open.
            shared.entry.leave()?;
            return Err(e);
        }
    };
    *held = Held::new(shared, opened);
    go_on(shared, held);
    Ok(())
}

/// Goes on without having parked. What has changed about the files meanwhile is dealt with as at any other time.
fn stay(shared: &Shared, held: &Held) -> bool {
    go_on(shared, held);
    if shared.gate.check().is_err() {
        shared.queue.rouse();
    }
    true
}

fn go_on(shared: &Shared, held: &Held) {
    shared.readers.admit();
    shared.gate.reopen(held.record().clone());
}
