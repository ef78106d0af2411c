//! When a store is rewritten without anybody asking for it, and what is remembered of maintenance.
//!
//! Housekeeping asks often; the policy says yes seldom: only when a good share of the pages holds nothing, and not more often
//! than every so many days. Our own processes stand aside for it, at most for a set time. Whoever else is in the way is let be:
//! the deferral is counted, with who it was and since when, so that `status` shows what would otherwise never be noticed, and
//! the next housekeeping tries again.
//!
//! What is remembered lies in `X.statehouse/maintenance.json`, replaced as a whole. It decides nothing but when to try: a file
//! that is gone or cannot be understood counts as none.

use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use statehouse_sessions::sqlite::APPLICATION_ID;
use statehouse_sqlite::holders::Holder;
use statehouse_sqlite::secure::{self, Purpose};
use statehouse_sqlite::{Error as DatabaseError, Family, Reason, files, side};

use super::error::{Error, Result, io};
use super::room::Temporary;
use super::vacuum::{self, How, Vacuumed, Worth};
use super::{Admission, Wanted, look};

const FILE: &str = "maintenance.json";
/// The longest file that is read.
const LONGEST: u64 = 64 << 10;

/// When a store is rewritten by itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Whether at all.
    pub vacuum: bool,
    /// From which gain on.
    pub worth: Worth,
    /// The least time between two.
    pub every: Duration,
    /// How long our own processes are waited for.
    pub drain: Duration,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            vacuum: true,
            worth: Worth { share: 0.25, bytes: 16 << 20 },
            every: Duration::from_secs(7 * 86400),
            drain: Duration::from_secs(10),
        }
    }
}

/// What is remembered, as `status` shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// The last rewrite.
    pub last_vacuum: Option<LastVacuum>,
    /// Since when a rewrite that is due is put off; RFC 3339.
    pub deferred_since: Option<String>,
    /// How often it was put off since then.
    pub deferrals: u64,
    /// Who was in the way the last time, as a person would name them.
    pub by: Vec<String>,
    /// What was said the last time.
    pub reason: Option<String>,
    /// The last change of the journal mode.
    pub last_mode_change: Option<ModeChange>,
}

/// A rewrite that was done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LastVacuum {
    /// When, RFC 3339.
    pub at: String,
    /// Bytes of the main file before.
    pub size_before: u64,
    /// Bytes of the main file after.
    pub size_after: u64,
}

/// A change of the journal mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeChange {
    /// When, RFC 3339.
    pub at: String,
    /// The mode before.
    pub from: String,
    /// The mode after.
    pub to: String,
    /// The process that changed it.
    pub pid: u32,
}

fn now() -> String {
    format!("{:.6}", jiff::Timestamp::now())
}

/// The time since a moment that was written down. A moment of the future, by a clock that was put back, is none.
fn since(at: &str) -> Option<Duration> {
    let at: jiff::Timestamp = at.parse().ok()?;
    jiff::Timestamp::now().duration_since(at).try_into().ok()
}

impl Memory {
    /// What is remembered of the database.
    pub fn read(family: &Family) -> Memory {
        let path = family.side_directory().join(FILE);
        files::read_to_string(&path, LONGEST).ok().and_then(|t| serde_json::from_str(&t).ok()).unwrap_or_default()
    }

    /// True if a rewrite was done less than `every` ago.
    fn rewritten_within(&self, every: Duration) -> bool {
        self.last_vacuum.as_ref().and_then(|v| since(&v.at)).is_some_and(|ago| ago < every)
    }

    fn write(&self, family: &Family) -> Result<()> {
        let path = family.side_directory().join(FILE);
        let inspected = secure::inspect(family, Purpose::Look)?;
        let _side = side::create(&inspected)?;
        let text = serde_json::to_vec_pretty(self).map_err(|e| io("write", &path, std::io::Error::other(e)))?;
        files::replace(&path, &text).map_err(|e| io("write", &path, e))?;
        // What root makes belongs to the owner of the database.
        let file = files::open(&path).map_err(|e| io("open", &path, e))?;
        inspected.hand_over(file.as_fd()).map_err(|e| io("give away", &path, e))
    }
}

/// Remembers a rewrite of a store of ours; nothing is put off any more. It is done whether that can be written down or not.
pub(super) fn remember_vacuum(admission: &Admission, done: &Vacuumed) {
    let family = admission.family();
    let id = admission.connection().pragma_query_value(None, "application_id", |r| r.get::<_, i64>(0));
    if !matches!(id, Ok(id) if id == i64::from(APPLICATION_ID)) {
        // Nobody rewrites another program's database by a policy, so nothing is left beside it.
        return;
    }
    let memory = Memory {
        last_vacuum: Some(LastVacuum { at: now(), size_before: done.size_before, size_after: done.size_after }),
        last_mode_change: Memory::read(family).last_mode_change,
        ..Memory::default()
    };
    let _ = memory.write(family);
}

