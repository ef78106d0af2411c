//! What an anchor keeps readable of a retired generation.
//!
//! After `rm state.db*` the only way to the rows is a descriptor, and a process that is killed takes its own with it. So an
//! anchor that has let go of its locks keeps main file and log open, for reading only, until what they hold is safe: until
//! a capture of that log lies in `X.statehouse/retired/`, until nobody can write into it any more and there is nothing in
//! it, or for a day. Whoever wants the bytes reads them through `/proc/PID/fd/N`.
//!
//! A descriptor for reading endangers nobody and holds up nobody: who opens the database asks for processes that can *write* into a
//! retired generation. Of locks it has one alone, which keeps such processes from the main file ([`super::brake`]); so it stays at
//! least for as long as there is one of them, also after a capture.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::brake::{Brake, KeptBack};
use super::{Anchor, Held};
use crate::captures;
use crate::family::{Family, Generation, Identity, Member, Status};
use crate::holders::{HeldFile, Holder, Standing};
use crate::wal::{self, Commit};

/// How long it takes at most to remove one file after another. Before that, a file that still has its name may lose it.
const REMOVAL: Duration = Duration::from_secs(3);

/// How long nobody must have been seen who can write into it: longer than from one look at the holders to the one after the next.
const QUIET: Duration = Duration::from_secs(12);

/// How long bytes are kept that nobody has captured. They fill the disk meanwhile, so it is not for ever.
const LIMIT: Duration = Duration::from_secs(24 * 60 * 60);

/// Main file and log of a retired generation, held by descriptors that can only read.
#[derive(Debug)]
pub struct Kept {
    pub(super) family: Family,
    generation: Generation,
    main: Held,
    log: Option<OwnedFd>,
    index: Option<Brake>,
    kept_back: KeptBack,
    /// When somebody could write into it last, as far as that is known.
    written: Option<Instant>,
    since: Instant,
    /// The main file had lost its name, and nothing stood in its place.
    main_is_gone: bool,
    /// What the log holds, and by which length and time of change that was found out.
    content: Option<Commit>,
    seen: Option<(u64, i64)>,
}

/// Where the bytes of a kept file can be read for as long as this process lives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeptFile {
    /// Which.
    pub member: Member,
    /// `/proc/PID/fd/N` reads it.
    pub descriptor: i32,
    /// Length in bytes.
    pub size: u64,
}

/// Why a generation need not be kept any longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Over {
    /// The log holds nothing, and nobody can write into it.
    Empty,
    /// Its files were moved, and have other names.
    Named,
    /// A capture has everything.
    Captured,
    /// It was kept for a day.
    Expired,
}

impl Kept {
    pub(super) fn of(
        family: Family,
        generation: Generation,
        main: Held,
        log: Option<OwnedFd>,
        index: Option<Brake>,
    ) -> Kept {
        let mut kept = Kept {
            family,
            generation,
            main,
            log,
            index,
            kept_back: KeptBack::No,
            written: None,
            since: Instant::now(),
            main_is_gone: false,
            content: None,
            seen: None,
        };
        kept.keep_back();
        kept.look_for_main();
        kept.count();
        kept
    }

    /// Which generation it was.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// True if there is something in it that may be nowhere else.
    pub fn is_worth_keeping(&self) -> bool {
        self.is_nameless() && (self.content.is_some() || self.main_is_gone)
    }

    /// True if somebody can write into it, or could a moment ago: one look that did not find who does is no proof.
    pub fn is_written(&self) -> bool {
        let known = self.written.is_some_and(|when| when.elapsed() < QUIET);
        known || self.since.elapsed() < REMOVAL || self.is_used()
    }

    /// Whether who goes on there is kept from copying the log into the main file.
    pub fn kept_back(&self) -> KeptBack {
        self.kept_back
    }

    /// True if somebody may write into it and copy it into the main file of the generation that an anchor holds now. Not if it is that
    /// generation, come back to its paths; nor if nobody has used its index yet.
    pub fn is_beside(&self, anchor: &Anchor) -> bool {
        let same = |brake: &Brake| brake.index.identity == anchor.shm.index.identity || !brake.is_made();
        self.main.identity == anchor.main.identity && self.is_written() && !self.index.as_ref().is_some_and(same)
    }

    /// True if somebody holds it by its index, also one who cannot be looked at.
    fn is_used(&self) -> bool {
        self.index.as_ref().is_some_and(|i| i.somebody_is_there(&self.family, self.main.identity))
    }

