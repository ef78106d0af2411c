//! What one process tells of being cut off: when it noticed, what it captured, whether it is back.
//!
//! It is gathered in memory first, for the directory in which it belongs may be gone, and capturing comes before telling. It
//! is written when the capture is made, when something keeps the process from going on, and at the end; and each time it
//! becomes part of the incident that the other processes tell of too.

use std::time::Duration;

use super::{Entry, Incident, Kind, Outcome, Report, about_generation, entry, now_us, shelf::Shelf};
use crate::error::{Error, Result};
use crate::family::{Family, Generation, Member};
use crate::process::ProcessId;
use crate::reassemble::Account;
use crate::shell::word;
use crate::words::count;
use crate::{capture, captures};

/// What is noticed so shortly before or after what others tell is a part of it.
const SAME_MATTER_US: u64 = 1_000_000;

/// How it went, when it is over for this process.
enum End {
    /// It uses what the paths name.
    Back,
    /// It has ended, and what only it had is kept.
    Kept,
    /// It has ended, and this could not be kept.
    Lost(String),
}

/// One process's part of an incident.
#[derive(Debug)]
pub struct Story {
    about: String,
    role: String,
    /// The main file, as a person would name it.
    database: String,
    generation: Generation,
    /// When the process noticed.
    since: u64,
    /// When it used what the paths name again.
    back_at: Option<u64>,
    /// What the incident is, if this process is the first one to tell of it.
    report: Report,
    /// What was not written yet.
    entries: Vec<Entry>,
    evidence: Vec<String>,
    done: Vec<String>,
    /// What is lost of a destroyed database, now that what is left was put together; and what to type.
    account: Option<(Option<String>, String)>,
    /// What a person has to do before the process can go on.
    needs: Option<String>,
    /// The incident that it became a part of.
    written: Option<String>,
}

impl Story {
    /// Begins when a handle was cut off from `generation`. `recorded` names an incident that this process has told of already.
    pub(crate) fn begin(
        family: &Family,
        role: &str,
        generation: Generation,
        why: &Error,
        recorded: Option<String>,
    ) -> Story {
        let subject = Subject::of(family, &generation, why);
        let kind = if recorded.is_some() { Kind::LocksLost } else { subject.kind };
        let about = recorded.unwrap_or(subject.about);
        let report = Report {
            kind,
            role: role.to_owned(),
            what: subject.what.clone(),
            cause: subject.cause,
            evidence: Vec::new(),
            done: String::new(),
            lost: subject.lost,
            next: subject.next,
            outcome: if subject.waits { Outcome::Waits } else { Outcome::Fenced },
            open: true,
        };
        let mut story = Story {
            about,
            role: role.to_owned(),
            database: family.main().display().to_string(),
            generation,
            since: now_us(),
            back_at: None,
            report,
            entries: Vec::new(),
            evidence: vec![files_before(&generation)],
            done: Vec::new(),
            account: None,
            needs: None,
            written: None,
        };
        story.tell(format!("noticed that {}, and cut itself off: nothing is read or written any more", subject.what));
        story
    }

    /// Begins when an anchor has let go of a generation that was retired.
    pub fn of_anchor(family: &Family, role: &str, generation: Generation) -> Story {
        let members = family.generation().map(|now| generation.differences(&now)).unwrap_or_default();
        let mut story = Story::begin(family, role, generation, &Error::Retired { members }, None);
        story.entries.clear();
        story.tell("let go of the locks, and keeps what the old files hold readable".to_owned());
        story
    }

    /// How long ago the process noticed.
    pub fn age(&self) -> Duration {
        Duration::from_micros(now_us().saturating_sub(self.since))
    }

    /// The process uses what the paths name again; what is told later says since when. False takes that back.
    pub fn is_back(&mut self, back: bool) {
        self.back_at = back.then(now_us);
    }

