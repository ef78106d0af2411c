//! The one door to the conversations. The services know this trait and nothing of SQLite, so that another engine can
//! stand behind it one day. All calls block; each names what it keeps.

use crate::error::Result;
use crate::types::*;

/// A store of conversations, turns and jobs. A call that returns `Ok` after writing has made it durable.
pub trait Store: Send + Sync + 'static {
    /// Creates a conversation; the same id again changes nothing.
    fn create_session(&self, new: NewSession) -> Result<Session>;
    /// Appends a message; the same id again changes nothing and answers with the row that is there.
    fn append(&self, new: NewMessage) -> Result<Message>;
    /// One conversation.
    fn session(&self, id: SessionId) -> Result<Session>;
    /// The conversation with this id here, or with this id where it was imported from.
    fn find_session(&self, id: &str) -> Result<Session>;
    /// Conversations, newest activity first, pinned ones at the top.
    fn sessions(&self, options: &ListOptions) -> Result<Vec<Session>>;
    /// Messages of a conversation in order.
    fn messages(&self, id: SessionId, page: &Page) -> Result<Vec<Message>>;
    /// One message.
    fn message(&self, id: MessageId) -> Result<Message>;
    /// Sets or clears the title.
    fn rename(&self, id: SessionId, title: Option<String>) -> Result<Session>;
    /// Ends a conversation; the first reason wins.
    fn end(&self, id: SessionId, reason: String) -> Result<Session>;
    /// Messages that contain all words of `query` (case and diacritics folded), newest first.
    fn search(&self, query: &str, limit: u64) -> Result<Vec<Hit>>;

    /// Stores an inbound message with its turn, and its session and route if they are new, in one transaction.
    fn receive(&self, inbound: Inbound) -> Result<Received>;
    /// One turn.
    fn turn(&self, id: TurnId) -> Result<Turn>;
    /// Takes up the oldest turn that is queued, or running under a lease that is over, at most one a conversation at a
    /// time; `None` if there is none. `lease` is in microseconds.
    fn take_turn(&self, holder: &Holder, lease: i64) -> Result<Option<Turn>>;
    /// Prolongs the lease of every turn in `running` that `holder` has, and gives back what it has beside these: that was taken by a
    /// call whose answer was lost, for it was made in files that were removed, and was made once more. Returns how many.
    fn renew_turns(&self, holder: &Holder, lease: i64, running: &[TurnId]) -> Result<u64>;
    /// Gives back every turn that is leased to anyone but `holder` in this store's gateway role; called once by a
    /// gateway that has become the only one.
    fn release_other_turns(&self, holder: &Holder) -> Result<u64>;
    /// Stores the answer and closes the turn in one transaction. A turn that is done already keeps its first answer,
    /// which is returned.
    fn finish_turn(&self, id: TurnId, holder: &Holder, text: String) -> Result<Message>;
    /// Closes a turn that cannot be answered.
    fn fail_turn(&self, id: TurnId, holder: &Holder, error: String) -> Result<()>;
    /// Notes that the answer of a turn reached its channel (at most one such row a turn).
    fn delivered(&self, id: TurnId) -> Result<()>;

    /// Creates the job if no job has its name; answers with the one that is there.
    fn ensure_job(&self, name: &str, kind: JobKind, every_seconds: u64) -> Result<Job>;
    /// Gives a job another interval. Its next time is at the latest where the new interval, begun now, puts it.
    fn set_interval(&self, job: JobId, every_seconds: u64) -> Result<Job>;
    /// All jobs.
    fn jobs(&self) -> Result<Vec<Job>>;
    /// Claims one due occurrence of an unpaused job and moves the job's next time past `now`, in one transaction.
    /// Missed intervals collapse into one occurrence.
    fn claim_occurrence(&self, holder: &Holder, now: Micros) -> Result<Option<Occurrence>>;
    /// Records the end of an occurrence; `error` is `None` when it went well.
    fn finish_occurrence(&self, job: JobId, due_at: Micros, error: Option<String>) -> Result<()>;
    /// Returns when all that reads have shown so far is kept whatever happens. A read may be a moment ahead of the disk; who
    /// tells somebody outside what it has only read, and must never tell otherwise, calls this in between.
    fn confirm(&self) -> Result<()>;
    /// Housekeeping: removes leases that are over and turns back what they held. Returns how many.
    fn trim_leases(&self, now: Micros) -> Result<u64>;
    /// Housekeeping: refreshes the planner's statistics.
    fn optimize(&self) -> Result<()>;

    /// Writes a canary row for `role` and returns its token.
    fn write_canary(&self, role: &str) -> Result<String>;
    /// What was last written for `role`, for another process to compare with the token.
    fn canary(&self, role: &str) -> Result<Option<Canary>>;
    /// A number that changes whenever any process has committed something; cheap enough to ask several times a second.
    fn change_counter(&self) -> Result<i64>;
    /// A truthful account of the store itself, for status pages and readiness.
    fn health(&self) -> Result<Health>;
    /// Waits for what is queued and closes; later calls answer an error.
    fn close(&self);
}

/// What the engine says about itself.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Health {
    /// Where the store is.
    pub path: std::path::PathBuf,
    /// True while the handle is cut off from a retired generation.
    pub fenced: bool,
    /// The generation in use.
    pub generation: statehouse_sqlite::Generation,
    /// True if the paths name the generation in use.
    pub current: bool,
    /// What was done to the content, what is lost, and what to type, if somebody truncated or overwrote a file; `null` if nobody did.
    pub destroyed: Option<Destroyed>,
}

/// What is known of a store whose content was destroyed in place.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Destroyed {
    /// What happened, and what is left and lost, in sentences.
    pub what: String,
    /// What to do, with the command to type.
    pub next: String,
}

/// The proof that a write came through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Canary {
    /// What [`Store::write_canary`] answered.
    pub token: String,
    /// When it was written.
    pub written_at: Micros,
}
