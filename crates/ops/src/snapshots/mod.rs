//! Copies of a database that were proved to be good, kept beside it in `X.statehouse/snapshots/`.
//!
//! Each is `ID.snapshot`, a plain SQLite file in rollback mode, or `ID.snapshot.zst`; and `ID.json`, what is known of it.
//! Invariants:
//! * what has such a name is complete, was opened, looked at as a whole and compared with its source, and is on the disk; it is
//!   made under a name that cannot be mistaken, and no kill at whatever point leaves anything else behind;
//! * nothing is removed before a newer good one is in its place, and the newest good one is never removed;
//! * nothing is written before there is room for all of it, and a database of another program gets nothing beside it
//!   when a snapshot is refused.
//!
//! A copy that is not sound is recorded as a failed attempt and removed. Where there is no good snapshot at all it is kept, as
//! `ID.unsound`: then it may be the best that there will ever be. The next good one takes its place.

mod behind;
mod error;
mod keep;
mod pack;
mod proof;
mod publish;
mod reading;
mod record;
mod source;
mod staged;
mod state;
mod take;
mod work;

use std::path::Path;
use std::time::Duration;

pub use error::{Error, Result};
pub use keep::Keep;
pub(crate) use keep::{forget, reserve};
pub use pack::unpack;
pub use proof::Proved;
pub use record::{Snapshot, Standing, all, find, list};
pub use state::{Failed, Last, State, remember_failure, state};
pub use take::{take, take_admitted};

use crate::maintenance;
use crate::progress::{Progress, Watch};

/// How a snapshot is taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Wish {
    /// Why, in a word. One that begins with `before-` is kept for a day at least, and may take more than its share of the disk.
    pub reason: String,
    /// Compress it.
    pub compress: bool,
    /// What is kept of the earlier ones.
    pub keep: Keep,
    /// How long a lock is waited for.
    pub patience: Duration,
    /// How long a read transaction may keep the log from being given back.
    pub longest: Duration,
}

impl Wish {
    /// An uncompressed one for this reason, with the defaults.
    pub fn because(reason: &str) -> Wish {
        Wish {
            reason: reason.to_owned(),
            compress: false,
            keep: Keep::default(),
            patience: Duration::from_secs(10),
            longest: Duration::from_secs(3600),
        }
    }
}

/// Looks at all of a database file that nobody has open and that has no log: whether it is good, and what it holds.
///
/// # Errors
/// `Unsound` of [`maintenance::Error`] if it is not good; or what keeps it from being read.
pub fn verify(path: &Path) -> Result<Proved> {
    match proof::judge(path)? {
        Ok(proved) => Ok(proved),
        Err(found) => Err(maintenance::Error::Unsound { path: path.to_owned(), found }.into()),
    }
}

/// Looks at a snapshot: whether its file is the one that was recorded, to the byte. It was proved to be good then.
///
/// # Errors
/// [`Error::Changed`], or what keeps it from being read.
pub fn check(snapshot: &Snapshot, watch: Watch<'_>) -> Result<()> {
    let io = |e: std::io::Error| error::io("read", &snapshot.path, e);
    let file = statehouse_sqlite::files::open(&snapshot.path).map_err(io)?;
    watch(Progress::Begins { what: "reading the snapshot", bytes: Some(snapshot.bytes) });
    let (bytes, hash) = pack::hash(&file, watch).map_err(io)?;
    let hash = hash.to_hex().to_string();
    if (bytes, Some(&hash)) == (snapshot.bytes, snapshot.blake3.as_ref()) {
        return Ok(());
    }
    Err(pack::changed(snapshot, bytes, &hash))
}