    /// Makes it a part of what other processes have told of the same moment. An anchor takes hold at once, also of what lies at
    /// the paths in the middle of the recovery of others, and lets go of that when they move it aside: the files are others
    /// then, and the matter is the same.
    pub fn join_others(&mut self, family: &Family) {
        let Ok(process) = ProcessId::own() else { return };
        let around = |i: &Incident| {
            !i.affected.is_empty() && self.since <= i.last_at.saturating_add(SAME_MATTER_US) && self.began_with(i)
        };
        let all = Shelf::Beside(family.clone()).all().unwrap_or_default();
        if !all.iter().any(|i| i.about == self.about && self.is_part_of(i, process))
            && let Some(same) = all.iter().rev().find(|i| around(i))
        {
            self.about.clone_from(&same.about);
            self.written = Some(same.id.clone());
        }
    }

    /// What this process only doubted, another one may have found destroyed: then it is one deed.
    fn join_destroyed(&mut self, family: &Family) {
        if self.written.is_some() || self.report.kind != Kind::Doubtful {
            return;
        }
        let about = format!("{} {}", Kind::Destroyed.word(), about_generation(&self.generation));
        let all = Shelf::Beside(family.clone()).all().unwrap_or_default();
        if all.iter().any(|i| i.about == about && i.is_open()) {
            self.about = about;
        }
    }

    /// True if it did not begin long before the incident did.
    fn began_with(&self, incident: &Incident) -> bool {
        self.since.saturating_add(SAME_MATTER_US) >= incident.at
    }

    /// True if this is a part of what was told of the same files, and not another deed. Files that are removed or replaced once
    /// more after everybody is back are another one; of what harms no file the next time is counted.
    fn is_part_of(&self, incident: &Incident, process: ProcessId) -> bool {
        if self.written.as_ref() == Some(&incident.id)
            || !matches!(incident.kind, Kind::RetiredGeneration | Kind::ReplacedFile)
        {
            return true;
        }
        let settled = incident.is_over() && (!incident.is_open() || incident.outcome == Outcome::Waits);
        let ended = if settled { incident.affected.iter().filter_map(|a| a.back_at).max() } else { None };
        let was_back = incident.affected.iter().any(|a| a.process == process && a.back_at.is_some());
        // One that had another index has begun after that, or has gone over already.
        let same_files = incident.evidence.contains(&files_before(&self.generation));
        let slack = if same_files { SAME_MATTER_US } else { 0 };
        let another = ended.is_some_and(|ended| was_back || self.since > ended.saturating_add(slack));
        self.began_with(incident) && !another
    }

    /// Adds a step.
    pub(crate) fn tell(&mut self, sentence: String) {
        self.entries.push(entry(&self.role, sentence));
    }

    /// What a person has to do before the process can go on, if it is anything.
    pub(crate) fn needs(&mut self, next: Option<String>) {
        self.needs = next;
    }

    /// Adds a step that the incident names among what was done.
    pub(crate) fn did(&mut self, sentence: impl Into<String>) {
        let sentence = sentence.into();
        self.tell(sentence.clone());
        self.done.push(sentence);
    }

    /// Adds what the capture of this generation says of itself.
    pub fn captured(&mut self, family: &Family) {
        let captures = capture::list(family).unwrap_or_default();
        let same =
            |c: &&capture::Capture| about_generation(&c.manifest.generation) == about_generation(&self.generation);
        match captures.iter().rev().find(same) {
            Some(found) => {
                let (n, frames) = (found.manifest.transactions, found.manifest.frames);
                let transactions = count(n, "transaction");
                self.evidence.push(format!(
                    "capture {}: {transactions} in {} of the log, by PID {}",
                    found.id,
                    count(frames, "frame"),
                    found.manifest.pid
                ));
                let what = format!("what the old files held: {transactions}, in retired/{}", found.id);
                if found.manifest.pid == std::process::id() {
                    self.did(format!("captured {what}"));
                } else {
                    self.tell(format!("found captured {what}"));
                }
            }
            // What is left of such a database is copied and put together, and that is told by itself.
            None if self.report.kind == Kind::Destroyed => {}
            None => self.tell(
                "had nothing to capture: the main file has all that the old log held, or the log is in its place"
                    .to_owned(),
            ),
        }
    }

