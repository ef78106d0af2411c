//! What the threads of one handle share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::Connection;

use crate::admission::Entry;
use crate::busy;
use crate::error::Error;
use crate::family::Family;
use crate::gate::Gate;
use crate::generation::Record;
use crate::incidents::Story;
use crate::options::Options;
use crate::readers::Readers;
use crate::signals::Signals;
use crate::writer::Queue;

/// How often a handle that could not be reopened tries again.
pub(crate) const RETRY: Duration = Duration::from_millis(250);

/// What the threads of one handle share.
pub(crate) struct Shared {
    pub(crate) family: Family,
    pub(crate) options: Options,
    /// The place among those who have the database open.
    pub(crate) entry: Entry,
    pub(crate) gate: Gate,
    pub(crate) queue: Queue,
    pub(crate) signals: Arc<Signals>,
    pub(crate) checkpointer: Mutex<Option<Connection>>,
    pub(crate) readers: Readers,
    /// Why the last files that this handle had could not be kept when it was closed.
    pub(crate) lost: Mutex<Option<Error>>,
}

impl Shared {
    /// What keeps writers waiting: that the files are gone, or who writes.
    pub(crate) fn why_waiting(&self) -> Error {
        let busy = || Error::Busy { waited: Duration::ZERO, holder: busy::who_writes(&self.family) };
        self.gate.cause().unwrap_or_else(busy)
    }

    /// What is to be told, beside the database, of being cut off.
    pub(crate) fn begin_story(&self, record: &Record, why: &Error, recorded: Option<String>) -> Story {
        Story::begin(&self.family, &self.options.role, record.generation(), why, recorded)
    }

    /// The handle goes on, and its part of an incident is told to its end.
    pub(crate) fn end_story(&self, story: Option<Story>) {
        // One that cannot be written keeps nobody from going on.
        drop(story.map(|story| story.back(&self.family)));
    }
}
