//! The second process of a proof: what one process has written must be what another one reads through the path.

use serde::{Deserialize, Serialize};
use statehouse_sessions::document;

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
    let Probe::Canary { role, path } = command;
    let place = Place::of(path.as_deref(), &context.home);
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
