//! `statehouse worker run JOB`: opens the store, works, closes, exits.

use serde::Serialize;
use statehouse_sessions::{JobKind, Micros, Store};

use super::{Context, service};
use crate::args::Worker;
use crate::exit;
use crate::failure::Result;

/// The name of the job that keeps the store tidy.
pub(crate) const HOUSEKEEPING: &str = "housekeeping";

#[derive(Serialize)]
struct Done {
    job: String,
    leases_trimmed: u64,
}

pub(crate) fn run(context: &Context, command: &Worker) -> Result {
    let Worker::Run { job } = command;
    let store = service::open(context, "worker")?;
    let done = work(&*store, job);
    store.close();
    let done = done?;
    context.output.answer(&done, |d| format!("{}: done, {} leases trimmed", d.job, d.leases_trimmed));
    Ok(exit::OK)
}

fn work(store: &dyn Store, wanted: &str) -> Result<Done> {
    let found = store.jobs()?.into_iter().find(|j| j.name == wanted || j.id.to_string() == wanted);
    let kind = match found {
        Some(job) => job.kind,
        None => JobKind::Housekeeping { name: wanted.to_owned() },
    };
    let JobKind::Housekeeping { name } = kind;
    match name.as_str() {
        HOUSEKEEPING => {
            let leases_trimmed = store.trim_leases(Micros::now())?;
            store.optimize()?;
            Ok(Done { job: name, leases_trimmed })
        }
        _ => Err(statehouse_sessions::Error::NotFound { what: "job", id: wanted.to_owned() }.into()),
    }
}
