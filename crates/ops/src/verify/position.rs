//! Which commit of a database its files show, so that a later look can tell whether there was another one.

use std::os::unix::fs::FileExt as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use statehouse_sqlite::{Error, Family, Identity, Member, Result, Status, files, wal};

/// Where the header of a main file counts transactions in rollback mode.
/// <https://www.sqlite.org/fileformat2.html#file_change_counter>
const CHANGE_COUNTER_AT: u64 = 24;

/// The head of the shared index: two copies of the same (wal.c, `WalIndexHdr`), in the machine's own byte order.
const INDEX_COPY: usize = 48;
const INDEX_CHANGE: usize = 8;
const INDEX_IS_INIT: usize = 12;
const INDEX_FRAMES: usize = 16;
const INDEX_SALTS: usize = 32;

/// Where a log ends: the salts tell one run of it from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEnd {
    salts: [u32; 2],
    frames: u64,
}

/// What the files say about the newest commit. Two looks tell whether there was one in between.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    main: Option<Identity>,
    wal: Option<Identity>,
    shm: Option<Identity>,
    size: u64,
    change_counter: u32,
    /// When the main file was changed last, in nanoseconds since 1970.
    #[serde(default)]
    modified_ns: i64,
    log: Option<LogEnd>,
    /// How many commits the shared index has counted since it was made.
    commits: Option<u32>,
}

impl Position {
    /// As the files at the paths say now. To be called by a process without a connection to the database.
    pub(super) fn of(family: &Family) -> Result<Position> {
        let statuses = Member::ALL.map(|m| Status::of(&family.path(m)).ok().flatten());
        let status = |member: Member| Member::ALL.iter().position(|m| *m == member).and_then(|at| statuses[at]);
        let identity = |member: Member| status(member).map(|s| s.identity);
        let index = read_index(&family.path(Member::Shm));
        let log = match &index {
            Some((_, end)) => Some(*end),
            // Nobody has it open, so it does not grow while it is read.
            None => log_end(&family.path(Member::Wal)),
        };
        Ok(Position {
            main: identity(Member::Main),
            wal: identity(Member::Wal),
            shm: identity(Member::Shm),
            size: status(Member::Main).map_or(0, |s| s.size),
            modified_ns: status(Member::Main).map_or(0, |s| s.modified_ns),
            change_counter: change_counter(family)?,
            log: log.filter(|l| l.frames > 0),
            commits: index.map(|(commits, _)| commits),
        })
    }

    /// True if a commit was made after `before` and is in this. What cannot be told apart from a checkpoint counts as none.
    pub(super) fn is_after(&self, before: &Position) -> bool {
        if self.main != before.main {
            return false;
        }
        if let (Some(now), Some(then)) = (self.commits, before.commits)
            && self.shm == before.shm
            && now >= then
        {
            return now > then;
        }
        match (self.log, before.log) {
            (Some(now), Some(then)) if now.salts == then.salts => now.frames > then.frames,
            // A log that was begun anew, or for the first time, and holds commits.
            (Some(_), _) => true,
            // Nothing was in a log before, so nothing could be copied: whoever changed the main file has committed.
            // A program that opens, commits and closes leaves neither a log nor another counter.
            (None, None) => {
                let content = |p: &Position| (p.change_counter, p.size, p.modified_ns);
                content(self) != content(before)
            }
            (None, Some(_)) => false,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// How many commits the index counts, and where it says that the log ends; `None` where there is no index that is whole.
fn read_index(path: &Path) -> Option<(u32, LogEnd)> {
    let file = files::open(path).ok()?;
    let mut head = [0; 2 * INDEX_COPY];
    for _ in 0..50 {
        file.read_exact_at(&mut head, 0).ok()?;
        let (first, second) = head.split_at(INDEX_COPY);
        // A writer is between the two copies.
        if first != second {
            std::thread::sleep(std::time::Duration::from_millis(1));
            continue;
        }
        if first[INDEX_IS_INIT] == 0 {
            return None;
        }
        let salt = |n: usize| u32::from_ne_bytes([0, 1, 2, 3].map(|i| first[INDEX_SALTS + 4 * n + i]));
        let end = LogEnd { salts: [salt(0), salt(1)], frames: u64::from(word(first, INDEX_FRAMES)) };
        return Some((word(first, INDEX_CHANGE), end));
    }
    None
}

/// Where a log ends by what it holds itself; also of one that has no name any more.
pub(super) fn log_end(path: &Path) -> Option<LogEnd> {
    let log = files::open(path).ok()?;
    let commit = wal::last_commit(&log).ok()??;
    Some(LogEnd { salts: commit.salts, frames: commit.frames })
}

fn change_counter(family: &Family) -> Result<u32> {
    let io = |e: std::io::Error| Error::io("read", &family.main(), e);
    let file = files::open(&family.main()).map_err(io)?;
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, CHANGE_COUNTER_AT).map_err(io)?;
    Ok(u32::from_be_bytes(bytes))
}
