//! Record locks that a stray close cannot drop, and what SQLite has open in this process.
//!
//! The core is in `core/locks.c`, which says how it works. This file installs it into SQLite's unix system-call table
//! and gives its answers types. It must be installed before the first database is opened: locks that SQLite took
//! earlier are POSIX locks and stay what they are.
#![expect(unsafe_code, reason = "installs C functions into SQLite's system-call table")]

use std::ffi::{CStr, CString, c_char};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use rusqlite::ffi;

use crate::error::{Error, Reason, Result};
use crate::family::Identity;
use crate::wal::ReadAt;

mod core {
    use std::ffi::{c_char, c_int};

    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    pub(super) struct Descriptor {
        pub(super) fd: c_int,
        pub(super) has_birth: c_int,
        pub(super) device: u64,
        pub(super) inode: u64,
        pub(super) born_ns: i64,
    }

    #[repr(C)]
    #[derive(Clone, Copy, Default)]
    pub(super) struct Range {
        pub(super) start: i64,
        pub(super) end: i64,
        pub(super) write: c_int,
    }

    pub(super) type Any = unsafe extern "C" fn();

    unsafe extern "C" {
        pub(super) fn sh_prepare() -> c_int;
        pub(super) fn sh_call_name(n: usize) -> *const c_char;
        pub(super) fn sh_call_replace(n: usize, original: Any) -> Any;
        pub(super) fn sh_descriptors(path: *const c_char, out: *mut Descriptor, room: usize) -> usize;
        pub(super) fn sh_in_use(device: u64, inode: u64) -> c_int;
        pub(super) fn sh_owner(device: u64, inode: u64, out: *mut Range, room: usize, count: *mut usize) -> c_int;
        pub(super) fn sh_standing(device: u64, inode: u64, start: i64, end: i64) -> c_int;
        pub(super) fn sh_retake(device: u64, inode: u64, start: i64, end: i64) -> c_int;
        pub(super) fn sh_betray(device: u64, inode: u64);
        pub(super) fn sh_has(owner: c_int, range: *const Range, listed: c_int) -> c_int;
        pub(super) fn sh_read(device: u64, inode: u64, out: *mut u8, count: usize, offset: i64) -> isize;
        pub(super) fn sh_locked(device: u64, inode: u64, start: i64, end: i64) -> c_int;
        pub(super) fn sh_locked_by_others(device: u64, inode: u64, start: i64, end: i64) -> c_int;
        pub(super) fn sh_give_up(device: u64, inode: u64);
        pub(super) fn sh_counts(owners: *mut usize, descriptors: *mut usize);
    }
}

/// Makes every record lock that SQLite takes in this process from now on one that a stray close cannot drop, and
/// keeps SQLite from unlinking `-wal` and `-shm` files. Calling it again does nothing.
///
/// It protects every database that is opened afterwards through the SQLite that `rusqlite` is linked with, whoever
/// opens it. Call it before the first database is opened.
///
/// # Errors
/// [`Reason::LockCore`] when `/proc` is not mounted or SQLite has no unix VFS.
pub fn protect() -> Result<()> {
    static INSTALLED: OnceLock<std::result::Result<(), String>> = OnceLock::new();
    INSTALLED.get_or_init(install).clone().map_err(|detail| Error::refused(Reason::LockCore, "/proc/self/fd", detail))
}

fn install() -> std::result::Result<(), String> {
    // SAFETY: sqlite3_initialize may be called at any time, and the VFS that sqlite3_vfs_find returns lives as long as
    // the process. The core names the entries that it replaces, is given the original of each before the replacement is
    // reachable, and its replacements have the types that SQLite's own table casts these entries to (os_unix.c,
    // `aSyscall`). The names are C strings that live as long as the process.
    unsafe {
        if ffi::sqlite3_initialize() != ffi::SQLITE_OK {
            return Err("SQLite did not initialise".into());
        }
        let vfs = ffi::sqlite3_vfs_find(c"unix".as_ptr());
        if vfs.is_null() {
            return Err("this SQLite has no unix VFS".into());
        }
        let (Some(get), Some(set)) = ((*vfs).xGetSystemCall, (*vfs).xSetSystemCall) else {
            return Err("this SQLite has no system-call table".into());
        };
        let errno = core::sh_prepare();
        if errno != 0 {
            return Err(std::io::Error::from_raw_os_error(errno).to_string());
        }
        for n in 0.. {
            let name = core::sh_call_name(n);
            if name.is_null() {
                break;
            }
            // Which of the calls that write at a position exist depends on how SQLite was built.
            let Some(original) = get(vfs, name) else { continue };
            if set(vfs, name, Some(core::sh_call_replace(n, original))) != ffi::SQLITE_OK {
                return Err(format!("SQLite did not take the replacement of {:?}", CStr::from_ptr(name)));
            }
        }
    }
    Ok(())
}

