//! The gateway: takes messages in, has them answered, and loses neither.
//!
//! Invariants: a message is durable before its sender is told that it arrived; a turn is answered exactly once, however
//! often the process dies; whatever a client sends, the process stays alive and bounded.

mod options;
mod responder;

use std::future::Future;
use std::sync::Arc;

use statehouse_http::Closing;
use statehouse_sessions::Store;

pub use options::{Options, TurnLimits};
pub use responder::{Answer, CannotAnswer, Echo, Question, Responder};
pub use statehouse_http::{Hosts, Limits, Probe, Token, WeakToken, runtime};

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
