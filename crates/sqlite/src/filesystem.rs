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
    /// Major and minor number as lock tables and maps show them.
    device: Option<(u32, u32)>,
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

/// The device numbers of the volume that a resolved directory is on, as lock tables and maps show them. On btrfs `stat`
/// gives other ones for each subvolume.
pub(crate) fn device(resolved: &Path) -> Option<(u32, u32)> {
    mounted(resolved)?.device
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
    Some(Mount { id: 0, device: None, point: resolved.to_owned(), kind })
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
    let device = fields.nth(1).and_then(|d| std::str::from_utf8(d).ok()).and_then(|d| d.split_once(':'));
    let device = device.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
    let point = fields.nth(1)?;
    let kind = fields.skip_while(|f| *f != b"-").nth(1)?;
    let point = PathBuf::from(OsString::from_vec(unescape(point)));
    Some(Mount { id, device, point, kind: String::from_utf8_lossy(&unescape(kind)).into_owned() })
}

/// Space, tab, newline and backslash stand as three octal digits in the mount table.
pub(crate) fn unescape(field: &[u8]) -> Vec<u8> {
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

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    const TABLE: &[u8] = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:30 / /mnt/nfs rw,relatime - nfs4 server:/export rw,vers=4.2
31 30 254:1 / /mnt/nfs/local rw,relatime - ext4 /dev/vdb rw
32 22 0:31 / /mnt/two\\040words rw - virtiofs shared rw
33 22 0:32 / /mnt/tab\\011and\\134slash rw master:3 propagate_from:2 - 9p host rw,trans=virtio
34 22 0:33 / /mnt/ssh rw - fuse.sshfs me@host:/ rw
35 22 0:34 / /mnt/smb rw - smb3 //host/share rw
36 22 0:35 / /mnt/ceph rw - ceph mon:/ rw
37 22 0:36 / /run rw - tmpfs tmpfs rw
38 22 0:37 / /var/lib/docker rw - overlay overlay rw
39 22 0:38 / /pool rw - zfs tank rw
40 22 0:39 / /mnt/stacked rw - nfs server:/a rw
41 40 254:2 / /mnt/stacked rw - xfs /dev/vdc rw
42 22 0:40 / /mnt/new rw - newfs /dev/vdd rw
\xff\xff not a line
43
44 22 0:41 / /mnt/cut rw";

    fn kind(path: &str, id: Option<u64>) -> (String, Option<bool>) {
        let mount = find(&parse(TABLE), Path::new(path), id).unwrap();
        let ok = listed(&mount.kind).map(|l| l.0);
        (mount.kind, ok)
    }

    #[test]
    fn the_longest_mount_point_above_a_path_decides() {
        for (path, expected, ok) in [
            ("/home/me", "ext4", Some(true)),
            ("/mnt/nfs", "nfs4", Some(false)),
            ("/mnt/nfs/deep/down", "nfs4", Some(false)),
            ("/mnt/nfs/local/home", "ext4", Some(true)),
            ("/mnt/nfs/localish", "nfs4", Some(false)),
            ("/mnt/two words/home", "virtiofs", Some(false)),
            ("/mnt/tab\tand\\slash", "9p", Some(false)),
            ("/mnt/ssh/home", "fuse.sshfs", Some(false)),
            ("/mnt/smb", "smb3", Some(false)),
            ("/mnt/ceph", "ceph", Some(false)),
            ("/run/user", "tmpfs", Some(true)),
            ("/var/lib/docker/x", "overlay", Some(true)),
            ("/pool/home", "zfs", Some(true)),
            ("/mnt/stacked/home", "xfs", Some(true)),
            ("/mnt/new", "newfs", None),
        ] {
            assert_eq!(kind(path, None), (expected.to_owned(), ok), "{path}");
        }
        assert_eq!(kind("/mnt/stacked/home", Some(40)).0, "nfs", "the kernel's own number is exact");
        assert_eq!(kind("/mnt/stacked/home", Some(999)).0, "xfs");
    }

    #[test]
    fn escapes_are_undone_and_what_only_looks_like_one_is_kept() {
        assert_eq!(unescape(b"a\\040b\\012\\134"), b"a b\n\\");
        for odd in [&b"\\"[..], b"\\04", b"\\08x", b"\\777", b"\\x41"] {
            assert_eq!(unescape(odd), odd);
        }
    }

    #[test]
    fn a_file_system_that_works_passes_the_test_and_keeps_nothing_of_it() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(self_test(directory.path()).unwrap(), None);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let here = classify(directory.path()).unwrap();
        assert!(here.wal_ok, "{here:?}");
        assert!(here.require_wal(directory.path()).is_ok());
        let magic = by_magic(directory.path()).unwrap();
        assert!(listed(&magic.kind).is_some_and(|l| l.0), "{magic:?}");
    }

    #[test]
    fn a_refusal_names_mount_point_and_kind() {
        let bad = FileSystem {
            kind: "virtiofs".into(),
            mount_point: "/share".into(),
            wal_ok: false,
            detail: listed("virtiofs").unwrap().1.into(),
        };
        let error = bad.require_wal(Path::new("/share/home")).unwrap_err();
        assert_eq!(error.reason(), Some(Reason::FileSystem));
        let text = error.to_string();
        assert!(text.contains("virtiofs is mounted at /share"), "{text}");
    }
}
