//! Who may do structural work on a database, and the proof.
//!
//! Structural work (VACUUM, a truncating checkpoint, a change of the journal mode, a repair) needs a database that nobody else
//! has open. [`Admission`] is the proof, and such work takes it as an argument. It is made of kernel locks alone, so it ends
//! with its process in whatever way that ends:
//!
//! * the gate of `admission.lock` is shut: processes of ours that want to open the database wait there and are told for what;
//! * its members' byte is held exclusively: no process of ours has files of the database open. Those that live long let go of
//!   them when they are asked to (a *drain*), and come back by themselves when the lock that asks is gone;
//! * SQLite's pending byte is held, so that no stranger can open the database meanwhile;
//! * all processes were looked at twice, before and after that, and nobody but this one uses the database.
//!
//! Whatever refuses an admission before the gate is shut has changed nothing on disk.

mod aside;
pub(crate) mod lock;
mod members;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::fs::{Mode, OFlags};

use crate::connect;
use crate::error::{Error, Reason, Result};
use crate::family::{Family, Identity, Member, Status};
use crate::generation::SHARED_BYTES;
use crate::headers::{self, Headers};
use crate::holders::{self, Evidence, Holder, Report, Standing, Verdict};
use crate::members::{self as records, Record};
use crate::ofd::{self, Kind, PENDING};
use crate::process::ProcessId;
use crate::secure::{self, Inspected, Purpose};
use crate::{destroyed, doubt, putback, recovery};

pub use aside::{Aside, AsideError, Seat};
use lock::{AdmissionLock, Doing};
pub(crate) use members::Entry;

/// How long anchors are waited for, which look ten times a second, and processes that are about to end.
const ASIDE: Duration = Duration::from_secs(3);
/// How long it is looked again in any case, however little patience there is.
const AT_ONCE: Duration = Duration::from_millis(500);
/// How often it is looked whether everybody has let go.
const AGAIN: Duration = Duration::from_millis(5);
/// How often somebody is told who is still waited for.
const TELL: Duration = Duration::from_secs(1);
/// The role under which an anchor registers.
pub const ANCHOR: &str = "anchor";

/// What somebody wants who asks for admission.
pub struct Wanted<'a> {
    /// What is going to be done ("vacuum"), as others are told who wait for it.
    pub what: &'a str,
    /// Ask processes of ours to park, and wait at most so long for them. Without it they are a reason to refuse.
    pub drain: Option<Duration>,
    /// Go on beside holders and beside what could not be found out. Never beside a process that uses a retired generation or
    /// that has lost its locks.
    pub force: bool,
    /// How long to wait for another who is admitted, and for locks.
    pub patience: Duration,
    /// Is told, for people, what is waited for and what was overridden.
    pub tell: &'a dyn Fn(&str),
}

/// The proof that structural work may be done. Dropping it lets everybody go on.
pub struct Admission {
    // In the order in which they must go: the connection, what keeps strangers out, what keeps our own out.
    connection: Connection,
    pending: Pending,
    _lock: Shut,
    family: Family,
    overridden: Vec<String>,
    alone: bool,
}

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
    let report = holders::scan(family)?;
    let refused = refuse_files(family).err().or_else(|| refuse_holders(family, &report, Ours::Refuse, false).err());
    Ok(Forecast { report, refused })
}

