//! Finding what somebody wants to restore from, and making it a file that can be read as a database.
//!
//! A snapshot is read only if it is, to the byte, the file that was proved to be good when it was taken. A compressed one is
//! unpacked, and main file and log of a capture that has them apart are put together, in a private directory that goes again.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use statehouse_sqlite::capture::{self, Capture};
use statehouse_sqlite::{Error as DatabaseError, Family};

use super::error::{Error, Result};
use crate::attach::Scratch;
use crate::maintenance::error::io;
use crate::maintenance::room::{MARGIN, free};
use crate::maintenance::{self};
use crate::progress::Watch;
use crate::snapshots::{self, Snapshot};

/// A source that was found.
#[derive(Debug)]
pub(crate) enum Found {
    /// A snapshot of the database.
    Snapshot(Box<Snapshot>),
    /// A capture of a retired generation of it.
    Capture(Box<Capture>),
    /// Some file.
    File(PathBuf),
}

/// A source as one file.
pub(crate) struct Ready {
    pub(crate) path: PathBuf,
    /// Where it lies if it was made for this; goes with it.
    _scratch: Option<Scratch>,
}

impl Found {
    /// Looks for what somebody named: an id of the database's own first, then a file.
    pub(crate) fn of(asked: &OsStr, family: Option<&Family>) -> Result<Found> {
        let text = asked.to_string_lossy();
        let is_name = !text.contains('/') && !text.is_empty();
        if let Some(family) = family.filter(|_| is_name) {
            match snapshots::find(family, &text) {
                Ok(snapshot) => return Ok(Found::Snapshot(Box::new(snapshot))),
                Err(snapshots::Error::NotFound { .. }) => {}
                Err(e) => return Err(e.into()),
            }
            if let Some(capture) = capture::list(family)?.into_iter().find(|c| c.id == text) {
                return Ok(Found::Capture(Box::new(capture)));
            }
        }
        let path = std::path::absolute(Path::new(asked)).unwrap_or_else(|_| asked.into());
        // A link to a directory is one; a link to a file is refused where files are looked at.
        match std::fs::symlink_metadata(&path) {
            _ if path.is_dir() => of_directory(path),
            // A compressed snapshot is no database until it is unpacked, whichever way it is named.
            Ok(found) if found.file_type().is_file() && path.extension().is_some_and(|e| e == "zst") => {
                Ok(of_snapshots(&path)?.unwrap_or(Found::File(path)))
            }
            Ok(found) if found.file_type().is_file() || found.file_type().is_symlink() => Ok(Found::File(path)),
            Ok(_) => Err(Error::SourceUnfit {
                path,
                found: "it is not a file".to_owned(),
                hint: "Nothing was changed. Name a database file, or the id of a snapshot or of a capture.",
            }),
            Err(_) => {
                let looked = match family {
                    Some(family) => {
                        format!("looked at {} and in {}", path.display(), family.side_directory().display())
                    }
                    None => format!("looked at {}", path.display()),
                };
                Err(Error::NotFound { asked: text.into_owned(), looked })
            }
        }
    }

    /// Where it lies.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Found::Snapshot(snapshot) => &snapshot.path,
            Found::Capture(capture) => &capture.place,
            Found::File(path) => path,
        }
    }

    /// As it is called in an answer.
    pub(crate) fn name(&self) -> String {
        match self {
            Found::Snapshot(snapshot) => snapshot.id.clone(),
            Found::Capture(capture) => capture.id.clone(),
            Found::File(path) => path.to_string_lossy().into_owned(),
        }
    }

    /// What it is, in a word.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Found::Snapshot(..) => "snapshot",
            Found::Capture(..) => "capture",
            Found::File(_) => "file",
        }
    }

    /// Makes it one file, in a new directory below `scratch` if it is none yet.
    ///
    /// # Errors
    /// `snapshot_changed`; no room; a capture from which no database can be had.
    pub(crate) fn ready(&self, scratch: &Path, watch: Watch<'_>) -> Result<Ready> {
        let as_it_lies = |path: &Path| Ready { path: path.to_owned(), _scratch: None };
        match self {
            Found::File(path) => Ok(as_it_lies(path)),
            Found::Snapshot(snapshot) if snapshot.compressed => {
                let place = place(scratch, snapshot.plain_bytes)?;
                let path = place.path().join("snapshot");
                snapshots::unpack(snapshot, &path, watch)?;
                Ok(Ready { path, _scratch: Some(place) })
            }
            Found::Snapshot(snapshot) => {
                snapshots::check(snapshot, watch)?;
                Ok(as_it_lies(&snapshot.path))
            }
            Found::Capture(capture) => match capture.ready_image() {
                Some(image) => Ok(as_it_lies(&image)),
                None => put_together(capture, scratch),
            },
        }
    }
}

