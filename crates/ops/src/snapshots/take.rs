//! Taking a snapshot, from the first look to the answer.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use statehouse_sqlite::admission::Admission;
use statehouse_sqlite::headers::Journal;
use statehouse_sqlite::holders::{self, Holder, Verdict};
use statehouse_sqlite::secure::{self, Inspected, Purpose};
use statehouse_sqlite::{Error as DatabaseError, Family, Reason, Status};

use super::error::{Error, Result, io};
use super::proof::{Counts, Judged, judge};
use super::record::{self, Snapshot};
use super::source::{self, Limits, Plain};
use super::staged::{Place, Staged};
use super::{Wish, keep, pack};
use crate::attach;
use crate::maintenance;
use crate::progress::{Progress, Watch};

/// How often copying plain files is begun anew because somebody changed them.
const TRIES: u32 = 5;
/// How long is waited before the second time, and so much longer before each other.
const AGAIN: Duration = Duration::from_millis(50);

/// Takes a snapshot of the database at `path`. To be called in a process that has no connection to it; who was admitted to the
/// database has [`take_admitted`].
///
/// # Errors
/// A refusal with nothing written; or what went wrong, which is recorded. The earlier snapshots are there in any case.
pub fn take(path: &Path, wish: &Wish, watch: Watch<'_>) -> Result<Snapshot> {
    let begun = Instant::now();
    for attempt in 1.. {
        let look = maintenance::look(path)?;
        let family = look.family();
        let report = holders::scan(family)?;
        if let Some(naked) = report.holders.iter().find(|h| h.naked && !h.fenced) {
            // An opening could cut the shared index off under it.
            return Err(dangerous(family, Reason::HeldNaked, naked));
        }
        let ghost = report.holders.iter().find(|h| h.ghost && !h.fenced);
        let source = match report.verdict == Verdict::Quiet || ghost.is_some() {
            true => Source::Plain,
            false => Source::Attached(attach::read(&look.inspected, true, family.directory(), wish.patience)?),
        };
        let pages = look.pages();
        let work = Work {
            inspected: &look.inspected,
            wish,
            watch,
            begun,
            journal: look.header.journal,
            notes: ghost.map(beside).into_iter().collect(),
        };
        match work.run(pages.pages * pages.page_size, source) {
            // Somebody has come meanwhile, and the next look sees who.
            Err(e) if is_moved(&e) && attempt < TRIES => std::thread::sleep(AGAIN * attempt),
            // Beside a ghost nobody can be asked to hold the files still.
            Err(e) if is_moved(&e) => return Err(ghost.map_or(e, |g| dangerous(family, Reason::HeldRetired, g))),
            other => return other,
        }
    }
    Err(DatabaseError::refused(Reason::Changed, path, "").into())
}

/// Takes a snapshot through the connection of somebody who was admitted to the database, which nobody else uses meanwhile.
///
/// # Errors
/// As [`take`].
pub fn take_admitted(admission: &Admission, wish: &Wish, watch: Watch<'_>) -> Result<Snapshot> {
    let inspected = secure::inspect(admission.family(), Purpose::Look)?;
    let connection = admission.connection();
    let mode: String = connection.pragma_query_value(None, "journal_mode", |r| r.get(0))?;
    let journal = if mode == "wal" { Journal::Wal } else { Journal::Rollback };
    let number = |name: &str| connection.pragma_query_value(None, name, |r| r.get::<_, i64>(0));
    let bytes = number("page_size")?.unsigned_abs() * number("page_count")?.unsigned_abs();
    let work = Work { inspected: &inspected, wish, watch, begun: Instant::now(), journal, notes: Vec::new() };
    work.run(bytes, Source::Admitted(connection))
}

/// SQLite says neither how long it waited nor for whom.
fn who_holds(e: Error, family: &Family, since: Instant) -> Error {
    if !e.is_busy() {
        return e;
    }
    let others = holders::scan(family).map(|r| r.holders).unwrap_or_default();
    let names: Vec<String> =
        others.iter().filter(|h| !h.is_self).map(|h| format!("{}; to stop it: {}", name(h), h.stop)).collect();
    let holder = (!names.is_empty()).then(|| names.join("; "));
    DatabaseError::Busy { waited: since.elapsed(), holder }.into()
}

fn is_moved(e: &Error) -> bool {
    matches!(e, Error::Work(maintenance::Error::Database(e)) if e.reason() == Some(Reason::Changed))
}

fn name(h: &Holder) -> String {
    h.pid.map_or_else(|| "a process that is not visible here".to_owned(), |pid| format!("PID {pid}"))
}