    /// Adds what this process did to put together what is left of a destroyed database. Each account holds those before it.
    /// `made` says that this process made the new file, and did not find it.
    pub(crate) fn put_together(&mut self, account: &Account, run: usize, made: bool) {
        let Some(rebuilt) = &account.rebuilt else {
            self.tell(format!("nothing could be put together: {}", account.unusable.join("; ")));
            return;
        };
        let of = if account.sources.is_empty() { "nothing".to_owned() } else { account.sources.join(", ") };
        let (rebuilt_at, commits) = (rebuilt.display(), count(run as u64, "commit"));
        match (made, run) {
            (true, 0) => self.did(format!("put together in {rebuilt_at} what is left, from {of}")),
            (true, _) => self
                .did(format!("put together in {rebuilt_at} what is left, from {of}, and {commits} that it remembered")),
            (false, 0) => self.tell("remembered nothing that is not in what was put together".to_owned()),
            (false, _) => self.did(format!("added {commits} that it remembered to what was put together")),
        }
        let restore = format!("statehouse restore {} {}", word(&rebuilt.to_string_lossy()), word(&self.database));
        let lost = (!account.lost.is_empty() || !account.complete).then(|| account.loss());
        self.account = Some((lost, format!("Put what is left in the place of the database: `{restore}`")));
    }

    /// Writes what was told so far.
    ///
    /// # Errors
    /// [`Error::Io`], or a refusal of the side directory.
    pub fn write(&mut self, family: &Family) -> Result<()> {
        self.save(family, None)
    }

    /// The process goes on in what the paths name now.
    ///
    /// # Errors
    /// As [`Story::write`].
    pub fn back(mut self, family: &Family) -> Result<()> {
        let at = *self.back_at.get_or_insert_with(now_us);
        let ms = at.saturating_sub(self.since) / 1000;
        let sentence = format!("uses what the paths name again, {ms} ms after it noticed");
        self.entries.push(Entry { at, ..entry(&self.role, sentence) });
        self.save(family, Some(End::Back))
    }

    /// The process ends, and what only it had is where the next opener finds it.
    pub(crate) fn kept(mut self, family: &Family) -> Result<()> {
        self.did("ended before it had opened the database again; what the old files held is kept for the next one that opens it");
        self.save(family, Some(End::Kept))
    }

    /// The process ends, and could not keep what only it had.
    pub(crate) fn lost(mut self, family: &Family, what: String) -> Result<()> {
        self.tell(format!("ended, and could not keep what only it had: {what}"));
        self.save(family, Some(End::Lost(what)))
    }

