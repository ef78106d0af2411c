//! Bringing back what only a retired generation has.
//!
//! Both images grew from one store, so a row with the same key is the same row. What is only in the retired image is
//! added, parents before children. What is in both is decided a row at a time: the newer `updated_at` wins, and a turn
//! that was closed in either image stays closed, so that nothing is answered twice. Two messages that took the same
//! place in their session are both kept: the live one keeps its place and the newcomer goes to the end.
//! Leases, canaries and the ledger of migrations belong to one generation and stay behind.
//! Running it again changes nothing.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};
use statehouse_sqlite::Failure;

use crate::types::*;

/// One table whose rows are compared by key.
struct Table {
    name: &'static str,
    key: &'static [&'static str],
    /// What follows from other rows and is not taken over.
    derived: &'static [&'static str],
    /// What is taken from the image in which the last of these columns is larger; empty if rows never change.
    newer: &'static [&'static str],
}

const PROMPT: Table = Table { name: "prompt", key: &["hash"], derived: &[], newer: &[] };
const SESSION: Table = Table {
    name: "session",
    key: &["id"],
    derived: &["messages", "last_seq"],
    newer: &[
        "parent_id",
        "title",
        "prompt_hash",
        "ended_at",
        "end_reason",
        "archived",
        "hidden",
        "pinned",
        "updated_at",
    ],
};
const SESSION_EXTRA: Table =
    Table { name: "session_extra", key: &["session_id"], derived: &[], newer: &["extra", "imported_at"] };
const ROUTE: Table =
    Table { name: "route", key: &["channel", "conversation"], derived: &[], newer: &["session_id", "updated_at"] };
const DELIVERY: Table = Table { name: "delivery", key: &["turn_id"], derived: &[], newer: &[] };
const USAGE: Table = Table {
    name: "usage",
    key: &["session_id", "provider", "endpoint", "mode", "model", "task"],
    derived: &[],
    newer: &[
        "calls",
        "input_tokens",
        "output_tokens",
        "cache_read_tokens",
        "cache_write_tokens",
        "reasoning_tokens",
        "extra",
        "updated_at",
    ],
};

/// Copies what only `retired` has, inside the write transaction that `live` is in. Returns how many rows it took over.
///
/// # Errors
/// What SQLite answers; the transaction is to be rolled back then.
pub fn merge(live: &Connection, retired: &Connection) -> Result<u64, Failure> {
    // What is left of a destroyed store may lack a table, and that is no reason to go without the others.
    let has = |name: &str| -> rusqlite::Result<bool> {
        retired.query_row(
            "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1)",
            [name],
            |r| r.get(0),
        )
    };
    let mut taken = rows(live, retired, &PROMPT)?;
    taken += rows(live, retired, &SESSION)?;
    taken += rows(live, retired, &SESSION_EXTRA)?;
    if has("message")? {
        taken += messages(live, retired)?;
    }
    taken += rows(live, retired, &ROUTE)?;
    if has("turn")? {
        taken += turns(live, retired)?;
    }
    taken += rows(live, retired, &DELIVERY)?;
    taken += rows(live, retired, &USAGE)?;
    if has("job")? && has("occurrence")? {
        taken += jobs(live, retired)?;
    }
    Ok(taken)
}

/// The columns that both images have, for one of them may be a schema older.
fn columns(live: &Connection, retired: &Connection, table: &str, without: &[&str]) -> rusqlite::Result<Vec<String>> {
    let of = |c: &Connection| -> rusqlite::Result<Vec<String>> {
        c.prepare("SELECT name FROM pragma_table_info(?1)")?.query_map([table], |r| r.get(0))?.collect()
    };
    let theirs: BTreeSet<String> = of(retired)?.into_iter().collect();
    Ok(of(live)?.into_iter().filter(|c| theirs.contains(c) && !without.contains(&c.as_str())).collect())
}

fn values(row: &Row<'_>, count: usize) -> rusqlite::Result<Vec<Value>> {
    (0..count).map(|i| row.get(i)).collect()
}

fn insert(table: &str, columns: &[String]) -> String {
    let holes: Vec<String> = (1..=columns.len()).map(|n| format!("?{n}")).collect();
    format!("INSERT INTO {table}({}) VALUES ({})", columns.join(", "), holes.join(", "))
}

fn rows(live: &Connection, retired: &Connection, table: &Table) -> Result<u64, Failure> {
    let columns = columns(live, retired, table.name, table.derived)?;
    if columns.is_empty() {
        return Ok(0);
    }
    let set: Vec<String> = table
        .newer
        .iter()
        .filter(|c| columns.iter().any(|have| have == *c))
        .map(|c| format!("{c} = excluded.{c}"))
        .collect();
    let both = match table.newer.last() {
        Some(time) if !set.is_empty() => {
            format!("DO UPDATE SET {} WHERE excluded.{time} > {}.{time}", set.join(", "), table.name)
        }
        _ => "DO NOTHING".to_owned(),
    };
    let mut put =
        live.prepare(&format!("{} ON CONFLICT({}) {both}", insert(table.name, &columns), table.key.join(", ")))?;
    let mut all = retired.prepare(&format!("SELECT {} FROM {}", columns.join(", "), table.name))?;
    let mut source = all.query([])?;
    let mut taken = 0;
    while let Some(row) = source.next()? {
        taken += put.execute(params_from_iter(values(row, columns.len())?))? as u64;
    }
    Ok(taken)
}

