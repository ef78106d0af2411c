//! Answers that go on: server-sent events from a loop.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::http::{HeaderValue, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_core::Stream;

/// How often a silent stream shows that it is alive; also how soon a client that went away is noticed.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// An event stream. `next` gets the state and gives the next event with the state after it, or `None` at the end.
pub fn events<S, F, Fut>(state: S, next: F) -> Response
where
    S: Send + 'static,
    F: FnMut(S) -> Fut + Send + 'static,
    Fut: Future<Output = Option<(Event, S)>> + Send + 'static,
{
    let stream = Steps { next, state: Some(state), running: None };
    let mut response = Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

struct Steps<S, F, Fut> {
    next: F,
    state: Option<S>,
    running: Option<Pin<Box<Fut>>>,
}

// The future is boxed, so nothing in here is pinned by the struct itself.
impl<S, F, Fut> Unpin for Steps<S, F, Fut> {}

impl<S, F, Fut> Stream for Steps<S, F, Fut>
where
    F: FnMut(S) -> Fut,
    Fut: Future<Output = Option<(Event, S)>>,
{
    type Item = Result<Event, Infallible>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.running.is_none() {
            let Some(state) = this.state.take() else { return Poll::Ready(None) };
            this.running = Some(Box::pin((this.next)(state)));
        }
        let Some(running) = &mut this.running else { return Poll::Ready(None) };
        let step = ready!(running.as_mut().poll(cx));
        this.running = None;
        Poll::Ready(step.map(|(event, state)| {
            this.state = Some(state);
            Ok(event)
        }))
    }
}
