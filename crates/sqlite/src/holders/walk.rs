//! Walks through `/proc` and gathers, for each process, what it has of one family: descriptors, maps, locks.
//!
//! A descriptor is recognised by `stat` on `/proc/PID/fd/N`, which leads to the very file and opens nothing. Only a regular
//! file that is not what one of the paths names now is asked for its name, to find what was unlinked or replaced.
//!
//! Nearly every process has nothing of the family, so a quick look comes first. Who may have something is looked at again
//! through its own directory in `/proc`, kept open: it leads to that process and never to a later one with its number.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::target::{FileId, Target};
use super::text::{self, DescriptorInfo, Lock};
use super::{HeldFile, Standing, Via, maps};
use crate::error::{Error, Result};
use crate::family::Member;
use crate::ofd::SHARED;
use crate::process::{self, ProcessId, Stat};

/// What a process has of the family.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    pub(super) process: ProcessId,
    pub(super) files: Vec<HeldFile>,
    pub(super) locks: Vec<(FileId, Lock)>,
}

/// A process that may not be looked at.
#[derive(Debug)]
pub(super) struct Opaque {
    pub(super) pid: i32,
    /// Zero where not even that can be read.
    pub(super) start_ticks: u64,
}

/// What one look at a process gave.
pub(super) enum Seen {
    Holder(Facts),
    /// It has nothing of the family, it is gone, or it is a part of the kernel.
    Nothing,
    /// It may not be looked at.
    Denied(Opaque),
}

/// Buffers for walking, used again for every process.
pub(super) struct Walker {
    proc: OwnedFd,
    entries: Vec<u8>,
    link: Vec<u8>,
    text: Vec<u8>,
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What a process shows of itself, as the kernel writes it.
#[derive(Debug, Default)]
pub(super) struct Papers {
    pub(super) command: Vec<u8>,
    pub(super) cgroup: Vec<u8>,
    pub(super) status: Vec<u8>,
    pub(super) pid_namespace: Option<u64>,
}

/// One process: its directory below `/proc` by name and open.
struct Process {
    name: String,
    directory: OwnedFd,
}

impl Walker {
    pub(super) fn new() -> Result<Walker> {
        let path = Path::new("/proc");
        let io = |e: std::io::Error| Error::io("look at the processes in", path, e);
        let proc = rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(|e| io(e.into()))?;
        // A directory that is no procfs, or one of a pid namespace that this process is not in, would make every database
        // look quiet.
        let own = rustix::fs::statat(&proc, "self/fd", AtFlags::empty());
        own.map_err(|e| {
            io(std::io::Error::new(
                std::io::Error::from(e).kind(),
                "no procfs of this process is mounted there, so nobody can be seen; `mount -t proc proc /proc` in this \
                 namespace, or run it outside",
            ))
        })?;
        Ok(Walker { proc, entries: Vec::with_capacity(32768), link: vec![0; 8192], text: Vec::new() })
    }

    /// The numbers of all processes that `/proc` shows.
    pub(super) fn processes(&mut self) -> Result<Vec<i32>> {
        let mut pids = Vec::with_capacity(256);
        let io = |e: Errno| Error::io("list the processes in", Path::new("/proc"), e);
        let again = rustix::fs::openat(&self.proc, ".", DIRECTORY, Mode::empty()).map_err(io)?;
        let mut directory = RawDir::new(again, self.entries.spare_capacity_mut());
        while let Some(entry) = directory.next() {
            let entry = entry.map_err(io)?;
            pids.extend(number(entry.file_name()));
        }
        Ok(pids)
    }

    /// This process's own number, as `/proc` shows it: where it is that of another pid namespace, the system's own call
    /// gives another one.
    pub(super) fn own(&mut self) -> Option<i32> {
        let n = rustix::fs::readlinkat_raw(&self.proc, "self", self.link.as_mut_slice()).ok()?;
        std::str::from_utf8(self.link.get(..n)?).ok()?.parse().ok()
    }

    /// Reads a file of a process.
    pub(super) fn read(&mut self, pid: i32, name: &str) -> Option<&[u8]> {
        process::read_file(&self.proc, &format!("{pid}/{name}"), &mut self.text).ok()?;
        Some(&self.text)
    }

