//! The writing side of an import: rows that come with ids, times and counters of their own.

use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use statehouse_sqlite::Failure;

use super::SqliteStore;
use crate::error::Result;
use crate::types::*;

/// A long text that is stored once by its hash.
pub(crate) struct Prompt {
    pub(crate) hash: blake3::Hash,
    pub(crate) text: String,
}

impl Prompt {
    pub(crate) fn new(text: String) -> Prompt {
        Prompt { hash: blake3::hash(text.as_bytes()), text }
    }
}

/// A session as an import found it.
pub(crate) struct ImportedSession {
    pub(crate) id: SessionId,
    pub(crate) parent_id: Option<SessionId>,
    pub(crate) origin: Origin,
    pub(crate) title: Option<String>,
    pub(crate) source: String,
    pub(crate) prompt: Option<Prompt>,
    /// A second long text that `extra` refers to.
    pub(crate) tools: Option<Prompt>,
    pub(crate) started_at: Micros,
    pub(crate) ended_at: Option<Micros>,
    pub(crate) end_reason: Option<String>,
    pub(crate) archived: bool,
    pub(crate) hidden: bool,
    pub(crate) pinned: bool,
    pub(crate) extra: String,
    pub(crate) usage: Vec<ImportedUsage>,
}

/// What the model calls of a session cost.
pub(crate) struct ImportedUsage {
    pub(crate) provider: String,
    pub(crate) endpoint: String,
    pub(crate) mode: String,
    pub(crate) model: String,
    pub(crate) task: String,
    pub(crate) calls: i64,
    pub(crate) input_tokens: i64,
    pub(crate) output_tokens: i64,
    pub(crate) cache_read_tokens: i64,
    pub(crate) cache_write_tokens: i64,
    pub(crate) reasoning_tokens: i64,
    pub(crate) extra: Option<String>,
}

/// A message as an import found it.
pub(crate) struct ImportedMessage {
    pub(crate) message: NewMessage,
    pub(crate) extra: String,
}

impl ImportedMessage {
    /// About how many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        let json = |j: &Option<Box<serde_json::value::RawValue>>| j.as_ref().map_or(0, |j| j.get().len());
        self.message.text.len() + json(&self.message.parts) + json(&self.message.tool_calls) + self.extra.len()
    }
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Taken {
    pub(crate) new: u64,
    pub(crate) present: u64,
    pub(crate) skipped: u64,
}

impl SqliteStore {
    pub(crate) fn write_imported_sessions(&self, batch: Vec<ImportedSession>, dry_run: bool) -> Result<Taken> {
        if batch.is_empty() {
            return Ok(Taken::default());
        }
        if dry_run {
            return self.read(|c| count(c, "session", batch.iter().map(|s| s.id)));
        }
        self.write(move |c| {
            let now = Micros::now();
            let mut taken = Taken::default();
            for session in &batch {
                if put_session(c, session, now)? {
                    taken.new += 1;
                } else {
                    refresh(c, session, now)?;
                    taken.present += 1;
                }
            }
            Ok(taken)
        })
    }

    pub(crate) fn write_imported_messages(&self, batch: Vec<ImportedMessage>, dry_run: bool) -> Result<Taken> {
        if batch.is_empty() {
            return Ok(Taken::default());
        }
        let known = self.read(|c| count(c, "message", batch.iter().map(|m| m.message.id)))?;
        if dry_run || known.new == 0 {
            return Ok(known);
        }
        self.write(move |c| {
            let mut taken = Taken::default();
            for message in &batch {
                match put_message(c, message) {
                    Ok(true) => taken.new += 1,
                    Ok(false) => taken.present += 1,
                    Err(e) if e.sqlite_error_code() == Some(ErrorCode::TooBig) => taken.skipped += 1,
                    Err(e) => return Err(e.into()),
                }
            }
            Ok(taken)
        })
    }
}

/// How many of the ids are new to `table`, and how many are not.
fn count<I: rusqlite::ToSql>(c: &Connection, table: &str, ids: impl Iterator<Item = I>) -> rusqlite::Result<Taken> {
    let mut known = c.prepare_cached(&format!("SELECT EXISTS (SELECT 1 FROM {table} WHERE id = ?1)"))?;
    let mut taken = Taken::default();
    for id in ids {
        match known.query_row([id], |r| r.get(0))? {
            true => taken.present += 1,
            false => taken.new += 1,
        }
    }
    Ok(taken)
}

fn put_prompt(c: &Connection, prompt: &Prompt) -> rusqlite::Result<()> {
    c.prepare_cached("INSERT INTO prompt(hash, text) VALUES (?1, ?2) ON CONFLICT(hash) DO NOTHING")?
        .execute(params![prompt.hash.as_bytes(), prompt.text])
        .map(drop)
}

