//! One conversation, a page at a time, the newest page live.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::Uri;
use axum::response::Response;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::value::RawValue;
use statehouse_http::{Code, Problem};
use statehouse_sessions::{Message, MessageId, Page, Role, Session};

use super::layout::Place;
use super::{Shown, shown};
use crate::api::{path, query, session_of};
use crate::app::App;
use crate::words::{count, date, speaker, title, when};

/// Messages on one page.
const PER_PAGE: u64 = 100;
/// The most of one text that a page shows, in characters.
const TEXT_SHOWN: usize = 50_000;

#[derive(Deserialize)]
struct ConversationQuery {
    before: Option<MessageId>,
    after: Option<MessageId>,
    /// The message to show in the middle.
    at: Option<MessageId>,
}

struct Part {
    messages: Vec<Message>,
    earlier: bool,
    later: bool,
}

/// `GET /sessions/{id}`.
pub(crate) async fn conversation(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    uri: Uri,
) -> Result<Response, Shown> {
    let q: ConversationQuery = query(&uri)?;
    let session = session_of(&app, path(id)?).await?;
    let part = part(&app, &session, &q).await?;
    let parent = match session.parent_id {
        // A parent that is not here any more is no reason not to show the child.
        Some(parent) => app.store(move |s| s.session(parent)).await.ok(),
        None => None,
    };
    Ok(shown(&title(&session), Place::Conversations, "", &content(&session, parent.as_ref(), &part, q.at)))
}

/// The messages that were asked for, with the knowledge whether there are more on either side.
async fn part(app: &App, session: &Session, q: &ConversationQuery) -> Result<Part, Shown> {
    let id = session.id;
    let read = |page: Page| async move { app.store(move |s| s.messages(id, &page)).await };
    let one_more = |n: u64| Some(n + 1);
    let (mut messages, mut earlier, mut later) = (Vec::new(), false, false);
    if let Some(at) = q.at {
        let half = PER_PAGE / 2;
        let wanted = app.store(move |s| s.message(at)).await?;
        if wanted.session_id != id {
            return Err(Problem::new(Code::NotFound, "this message is in another conversation").into());
        }
        messages = read(Page { before: Some(at), after: None, limit: one_more(half) }).await?;
        earlier = messages.len() as u64 > half;
        messages.drain(..usize::from(earlier));
        messages.push(wanted);
        let after = read(Page { before: None, after: Some(at), limit: one_more(half) }).await?;
        later = after.len() as u64 > half;
        messages.extend(after.into_iter().take(half as usize));
    } else if let Some(after) = q.after {
        messages = read(Page { before: None, after: Some(after), limit: one_more(PER_PAGE) }).await?;
        earlier = true;
        later = messages.len() as u64 > PER_PAGE;
        messages.truncate(PER_PAGE as usize);
    } else {
        messages.extend(read(Page { before: q.before, after: None, limit: one_more(PER_PAGE) }).await?);
        earlier |= messages.len() as u64 > PER_PAGE;
        messages.drain(..usize::from(earlier));
        later |= q.before.is_some();
    }
    Ok(Part { messages, earlier, later })
}

fn content(session: &Session, parent: Option<&Session>, part: &Part, at: Option<MessageId>) -> Markup {
    let here = format!("/sessions/{}", session.id);
    let first = part.messages.first().map(|m| m.id);
    let last = part.messages.last().map(|m| m.id);
    let follow =
        format!("/api/sessions/{}/events{}", session.id, last.map(|m| format!("?after={m}")).unwrap_or_default());
    html! {
        h1 dir="auto" { (title(session)) }
        p.facts {
            span { "Begun " (when(session.started_at)) }
            span { (count(session.messages, "message")) }
            span.tag { (session.source) }
            @if let Some(origin) = &session.origin { span.tag { "from " (origin.system) ": " (origin.id) } }
            @if session.archived { span.tag { "archived" } }
            @if let Some(ended) = session.ended_at {
                span { "Ended " (when(ended)) @if let Some(why) = &session.end_reason { ": " (why) } }
            }
            @if let Some(parent) = parent {
                span { "Continues " a href={ "/sessions/" (parent.id) } dir="auto" { (title(parent)) } }
            }
        }
        @if part.earlier {
            @if let Some(first) = first {
                nav.pages aria-label="Earlier messages" { a rel="prev" href={ (here) "?before=" (first) } { "↑ Earlier messages" } }
            }
        }
        @if part.messages.is_empty() { p.empty #no-messages { "No message here yet." } }
        div.messages #messages aria-live=[(!part.later).then_some("polite")] data-follow=[(!part.later).then_some(follow)] {
            @for one in &part.messages { (message_at(one, at == Some(one.id))) }
        }
        @if part.later {
            nav.pages aria-label="Later messages" {
                @if let Some(last) = last { a rel="next" href={ (here) "?after=" (last) } { "↓ Later messages" } }
                a href=(here) { "The newest" }
            }
        } @else {
            p.quiet #live-state role="status" { "Load the page again to see new messages." }
        }
    }
}

/// One message, as the page and the stream of new ones show it.
pub(crate) fn message(message: &Message) -> Markup {
    message_at(message, false)
}

fn message_at(message: &Message, wanted: bool) -> Markup {
    let role = message.role;
    let who = match (&message.tool_name, role) {
        (Some(name), Role::Tool) => format!("Tool: {name}"),
        _ => speaker(role).to_owned(),
    };
    html! {
        article.message.(role.as_str()).wanted[wanted] id={ "m-" (message.id) } aria-label=(who) {
            header {
                span.who { (who) }
                a.quiet href={ "#m-" (message.id) } title=(date(message.created_at)) { (when(message.created_at)) }
            }
            @if role == Role::Tool || role == Role::System {
                @if !message.text.is_empty() {
                    details { summary { (count(message.text.chars().count() as u64, "character")) } (text(message)) }
                }
            } @else if !message.text.is_empty() { (text(message)) }
            @if let Some(calls) = &message.tool_calls { (json("Tool calls", calls)) }
            @if let Some(parts) = &message.parts { (json("Structured content", parts)) }
        }
    }
}

fn text(message: &Message) -> Markup {
    let all = message.text.as_str();
    match all.char_indices().nth(TEXT_SHOWN) {
        None => html! { div.text dir="auto" { (all) } },
        Some((cut, _)) => html! {
            div.text dir="auto" { (all.get(..cut).unwrap_or(all)) "…" }
            p.quiet { (count(all.chars().count() as u64, "character")) " in all; the whole text is in "
                code { "statehouse sessions show " (message.session_id) } "." }
        },
    }
}

/// JSON as it is stored, with line breaks if it can be read.
fn json(name: &str, raw: &RawValue) -> Markup {
    let pretty = serde_json::from_str::<serde_json::Value>(raw.get())
        .and_then(|value| serde_json::to_string_pretty(&value))
        .unwrap_or_else(|_| raw.get().to_owned());
    let cut = pretty.char_indices().nth(TEXT_SHOWN).map_or(pretty.len(), |(at, _)| at);
    html! {
        details { summary { (name) } pre tabindex="0" { (pretty.get(..cut).unwrap_or(&pretty)) @if cut < pretty.len() { "…" } } }
    }
}
