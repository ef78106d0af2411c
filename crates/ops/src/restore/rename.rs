//! Another main file in the place of the old one, where nobody has any of the files open.

use std::path::{Path, PathBuf};

use statehouse_sqlite::admission::{Admission, Vacant};
use statehouse_sqlite::headers::Journal;
use statehouse_sqlite::secure::{self, Inspected, Purpose};
use statehouse_sqlite::{Member, Status, immutable, uri};

use super::error::Result;
use super::held;
use super::live::Outcome;
use super::recovered::RolledBack;
use super::source::Source;
use super::{Asked, Before, Compared, How, Restored, compare, copy, lossy, refuse_stranger, staging};
use crate::maintenance::checkpoint;
use crate::maintenance::whole;

/// The present state as a snapshot, and the new file, ready to take its place.
pub(super) struct Kept {
    before: Before,
    compared: Compared,
    new: PathBuf,
    /// Where the old files go, if that is there already.
    aside: Option<PathBuf>,
}

impl Kept {
    pub(super) fn later(self) -> Outcome {
        Outcome::Kept(self)
    }
}

/// Keeps what is there and makes the new file, while nobody else is in. Changes nothing about the database.
pub(super) fn keep(admission: &Admission, asked: &Asked<'_>, source: &Source) -> Result<Kept> {
    let family = admission.family();
    let connection = admission.connection();
    whole::require(connection, &family.main())?;
    refuse_stranger(asked, source, &compare::tables(connection, "main")?)?;
    let inspected = secure::inspect(family, Purpose::Own)?;
    let before = super::before(admission, asked)?;
    // The snapshot is what is there, and can be read by a second connection in whatever mode that is.
    let compared =
        compare::compare(before.path.as_deref().map(|p| uri(Path::new(p), "immutable=1")).as_deref(), source.uri())?;
    let mode: String = connection.pragma_query_value(None, "journal_mode", |r| r.get(0))?;
    let new = stage(&inspected, asked, source, mode == "wal")?;
    Ok(Kept { before, compared, new, aside: None })
}

/// Puts the new file in the place of a database that can be read.
pub(super) fn readable(admission: Admission, asked: &Asked<'_>, source: &Source, kept: Kept) -> Result<Restored> {
    // From here on the main file alone is the whole database.
    checkpoint::empty_the_log(&admission, &|_| {}).inspect_err(|_| clear(&kept.new))?;
    let vacant = admission.vacate(&asked.wanted).inspect_err(|_| clear(&kept.new))?;
    (asked.before)(&kept.compared);
    place(&vacant, asked, source, kept)
}

/// Puts the new file in the place of what cannot be read. What lies there is kept as it is.
pub(super) fn beyond(vacant: Vacant, asked: &Asked<'_>, source: &Source, why: &str) -> Result<Restored> {
    let new = stage(vacant.inspected(), asked, source, wal(&vacant, asked, source))?;
    let compared = compare::compare(None, source.uri())?;
    (asked.before)(&compared);
    let before = Before { id: None, path: None, reason: Some(why.to_owned()) };
    place(&vacant, asked, source, Kept { before, compared, new, aside: None })
}

/// As [`beyond`] for a database that SQLite opens and that is damaged. Its log has a part of it: all files are copied, then
/// that log is emptied into the main file, which alone is the damaged database from then on, whoever opens it.
pub(super) fn unsound(vacant: Vacant, asked: &Asked<'_>, source: &Source, why: &str) -> Result<Restored> {
    if vacant.inspected().get(Member::Wal).is_none_or(|log| log.status.size == 0) {
        return beyond(vacant, asked, source, why);
    }
    let copies = vacant.aside()?;
    vacant.copy_members(&copies)?;
    let vacant = vacant.let_sqlite_recover(&asked.wanted)?;
    let new = stage(vacant.inspected(), asked, source, wal(&vacant, asked, source))?;
    let compared = compare::compare(None, source.uri())?;
    (asked.before)(&compared);
    let why = format!("{why}; the files as they were are copied there, and its log was copied into its main file");
    let before = Before { id: None, path: None, reason: Some(why) };
    place(&vacant, asked, source, Kept { before, compared, new, aside: Some(copies) })
}

