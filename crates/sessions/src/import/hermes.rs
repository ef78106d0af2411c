//! Hermes Agent's `state.db`, schema 22 and later: every session and every message.
//!
//! Columns are looked up by name, so a layout that lacks some or has more is read all the same.
//!
//! **What a row is.** A session is known by its id and the time at which it began, for clients of some channels choose
//! ids of their own and two profiles may have the same. A message is known by its session and by what Hermes itself
//! compares (role, content, time, tool call, tool calls, tool name), counted among equal ones: Hermes deletes and
//! inserts whole transcripts anew, and moves them between homes, so row ids name nothing that lasts.

use std::collections::HashMap;
use std::path::Path;

use rusqlite::Statement;
use rusqlite::types::ValueRef;
use uuid::Uuid;

use super::convert::{Fields, moment, plain, raw, role, verbatim};
use super::source::{Source, resolve};
use super::{ImportOptions, ImportProgress};
use crate::error::{Error, Result};
use crate::sqlite::SqliteStore;
use crate::sqlite::imported::{ImportedMessage, ImportedSession, ImportedUsage, Prompt, Taken};
use crate::store::Store as _;
use crate::types::*;

/// The name of the program in [`Origin`].
const SYSTEM: &str = "hermes";

/// Structured content is stored as text that begins so.
const STRUCTURED: &str = "\0json:";

/// A batch is written in one transaction, so it must not keep others from writing for long.
const BATCH_ROWS: usize = 500;
const BATCH_BYTES: usize = 4 << 20;

/// An id for a row of Hermes: a version 8 UUID made of a hash of what the row is.
fn id_of(parts: &[&[u8]]) -> Uuid {
    let mut hasher = blake3::Hasher::new_derive_key("statehouse 2026-11 ids of imported rows");
    hasher.update(SYSTEM.as_bytes());
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut bytes = [0; 16];
    hasher.finalize_xof().fill(&mut bytes);
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

/// A value as bytes that no other value has.
fn bytes_of(value: ValueRef<'_>) -> Vec<u8> {
    let (tag, bytes) = match value {
        ValueRef::Null => (b'n', Vec::new()),
        ValueRef::Integer(i) => (b'i', i.to_le_bytes().to_vec()),
        ValueRef::Real(r) => (b'r', r.to_bits().to_le_bytes().to_vec()),
        ValueRef::Text(t) => (b't', t.to_vec()),
        ValueRef::Blob(b) => (b'b', b.to_vec()),
    };
    [vec![tag], bytes].concat()
}

/// The id of a session as a person would type it.
fn name_of(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Text(t) => Some(String::from_utf8_lossy(t).replace('\0', "\u{fffd}")),
        ValueRef::Integer(i) => Some(i.to_string()),
        ValueRef::Real(r) => Some(r.to_string()),
        ValueRef::Blob(b) => Some(String::from_utf8_lossy(b).replace('\0', "\u{fffd}")),
    }
}

/// What the source knows about its sessions: our id, and a moment for messages that have none.
#[derive(Default)]
struct Known(HashMap<Vec<u8>, (SessionId, Option<Micros>)>);

fn session_id(id: ValueRef<'_>, started_at: ValueRef<'_>) -> SessionId {
    SessionId(id_of(&[b"session", &bytes_of(id), &bytes_of(started_at)]))
}

impl SqliteStore {
    /// Takes over every session and message of a Hermes home, or of a `state.db`. The source is only read, and not a
    /// byte, name or time of it changes. A run takes what earlier ones did not; sessions that were not changed here
    /// since are brought up to date. `progress` is called after each batch.
    ///
    /// # Errors
    /// [`Error::Source`] when the source cannot be read, with what was read until then taken over; what the
    /// database answered.
    pub fn import_hermes(
        &self,
        path: &Path,
        options: ImportOptions,
        progress: &mut dyn FnMut(ImportProgress),
    ) -> Result<ImportReport> {
        let main = resolve(path, "state.db")?;
        let scratch = self.database().family().side_directory();
        let source = Source::open(&main, &scratch)?;
        let first = Import::new(self, &main, options).run(&source, progress);
        if source.settled() {
            return first.map_err(|(_, e)| e);
        }
        // Someone wrote to it while it was read in place, so what was read may be torn: once more, from a copy.
        drop(source);
        let before = first.unwrap_or_else(|(report, _)| report);
        let source = Source::copied(&main, &scratch)?;
        let again = Import::new(self, &main, options).run(&source, progress).map_err(|(_, e)| e)?;
        if options.dry_run {
            return Ok(again);
        }
        let taken = before.sessions + before.messages;
        Ok(ImportReport {
            sessions: before.sessions + again.sessions,
            messages: before.messages + again.messages,
            skipped: again.skipped,
            already_present: again.already_present.saturating_sub(taken),
        })
    }
}

