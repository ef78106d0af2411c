//! `verify`: the proof that a database is healthy, after a restart, after a recovery, or because somebody asks.
//!
//! First everything that can be seen from outside. Only when no holder makes it dangerous is the database opened: for a
//! write that another process reads back through the path, if that was asked for, and for a check of its structure.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde::{Deserialize, Serialize};
use statehouse_sessions::sqlite::APPLICATION_ID;
use statehouse_sessions::{OpenMode, SqliteStore, Store as _};
use statehouse_sqlite::admission::ANCHOR;
use statehouse_sqlite::destroyed::{self, Mark};
use statehouse_sqlite::headers::{self, Headers};
use statehouse_sqlite::holders::{self, Holder, Report, Standing, Verdict};
use statehouse_sqlite::secure::{self, Inspected, Purpose};
use statehouse_sqlite::{Error, Family, Member, Result};

use crate::attach;
use crate::check::{Check, Found, Outcome, run};

/// The role under which the canary of `verify` is written.
pub const ROLE: &str = "verify";

/// What is to be proved, and with what.
pub struct Proof<'a> {
    /// The database.
    pub path: &'a Path,
    /// It is where our own store belongs, so that another program's database there is a finding.
    pub own: bool,
    /// Prove that a write works.
    pub write: bool,
    /// Keep trying for so long until a write works.
    pub wait_for_write: Duration,
    /// How long a lock is waited for.
    pub patience: Duration,
    /// A directory for a private image of a database that cannot be read in place.
    pub scratch: &'a Path,
    /// How another process reads.
    pub other: &'a dyn OtherProcess,
}

/// The second process of the proof; this crate does not know how to start one.
pub trait OtherProcess {
    /// The token of the newest canary of `role` in the store at `database`.
    ///
    /// # Errors
    /// Why it could not be read, in words.
    fn canary(&self, database: &Path, role: &str) -> std::result::Result<Option<String>, String>;

    /// What another process reads of any database.
    ///
    /// # Errors
    /// Why it could not be read, in words.
    fn read(&self, database: &Path) -> std::result::Result<Seen, String>;
}

/// What a process reads of a database that it knows nothing about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// SQLite's own number of the schema.
    pub schema_version: i64,
    /// Number of pages as of the last commit.
    pub page_count: i64,
    /// Number of tables, indexes, views and triggers.
    pub objects: i64,
}

impl Seen {
    fn by(connection: &Connection) -> rusqlite::Result<Seen> {
        connection.query_row(
            "SELECT (SELECT schema_version FROM pragma_schema_version), (SELECT page_count FROM pragma_page_count),
                    (SELECT count(*) FROM sqlite_schema)",
            [],
            |r| Ok(Seen { schema_version: r.get(0)?, page_count: r.get(1)?, objects: r.get(2)? }),
        )
    }
}

/// The document of `statehouse verify`.
#[derive(Debug, Serialize)]
pub struct Verification {
    /// The main file; what is not UTF-8 in its name is replaced.
    pub path: String,
    /// True if no check warns or fails.
    pub healthy: bool,
    /// The checks, in the order in which they were made.
    pub checks: Vec<Check>,
}

/// Reads what [`OtherProcess::read`] is to answer; for the second process itself.
///
/// # Errors
/// A refusal, or SQLite's answer.
pub fn read(path: &Path, scratch: &Path, patience: Duration) -> Result<Seen> {
    let family = Family::of(path)?;
    let inspected = secure::inspect(&family, Purpose::Look)?;
    inspected.require_main()?;
    headers::check(&inspected)?;
    refuse_alarming(&family)?;
    let held = holders::scan(&family)?.verdict != Verdict::Quiet;
    Ok(Seen::by(&*attach::read(&inspected, held, scratch, patience)?)?)
}

fn refuse_alarming(family: &Family) -> Result<()> {
    use statehouse_sqlite::Reason;
    match holders::dangerous(family)?.first() {
        None => Ok(()),
        Some(h) => {
            let reason = if h.ghost { Reason::HeldRetired } else { Reason::HeldNaked };
            Err(Error::refused(reason, family.main(), name(h)))
        }
    }
}