/// As [`beyond`] beside the journal of an interrupted transaction. All files are copied, then SQLite rolls the transaction
/// back, as any opener would: from then on the main file alone is the whole database.
pub(super) fn interrupted(vacant: Vacant, asked: &Asked<'_>, source: &Source) -> Result<Restored> {
    // Whatever can refuse it is found on a copy, before anything is changed.
    let held = RolledBack::of(vacant.inspected(), asked.scratch)?;
    refuse_stranger(asked, source, &held.tables)?;
    let compared = held.compare(source)?;
    drop(held);
    let new = stage(vacant.inspected(), asked, source, wal(&vacant, asked, source))?;
    let copies = vacant.aside().inspect_err(|_| clear(&new))?;
    vacant.copy_members(&copies).inspect_err(|_| {
        clear(&new);
        let _ = std::fs::remove_dir(&copies);
    })?;
    let vacant = vacant.let_sqlite_recover(&asked.wanted).inspect_err(|_| clear(&new))?;
    let why = format!(
        "it had an interrupted transaction; the files as they were are copied to {}, and the transaction was rolled back",
        copies.display()
    );
    (asked.before)(&compared);
    let before = Before { id: None, path: None, reason: Some(why) };
    place(&vacant, asked, source, Kept { before, compared, new, aside: Some(copies) })
}

/// Whether what belongs there has a log.
fn wal(vacant: &Vacant, asked: &Asked<'_>, source: &Source) -> bool {
    let inspected = vacant.inspected();
    let log = inspected.get(Member::Wal).is_some() || inspected.get(Member::Shm).is_some();
    asked.ours || inspected.created_before() || source.is_ours() || log || source.header.journal == Journal::Wal
}

fn stage(inspected: &Inspected, asked: &Asked<'_>, source: &Source, wal: bool) -> Result<PathBuf> {
    let new = staging(inspected)?.join("image");
    let made = copy::write(source, &new, wal, asked.watch)
        .and_then(|()| copy::hand_over(inspected, &new, source.is_ours() || asked.ours));
    match made {
        Ok(()) => Ok(new),
        Err(e) => {
            clear(&new);
            Err(e)
        }
    }
}

fn clear(new: &Path) {
    if let Some(directory) = new.parent() {
        let _ = std::fs::remove_dir_all(directory);
    }
}

fn place(vacant: &Vacant, asked: &Asked<'_>, source: &Source, kept: Kept) -> Result<Restored> {
    let Kept { mut before, compared, new, aside } = kept;
    let family = vacant.inspected().family();
    let aside = aside.map_or_else(|| vacant.aside(), Ok)?;
    if !vacant.overridden().is_empty() {
        (asked.wanted.tell)(held::UNSEEN);
    }
    let identity = || Status::of(&new).ok().flatten().map(|s| s.identity);
    let made = identity();
    let placed = match vacant.place(&new, &aside) {
        // What failed after the exchange has left the old main file there, and whoever comes next moves it to the others.
        Err(e) if identity() != made => return Err(e.into()),
        placed => placed,
    };
    clear(&new);
    // It goes if nothing was there that could be kept in it.
    let replaced = std::fs::remove_dir(&aside).is_err().then(|| lossy(&aside));
    let placed = placed?;
    if before.id.is_none() {
        before.path = replaced.clone();
    }
    let fresh = immutable(&family.main())?;
    whole::require(&fresh, &family.main())?;
    copy::same(source, &fresh, before.path.as_deref())?;
    drop(fresh);
    let left = vacant.leave(placed, asked.wanted.tell)?;
    let unseen = !vacant.overridden().is_empty();
    let mut next = if unseen { held::unseen(family) } else { Vec::new() };
    next.extend(held::late(&left));
    Ok(Restored {
        source: source.found.name(),
        kind: source.found.kind(),
        path: lossy(&family.main()),
        how: How::Rename,
        before: Some(before),
        lost: compared.lost(),
        tables: compared.tables,
        schema: compared.schema,
        held_by: Vec::new(),
        replaced,
        verified: true,
        next,
        notes: source.notes.clone(),
        overridden: vacant.overridden().to_vec(),
        ms: 0.0,
    })
}
