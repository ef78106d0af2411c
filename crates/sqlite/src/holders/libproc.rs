//! macOS: what libproc's records say, and what follows from it.
//!
//! No call of that system is made here, so all of it is tested wherever the crate is built. The records are taken apart by
//! offset, for their C declarations (`sys/proc_info.h`) are no promise to anybody but Apple's own tools; so one record of a
//! known file is compared first ([`System::prove`]), and when it is not understood, nothing is concluded.
//!
//! There is no table of locks: whether a holder still has its own cannot be seen, and a process that may not be looked at
//! cannot be cleared. What cannot be seen makes the answer `unknown`, never `quiet`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Evidence, HeldFile, HeldLocks, Holder, Namespace, Report, Standing, Verdict, Via, judge};
use crate::error::{Error, Result};
use crate::family::{Family, Member, Status};
use crate::words::{one_line, rfc3339};

/// Bytes of `struct vnode_fdinfowithpath`: 24 of the descriptor, then the file.
pub(super) const DESCRIPTOR_RECORD: usize = 24 + FILE_RECORD;
/// Bytes of `struct proc_regionwithpathinfo`: 96 of the region, then the file.
pub(super) const REGION_RECORD: usize = 96 + FILE_RECORD;
/// Bytes of `struct vnode_info_path`: 152 of the file, then its path.
const FILE_RECORD: usize = 152 + 1024;
/// Bytes of `struct proc_fdinfo`.
const ENTRY: usize = 8;
/// `PROX_FDTYPE_VNODE`: the descriptor leads to a file.
const VNODE: u32 = 1;

/// As on Linux: a file that is replaced while the processes are listed looks retired once, and not again.
const LOOKS: usize = 5;
const BETWEEN_LOOKS: Duration = Duration::from_millis(25);

/// Device and inode. The birth time that a record carries as well is not needed: as long as a file is open, its number is
/// not handed out again.
pub(super) type FileId = (u64, u64);

/// A file that a process has, as its record says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Open {
    /// `None` for what is only mapped.
    pub(super) descriptor: Option<i32>,
    pub(super) id: FileId,
    pub(super) regular: bool,
    pub(super) writable: bool,
    pub(super) links: u16,
    pub(super) size: Option<u64>,
    /// Where the system last knew it; empty if it does not tell.
    pub(super) path: Vec<u8>,
}

fn field<const N: usize>(record: &[u8], at: usize) -> Option<[u8; N]> {
    record.get(at..)?.first_chunk().copied()
}

/// `struct vnode_info_path`. `None` if it has another length or its path has no end: then it is no such record.
fn file(record: &[u8], descriptor: Option<i32>, writable: bool) -> Option<Open> {
    if record.len() != FILE_RECORD {
        return None;
    }
    let path = record.get(152..)?;
    let end = path.iter().position(|b| *b == 0)?;
    Some(Open {
        descriptor,
        id: (u64::from(u32::from_ne_bytes(field(record, 0)?)), u64::from_ne_bytes(field(record, 8)?)),
        regular: u16::from_ne_bytes(field(record, 4)?) & 0o170_000 == 0o100_000,
        writable,
        links: u16::from_ne_bytes(field(record, 6)?),
        size: i64::from_ne_bytes(field(record, 88)?).try_into().ok(),
        path: path[..end].to_vec(),
    })
}

/// The record of a descriptor. `None` if it cannot be understood.
pub(super) fn descriptor(number: i32, record: &[u8]) -> Option<Open> {
    /// Of `fi_openflags`, which are the kernel's own and not those of `open`.
    const FWRITE: u32 = 2;
    let flags = u32::from_ne_bytes(field(record, 0)?);
    file(record.get(24..)?, Some(number), flags & FWRITE != 0)
}

/// The record of a region of memory that a file is mapped to, and the address behind it. `None` if it cannot be understood.
pub(super) fn region(record: &[u8]) -> Option<(Open, u64)> {
    const VM_PROT_WRITE: u32 = 2;
    let protection = u32::from_ne_bytes(field(record, 0)?);
    let (start, length) = (u64::from_ne_bytes(field(record, 80)?), u64::from_ne_bytes(field(record, 88)?));
    let open = file(record.get(96..)?, None, protection & VM_PROT_WRITE != 0)?;
    Some((open, start.checked_add(length.max(1))?))
}