/// The snapshot whose file this is, of whatever database.
fn of_snapshots(path: &Path) -> Result<Option<Found>> {
    let (Ok(path), Some(name)) = (std::fs::canonicalize(path), path.file_name()) else { return Ok(None) };
    let Some(side) = path.parent().and_then(Path::parent) else { return Ok(None) };
    let main = side.file_name().and_then(|n| n.to_str()?.strip_suffix(".statehouse")).filter(|n| !n.is_empty());
    let Some(family) = main.and_then(|main| Family::to_look_at(&side.with_file_name(main)).ok()) else {
        return Ok(None);
    };
    let found = snapshots::list(&family)?.into_iter().find(|s| s.path.file_name() == Some(name));
    Ok(found.map(|snapshot| Found::Snapshot(Box::new(snapshot))))
}

/// What a directory stands for: a capture, as its id would. Of any other it is said what in it can be named.
fn of_directory(path: PathBuf) -> Result<Found> {
    let has = |name: &str| path.join(name).is_file();
    // Any directory with a database in it looks like a copy that somebody has made by hand; only what calls itself one is one.
    let says_so =
        has("manifest.json") || path.file_name().is_some_and(|n| n.to_string_lossy().contains(".retired-wal-"));
    if let Some(capture) = if says_so { capture::at(&path)? } else { None } {
        return Ok(Found::Capture(Box::new(capture)));
    }
    let (found, hint) = match () {
        () if has(REBUILT) => (
            format!("it is a directory with what was kept of a destroyed database, {REBUILT} among it"),
            "Nothing was changed. Name the file `rebuilt.captured` in it, which was put together of what was left.",
        ),
        () if has(REPLACED) => (
            format!("it is a directory with what another restore has replaced, {REPLACED} among it"),
            "Nothing was changed. Name the file `main.replaced` in it; `statehouse retired show` with that file says what only it has.",
        ),
        () => (
            "it is a directory and no capture".to_owned(),
            "Nothing was changed. Name a database file, or the id of a snapshot or of a capture: `statehouse snapshots` and `statehouse \
             retired list` show what there is.",
        ),
    };
    Err(Error::SourceUnfit { path, found, hint })
}

/// What was put together of a database that was destroyed.
const REBUILT: &str = "rebuilt.captured";
/// The old main file where a restore has moved it.
const REPLACED: &str = "main.replaced";

/// A private directory with room for a file of `bytes` bytes.
pub(super) fn place(scratch: &Path, bytes: u64) -> Result<Scratch> {
    let (room, _) = free(scratch).map_err(|e| io("ask for the free space of", scratch, e))?;
    let needs = bytes + MARGIN;
    if room < needs {
        let numbers =
            format!("{room} bytes are free at {}; {needs} bytes are needed to look at it there", scratch.display());
        return Err(maintenance::Error::NoRoom { numbers }.into());
    }
    Ok(Scratch::new(scratch)?)
}

fn put_together(capture: &Capture, scratch: &Path) -> Result<Ready> {
    let place = place(scratch, capture.bytes())?;
    match capture.image(place.path()) {
        Ok(Some(path)) => Ok(Ready { path, _scratch: Some(place) }),
        Ok(None) => Err(Error::SourceUnfit {
            path: capture.place.clone(),
            found: "it has no image of the database, only a log".to_owned(),
            hint: "Nothing was changed. `statehouse retired show` says what it holds, and `statehouse retired merge` brings it back.",
        }),
        Err(DatabaseError::Damaged { detail }) => {
            Err(Error::SourceDamaged { path: capture.place.clone(), found: detail })
        }
        Err(e) => Err(e.into()),
    }
}
