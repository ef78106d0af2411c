//! Linux: `statx` tells everything in one call, the time of birth and whether a file is a mount point included.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, StatxTimestamp, makedev};

use super::{Identity, Status};

/// `STATX_ATTR_MOUNT_ROOT` of `linux/stat.h`.
const MOUNT_ROOT: u64 = 0x2000;

pub(super) fn status(path: &Path) -> std::io::Result<Status> {
    statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
}

impl Status {
    /// The status of an open descriptor.
    ///
    /// # Errors
    /// Whatever `statx` answers.
    pub fn of_descriptor(fd: BorrowedFd<'_>) -> std::io::Result<Status> {
        statx(fd, Path::new(""), AtFlags::EMPTY_PATH)
    }

    /// The type bits of the mode.
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }
}

fn statx(dir: impl AsFd, path: &Path, flags: AtFlags) -> std::io::Result<Status> {
    let x = rustix::fs::statx(dir, path, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
    let ns = |t: StatxTimestamp| t.tv_sec.wrapping_mul(1_000_000_000) + i64::from(t.tv_nsec);
    let born_ns = (x.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| ns(x.stx_btime));
    Ok(Status {
        identity: Identity { device: makedev(x.stx_dev_major, x.stx_dev_minor), inode: x.stx_ino, born_ns },
        mode: u32::from(x.stx_mode),
        links: x.stx_nlink,
        uid: x.stx_uid,
        size: x.stx_size,
        modified_ns: ns(x.stx_mtime),
        changed_ns: ns(x.stx_ctime),
        mount_root: x.stx_attributes.bits() & MOUNT_ROOT != 0,
    })
}
