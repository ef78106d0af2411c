//! New messages of a conversation, as they are stored by whatever process.
//!
//! The store says with one number whether anything was committed. That number is read four times a second while
//! somebody watches, by one task for all watchers, and not at all while nobody does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use axum::response::sse::Event;
use serde::{Deserialize, Serialize};
use statehouse_http::Problem;
use statehouse_sessions::document::MessageDocument;
use statehouse_sessions::{Message, MessageId, Page, SessionId};
use tokio::sync::{Notify, watch};
use tokio::time::sleep;

use crate::api::{bad_query, path, session_of};
use crate::app::App;
use crate::pages;

/// How often the store is asked while somebody watches.
const LOOK: Duration = Duration::from_millis(250);
/// How many messages are read at once.
const BATCH: u64 = 50;

/// The last number that the store said, for those who watch.
pub(crate) struct Changes {
    counter: watch::Sender<i64>,
    somebody: Notify,
}

impl Default for Changes {
    fn default() -> Changes {
        Changes { counter: watch::Sender::new(0), somebody: Notify::new() }
    }
}

impl Changes {
    fn subscribe(&self) -> watch::Receiver<i64> {
        let receiver = self.counter.subscribe();
        self.somebody.notify_one();
        receiver
    }
}

/// Asks the store while somebody watches. Never returns.
pub(crate) async fn watch(app: Arc<App>) {
    let mut told = false;
    loop {
        while app.changes.counter.receiver_count() == 0 {
            app.changes.somebody.notified().await;
        }
        match app.store(|s| s.change_counter()).await {
            Ok(counter) => {
                told = false;
                app.changes.counter.send_if_modified(|last| std::mem::replace(last, counter) != counter);
            }
            Err(e) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(code = e.code, "could not ask the store for changes; asking on");
                }
                sleep(LOOK * 8).await;
            }
        }
        sleep(LOOK).await;
    }
}

#[derive(Deserialize)]
struct EventsQuery {
    after: Option<MessageId>,
}

#[derive(Serialize)]
struct LiveMessage<'a> {
    #[serde(flatten)]
    message: MessageDocument<'a>,
    /// The message as the page shows it.
    html: String,
}

struct Watcher {
    app: Arc<App>,
    session: SessionId,
    after: Option<MessageId>,
    read: VecDeque<Message>,
    changes: watch::Receiver<i64>,
}

/// `GET /api/sessions/{id}/events`: a `message` event for each message after `?after=`, after the `Last-Event-ID` of a
/// client that comes back, or else from now on.
pub(crate) async fn events(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
    uri: Uri,
) -> Result<Response, Problem> {
    let Query(query) = Query::<EventsQuery>::try_from_uri(&uri).map_err(bad_query)?;
    let session = session_of(&app, path(id)?).await?.id;
    let last_seen = headers.get("last-event-id").and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    // First the subscription, then the look: what is stored in between is seen in one of the two.
    let changes = app.changes.subscribe();
    let after = match last_seen.or(query.after) {
        Some(after) => Some(after),
        None => {
            let newest = Page { limit: Some(1), ..Page::default() };
            app.store(move |s| s.messages(session, &newest)).await?.first().map(|m| m.id)
        }
    };
    let watcher = Watcher { app, session, after, read: VecDeque::new(), changes };
    Ok(statehouse_http::events(watcher, |mut watcher| async {
        let event = watcher.next().await?;
        Some((event, watcher))
    }))
}

impl Watcher {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(message) = self.read.pop_front() {
                self.after = Some(message.id);
                let html = pages::message(&message).into_string();
                let document = LiveMessage { message: MessageDocument::from(&message), html };
                let data = serde_json::to_string(&document).ok()?;
                return Some(Event::default().event("message").id(message.id.to_string()).data(data));
            }
            self.changes.borrow_and_update();
            let (session, page) = (self.session, Page { after: self.after, limit: Some(BATCH), before: None });
            let read = tokio::select! {
                () = self.app.closing.begun() => return None,
                read = self.app.store(move |s| s.messages(session, &page)) => read,
            };
            match read {
                Ok(messages) if !messages.is_empty() => {
                    self.read = messages.into();
                    continue;
                }
                Ok(_) => {}
                // The message that the client saw last, or the conversation, is gone: there is nothing to go on from.
                Err(e) if e.status.is_client_error() => return None,
                Err(_) => {
                    sleep(LOOK * 4).await;
                    continue;
                }
            }
            tokio::select! {
                () = self.app.closing.begun() => return None,
                changed = self.changes.changed() => changed.ok()?,
            }
        }
    }
}
