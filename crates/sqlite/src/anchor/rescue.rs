//! Capturing what an anchor keeps, where nobody else does.
//!
//! As a rule the processes that wrote into a generation capture it themselves. Where they have ended, the descriptors of the
//! anchor are the last way to the rows, and they end with it.

use std::time::Duration;

use super::Kept;
use crate::capture::{self, TakeError};
use crate::captures;
use crate::error::Result;
use crate::family::Family;
use crate::{recovery, side};

/// How long whoever deals with it already is waited for.
const PATIENCE: Duration = Duration::from_secs(3);

impl Kept {
    /// True if something may be lost when its descriptors are closed. Beside another program's database, where somebody has put
    /// another main file since, that is what the log holds: an old main file that was exchanged on purpose is no loss.
    pub fn is_owed(&self, ours: bool) -> bool {
        let exchanged = || self.transactions() == 0 && !captures::main_is_missing(&self.family).unwrap_or(true);
        self.is_worth_keeping() && (ours || !exchanged()) && !self.is_captured()
    }

    /// True if it is owed and nobody of ours is left to put it in its place.
    pub fn is_left_alone(&self) -> bool {
        self.is_owed(true) && captures::main_is_missing(&self.family).unwrap_or(false)
    }
}

/// Captures all that this process keeps of the database, and has no connection to. Beside a store of `ours` in turn with whoever
/// recovers it, and so that the next opener puts it in its place.
///
/// # Errors
/// What kept it from being captured; it is kept as before.
pub fn capture(family: &Family, ours: bool) -> Result<(), TakeError> {
    let _lock = if ours {
        side::make_again(family)?;
        Some(recovery::exclusive(family, PATIENCE)?)
    } else {
        None
    };
    capture::own(family)?.failed.pop().map_or(Ok(()), |failed| Err(failed.why))
}
