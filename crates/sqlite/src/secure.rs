//! Looks at the files of a database before anything opens them, creates what is missing and tightens what is loose.
//!
//! Invariant: what exists is only ever reached through `O_PATH|O_NOFOLLOW` descriptors. Such a descriptor names an inode
//! without opening it, so it cannot block on a FIFO, cannot follow a link, starts no device, changes no time stamp, and
//! its close drops no record lock of this process. Every later step (changing the mode, reading the header) goes
//! through that very descriptor, so that a process which swaps the path meanwhile cannot turn it on another file.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{Access, AtFlags, CWD, FileType, Gid, Mode, OFlags, Uid};
use rustix::io::Errno;

use crate::error::{Error, Reason, Result};
use crate::family::{Family, Generation, Member, Status};

/// What the caller means to do with the database; decides whose files are acceptable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Use it as this user's own: read, write, create, tighten. Every file must belong to this user.
    Own,
    /// Look at it without changing it. Reading is enough, and root may look at anybody's.
    Look,
}

/// A member that exists, held by a descriptor that cannot read or write it.
#[derive(Debug)]
pub struct Seen {
    /// Which file of the family.
    pub member: Member,
    /// What was seen when it was checked.
    pub status: Status,
    handle: OwnedFd,
}

impl Seen {
    /// The checked inode as a path that leads to it whatever its name leads to now.
    pub fn magic_path(&self) -> PathBuf {
        magic_path(self.handle.as_fd())
    }

    /// How many names the file has by now.
    pub(crate) fn links(&self) -> std::io::Result<u32> {
        Ok(Status::of_descriptor(self.handle.as_fd())?.links)
    }
}

/// A family that passed every check that needs no byte of its files.
#[derive(Debug)]
pub struct Inspected {
    family: Family,
    purpose: Purpose,
    directory: OwnedFd,
    members: Vec<Seen>,
    created_before: bool,
}

impl Inspected {
    /// The names that were checked.
    pub fn family(&self) -> &Family {
        &self.family
    }

    /// What the check was for.
    pub fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// The directory, as an `O_PATH` descriptor for `openat`.
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// One member, if it exists.
    pub fn get(&self, member: Member) -> Option<&Seen> {
        self.members.iter().find(|s| s.member == member)
    }

    /// True if the marker says that a database was created here once.
    pub fn created_before(&self) -> bool {
        self.created_before
    }

    /// The generation as it was checked; compare it with what SQLite opened.
    pub fn generation(&self) -> Generation {
        let id = |m| self.get(m).map(|s| s.status.identity);
        Generation { main: id(Member::Main), wal: id(Member::Wal), shm: id(Member::Shm) }
    }

    /// The main file, or the refusal that says that there is none. A file of zero bytes counts as none.
    ///
    /// # Errors
    /// [`Reason::NoStore`].
    pub fn require_main(&self) -> Result<&Seen> {
        match self.get(Member::Main) {
            Some(main) if main.status.size > 0 => Ok(main),
            Some(_) => Err(Error::refused(Reason::NoStore, self.family.main(), "the file has zero bytes")),
            None => Err(Error::refused(Reason::NoStore, self.family.main(), "")),
        }
    }

    /// Gives a file that root has just made to the owner of the database, so that the owner can go on using it.
    /// Does nothing for anybody but root, or when root owns the database itself.
    ///
    /// # Errors
    /// Whatever `fstat` or `fchown` answers.
    pub fn hand_over(&self, new: BorrowedFd<'_>) -> std::io::Result<()> {
        let model = self.get(Member::Main).map_or(self.directory.as_fd(), |main| main.handle.as_fd());
        let model = rustix::fs::fstat(model)?;
        if rustix::process::geteuid().is_root() && model.st_uid != 0 {
            rustix::fs::fchown(new, Some(Uid::from_raw(model.st_uid)), Some(Gid::from_raw(model.st_gid)))?;
        }
        Ok(())
    }
}

