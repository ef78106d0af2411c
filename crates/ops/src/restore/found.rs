//! Finding what somebody wants to restore from, and making it a file that can be read as a database.
//!
//! A snapshot is read only if it is, to the byte, the file that was proved to be good when it was taken. A compressed one is
//! unpacked, and main file and log of a capture that has them apart are put together, in a private directory that goes again.

use std::ffi::OsStr;
use std::os::unix::fs::FileTypeExt as _;
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
        match std::fs::symlink_metadata(&path) {
            Ok(found) if !found.is_dir() && !found.file_type().is_fifo() => Ok(Found::File(path)),
            _ => {
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

/// A private directory with room for a file of `bytes` bytes.
fn place(scratch: &Path, bytes: u64) -> Result<Scratch> {
    let (room, _) = free(scratch).map_err(|e| io("ask for the free space of", scratch, e))?;
    let needs = bytes + MARGIN;
    if room < needs {
        let numbers = format!("{room} bytes are free at {}; {needs} bytes are needed to unpack it", scratch.display());
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
