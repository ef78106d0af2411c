//! What answers a message.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use statehouse_sessions::{MessageId, SessionId, TurnId};

/// What is to be answered.
#[derive(Debug, Clone)]
pub struct Question {
    /// The conversation.
    pub session_id: SessionId,
    /// The turn; the same turn again means that the process died while it answered.
    pub turn_id: TurnId,
    /// The inbound message.
    pub message_id: MessageId,
    /// What was said.
    pub text: String,
}

/// An answer, piece by piece. The text of the answer is the pieces put together; an error ends it.
pub type Answer = Pin<Box<dyn Stream<Item = Result<String, CannotAnswer>> + Send>>;

/// Why a message cannot be answered, as a sentence for the person who sent it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct CannotAnswer(pub String);

/// Something that answers messages. It runs on the thread of all connections: whatever blocks belongs on the blocking
/// pool of the runtime.
pub trait Responder: Send + Sync + 'static {
    /// The name of the model that `/v1/models` shows.
    fn name(&self) -> &str;
    /// Begins an answer.
    fn respond(&self, question: Question) -> Answer;
}

/// The responder that needs nothing: it says the message back, and that it does so.
#[derive(Debug, Clone, Copy, Default)]
pub struct Echo;

impl Responder for Echo {
    fn name(&self) -> &str {
        "echo"
    }

    fn respond(&self, question: Question) -> Answer {
        let pieces = vec!["This is an echo, for no responder is configured. You said: ".to_owned(), question.text];
        Box::pin(Pieces(pieces.into_iter()))
    }
}

struct Pieces(std::vec::IntoIter<String>);

impl Stream for Pieces {
    type Item = Result<String, CannotAnswer>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(self.0.next().map(Ok))
    }
}
