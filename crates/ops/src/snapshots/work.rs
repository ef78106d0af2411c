//! Making the copy, and proving it while the source is still in the same transaction.

use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rusqlite::Connection;
use statehouse_sqlite::headers::Journal;
use statehouse_sqlite::secure::Inspected;
use statehouse_sqlite::{Error as DatabaseError, Family, Reason};

use super::behind::{Behind, Filling};
use super::error::{Error, Result, io};
use super::reading::Reading;
use super::record::{self, Snapshot};
use super::source::{self, Limits, Plain};
use super::staged::{Place, Staged};
use super::take::who_holds;
use super::{Wish, keep, pack, proof};
use crate::attach;
use crate::maintenance;
use crate::progress::{Progress, Watch};

/// Where the copy comes from.
pub(super) enum Source<'a> {
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
pub(super) struct Work<'a> {
    pub(super) inspected: &'a Inspected,
    pub(super) wish: &'a Wish,
    pub(super) watch: Watch<'a>,
    pub(super) begun: Instant,
    pub(super) journal: Journal,
    pub(super) notes: Vec<String>,
}

impl Work<'_> {
    pub(super) fn family(&self) -> &Family {
        self.inspected.family()
    }

    /// All of it; `bytes` is about how large the database is.
    pub(super) fn run(&self, bytes: u64, source: Source<'_>) -> Result<Snapshot> {
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
        let created_at = record::now();
        // Beside one who was admitted nobody writes, and the log does not grow.
        let reserve = if matches!(source, Source::Admitted(_)) { 0 } else { keep::reserve(bytes) };
        keep::room(self.family(), bytes, reserve, self.wish)?;
        let limits = Limits { reserve, ..limits };
        let place = Place::create(self.inspected)?;
        place.sweep();
        let id = record::new_id();
        let state = State { reading, limits, bytes, created_at };
        match self.make(&place.path, &id, state) {
            Ok(taken) => {
                // It is there whether the old ones can be removed or not. What is about to be done may need one of them.
                if !keep::is_before(&self.wish.reason) {
                    let _ = keep::prune(self.family(), &self.wish.keep);
                }
                Ok(taken)
            }
            Err(e) if !e.is_remembered() || matches!(e, Error::Unverified { .. }) => Err(e),
            Err(e) => {
                // On a full disk it cannot be written down, and whoever asked is told all the same.
                if let Ok(record) = record::failed(self.family(), &id, &self.wish.reason, &e) {
                    let _ = record::write(self.inspected, &place.path, &record);
                }
                Err(e)
            }
        }
    }

    fn make(&self, place: &Path, id: &str, state: State<'_>) -> Result<Snapshot> {
        let staged = Staged::create(self.inspected, place, id)?;
        match self.copy(id, &staged, state)? {
            Made::Good(snapshot) if self.wish.compress => self.publish_packed(place, staged, *snapshot),
            Made::Good(snapshot) => self.publish(place, staged, *snapshot),
            Made::Unsound { found, bytes, hash } => self.put_away(place, id, staged, found, (bytes, hash)),
        }
    }

    /// Makes the copy, and looks at it while the source is still in the same transaction.
    fn copy(&self, id: &str, staged: &Staged, state: State<'_>) -> Result<Made> {
        let family = self.family();
        let State { reading, limits, bytes, created_at } = state;
        (self.watch)(Progress::Begins { what: "copying", bytes: Some(bytes) });
        let path = staged.path.clone();
        let file = &staged.file;
        let write = |e: std::io::Error| io("write", &path, e);
        // One thread looks at the structure of the copy, which takes longest, and one writes it to the disk; this one counts in the
        // source, and then flushes, hashes and counts the copy.
        let (structure, counted, hashed, content, read_ms) = std::thread::scope(|scope| -> Result<_> {
            let behind = Behind::start(scope, file, bytes).map_err(write)?;
            let to = Filling::new(&path, file, &behind);
            match &reading {
                Some(reading) => source::pages(reading.connection, to, &limits, self.watch)?,
                None if source::plain(self.inspected, self.journal, to)? == Plain::Moved => {
                    return Err(DatabaseError::refused(Reason::Changed, family.main(), "").into());
                }
                None => {}
            }
            // Opened by anybody it must not ask for a log and an index beside it.
            file.write_all_at(&[1, 1], 18).map_err(write)?;
            (self.watch)(Progress::Begins { what: "checking the copy", bytes: None });
            let looking = std::thread::Builder::new()
                .name("snapshot check".to_owned())
                .spawn_scoped(scope, || proof::structure(&path))
                .map_err(|e| io("start a thread for", &path, e))?;
            let counted = reading.as_ref().map(|r| r.count(limits.until));
            let read_ms = reading.as_ref().map_or(0.0, |r| r.begun.elapsed().as_secs_f64() * 1000.0);
            drop(reading);
            let hashed = behind.end().and_then(|()| file.sync_all()).and_then(|()| pack::hash(file, &|_| {}));
            let content = proof::content(&path);
            let structure = looking
                .join()
                .map_err(|_| io("look at", &path, std::io::Error::other("the thread that does it ended early")))?;
            Ok((structure, counted, hashed, content, read_ms))
        })?;
        let (bytes, hash) = hashed.map_err(|e| io("write", &path, e))?;
        let unsound = |found: String| Ok(Made::Unsound { found, bytes, hash });
        let notes = match structure? {
            Ok(notes) => notes,
            Err(found) => return unsound(found),
        };
        let (proved, counts) = match content? {
            Ok((proved, counts)) => (proved.with(notes), counts),
            Err(found) => return unsound(found),
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
}

fn is_interrupted(e: &Error) -> bool {
    let Error::Work(maintenance::Error::Database(DatabaseError::Sqlite(e))) = e else { return false };
    e.sqlite_error_code() == Some(rusqlite::ErrorCode::OperationInterrupted)
}