fn messages(live: &Connection, retired: &Connection) -> Result<u64, Failure> {
    // `n` is the order of arrival in one file, and what is taken over arrives now.
    let mut columns = columns(live, retired, "message", &["n", "id", "session_id", "seq"])?;
    for key in ["seq", "session_id", "id"] {
        columns.insert(0, key.to_owned());
    }
    let mut put = live.prepare(&insert("message", &columns))?;
    let mut known = live.prepare("SELECT EXISTS (SELECT 1 FROM message WHERE id = ?1)")?;
    let mut taken_place = live.prepare("SELECT EXISTS (SELECT 1 FROM message WHERE session_id = ?1 AND seq = ?2)")?;
    let mut last = live.prepare("SELECT coalesce(max(seq), 0) FROM message WHERE session_id = ?1")?;
    let mut all = retired.prepare(&format!("SELECT {} FROM message ORDER BY n", columns.join(", ")))?;
    let mut source = all.query([])?;
    let mut touched = BTreeSet::new();
    let mut taken = 0;
    while let Some(row) = source.next()? {
        if known.query_row([row.get::<_, MessageId>(0)?], |r| r.get(0))? {
            continue;
        }
        let session: SessionId = row.get(1)?;
        let mut values = values(row, columns.len())?;
        if taken_place.query_row(params![session, row.get::<_, i64>(2)?], |r| r.get(0))?
            && let Some(seq) = values.get_mut(2)
        {
            let last: i64 = last.query_row([session], |r| r.get(0))?;
            *seq = Value::Integer(last + 1);
        }
        taken += put.execute(params_from_iter(values))? as u64;
        touched.insert(session);
    }
    let mut recount = live.prepare(
        "UPDATE session SET (messages, last_seq, last_active_at) =
           (SELECT count(*), max(seq), max(session.last_active_at, max(created_at)) FROM message WHERE session_id = ?1)
         WHERE id = ?1",
    )?;
    for session in touched {
        recount.execute([session])?;
    }
    Ok(taken)
}

/// Messages, turns and sums whose conversation is lost get one that says so; what only refers to something that is lost goes.
pub(super) fn adopt(live: &Connection) -> Result<(), Failure> {
    live.execute_batch(
        "UPDATE session SET prompt_hash = NULL WHERE prompt_hash NOT IN (SELECT hash FROM prompt);
         UPDATE turn SET reply_id = NULL WHERE reply_id NOT IN (SELECT id FROM message);
         DELETE FROM turn WHERE message_id NOT IN (SELECT id FROM message);
         DELETE FROM delivery WHERE turn_id NOT IN (SELECT id FROM turn);
         DELETE FROM lease WHERE turn_id NOT IN (SELECT id FROM turn);
         DELETE FROM occurrence WHERE job_id NOT IN (SELECT id FROM job);
         INSERT OR IGNORE INTO session(id, title, source, started_at, last_active_at, messages, last_seq, updated_at)
           SELECT session_id, 'recovered', 'recovered', min(created_at), max(created_at), count(*), max(seq), max(created_at)
           FROM message WHERE session_id NOT IN (SELECT id FROM session) GROUP BY session_id;
         DELETE FROM session_extra WHERE session_id NOT IN (SELECT id FROM session);
         DELETE FROM route WHERE session_id NOT IN (SELECT id FROM session);
         DELETE FROM usage WHERE session_id NOT IN (SELECT id FROM session);
         DELETE FROM lease WHERE session_id NOT IN (SELECT id FROM session);
         UPDATE session SET messages = (SELECT count(*) FROM message WHERE session_id = session.id)
           WHERE messages <> (SELECT count(*) FROM message WHERE session_id = session.id);",
    )?;
    Ok(())
}

/// A turn as far as the two images can differ about it.
struct Progress {
    state: TurnState,
    updated_at: Micros,
}

impl Progress {
    /// Larger wins: an answer, then a failure, then what moved last.
    fn rank(&self) -> (u8, Micros) {
        match self.state {
            TurnState::Done => (2, Micros(0)),
            TurnState::Failed => (1, Micros(0)),
            TurnState::Queued | TurnState::Running => (0, self.updated_at),
        }
    }
}

