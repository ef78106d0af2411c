//! The captures of retired generations that lie beside a database: listing and reading them, and making one of what another
//! process has open.
//!
//! A capture is a directory below `X.statehouse/retired/` with a manifest, made by a process of ours that was cut off, or by
//! [`take`] from the descriptors of any other process. Hermes Agent makes such copies of its own beside its database; they
//! are listed and read as well. How a process of ours captures its own generation is in the private modules `retired` and
//! `captures`.

mod check;
mod copy;
mod error;
mod find;
mod hermes;
mod make;
pub(crate) mod merged;
mod note;
mod open;
mod pin;
mod place;
mod take;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use error::TakeError;
pub use find::only_reads_what_is_there;
pub use merged::Merge;
pub use take::{Failed, Taken, Took, Wanted, Whose, take};
pub(crate) use take::{of_others, own};

use crate::captures::{self, IMAGE, LOG, MANIFEST, OVERTAKEN, UNREADABLE};
use crate::error::{Error, Result};
use crate::family::{Family, Generation, Member};
use crate::{files, image};

/// Who made a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// This crate.
    Statehouse,
    /// Hermes Agent, beside its own database.
    Hermes,
}

/// A file of a capture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedFile {
    /// Its name in the directory of the capture.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// BLAKE3 of its content, in hexadecimal; empty where whoever made it did not say.
    #[serde(default)]
    pub blake3: String,
}

/// A member of the family as the captured process had it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CapturedMember {
    /// Which.
    pub member: Member,
    /// True if it had no name any more.
    pub deleted: bool,
    /// True if its path named another file.
    pub replaced: bool,
    /// Length in bytes when the copy was begun.
    pub bytes: u64,
}

/// What a capture says about itself. What an older version did not write down is empty.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Manifest {
    /// The version of this format.
    pub version: u32,
    /// The main file.
    #[serde(default)]
    pub database: String,
    /// When it was made, in microseconds since 1970.
    #[serde(default)]
    pub captured_at_unix_us: u64,
    /// The process whose files they were.
    #[serde(default)]
    pub pid: u32,
    /// When that process started, in clock ticks since the machine did.
    #[serde(default)]
    pub start_ticks: Option<u64>,
    /// Every process that had the same files.
    #[serde(default)]
    pub pids: Vec<u32>,
    /// Its command line.
    #[serde(default)]
    pub command: Vec<String>,
    /// What it was to the database, if it was one of ours.
    #[serde(default)]
    pub role: Option<String>,
    /// Who made the capture: the number of that process and of its user. `None` if a process captured what it had itself.
    #[serde(default)]
    pub by: Option<By>,
    /// The SQLite that made the capture.
    #[serde(default)]
    pub sqlite: String,
    /// The file name of the SQLite library that the process had mapped, if it was a library of its own.
    #[serde(default)]
    pub sqlite_library: Option<String>,
    /// The version of SQLite that wrote the database last, from its header.
    #[serde(default)]
    pub sqlite_writer: Option<String>,
    /// The identities of the captured files.
    pub generation: Generation,
    /// What the paths named when the capture was made.
    #[serde(default)]
    pub at_path: Option<Generation>,
    /// Which of them were not what their paths named.
    #[serde(default)]
    pub members_lost: Vec<Member>,
    /// Each file as the process had it.
    #[serde(default)]
    pub members: Vec<CapturedMember>,
    /// Bytes of a page.
    #[serde(default)]
    pub page_size: u32,
    /// The salts of the log, if it held a transaction.
    #[serde(default)]
    pub salts: Option<[u32; 2]>,
    /// Frames of the log up to its last commit; the capture ends there.
    #[serde(default)]
    pub frames: u64,
    /// Transactions in them.
    #[serde(default)]
    pub transactions: u64,
    /// Pages of the database as of that commit.
    #[serde(default)]
    pub pages: u64,
    /// Whether SQLite finds the image whole (`PRAGMA quick_check`); `None` if there is none or nobody has asked. An image that is
    /// not has pages of another generation, which has changed the main file meanwhile: then the log alone has the rows.
    #[serde(default)]
    pub sound: Option<bool>,
    /// What SQLite said of an image that is not sound, or why there is no image.
    #[serde(default)]
    pub detail: String,
    /// The copies.
    #[serde(default)]
    pub files: Vec<CapturedFile>,
    /// The id of an older capture of the same log, which this one has everything of.
    #[serde(default)]
    pub supersedes: Option<String>,
    /// True if an anchor kept the process from copying this log into the main file from the moment on at which its files were lost.
    #[serde(default)]
    pub kept_back: bool,
}

impl Manifest {
    /// True if another process captured a main file that was replaced together with a log that the path still named: whoever had
    /// opened the new main file used that same log.
    pub fn shares_log(&self) -> bool {
        self.by.is_some()
            && self.generation.wal.is_some()
            && self.members_lost.contains(&Member::Main)
            && !self.members_lost.contains(&Member::Wal)
    }
}

/// Who made a capture of another process's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct By {
    /// The process.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
}

