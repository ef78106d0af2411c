//! The turns: taken from the store one after another, answered, and closed exactly once.
//!
//! The store is the queue. A turn that this process takes is leased to it under a name that no other start of any
//! process has, and the lease is renewed while it works; a process that dies leaves its turns in the store, and the next
//! one takes them up again. The answer and the end of the turn are one transaction, so that an interrupted turn is
//! either still to be answered or answered, and never answered twice.

use std::future::poll_fn;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use statehouse_http::{Closing, Problem};
use statehouse_sessions::{Message, Turn, TurnId};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::app::App;
use crate::live::{Growing, Outcome};
use crate::responder::{CannotAnswer, Question};

/// The longest pause between two tries of something that the store refused.
const PAUSE_MOST: Duration = Duration::from_secs(5);
const PAUSE_LEAST: Duration = Duration::from_millis(50);

/// Runs turns until the service closes, then lets those that run end within half of the grace.
pub(crate) async fn run(app: Arc<App>, closing: Closing) {
    let renewing = tokio::spawn(renew(Arc::clone(&app)));
    let mut running = JoinSet::new();
    tokio::select! {
        () = closing.begun() => {}
        () = take_all(&app, &mut running) => {}
    }
    let rest = async { while running.join_next().await.is_some() {} };
    if timeout(app.options.limits.grace / 2, rest).await.is_err() {
        tracing::warn!(turns = running.len(), "closing with turns that are not answered; the next start takes them up");
    }
    running.shutdown().await;
    renewing.abort();
}

/// Takes turns for ever.
async fn take_all(app: &Arc<App>, running: &mut JoinSet<()>) {
    release_others(app).await;
    let limits = &app.options.turns;
    let mut pause = PAUSE_LEAST;
    let mut seen = None;
    let mut looked = Instant::now();
    loop {
        let mut wait = limits.poll;
        while running.len() < limits.at_once {
            let (holder, lease) = (app.holder.clone(), micros(limits.lease));
            match app.store(move |s| s.take_turn(&holder, lease)).await {
                Ok(Some(turn)) => {
                    // A machine that slept longer than a lease finds its own turns free. Taking one up has leased it
                    // again, and the answer that is under way goes on.
                    if let Some(place) = Running::begin(app, turn.id) {
                        running.spawn(one(Arc::clone(app), turn, place));
                    }
                    pause = PAUSE_LEAST;
                }
                Ok(None) => {
                    looked = Instant::now();
                    pause = PAUSE_LEAST;
                    break;
                }
                Err(e) => {
                    tracing::warn!(code = e.code, "could not take up a turn; trying again");
                    wait = pause;
                    pause = (pause * 2).min(PAUSE_MOST);
                    seen = None;
                    break;
                }
            }
        }
        let full = running.len() >= limits.at_once;
        loop {
            tokio::select! {
                // One that ended makes room, and lets the next of its conversation begin.
                _ = running.join_next(), if !running.is_empty() => break,
                () = app.wake.notified(), if !full => break,
                () = sleep(wait), if !full => {}
            }
            // Another process may have queued something. The counter is cheap to read, taking up a turn is not.
            let counter = app.store(|s| s.change_counter()).await.ok();
            if counter.is_none() || counter != seen || looked.elapsed() > limits.lease {
                seen = counter;
                break;
            }
        }
    }
}

/// Turns of a gateway that died are free again. Only one gateway runs on a store, so all others are dead.
async fn release_others(app: &Arc<App>) {
    let mut pause = PAUSE_LEAST;
    loop {
        let holder = app.holder.clone();
        match app.store(move |s| s.release_other_turns(&holder)).await {
            Ok(released) => {
                if released > 0 {
                    tracing::info!(turns = released, "took over turns that an earlier gateway left");
                }
                app.resumed.store(true, Ordering::Release);
                return;
            }
            Err(e) => {
                tracing::warn!(code = e.code, "could not look for turns that an earlier gateway left; trying again");
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MOST);
            }
        }
    }
}

/// Prolongs the leases while there are any, and gives back turns that this process has without knowing it.
async fn renew(app: Arc<App>) {
    let lease = app.options.turns.lease;
    loop {
        sleep(lease / 3).await;
        let (holder, running) = (app.holder.clone(), app.running_turns());
        match app.store(move |s| s.renew_turns(&holder, micros(lease), &running)).await {
            // One that is being taken up at this moment is among them at worst, and is not answered twice for that.
            Ok(0) => {}
            Ok(turns) => tracing::info!(turns, "took up turns of which the store had lost the answer"),
            Err(e) => tracing::warn!(code = e.code, "could not renew the leases of running turns"),
        }
    }
}

/// The mark that this process answers a turn; gone when the turn has ended, however it did.
struct Running {
    app: Arc<App>,
    turn: TurnId,
}

impl Running {
    /// `None` if the turn is being answered already.
    fn begin(app: &Arc<App>, turn: TurnId) -> Option<Running> {
        let new = app.running.lock().unwrap_or_else(PoisonError::into_inner).insert(turn);
        new.then(|| Running { app: Arc::clone(app), turn })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.app.running.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.turn);
    }
}