/// A path of the kernel that leads to the very inode of a descriptor.
pub(crate) fn magic_path(fd: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// Checks the directory and every member of the family without opening one of them and without changing anything.
///
/// # Errors
/// A refusal with the reason, or [`Error::Io`] when the system answers something unexpected.
pub fn inspect(family: &Family, purpose: Purpose) -> Result<Inspected> {
    let inspected = inspect_each(family, purpose)?;
    check_together(&inspected)?;
    Ok(inspected)
}

/// As [`inspect`] for somebody who is going to put another database in the place of this one: what the members are to each
/// other is not asked, for it is what he puts right. What each of them is still is.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_to_replace(family: &Family) -> Result<Inspected> {
    inspect_each(family, Purpose::Own)
}

fn inspect_each(family: &Family, purpose: Purpose) -> Result<Inspected> {
    let directory = open_directory(family)?;
    let mut members = Vec::with_capacity(Member::ALL.len());
    for member in Member::ALL {
        if let Some(seen) = look(family, &directory, member)? {
            members.push(seen);
        }
    }
    let euid = rustix::process::geteuid();
    for seen in &members {
        check_member(family, purpose, euid.as_raw(), seen)?;
    }
    refuse_other_engines(family, &directory)?;
    let created_before = check_side(family, purpose, euid.as_raw(), &directory)?;
    let inspected = Inspected { family: family.clone(), purpose, directory, members, created_before };
    check_directory_access(&inspected, purpose)?;
    Ok(inspected)
}

/// Checks the directory and the side directory, and none of the members: for a process of ours that holds files which their
/// paths do not name any more, and must put somewhere what only these hold, whatever stands at the paths by now. Root may do
/// so beside anybody's database, and hands over what it makes.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_place(family: &Family) -> Result<Inspected> {
    let directory = open_directory(family)?;
    let euid = rustix::process::geteuid();
    let purpose = if euid.is_root() { Purpose::Look } else { Purpose::Own };
    let created_before = check_side(family, purpose, euid.as_raw(), &directory)?;
    let inspected = Inspected { family: family.clone(), purpose, directory, members: Vec::new(), created_before };
    check_directory_access(&inspected, Purpose::Own)?;
    Ok(inspected)
}

fn open_directory(family: &Family) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, family.directory(), flags, Mode::empty())
        .map_err(|e| Error::refused(Reason::NoDirectory, family.directory(), std::io::Error::from(e).to_string()))
}

fn look(family: &Family, directory: &OwnedFd, member: Member) -> Result<Option<Seen>> {
    let Some(handle) = open_path(directory.as_fd(), &family.member_name(member))
        .map_err(|e| permission_or_io("look at", family, member, e))?
    else {
        return Ok(None);
    };
    let status = Status::of_descriptor(handle.as_fd()).map_err(|e| Error::io("look at", &family.path(member), e))?;
    // A stranger's last close may unlink a sidecar between the open and the stat; then it is simply not there.
    Ok((status.links > 0).then_some(Seen { member, status, handle }))
}

fn permission_or_io(action: &'static str, family: &Family, member: Member, e: Errno) -> Error {
    match e {
        Errno::ACCESS | Errno::PERM => Error::refused(Reason::Permission, family.directory(), "it cannot be searched"),
        e => Error::io(action, &family.path(member), e),
    }
}

/// An `O_PATH` descriptor of a name in a directory, not following a link; `None` if there is no such name.
fn open_path(directory: BorrowedFd<'_>, name: &OsStr) -> Result<Option<OwnedFd>, Errno> {
    match rustix::fs::openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => Ok(Some(fd)),
        Err(Errno::NOENT | Errno::NAMETOOLONG) => Ok(None),
        Err(e) => Err(e),
    }
}