/// A descriptor that SQLite has open in this process, and the file that is really behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Its number.
    pub fd: i32,
    /// What `statx` on the descriptor answers.
    pub identity: Identity,
}

/// The descriptors that SQLite opened by exactly this absolute path and has not closed.
pub fn descriptors(path: &Path) -> Vec<Descriptor> {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return Vec::new() };
    let mut found = vec![core::Descriptor::default(); 16];
    loop {
        // SAFETY: the path is a C string that outlives the call, and `found` has room for as many elements as it says.
        let count = unsafe { core::sh_descriptors(path.as_ptr().cast::<c_char>(), found.as_mut_ptr(), found.len()) };
        if count <= found.len() {
            found.truncate(count);
            break;
        }
        found.resize(count + 16, core::Descriptor::default());
    }
    let identity = |d: &core::Descriptor| Identity {
        device: d.device,
        inode: d.inode,
        born_ns: (d.has_birth != 0).then_some(d.born_ns),
    };
    found.iter().map(|d| Descriptor { fd: d.fd, identity: identity(d) }).collect()
}

/// True if SQLite has a file with this device and inode open in this process.
pub fn in_use(device: u64, inode: u64) -> bool {
    // SAFETY: the function only looks the numbers up in the core's own table, under its mutex.
    unsafe { core::sh_in_use(device, inode) != 0 }
}

/// A range of bytes that is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// The first byte.
    pub start: i64,
    /// The byte after the last one; `i64::MAX` when the range has no end.
    pub end: i64,
    /// True for a write lock.
    pub write: bool,
}

/// What this process holds on one file of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// The descriptor whose description owns the locks.
    pub owner: i32,
    /// The ranges that were taken and not released.
    pub ranges: Vec<Range>,
}

impl Owned {
    /// True if the whole of `start..end` is locked.
    pub fn covers(&self, start: i64, end: i64) -> bool {
        let mut at = start;
        let mut sorted = self.ranges.clone();
        sorted.sort_by_key(|r| r.start);
        for r in sorted {
            if r.start <= at && r.end > at {
                at = r.end;
            }
        }
        at >= end
    }
}

/// The locks of this process on a file, `None` if it holds none or its owner descriptor was taken away.
pub fn owned(identity: Identity) -> Option<Owned> {
    let mut ranges = [core::Range::default(); 64];
    let mut count = 0;
    // SAFETY: `ranges` has room for as many elements as the call is told, and `count` is a valid place for a size.
    let owner =
        unsafe { core::sh_owner(identity.device, identity.inode, ranges.as_mut_ptr(), ranges.len(), &raw mut count) };
    let ranges = ranges.iter().take(count).map(|r| Range { start: r.start, end: r.end, write: r.write != 0 }).collect();
    (owner >= 0).then_some(Owned { owner, ranges })
}

/// How a lock is that SQLite holds for as long as a connection stands, by the kernel's account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is there, and so is everything else that was taken on the file.
    Stands,
    /// It alone is gone.
    Fell,
    /// It was never taken, or a lock of a transaction is gone as well.
    Broken,
}

/// Asks the kernel for the lock that stands on these bytes. Two system calls and one more for each lock; nothing is opened
/// but, before Linux 6.6, a text of `/proc`.
pub(crate) fn standing(identity: Identity, (start, end): (i64, i64)) -> Standing {
    // SAFETY: the function only asks the kernel about a descriptor from the core's own table, under its mutex.
    match unsafe { core::sh_standing(identity.device, identity.inode, start, end) } {
        0 => Standing::Stands,
        1 => Standing::Fell,
        _ => Standing::Broken,
    }
}

/// False if the kernel says that the description of this descriptor does not hold a lock on all of these bytes.
pub(crate) fn holds(file: impl AsFd, start: i64, end: i64) -> bool {
    let asked = core::Range { start, end, write: 0 };
    // SAFETY: the range is a valid one that outlives the call, and the descriptor is borrowed for it. Nothing is changed.
    unsafe { core::sh_has(file.as_fd().as_raw_fd(), &raw const asked, 0) != 0 }
}

/// Takes a lock again that fell. It comes to lie on a description that nobody else has, if that is possible.
///
/// # Errors
/// The system's answer: `EAGAIN` while somebody else's lock is in the way, `ENOLCK` if more than this lock is gone.
pub(crate) fn retake(identity: Identity, (start, end): (i64, i64)) -> std::io::Result<()> {
    // SAFETY: the core opens and closes only descriptors of its own, and compares before it closes one that it is still it.
    match unsafe { core::sh_retake(identity.device, identity.inode, start, end) } {
        0 => Ok(()),
        errno => Err(std::io::Error::from_raw_os_error(errno)),
    }
}

