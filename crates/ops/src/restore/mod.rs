//! A good file in the place of a database, in a way that leaves the old database or the new one, whole, whatever happens.
//!
//! Invariant: the source is proved to be good before anything is done, and what is replaced is kept: as a verified snapshot
//! where it can be read, else as the files that it was, moved aside. Nothing is put beside a log that is not its own.
//!
//! **Live** (`live`) where SQLite can read what is there, it has a log, and its pages are as large as the source's: the content
//! goes in as one ordinary transaction, by SQLite's backup interface with the database as its destination. No file is
//! replaced, so whoever has the database open sees the new content with its next statement. Processes of ours are asked to
//! park meanwhile, because what they remember of the old content must not be mixed with the new one, and because an older
//! schema is brought up to date by the next opener. The write lock is taken first and held to the end, and the present state is
//! kept under it: nothing that anybody commits falls between the snapshot and the replacement.
//!
//! **By rename** (`rename`) else, and only when nobody has any of the files open. Why that bears a kill at any point is said
//! in `statehouse_sqlite::admission`, where it is done. What is readable is emptied into its main file first, an interrupted
//! transaction is rolled back first; so between any two steps the main file alone is the whole old database or the whole new
//! one, and nothing is left for the next opener to finish.

pub(crate) mod compare;
pub(crate) mod copy;
mod error;
mod found;
mod held;
mod live;
mod plan;
mod present;
mod rebuilt;
mod recovered;
mod rename;
mod schema;
pub(crate) mod source;
mod to;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use statehouse_sessions::{OpenMode, SqliteStore, Store as _};
use statehouse_sqlite::admission::{self, Admission, Vacant, Wanted};
use statehouse_sqlite::incidents::{self, Kind, Outcome, Report};
use statehouse_sqlite::shell::word;
use statehouse_sqlite::{Error as DatabaseError, Family, Reason, capture, process::ProcessId};

use crate::maintenance::{self, ms};
use crate::progress::Watch;
use crate::retired;
use crate::snapshots::{self, Wish};
use found::Found;
use present::Present;
use source::Source;

pub use compare::{Compared, Table, Tables};
pub use error::{Error, Result};
pub use held::Next;
pub use plan::{Planned, plan};
pub use schema::{Change, Stands};
pub use to::to;

/// What somebody asks for.
pub struct Asked<'a> {
    /// The id of a snapshot or of a capture, or a file.
    pub source: &'a OsStr,
    /// The database that is replaced.
    pub path: &'a Path,
    /// True if a store of ours belongs there, whatever lies there now.
    pub ours: bool,
    /// A directory for a private image of a source that has a log.
    pub scratch: &'a Path,
    /// How it is admitted.
    pub wanted: Wanted<'a>,
    /// Is told how far it is.
    pub watch: Watch<'a>,
    /// Is told what will be replaced, before it is.
    pub before: &'a dyn Fn(&Compared),
}

/// How the content came to its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// As one transaction of the database that is there.
    Live,
    /// As another file.
    Rename,
    /// Into a new file elsewhere.
    To,
}

/// Where the state before it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Before {
    /// The snapshot; `null` where there could be none.
    pub id: Option<String>,
    /// Its file, or the directory in which the files lie that were there; `null` where nothing was there.
    pub path: Option<String>,
    /// Why there is no snapshot.
    pub reason: Option<String>,
}

/// What was done.
#[derive(Debug, Serialize)]
pub struct Restored {
    /// The source as it is called: an id, or a file.
    pub source: String,
    /// `snapshot`, `capture` or `file`.
    pub kind: &'static str,
    /// The database that was restored, or the new file.
    pub path: String,
    /// How.
    pub how: How,
    /// Where the state before it is kept; `null` where nothing was replaced.
    pub before: Option<Before>,
    /// What was replaced, table by table.
    pub tables: Tables,
    /// How the schema that was replaced differs from that of the source.
    pub schema: Vec<Change>,
    /// Programs that have it open, and see the new content with their next statement.
    pub held_by: Vec<String>,
    /// What to type now about programs that use it, or may use the old files; empty where there is nothing to do.
    pub next: Vec<Next>,
    /// The directory with the files that were replaced, if files were.
    pub replaced: Option<String>,
    /// What the state before it had and the source does not, in words.
    #[serde(skip)]
    lost: Option<String>,
    /// True: it was opened anew, and holds what the source holds.
    pub verified: bool,
    /// What should be known about it, each a sentence.
    pub notes: Vec<String>,
    /// What `--force` went on beside.
    pub overridden: Vec<String>,
    /// How long it took.
    pub ms: f64,
}