    /// Reads who a process is; `None` if it is not that one any more.
    pub(super) fn papers(&mut self, id: ProcessId) -> Option<Papers> {
        let directory = rustix::fs::openat(&self.proc, id.pid.to_string(), DIRECTORY, Mode::empty()).ok()?;
        let process = Process { name: id.pid.to_string(), directory };
        let start_ticks = self.of(&process, "stat").and_then(Stat::parse).map(|s| s.start_ticks);
        if id.start_ticks > 0 && start_ticks.is_some_and(|t| t != id.start_ticks) {
            return None;
        }
        let mut whole = |name| self.of(&process, name).unwrap_or(b"").to_vec();
        Some(Papers {
            command: whole("cmdline"),
            cgroup: whole("cgroup"),
            status: whole("status"),
            pid_namespace: rustix::fs::statat(&process.directory, "ns/pid", AtFlags::empty()).ok().map(|s| s.st_ino),
        })
    }

    /// Looks at one process. With `maps` also for what it has mapped and closed, if it has no descriptor of the family.
    pub(super) fn look(&mut self, target: &Target, pid: i32, maps: bool) -> Seen {
        let opened = rustix::fs::openat(&self.proc, format!("{pid}/fd"), DIRECTORY, Mode::empty());
        let descriptors = match opened {
            Ok(fd) => fd,
            Err(Errno::ACCESS | Errno::PERM) => return self.denied(pid),
            Err(_) => return Seen::Nothing,
        };
        let mut found = Vec::new();
        match self.descriptors(target, &pid.to_string(), &descriptors, Look::Quick, &mut found) {
            Ok(0) => return self.without_descriptors(target, pid, maps),
            Ok(_) if found.is_empty() && !(maps && self.maps_any(target, pid)) => return Seen::Nothing,
            Ok(_) => {}
            Err(_) => return self.denied(pid),
        }
        let seen = self.examine(target, pid, &pid.to_string());
        // Threads share their maps always and their descriptors mostly.
        if let Seen::Holder(facts) = &seen
            && facts.files.iter().all(|f| f.via == Via::Mapping)
            && self.threads(pid) > 1
            && let whole @ Seen::Holder(_) = self.look_at_threads(target, pid)
        {
            return whole;
        }
        seen
    }

    fn denied(&mut self, pid: i32) -> Seen {
        match process::read_file(&self.proc, &format!("{pid}/stat"), &mut self.text) {
            Ok(()) => match Stat::parse(&self.text) {
                Some(stat) if !stat.of_kernel() && !stat.ended() => {
                    Seen::Denied(Opaque { pid, start_ticks: stat.start_ticks })
                }
                _ => Seen::Nothing,
            },
            // Mounted with `hidepid=1`, not even that can be read.
            Err(Errno::ACCESS | Errno::PERM) => Seen::Denied(Opaque { pid, start_ticks: 0 }),
            Err(_) => Seen::Nothing,
        }
    }

    /// A process without descriptors is mostly a part of the kernel or a zombie. But one whose first thread has ended
    /// looks like a zombie too, and the files are with the threads that go on.
    fn without_descriptors(&mut self, target: &Target, pid: i32, maps: bool) -> Seen {
        if self.threads(pid) > 1
            && let seen @ Seen::Holder(_) = self.look_at_threads(target, pid)
        {
            return seen;
        }
        if maps && self.maps_any(target, pid) {
            return self.examine(target, pid, &pid.to_string());
        }
        Seen::Nothing
    }

    fn threads(&self, pid: i32) -> u32 {
        // Each thread is a directory in there, beside the two that every directory has.
        let wanted = rustix::fs::StatxFlags::NLINK;
        let tasks = rustix::fs::statx(&self.proc, format!("{pid}/task"), AtFlags::empty(), wanted);
        tasks.map_or(0, |s| s.stx_nlink.saturating_sub(2))
    }

