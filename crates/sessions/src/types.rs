//! The words of the store: sessions, messages, turns, jobs.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A new id (UUIDv7, so ids of one process sort by time).
            #[expect(clippy::new_without_default, reason = "an id is never a default")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = uuid::Error;
            fn from_str(s: &str) -> Result<Self, uuid::Error> {
                Uuid::parse_str(s).map(Self)
            }
        }
    };
}

id!(
    /// A conversation.
    SessionId
);
id!(
    /// One message of a conversation.
    MessageId
);
id!(
    /// One inbound message and everything that answers it.
    TurnId
);
id!(
    /// A scheduled job.
    JobId
);

/// Microseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Micros(pub i64);

impl Micros {
    /// The present moment.
    pub fn now() -> Micros {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Micros(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }
}

/// Where an imported session came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The program, for example `hermes`.
    pub system: String,
    /// The id that it had there.
    pub id: String,
}

/// One conversation, without its messages.
#[derive(Debug, Clone)]
pub struct Session {
    /// Our id.
    pub id: SessionId,
    /// The session that it continues or branches from.
    pub parent_id: Option<SessionId>,
    /// Where it was imported from.
    pub origin: Option<Origin>,
    /// Its title, if it has one.
    pub title: Option<String>,
    /// The channel or program that it belongs to: `http`, `cli`, `telegram`, ...
    pub source: String,
    /// When it began.
    pub started_at: Micros,
    /// The time of its newest message, or of its beginning.
    pub last_active_at: Micros,
    /// When it ended, if it did.
    pub ended_at: Option<Micros>,
    /// Why it ended.
    pub end_reason: Option<String>,
    /// Number of message rows.
    pub messages: u64,
    /// Hidden from lists until asked for.
    pub archived: bool,
    /// Never shown in lists unless asked for.
    pub hidden: bool,
    /// Kept at the top.
    pub pinned: bool,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The person.
    User,
    /// The responder.
    Assistant,
    /// Instructions.
    System,
    /// The result of a tool.
    Tool,
}

impl Role {
    /// As stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::System => "system",
            Role::Tool => "tool",
        }
    }
}

/// One message as stored.
#[derive(Debug, Clone)]
pub struct Message {
    /// Our id.
    pub id: MessageId,
    /// Its conversation.
    pub session_id: SessionId,
    /// Position within the conversation, strictly growing.
    pub seq: i64,
    /// Who speaks.
    pub role: Role,
    /// The plain text, empty if there is none.
    pub text: String,
    /// Structured content as JSON, verbatim, if there is any.
    pub parts: Option<Box<RawValue>>,
    /// Tool calls as JSON, verbatim, if there are any.
    pub tool_calls: Option<Box<RawValue>>,
    /// The call that a tool message answers.
    pub tool_call_id: Option<String>,
    /// The tool that a tool message comes from.
    pub tool_name: Option<String>,
    /// When it was said.
    pub created_at: Micros,
    /// What an import kept of the source beyond the fields above, as a JSON object.
    pub extra: Option<Box<RawValue>>,
}

/// A message to be appended. Appending is idempotent by `id`.
#[derive(Debug, Clone)]
pub struct NewMessage {
    /// The id; the same id again changes nothing.
    pub id: MessageId,
    /// The conversation, which must exist.
    pub session_id: SessionId,
    /// Who speaks.
    pub role: Role,
    /// The plain text.
    pub text: String,
    /// Structured content.
    pub parts: Option<Box<RawValue>>,
    /// Tool calls.
    pub tool_calls: Option<Box<RawValue>>,
    /// The call that it answers.
    pub tool_call_id: Option<String>,
    /// The tool that it comes from.
    pub tool_name: Option<String>,
    /// When it was said.
    pub created_at: Micros,
}

impl NewMessage {
    /// A text message of now.
    pub fn text(session_id: SessionId, role: Role, text: impl Into<String>) -> NewMessage {
        NewMessage {
            id: MessageId::new(),
            session_id,
            role,
            text: text.into(),
            parts: None,
            tool_calls: None,
            tool_call_id: None,
            tool_name: None,
            created_at: Micros::now(),
        }
    }
}

