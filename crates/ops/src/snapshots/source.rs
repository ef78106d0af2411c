//! Where the copy comes from, and how it is made.
//!
//! * A process has the database open: every page as an ordinary read-only attachment sees it (`sqlite_dbpage`) inside one read
//!   transaction. The transaction pins one state, so the copy is consistent and never begins anew, however much is written
//!   meanwhile; in WAL mode nobody waits for it. The log cannot be given back until the transaction ends, so nothing is done in it
//!   but copying and counting, it has a longest time, and it is ended before the disk is full. SQLite's backup interface copies
//!   the same pages, but writes each with a call of its own, which takes longer, and nobody can say when they go to the disk.
//! * Nobody has it open, or somebody writes into deleted files of it: the main file with its log over it, read as plain files. An
//!   opening by SQLite would leave files beside the one, and would begin a second generation beside the other. Nobody's locks
//!   keep the files still then, so main file and log must have been the same before and after.
//!
//! `VACUUM INTO` is not used: it takes several times as long, all of it in a read transaction, gives the rows of tables without a
//! key other numbers (a search index refers to rows by number), and its copy cannot be compared with anything.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Instant;

use rusqlite::Connection;
use statehouse_sqlite::headers::Journal;
use statehouse_sqlite::image::{self, ImageError, Sink};
use statehouse_sqlite::secure::{self, Inspected, Purpose};
use statehouse_sqlite::{Error as DatabaseError, Family, Member, Reason, Status, files};

use super::Wish;
use super::behind::Filling;
use super::error::{Error, Result, io};
use crate::maintenance::room;
use crate::progress::{Progress, Watch};

/// Bytes of a step: enough that asking in between costs nothing.
const STEP: u64 = 4 << 20;

/// The limits of a read transaction.
pub(super) struct Limits {
    /// When it is ended at the latest.
    pub(super) until: Instant,
    /// When it began.
    pub(super) begun: Instant,
    /// Bytes of the volume that are left to the database.
    pub(super) reserve: u64,
}

impl Limits {
    pub(super) fn of(wish: &Wish) -> Limits {
        let begun = Instant::now();
        Limits { until: begun + wish.longest, begun, reserve: 0 }
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

/// Copies the state that `from` has pinned, page by page.
pub(super) fn pages(from: &Connection, mut to: Filling<'_>, limits: &Limits, watch: Watch<'_>) -> Result<()> {
    let mut statement = from.prepare("SELECT data FROM sqlite_dbpage ORDER BY pgno")?;
    let mut pages = statement.query([])?;
    let (mut done, mut next) = (0, 0);
    while let Some(row) = pages.next()? {
        let page = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
        to.write_at(page, done).map_err(|e| to.failed(e))?;
        done += page.len() as u64;
        if done < next {
            continue;
        }
        next = done + STEP;
        watch(Progress::At(done));
        if Instant::now() >= limits.until {
            return Err(Error::TooSlow { after: limits.begun.elapsed() });
        }
        let directory = to.directory();
        let (free, _) = room::free(directory).map_err(|e| io("ask for the free space of", directory, e))?;
        if free < limits.reserve {
            return Err(Error::Crowded { free });
        }
    }
    to.set_length(done).map_err(|e| to.failed(e))
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
pub(super) fn plain(inspected: &Inspected, journal: Journal, mut to: Filling<'_>) -> Result<Plain> {
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
mod tests {
    use super::*;
    use crate::snapshots::behind::Behind;

    /// Copies what `from` sees into a new file beside others, and gives its bytes.
    fn copied(from: &Connection, to: &std::path::Path, expected: u64) -> Vec<u8> {
        let file = files::open_private(to).unwrap();
        let limits = Limits::of(&Wish::because("test"));
        std::thread::scope(|scope| {
            let behind = Behind::start(scope, &file, expected).unwrap();
            pages(from, Filling::new(to, &file, &behind), &limits, &|_| {}).unwrap();
            behind.end().unwrap();
        });
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    #[test]
    fn a_copy_has_every_byte_of_its_source_whatever_the_page_size_and_however_wrong_the_expected_length_was() {
        let directory = tempfile::tempdir().unwrap();
        for page_size in [512, 4096, 65536] {
            let path = directory.path().join(format!("{page_size}.db"));
            let db = Connection::open(&path).unwrap();
            db.execute_batch(&format!(
                "PRAGMA page_size={page_size}; CREATE TABLE t(x);
                 WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)
                 INSERT INTO t SELECT randomblob(1000) FROM n; DELETE FROM t WHERE rowid % 7 = 0;"
            ))
            .unwrap();
            drop(db);
            let mut source = vec![0; usize::try_from(path.metadata().unwrap().len()).unwrap()];
            files::open(&path).unwrap().read_exact_at(&mut source, 0).unwrap();
            assert!(source.len() > 2 << 20 && !source.len().is_multiple_of(1 << 20), "{}", source.len());
            let db = Connection::open(&path).unwrap();
            for expected in [0, source.len() as u64, 2 * source.len() as u64] {
                let to = directory.path().join(format!("{page_size}-{expected}.copy"));
                assert!(copied(&db, &to, expected) == source, "{page_size} {expected}");
                // What was asked for in vain is given back.
                let blocks = rustix::fs::stat(&to).unwrap().st_blocks.unsigned_abs() * 512;
                assert!(blocks < source.len() as u64 + (256 << 10), "{page_size} {expected}: {blocks}");
            }
        }
    }
}
