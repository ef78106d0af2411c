//! The store on SQLite, the default engine.
//!
//! [`SqliteStore`] is a thin door: it checks what comes in, makes ids and times outside of the write (so that a write
//! that runs again, after its generation was lost, makes the same rows), and hands one closure a call to
//! [`statehouse_sqlite::Database`]. What the closures do lies beside this file, a table group each.

mod changes;
mod conversations;
pub(crate) mod imported;
mod inventory;
mod jobs;
mod merge;
mod rows;
mod schema;
mod search;
mod turns;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};
use statehouse_sqlite::{Database, Failure, Observer, Options, Ticket};

pub use merge::merge as merge_retired;
pub use schema::{APPLICATION_ID, SCHEMA, SessionsSchema, may_read};

use crate::error::{Error, Result};
use crate::query::Query;
use crate::store::{Canary, Destroyed, Health, Store};
use crate::types::*;
use conversations::{no_nul, not_found};

/// How to open a store.
#[derive(Clone)]
pub struct OpenMode {
    /// Create the store if there is none.
    pub create: bool,
    /// How long a write waits for its turn.
    pub patience: Duration,
    /// How many reads may run at once.
    pub readers: usize,
    /// Is told when the handle is fenced and when it goes on; for logs.
    pub observer: Option<Observer>,
}

impl OpenMode {
    /// Only a store that is there.
    pub fn existing() -> OpenMode {
        let usual = Options::default();
        OpenMode { create: false, patience: usual.patience, readers: usual.readers, observer: None }
    }

    /// The store that is there, or a new one.
    pub fn create() -> OpenMode {
        OpenMode { create: true, ..OpenMode::existing() }
    }
}

/// The store on SQLite. Clones share one handle.
#[derive(Clone)]
pub struct SqliteStore {
    database: Database,
    changes: Arc<changes::Changes>,
}

impl SqliteStore {
    /// Opens the store at `path`. `role` says what this process is ("gateway", "worker").
    ///
    /// # Errors
    /// A refusal with its own code, with nothing changed on disk; or what the database answered.
    pub fn open(path: &Path, role: &str, mode: OpenMode) -> Result<SqliteStore> {
        let database = Database::open(
            path,
            Options {
                role: role.to_owned(),
                create: mode.create,
                application_id: APPLICATION_ID,
                patience: mode.patience,
                readers: mode.readers,
                schema: Some(Arc::new(SessionsSchema)),
                observer: mode.observer,
            },
        )?;
        Ok(SqliteStore { database, changes: Arc::default() })
    }

    /// The database below, for status pages and operators' commands.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Queues a message; the ticket is answered once it is durable. The same rules as [`Store::append`]; many tickets
    /// may be open at once and share one commit. Errors of the store itself come as
    /// [`statehouse_sqlite::Error::Aborted`]; `Error::from` turns them back.
    pub fn append_ticket(&self, new: NewMessage) -> Ticket<Message> {
        self.database.submit(move |c| {
            conversations::check(&new).map_err(Failure::abort)?;
            conversations::append(c, &new)
        })
    }

    /// The instructions that a session was held under, if they are known.
    ///
    /// # Errors
    /// What the database answered.
    pub fn prompt(&self, id: SessionId) -> Result<Option<String>> {
        self.read(move |c| conversations::prompt(c, id))
    }

    /// What an import kept of a session beyond the fields of [`Session`], as a JSON object.
    ///
    /// # Errors
    /// What the database answered.
    pub fn session_extra(&self, id: SessionId) -> Result<Option<String>> {
        self.read(move |c| conversations::extra(c, id))
    }

    fn read<T>(&self, query: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        Ok(self.database.read(|c| query(c).map_err(Into::into))?)
    }

    fn write<T, F>(&self, request: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> Result<T, Failure> + Send + 'static,
    {
        let answer = self.database.write(request);
        self.changes.written();
        Ok(answer?)
    }
}

fn interval(seconds: u64) -> Result<i64> {
    let every = i64::try_from(seconds).ok().filter(|s| *s > 0);
    every.ok_or_else(|| Error::Invalid(format!("{seconds} seconds is no interval")))
}

fn known<T>(found: Option<T>, what: &'static str, id: impl ToString) -> Result<T> {
    found.ok_or_else(|| not_found(what, id))
}

impl Store for SqliteStore {
    fn create_session(&self, new: NewSession) -> Result<Session> {
        no_nul("the title", new.title.as_deref().unwrap_or_default())?;
        no_nul("the source", &new.source)?;
        let now = Micros::now();
        self.write(move |c| conversations::create(c, &new, now))
    }

