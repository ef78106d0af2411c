//! Which processes use a database, in which generation, with which locks, and what is wrong with them.
//!
//! Invariant: nothing is opened that belongs to the database. A holder is found by the identity of what its descriptors and
//! maps lead to; a name is only asked for what has none any more. What looks wrong is looked at again, several times, and
//! is reported only if it stays wrong: processes open and close all the time, and between two system calls of SQLite every
//! one of them looks half done.
//!
//! Linux shows everything. macOS (libproc) and Windows (the Restart Manager) show no locks: there a report never calls
//! anybody naked, and says that this is not known.

#[cfg(target_os = "linux")]
mod argv;
#[cfg(target_os = "linux")]
mod conclude;
#[cfg(target_os = "linux")]
mod describe;
#[cfg(target_os = "linux")]
mod elsewhere;
#[cfg(any(target_os = "macos", all(test, unix)))]
mod libproc;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;
#[cfg(target_os = "linux")]
mod maps;
#[cfg(target_os = "linux")]
mod probe;
mod remedy;
#[cfg(any(windows, test))]
mod restart;
#[cfg(target_os = "linux")]
mod signs;
#[cfg(target_os = "linux")]
mod stop;
#[cfg(target_os = "linux")]
mod target;
#[cfg(target_os = "linux")]
mod text;
#[cfg(test)]
mod this_machine;
#[cfg(target_os = "linux")]
mod walk;
#[cfg(windows)]
mod windows;

use serde::Serialize;

#[cfg(target_os = "linux")]
use self::linux as system;
#[cfg(target_os = "macos")]
use self::macos as system;
#[cfg(windows)]
use self::windows as system;
pub use remedy::{NOT_ORDERLY, SHARED_LOG, steps};
#[cfg(target_os = "linux")]
pub use signs::Signs;

use crate::error::Result;
use crate::family::{Family, Member};

/// The answer to "who uses this database?". Serialises as `statehouse holders --json` promises it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The main file.
    pub path: String,
    /// The answer in one word.
    pub verdict: Verdict,
    /// Processes whose descriptors could not be listed.
    pub uninspected: usize,
    /// What this look could not see, in words.
    pub limits: Vec<String>,
    /// Every process that uses a file of the family, by pid.
    pub holders: Vec<Holder>,
}

impl Report {
    /// True if a holder is naked or a ghost.
    pub fn alarming(&self) -> bool {
        self.holders.iter().any(|h| h.naked || h.ghost)
    }
}

/// Whether anybody uses the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Somebody does.
    Held,
    /// Nobody does, as far as the limits say.
    Quiet,
    /// Somebody may, and it could not be found out who.
    Unknown,
}

/// One process that uses the database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Its number; `None` for an owner of a lock whom `/proc` does not show.
    pub pid: Option<i32>,
    /// Clock ticks from the start of the machine to its own; with the pid it names the process. Only Linux counts them.
    pub start_ticks: Option<u64>,
    /// When it started, RFC 3339.
    pub start_time: Option<String>,
    /// Its command line, word by word.
    pub command: Vec<String>,
    /// Who runs it, by name if that is known.
    pub user: Option<String>,
    /// What it is to the database, if it is one of our processes.
    pub role: Option<String>,
    /// True if it is one of ours that is cut off from a retired generation and will not write to it.
    pub fenced: bool,
    /// True if it is one of ours that has closed its files for the sake of structural work, or of an anchor that was sent aside.
    /// It has nothing open and comes back by itself as soon as that has ended.
    pub parked: bool,
    /// True for the process that looks.
    #[serde(rename = "self")]
    pub is_self: bool,
    /// Whether it lives in the pid namespace of the process that looks.
    pub pid_namespace: Namespace,
    /// What it has of the family.
    pub files: Vec<HeldFile>,
    /// Which of SQLite's locks it holds.
    pub locks: HeldLocks,
    /// True if it has the shared index open or mapped and lacks one of the two locks that protect its generation.
    pub naked: bool,
    /// True if it can go on writing into files that are not the database any more.
    pub ghost: bool,
    /// True if an anchor keeps it from copying the log that it goes on in into the main file, so that the log grows. Only Linux shows
    /// it.
    pub kept_back: bool,
    /// By what it was found.
    pub evidence: Evidence,
    /// Bytes of files without a name that it has open; the disk has them back when the last such process ends.
    pub held_bytes: u64,
    /// What keeps a ghost from writing anything more until it is ended, as a person would type it; to be done first. `None` if it
    /// is no ghost, or is held already.
    pub hold: Option<String>,
    /// What copies what it has in files that the paths do not name, as a person would type it; to be done before it is stopped.
    /// `None` if it has no such file that could be copied.
    pub capture: Option<String>,
    /// What stops it, as a person would type it. A ghost is killed, for an orderly stop would let it write once more.
    pub stop: String,
    /// How this user sends it a signal; `None` where none reaches it.
    #[serde(skip)]
    pub(crate) signal: Option<&'static str>,
    /// True if a signal has stopped it and none has let it go on.
    #[serde(skip)]
    pub(crate) halted: bool,
}

