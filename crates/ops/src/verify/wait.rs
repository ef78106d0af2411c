//! The write of a program that is not ours: a person sends it a message, and a fresh process must see it through the path.
//!
//! This is the only proof for a program that cannot be asked. What is compared is which commit the files show; what a commit
//! holds is not looked at. In a store of ours the services write by themselves, so there only a new message counts.
//! A program that uses deleted files is told OK as well, and its commit is in no file that a path names: then the proof fails
//! at once and says so.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use statehouse_sqlite::Member;
use statehouse_sqlite::holders::{self, Holder, Standing};

use super::position::{LogEnd, Position, log_end};
use super::view::{View, name};
use super::{Proof, Seen};
use crate::check::{Found, Outcome};

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(300);

/// What was there before the message.
struct Before {
    seen: Result<Seen, String>,
    ghosts: Vec<Ghost>,
}

/// A log that no path names, and where it ended.
struct Ghost {
    holder: Holder,
    path: PathBuf,
    end: Option<LogEnd>,
}

impl View {
    pub(super) fn write_of_program(&self, proof: &Proof<'_>, limit: Duration) -> Found {
        if self.danger().is_some() && !self.report.holders.iter().any(|h| h.ghost) {
            return self.danger().unwrap_or_else(|| Found::new(Outcome::Skip, ""));
        }
        let main = self.family().main();
        let mut before = Before { seen: proof.other.read(&main), ghosts: self.ghost_logs() };
        if let (Err(e), true) = (&before.seen, before.ghosts.is_empty()) {
            return Found::new(Outcome::Fail, "another process cannot read through the path").detail(e.clone());
        }
        (proof.ask)();
        let begun = Instant::now();
        let mut writers: Vec<String> = Vec::new();
        loop {
            if let Some(ghost) = before.ghosts.iter().find(|g| log_end(&g.path) != g.end) {
                return swallowed(&ghost.holder);
            }
            self.note_writers(&mut writers);
            if let (Ok(then), Ok(now)) = (&before.seen, proof.other.read(&main)) {
                if is_newer(self.ours, &now, then) {
                    return self.seen(&writers, begun.elapsed());
                }
                // Between two looks the log may have been copied and taken away, which is no commit.
                if !self.ours {
                    before.seen = Ok(now);
                }
            }
            if begun.elapsed() >= limit {
                return self.nothing_seen(&before, limit);
            }
            std::thread::sleep(LOOK.min(limit.saturating_sub(begun.elapsed()).max(Duration::from_millis(1))));
            // One that became a ghost meanwhile takes the message along.
            if let Ok(report) = holders::scan(self.family()) {
                let known = |h: &Holder| before.ghosts.iter().any(|g| g.holder.pid == h.pid);
                let new: Vec<Ghost> =
                    report.holders.iter().filter(|h| is_ghost(h) && !known(h)).flat_map(logs_of).collect();
                before.ghosts.extend(new);
            }
        }
    }

    fn ghost_logs(&self) -> Vec<Ghost> {
        self.report.holders.iter().filter(|h| is_ghost(h)).flat_map(logs_of).collect()
    }

    /// Remembers who was seen with the lock of a writer.
    fn note_writers(&self, writers: &mut Vec<String>) {
        let Ok(report) = holders::scan(self.family()) else { return };
        for holder in report.holders.iter().filter(|h| !h.is_self && (h.locks.write || h.locks.reserved)) {
            let name = name(holder);
            if !writers.contains(&name) {
                writers.push(name);
            }
        }
    }

    /// Other programs that have it open for writing.
    fn programs(&self) -> Vec<String> {
        let Ok(report) = holders::scan(self.family()) else { return Vec::new() };
        let writes = |h: &&Holder| {
            let wanted = if self.ours { h.role.as_deref() == Some("gateway") } else { h.role.is_none() };
            wanted && !h.is_self && h.files.iter().any(|f| f.writable)
        };
        report.holders.iter().filter(writes).map(name).collect()
    }

    fn seen(&self, writers: &[String], took: Duration) -> Found {
        let programs = self.programs();
        let by = match (writers, &programs[..]) {
            ([one], _) => format!("{one} had the write lock meanwhile"),
            ([], [one]) => format!("{one} is the only one that has it open for writing"),
            ([], []) => "who wrote has closed it again, and is not known".to_owned(),
            ([], several) => format!("which of these wrote is not known: {}", several.join(", ")),
            (several, _) => format!("these had the write lock meanwhile: {}", several.join(", ")),
        };
        let what = if self.ours { "a new message" } else { "a commit of another process" };
        Found::new(Outcome::Ok, format!("a fresh process sees {what} through the path"))
            .detail(format!("after {:.1} s; {by}", took.as_secs_f64()))
    }

    fn nothing_seen(&self, before: &Before, limit: Duration) -> Found {
        let what = if self.ours { "no new message" } else { "no commit of another process" };
        let found =
            Found::new(Outcome::Fail, format!("{what} was seen through the path within {} s", limit.as_secs_f64()));
        if let Some(ghost) = before.ghosts.first() {
            return found
                .detail(format!(
                    "{} uses deleted or replaced files, and wrote nothing there either",
                    name(&ghost.holder)
                ))
                .hint("Capture what it has before it is stopped: `statehouse retired capture --all`.");
        }
        let programs = self.programs();
        if programs.is_empty() {
            return found
                .detail("no program has it open for writing")
                .hint("Start the program, or name the database that it really uses; then try again.");
        }
        found
            .detail(format!("it is open for writing in {}", programs.join(", ")))
            .hint("Send the program a message while this waits; if you did, it uses another database than this one.")
    }
}

fn is_ghost(h: &Holder) -> bool {
    h.ghost && !h.fenced
}

/// The logs of a process that no path names, as it has them open.
fn logs_of(h: &Holder) -> Vec<Ghost> {
    let Some(pid) = h.pid else { return Vec::new() };
    let retired = h.files.iter().filter(|f| f.member == Member::Wal && f.generation == Standing::Retired);
    let paths = retired.filter_map(|f| f.descriptor).map(|fd| PathBuf::from(format!("/proc/{pid}/fd/{fd}")));
    paths.map(|path| Ghost { holder: h.clone(), end: log_end(&path), path }).collect()
}

fn is_newer(ours: bool, now: &Seen, then: &Seen) -> bool {
    if ours {
        return now.newest_message > then.newest_message;
    }
    let after = |now: &Position, then: &Position| now.is_after(then);
    now.position.as_ref().zip(then.position.as_ref()).is_some_and(|(now, then)| after(now, then))
}

fn swallowed(holder: &Holder) -> Found {
    Found::new(
        Outcome::Fail,
        format!("the message went to a deleted log: {} wrote it there and was told OK", name(holder)),
    )
    .detail("no other process sees it, and it is gone when that process ends, unless it is captured before")
    .hint(format!("What it has is nowhere else: {}", holder.remedy()))
}
