//! Listening to the answer of a turn, whether it is still to come, growing, or stored long ago.

use std::sync::Arc;
use std::time::Duration;

use statehouse_http::Problem;
use statehouse_sessions::{Message, Turn, TurnId, TurnState};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::app::App;
use crate::live::{Growing, Outcome, Progress};

/// How often a silent answer is looked up in the store, for the case that another process has ended its turn.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// What a listener hears next.
#[derive(Debug)]
pub(crate) enum Heard {
    /// More of the text.
    Piece(String),
    /// The end.
    End(Outcome),
    /// This process will not bring the turn to its end any more.
    Stopped,
}

/// One listener.
pub(crate) struct Listener {
    app: Arc<App>,
    turn: TurnId,
    // Held so that the writer, when it begins, writes to the same place.
    _growing: Growing,
    progress: watch::Receiver<Progress>,
    heard: usize,
    stored: Option<Outcome>,
}

impl Listener {
    /// Listens to a turn.
    ///
    /// # Errors
    /// `not_found`, or the store's error.
    pub(crate) async fn to(app: &Arc<App>, turn: TurnId) -> Result<Listener, Problem> {
        // First the place, then the look into the store: a turn that ends in between is seen in one of the two.
        let growing = app.live.of(turn);
        let progress = growing.subscribe();
        let mut listener = Listener { app: Arc::clone(app), turn, _growing: growing, progress, heard: 0, stored: None };
        listener.stored = listener.look().await?;
        Ok(listener)
    }

    /// What the store says about the end of the turn. An end that is told must not be told otherwise later, so it is kept by
    /// then.
    async fn look(&self) -> Result<Option<Outcome>, Problem> {
        let id = self.turn;
        let (turn, reply): (Turn, Option<Message>) = self
            .app
            .store(move |s| {
                let turn = s.turn(id)?;
                let reply = turn.reply_id.map(|reply| s.message(reply)).transpose()?;
                if matches!(turn.state, TurnState::Done | TurnState::Failed) {
                    s.confirm()?;
                }
                Ok((turn, reply))
            })
            .await?;
        Ok(match (turn.state, reply) {
            (TurnState::Done, Some(reply)) => Some(Outcome::Done { message_id: reply.id, text: reply.text }),
            (TurnState::Done, None) => Some(Outcome::Failed("its answer is not in the store".into())),
            (TurnState::Failed, _) => Some(Outcome::Failed(turn.error.unwrap_or_default())),
            (TurnState::Queued | TurnState::Running, _) => None,
        })
    }

    /// The next piece or the end. The text of all pieces is the text of the answer, however late one listens.
    pub(crate) async fn next(&mut self) -> Heard {
        loop {
            {
                let now = self.progress.borrow_and_update();
                if let Some(more) = now.text.get(self.heard..).filter(|more| !more.is_empty()) {
                    self.heard = now.text.len();
                    return Heard::Piece(more.to_owned());
                }
                if let Some(outcome) = &now.outcome {
                    return Heard::End(outcome.clone());
                }
            }
            match &self.stored {
                Some(Outcome::Done { text, .. }) if self.heard == 0 && !text.is_empty() => {
                    self.heard = text.len();
                    return Heard::Piece(text.clone());
                }
                Some(outcome) => return Heard::End(outcome.clone()),
                None => {}
            }
            tokio::select! {
                _ = self.progress.changed() => {}
                () = self.app.stopped.begun() => return Heard::Stopped,
                () = sleep(LOOK_AGAIN) => {
                    if let Ok(stored) = self.look().await {
                        self.stored = stored;
                    }
                }
            }
        }
    }

    /// Waits for the end; `None` when this process stops before.
    pub(crate) async fn end(mut self) -> Option<Outcome> {
        loop {
            match self.next().await {
                Heard::Piece(_) => {}
                Heard::End(outcome) => return Some(outcome),
                Heard::Stopped => return None,
            }
        }
    }
}
