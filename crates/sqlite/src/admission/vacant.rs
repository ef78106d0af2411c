//! The proof that nobody has any file of a database open, for work on the files themselves: another main file is put in place.
//!
//! It is needed where SQLite cannot or must not open what lies there (the main file is missing, empty or damaged), and where a
//! file of another page size takes its place. The order of the steps is what makes it safe to be killed between any two:
//!
//! 1. The gate is shut and no process of ours is a member, so none of ours opens anything. The pending byte of the present main
//!    file is held, so no stranger gets a lock on it, and without one SQLite reads neither main file nor log. All processes are
//!    looked at after that, and nobody may have a file of the family open, not even without a lock: he would get his lock on the
//!    old main file when this is over, and pair it by name with the log of the new one.
//! 2. What is about to happen is written down (`begun.rs`). Index, log and journal are moved aside, and the directory is flushed.
//!    Where SQLite could read the present database, its log has been emptied and its journal rolled back before (by whoever calls
//!    [`Vacant::place`]), so from here on the old main file is the whole old database, for strangers too. Where it could not, the
//!    old main file was no whole database before; what is written down keeps every process of ours from taking it for one.
//! 3. The new file takes the place of the old one in one step (`RENAME_EXCHANGE`; where the file system does not have
//!    that, the old one is copied and replaced by a rename), or, where there was none, by a rename that replaces nothing. No log or journal of another lies at its side at that moment, nor at any later one.
//! 4. The directory is flushed. The old main file is moved to what else was moved aside, and captures of the old content are
//!    marked as overtaken.
//!
//! Killed before step 3 the old main file is in its place, after it the new one; neither is ever beside a log that is not its
//! own. What is left of step 4 the next opener of ours does first, by what was written down. A power cut cannot turn the steps
//! round, because the directories are flushed between them. What fails before step 3 without a kill is put back.
//!
//! A stranger may open the old main file between the look and the exchange, and wait for its lock. If he got it he would pair that
//! file by name with the log of the new one, write its pages into the wrong file, and take the log away at his end. So after
//! the exchange whoever has the old file open is waited for while its lock is still held. He has it by whatever name it has by
//! then, which is the one that it was moved to.
//!
//! What is not closed: one who waits for the lock longer than this process waits for him to go away. He is named.

use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::begun::{self, Begun};
use super::look::{Allowed, Forecast, Ours, refuse_holders};
use super::pending::Pending;
use super::shut::Shut;
use super::{AGAIN, Wanted};
use crate::captures;
use crate::error::{Error, Reason, Result};
use crate::family::{Family, Identity, Member, Status};
use crate::holders::{self, Evidence, Holder};
use crate::members as records;
use crate::recovery::{self, RecoveryLock};
use crate::secure::{self, Inspected};
use crate::{destroyed, files, putback};

/// When somebody is told who is waited for.
const TELL: std::time::Duration = std::time::Duration::from_secs(1);

/// The proof. Dropping it lets everybody go on.
pub struct Vacant {
    // In the order in which they must go: what keeps strangers out, what keeps our own out.
    pending: Option<Pending>,
    _recovery: Option<RecoveryLock>,
    _lock: Shut,
    inspected: Inspected,
    overridden: Vec<String>,
}

/// What became of the files.
#[derive(Debug)]
pub struct Placed {
    /// The file that is the main file now.
    pub main: Identity,
    /// Where the old members lie.
    pub aside: PathBuf,
    /// The members that were moved there.
    pub moved: Vec<Member>,
    old: Option<Identity>,
    /// Keeps strangers out of the new file until it was looked at.
    pending: Pending,
}

impl Vacant {
    /// Asks for it, for files that SQLite has not opened.
    ///
    /// # Errors
    /// A refusal for what the files are (a link, somebody else's), or one that names everybody who has one of them open.
    pub fn obtain(family: &Family, wanted: &Wanted<'_>) -> Result<Vacant> {
        crate::locks::protect()?;
        let inspected = secure::inspect_to_replace(family)?;
        refuse_own(&inspected)?;
        refuse(family, Ours::WillPark, wanted)?;
        let lock = Shut::make(&inspected, wanted)?;
        if wanted.drain.is_some() {
            lock.lock.drain()?;
        }
        let overridden = lock.wait_for_members(family, &Wanted { force: false, ..*wanted })?;
        let main = secure::inspect_to_replace(family)?.generation().main;
        let pending = main.map(|identity| Pending::open(family, identity)).transpose()?;
        if let Some(pending) = &pending {
            pending.take(wanted.patience)?;
        }
        Vacant::settle(family, lock, pending, wanted, overridden)
    }