/// Proves that `path` leads to a store of Hermes Agent, before a store of ours is made for it. A private copy, if one is
/// needed, is made below `scratch` and removed again.
///
/// # Errors
/// [`Error::Source`].
pub fn check_hermes(path: &Path, scratch: &Path) -> Result<()> {
    let main = resolve(path, "state.db")?;
    let source = Source::open(&main, scratch)?;
    must_be_hermes(&source).map_err(|detail| Error::Source { path: main, detail })
}

fn must_be_hermes(source: &Source) -> Result<(), String> {
    for table in ["sessions", "messages"] {
        if !has_table(source, table).map_err(|e| e.to_string())? {
            return Err(format!("it is no store of Hermes Agent: it has no table {table}"));
        }
    }
    Ok(())
}

fn has_table(source: &Source, name: &str) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?1)";
    source.connection.query_row(sql, [name], |r| r.get(0))
}

struct Import<'a> {
    store: &'a SqliteStore,
    main: &'a Path,
    options: ImportOptions,
    report: ImportReport,
    known: Known,
}

type Attempt<T> = Result<T, (ImportReport, Error)>;

impl<'a> Import<'a> {
    fn new(store: &'a SqliteStore, main: &'a Path, options: ImportOptions) -> Import<'a> {
        Import { store, main, options, report: ImportReport::default(), known: Known::default() }
    }

    fn run(mut self, source: &Source, progress: &mut dyn FnMut(ImportProgress)) -> Attempt<ImportReport> {
        let taken = self.take(source, progress);
        // Rows that were there already may be another import's that has not heard yet that they are kept.
        let kept = if self.options.dry_run { taken } else { taken.and_then(|()| self.store.confirm()) };
        match kept {
            Ok(()) => Ok(self.report),
            Err(e) => Err((self.report, e)),
        }
    }

    fn bad(&self, e: impl ToString) -> Error {
        Error::Source { path: self.main.to_owned(), detail: e.to_string() }
    }

    /// A statement that reads all of a table, and the names of its columns. The names come from the schema as bytes: those
    /// of a statement must be UTF-8, which a damaged schema need not be.
    fn prepare<'s>(&self, source: &'s Source, table: &str, order: &str) -> Result<(Statement<'s>, Vec<String>)> {
        let connection = &source.connection;
        // Hidden columns of the first kind are those that `*` leaves out.
        let mut columns = connection
            .prepare("SELECT CAST(name AS BLOB) FROM pragma_table_xinfo(?1) WHERE hidden <> 1 ORDER BY cid")
            .map_err(|e| self.bad(e))?;
        let names: Vec<String> = columns
            .query_map([table], |r| Ok(String::from_utf8_lossy(r.get_ref(0)?.as_blob()?).into_owned()))
            .and_then(Iterator::collect)
            .map_err(|e| self.bad(e))?;
        let statement = connection.prepare(&format!("SELECT * FROM {table} {order}")).map_err(|e| self.bad(e))?;
        if statement.column_count() != names.len() {
            return Err(self.bad(format!("the columns of its table {table} cannot be named")));
        }
        Ok((statement, names))
    }

    fn has_table(&self, source: &Source, name: &str) -> Result<bool> {
        has_table(source, name).map_err(|e| self.bad(e))
    }

    fn take(&mut self, source: &Source, progress: &mut dyn FnMut(ImportProgress)) -> Result<()> {
        must_be_hermes(source).map_err(|detail| self.bad(detail))?;
        let total: i64 =
            source.connection.query_row("SELECT count(*) FROM messages", [], |r| r.get(0)).map_err(|e| self.bad(e))?;
        let mut done = ImportProgress { done: 0, total: total.try_into().unwrap_or(0) };
        progress(done);
        self.sessions(source)?;
        self.messages(source, &mut |batch| {
            done.done += batch;
            progress(done);
        })
    }

    fn sessions(&mut self, source: &Source) -> Result<()> {
        // Ids first: a parent may come later in the file than its child.
        let (mut statement, names) = self.prepare(source, "sessions", "ORDER BY rowid")?;
        let mut rows = statement.query([]).map_err(|e| self.bad(e))?;
        while let Some(row) = rows.next().map_err(|e| self.bad(e))? {
            let mut fields = Fields::of(row, &names).map_err(|e| self.bad(e))?;
            let id = session_id(fields.get("id"), fields.get("started_at"));
            self.known.0.insert(bytes_of(fields.get("id")), (id, fields.moment("started_at")));
        }
        drop(rows);
        let mut usage = self.usage(source)?;
        let prompts = self.prompts(source)?;
        let mut batch = Vec::new();
        let mut rows = statement.query([]).map_err(|e| self.bad(e))?;
        while let Some(row) = rows.next().map_err(|e| self.bad(e))? {
            let fields = Fields::of(row, &names).map_err(|e| self.bad(e))?;
            batch.push(self.session(fields, &mut usage, &prompts));
            if batch.len() == BATCH_ROWS {
                self.write_sessions(std::mem::take(&mut batch))?;
            }
        }
        self.write_sessions(batch)
    }

    fn session(
        &self,
        mut fields: Fields<'_>,
        usage: &mut HashMap<Vec<u8>, Vec<ImportedUsage>>,
        prompts: &HashMap<Vec<u8>, String>,
    ) -> ImportedSession {
        let key = bytes_of(fields.get("id"));
        let id = session_id(fields.get("id"), fields.get("started_at"));
        let parent = fields.get("parent_session_id");
        let parent_id = name_of(parent).map(|_| match self.known.0.get(&bytes_of(parent)) {
            Some((id, _)) => *id,
            // The parent is not in this file. Its place is kept: the text goes into `extra`.
            None => session_id(parent, ValueRef::Null),
        });
        let mut usage = usage.remove(&key).unwrap_or_default();
        if usage.is_empty() {
            usage.extend(own_counters(&fields));
        }
        let prompt = fields.text("system_prompt").filter(|p| !p.is_empty());
        let by_hash = |column| prompts.get(&bytes_of(fields.get(column))).cloned();
        let prompt = prompt.or_else(|| by_hash("system_prompt_hash"));
        let tools = by_hash("tool_names");
        let origin_id =
            fields.text("id").unwrap_or_else(|| format!("without id, began {:?}", fields.get("started_at")));
        let title = fields.text("title");
        let source = fields.text("source").unwrap_or_else(|| "unknown".into());
        let started_at = fields.moment("started_at");
        let ended_at = fields.moment("ended_at");
        let end_reason = fields.text("end_reason");
        let (archived, hidden, pinned) = (fields.flag("archived"), fields.flag("hidden"), fields.flag("pinned"));
        let mut extra = fields.rest();
        let tools = tools.map(Prompt::new);
        if let Some(tools) = &tools {
            extra.insert("tool_names_prompt".into(), tools.hash.to_hex().to_string().into());
        }
        ImportedSession {
            id,
            parent_id,
            origin: Origin { system: SYSTEM.into(), id: origin_id },
            title,
            source,
            prompt: prompt.map(Prompt::new),
            tools,
            started_at: started_at.or_else(|| moment(946_684_800.0)).unwrap_or_default(),
            ended_at,
            end_reason,
            archived,
            hidden,
            pinned,
            extra: serde_json::Value::Object(extra).to_string(),
            usage,
        }
    }

    /// The texts that sessions of newer layouts refer to by hash.
    fn prompts(&self, source: &Source) -> Result<HashMap<Vec<u8>, String>> {
        let mut prompts = HashMap::new();
        if !self.has_table(source, "system_prompts")? {
            return Ok(prompts);
        }
        let (mut statement, names) = self.prepare(source, "system_prompts", "")?;
        let mut rows = statement.query([]).map_err(|e| self.bad(e))?;
        while let Some(row) = rows.next().map_err(|e| self.bad(e))? {
            let mut fields = Fields::of(row, &names).map_err(|e| self.bad(e))?;
            if let Some(text) = fields.text("prompt") {
                prompts.insert(bytes_of(fields.get("hash")), text);
            }
        }
        Ok(prompts)
    }

    fn usage(&self, source: &Source) -> Result<HashMap<Vec<u8>, Vec<ImportedUsage>>> {
        let mut usage: HashMap<_, Vec<_>> = HashMap::new();
        if !self.has_table(source, "session_model_usage")? {
            return Ok(usage);
        }
        let (mut statement, names) = self.prepare(source, "session_model_usage", "ORDER BY rowid")?;
        let mut rows = statement.query([]).map_err(|e| self.bad(e))?;
        while let Some(row) = rows.next().map_err(|e| self.bad(e))? {
            let mut fields = Fields::of(row, &names).map_err(|e| self.bad(e))?;
            let session = bytes_of(fields.get("session_id"));
            fields.used("session_id");
            let mut row = counters(&mut fields);
            row.extra = Some(serde_json::Value::Object(fields.rest()).to_string());
            usage.entry(session).or_default().push(row);
        }
        Ok(usage)
    }

    fn write_sessions(&mut self, batch: Vec<ImportedSession>) -> Result<()> {
        let taken = self.store.write_imported_sessions(batch, self.options.dry_run)?;
        self.report.sessions += taken.new;
        self.report.already_present += taken.present;
        self.report.skipped += taken.skipped;
        Ok(())
    }

    fn messages(&mut self, source: &Source, progress: &mut dyn FnMut(u64)) -> Result<()> {
        let (mut statement, names) = self.prepare(source, "messages", "ORDER BY rowid")?;
        let mut rows = statement.query([]).map_err(|e| self.bad(e))?;
        let mut equal: HashMap<Uuid, u32> = HashMap::new();
        let mut last: HashMap<SessionId, Micros> = HashMap::new();
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut orphaned = Vec::new();
        while let Some(row) = rows.next().map_err(|e| self.bad(e))? {
            let mut fields = Fields::of(row, &names).map_err(|e| self.bad(e))?;
            let owner = fields.get("session_id");
            let key = bytes_of(owner);
            let (session, began) = match self.known.0.get(&key) {
                Some(known) => *known,
                None => {
                    let began = fields.moment("timestamp");
                    let place = placeholder(owner, began);
                    let id = place.id;
                    self.known.0.insert(key, (id, began));
                    orphaned.push(place);
                    (id, began)
                }
            };
            let said = fields.moment("timestamp").or_else(|| last.get(&session).copied()).or(began);
            let created_at = said.or_else(|| moment(946_684_800.0)).unwrap_or_default();
            last.insert(session, created_at);
            let message = message(fields, session, created_at, &mut equal);
            bytes += message.size();
            batch.push(message);
            if batch.len() == BATCH_ROWS || bytes > BATCH_BYTES {
                self.write_sessions(std::mem::take(&mut orphaned))?;
                progress(self.write_messages(std::mem::take(&mut batch))?);
                bytes = 0;
            }
        }
        self.write_sessions(orphaned)?;
        progress(self.write_messages(batch)?);
        Ok(())
    }

    fn write_messages(&mut self, batch: Vec<ImportedMessage>) -> Result<u64> {
        let Taken { new, present, skipped } = self.store.write_imported_messages(batch, self.options.dry_run)?;
        self.report.messages += new;
        self.report.already_present += present;
        self.report.skipped += skipped;
        Ok(new + present + skipped)
    }
}

