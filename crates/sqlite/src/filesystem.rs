//! What the file system under a path can do for a database in WAL mode: record locks and coherent shared memory.
//!
//! SQLite does not fail on a file system without these, it corrupts, so the kind is looked up before anything is opened.
//! A list of known good kinds and one of known bad ones decide; for a kind on neither, two descriptions of an unnamed
//! file in the directory show whether locks exclude each other and maps are coherent. That test cannot see another
//! machine, so everything that may be shared with one is on the bad list.

#![expect(unsafe_code, reason = "coherence of shared memory can only be tested with maps")]

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};

use crate::error::{Error, Reason, Result};
use crate::ofd;

/// A file system as far as WAL mode is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystem {
    /// The kind as the mount table names it ("ext4", "fuse.sshfs").
    pub kind: String,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// True if locks and shared memory work there.
    pub wal_ok: bool,
    /// One sentence that says why.
    pub detail: String,
}

impl FileSystem {
    /// The refusal for a database that needs WAL mode.
    ///
    /// # Errors
    /// [`Reason::FileSystem`] naming mount point and kind.
    pub fn require_wal(&self, directory: &Path) -> Result<()> {
        if self.wal_ok {
            return Ok(());
        }
        let detail = format!("{} is mounted at {}: {}", self.kind, self.mount_point.display(), self.detail);
        Err(Error::refused(Reason::FileSystem, directory, detail))
    }
}

/// The kinds on which SQLite's locks and shared memory are known to work: the local ones of the kernel.
const GOOD: &[&str] = &[
    "bcachefs", "btrfs", "ecryptfs", "exfat", "ext2", "ext3", "ext4", "f2fs", "hfsplus", "jfs", "nilfs2", "ntfs3",
    "overlay", "ramfs", "reiserfs", "rootfs", "tmpfs", "ubifs", "vfat", "xfs", "zfs",
];

/// The kinds that other machines, or the other side of a virtual machine, may change at the same time.
const BAD: &[&str] = &[
    "9p",
    "acfs",
    "afs",
    "beegfs",
    "beegfs_nodev",
    "ceph",
    "cifs",
    "coda",
    "davfs",
    "drvfs",
    "gfs2",
    "glusterfs",
    "gpfs",
    "hgfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "prl_fs",
    "pvfs2",
    "smb2",
    "smb3",
    "smbfs",
    "vboxsf",
    "virtiofs",
    "vmhgfs",
    "wekafs",
];

/// What the lists say; `None` for a kind on neither.
fn listed(kind: &str) -> Option<(bool, &'static str)> {
    if GOOD.contains(&kind) {
        return Some((true, "a local file system with working locks and shared memory"));
    }
    if BAD.contains(&kind) {
        return Some((false, "locks and shared memory do not reach everybody who can change these files"));
    }
    if kind == "fuse" || kind.starts_with("fuse.") {
        return Some((
            false,
            "a program serves these files, and shared memory between processes is not reliable there",
        ));
    }
    None
}

/// One line of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    id: u64,
    point: PathBuf,
    kind: String,
}

/// The file system of a directory (symlinks resolved).
///
/// # Errors
/// [`Error::Io`] if the directory cannot be resolved or nothing tells its file system.
pub fn classify(directory: &Path) -> Result<FileSystem> {
    let io = |e| Error::io("find the file system of", directory, e);
    let resolved = std::fs::canonicalize(directory).map_err(io)?;
    let mount = mounted(&resolved)
        .or_else(|| by_magic(&resolved))
        .ok_or_else(|| io(std::io::Error::other("neither the mount table nor statfs knows it")))?;
    let (wal_ok, detail) = match listed(&mount.kind) {
        Some((ok, why)) => (ok, why.to_owned()),
        None => match self_test(&resolved) {
            Ok(None) => (true, "an unknown kind that passed the test of locks and shared memory".to_owned()),
            Ok(Some(failed)) => (false, format!("an unknown kind that failed the test: {failed}")),
            Err(e) => (false, format!("an unknown kind that could not be tested: {e}")),
        },
    };
    Ok(FileSystem { kind: mount.kind, mount_point: mount.point, wal_ok, detail })
}

fn mounted(resolved: &Path) -> Option<Mount> {
    #[expect(clippy::disallowed_methods, reason = "a file of the kernel is no file of a database")]
    let text = std::fs::read("/proc/self/mountinfo").ok()?;
    find(&parse(&text), resolved, mount_id(resolved))
}