fn dangerous(family: &Family, reason: Reason, h: &Holder) -> Error {
    DatabaseError::refused(reason, family.main(), format!("{}; to stop it: {}", name(h), h.stop)).into()
}

fn beside(ghost: &Holder) -> String {
    format!(
        "{} writes into deleted or replaced files; what it has there is not in this snapshot: capture it first, with `statehouse retired capture`",
        name(ghost)
    )
}

fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}

/// A name that sorts by time.
pub(super) fn new_id() -> String {
    format!("{}-{}", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S.%6fZ"), std::process::id())
}

/// The record of an attempt that failed.
pub(super) fn failed(family: &Family, id: &str, reason: &str, error: &Error) -> Result<Snapshot> {
    let all = record::all(family)?;
    let before = all.last().filter(|s| !s.verified).map_or(0, |s| s.failures);
    let detail = error.detail();
    let error_text = if detail.is_empty() { error.to_string() } else { format!("{error}: {detail}") };
    Ok(Snapshot {
        id: id.to_owned(),
        path: PathBuf::new(),
        database: family.main().to_string_lossy().into_owned(),
        serial: all.last().map_or(0, |s| s.serial) + 1,
        created_at: now(),
        reason: reason.to_owned(),
        bytes: 0,
        rows: Default::default(),
        verified: false,
        blake3: None,
        compressed: false,
        plain_bytes: 0,
        plain_blake3: None,
        page_size: 0,
        user_version: 0,
        application_id: 0,
        journal_mode: String::new(),
        error: Some(error_text),
        error_code: Some(error.code().to_owned()),
        failures: before + 1,
        notes: Vec::new(),
        read_ms: 0.0,
        ms: 0.0,
        modified_ns: 0,
    })
}

/// Where the copy comes from.
enum Source<'a> {
    /// An attachment of our own, for others have the database open.
    Attached(attach::Attached),
    /// The connection of who was admitted.
    Admitted(&'a Connection),
    /// The files as they lie there.
    Plain,
}

impl Source<'_> {
    fn connection(&self) -> Option<&Connection> {
        match self {
            Source::Attached(attached) => Some(attached),
            Source::Admitted(connection) => Some(connection),
            Source::Plain => None,
        }
    }
}

/// A read transaction, which ends with its owner.
struct Reading<'a> {
    connection: &'a Connection,
    begun: Instant,
}

impl<'a> Reading<'a> {
    fn begin(connection: &'a Connection) -> Reading<'a> {
        Reading { connection, begun: Instant::now() }
    }

    /// Counts, and is interrupted when its time is over.
    fn count(&self, until: Instant) -> Result<Counts> {
        let handle = self.connection.get_interrupt_handle();
        let (done, waiting) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let left = until.saturating_duration_since(Instant::now());
            let wait = move || {
                if waiting.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                    handle.interrupt();
                }
            };
            // Without it the counting takes as long as it takes.
            let _ = std::thread::Builder::new().name("snapshot limit".to_owned()).spawn_scoped(scope, wait);
            let counts = Counts::of(self.connection);
            drop(done);
            counts
        })
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
    }
}

/// The state of the database that is copied.
struct State<'a> {
    reading: Option<Reading<'a>>,
    limits: Limits,
    bytes: u64,
    created_at: String,
}

/// What a copy came to.
enum Made {
    Good(Box<Snapshot>),
    Unsound { found: String, bytes: u64, hash: blake3::Hash },
}

/// One piece of work.
struct Work<'a> {
    inspected: &'a Inspected,
    wish: &'a Wish,
    watch: Watch<'a>,
    begun: Instant,
    journal: Journal,
    notes: Vec<String>,
}