/// A session for messages whose own is gone.
fn placeholder(owner: ValueRef<'_>, began: Option<Micros>) -> ImportedSession {
    let name = name_of(owner).unwrap_or_else(|| "without session".into());
    let extra = serde_json::json!({ "placeholder": true, "id": verbatim(owner) });
    ImportedSession {
        id: session_id(owner, ValueRef::Null),
        parent_id: None,
        origin: Origin { system: SYSTEM.into(), id: name },
        title: None,
        source: "unknown".into(),
        prompt: None,
        tools: None,
        started_at: began.or_else(|| moment(946_684_800.0)).unwrap_or_default(),
        ended_at: None,
        end_reason: None,
        archived: false,
        hidden: false,
        pinned: false,
        extra: extra.to_string(),
        usage: Vec::new(),
    }
}

fn message(
    mut fields: Fields<'_>,
    session_id: SessionId,
    created_at: Micros,
    equal: &mut HashMap<Uuid, u32>,
) -> ImportedMessage {
    let what = ["role", "content", "timestamp", "tool_call_id", "tool_calls", "tool_name"];
    let what = what.map(|column| bytes_of(fields.get(column)));
    let [a, b, c, d, e, f] = &what;
    let same = id_of(&[b"same", session_id.0.as_bytes(), a, b, c, d, e, f]);
    let nth = equal.entry(same).or_default();
    let id = MessageId(id_of(&[b"message", same.as_bytes(), &nth.to_le_bytes()]));
    *nth += 1;

    let named = fields.text("role").unwrap_or_default();
    let (role, exact) = role(&named);
    let (text, parts, whole) = content(&mut fields);
    let tool_calls = fields.json("tool_calls");
    let tool_call_id = fields.text("tool_call_id");
    let tool_name = fields.text("tool_name");
    fields.used("session_id");
    let mut extra = fields.rest();
    if !exact {
        extra.insert("role".into(), verbatim(fields.get("role")));
    }
    if !whole {
        extra.insert("content".into(), verbatim(fields.get("content")));
    }
    ImportedMessage {
        message: NewMessage { id, session_id, role, text, parts, tool_calls, tool_call_id, tool_name, created_at },
        extra: serde_json::Value::Object(extra).to_string(),
    }
}

