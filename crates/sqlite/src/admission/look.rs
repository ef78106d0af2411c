//! What is looked at before and after the locks are taken, and what it refuses.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::lock::AdmissionLock;
use super::{ANCHOR, Wanted};
use crate::destroyed;
use crate::error::{Error, Reason, Result};
use crate::family::{Family, Member};
use crate::headers::{self, Headers};
use crate::holders::{self, Evidence, HeldLocks, Holder, Report, Standing, Verdict, Via};
use crate::secure::{self, Inspected, Purpose};

/// How long somebody uses the database before he is in the way.
const MOMENT: Duration = Duration::from_millis(400);
/// The pause between two looks.
const AGAIN: Duration = Duration::from_millis(20);

/// What would be answered to somebody who asked for admission now.
#[derive(Debug)]
pub struct Forecast {
    /// Who uses the database.
    pub report: Report,
    /// Why it would be refused, without a drain and without force.
    pub refused: Option<Error>,
}

/// What an admission would be refused for now. Touches nothing.
///
/// # Errors
/// When the database or the processes cannot be looked at.
pub fn forecast(family: &Family) -> Result<Forecast> {
    forecast_with(family, Ours::Refuse, Allowed::default())
}

/// As [`forecast`] for somebody who drains; with `strangers` for
/// [`Admission::obtain_beside`](super::Admission::obtain_beside).
///
/// # Errors
/// As [`forecast`].
pub fn forecast_drained(family: &Family, strangers: bool) -> Result<Forecast> {
    forecast_with(family, Ours::WillPark, Allowed { strangers, ..Allowed::default() })
}

fn forecast_with(family: &Family, ours: Ours, allowed: Allowed) -> Result<Forecast> {
    let report = holders::scan(family)?;
    let refused = refuse_files(family).err().or_else(|| refuse_holders(family, &report, ours, allowed).err());
    Ok(Forecast { report, refused })
}

/// Beside whom the work goes on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Allowed {
    /// Beside holders of whatever kind.
    pub(super) holders: bool,
    /// Beside what could not be found out.
    pub(super) unknown: bool,
    /// Beside programs that are not ours.
    pub(super) strangers: bool,
}

impl Allowed {
    /// What force, if it is wanted, allows to work that leaves everybody in the same files.
    pub(super) fn by(wanted: &Wanted<'_>) -> Allowed {
        Allowed { holders: wanted.force, unknown: wanted.force, strangers: false }
    }
}

/// Answers what [`Admission::obtain`](super::Admission::obtain) would be refused for at its first look, with what is wanted. Touches nothing.
///
/// # Errors
/// As [`Admission::obtain`](super::Admission::obtain).
pub fn refuse_first(family: &Family, wanted: &Wanted<'_>) -> Result<()> {
    look_first(family, wanted, Allowed::by(wanted)).map(drop)
}

/// Looks before anything is touched. Somebody else who is admitted is waited for, and no reason to refuse: he is soon done. He
/// has files of the database open only while the gate is shut, so whoever is seen again, with the gate open in between, is
/// somebody else. One who is gone again within a moment, such as a command that only looks, is in nobody's way either.
pub(super) fn look_first(family: &Family, wanted: &Wanted<'_>, allowed: Allowed) -> Result<(Inspected, Vec<String>)> {
    let ours = if wanted.drain.is_some() { Ours::WillPark } else { Ours::Refuse };
    let begun = Instant::now();
    let mut seen: HashMap<_, Instant> = HashMap::new();
    loop {
        if let Some(lock) = AdmissionLock::find(family)?.filter(AdmissionLock::is_shut) {
            (wanted.tell)(&format!("waiting for {} to end", lock.doing()));
            lock.wait(wanted.patience.saturating_sub(begun.elapsed()))?;
        }
        let inspected = refuse_files(family)?;
        let report = holders::scan(family)?;
        let now = Instant::now();
        seen = in_the_way(&report, ours)
            .map(|h| (h.pid, h.start_ticks))
            .map(|holder| (holder, seen.get(&holder).copied().unwrap_or(now)))
            .collect();
        match refuse_holders(family, &report, ours, allowed) {
            Err(why)
                if why.reason() == Some(Reason::Held)
                    && begun.elapsed() < wanted.patience.max(MOMENT)
                    && seen.values().all(|since| now.duration_since(*since) < MOMENT) =>
            {
                std::thread::sleep(AGAIN);
            }
            overridden => return Ok((inspected, overridden?)),
        }
    }
}

