//! How the gateway is.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use statehouse_http::{Problem, json};

use crate::app::App;

/// How long one look at readiness is good for.
const GOOD_FOR: Duration = Duration::from_secs(1);

/// `GET /healthz`: the process answers, and says nothing about the store.
pub(crate) async fn alive() -> Response {
    json(StatusCode::OK, &json!({ "alive": true }))
}

/// `GET /readyz`: 200 if a write was proved just now and the turns of an earlier gateway were taken over, else 503.
pub(crate) async fn ready(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let mut document = app.readiness.ask(GOOD_FOR).await?;
    let resumed = app.resumed.load(Ordering::Acquire);
    let ready = resumed && document.get("ready") == Some(&Value::Bool(true));
    if let Value::Object(fields) = &mut document {
        fields.insert("ready".into(), ready.into());
        fields.insert("turns".into(), json!({ "resumed": resumed, "running": app.turns_running() }));
    }
    let mut response = json(if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &document);
    if !ready {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(1));
    }
    Ok(response)
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let health = app
        .store(|s| {
            // The account of the files is made without the database; this asks it something.
            s.change_counter()?;
            s.health()
        })
        .await
        .ok();
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    ([(header::CONTENT_TYPE, kind)], app.metrics.render(app.turns_running(), health.as_ref())).into_response()
}
