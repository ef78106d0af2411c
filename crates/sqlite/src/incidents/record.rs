//! What one incident says, and how what happens again becomes part of it.

use serde::{Deserialize, Serialize};

use crate::process::ProcessId;

/// Within this time the same is one incident.
const SAME_US: u64 = 60 * 1_000_000;

/// The longest text of one field, in characters. None of them holds anything of the content, but an error of the system
/// may carry a long path.
const LONGEST_TEXT: usize = 1500;

/// The most entries of a timeline: the first ones say how it began, the last ones how it ended.
const FIRST_ENTRIES: usize = 20;
const LAST_ENTRIES: usize = 40;

/// The most lines of evidence, and the most processes that are told apart.
const MOST_EVIDENCE: usize = 24;
const MOST_PROCESSES: usize = 32;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Locks were gone and were taken again; the files are the same.
    LocksHealed,
    /// Locks were gone, and what had happened meanwhile could not be ruled out.
    LocksLost,
    /// Files that a process uses were removed, and what it wrote into them was captured.
    RetiredGeneration,
    /// Another file took the place of the main file.
    ReplacedFile,
    /// A file was truncated or overwritten in place.
    Destroyed,
    /// Something that is not SQLite wrote into the main file, and its content had to be proved.
    Doubtful,
    /// A process cut itself off for another reason, which the text says.
    CutOff,
    /// The disk did not confirm a write.
    Unflushed,
    /// A process of ours refused to open the database.
    RefusedOpen,
    /// Rows that only a capture had were brought back.
    Merged,
    /// Another content was put in the place of the database because somebody asked for it.
    Restored,
    /// Something was repaired.
    Repaired,
}

impl Kind {
    /// The kind as programs read it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::LocksHealed => "locks_healed",
            Kind::LocksLost => "locks_lost",
            Kind::RetiredGeneration => "retired_generation",
            Kind::ReplacedFile => "replaced_file",
            Kind::Destroyed => "destroyed",
            Kind::Doubtful => "doubtful",
            Kind::CutOff => "cut_off",
            Kind::Unflushed => "unflushed",
            Kind::RefusedOpen => "refused_open",
            Kind::Merged => "merged",
            Kind::Restored => "restored",
            Kind::Repaired => "repaired",
        }
    }

    /// The kind as people read it.
    pub fn title(self) -> &'static str {
        match self {
            Kind::LocksHealed => "Locks were gone and were taken again",
            Kind::LocksLost => "Locks were gone",
            Kind::RetiredGeneration => "Files were removed while they were in use",
            Kind::ReplacedFile => "The main file was replaced while it was in use",
            Kind::Destroyed => "A file was truncated or overwritten while it was in use",
            Kind::Doubtful => "A program that is not SQLite wrote into the main file",
            Kind::CutOff => "A process cut itself off",
            Kind::Unflushed => "The disk did not confirm a write",
            Kind::RefusedOpen => "The database was not opened",
            Kind::Merged => "Rows that only a capture had were brought back",
            Kind::Restored => "Another content was put in the place of the database",
            Kind::Repaired => "Something was repaired",
        }
    }
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The process went on as if nothing had been.
    Healed,
    /// It cut itself off, captured what it had, and opens the database anew.
    Fenced,
    /// What was at risk was captured or put back; nothing is left to do but to know it.
    Kept,
    /// A person must do something.
    Waits,
}

/// What somebody reports who is not the writer's own thread.
#[derive(Debug, Clone)]
pub struct Report {
    /// What happened.
    pub kind: Kind,
    /// The role of the process that reports it.
    pub role: String,
    /// What happened to what, as a fragment.
    pub what: String,
    /// Why, as far as it is known.
    pub cause: String,
    /// What shows it: identities, sizes, paths of copies.
    pub evidence: Vec<String>,
    /// What was done about it.
    pub done: String,
    /// What is lost, to the row where that is known; `None` if nothing is.
    pub lost: Option<String>,
    /// What to type next; empty if nothing needs to be done.
    pub next: String,
    /// How it ended.
    pub outcome: Outcome,
    /// True if it stays open until somebody has looked at it.
    pub open: bool,
}