/// Where a process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Namespace {
    /// Where the process that looks lives.
    Same,
    /// Elsewhere, for example in a container.
    Other,
    /// That could not be found out.
    Unknown,
}

/// By what a holder was found, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Evidence {
    /// A descriptor or map that leads to the very file.
    Identity,
    /// A lock on the very file.
    Lock,
    /// Only its command line, which proves nothing.
    Argv,
}

/// One file of the family that a process has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HeldFile {
    /// Which.
    pub member: Member,
    /// Whether it is what the path names now.
    pub generation: Standing,
    /// True if it has no name any more.
    pub deleted: bool,
    /// How the process has it.
    pub via: Via,
    /// The number of the descriptor; `/proc/PID/fd/N` reads the file as long as the process lives.
    pub descriptor: Option<i32>,
    /// True if the process may write through it.
    pub writable: bool,
    /// Length in bytes; what is deleted and held still fills the disk.
    pub size: Option<u64>,
    /// Device of the file.
    #[serde(skip)]
    pub device: u64,
    /// Inode of the file.
    #[serde(skip)]
    pub inode: u64,
}

/// Which generation a file belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Standing {
    /// What the path names now.
    Current,
    /// What it named before.
    Retired,
}

/// How a process has a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Via {
    /// An open descriptor.
    Descriptor,
    /// A map whose descriptor is closed.
    Mapping,
    /// Only a lock shows it.
    Lock,
}

/// SQLite's locks, as far as one process holds them. Only Linux shows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HeldLocks {
    /// The shared range of the main file.
    pub shared: bool,
    /// Byte 128 of the shared index.
    pub dms: bool,
    /// The reserved byte of the main file (a writer in rollback mode).
    pub reserved: bool,
    /// The writer's byte of the shared index.
    pub write: bool,
    /// The checkpointer's byte of the shared index, exclusively. Shared it belongs to one who keeps checkpointers out.
    pub checkpoint: bool,
    /// Which of the five read marks.
    pub readers: Vec<u8>,
}

impl Holder {
    /// Fills in what follows from its files.
    fn with_consequences(mut self, family: &Family) -> Holder {
        let mut unnamed: Vec<(u64, u64, u64)> =
            self.files.iter().filter(|f| f.deleted).map(|f| (f.device, f.inode, f.size.unwrap_or(0))).collect();
        // The same file by a map and by a descriptor is one.
        unnamed.sort_unstable_by(|a, b| b.cmp(a));
        unnamed.dedup_by_key(|f| (f.0, f.1));
        self.held_bytes = unnamed.iter().map(|f| f.2).sum();
        self.with_remedy(family)
    }
}

