//! Why maintenance was not done, or did not go well, beyond what the database itself answers.

use std::path::{Path, PathBuf};

/// The result of everything in maintenance.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kept maintenance from being done.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database's own answer: a refusal, a lock that others hold, a full disk.
    #[error(transparent)]
    Database(#[from] statehouse_sqlite::Error),
    /// The structure is damaged already. Nothing was done.
    #[error("{} is damaged, and rewriting it could lose what can still be read", path.display())]
    Unsound {
        /// The main file.
        path: PathBuf,
        /// What `PRAGMA quick_check` says.
        found: String,
    },
    /// A volume has less room than the work may take. Nothing was done.
    #[error("there is not enough room for this")]
    NoRoom {
        /// What is needed and free, volume by volume.
        numbers: String,
    },
    /// A rewrite would give rows new numbers by which a search index refers to them. Nothing was done.
    #[error(
        "a rewrite would renumber the rows of the table {table}, and the search index {index} refers to them by number"
    )]
    Renumbers {
        /// The table.
        table: String,
        /// The index.
        index: String,
    },
    /// A store of ours is always in WAL mode. Nothing was done.
    #[error("{} is a store of Statehouse, which is always in WAL mode", path.display())]
    WalOnly {
        /// The main file.
        path: PathBuf,
    },
    /// A change was made and undone again, because it changed what it must not change.
    #[error("the work was undone, because it changed how many rows there are")]
    Undone {
        /// Which tables, with the numbers.
        found: String,
    },
    /// What was done has changed what it must not change.
    #[error("the rewrite was done, and the database has other numbers of rows than before")]
    RowsDiffer {
        /// Which tables, with the numbers.
        found: String,
    },
    /// SQLite answered that it changed the mode, and what lies on the disk says otherwise.
    #[error("SQLite changed the journal mode, and the disk says otherwise")]
    NotTaken {
        /// What was wanted and what was found.
        found: String,
    },
}

impl Error {
    /// The stable code.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Database(e) => e.code(),
            Error::Unsound { .. } | Error::RowsDiffer { .. } => "damaged",
            Error::NoRoom { .. } => "no_room",
            Error::Renumbers { .. } => "would_renumber",
            Error::WalOnly { .. } => "wal_only",
            Error::Undone { .. } => "undone",
            Error::NotTaken { .. } => "mode_not_taken",
        }
    }

    /// True if nothing was done because something stands against it.
    pub fn is_refusal(&self) -> bool {
        match self {
            Error::Database(e) => e.reason().is_some(),
            Error::Unsound { .. } | Error::NoRoom { .. } | Error::Renumbers { .. } | Error::WalOnly { .. } => true,
            Error::Undone { .. } | Error::RowsDiffer { .. } | Error::NotTaken { .. } => false,
        }
    }

    /// What was seen.
    pub fn detail(&self) -> String {
        match self {
            Error::Unsound { found, .. }
            | Error::Undone { found }
            | Error::RowsDiffer { found }
            | Error::NotTaken { found } => found.clone(),
            Error::NoRoom { numbers } => numbers.clone(),
            Error::Database(_) | Error::Renumbers { .. } | Error::WalOnly { .. } => String::new(),
        }
    }

    /// What to do next.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Database(e) => e.hint(),
            Error::Unsound { .. } => {
                "Nothing was changed. Keep every file. `statehouse snapshots` lists what `statehouse restore` can put in its place, which keeps \
                 what is there; without a snapshot or backup, `.recover` of sqlite3 on a copy of all its files gives the rows that can \
                 still be read."
            }
            Error::NoRoom { .. } => {
                "Nothing was changed. Free space on that volume, or name a directory on another one for the copy with SQLITE_TMPDIR."
            }
            Error::Renumbers { .. } => {
                "Nothing was changed. Let the index's own program rewrite the database and rebuild the index after it."
            }
            Error::WalOnly { .. } => "Nothing was changed, and nothing needs to be: leave the mode as it is.",
            Error::Undone { .. } => "Nothing is lost. Report this with the output of `statehouse status --json`.",
            Error::RowsDiffer { .. } => {
                "Stop every program that uses it, keep every file, and put a snapshot or backup in its place."
            }
            Error::NotTaken { .. } => {
                "Nothing is lost. Run `statehouse status` to see the mode that holds; some program has set it at the same time."
            }
        }
    }
}

impl From<rusqlite::Error> for Error {
    fn from(e: rusqlite::Error) -> Error {
        Error::Database(e.into())
    }
}

/// A failed system call on a file or directory.
pub(crate) fn io(action: &'static str, path: &Path, source: impl Into<std::io::Error>) -> Error {
    Error::Database(statehouse_sqlite::Error::io(action, path, source))
}
