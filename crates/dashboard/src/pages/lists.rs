//! The list of conversations with the card of the store, and the jobs.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use statehouse_sessions::document::interval;
use statehouse_sessions::{JobKind, ListOptions, Message, Page, Session};

use super::layout::Place;
use super::{HOLDERS_RECENT, Shown, shown, store};
use crate::api::query;
use crate::app::App;
use crate::words::{beginning, count, speaker, title, when};

/// Conversations on one page.
const PER_PAGE: u64 = 30;
/// The last page that can be asked for: the store lists from the beginning each time.
const LAST_PAGE: u64 = 1000;

#[derive(Deserialize)]
struct ListQuery {
    page: Option<u64>,
    #[serde(default)]
    all: bool,
}

/// `GET /`.
pub(crate) async fn list(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, Shown> {
    let q: ListQuery = query(&uri)?;
    let number = q.page.unwrap_or(1).clamp(1, LAST_PAGE);
    let skip = (number - 1) * PER_PAGE;
    let options = ListOptions { all: q.all, limit: Some(skip + PER_PAGE + 1), source: None };
    let (sessions, more) = app
        .store(move |s| {
            let mut sessions = s.sessions(&options)?;
            sessions.drain(..usize::try_from(skip).unwrap_or(usize::MAX).min(sessions.len()));
            let more = sessions.len() as u64 > PER_PAGE;
            sessions.truncate(PER_PAGE as usize);
            let newest = Page { limit: Some(1), ..Page::default() };
            let mut entries = Vec::with_capacity(sessions.len());
            for session in sessions {
                let last = s.messages(session.id, &newest)?.pop();
                entries.push((session, last));
            }
            Ok((entries, more))
        })
        .await?;
    let card = match number {
        1 => Some(store::card(&app, HOLDERS_RECENT).await),
        _ => None,
    };
    let filter = if q.all { "&all=true" } else { "" };
    let content = html! {
        @if let Some(card) = card { (card) }
        div.heading {
            h1 { "Conversations" }
            @if q.all { a href="/" { "Without archived ones" } } @else { a href="/?all=true" { "Show archived ones too" } }
        }
        @if sessions.is_empty() {
            @if number == 1 {
                p.empty { "No conversation yet. Send a message to the gateway, or take over those of Hermes Agent with "
                    code { "statehouse sessions import hermes PATH" } "." }
            } @else { p.empty { "There is nothing on this page." } }
        }
        ul.sessions {
            @for (session, last) in &sessions { (entry(session, last.as_ref())) }
        }
        nav.pages aria-label="Pages" {
            @if number > 1 { a rel="prev" href={ "/?page=" (number - 1) (filter) } { "← Newer" } }
            @if more && number < LAST_PAGE { a rel="next" href={ "/?page=" (number + 1) (filter) } { "Older →" } }
        }
    };
    Ok(shown("Conversations", Place::Conversations, "", &content))
}

fn entry(session: &Session, last: Option<&Message>) -> Markup {
    html! {
        li {
            a href={ "/sessions/" (session.id) "#live-state" } {
                span.title dir="auto" { (title(session)) }
                @if let Some(last) = last {
                    span.preview dir="auto" { (speaker(last.role)) ": " (beginning(&last.text, 140)) }
                }
            }
            span.facts {
                (when(session.last_active_at))
                span { (count(session.messages, "message")) }
                span.tag { (session.source) }
                @if session.pinned { span.tag { "pinned" } }
                @if session.archived { span.tag { "archived" } }
                @if session.hidden { span.tag { "hidden" } }
                @if session.ended_at.is_some() { span.tag { "ended" } }
            }
        }
    }
}

/// `GET /jobs`.
pub(crate) async fn jobs(State(app): State<Arc<App>>) -> Result<Response, Shown> {
    let jobs = app.store(|s| s.jobs()).await?;
    let content = html! {
        h1 { "Jobs" }
        @if jobs.is_empty() {
            p.empty { "No job yet. The scheduler makes its own when it starts for the first time." }
        } @else {
            div.scroll tabindex="0" role="region" aria-label="Jobs" {
                table {
                    thead { tr { th scope="col" { "Name" } th scope="col" { "What" } th scope="col" { "Schedule" }
                        th scope="col" { "Next due" } } }
                    tbody {
                        @for job in &jobs {
                            tr {
                                th scope="row" { (job.name) }
                                td { @match &job.kind { JobKind::Housekeeping { name } => { "housekeeping: " (name) } } }
                                td { "every " (interval(job.every_seconds)) }
                                td { @if job.paused { span.tag { "paused" } } @else { (due(job.next_due_at)) } }
                            }
                        }
                    }
                }
            }
        }
    };
    Ok(shown("Jobs", Place::Jobs, "", &content))
}

fn due(at: statehouse_sessions::Micros) -> Markup {
    html! { time datetime=(statehouse_sessions::document::time(at)) { (crate::words::date(at)) } }
}