impl Admission {
    /// Asks for it, and waits as long as is wanted.
    ///
    /// # Errors
    /// A refusal that names everybody who is in the way ([`Reason::Held`], [`Reason::HeldUnknown`], [`Reason::HeldRetired`],
    /// [`Reason::HeldNaked`]) or says what is wrong with the files; [`Error::Busy`] while somebody else is admitted.
    pub fn obtain(family: &Family, wanted: &Wanted<'_>) -> Result<Admission> {
        crate::locks::protect()?;
        let (inspected, mut overridden) = look_first(family, wanted)?;
        tell_overridden(wanted, &overridden);

        let lock = Shut::make(&inspected, wanted)?;
        if wanted.drain.is_some() {
            lock.lock.drain()?;
        }
        for left in lock.wait_for_members(family, wanted)? {
            // Only force comes here.
            if !overridden.contains(&left) {
                tell_overridden(wanted, std::slice::from_ref(&left));
                overridden.push(left);
            }
        }

        let identity = inspected.require_main()?.status.identity;
        let pending = Pending::open(family, identity)?;
        // A main file that was left between two commits needs its log back before anybody opens it.
        if putback::unsettled(family) {
            let _lock = recovery::exclusive(family, wanted.patience)?;
            putback::settle(family)?;
        }
        // Whoever recovers from removed files writes the main file anew; a database that never had such a one needs no wait.
        let _recovery = recovery::was_taken(family).then(|| recovery::shared(family, wanted.patience)).transpose()?;
        let connection = connect::structural(family, wanted.patience)?;
        if doubt::raised(family) {
            doubt::settle(family, &connection)?;
        }
        let (family_names, none) = (family.clone(), Vec::new());
        let admission =
            Admission { connection, pending, _lock: lock, family: family_names, overridden: none, alone: false };
        if let Err(why) = admission.keep_strangers_out(wanted.patience) {
            // Whoever came in since the first look is named by the second.
            refuse_holders(family, &holders::scan(family)?, Ours::MustBeGone, false)?;
            return Err(why);
        }
        if Status::of(&family.main()).ok().flatten().map(|s| s.identity) != Some(identity) {
            return Err(Error::refused(Reason::Changed, family.main(), "another file took its place"));
        }
        let ours = if wanted.force { Ours::Refuse } else { Ours::MustBeGone };
        let report = holders::scan(family)?;
        for seen in refuse_holders(family, &report, ours, wanted.force)? {
            if !overridden.contains(&seen) {
                tell_overridden(wanted, std::slice::from_ref(&seen));
                overridden.push(seen);
            }
        }
        admission.refuse_hidden(identity, &report)?;
        let alone = in_the_way(&report, Ours::Refuse).next().is_none();
        Ok(Admission { overridden, alone, ..admission })
    }

    /// The connection for the work. Its settings are those of every connection of ours, but for what a database in rollback
    /// mode needs.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The names of the database's files.
    pub fn family(&self) -> &Family {
        &self.family
    }

    /// True if nobody else was seen to use the database; false where force goes on beside somebody.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// What force overrode, each as a person would say it.
    pub fn overridden(&self) -> &[String] {
        &self.overridden
    }

    /// Lets go of what keeps strangers from opening while `work` runs, for work that takes SQLite's exclusive lock itself.
    /// A stranger who comes in between makes that lock fail, and nothing else.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn alone<T>(&self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.pending.release()?;
        let done = work(&self.connection);
        // What follows is protected again where SQLite's mode allows it; the work itself is done or not.
        // Each stranger that tries to come in has the byte for a moment.
        let _ = self.keep_strangers_out(ASIDE);
        done
    }

    /// Whoever has used the database in WAL mode holds a shared lock. Where the list of processes is not the machine's own, one
    /// that came between the two looks is not in it, and the kernel names no lock of it. But it tells that there is one.
    fn refuse_hidden(&self, identity: Identity, report: &Report) -> Result<()> {
        let (start, end) = SHARED_BYTES;
        let explained = report.holders.iter().any(|h| !h.is_self && h.locks.shared);
        if explained || !self.is_wal()? || !crate::locks::locked_by_others(identity, start, end) {
            return Ok(());
        }
        let who = "a process that is not visible here; sudo statehouse holders, run on the host, names it";
        Err(Error::refused(Reason::Held, self.family.main(), who))
    }

    fn is_wal(&self) -> Result<bool> {
        Ok(self.connection.pragma_query_value(None, "journal_mode", |r| r.get::<_, String>(0))? == "wal")
    }

    /// In WAL mode our connection has its shared lock by now, and whoever wants one needs the pending byte first. In rollback
    /// mode there is no lasting shared lock, so the exclusive lock is taken and kept.
    fn keep_strangers_out(&self, patience: Duration) -> Result<()> {
        if self.is_wal()? {
            return self.pending.take(patience);
        }
        self.connection.execute_batch("PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE; COMMIT")?;
        Ok(())
    }
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission").field("family", &self.family).finish_non_exhaustive()
    }
}

/// Answers what [`Admission::obtain`] would be refused for at its first look, with what is wanted. Touches nothing.
///
/// # Errors
/// As [`Admission::obtain`].
pub fn refuse_first(family: &Family, wanted: &Wanted<'_>) -> Result<()> {
    look_first(family, wanted).map(drop)
}

