//! Where the rows of a capture come from.
//!
//! The best is its image: the database as of the last commit that was captured. If there is none, or if it is not sound,
//! because another generation has changed the main file meanwhile, the rows are had from the pages of the log alone. A plain
//! database file will do as well, such as a backup.
//!
//! Neither of the two is believed to be complete. An image can be sound and yet lack rows that the log has, for pages of another
//! generation fit among its own by chance; and the log lacks what its process had copied into the main file before. So
//! both are read, and what the second has beyond the first is a part of its own.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use serde::Serialize;
use statehouse_sqlite::capture::{self, Capture};
use statehouse_sqlite::holders;
use statehouse_sqlite::salvage::{self, Salvaged};
use statehouse_sqlite::secure::{self, Purpose};
use statehouse_sqlite::words;
use statehouse_sqlite::{Family, files, immutable, wal};

use super::beyond::{self, Beyond};
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
    /// An image and the pages of the log, for each has rows that the other does not show.
    Both,
}

/// How a capture is opened.
pub struct Opening<'a> {
    /// A directory for private images.
    pub scratch: &'a Path,
    /// How long a lock is waited for.
    pub patience: Duration,
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
    /// How often its log was begun anew, after all that was in it had been copied into the main file.
    pub begun_anew: u32,
    /// What the rows are read from.
    pub kind: Kind,
    /// The capture; `None` for a plain file.
    pub capture: Option<Capture>,
    /// The copy of the log, if there is one.
    pub log: Option<PathBuf>,
    /// What is known to be there and cannot be had, a sentence each.
    pub gone: Vec<String>,
    rows: Rows,
    /// Where the tables of the first part began in the database, by their names in lower case, if its own pages do not say it.
    roots: Option<BTreeMap<String, u32>>,
    /// What another source has beyond that.
    beyond: Option<Beyond>,
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
            return of_capture(family, &known, opening);
        }
        let beside = family.directory().join(id);
        let path = if Path::new(id).is_absolute() || Path::new(id).exists() { PathBuf::from(id) } else { beside };
        match std::fs::metadata(&path) {
            Ok(m) if m.is_dir() => match capture::at(&path)? {
                Some(capture) => of_capture(family, &capture, opening),
                None => {
                    let why = "it holds neither an image nor a log".to_owned();
                    Err(Error::Unreadable { place: path, why })
                }
            },
            Ok(_) => file(&path, opening),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Err(Error::NoCapture { id: id.to_owned() }),
            Err(e) => Err(io("look at", &path, e)),
        }
    }

    /// True if it is one of those that `retired list` shows, so that its id is enough.
    pub(super) fn is_known(&self) -> bool {
        self.capture.as_ref().is_some_and(|c| c.side.is_some())
    }

    /// Its directory; `None` for a plain file.
    pub fn place(&self) -> Option<&Path> {
        self.capture.as_ref().map(|c| c.place.as_path())
    }

    /// True if the first part is a database that is whole as of one commit, so that what is not in it was not there.
    pub(super) fn is_whole(&self) -> bool {
        self.kind == Kind::Image || matches!(&self.beyond, Some(b) if b.kind == Kind::Log)
    }

    /// The page at which each table begins in the database that the capture is of, by its name in lower case. All parts have
    /// their tables under the same names.
    pub(super) fn roots(&self) -> Result<BTreeMap<String, u32>> {
        if let Some(roots) = &self.roots {
            return Ok(roots.clone());
        }
        let mut all = self.prepare("SELECT lower(name), rootpage FROM sqlite_schema WHERE type = 'table'")?;
        let roots = all.query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?;
        Ok(roots.collect::<rusqlite::Result<_>>()?)
    }

    /// The parts, one after the other; no row is in two of them.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Connection> {
        std::iter::once(&**self).chain(self.beyond.iter().map(|b| &b.rows))
    }
}

/// A plain database file, with whatever lies beside it.
fn file(path: &Path, opening: &Opening<'_>) -> Result<Source> {
    let family = Family::to_look_at(path)?;
    let inspected = secure::inspect(&family, Purpose::Look)?;
    inspected.require_main()?;
    let held = attach::may_join(&holders::scan(&family)?);
    let attached = attach::read(&inspected, held, opening.scratch, opening.patience)?;
    whole::require(&attached, path)?;
    Ok(Source {
        id: path.to_string_lossy().into_owned(),
        captured_at: None,
        pid: None,
        frames: 0,
        transactions: 0,
        begun_anew: 0,
        kind: Kind::Image,
        capture: None,
        log: None,
        gone: Vec::new(),
        rows: Rows::Attached(attached),
        roots: None,
        beyond: None,
    })
}

fn of_capture(family: &Family, capture: &Capture, opening: &Opening<'_>) -> Result<Source> {
    let log = Some(capture.log()).filter(|p| p.is_file());
    let (mut commit, mut begun_anew) = (None, 0);
    if let Some(log) = &log {
        let file = files::open(log).map_err(|e| io("read", log, e))?;
        commit = wal::last_commit(&file).map_err(|e| io("read", log, e))?;
        begun_anew = wal::Header::read(&file).map_err(|e| io("read", log, e))?.map_or(0, |h| h.sequence);
    }
    let found = rows(family, capture, log.as_deref(), opening)?;
    let manifest = &capture.manifest;
    Ok(Source {
        id: capture.id.clone(),
        captured_at: captured_at(manifest.captured_at_unix_us),
        pid: Some(manifest.pid).filter(|p| *p != 0),
        frames: commit.map_or(manifest.frames, |c| c.frames),
        transactions: commit.map_or(manifest.transactions, |c| c.transactions),
        begun_anew,
        kind: found.kind,
        capture: Some(capture.clone()),
        log,
        gone: found.gone,
        rows: found.rows,
        roots: found.roots,
        beyond: found.beyond,
    })
}

