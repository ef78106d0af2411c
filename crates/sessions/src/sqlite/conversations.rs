//! Sessions and messages: what is said, in order.

use rusqlite::{Connection, OptionalExtension, params};
use statehouse_sqlite::Failure;

use super::rows;
use crate::error::Error;
use crate::types::*;

/// SQLite cuts text at NUL in places, and so do programs that read it: it is refused at the door.
pub(super) fn no_nul(what: &str, text: &str) -> Result<(), Error> {
    match text.find('\0') {
        Some(at) => Err(Error::Invalid(format!("{what} has a NUL character at byte {at}"))),
        None => Ok(()),
    }
}

pub(super) fn not_found(what: &'static str, id: impl ToString) -> Error {
    Error::NotFound { what, id: id.to_string() }
}

fn missing(what: &'static str, id: impl ToString) -> Failure {
    Failure::abort(not_found(what, id))
}

pub(super) fn create(c: &Connection, new: &NewSession, now: Micros) -> Result<Session, Failure> {
    c.prepare_cached(
        "INSERT INTO session(id, parent_id, title, source, started_at, last_active_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?5) ON CONFLICT(id) DO NOTHING",
    )?
    .execute(params![new.id, new.parent_id, new.title, new.source, now])?;
    get(c, new.id)?.ok_or_else(|| missing("session", new.id))
}

pub(super) fn get(c: &Connection, id: SessionId) -> rusqlite::Result<Option<Session>> {
    c.prepare_cached(&format!("SELECT {} FROM session WHERE id = ?1", rows::SESSION))?
        .query_row([id], rows::session)
        .optional()
}

/// By our id, or by the id in the program that it was imported from; the newest, should two programs have used one id.
pub(super) fn find(c: &Connection, id: &str) -> rusqlite::Result<Option<Session>> {
    if let Ok(ours) = id.parse::<SessionId>()
        && let Some(session) = get(c, ours)?
    {
        return Ok(Some(session));
    }
    let columns = rows::SESSION;
    c.prepare_cached(&format!("SELECT {columns} FROM session WHERE origin_id = ?1 ORDER BY started_at DESC LIMIT 1"))?
        .query_row([id], rows::session)
        .optional()
}

pub(super) fn list(c: &Connection, options: &ListOptions) -> rusqlite::Result<Vec<Session>> {
    let sql = format!(
        "SELECT {} FROM session
         WHERE (?1 OR (archived = 0 AND hidden = 0)) AND (?2 IS NULL OR source = ?2)
         ORDER BY pinned DESC, last_active_at DESC, id DESC LIMIT ?3",
        rows::SESSION
    );
    c.prepare_cached(&sql)?
        .query_map(params![options.all, options.source, limit(options.limit)], rows::session)?
        .collect()
}

/// A negative limit is none to SQLite.
fn limit(limit: Option<u64>) -> i64 {
    limit.map_or(-1, |l| i64::try_from(l).unwrap_or(i64::MAX))
}

/// Stores a message at the end of its session. An id that is there already changes nothing.
pub(super) fn append(c: &Connection, new: &NewMessage) -> Result<Message, Failure> {
    let last: Option<i64> = c
        .prepare_cached("SELECT last_seq FROM session WHERE id = ?1")?
        .query_row([new.session_id], |r| r.get(0))
        .optional()?;
    let Some(last) = last else {
        return Err(missing("session", new.session_id));
    };
    let seq = last + 1;
    let stored = c
        .prepare_cached(
            "INSERT INTO message(id, session_id, seq, role, created_at, text, parts, tool_calls, tool_call_id, tool_name)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10) ON CONFLICT(id) DO NOTHING",
        )?
        .execute(params![
            new.id,
            new.session_id,
            seq,
            new.role,
            new.created_at,
            new.text,
            new.parts.as_ref().map(|j| j.get()),
            new.tool_calls.as_ref().map(|j| j.get()),
            new.tool_call_id,
            new.tool_name,
        ])?;
    if stored == 0 {
        return message(c, new.id)?.ok_or_else(|| missing("message", new.id));
    }
    c.prepare_cached(
        "UPDATE session SET last_seq = ?2, messages = messages + 1, last_active_at = max(last_active_at, ?3) WHERE id = ?1",
    )?
    .execute(params![new.session_id, seq, new.created_at])?;
    Ok(Message {
        id: new.id,
        session_id: new.session_id,
        seq,
        role: new.role,
        text: new.text.clone(),
        parts: new.parts.clone(),
        tool_calls: new.tool_calls.clone(),
        tool_call_id: new.tool_call_id.clone(),
        tool_name: new.tool_name.clone(),
        created_at: new.created_at,
        extra: None,
    })
}

