//! Why a capture was not compared or merged, or why a merge was undone.

use std::path::PathBuf;

use crate::{maintenance, snapshots};

/// The result of everything here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kept a capture from being compared or merged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What the database, the volume, or the check of the structure answers.
    #[error(transparent)]
    Maintenance(#[from] maintenance::Error),
    /// What keeps the present state from being kept as a snapshot first. Nothing was done.
    #[error(transparent)]
    Snapshot(snapshots::Error),
    /// There is no such capture.
    #[error("there is no capture {id} beside this database")]
    NoCapture {
        /// What was asked for.
        id: String,
    },
    /// Neither an image nor the log gives rows.
    #[error("no rows can be read from {}", place.display())]
    Unreadable {
        /// The capture or file.
        place: PathBuf,
        /// What stands against it.
        why: String,
    },
    /// Writing into a table needs what this SQLite does not have. Nothing was done.
    #[error("the table {table} cannot be written by this program")]
    CannotWrite {
        /// The table.
        table: String,
        /// What SQLite says.
        why: String,
    },
    /// The database itself is damaged.
    #[error("{} is damaged itself, and nothing can be brought back into it", path.display())]
    Ruined {
        /// Its main file.
        path: PathBuf,
        /// What SQLite says.
        found: String,
        /// What puts the whole capture in its place, as it is typed; `None` where the capture is not whole by itself.
        restore: Option<String>,
    },
    /// A volume has less room than the merge may take. Nothing was done.
    #[error("there is not enough room for the merge")]
    NoRoom {
        /// What is needed and free.
        numbers: String,
    },
    /// A trigger has ended the whole transaction instead of refusing a row. All was undone.
    #[error("a trigger of the table {table} ended the merge, and all was undone")]
    EndedByTrigger {
        /// The table.
        table: String,
        /// Which triggers can have done it, and what it says.
        why: String,
    },
    /// The output is there already. Nothing was done.
    #[error("{} is there already, and is never overwritten", path.display())]
    Exists {
        /// The output.
        path: PathBuf,
    },
    /// The output would be taken for a part of a database. Nothing was done.
    #[error("{} is no place for a new file", path.display())]
    OfDatabase {
        /// The output.
        path: PathBuf,
        /// Of which database, and why.
        found: String,
    },
    /// Rows would refer to rows that are not there. All was undone.
    #[error("all was undone, because rows would refer to rows that are not there")]
    Dangling {
        /// Which.
        found: String,
    },
    /// The database did not hold afterwards what it should. All was undone.
    #[error("all was undone, because the database did not hold what it should have held after it")]
    Miscounted {
        /// Which tables, with the numbers.
        found: String,
    },
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Maintenance(e) => e.code(),
            Error::Snapshot(e) => e.code(),
            Error::NoCapture { .. } => "not_found",
            Error::Unreadable { .. } => "unreadable_capture",
            Error::CannotWrite { .. } => "missing_module",
            Error::Exists { .. } => "exists",
            Error::OfDatabase { .. } => "of_database",
            Error::Ruined { .. } => "damaged_database",
            Error::NoRoom { .. } => "no_room",
            Error::EndedByTrigger { .. } => "ended_by_trigger",
            Error::Dangling { .. } => "foreign_key",
            Error::Miscounted { .. } => "undone",
        }
    }

    /// True if nothing was done because something stands against it.
    pub fn is_refusal(&self) -> bool {
        match self {
            Error::Maintenance(e) => e.is_refusal(),
            Error::Snapshot(e) => e.is_refusal(),
            Error::Unreadable { .. }
            | Error::CannotWrite { .. }
            | Error::Exists { .. }
            | Error::OfDatabase { .. }
            | Error::Ruined { .. }
            | Error::NoRoom { .. }
            | Error::EndedByTrigger { .. } => true,
            Error::NoCapture { .. } | Error::Dangling { .. } | Error::Miscounted { .. } => false,
        }
    }

    /// True if the structure of the database is damaged.
    pub(super) fn is_of_the_database(&self) -> bool {
        matches!(self.code(), "damaged" | "unsound")
    }

    /// True if it can be one of what a module keeps, while everything else is sound.
    pub(super) fn may_be_of_a_module(&self) -> bool {
        self.is_of_the_database() || self.code() == "sqlite"
    }

    /// What is wrong with a database, in words.
    pub(super) fn damage(&self) -> String {
        let detail = self.detail();
        if detail.is_empty() { self.to_string() } else { detail }
    }

    /// What was seen.
    pub fn detail(&self) -> String {
        match self {
            Error::Maintenance(e) => e.detail(),
            Error::Snapshot(e) => e.detail(),
            Error::Unreadable { why, .. } | Error::CannotWrite { why, .. } | Error::EndedByTrigger { why, .. } => {
                why.clone()
            }
            Error::NoRoom { numbers } => numbers.clone(),
            Error::Dangling { found }
            | Error::Miscounted { found }
            | Error::Ruined { found, .. }
            | Error::OfDatabase { found, .. } => found.clone(),
            Error::NoCapture { .. } | Error::Exists { .. } => String::new(),
        }
    }

    /// What to do next.
    pub fn hint(&self) -> String {
        if let Error::Ruined { restore: Some(restore), .. } = self {
            return format!(
                "Nothing was changed. The capture is whole by itself: `{restore}` puts all of it in the place of the database, and \
                 keeps the files that are there now; add --dry-run to see what it would do. `retired merge --into FILE` writes a new \
                 file with the rows of both."
            );
        }
        self.plain_hint().to_owned()
    }

    fn plain_hint(&self) -> &'static str {
        match self {
            Error::NoRoom { .. } => {
                "Nothing was changed. Free space on that volume; `--into FILE` may name a file on another one."
            }
            Error::EndedByTrigger { .. } => {
                "Nothing was changed, and the capture has all of its rows. Let the program that owns the database drop the trigger, merge, \
                 and let it make it again; a trigger that says RAISE(ABORT) or RAISE(IGNORE) keeps out only the row that it is about."
            }
            Error::Maintenance(e) => e.hint(),
            Error::Snapshot(e) => e.hint(),
            Error::NoCapture { .. } => "Run `statehouse retired list` to see those that there are.",
            Error::Unreadable { .. } => {
                "Nothing was changed. Keep the capture: its log is the only copy of what was written into it."
            }
            Error::CannotWrite { .. } => {
                "Nothing was changed. A trigger or an index of the table uses a function, collation or tokenizer of the program \
                 that owns the database; let that program drop it, merge, and let it make it again."
            }
            Error::Ruined { .. } => {
                "Nothing was changed. `statehouse retired show` tells what both sides still have, and `retired merge --into FILE` \
                 writes a new file with the rows of both; keep the database and the capture."
            }
            Error::OfDatabase { .. } => "Nothing was changed. Name a file of another name, in a directory of your own.",
            Error::Exists { .. } => "Nothing was changed. Name another file with --into.",
            Error::Dangling { .. } | Error::Miscounted { .. } => {
                "Nothing is lost: the database and the capture are as they were. Use --into FILE to see what a merge would give."
            }
        }
    }
}

impl From<snapshots::Error> for Error {
    fn from(e: snapshots::Error) -> Error {
        match e {
            snapshots::Error::Work(e) => Error::Maintenance(e),
            e => Error::Snapshot(e),
        }
    }
}

impl From<statehouse_sqlite::Error> for Error {
    fn from(e: statehouse_sqlite::Error) -> Error {
        Error::Maintenance(e.into())
    }
}

impl From<rusqlite::Error> for Error {
    fn from(e: rusqlite::Error) -> Error {
        Error::Maintenance(e.into())
    }
}

/// A failed system call on a file or directory.
pub(super) fn io(action: &'static str, path: &std::path::Path, source: impl Into<std::io::Error>) -> Error {
    Error::from(statehouse_sqlite::Error::io(action, path, source))
}