    /// Looks at each thread of a process, for its first one shows only its own table of descriptors.
    pub(super) fn look_at_threads(&mut self, target: &Target, pid: i32) -> Seen {
        let mut threads = Vec::new();
        if let Ok(tasks) = rustix::fs::openat(&self.proc, format!("{pid}/task"), DIRECTORY, Mode::empty()) {
            let mut directory = RawDir::new(tasks, self.entries.spare_capacity_mut());
            while let Some(Ok(entry)) = directory.next() {
                threads.extend(number(entry.file_name()));
            }
        }
        for thread in threads {
            if let Seen::Holder(mut facts) = self.examine(target, pid, &format!("{pid}/task/{thread}"))
                && facts.files.iter().any(|f| f.via == Via::Descriptor)
                && let Some(stat) = self.read(pid, "stat").and_then(Stat::parse)
            {
                // A thread has a start of its own; the process is told by that of its first one.
                facts.process.start_ticks = stat.start_ticks;
                return Seen::Holder(facts);
            }
        }
        Seen::Nothing
    }

    /// Looks closely at one process, or at one of its threads, through its own directory.
    fn examine(&mut self, target: &Target, pid: i32, name: &str) -> Seen {
        let open = |at: &OwnedFd, name: &str| rustix::fs::openat(at, name, DIRECTORY, Mode::empty());
        let Ok(directory) = open(&self.proc, name) else { return Seen::Nothing };
        let Ok(descriptors) = open(&directory, "fd") else { return Seen::Nothing };
        let process = Process { name: name.to_owned(), directory };
        let mut found = Vec::new();
        if self.descriptors(target, name, &descriptors, Look::Close, &mut found).is_err() {
            return Seen::Nothing;
        }
        let mut facts = Facts { process: ProcessId { pid, start_ticks: 0 }, files: Vec::new(), locks: Vec::new() };
        for found in &found {
            self.take(&process, &descriptors, found, &mut facts);
        }
        if !facts.files.is_empty() && !facts.files.iter().any(|f| f.member == Member::Main) {
            self.moved_main(target, &process, &descriptors, &mut facts);
        }
        if !facts.files.iter().any(|f| f.member == Member::Shm) {
            self.maps(target, &process, &mut facts);
        }
        if facts.files.is_empty() {
            return Seen::Nothing;
        }
        match self.of(&process, "stat").and_then(Stat::parse) {
            Some(stat) => facts.process.start_ticks = stat.start_ticks,
            None => return Seen::Nothing,
        }
        Seen::Holder(facts)
    }

    fn of(&mut self, process: &Process, name: &str) -> Option<&[u8]> {
        process::read_file(&process.directory, name, &mut self.text).ok()?;
        Some(&self.text)
    }

    /// The descriptors that lead to a member, current or retired, and how many there are of any kind.
    fn descriptors(
        &mut self,
        target: &Target,
        name: &str,
        descriptors: &OwnedFd,
        look: Look,
        found: &mut Vec<Found>,
    ) -> Result<usize, Errno> {
        let mut count = 0;
        let mut directory = RawDir::new(descriptors, self.entries.spare_capacity_mut());
        while let Some(entry) = directory.next() {
            let entry = entry?;
            let Some(descriptor) = number(entry.file_name()) else { continue };
            count += 1;
            let status = match rustix::fs::statat(descriptors, entry.file_name(), AtFlags::empty()) {
                Ok(status) => status,
                // The directory may be listed by the same user in another user namespace or with more capabilities, and what
                // it leads to may not be looked at. A file system that answers so for a file of its own lets its name be read.
                Err(e @ (Errno::ACCESS | Errno::PERM)) => {
                    match rustix::fs::readlinkat_raw(descriptors, entry.file_name(), self.link.as_mut_slice()) {
                        Err(Errno::ACCESS | Errno::PERM) => return Err(e),
                        _ => continue,
                    }
                }
                // It was closed meanwhile.
                Err(_) => continue,
            };
            if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
                continue;
            }
            let id = (status.st_dev, status.st_ino);
            let deleted = status.st_nlink == 0;
            let (member, generation) = match target.current(id) {
                Some(member) => (member, Standing::Current),
                None if let Some(member) = target.moved(id) => (member, Standing::Retired),
                None if deleted
                    || target.devices.contains(&id.0) && (look == Look::Close || shaped(status.st_size)) =>
                {
                    let link = rustix::fs::readlinkat_raw(descriptors, entry.file_name(), self.link.as_mut_slice());
                    let Some(link) = link.ok().and_then(|n| self.link.get(..n)) else { continue };
                    match target.retired(name, link, id, deleted) {
                        Some(member) => (member, Standing::Retired),
                        None => continue,
                    }
                }
                None => continue,
            };
            found.push(Found { member, generation, id, descriptor, size: status.st_size, deleted });
        }
        Ok(count)
    }