/// Remembers a change of the journal mode, which is done whether that can be written down or not.
pub(super) fn remember_mode(admission: &Admission, from: &str, to: &str) {
    let family = admission.family();
    let change = ModeChange { at: now(), from: from.to_owned(), to: to.to_owned(), pid: std::process::id() };
    let _ = Memory { last_mode_change: Some(change), ..Memory::read(family) }.write(family);
}

/// What housekeeping came to.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "vacuum")]
pub enum Housekept {
    /// There is nothing to do, and why.
    NotDue {
        /// Why.
        reason: String,
    },
    /// It was rewritten.
    Done(Vacuumed),
    /// It is due and was put off.
    Deferred {
        /// What was said.
        reason: String,
        /// How often by now.
        deferrals: u64,
        /// Since when, RFC 3339.
        since: String,
        /// Who was in the way.
        by: Vec<String>,
    },
}

/// Rewrites the store at `path` if the policy says so. Nothing of this process may have it open.
///
/// # Errors
/// When it cannot be looked at, or when what was tried went wrong. That somebody is in the way is no error.
pub fn housekeep(
    path: &Path,
    policy: &Policy,
    patience: Duration,
    temporary: &Temporary,
    tell: &dyn Fn(&str),
) -> Result<Housekept> {
    let not_due = |reason: &str| Ok(Housekept::NotDue { reason: reason.to_owned() });
    if !policy.vacuum {
        return not_due("it is switched off");
    }
    let seen = look(path)?;
    let family = seen.family().clone();
    let memory = Memory::read(&family);
    if let Some(reason) = policy.worth.against(seen.pages()) {
        if memory.deferrals > 0 {
            // What was due is not due any more, for example because its pages are in use again.
            let kept = Memory { deferred_since: None, deferrals: 0, by: Vec::new(), reason: None, ..memory };
            kept.write(&family)?;
        }
        return Ok(Housekept::NotDue { reason });
    }
    if memory.rewritten_within(policy.every) {
        return not_due("it was rewritten a short time ago");
    }
    let wanted = Wanted { what: "vacuum", drain: Some(policy.drain), force: false, patience, tell };
    let how = How { worth: policy.worth, temporary, watch: &|_| {} };
    let refused = match vacuum::run(path, &wanted, &how) {
        Ok(Vacuumed { done: false, reason, .. }) => return not_due(&reason.unwrap_or_default()),
        Ok(done) => return Ok(Housekept::Done(done)),
        Err(e) if e.is_refusal() || matches!(e, Error::Database(DatabaseError::Busy { .. })) => e,
        Err(e) => return Err(e),
    };
    let memory = Memory::read(&family);
    let since = memory.deferred_since.clone().unwrap_or_else(now);
    let mut reason = refused.to_string();
    if let detail = refused.detail()
        && !detail.is_empty()
    {
        reason.push_str(&format!(": {detail}"));
    }
    let by = in_the_way(&family, &refused);
    let deferrals = memory.deferrals.saturating_add(1);
    let memory = Memory {
        deferred_since: Some(since.clone()),
        deferrals,
        by: by.clone(),
        reason: Some(reason.clone()),
        ..memory
    };
    // On a full disk it is not counted, and whoever started this is told all the same.
    let _ = memory.write(&family);
    Ok(Housekept::Deferred { reason, deferrals, since, by })
}

/// Who is in the way, as a person would name them, with what stops them. Nobody is, where the refusal is about the files.
fn in_the_way(family: &Family, refused: &Error) -> Vec<String> {
    let said = match refused {
        Error::Database(DatabaseError::Busy { holder, .. }) => holder.clone().unwrap_or_default(),
        Error::Database(DatabaseError::Refused(r)) => match r.reason {
            Reason::Held | Reason::HeldUnknown | Reason::HeldRetired | Reason::HeldNaked => r.detail.clone(),
            _ => return Vec::new(),
        },
        _ => return Vec::new(),
    };
    // Our own processes stand aside and are back by now; a stranger is still there.
    let strangers: Vec<String> = super::forecast(family).map_or_else(
        |_| Vec::new(),
        |f| f.report.holders.iter().filter(|h| h.role.is_none() && !h.is_self).map(name).collect(),
    );
    if strangers.is_empty() && !said.is_empty() { vec![said] } else { strangers }
}

fn name(h: &Holder) -> String {
    match h.pid {
        Some(pid) => format!("PID {pid} ({}); {}", h.command.join(" "), h.to_stop()),
        None => format!("a process that is not visible here; {}", h.stop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_put_back_does_not_put_a_rewrite_off_for_ever() {
        let mut memory = Memory::default();
        assert!(!memory.rewritten_within(Duration::from_secs(60)));
        let at = |at: &str| Some(LastVacuum { at: at.to_owned(), size_before: 2, size_after: 1 });
        memory.last_vacuum = at(&now());
        assert!(memory.rewritten_within(Duration::from_secs(60)));
        for other in ["2001-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "nonsense", ""] {
            memory.last_vacuum = at(other);
            assert!(!memory.rewritten_within(Duration::from_secs(60)), "{other}");
        }
    }
}