/// What is refused for the files' own sake.
fn refuse_files(family: &Family) -> Result<Inspected> {
    destroyed::refuse(family)?;
    if rustix::fs::lstat(family.side_directory()).is_err_and(|e| e == rustix::io::Errno::NAMETOOLONG) {
        return Err(Error::refused(Reason::NameTooLong, family.main(), ""));
    }
    let inspected = secure::inspect(family, Purpose::Own)?;
    let main = inspected.require_main()?.status.identity;
    if crate::locks::in_use(main.device, main.inode) {
        let why = "this very process has it open; close that handle first";
        return Err(Error::refused(Reason::Held, family.main(), why));
    }
    match headers::check(&inspected)? {
        Headers::Database { .. } | Headers::InUse => {}
        Headers::New => return Err(Error::refused(Reason::NoStore, family.main(), "it holds nothing yet")),
    }
    if inspected
        .get(Member::Journal)
        .is_some_and(|j| j.status.size > 0 && headers::first_byte(j).is_ok_and(|b| b.unwrap_or(0) != 0))
    {
        return Err(Error::refused(Reason::HotJournal, family.path(Member::Journal), ""));
    }
    Ok(inspected)
}

/// What processes of ours mean for an admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ours {
    /// They are in the way, but for anchors, which step aside.
    Refuse,
    /// They were not asked yet.
    WillPark,
    /// They were asked, and none may be left.
    MustBeGone {
        /// The pending byte is held: whoever has no lock yet gets none, and knows nothing of the content.
        kept_out: bool,
    },
}

/// Who uses the database, as far as structural work is concerned. Who can only read what is gone, such as one that keeps it for a
/// capture, uses nothing that the work touches; nor does one of ours that is cut off. A command line alone proves no use; the
/// verdict says what it means.
fn users(report: &Report) -> impl Iterator<Item = &Holder> {
    let keeps = |h: &Holder| {
        !h.files.is_empty() && h.files.iter().all(|f| f.generation == Standing::Retired && !f.writable) && !h.naked
    };
    let unproved = |h: &Holder| h.evidence == Evidence::Argv;
    report.holders.iter().filter(move |h| !h.is_self && !h.fenced && !h.parked && !keeps(h) && !unproved(h))
}

/// Those among them whom the work cannot go on beside.
pub(super) fn in_the_way(report: &Report, ours: Ours) -> impl Iterator<Item = &Holder> {
    let stands_outside = |h: &Holder| {
        h.locks == HeldLocks::default() && h.files.iter().all(|f| f.member == Member::Main && f.via == Via::Descriptor)
    };
    users(report).filter(move |h| match (h.role.as_deref(), ours) {
        (_, Ours::MustBeGone { kept_out: true }) if stands_outside(h) => false,
        (None, _) | (Some(_), Ours::MustBeGone { .. }) => true,
        (Some(ANCHOR), _) => false,
        (Some(_), Ours::Refuse) => true,
        (Some(_), Ours::WillPark) => false,
    })
}

/// Refuses for what was seen. Gives back what force overrides.
pub(super) fn refuse_holders(family: &Family, report: &Report, ours: Ours, allowed: Allowed) -> Result<Vec<String>> {
    let Allowed { holders, unknown, strangers } = allowed;
    // One that is cut off is in nobody's way. But until it has kept what it had, its rows are the main file as it is and the log
    // that it has, and work on the main file would destroy them.
    let owes = |h: &Holder| h.fenced && h.files.iter().any(|f| f.generation == Standing::Retired && f.writable);
    let owing = report.holders.iter().filter(|h| !h.is_self && owes(h)).map(|h| {
        format!("{}; it has rows that are nowhere else, and keeps them as soon as nothing is in its way", name(h))
    });
    let all = |which: fn(&Holder) -> bool| users(report).filter(move |h| which(h)).map(name);
    let retired: Vec<String> = all(|h| h.ghost).chain(owing).collect();
    for (reason, wrong) in [(Reason::HeldRetired, retired), (Reason::HeldNaked, all(|h| h.naked).collect())] {
        if !wrong.is_empty() {
            return Err(Error::refused(reason, family.main(), wrong.join("; ")));
        }
    }
    let mut overridden: Vec<String> =
        in_the_way(report, ours).filter(|h| !strangers || h.role.is_some()).map(name).collect();
    if !overridden.is_empty() && !holders {
        return Err(Error::refused(Reason::Held, family.main(), overridden.join("; ")));
    }
    if report.verdict == Verdict::Unknown {
        if !unknown {
            return Err(Error::refused(Reason::HeldUnknown, family.main(), report.limits.join("; ")));
        }
        overridden.extend(report.limits.iter().cloned());
    }
    Ok(overridden)
}

/// A holder as a person would name it, with what stops it.
pub(super) fn name(holder: &Holder) -> String {
    let what = holder.role.clone().or_else(|| holder.command.first().cloned()).unwrap_or_else(|| "?".to_owned());
    match holder.pid {
        Some(pid) => format!("PID {pid} ({what}; {})", holder.to_stop()),
        None => format!("a process that is not visible here ({what}; {})", holder.stop),
    }
}