pub(super) fn check(new: &NewMessage) -> Result<(), Error> {
    no_nul("the text", &new.text)?;
    no_nul("the id of the tool call", new.tool_call_id.as_deref().unwrap_or_default())?;
    no_nul("the name of the tool", new.tool_name.as_deref().unwrap_or_default())
}

pub(super) fn message(c: &Connection, id: MessageId) -> rusqlite::Result<Option<Message>> {
    c.prepare_cached(&format!("SELECT {} FROM message WHERE id = ?1", rows::MESSAGE))?
        .query_row([id], rows::message)
        .optional()
}

/// `Err` inside names the message of the page that is not in the session.
pub(super) fn messages(c: &Connection, id: SessionId, page: &Page) -> rusqlite::Result<Result<Vec<Message>, Error>> {
    if c.prepare_cached("SELECT 1 FROM session WHERE id = ?1")?.query_row([id], |_| Ok(())).optional()?.is_none() {
        return Ok(Err(not_found("session", id)));
    }
    let mut bounds = (i64::MIN, i64::MAX);
    for (edge, bound) in [(page.after, &mut bounds.0), (page.before, &mut bounds.1)] {
        let Some(edge) = edge else { continue };
        let seq = c
            .prepare_cached("SELECT seq FROM message WHERE id = ?1 AND session_id = ?2")?
            .query_row(params![edge, id], |r| r.get(0))
            .optional()?;
        match seq {
            Some(seq) => *bound = seq,
            None => return Ok(Err(not_found("message", edge))),
        }
    }
    let last_ones = page.limit.is_some() && page.after.is_none();
    let sql = format!(
        "SELECT {} FROM message WHERE session_id = ?1 AND seq > ?2 AND seq < ?3 ORDER BY seq {} LIMIT ?4",
        rows::MESSAGE,
        if last_ones { "DESC" } else { "ASC" }
    );
    let mut found = c
        .prepare_cached(&sql)?
        .query_map(params![id, bounds.0, bounds.1, limit(page.limit)], rows::message)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    if last_ones {
        found.reverse();
    }
    Ok(Ok(found))
}

pub(super) fn rename(c: &Connection, id: SessionId, title: Option<&str>, now: Micros) -> Result<Session, Failure> {
    c.prepare_cached("UPDATE session SET title = ?2, updated_at = ?3 WHERE id = ?1 AND title IS NOT ?2")?
        .execute(params![id, title, now])?;
    get(c, id)?.ok_or_else(|| missing("session", id))
}

pub(super) fn end(c: &Connection, id: SessionId, reason: &str, now: Micros) -> Result<Session, Failure> {
    c.prepare_cached(
        "UPDATE session SET ended_at = ?3, end_reason = ?2, updated_at = ?3 WHERE id = ?1 AND ended_at IS NULL",
    )?
    .execute(params![id, reason, now])?;
    get(c, id)?.ok_or_else(|| missing("session", id))
}

/// The instructions that a session was held under, if they are known.
pub(super) fn prompt(c: &Connection, id: SessionId) -> rusqlite::Result<Option<String>> {
    c.prepare_cached("SELECT p.text FROM session s JOIN prompt p ON p.hash = s.prompt_hash WHERE s.id = ?1")?
        .query_row([id], |r| r.get(0))
        .optional()
}

/// What an import kept of a session beyond our columns, as JSON.
pub(super) fn extra(c: &Connection, id: SessionId) -> rusqlite::Result<Option<String>> {
    c.prepare_cached("SELECT extra FROM session_extra WHERE session_id = ?1")?.query_row([id], |r| r.get(0)).optional()
}
