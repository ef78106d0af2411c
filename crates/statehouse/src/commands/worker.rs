//! `statehouse worker run JOB`: opens the store, works, closes, exits.

use serde::Serialize;
use statehouse_sessions::{JobKind, Micros, SqliteStore, Store};

use super::Context;
use crate::args::Worker;
use crate::exit;
use crate::failure::Result;
use crate::store::{self, Opening};

/// The job that keeps the store tidy.
pub(crate) const HOUSEKEEPING: &str = "housekeeping";
/// A job that proves that the schema can be changed while others read and write: it makes, fills, indexes and drops a
/// table of its own.
const DDL_CHECK: &str = "ddl-check";

#[derive(Serialize)]
struct Done {
    job: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    leases_trimmed: Option<u64>,
}

pub(crate) fn run(context: &Context, command: &Worker) -> Result {
    let Worker::Run { job } = command;
    let opening = Opening { role: "worker", create: false, patience: context.patience };
    let store = store::open_sqlite(&context.home.store(), &opening)?;
    let done = work(&store, job);
    store.close();
    let done = done?;
    context.output.answer(&done, |d| match d.leases_trimmed {
        Some(n) => format!("{}: done, {n} leases trimmed", d.job),
        None => format!("{}: done", d.job),
    });
    Ok(exit::OK)
}

fn work(store: &SqliteStore, wanted: &str) -> Result<Done> {
    let found = store.jobs()?.into_iter().find(|j| j.name == wanted || j.id.to_string() == wanted);
    // The built-in work can be asked for by name before any scheduler has made its job.
    let kind = found.map_or_else(|| JobKind::Housekeeping { name: wanted.to_owned() }, |job| job.kind);
    let JobKind::Housekeeping { name } = kind;
    match name.as_str() {
        HOUSEKEEPING => {
            let leases_trimmed = store.trim_leases(Micros::now())?;
            store.optimize()?;
            Ok(Done { job: name, leases_trimmed: Some(leases_trimmed) })
        }
        DDL_CHECK => {
            change_schema(store)?;
            Ok(Done { job: name, leases_trimmed: None })
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
