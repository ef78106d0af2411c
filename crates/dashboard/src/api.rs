//! What programs get: the documents of the command line, by HTTP.
//!
//! A list or a conversation can be long, so an answer has a bound where the command line has none: `limit` is 50 for
//! lists and 200 for messages unless it is given, and never more than 1000.

use std::sync::Arc;

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use statehouse_http::{Code, Problem, json};
use statehouse_sessions::document::{ConversationDocument, HitDocument, JobDocument, SessionDocument};
use statehouse_sessions::{ListOptions, MessageId, Page, Session};

use crate::app::App;

/// The most that one answer lists.
pub(crate) const MOST: u64 = 1000;

#[derive(Deserialize)]
struct ListQuery {
    #[serde(default)]
    all: bool,
    limit: Option<u64>,
    source: Option<String>,
}

/// `GET /api/sessions?limit=&source=&all=true`.
pub(crate) async fn sessions(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    let q: ListQuery = query(&uri)?;
    let options = ListOptions { all: q.all, limit: Some(q.limit.unwrap_or(50).min(MOST)), source: q.source };
    let sessions = app.store(move |s| s.sessions(&options)).await?;
    Ok(json(StatusCode::OK, &sessions.iter().map(SessionDocument::from).collect::<Vec<_>>()))
}

#[derive(Deserialize)]
struct MessagesQuery {
    before: Option<MessageId>,
    after: Option<MessageId>,
    limit: Option<u64>,
}

/// `GET /api/sessions/{id}?limit=&before=&after=`, where the id may be the one that it had where it was imported from.
pub(crate) async fn session(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Response, Problem> {
    let q: MessagesQuery = query(&uri)?;
    let session = session_of(&app, path(id)?).await?;
    let page = Page { before: q.before, after: q.after, limit: Some(q.limit.unwrap_or(200).min(MOST)) };
    let session_id = session.id;
    let messages = app.store(move |s| s.messages(session_id, &page)).await?;
    Ok(json(StatusCode::OK, &ConversationDocument::new(&session, &messages)))
}

#[derive(Deserialize)]
struct SearchQuery {
    q: String,
    limit: Option<u64>,
}

/// `GET /api/search?q=&limit=`.
pub(crate) async fn search(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Problem> {
    let SearchQuery { q, limit } = query(&uri)?;
    let hits = app.store(move |s| s.search(&q, limit.unwrap_or(20).min(MOST))).await?;
    Ok(json(StatusCode::OK, &hits.iter().map(HitDocument::from).collect::<Vec<_>>()))
}

/// `GET /api/store`: what the store says of itself, and who holds it.
pub(crate) async fn store(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let health = app.store(|s| s.health()).await?;
    let holders = app.holders.ask(crate::pages::HOLDERS_FRESH).await?;
    let document = json!({
        "path": health.path, "fenced": health.fenced, "current": health.current, "generation": health.generation,
        "holders": holders,
    });
    Ok(json(StatusCode::OK, &document))
}

/// `GET /api/jobs`.
pub(crate) async fn jobs(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    let jobs = app.store(|s| s.jobs()).await?;
    Ok(json(StatusCode::OK, &jobs.iter().map(JobDocument::from).collect::<Vec<_>>()))
}

/// `GET /api/incidents`: all of them, also those that are closed, the oldest first.
pub(crate) async fn incidents(State(app): State<Arc<App>>) -> Result<Response, Problem> {
    Ok(json(StatusCode::OK, &app.incidents.ask(crate::pages::HOLDERS_FRESH).await?))
}

/// The conversation with this id here or elsewhere.
pub(crate) async fn session_of(app: &App, id: String) -> Result<Session, Problem> {
    app.store(move |s| s.find_session(&id)).await
}

/// The variable part of an address.
pub(crate) fn path(id: Result<Path<String>, PathRejection>) -> Result<String, Problem> {
    id.map(|p| p.0)
        .map_err(|e| Problem::new(Code::InvalidRequest, "the address is not understood").with_detail(e.body_text()))
}

/// The query of an address.
pub(crate) fn query<T: DeserializeOwned>(uri: &Uri) -> Result<T, Problem> {
    Query::<T>::try_from_uri(uri).map(|q| q.0).map_err(bad_query)
}

pub(crate) fn bad_query(e: QueryRejection) -> Problem {
    Problem::new(Code::InvalidRequest, "the query is not understood").with_detail(e.body_text())
}
