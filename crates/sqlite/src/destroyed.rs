//! What is kept of a database that was destroyed in place, and the mark that keeps everybody from going on in silence.
//!
//! The files are still at their paths, so nothing has to be read from dying descriptors. But whoever opens them next may take
//! away what is whole: SQLite deletes a log beside an empty main file, begins an emptied log anew, and copies a whole log
//! into a foreign main file. So the other members are copied first, below `X.statehouse/retired/destroyed-...`, and then
//! `X.statehouse/destroyed.json` says what happened. While that file is there no process of ours opens the database. A person
//! removes it; nothing that this crate could find out says how much of what is left somebody wants to go on with.
//!
//! A full disk keeps the copies from being made and perhaps the mark; this process stops all the same, and tries again.

use std::io::ErrorKind;
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags};
use serde::{Deserialize, Serialize};

use crate::admission::begun;
use crate::error::{Destruction, Error, Reason, Result};
use crate::family::{Family, Generation, Identity, Member, Status, is_too_long};
use crate::headers::{Headers, Journal};
use crate::index::{HEAD_BYTES, MAKING_AT, REGION_BYTES};
use crate::reassemble::Account;
use crate::wal::ReadAt;
use crate::{captures, files, headers, locks, ofd, retired, secure};

const MARK: &str = "destroyed.json";

/// The longest mark that is read.
const LONGEST: u64 = 64 * 1024;

/// What the mark says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// The sentence that the handle told its users.
    pub sentence: String,
    /// Which file was destroyed: `main` or `wal`.
    pub member: String,
    /// What was done to it, as the end of a sentence.
    #[serde(default)]
    pub what: String,
    /// When it was noticed, in microseconds since 1970.
    pub noticed_at_unix_us: u64,
    /// The process that noticed it first.
    pub pid: u32,
    /// Frames of the log that were committed, if that is known.
    pub frames: Option<u32>,
    /// How many of these were in the main file, if that is known.
    pub copied: Option<u32>,
    /// Where the copies are; `None` if none could be made.
    pub evidence: Option<PathBuf>,
    /// Why there is no copy, or not of everything.
    pub missing: Option<String>,
    /// The file that somebody was about to put in the place of the main file. Once it is there, the mark is about a database
    /// that is there no more.
    #[serde(default)]
    pub replaced_by: Option<Identity>,
    /// What could be put together of it, and what is lost.
    #[serde(default)]
    pub account: Option<Account>,
}

impl Mark {
    /// What to type, where something could be put together.
    pub fn next(&self, family: &Family) -> Option<String> {
        let rebuilt = self.account.as_ref()?.rebuilt.as_ref()?;
        let word = |path: &std::path::Path| crate::shell::word(&path.to_string_lossy());
        let restore = format!("statehouse restore {} {}", word(rebuilt), word(&family.main()));
        Some(format!("Put what is left in the place of the database: `{restore}`"))
    }

    /// What happened, what is lost of it, and where what is left is, in sentences.
    pub fn words(&self) -> String {
        match &self.account {
            Some(account) => format!("{} {}.", self.sentence, account.sentence()),
            None => self.sentence.clone(),
        }
    }
}

impl Destruction {
    /// What to type, where the mark beside the database says that something could be put together.
    pub fn next(&self) -> Option<String> {
        let path = self.path.to_string_lossy();
        let main = path.strip_suffix(self.member.suffix()).unwrap_or(&path);
        let family = Family::of(std::path::Path::new(main)).ok()?;
        mark(&family).ok()??.next(&family)
    }
}

/// The file that says that a database was destroyed.
pub fn mark_path(family: &Family) -> PathBuf {
    family.side_directory().join(MARK)
}

/// What the mark beside a database says; `None` if there is none, or if another database has taken the place of the one that
/// it is about. A mark that cannot be read is one.
///
/// # Errors
/// [`Error::Io`].
pub fn mark(family: &Family) -> Result<Option<Mark>> {
    let Some(mark) = lying(family)? else { return Ok(None) };
    let main = Status::of(&family.main()).map_err(|e| Error::io("look at", &family.main(), e))?;
    Ok(Some(mark).filter(|m| m.replaced_by.is_none() || m.replaced_by != main.map(|s| s.identity)))
}

/// Says in the mark, if there is one, which file is going to take the place of the main file.
pub(crate) fn announce(family: &Family, new: Identity) -> Result<()> {
    let Some(mark) = lying(family)? else { return Ok(()) };
    let path = mark_path(family);
    let text = serde_json::to_vec_pretty(&Mark { replaced_by: Some(new), ..mark })
        .map_err(|e| Error::io("write", &path, std::io::Error::from(e)))?;
    files::replace(&path, &text).map_err(|e| Error::io("write", &path, e))?;
    captures::sync_directory(&family.side_directory())
}