/// True if the session was not there.
fn put_session(c: &Connection, s: &ImportedSession, now: Micros) -> Result<bool, Failure> {
    for prompt in s.prompt.iter().chain(&s.tools) {
        put_prompt(c, prompt)?;
    }
    let new = c
        .prepare_cached(
            "INSERT INTO session(id, parent_id, origin_system, origin_id, title, source, prompt_hash, started_at,
                                 last_active_at, ended_at, end_reason, archived, hidden, pinned, updated_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8, ?9, ?10, ?11, ?12, ?13, ?14) ON CONFLICT(id) DO NOTHING",
        )?
        .execute(params![
            s.id,
            s.parent_id,
            s.origin.system,
            s.origin.id,
            s.title,
            s.source,
            s.prompt.as_ref().map(|p| p.hash.as_bytes()),
            s.started_at,
            s.ended_at,
            s.end_reason,
            s.archived,
            s.hidden,
            s.pinned,
            now
        ])?;
    if new == 0 {
        return Ok(false);
    }
    c.prepare_cached("INSERT INTO session_extra(session_id, extra, imported_at) VALUES (?1, ?2, ?3)")?
        .execute(params![s.id, s.extra, now])?;
    put_usage(c, s, now)?;
    Ok(true)
}

fn put_usage(c: &Connection, s: &ImportedSession, now: Micros) -> Result<(), Failure> {
    let mut put = c.prepare_cached(
        "INSERT INTO usage(session_id, provider, endpoint, mode, model, task, calls, input_tokens, output_tokens,
                           cache_read_tokens, cache_write_tokens, reasoning_tokens, extra, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
         ON CONFLICT(session_id, provider, endpoint, mode, model, task) DO UPDATE SET
           calls = excluded.calls, input_tokens = excluded.input_tokens, output_tokens = excluded.output_tokens,
           cache_read_tokens = excluded.cache_read_tokens, cache_write_tokens = excluded.cache_write_tokens,
           reasoning_tokens = excluded.reasoning_tokens, extra = excluded.extra, updated_at = excluded.updated_at
         WHERE (calls, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, extra)
           IS NOT (excluded.calls, excluded.input_tokens, excluded.output_tokens, excluded.cache_read_tokens,
                   excluded.cache_write_tokens, excluded.reasoning_tokens, excluded.extra)",
    )?;
    for u in &s.usage {
        put.execute(params![
            s.id,
            u.provider,
            u.endpoint,
            u.mode,
            u.model,
            u.task,
            u.calls,
            u.input_tokens,
            u.output_tokens,
            u.cache_read_tokens,
            u.cache_write_tokens,
            u.reasoning_tokens,
            u.extra,
            now
        ])?;
    }
    Ok(())
}

/// Brings a session up to date that was imported before and that nobody has changed here since.
fn refresh(c: &Connection, s: &ImportedSession, now: Micros) -> Result<(), Failure> {
    let untouched: Option<String> = c
        .prepare_cached(
            "SELECT e.extra FROM session s JOIN session_extra e ON e.session_id = s.id
             WHERE s.id = ?1 AND s.updated_at = e.imported_at",
        )?
        .query_row([s.id], |r| r.get(0))
        .optional()?;
    let Some(extra) = untouched else { return Ok(()) };
    let changed = c
        .prepare_cached(
            "UPDATE session SET parent_id = ?2, title = ?3, source = ?4, prompt_hash = ?5, ended_at = ?6,
                                end_reason = ?7, archived = ?8, hidden = ?9, pinned = ?10, updated_at = ?11
             WHERE id = ?1
               AND (?12 OR (parent_id, title, source, prompt_hash, ended_at, end_reason, archived, hidden, pinned)
                      IS NOT (?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10))",
        )?
        .execute(params![
            s.id,
            s.parent_id,
            s.title,
            s.source,
            s.prompt.as_ref().map(|p| p.hash.as_bytes()),
            s.ended_at,
            s.end_reason,
            s.archived,
            s.hidden,
            s.pinned,
            now,
            extra != s.extra,
        ])?;
    if changed > 0 {
        c.prepare_cached("UPDATE session_extra SET extra = ?2, imported_at = ?3 WHERE session_id = ?1")?
            .execute(params![s.id, s.extra, now])?;
    }
    put_usage(c, s, now)
}

/// True if the message was not there.
fn put_message(c: &Connection, m: &ImportedMessage) -> rusqlite::Result<bool> {
    let new = &m.message;
    let stored = c
        .prepare_cached(
            "INSERT INTO message(id, session_id, seq, role, created_at, text, parts, tool_calls, tool_call_id,
                                 tool_name, extra)
             VALUES (?1, ?2, (SELECT last_seq + 1 FROM session WHERE id = ?2), ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
             ON CONFLICT(id) DO NOTHING",
        )?
        .execute(params![
            new.id,
            new.session_id,
            new.role,
            new.created_at,
            new.text,
            new.parts.as_ref().map(|j| j.get()),
            new.tool_calls.as_ref().map(|j| j.get()),
            new.tool_call_id,
            new.tool_name,
            m.extra,
        ])?;
    if stored == 0 {
        return Ok(false);
    }
    c.prepare_cached(
        "UPDATE session SET last_seq = last_seq + 1, messages = messages + 1,
                            last_active_at = max(last_active_at, ?2) WHERE id = ?1",
    )?
    .execute(params![new.session_id, new.created_at])?;
    Ok(true)
}