    /// Adds a descriptor with its locks, unless it was closed meanwhile or can do nothing.
    fn take(&mut self, process: &Process, descriptors: &OwnedFd, found: &Found, facts: &mut Facts) {
        let Some(info) = self.of(process, &format!("fdinfo/{}", found.descriptor)).map(DescriptorInfo::parse) else {
            return;
        };
        // The number may have been closed and opened for another file since it was found.
        let again = rustix::fs::statat(descriptors, found.descriptor.to_string(), AtFlags::empty());
        if info.path_only || !again.is_ok_and(|s| (s.st_dev, s.st_ino) == found.id) {
            return;
        }
        facts.locks.extend(info.locks.into_iter().map(|l| (found.id, l)));
        let same = |f: &&mut HeldFile| (f.device, f.inode) == found.id;
        if let Some(known) = facts.files.iter_mut().find(same) {
            if info.writable && !known.writable {
                (known.writable, known.descriptor) = (true, Some(found.descriptor));
            }
            return;
        }
        facts.files.push(HeldFile {
            member: found.member,
            generation: found.generation,
            deleted: found.deleted,
            via: Via::Descriptor,
            descriptor: Some(found.descriptor),
            writable: info.writable,
            size: u64::try_from(found.size).ok(),
            device: found.id.0,
            inode: found.id.1,
        });
    }

    /// A process that has sidecars of the family and no main file has one under another name: it was moved away. It is
    /// recognised by SQLite's shared lock, and by having no sidecars of its own name.
    fn moved_main(&mut self, target: &Target, process: &Process, descriptors: &OwnedFd, facts: &mut Facts) {
        let mut candidates: Vec<(Found, Vec<u8>)> = Vec::new();
        let mut names = Vec::new();
        if rustix::fs::seek(descriptors, rustix::fs::SeekFrom::Start(0)).is_err() {
            return;
        }
        let mut directory = RawDir::new(descriptors, self.entries.spare_capacity_mut());
        while let Some(Ok(entry)) = directory.next() {
            let Some(descriptor) = number(entry.file_name()) else { continue };
            let Ok(status) = rustix::fs::statat(descriptors, entry.file_name(), AtFlags::empty()) else { continue };
            let id = (status.st_dev, status.st_ino);
            let regular = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
            if !regular || !target.devices.contains(&id.0) {
                continue;
            }
            let link = rustix::fs::readlinkat_raw(descriptors, entry.file_name(), self.link.as_mut_slice());
            let Some(link) = link.ok().and_then(|n| self.link.get(..n)) else { continue };
            let name = text::unmarked(link).0.to_vec();
            names.push(name.clone());
            if target.current(id).is_none() {
                let generation = Standing::Retired;
                let deleted = status.st_nlink == 0;
                let size = status.st_size;
                candidates.push((Found { member: Member::Main, generation, id, descriptor, size, deleted }, name));
            }
        }
        for (found, name) in candidates {
            let has = |suffix: &[u8]| names.contains(&[&name, suffix].concat());
            if has(b"-wal") || has(b"-shm") {
                continue;
            }
            let info = self.of(process, &format!("fdinfo/{}", found.descriptor)).map(DescriptorInfo::parse);
            if info.is_some_and(|i| i.locks.iter().any(|l| l.covers(SHARED))) {
                self.take(process, descriptors, &found, facts);
            }
        }
    }