/// Proves it.
///
/// # Errors
/// When there is nothing to verify: no database, or files that are not safe to look at.
pub fn verify(proof: &Proof<'_>) -> Result<Verification> {
    let family = Family::of(proof.path)?;
    if let Some(mark) = destroyed::mark(&family)? {
        // Whatever else could be found out would be about something else than what was acknowledged.
        let checks = vec![run("content.whole", || ruined(&family, &mark))];
        return Ok(Verification { path: family.main().to_string_lossy().into_owned(), healthy: false, checks });
    }
    let begun = Instant::now();
    let (mut checks, view) = loop {
        let view = View::of(&family)?;
        let mut checks = view.seen_from_outside();
        if proof.own {
            checks.insert(0, run("store.ours", || view.is_ours()));
        }
        checks.extend(view.written(proof));
        let written = checks.iter().any(|c| c.id == "canary.written" && c.status == Outcome::Ok);
        if written || begun.elapsed() >= proof.wait_for_write {
            break (checks, view);
        }
        std::thread::sleep(Duration::from_millis(250).min(proof.wait_for_write));
    };
    let mut of_search_indexes = Vec::new();
    checks.push(run("integrity.quick", || view.integrity(proof, &mut of_search_indexes)));
    if !of_search_indexes.is_empty() {
        checks.push(run("integrity.search", || cannot_judge(&of_search_indexes)));
    }
    let healthy = !checks.iter().any(|c| c.status.unhealthy());
    Ok(Verification { path: family.main().to_string_lossy().into_owned(), healthy, checks })
}

/// What is to be said of a database that was destroyed under a process of ours.
fn ruined(family: &Family, mark: &Mark) -> Found {
    let copies = match (&mark.evidence, &mark.missing) {
        (Some(place), None) => format!("copies of the other files are in {}", place.display()),
        (Some(place), Some(why)) => format!("what could be copied is in {}: {why}", place.display()),
        (None, why) => format!("nothing could be copied: {}", why.as_deref().unwrap_or("it is not known why")),
    };
    Found::new(Outcome::Fail, "a file of it was truncated or overwritten while it was in use")
        .detail(format!("{} {copies}", mark.sentence))
        .hint(format!(
            "Keep every file. Put the database in order from the copies, a snapshot or a backup, with every program stopped; \
             then remove {}, and verify again.",
            destroyed::mark_path(family).display()
        ))
}

/// The database as seen from outside.
struct View {
    inspected: Inspected,
    report: Report,
    ours: bool,
}

impl View {
    fn is_ours(&self) -> Found {
        if self.ours {
            return Found::new(Outcome::Ok, "it is a store of Statehouse");
        }
        Found::new(Outcome::Fail, "a database of another program lies where the store should be")
            .detail(format!("{} does not carry the mark of a store", self.family().main().display()))
            .hint("Keep all files; find out what put it there, and put the store back from a snapshot or backup.")
    }

    fn of(family: &Family) -> Result<View> {
        let inspected = secure::inspect(family, Purpose::Look)?;
        inspected.require_main()?;
        let ours = match headers::check(&inspected)? {
            Headers::Database { header, .. } => header.application_id == APPLICATION_ID.cast_unsigned(),
            Headers::New | Headers::InUse => false,
        };
        Ok(View { inspected, report: holders::scan(family)?, ours })
    }

    fn family(&self) -> &Family {
        self.inspected.family()
    }

    fn held(&self) -> bool {
        self.report.verdict != Verdict::Quiet
    }

    /// Why the database must not be opened now.
    fn danger(&self) -> Option<Found> {
        self.report
            .holders
            .iter()
            .find(|h| (h.naked || h.ghost) && !h.fenced)
            .map(|h| Found::new(Outcome::Skip, format!("not opened beside {}, for that could do damage", name(h))))
    }

    fn seen_from_outside(&self) -> Vec<Check> {
        vec![
            run("content.whole", || {
                Found::new(Outcome::Ok, "no process of ours has seen it truncated or overwritten while it was in use")
            }),
            run("generation.current", || self.generation()),
            run("holders.no_ghost", || self.ghosts()),
            run("holders.no_naked", || self.naked()),
        ]
    }

    fn generation(&self) -> Found {
        let retired = |h: &&Holder| h.files.iter().any(|f| f.generation == Standing::Retired);
        // An anchor reads nothing of the database; it keeps what was removed readable for whoever copies it.
        let keeps = |h: &&Holder| h.role.as_deref() == Some(ANCHOR) && !h.ghost;
        let (keeping, behind): (Vec<&Holder>, Vec<&Holder>) =
            self.report.holders.iter().filter(retired).partition(keeps);
        let names = |of: &[&Holder]| of.iter().map(|h| name(h)).collect::<Vec<_>>().join(", ");
        if behind.is_empty() && !keeping.is_empty() {
            return Found::new(
                Outcome::Info,
                "an anchor keeps files that the paths no longer name; what they hold may not have been copied yet",
            )
            .detail(names(&keeping))
            .hint(first_capture(self.family(), &keeping));
        }
        if behind.is_empty() {
            let n = self.report.holders.len();
            return Found::new(Outcome::Ok, format!("every process that has it open ({n}) uses what the paths name"));
        }
        if behind.iter().all(|h| h.fenced) {
            return Found::new(
                Outcome::Info,
                "a process of ours has noticed that its files are gone, and is going over",
            )
            .detail(names(&behind));
        }
        Found::new(Outcome::Fail, "a process uses files that the paths no longer name")
            .detail(names(&behind))
            .hint(first_capture(self.family(), &behind))
    }