fn check_member(family: &Family, purpose: Purpose, euid: u32, seen: &Seen) -> Result<()> {
    let path = || family.path(seen.member);
    let refuse = |reason, detail: String| Err(Error::refused(reason, path(), detail));
    let status = &seen.status;
    match status.kind() {
        FileType::RegularFile => {}
        // Where it leads is not read: that would change the link's time of access.
        FileType::Symlink => return refuse(Reason::Symlink, String::new()),
        FileType::Directory => return refuse(Reason::NotRegular, "it is a directory".into()),
        FileType::Fifo => return refuse(Reason::NotRegular, "it is a FIFO".into()),
        FileType::Socket => return refuse(Reason::NotRegular, "it is a socket".into()),
        FileType::BlockDevice | FileType::CharacterDevice => {
            return refuse(Reason::NotRegular, "it is a device".into());
        }
        FileType::Unknown => return refuse(Reason::NotRegular, String::new()),
    }
    if status.mount_root {
        return refuse(Reason::MountedFile, String::new());
    }
    if status.links > 1 {
        return refuse(Reason::HardLink, format!("{} names lead to it", status.links));
    }
    if status.uid != euid && !(purpose == Purpose::Look && euid == 0) {
        return refuse(Reason::Owner, format!("owner is uid {}, this process runs as uid {euid}", status.uid));
    }
    let wanted = match purpose {
        Purpose::Own => Access::READ_OK | Access::WRITE_OK,
        Purpose::Look => Access::READ_OK,
    };
    match rustix::fs::accessat(CWD, seen.magic_path(), wanted, AtFlags::EACCESS) {
        Ok(()) => Ok(()),
        Err(Errno::ACCESS | Errno::PERM) => refuse(Reason::Permission, format!("its mode is {:04o}", bits(status))),
        Err(Errno::ROFS) => refuse(Reason::Permission, "the volume is mounted read-only".into()),
        Err(e) => Err(unchecked(&path(), e)),
    }
}

fn bits(status: &Status) -> u32 {
    status.mode & 0o7777
}

fn check_directory_access(inspected: &Inspected, purpose: Purpose) -> Result<()> {
    let directory = inspected.family.directory();
    let refuse = |detail: &str| Err(Error::refused(Reason::Permission, directory, detail));
    let (wanted, detail) = match purpose {
        Purpose::Own => (Access::WRITE_OK | Access::EXEC_OK, "the directory cannot be written by this user"),
        Purpose::Look => (Access::EXEC_OK, "the directory cannot be searched by this user"),
    };
    match rustix::fs::accessat(CWD, magic_path(inspected.directory()), wanted, AtFlags::EACCESS) {
        Ok(()) => Ok(()),
        Err(Errno::ACCESS | Errno::PERM) => refuse(detail),
        Err(Errno::ROFS) => refuse("the volume is mounted read-only"),
        Err(e) => Err(unchecked(directory, e)),
    }
}

/// The check goes through paths of the kernel, which lead nowhere where there is no `/proc`.
fn unchecked(path: &std::path::Path, e: Errno) -> Error {
    if e == Errno::NOENT && rustix::fs::access("/proc/self/fd", Access::EXISTS).is_err() {
        return Error::refused(Reason::LockCore, path, "there is no /proc/self/fd here");
    }
    Error::io("check the access to", path, e)
}

/// Other engines keep their own log beside the same main file and know nothing of SQLite's: Turso `X-tshm`, SQLite's
/// wal2 branch `X-wal2`, spelled `X.wal2` by some tools.
fn refuse_other_engines(family: &Family, directory: &OwnedFd) -> Result<()> {
    for suffix in ["-tshm", ".wal2", "-wal2"] {
        let mut name = family.name().to_owned();
        name.push(suffix);
        match rustix::fs::statat(directory, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => return Err(Error::refused(Reason::OtherEngine, family.directory().join(name), "")),
            Err(Errno::NOENT) => {}
            Err(e) => return Err(Error::io("look at", &family.directory().join(name), e)),
        }
    }
    Ok(())
}

/// Checks the side directory, for what lies in it is believed; true if the marker of a created database is there.
fn check_side(family: &Family, purpose: Purpose, euid: u32, directory: &OwnedFd) -> Result<bool> {
    let path = family.side_directory();
    let io = |e: Errno| Error::io("look at", &path, e);
    let Some(name) = path.file_name() else { return Ok(false) };
    let Some(side) = open_path(directory.as_fd(), name).map_err(io)? else { return Ok(false) };
    let status = Status::of_descriptor(side.as_fd()).map_err(|e| Error::io("look at", &path, e))?;
    match status.kind() {
        FileType::Directory => {}
        FileType::Symlink => return Err(Error::refused(Reason::Symlink, path, "")),
        _ => return Err(Error::refused(Reason::NotRegular, path, "a directory is expected here")),
    }
    if status.uid != euid && !(purpose == Purpose::Look && euid == 0) {
        let detail = format!("owner is uid {}, this process runs as uid {euid}", status.uid);
        return Err(Error::refused(Reason::Owner, path, detail));
    }
    match rustix::fs::statat(&side, crate::side::CREATED, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT | Errno::NAMETOOLONG) => Ok(false),
        Err(e) => Err(io(e)),
    }
}