fn turns(live: &Connection, retired: &Connection) -> Result<u64, Failure> {
    let mut all = retired.prepare(
        "SELECT id, state, updated_at, reply_id, error, attempts, session_id, message_id, channel, conversation,
                client_id, created_at
         FROM turn ORDER BY n",
    )?;
    let mut known = live.prepare("SELECT state, updated_at FROM turn WHERE id = ?1")?;
    let mut again = live.prepare("SELECT id FROM turn WHERE channel = ?1 AND conversation = ?2 AND client_id = ?3")?;
    let mut update = live.prepare(
        "UPDATE turn SET state = ?2, updated_at = ?3, reply_id = ?4, error = ?5, attempts = ?6 WHERE id = ?1",
    )?;
    let mut put = live.prepare(
        "INSERT INTO turn(id, state, updated_at, reply_id, error, attempts, session_id, message_id, channel,
                          conversation, client_id, created_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)",
    )?;
    let mut source = all.query([])?;
    let mut taken = 0;
    while let Some(row) = source.next()? {
        let theirs = Progress { state: row.get(1)?, updated_at: row.get(2)? };
        let mut values = values(row, 12)?;
        let ours = known
            .query_row([row.get::<_, TurnId>(0)?], |r| Ok(Progress { state: r.get(0)?, updated_at: r.get(1)? }))
            .optional()?;
        if let Some(ours) = ours {
            if theirs.rank() > ours.rank() {
                values.truncate(6);
                taken += update.execute(params_from_iter(values))? as u64;
            }
            continue;
        }
        // The platform delivered the same message to both generations: it keeps both rows, and one answer.
        let twin: Option<TurnId> = match row.get::<_, Option<String>>(10)? {
            Some(client_id) => again
                .query_row(params![row.get::<_, String>(8)?, row.get::<_, String>(9)?, client_id], |r| r.get(0))
                .optional()?,
            None => None,
        };
        if let (Some(twin), [_, state, _, _, error, ..]) = (twin, values.as_mut_slice()) {
            if theirs.rank().0 == 0 {
                *state = Value::Text("failed".into());
                *error = Value::Text(format!("it was received a second time and answered as {twin}"));
            }
            if let Some(client_id) = values.get_mut(10) {
                *client_id = Value::Null;
            }
        }
        taken += put.execute(params_from_iter(values))? as u64;
    }
    live.execute(
        "DELETE FROM lease WHERE turn_id IN (SELECT t.id FROM turn t WHERE t.state IN ('done', 'failed'))",
        [],
    )?;
    Ok(taken)
}

/// Jobs are known by name: both generations may have made one, each with an id of its own.
fn jobs(live: &Connection, retired: &Connection) -> Result<u64, Failure> {
    let mut taken = 0;
    let mut here = BTreeMap::new();
    let mut all = retired
        .prepare("SELECT id, name, kind, every_seconds, next_due_at, paused, created_at, updated_at FROM job")?;
    let mut source = all.query([])?;
    let mut put = live.prepare(
        "INSERT INTO job(id, name, kind, every_seconds, next_due_at, paused, created_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT(name) DO UPDATE SET kind = excluded.kind, every_seconds = excluded.every_seconds,
           next_due_at = excluded.next_due_at, paused = excluded.paused, updated_at = excluded.updated_at
         WHERE excluded.updated_at > job.updated_at",
    )?;
    let mut named = live.prepare("SELECT id FROM job WHERE name = ?1")?;
    let mut by_id = live.prepare("SELECT id, name FROM job WHERE id = ?1")?;
    while let Some(row) = source.next()? {
        let mut values = values(row, 8)?;
        let id: JobId = row.get(0)?;
        // A job that was renamed in one image is still the same job.
        let renamed: Option<Value> = by_id.query_row([id], |r| r.get(1)).optional()?;
        if let (Some(name), Some(value)) = (renamed, values.get_mut(1)) {
            *value = name;
        }
        let name = values.get(1).cloned().unwrap_or(Value::Null);
        taken += put.execute(params_from_iter(values))? as u64;
        here.insert(id, named.query_row([name], |r| r.get::<_, JobId>(0))?);
    }
    let mut all = retired.prepare("SELECT job_id, due_at, holder, claimed_at, finished_at, error FROM occurrence")?;
    let mut source = all.query([])?;
    let mut put = live.prepare(
        "INSERT INTO occurrence(job_id, due_at, holder, claimed_at, finished_at, error) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT(job_id, due_at) DO UPDATE SET finished_at = excluded.finished_at, error = excluded.error
         WHERE occurrence.finished_at IS NULL AND excluded.finished_at IS NOT NULL",
    )?;
    while let Some(row) = source.next()? {
        let job: JobId = row.get(0)?;
        let (due_at, holder, claimed_at) = (row.get::<_, i64>(1)?, row.get::<_, String>(2)?, row.get::<_, i64>(3)?);
        let (finished_at, error) = (row.get::<_, Option<i64>>(4)?, row.get::<_, Option<String>>(5)?);
        let job = here.get(&job).unwrap_or(&job);
        taken += put.execute(params![job, due_at, holder, claimed_at, finished_at, error])? as u64;
    }
    Ok(taken)
}
