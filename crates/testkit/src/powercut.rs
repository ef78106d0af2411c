//! A power cut, as often as one likes: `programs/powercut.c` notes what the processes of a test wrote, flushed and answered,
//! in one order; this makes of the notes what the disk could hold if the power had failed at any point of them.
//!
//! The disk keeps what was written before a flush began that has ended. Of all later writes it keeps any pieces of a
//! sector, each by chance. That is more than a file system does to a file, and nothing in SQLite may rest on less.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::preload;
use crate::seed::Seed;

const SOURCE: &str = include_str!("../programs/powercut.c");

/// What the disk writes whole or not at all, in bytes.
const SECTOR: usize = 512;

/// The compiled library.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| preload::library("powercut", SOURCE))
}

/// A database whose processes are watched.
#[derive(Debug)]
pub struct Watched {
    main: PathBuf,
    notes: PathBuf,
    slow: u32,
    lies: bool,
}

impl Watched {
    /// The database at `main`, which must not exist yet, with the notes in the file `notes`.
    pub fn at(main: &Path, notes: &Path) -> Watched {
        let directory = main.parent().expect("a directory").canonicalize().expect("the directory of the database");
        let main = directory.join(main.file_name().expect("the name of the database"));
        Watched { main, notes: notes.to_path_buf(), slow: 3000, lies: false }
    }

    /// The disk says of a flush of the log that it was made, and makes none.
    #[must_use]
    pub fn on_a_disk_that_lies(mut self) -> Watched {
        self.lies = true;
        self
    }

    /// Arms `command`.
    pub fn arms<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let mut log = self.main.clone().into_os_string();
        log.push("-wal");
        command.env("LD_PRELOAD", library()).env("POWERCUT_NOTES", &self.notes);
        command.env("POWERCUT_MAIN", &self.main).env("POWERCUT_WAL", log);
        command.env("POWERCUT_SLOW", self.slow.to_string()).env("POWERCUT_LIES", if self.lies { "1" } else { "0" });
        command
    }

    /// What was noted until now.
    pub fn notes(&self) -> Notes {
        let mut bytes = fs::read(&self.notes).expect("the notes");
        let end = number(&bytes, 0) as usize;
        bytes.truncate(end);
        let mut list = Vec::new();
        let mut at = 8;
        while at < end {
            let field = |n: usize| number(&bytes, at + 8 * n);
            let (file, offset, length) = (field(2) as usize, field(3), field(4) as usize);
            let (begin, data) = (at, at + 40);
            let what = match field(0) {
                1 => What::Written { file, offset: offset as usize, data: data..data + length },
                2 => What::Cut { file, length },
                3 => What::Flushed { file, begun: offset as usize },
                _ => What::Answered { pid: field(1) as u32, data: data..data + length },
            };
            at = if matches!(what, What::Written { .. } | What::Answered { .. }) { data + length } else { data };
            list.push(Note { begin, what });
        }
        Notes { bytes, list }
    }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[derive(Debug)]
struct Note {
    /// Its place among the bytes, which is its place in time.
    begin: usize,
    what: What,
}

#[derive(Debug)]
enum What {
    Written { file: usize, offset: usize, data: std::ops::Range<usize> },
    Cut { file: usize, length: usize },
    Flushed { file: usize, begun: usize },
    Answered { pid: u32, data: std::ops::Range<usize> },
}

/// Everything that happened, in its order.
#[derive(Debug)]
pub struct Notes {
    bytes: Vec<u8>,
    list: Vec<Note>,
}

/// What is on the disk, and what was written since the last flush and may be.
#[derive(Debug, Default, Clone)]
struct Disk {
    durable: [Vec<u8>; 2],
    pending: [Vec<usize>; 2],
}

impl Notes {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// True if nothing happened.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The numbers of those at which the log began anew.
    pub fn beginnings(&self) -> Vec<usize> {
        let begins = |note: &Note| matches!(note.what, What::Written { file: 1, offset: 0, .. });
        self.list.iter().enumerate().filter(|(_, note)| begins(note)).map(|(n, _)| n).collect()
    }

    /// Lets the power fail after each of `points` (numbers of notes, in ascending order). `look` gets the point, the main file
    /// and the log that are left, and the lines that were answered before, each with the process that did.
    pub fn cut(&self, points: &[usize], seed: &mut Seed, mut look: impl FnMut(usize, &[Vec<u8>; 2], &[(u32, &str)])) {
        let mut disk = Disk::default();
        let mut answers = Vec::new();
        let mut points = points.iter().peekable();
        for (n, note) in self.list.iter().enumerate() {
            match &note.what {
                What::Written { file, .. } | What::Cut { file, .. } => disk.pending[*file].push(n),
                What::Flushed { file, begun } => {
                    let pending = std::mem::take(&mut disk.pending[*file]);
                    let (flushed, rest): (Vec<_>, Vec<_>) =
                        pending.into_iter().partition(|p| self.list[*p].begin < *begun);
                    disk.pending[*file] = rest;
                    for p in flushed {
                        self.apply(p, &mut disk.durable[*file], || true);
                    }
                }
                What::Answered { pid, data } => {
                    let line = std::str::from_utf8(&self.bytes[data.clone()]).unwrap_or("?");
                    answers.push((*pid, line.trim_end()));
                }
            }
            while points.next_if(|p| **p == n).is_some() {
                let mut left = disk.durable.clone();
                // From nothing of what was not flushed to all of it; and often only of what was written last.
                let most = seed.below(9);
                for (file, content) in left.iter_mut().enumerate() {
                    let pending = &disk.pending[file];
                    let first = if seed.one_in(2) { seed.below(1 + pending.len() as u64) as usize } else { 0 };
                    for p in &pending[first..] {
                        self.apply(*p, content, || seed.below(8) < most);
                    }
                }
                look(n, &left, &answers);
            }
        }
    }

    /// Brings a change into a file, each of its sectors if `kept` says so.
    fn apply(&self, note: usize, content: &mut Vec<u8>, mut kept: impl FnMut() -> bool) {
        match &self.list[note].what {
            What::Written { offset, data, .. } => {
                let bytes = &self.bytes[data.clone()];
                let mut done = 0;
                while done < bytes.len() {
                    let at = offset + done;
                    let size = (SECTOR - at % SECTOR).min(bytes.len() - done);
                    if kept() {
                        if content.len() < at + size {
                            content.resize(at + size, 0);
                        }
                        content[at..at + size].copy_from_slice(&bytes[done..done + size]);
                    }
                    done += size;
                }
            }
            What::Cut { length, .. } if kept() => content.resize(*length, 0),
            _ => {}
        }
    }
}