/// One line of a timeline.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When, in microseconds since 1970.
    pub at: u64,
    /// The process that did or saw it.
    pub pid: u32,
    /// Its role.
    pub role: String,
    /// What, as a sentence.
    pub sentence: String,
}

/// A process of ours that was cut off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Affected {
    /// The process.
    #[serde(flatten)]
    pub process: ProcessId,
    /// Its role.
    pub role: String,
    /// When it was cut off first, in microseconds since 1970.
    pub cut_off_at: u64,
    /// When it went on; `None` while it does not.
    pub back_at: Option<u64>,
}

impl Affected {
    /// True if it is neither back nor gone.
    pub fn is_waited_for(&self) -> bool {
        self.back_at.is_none() && self.process.lives()
    }
}

/// One incident.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    /// The name of its file without the ending.
    pub id: String,
    /// When it happened first, in microseconds since 1970.
    pub at: u64,
    /// What happened.
    pub kind: Kind,
    /// The role of the process that told of it first.
    pub role: String,
    /// The process that told of it first.
    pub pid: u32,
    /// What was gone, as a fragment ("byte 128 of the index").
    pub what: String,
    /// How it ended.
    pub outcome: Outcome,
    /// How often it happened.
    pub count: u64,
    /// When it happened last, in microseconds since 1970.
    pub last_at: u64,
    /// When it was closed; `None` while it is open.
    pub closed_at: Option<u64>,
    /// Why, as far as it is known.
    #[serde(default)]
    pub cause: String,
    /// What shows it.
    #[serde(default)]
    pub evidence: Vec<String>,
    /// What was done about it.
    #[serde(default)]
    pub done: String,
    /// What is lost; `None` if nothing is.
    #[serde(default)]
    pub lost: Option<String>,
    /// What was proved about what was at risk, where that is less than that nothing is lost; empty for nothing.
    #[serde(default)]
    pub proved: String,
    /// What to type next.
    #[serde(default)]
    pub next: String,
    /// What makes two reports the same incident: for a retired generation its identity.
    #[serde(default)]
    pub about: String,
    /// Processes that were cut off.
    #[serde(default)]
    pub affected: Vec<Affected>,
    /// What happened, in the order of time.
    #[serde(default)]
    pub timeline: Vec<Entry>,
    /// Entries of the timeline that were left out, from its middle.
    #[serde(default)]
    pub left_out: u64,
}

impl Incident {
    /// A report as an incident of its own that has happened once.
    pub(super) fn new(about: String, at: u64, report: Report) -> Incident {
        let pid = std::process::id();
        let Report { kind, role, what, cause, evidence, done, lost, next, outcome, open } = report;
        let mut incident = Incident {
            id: String::new(),
            at,
            kind,
            role: word(&role),
            pid,
            what: clip(&what),
            outcome,
            count: 1,
            last_at: at,
            closed_at: (!open).then_some(at),
            cause: clip(&cause),
            evidence: Vec::new(),
            done: clip(&done),
            lost: lost.as_deref().map(clip),
            proved: String::new(),
            next: clip(&next),
            about,
            affected: Vec::new(),
            timeline: Vec::new(),
            left_out: 0,
        };
        incident.show(evidence);
        incident
    }

    /// Says what happened in the words of one who noticed it earlier than whoever told of it first.
    pub(super) fn is_rather(&mut self, at: u64, report: &Report) {
        (self.at, self.kind) = (at, report.kind);
        (self.what, self.cause) = (clip(&report.what), clip(&report.cause));
    }

    /// True if nobody has closed it.
    pub fn is_open(&self) -> bool {
        self.closed_at.is_none()
    }

    /// True if a person must do something about it; one that is open only because a process is still going over is not.
    pub fn needs_a_person(&self) -> bool {
        self.is_open() && (self.outcome == Outcome::Waits || self.lost.is_some())
    }

