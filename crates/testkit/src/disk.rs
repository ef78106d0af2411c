//! A disk whose power can fail, for everything below one directory: `programs/watchdisk.c` notes what the processes of a
//! test did to it, in one order, and `model` makes of the notes what the disk could hold if the power had failed at any
//! point of them.
//!
//! [`powercut`](crate::powercut) does more to the two files of one database; this one knows names. A program that copies a
//! file, renames it into place and forgets to flush one of the two is found here only.
//!
//! Nothing may be missed, or the images would be of a disk that never was. So [`Disk::history`] plays all notes from the
//! beginning and compares what comes out with what is really there, byte for byte.

mod image;
mod judge;
mod model;

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::fs::FlockOperation;

pub use image::{Entry, Image};
pub use judge::{Index, Judge, Losses, Opens, Promise, Promises, Way, Wrong};
pub use model::{Cut, Kind, Lie};

use crate::preload;
use crate::seed::Seed;

const SOURCE: &str = include_str!("../programs/watchdisk.c");

/// The compiled program.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| preload::program("watchdisk", SOURCE))
}

/// What a name at the beginning leads to.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    File(u64, Vec<u8>),
    Directory(u64, BTreeMap<String, Found>),
}

impl Found {
    fn at(path: &Path) -> Option<Found> {
        let status = fs::symlink_metadata(path).ok()?;
        if status.is_file() {
            return Some(Found::File(status.ino(), fs::read(path).expect("a file of the watched directory")));
        }
        if !status.is_dir() {
            return None;
        }
        let mut names = BTreeMap::new();
        for entry in fs::read_dir(path).expect("the watched directory") {
            let entry = entry.expect("an entry of the watched directory");
            let name = entry.file_name().into_string().expect("a name in the watched directory");
            if let Some(found) = Found::at(&entry.path()) {
                names.insert(name, found);
            }
        }
        Some(Found::Directory(status.ino(), names))
    }
}

/// A directory that is watched. What is in it at the beginning is taken to be safe.
#[derive(Debug)]
pub struct Disk {
    root: PathBuf,
    notes: PathBuf,
    index: Option<PathBuf>,
    first: Found,
}

impl Disk {
    /// The directory `root` as it is now, with the notes in the file `notes`, which is elsewhere. `index` is a file that is
    /// mapped, such as an `-shm`; what it held from time to time can be had from the history.
    pub fn below(root: &Path, notes: &Path, index: Option<&Path>) -> Disk {
        let root = root.canonicalize().expect("the watched directory");
        let first = Found::at(&root).expect("the watched directory");
        Disk { root, notes: notes.to_path_buf(), index: index.map(Path::to_path_buf), first }
    }

    /// `command` with its arguments, variables and directory, watched. Its process id is the watcher's; SIGTERM reaches the
    /// command. It must not be killed otherwise, for the notes would lack what it was doing.
    pub fn watches(&self, command: &Command) -> Command {
        let mut watched = Command::new(program());
        watched.arg(&self.notes).arg(&self.root).args(&self.index).arg("--");
        watched.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => watched.env(name, value),
                None => watched.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            watched.current_dir(directory);
        }
        watched
    }

    /// A line in the notes at this moment, from the test itself (its number is 0): what it has been told, or has done.
    pub fn say(&self, line: &str) {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(&self.notes).expect("the notes");
        rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("the lock of the notes");
        let mut end = [0; 8];
        let at = if file.read_exact_at(&mut end, 0).is_ok() { u64::from_ne_bytes(end) } else { 8 };
        let mut note: Vec<u8> =
            [4, 0, 0, 0, 0, 0, line.len() as u64].iter().flat_map(|n: &u64| n.to_ne_bytes()).collect();
        note.extend_from_slice(line.as_bytes());
        file.write_all_at(&note, at).expect("a note");
        file.write_all_at(&(at + note.len() as u64).to_ne_bytes(), 0).expect("the end of the notes");
    }

    /// Everything that was noted until now. All watched commands must have ended. Panics if the notes do not account for
    /// every byte and every name that is there.
    pub fn history(&self) -> History {
        let mut bytes = fs::read(&self.notes).expect("the notes");
        let end = number(&bytes, 0) as usize;
        bytes.truncate(end);
        let mut list = Vec::new();
        let mut at = 8;
        while at < end {
            let field = |n: usize| number(&bytes, at + 8 * n);
            let data = at + 56;
            let (object, directory, other, offset) = (field(2), field(3), field(4), field(5));
            let content = data..data + field(6) as usize;
            let name = || String::from_utf8_lossy(&bytes[content.clone()]).into_owned();
            let two = || {
                let both = name();
                let (from, to) = both.split_once('/').expect("two names");
                ((other, from.to_owned()), (directory, to.to_owned()))
            };
            let what = match field(0) {
                1 => What::Written { object, offset: offset as usize, data: content.clone() },
                2 => What::Cut { object, length: offset as usize },
                3 => What::Flushed { object, begun: offset as usize },
                4 => What::Answered { who: field(1) as u32, data: content.clone() },
                5 => What::Set { object, new: New::of(offset), place: (directory, name()) },
                6 => What::Removed { place: (directory, name()) },
                7 => What::Moved { from: two().0, to: two().1 },
                8 => What::Exchanged { one: two().0, other: two().1 },
                9 => What::Mapped { object },
                10 => What::Index { data: content.clone() },
                kind => panic!("a note of kind {kind}"),
            };
            list.push(Note { begin: at, what });
            at = content.end;
        }
        let history = History { bytes, list, first: self.first.clone() };
        let (played, mapped) = history.end();
        let mut real = Image::of(&self.root);
        real.names.retain(|path, _| !mapped.contains(path));
        let difference = played.difference(&real);
        assert!(difference.is_none(), "the notes are not what happened: {}", difference.unwrap_or_default());
        history
    }
}

