//! The read transaction that pins the state of a database while it is copied.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Instant;

use rusqlite::Connection;

use super::error::Result;
use super::proof::Counts;

/// A read transaction, which ends with its owner.
pub(super) struct Reading<'a> {
    pub(super) connection: &'a Connection,
    pub(super) begun: Instant,
}

impl<'a> Reading<'a> {
    pub(super) fn begin(connection: &'a Connection) -> Reading<'a> {
        Reading { connection, begun: Instant::now() }
    }

    /// Counts, and is interrupted when its time is over.
    pub(super) fn count(&self, until: Instant) -> Result<Counts> {
        let handle = self.connection.get_interrupt_handle();
        let (done, waiting) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let left = until.saturating_duration_since(Instant::now());
            let wait = move || {
                if waiting.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                    handle.interrupt();
                }
            };
            // Without it the counting takes as long as it takes.
            let _ = std::thread::Builder::new().name("snapshot limit".to_owned()).spawn_scoped(scope, wait);
            let counts = Counts::of(self.connection);
            drop(done);
            counts
        })
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }
}
