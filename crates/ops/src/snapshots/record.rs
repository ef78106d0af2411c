//! What is known of a snapshot: one JSON file beside each, `X.statehouse/snapshots/ID.json`.
//!
//! The record is written after the snapshot has its final name, so a snapshot without one was never finished, or somebody has
//! removed the record; such a file is let alone and not listed. The order of snapshots is that of `serial`, which
//! only grows; a clock that was put back changes nothing about which of them is the newest.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use statehouse_sqlite::secure::Inspected;
use statehouse_sqlite::{Family, Status, files};

use super::error::{Error, Result, io};

/// The longest record that is read: it has one line for each table.
const LONGEST: u64 = 16 << 20;

/// A snapshot, or the attempt at one that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its name.
    pub id: String,
    /// The file; empty if none is kept.
    #[serde(serialize_with = "lossy", skip_deserializing)]
    pub path: PathBuf,
    /// The database that it was taken of.
    pub database: String,
    /// Its place in the order in which they were taken.
    pub serial: u64,
    /// When it was taken, RFC 3339.
    pub created_at: String,
    /// Why, in a word.
    pub reason: String,
    /// Bytes of the file.
    pub bytes: u64,
    /// Rows of each table that programs made.
    pub rows: BTreeMap<String, i64>,
    /// True if it was opened and proved to be good when it was taken.
    pub verified: bool,
    /// BLAKE3 of the file.
    pub blake3: Option<String>,
    /// True if it is compressed (zstd).
    pub compressed: bool,
    /// Bytes of the database in it; the same as `bytes` if it is not compressed.
    pub plain_bytes: u64,
    /// BLAKE3 of the database in it; the same as `blake3` if it is not compressed.
    pub plain_blake3: Option<String>,
    /// Bytes of a page.
    pub page_size: u32,
    /// `PRAGMA user_version`.
    pub user_version: i64,
    /// `PRAGMA application_id`.
    pub application_id: i64,
    /// The journal mode of the database: "wal" or "delete". The file itself is always in rollback mode.
    pub journal_mode: String,
    /// Why it is not good.
    pub error: Option<String>,
    /// The code of that.
    pub error_code: Option<String>,
    /// How many attempts in a row have failed with this one, 0 if it went well.
    pub failures: u64,
    /// What was found that is not against it, and what it does not have.
    pub notes: Vec<String>,
    /// How long a read transaction kept the log of the database from being given back, in milliseconds.
    pub read_ms: f64,
    /// How long all of it took, in milliseconds.
    pub ms: f64,
    /// When the file was changed last, in nanoseconds since 1970.
    pub modified_ns: i64,
}

fn lossy<S: serde::Serializer>(path: &Path, to: S) -> std::result::Result<S::Ok, S::Error> {
    path.to_string_lossy().serialize(to)
}

impl Snapshot {
    /// What the file is now, compared with what was recorded. Its content is not read.
    pub fn standing(&self) -> Standing {
        match Status::of(&self.path) {
            Ok(Some(s)) if s.size == self.bytes && s.modified_ns == self.modified_ns => Standing::AsRecorded,
            Ok(Some(_)) => Standing::Changed,
            // What cannot be looked at is as good as gone.
            Ok(None) | Err(_) => Standing::Missing,
        }
    }

    /// True if it was proved to be good and nobody seems to have touched it since.
    pub fn is_good(&self) -> bool {
        self.verified && self.standing() == Standing::AsRecorded
    }

    /// The time since it was taken; none by a clock that was put back.
    pub fn age(&self) -> std::time::Duration {
        let at = self.created_at.parse::<jiff::Timestamp>().ok();
        at.and_then(|at| jiff::Timestamp::now().duration_since(at).try_into().ok()).unwrap_or_default()
    }
}

/// What the file of a snapshot is, compared with its record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Length and time are those of the record.
    AsRecorded,
    /// They are not.
    Changed,
    /// There is no file.
    Missing,
}

/// The directory of a database's snapshots.
pub(super) fn directory(family: &Family) -> PathBuf {
    family.side_directory().join("snapshots")
}

/// The name of the file of a snapshot.
pub(super) fn file_name(id: &str, compressed: bool) -> String {
    format!("{id}.snapshot{}", if compressed { ".zst" } else { "" })
}

/// The name under which a copy that is not sound is kept where there is nothing better.
pub(super) fn unsound_name(id: &str) -> String {
    format!("{id}.unsound")
}

