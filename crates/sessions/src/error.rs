//! Errors of the store.

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why the store did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database itself said no.
    #[error(transparent)]
    Database(statehouse_sqlite::Error),
    /// Nothing has this id.
    #[error("there is no {what} {id}")]
    NotFound {
        /// "session", "message", "turn", "job".
        what: &'static str,
        /// The id that was asked for.
        id: String,
    },
    /// The request breaks a rule of the store.
    #[error("{0}")]
    Invalid(String),
    /// The source of an import cannot be read.
    #[error("cannot import from {}: {detail}", path.display())]
    Source {
        /// The source.
        path: std::path::PathBuf,
        /// What was seen.
        detail: String,
    },
}

impl From<statehouse_sqlite::Error> for Error {
    /// A rule of the store that refused inside a write comes back as what it was.
    fn from(e: statehouse_sqlite::Error) -> Error {
        use statehouse_sqlite::Error as E;
        match e {
            E::Aborted(inner) => match inner.downcast::<Error>() {
                Ok(own) => *own,
                Err(inner) => match inner.downcast::<E>() {
                    Ok(database) => Error::Database(*database),
                    Err(other) => Error::Database(E::Aborted(other)),
                },
            },
            e => Error::Database(e),
        }
    }
}

impl Error {
    /// The stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Database(e) => e.code(),
            Error::NotFound { .. } => "not_found",
            Error::Invalid(_) => "invalid",
            Error::Source { .. } => "bad_source",
        }
    }

    /// What to do next.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Database(e) => e.hint(),
            Error::NotFound { what: "job", .. } => "The built-in jobs are housekeeping and ddl-check.",
            Error::NotFound { .. } => "Run `statehouse sessions list` to see what there is.",
            Error::Invalid(_) => "Correct the request; nothing was stored.",
            Error::Source { .. } => "Name a Hermes home or its state.db; the source is never changed.",
        }
    }
}
