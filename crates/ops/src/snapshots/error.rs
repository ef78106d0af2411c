//! Why there is no snapshot, or why one cannot be used.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::maintenance;

/// The result of everything about snapshots.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong with a snapshot. The database and the earlier snapshots are as they were in every case.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What keeps any work on the whole database from being done: a refusal, a lock that others hold, a full disk, no room.
    #[error(transparent)]
    Work(#[from] maintenance::Error),
    /// The copy was made and is not sound.
    #[error("the copy of {} is not sound, so it is no snapshot", database.display())]
    Unverified {
        /// The database.
        database: PathBuf,
        /// What was found.
        found: String,
        /// Where the copy lies, if it is kept because there is no better one.
        kept: Option<PathBuf>,
    },
    /// Copying took longer than a reader may keep the log from being given back.
    #[error("the copying was ended after {} s, because the log of the database grows meanwhile", after.as_secs())]
    TooSlow {
        /// How long it had taken.
        after: Duration,
    },
    /// The volume was nearly full while the copy was made.
    #[error(
        "the copying was ended because only {free} bytes were left on the volume, which the database needs for its log"
    )]
    Crowded {
        /// Bytes that were left.
        free: u64,
    },
    /// No snapshot has this id.
    #[error("there is no snapshot {id:?}")]
    NotFound {
        /// What was asked for.
        id: String,
    },
    /// The file is not what was recorded when it was verified.
    #[error("{} is not the file that was verified when the snapshot was taken", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What was recorded and what is there.
        found: String,
    },
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Work(e) => e.code(),
            Error::Unverified { .. } => "unverified",
            Error::TooSlow { .. } => "too_slow",
            Error::Crowded { .. } => "disk_full",
            Error::NotFound { .. } => "not_found",
            Error::Changed { .. } => "snapshot_changed",
        }
    }

    /// True if nothing was done because something stands against it.
    pub fn is_refusal(&self) -> bool {
        match self {
            Error::Work(e) => e.is_refusal(),
            Error::Unverified { .. } | Error::TooSlow { .. } | Error::Crowded { .. } | Error::NotFound { .. } => false,
            Error::Changed { .. } => true,
        }
    }

    /// True if whoever took the snapshot has written down that it failed.
    pub fn is_remembered(&self) -> bool {
        !self.is_refusal() && !self.is_busy()
    }

    /// True if a lock was held for longer than the caller was ready to wait.
    pub(super) fn is_busy(&self) -> bool {
        matches!(self, Error::Work(maintenance::Error::Database(statehouse_sqlite::Error::Busy { .. })))
    }

    /// What was seen.
    pub fn detail(&self) -> String {
        match self {
            Error::Work(e) => e.detail(),
            Error::Unverified { found, kept: None, .. } | Error::Changed { found, .. } => found.clone(),
            Error::Unverified { found, kept: Some(kept), .. } => {
                format!("{found}; the copy is kept as {}, because there is no sound snapshot", kept.display())
            }
            Error::TooSlow { .. } | Error::Crowded { .. } | Error::NotFound { .. } => String::new(),
        }
    }

    /// What to do next.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Work(maintenance::Error::NoRoom { .. }) => {
                "Nothing was written. Free space on that volume, or change `disk_share` or `keep` in the part [snapshots] of config.toml."
            }
            Error::Work(e) => e.hint(),
            Error::Unverified { .. } => {
                "The earlier snapshots are as they were. The database is probably damaged itself: keep every file of it, and put one of those in its place with `statehouse restore`; `statehouse snapshots` lists them."
            }
            Error::TooSlow { .. } => {
                "Nothing is lost, and the earlier snapshots are as they were. Look at why the disk is so slow, and try again."
            }
            Error::Crowded { .. } => {
                "Nothing is lost, and the earlier snapshots are as they were. Free space on that volume, and try again."
            }
            Error::NotFound { .. } => "`statehouse snapshots` lists those that are there.",
            Error::Changed { .. } => {
                "Take another snapshot; `statehouse snapshots` lists them. If nobody has changed the file, look at the disk."
            }
        }
    }
}

impl From<statehouse_sqlite::Error> for Error {
    fn from(e: statehouse_sqlite::Error) -> Error {
        Error::Work(e.into())
    }
}

impl From<rusqlite::Error> for Error {
    fn from(e: rusqlite::Error) -> Error {
        Error::Work(e.into())
    }
}

/// A failed system call on a file or directory. A full disk is told as such.
pub(super) fn io(action: &'static str, path: &Path, source: impl Into<std::io::Error>) -> Error {
    let source = source.into();
    match source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => statehouse_sqlite::Error::Full.into(),
        _ => statehouse_sqlite::Error::io(action, path, source).into(),
    }
}
