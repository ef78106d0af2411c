//! The family that is looked for, as its paths name it at this moment, and how a file of another process is told to be one
//! of its members.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::text;
use crate::error::{Error, Result};
use crate::family::{Family, Member, Status};
use crate::process;

/// Device and inode. They are enough for what is open at this moment: a number is handed out again only after that.
pub(super) type FileId = (u64, u64);

/// The family that is looked for, as its paths name it at this moment.
pub(super) struct Target {
    pub(super) directory: PathBuf,
    directory_id: Option<FileId>,
    names: [Vec<u8>; 4],
    current: [Option<FileId>; 4],
    /// What processes of ours have moved away, by its inode.
    moved: Vec<(Member, u64)>,
    pub(super) devices: Vec<u64>,
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
            moved: moved(family),
            devices,
            shown_devices,
            mount_namespace: process::namespace("self", "mnt"),
        })
    }

    /// The member that this file is now.
    pub(super) fn current(&self, id: FileId) -> Option<Member> {
        Member::ALL.into_iter().zip(self.current).find(|(_, c)| *c == Some(id)).map(|(m, _)| m)
    }

    /// The member that this file was until a process of ours took it away from its path, for it did not belong to what lies there.
    /// Somebody may have both open, and go on copying one into the other.
    pub(super) fn moved(&self, id: FileId) -> Option<Member> {
        let here = self.directory_id.is_some_and(|directory| directory.0 == id.0);
        self.moved.iter().find(|(_, inode)| here && *inode == id.1).map(|(member, _)| *member)
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

    pub(super) fn leads_here(&self, root: &Path, directory: &[u8]) -> bool {
        let relative = directory.strip_prefix(b"/").unwrap_or(directory);
        let path = root.join(std::ffi::OsStr::from_bytes(relative));
        let id = rustix::fs::stat(path).ok().map(|s| (s.st_dev, s.st_ino));
        id.is_some() && id == self.directory_id
    }

    /// The same for a directory that the kernel names from outside the root of the process (chroot). In a mount namespace that
    /// is not this one the name begins where that namespace does, so it is followed from the root of the process.
    fn below_root(&self, root: &Path, directory: &[u8]) -> bool {
        let Ok(name) = rustix::fs::readlink(root, Vec::new()) else { return false };
        let below =
            directory.strip_prefix(name.as_bytes()).filter(|rest| name.as_bytes() != b"/" && rest.starts_with(b"/"));
        below.is_some_and(|rest| self.leads_here(root, rest))
    }

    /// The member that a file was which is none now, from the name that the kernel gives it. `process` is the directory of
    /// the process below `/proc`, which tells from where the name is to be read.
    pub(super) fn retired(&self, process: &str, link: &[u8], id: FileId, deleted: bool) -> Option<Member> {
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
            && process::namespace(process, "mnt") == self.mount_namespace;
        let root = PathBuf::from(format!("/proc/{process}/root"));
        (here || self.leads_here(&root, directory) || self.below_root(&root, directory)).then_some(member)
    }
}

/// What was moved away and is still there, by the names that `putback.rs` and `replaced.rs` give.
fn moved(family: &Family) -> Vec<(Member, u64)> {
    let Ok(entries) = std::fs::read_dir(family.side_directory().join("retired")) else { return Vec::new() };
    let of = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_str()?;
        let (member, inode) = match name.strip_suffix(".moved") {
            Some(moved) => {
                let (member, inode) = moved.split_once('-')?;
                (Member::ALL.into_iter().find(|m| m.to_string() == member)?, inode)
            }
            None => (Member::Main, name.strip_prefix("unsound-")?.split('-').next()?),
        };
        Some((member, u64::from_str_radix(inode, 16).ok()?))
    };
    entries.flatten().filter_map(of).collect()
}
