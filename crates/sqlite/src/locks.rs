//! Record locks that a stray close cannot drop, and what SQLite has open in this process.
//!
//! The core is in `core/locks.c`, which says how it works. This file installs it into SQLite's unix system-call table
//! and gives its answers types. It must be installed before the first database is opened: locks that SQLite took
//! earlier are POSIX locks and stay what they are.
#![expect(unsafe_code, reason = "installs C functions into SQLite's system-call table")]

use std::ffi::{CStr, CString, c_char};
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