    fn append(&self, new: NewMessage) -> Result<Message> {
        conversations::check(&new)?;
        self.write(move |c| conversations::append(c, &new))
    }

    fn session(&self, id: SessionId) -> Result<Session> {
        known(self.read(|c| conversations::get(c, id))?, "session", id)
    }

    fn find_session(&self, id: &str) -> Result<Session> {
        known(self.read(|c| conversations::find(c, id))?, "session", id)
    }

    fn sessions(&self, options: &ListOptions) -> Result<Vec<Session>> {
        self.read(|c| conversations::list(c, options))
    }

    fn messages(&self, id: SessionId, page: &Page) -> Result<Vec<Message>> {
        self.read(|c| conversations::messages(c, id, page))?
    }

    fn message(&self, id: MessageId) -> Result<Message> {
        known(self.read(|c| conversations::message(c, id))?, "message", id)
    }

    fn rename(&self, id: SessionId, title: Option<String>) -> Result<Session> {
        no_nul("the title", title.as_deref().unwrap_or_default())?;
        let now = Micros::now();
        self.write(move |c| conversations::rename(c, id, title.as_deref(), now))
    }

    fn end(&self, id: SessionId, reason: String) -> Result<Session> {
        no_nul("the reason", &reason)?;
        let now = Micros::now();
        self.write(move |c| conversations::end(c, id, &reason, now))
    }

    fn search(&self, query: &str, limit: u64) -> Result<Vec<Hit>> {
        let query = Query::parse(query);
        self.read(|c| search::search(c, &query, limit))
    }

    fn receive(&self, inbound: Inbound) -> Result<Received> {
        no_nul("the text", &inbound.text)?;
        no_nul("the conversation", &inbound.conversation)?;
        no_nul("the channel", &inbound.channel)?;
        no_nul("the id", inbound.client_id.as_deref().unwrap_or_default())?;
        let ids = turns::NewIds { session: SessionId::new(), message: MessageId::new(), turn: TurnId::new() };
        let now = Micros::now();
        self.write(move |c| turns::receive(c, &inbound, &ids, now))
    }

    fn turn(&self, id: TurnId) -> Result<Turn> {
        known(self.read(|c| turns::get(c, id))?, "turn", id)
    }

    fn take_turn(&self, holder: &Holder, lease: i64) -> Result<Option<Turn>> {
        // Most of the time there is nothing to do, and to find that out needs no write.
        if !self.read(|c| turns::any_open(c, Micros::now()))? {
            return Ok(None);
        }
        let holder = holder.clone();
        self.write(move |c| turns::take(c, &holder, lease, Micros::now()))
    }

    fn renew_turns(&self, holder: &Holder, lease: i64, running: &[TurnId]) -> Result<u64> {
        // Most of the time there is nothing to do, and to find that out needs no write.
        let of = holder.clone();
        if !self.read(move |c| turns::has_any(c, &of))? {
            return Ok(0);
        }
        let (holder, running) = (holder.clone(), running.to_vec());
        self.write(move |c| Ok(turns::renew(c, &holder, lease, &running, Micros::now())?))
    }

    fn release_other_turns(&self, holder: &Holder) -> Result<u64> {
        let holder = holder.clone();
        self.write(move |c| Ok(turns::release_others(c, &holder, Micros::now())?))
    }

    fn finish_turn(&self, id: TurnId, _holder: &Holder, text: String) -> Result<Message> {
        no_nul("the answer", &text)?;
        let reply = MessageId::new();
        let now = Micros::now();
        self.write(move |c| turns::finish(c, id, reply, &text, now))
    }

    fn fail_turn(&self, id: TurnId, holder: &Holder, error: String) -> Result<()> {
        no_nul("the error", &error)?;
        let holder = holder.clone();
        self.write(move |c| turns::fail(c, id, &holder, &error, Micros::now()))
    }