/// What captures the deleted files that a process has, or every process, as a person would type it.
pub fn capture_command(family: &Family, pid: Option<i32>) -> String {
    let whose = pid.map_or_else(|| "--all".to_owned(), |pid| format!("--pid {pid}"));
    format!("statehouse retired capture {whose} {}", crate::shell::word(&family.main().display().to_string()))
}

/// Looks at every process of this machine.
///
/// # Errors
/// When the system cannot be looked at (no `/proc`, or a system that this version does not know), or the paths of the family
/// cannot be looked at.
pub fn scan(family: &Family) -> Result<Report> {
    let mut report = system::scan(family)?;
    report.holders = report.holders.into_iter().map(|h| h.with_consequences(family)).collect();
    remedy::together(&mut report.holders);
    Ok(report)
}

/// One look at one process; `None` if it has no file of the database open, or may not be looked at.
///
/// # Errors
/// As [`scan`].
#[cfg(target_os = "linux")]
pub(crate) fn one(family: &Family, pid: i32) -> Result<Option<Holder>> {
    Ok(system::one(family, pid)?.map(|h| h.with_consequences(family)))
}

/// The processes other than this one that make opening dangerous: ghosts, and those that have lost their locks. Our own
/// fenced processes do not count, and an anchor is neither. Quick, for every opening asks it: maps of processes that have
/// no file of the family open are not read, and what cannot be inspected is passed over.
///
/// # Errors
/// As [`scan`].
pub fn dangerous(family: &Family) -> Result<Vec<Holder>> {
    Ok(system::dangerous(family)?.into_iter().map(|h| h.with_consequences(family)).collect())
}

/// As [`dangerous`], of these processes alone.
///
/// # Errors
/// As [`scan`].
#[cfg(target_os = "linux")]
pub fn dangerous_among(family: &Family, pids: &[i32]) -> Result<Vec<Holder>> {
    let found = system::dangerous_among(family, pids.to_vec())?;
    Ok(found.into_iter().map(|h| h.with_consequences(family)).collect())
}

/// The processes that have the present `-shm` mapped. Those that may not be looked at are not among them.
#[cfg(target_os = "linux")]
pub(crate) fn mapping_index(family: &Family) -> Result<Vec<i32>> {
    system::mapping_index(family)
}

/// Naked and ghost, from what a process has and holds.
pub(crate) fn judge(files: &[HeldFile], locks: &[FileLock]) -> (bool, bool) {
    let of = |member: Member| files.iter().filter(move |f| f.member == member);
    let locked = |file: &HeldFile, lock: fn(&FileLock) -> bool| {
        locks.iter().any(|l| (l.device, l.inode) == (file.device, file.inode) && lock(l))
    };
    // Whoever can only read an index that is gone believes in nothing that a lock would have to protect: an anchor that keeps others
    // back by it.
    let keeps = |shm: &HeldFile| shm.generation == Standing::Retired && shm.via == Via::Descriptor && !shm.writable;
    let naked = of(Member::Shm).filter(|shm| !keeps(shm)).any(|shm| {
        // The main file of the same generation; after a main file was replaced alone it is the only one there is.
        let same: Vec<&HeldFile> = of(Member::Main).filter(|m| m.generation == shm.generation).collect();
        let mains = if same.is_empty() { of(Member::Main).collect() } else { same };
        !locked(shm, |l| l.dms) || !mains.iter().any(|m| locked(m, |l| l.shared))
    });
    let ghost = files
        .iter()
        .any(|f| f.generation == Standing::Retired && f.writable && matches!(f.member, Member::Main | Member::Wal));
    (naked, ghost)
}

