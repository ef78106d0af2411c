//! The gateway: takes messages in, has them answered, and loses neither.
//!
//! Invariants: a message is durable before its sender is told that it arrived; a turn is answered exactly once, however
//! often the process dies; whatever a client sends, the process stays alive and bounded.
//!
//! The way of a message: [`serve`] accepts the connection, `app` checks name and token, `messages` or `openai` reads and
//! checks the body and stores it, `turns` takes the turn from the store and has it answered, `live` holds the answer while
//! it grows, `listen` lets any number of clients hear it. Nothing is handed over in memory that the store does not
//! have too, so that the process may die between any two steps.

mod app;
mod input;
mod listen;
mod live;
mod messages;
mod metrics;
mod openai;
mod options;
mod responder;
mod status;
mod turns;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use statehouse_http::{Asked, Closing, random_text};
use statehouse_sessions::{Holder, Store};

pub use options::{Options, TurnLimits};
pub use responder::{Answer, CannotAnswer, Echo, Question, Responder};
pub use statehouse_http::{Hosts, Limits, Probe, Token, WeakToken, runtime};

/// Serves until `shutdown` is there, then lets what runs end within the grace of the limits. The store stays open.
/// Must run on a runtime with I/O and time, as [`runtime`] makes one.
///
/// The caller sees to it that no other gateway runs on the same store: at the start, all turns that others hold are
/// taken over.
///
/// # Errors
/// The system's answer when the listener cannot be used, or when it has no randomness to give.
pub async fn serve(
    listener: std::net::TcpListener,
    store: Arc<dyn Store>,
    options: Options,
    shutdown: impl Future<Output = ()>,
) -> std::io::Result<()> {
    let (begin, closing) = Closing::new();
    let (stop, stopped) = Closing::new();
    let limits = options.limits.clone();
    let readiness = Asked::new(Arc::clone(&options.readiness));
    let app = Arc::new(app::App {
        options,
        store,
        holder: Holder(format!("gateway {} {}", std::process::id(), random_text()?)),
        live: live::Live::default(),
        metrics: metrics::Metrics::new(),
        running: std::sync::Mutex::default(),
        wake: tokio::sync::Notify::new(),
        resumed: AtomicBool::new(false),
        stopped,
        readiness,
    });
    let runner = {
        let (app, closing) = (Arc::clone(&app), closing.clone());
        tokio::spawn(async move {
            turns::run(app, closing).await;
            // Whoever still waits for an answer is told that it will not come from this process.
            stop.now();
        })
    };
    let mut server = std::pin::pin!(statehouse_http::serve(listener, app::router(app), &limits, closing));
    let ended = tokio::select! {
        ended = server.as_mut() => ended,
        () = shutdown => {
            begin.now();
            server.await
        }
    };
    drop(begin);
    if let Err(e) = runner.await {
        tracing::error!(error = %e, "the runner of turns broke down");
    }
    ended
}