    fn save(&mut self, family: &Family, end: Option<End>) -> Result<()> {
        let process = ProcessId::own().map_err(|e| Error::io("look at", std::path::Path::new("/proc/self"), e))?;
        let undecided = match end {
            Some(End::Back) => undecided(family, &self.generation)?,
            _ => None,
        };
        let (entries, evidence) = (std::mem::take(&mut self.entries), std::mem::take(&mut self.evidence));
        let done = std::mem::take(&mut self.done);
        self.join_destroyed(family);
        // Told once: who comes after this process knows more, and what this one knew would go over it.
        let account = self.account.take();
        let which = |i: &Incident| self.is_part_of(i, process);
        let saved = Shelf::Beside(family.clone()).change_which(&self.about, which, |before| {
            let mut incident =
                before.unwrap_or_else(|| Incident::new(self.about.clone(), self.since, self.report.clone()));
            // An anchor, which tells late of what it noticed late, may have told of the last of several files.
            if self.since < incident.at {
                incident.is_rather(self.since, &self.report);
            }
            incident.last_at = now_us();
            incident.tell(entries.clone());
            incident.show(evidence.clone());
            for step in &done {
                let by = format!("PID {} ({}) {step}", process.pid, self.role);
                incident.done = if incident.done.is_empty() { by } else { format!("{}; {by}", incident.done) };
            }
            if let Some((lost, next)) = &account {
                (incident.lost, incident.next) = (lost.clone(), next.clone());
            }
            if let Some(next) = self.needs.as_ref().filter(|_| end.is_none()) {
                incident.next.clone_from(next);
            }
            let back_at = self.back_at.filter(|_| matches!(end, Some(End::Back)));
            // A process that is cut off twice while others are still going over has met their recovery.
            let was_back = incident.affected.iter().any(|a| a.process == process && a.back_at.is_some());
            if was_back && back_at.is_none() && !incident.is_open() {
                incident.count = incident.count.saturating_add(1);
            }
            // One that waits for a person is closed by a person alone, and what is told of the same after that is no news.
            let looked_at = !incident.is_open() && incident.outcome == Outcome::Waits;
            incident.affects(process, &self.role, self.since, back_at);
            match &end {
                None | Some(End::Kept) if looked_at => {}
                None | Some(End::Kept) => {
                    if incident.outcome == Outcome::Kept {
                        incident.outcome = Outcome::Fenced;
                    }
                    incident.closed_at = None;
                }
                Some(End::Lost(what)) => {
                    incident.lost = Some(what.clone());
                    (incident.outcome, incident.closed_at) = (Outcome::Waits, None);
                    incident.next = "Keep every file, and run `statehouse retired list`.".to_owned();
                }
                Some(End::Back) => settle(&mut incident, undecided.as_deref()),
            }
            Some(incident)
        });
        match saved {
            Ok(id) => {
                // Another process may add to the account after this one.
                (self.account, self.written) = (None, id);
                Ok(())
            }
            Err(e) => {
                // It is told with the next step.
                (self.entries, self.evidence, self.done, self.account) = (entries, evidence, done, account);
                Err(e)
            }
        }
    }
}

/// Decides whether an incident is over, now that a process of it is back.
fn settle(incident: &mut Incident, undecided: Option<&str>) {
    if let Some(next) = undecided {
        (incident.outcome, incident.closed_at) = (Outcome::Waits, None);
        incident.next = next.to_owned();
        return;
    }
    if incident.lost.is_some() || !incident.is_over() {
        return;
    }
    incident.outcome = Outcome::Kept;
    incident.next = String::new();
    incident.closed_at = Some(now_us());
}

/// What to do about the capture of this generation whose rows are not all known to be in the database, if there is one.
fn undecided(family: &Family, generation: &Generation) -> Result<Option<String>> {
    let open = captures::unmerged(family);
    let about = about_generation(generation);
    let captures = capture::list(family)?;
    let same = captures.into_iter().filter(|c| about_generation(&c.manifest.generation) == about);
    // One whose rows are in a log that lies at its path is merged, and is marked when that log is copied.
    let into = |c: &capture::Capture| c.place.join(captures::INTO).exists();
    Ok(same.filter(|c| c.is_unreadable() || open.contains(&c.place) && !into(c)).map(|c| to_see(&c)).next())
}

/// How a person sees what a capture has. Where there is no log and the image is damaged, nothing would be shown.
fn to_see(capture: &capture::Capture) -> String {
    let image = capture.place.join(captures::IMAGE);
    let has_log = std::fs::metadata(capture.place.join("wal.captured")).is_ok_and(|log| log.len() > 0);
    if has_log || captures::sound(&image).is_ok() {
        return format!("See what only the capture has: `statehouse retired show {}`", word(&capture.id));
    }
    format!(
        "Keep {}: it is a copy of a damaged main file, and no rows can be read of it by itself.",
        capture.place.display()
    )
}

fn files_before(generation: &Generation) -> String {
    let one = |member: Member| match generation.get(member) {
        Some(i) => format!("{member} inode {}", i.inode),
        None => format!("{member} none"),
    };
    format!("files in use before: {}", [Member::Main, Member::Wal, Member::Shm].map(one).join(", "))
}

