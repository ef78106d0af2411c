//! Answers while they grow: one writer a turn, any number of listeners, and nobody misses a piece.
//!
//! A listener does not get pieces handed out; it reads the text from where it stopped. So one that comes late gets the
//! whole text, one that is slow gets larger pieces, and memory holds each answer once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use statehouse_sessions::{MessageId, TurnId};
use tokio::sync::watch;

/// How an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is stored; the text is the stored one.
    Done { message_id: MessageId, text: String },
    /// There is none, and why.
    Failed(String),
}

/// How far an answer is.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) text: String,
    pub(crate) outcome: Option<Outcome>,
}

/// The growing answer of one turn.
pub(crate) type Growing = Arc<watch::Sender<Progress>>;

/// All answers that somebody writes or listens to. An entry lives as long as one of those holds it.
#[derive(Debug, Default)]
pub(crate) struct Live {
    turns: Mutex<HashMap<TurnId, Weak<watch::Sender<Progress>>>>,
}

impl Live {
    /// The growing answer of a turn, the same for all who ask.
    pub(crate) fn of(&self, turn: TurnId) -> Growing {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(growing) = turns.get(&turn).and_then(Weak::upgrade) {
            return growing;
        }
        if turns.len() == turns.capacity() {
            // The map is about to grow: first forget those that nobody holds any more.
            turns.retain(|_, growing| growing.strong_count() > 0);
        }
        let growing = Arc::new(watch::channel(Progress::default()).0);
        turns.insert(turn, Arc::downgrade(&growing));
        growing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_see_one_answer_and_forgotten_ones_take_no_room() {
        let live = Live::default();
        let turn = TurnId::new();
        let writer = live.of(turn);
        writer.send_modify(|p| p.text.push_str("half"));
        assert_eq!(live.of(turn).borrow().text, "half");
        for _ in 0..10_000 {
            drop(live.of(TurnId::new()));
        }
        assert!(live.turns.lock().unwrap_or_else(PoisonError::into_inner).capacity() < 100);
        assert_eq!(live.of(turn).borrow().text, "half");
    }
}
