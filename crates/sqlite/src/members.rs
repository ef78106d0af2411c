//! The record of each of our processes that has the database open, in `X.statehouse/members/`.
//!
//! Invariant: a record lives exactly as long as the lock on it (`flock`), which the kernel drops when its process ends
//! in whatever way. A number in a file proves nothing: pids are handed out again, and a process of another container has
//! none here at all, but its lock is seen. A record appears under its name only when it is locked already, so one that is
//! found unlocked is stale for certain.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::family::{Family, Status};
use crate::process::{self, ProcessId};
use crate::secure::Inspected;
use crate::side;

/// Every record has this many bytes, filled up with spaces, so that changing one is a single write that needs no
/// truncation and a reader never sees half of it.
const RECORD_BYTES: usize = 1024;
pub(crate) const DIRECTORY: &str = "members";
const UNFINISHED: &str = ".new";

/// What a record says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// What the process is to the database ("gateway", "worker", "anchor").
    pub role: String,
    /// The process, as its own pid namespace numbers it.
    #[serde(flatten)]
    pub process: ProcessId,
    /// When it started, RFC 3339.
    pub start_time: String,
    /// The start of the machine that it runs on (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    /// The machine that it runs on (`/etc/machine-id`, else its host name); a container has one of its own.
    #[serde(default)]
    pub machine_id: String,
    /// The pid namespace that its number belongs to, by inode.
    pub pid_namespace: u64,
    /// Version of this crate.
    pub version: String,
    /// Version of the SQLite library.
    pub sqlite: String,
    /// True while its handle is cut off from a retired generation: it holds the files and will not write to them.
    pub fenced: bool,
    /// True while it has closed everything for somebody who was admitted to do structural work, or as an anchor that stepped
    /// aside. It comes back by itself.
    #[serde(default)]
    pub parked: bool,
}

impl Record {
    /// True if the number is one of this process's own pid namespace and this start of the machine.
    pub fn is_local(&self) -> bool {
        Place::here().has(self)
    }
}

/// A pid namespace on one run of one machine: where a process number means something.
struct Place {
    boot_id: String,
    pid_namespace: u64,
}

impl Place {
    fn here() -> Place {
        Place { boot_id: boot_id(), pid_namespace: process::namespace("self", "pid").unwrap_or(0) }
    }

    fn has(&self, record: &Record) -> bool {
        self.boot_id == record.boot_id && self.pid_namespace == record.pid_namespace
    }
}

/// This start of the machine.
pub(crate) fn boot_id() -> String {
    let mut text = Vec::new();
    match process::read_file(rustix::fs::CWD, "/proc/sys/kernel/random/boot_id", &mut text) {
        Ok(()) => String::from_utf8_lossy(&text).trim().to_owned(),
        Err(_) => String::new(),
    }
}

fn machine_id() -> String {
    for path in ["/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/hostname"] {
        let mut text = Vec::new();
        if process::read_file(rustix::fs::CWD, path, &mut text).is_ok() {
            // Whatever it is, it must fit into a record.
            let id: String =
                String::from_utf8_lossy(&text).trim().chars().filter(|c| !c.is_control()).take(64).collect();
            if !id.is_empty() {
                return id;
            }
        }
    }
    String::new()
}

/// This process's record. Dropping it removes it.
#[derive(Debug)]
pub struct Registration {
    path: PathBuf,
    /// Nothing when the volume had no room for it.
    kept: Option<Kept>,
    record: Mutex<Record>,
}

#[derive(Debug)]
struct Kept {
    directory: OwnedFd,
    name: String,
    file: OwnedFd,
}

/// True if the directory of the records is there.
pub(crate) fn are_recorded(family: &Family) -> bool {
    family.side_directory().join(DIRECTORY).is_dir()
}

/// How long processes have been recorded here. Where somebody has removed the records that is not long, and those who are
/// about to write theirs anew are not among them yet. Unknown where the file system does not tell when a directory was made.
pub(crate) fn recorded_for(family: &Family) -> Option<Duration> {
    let made = Status::of(&family.side_directory().join(DIRECTORY)).ok()??.identity.born_ns?;
    let made = UNIX_EPOCH + Duration::from_nanos(u64::try_from(made).ok()?);
    Some(SystemTime::now().duration_since(made).unwrap_or_default())
}

