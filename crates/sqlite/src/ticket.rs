//! The answer to a request that a writer thread will give later: wait for it on a thread, or await it in a task.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

struct Slot<T> {
    answer: Option<Result<T>>,
    waker: Option<Waker>,
    abandoned: bool,
}

struct Shared<T> {
    slot: Mutex<Slot<T>>,
    ready: Condvar,
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, Slot<T>> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Says why an answer has not come yet.
type Why = Box<dyn Fn() -> Error + Send + Sync>;

/// A promised answer. Dropping it does not withdraw the request.
pub struct Ticket<T> {
    shared: Arc<Shared<T>>,
    why: Why,
}

/// The side that answers. Dropped without an answer, the ticket reads [`Error::Closed`].
pub(crate) struct Answer<T>(Option<Arc<Shared<T>>>);

/// A ticket and its answering side. `why` is asked when the one who waits gives up; the time of a busy error is filled in.
pub(crate) fn ticket<T>(why: impl Fn() -> Error + Send + Sync + 'static) -> (Ticket<T>, Answer<T>) {
    let slot = Slot { answer: None, waker: None, abandoned: false };
    let shared = Arc::new(Shared { slot: Mutex::new(slot), ready: Condvar::new() });
    (Ticket { shared: shared.clone(), why: Box::new(why) }, Answer(Some(shared)))
}

impl<T> Answer<T> {
    pub(crate) fn give(mut self, answer: Result<T>) {
        if let Some(shared) = self.0.take() {
            Self::put(&shared, answer);
        }
    }

    /// True when the one who waited has given up, so that the work need not be done.
    pub(crate) fn abandoned(&self) -> bool {
        self.0.as_ref().is_some_and(|s| s.lock().abandoned)
    }

    fn put(shared: &Shared<T>, answer: Result<T>) {
        let waker = {
            let mut slot = shared.lock();
            slot.answer = Some(answer);
            slot.waker.take()
        };
        shared.ready.notify_all();
        if let Some(w) = waker {
            w.wake();
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            Self::put(&shared, Err(Error::Closed));
        }
    }
}

impl<T> Ticket<T> {
    /// Blocks until the answer is there.
    ///
    /// # Errors
    /// The answer's own error.
    pub fn wait(self) -> Result<T> {
        let mut slot = self.shared.lock();
        loop {
            if let Some(answer) = slot.answer.take() {
                return answer;
            }
            slot = self.shared.ready.wait(slot).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Blocks until the answer is there or `patience` is over. A request that was given up before its turn came is
    /// not run; one whose transaction had begun may still be kept.
    ///
    /// # Errors
    /// The answer's own error, or why there is none yet: [`Error::Busy`], or [`Error::Retired`] when the files were removed
    /// or replaced.
    pub fn wait_for(self, patience: Duration) -> Result<T> {
        let begun = Instant::now();
        let mut slot = self.shared.lock();
        loop {
            if let Some(answer) = slot.answer.take() {
                return answer;
            }
            let Some(left) = patience.checked_sub(begun.elapsed()) else {
                slot.abandoned = true;
                drop(slot);
                return Err(match (self.why)() {
                    Error::Busy { holder, .. } => Error::Busy { waited: begun.elapsed(), holder },
                    why => why,
                });
            };
            slot = self.shared.ready.wait_timeout(slot, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl<T> Future for Ticket<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut slot = self.shared.lock();
        match slot.answer.take() {
            Some(answer) => Poll::Ready(answer),
            None => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
