//! Our own channel: a message in, and the events of its turn out.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use axum::response::sse::Event;
use serde::{Deserialize, Serialize};
use serde_json::json;
use statehouse_http::{Code, Problem, json, read_body};
use statehouse_sessions::{Inbound, MessageId, Received, SessionId, TurnId};

use crate::app::App;
use crate::input::{self, NewMessage};
use crate::listen::{Heard, Listener};
use crate::live::Outcome;

/// The name of this channel in the store.
const CHANNEL: &str = "http";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReceiveQuery {
    wait: Option<String>,
}

#[derive(Serialize)]
struct Receipt {
    message_id: MessageId,
    session_id: SessionId,
    turn_id: TurnId,
    duplicate: bool,
}

#[derive(Serialize)]
struct ReceiptWithReply {
    #[serde(flatten)]
    receipt: Receipt,
    /// Null while there is none.
    reply: Option<Reply>,
    /// Why there will be none.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<serde_json::Value>,
}

#[derive(Serialize)]
struct Reply {
    message_id: MessageId,
    text: String,
}

/// `POST /v1/messages`. The answer is sent after the message is durable.
pub(crate) async fn receive(State(app): State<Arc<App>>, uri: Uri, body: Body) -> Result<Response, Problem> {
    let Query(query) = Query::<ReceiveQuery>::try_from_uri(&uri)
        .map_err(|e| Problem::new(Code::InvalidRequest, "the query is not understood").with_detail(e.body_text()))?;
    let wait = input::wait(query.wait.as_deref())?;
    let message = input::parse::<NewMessage>(&read(&app, body).await?)?.check()?;
    let NewMessage { conversation, text, id: client_id } = message;
    let received = take_in(&app, Inbound { channel: CHANNEL.into(), conversation, client_id, text }).await?;
    let Received { message_id, session_id, turn_id, duplicate } = received;
    let receipt = Receipt { message_id, session_id, turn_id, duplicate };
    let Some(wait) = wait else { return Ok(json(StatusCode::OK, &receipt)) };
    let ended = tokio::time::timeout(wait, async {
        match Listener::to(&app, turn_id).await {
            Ok(listener) => listener.end().await,
            // The message is kept; that its turn cannot be read now does not change the receipt.
            Err(_) => None,
        }
    });
    let (reply, error) = match ended.await.ok().flatten() {
        Some(Outcome::Done { message_id, text }) => (Some(Reply { message_id, text }), None),
        Some(Outcome::Failed(why)) => (None, error_value(&turn_failed(&why))),
        None => (None, None),
    };
    Ok(json(StatusCode::OK, &ReceiptWithReply { receipt, reply, error }))
}

/// `GET /v1/turns/{id}/events`.
pub(crate) async fn events(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    let id =
        id.map_err(|e| Problem::new(Code::InvalidRequest, "the address is not understood").with_detail(e.body_text()))?;
    let turn: TurnId = id.parse().map_err(|_| {
        Problem::new(Code::NotFound, "there is no turn with this id").with_detail(format!("{:.64}", id.0))
    })?;
    let listener = Listener::to(&app, turn).await?;
    Ok(statehouse_http::events(Some(listener), |listener| async {
        let mut listener = listener?;
        match listener.next().await {
            Heard::Piece(text) => Some((event("delta", &json!({ "text": text })), Some(listener))),
            Heard::End(Outcome::Done { message_id, text }) => {
                Some((event("done", &json!({ "message_id": message_id, "text": text })), None))
            }
            Heard::End(Outcome::Failed(why)) => {
                Some((Event::default().event("error").data(turn_failed(&why).document()), None))
            }
            Heard::Stopped => None,
        }
    }))
}

/// Reads a body within the limits.
pub(crate) async fn read(app: &App, body: Body) -> Result<axum::body::Bytes, Problem> {
    let limits = &app.options.limits;
    read_body(body, limits.body_bytes, limits.body_time).await
}

/// Stores an inbound message and has its turn taken up, even when the client that sent it is gone by then.
pub(crate) async fn take_in(app: &Arc<App>, inbound: Inbound) -> Result<Received, Problem> {
    let for_wake = Arc::clone(app);
    let received = app
        .store(move |s| {
            let received = s.receive(inbound)?;
            for_wake.wake.notify_one();
            Ok(received)
        })
        .await?;
    let counter = if received.duplicate { &app.metrics.duplicates } else { &app.metrics.received };
    counter.fetch_add(1, Ordering::Relaxed);
    Ok(received)
}

/// The message is kept and there will be no answer.
pub(crate) fn turn_failed(why: &str) -> Problem {
    Problem::new(Code::TurnFailed, "the message cannot be answered").with_detail(why)
}

fn error_value(problem: &Problem) -> Option<serde_json::Value> {
    let document: serde_json::Value = serde_json::from_str(&problem.document()).ok()?;
    document.get("error").cloned()
}

fn event(name: &str, document: &serde_json::Value) -> Event {
    Event::default().event(name).data(document.to_string())
}
