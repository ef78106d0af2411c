//! Turns: what came in is stored with the duty to answer it, and is answered once.
//!
//! The lease of a conversation is a row whose key is the session, so no two processes can hold it. A turn that is
//! running without a live lease belongs to nobody and is taken up again.

use rusqlite::{Connection, OptionalExtension, params};
use statehouse_sqlite::Failure;

use super::conversations::{append, create, message, not_found};
use super::rows;
use crate::error::Error;
use crate::types::*;

/// The ids that a first receipt uses; made before the write, so that a write that runs again makes the same rows.
pub(super) struct NewIds {
    pub(super) session: SessionId,
    pub(super) message: MessageId,
    pub(super) turn: TurnId,
}

pub(super) fn receive(c: &Connection, inbound: &Inbound, ids: &NewIds, now: Micros) -> Result<Received, Failure> {
    let known = |row: &rusqlite::Row<'_>, duplicate| {
        Ok(Received { turn_id: row.get(0)?, session_id: row.get(1)?, message_id: row.get(2)?, duplicate })
    };
    let own = c
        .prepare_cached("SELECT id, session_id, message_id FROM turn WHERE id = ?1")?
        .query_row([ids.turn], |r| known(r, false))
        .optional()?;
    if let Some(received) = own {
        return Ok(received);
    }
    if let Some(client_id) = &inbound.client_id {
        let duplicate = c
            .prepare_cached(
                "SELECT id, session_id, message_id FROM turn WHERE channel = ?1 AND conversation = ?2 AND client_id = ?3",
            )?
            .query_row(params![inbound.channel, inbound.conversation, client_id], |r| known(r, true))
            .optional()?;
        if let Some(received) = duplicate {
            return Ok(received);
        }
    }
    let session_id = route(c, inbound, ids, now)?;
    let stored = append(
        c,
        &NewMessage {
            id: ids.message,
            created_at: now,
            ..NewMessage::text(session_id, Role::User, inbound.text.as_str())
        },
    )?;
    c.prepare_cached(
        "INSERT INTO turn(id, session_id, message_id, channel, conversation, client_id, state, created_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)",
    )?
    .execute(params![
        ids.turn,
        session_id,
        stored.id,
        inbound.channel,
        inbound.conversation,
        inbound.client_id,
        TurnState::Queued,
        now
    ])?;
    Ok(Received { message_id: stored.id, session_id, turn_id: ids.turn, duplicate: false })
}

/// The session that the conversation goes to. A conversation whose session was ended goes on in a new one.
fn route(c: &Connection, inbound: &Inbound, ids: &NewIds, now: Micros) -> Result<SessionId, Failure> {
    let routed: Option<(SessionId, bool)> = c
        .prepare_cached(
            "SELECT r.session_id, s.ended_at IS NOT NULL FROM route r JOIN session s ON s.id = r.session_id
             WHERE r.channel = ?1 AND r.conversation = ?2",
        )?
        .query_row([&inbound.channel, &inbound.conversation], |r| Ok((r.get(0)?, r.get(1)?)))
        .optional()?;
    let parent_id = match routed {
        Some((session, false)) => return Ok(session),
        Some((ended, true)) => Some(ended),
        None => None,
    };
    let new = NewSession { id: ids.session, parent_id, title: None, source: inbound.channel.clone() };
    let session = create(c, &new, now)?;
    c.prepare_cached(
        "INSERT INTO route(channel, conversation, session_id, updated_at) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT(channel, conversation)
         DO UPDATE SET session_id = excluded.session_id, updated_at = excluded.updated_at",
    )?
    .execute(params![inbound.channel, inbound.conversation, session.id, now])?;
    Ok(session.id)
}

pub(super) fn get(c: &Connection, id: TurnId) -> rusqlite::Result<Option<Turn>> {
    c.prepare_cached(&format!("SELECT {} FROM turn t WHERE t.id = ?1", rows::TURN))?
        .query_row([id], rows::turn)
        .optional()
}

fn existing(c: &Connection, id: TurnId) -> Result<Turn, Failure> {
    get(c, id)?.ok_or_else(|| Failure::abort(not_found("turn", id)))
}

/// True if a turn is there to be taken up.
pub(super) fn any_open(c: &Connection, now: Micros) -> rusqlite::Result<bool> {
    c.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM turn t INDEXED BY turn_open LEFT JOIN lease l ON l.session_id = t.session_id
         WHERE t.state IN ('queued', 'running') AND (l.session_id IS NULL OR l.expires_at <= ?1))",
    )?
    .query_row([now], |r| r.get(0))
}

pub(super) fn take(c: &Connection, holder: &Holder, lease: i64, now: Micros) -> Result<Option<Turn>, Failure> {
    let sql = format!(
        "SELECT {} FROM turn t INDEXED BY turn_open LEFT JOIN lease l ON l.session_id = t.session_id
         WHERE t.state IN ('queued', 'running') AND (l.session_id IS NULL OR l.expires_at <= ?1)
         ORDER BY t.n LIMIT 1",
        rows::TURN
    );
    let Some(turn) = c.prepare_cached(&sql)?.query_row([now], rows::turn).optional()? else {
        return Ok(None);
    };
    c.prepare_cached(
        "INSERT INTO lease(session_id, turn_id, holder, acquired_at, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT(session_id) DO UPDATE SET turn_id = excluded.turn_id, holder = excluded.holder,
           acquired_at = excluded.acquired_at, expires_at = excluded.expires_at",
    )?
    .execute(params![turn.session_id, turn.id, holder.0, now, now.0.saturating_add(lease)])?;
    c.prepare_cached("UPDATE turn SET state = 'running', attempts = attempts + 1, updated_at = ?2 WHERE id = ?1")?
        .execute(params![turn.id, now])?;
    Ok(Some(Turn { state: TurnState::Running, attempts: turn.attempts + 1, ..turn }))
}