    pub(super) fn settle(
        family: &Family,
        lock: Shut,
        pending: Option<Pending>,
        wanted: &Wanted<'_>,
        mut overridden: Vec<String>,
    ) -> Result<Vacant> {
        let recovery = recovery::was_taken(family).then(|| recovery::exclusive(family, wanted.patience)).transpose()?;
        let begun = Instant::now();
        loop {
            match refuse(family, Ours::MustBeGone { kept_out: false }, wanted) {
                // Whoever tries to come in has the file open for as long as he waits for the lock.
                Err(e) if e.reason() == Some(Reason::Held) && begun.elapsed() < wanted.patience => {
                    std::thread::sleep(AGAIN);
                }
                seen => {
                    overridden.extend(seen?);
                    break;
                }
            }
        }
        let inspected = secure::inspect_to_replace(family)?;
        Ok(Vacant { pending, _recovery: recovery, _lock: lock, inspected, overridden })
    }

    /// The files as they were when everybody was out.
    pub fn inspected(&self) -> &Inspected {
        &self.inspected
    }

    /// What force overrode, each as a person would say it.
    pub fn overridden(&self) -> &[String] {
        &self.overridden
    }

    /// Lets SQLite do to the database what any opener does first, such as rolling an interrupted transaction back, and copy
    /// its log into the main file, so that this alone is the whole database.
    ///
    /// # Errors
    /// SQLite's answer; [`Error::Busy`] where somebody came in between and keeps the log from being emptied.
    pub fn let_sqlite_recover(self, wanted: &Wanted<'_>) -> Result<Vacant> {
        let family = self.inspected.family().clone();
        let Vacant { pending, _recovery: recovery, _lock: lock, overridden, .. } = self;
        if let Some(pending) = &pending {
            pending.release()?;
        }
        let opened = crate::connect::structural(&family, wanted.patience);
        let closed = opened.and_then(|c| {
            let busy: bool = c.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |r| r.get(0))?;
            c.close().map_err(|(_, e)| Error::from(e))?;
            if busy { Err(Error::Busy { waited: wanted.patience, holder: None }) } else { Ok(()) }
        });
        if let Some(pending) = &pending {
            pending.take(wanted.patience)?;
        }
        closed?;
        drop(recovery);
        Vacant::settle(&family, lock, pending, wanted, overridden)
    }

    /// Puts `new` in the place of the main file, and everything that lies at the paths now into the directory `aside`, which is
    /// on the same volume. `new` is whole and flushed. Nobody gets a lock on it until [`Vacant::leave`].
    ///
    /// # Errors
    /// [`Reason::Changed`] when somebody has put other files there meanwhile; the system's answer. What is at the paths then is
    /// the old main file or the new one.
    pub fn place(&self, new: &Path, aside: &Path) -> Result<Placed> {
        let family = self.inspected.family();
        let io = |action, path: &Path, e: std::io::Error| Error::io(action, path, e);
        let identity =
            |path: &Path| Status::of(path).map_err(|e| io("look at", path, e)).map(|s| s.map(|s| s.identity));
        let Some(made) = identity(new)? else {
            return Err(io("look at", new, std::io::ErrorKind::NotFound.into()));
        };
        let old = self.inspected.generation().main;
        if identity(&family.main())? != old {
            return Err(Error::refused(Reason::Changed, family.main(), "another file took its place"));
        }
        let name = |place: PathBuf| Some(place.file_name()?.to_string_lossy().into_owned());
        let has = |m: Member| self.inspected.get(m).is_some_and(|s| s.status.size > 0);
        let before = begun::not_done(family)?.is_some_and(|b| b.log);
        let begun = Begun {
            old,
            made,
            new: new.to_owned(),
            aside: aside.to_owned(),
            log: has(Member::Wal) || has(Member::Journal) || before,
            captures: captures::complete(&captures::directory(family)).into_iter().filter_map(name).collect(),
        };
        let pending = Pending::of(new, made)?;
        pending.take(std::time::Duration::ZERO)?;
        begun::begin(family, &begun)?;
        destroyed::announce(family, made)?;
        let mut moved = Vec::new();
        if let Err(e) = self.exchange_all(&begun, &mut moved) {
            if identity(&family.main()).is_ok_and(|main| main == old) {
                self.put_back(&moved, &begun, before);
            }
            return Err(e);
        }
        begun::finish(family)?;
        if old.is_some() {
            moved.push((Member::Main, aside.join(begun::replaced(Member::Main))));
        }
        let moved = moved.into_iter().map(|(member, _)| member).collect();
        Ok(Placed { main: made, aside: aside.to_owned(), moved, old, pending })
    }

    /// Up to the step that counts, and its flush.
    fn exchange_all(&self, begun: &Begun, moved: &mut Vec<(Member, PathBuf)>) -> Result<()> {
        let family = self.inspected.family();
        for member in [Member::Shm, Member::Wal, Member::Journal] {
            if let Some(to) = move_aside(&family.path(member), &begun.aside, member)? {
                moved.push((member, to));
            }
        }
        captures::sync_directory(&begun.aside)?;
        captures::sync_directory(family.directory())?;
        match begun.old {
            Some(_) if exchange(&begun.new, &family.main())? => {}
            Some(_) => self.replace(&begun.new, &begun.aside)?,
            None if putback::rename_new(&begun.new, &family.main())? => {}
            None => return Err(Error::refused(Reason::Changed, family.main(), "another file appeared in its place")),
        }
        captures::sync_directory(family.directory())
    }

    /// The old main file is still in its place, and gets back what belongs to it. What does not go back keeps the mark, by which
    /// every process of ours refuses the rest.
    fn put_back(&self, moved: &[(Member, PathBuf)], begun: &Begun, before: bool) {
        let family = self.inspected.family();
        let back =
            |(member, from): &(Member, PathBuf)| putback::rename_new(from, &family.path(*member)).unwrap_or(false);
        let all = moved.iter().rev().filter(|m| !back(m)).count() == 0;
        let flushed =
            captures::sync_directory(family.directory()).is_ok() && captures::sync_directory(&begun.aside).is_ok();
        if all && flushed && !before {
            begun::give_up(family);
        }
    }

    /// Lets everybody use the new file, and waits for whoever opened the old one in the last moment. Gives back those who have not
    /// let go of it after that. `tell` is told, for people, who is waited for.
    ///
    /// # Errors
    /// When the processes cannot be looked at.
    pub fn leave(&self, placed: Placed, tell: &dyn Fn(&str)) -> Result<Vec<Holder>> {
        let Placed { aside, old, pending, .. } = placed;
        drop(pending);
        self.wait_for_late(old, &aside.join(begun::replaced(Member::Main)), tell)
    }

    /// Puts the new file over the old one, which is copied first: a second name for it, even for a moment, would be a second hard
    /// link if this process were killed then.
    fn replace(&self, new: &Path, aside: &Path) -> Result<()> {
        let main = self.inspected.family().main();
        if let Some(seen) = self.inspected.get(Member::Main) {
            let file = files::open(&seen.magic_path()).map_err(|e| Error::io("read", &main, e))?;
            captures::copy_file(&file, &main, &aside.join(begun::replaced(Member::Main)))?;
            captures::sync_directory(aside)?;
        }
        rustix::fs::renameat(CWD, new, CWD, &main).map_err(|e| Error::io("put in place", &main, e))
    }

    /// Waits for strangers who opened the old main file in the last moment; it is called `moved` now, or has no name any more.
    fn wait_for_late(&self, old: Option<Identity>, moved: &Path, tell: &dyn Fn(&str)) -> Result<Vec<Holder>> {
        // Longer than programs wait for a lock as a rule.
        const PATIENCE: std::time::Duration = std::time::Duration::from_secs(35);
        let Some(old) = old else { return Ok(Vec::new()) };
        let moved = Family::of(moved)?;
        let begun = Instant::now();
        let mut told = false;
        loop {
            let reports = [holders::scan(self.inspected.family())?, holders::scan(&moved)?];
            // Those of ours came through the gate, so what they still have they have had from before, and are cut off from.
            let ours: Vec<i32> = records::list(self.inspected.family())?.iter().map(|r| r.process.pid).collect();
            let has = |h: &&Holder| {
                !h.is_self
                    && h.pid.is_none_or(|pid| !ours.contains(&pid))
                    && h.files.iter().any(|f| (f.device, f.inode) == (old.device, old.inode))
            };
            let mut late: Vec<Holder> =
                reports.into_iter().flat_map(|report| report.holders).filter(|h| has(&h)).collect();
            late.sort_by_key(|h| h.pid);
            late.dedup_by_key(|h| h.pid);
            if late.is_empty() || begun.elapsed() >= PATIENCE {
                return Ok(late);
            }
            if !told && begun.elapsed() >= TELL {
                told = true;
                let names: Vec<String> = late.iter().map(super::look::name).collect();
                tell(&format!(
                    "it is done; still waiting, for at most {} s, until nobody has the replaced main file open, for who has it would \
                     write into the new log: {}",
                    PATIENCE.as_secs(),
                    names.join("; ")
                ));
            }
            std::thread::sleep(AGAIN);
        }
    }
}

