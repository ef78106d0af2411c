//! The loop that accepts connections and serves them, each bounded in time, all bounded in number.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::problem::{Code, Problem};
use crate::stream::Stream;

/// What one client may take.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once; the next one is told so and closed.
    pub connections: usize,
    /// How long a request's head may take to arrive, and how long a connection may idle between two requests.
    pub header_time: Duration,
    /// How long a body may take to arrive.
    pub body_time: Duration,
    /// The largest body, in bytes.
    pub body_bytes: usize,
    /// How long a client may leave an answer unread.
    pub write_time: Duration,
    /// How long requests may go on after the service was told to end.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 256,
            header_time: Duration::from_secs(15),
            body_time: Duration::from_secs(30),
            body_bytes: 1 << 20,
            write_time: Duration::from_secs(30),
            grace: Duration::from_secs(5),
        }
    }
}

/// Tells a service to end; dropping it does the same.
#[derive(Debug)]
pub struct Begin(watch::Sender<bool>);

/// Knows whether the service was told to end. Long answers watch it, so that they do not hold the service up.
#[derive(Debug, Clone)]
pub struct Closing(watch::Receiver<bool>);

impl Closing {
    /// The two ends.
    pub fn new() -> (Begin, Closing) {
        let (begin, closing) = watch::channel(false);
        (Begin(begin), Closing(closing))
    }

    /// Returns once the service was told to end.
    pub async fn begun(&self) {
        let mut own = self.0.clone();
        // An error means that the other end is gone, and so is whoever could have said it.
        let _ = own.wait_for(|closing| *closing).await;
    }

    /// True once the service was told to end.
    pub fn has_begun(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }
}

impl Begin {
    /// The service is to end.
    pub fn now(&self) {
        self.0.send_replace(true);
    }
}

/// Serves `router` on `listener` until `closing` begins; then takes no new connection, lets requests end within the
/// grace, and returns.
///
/// # Errors
/// The system's answer when the listener cannot be used at all. A failed `accept` is not such an error.
pub async fn serve(
    listener: std::net::TcpListener,
    router: Router,
    limits: &Limits,
    closing: Closing,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = Arc::new(Semaphore::new(limits.connections));
    // Telling a client that there is no place takes a place too, of another kind.
    let refusals = Arc::new(Semaphore::new(32));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            () = closing.begun() => break,
            accepted = listener.accept() => accepted,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((tcp, _)) => {
                let write_time = limits.write_time;
                if let Ok(place) = Arc::clone(&places).try_acquire_owned() {
                    let (router, limits, closing) = (router.clone(), limits.clone(), closing.clone());
                    connections.spawn(async move {
                        connection(tcp, router, &limits, &closing).await;
                        drop(place);
                    });
                } else if let Ok(place) = Arc::clone(&refusals).try_acquire_owned() {
                    connections.spawn(async move {
                        refuse(tcp, write_time).await;
                        drop(place);
                    });
                }
            }
            Err(e) => {
                // Mostly "too many open files": the connection stays in the kernel's queue, and asking again at once
                // would only burn a core.
                tracing::warn!(error = %e, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(limits.grace, all).await.is_err() {
        tracing::warn!(open = connections.len(), "ended with connections that did not close in time");
    }
    Ok(())
}

async fn connection(tcp: TcpStream, router: Router, limits: &Limits, closing: &Closing) {
    // Events are small and must not wait for the acknowledgement of the one before.
    let _ = tcp.set_nodelay(true);
    let io = TokioIo::new(Stream::new(tcp, limits.write_time));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time)
        .max_buf_size(64 << 10)
        .serve_connection(io, TowerToHyperService::new(router));
    let mut served = std::pin::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = closing.begun() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(e) = ended {
        tracing::debug!(error = %e, "a connection ended early");
    }
}

async fn refuse(tcp: TcpStream, write_time: Duration) {
    let problem = Problem::new(Code::TooManyConnections, "as many connections are open as are allowed");
    let body = problem.document();
    let answer = Bytes::from(format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         retry-after: 1\r\nconnection: close\r\n\r\n{body}",
        body.len()
    ));
    let mut stream = Stream::new(tcp, write_time);
    if stream.write_all(&answer).await.is_ok() {
        let _ = stream.shutdown().await;
    }
}