    /// True if what our code has checked proves that nothing that was acknowledged is lost.
    pub fn nothing_is_lost(&self) -> bool {
        self.lost.is_none() && self.proved.is_empty() && matches!(self.outcome, Outcome::Healed | Outcome::Kept)
    }

    /// True if something that happens at `at` still belongs to it.
    pub(super) fn goes_on(&self, at: u64) -> bool {
        self.is_open() || at.saturating_sub(self.last_at) < SAME_US
    }

    /// It has happened again: what is known now counts.
    pub(super) fn again(mut self, new: Incident) -> Incident {
        self.count = self.count.saturating_add(1);
        self.last_at = new.at;
        self.closed_at = new.closed_at;
        self.outcome = new.outcome;
        // What was proved before is about what happened before.
        self.proved = new.proved;
        // What was lost before is not less lost because it happened again.
        self.lost = new.lost.or(self.lost);
        for (mine, new) in [(&mut self.cause, new.cause), (&mut self.done, new.done), (&mut self.next, new.next)] {
            if !new.is_empty() {
                *mine = new;
            }
        }
        self.show(new.evidence);
        self.tell(new.timeline);
        self
    }

    /// True if the text names this capture.
    pub(super) fn names(&self, capture: &str) -> bool {
        let in_a_word = |c: char| c.is_alphanumeric() || matches!(c, '-' | '.' | '_');
        let named = |text: &String| {
            text.match_indices(capture)
                .any(|(at, id)| !text[at + id.len()..].starts_with(in_a_word) && !text[..at].ends_with(in_a_word))
        };
        !capture.is_empty() && (self.evidence.iter().any(named) || named(&self.done) || named(&self.next))
    }

    /// Says what was proved, in one line.
    pub(super) fn prove(&mut self, what: &str) {
        self.proved = clip(what);
    }

    /// Says what was done beside what is said already, and what to do next.
    pub(super) fn did(&mut self, done: &str, next: &str) {
        self.done = if self.done.is_empty() { clip(done) } else { clip(&format!("{}; {done}", self.done)) };
        self.next = clip(next);
    }

    /// Adds evidence that is not there yet.
    pub(super) fn show(&mut self, evidence: Vec<String>) {
        for line in evidence {
            let line = clip(&line);
            if self.evidence.len() < MOST_EVIDENCE && !self.evidence.contains(&line) {
                self.evidence.push(line);
            }
        }
    }

    /// Adds entries to the timeline, and leaves out from its middle what is too much.
    pub(super) fn tell(&mut self, entries: Vec<Entry>) {
        self.timeline.extend(entries.into_iter().map(|e| Entry {
            role: word(&e.role),
            sentence: clip(&e.sentence),
            ..e
        }));
        self.timeline.sort_by_key(|e| e.at);
        let much = self.timeline.len().saturating_sub(FIRST_ENTRIES + LAST_ENTRIES);
        if much > 0 {
            self.timeline.drain(FIRST_ENTRIES..FIRST_ENTRIES + much);
            self.left_out = self.left_out.saturating_add(much as u64);
        }
    }

    /// Notes that a process was cut off at this time, or is back.
    pub(super) fn affects(&mut self, process: ProcessId, role: &str, cut_off_at: u64, back_at: Option<u64>) {
        if let Some(known) = self.affected.iter_mut().find(|a| a.process == process) {
            known.back_at = back_at;
        } else if self.affected.len() < MOST_PROCESSES {
            self.affected.push(Affected { process, role: word(role), cut_off_at, back_at });
        }
    }

    /// True if every process that was cut off is back or has ended, and at least one is back.
    pub(super) fn is_over(&self) -> bool {
        self.affected.iter().any(|a| a.back_at.is_some()) && !self.affected.iter().any(Affected::is_waited_for)
    }
}

/// A role is a word of our own; what is cut here was none.
fn word(role: &str) -> String {
    role.chars().filter(|c| !c.is_control()).take(100).collect()
}

/// One line of a length that can be kept.
fn clip(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_TEXT).collect()
}
