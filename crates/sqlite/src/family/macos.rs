//! macOS: `lstat` tells everything that is asked for, the time of birth included.

use std::os::macos::fs::MetadataExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::{Identity, Status};

pub(super) fn status(path: &Path) -> std::io::Result<Status> {
    let m = std::fs::symlink_metadata(path)?;
    let ns = |seconds: i64, rest: i64| seconds.wrapping_mul(1_000_000_000).wrapping_add(rest);
    Ok(Status {
        identity: Identity {
            // A device number has 32 bits here, and `Metadata` extends its sign.
            device: m.dev() & 0xffff_ffff,
            inode: m.ino(),
            born_ns: Some(ns(m.st_birthtime(), m.st_birthtime_nsec())),
        },
        mode: m.mode(),
        links: u32::try_from(m.nlink()).unwrap_or(u32::MAX),
        uid: m.uid(),
        size: m.size(),
        modified_ns: ns(m.mtime(), m.mtime_nsec()),
        changed_ns: ns(m.ctime(), m.ctime_nsec()),
        // Single files cannot be mounted.
        mount_root: false,
    })
}
