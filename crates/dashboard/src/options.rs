//! What a dashboard is given.

use std::sync::Arc;

use serde_json::json;
use statehouse_http::{Hosts, Limits, Probe, Token};

/// Closes an incident by its id, because somebody has looked at it; false if there is none. The error is a sentence.
pub type CloseIncident = Arc<dyn Fn(&str) -> Result<bool, String> + Send + Sync>;

/// How a dashboard runs.
#[derive(Clone)]
pub struct Options {
    /// What programs send, and what a person may type into the login form.
    pub token: Token,
    /// The code of the one-time login link `/login?code=CODE`, from [`crate::new_code`]. It works once.
    pub login_code: Option<String>,
    /// The document of `statehouse holders --json` for this store. Asked at most once a second, and only when somebody
    /// looks.
    pub holders: Probe,
    /// The document of `statehouse incidents --all --json` for this store. Asked at most once a second, and only when somebody looks.
    pub incidents: Probe,
    /// How the store stands with its snapshots: `last`, `failed` and `warning`, each null if there is nothing to say. Asked at
    /// most once a second, and only when somebody looks.
    pub snapshots: Probe,
    /// Closes one of these.
    pub close_incident: CloseIncident,
    /// Names, apart from the loopback ones, under which the dashboard may be called.
    pub hosts: Hosts,
    /// What one client may take.
    pub limits: Limits,
}

impl Options {
    /// A dashboard with the usual limits, no login link, and neither incidents nor snapshots to show.
    pub fn new(token: Token, holders: Probe) -> Options {
        Options {
            token,
            login_code: None,
            holders,
            incidents: Arc::new(|| json!([])),
            snapshots: Arc::new(|| json!(null)),
            close_incident: Arc::new(|_| Ok(false)),
            hosts: Hosts::default(),
            limits: Limits::default(),
        }
    }
}
