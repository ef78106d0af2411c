//! Why nothing could be captured.

use crate::error::Error;

/// Why nothing could be captured. Nothing on disk has changed.
#[derive(Debug, thiserror::Error)]
pub enum TakeError {
    /// There is no such process.
    #[error("there is no process {pid}")]
    NoProcess {
        /// Its number.
        pid: u32,
    },
    /// The process has nothing that the paths do not name.
    #[error("{who} has no deleted or replaced file of this database, so there is nothing to capture")]
    Nothing {
        /// Who it is.
        who: String,
    },
    /// The process has only a part with which nothing can be done.
    #[error(
        "{who} has only the shared index of a deleted log; the index holds no row, and nobody has the log any more"
    )]
    OnlyIndex {
        /// Who it is.
        who: String,
    },
    /// The process captures by itself what it has.
    #[error("{who} is this very process, which captures by itself what it has")]
    Own {
        /// Who it is.
        who: String,
    },
    /// It belongs to somebody else, or may not be looked at for another reason.
    #[error("the files of {who} may not be looked at by this user")]
    NotAllowed {
        /// Who it is.
        who: String,
        /// What would do it, as a person would type it.
        command: String,
    },
    /// The volume has no room for the log.
    #[error("there is no room for a copy of the log")]
    NoRoom {
        /// How much there is and how much is needed.
        numbers: String,
    },
    /// The process ended before its files could be opened.
    #[error("{who} has ended, and what only it had went with it")]
    Ended {
        /// Who it was.
        who: String,
    },
    /// What the database layer answered.
    #[error(transparent)]
    Database(#[from] Error),
}

impl TakeError {
    /// The stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            TakeError::NoProcess { .. } => "no_process",
            TakeError::Nothing { .. } | TakeError::OnlyIndex { .. } | TakeError::Own { .. } => "nothing_to_capture",
            TakeError::NotAllowed { .. } => "refused_other_user",
            TakeError::NoRoom { .. } => "no_room",
            TakeError::Ended { .. } => "process_ended",
            TakeError::Database(e) => e.code(),
        }
    }

    /// What was seen, for whoever looks closer.
    pub fn detail(&self) -> String {
        match self {
            TakeError::NoRoom { numbers } => numbers.clone(),
            TakeError::Ended { .. } => "if it ended in an orderly way SQLite may have copied its log first".into(),
            _ => String::new(),
        }
    }

    /// What to do next.
    pub fn hint(&self) -> String {
        match self {
            TakeError::NoProcess { .. } | TakeError::Nothing { .. } => {
                "`statehouse holders` with this path shows who uses the database, and who has deleted files of it."
                    .into()
            }
            TakeError::OnlyIndex { .. } => "Nothing of this process is lost when it is stopped.".into(),
            TakeError::Own { .. } => "Nothing needs to be done.".into(),
            TakeError::NotAllowed { command, .. } => format!("Keep the process running, and type: {command}"),
            TakeError::NoRoom { .. } => {
                "Keep the process running. Free so much on this volume, and type the same again.".into()
            }
            TakeError::Ended { .. } => {
                "Run `statehouse retired list` with this path: an earlier capture, or another process, may have it."
                    .into()
            }
            TakeError::Database(e) => e.hint().into(),
        }
    }

    /// True if nothing was done because it must not, or need not, be done.
    pub fn is_refusal(&self) -> bool {
        match self {
            TakeError::Database(e) => matches!(e, Error::Refused(_)),
            TakeError::Ended { .. } => false,
            _ => true,
        }
    }
}

impl From<TakeError> for Error {
    fn from(e: TakeError) -> Error {
        match e {
            TakeError::Database(e) => e,
            TakeError::NoRoom { .. } => Error::Full,
            e => Error::Io { action: "capture", path: "what was removed".into(), source: std::io::Error::other(e) },
        }
    }
}
