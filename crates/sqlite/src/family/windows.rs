//! Windows: a file is its volume and its index there, which only a handle tells. The handle is opened for attributes alone,
//! which no sharing mode of anybody forbids and which keeps nobody from anything.

#![expect(unsafe_code, reason = "std does not tell the index of a file on its volume")]

use std::os::windows::fs::OpenOptionsExt as _;
use std::os::windows::io::AsRawHandle as _;
use std::path::Path;

use windows_sys::Win32::Foundation::FILETIME;
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, FILE_ATTRIBUTE_DIRECTORY, FILE_ATTRIBUTE_REPARSE_POINT, FILE_FLAG_BACKUP_SEMANTICS,
    FILE_FLAG_OPEN_REPARSE_POINT, FILE_READ_ATTRIBUTES, GetFileInformationByHandle,
};

use super::{Identity, Status};

/// From the first day of 1601, where Windows counts from, to that of 1970, in units of 100 ns.
const EPOCH: i64 = 116_444_736_000_000_000;

pub(super) fn status(path: &Path) -> std::io::Result<Status> {
    let mut options = std::fs::OpenOptions::new();
    options.access_mode(FILE_READ_ATTRIBUTES);
    options.custom_flags(FILE_FLAG_BACKUP_SEMANTICS | FILE_FLAG_OPEN_REPARSE_POINT);
    #[expect(clippy::disallowed_methods, reason = "closing a handle drops no lock of another handle on Windows")]
    let file = options.open(path)?;
    let mut info = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is that of `file`, which lives to the end of this function, and the pointer leads to a whole
    // structure of the kind that the function fills.
    if unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut info) } == 0 {
        return Err(std::io::Error::last_os_error());
    }
    let long = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
    let ns = |t: FILETIME| (long(t.dwHighDateTime, t.dwLowDateTime).cast_signed() - EPOCH).wrapping_mul(100);
    let has = |attribute: u32| info.dwFileAttributes & attribute != 0;
    Ok(Status {
        identity: Identity {
            device: u64::from(info.dwVolumeSerialNumber),
            inode: long(info.nFileIndexHigh, info.nFileIndexLow),
            born_ns: Some(ns(info.ftCreationTime)),
        },
        // The numbers of `st_mode`: a link, a directory, a regular file.
        mode: match (has(FILE_ATTRIBUTE_REPARSE_POINT), has(FILE_ATTRIBUTE_DIRECTORY)) {
            (true, _) => 0o120_000,
            (false, true) => 0o040_000,
            (false, false) => 0o100_000,
        },
        links: info.nNumberOfLinks,
        uid: 0,
        size: long(info.nFileSizeHigh, info.nFileSizeLow),
        modified_ns: ns(info.ftLastWriteTime),
        // Windows tells of no such time to this call.
        changed_ns: ns(info.ftLastWriteTime),
        mount_root: false,
    })
}
