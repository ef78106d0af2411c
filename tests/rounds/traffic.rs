//! Clients that talk to the gateway all the time, and what they were told.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::house::Client;

/// Between two messages of one client.
const PACE: Duration = Duration::from_millis(10);

/// A message that was acknowledged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) sent: Instant,
    pub(crate) at: Instant,
}

/// What clients have been told so far.
#[derive(Default)]
pub(crate) struct Ledger {
    /// The text of each row that was acknowledged.
    pub(crate) acknowledged: HashMap<String, Answer>,
    /// Texts that were sent and have no answer yet.
    pub(crate) unanswered: HashSet<String>,
    /// Which session a conversation went to.
    pub(crate) sessions: HashMap<String, String>,
    /// Refusals: the code, the sentence, and when the request was sent.
    pub(crate) refused: Vec<(String, String, Instant)>,
    /// What no client should ever be told.
    pub(crate) odd: Vec<String>,
}

/// Clients and their ledger.
pub(crate) struct Traffic {
    ledger: Mutex<Ledger>,
    /// Where the gateway listens; a restarted one may have another port.
    address: Mutex<String>,
    token: String,
    round: AtomicU64,
    stop: AtomicBool,
}

impl Traffic {
    pub(crate) fn new(address: &str, token: String) -> Traffic {
        Traffic {
            ledger: Mutex::default(),
            address: Mutex::new(address.to_owned()),
            token,
            round: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        }
    }

    pub(crate) fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn moved(&self, address: &str) {
        address.clone_into(&mut self.address.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// From now on messages belong to conversations of this round.
    pub(crate) fn begin(&self, round: u64) {
        self.round.store(round, Ordering::Relaxed);
    }

    pub(crate) fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// When the first row was acknowledged that was sent after `moment`.
    pub(crate) fn first_after(&self, moment: Instant) -> Option<Instant> {
        self.ledger().acknowledged.values().filter(|a| a.sent >= moment).map(|a| a.at).min()
    }

    /// Sends numbered messages until told to stop. After a refusal or a lost answer the same message is sent again with the
    /// same id, as a platform does.
    pub(crate) fn talk(&self, name: &str) {
        let mut client: Option<(String, Client)> = None;
        for n in 0.. {
            let round = self.round.load(Ordering::Relaxed);
            let (id, text) = (format!("{name}-{n}"), format!("{name}-{n} of round {round}"));
            let conversation = format!("{name} in round {round}");
            self.ledger().unanswered.insert(text.clone());
            loop {
                if self.over() {
                    return;
                }
                let address = self.address.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if client.as_ref().is_none_or(|c| c.0 != address) {
                    client = Some((address.clone(), Client::new(&address, &self.token)));
                }
                let Some((_, through)) = &client else { continue };
                let sent = Instant::now();
                let answered = through.message(&conversation, &id, &text);
                let mut ledger = self.ledger();
                match answered {
                    Ok(answer) if answer.status == 200 => {
                        ledger.unanswered.remove(&text);
                        if let Some(session) = answer.body["session_id"].as_str() {
                            ledger.sessions.insert(conversation, session.to_owned());
                        }
                        ledger.acknowledged.insert(text, Answer { sent, at: Instant::now() });
                        break;
                    }
                    Ok(answer) => {
                        let word = |field: &str| answer.body["error"][field].as_str().unwrap_or_default().to_owned();
                        if answer.status != 503 || answer.body["error"] == Value::Null {
                            ledger.odd.push(format!("{answer:?}"));
                        }
                        ledger.refused.push((word("code"), word("message"), sent));
                    }
                    // The process was killed.
                    Err(_) => {}
                }
                drop(ledger);
                std::thread::sleep(PACE);
            }
            std::thread::sleep(PACE);
        }
    }
}
