//! Where a capture is made: a directory of its own beside its final place, which appears there by a rename when it is whole.
//!
//! Everything goes through descriptors of directories that were entered without following a link, so that root can capture
//! beside a database of another user without being led elsewhere; what is made then belongs to that user. The directory in
//! the making is locked by whoever makes it. One that nobody has locked was left by a process that was killed, and the next
//! one removes it.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

use crate::captures::{self, STAGED};
use crate::error::{Error, Result};
use crate::family::{Family, Member, Status};
use crate::secure::{self, Inspected};
use crate::side;

/// Whose everything is that is made.
#[derive(Debug, Clone, Copy)]
struct Owner(Option<(u32, u32)>);

impl Owner {
    fn takes(self, file: BorrowedFd<'_>) -> rustix::io::Result<()> {
        match self.0 {
            None => Ok(()),
            Some((uid, gid)) => rustix::fs::fchown(file, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid))),
        }
    }
}

/// The directory of all captures of a database.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    side: OwnedFd,
    retired: OwnedFd,
    owner: Owner,
    /// True if this process has made the directory beside the database.
    made: bool,
    side_path: PathBuf,
}

impl Place {
    /// Makes it if it is not there. `model` is the file whose owner is that of the database, where the path names none.
    pub(super) fn open(family: &Family, model: BorrowedFd<'_>) -> Result<Place> {
        let inspected: Inspected = secure::inspect_place(family)?;
        let side_path = family.side_directory();
        let made = !side_path.exists();
        let owner = owner(family, model)?;
        let io = |path: &Path| {
            let path = path.to_owned();
            move |e: Errno| Error::io("give to its owner", &path, e)
        };
        let side = side::create(&inspected)?;
        let path = captures::directory(family);
        let name = path.file_name().unwrap_or(OsStr::new("retired"));
        let new = rustix::fs::statat(&side, name, AtFlags::SYMLINK_NOFOLLOW).is_err();
        let retired = side::subdirectory(&inspected, side.as_fd(), name, &path)?;
        if made {
            owner.takes(side.as_fd()).map_err(io(&side_path))?;
        }
        if new {
            owner.takes(retired.as_fd()).map_err(io(&path))?;
        }
        Ok(Place { path, side, retired, owner, made, side_path })
    }

    /// Bytes that this user may still write there.
    pub(super) fn free(&self) -> Result<u64> {
        let volume =
            rustix::fs::fstatvfs(&self.retired).map_err(|e| Error::io("ask for the free space of", &self.path, e))?;
        let blocks = if rustix::process::geteuid().is_root() { volume.f_bfree } else { volume.f_bavail };
        Ok(blocks.saturating_mul(volume.f_frsize))
    }

    /// The path under which a capture of this name is, or will be.
    pub(super) fn of(&self, id: &str) -> PathBuf {
        self.path.join(id)
    }

    /// True if there is a capture of this name.
    pub(super) fn has(&self, id: &str) -> bool {
        rustix::fs::statat(&self.retired, id, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Removes what processes that were killed have left.
    pub(super) fn clear(&self) {
        for abandoned in captures::entries(&secure::magic_path(self.retired.as_fd()), |name| name.contains(STAGED)) {
            let Ok(directory) = rustix::fs::open(&abandoned, side::DIRECTORY, Mode::empty()) else { continue };
            if rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok() {
                let _ = std::fs::remove_dir_all(&abandoned);
            }
        }
    }

    /// A new directory to make a capture in.
    pub(super) fn stage(&self) -> Result<Staged<'_>> {
        let io = |e: Errno| Error::io("create a directory in", &self.path, e);
        for n in 0..100 {
            let name = format!("new{STAGED}{}.{n}", std::process::id());
            match rustix::fs::mkdirat(&self.retired, name.as_str(), Mode::RWXU) {
                Ok(()) => {}
                Err(Errno::EXIST) => continue,
                Err(e) => return Err(io(e)),
            }
            let directory =
                rustix::fs::openat(&self.retired, name.as_str(), side::DIRECTORY, Mode::empty()).map_err(io)?;
            rustix::fs::flock(&directory, FlockOperation::NonBlockingLockExclusive).map_err(io)?;
            // Somebody may have taken it for abandoned before it was locked.
            let still = Status::of_descriptor(directory.as_fd()).is_ok_and(|s| s.links > 0);
            if still {
                return Ok(Staged { place: self, name, directory, published: false });
            }
        }
        Err(io(Errno::EXIST))
    }

    /// Takes away what was made for nothing.
    pub(super) fn abandon(self) {
        let _ = rustix::fs::unlinkat(&self.side, "retired", AtFlags::REMOVEDIR);
        if self.made {
            let _ = std::fs::remove_dir(&self.side_path);
        }
    }
}

/// Root makes files for whoever owns the database; everybody else only for themselves.
fn owner(family: &Family, model: BorrowedFd<'_>) -> Result<Owner> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Owner(None));
    }
    let main = family.path(Member::Main);
    let status = match rustix::fs::statat(CWD, &main, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(status) => status,
        Err(_) => rustix::fs::fstat(model).map_err(|e| Error::io("look at", &main, e))?,
    };
    Ok(Owner(Some((status.st_uid, status.st_gid))))
}