/// A lock on a file, as far as the judgement needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileLock {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// It covers the shared range of a main file.
    pub(crate) shared: bool,
    /// It covers byte 128 of a shared index.
    pub(crate) dms: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(member: Member, generation: Standing, inode: u64, writable: bool) -> HeldFile {
        HeldFile {
            member,
            generation,
            deleted: generation == Standing::Retired,
            via: Via::Descriptor,
            descriptor: Some(3),
            writable,
            size: None,
            device: 1,
            inode,
        }
    }

    fn lock(inode: u64) -> FileLock {
        FileLock { device: 1, inode, shared: true, dms: true }
    }

    #[test]
    fn one_missing_lock_is_enough_to_be_naked() {
        use Member::{Main, Shm, Wal};
        use Standing::{Current, Retired};
        let whole = [file(Main, Current, 1, true), file(Wal, Current, 2, true), file(Shm, Current, 3, true)];
        assert_eq!(judge(&whole, &[lock(1), lock(3)]), (false, false));
        assert_eq!(judge(&whole, &[lock(1)]), (true, false));
        assert_eq!(judge(&whole, &[lock(3)]), (true, false));
        assert_eq!(judge(&whole, &[lock(1), lock(4)]), (true, false), "a lock on another file is none on this one");
        // A connection that never ran a statement has no index and needs no lock.
        assert_eq!(judge(&whole[..1], &[]), (false, false));

        let split = [file(Main, Current, 1, true), file(Wal, Retired, 2, true), file(Shm, Retired, 3, true)];
        assert_eq!(judge(&split, &[lock(1), lock(3)]), (false, true));
        assert_eq!(judge(&split, &[]), (true, true));
        let replaced = [file(Main, Retired, 1, true), file(Shm, Current, 3, true)];
        assert_eq!(judge(&replaced, &[lock(1), lock(3)]), (false, true));
        // Read-only descriptors on what is gone endanger nobody: an anchor, or someone who captures.
        assert_eq!(judge(&[file(Main, Retired, 1, false), file(Wal, Retired, 2, false)], &[]), (false, false));
        let keeps = [file(Main, Current, 1, false), file(Wal, Retired, 2, false), file(Shm, Retired, 3, false)];
        assert_eq!(judge(&keeps, &[]), (false, false));
        // Two generations in one process, and the old one has lost its locks.
        let both = [whole.as_slice(), &[file(Main, Retired, 11, false), file(Shm, Retired, 13, true)]].concat();
        assert_eq!(judge(&both, &[lock(1), lock(3), lock(11), lock(13)]), (false, false));
        assert_eq!(judge(&both, &[lock(1), lock(3), lock(13)]), (true, false));
    }

    #[test]
    fn a_report_has_the_promised_words() {
        let holder = Holder {
            pid: Some(7),
            start_ticks: Some(1),
            start_time: Some("1970-01-01T00:00:00.000000Z".into()),
            command: vec!["x".into()],
            user: Some("me".into()),
            role: None,
            fenced: false,
            parked: false,
            is_self: false,
            pid_namespace: Namespace::Same,
            files: vec![file(Member::Wal, Standing::Retired, 1, true)],
            locks: HeldLocks::default(),
            naked: false,
            ghost: true,
            kept_back: false,
            evidence: Evidence::Identity,
            held_bytes: 0,
            hold: None,
            capture: None,
            stop: "kill 7  # x".into(),
            signal: Some("kill"),
            halted: false,
        };
        let report = Report {
            path: "/h/s.db".into(),
            verdict: Verdict::Held,
            uninspected: 0,
            limits: vec![],
            holders: vec![holder],
        };
        assert!(report.alarming());
        let json = serde_json::to_value(&report).unwrap_or_default();
        assert_eq!(json["verdict"], "held");
        assert_eq!(json["holders"][0]["self"], false);
        assert_eq!(json["holders"][0]["role"], serde_json::Value::Null);
        assert_eq!(json["holders"][0]["pid_namespace"], "same");
        assert_eq!(json["holders"][0]["files"][0]["generation"], "retired");
        assert_eq!(json["holders"][0]["files"][0]["via"], "descriptor");
        assert_eq!(json["holders"][0]["evidence"], "identity");
        for name in ["shared", "dms", "reserved", "write", "checkpoint"] {
            assert_eq!(json["holders"][0]["locks"][name], false);
        }
        assert_eq!(json["holders"][0]["locks"]["readers"], serde_json::json!([]));
    }
}
