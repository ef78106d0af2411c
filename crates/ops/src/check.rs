//! One check and what came of it.

use std::time::Instant;

use serde::Serialize;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// As it should be.
    Ok,
    /// Worth knowing, not unhealthy.
    Info,
    /// Not as it should be, and nothing is lost.
    Warn,
    /// Unhealthy.
    Fail,
    /// Not done; the summary says why.
    Skip,
}

impl Outcome {
    /// True if a database with this outcome is not healthy.
    pub fn unhealthy(self) -> bool {
        matches!(self, Outcome::Warn | Outcome::Fail)
    }
}

/// One check. Its id is documented and never changes its meaning.
#[derive(Debug, Clone, Serialize)]
pub struct Check {
    /// The id, for programs.
    pub id: &'static str,
    /// How it ended.
    pub status: Outcome,
    /// One sentence.
    pub summary: String,
    /// What was seen.
    pub detail: String,
    /// What to do next, empty if nothing.
    pub hint: String,
    /// How long it took, in milliseconds.
    pub ms: f64,
}

/// What a check found: how it ended, the sentence, the detail, the hint.
pub(crate) struct Found {
    pub(crate) status: Outcome,
    pub(crate) summary: String,
    pub(crate) detail: String,
    pub(crate) hint: String,
}

impl Found {
    pub(crate) fn new(status: Outcome, summary: impl Into<String>) -> Found {
        Found { status, summary: summary.into(), detail: String::new(), hint: String::new() }
    }

    pub(crate) fn detail(mut self, detail: impl Into<String>) -> Found {
        self.detail = detail.into();
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Found {
        self.hint = hint.into();
        self
    }

    /// An error of the database as a finding.
    pub(crate) fn error(summary: impl Into<String>, error: &statehouse_sqlite::Error) -> Found {
        Found::new(Outcome::Fail, summary).detail(error.to_string()).hint(error.hint())
    }
}

/// Runs a check and takes its time.
pub(crate) fn run(id: &'static str, check: impl FnOnce() -> Found) -> Check {
    let begun = Instant::now();
    let Found { status, summary, detail, hint } = check();
    Check { id, status, summary, detail, hint, ms: begun.elapsed().as_secs_f64() * 1000.0 }
}
