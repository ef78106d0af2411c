//! One number that moves whenever anyone has committed.
//!
//! SQLite's `data_version` speaks for one connection: it moves when *another* connection has committed since that one
//! last looked. Reads come from a pool, so each connection is compared with what it said itself the last time; a
//! connection that is new here counts as a change. So a commit is never missed, and now and then the number moves
//! without one, which costs a reader of pages one look in vain.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;
use statehouse_sqlite::Generation;

#[derive(Default)]
pub(super) struct Changes {
    moves: AtomicI64,
    seen: Mutex<Seen>,
}

#[derive(Default)]
struct Seen {
    generation: Option<Generation>,
    /// By address: a connection of the pool stays where it is as long as its generation is in use.
    versions: HashMap<usize, i64>,
}

impl Changes {
    /// A write of this process was answered.
    pub(super) fn written(&self) {
        self.moves.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn look(&self, connection: &Connection, generation: Generation) -> rusqlite::Result<i64> {
        let version = connection.prepare_cached("PRAGMA data_version")?.query_row([], |r| r.get(0))?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.generation != Some(generation) {
            *seen = Seen { generation: Some(generation), versions: HashMap::new() };
        }
        if seen.versions.insert(std::ptr::from_ref(connection).addr(), version) != Some(version) {
            self.written();
        }
        Ok(self.moves.load(Ordering::Relaxed))
    }
}