/// The plain text, the structured content if it is some, and whether they say all that the column says.
fn content(fields: &mut Fields<'_>) -> (String, Option<Box<serde_json::value::RawValue>>, bool) {
    let value = fields.get("content");
    if let ValueRef::Text(t) = value
        && let Ok(t) = std::str::from_utf8(t)
        && let Some(json) = t.strip_prefix(STRUCTURED)
    {
        fields.used("content");
        return match raw(json) {
            Some(parts) => {
                let whole = parts.get() == json;
                (plain(&parts), Some(parts), whole)
            }
            None => (json.replace('\0', "\u{fffd}"), None, false),
        };
    }
    let null = matches!(value, ValueRef::Null);
    (fields.text("content").unwrap_or_default(), None, !null)
}

/// The sums that a usage row, or a session of an old layout, carries.
fn counters(fields: &mut Fields<'_>) -> ImportedUsage {
    let mut text = |column| fields.text(column).unwrap_or_default();
    ImportedUsage {
        provider: text("billing_provider"),
        endpoint: text("billing_base_url"),
        mode: text("billing_mode"),
        model: text("model"),
        task: text("task"),
        calls: fields.count("api_call_count"),
        input_tokens: fields.count("input_tokens"),
        output_tokens: fields.count("output_tokens"),
        cache_read_tokens: fields.count("cache_read_tokens"),
        cache_write_tokens: fields.count("cache_write_tokens"),
        reasoning_tokens: fields.count("reasoning_tokens"),
        extra: None,
    }
}

/// One row of sums for a session whose model calls were not counted by model.
fn own_counters(fields: &Fields<'_>) -> Option<ImportedUsage> {
    // The row keeps all of its columns in `extra`; the sums are an account of them.
    let mut usage = counters(&mut fields.clone());
    usage.task = String::new();
    let sums = [usage.calls, usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.reasoning_tokens];
    sums.iter().any(|n| *n > 0).then_some(usage)
}
