//! Walks through `/proc` and gathers, for each process, what it has of one family: descriptors, maps, locks.
//!
//! A descriptor is recognised by `stat` on `/proc/PID/fd/N`, which leads to the very file and opens nothing. Only a regular
//! file that is not what one of the paths names now is asked for its name, to find what was unlinked or replaced.

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::text::{self, DescriptorInfo, Lock};
use super::{HeldFile, Standing, Via};
use crate::error::{Error, Result};
use crate::family::{Family, Member, Status};
use crate::ofd::SHARED;
use crate::process::{self, ProcessId, Stat};

/// Device and inode. They are enough for what is open at this moment: a number is handed out again only after that.
pub(super) type FileId = (u64, u64);

/// The family that is looked for, as its paths name it at this moment.
pub(super) struct Target {
    directory: PathBuf,
    directory_id: Option<FileId>,
    names: [Vec<u8>; 4],
    current: [Option<FileId>; 4],
    devices: Vec<u64>,
    /// The device numbers that lock tables and maps may show for the same files. On btrfs they are those of the volume and
    /// not those that `stat` gives for a subvolume.
    shown_devices: Vec<(u32, u32)>,
    mount_namespace: Option<u64>,
}

impl Target {
    pub(super) fn of(family: &Family) -> Result<Target> {
        let mut current = [None; 4];
        for (slot, member) in current.iter_mut().zip(Member::ALL) {
            let path = family.path(member);
            let status = Status::of(&path).map_err(|e| Error::io("look at", &path, e))?;
            *slot = status.map(|s| (s.identity.device, s.identity.inode));
        }
        let directory = family.directory().to_owned();
        let directory_id = rustix::fs::stat(&directory).ok().map(|s| (s.st_dev, s.st_ino));
        let mut devices: Vec<u64> = current.iter().flatten().chain(&directory_id).map(|id| id.0).collect();
        devices.sort_unstable();
        devices.dedup();
        let shown = |d: &u64| (rustix::fs::major(*d), rustix::fs::minor(*d));
        let mut shown_devices: Vec<(u32, u32)> = devices.iter().map(shown).collect();
        shown_devices.extend(crate::filesystem::device(&directory));
        shown_devices.sort_unstable();
        shown_devices.dedup();
        Ok(Target {
            directory,
            directory_id,
            names: Member::ALL.map(|m| family.member_name(m).into_vec()),
            current,
            devices,
            shown_devices,
            mount_namespace: process::namespace("self", "mnt"),
        })
    }

    /// The member that this file is now.
    fn current(&self, id: FileId) -> Option<Member> {
        Member::ALL.into_iter().zip(self.current).find(|(_, c)| *c == Some(id)).map(|(m, _)| m)
    }

    /// The same for the numbers that lock tables and maps show.
    pub(super) fn shown(&self, device: (u32, u32), inode: u64) -> Option<(Member, FileId)> {
        if !self.shown_devices.contains(&device) {
            return None;
        }
        let found = Member::ALL.into_iter().zip(self.current).find(|(_, c)| c.is_some_and(|c| c.1 == inode));
        found.and_then(|(m, c)| Some((m, c?)))
    }

    /// The member whose path a command could name.
    pub(super) fn member_named(&self, path: &[u8]) -> Option<Member> {
        let (directory, name) = text::split(path)?;
        let member = self.named(name)?;
        let same = directory == self.directory.as_os_str().as_bytes() || self.leads_here(Path::new("/"), directory);
        same.then_some(member)
    }

    fn named(&self, name: &[u8]) -> Option<Member> {
        Member::ALL.into_iter().zip(&self.names).find(|(_, n)| *n == name).map(|(m, _)| m)
    }

    fn leads_here(&self, root: &Path, directory: &[u8]) -> bool {
        let relative = directory.strip_prefix(b"/").unwrap_or(directory);
        let path = root.join(std::ffi::OsStr::from_bytes(relative));
        let id = rustix::fs::stat(path).ok().map(|s| (s.st_dev, s.st_ino));
        id.is_some() && id == self.directory_id
    }

