//! That another main file was about to take its place, for whoever comes after a process that was killed meanwhile.
//!
//! Invariant: from before the first file is moved until the last is in its place, `X.statehouse/restoring.json` says which file
//! was there and which one takes its place, by identity. So each opener of ours can tell on which side of the one step that
//! counts that process was killed, and needs nothing else:
//!
//! * the old main file is there: nothing was replaced. Where a log with content was moved aside already, what is there is not the
//!   whole database, and is refused until the restore is done once more;
//! * the new one is there: what is left is done by whoever opens the database or restores it next, before he does anything else:
//!   the old main file goes to the other old files, and what was captured of the old content is marked as overtaken, for
//!   bringing it back by itself would undo the restore.
//!
//! A mark after that step alone would come too late for one who opens the new file in between, and a mark before it would give
//! up what was captured of a database that nobody replaced.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::captures::{self, OVERTAKEN, SUCCEEDED};
use crate::error::{Error, Reason, Result};
use crate::family::{Family, Identity, Member, Status};
use crate::{destroyed, files, putback};

const MARK: &str = "restoring.json";

/// The longest mark that is read.
const LONGEST: u64 = 1 << 20;

/// What was about to happen.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Begun {
    /// The main file that was there.
    pub(super) old: Option<Identity>,
    /// The one that takes its place.
    pub(super) made: Identity,
    /// Where that was made. The step that exchanges them leaves the old one there.
    pub(super) new: PathBuf,
    /// Where the old files go.
    pub(super) aside: PathBuf,
    /// True if the old main file is not the whole database without its log or journal.
    pub(super) log: bool,
    /// The captures that were there, by name.
    pub(super) captures: Vec<String>,
}

fn path(family: &Family) -> PathBuf {
    family.side_directory().join(MARK)
}

fn identity(path: &Path) -> Result<Option<Identity>> {
    Ok(Status::of(path).map_err(|e| Error::io("look at", path, e))?.map(|s| s.identity))
}

/// What was begun and is not finished.
pub(super) fn read(family: &Family) -> Result<Option<Begun>> {
    let path = path(family);
    match files::read_to_string(&path, LONGEST) {
        // It is written in one step, so what is no such text is none of ours.
        Ok(text) => Ok(serde_json::from_str(&text).ok()),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied) => {
            Ok(None)
        }
        Err(_) if rustix::fs::lstat(&path).is_err() => Ok(None),
        Err(e) => Err(Error::io("read", &path, e)),
    }
}

/// What was begun, if the main file is still the old one.
pub(super) fn not_done(family: &Family) -> Result<Option<Begun>> {
    let Some(begun) = read(family)? else { return Ok(None) };
    Ok(Some(begun).filter(|b| identity(&family.main()).is_ok_and(|main| main == b.old)))
}

/// Says what is about to happen, durably. To be called before anything is moved.
pub(super) fn begin(family: &Family, begun: &Begun) -> Result<()> {
    clear_halves(family);
    let path = path(family);
    let text = serde_json::to_vec_pretty(begun).map_err(|e| Error::io("write", &path, std::io::Error::from(e)))?;
    files::replace(&path, &text).map_err(|e| Error::io("write", &path, e))?;
    captures::sync_directory(&family.side_directory())
}

/// Removes marks that a process had not finished writing when it was killed. Only one at a time writes any.
fn clear_halves(family: &Family) {
    let Ok(entries) = std::fs::read_dir(family.side_directory()) else { return };
    for entry in entries.filter_map(std::result::Result::ok) {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let half = name.strip_prefix(MARK).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(".new"));
        if half.is_some_and(|pid| !pid.is_empty() && pid.bytes().all(|b| b.is_ascii_digit())) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Says that it was given up, and everything is where it was.
pub(super) fn give_up(family: &Family) {
    let _ = std::fs::remove_file(path(family));
}

/// True if something is left to be done before anybody opens the database.
pub(crate) fn left(family: &Family) -> bool {
    let main = || identity(&family.main()).ok().flatten();
    read(family).ok().flatten().is_some_and(|b| main() == Some(b.made))
}

/// Does what is left, once the new file is there. To be called with the exclusive side of the recovery lock, or by one who is
/// admitted. Can be repeated.
///
/// # Errors
/// The system's answer; it is tried again by whoever comes next.
pub fn finish(family: &Family) -> Result<()> {
    clear_halves(family);
    let Some(begun) = read(family)? else { return Ok(()) };
    let main = identity(&family.main())?;
    if main == begun.old {
        return Ok(());
    }
    // Whatever stands at the path by now, the old one is evidence.
    if begun.old.is_some() && identity(&begun.new)? == begun.old {
        captures::private_directory(&begun.aside)?;
        putback::rename_new(&begun.new, &begun.aside.join(replaced(Member::Main)))?;
        captures::sync_directory(&begun.aside)?;
    }
    if main == Some(begun.made) {
        destroyed::set_aside(family, &begun.aside)?;
        let parent = captures::directory(family);
        let then = |place: &PathBuf| {
            place.file_name().is_some_and(|name| begun.captures.iter().any(|c| name.to_string_lossy() == c.as_str()))
        };
        for capture in captures::unmerged(family).into_iter().filter(then) {
            captures::mark(&capture, OVERTAKEN)?;
        }
        for capture in captures::complete(&parent).into_iter().filter(then) {
            captures::mark(&capture, SUCCEEDED)?;
        }
    }
    let mark = path(family);
    match std::fs::remove_file(&mark) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(Error::io("remove", &mark, e)),
        _ => captures::sync_directory(&family.side_directory()),
    }
}

/// True if the log or the journal is there already. Killed before that, everything is in its place.
fn has_moved(aside: &Path) -> bool {
    [Member::Wal, Member::Journal].iter().any(|m| aside.join(replaced(*m)).exists())
}

/// What a member is called where it was moved.
pub(super) fn replaced(member: Member) -> String {
    format!("{member}.replaced")
}

/// Refuses a main file whose log was moved aside by a restore that was not done.
///
/// # Errors
/// [`Reason::HalfRestored`].
pub(crate) fn refuse(family: &Family) -> Result<()> {
    match not_done(family)? {
        Some(begun) if begun.log && begun.old.is_some() && has_moved(&begun.aside) => {
            let detail = format!("what belongs to it is in {}", begun.aside.display());
            Err(Error::refused(Reason::HalfRestored, family.path(Member::Main), detail))
        }
        _ => Ok(()),
    }
}