/// From now on the locks of this file count as broken, until SQLite has closed it: what reads or writes at this moment proves
/// nothing.
pub(crate) fn betray(identity: Identity) {
    // SAFETY: the function only sets a mark in the core's own table, under its mutex.
    unsafe { core::sh_betray(identity.device, identity.inode) }
}

/// A file that SQLite has open in this process, read through a descriptor that is there already: nothing is opened, and
/// no offset is moved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenFile(pub(crate) Identity);

impl ReadAt for OpenFile {
    /// Answers `ESTALE` when SQLite has closed the file, or its family was given up.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<usize> {
        let Ok(offset) = i64::try_from(offset) else { return Ok(0) };
        // SAFETY: `buffer` has room for as many bytes as the call is told.
        let read = unsafe { core::sh_read(self.0.device, self.0.inode, buffer.as_mut_ptr(), buffer.len(), offset) };
        usize::try_from(read).map_err(|_| std::io::Error::last_os_error())
    }
}

/// True if anybody, this process included, has a lock on these bytes, or if that could not be found out.
pub(crate) fn locked_by_anybody(identity: Identity, start: i64, end: i64) -> bool {
    // SAFETY: the function only asks the kernel, on a descriptor from the core's own table, under its mutex.
    unsafe { core::sh_locked(identity.device, identity.inode, start, end) != 0 }
}

/// True if anybody else than SQLite in this process has a lock on these bytes of a file that it has open and has locked, or if
/// that could not be found out. This needs no list of processes, so it tells of those that are hidden, too.
pub(crate) fn locked_by_others(identity: Identity, start: i64, end: i64) -> bool {
    // SAFETY: the function only asks the kernel, on the owner descriptor from the core's own table, under its mutex.
    unsafe { core::sh_locked_by_others(identity.device, identity.inode, start, end) != 0 }
}

/// From now on SQLite changes no file of the family that this file belongs to, and touches none of its shared memory,
/// until it has closed all of them. What runs at this moment fails; closing works.
pub(crate) fn give_up(identity: Identity) {
    // SAFETY: the core puts private memory in the place of mappings that it noted itself, at the same addresses and with
    // the same access, so that whoever uses them goes on reading and writing memory of this process.
    unsafe { core::sh_give_up(identity.device, identity.inode) }
}

/// How many owner descriptors and how many descriptors of SQLite's are open. After the last connection is closed both
/// are zero.
pub fn counts() -> (usize, usize) {
    let (mut owners, mut descriptors) = (0, 0);
    // SAFETY: both arguments are valid places for a size.
    unsafe { core::sh_counts(&raw mut owners, &raw mut descriptors) };
    (owners, descriptors)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;
    use crate::ofd::{self, Kind};

    /// Older kernels must be asked by `/proc`; both ways must say the same whatever is locked.
    #[test]
    fn both_ways_of_asking_the_kernel_agree() {
        let seed = std::env::var("STATEHOUSE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0x5eed_u64);
        println!("STATEHOUSE_SEED={seed}");
        let mut state = seed | 1;
        let mut below = |limit: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 20) % limit
        };
        let file = tempfile::tempfile().unwrap();
        let (mut held, mut missing) = (0, 0);
        for round in 0..3000 {
            let range = ofd::Range { start: below(40) as i64, length: 1 + below(6) as i64 };
            match below(3) {
                0 => ofd::unlock(&file, range).unwrap(),
                1 => assert!(ofd::try_lock(&file, Kind::Read, range).unwrap()),
                _ => assert!(ofd::try_lock(&file, Kind::Write, range).unwrap()),
            }
            let start = below(40) as i64;
            let asked = core::Range { start, end: start + 1 + below(8) as i64, write: below(2) as i32 };
            // SAFETY: the range is a valid one that outlives both calls, and the descriptor is open.
            let ask = |listed| unsafe { core::sh_has(file.as_raw_fd(), &raw const asked, listed) };
            let (by_call, by_list) = (ask(0), ask(1));
            assert_eq!(by_call, by_list, "round {round}: {}..{} write {}", asked.start, asked.end, asked.write);
            assert!(by_call >= 0);
            held += by_call;
            missing += 1 - by_call;
        }
        assert!(held > 100 && missing > 100, "both answers came: {held} {missing}");
    }

    #[test]
    fn a_lock_to_the_end_of_all_files_is_seen_both_ways() {
        let file = tempfile::tempfile().unwrap();
        assert!(ofd::try_lock(&file, Kind::Read, ofd::Range { start: 5, length: 0 }).unwrap());
        for (start, expected) in [(5, 1), (1000, 1), (4, 0)] {
            let asked = core::Range { start, end: i64::MAX, write: 0 };
            for listed in [0, 1] {
                // SAFETY: as above.
                let has = unsafe { core::sh_has(file.as_raw_fd(), &raw const asked, listed) };
                assert_eq!(has, expected, "{start} {listed}");
            }
        }
    }
}
