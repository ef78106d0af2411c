//! The dashboard: shows and searches the conversations, and says who holds the store.
//!
//! Invariants: nobody sees anything without the token, the one-time link or a session that came from one of them; every
//! page is readable without JavaScript; nothing that a message contains is ever markup.

mod options;

use std::future::Future;
use std::sync::Arc;

use statehouse_http::Closing;
use statehouse_sessions::Store;

pub use options::Options;
pub use statehouse_http::{Hosts, Limits, Probe, Token, WeakToken, runtime};

/// A code for [`Options::login_code`].
///
/// # Errors
/// When the system has no randomness to give.
pub fn new_code() -> std::io::Result<String> {
    statehouse_http::random_text()
}

/// Serves until `shutdown` is there, then lets what runs end within the grace of the limits. The store stays open.
///
/// # Errors
/// The system's answer when the listener cannot be used.
pub async fn serve(
    listener: std::net::TcpListener,
    store: Arc<dyn Store>,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let _ = &store;
    let (begin, closing) = Closing::new();
    let mut server = std::pin::pin!(statehouse_http::serve(listener, axum::Router::new(), &options.limits, closing));
    tokio::select! {
        ended = server.as_mut() => return ended,
        () = shutdown => begin.now(),
    }
    server.await
}
