//! The API that OpenAI clients speak, as far as a conversation needs it.
//!
//! Such a client sends the whole conversation each time; the store has it already, so only the last message of the user
//! is taken in. Token counts are left out: nothing here counts tokens, and a zero would be a lie.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;
use axum::response::sse::Event;
use serde_json::{Value, json};
use statehouse_http::{Code, Problem, json};
use statehouse_sessions::{Inbound, TurnId};

use crate::app::App;
use crate::input::{self, ChatRequest};
use crate::listen::{Heard, Listener};
use crate::live::Outcome;
use crate::messages::{read, take_in, turn_failed};

/// The name of this channel in the store.
const CHANNEL: &str = "openai";
/// Names the conversation in a request, and in every answer.
const CONVERSATION: &str = "x-statehouse-conversation";
/// Names the turn in every answer.
const TURN: &str = "x-statehouse-turn";
/// OpenAI's clients send it with a request that they may repeat.
const IDEMPOTENCY: &str = "idempotency-key";

fn model_document(app: &App) -> Value {
    json!({ "id": app.options.responder.name(), "object": "model", "created": 0, "owned_by": "statehouse" })
}

/// `GET /v1/models`.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Response {
    json(StatusCode::OK, &json!({ "object": "list", "data": [model_document(&app)] }))
}

/// `GET /v1/models/{id}`.
pub(crate) async fn model(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Problem> {
    match id {
        Ok(Path(id)) if id == app.options.responder.name() => Ok(json(StatusCode::OK, &model_document(&app))),
        _ => Err(Problem::new(Code::NotFound, "there is no such model")),
    }
}

/// `POST /v1/chat/completions`. Whatever model is asked for, the configured responder answers and is named in the answer.
pub(crate) async fn complete(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Result<Response, Problem> {
    let conversation = input::named_header(&headers, CONVERSATION)?;
    let client_id = input::named_header(&headers, IDEMPOTENCY)?;
    let request: ChatRequest = input::parse(&read(&app, body).await?)?;
    let stream = request.stream.unwrap_or(false);
    let text = request.inbound()?;
    // A new conversation for each request that names none; a repeated request finds the one that its key began.
    let conversation = conversation
        .or_else(|| client_id.as_ref().map(|key| format!("key {key}")))
        .unwrap_or_else(|| TurnId::new().to_string());
    let inbound = Inbound { channel: CHANNEL.into(), conversation: conversation.clone(), client_id, text };
    let turn = take_in(&app, inbound).await?.turn_id;
    let listener = Listener::to(&app, turn).await?;
    let answer = Completion {
        id: format!("chatcmpl-{turn}"),
        created: seconds_now(),
        model: app.options.responder.name().into(),
    };
    let mut response = if stream { streamed(answer, listener) } else { whole(&app, &answer, listener).await? };
    if let (Ok(conversation), Ok(turn)) = (HeaderValue::try_from(conversation), HeaderValue::try_from(turn.to_string()))
    {
        response.headers_mut().insert(CONVERSATION, conversation);
        response.headers_mut().insert(TURN, turn);
    }
    Ok(response)
}

struct Completion {
    id: String,
    created: u64,
    model: String,
}

impl Completion {
    fn chunk(&self, delta: &Value, finish: Option<&str>) -> Event {
        let document = json!({
            "id": self.id, "object": "chat.completion.chunk", "created": self.created, "model": self.model,
            "choices": [{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": finish }],
        });
        Event::default().data(document.to_string())
    }
}

async fn whole(app: &App, answer: &Completion, listener: Listener) -> Result<Response, Problem> {
    let most = app.options.turns.answer_time;
    match tokio::time::timeout(most, listener.end()).await {
        Ok(Some(Outcome::Done { text, .. })) => {
            let message = json!({ "role": "assistant", "content": text, "refusal": null });
            let document = json!({
                "id": answer.id, "object": "chat.completion", "created": answer.created, "model": answer.model,
                "choices": [{ "index": 0, "message": message, "logprobs": null, "finish_reason": "stop" }],
            });
            Ok(json(StatusCode::OK, &document))
        }
        Ok(Some(Outcome::Failed(why))) => Err(turn_failed(&why)),
        Ok(None) => {
            Err(Problem::new(Code::ShuttingDown, "the gateway is closing; the message is stored and will be answered"))
        }
        Err(_) => {
            Err(Problem::new(Code::AnswerPending, format!("there is no answer after {} seconds", most.as_secs())))
        }
    }
}

/// Where a streamed completion is.
enum Stage {
    Begin,
    Text,
    Stop,
    End,
    Over,
}

fn streamed(answer: Completion, listener: Listener) -> Response {
    statehouse_http::events((answer, listener, Stage::Begin), |(answer, mut listener, stage)| async move {
        let (event, stage) = match stage {
            Stage::Begin => (answer.chunk(&json!({ "role": "assistant", "content": "" }), None), Stage::Text),
            Stage::Text => match listener.next().await {
                Heard::Piece(text) => (answer.chunk(&json!({ "content": text }), None), Stage::Text),
                Heard::End(Outcome::Done { .. }) => {
                    return Some((answer.chunk(&json!({}), Some("stop")), (answer, listener, Stage::Stop)));
                }
                Heard::End(Outcome::Failed(why)) => (Event::default().data(turn_failed(&why).document()), Stage::Over),
                Heard::Stopped => {
                    let problem = Problem::new(
                        Code::ShuttingDown,
                        "the gateway is closing; the message is stored and will be answered",
                    );
                    (Event::default().data(problem.document()), Stage::Over)
                }
            },
            Stage::Stop => (Event::default().data("[DONE]"), Stage::End),
            Stage::End | Stage::Over => return None,
        };
        Some((event, (answer, listener, stage)))
    })
}

fn seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
