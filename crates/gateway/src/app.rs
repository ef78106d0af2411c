//! What all requests share, and the way a request takes before its handler sees it.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use statehouse_http::{Asked, Closing, Code, Problem, bearer, check_host, with_store};
use statehouse_sessions::{Holder, Store, TurnId};
use tokio::sync::Notify;

use crate::live::Live;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::{messages, openai, status};

/// The state of a gateway.
pub(crate) struct App {
    pub(crate) options: Options,
    pub(crate) store: Arc<dyn Store>,
    /// Unique for this start, so that a lease of an earlier process with the same id is not taken for ours.
    pub(crate) holder: Holder,
    pub(crate) live: Live,
    pub(crate) metrics: Metrics,
    /// The turns that this process answers now.
    pub(crate) running: Mutex<HashSet<TurnId>>,
    /// There is a turn to take up.
    pub(crate) wake: Notify,
    /// The turns of an earlier gateway were taken over.
    pub(crate) resumed: AtomicBool,
    /// No turn of this process will end any more.
    pub(crate) stopped: Closing,
    pub(crate) readiness: Asked,
}

impl App {
    pub(crate) fn turns_running(&self) -> usize {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    pub(crate) fn running_turns(&self) -> Vec<TurnId> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    /// A call of the store, on the blocking pool.
    pub(crate) async fn store<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Store) -> statehouse_sessions::Result<T> + Send + 'static,
    ) -> Result<T, Problem> {
        with_store(&self.store, call).await.inspect_err(|e| {
            if e.status.is_server_error() {
                self.metrics.store_refused(e.code);
            }
        })
    }
}

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/v1/messages", post(messages::receive))
        .route("/v1/turns/{id}/events", get(messages::events))
        .route("/v1/models", get(openai::models))
        .route("/v1/models/{id}", get(openai::model))
        .route("/v1/chat/completions", post(openai::complete))
        .route("/healthz", get(status::alive))
        .route("/readyz", get(status::ready))
        .route("/metrics", get(status::metrics))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&app), gate))
        .with_state(app)
}

async fn nothing_here(uri: Uri) -> Problem {
    Problem::new(Code::NotFound, format!("there is nothing at {:.200}", uri.path()))
}

async fn wrong_method(request: Request) -> Problem {
    Problem::new(
        Code::MethodNotAllowed,
        format!("{:.200} does not take the method {:.20}", request.uri().path(), request.method().as_str()),
    )
}

/// Name, then token, then the address; and what every answer carries.
async fn gate(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = match admit(&app, &request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    app.metrics.answered(response.status().as_u16());
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn admit(app: &App, request: &Request) -> Result<(), Problem> {
    check_host(request.headers(), &app.options.hosts)?;
    if request.uri().path() == "/healthz" {
        return Ok(());
    }
    match bearer(request.headers()) {
        Some(token) if app.options.token.matches(token) => Ok(()),
        Some(_) => Err(Problem::new(Code::Unauthorized, "the token is wrong")),
        None => Err(Problem::new(Code::Unauthorized, "the request has no token")),
    }
}
