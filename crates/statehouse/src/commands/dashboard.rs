//! `statehouse dashboard`: the page, with a link that lets one browser in.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use statehouse_dashboard::{Options, Probe, new_code};
use statehouse_sqlite::Family;

use super::{Context, gateway, holders, incidents, service};
use crate::args::Port;
use crate::event::Event;
use crate::exit;
use crate::failure::{Failure, Result, code};
use crate::store;

const ROLE: &str = "dashboard";

pub(crate) fn run(context: &Context, port: &Port) -> Result {
    store::must_exist(&context.home.store())?;
    let config = context.home.config()?;
    let token = gateway::token(context)?;
    let listener = service::listen(ROLE, port.port.unwrap_or(config.dashboard.port))?;
    let url = service::url(&listener)?;
    let store = service::open(context, ROLE)?;
    let login_code = new_code()
        .map_err(|e| Failure::new(exit::FAILED, code::IO, "the system gave no random bytes").detail(e.to_string()))?;
    let login = Event::Login { url: format!("{url}/login?code={login_code}") };
    let mut options = Options::new(token, probe(context.home.store()));
    options.login_code = Some(login_code);
    let family = Family::of(&context.home.store())?;
    options.incidents = incidents::probe(family.clone());
    options.snapshots = snapshots(family.clone(), config.snapshots.enabled.then_some(config.snapshots.every));
    options.close_incident =
        Arc::new(move |id| statehouse_ops::incidents::close(&family, id).map_err(|e| e.to_string()));
    let runtime = gateway::runtime()?;
    let served = service::until_stopped(&runtime, |shutdown| {
        // Before it is ready: when the last service is, whoever waits for that has the link.
        login.print(context.output);
        service::ready(context, ROLE, Some(url));
        statehouse_dashboard::serve(listener, store.clone(), options, shutdown)
    });
    store.close();
    served.map(|()| exit::OK)
}

/// How the store stands with its snapshots, where one is to be taken `every` so often.
fn snapshots(family: Family, every: Option<Duration>) -> Probe {
    Arc::new(move || {
        let state = statehouse_ops::snapshots::state(&family, every);
        state.ok().and_then(|state| serde_json::to_value(state).ok()).unwrap_or_default()
    })
}

/// The document of `statehouse holders --json`.
fn probe(path: PathBuf) -> Probe {
    Arc::new(move || {
        holders::look(&path)
            .map_err(|e| e.message)
            .and_then(|report| serde_json::to_value(report).map_err(|e| e.to_string()))
            .unwrap_or_else(|e| {
                json!({"path": path.to_string_lossy(), "verdict": "unknown", "uninspected": 0, "holders": [], "limits": [e]})
            })
    })
}
