//! The dashboard: shows and searches the conversations, and says who holds the store.
//!
//! Invariants: nobody sees anything without the token, the one-time link or a session that came from one of them; every
//! page is readable without JavaScript; nothing that a message contains is ever markup.
//!
//! `app` has the addresses and the gate before them, `login` the sessions of people, `pages` what people see, `api` what
//! programs get, `live` the stream of new messages.

mod api;
mod app;
mod live;
mod login;
mod options;
mod pages;
mod words;

use std::future::Future;
use std::sync::Arc;

use statehouse_http::{Asked, Closing};
use statehouse_sessions::Store;

pub use options::{CloseIncident, Options};
pub use statehouse_http::{Hosts, Limits, Probe, Token, WeakToken, runtime};

/// A code for [`Options::login_code`].
///
/// # Errors
/// When the system has no randomness to give.
pub fn new_code() -> std::io::Result<String> {
    statehouse_http::random_text()
}

/// Serves until `shutdown` is there, then lets what runs end within the grace of the limits. The store stays open.
/// Must run on a runtime with I/O and time, as [`runtime`] makes one.
///
/// # Errors
/// The system's answer when the listener cannot be used.
pub async fn serve(
    listener: std::net::TcpListener,
    store: Arc<dyn Store>,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let (begin, closing) = Closing::new();
    let limits = options.limits.clone();
    // Cookies do not know ports: two dashboards on one machine must not overwrite each other's.
    let cookie = format!("statehouse_{}", listener.local_addr()?.port());
    let app = Arc::new(app::App {
        login: login::Login::new(options.login_code.clone(), cookie),
        holders: Asked::new(Arc::clone(&options.holders)),
        incidents: Asked::new(Arc::clone(&options.incidents)),
        snapshots: Asked::new(Arc::clone(&options.snapshots)),
        changes: live::Changes::default(),
        closing: closing.clone(),
        options,
        store,
    });
    let watching = tokio::spawn(live::watch(Arc::clone(&app)));
    let mut server = std::pin::pin!(statehouse_http::serve(listener, app::router(app), &limits, closing));
    let ended = tokio::select! {
        ended = server.as_mut() => ended,
        () = shutdown => {
            begin.now();
            server.await
        }
    };
    watching.abort();
    ended
}
