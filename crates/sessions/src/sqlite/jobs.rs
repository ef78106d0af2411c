//! Jobs and their occurrences: a due time is a row, and inserting it is the claim.

use rusqlite::{Connection, OptionalExtension, params};
use statehouse_sqlite::Failure;

use super::conversations::not_found;
use super::rows;
use crate::types::*;

const SECOND: i64 = 1_000_000;

fn by_name(c: &Connection, name: &str) -> rusqlite::Result<Option<Job>> {
    c.prepare_cached(&format!("SELECT {} FROM job WHERE name = ?1", rows::JOB))?.query_row([name], rows::job).optional()
}

pub(super) fn ensure(
    c: &Connection,
    id: JobId,
    name: &str,
    kind: &str,
    every_seconds: i64,
    now: Micros,
) -> Result<Job, Failure> {
    c.prepare_cached(
        "INSERT INTO job(id, name, kind, every_seconds, next_due_at, created_at, updated_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6) ON CONFLICT DO NOTHING",
    )?
    .execute(params![
        id,
        name,
        kind,
        every_seconds,
        now.0.saturating_add(every_seconds.saturating_mul(SECOND)),
        now
    ])?;
    by_name(c, name)?.ok_or_else(|| Failure::abort(not_found("job", name)))
}

pub(super) fn set_interval(c: &Connection, job: JobId, every_seconds: i64, now: Micros) -> Result<Job, Failure> {
    let latest = now.0.saturating_add(every_seconds.saturating_mul(SECOND));
    c.prepare_cached(
        "UPDATE job SET every_seconds = ?2, next_due_at = min(next_due_at, ?3), updated_at = ?4
         WHERE id = ?1 AND every_seconds <> ?2",
    )?
    .execute(params![job, every_seconds, latest, now])?;
    c.prepare_cached(&format!("SELECT {} FROM job WHERE id = ?1", rows::JOB))?
        .query_row([job], rows::job)
        .optional()?
        .ok_or_else(|| Failure::abort(not_found("job", job)))
}

pub(super) fn list(c: &Connection) -> rusqlite::Result<Vec<Job>> {
    c.prepare_cached(&format!("SELECT {} FROM job ORDER BY name", rows::JOB))?.query_map([], rows::job)?.collect()
}

/// The first multiple of the interval after `due` that lies past `now`: missed ones collapse into the one claimed.
fn following(due: i64, every_seconds: u64, now: i64) -> i64 {
    let every = i128::from(every_seconds.max(1)) * i128::from(SECOND);
    let missed = (i128::from(now) - i128::from(due)).max(0) / every;
    i64::try_from(i128::from(due) + (missed + 1) * every).unwrap_or(i64::MAX)
}

/// True if an occurrence is there to be claimed.
pub(super) fn any_due(c: &Connection, now: Micros) -> rusqlite::Result<bool> {
    c.prepare_cached("SELECT EXISTS (SELECT 1 FROM job WHERE paused = 0 AND next_due_at <= ?1)")?
        .query_row([now], |r| r.get(0))
}

pub(super) fn claim(c: &Connection, holder: &Holder, now: Micros) -> Result<Option<Occurrence>, Failure> {
    let sql = format!(
        "SELECT {} FROM job WHERE paused = 0 AND next_due_at <= ?1 ORDER BY next_due_at, name LIMIT 1",
        rows::JOB
    );
    loop {
        let Some(mut job) = c.prepare_cached(&sql)?.query_row([now], rows::job).optional()? else {
            return Ok(None);
        };
        let due_at = job.next_due_at;
        job.next_due_at = Micros(following(due_at.0, job.every_seconds, now.0));
        c.prepare_cached("UPDATE job SET next_due_at = ?2, updated_at = ?3 WHERE id = ?1")?.execute(params![
            job.id,
            job.next_due_at,
            now
        ])?;
        let claimed = c
            .prepare_cached(
                "INSERT INTO occurrence(job_id, due_at, holder, claimed_at) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT(job_id, due_at) DO NOTHING",
            )?
            .execute(params![job.id, due_at, holder.0, now])?;
        // A due time that has its row already was claimed before; the job has moved on and the next one is looked at.
        if claimed == 1 {
            return Ok(Some(Occurrence { job, due_at }));
        }
    }
}

pub(super) fn finish(
    c: &Connection,
    job: JobId,
    due_at: Micros,
    error: Option<&str>,
    now: Micros,
) -> Result<(), Failure> {
    let known: bool = c
        .prepare_cached("SELECT EXISTS (SELECT 1 FROM occurrence WHERE job_id = ?1 AND due_at = ?2)")?
        .query_row(params![job, due_at], |r| r.get(0))?;
    if !known {
        return Err(Failure::abort(not_found("occurrence", format!("of job {job} at {}", due_at.0))));
    }
    c.prepare_cached(
        "UPDATE occurrence SET finished_at = ?3, error = ?4 WHERE job_id = ?1 AND due_at = ?2 AND finished_at IS NULL",
    )?
    .execute(params![job, due_at, now, error])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::following;

    #[test]
    fn the_next_time_keeps_the_beat_and_lies_past_now() {
        assert_eq!(following(0, 10, 0), 10_000_000);
        assert_eq!(following(0, 10, 9_999_999), 10_000_000);
        assert_eq!(following(0, 10, 10_000_000), 20_000_000);
        assert_eq!(following(5, 10, 35_000_005), 40_000_005);
        assert_eq!(following(i64::MAX - 5, 1, i64::MAX), i64::MAX);
    }
}
