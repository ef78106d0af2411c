//! Taking a snapshot, from the first look to the answer.

use std::path::Path;
use std::time::{Duration, Instant};

use statehouse_sqlite::admission::Admission;
use statehouse_sqlite::headers::Journal;
use statehouse_sqlite::holders::{self, Holder, Verdict};
use statehouse_sqlite::secure::{self, Purpose};
use statehouse_sqlite::{Error as DatabaseError, Family, Reason};

use super::Wish;
use super::error::{Error, Result};
use super::record::Snapshot;
use super::work::{Source, Work};
use crate::attach;
use crate::maintenance;
use crate::progress::Watch;
use crate::who;

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
    let family = Family::of(path)?;
    took(path, wish, watch, begun).map_err(|e| who_holds(e, &family, begun))
}

fn took(path: &Path, wish: &Wish, watch: Watch<'_>, begun: Instant) -> Result<Snapshot> {
    for attempt in 1.. {
        let look = maintenance::look(path)?;
        let family = look.family();
        let report = holders::scan(family)?;
        if let Some(naked) = report.holders.iter().find(|h| h.naked && !h.fenced) {
            // An opening could cut the shared index off under it.
            let reason = if naked.ghost { Reason::HeldRetired } else { Reason::HeldNaked };
            return Err(dangerous(family, reason, naked));
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
pub(super) fn who_holds(e: Error, family: &Family, since: Instant) -> Error {
    match e {
        Error::Work(maintenance::Error::Database(e)) => who::named(e, family, since).into(),
        e => e,
    }
}

fn is_moved(e: &Error) -> bool {
    matches!(e, Error::Work(maintenance::Error::Database(e)) if e.reason() == Some(Reason::Changed))
}

fn dangerous(family: &Family, reason: Reason, h: &Holder) -> Error {
    DatabaseError::refused(reason, family.main(), format!("{}; {}", who::name(h), h.to_stop())).into()
}

fn beside(ghost: &Holder) -> String {
    format!(
        "{} writes into deleted or replaced files; what it has there is not in this snapshot: capture it first, with `statehouse retired capture`",
        who::name(ghost)
    )
}