    /// The member that a file was which is none now, from the name that the kernel gives it.
    fn retired(&self, pid: i32, link: &[u8], id: FileId, deleted: bool) -> Option<Member> {
        let (name, marked) = text::unmarked(link);
        if !marked {
            return None;
        }
        let (directory, name) = text::split(name)?;
        let member = self.named(name)?;
        // The mark may be a part of the name of a file that is called so.
        if !deleted {
            let literal = rustix::fs::lstat(Path::new(std::ffi::OsStr::from_bytes(link)));
            if literal.is_ok_and(|s| s.st_ino == id.1) {
                return None;
            }
        }
        let here = directory == self.directory.as_os_str().as_bytes()
            && process::namespace(&pid.to_string(), "mnt") == self.mount_namespace;
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        (here || self.leads_here(&root, directory)).then_some(member)
    }
}

/// What a process has of the family.
#[derive(Debug)]
pub(super) struct Facts {
    pub(super) process: ProcessId,
    pub(super) files: Vec<HeldFile>,
    pub(super) locks: Vec<(FileId, Lock)>,
}

/// What one look at a process gave.
pub(super) enum Seen {
    Holder(Facts),
    /// It has nothing of the family, it is gone, or it is a part of the kernel.
    Nothing,
    /// It may not be looked at.
    Denied(Stat),
}

