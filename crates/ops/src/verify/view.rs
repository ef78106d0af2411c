//! What can be seen of a database and of those who use it, without opening it.

use statehouse_sessions::sqlite::APPLICATION_ID;
use statehouse_sqlite::admission::ANCHOR;
use statehouse_sqlite::capture::only_reads_what_is_there;
use statehouse_sqlite::headers::{self, Headers};
use statehouse_sqlite::holders::{self, Holder, Report, Standing, Verdict};
use statehouse_sqlite::secure::{self, Inspected, Purpose};
use statehouse_sqlite::{Family, Result};

use crate::check::{Check, Found, Outcome, run};

/// The database as seen from outside.
pub(super) struct View {
    pub(super) inspected: Inspected,
    pub(super) report: Report,
    pub(super) ours: bool,
}

impl View {
    pub(super) fn is_ours(&self) -> Found {
        if self.ours {
            return Found::new(Outcome::Ok, "it is a store of Statehouse");
        }
        Found::new(Outcome::Fail, "a database of another program lies where the store should be")
            .detail(format!("{} does not carry the mark of a store", self.family().main().display()))
            .hint("Keep all files; find out what put it there, and put the store back from a snapshot or backup.")
    }

    pub(super) fn of(family: &Family) -> Result<View> {
        let inspected = secure::inspect(family, Purpose::Look)?;
        inspected.require_main()?;
        let ours = match headers::check(&inspected)? {
            Headers::Database { header, .. } => header.application_id == APPLICATION_ID.cast_unsigned(),
            Headers::New | Headers::InUse => false,
        };
        Ok(View { inspected, report: holders::scan(family)?, ours })
    }

    pub(super) fn family(&self) -> &Family {
        self.inspected.family()
    }

    pub(super) fn held(&self) -> bool {
        self.report.verdict != Verdict::Quiet
    }

    /// Why the database must not be opened now.
    pub(super) fn danger(&self) -> Option<Found> {
        self.report
            .holders
            .iter()
            .find(|h| (h.naked || h.ghost) && !h.fenced)
            .map(|h| Found::new(Outcome::Skip, format!("not opened beside {}, for that could do damage", name(h))))
    }

    pub(super) fn seen_from_outside(&self) -> Vec<Check> {
        vec![
            run("content.whole", || {
                Found::new(Outcome::Ok, "no process of ours has seen it truncated or overwritten while it was in use")
            }),
            run("generation.current", || self.generation()),
            run("holders.no_ghost", || self.ghosts()),
            run("holders.no_naked", || self.naked()),
        ]
    }

    pub(super) fn generation(&self) -> Found {
        // Whoever only reads a log that is in the main file holds nothing up and has nothing.
        let has_only_read = |h: &Holder| {
            let retired = h.files.iter().any(|f| f.generation == Standing::Retired);
            retired && only_reads_what_is_there(self.family(), h)
        };
        let retired = |h: &&Holder| h.files.iter().any(|f| f.generation == Standing::Retired) && !has_only_read(h);
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
            let n = self.report.holders.iter().filter(|h| !has_only_read(h)).count();
            return Found::new(Outcome::Ok, format!("every process that has it open ({n}) uses what the paths name"));
        }
        if behind.iter().all(|h| h.fenced) {
            return Found::new(
                Outcome::Info,
                "a process of ours has noticed that its files are gone, and is going over",
            )
            .detail(names(&behind));
        }
        let remedies: Vec<String> = behind.iter().filter(|h| h.capture.is_some()).map(|h| h.remedy()).collect();
        let hint = if remedies.is_empty() { first_capture(self.family(), &behind) } else { remedies.join("; ") };
        Found::new(Outcome::Fail, "a process uses files that the paths no longer name")
            .detail(names(&behind))
            .hint(hint)
    }

    pub(super) fn ghosts(&self) -> Found {
        match self.report.holders.iter().find(|h| h.ghost && !h.fenced) {
            None => self.nobody("no process writes into deleted or replaced files"),
            Some(h) => Found::new(Outcome::Fail, format!("{} is writing into deleted or replaced files", name(h)))
                .detail(format!("what ends it is: {}", h.stop))
                .hint(format!("What it holds is nowhere else: {}", h.remedy())),
        }
    }

    pub(super) fn naked(&self) -> Found {
        match self.report.holders.iter().find(|h| h.naked && !h.fenced) {
            None => self.nobody("every process that has it open holds its locks"),
            Some(h) => Found::new(Outcome::Fail, format!("{} has lost its locks", name(h)))
                .detail(format!("main file: {}, shared index: {}", h.locks.shared, h.locks.dms))
                .hint(match h.capture {
                    Some(_) => format!("Before anything else opens the database, {}", h.remedy()),
                    None => format!("Before anything else opens the database, {}", h.remedy()),
                }),
        }
    }

    /// Nobody was found; that is only worth as much as what could be seen.
    pub(super) fn nobody(&self, summary: &str) -> Found {
        if self.report.verdict == Verdict::Unknown {
            return Found::new(Outcome::Warn, "not every process could be looked at")
                .detail(self.report.limits.join("; "))
                .hint("Run this as root to be certain.");
        }
        Found::new(Outcome::Ok, summary).detail(self.report.limits.join("; "))
    }
}

/// A process as a person would name it.
pub(super) fn name(h: &Holder) -> String {
    let program = h.role.as_deref().or_else(|| h.command.first().map(String::as_str)).unwrap_or("unknown program");
    match h.pid {
        Some(pid) => format!("PID {pid} ({program})"),
        None => "a process that cannot be seen".to_owned(),
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