/// Moves a file into the directory, over nothing that lies there; says where it is now, if there was one.
fn move_aside(from: &Path, aside: &Path, member: Member) -> Result<Option<PathBuf>> {
    if Status::of(from).map_err(|e| Error::io("look at", from, e))?.is_none() {
        return Ok(None);
    }
    let mut to = aside.join(begun::replaced(member));
    for n in 2.. {
        if putback::rename_new(from, &to)? {
            break;
        }
        to = aside.join(format!("{}.{n}", begun::replaced(member)));
    }
    Ok(Some(to))
}

/// Both names change what they lead to in one step; false where the file system cannot do that.
fn exchange(new: &Path, main: &Path) -> Result<bool> {
    match rustix::fs::renameat_with(CWD, new, CWD, main, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        Err(e) => Err(Error::io("put in place", main, e)),
    }
}

/// What [`Vacant::obtain`] would be refused for now, with a drain and without force. Touches nothing.
///
/// # Errors
/// When the database or the processes cannot be looked at.
pub fn forecast_vacant(family: &Family) -> Result<Forecast> {
    let report = holders::scan(family)?;
    let refused = secure::inspect_to_replace(family)
        .and_then(|inspected| refuse_own(&inspected))
        .and_then(|()| refuse_holders(family, &report, Ours::WillPark, Allowed::default()))
        .err();
    Ok(Forecast { report, refused })
}