/// Looks before anything is touched. Somebody else who is admitted is waited for, and no reason to refuse: he is soon done. He
/// has files of the database open only while the gate is shut, so whoever is seen twice, with the gate open in between, is
/// somebody else.
fn look_first(family: &Family, wanted: &Wanted<'_>) -> Result<(Inspected, Vec<String>)> {
    let ours = if wanted.drain.is_some() { Ours::WillPark } else { Ours::Refuse };
    let begun = Instant::now();
    let mut before = Vec::new();
    loop {
        if let Some(lock) = AdmissionLock::find(family)?.filter(AdmissionLock::is_shut) {
            (wanted.tell)(&format!("waiting for {} to end", lock.doing()));
            lock.wait(wanted.patience.saturating_sub(begun.elapsed()))?;
        }
        let inspected = refuse_files(family)?;
        let report = holders::scan(family)?;
        let now: Vec<_> = in_the_way(&report, ours).map(|h| (h.pid, h.start_ticks)).collect();
        match refuse_holders(family, &report, ours, wanted.force) {
            Err(why)
                if why.reason() == Some(Reason::Held)
                    && begun.elapsed() < wanted.patience.max(AT_ONCE)
                    && !now.iter().any(|holder| before.contains(holder)) =>
            {
                before = now;
            }
            overridden => return Ok((inspected, overridden?)),
        }
    }
}