    /// What is mapped without a descriptor.
    fn maps(&mut self, target: &Target, process: &Process, facts: &mut Facts) {
        let name = process.name.clone();
        let Some(text) = self.of(process, "maps") else { return };
        let mut files: Vec<HeldFile> = Vec::new();
        for map in text::mappings(text) {
            let Some((member, generation, id)) = mapped(target, &name, &map) else { continue };
            // The same file by descriptor may carry another device number, so the inode decides.
            if facts.files.iter().chain(&files).any(|f| f.member == member && f.inode == id.1) {
                continue;
            }
            let area = format!("map_files/{}", String::from_utf8_lossy(map.area));
            // Only the administrator is told the length of a file that is mapped.
            let status = rustix::fs::statat(&process.directory, area, AtFlags::empty()).ok();
            let status = status.filter(|s| s.st_ino == id.1);
            files.push(HeldFile {
                member,
                generation,
                deleted: status.map_or(generation == Standing::Retired, |s| s.st_nlink == 0),
                via: Via::Mapping,
                descriptor: None,
                writable: map.writable,
                size: status.and_then(|s| u64::try_from(s.st_size).ok()),
                device: id.0,
                inode: id.1,
            });
        }
        facts.files.append(&mut files);
    }

    fn maps_any(&mut self, target: &Target, pid: i32) -> bool {
        let name = pid.to_string();
        self.shared_maps(target, pid)
            .is_some_and(|text| text::mappings(text).any(|m| mapped(target, &name, &m).is_some()))
    }

    /// The maps of a process, if it may have one that counts.
    fn shared_maps(&mut self, target: &Target, pid: i32) -> Option<&[u8]> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let maps = rustix::fs::openat(&self.proc, format!("{pid}/maps"), flags, Mode::empty()).ok()?;
        let counts = |device, inode, name: &[u8]| target.shown(device, inode).is_some() || text::unmarked(name).1;
        if !maps::may_have(&maps, counts) {
            return None;
        }
        process::read_all(&maps, &mut self.text).ok()?;
        Some(&self.text)
    }

    /// True if a process has the present index mapped.
    pub(super) fn maps_index(&mut self, target: &Target, pid: i32) -> bool {
        let is_index = |m: text::Mapping<'_>| matches!(target.shown(m.device, m.inode), Some((Member::Shm, _)));
        self.shared_maps(target, pid).is_some_and(|text| text::mappings(text).any(is_index))
    }

    /// Reads `/proc/locks`.
    pub(super) fn lock_table(&mut self) -> Result<Vec<Lock>> {
        process::read_file(self.proc.as_fd(), "locks", &mut self.text)
            .map_err(|e| match e {
                Errno::NOENT => std::io::Error::new(
                    std::io::ErrorKind::NotFound,
                    "this /proc shows processes and nothing else (mounted with subset=pid); `mount -t proc proc /proc` in \
                     this namespace, or run it outside",
                ),
                e => e.into(),
            })
            .map_err(|e: std::io::Error| Error::io("read", Path::new("/proc/locks"), e))?;
        Ok(text::locks(&self.text))
    }
}

/// The member that a map leads to.
fn mapped(target: &Target, process: &str, map: &text::Mapping<'_>) -> Option<(Member, Standing, FileId)> {
    if let Some((member, id)) = target.shown(map.device, map.inode) {
        return Some((member, Standing::Current, id));
    }
    let id = (rustix::fs::makedev(map.device.0, map.device.1), map.inode);
    let path = crate::filesystem::unescape(map.path);
    Some((target.retired(process, &path, id, false)?, Standing::Retired, id))
}

/// How closely descriptors are looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// For whether there is anything at all of the family.
    Quick,
    Close,
}

/// True for a length that a file of SQLite can have. Asking for a name costs as much as all else about a descriptor, so the
/// quick look does not ask for the names of files that have one still and are of any other length.
fn shaped(size: i64) -> bool {
    const PAGES: [i64; 8] = [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];
    // Whole pages; an index that was just emptied; a log up to the end of a frame, or of the header of one.
    size % 512 == 0 || size == 3 || PAGES.iter().any(|page| matches!((size - 32) % (page + 24), 0 | 24))
}

/// A descriptor of a process that leads to a member.
struct Found {
    member: Member,
    generation: Standing,
    id: FileId,
    descriptor: i32,
    size: i64,
    deleted: bool,
}

fn number(name: &CStr) -> Option<i32> {
    std::str::from_utf8(name.to_bytes()).ok().filter(|n| n.starts_with(|c: char| c.is_ascii_digit()))?.parse().ok()
}
