//! What all requests share, and the way a request takes before its handler sees it.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;
use statehouse_http::{Asked, Closing, Code, Problem, bearer, check_host, json, with_store};
use statehouse_sessions::Store;

use crate::live::Changes;
use crate::login::Login;
use crate::options::Options;
use crate::{api, live, login, pages};

/// The state of a dashboard.
pub(crate) struct App {
    pub(crate) options: Options,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) login: Login,
    pub(crate) holders: Asked,
    pub(crate) incidents: Asked,
    pub(crate) snapshots: Asked,
    pub(crate) changes: Changes,
    pub(crate) closing: Closing,
}

impl App {
    /// A call of the store, on the blocking pool.
    pub(crate) async fn store<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dyn Store) -> statehouse_sessions::Result<T> + Send + 'static,
    ) -> Result<T, Problem> {
        with_store(&self.store, call).await
    }
}

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(pages::list))
        .route("/sessions/{id}", get(pages::conversation))
        .route("/search", get(pages::search))
        .route("/store", get(pages::store))
        .route("/jobs", get(pages::jobs))
        .route("/incidents", get(pages::incidents))
        .route("/incidents/{id}", get(pages::incident))
        .route("/incidents/{id}/close", post(pages::close_incident))
        .route("/api/sessions", get(api::sessions))
        .route("/api/sessions/{id}", get(api::session))
        .route("/api/sessions/{id}/events", get(live::events))
        .route("/api/search", get(api::search))
        .route("/api/store", get(api::store))
        .route("/api/jobs", get(api::jobs))
        .route("/api/incidents", get(api::incidents))
        .route("/login", get(login::page).post(login::log_in))
        .route("/logout", post(login::log_out))
        .route("/assets/style.css", get(style))
        .route("/assets/live.js", get(script))
        .route("/healthz", get(alive))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(&app), gate))
        .with_state(app)
}

/// How a request proved who it is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Visitor {
    /// Nobody that we know.
    Stranger,
    /// A program with the token.
    Program,
    /// A person with a session.
    Person,
}

impl App {
    pub(crate) fn visitor(&self, headers: &HeaderMap) -> Visitor {
        match bearer(headers) {
            Some(token) if self.options.token.matches(token) => Visitor::Program,
            // A wrong token is an error that its sender should see, whatever else it sent.
            Some(_) => Visitor::Stranger,
            None if self.login.knows(headers) => Visitor::Person,
            None => Visitor::Stranger,
        }
    }
}

/// Name, then who it is, then the address; and what every answer carries.
async fn gate(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = match refusal(&app, &request) {
        None if is_page(request.uri().path()) => {
            let notice = pages::notice_of(&app).await;
            pages::NOTICE.scope(notice, next.run(request)).await
        }
        None => next.run(request).await,
        Some(refusal) => refusal,
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; \
             form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        ),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// True if what is there is shown to a person who is logged in.
fn is_page(path: &str) -> bool {
    !["/api/", "/assets/", "/login", "/logout", "/healthz"].iter().any(|other| path.starts_with(other))
}

fn refusal(app: &App, request: &Request) -> Option<Response> {
    if let Err(problem) = check_host(request.headers(), &app.options.hosts) {
        return Some(problem.into_response());
    }
    let path = request.uri().path();
    if matches!(path, "/login" | "/assets/style.css" | "/assets/live.js" | "/healthz")
        || app.visitor(request.headers()) != Visitor::Stranger
    {
        return None;
    }
    if path == "/api" || path.starts_with("/api/") || bearer(request.headers()).is_some() {
        let problem = Problem::new(Code::Unauthorized, "the request has neither the token nor a session");
        return Some(problem.into_response());
    }
    Some(see_other("/login"))
}

/// Sends a browser somewhere else, with a GET.
pub(crate) fn see_other(path: &'static str) -> Response {
    (StatusCode::SEE_OTHER, [(header::LOCATION, HeaderValue::from_static(path))]).into_response()
}

async fn nothing_here(uri: Uri) -> Response {
    let problem = Problem::new(Code::NotFound, format!("there is nothing at {:.200}", uri.path()));
    if uri.path().starts_with("/api/") { problem.into_response() } else { pages::problem(&problem) }
}

async fn wrong_method(request: Request) -> Problem {
    Problem::new(
        Code::MethodNotAllowed,
        format!("{:.200} does not take the method {:.20}", request.uri().path(), request.method().as_str()),
    )
}

async fn alive() -> Response {
    json(StatusCode::OK, &json!({ "alive": true }))
}

async fn style() -> Response {
    asset("text/css; charset=utf-8", include_str!("../assets/style.css"))
}

async fn script() -> Response {
    asset("text/javascript; charset=utf-8", include_str!("../assets/live.js"))
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    // Asked for anew each time: it is small, and a new version must not meet an old page's copy.
    ([(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")], text).into_response()
}
