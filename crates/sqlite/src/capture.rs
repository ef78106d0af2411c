//! The captures that lie beside a database, as whoever lists, compares and merges them sees them.
//!
//! A capture is a directory below `X.statehouse/retired/` with a manifest, made by a process of ours that was cut off or by
//! whoever copied what a foreign process had. This is the door for reading; how they come to be is in the private modules
//! `retired` and `captures`.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::captures::{self, IMAGE, LOG, MANIFEST, MERGED, OVERTAKEN, UNREADABLE};
use crate::error::{Error, Result};
use crate::family::{Family, Generation, Member};
use crate::files;

/// Who made a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// This crate.
    Statehouse,
    /// Hermes Agent, beside its own database.
    Hermes,
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
    /// The SQLite that made the capture.
    #[serde(default)]
    pub sqlite: String,
    /// The identities of the captured files.
    pub generation: Generation,
    /// Which of them were not what their paths named.
    #[serde(default)]
    pub members_lost: Vec<Member>,
    /// Frames of the log up to its last commit.
    #[serde(default)]
    pub frames: u64,
    /// Transactions in them.
    #[serde(default)]
    pub transactions: u64,
    /// Pages of the database as of that commit.
    #[serde(default)]
    pub pages: u64,
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
}

impl Capture {
    /// The copy of the log.
    pub fn log(&self) -> PathBuf {
        self.place.join(LOG)
    }

    /// The database as of the last commit of the captured log; `None` if the capture has only the log.
    pub fn image(&self) -> Option<PathBuf> {
        Some(self.place.join(IMAGE)).filter(|p| p.exists())
    }

    /// True if every row of it is in the database.
    pub fn is_merged(&self) -> bool {
        self.place.join(MERGED).exists()
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

/// The captures of a database, the oldest first.
///
/// # Errors
/// [`Error::Io`] for a manifest that cannot be read; one that is no manifest is no capture.
pub fn list(family: &Family) -> Result<Vec<Capture>> {
    captures::complete(&captures::directory(family)).into_iter().filter_map(|place| read(&place).transpose()).collect()
}

fn read(place: &Path) -> Result<Option<Capture>> {
    let path = place.join(MANIFEST);
    let text = files::read_to_string(&path, 1 << 20).map_err(|e| Error::io("read", &path, e))?;
    let Ok(manifest) = serde_json::from_str(&text) else { return Ok(None) };
    let id = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Some(Capture { id, place: place.to_owned(), origin: Origin::Statehouse, manifest }))
}