/// What the members are to each other: which combinations would lose something when SQLite opens them.
fn check_together(inspected: &Inspected) -> Result<()> {
    let family = &inspected.family;
    let size = |m| inspected.get(m).map(|s| s.status.size);
    match size(Member::Main) {
        None => {
            for member in [Member::Wal, Member::Journal] {
                if size(member).is_some_and(|s| s > 0) {
                    return Err(Error::refused(Reason::WalWithoutMain, family.path(member), ""));
                }
            }
        }
        Some(0) if size(Member::Wal).is_some_and(|s| s > 0) => {
            return Err(Error::refused(Reason::EmptyBesideWal, family.main(), ""));
        }
        // A journal beside an empty main file is what a crash in the very first transaction leaves; only its content
        // tells it from the journal of a database that was truncated, so `headers` decides.
        Some(_) => {}
    }
    if inspected.created_before && size(Member::Main).unwrap_or(0) == 0 {
        let what = if size(Member::Main).is_some() { "the file has zero bytes" } else { "" };
        return Err(Error::refused(Reason::StoreMissing, family.main(), what));
    }
    Ok(())
}

/// Creates the main file, empty and with mode 0600 whatever the umask, and checks the family again.
///
/// Closing the ordinary descriptor of the new file drops no lock of this process: the file was made exclusively a moment
/// ago, so no connection of this process can have it open yet.
///
/// # Errors
/// [`Reason::Changed`] if something appeared at the path meanwhile, [`Reason::Permission`], [`Error::Full`], or what
/// [`inspect`] refuses.
pub fn create_main(inspected: &Inspected) -> Result<Inspected> {
    let family = &inspected.family;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
    let private = Mode::RUSR | Mode::WUSR;
    let new = rustix::fs::openat(&inspected.directory, family.name(), flags, private).map_err(|e| match e {
        Errno::EXIST => Error::refused(Reason::Changed, family.main(), "it appeared while it was being created"),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            Error::refused(Reason::Permission, family.directory(), "no file can be created in it")
        }
        Errno::NOSPC | Errno::DQUOT => Error::Full,
        e => Error::io("create", &family.main(), e),
    })?;
    let io = |e| Error::io("create", &family.main(), e);
    rustix::fs::fchmod(&new, private).map_err(|e| io(e.into()))?;
    let made = Status::of_descriptor(new.as_fd()).map_err(io)?.identity;
    // The name must survive a power cut as well as the content that is written later.
    let parent = rustix::fs::openat(
        &inspected.directory,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    if let Ok(parent) = parent {
        rustix::fs::fsync(parent).map_err(|e| io(e.into()))?;
    }
    drop(new);
    let again = inspect(family, inspected.purpose)?;
    if again.generation().main != Some(made) {
        return Err(Error::refused(Reason::Changed, family.main(), "it was replaced while it was being created"));
    }
    Ok(again)
}

/// Takes everybody else's access away: 0600 on the members, 0700 on the side directory. The mode is changed through the
/// descriptors that were checked, so exactly those inodes are changed, whatever their names lead to by now.
///
/// # Errors
/// [`Error::Io`] if a mode could not be changed.
pub fn tighten(inspected: &Inspected) -> Result<()> {
    for seen in &inspected.members {
        if bits(&seen.status) != 0o600 {
            rustix::fs::chmod(seen.magic_path(), Mode::RUSR | Mode::WUSR)
                .map_err(|e| Error::io("change the mode of", &inspected.family.path(seen.member), e))?;
        }
    }
    let path = inspected.family.side_directory();
    let Some(name) = path.file_name() else { return Ok(()) };
    let io = |e: Errno| Error::io("change the mode of", &path, e);
    let Some(side) = open_path(inspected.directory.as_fd(), name).map_err(io)? else { return Ok(()) };
    let status = Status::of_descriptor(side.as_fd()).map_err(|e| Error::io("look at", &path, e))?;
    if status.kind() == FileType::Directory && bits(&status) != 0o700 {
        rustix::fs::chmod(magic_path(side.as_fd()), Mode::RWXU).map_err(io)?;
    }
    Ok(())
}