/// Moves the mark, if there is one, into a directory of evidence.
pub(crate) fn set_aside(family: &Family, to: &std::path::Path) -> Result<()> {
    let path = mark_path(family);
    match std::fs::rename(&path, to.join(MARK)) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        moved => moved.map_err(|e| Error::io("move aside", &path, e)),
    }
}

/// The mark that lies there, whatever it is about.
fn lying(family: &Family) -> Result<Option<Mark>> {
    let path = mark_path(family);
    let text = match files::read_to_string(&path, LONGEST) {
        Ok(text) => text,
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) || is_too_long(&e) => {
            return Ok(None);
        }
        // Whoever may not look there may not open the database either, and is told so.
        Err(e) if e.kind() == ErrorKind::PermissionDenied => return Ok(None),
        Err(e) => return Err(Error::io("read", &path, e)),
    };
    Ok(Some(serde_json::from_str(&text).unwrap_or(Mark {
        sentence: format!("{} cannot be understood", path.display()),
        member: String::new(),
        what: String::new(),
        noticed_at_unix_us: 0,
        pid: 0,
        frames: None,
        copied: None,
        evidence: None,
        missing: None,
        replaced_by: None,
        account: None,
    })))
}

/// Refuses a database that was destroyed, until somebody has removed the mark.
///
/// # Errors
/// [`Reason::Destroyed`]; [`Reason::HalfRestored`] where a restore was ended in the middle.
pub fn refuse(family: &Family) -> Result<()> {
    begun::refuse(family)?;
    let Some(mark) = mark(family)? else { return Ok(()) };
    let evidence = match (&mark.evidence, &mark.missing) {
        (Some(place), None) => format!("what was whole is copied to {}", place.display()),
        (Some(place), Some(why)) => format!("what could be copied is in {}; {why}", place.display()),
        (None, why) => format!("nothing is copied: {}", why.as_deref().unwrap_or("it is not known why")),
    };
    let account = mark.account.map(|a| format!("; {}", a.sentence())).unwrap_or_default();
    Err(Error::refused(Reason::Destroyed, family.main(), format!("{} {evidence}{account}", mark.sentence)))
}

/// Refuses a main file that is not even one of a database in WAL mode. SQLite would change its mode, and that is a write.
pub(crate) fn refuse_foreign(family: &Family) -> Result<()> {
    match headers::check(&secure::inspect(family, secure::Purpose::Own)?)? {
        Headers::Database { header, .. } if header.journal == Journal::Rollback => {
            Err(Error::refused(Reason::RollbackMode, family.main(), "it was in WAL mode before"))
        }
        _ => Ok(()),
    }
}

/// True if the index that is there does not say the truth about the log.
pub(crate) fn index_is_void(why: &Error) -> bool {
    matches!(why, Error::Destroyed(d) if d.member != Member::Main)
}

/// Copies what is whole and leaves the mark. To be called with the exclusive side of the recovery lock; does nothing if
/// another process has done it.
///
/// Returns what the mark says, for each process has its own last look at what there was, and people shall not be told two
/// numbers.
pub(crate) fn keep(family: &Family, generation: &Generation, destruction: &Destruction) -> Result<Destruction> {
    if let Some(mark) = mark(family)? {
        return Ok(mark.destruction(family).unwrap_or_else(|| destruction.clone()));
    }
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
    let place = captures::directory(family).join(format!("destroyed-{now}"));
    let copied = copy(family, generation, destruction, &place);
    let evidence = place.exists().then(|| place.clone());
    let mark = Mark {
        sentence: destruction.to_string(),
        member: destruction.member.to_string(),
        what: destruction.what.clone(),
        noticed_at_unix_us: now,
        pid: std::process::id(),
        frames: destruction.frames,
        copied: destruction.copied,
        evidence,
        missing: copied.err().map(|e| e.to_string()),
        replaced_by: None,
        account: None,
    };
    write(family, &mark)?;
    Ok(destruction.clone())
}

/// Adds to the mark what was put together. To be called with the exclusive side of the recovery lock.
pub(crate) fn put_together(family: &Family, account: &Account) -> Result<()> {
    let Some(mark) = mark(family)? else { return Ok(()) };
    // The mark is short; the inventory is beside the new file.
    let account = Account { expected: Default::default(), ..account.clone() };
    write(family, &Mark { account: Some(account), ..mark })
}

fn write(family: &Family, mark: &Mark) -> Result<()> {
    let path = mark_path(family);
    let text = serde_json::to_vec_pretty(mark).map_err(|e| Error::io("write", &path, std::io::Error::from(e)))?;
    if let Some(place) = &mark.evidence {
        // Beside the copies too, for the mark is removed one day.
        let _ = files::replace(&place.join(MARK), &text);
    }
    files::replace(&path, &text).map_err(|e| Error::io("write", &path, e))
}

