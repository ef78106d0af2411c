//! Where the rows of a capture come from.
//!
//! The best is its image: the database as of the last commit that was captured. If there is none, it is made of the copies of
//! the main file and of the log, and if that is not sound, because another generation has changed the main file
//! meanwhile, the rows are had from the pages of the log alone. A plain database file will do as well, such as a backup.

use std::fs::File;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use serde::Serialize;
use statehouse_sqlite::holders::{self, Verdict};
use statehouse_sqlite::secure::{self, Purpose};
use statehouse_sqlite::{Family, capture, files, image, immutable, wal};

use super::error::{Error, Result, io};
use crate::attach::{self, Attached, Scratch};
use crate::maintenance::whole;

/// What the rows were read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A database that is whole as of one commit.
    Image,
    /// The pages of the log alone: only the tables and rows that were on pages which the log wrote.
    Log,
}

/// Writes the rows that lie on the pages of a log into a fresh database: the main file beside it, the log, the output.
pub type Salvage<'a> = &'a dyn Fn(&File, &File, &Path) -> Result<(), String>;

/// How a capture is opened.
pub struct Opening<'a> {
    /// A directory for private images.
    pub scratch: &'a Path,
    /// How long a lock is waited for.
    pub patience: Duration,
    /// How rows are had from a log.
    pub salvage: Salvage<'a>,
    /// True if the image's structure is proved before it is read. Whoever made it did that already.
    pub prove: bool,
}

/// A capture that can be read.
pub struct Source {
    /// Its name.
    pub id: String,
    /// When it was made, as its maker says it.
    pub captured_at: Option<String>,
    /// The process whose files they were.
    pub pid: Option<u32>,
    /// Frames of its log up to the last commit.
    pub frames: u64,
    /// Transactions in them.
    pub transactions: u64,
    /// What the rows are read from.
    pub kind: Kind,
    /// Its directory; `None` for a plain file.
    pub place: Option<PathBuf>,
    /// The copy of the log, if there is one.
    pub log: Option<PathBuf>,
    rows: Rows,
}

/// An open database, with what must live as long as it is read.
enum Rows {
    Plain(Connection, #[expect(dead_code, reason = "it goes when the connection has been closed")] Option<Scratch>),
    Attached(Attached),
}

impl Deref for Source {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match &self.rows {
            Rows::Plain(connection, _) => connection,
            Rows::Attached(attached) => attached,
        }
    }
}

impl Source {
    /// Finds and opens what `id` names: a capture of this database, the path of a capture's directory, or of a database file.
    /// No connection to the database may be open in this process yet.
    ///
    /// # Errors
    /// [`Error::NoCapture`], [`Error::Unreadable`], or what the system and SQLite answer.
    pub fn find(family: &Family, id: &str, opening: &Opening<'_>) -> Result<Source> {
        if let Some(known) = capture::list(family)?.into_iter().find(|c| c.id == id) {
            return directory(family, known.place, opening);
        }
        let beside = family.directory().join(id);
        let path = if Path::new(id).is_absolute() || Path::new(id).exists() { PathBuf::from(id) } else { beside };
        match std::fs::metadata(&path) {
            Ok(m) if m.is_dir() => directory(family, path, opening),
            Ok(_) => file(&path, opening),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Error::NoCapture { id: id.to_owned() }),
            Err(e) => Err(io("look at", &path, e)),
        }
    }

    /// Where the rows that stand against each other are listed.
    pub fn conflicts(&self) -> PathBuf {
        match &self.place {
            Some(place) => place.join("conflicts.jsonl"),
            None => PathBuf::from(format!("{}.conflicts.jsonl", self.id)),
        }
    }
}

/// A plain database file, with whatever lies beside it.
fn file(path: &Path, opening: &Opening<'_>) -> Result<Source> {
    let family = Family::to_look_at(path)?;
    let inspected = secure::inspect(&family, Purpose::Look)?;
    inspected.require_main()?;
    let held = holders::scan(&family)?.verdict != Verdict::Quiet;
    let attached = attach::read(&inspected, held, opening.scratch, opening.patience)?;
    whole::require(&attached, path)?;
    Ok(Source {
        id: path.to_string_lossy().into_owned(),
        captured_at: None,
        pid: None,
        frames: 0,
        transactions: 0,
        kind: Kind::Image,
        place: None,
        log: None,
        rows: Rows::Attached(attached),
    })
}

/// What a capture's directory holds, whoever made it.
struct Found {
    image: Option<PathBuf>,
    log: Option<PathBuf>,
    /// The copy of the main file as it was, without its log.
    main: Option<PathBuf>,
}