/// The numbers of the descriptors that lead to files, from an array of `struct proc_fdinfo`.
pub(super) fn numbers(entries: &[u8]) -> Vec<i32> {
    let vnode = |e: &&[u8]| field(e, 4).map(u32::from_ne_bytes) == Some(VNODE);
    entries.chunks_exact(ENTRY).filter(vnode).filter_map(|e| field(e, 0).map(i32::from_ne_bytes)).collect()
}

/// What one look at a process gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Look {
    /// Its files, all of them.
    Files(Vec<Open>),
    /// It may not be looked at, or not all that it has was understood.
    Denied,
    /// It is gone.
    Gone,
}

/// What is told about a process itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct About {
    pub(super) user: Option<u32>,
    /// Microseconds since 1970.
    pub(super) started: Option<u64>,
    pub(super) program: Option<String>,
}

/// What the system is asked for.
pub(super) trait System {
    /// True if the records mean what this module reads in them, on this very machine; else what did not.
    fn prove(&mut self) -> Result<(), String>;
    /// The numbers of all processes but the kernel.
    fn processes(&mut self) -> std::io::Result<Vec<i32>>;
    fn look(&mut self, pid: i32) -> Look;
    fn about(&mut self, pid: i32) -> About;
}

/// The family as its paths name it at one moment.
struct Target {
    directory: PathBuf,
    directory_id: FileId,
    names: [OsString; 4],
    current: [Option<FileId>; 4],
}

/// What a file is to the family.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Member(Member, Standing),
    /// It has no name any more, and the system does not tell the one it had.
    Nameless,
    Stranger,
}

fn id(path: &Path) -> std::io::Result<Option<FileId>> {
    Ok(Status::of(path)?.map(|s| (s.identity.device, s.identity.inode)))
}

impl Target {
    fn of(family: &Family) -> Result<Target> {
        let look = |path: &Path| id(path).map_err(|e| Error::io("look at", path, e));
        let mut current = [None; 4];
        for (slot, member) in current.iter_mut().zip(Member::ALL) {
            *slot = look(&family.path(member))?;
        }
        let directory = family.directory();
        let gone = || Error::io("look at", directory, std::io::ErrorKind::NotFound);
        Ok(Target {
            directory: directory.to_owned(),
            directory_id: look(directory)?.ok_or_else(gone)?,
            names: Member::ALL.map(|m| family.member_name(m)),
            current,
        })
    }

    fn place(&self, open: &Open) -> Place {
        if !open.regular {
            return Place::Stranger;
        }
        let current = Member::ALL.into_iter().zip(self.current).find(|(_, c)| *c == Some(open.id));
        if let Some((member, _)) = current {
            return Place::Member(member, Standing::Current);
        }
        if open.id.0 != self.directory_id.0 {
            return Place::Stranger;
        }
        if open.path.is_empty() {
            return if open.links == 0 { Place::Nameless } else { Place::Stranger };
        }
        let path = Path::new(OsStr::from_bytes(&open.path));
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return Place::Stranger };
        // Most volumes there do not tell capitals from small letters, and the path may have been typed in either.
        let named = Member::ALL.into_iter().zip(&self.names).find(|(_, n)| n.eq_ignore_ascii_case(name));
        let Some((member, _)) = named else { return Place::Stranger };
        let here = directory == self.directory || id(directory).is_ok_and(|d| d == Some(self.directory_id));
        // The number of links proves nothing, for a retired file may have another name: what counts is whom its path names.
        let names_it = id(path).is_ok_and(|now| now == Some(open.id));
        if here && !names_it { Place::Member(member, Standing::Retired) } else { Place::Stranger }
    }

    /// What of the family is among the files of a process, and whether one of them may be.
    fn held(&self, files: &[Open]) -> (Vec<HeldFile>, bool) {
        let (mut held, mut nameless) = (Vec::<HeldFile>::new(), false);
        for open in files {
            let (member, generation) = match self.place(open) {
                Place::Member(member, generation) => (member, generation),
                Place::Nameless => {
                    nameless |= open.writable;
                    continue;
                }
                Place::Stranger => continue,
            };
            if let Some(known) = held.iter_mut().find(|f| (f.device, f.inode) == open.id) {
                if open.writable && !known.writable {
                    (known.writable, known.descriptor) = (true, open.descriptor.or(known.descriptor));
                }
                continue;
            }
            held.push(HeldFile {
                member,
                generation,
                deleted: open.links == 0,
                via: if open.descriptor.is_some() { Via::Descriptor } else { Via::Mapping },
                descriptor: open.descriptor,
                writable: open.writable,
                size: open.size,
                device: open.id.0,
                inode: open.id.1,
            });
        }
        held.sort_by_key(|f| f.member);
        (held, nameless)
    }
}

