//! The new content as one transaction of the database that is there.

use std::time::{Duration, Instant};

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use statehouse_sqlite::admission::Admission;
use statehouse_sqlite::holders::Holder;
use statehouse_sqlite::{Error as DatabaseError, Family, holders, uri};

use super::error::{Error, Result};
use super::source::Source;
use super::{Asked, Before, How, Restored, compare, copy, held, lossy, refuse_stranger, rename};
use crate::maintenance::checkpoint;
use crate::maintenance::whole;
use crate::progress::Progress;
use crate::who;

/// The pause before another try when somebody has the lock.
const AGAIN: Duration = Duration::from_millis(20);

/// How often what others have written since is waited for to end, so that the result can be compared with the source.
const TRIES: usize = 5;

/// How far one of the two ways has come.
pub(super) enum Outcome {
    /// It is done.
    Done(Box<Restored>),
    /// The present state is kept, and another file can take its place.
    Kept(rename::Kept),
}

pub(super) fn restore(admission: &Admission, asked: &Asked<'_>, source: &Source) -> Result<Outcome> {
    if admission.is_alone() {
        return replace(admission, asked, source).map(|done| Outcome::Done(Box::new(done)));
    }
    // Others go on opening the database meanwhile, and nothing here needs them to be kept out.
    let mut done = None;
    admission.alone(|_| {
        done = Some(replace(admission, asked, source));
        Ok(())
    })?;
    match done {
        Some(done) => done.map(|done| Outcome::Done(Box::new(done))),
        None => Err(DatabaseError::Closed.into()),
    }
}

fn replace(admission: &Admission, asked: &Asked<'_>, source: &Source) -> Result<Restored> {
    let family = admission.family();
    let patience = asked.wanted.patience;
    let held_by = others(family)?;
    let mut to = checkpoint::open(family, true, patience)?;
    // A log that was just copied is begun anew, so that it grows less.
    let _ = to.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
    let reader = reader(family, patience)?;
    let (before, compared) = {
        let backup = Backup::new(source.connection(), &mut to)?;
        // No page is copied yet, but from here on nobody else writes: what the reader sees is what is replaced.
        step(&backup, 0, patience)?;
        whole::require(&reader, &family.main())?;
        let compared = compare::compare(Some(&uri(&family.main(), "mode=ro")), source.uri())?;
        refuse_stranger(asked, source, &compared.of_here())?;
        let before = super::before(admission, asked)?;
        (asked.before)(&compared);
        for holder in &held_by {
            (asked.wanted.tell)(&held::goes_on(holder));
        }
        (asked.watch)(Progress::Begins { what: "restoring", bytes: Some(source.bytes()) });
        while step(&backup, copy::STEP, patience)? != StepResult::Done {
            copy::tell(&backup, source.header.page_size, asked.watch);
        }
        (before, compared)
    };
    drop(reader);
    let mut notes = source.notes.clone();
    notes.extend(empty_the_log(&to, admission.is_alone()));
    drop(to);
    prove(family, asked, source, &before, held_by.is_empty(), &mut notes)?;
    Ok(Restored {
        source: source.found.name(),
        kind: source.found.kind(),
        path: lossy(&family.main()),
        how: How::Live,
        before: Some(before),
        lost: compared.lost(),
        tables: compared.tables,
        schema: compared.schema,
        next: held::restart(&held_by),
        held_by: held_by.iter().map(who::name).collect(),
        replaced: None,
        verified: true,
        notes,
        overridden: admission.overridden().to_vec(),
        ms: 0.0,
    })
}

/// One step of a copy; whoever has the lock is waited for.
fn step(backup: &Backup<'_, '_>, pages: i32, patience: Duration) -> Result<StepResult> {
    let begun = Instant::now();
    loop {
        match backup.step(pages)? {
            StepResult::Busy | StepResult::Locked => {
                if begun.elapsed() >= patience {
                    return Err(DatabaseError::Busy { waited: begun.elapsed(), holder: None }.into());
                }
                std::thread::sleep(AGAIN);
            }
            went => return Ok(went),
        }
    }
}

/// A fresh connection of this process that only reads; that others have the files open is known.
fn reader(family: &Family, patience: Duration) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NOFOLLOW | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let connection = Connection::open_with_flags(family.main(), flags)?;
    connection.busy_timeout(patience)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "trusted_schema", 0)?;
    Ok(connection)
}

/// The content is safe in the log; the main file gets it as soon as that disturbs nobody.
fn empty_the_log(connection: &Connection, alone: bool) -> Option<String> {
    let sql = if alone { "PRAGMA wal_checkpoint(TRUNCATE)" } else { "PRAGMA wal_checkpoint(PASSIVE)" };
    let failed = connection.query_row(sql, [], |_| Ok(())).err()?;
    Some(format!("the new content is safe in the log, and could not be copied into the main file: {failed}"))
}

/// Compares a fresh look at the database with the source. Others may have written since, and then there is more than that.
fn prove(
    family: &Family,
    asked: &Asked<'_>,
    source: &Source,
    before: &Before,
    alone: bool,
    notes: &mut Vec<String>,
) -> Result<()> {
    (asked.watch)(Progress::Begins { what: "checking", bytes: None });
    let fresh = reader(family, asked.wanted.patience)?;
    whole::require(&fresh, &family.main())?;
    for n in 0..TRIES {
        match copy::same(source, &fresh, before.path.as_deref()) {
            Err(Error::Differs { found, .. }) if !alone => {
                if n + 1 == TRIES {
                    notes.push(format!("others have written since, so it holds more than the source by now: {found}"));
                    return Ok(());
                }
                std::thread::sleep(AGAIN);
            }
            other => return other,
        }
    }
    Ok(())
}

/// Who goes on using it.
fn others(family: &Family) -> Result<Vec<Holder>> {
    let report = holders::scan(family)?;
    let uses = |h: &&Holder| !h.is_self && !h.parked && !h.files.is_empty() && h.role.is_none();
    Ok(report.holders.into_iter().filter(|h| uses(&h)).collect())
}
