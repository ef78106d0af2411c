//! What the gateway and the dashboard share in speaking HTTP to people and programs on this machine.
//!
//! Invariants: whatever a client sends, the process stays alive and bounded (connections, bytes, time), and the client
//! gets an answer in one documented shape. Neither service knows the other; both know this crate, so that the check of
//! the Host header, the comparison of a token and the mapping of the store's errors exist once.

mod body;
mod events;
mod gate;
mod probe;
mod problem;
mod server;
mod stream;

pub use body::read_body;
pub use events::events;
pub use gate::{Hosts, Token, WeakToken, bearer, check_host, equal, random_text, same_origin};
pub use probe::{Asked, Probe};
pub use problem::{Code, Problem, json};
pub use server::{Begin, Closing, Limits, serve};

use std::sync::Arc;

use statehouse_sessions::Store;

/// A runtime for one service: one thread for all connections, and a few for the store, which end when they are idle.
///
/// # Errors
/// The system's answer when the poller cannot be created.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .max_blocking_threads(32)
        .thread_keep_alive(std::time::Duration::from_secs(5))
        .thread_stack_size(1 << 20)
        .build()
}

/// Runs a call of the store where it may block.
///
/// # Errors
/// The store's error, or `internal` when the call panicked.
pub async fn with_store<T: Send + 'static>(
    store: &Arc<dyn Store>,
    call: impl FnOnce(&dyn Store) -> statehouse_sessions::Result<T> + Send + 'static,
) -> Result<T, Problem> {
    let store = Arc::clone(store);
    match tokio::task::spawn_blocking(move || call(&*store)).await {
        Ok(answer) => answer.map_err(Problem::from),
        Err(e) => Err(Problem::internal(format!("a call of the store did not return: {e}"))),
    }
}
