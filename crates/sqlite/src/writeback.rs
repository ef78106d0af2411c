//! Writing a part of a file to the disk without a flush.
//!
//! What a program writes stays in memory until somebody flushes it or the kernel finds the time, and then it goes to the disk all
//! at once: whoever flushes a few bytes beside that waits for hundreds of megabytes. A part at a time, each waited for, leaves the
//! others' flushes between two parts.

#![expect(unsafe_code, reason = "rustix has no sync_file_range")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;

/// Hands the changed pages of a range to the disk and waits until it has taken them. That makes nothing last: neither the disk's own
/// cache nor the file's length and places are written. A flush must follow.
///
/// # Errors
/// The system's answer. The kernel tells an error of writing only once for a descriptor, so the flush that follows may not know of
/// it: after an error the file is not to be trusted.
pub fn write_back(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let range = |n: u64| libc::off64_t::try_from(n).map_err(io::Error::other);
    let all = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the call reads and writes no memory of this process.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), range(offset)?, range(length)?, all) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            // Not every kind of file can; the flush does it all then.
            e if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::ESPIPE | libc::EINVAL)) => Ok(()),
            e if e.kind() == io::ErrorKind::Interrupted => Ok(()),
            e => Err(e),
        },
    }
}