fn captured_at(unix_us: u64) -> Option<String> {
    let moment = i64::try_from(unix_us).ok().filter(|us| *us > 0)?;
    jiff::Timestamp::from_microsecond(moment).ok().map(|t| format!("{t:.6}"))
}

struct Found {
    rows: Rows,
    roots: Option<BTreeMap<String, u32>>,
    beyond: Option<Beyond>,
    kind: Kind,
    gone: Vec<String>,
}

fn rows(family: &Family, capture: &Capture, log: Option<&Path>, opening: &Opening<'_>) -> Result<Found> {
    let mut why = Vec::new();
    let scratch = Scratch::new(opening.scratch)?;
    let image = match capture.image(scratch.path()) {
        Ok(image) => image,
        Err(e) => {
            why.push(format!("its main file with its log: {e}"));
            None
        }
    };
    let prove = capture.manifest.sound != Some(true) || opening.prove;
    let mut whole = None;
    if let Some(image) = &image {
        match sound(image, prove) {
            Ok(connection) => whole = Some(connection),
            Err(e) => why.push(format!("its image: {e} {}", e.detail())),
        }
    }
    let Some(log) = log else {
        let Some(connection) = whole else {
            why.push("it has no log".to_owned());
            return Err(Error::Unreadable { place: capture.place.clone(), why: why.join("; ") });
        };
        let rows = Rows::Plain(connection, Some(scratch));
        return Ok(Found { rows, roots: None, beyond: None, kind: Kind::Image, gone: Vec::new() });
    };
    let of_log = scratch.path().join("rows-of-the-log");
    let named = image.as_deref().filter(|_| whole.is_some());
    let salvaged = salvage(family, capture, log, named, &of_log);
    match (whole, salvaged) {
        (Some(connection), salvaged) => {
            let beyond = match (&image, salvaged) {
                (Some(image), Ok(salvaged)) => {
                    beyond::of(&of_log, image, salvaged.lost_and_found.as_deref(), Kind::Log)?
                }
                // A log without a transaction adds nothing to a whole image, nor does one that fits another file.
                _ => None,
            };
            let kind = if beyond.is_some() { Kind::Both } else { Kind::Image };
            let rows = Rows::Plain(connection, Some(scratch));
            Ok(Found { rows, roots: None, beyond, kind, gone: Vec::new() })
        }
        (None, Ok(salvaged)) => {
            let mut beyond = None;
            if let Some(image) = &image {
                beyond = walked(image, log, &of_log, &scratch)?;
            }
            let kind = if beyond.is_some() { Kind::Both } else { Kind::Log };
            let rows = Rows::Plain(immutable(&of_log)?, Some(scratch));
            let roots = salvaged.roots.iter().map(|(name, root)| (name.to_ascii_lowercase(), *root)).collect();
            Ok(Found { rows, roots: Some(roots), beyond, kind, gone: gone(&salvaged) })
        }
        (None, Err(e)) => {
            why.push(format!("its log: {e}"));
            Err(Error::Unreadable { place: capture.place.clone(), why: why.join("; ") })
        }
    }
}

/// The rows on the pages of the log. Which table a page belongs to is also known to a main file without the log over it, and that one
/// can prove that what the log did not write is still what a row of it goes on with: the one beside the log, if it is
/// there in full, else the one at the path.
fn salvage(
    family: &Family,
    capture: &Capture,
    log: &Path,
    named: Option<&Path>,
    output: &Path,
) -> std::result::Result<Salvaged, salvage::SalvageError> {
    let mut main = family.main();
    if let Some(own) = capture.plain_main() {
        main = own;
    }
    let log = files::open(log)?;
    let named = named.map(files::open).transpose()?;
    let named = named.as_ref().map(|n| n as &dyn wal::ReadAt);
    match files::open(&main) {
        Ok(main) => salvage::from_log_as(&main, &log, named, output),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => salvage::from_log_as(&Vec::new(), &log, named, output),
        Err(e) => Err(e.into()),
    }
}

/// What can be reached in an image that is not sound, beyond the pages of the log: rows that its process had copied into the
/// main file before, and that hang on pages of its own.
fn walked(image: &Path, log: &Path, of_log: &Path, scratch: &Scratch) -> Result<Option<Beyond>> {
    let open = |path: &Path| files::open(path).map_err(|e| io("read", path, e));
    let output = scratch.path().join("rows-of-the-image");
    match salvage::readable(&open(image)?, &open(log)?, &output) {
        // What fits no table there is on pages that are another tree's by now.
        Ok(_) => beyond::of(&output, of_log, Some("lost_and_found"), Kind::Image),
        Err(_) => Ok(None),
    }
}

fn gone(salvaged: &Salvaged) -> Vec<String> {
    let mut gone = Vec::new();
    if salvaged.broken > 0 {
        gone.push(format!(
            "{} of the log {} on over pages that are not in it and that another process has used for something else",
            words::count(salvaged.broken, "row"),
            words::verb(salvaged.broken, "goes", "go")
        ));
    }
    if !salvaged.unreadable.is_empty() {
        gone.push(format!("{} of the log cannot be read", words::count(salvaged.unreadable.len() as u64, "page")));
    }
    gone
}

fn sound(image: &Path, prove: bool) -> Result<Connection> {
    let connection = immutable(image)?;
    if prove {
        whole::require(&connection, image)?;
    }
    Ok(connection)
}