    fn ghosts(&self) -> Found {
        match self.report.holders.iter().find(|h| h.ghost && !h.fenced) {
            None => self.nobody("no process writes into deleted or replaced files"),
            Some(h) => Found::new(Outcome::Fail, format!("{} is writing into deleted or replaced files", name(h)))
                .detail(format!("what stops it is: {}", h.stop))
                .hint(format!("Keep it running, for what it holds is nowhere else, and {}", h.remedy())),
        }
    }

    fn naked(&self) -> Found {
        match self.report.holders.iter().find(|h| h.naked && !h.fenced) {
            None => self.nobody("every process that has it open holds its locks"),
            Some(h) => Found::new(Outcome::Fail, format!("{} has lost its locks", name(h)))
                .detail(format!("main file: {}, shared index: {}", h.locks.shared, h.locks.dms))
                .hint(match h.capture {
                    Some(_) => format!("Before anything else opens the database, {}", h.remedy()),
                    None => format!("Stop it in an orderly way before anything else opens the database: {}", h.stop),
                }),
        }
    }

    /// Nobody was found; that is only worth as much as what could be seen.
    fn nobody(&self, summary: &str) -> Found {
        if self.report.verdict == Verdict::Unknown {
            return Found::new(Outcome::Warn, "not every process could be looked at")
                .detail(self.report.limits.join("; "))
                .hint("Run this as root to be certain.");
        }
        Found::new(Outcome::Ok, summary).detail(self.report.limits.join("; "))
    }

    fn written(&self, proof: &Proof<'_>) -> Vec<Check> {
        let skipped =
            |found: &dyn Fn() -> Found| vec![run("canary.written", found), run("canary.read_by_other_process", found)];
        if !proof.write {
            return skipped(&|| Found::new(Outcome::Skip, "not asked for").hint("Give --write to prove it."));
        }
        if self.danger().is_some() {
            return skipped(&|| self.danger().unwrap_or_else(|| Found::new(Outcome::Skip, "")));
        }
        let mut read = Found::new(Outcome::Skip, "nothing was written that could be read");
        let mut read_ms = 0.0;
        let mut written = run("canary.written", || {
            let (written, reading) = if self.ours { self.canary(proof) } else { self.foreign(proof) };
            if let Some((found, took)) = reading {
                read = found;
                read_ms = took;
            }
            written
        });
        written.ms -= read_ms;
        let mut read = run("canary.read_by_other_process", || read);
        read.ms = read_ms;
        vec![written, read]
    }

    /// A row of our own store.
    fn canary(&self, proof: &Proof<'_>) -> (Found, Option<(Found, f64)>) {
        let main = self.family().main();
        let mode = OpenMode { patience: proof.patience, ..OpenMode::existing() };
        let store = match SqliteStore::open(&main, ROLE, mode) {
            Ok(store) => store,
            Err(e) => return (failed("the store cannot be opened", &e), None),
        };
        let answer = match store.write_canary(ROLE) {
            Err(e) => (failed("a row cannot be written", &e), None),
            Ok(token) => {
                let begun = Instant::now();
                let found = match proof.other.canary(&main, ROLE) {
                    Ok(Some(seen)) if seen == token => {
                        Found::new(Outcome::Ok, "another process reads that row through the path")
                    }
                    Ok(seen) => Found::new(Outcome::Fail, "another process reads something else through the path")
                        .detail(format!("it reads {}", seen.as_deref().unwrap_or("no row")))
                        .hint("Run `statehouse holders`: the path leads to other files than those that were written."),
                    Err(e) => Found::new(Outcome::Fail, "another process cannot read through the path").detail(e),
                };
                let took = begun.elapsed().as_secs_f64() * 1000.0;
                let written = match store.database().check() {
                    Ok(()) => Found::new(Outcome::Ok, "a row was written and is durable"),
                    Err(e) => Found::error("a row was written and the files went from under it", &e),
                };
                (written, Some((found, took)))
            }
        };
        store.close();
        answer
    }

