//! Where the copy comes from, and how it is made.
//!
//! * A process has the database open: SQLite's backup interface inside one read transaction of an ordinary read-only attachment.
//!   The transaction pins one state, so the copy is consistent and never begins anew, however much is written meanwhile; in WAL
//!   mode nobody waits for it. The log cannot be given back until the transaction ends, so nothing is done in it but copying and
//!   counting, it has a longest time, and it is ended before the disk is full.
//! * Nobody has it open, or somebody writes into deleted files of it: the main file with its log over it, read as plain files. An
//!   opening by SQLite would leave files beside the one, and would begin a second generation beside the other. Nobody's locks
//!   keep the files still then, so main file and log must have been the same before and after.
//!
//! `VACUUM INTO` is not used: it takes several times as long, all of it in a read transaction, gives the rows of tables without a
//! key other numbers (a search index refers to rows by number), and its copy cannot be compared with anything.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use statehouse_sqlite::headers::Journal;
use statehouse_sqlite::image::{self, ImageError, Sink};
use statehouse_sqlite::secure::{self, Inspected, Purpose};
use statehouse_sqlite::{Error as DatabaseError, Family, Member, Reason, Status, files};

use super::Wish;
use super::behind::Behind;
use super::error::{Error, Result, io};
use crate::maintenance::room;
use crate::progress::{Progress, Watch};

/// Bytes of a step: enough that asking in between costs nothing.
const STEP: u64 = 1 << 20;
/// Bytes of pages that are held back before they go to the file.
const CACHE: i64 = 256 << 10;
/// How long a step waits when a lock of SQLite is in its way.
const AGAIN: Duration = Duration::from_millis(20);

/// The limits of a read transaction.
pub(super) struct Limits {
    /// When it is ended at the latest.
    pub(super) until: Instant,
    /// When it began.
    pub(super) begun: Instant,
    /// How long a lock is waited for.
    pub(super) patience: Duration,
    /// Bytes of the volume that are left to the database.
    pub(super) reserve: u64,
}

impl Limits {
    pub(super) fn of(wish: &Wish) -> Limits {
        let begun = Instant::now();
        Limits { until: begun + wish.longest, begun, patience: wish.patience, reserve: 0 }
    }
}

/// Begins a read transaction and pins the present state. Returns the bytes of the database in it.
pub(super) fn pin(connection: &Connection, family: &Family) -> Result<u64> {
    let pinned = connection
        .execute_batch("BEGIN")
        .and_then(|()| connection.query_row("SELECT count(*) FROM sqlite_schema", [], |r| r.get::<_, i64>(0)));
    pinned.map_err(|e| hot(e, family))?;
    let number = |name: &str| -> Result<u64> {
        Ok(connection.pragma_query_value(None, name, |r| r.get::<_, i64>(0))?.unsigned_abs())
    };
    Ok(number("page_size")? * number("page_count")?)
}

/// A reader may not roll an interrupted transaction back, and SQLite has a code of its own for that.
fn hot(e: rusqlite::Error, family: &Family) -> Error {
    match &e {
        rusqlite::Error::SqliteFailure(f, _) if f.extended_code == rusqlite::ffi::SQLITE_READONLY_ROLLBACK => {
            DatabaseError::refused(Reason::HotJournal, family.path(Member::Journal), "its program was interrupted")
                .into()
        }
        _ => e.into(),
    }
}

/// Copies the state that `from` has pinned into the empty file at `to`.
pub(super) fn backup(
    from: &Connection,
    to: &Path,
    behind: &Behind<'_>,
    limits: &Limits,
    watch: Watch<'_>,
) -> Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut copy = Connection::open_with_flags(to, flags)?;
    // The file is nobody's yet: it is flushed once at the end, and thrown away after anything that goes wrong.
    for (name, value) in [("synchronous", "OFF"), ("journal_mode", "OFF"), ("locking_mode", "EXCLUSIVE")] {
        copy.pragma_update(None, name, value)?;
    }
    copy.pragma_update(None, "mmap_size", 0)?;
    // Pages go to the file as they come.
    copy.pragma_update(None, "cache_size", -(CACHE >> 10))?;
    let page_size: i64 = from.pragma_query_value(None, "page_size", |r| r.get(0))?;
    let pages = i32::try_from(STEP / page_size.unsigned_abs().max(1)).unwrap_or(1).max(1);
    {
        let backup = Backup::new(from, &mut copy)?;
        let mut waited_since = None;
        loop {
            let step = backup.step(pages)?;
            let progress = backup.progress();
            let done = u64::try_from(progress.pagecount - progress.remaining).unwrap_or(0);
            let done = done * page_size.unsigned_abs();
            watch(Progress::At(done));
            behind.reached(done.saturating_sub(CACHE.unsigned_abs()));
            match step {
                StepResult::Done => break,
                StepResult::Busy | StepResult::Locked => {
                    let since: &mut Instant = waited_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= limits.patience {
                        return Err(DatabaseError::Busy { waited: since.elapsed(), holder: None }.into());
                    }
                    std::thread::sleep(AGAIN);
                }
                _ => waited_since = None,
            }
            if Instant::now() >= limits.until {
                return Err(Error::TooSlow { after: limits.begun.elapsed() });
            }
            let directory = to.parent().unwrap_or(to);
            let (free, _) = room::free(directory).map_err(|e| io("ask for the free space of", directory, e))?;
            if free < limits.reserve {
                return Err(Error::Crowded { free });
            }
        }
    }
    copy.close().map_err(|(_, e)| e)?;
    Ok(())
}