/// The process that a watcher with this number has started.
pub fn inner(watcher: u32) -> u32 {
    let path = format!("/proc/{watcher}/task/{watcher}/children");
    let children = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    children.split_whitespace().next().and_then(|c| c.parse().ok()).expect("a process that is watched")
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// A directory by its inode, and a name in it.
type Place = (u64, String);

#[derive(Debug)]
pub(crate) struct Note {
    /// Its place among the bytes, which is its place in time.
    begin: usize,
    what: What,
}

/// What a name was given to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum New {
    /// Something that is there already.
    No,
    File,
    Directory,
    /// A symbolic link, or something else without content.
    Other,
}

impl New {
    fn of(number: u64) -> New {
        [New::No, New::File, New::Directory].get(number as usize).copied().unwrap_or(New::Other)
    }
}

#[derive(Debug)]
pub(crate) enum What {
    Written { object: u64, offset: usize, data: std::ops::Range<usize> },
    Cut { object: u64, length: usize },
    Flushed { object: u64, begun: usize },
    Answered { who: u32, data: std::ops::Range<usize> },
    Set { object: u64, new: New, place: Place },
    Removed { place: Place },
    Moved { from: Place, to: Place },
    Exchanged { one: Place, other: Place },
    Mapped { object: u64 },
    Index { data: std::ops::Range<usize> },
}

/// Everything that happened, in its order.
#[derive(Debug)]
pub struct History {
    bytes: Vec<u8>,
    list: Vec<Note>,
    first: Found,
}

impl History {
    /// The points at which the power is worth failing, in ascending order: just before and just after the end of every
    /// flush, after every answer, and at the end. A point is the number of notes that came before.
    pub fn points(&self) -> Vec<usize> {
        let mut points = vec![self.list.len()];
        for (n, note) in self.list.iter().enumerate() {
            match note.what {
                What::Flushed { .. } => points.extend([n, n + 1]),
                What::Answered { .. } => points.push(n + 1),
                _ => {}
            }
        }
        points.sort_unstable();
        points.dedup();
        points
    }

    /// How many flushes there were.
    pub fn flushes(&self) -> usize {
        self.list.iter().filter(|n| matches!(n.what, What::Flushed { .. })).count()
    }

    /// Lets the power fail at each of `points`, on a disk that lies as `lie` says, and shows what is left.
    pub fn cut(&self, points: &[usize], lie: &Lie, seed: &mut Seed, look: impl FnMut(&Cut<'_>)) {
        model::cut(self, points, lie, seed, look);
    }

    /// What is there in the end, and where mapped files are.
    fn end(&self) -> (Image, Vec<PathBuf>) {
        let mut end = (Image::default(), Vec::new());
        self.cut(&[self.list.len()], &Lie::None, &mut Seed::new(0), |cut| {
            let live = cut.images.iter().find(|(kind, _)| *kind == Kind::Live);
            end = (live.map(|(_, image)| image.clone()).unwrap_or_default(), cut.mapped.clone());
        });
        end
    }

    /// The notes up to a point, a line each, for a person who wants to know what happened before a loss.
    pub fn tell(&self, last: usize, up_to: usize) -> String {
        let mut told = Vec::new();
        for note in &self.list[up_to.saturating_sub(last)..up_to.min(self.list.len())] {
            let _ = match &note.what {
                What::Written { object, offset, data } => writeln!(told, "write {object} at {offset}, {}", data.len()),
                What::Answered { who, data } => {
                    writeln!(told, "answer of {who}: {}", String::from_utf8_lossy(&self.bytes[data.clone()]).trim_end())
                }
                What::Index { .. } => Ok(()),
                other => writeln!(told, "{other:?}"),
            };
        }
        String::from_utf8_lossy(&told).into_owned()
    }
}
