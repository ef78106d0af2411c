//! A mark beside the database: a flush of its log has failed, and what that left in doubt is not in the main file yet.
//!
//! The system reports a failed write once, to those who had the file open then. Who opens the log later never hears of it,
//! would append behind frames that are not on the disk, and flush with success; but after a power cut the log ends at the
//! gap. So whoever hears of a failure leaves this mark before answering anybody. While it is there no write is
//! acknowledged, and who opens the database, or opens it again, copies all of the log into the main file first.
//!
//! The mark must be visible and need not be durable: after a power cut nobody waits for an answer any more.

use std::path::PathBuf;

use rusqlite::Connection;

use crate::error::Result;
use crate::family::{Family, Status};
use crate::files;
use crate::flush::copy_all;

fn mark(family: &Family) -> PathBuf {
    family.side_directory().join("unflushed")
}

/// Leaves the mark.
pub(crate) fn raise(family: &Family) {
    // Without it (a full disk) only this process is careful; it remembers by itself.
    let _ = files::open_private(&mark(family));
}

/// True if the mark is there.
pub(crate) fn raised(family: &Family) -> bool {
    matches!(Status::of(&mark(family)), Ok(Some(_)))
}

/// Ends the doubt. To be called with the exclusive side of the recovery lock.
///
/// # Errors
/// As [`copy_all`]; the mark stays then.
pub(crate) fn settle(family: &Family, connection: &Connection) -> Result<()> {
    copy_all(connection)?;
    // A mark that stays costs one more copy and nothing else.
    let _ = std::fs::remove_file(mark(family));
    Ok(())
}