/// One turn from its lease to its end.
async fn one(app: Arc<App>, turn: Turn, place: Running) {
    let growing = app.live.of(turn.id);
    let outcome = match answer(&app, &turn, &growing).await {
        Ok(text) => {
            let holder = app.holder.clone();
            let id = turn.id;
            match settle(&app, id, move |s| s.finish_turn(id, &holder, text.clone())).await {
                Ok(Message { id, text, .. }) => Outcome::Done { message_id: id, text },
                // The answer is something that the store does not keep.
                Err(e) => {
                    tracing::warn!(turn = %id, code = e.code, "an answer cannot be kept");
                    fail(&app, id, e.message).await
                }
            }
        }
        Err(CannotAnswer(why)) => fail(&app, turn.id, why).await,
    };
    let counter = match outcome {
        Outcome::Done { .. } => &app.metrics.turns_done,
        Outcome::Failed(_) => &app.metrics.turns_failed,
    };
    counter.fetch_add(1, Ordering::Relaxed);
    drop(place);
    let done = matches!(outcome, Outcome::Done { .. });
    growing.send_modify(|p| p.outcome = Some(outcome));
    // For HTTP an answer is delivered when it lies where the client fetches it: in the store, and in the streams of
    // those who listen.
    if done {
        let id = turn.id;
        if let Err(e) = settle(&app, id, move |s| s.delivered(id)).await {
            tracing::warn!(turn = %id, code = e.code, "could not note a delivery");
        }
    }
}

async fn fail(app: &Arc<App>, id: TurnId, why: String) -> Outcome {
    // The reason may quote what was said, and that belongs into no log.
    tracing::warn!(turn = %id, "a turn cannot be answered");
    let (holder, reason) = (app.holder.clone(), why.clone());
    if let Err(e) = settle(app, id, move |s| s.fail_turn(id, &holder, reason.clone())).await {
        tracing::warn!(turn = %id, code = e.code, "could not close a turn");
    }
    Outcome::Failed(why)
}

/// Has the turn answered, and lets the listeners see how.
async fn answer(app: &Arc<App>, turn: &Turn, growing: &Growing) -> Result<String, CannotAnswer> {
    let limits = app.options.turns.clone();
    if turn.attempts > limits.attempts {
        return Err(CannotAnswer(format!(
            "it was taken up {} times, and each time the gateway ended before the answer did",
            turn.attempts - 1
        )));
    }
    let id = turn.message_id;
    let message = settle(app, turn.id, move |s| s.message(id)).await.map_err(|e| {
        tracing::warn!(turn = %turn.id, code = e.code, "the message of a turn cannot be read");
        CannotAnswer(e.message)
    })?;
    let question = Question { session_id: turn.session_id, turn_id: turn.id, message_id: id, text: message.text };
    // A task of its own, so that a responder that panics fails its turn and nothing else. Dropping the set ends it.
    let mut task = JoinSet::new();
    let (responder, pieces) = (Arc::clone(&app.options.responder), Arc::clone(growing));
    let most = limits.answer_bytes;
    task.spawn(async move {
        let mut answer = responder.respond(question);
        while let Some(piece) = poll_fn(|cx| answer.as_mut().poll_next(cx)).await {
            let piece = piece?;
            if pieces.borrow().text.len() + piece.len() > most {
                return Err(CannotAnswer(format!("the answer is longer than {most} bytes")));
            }
            pieces.send_modify(|p| p.text.push_str(&piece));
            // A responder that always has a next piece must not keep the thread from everybody else.
            tokio::task::yield_now().await;
        }
        Ok(pieces.borrow().text.clone())
    });
    match timeout(limits.answer_time, task.join_next()).await {
        Ok(Some(Ok(Ok(text)))) if text.trim().is_empty() => Err(CannotAnswer("the responder gave no answer".into())),
        Ok(Some(Ok(answered))) => answered,
        Ok(Some(Err(_))) => {
            tracing::error!(turn = %turn.id, "the responder broke down");
            Err(CannotAnswer("the responder broke down".into()))
        }
        Ok(None) => Err(CannotAnswer("the responder gave no answer".into())),
        Err(_) => Err(CannotAnswer(format!("no answer within {} seconds", limits.answer_time.as_secs()))),
    }
}

/// Calls the store until it has answered: a full disk or a lost generation ends some day, and the turn is leased to us
/// until then. What no waiting can mend is given back.
async fn settle<T: Send + 'static>(
    app: &Arc<App>,
    turn: TurnId,
    call: impl Fn(&dyn statehouse_sessions::Store) -> statehouse_sessions::Result<T> + Send + Sync + 'static,
) -> Result<T, Problem> {
    let call = Arc::new(call);
    let mut pause = PAUSE_LEAST;
    let mut told = false;
    loop {
        let again = Arc::clone(&call);
        match app.store(move |s| again(s)).await {
            Ok(answer) => return Ok(answer),
            Err(e) if e.status.is_client_error() || e.code == "aborted" => return Err(e),
            Err(e) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%turn, code = e.code, "the store does not take a step of a turn; trying until it does");
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MOST);
            }
        }
    }
}

fn micros(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}
