//! The rows that stand against each other, listed for a person: one JSON document a line, in a private file.
//!
//! A list lies in `X.statehouse/conflicts/` of the database that was merged into, for the capture may lie where nothing can be
//! written; that of a new file lies beside that file. Each has a name of its own, and none is ever written over. A merge that finds what
//! one before it has listed answers with that list.
//!
//! They hold what the rows hold, so nobody but the owner of the database may read them, and nothing else shows them.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde_json::{Map, Value as Json, json};
use statehouse_sqlite::{Family, files, secure, side};

use super::cell::Cell;
use super::compare::Conflict;
use super::error::{Result, io};
use super::pair::{Pair, PairKey};

const DIRECTORY: &str = "conflicts";

/// How many names are tried.
const NAMES: u32 = 10_000;

/// Where a list gets its place.
#[derive(Debug)]
enum Place {
    /// In the side directory of a database; the name begins with this.
    Side(Family, String),
    /// Beside this new file.
    Beside(PathBuf),
}

/// A list that is being written.
#[derive(Debug)]
pub(super) struct List {
    place: Place,
    file: Option<(PathBuf, BufWriter<File>)>,
}

impl List {
    /// The list of a merge into `family` of what `source` names. Nothing is made before there is a conflict.
    pub(super) fn of(family: &Family, source: &str) -> List {
        let name = Path::new(source).file_name().unwrap_or_default().to_string_lossy();
        let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_') { c } else { '_' };
        let stem = name.chars().map(plain).take(100).collect();
        List { place: Place::Side(family.clone(), stem), file: None }
    }

    /// The list of a merge into a new file.
    pub(super) fn beside(new: &Path) -> List {
        List { place: Place::Beside(new.to_owned()), file: None }
    }

    fn directory(&self) -> PathBuf {
        match &self.place {
            Place::Side(family, _) => family.side_directory().join(DIRECTORY),
            Place::Beside(new) => match new.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
                _ => PathBuf::from("."),
            },
        }
    }

    fn create(&self) -> Result<(PathBuf, BufWriter<File>)> {
        let directory = self.directory();
        let new = directory.join(format!("conflicts.{}.new", std::process::id()));
        let open = || files::open_private(&new).map_err(|e| io("create", &new, e));
        let file = match &self.place {
            Place::Beside(_) => open()?,
            Place::Side(family, _) => {
                let inspected = secure::inspect_place(family)?;
                let made = side::create(&inspected)?;
                side::subdirectory(&inspected, made.as_fd(), DIRECTORY, &directory)?;
                let file = open()?;
                inspected.hand_over(file.as_fd()).map_err(|e| io("create", &new, e))?;
                file
            }
        };
        // One of a process that was killed and had the same number.
        file.set_len(0).map_err(|e| io("write", &new, e))?;
        Ok((new.clone(), BufWriter::new(file)))
    }

    pub(super) fn add(&mut self, pair: &Pair, conflict: &Conflict<'_>) -> Result<()> {
        if self.file.is_none() {
            self.file = Some(self.create()?);
        }
        let Some((new, file)) = &mut self.file else { return Ok(()) };
        let line = json!({
            "table": pair.name,
            "key": key(pair, conflict.theirs),
            "why": conflict.why,
            "captured": object(pair, conflict.theirs),
            "here": conflict.ours.map(|ours| object(pair, ours)),
        });
        writeln!(file, "{line}").map_err(|e| io("write", new, e))
    }

    /// Puts the list in its place, before what it belongs to is committed; `None` without a conflict.
    pub(super) fn publish(mut self) -> Result<Option<PathBuf>> {
        let directory = self.directory();
        let Some((new, file)) = &mut self.file else { return Ok(None) };
        let new = new.clone();
        file.flush().and_then(|()| file.get_ref().sync_all()).map_err(|e| io("write", &new, e))?;
        // The file of the list is removed with it, if it is not under its name by then.
        if let Place::Side(_, stem) = &self.place
            && let Some(same) = listed_before(&directory, stem, &new)
        {
            return Ok(Some(same));
        }
        for n in 1..NAMES {
            let to = directory.join(self.name(n));
            match renameat_with(CWD, &new, CWD, &to, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    self.file = None;
                    super::into::flush_directory(&directory)?;
                    return Ok(Some(to));
                }
                Err(rustix::io::Errno::EXIST) => {}
                Err(e) => return Err(io("rename", &new, e)),
            }
        }
        Err(io("rename", &new, std::io::Error::from(std::io::ErrorKind::AlreadyExists)))
    }

    /// The `n`th name that it may have.
    fn name(&self, n: u32) -> String {
        let again = if n == 1 { String::new() } else { format!("-{n}") };
        match &self.place {
            Place::Side(_, stem) => {
                format!("{stem}-{}{again}.jsonl", jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S"))
            }
            Place::Beside(new) => {
                let name = new.file_name().unwrap_or_default().to_string_lossy();
                format!("{name}.conflicts{again}.jsonl")
            }
        }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if let Some((new, _)) = &self.file {
            let _ = std::fs::remove_file(new);
        }
    }
}

/// A list of the same source with the same content.
fn listed_before(directory: &Path, stem: &str, new: &Path) -> Option<PathBuf> {
    let begin = format!("{stem}-");
    let mut all: Vec<PathBuf> = std::fs::read_dir(directory)
        .ok()?
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().starts_with(&begin))
        .map(|e| e.path())
        .filter(|p| p.extension().is_some_and(|e| e == "jsonl"))
        .collect();
    all.sort();
    all.into_iter().find(|old| is_same(old, new).unwrap_or(false))
}

fn is_same(old: &Path, new: &Path) -> std::io::Result<bool> {
    let (old, new) = (files::open(old)?, files::open(new)?);
    if old.metadata()?.len() != new.metadata()?.len() {
        return Ok(false);
    }
    let (mut old, mut new) = (BufReader::new(old).bytes(), BufReader::new(new).bytes());
    loop {
        match (old.next().transpose()?, new.next().transpose()?) {
            (None, None) => return Ok(true),
            (a, b) if a != b => return Ok(false),
            _ => {}
        }
    }
}

/// The values by which a row is known; all of them where nothing else tells it from others.
pub(super) fn key(pair: &Pair, row: &[Cell]) -> Json {
    let of = |places: Vec<usize>| {
        Json::Object(places.into_iter().map(|p| (pair.columns[p].clone(), row[p].json())).collect::<Map<_, _>>())
    };
    match &pair.key {
        PairKey::Number(place) => of(vec![*place]),
        PairKey::Columns(places) => of(places.iter().map(|(p, _)| *p).collect()),
        PairKey::Content => Json::Null,
    }
}

fn object(pair: &Pair, row: &[Cell]) -> Json {
    Json::Object(pair.columns.iter().cloned().zip(row.iter().map(Cell::json)).collect::<Map<_, _>>())
}
