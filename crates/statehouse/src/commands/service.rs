//! What the services have in common: a home that exists, a role, a listener, a line that says "ready", an orderly end.

use std::future::Future;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use statehouse_sessions::Store;

use super::Context;
use crate::event::Event;
use crate::exit;
use crate::failure::{Failure, Result, code};
use crate::signals;
use crate::store;

/// Binds a port of the loopback interface; 0 takes any free one.
///
/// # Errors
/// `port_in_use` when it is taken or may not be taken.
pub(crate) fn listen(service: &str, port: u16) -> Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).map_err(|e| {
        let why = if e.kind() == std::io::ErrorKind::AddrInUse { "is in use" } else { "cannot be used" };
        Failure::new(
            exit::REFUSED,
            code::PORT_IN_USE,
            format!("port {port} of 127.0.0.1 {why}, so the {service} cannot start"),
        )
        .detail(e.to_string())
        .hint("Stop the program that listens there, or choose another port; 0 takes any free one.")
    })
}

/// Where a listener listens.
pub(crate) fn url(listener: &TcpListener) -> Result<String> {
    let address = listener
        .local_addr()
        .map_err(|e| Failure::new(exit::FAILED, code::IO, "a socket has no address").detail(e.to_string()))?;
    Ok(format!("http://{address}"))
}

/// Opens the home's store for a service, which from then on writes a canary when somebody asks for one.
pub(crate) fn open(context: &Context, role: &'static str) -> Result<Arc<dyn Store>> {
    let database = context.home.store();
    let store = store::open(&database, &store::Opening { role, create: false, patience: context.patience })?;
    statehouse_ops::canary::answer(&store, &database, role)?;
    Ok(store)
}

/// Prints the line that says that this process serves.
pub(crate) fn ready(context: &Context, service: &str, url: Option<String>) {
    Event::Ready { service: service.to_owned(), pid: std::process::id(), url }.print(context.output);
}

/// Runs `serve` until a signal asks to stop; `serve` gets the future that is ready then.
pub(crate) fn until_stopped<S, F>(runtime: &tokio::runtime::Runtime, serve: S) -> Result<()>
where
    S: FnOnce(std::pin::Pin<Box<dyn Future<Output = ()> + Send>>) -> F,
    F: Future<Output = std::io::Result<()>>,
{
    let (tell, told) = tokio::sync::watch::channel(false);
    signals::on_stop(move || {
        if !tell.send_replace(true) {
            signals::limit_stop();
        }
    })?;
    let mut told = told;
    let shutdown = async move {
        // An error means that the signal thread is gone, and with it the one who could say so.
        let _ = told.wait_for(|stop| *stop).await;
    };
    runtime
        .block_on(serve(Box::pin(shutdown)))
        .map_err(|e| Failure::new(exit::FAILED, code::IO, "the service cannot use its socket").detail(e.to_string()))
}