pub(super) fn has_any(c: &Connection, holder: &Holder) -> rusqlite::Result<bool> {
    c.prepare_cached("SELECT EXISTS (SELECT 1 FROM lease WHERE holder = ?1)")?.query_row([&holder.0], |r| r.get(0))
}

pub(super) fn renew(
    c: &Connection,
    holder: &Holder,
    lease: i64,
    running: &[TurnId],
    now: Micros,
) -> rusqlite::Result<u64> {
    let mut renew = c.prepare_cached("UPDATE lease SET expires_at = ?3 WHERE holder = ?1 AND turn_id = ?2")?;
    for turn in running {
        renew.execute(params![holder.0, turn, now.0.saturating_add(lease)])?;
    }
    let held: Vec<TurnId> = c
        .prepare_cached("SELECT turn_id FROM lease WHERE holder = ?1")?
        .query_map([&holder.0], |r| r.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    held.iter()
        .filter(|turn| !running.contains(turn))
        .try_fold(0, |n, turn| Ok(n + release(c, "turn_id = ?1", turn, now)?))
}

/// Removes the leases that `which` selects (a condition on the table `lease` with one parameter) and queues their turns.
fn release(c: &Connection, which: &str, value: &dyn rusqlite::ToSql, now: Micros) -> rusqlite::Result<u64> {
    let released = c.prepare_cached(&format!("DELETE FROM lease WHERE {which}"))?.execute([value])?;
    c.prepare_cached(
        "UPDATE turn AS t INDEXED BY turn_open SET state = 'queued', updated_at = ?1
         WHERE t.state IN ('queued', 'running') AND t.state = 'running'
           AND NOT EXISTS (SELECT 1 FROM lease l WHERE l.turn_id = t.id AND l.session_id = t.session_id)",
    )?
    .execute([now])?;
    Ok(released as u64)
}

pub(super) fn release_others(c: &Connection, holder: &Holder, now: Micros) -> rusqlite::Result<u64> {
    release(c, "holder <> ?1", &holder.0, now)
}

pub(super) fn trim(c: &Connection, now: Micros) -> rusqlite::Result<u64> {
    release(c, "expires_at <= ?1", &now.0, now)
}

/// Closes a turn and lets its conversation go on.
fn close(c: &Connection, id: TurnId) -> rusqlite::Result<()> {
    c.prepare_cached(
        "DELETE FROM lease WHERE turn_id = ?1 AND session_id = (SELECT session_id FROM turn WHERE id = ?1)",
    )?
    .execute([id])
    .map(drop)
}

pub(super) fn finish(
    c: &Connection,
    id: TurnId,
    reply: MessageId,
    text: &str,
    now: Micros,
) -> Result<Message, Failure> {
    let turn = existing(c, id)?;
    match (turn.state, turn.reply_id) {
        (TurnState::Done, Some(first)) => {
            return message(c, first)?.ok_or_else(|| Failure::abort(not_found("message", first)));
        }
        (TurnState::Failed, _) => {
            let why = turn.error.unwrap_or_default();
            return Err(Failure::abort(Error::Invalid(format!("the turn {id} was closed without an answer: {why}"))));
        }
        _ => {}
    }
    let new = NewMessage { id: reply, created_at: now, ..NewMessage::text(turn.session_id, Role::Assistant, text) };
    let stored = append(c, &new)?;
    c.prepare_cached("UPDATE turn SET state = 'done', reply_id = ?2, updated_at = ?3 WHERE id = ?1")?
        .execute(params![id, stored.id, now])?;
    close(c, id)?;
    Ok(stored)
}

/// A turn that is closed stays as it is, and so does one that another process has taken up meanwhile.
pub(super) fn fail(c: &Connection, id: TurnId, holder: &Holder, error: &str, now: Micros) -> Result<(), Failure> {
    let turn = existing(c, id)?;
    let elsewhere: bool = c
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM lease
             WHERE session_id = ?1 AND turn_id = ?2 AND holder <> ?3 AND expires_at > ?4)",
        )?
        .query_row(params![turn.session_id, id, holder.0, now], |r| r.get(0))?;
    if elsewhere || matches!(turn.state, TurnState::Done | TurnState::Failed) {
        return Ok(());
    }
    c.prepare_cached("UPDATE turn SET state = 'failed', error = ?2, updated_at = ?3 WHERE id = ?1")?
        .execute(params![id, error, now])?;
    close(c, id)?;
    Ok(())
}

pub(super) fn delivered(c: &Connection, id: TurnId, now: Micros) -> Result<(), Failure> {
    existing(c, id)?;
    c.prepare_cached("INSERT INTO delivery(turn_id, delivered_at) VALUES (?1, ?2) ON CONFLICT(turn_id) DO NOTHING")?
        .execute(params![id, now])?;
    Ok(())
}
