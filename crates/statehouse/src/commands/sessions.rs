//! `statehouse sessions ...`: conversations as documents for programs and as text for people.

use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use statehouse_sessions::document::{ConversationDocument, HitDocument, SessionDocument};
use statehouse_sessions::{Hit, ListOptions, Message, MessageId, Micros, Page, Session, Store};

use super::{Context, import};
use crate::args::{Sessions, Sort};
use crate::exit;
use crate::failure::{Failure, Result, code};
use crate::store::{self, Opening};
use crate::text::{escape_block, escape_line, shorten, table};

const ROLE: &str = "sessions";
/// A search by rank sorts at most so many finds, the newest ones.
const RANKED: u64 = 10_000;

pub(crate) fn run(context: &Context, command: Sessions) -> Result {
    if let Sessions::Import { from } = &command {
        return import::run(context, from);
    }
    let opening = Opening { role: ROLE, create: false, patience: context.patience };
    let store = store::open(&context.home.store(), &opening)?;
    let done = answer(context, &store, command);
    store.close();
    done.map(|()| exit::OK)
}

fn answer(context: &Context, store: &Arc<dyn Store>, command: Sessions) -> Result<()> {
    match command {
        Sessions::List { all, limit, source } => {
            let sessions = store.sessions(&ListOptions { all, limit, source })?;
            let documents: Vec<_> = sessions.iter().map(SessionDocument::from).collect();
            context.output.answer(&documents, |_| list(&sessions));
        }
        Sessions::Show { id, limit, before, after } => {
            let session = store.find_session(&id)?;
            let page = Page { before: message_id(before)?, after: message_id(after)?, limit };
            let messages = store.messages(session.id, &page)?;
            let terminal = context.output.terminal();
            context.output.answer(&ConversationDocument::new(&session, &messages), |_| {
                conversation(&session, &messages, terminal)
            });
        }
        Sessions::Search { query, limit, sort, source } => {
            let hits = search(&**store, &query.join(" "), limit, sort, source.as_deref())?;
            let documents: Vec<_> = hits.iter().map(HitDocument::from).collect();
            context.output.answer(&documents, |_| finds(&hits));
        }
        Sessions::Rename { id, title } => {
            let session = store.rename(store.find_session(&id)?.id, title)?;
            one(context, &session);
        }
        Sessions::End { id, reason } => {
            let session = store.end(store.find_session(&id)?.id, reason)?;
            one(context, &session);
        }
        Sessions::Import { .. } => {}
    }
    Ok(())
}

fn one(context: &Context, session: &Session) {
    context.output.answer(&SessionDocument::from(session), |_| list(std::slice::from_ref(session)));
}

fn message_id(text: Option<String>) -> Result<Option<MessageId>> {
    text.map(|t| {
        t.parse().map_err(|_| {
            Failure::new(exit::USAGE, code::USAGE, format!("{t:?} is not the id of a message"))
                .hint("Take an id from `statehouse sessions show ID --json`.")
        })
    })
    .transpose()
}

/// All words, in the order that was asked for. The store answers newest first; by source is a choice among those finds,
/// so more are asked for until there are enough or no more.
fn search(store: &dyn Store, query: &str, limit: u64, sort: Sort, source: Option<&str>) -> Result<Vec<Hit>> {
    let wanted = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut pool = if sort == Sort::Rank { limit.max(RANKED) } else { limit };
    loop {
        let mut hits = store.search(query, pool)?;
        let complete = (hits.len() as u64) < pool;
        if let Some(source) = source {
            let mut known = std::collections::HashMap::new();
            let mut kept = Vec::with_capacity(hits.len());
            for hit in hits {
                let fits = match known.get(&hit.session_id) {
                    Some(fits) => *fits,
                    None => {
                        let fits = store.session(hit.session_id)?.source == source;
                        known.insert(hit.session_id, fits);
                        fits
                    }
                };
                if fits {
                    kept.push(hit);
                }
            }
            hits = kept;
        }
        if complete || hits.len() >= wanted || pool >= u64::from(u32::MAX) {
            if sort == Sort::Rank {
                // The sort is stable, so finds of one score stay newest first.
                hits.sort_by(|a, b| b.score.total_cmp(&a.score));
            }
            hits.truncate(wanted);
            return Ok(hits);
        }
        pool = pool.saturating_mul(4);
    }
}

/// A time as a person reads it, in their own time zone.
fn local(at: Micros) -> String {
    Timestamp::from_microsecond(at.0)
        .map(|t| t.to_zoned_datetime(TimeZone::system()).strftime("%Y-%m-%d %H:%M").to_string())
        .unwrap_or_else(|_| "?".to_owned())
}

fn list(sessions: &[Session]) -> String {
    if sessions.is_empty() {
        return "No conversations yet.".to_owned();
    }
    let rows: Vec<Vec<String>> = sessions
        .iter()
        .map(|s| {
            vec![
                s.id.to_string(),
                local(s.last_active_at),
                s.messages.to_string(),
                shorten(&escape_line(&s.source), 12),
                shorten(&escape_line(s.title.as_deref().unwrap_or("")), 80),
            ]
        })
        .collect();
    table(&["ID", "LAST ACTIVE", "MESSAGES", "SOURCE", "TITLE"], &rows)
}

fn conversation(session: &Session, messages: &[Message], terminal: bool) -> String {
    let title = session.title.as_deref().unwrap_or("(no title)");
    let mut out = format!(
        "{}\n{}  {}  since {}\n",
        escape_line(title),
        session.id,
        escape_line(&session.source),
        local(session.started_at)
    );
    for m in messages {
        out.push_str(&format!("\n{} {}\n", local(m.created_at), m.role.as_str()));
        if let Some(name) = &m.tool_name {
            out.push_str(&format!("[result of {}]\n", escape_line(name)));
        }
        let text = m.text.trim_end();
        // In a pipe the text is data and stays as it is; on a terminal it must not drive the terminal.
        out.push_str(&if terminal { escape_block(text) } else { text.to_owned() });
        if !text.is_empty() {
            out.push('\n');
        }
        for (name, value) in [("content", &m.parts), ("tool calls", &m.tool_calls)] {
            if let Some(value) = value {
                out.push_str(&format!("[{name}: {}]\n", escape_line(value.get())));
            }
        }
    }
    out
}

fn finds(hits: &[Hit]) -> String {
    if hits.is_empty() {
        return "Nothing found.".to_owned();
    }
    let rows: Vec<Vec<String>> = hits
        .iter()
        .map(|h| {
            // The marks around the found words are for programs.
            let snippet = h.snippet.replace(['\u{2068}', '\u{2069}'], "").replace(['\n', '\t'], " ");
            vec![
                h.session_id.to_string(),
                local(h.created_at),
                h.role.as_str().to_owned(),
                shorten(&escape_line(&snippet), 120),
            ]
        })
        .collect();
    table(&["SESSION", "WHEN", "ROLE", "TEXT"], &rows)
}