/// A conversation to be created. Creating is idempotent by `id`.
#[derive(Debug, Clone)]
pub struct NewSession {
    /// The id.
    pub id: SessionId,
    /// The session that it continues.
    pub parent_id: Option<SessionId>,
    /// A title.
    pub title: Option<String>,
    /// The channel or program.
    pub source: String,
}

/// What came in from a channel.
#[derive(Debug, Clone)]
pub struct Inbound {
    /// The channel, for example `http`.
    pub channel: String,
    /// The channel's own name for the conversation; the first message of one creates its session.
    pub conversation: String,
    /// The channel's own id of this message; the same id again in the same conversation is the same message.
    pub client_id: Option<String>,
    /// What was said.
    pub text: String,
}

/// The receipt for an [`Inbound`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The message row.
    pub message_id: MessageId,
    /// Its conversation.
    pub session_id: SessionId,
    /// The turn that answers it.
    pub turn_id: TurnId,
    /// True if the same client id had been received before.
    pub duplicate: bool,
}

/// How far a turn is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TurnState {
    /// Stored, not yet taken up (or taken up by a process that died).
    Queued,
    /// A process holds its lease and answers it.
    Running,
    /// The answer is stored.
    Done,
    /// It cannot be answered; `error` says why.
    Failed,
}

/// One inbound message and what answers it.
#[derive(Debug, Clone)]
pub struct Turn {
    /// Its id.
    pub id: TurnId,
    /// Its conversation.
    pub session_id: SessionId,
    /// The inbound message.
    pub message_id: MessageId,
    /// The channel to deliver to.
    pub channel: String,
    /// How far it is.
    pub state: TurnState,
    /// The answer, once done.
    pub reply_id: Option<MessageId>,
    /// Why it failed.
    pub error: Option<String>,
    /// How often a process has taken it up.
    pub attempts: u32,
}

/// Who holds a lease: unique for each start of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder(pub String);

/// Which sessions to list.
#[derive(Debug, Clone, Default)]
pub struct ListOptions {
    /// Also archived and hidden ones.
    pub all: bool,
    /// At most so many.
    pub limit: Option<u64>,
    /// Only this source.
    pub source: Option<String>,
}

/// Which messages of a session to read. All of them by default, in order.
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// Only messages before this one.
    pub before: Option<MessageId>,
    /// Only messages after this one.
    pub after: Option<MessageId>,
    /// At most so many: the last ones, or the first ones when `after` is given.
    pub limit: Option<u64>,
}

/// One place where a search found something.
#[derive(Debug, Clone)]
pub struct Hit {
    /// The conversation.
    pub session_id: SessionId,
    /// The message.
    pub message_id: MessageId,
    /// Who speaks there.
    pub role: Role,
    /// The text around the find, with the found words between U+2068 and U+2069.
    pub snippet: String,
    /// Larger is better.
    pub score: f64,
    /// When it was said.
    pub created_at: Micros,
}

/// What to do when a job is due.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum JobKind {
    /// A housekeeping job of ours, by name.
    Housekeeping {
        /// Its name.
        name: String,
    },
}

/// A job with an interval.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Its name, unique.
    pub name: String,
    /// What it does.
    pub kind: JobKind,
    /// Seconds between two occurrences.
    pub every_seconds: u64,
    /// The next time.
    pub next_due_at: Micros,
    /// Not run while paused.
    pub paused: bool,
}

/// One due time of a job, claimed by one process.
#[derive(Debug, Clone)]
pub struct Occurrence {
    /// Which job.
    pub job: Job,
    /// The time that it was due.
    pub due_at: Micros,
}

/// What an import did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ImportReport {
    /// Sessions newly taken over by this run.
    pub sessions: u64,
    /// Messages newly taken over by this run.
    pub messages: u64,
    /// Rows that could not be taken over.
    pub skipped: u64,
    /// Rows (sessions and messages) that an earlier run had taken over.
    pub already_present: u64,
}