/// Registers this process; removes the records of processes that are gone on the way.
///
/// On a full volume it is registered without a record, for reading must work there too. The others take it for a stranger
/// then, which makes them more careful and never less; [`Registration::is_gone`] tells the caller to try again.
///
/// # Errors
/// The system's answer, or a refusal when something else stands where the directory must be.
pub fn register(inspected: &Inspected, role: &str) -> Result<Registration> {
    let path = inspected.family().side_directory().join(DIRECTORY);
    let io = |e: std::io::Error| Error::io("register in", &path, e);
    let side = side::create(inspected)?;
    let directory = side::subdirectory(inspected, side.as_fd(), DIRECTORY, &path)?;
    prune(&directory).map_err(|e| io(e.into()))?;
    let process = ProcessId::own().map_err(io)?;
    let here = Place::here();
    let record = Record {
        // A role is a word of our own; what is cut here was none, and every record must fit.
        role: role.chars().filter(|c| !c.is_control()).take(100).collect(),
        process,
        start_time: process::boot_time().map(|b| process::start_time(b, process.start_ticks)).unwrap_or_default(),
        boot_id: here.boot_id,
        machine_id: machine_id(),
        pid_namespace: here.pid_namespace,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        sqlite: rusqlite::version().to_owned(),
        fenced: false,
        parked: false,
    };
    // A process that opens a database twice has two records, and so has one of another container with the same number.
    for attempt in 0..10_000 {
        let mut name = format!("{}-{}", process.pid, process.start_ticks);
        if attempt > 0 {
            name.push_str(&format!("-{attempt}"));
        }
        let kept = match create(&directory, &name, &record) {
            Ok(None) => continue,
            Ok(Some(file)) => {
                inspected.hand_over(file.as_fd()).map_err(io)?;
                Some(Kept { directory, name, file })
            }
            Err(Errno::NOSPC | Errno::DQUOT) => None,
            Err(e) => return Err(io(e.into())),
        };
        return Ok(Registration { path, kept, record: Mutex::new(record) });
    }
    Err(io(std::io::Error::other("every name is taken")))
}

/// Makes a record under a passing name, locks it, and only then gives it its own; `None` if that is taken.
fn create(directory: &OwnedFd, name: &str, record: &Record) -> Result<Option<OwnedFd>, Errno> {
    let passing = format!("{name}{UNFINISHED}");
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(directory, passing.as_str(), flags, Mode::RUSR | Mode::WUSR) {
        Ok(file) => file,
        Err(Errno::EXIST) => return Ok(None),
        Err(e) => return Err(e),
    };
    let finish = || {
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        write(&file, record)?;
        match rustix::fs::renameat_with(directory, passing.as_str(), directory, name, RenameFlags::NOREPLACE) {
            // A file system that cannot do that in one step can do it in two.
            Err(Errno::INVAL | Errno::NOSYS) => {
                rustix::fs::linkat(directory, passing.as_str(), directory, name, AtFlags::empty())?;
                rustix::fs::unlinkat(directory, passing.as_str(), AtFlags::empty())
            }
            other => other,
        }
    };
    match finish() {
        Ok(()) => Ok(Some(file)),
        Err(e) => {
            rustix::fs::unlinkat(directory, passing.as_str(), AtFlags::empty())?;
            if e == Errno::EXIST { Ok(None) } else { Err(e) }
        }
    }
}

fn write(file: &OwnedFd, record: &Record) -> Result<(), Errno> {
    let mut text = serde_json::to_vec(record).map_err(|_| Errno::INVAL)?;
    text.resize(RECORD_BYTES.max(text.len()), b' ');
    match rustix::io::pwrite(file, &text, 0)? {
        n if n == text.len() => Ok(()),
        _ => Err(Errno::NOSPC),
    }
}

