//! `statehouse up`: makes the home if there is none, proves that the store opens, and keeps the services running.
//!
//! Every refusal comes before anything is written: first what can be seen without touching (another `up`, the
//! configuration, the ports), then the store itself, and only then the home gets its token and configuration.

use std::ffi::OsString;

use statehouse_sqlite::incidents;

use super::{Context, service};
use crate::args::Up;
use crate::config::Config;
use crate::exit;
use crate::failure::{Failure, Result};
use crate::home::Home;
use crate::supervise::{Service, Supervisor};
use crate::{lock, store, text};

const ROLE: &str = "up";

pub(crate) fn run(context: &Context, up: &Up) -> Result {
    let home = &context.home;
    if home.check()? {
        lock::check(home, ROLE)?;
    }
    let config = home.config()?;
    let ports = Ports::of(up, &config);
    drop((service::listen("gateway", ports.gateway)?, service::listen("dashboard", ports.dashboard)?));
    let created = home.create()?;
    let opening = store::Opening { role: ROLE, create: true, patience: context.patience };
    let store = match store::open(&home.store(), &opening) {
        Ok(store) => store,
        Err(failure) => {
            if failure.exit == exit::REFUSED {
                refused(home, &failure);
            }
            created.undo();
            return Err(failure);
        }
    };
    let _role = lock::take(home, ROLE)?;
    home.furnish()?;
    let _ = incidents::opened(&home.refusals(), ROLE);
    let mut supervisor = Supervisor::new(services(context, ports), context.output)?;
    // Until the anchor stands there is nobody else who could tell what somebody removes, or keep it.
    let ended = supervisor.run(&|| store.close(), &|address| welcome(context, address));
    store.close();
    ended?;
    Ok(exit::OK)
}

/// Tells that the store was not opened, below `logs`, which is all that a refused start may write to, and only if it is there.
/// A unit that is started again and again raises a count.
fn refused(home: &Home, failure: &Failure) {
    let what = match failure.detail.as_str() {
        "" => failure.message.clone(),
        detail => format!("{} ({detail})", failure.message),
    };
    if home.logs().is_dir()
        && let Err(e) = incidents::refused(&home.refusals(), ROLE, &failure.code, &what, &failure.hint)
    {
        tracing::warn!("that the start was refused cannot be told below logs: {e}");
    }
}

#[derive(Clone, Copy)]
struct Ports {
    gateway: u16,
    dashboard: u16,
}

impl Ports {
    fn of(up: &Up, config: &Config) -> Ports {
        Ports {
            gateway: up.gateway_port.unwrap_or(config.gateway.port),
            dashboard: up.dashboard_port.unwrap_or(config.dashboard.port),
        }
    }
}

/// In the order of their start.
fn services(context: &Context, ports: Ports) -> Vec<Service> {
    let service = |name: &'static str, port| {
        let arguments: Vec<OsString> = vec![
            name.into(),
            "--json".into(),
            "--home".into(),
            context.home.directory().into(),
            "--patience".into(),
            context.patience.as_secs_f64().to_string().into(),
        ];
        Service::new(name, arguments, context.home.logs().join(format!("{name}.log")), port)
    };
    vec![
        service("anchor", None),
        service("gateway", Some(ports.gateway)),
        service("dashboard", Some(ports.dashboard)),
        service("scheduler", None),
    ]
}

/// Where to look, for a person.
fn welcome(context: &Context, address: &dyn Fn(&str) -> Option<String>) {
    if context.output.json {
        return;
    }
    let home = context.home.directory().to_string_lossy().into_owned();
    let token = text::shell_word(&context.home.token_file().to_string_lossy());
    let mut lines = vec![String::new(), format!("  home       {}", text::escape_line(&home))];
    for name in ["gateway", "dashboard"] {
        if let Some(url) = address(name) {
            lines.push(format!("  {name:<9}  {url}"));
        }
    }
    if let Some(url) = address("gateway") {
        lines.extend([
            String::new(),
            "Say something:".to_owned(),
            format!("  curl -H \"Authorization: Bearer $(cat {token})\" \\"),
            "    -d '{\"conversation\":\"first\",\"text\":\"hello\"}' \\".to_owned(),
            format!("    '{url}/v1/messages?wait=10'"),
            String::new(),
            "Answers are echoes until a responder is configured. Ctrl-C stops everything.".to_owned(),
        ]);
    }
    context.output.text(&lines.join("\n"));
}
