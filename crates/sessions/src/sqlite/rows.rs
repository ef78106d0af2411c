//! How our words are stored: ids as 16 bytes, times as integers, roles and states as the words that people read.

use rusqlite::Row;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::types::*;

macro_rules! stored_id {
    ($($name:ident),*) => {$(
        impl ToSql for $name {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                Ok(ToSqlOutput::Borrowed(ValueRef::Blob(self.0.as_bytes())))
            }
        }

        impl FromSql for $name {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                let bytes = value.as_blob()?;
                Uuid::from_slice(bytes).map($name).map_err(FromSqlError::other)
            }
        }
    )*};
}

stored_id!(SessionId, MessageId, TurnId, JobId);

impl ToSql for Micros {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.0.into())
    }
}

impl FromSql for Micros {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_i64().map(Micros)
    }
}

impl ToSql for Role {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.as_str().into())
    }
}

impl FromSql for Role {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value.as_str()? {
            "user" => Ok(Role::User),
            "assistant" => Ok(Role::Assistant),
            "system" => Ok(Role::System),
            "tool" => Ok(Role::Tool),
            _ => Err(FromSqlError::InvalidType),
        }
    }
}

impl ToSql for TurnState {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            TurnState::Queued => "queued",
            TurnState::Running => "running",
            TurnState::Done => "done",
            TurnState::Failed => "failed",
        }
        .into())
    }
}

impl FromSql for TurnState {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value.as_str()? {
            "queued" => Ok(TurnState::Queued),
            "running" => Ok(TurnState::Running),
            "done" => Ok(TurnState::Done),
            "failed" => Ok(TurnState::Failed),
            _ => Err(FromSqlError::InvalidType),
        }
    }
}

/// JSON that is kept as the text that arrived.
pub(super) struct Json(pub(super) Box<RawValue>);

impl FromSql for Json {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        RawValue::from_string(value.as_str()?.to_owned()).map(Json).map_err(FromSqlError::other)
    }
}

/// SQLite's integers are signed; what counts things is never below zero.
pub(super) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    row.get::<_, i64>(column).map(|n| u64::try_from(n).unwrap_or(0))
}

fn json(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Box<RawValue>>> {
    row.get::<_, Option<Json>>(column).map(|j| j.map(|j| j.0))
}

/// The columns that [`session`] reads, in its order.
pub(super) const SESSION: &str = "id, parent_id, origin_system, origin_id, title, source, started_at, last_active_at, \
     ended_at, end_reason, messages, archived, hidden, pinned";

pub(super) fn session(row: &Row<'_>) -> rusqlite::Result<Session> {
    let origin = match (row.get(2)?, row.get(3)?) {
        (Some(system), Some(id)) => Some(Origin { system, id }),
        _ => None,
    };
    Ok(Session {
        id: row.get(0)?,
        parent_id: row.get(1)?,
        origin,
        title: row.get(4)?,
        source: row.get(5)?,
        started_at: row.get(6)?,
        last_active_at: row.get(7)?,
        ended_at: row.get(8)?,
        end_reason: row.get(9)?,
        messages: unsigned(row, 10)?,
        archived: row.get(11)?,
        hidden: row.get(12)?,
        pinned: row.get(13)?,
    })
}

/// The columns that [`message`] reads, in its order.
pub(super) const MESSAGE: &str =
    "id, session_id, seq, role, created_at, text, parts, tool_calls, tool_call_id, tool_name, extra";

pub(super) fn message(row: &Row<'_>) -> rusqlite::Result<Message> {
    Ok(Message {
        id: row.get(0)?,
        session_id: row.get(1)?,
        seq: row.get(2)?,
        role: row.get(3)?,
        created_at: row.get(4)?,
        text: row.get(5)?,
        parts: json(row, 6)?,
        tool_calls: json(row, 7)?,
        tool_call_id: row.get(8)?,
        tool_name: row.get(9)?,
        extra: json(row, 10)?,
    })
}

/// The columns that [`turn`] reads, in its order; the table is called `t` in every query.
pub(super) const TURN: &str = "t.id, t.session_id, t.message_id, t.channel, t.state, t.reply_id, t.error, t.attempts";

pub(super) fn turn(row: &Row<'_>) -> rusqlite::Result<Turn> {
    Ok(Turn {
        id: row.get(0)?,
        session_id: row.get(1)?,
        message_id: row.get(2)?,
        channel: row.get(3)?,
        state: row.get(4)?,
        reply_id: row.get(5)?,
        error: row.get(6)?,
        attempts: row.get(7)?,
    })
}

/// The columns that [`job`] reads, in its order.
pub(super) const JOB: &str = "id, name, kind, every_seconds, next_due_at, paused";

pub(super) fn job(row: &Row<'_>) -> rusqlite::Result<Job> {
    let kind = row.get_ref(2)?.as_str()?;
    let kind = serde_json::from_str(kind)
        .map_err(|e| rusqlite::Error::FromSqlConversionFailure(2, rusqlite::types::Type::Text, Box::new(e)))?;
    Ok(Job {
        id: row.get(0)?,
        name: row.get(1)?,
        kind,
        every_seconds: unsigned(row, 3)?,
        next_due_at: row.get(4)?,
        paused: row.get(5)?,
    })
}