fn retired(files: &[HeldFile]) -> bool {
    // Without locks only one half of this judgement means anything.
    judge(files, &[]).1
}

/// Looks again and again at a process that seems to be a ghost; true if it is one every time, by the same file.
fn stays_retired(family: &Family, system: &mut impl System, pid: i32, files: &[HeldFile]) -> Result<bool> {
    let started = system.about(pid).started;
    for _ in 1..LOOKS {
        std::thread::sleep(BETWEEN_LOOKS);
        let Look::Files(again) = system.look(pid) else { return Ok(false) };
        let (again, _) = Target::of(family)?.held(&again);
        let same = again.iter().any(|a| {
            a.generation == Standing::Retired && files.iter().any(|f| (f.device, f.inode) == (a.device, a.inode))
        });
        if !same || !retired(&again) || system.about(pid).started != started {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Looks at every process.
pub(super) fn scan(family: &Family, system: &mut impl System, own: i32) -> Result<Report> {
    let path = family.main().display().to_string();
    let target = Target::of(family)?;
    let pids = system.processes().map_err(|e| Error::io("list the processes for", &family.main(), e))?;
    if let Err(why) = system.prove() {
        let limit = format!("this version of macOS tells of open files in a way that is not understood ({why})");
        let uninspected = pids.len();
        return Ok(Report { path, verdict: Verdict::Unknown, uninspected, limits: vec![limit], holders: Vec::new() });
    }
    let mut limits =
        vec!["macOS shows no locks of other processes: whether a holder has lost its own is not known".to_owned()];
    let (mut holders, mut unclear, mut uninspected) = (Vec::new(), Vec::new(), 0);
    for pid in pids {
        let files = match system.look(pid) {
            Look::Files(files) => files,
            Look::Denied => {
                uninspected += 1;
                continue;
            }
            Look::Gone => continue,
        };
        let (mut files, nameless) = target.held(&files);
        if nameless {
            unclear.push(pid.to_string());
        }
        let mut ghost = retired(&files);
        if ghost && !stays_retired(family, system, pid, &files)? {
            // It was opening or closing, or the files were replaced meanwhile: it is shown as it is now.
            ghost = false;
            files = match system.look(pid) {
                Look::Files(files) => Target::of(family)?.held(&files).0,
                Look::Denied | Look::Gone => Vec::new(),
            };
        }
        if files.is_empty() {
            continue;
        }
        let has = |m: Member| files.iter().any(|f| f.member == m);
        if has(Member::Wal) && !has(Member::Main) {
            limits.push(format!("pid {pid} has the log and not the main file: it may have one that was moved away"));
        }
        holders.push(holder(pid, own, system.about(pid), files, ghost));
    }
    if uninspected > 0 {
        limits.push(format!(
            "the files of {uninspected} processes of other users cannot be listed, and any of them may use it: ask again as root"
        ));
    }
    if !unclear.is_empty() {
        limits.push(format!(
            "not cleared, for it writes into a deleted file of unknown name: pid {}",
            unclear.join(", ")
        ));
    }
    holders.sort_by_key(|h| h.pid);
    let verdict = match (uninspected > 0 || !unclear.is_empty(), holders.is_empty()) {
        (true, _) => Verdict::Unknown,
        (false, true) => Verdict::Quiet,
        (false, false) => Verdict::Held,
    };
    Ok(Report { path, verdict, uninspected, limits, holders })
}

fn holder(pid: i32, own: i32, about: About, files: Vec<HeldFile>, ghost: bool) -> Holder {
    let command: Vec<String> = about.program.into_iter().collect();
    Holder {
        pid: Some(pid),
        start_ticks: None,
        start_time: about.started.map(rfc3339),
        stop: format!("kill {pid}  # {}", one_line(&command)).trim_end_matches("  # ").to_owned(),
        command,
        user: about.user.map(|u| u.to_string()),
        role: None,
        fenced: false,
        parked: false,
        is_self: pid == own,
        // There is only one.
        pid_namespace: Namespace::Same,
        files,
        locks: HeldLocks::default(),
        naked: false,
        ghost,
        kept_back: false,
        evidence: Evidence::Identity,
        held_bytes: 0,
        hold: None,
        capture: None,
        signal: Some("kill"),
        halted: false,
    }
}

#[cfg(test)]
#[path = "libproc/tests.rs"]
mod tests;
