//! Why a database was not restored.

use std::path::PathBuf;
use std::time::Instant;

use statehouse_sqlite::{Error as DatabaseError, Family, Reason};

use crate::{maintenance, retired, snapshots, who};

/// The result of everything about restoring.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kept a restore from being done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What keeps any work on a whole database from being done: a refusal, a lock that others hold, no room.
    #[error(transparent)]
    Work(#[from] maintenance::Error),
    /// What keeps the present state from being kept as a snapshot, or a snapshot from being used.
    #[error(transparent)]
    Snapshot(snapshots::Error),
    /// Nothing has this id, and no file has this name. Nothing was done.
    #[error("there is no snapshot, no capture and no file {asked:?}")]
    NotFound {
        /// What was asked for.
        asked: String,
        /// Where it was looked for.
        looked: String,
    },
    /// The source cannot be put anywhere. Nothing was done.
    #[error("{} is damaged, and is put nowhere", path.display())]
    SourceDamaged {
        /// The source.
        path: PathBuf,
        /// What was found.
        found: String,
    },
    /// The source is not read as it is. Nothing was done.
    #[error("{} cannot be restored from as it is", path.display())]
    SourceUnfit {
        /// The source.
        path: PathBuf,
        /// Why.
        found: String,
        /// What to do about it.
        hint: &'static str,
    },
    /// The source is the database itself. Nothing was done.
    #[error("{} is the database itself", path.display())]
    SameFile {
        /// The source.
        path: PathBuf,
    },
    /// The source is a database of another program than the one that is there. Nothing was done.
    #[error("{} is a database of another program than the one whose place it would take", path.display())]
    OtherProgram {
        /// The source.
        path: PathBuf,
        /// How that shows.
        found: String,
    },
    /// What was put together of a destroyed database was put in its place before. Nothing was done.
    #[error("{} was put in the place of the database once already", path.display())]
    PutInPlace {
        /// The source.
        path: PathBuf,
        /// When, and what is newer here.
        found: String,
    },
    /// The new file of `--to`, or one that would be taken for its log, exists. Nothing was done.
    #[error("{} exists, and nothing is written over it", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The new file of `--to` would be taken for a part of a database. Nothing was done.
    #[error("{} is no place for a new file", path.display())]
    OfDatabase {
        /// The file.
        path: PathBuf,
        /// Of which database, and why.
        found: String,
    },
    /// The database is in place and is not what the source is.
    #[error("the database was restored, and does not hold what its source holds")]
    Differs {
        /// What is different.
        found: String,
        /// Where the state before it is kept, if there was one.
        before: Option<String>,
    },
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Work(e) => e.code(),
            Error::Snapshot(e) => e.code(),
            Error::NotFound { .. } => "not_found",
            Error::SourceDamaged { .. } => "source_damaged",
            Error::SourceUnfit { .. } => "source_unfit",
            Error::SameFile { .. } => "same_file",
            Error::OtherProgram { .. } => Reason::OtherApplication.code(),
            Error::PutInPlace { .. } => "put_in_place",
            Error::Exists { .. } => "exists",
            Error::OfDatabase { .. } => "of_database",
            Error::Differs { .. } => "unverified",
        }
    }

    /// True if nothing was done because something stands against it.
    pub fn is_refusal(&self) -> bool {
        match self {
            Error::Work(e) => e.is_refusal(),
            Error::Snapshot(e) => e.is_refusal(),
            Error::NotFound { .. } | Error::Differs { .. } => false,
            Error::SourceDamaged { .. }
            | Error::SourceUnfit { .. }
            | Error::SameFile { .. }
            | Error::OtherProgram { .. }
            | Error::PutInPlace { .. }
            | Error::Exists { .. }
            | Error::OfDatabase { .. } => true,
        }
    }

    /// What was seen.
    pub fn detail(&self) -> String {
        match self {
            Error::Work(e) => e.detail(),
            Error::Snapshot(e) => e.detail(),
            Error::NotFound { looked, .. } => looked.clone(),
            Error::SourceDamaged { found, .. }
            | Error::OfDatabase { found, .. }
            | Error::SourceUnfit { found, .. }
            | Error::OtherProgram { found, .. }
            | Error::PutInPlace { found, .. } => found.clone(),
            Error::Differs { found, before: Some(before) } => format!("{found}; the state before it is in {before}"),
            Error::Differs { found, before: None } => found.clone(),
            Error::SameFile { .. } | Error::Exists { .. } => String::new(),
        }
    }

    /// What to do next.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Work(e) => e.hint(),
            Error::Snapshot(e) => e.hint(),
            Error::NotFound { .. } => {
                "Nothing was changed. `statehouse snapshots` and `statehouse retired list` show what there is."
            }
            Error::SourceDamaged { .. } => {
                "Nothing was changed. Take another snapshot or backup: `statehouse snapshots` shows which were verified."
            }
            Error::SourceUnfit { hint, .. } => hint,
            Error::SameFile { .. } => "Nothing was changed. Name the snapshot or backup that shall take its place.",
            Error::OtherProgram { .. } => {
                "Nothing was changed. Check both paths; if it shall take that place all the same, add --force."
            }
            Error::PutInPlace { .. } => {
                "Nothing was changed. There is nothing to do; to go back to that state all the same, add --force: the present one is kept as a snapshot."
            }
            Error::OfDatabase { .. } => "Nothing was changed. Name a file of another name, in a directory of your own.",
            Error::Exists { .. } => "Nothing was changed. Name a file that does not exist.",
            Error::Differs { .. } => {
                "Nothing of the state before it is lost: restore that state, or the source once more."
            }
        }
    }
}

impl Error {
    /// Says of a lock of `family` that was waited for in vain who holds it.
    pub(crate) fn naming(self, family: &Family, begun: Instant) -> Error {
        match self {
            Error::Work(maintenance::Error::Database(e)) => who::named(e, family, begun).into(),
            e => e,
        }
    }
}

impl From<snapshots::Error> for Error {
    fn from(e: snapshots::Error) -> Error {
        match e {
            snapshots::Error::Work(e) => Error::Work(e),
            e => Error::Snapshot(e),
        }
    }
}

impl From<retired::Error> for Error {
    fn from(e: retired::Error) -> Error {
        match e {
            retired::Error::Maintenance(e) => Error::Work(e),
            e => DatabaseError::Aborted(format!("{e} {}", e.detail()).into()).into(),
        }
    }
}

impl From<DatabaseError> for Error {
    fn from(e: DatabaseError) -> Error {
        Error::Work(e.into())
    }
}

impl From<rusqlite::Error> for Error {
    fn from(e: rusqlite::Error) -> Error {
        Error::Work(e.into())
    }
}
