//! The write of a program that is not ours: a person sends it a message, and a fresh process must see it through the path.
//!
//! A commit of somebody else is none of that program: where a program has the database open, the commit counts only if that program
//! has written meanwhile ([`Whose`]).
//!
//! This is the only proof for a program that cannot be asked. What is compared is which commit the files show; what a commit
//! holds is not looked at. In a store of ours the services write by themselves, so there only a new message counts.
//! A program that uses deleted files is told OK as well, and its commit is in no file that a path names: then the proof fails
//! at once and says so.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use statehouse_sqlite::Member;
use statehouse_sqlite::holders::{self, Holder, Standing};
use statehouse_sqlite::words;

use super::position::{LogEnd, Position, log_end};
use super::view::{View, name};
use super::whose::{Whose, Written, written};
use super::{Proof, Seen};
use crate::check::{Found, Outcome};

/// How often it is looked.
const LOOK: Duration = Duration::from_millis(300);

/// What was there before the message.
struct Before {
    seen: Result<Seen, String>,
    ghosts: Vec<Ghost>,
    /// What the programs had written at the look before the last one and at the last one. Between the two a commit
    /// may have been on its way already.
    written: [Written; 2],
    /// Commits that were seen and that none of the programs made.
    of_others: u32,
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
        let mut before = Before {
            ghosts: self.ghost_logs(),
            written: [written(&self.programs()), Written::new()],
            seen: proof.other.read(&main),
            of_others: 0,
        };
        before.written[1] = before.written[0].clone();
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
            // Before the look at the files, so that a commit which is seen there later was written after this.
            let looked = written(&self.programs());
            if let (Ok(then), Ok(now)) = (&before.seen, proof.other.read(&main)) {
                let newer = is_newer(self.ours, &now, then);
                if newer {
                    let whose = Whose::of(&self.programs(), &before.written[0]);
                    if whose.idle.is_empty() || !whose.wrote.is_empty() || !whose.unknown.is_empty() {
                        return self.seen(&writers, &whose, begun.elapsed());
                    }
                    before.of_others += 1;
                }
                // Between two looks the log may have been copied and taken away, which is no commit.
                if newer || !self.ours {
                    before.seen = Ok(now);
                }
            }
            let [_, last] = std::mem::take(&mut before.written);
            before.written = [last, looked];
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
    fn programs(&self) -> Vec<Holder> {
        let Ok(report) = holders::scan(self.family()) else { return Vec::new() };
        let writes = |h: &&Holder| {
            let wanted = if self.ours { h.role.as_deref() == Some("gateway") } else { h.role.is_none() };
            wanted && !h.is_self && h.files.iter().any(|f| f.writable)
        };
        report.holders.iter().filter(writes).cloned().collect()
    }

    fn seen(&self, writers: &[String], whose: &Whose, took: Duration) -> Found {
        let what = if self.ours { "a new message" } else { "a commit of another process" };
        let by = match (&whose.wrote[..], &whose.unknown[..], writers) {
            ([], [], [one]) => format!("{one} had the write lock meanwhile"),
            ([], [], []) => "no program had it open; who wrote has closed it again, and is not known".to_owned(),
            ([], [], several) => format!("these had the write lock meanwhile: {}", several.join(", ")),
            ([], unknown, _) => {
                return Found::new(
                    Outcome::Warn,
                    format!("a fresh process sees {what} through the path, and it cannot be told whose it is"),
                )
                .detail(format!(
                    "after {:.1} s; what {} has written may not be looked at",
                    took.as_secs_f64(),
                    unknown.join(", ")
                ))
                .hint("Run this as root, or as the user of the program.");
            }
            ([one], [], locked) if locked.iter().any(|l| l != one) => {
                format!("{one} wrote meanwhile; these had the write lock: {}", locked.join(", "))
            }
            ([one], [], _) => format!("{one} wrote meanwhile, and no other program that has it open did"),
            (several, unknown, _) => format!(
                "these wrote meanwhile or may have, and which of them it was is not known: {}",
                [several, unknown].concat().join(", ")
            ),
        };
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
        let programs: Vec<String> = self.programs().iter().map(name).collect();
        if before.of_others > 0 && !programs.is_empty() {
            return Found::new(
                Outcome::Fail,
                format!(
                    "what was seen through the path was written by another process, not by {}",
                    programs.join(", ")
                ),
            )
            .detail(format!(
                "{}, and whoever wrote had closed it again; as the kernel counts it {} wrote nothing in that time",
                words::count(u64::from(before.of_others), if self.ours { "message" } else { "commit" }),
                programs.join(", ")
            ))
            .hint("Send the program a message while this waits; if you did, it uses another database than this one.");
        }
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