    /// An empty transaction of a database that is not ours.
    fn foreign(&self, proof: &Proof<'_>) -> (Found, Option<(Found, f64)>) {
        let had_log = self.inspected.get(Member::Wal).is_some();
        let done = attach::with_write_lock(self.family(), self.held(), had_log, proof.patience, |connection| {
            let begun = Instant::now();
            let found = match (Seen::by(connection), proof.other.read(&self.family().main())) {
                (Ok(mine), Ok(theirs)) if mine == theirs => {
                    Found::new(Outcome::Ok, "another process reads the same through the path while this one may write")
                }
                (Ok(mine), Ok(theirs)) => {
                    Found::new(Outcome::Fail, "another process reads something else through the path")
                        .detail(format!("this one reads {mine:?}, the other {theirs:?}"))
                        .hint("Run `statehouse holders`: the path leads to other files than those that are in use.")
                }
                (Err(e), _) => Found::new(Outcome::Fail, "it cannot be read").detail(e.to_string()),
                (_, Err(e)) => Found::new(Outcome::Fail, "another process cannot read through the path").detail(e),
            };
            (found, begun.elapsed().as_secs_f64() * 1000.0)
        });
        match done {
            Ok(read) => {
                (Found::new(Outcome::Ok, "the write lock was taken and given back; nothing was written"), Some(read))
            }
            Err(e) => (Found::error("the write lock cannot be taken", &e), None),
        }
    }

    /// Looks at the structure. What SQLite says of search indexes goes into `of_search_indexes`.
    fn integrity(&self, proof: &Proof<'_>, of_search_indexes: &mut Vec<String>) -> Found {
        if let Some(danger) = self.danger() {
            return danger;
        }
        // The files may have changed since the first look: a write made the log.
        let inspected = match secure::inspect(self.family(), Purpose::Look) {
            Ok(inspected) => inspected,
            Err(e) => return Found::error("its files cannot be looked at", &e),
        };
        let checked = attach::read(&inspected, self.held(), proof.scratch, proof.patience).and_then(|attached| {
            let mut statement = attached.prepare("PRAGMA quick_check(20)")?;
            let lines = statement.query_map([], |r| r.get::<_, String>(0))?;
            Ok(lines.collect::<rusqlite::Result<Vec<String>>>()?)
        });
        let checked = checked.map(|lines| {
            let (indexes, structure) = lines.into_iter().partition(|line| is_of_search_index(line));
            *of_search_indexes = indexes;
            structure
        });
        match checked {
            Ok(lines) if lines.is_empty() || lines == ["ok"] => Found::new(Outcome::Ok, "the structure is sound"),
            Ok(lines) => Found::new(Outcome::Fail, "the structure is damaged")
                .detail(lines.join("; "))
                .hint("Do not delete any file of the database; copy the whole family first."),
            Err(e) => Found::error("the structure cannot be checked", &e),
        }
    }
}

/// What copies what these processes have, before they are stopped.
fn first_capture(family: &Family, of: &[&Holder]) -> String {
    let capture = match of {
        [one] => one.capture.clone(),
        _ => None,
    };
    let capture = capture.unwrap_or_else(|| holders::capture_command(family, None));
    format!("Copy what is in these files before the process is stopped: {capture}")
}

/// True if this line of a check is about what a full-text index holds, and not about the pages of the file (fts5_main.c,
/// `fts5IntegrityMethod`; fts3.c, `fts3IntegrityMethod`).
pub(crate) fn is_of_search_index(line: &str) -> bool {
    ["malformed inverted index for FTS", "unable to validate the inverted index for FTS"]
        .iter()
        .any(|beginning| line.starts_with(beginning))
}

/// SQLite compares a full-text index with what its own tokenizer makes of the content. Tokenizers differ between versions and
/// programs bring their own, so for an index that another SQLite wrote a difference proves nothing.
fn cannot_judge(lines: &[String]) -> Found {
    Found::new(Outcome::Skip, "its search index cannot be judged by another SQLite than the one that wrote it")
        .detail(lines.join("; "))
        .hint("Let its own program check it: INSERT INTO the_index(the_index, rank) VALUES('integrity-check', 1).")
}

fn failed(summary: &str, e: &statehouse_sessions::Error) -> Found {
    Found::new(Outcome::Fail, summary).detail(e.to_string()).hint(e.hint())
}

/// A process as a person would name it.
fn name(h: &Holder) -> String {
    let program = h.role.as_deref().or_else(|| h.command.first().map(String::as_str)).unwrap_or("unknown program");
    match h.pid {
        Some(pid) => format!("PID {pid} ({program})"),
        None => "a process that cannot be seen".to_owned(),
    }
}
