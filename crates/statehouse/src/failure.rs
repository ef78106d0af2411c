//! An error as the person or the program at the other end sees it: a stable code, one sentence, the detail, and what
//! to do next. Libraries keep typed errors; here they get their words and their exit status.

use std::borrow::Cow;
use std::io::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::exit;
use crate::text;

/// The result of a command: the exit status, or a failure.
pub(crate) type Result<T = u8, E = Failure> = std::result::Result<T, E>;

/// Codes that the binary itself gives, beside those of `statehouse_sqlite::Error::code` and
/// `statehouse_sessions::Error::code`. The list is closed, and documented in `docs/contract.md`.
pub(crate) mod code {
    /// The command line cannot be understood.
    pub(crate) const USAGE: &str = "usage";
    /// `config.toml` cannot be understood.
    pub(crate) const BAD_CONFIG: &str = "bad_config";
    /// The home cannot be used as one.
    pub(crate) const BAD_HOME: &str = "bad_home";
    /// Another process has this role on this home.
    pub(crate) const ALREADY_RUNNING: &str = "already_running";
    /// The port is taken, or may not be taken.
    pub(crate) const PORT_IN_USE: &str = "port_in_use";
    /// A service did not become ready, or ended by itself.
    pub(crate) const SERVICE_FAILED: &str = "service_failed";
    /// An operation of the system failed.
    pub(crate) const IO: &str = "io";
    /// Nothing has this id.
    pub(crate) const NOT_FOUND: &str = "not_found";
    /// More than one thing has an id that begins like this.
    pub(crate) const AMBIGUOUS: &str = "ambiguous_id";
}

/// A failed command.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Failure {
    /// Exit status, see [`exit`].
    #[serde(skip, default = "failed")]
    pub(crate) exit: u8,
    /// Stable, for programs.
    pub(crate) code: Cow<'static, str>,
    /// One sentence for a person.
    pub(crate) message: String,
    /// What was seen, for whoever looks closer.
    pub(crate) detail: String,
    /// What to do next.
    pub(crate) hint: String,
}

fn failed() -> u8 {
    exit::FAILED
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Envelope<'a> {
    pub(crate) error: Cow<'a, Failure>,
}

impl Failure {
    pub(crate) fn new(exit: u8, code: &'static str, message: impl Into<String>) -> Failure {
        Failure { exit, code: code.into(), message: message.into(), detail: String::new(), hint: String::new() }
    }

    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Failure {
        self.detail = detail.into();
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = hint.into();
        self
    }

    /// A failed system call on a file or directory.
    pub(crate) fn io(action: &str, path: &Path, source: impl std::fmt::Display) -> Failure {
        Failure::new(exit::FAILED, code::IO, format!("cannot {action} {}", path.display()))
            .detail(source.to_string())
            .hint("Check the permissions, the free space and the path.")
    }

    /// Says it where the caller looks: stdout with `--json`, else stderr.
    pub(crate) fn report(&self, json: bool) {
        if json {
            if let Ok(line) = serde_json::to_string(&Envelope { error: Cow::Borrowed(self) }) {
                let _ = writeln!(std::io::stdout().lock(), "{line}");
            }
            return;
        }
        let mut err = std::io::stderr().lock();
        let _ = writeln!(err, "error: {}", text::escape_line(&self.message));
        for (name, value) in [("detail", &self.detail), ("hint", &self.hint)] {
            if !value.is_empty() {
                let _ = writeln!(err, "  {name}: {}", text::escape_line(value));
            }
        }
    }
}

impl From<statehouse_sqlite::Error> for Failure {
    fn from(e: statehouse_sqlite::Error) -> Failure {
        use statehouse_sqlite::Error as E;
        let (exit, message, detail) = match &e {
            E::Refused(r) => {
                (exit::REFUSED, format!("{}: {}", r.path.display(), r.reason.sentence()), r.detail.clone())
            }
            E::Busy { .. } => (exit::BUSY, e.to_string(), String::new()),
            E::Io { action, path, source } => {
                (exit::FAILED, format!("cannot {action} {}", path.display()), source.to_string())
            }
            E::Damaged { detail } => (exit::FAILED, "the database is damaged".into(), detail.clone()),
            E::Sqlite(s) => (exit::FAILED, "SQLite did not do what was asked".into(), s.to_string()),
            _ => (exit::FAILED, e.to_string(), String::new()),
        };
        Failure { exit, code: e.code().into(), message, detail, hint: e.hint().into() }
    }
}