/// Buffers for walking, used again for every process.
pub(super) struct Walker {
    proc: OwnedFd,
    entries: Vec<u8>,
    link: Vec<u8>,
    text: Vec<u8>,
}

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Walker {
    pub(super) fn new() -> Result<Walker> {
        let path = Path::new("/proc");
        let io = |e: Errno| Error::io("look at the processes in", path, e);
        let proc = rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(io)?;
        // A directory that is no procfs would make every database look quiet.
        rustix::fs::statat(&proc, "self/fd", AtFlags::empty()).map_err(io)?;
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

    /// Reads a file of a process.
    pub(super) fn read(&mut self, pid: i32, name: &str) -> Option<&[u8]> {
        process::read_file(&self.proc, &format!("{pid}/{name}"), &mut self.text).ok()?;
        Some(&self.text)
    }

    fn stat(&mut self, pid: i32) -> Option<Stat> {
        self.read(pid, "stat").and_then(Stat::parse)
    }

    /// Looks at one process. With `maps` also for what it has mapped and closed, if it has no descriptor of the family.
    pub(super) fn look(&mut self, target: &Target, pid: i32, maps: bool) -> Seen {
        let opened = rustix::fs::openat(&self.proc, format!("{pid}/fd"), DIRECTORY, Mode::empty());
        let descriptors = match opened {
            Ok(fd) => fd,
            Err(Errno::ACCESS | Errno::PERM) => {
                return match self.stat(pid) {
                    Some(stat) if !stat.of_kernel() && !stat.ended() => Seen::Denied(stat),
                    _ => Seen::Nothing,
                };
            }
            Err(_) => return Seen::Nothing,
        };
        let mut found = Vec::new();
        if self.descriptors(target, pid, &descriptors, &mut found).is_err() {
            return match self.stat(pid) {
                Some(stat) if !stat.of_kernel() && !stat.ended() => Seen::Denied(stat),
                _ => Seen::Nothing,
            };
        }
        let mut facts = Facts { process: ProcessId { pid, start_ticks: 0 }, files: Vec::new(), locks: Vec::new() };
        for found in &found {
            self.take(pid, &descriptors, found, &mut facts);
        }
        if !facts.files.is_empty() && !facts.files.iter().any(|f| f.member == Member::Main) {
            self.moved_main(target, pid, &descriptors, &mut facts);
        }
        let has_index = facts.files.iter().any(|f| f.member == Member::Shm);
        if (maps && facts.files.is_empty()) || (!facts.files.is_empty() && !has_index) {
            self.maps(target, pid, &mut facts);
        }
        if facts.files.is_empty() {
            return Seen::Nothing;
        }
        match self.stat(pid) {
            Some(stat) => facts.process.start_ticks = stat.start_ticks,
            None => return Seen::Nothing,
        }
        Seen::Holder(facts)
    }

    /// The descriptors that lead to a member, current or retired.
    fn descriptors(
        &mut self,
        target: &Target,
        pid: i32,
        descriptors: &OwnedFd,
        found: &mut Vec<Found>,
    ) -> Result<(), Errno> {
        let mut directory = RawDir::new(descriptors, self.entries.spare_capacity_mut());
        while let Some(entry) = directory.next() {
            let entry = entry?;
            let Some(descriptor) = number(entry.file_name()) else { continue };
            // A descriptor that was closed meanwhile is no error.
            let Ok(status) = rustix::fs::statat(descriptors, entry.file_name(), AtFlags::empty()) else { continue };
            if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
                continue;
            }
            let id = (status.st_dev, status.st_ino);
            let deleted = status.st_nlink == 0;
            let (member, generation) = match target.current(id) {
                Some(member) => (member, Standing::Current),
                None if deleted || target.devices.contains(&id.0) => {
                    let link = rustix::fs::readlinkat_raw(descriptors, entry.file_name(), self.link.as_mut_slice());
                    let Some(link) = link.ok().and_then(|n| self.link.get(..n)) else { continue };
                    match target.retired(pid, link, id, deleted) {
                        Some(member) => (member, Standing::Retired),
                        None => continue,
                    }
                }
                None => continue,
            };
            found.push(Found { member, generation, id, descriptor, size: status.st_size, deleted });
        }
        Ok(())
    }

    /// Adds a descriptor with its locks, unless it was closed meanwhile or can do nothing.
    fn take(&mut self, pid: i32, descriptors: &OwnedFd, found: &Found, facts: &mut Facts) {
        let Some(info) = self.read(pid, &format!("fdinfo/{}", found.descriptor)).map(DescriptorInfo::parse) else {
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
    fn moved_main(&mut self, target: &Target, pid: i32, descriptors: &OwnedFd, facts: &mut Facts) {
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
            let info = self.read(pid, &format!("fdinfo/{}", found.descriptor)).map(DescriptorInfo::parse);
            if info.is_some_and(|i| i.locks.iter().any(|l| l.covers(SHARED))) {
                self.take(pid, descriptors, &found, facts);
            }
        }
    }

    /// What is mapped without a descriptor.
    fn maps(&mut self, target: &Target, pid: i32, facts: &mut Facts) {
        let Some(text) = self.read(pid, "maps") else { return };
        let mut files: Vec<HeldFile> = Vec::new();
        for map in text::mappings(text) {
            let (member, generation, id) = match target.shown(map.device, map.inode) {
                Some((member, id)) => (member, Standing::Current, id),
                None => {
                    let device = rustix::fs::makedev(map.device.0, map.device.1);
                    let path = crate::filesystem::unescape(map.path);
                    match target.retired(pid, &path, (device, map.inode), false) {
                        Some(member) => (member, Standing::Retired, (device, map.inode)),
                        None => continue,
                    }
                }
            };
            // The same file by descriptor may carry another device number, so the inode decides.
            if facts.files.iter().chain(&files).any(|f| f.member == member && f.inode == id.1) {
                continue;
            }
            files.push(HeldFile {
                member,
                generation,
                deleted: generation == Standing::Retired,
                via: Via::Mapping,
                descriptor: None,
                writable: map.writable,
                size: None,
                device: id.0,
                inode: id.1,
            });
        }
        facts.files.append(&mut files);
    }

    /// True if a process has the present index mapped.
    pub(super) fn maps_index(&mut self, target: &Target, pid: i32) -> bool {
        let is_index = |m: text::Mapping<'_>| matches!(target.shown(m.device, m.inode), Some((Member::Shm, _)));
        self.read(pid, "maps").is_some_and(|text| text::mappings(text).any(is_index))
    }

    /// Reads `/proc/locks`.
    pub(super) fn lock_table(&mut self) -> Result<Vec<Lock>> {
        process::read_file(self.proc.as_fd(), "locks", &mut self.text)
            .map_err(|e| Error::io("read", Path::new("/proc/locks"), e))?;
        Ok(text::locks(&self.text))
    }
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