pub(super) fn record_path(directory: &Path, id: &str) -> PathBuf {
    directory.join(format!("{id}.json"))
}

/// Everything that is recorded, in the order in which it was taken: good ones and failed attempts.
///
/// # Errors
/// The system's answer. A record that cannot be understood is none.
pub fn all(family: &Family) -> Result<Vec<Snapshot>> {
    let place = directory(family);
    let entries = match std::fs::read_dir(&place) {
        Ok(entries) => entries,
        Err(e)
            if matches!(
                e.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory | std::io::ErrorKind::InvalidFilename
            ) =>
        {
            return Ok(Vec::new());
        }
        Err(e) => return Err(io("read", &place, e)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| io("read", &place, e))?.path();
        if path.extension().is_some_and(|e| e == "json") {
            found.extend(read(&place, &path));
        }
    }
    found.sort_by(|a: &Snapshot, b| (a.serial, &a.id).cmp(&(b.serial, &b.id)));
    Ok(found)
}

fn read(place: &Path, path: &Path) -> Option<Snapshot> {
    let mut snapshot: Snapshot = serde_json::from_str(&files::read_to_string(path, LONGEST).ok()?).ok()?;
    // A record says nothing about files under other names than its own.
    if path.file_stem()? != snapshot.id.as_str() {
        return None;
    }
    let name = match (&snapshot.blake3, snapshot.verified) {
        (_, true) => file_name(&snapshot.id, snapshot.compressed),
        (Some(_), false) => unsound_name(&snapshot.id),
        (None, false) => return Some(snapshot),
    };
    snapshot.path = place.join(name);
    Some(snapshot)
}

/// The good snapshots of a database, the oldest first. One whose file was changed or removed since is among them; see
/// [`Snapshot::standing`].
///
/// # Errors
/// As [`all`].
pub fn list(family: &Family) -> Result<Vec<Snapshot>> {
    Ok(all(family)?.into_iter().filter(|s| s.verified).collect())
}

/// The good snapshot with this id.
///
/// # Errors
/// [`Error::NotFound`], or as [`all`].
pub fn find(family: &Family, id: &str) -> Result<Snapshot> {
    list(family)?.into_iter().find(|s| s.id == id).ok_or_else(|| Error::NotFound { id: id.to_owned() })
}

/// A name that sorts by time.
pub(super) fn new_id() -> String {
    format!("{}-{}", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S.%6fZ"), std::process::id())
}

/// The present, as a record tells it.
pub(super) fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}

/// The record of an attempt that failed.
pub(super) fn failed(family: &Family, id: &str, reason: &str, error: &Error) -> Result<Snapshot> {
    let before = all(family)?;
    let failures = before.last().filter(|s| !s.verified).map_or(0, |s| s.failures);
    let detail = error.detail();
    let error_text = if detail.is_empty() { error.to_string() } else { format!("{error}: {detail}") };
    Ok(Snapshot {
        id: id.to_owned(),
        path: PathBuf::new(),
        database: family.main().to_string_lossy().into_owned(),
        serial: before.last().map_or(0, |s| s.serial) + 1,
        created_at: now(),
        reason: reason.to_owned(),
        bytes: 0,
        rows: Default::default(),
        verified: false,
        blake3: None,
        compressed: false,
        plain_bytes: 0,
        plain_blake3: None,
        page_size: 0,
        user_version: 0,
        application_id: 0,
        journal_mode: String::new(),
        error: Some(error_text),
        error_code: Some(error.code().to_owned()),
        failures: failures + 1,
        notes: Vec::new(),
        read_ms: 0.0,
        ms: 0.0,
        modified_ns: 0,
    })
}

/// Puts a record in its place, whole and on the disk.
pub(super) fn write(inspected: &Inspected, place: &Path, snapshot: &Snapshot) -> Result<()> {
    let path = record_path(place, &snapshot.id);
    let text = serde_json::to_vec_pretty(snapshot).map_err(|e| io("write", &path, std::io::Error::other(e)))?;
    files::replace(&path, &text).map_err(|e| io("write", &path, e))?;
    let file = files::open(&path).map_err(|e| io("open", &path, e))?;
    inspected.hand_over(file.as_fd()).map_err(|e| io("give away", &path, e))?;
    sync(place)
}

/// Makes the names in a directory last.
pub(super) fn sync(place: &Path) -> Result<()> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(place, flags, Mode::empty())
        .and_then(rustix::fs::fsync)
        .map_err(|e| io("make the names last in", place, e))
}