/// What is refused for the files' own sake.
fn refuse_files(family: &Family) -> Result<Inspected> {
    destroyed::refuse(family)?;
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
enum Ours {
    /// They are in the way, but for anchors, which step aside.
    Refuse,
    /// They were not asked yet.
    WillPark,
    /// They were asked, and none may be left.
    MustBeGone,
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
fn in_the_way(report: &Report, ours: Ours) -> impl Iterator<Item = &Holder> {
    users(report).filter(move |h| match (h.role.as_deref(), ours) {
        (None, _) | (Some(_), Ours::MustBeGone) => true,
        (Some(ANCHOR), _) => false,
        (Some(_), Ours::Refuse) => true,
        (Some(_), Ours::WillPark) => false,
    })
}

/// Refuses for what was seen. Gives back what force overrides.
fn refuse_holders(family: &Family, report: &Report, ours: Ours, force: bool) -> Result<Vec<String>> {
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
    let mut overridden: Vec<String> = in_the_way(report, ours).map(name).collect();
    if !overridden.is_empty() && !force {
        return Err(Error::refused(Reason::Held, family.main(), overridden.join("; ")));
    }
    if report.verdict == Verdict::Unknown {
        if !force {
            return Err(Error::refused(Reason::HeldUnknown, family.main(), report.limits.join("; ")));
        }
        overridden.extend(report.limits.iter().cloned());
    }
    Ok(overridden)
}

/// A holder as a person would name it, with what stops it.
fn name(holder: &Holder) -> String {
    let what = holder.role.clone().or_else(|| holder.command.first().cloned()).unwrap_or_else(|| "?".to_owned());
    match holder.pid {
        Some(pid) => format!("PID {pid} ({what}; to stop it: {})", holder.stop),
        None => format!("a process that is not visible here ({what}; {})", holder.stop),
    }
}

fn tell_overridden(wanted: &Wanted<'_>, overridden: &[String]) {
    for what in overridden {
        (wanted.tell)(&format!("going on in spite of {what}"));
    }
}

/// A record as a person would name it.
fn name_record(record: &Record) -> String {
    let place = if record.is_local() { "" } else { " in another container or on another machine" };
    format!("PID {} ({}{place})", record.process.pid, record.role)
}

fn name_records(records: &[Record]) -> String {
    match records {
        [] => "a process of ours that has no record".to_owned(),
        records => records.iter().map(name_record).collect::<Vec<_>>().join("; "),
    }
}

/// The lock file with the gate shut. A side directory that holds nothing else goes with it.
struct Shut {
    lock: AdmissionLock,
    directory: PathBuf,
}

impl Shut {
    fn make(inspected: &Inspected, wanted: &Wanted<'_>) -> Result<Shut> {
        let directory = inspected.family().side_directory();
        let process = ProcessId::own().map_err(|e| Error::io("look at", "/proc/self/stat".as_ref(), e))?;
        let doing = Doing { what: wanted.what.to_owned(), process };
        let begun = Instant::now();
        loop {
            let shut = Shut { lock: AdmissionLock::make(inspected)?, directory: directory.clone() };
            shut.lock.shut(&doing, wanted.patience.saturating_sub(begun.elapsed()))?;
            // Whoever was admitted before may just have taken the file away.
            if shut.lock.is_named() {
                return Ok(shut);
            }
        }
    }

    /// Until no process of ours has files of the database open. Gives back who was left, for whom force goes on.
    fn wait_for_members(&self, family: &Family, wanted: &Wanted<'_>) -> Result<Vec<String>> {
        let begun = Instant::now();
        let limit = wanted.drain.unwrap_or(ASIDE);
        let mut told: Option<Instant> = None;
        loop {
            if self.lock.take_all()? {
                return Ok(Vec::new());
            }
            let left: Vec<Record> = records::list(family)?.into_iter().filter(|r| !r.parked && !r.fenced).collect();
            let others = left.iter().any(|r| r.role != ANCHOR);
            if begun.elapsed() >= limit || (wanted.drain.is_none() && others) {
                // One that has just ended or parked has taken its record along and its lock not yet.
                if left.is_empty() && begun.elapsed() < limit.max(ASIDE) {
                    std::thread::sleep(AGAIN);
                    continue;
                }
                let names = name_records(&left);
                if wanted.force {
                    return Ok(vec![names]);
                }
                let detail = match wanted.drain {
                    Some(drain) => format!("{names}: did not let go of it within {} s", drain.as_secs_f64()),
                    None => names,
                };
                return Err(Error::refused(Reason::Held, family.main(), detail));
            }
            if begun.elapsed() >= TELL && told.is_none_or(|t| t.elapsed() >= TELL) {
                told = Some(Instant::now());
                (wanted.tell)(&format!("waiting for {} to let go of the database", name_records(&left)));
            }
            std::thread::sleep(AGAIN);
        }
    }
}

impl Drop for Shut {
    fn drop(&mut self) {
        // Only what is empty but for the lock file goes; members and whatever else was put there meanwhile keep it. So does
        // another who has the gate.
        if std::fs::read_dir(&self.directory).is_ok_and(|entries| entries.count() == 1)
            && self.lock.is_named()
            && self.lock.has_everything().unwrap_or(false)
        {
            self.lock.remove();
            let _ = std::fs::remove_dir(&self.directory);
        }
    }
}

/// The main file by a description that belongs to no connection, for the pending byte.
struct Pending {
    file: OwnedFd,
    path: PathBuf,
    process: u32,
}

impl Drop for Pending {
    fn drop(&mut self) {
        // As the lock file's (`lock.rs`).
        if self.process == std::process::id() {
            let _ = self.release();
        }
    }
}

impl Pending {
    /// To be called before the connection is opened: nothing opens a file of the family by ordinary means after that.
    fn open(family: &Family, identity: Identity) -> Result<Pending> {
        let path = family.main();
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::empty()).map_err(|e| Error::io("open", &path, e))?;
        let status = rustix::fs::fstat(&file).map_err(|e| Error::io("look at", &path, e))?;
        if (status.st_dev, status.st_ino) != (identity.device, identity.inode) {
            return Err(Error::refused(Reason::Changed, path, "another file took its place"));
        }
        Ok(Pending { file, path, process: std::process::id() })
    }

    fn take(&self, patience: Duration) -> Result<()> {
        let begun = Instant::now();
        let io = |e| Error::io("lock", &self.path, e);
        while !ofd::try_lock(&self.file, Kind::Write, PENDING).map_err(io)? {
            if begun.elapsed() >= patience {
                let owner = ofd::conflict(&self.file, Kind::Write, PENDING).map_err(io)?.and_then(|c| c.pid);
                return Err(Error::Busy { waited: begun.elapsed(), holder: owner.map(|pid| format!("PID {pid}")) });
            }
            std::thread::sleep(AGAIN);
        }
        Ok(())
    }

    fn release(&self) -> Result<()> {
        ofd::unlock(&self.file, PENDING).map_err(|e| Error::io("unlock", &self.path, e))
    }
}