    fn delivered(&self, id: TurnId) -> Result<()> {
        let now = Micros::now();
        self.write(move |c| turns::delivered(c, id, now))
    }

    fn ensure_job(&self, name: &str, kind: JobKind, every_seconds: u64) -> Result<Job> {
        no_nul("the name", name)?;
        let every = interval(every_seconds)?;
        let kind = serde_json::to_string(&kind).map_err(|e| Error::Invalid(e.to_string()))?;
        let (id, name, now) = (JobId::new(), name.to_owned(), Micros::now());
        self.write(move |c| jobs::ensure(c, id, &name, &kind, every, now))
    }

    fn set_interval(&self, job: JobId, every_seconds: u64) -> Result<Job> {
        let (every, now) = (interval(every_seconds)?, Micros::now());
        self.write(move |c| jobs::set_interval(c, job, every, now))
    }

    fn jobs(&self) -> Result<Vec<Job>> {
        self.read(jobs::list)
    }

    fn claim_occurrence(&self, holder: &Holder, now: Micros) -> Result<Option<Occurrence>> {
        if !self.read(|c| jobs::any_due(c, now))? {
            return Ok(None);
        }
        let holder = holder.clone();
        self.write(move |c| jobs::claim(c, &holder, now))
    }

    fn finish_occurrence(&self, job: JobId, due_at: Micros, error: Option<String>) -> Result<()> {
        no_nul("the error", error.as_deref().unwrap_or_default())?;
        let now = Micros::now();
        self.write(move |c| jobs::finish(c, job, due_at, error.as_deref(), now))
    }

    fn trim_leases(&self, now: Micros) -> Result<u64> {
        self.write(move |c| Ok(turns::trim(c, now)?))
    }

    fn confirm(&self) -> Result<()> {
        // Even a write that changes nothing is answered only after a flush of the log.
        Ok(self.database.write(|_| Ok(()))?)
    }

    fn optimize(&self) -> Result<()> {
        self.write(|c| {
            // The mask asks for tables that were never analysed, too, and bounds the work on each.
            let mut pragma = c.prepare("PRAGMA optimize = 0x10002")?;
            let mut rows = pragma.query([])?;
            while rows.next()?.is_some() {}
            Ok(())
        })
    }

    fn write_canary(&self, role: &str) -> Result<String> {
        no_nul("the role", role)?;
        let (role, token, now) = (role.to_owned(), uuid::Uuid::now_v7().simple().to_string(), Micros::now());
        self.write(move |c| {
            c.prepare_cached(
                "INSERT INTO canary(role, token, written_at) VALUES (?1, ?2, ?3)
                 ON CONFLICT(role) DO UPDATE SET token = excluded.token, written_at = excluded.written_at",
            )?
            .execute(params![role, token, now])?;
            Ok(token.clone())
        })
    }

    fn canary(&self, role: &str) -> Result<Option<Canary>> {
        self.read(|c| {
            c.prepare_cached("SELECT token, written_at FROM canary WHERE role = ?1")?
                .query_row([role], |r| Ok(Canary { token: r.get(0)?, written_at: r.get(1)? }))
                .optional()
        })
    }

    fn change_counter(&self) -> Result<i64> {
        let generation = self.database.generation();
        self.read(|c| self.changes.look(c, generation))
    }

    fn health(&self) -> Result<Health> {
        let generation = self.database.generation();
        let family = self.database.family();
        let named =
            family.generation().map_err(|e| statehouse_sqlite::Error::io("look at the files of", &family.main(), e))?;
        let mark = statehouse_sqlite::destroyed::mark(family)?;
        let destroyed = mark.map(|mark| {
            let next = mark.next(family).unwrap_or_else(|| statehouse_sqlite::Reason::Destroyed.hint().to_owned());
            Destroyed { what: mark.words(), next }
        });
        Ok(Health {
            destroyed,
            path: family.main(),
            fenced: self.database.fenced(),
            generation,
            current: generation.differences(&named).is_empty(),
        })
    }

    fn close(&self) {
        // What could not be kept was told to the observer.
        let _ = self.database.close();
    }
}
