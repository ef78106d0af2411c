//! `statehouse gateway`: one a home, by a kernel lock.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use statehouse_gateway::{Options, Probe, Token};
use statehouse_sessions::Store;

use super::{Context, service};
use crate::args::Port;
use crate::exit;
use crate::failure::{Failure, Result, code};
use crate::lock;
use crate::{readiness, store};

const ROLE: &str = "gateway";

pub(crate) fn run(context: &Context, port: &Port) -> Result {
    store::must_exist(&context.home.store())?;
    let config = context.home.config()?;
    let token = token(context)?;
    let _role = lock::take(&context.home, ROLE)?;
    let listener = service::listen(ROLE, port.port.unwrap_or(config.gateway.port))?;
    let url = service::url(&listener)?;
    let store = service::open(context, ROLE)?;
    let options = Options::new(token, probe(store.clone(), context.home.store()));
    let runtime = runtime()?;
    let served = service::until_stopped(&runtime, |shutdown| {
        service::ready(context, ROLE, Some(url));
        statehouse_gateway::serve(listener, store.clone(), options, shutdown)
    });
    store.close();
    served.map(|()| exit::OK)
}

pub(super) fn token(context: &Context) -> Result<Token> {
    Token::new(&context.home.token()?).map_err(|e| {
        Failure::new(exit::FAILED, code::BAD_HOME, format!("{} holds no token", context.home.token_file().display()))
            .detail(e.to_string())
            .hint("Remove the file; `statehouse up` writes a new one.")
    })
}

pub(super) fn runtime() -> Result<tokio::runtime::Runtime> {
    statehouse_gateway::runtime()
        .map_err(|e| Failure::new(exit::FAILED, code::IO, "no runtime for the service").detail(e.to_string()))
}

/// The document of `/readyz`.
fn probe(store: Arc<dyn Store>, database: PathBuf) -> Probe {
    Arc::new(move || match serde_json::to_value(readiness::readiness(&*store, &database, ROLE)) {
        Ok(document) => document,
        Err(e) => json!({"ready": false, "error": Value::String(e.to_string())}),
    })
}