impl Work<'_> {
    fn family(&self) -> &Family {
        self.inspected.family()
    }

    /// All of it; `bytes` is about how large the database is.
    fn run(&self, bytes: u64, source: Source<'_>) -> Result<Snapshot> {
        let limits = Limits::of(self.wish);
        // Whatever refuses it does so before anything is made.
        let reading = source.connection().map(Reading::begin);
        let bytes = match &reading {
            Some(reading) => source::pin(reading.connection, self.family())
                .map_err(|e| who_holds(e, self.family(), reading.begun))?,
            None => {
                source::refuse_hot_journal(self.inspected)?;
                bytes
            }
        };
        // What is committed from here on is not in it.
        let created_at = now();
        self.room(bytes)?;
        let limits = Limits { reserve: keep::reserve(bytes), ..limits };
        let place = Place::create(self.inspected)?;
        place.sweep();
        let id = new_id();
        let state = State { reading, limits, bytes, created_at };
        match self.make(&place.path, &id, state) {
            Ok(taken) => {
                // It is there whether the old ones can be removed or not.
                let _ = keep::prune(self.family(), &self.wish.keep);
                Ok(taken)
            }
            Err(e) if !e.is_remembered() || matches!(e, Error::Unverified { .. }) => Err(e),
            Err(e) => {
                // On a full disk it cannot be written down, and whoever asked is told all the same.
                if let Ok(record) = failed(self.family(), &id, &self.wish.reason, &e) {
                    let _ = record::write(self.inspected, &place.path, &record);
                }
                Err(e)
            }
        }
    }

    fn room(&self, bytes: u64) -> Result<()> {
        keep::room(self.family(), bytes, self.wish.compress, &self.wish.keep, &self.wish.reason)
    }

    fn make(&self, place: &Path, id: &str, state: State<'_>) -> Result<Snapshot> {
        let mut staged = Staged::create(self.inspected, place, id)?;
        match self.copy(id, &mut staged, state)? {
            Made::Good(snapshot) if self.wish.compress => self.publish_packed(place, staged, *snapshot),
            Made::Good(snapshot) => self.publish(place, staged, *snapshot),
            Made::Unsound { found, bytes, hash } => self.put_away(place, id, staged, found, (bytes, hash)),
        }
    }

    /// Makes the copy, and looks at it while the source is still in the same transaction.
    fn copy(&self, id: &str, staged: &mut Staged, state: State<'_>) -> Result<Made> {
        let family = self.family();
        let State { reading, limits, bytes, created_at } = state;
        (self.watch)(Progress::Begins { what: "copying", bytes: Some(bytes) });
        match &reading {
            Some(reading) => source::backup(reading.connection, &staged.path, &limits, self.watch)?,
            None if source::plain(self.inspected, self.journal, &mut staged.file)? == Plain::Moved => {
                return Err(DatabaseError::refused(Reason::Changed, family.main(), "").into());
            }
            None => {}
        }
        let io = |e: std::io::Error| io("write", &staged.path, e);
        // Opened by anybody it must not ask for a log and an index beside it.
        staged.file.write_all_at(&[1, 1], 18).map_err(io)?;
        (self.watch)(Progress::Begins { what: "checking the copy", bytes: None });
        let path = staged.path.clone();
        let file: &mut File = &mut staged.file;
        // One thread opens the copy and looks at it; this one counts in the source, and then hashes and flushes the copy.
        let (judged, counted, hashed, read_ms) = std::thread::scope(|scope| -> Result<_> {
            let judging = std::thread::Builder::new()
                .name("snapshot check".to_owned())
                .spawn_scoped(scope, || judge(&path))
                .map_err(|e| super::error::io("start a thread for", &path, e))?;
            let counted = reading.as_ref().map(|r| r.count(limits.until));
            let read_ms = reading.as_ref().map_or(0.0, |r| r.begun.elapsed().as_secs_f64() * 1000.0);
            drop(reading);
            let hashed = file.sync_all().and_then(|()| pack::hash(file, &|_| {}));
            let judged = judging.join().map_err(|_| {
                super::error::io("look at", &path, std::io::Error::other("the thread that does it ended early"))
            })?;
            Ok((judged, counted, hashed, read_ms))
        })?;
        let (bytes, hash) = hashed.map_err(|e| super::error::io("write", &path, e))?;
        let unsound = |found: String| Ok(Made::Unsound { found, bytes, hash });
        let (proved, counts) = match judged? {
            Judged::Good(proved, counts) => (proved, counts),
            Judged::Unsound(found) => return unsound(found),
        };
        match counted {
            None => {}
            Some(Ok(of_source)) => {
                let found = of_source.differences(&counts);
                if !found.is_empty() {
                    return unsound(found);
                }
            }
            Some(Err(Error::Work(maintenance::Error::Database(DatabaseError::Damaged { detail })))) => {
                return unsound(format!("the database itself cannot be read: {detail}"));
            }
            Some(Err(e)) if is_interrupted(&e) => return Err(Error::TooSlow { after: limits.begun.elapsed() }),
            Some(Err(e)) => return Err(e),
        }
        let hex = hash.to_hex().to_string();
        Ok(Made::Good(Box::new(Snapshot {
            id: id.to_owned(),
            path: PathBuf::new(),
            database: family.main().to_string_lossy().into_owned(),
            serial: 0,
            created_at,
            reason: self.wish.reason.clone(),
            bytes,
            rows: proved.rows,
            verified: true,
            blake3: Some(hex.clone()),
            compressed: false,
            plain_bytes: bytes,
            plain_blake3: Some(hex),
            page_size: proved.page_size,
            user_version: proved.user_version,
            application_id: proved.application_id,
            journal_mode: if self.journal == Journal::Wal { "wal" } else { "delete" }.to_owned(),
            error: None,
            error_code: None,
            failures: 0,
            notes: self.notes.iter().cloned().chain(proved.notes).collect(),
            read_ms,
            ms: 0.0,
            modified_ns: 0,
        })))
    }

    /// Compresses the copy, proves by unpacking that all of it comes out again, and gives that its name.
    fn publish_packed(&self, place: &Path, mut plain: Staged, snapshot: Snapshot) -> Result<Snapshot> {
        let mut packed = Staged::create(self.inspected, place, &format!("{}.zst", snapshot.id))?;
        let path = packed.path.clone();
        let io = |e: std::io::Error| io("write", &path, e);
        (self.watch)(Progress::Begins { what: "compressing", bytes: Some(snapshot.plain_bytes) });
        pack::compress(&mut plain.file, &mut packed.file, self.watch).map_err(io)?;
        packed.file.sync_all().map_err(io)?;
        (self.watch)(Progress::Begins { what: "unpacking it again", bytes: Some(snapshot.plain_bytes) });
        let unpacked = pack::decompress(&mut packed.file, &mut std::io::sink(), self.watch).map_err(io)?;
        let (bytes, hash) = pack::hash(&mut packed.file, &|_| {}).map_err(io)?;
        if (unpacked.0, Some(unpacked.1.to_hex().to_string())) != (snapshot.plain_bytes, snapshot.plain_blake3.clone())
        {
            let found = "what comes out of the compressed copy is not what went in".to_owned();
            return Err(Error::Unverified { database: self.family().main(), found, kept: None });
        }
        let snapshot = Snapshot { bytes, blake3: Some(hash.to_hex().to_string()), compressed: true, ..snapshot };
        self.publish(place, packed, snapshot)
    }

    /// Gives the copy its name, and writes down what is known of it.
    fn publish(&self, place: &Path, staged: Staged, mut snapshot: Snapshot) -> Result<Snapshot> {
        snapshot.path = place.join(record::file_name(&snapshot.id, snapshot.compressed));
        self.name(place, staged, &mut snapshot)?;
        Ok(snapshot)
    }

    fn name(&self, place: &Path, staged: Staged, snapshot: &mut Snapshot) -> Result<()> {
        staged.publish(&snapshot.path)?;
        record::sync(place)?;
        let status = Status::of(&snapshot.path).map_err(|e| io("look at", &snapshot.path, e))?;
        snapshot.modified_ns = status.map_or(0, |s| s.modified_ns);
        snapshot.serial = record::all(self.family())?.last().map_or(0, |s| s.serial) + 1;
        snapshot.ms = self.begun.elapsed().as_secs_f64() * 1000.0;
        record::write(self.inspected, place, snapshot).inspect_err(|_| {
            // Without a record nobody would ever find it, nor remove it.
            let _ = std::fs::remove_file(&snapshot.path);
        })
    }

    /// Records a copy that is not sound, and keeps it only where there is no good one.
    fn put_away(
        &self,
        place: &Path,
        id: &str,
        staged: Staged,
        found: String,
        (bytes, hash): (u64, blake3::Hash),
    ) -> Result<Snapshot> {
        let all = record::all(self.family())?;
        let only = !all.iter().any(Snapshot::is_good);
        let kept = only.then(|| place.join(record::unsound_name(id)));
        let error = Error::Unverified { database: self.family().main(), found, kept: kept.clone() };
        let mut snapshot = failed(self.family(), id, &self.wish.reason, &error)?;
        match kept {
            None => {
                drop(staged);
                let _ = record::write(self.inspected, place, &snapshot);
            }
            Some(path) => {
                let hex = hash.to_hex().to_string();
                snapshot = Snapshot {
                    path,
                    bytes,
                    blake3: Some(hex.clone()),
                    plain_bytes: bytes,
                    plain_blake3: Some(hex),
                    ..snapshot
                };
                self.name(place, staged, &mut snapshot)?;
                // One of them is enough.
                for old in all.iter().filter(|s| !s.verified && !s.path.as_os_str().is_empty()) {
                    let _ = std::fs::remove_file(&old.path);
                    let _ = record::write(self.inspected, place, &Snapshot { blake3: None, ..old.clone() });
                }
            }
        }
        let _ = keep::prune(self.family(), &self.wish.keep);
        Err(error)
    }
}

fn is_interrupted(e: &Error) -> bool {
    let Error::Work(maintenance::Error::Database(DatabaseError::Sqlite(e))) = e else { return false };
    e.sqlite_error_code() == Some(rusqlite::ErrorCode::OperationInterrupted)
}
