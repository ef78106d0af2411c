//! The second process of a proof: what one process has written must be what another one reads through the path.

use std::path::Path;

use serde::{Deserialize, Serialize};
use statehouse_sessions::document;
use statehouse_sqlite::words;

use super::Context;
use crate::args::Probe;
use crate::exit;
use crate::failure::Result;
use crate::home::Place;
use crate::store::{self, Opening};

/// A canary row as another process sees it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Seen {
    /// The token, `None` if the role never wrote one.
    pub(crate) token: Option<String>,
    /// When it was written.
    pub(crate) written_at: Option<String>,
}

pub(crate) fn run(context: &Context, command: &Probe) -> Result {
    match command {
        Probe::Canary { role, path } => canary(context, role, path.as_deref()),
        Probe::Read { path } => read(context, path),
    }
}

fn canary(context: &Context, role: &str, path: Option<&Path>) -> Result {
    let place = Place::of(path, &context.home);
    let opening = Opening { role: "probe", create: false, patience: context.patience };
    let store = store::open(&place.database, &opening)?;
    let canary = store.canary(role);
    store.close();
    let canary = canary?;
    let seen = Seen {
        token: canary.as_ref().map(|c| c.token.clone()),
        written_at: canary.as_ref().map(|c| document::time(c.written_at)),
    };
    context.output.answer(&seen, |s| s.token.clone().unwrap_or_else(|| "no canary".to_owned()));
    Ok(exit::OK)
}

fn read(context: &Context, path: &Path) -> Result {
    let place = Place::of(Some(path), &context.home);
    let seen = statehouse_ops::read(&place.database, &std::env::temp_dir(), context.patience)?;
    context.output.answer(&seen, |s| {
        format!(
            "{} on {}",
            words::count(s.objects.unsigned_abs(), "object"),
            words::count(s.page_count.unsigned_abs(), "page")
        )
    });
    Ok(exit::OK)
}