/// Gives what root has written beside somebody's database to whom `model` belongs. No link is followed, and only a file is given
/// away that root has just made and that has no other name: else its owner could have been given any file.
pub(super) fn give_as(family: &Family, model: &Path, file: &Path) {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let give = || -> Option<()> {
        let model = rustix::fs::lstat(model).ok()?;
        let side = side::open(&family.side_directory()).ok()??;
        let directory = file.parent()?.file_name()?;
        let directory = rustix::fs::openat(&side, directory, side::DIRECTORY, Mode::empty()).ok()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&directory, file.file_name()?, flags, Mode::empty()).ok()?;
        let status = rustix::fs::fstat(&file).ok()?;
        let made = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
        if !made || status.st_nlink != 1 || status.st_uid != 0 {
            return None;
        }
        let (uid, gid) = (Some(Uid::from_raw(model.st_uid)), Some(Gid::from_raw(model.st_gid)));
        rustix::fs::chownat(&file, "", uid, gid, AtFlags::EMPTY_PATH).ok()
    };
    let _ = give();
}

/// A directory in which a capture is made. Dropped before it was published, it is removed.
#[derive(Debug)]
pub(super) struct Staged<'a> {
    place: &'a Place,
    name: String,
    directory: OwnedFd,
    published: bool,
}

impl Staged<'_> {
    /// A path of the kernel that leads into it, whatever becomes of the names above it.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.directory.as_raw_fd()))
    }

    /// Puts it under its final name, flushed. False if there is one of this name already, and this one is removed.
    pub(super) fn publish(mut self, id: &str) -> Result<bool> {
        let path = self.place.of(id);
        let io = |action: &'static str| {
            let path = path.clone();
            move |e: Errno| Error::io(action, &path, e)
        };
        for file in captures::entries(&self.path(), |_| true) {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = rustix::fs::open(&file, flags, Mode::empty()).map_err(io("give to its owner"))?;
            if let Some((uid, gid)) = self.place.owner.0 {
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                rustix::fs::chownat(&file, "", uid, gid, AtFlags::EMPTY_PATH).map_err(io("give to its owner"))?;
            }
        }
        self.place.owner.takes(self.directory.as_fd()).map_err(io("give to its owner"))?;
        rustix::fs::fsync(&self.directory).map_err(io("flush"))?;
        let (from, to) = (self.name.as_str(), id);
        let renamed =
            match rustix::fs::renameat_with(&self.place.retired, from, &self.place.retired, to, RenameFlags::NOREPLACE)
            {
                // A plain rename replaces no directory that has files.
                Err(Errno::INVAL | Errno::NOSYS) => {
                    rustix::fs::renameat(&self.place.retired, from, &self.place.retired, to)
                }
                renamed => renamed,
            };
        match renamed {
            Ok(()) => self.published = true,
            Err(Errno::EXIST | Errno::NOTEMPTY) => return Ok(false),
            Err(e) => return Err(io("rename")(e)),
        }
        rustix::fs::fsync(&self.place.retired)
            .and_then(|()| rustix::fs::fsync(&self.place.side))
            .map_err(io("flush"))?;
        // The directory beside the database may be new.
        if let Some(parent) = self.place.side_path.parent() {
            captures::sync_directory(parent)?;
        }
        Ok(true)
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        if !self.published {
            let path = secure::magic_path(self.place.retired.as_fd()).join(&self.name);
            let _ = std::fs::remove_dir_all(path);
        }
    }
}