/// What an incident is about, as the error says it that cut the handle off.
struct Subject {
    kind: Kind,
    about: String,
    what: String,
    cause: String,
    lost: Option<String>,
    next: String,
    waits: bool,
}

impl Subject {
    fn of(family: &Family, generation: &Generation, why: &Error) -> Subject {
        let about = about_generation(generation);
        let plain = |kind, what: String, cause: &str| Subject {
            kind,
            about: format!("{} {about}", Kind::word(kind)),
            what,
            cause: cause.to_owned(),
            lost: None,
            next: String::new(),
            waits: false,
        };
        match why {
            Error::Retired { members } => {
                let now = family.generation().unwrap_or(Generation { main: None, wal: None, shm: None });
                let replaced = members.contains(&Member::Main) && now.main.is_some();
                Subject {
                    about: about.clone(),
                    ..plain(
                        if replaced { Kind::ReplacedFile } else { Kind::RetiredGeneration },
                        gone(members, &now),
                        "somebody removed, renamed or replaced the files while they were in use (a clean-up, a backup, a restore \
                         by hand, or a program that took itself for the last one to close the database); which program did it is not \
                         known, for the system does not record it",
                    )
                }
            }
            Error::Destroyed(d) => {
                let whole = d.member == Member::Shm
                    || d.frames.zip(d.copied).is_some_and(|(f, c)| d.member == Member::Wal && f == c);
                let waits = d.member != Member::Shm;
                let mut subject = plain(
                    Kind::Destroyed,
                    format!("the {} was {}", called(d.member), d.what),
                    "a program that is not SQLite wrote to it (a shell's redirection, cp, an editor, a sync tool); which one is not known",
                );
                subject.lost = (!whole).then(|| d.loss());
                subject.waits = waits;
                if waits {
                    subject.next =
                        "Stop every program that uses it, keep every file, and run `statehouse verify`.".to_owned();
                }
                subject
            }
            Error::Doubtful { .. } => plain(
                Kind::Doubtful,
                "a program that is not SQLite wrote into the main file, or touched it".to_owned(),
                "the time of change of the main file moved while nobody of SQLite's wrote to it; which program did it is not known",
            ),
            Error::LocksLost => plain(
                Kind::LocksLost,
                "the locks that keep the files in place were gone".to_owned(),
                "something in that process closes or unlocks descriptors that are not its own; what is not known",
            ),
            other => plain(
                Kind::CutOff,
                format!("the database could not be used any more: {other}"),
                "see the text of the error",
            ),
        }
    }
}

/// How a member is called in a sentence.
fn called(member: Member) -> &'static str {
    match member {
        Member::Main => "main file",
        Member::Wal => "log",
        Member::Shm => "shared index",
        Member::Journal => "journal",
    }
}

/// What became of the members, as a clause.
fn gone(members: &[Member], now: &Generation) -> String {
    let list = |of: Vec<&str>| match of.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, first)) => format!("{} and the {last}", first.join(", the ")),
        None => String::new(),
    };
    let were = |n: usize| if n == 1 { "was" } else { "were" };
    let (replaced, removed): (Vec<Member>, Vec<Member>) = members.iter().partition(|m| now.get(**m).is_some());
    let clause = |of: &[Member], verb: &str| {
        let names: Vec<&str> = of.iter().map(|m| called(*m)).collect();
        (!names.is_empty()).then(|| format!("the {} {} {verb}", list(names.clone()), were(names.len())))
    };
    let clauses: Vec<String> = [
        clause(&removed, "removed"),
        clause(&replaced, if replaced.len() == 1 { "replaced by another file" } else { "replaced by other files" }),
    ]
    .into_iter()
    .flatten()
    .collect();
    if clauses.is_empty() { "the files were removed or replaced".to_owned() } else { clauses.join(", and ") }
}
