//! What a dashboard is given.

use statehouse_http::{Hosts, Limits, Probe, Token};

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
    /// Names, apart from the loopback ones, under which the dashboard may be called.
    pub hosts: Hosts,
    /// What one client may take.
    pub limits: Limits,
}

impl Options {
    /// A dashboard with the usual limits and no login link.
    pub fn new(token: Token, holders: Probe) -> Options {
        Options { token, login_code: None, holders, hosts: Hosts::default(), limits: Limits::default() }
    }
}