/// Refuses when this very process has a file of the family open: it would go on with the old one.
///
/// # Errors
/// [`Reason::Held`].
pub fn refuse_own(inspected: &Inspected) -> Result<()> {
    let family = inspected.family();
    for member in Member::ALL {
        let Some(seen) = inspected.get(member) else { continue };
        if crate::locks::in_use(seen.status.identity.device, seen.status.identity.inode) {
            let why = "this very process has it open; close that handle first";
            return Err(Error::refused(Reason::Held, family.path(member), why));
        }
    }
    Ok(())
}

/// Refuses beside whoever has a file of the family open. What could not be found out is overridden by force, and nothing else.
fn refuse(family: &Family, ours: Ours, wanted: &Wanted<'_>) -> Result<Vec<String>> {
    let report = holders::scan(family)?;
    let own = report.holders.iter().find(|h| h.is_self && h.evidence != Evidence::Argv && !h.files.is_empty());
    if own.is_some() && matches!(ours, Ours::WillPark) {
        let why = "this very process has files of it open; close that handle first";
        return Err(Error::refused(Reason::Held, family.main(), why));
    }
    match refuse_holders(family, &report, ours, Allowed::default()) {
        Err(e) if e.reason() == Some(Reason::HeldUnknown) && wanted.force => Ok(report.limits),
        refused => refused,
    }
}

/// A private directory for what is moved aside, below `X.statehouse/retired/`.
///
/// # Errors
/// The system's answer.
pub(crate) fn make_aside(inspected: &Inspected, name: &str) -> Result<PathBuf> {
    let family = inspected.family();
    crate::side::create(inspected)?;
    let parent = captures::directory(family);
    captures::private_directory(&parent)?;
    let place = parent.join(name);
    captures::private_directory(&place)?;
    captures::sync_directory(&parent)?;
    Ok(place)
}

impl Vacant {
    /// Makes the directory into which [`Vacant::place`] moves what it replaces. Its name begins with `replaced-`.
    ///
    /// # Errors
    /// The system's answer.
    pub fn aside(&self) -> Result<PathBuf> {
        // Where another has been ended after it had moved the log there, all of it stays together.
        if let Some(begun) = begun::not_done(self.inspected.family())?.filter(|b| b.aside.is_dir()) {
            return Ok(begun.aside);
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        make_aside(&self.inspected, &format!("replaced-{:016}", now.as_micros()))
    }

    /// Copies every member as it is into `to`, flushed, as evidence for work that may change one of them.
    ///
    /// # Errors
    /// The system's answer; half a copy is removed.
    pub fn copy_members(&self, to: &Path) -> Result<Vec<Member>> {
        let mut copied = Vec::new();
        for seen in Member::ALL.into_iter().filter_map(|m| self.inspected.get(m)) {
            let source = self.inspected.family().path(seen.member);
            let path = to.join(format!("{}.copied", seen.member));
            let file = files::open(&seen.magic_path()).map_err(|e| Error::io("read", &source, e))?;
            captures::copy_file(&file, &source, &path).inspect_err(|_| {
                let _ = std::fs::remove_file(&path);
            })?;
            copied.push(seen.member);
        }
        captures::sync_directory(to)?;
        Ok(copied)
    }
}
