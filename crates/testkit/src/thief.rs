//! Taking another process's locks away from outside, by the one way that no lock core can prevent: the descriptor that owns
//! them is copied (`pidfd_getfd`), and whoever has a copy of a descriptor can unlock what it holds.
//!
//! The victim does not notice. It is what happens when a process is made by a bare `clone`, or is passed a descriptor, and
//! then cleans up after itself.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::kernel::{self, FileId, Kind, Lock};

/// Unlocks `range` (everything if `None`) of `file` in process `pid`. Returns how many of its descriptors held something there.
///
/// # Errors
/// The system's answer, most often that this user may not take descriptors of others.
pub fn unlock(pid: u32, file: FileId, range: Option<(u64, u64)>) -> std::io::Result<usize> {
    let holds = |lock: &Lock| {
        let meets = range.is_none_or(|(start, end)| lock.start <= end && lock.end >= start);
        lock.kind == Kind::Ofd && lock.file == file && meets
    };
    let owners: Vec<_> =
        kernel::descriptors(pid).into_iter().filter(|d| d.file == file && d.locks.iter().any(holds)).collect();
    let Some(process) = Pid::from_raw(pid.cast_signed()) else { return Ok(0) };
    let process = match pidfd_open(process, PidfdFlags::empty()) {
        Ok(process) => process,
        Err(rustix::io::Errno::SRCH) => return Ok(0),
        Err(e) => return Err(e.into()),
    };
    let mut unlocked = 0;
    for owner in owners {
        match pidfd_getfd(&process, owner.number.cast_signed(), PidfdGetfdFlags::empty()) {
            Ok(copy) => {
                release(&copy, range)?;
                unlocked += 1;
            }
            // It was closed since it was seen, or the process has ended.
            Err(rustix::io::Errno::BADF | rustix::io::Errno::SRCH) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(unlocked)
}

#[expect(unsafe_code, reason = "no safe call releases a lock of an open file description")]
fn release(copy: &OwnedFd, range: Option<(u64, u64)>) -> std::io::Result<()> {
    let (start, length) = range.map_or((0, 0), |(start, end)| (start.cast_signed(), (end - start + 1).cast_signed()));
    let lock = libc::flock {
        l_type: libc::F_UNLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    };
    // SAFETY: the command takes a pointer to a `flock`, which is whole and outlives the call; the descriptor is open.
    if unsafe { libc::fcntl(copy.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) } == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