/// Restores.
///
/// # Errors
/// What refuses it, with nothing changed; or what went wrong, with the old database or the new one in place.
pub fn run(asked: &Asked<'_>) -> Result<Restored> {
    let begun = Instant::now();
    let family = Family::of(asked.path)?;
    let mut done = in_place(asked, &family).map_err(|e| e.naming(&family, begun))?;
    // What waits for the rows of a capture need not wait any more. A store of ours takes over its captures by itself.
    if done.kind == "capture" && !Present::of(&family)?.ours() {
        let looking = retired::Asked { scratch: asked.scratch, patience: asked.wanted.patience, watch: asked.watch };
        match retired::restored(asked.path, &done.source, &looking) {
            Ok(note) => done.notes.extend(note),
            Err(e) => done.notes.push(format!("it could not be seen whether the capture has more: {e}")),
        }
    }
    done.ms = ms(begun);
    if let Err(e) = rebuilt::settle(&family, asked.source) {
        done.notes.push(format!("that it is in its place could not be written down: {e}"));
    }
    if let Err(e) = report(&family, &done) {
        done.notes.push(format!("that this was done could not be written down among the incidents: {e}"));
    }
    Ok(done)
}

fn in_place(asked: &Asked<'_>, family: &Family) -> Result<Restored> {
    let mut present = Present::of(family)?;
    let found = Found::of(asked.source, Some(family))?;
    refuse_itself(&found, family)?;
    present.refuse_first(&asked.wanted, None)?;
    let is_capture = matches!(found, Found::Capture(..));
    // What is put together of a destroyed database may be what is restored, and nobody adds to it after this.
    admission::settled(family, asked.wanted.patience)?;
    let source = Source::verified(found, asked.scratch, asked.wanted.patience, asked.watch)?;
    permitted(asked, source.fits(present.header(), None, asked.ours || present.ours()))?;
    rebuilt::refuse_again(asked, family, &present, &source)?;
    present.refuse_first(&asked.wanted, Some(&source))?;
    present.room(&source)?;
    if let Some(inspected) = present.interrupted()? {
        refuse_stranger(asked, &source, &recovered::RolledBack::of(inspected, asked.scratch)?.tables)?;
    }
    // Nothing was changed until here. The image of a capture that is taken over is gone after that; and where it is what is
    // restored, its rows are there anyhow.
    if !is_capture && present.ours() && take_over(family, asked.wanted.patience)? {
        present = Present::of(family)?;
        present.room(&source)?;
    }
    put(asked, family, &present, &source)
}

fn put(asked: &Asked<'_>, family: &Family, present: &Present, source: &Source) -> Result<Restored> {
    let wanted = &asked.wanted;
    let live = present.can_be_live(source);
    let in_the_way = |e: Error| held::explained(e, wanted.force);
    let why = match present {
        Present::Beyond { why, .. } => why.clone(),
        Present::Readable(_) => {
            let admission = if live {
                Admission::obtain_beside(family, wanted)
            } else {
                Admission::obtain_to_replace(family, wanted)
            };
            match admission {
                Ok(admission) => {
                    let done = match live {
                        true => live::restore(&admission, asked, source),
                        false => rename::keep(&admission, asked, source).map(rename::Kept::later),
                    };
                    match done {
                        Ok(live::Outcome::Done(done)) => return Ok(*done),
                        Ok(live::Outcome::Kept(kept)) => {
                            return rename::readable(admission, asked, source, kept).map_err(in_the_way);
                        }
                        Err(Error::Work(maintenance::Error::Unsound { found, .. })) => {
                            let vacant = admission.vacate(wanted).map_err(|e| in_the_way(e.into()))?;
                            return rename::unsound(vacant, asked, source, &format!("it is damaged: {found}"));
                        }
                        Err(e) => return Err(e),
                    }
                }
                Err(e) if e.reason() == Some(Reason::HotJournal) => {
                    let vacant = Vacant::obtain(family, wanted).map_err(|e| in_the_way(e.into()))?;
                    return rename::interrupted(vacant, asked, source);
                }
                Err(DatabaseError::Damaged { detail }) => format!("it is damaged: {detail}"),
                Err(e) if live => return Err(e.into()),
                Err(e) => return Err(in_the_way(e.into())),
            }
        }
    };
    let vacant = Vacant::obtain(family, wanted).map_err(|e| in_the_way(e.into()))?;
    rename::beyond(vacant, asked, source, &why)
}

/// Lets a store of ours take over the rows that only captures have, as its next opener would: else that would bring them, and
/// with them most of what is replaced here, into the restored content. What cannot be opened takes over nothing.
fn take_over(family: &Family, patience: std::time::Duration) -> Result<bool> {
    let waits =
        |c: &capture::Capture| !c.is_merged() && !c.is_unreadable() && !c.is_overtaken() && c.ready_image().is_some();
    if !capture::list(family)?.iter().any(waits) {
        return Ok(false);
    }
    let mode = OpenMode { patience, ..OpenMode::existing() };
    let Ok(store) = SqliteStore::open(&family.main(), "restore", mode) else { return Ok(false) };
    store.close();
    Ok(true)
}