    pub(super) fn index(&self) -> Option<BorrowedFd<'_>> {
        self.index.as_ref().map(|brake| brake.index.file.as_fd())
    }

    fn is_nameless(&self) -> bool {
        self.main.is_nameless() || self.log.as_ref().is_some_and(nameless)
    }

    /// How many committed transactions the log holds, as far as it was looked at.
    pub fn transactions(&self) -> u64 {
        self.content.as_ref().map_or(0, |c| c.transactions)
    }

    /// How long it has been kept.
    pub fn age(&self) -> Duration {
        self.since.elapsed()
    }

    /// How long it will be kept at most, from now.
    pub fn left(&self) -> Duration {
        LIMIT.saturating_sub(self.since.elapsed())
    }

    /// Where it can be read.
    pub fn files(&self) -> Vec<KeptFile> {
        let of = |member: Member, file: &OwnedFd| KeptFile {
            member,
            descriptor: file.as_raw_fd(),
            size: Status::of_descriptor(file.as_fd()).map_or(0, |s| s.size),
        };
        let log = self.log.iter().map(|log| of(Member::Wal, log));
        std::iter::once(of(Member::Main, &self.main.file)).chain(log).collect()
    }

    /// Whether it need not be kept any longer. `dangerous` are those who can write into retired files (see
    /// [`crate::holders::dangerous`]).
    pub fn over(&mut self, dangerous: &[Holder]) -> Option<Over> {
        if self.since.elapsed() >= LIMIT {
            return Some(Over::Expired);
        }
        let is = |f: &HeldFile, id: Option<Identity>| id.is_some_and(|i| (i.device, i.inode) == (f.device, f.inode));
        let known = dangerous.iter().flat_map(|h| &h.files).any(|f| {
            // Of what the paths name as well, such as the main file, others may be users by right.
            f.writable && f.generation == Standing::Retired && is(f, self.generation.get(f.member))
        });
        let written = known || self.is_used();
        if written {
            self.written = Some(Instant::now());
        }
        // What is added to it need not be counted each second; that there is something is enough.
        if !written || self.content.is_none() {
            self.count();
        }
        if self.is_written() {
            return None;
        }
        if !self.is_nameless() {
            return Some(Over::Named);
        }
        if !self.is_worth_keeping() {
            return Some(Over::Empty);
        }
        self.is_captured().then_some(Over::Captured)
    }

    /// To be called a few times a second: whether something is put in the place of a removed main file shows only in time, and what was
    /// moved may come back.
    pub fn watch(&mut self) {
        self.keep_back();
        self.look_for_main();
    }

    /// Keeps those who go on there from copying its log into the main file, where that would harm somebody. To be called as soon
    /// as a file was removed or moved.
    pub fn keep_back(&mut self) -> KeptBack {
        let written = self.is_written();
        if let Some(index) = &self.index {
            self.kept_back = index.tend(&self.family, self.main.identity, written);
        }
        self.kept_back
    }

    fn look_for_main(&mut self) {
        if self.since.elapsed() < REMOVAL && self.main.is_nameless() {
            self.main_is_gone |= captures::main_is_missing(&self.family).unwrap_or(true);
        }
    }

    /// Finds out what the log holds, if it has changed.
    fn count(&mut self) {
        let Some(log) = &self.log else { return };
        let Ok(now) = Status::of_descriptor(log.as_fd()).map(|s| (s.size, s.modified_ns)) else { return };
        if self.seen != Some(now)
            && let Ok(content) = wal::last_commit(log)
        {
            (self.content, self.seen) = (content, Some(now));
        }
    }

    /// True if a capture has all that the log holds. Their names say which log they are of and how far it went.
    pub fn is_captured(&self) -> bool {
        let identity = self.generation.wal.unwrap_or(Identity { device: 0, inode: 0, born_ns: None });
        let of_log = format!("{:x}-{:x}-", identity.inode, identity.born_ns.unwrap_or(0));
        captures::complete(&captures::directory(&self.family)).iter().any(|place| {
            let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let Some(rest) = name.strip_prefix(&of_log) else { return false };
            // The log alone is not enough where nobody else has the main file that it belongs to.
            if self.main.is_nameless() && name.ends_with("-log") {
                return false;
            }
            let mut words = rest.split('-');
            let (state, frames) = (words.next().unwrap_or_default(), words.next());
            let Some(content) = &self.content else { return state == "empty" };
            if state == "log" {
                let size = std::fs::metadata(place.join(captures::LOG)).map_or(0, |m| m.len());
                return size >= wal::frame_offset(content.page_size, content.frames);
            }
            let salts = format!("{:08x}{:08x}", content.salts[0], content.salts[1]);
            state == salts && frames.and_then(|f| f.parse().ok()).is_some_and(|f: u64| f >= content.frames)
        })
    }
}

fn nameless(file: &OwnedFd) -> bool {
    Status::of_descriptor(file.as_fd()).is_ok_and(|s| s.links == 0)
}