impl Registration {
    /// What the record says now.
    pub fn record(&self) -> Record {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True if the record is not where others look for it: there was no room for it, or somebody has removed it or a
    /// directory above it.
    pub fn is_gone(&self) -> bool {
        let Some(kept) = &self.kept else { return true };
        let (here, there) = (rustix::fs::fstat(&kept.file), rustix::fs::lstat(self.path.join(&kept.name)));
        !matches!((here, there), (Ok(h), Ok(t)) if (h.st_dev, h.st_ino) == (t.st_dev, t.st_ino))
    }

    /// Says whether this process is cut off from a retired generation.
    ///
    /// # Errors
    /// The system's answer.
    pub fn set_fenced(&self, fenced: bool) -> Result<()> {
        self.change(|record| record.fenced = fenced)
    }

    /// Says whether this process has closed everything for the sake of structural work.
    ///
    /// # Errors
    /// The system's answer.
    pub fn set_parked(&self, parked: bool) -> Result<()> {
        self.change(|record| record.parked = parked)
    }

    fn change(&self, change: impl FnOnce(&mut Record)) -> Result<()> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut record);
        let Some(kept) = &self.kept else { return Ok(()) };
        write(&kept.file, &record).map_err(|e| Error::io("write the record in", &self.path, e))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A child that was forked off shares the lock; only the process that registered may end the record.
        let own = self.record().process.pid == rustix::process::getpid().as_raw_nonzero().get();
        if let Some(kept) = self.kept.as_ref().filter(|_| own) {
            let _ = rustix::fs::unlinkat(&kept.directory, kept.name.as_str(), AtFlags::empty());
        }
    }
}

/// The records whose processes live, of this machine or another that shares the directory. Changes nothing.
///
/// # Errors
/// The system's answer; a directory that does not exist is an empty list.
pub fn list(family: &Family) -> Result<Vec<Record>> {
    let path = family.side_directory();
    let Some(side) = side::open(&path)? else { return Ok(Vec::new()) };
    let io = |e: Errno| Error::io("read the members in", &path, e);
    let directory = match rustix::fs::openat(&side, DIRECTORY, side::DIRECTORY, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(Vec::new()),
        Err(e) => return Err(io(e)),
    };
    let here = Place::here();
    let mut records = Vec::new();
    for name in names(&directory).map_err(io)? {
        if name.as_bytes().ends_with(UNFINISHED.as_bytes()) {
            continue;
        }
        let Some(file) = open(&directory, &name) else { continue };
        if !is_locked(&file) {
            continue;
        }
        // A record that a later version wrote differently still proves that somebody is there, but not who.
        // Whoever clears away a stale record holds its lock for a moment, so a local one is asked for by name as well.
        if let Some(record) = read(&file).filter(|r| !here.has(r) || r.process.lives()) {
            records.push(record);
        }
    }
    Ok(records)
}

fn names(directory: &OwnedFd) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name.first().is_some_and(u8::is_ascii_digit) {
            names.push(std::ffi::OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

fn open(directory: &OwnedFd, name: &OsString) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name.as_os_str(), flags, Mode::empty()).ok()
}

/// A shared lock that would be granted says that nobody holds the exclusive one. Closing the file releases it again.
fn is_locked(file: &OwnedFd) -> bool {
    matches!(rustix::fs::flock(file, FlockOperation::NonBlockingLockShared), Err(Errno::WOULDBLOCK))
}

fn read(file: &OwnedFd) -> Option<Record> {
    let mut text = [0; RECORD_BYTES * 4];
    let n = rustix::io::pread(file, &mut text, 0).ok()?;
    serde_json::from_slice(text.get(..n)?).ok()
}

/// Removes what dead processes left: records without a lock, and unfinished ones.
fn prune(directory: &OwnedFd) -> Result<(), Errno> {
    /// Between the creation of a record and its lock lie a few system calls; one that is this old was abandoned.
    const ABANDONED_AFTER_SECONDS: u64 = 60;
    for name in names(directory)? {
        let Some(file) = open(directory, &name) else { continue };
        let unfinished = name.as_bytes().ends_with(UNFINISHED.as_bytes());
        if unfinished {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let made = rustix::fs::fstat(&file)?.st_ctime;
            if now.saturating_sub(u64::try_from(made).unwrap_or(0)) < ABANDONED_AFTER_SECONDS {
                continue;
            }
        }
        // The exclusive lock is kept until the name is gone, so that nobody can be removing another file of this name.
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let here = rustix::fs::fstat(&file)?;
            let there = rustix::fs::statat(directory, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW);
            if there.is_ok_and(|t| (t.st_dev, t.st_ino) == (here.st_dev, here.st_ino)) {
                match rustix::fs::unlinkat(directory, name.as_os_str(), AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(e) => return Err(e),
                }
            }
        }
    }
    Ok(())
}