/// What force overrides of what a source is.
fn permitted(asked: &Asked<'_>, fits: Result<()>) -> Result<()> {
    match fits {
        Err(Error::OtherProgram { .. } | Error::PutInPlace { .. }) if asked.wanted.force => Ok(()),
        fits => fits,
    }
}

/// A source with no table that is in the database is a database of another program, whatever its header says.
fn refuse_stranger(asked: &Asked<'_>, source: &Source, here: &[String]) -> Result<()> {
    permitted(asked, source.fits(None, Some(here), false))
}

fn refuse_itself(found: &Found, family: &Family) -> Result<()> {
    use statehouse_sqlite::Status;
    let identity = |path: &Path| Status::of(path).ok().flatten().map(|s| s.identity);
    let source = identity(found.path());
    let member =
        statehouse_sqlite::Member::ALL.into_iter().any(|m| source.is_some() && identity(&family.path(m)) == source);
    if member { Err(Error::SameFile { path: found.path().to_owned() }) } else { Ok(()) }
}

/// It is known beside the database that this happened. Without room for that it has happened all the same.
fn report(family: &Family, done: &Restored) -> Result<(), DatabaseError> {
    let before = done.before.as_ref();
    let unread = before.and_then(|b| b.reason.as_ref().filter(|_| b.path.is_some()));
    let lost = match (&done.lost, unread) {
        (Some(lost), _) => Some(lost.clone()),
        // Without a comparison nobody knows.
        (None, Some(why)) => Some(format!("it is not known what only the files had that were there before ({why})")),
        (None, None) => None,
    };
    let kept = before.and_then(|b| match (&b.id, &b.path) {
        (Some(id), _) => Some(format!("the state before it is the snapshot {id}")),
        (None, Some(path)) => Some(format!("the files before it are in {path}")),
        (None, None) => None,
    });
    let next = before
        .and_then(|b| b.id.as_ref())
        .map(|id| format!("To go back: `statehouse restore {id} {}`", word(&done.path)));
    let report = Report {
        kind: Kind::Restored,
        role: "restore".to_owned(),
        what: format!("the {} {} was put in the place of the database", done.kind, done.source),
        cause: "somebody asked for it".to_owned(),
        evidence: kept.into_iter().collect(),
        done: match done.how {
            How::Live => "as one transaction; no file was replaced".to_owned(),
            _ if done.replaced.is_some() => "as another main file; the old files were moved aside".to_owned(),
            _ => "as a new main file, for there was none".to_owned(),
        },
        lost,
        next: next.unwrap_or_default(),
        outcome: Outcome::Kept,
        open: false,
    };
    // Each is a deed of its own, however soon it comes after another: the way back is another one for each.
    let about = format!("restored by {} {}", std::process::id(), ProcessId::own().map_or(0, |p| p.start_ticks));
    incidents::report_about(family, &about, report).map(drop)
}

/// Takes a snapshot of what is replaced.
///
/// # Errors
/// [`maintenance::Error::Unsound`] if what is there is damaged, so that only its files can be kept.
fn before(admission: &Admission, asked: &Asked<'_>) -> Result<Before> {
    // What one that was killed has left to be done, or has left lying.
    admission::finish(admission.family())?;
    let wish = Wish { patience: asked.wanted.patience, ..Wish::because("before-restore") };
    match snapshots::take_admitted(admission, &wish, asked.watch) {
        Ok(taken) => Ok(Before { id: Some(taken.id), path: Some(lossy(&taken.path)), reason: None }),
        Err(snapshots::Error::Unverified { database, found, .. }) => {
            Err(maintenance::Error::Unsound { path: database, found }.into())
        }
        Err(e) => Err(e.into()),
    }
}

/// A path as answers give it.
fn lossy(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A directory of this store's own for a file that is being made. What is in it was left by a process that is dead, for only
/// one at a time is admitted.
fn staging(inspected: &statehouse_sqlite::secure::Inspected) -> Result<PathBuf> {
    use std::os::fd::AsFd as _;
    let side = statehouse_sqlite::side::create(inspected)?;
    // One that was ended after the exchange has left the old main file there.
    admission::finish(inspected.family())?;
    let path = inspected.family().side_directory().join("restoring");
    let _ = std::fs::remove_dir_all(&path);
    statehouse_sqlite::side::subdirectory(inspected, side.as_fd(), "restoring", &path)?;
    Ok(path)
}