impl From<statehouse_sessions::Error> for Failure {
    fn from(e: statehouse_sessions::Error) -> Failure {
        match e {
            statehouse_sessions::Error::Database(e) => e.into(),
            e => Failure {
                exit: exit::FAILED,
                code: e.code().into(),
                message: e.to_string(),
                detail: String::new(),
                hint: e.hint().into(),
            },
        }
    }
}

/// Errors of what an operator does: a refusal has changed nothing, everything else was tried.
macro_rules! of_operations {
    ($($error:ty => $inner:ident;)*) => {
        $(impl From<$error> for Failure {
            fn from(e: $error) -> Failure {
                type Typed = $error;
                match e {
                    Typed::$inner(e) => e.into(),
                    e => Failure {
                        exit: if e.is_refusal() { exit::REFUSED } else { exit::FAILED },
                        code: e.code().into(),
                        message: e.to_string(),
                        detail: e.detail(),
                        hint: e.hint().into(),
                    },
                }
            }
        })*
    };
}

of_operations! {
    statehouse_ops::maintenance::Error => Database;
    statehouse_sqlite::capture::TakeError => Database;
    statehouse_ops::restore::Error => Work;
    statehouse_ops::retired::Error => Maintenance;
    statehouse_ops::snapshots::Error => Work;
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use statehouse_sqlite::{Error, Reason};

    #[test]
    fn every_refusal_exits_4_and_says_what_and_what_to_do() {
        for reason in Reason::ALL {
            let f = Failure::from(Error::refused(*reason, "/h/state.db", "seen"));
            assert_eq!(f.exit, exit::REFUSED, "{reason:?}");
            assert_eq!(f.code, reason.code());
            assert!(f.message.starts_with("/h/state.db: "));
            assert_eq!(f.detail, "seen");
            assert!(!f.hint.is_empty(), "{reason:?}");
        }
    }

    #[test]
    fn every_code_is_documented() {
        let page = include_str!("../../../docs/contract.md");
        let own = [
            code::USAGE,
            code::BAD_CONFIG,
            code::BAD_HOME,
            code::ALREADY_RUNNING,
            code::PORT_IN_USE,
            code::SERVICE_FAILED,
            code::IO,
            code::NOT_FOUND,
            code::AMBIGUOUS,
        ];
        let database = [
            "busy",
            "disk_full",
            "read_only",
            "retired",
            "destroyed",
            "doubtful",
            "not_durable",
            "damaged",
            "closed",
            "aborted",
            "io",
            "sqlite",
        ];
        let store = ["not_found", "invalid", "bad_source"];
        let retired = ["unreadable_capture", "missing_module", "exists", "foreign_key"];
        let maintenance = ["no_room", "would_renumber", "wal_only", "undone", "mode_not_taken"];
        let capture = ["no_process", "nothing_to_capture", "refused_other_user", "process_ended"];
        let restore = ["source_damaged", "source_unfit", "same_file", "exists", "unverified"];
        let snapshots = ["unverified", "too_slow", "snapshot_changed"];
        let reasons: Vec<_> = Reason::ALL.iter().map(|r| r.code()).collect();
        for code in
            [&own[..], &database, &store, &retired, &maintenance, &capture, &restore, &snapshots, &reasons].concat()
        {
            assert!(page.contains(&format!("| `{code}` |")), "{code} is not in docs/contract.md");
        }
    }

    #[test]
    fn busy_exits_5() {
        let f =
            Failure::from(Error::Busy { waited: std::time::Duration::from_millis(7), holder: Some("PID 3".into()) });
        assert_eq!(f.exit, exit::BUSY);
        assert!(f.message.contains("PID 3"), "{}", f.message);
    }

    #[test]
    fn an_error_survives_the_way_through_a_pipe() {
        let f = Failure::new(exit::REFUSED, code::ALREADY_RUNNING, "m").detail("d").hint("h");
        let line = serde_json::to_string(&Envelope { error: Cow::Borrowed(&f) }).unwrap();
        let back: Envelope<'_> = serde_json::from_str(&line).unwrap();
        assert_eq!((&*back.error.code, &*back.error.message), ("already_running", "m"));
    }
}