/// Ours are `main.captured` and `wal.captured`; Hermes Agent keeps the names that the files had.
fn contents(place: &Path) -> Result<Found> {
    let named = |name: &str| Some(place.join(name)).filter(|p| p.is_file());
    if named("main.captured").is_some() || named("wal.captured").is_some() {
        return Ok(Found { image: named("main.captured"), log: named("wal.captured"), main: None });
    }
    let entries = std::fs::read_dir(place).map_err(|e| io("read", place, e))?;
    let mut logs: Vec<String> =
        entries.flatten().filter_map(|e| e.file_name().into_string().ok()).filter(|n| n.ends_with("-wal")).collect();
    logs.sort();
    let Some(log) = logs.first() else { return Ok(Found { image: None, log: None, main: None }) };
    Ok(Found { image: None, log: named(log), main: log.strip_suffix("-wal").and_then(named) })
}

fn directory(family: &Family, place: PathBuf, opening: &Opening<'_>) -> Result<Source> {
    let found = contents(&place)?;
    let manifest: serde_json::Value = files::read_to_string(&place.join("manifest.json"), 1 << 20)
        .ok()
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let mut commit = None;
    if let Some(log) = &found.log {
        let file = files::open(log).map_err(|e| io("read", log, e))?;
        commit = wal::last_commit(&file).map_err(|e| io("read", log, e))?;
    }
    let (rows, kind) = rows(family, &place, &found, &manifest, opening)?;
    Ok(Source {
        id: place.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        captured_at: captured_at(&manifest),
        pid: manifest["pid"].as_u64().and_then(|p| u32::try_from(p).ok()).filter(|p| *p != 0),
        frames: commit.map_or_else(|| manifest["frames"].as_u64().unwrap_or(0), |c| c.frames),
        transactions: commit.map_or_else(|| manifest["transactions"].as_u64().unwrap_or(0), |c| c.transactions),
        kind,
        place: Some(place),
        log: found.log,
        rows,
    })
}

/// Ours say microseconds since 1970, Hermes Agent a text.
fn captured_at(manifest: &serde_json::Value) -> Option<String> {
    let ours = manifest["captured_at_unix_us"].as_i64().and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
    let theirs = || manifest["captured_at"].as_str().and_then(|t| t.parse::<jiff::Timestamp>().ok());
    ours.or_else(theirs).map(|t| format!("{t:.6}"))
}

fn rows(
    family: &Family,
    place: &Path,
    found: &Found,
    manifest: &serde_json::Value,
    opening: &Opening<'_>,
) -> Result<(Rows, Kind)> {
    let mut why = Vec::new();
    if let Some(image) = &found.image {
        let known_sound = manifest["sound"].as_bool();
        match sound(image, known_sound != Some(true) || opening.prove) {
            Ok(connection) => return Ok((Rows::Plain(connection, None), Kind::Image)),
            Err(e) => why.push(format!("its image: {e} {}", e.detail())),
        }
    } else if let (Some(main), Some(log)) = (&found.main, &found.log) {
        let scratch = Scratch::new(opening.scratch)?;
        match overlay(main, log, &scratch).and_then(|image| sound(&image, true)) {
            Ok(connection) => return Ok((Rows::Plain(connection, Some(scratch)), Kind::Image)),
            Err(e) => why.push(format!("its main file with its log: {e} {}", e.detail())),
        }
    }
    let Some(log) = &found.log else {
        why.push("it has no log".to_owned());
        return Err(Error::Unreadable { place: place.to_owned(), why: why.join("; ") });
    };
    // The main file knows which table a page belongs to: the one that was captured, else the one that is there now.
    let main = found.main.clone().or_else(|| found.image.clone()).unwrap_or_else(|| family.main());
    let scratch = Scratch::new(opening.scratch)?;
    let output = scratch.path().join("rows");
    let open = |path: &Path| files::open(path).map_err(|e| io("read", path, e));
    if let Err(e) = (opening.salvage)(&open(&main)?, &open(log)?, &output) {
        why.push(format!("its log: {e}"));
        return Err(Error::Unreadable { place: place.to_owned(), why: why.join("; ") });
    }
    Ok((Rows::Plain(immutable(&output)?, Some(scratch)), Kind::Log))
}

fn sound(image: &Path, prove: bool) -> Result<Connection> {
    let connection = immutable(image)?;
    if prove {
        whole::require(&connection, image)?;
    }
    Ok(connection)
}

fn overlay(main: &Path, log: &Path, scratch: &Scratch) -> Result<PathBuf> {
    let open = |path: &Path| files::open(path).map_err(|e| io("read", path, e));
    let copy = scratch.path().join("image");
    let mut output = files::open_private(&copy).map_err(|e| io("create", &copy, e))?;
    let made = image::overlay(&open(main)?, &open(log)?, &mut output);
    made.map_err(|e| Error::from(statehouse_sqlite::Error::Damaged { detail: e.to_string() }))?;
    Ok(copy)
}
