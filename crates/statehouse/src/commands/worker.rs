//! `statehouse worker run JOB`: opens the store, works, closes, exits.

use serde::Serialize;
use statehouse_ops::maintenance::policy::{self, Housekept};
use statehouse_ops::snapshots::{self, Wish};
use statehouse_sessions::{JobKind, Micros, SqliteStore, Store};
use statehouse_sqlite::Family;
use statehouse_sqlite::words;

use super::{Context, maintain};
use crate::args::Worker;
use crate::exit;
use crate::failure::Result;
use crate::store::{self, Opening};
use crate::text::{bytes, escape_line};

/// The job that keeps the store tidy.
pub(crate) const HOUSEKEEPING: &str = "housekeeping";
/// The job that copies the store.
pub(crate) const SNAPSHOT: &str = "snapshot";
/// A job that proves that the schema can be changed while others read and write: it makes, fills, indexes and drops a
/// table of its own.
const DDL_CHECK: &str = "ddl-check";

#[derive(Serialize)]
struct Done {
    job: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    leases_trimmed: Option<u64>,
    /// What the policy of maintenance came to.
    #[serde(skip_serializing_if = "Option::is_none", flatten)]
    housekept: Option<Housekept>,
    /// The snapshot that was taken.
    #[serde(skip_serializing_if = "Option::is_none")]
    snapshot: Option<String>,
}

/// What is left to do when the store is closed: it needs the store alone, or wants to be a process like any other.
#[derive(PartialEq)]
enum Then {
    Nothing,
    Housekeep,
    Snapshot,
}

pub(crate) fn run(context: &Context, command: &Worker) -> Result {
    let Worker::Run { job } = command;
    let opening = Opening { role: "worker", create: false, patience: context.patience };
    let store = store::open_sqlite(&context.home.store(), &opening)?;
    let done = work(&store, job);
    store.close();
    let (mut done, then) = done?;
    // Its own handle is closed by now.
    drop(store);
    match then {
        Then::Nothing => {}
        Then::Housekeep => done.housekept = Some(housekeep(context)?),
        Then::Snapshot => done.snapshot = snapshot(context)?,
    }
    context.output.answer(&done, text);
    Ok(exit::OK)
}

fn housekeep(context: &Context) -> Result<Housekept> {
    let policy = context.home.config()?.maintenance.policy();
    let tell = |text: &str| tracing::info!("{}", escape_line(text));
    let kept = policy::housekeep(&context.home.store(), &policy, context.patience, &maintain::temporary(), &tell)?;
    match &kept {
        Housekept::NotDue { .. } => {}
        Housekept::Done(v) => {
            tracing::info!("the store was rewritten: {} bytes before, {} now", v.size_before, v.size_after)
        }
        Housekept::Deferred { reason, deferrals, since, .. } => tracing::warn!(
            "a rewrite of the store is due and was put off, {} since {since}: {}",
            words::count(*deferrals, "time"),
            escape_line(reason)
        ),
    }
    Ok(kept)
}

/// Copies the store, unless that is switched off. What keeps it from being done is remembered, so that `status` shows it.
fn snapshot(context: &Context) -> Result<Option<String>> {
    const REASON: &str = "scheduled";
    let config = context.home.config()?.snapshots;
    if !config.enabled {
        return Ok(None);
    }
    let path = context.home.store();
    let wish =
        Wish { compress: config.compress, keep: config.keep(), patience: context.patience, ..Wish::because(REASON) };
    match snapshots::take(&path, &wish, &|_| {}) {
        Ok(taken) => {
            tracing::info!("a snapshot of the store was taken: {} bytes in {:.0} ms", taken.bytes, taken.ms);
            Ok(Some(taken.id))
        }
        Err(e) => {
            tracing::warn!("no snapshot of the store could be taken: {}", escape_line(&e.to_string()));
            if !e.is_remembered() {
                // On a full disk that cannot be done either; the job's own history has it in any case.
                let _ = snapshots::remember_failure(&Family::of(&path)?, REASON, &e);
            }
            Err(e.into())
        }
    }
}

fn text(done: &Done) -> String {
    let mut out = format!("{}: done", done.job);
    if let Some(n) = done.leases_trimmed {
        out.push_str(&format!(", {} trimmed", words::count(n, "lease")));
    }
    match &done.housekept {
        Some(Housekept::Done(v)) => {
            out.push_str(&format!(", rewritten ({} before, {} now)", bytes(v.size_before), bytes(v.size_after)));
        }
        Some(Housekept::Deferred { reason, deferrals, .. }) => {
            out.push_str(&format!(
                ", a rewrite is due and was put off {}: {}",
                words::count(*deferrals, "time"),
                escape_line(reason)
            ));
        }
        Some(Housekept::NotDue { .. }) | None => {}
    }
    if let Some(id) = &done.snapshot {
        out.push_str(&format!(", snapshot {}", escape_line(id)));
    }
    out
}

/// Does what needs an open store, and says what is left to do without one.
fn work(store: &SqliteStore, wanted: &str) -> Result<(Done, Then)> {
    let found = store.jobs()?.into_iter().find(|j| j.name == wanted || j.id.to_string() == wanted);
    // The built-in work can be asked for by name before any scheduler has made its job.
    let kind = found.map_or_else(|| JobKind::Housekeeping { name: wanted.to_owned() }, |job| job.kind);
    let JobKind::Housekeeping { name } = kind;
    let done = |name: String| Done { job: name, leases_trimmed: None, housekept: None, snapshot: None };
    match name.as_str() {
        SNAPSHOT => Ok((done(name), Then::Snapshot)),
        HOUSEKEEPING => {
            let leases_trimmed = store.trim_leases(Micros::now())?;
            store.optimize()?;
            Ok((Done { leases_trimmed: Some(leases_trimmed), ..done(name) }, Then::Housekeep))
        }
        DDL_CHECK => {
            change_schema(store)?;
            Ok((done(name), Then::Nothing))
        }
        _ => Err(statehouse_sessions::Error::NotFound { what: "job", id: wanted.to_owned() }.into()),
    }
}

/// Each step is a commit of its own, so that the others see the table come, change and go.
fn change_schema(store: &SqliteStore) -> Result<()> {
    let table = format!("ddl_check_{}", std::process::id());
    for sql in [
        format!("DROP TABLE IF EXISTS {table}; CREATE TABLE {table}(id INTEGER PRIMARY KEY, word TEXT NOT NULL)"),
        format!("INSERT INTO {table}(word) VALUES ('one'), ('two'), ('three')"),
        format!("CREATE INDEX {table}_word ON {table}(word)"),
        format!("ALTER TABLE {table} ADD COLUMN note TEXT"),
        format!("DROP TABLE {table}"),
    ] {
        store.database().write(move |c| Ok(c.execute_batch(&sql)?))?;
    }
    Ok(())
}