/// What another process of ours has found destroyed, for one who has seen nothing of it itself: what a checkpoint does between two
/// looks can hide it. From then on nothing is changed in the files of this generation.
pub(crate) fn told(family: &Family, generation: &Generation) -> Option<Error> {
    // Asked before each commit, and nearly always there is none.
    if !mark_path(family).exists() {
        return None;
    }
    let mark = mark(family).ok().flatten()?;
    let unknown = || Destruction {
        member: Member::Main,
        path: family.main(),
        what: "destroyed in place by another program".into(),
        frames: None,
        copied: None,
    };
    generation.main.into_iter().for_each(locks::give_up);
    Some(Error::Destroyed(Box::new(mark.destruction(family).unwrap_or_else(unknown))))
}

impl Mark {
    /// What it says was destroyed; `None` if it does not say.
    fn destruction(&self, family: &Family) -> Option<Destruction> {
        let member = [Member::Main, Member::Wal].into_iter().find(|m| m.to_string() == self.member)?;
        let Mark { what, frames, copied, .. } = self.clone();
        (!what.is_empty()).then(|| Destruction { member, path: family.path(member), what, frames, copied })
    }
}

/// Copies every member but the destroyed one. The log comes first: it is small, and SQLite takes it away first.
fn copy(family: &Family, generation: &Generation, destruction: &Destruction, to: &std::path::Path) -> Result<()> {
    let parent = captures::directory(family);
    captures::private_directory(&parent)?;
    captures::private_directory(to)?;
    let mut first = Ok(());
    for member in [Member::Wal, Member::Shm, Member::Main] {
        if member == destruction.member {
            continue;
        }
        let path = to.join(format!("{member}.captured"));
        let copied = copy_member(family, generation, member, &path);
        if copied.is_err() {
            // Half a copy would be taken for a whole one.
            let _ = std::fs::remove_file(&path);
        }
        first = first.and(copied);
    }
    first.and(captures::sync_directory(to)).and(captures::sync_directory(&parent))
}

fn copy_member(family: &Family, generation: &Generation, member: Member, path: &std::path::Path) -> Result<()> {
    let source = family.path(member);
    let file = match retired::descriptor(family, member, generation.get(member))? {
        Some(file) => std::os::fd::OwnedFd::from(file),
        // The connections of this process are closed; what the path names may be read then as any file is.
        None => {
            let inspected = secure::inspect_to_replace(family)?;
            let seen = inspected.get(member).ok_or_else(|| Error::io("read", &source, ErrorKind::NotFound))?;
            headers::open(seen).map_err(|e| Error::io("read", &source, e))?
        }
    };
    captures::copy_file(&file, &source, path).map(drop)
}

/// Makes SQLite rebuild the index from the log: its head is zeroed, which is what SQLite takes for an index that somebody
/// began to write and did not end. To be called with the exclusive side of the recovery lock, after every connection of this
/// handle was closed. Does nothing if somebody has done it since this process has `used` the index.
pub(crate) fn reset_index(family: &Family, used: Option<u32>) -> Result<()> {
    let path = family.path(Member::Shm);
    let io = |e: rustix::io::Errno| Error::io("reset", &path, e);
    let inspected = secure::inspect(family, secure::Purpose::Own)?;
    let Some(seen) = inspected.get(Member::Shm) else { return Ok(()) };
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let index = rustix::fs::openat(CWD, seen.magic_path(), flags, Mode::empty()).map_err(io)?;
    // Whoever writes the head or rebuilds the index holds the one, whoever copies by it the other.
    for lock in [ofd::WAL_WRITE, ofd::WAL_CHECKPOINT] {
        if !ofd::try_lock(&index, ofd::Kind::Write, lock).map_err(|e| Error::io("lock", &path, e))? {
            let holder = Some("a program that uses the index".to_owned());
            return Err(Error::Busy { waited: std::time::Duration::ZERO, holder });
        }
    }
    let mut making = [0; 4];
    let known = index.fill_at(&mut making, MAKING_AT).map_err(|e| Error::io("read", &path, e))?;
    // A number that nobody has seen, if the last one is gone.
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let last = u32::from_ne_bytes(making);
    let short = rustix::fs::fstat(&index).map_err(io)?.st_size < REGION_BYTES as i64;
    if !short && used.is_some_and(|used| used != last) {
        return Ok(());
    }
    let next = if known && last != 0 { last.wrapping_add(1) } else { (now.as_micros() as u32) | 1 };
    if short {
        rustix::fs::ftruncate(&index, 3).map_err(io)?;
    } else {
        rustix::io::pwrite(&index, &[0; HEAD_BYTES], 0).map_err(io)?;
    }
    rustix::io::pwrite(&index, &next.to_ne_bytes(), MAKING_AT).map(drop).map_err(io)
}