/// What `statfs` says, for a process whose root is no mount point: the mount table leaves out what it cannot reach. The
/// numbers are those of `linux/magic.h`; a number that is not here is an unknown kind and will be tested.
fn by_magic(resolved: &Path) -> Option<Mount> {
    let kind = match rustix::fs::statfs(resolved).ok()?.f_type as u64 & 0xffff_ffff {
        0xef53 => "ext4".to_owned(),
        0x5846_5342 => "xfs".to_owned(),
        0x9123_683e => "btrfs".to_owned(),
        0x2fc1_2fc1 => "zfs".to_owned(),
        0xf2f5_2010 => "f2fs".to_owned(),
        0x0102_1994 => "tmpfs".to_owned(),
        0x794c_7630 => "overlay".to_owned(),
        0x6969 => "nfs".to_owned(),
        0xff53_4d42 | 0xfe53_4d42 | 0x517b => "cifs".to_owned(),
        0x0102_1997 => "9p".to_owned(),
        0x00c3_6400 => "ceph".to_owned(),
        0x6573_5546 => "fuse".to_owned(),
        other => format!("unknown ({other:#x})"),
    };
    Some(Mount { id: 0, point: resolved.to_owned(), kind })
}

/// The number of the mount under a path (Linux 5.8), which is exact where mounts are stacked on one point.
fn mount_id(path: &Path) -> Option<u64> {
    let status = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID).ok()?;
    (status.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(status.stx_mnt_id)
}

fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`: the fields up to the hyphen vary.
fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let point = fields.nth(3)?;
    let kind = fields.skip_while(|f| *f != b"-").nth(1)?;
    let point = PathBuf::from(OsString::from_vec(unescape(point)));
    Some(Mount { id, point, kind: String::from_utf8_lossy(&unescape(kind)).into_owned() })
}

/// Space, tab, newline and backslash stand as three octal digits in the mount table.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = |d: u8| (b'0'..=b'7').contains(&d).then(|| u32::from(d - b'0'));
        let code = match (first, tail) {
            (b'\\', [a, b, c, ..]) => octal(*a).zip(octal(*b)).zip(octal(*c)).map(|((a, b), c)| a * 64 + b * 8 + c),
            _ => None,
        };
        match code.and_then(|c| u8::try_from(c).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = &tail[3..];
            }
            None => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    plain
}

/// The mount that a resolved path is on: the one with the number that the kernel says, else the longest mount point above
/// it, and of several on one point the last, which covers the others.
fn find(mounts: &[Mount], path: &Path, id: Option<u64>) -> Option<Mount> {
    let exact = id.and_then(|id| mounts.iter().find(|m| m.id == id));
    let longest = || {
        let above = mounts.iter().filter(|m| path.starts_with(&m.point));
        above.max_by_key(|m| m.point.as_os_str().as_bytes().len())
    };
    exact.or_else(longest).cloned()
}

/// Tests locks and shared memory with an unnamed file in the directory. `None` if both work, else what does not.
fn self_test(directory: &Path) -> std::io::Result<Option<&'static str>> {
    let first = unnamed_file(directory)?;
    let again = crate::secure::magic_path(std::os::fd::AsFd::as_fd(&first));
    let second = rustix::fs::open(again, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    if !ofd::try_lock(&first, ofd::Kind::Write, ofd::DMS)? || ofd::try_lock(&second, ofd::Kind::Read, ofd::DMS)? {
        return Ok(Some("two locks did not exclude each other"));
    }
    rustix::fs::ftruncate(&first, Map::BYTES as u64)?;
    let (one, other) = (Map::new(&first)?, Map::new(&second)?);
    for value in [0x5a, 0xa5] {
        one.store(value);
        let mut read = [0];
        rustix::io::pread(&second, &mut read, 0)?;
        if other.load() != value || read != [value] {
            return Ok(Some("two maps of one file did not show the same bytes"));
        }
    }
    rustix::io::pwrite(&second, &[0x3c], 0)?;
    Ok((one.load() != 0x3c).then_some("a map did not show what was written to the file"))
}

/// A file that has no name and is gone when it is closed.
fn unnamed_file(directory: &Path) -> std::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(directory, flags | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR) {
        return Ok(file);
    }
    let path = directory.join(format!(".statehouse-test-{}", std::process::id()));
    let made = flags | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
    let file = rustix::fs::open(&path, made, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::unlink(&path)?;
    Ok(file)
}

/// One shared map of the first page of a file.
struct Map(*mut libc::c_void);

impl Map {
    const BYTES: usize = 4096;

    fn new(file: &OwnedFd) -> std::io::Result<Map> {
        let fd = std::os::fd::AsRawFd::as_raw_fd(file);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new map at an address of the kernel's choice touches no existing memory; the descriptor is open and
        // the file was made at least this long by the caller.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), Map::BYTES, access, libc::MAP_SHARED, fd, 0) };
        if map == libc::MAP_FAILED { Err(std::io::Error::last_os_error()) } else { Ok(Map(map)) }
    }

    fn store(&self, value: u8) {
        // SAFETY: the map is writable, at least one byte long and lives as long as `self`. The file has no name, so
        // nobody truncates it under the map. Volatile, for another map changes the same memory.
        unsafe { self.0.cast::<u8>().write_volatile(value) }
    }

    fn load(&self) -> u8 {
        // SAFETY: as in `store`; the map is readable.
        unsafe { self.0.cast::<u8>().read_volatile() }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the address and length are those of a map that `new` made, and no reference into it exists.
        let _ = unsafe { libc::munmap(self.0, Map::BYTES) };
    }
}