/// One capture.
#[derive(Debug, Clone)]
pub struct Capture {
    /// The name of its directory.
    pub id: String,
    /// Its directory.
    pub place: PathBuf,
    /// Who made it.
    pub origin: Origin,
    /// What it says about itself.
    pub manifest: Manifest,
    /// The side directory of the database beside which it was found; `None` if it was found by its own path.
    pub side: Option<PathBuf>,
}

impl Capture {
    /// The copy of the log.
    pub fn log(&self) -> PathBuf {
        match self.origin {
            Origin::Statehouse => self.place.join(LOG),
            Origin::Hermes => hermes::file(&self.place, Member::Wal),
        }
    }

    /// The database as of the last commit of the captured log, as a plain SQLite file; `None` if the capture has only the log, so
    /// that the main file at the path must serve. Where the capture has main file and log apart, the two are put together in
    /// `scratch`, a directory of the caller's.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Full`]; [`Error::Damaged`] when the two files do not fit together.
    pub fn image(&self, scratch: &Path) -> Result<Option<PathBuf>> {
        match self.origin {
            Origin::Statehouse => Ok(Some(self.place.join(IMAGE)).filter(|p| p.exists())),
            Origin::Hermes => {
                let main = hermes::file(&self.place, Member::Main);
                if main.exists() { together(&main, &self.log(), scratch).map(Some) } else { Ok(None) }
            }
        }
    }

    /// The image where it lies ready in the capture, and need not be put together.
    pub fn ready_image(&self) -> Option<PathBuf> {
        Some(self.place.join(IMAGE)).filter(|p| self.origin == Origin::Statehouse && p.exists())
    }

    /// The copy of the main file as it was, without its log over it, if the capture has one.
    pub fn plain_main(&self) -> Option<PathBuf> {
        if self.origin == Origin::Hermes { hermes::whole_main(&self.place) } else { None }
    }

    /// Bytes of all its files.
    pub fn bytes(&self) -> u64 {
        let length = |entry: std::fs::DirEntry| entry.metadata().map_or(0, |m| m.len());
        std::fs::read_dir(&self.place).map_or(0, |entries| entries.flatten().map(length).sum())
    }

    /// True if another content was put in the place of its database since, so that nobody merges it by itself any more.
    pub fn is_overtaken(&self) -> bool {
        self.place.join(OVERTAKEN).exists()
    }

    /// True if it cannot be merged by itself.
    pub fn is_unreadable(&self) -> bool {
        self.place.join(UNREADABLE).exists()
    }
}

/// Lays a log over a main file.
fn together(main: &Path, log: &Path, scratch: &Path) -> Result<PathBuf> {
    let open = |path: &Path| files::open(path).map_err(|e| Error::io("read", path, e));
    let output = scratch.join(IMAGE);
    let mut file = files::open_private(&output).map_err(|e| Error::io("create", &output, e))?;
    file.set_len(0).map_err(|e| Error::io("write", &output, e))?;
    match image::overlay(&open(main)?, &open(log)?, &mut file) {
        Ok(_) => Ok(output),
        Err(image::ImageError::Io(e)) => Err(Error::io("write", &output, e)),
        Err(e) => Err(Error::Damaged { detail: e.to_string() }),
    }
}

/// The captures of a database, the oldest first; those that Hermes Agent has made are among them.
///
/// # Errors
/// [`Error::Io`] for a manifest that cannot be read; one that is no manifest is no capture.
pub fn list(family: &Family) -> Result<Vec<Capture>> {
    let ours = captures::complete(&captures::directory(family)).into_iter();
    let mut found: Vec<Capture> = ours.filter_map(|place| read(&place).transpose()).collect::<Result<_>>()?;
    found.extend(hermes::list(family)?);
    for capture in &mut found {
        capture.side = Some(family.side_directory());
    }
    found.sort_by_key(|c| c.manifest.captured_at_unix_us);
    Ok(found)
}

/// The capture in a directory, wherever that lies and whoever made it; `None` if it holds neither an image nor a log.
///
/// # Errors
/// As [`list`].
pub fn at(place: &Path) -> Result<Option<Capture>> {
    if place.join(IMAGE).exists() || place.join(LOG).exists() {
        if place.join(MANIFEST).exists() {
            return read(place);
        }
        // What a person has saved without its manifest. Its files say the rest.
        let manifest = serde_json::json!({ "version": 0, "generation": {} });
        let Ok(manifest) = serde_json::from_value(manifest) else { return Ok(None) };
        return Ok(Some(of(place, manifest)));
    }
    let id = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
    hermes::read(place.to_owned(), id)
}

fn of(place: &Path, manifest: Manifest) -> Capture {
    let id = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Capture { id, place: place.to_owned(), origin: Origin::Statehouse, manifest, side: None }
}

fn read(place: &Path) -> Result<Option<Capture>> {
    let path = place.join(MANIFEST);
    let text = files::read_to_string(&path, 1 << 20).map_err(|e| Error::io("read", &path, e))?;
    let Ok(manifest) = serde_json::from_str(&text) else { return Ok(None) };
    Ok(Some(of(place, manifest)))
}