/// What a look at plain files came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plain {
    /// The copy is there.
    Copied,
    /// Somebody changed the files meanwhile.
    Moved,
}

/// Refuses beside a journal that must be rolled back first. Who has the database open does not matter: to be asked when nobody
/// has. One whose first byte is zero is over (`PRAGMA journal_mode = PERSIST`).
pub(super) fn refuse_hot_journal(inspected: &Inspected) -> Result<()> {
    let Some(journal) = inspected.get(Member::Journal).filter(|j| j.status.size > 0) else { return Ok(()) };
    let path = inspected.family().path(Member::Journal);
    let mut first = [0];
    files::open(&journal.magic_path())
        .and_then(|f| f.read_exact_at(&mut first, 0))
        .map_err(|e| io("read", &path, e))?;
    if first == [0] {
        return Ok(());
    }
    Err(DatabaseError::refused(Reason::HotJournal, path, "what the database holds is only known after that").into())
}

/// Copies main file and log as plain files. This process must have no connection to the database.
pub(super) fn plain(inspected: &Inspected, journal: Journal, to: &File, behind: &Behind<'_>) -> Result<Plain> {
    let family = inspected.family();
    let before = stamps(family)?;
    if before != stamps_of(inspected) {
        return Ok(Plain::Moved);
    }
    let open = |member: Member| -> Result<Option<File>> {
        let Some(seen) = inspected.get(member) else { return Ok(None) };
        files::open(&seen.magic_path()).map(Some).map_err(|e| io("read", &family.path(member), e))
    };
    let none = Vec::new();
    // In rollback mode SQLite does not read a log, whatever lies there.
    let log = if journal == Journal::Wal { open(Member::Wal)? } else { None };
    let Some(main) = open(Member::Main)? else { return Ok(Plain::Moved) };
    to.set_len(0).map_err(|e| io("write", &family.main(), e))?;
    let mut to = Followed { file: to, behind };
    let made = match &log {
        Some(log) => image::overlay(&main, log, &mut to),
        None => image::overlay(&main, &none, &mut to),
    };
    match made {
        Ok(_) if stamps(family)? == before => Ok(Plain::Copied),
        Ok(_) | Err(ImageError::Changed) => Ok(Plain::Moved),
        Err(ImageError::Io(e)) => Err(io("copy", &family.main(), e)),
        Err(_) if stamps(family)? != before => Ok(Plain::Moved),
        Err(e) => Err(DatabaseError::Damaged { detail: e.to_string() }.into()),
    }
}

/// A file that is written from its beginning to its end, with somebody behind.
struct Followed<'a> {
    file: &'a File,
    behind: &'a Behind<'a>,
}

impl Sink for Followed<'_> {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> std::io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        if offset.is_multiple_of(STEP) {
            self.behind.reached(offset);
        }
        Ok(())
    }

    fn set_length(&mut self, length: u64) -> std::io::Result<()> {
        self.file.set_len(length)
    }
}

/// What changes when anybody writes into one of the files or puts another in its place.
type Stamps = [Option<(statehouse_sqlite::Identity, u64, i64, i64)>; 3];
const STAMPED: [Member; 3] = [Member::Main, Member::Wal, Member::Journal];

fn stamp(s: &Status) -> (statehouse_sqlite::Identity, u64, i64, i64) {
    (s.identity, s.size, s.modified_ns, s.changed_ns)
}

fn stamps(family: &Family) -> Result<Stamps> {
    let now = secure::inspect(family, Purpose::Look)?;
    Ok(stamps_of(&now))
}

fn stamps_of(inspected: &Inspected) -> Stamps {
    STAMPED.map(|m| inspected.get(m).map(|seen| stamp(&seen.status)))
}
