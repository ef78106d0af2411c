//! What the kernel says about files, descriptors and locks: the tests' own judgement, independent of the product's code.
//!
//! `/proc/locks` names the process of a POSIX lock, and -1 for an open-file-description lock; whose that is stands in
//! `/proc/PID/fdinfo/N` of the descriptor that owns it. Numbers in `/proc/locks` are device (major:minor in hexadecimal)
//! and inode (decimal).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of the main file that a connection in WAL mode holds a shared lock on: `SHARED_FIRST` of SQLite's `os.h` with
/// its `SHARED_SIZE` of 510.
pub const SHARED: (u64, u64) = (0x4000_0002, 0x4000_0002 + 509);

/// The byte of `-shm` that everyone who maps it holds a shared lock on: `UNIX_SHM_DMS` of SQLite's `os_unix.c`.
pub const DMS: (u64, u64) = (128, 128);

/// Which file, as far as the kernel's tables can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// Major number of the device.
    pub major: u32,
    /// Minor number of the device.
    pub minor: u32,
    /// Inode number.
    pub inode: u64,
}

impl FileId {
    /// The file that `path` names, `None` if there is none. A final symlink is not followed.
    pub fn of(path: &Path) -> Option<FileId> {
        fs::symlink_metadata(path).ok().map(|s| FileId::from_numbers(s.dev(), s.ino()))
    }

    fn from_numbers(device: u64, inode: u64) -> FileId {
        FileId { major: rustix::fs::major(device), minor: rustix::fs::minor(device), inode }
    }
}

/// The kind of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Of a process and an inode: dropped when the process closes any descriptor of the file.
    Posix,
    /// Of an open file description.
    Ofd,
    /// `flock`.
    Flock,
}

/// One lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lock {
    /// Its kind.
    pub kind: Kind,
    /// True for an exclusive one.
    pub write: bool,
    /// The process that `/proc/locks` names; `None` for an open-file-description lock.
    pub pid: Option<u32>,
    /// The file.
    pub file: FileId,
    /// First byte.
    pub start: u64,
    /// Last byte; `u64::MAX` for the end of the file.
    pub end: u64,
}

impl Lock {
    /// True if the lock covers the whole range.
    pub fn covers(&self, range: (u64, u64)) -> bool {
        self.start <= range.0 && self.end >= range.1
    }

    /// A line like `1: POSIX  ADVISORY  READ 1234 08:01:5678 128 128`, the same in `/proc/locks` and in `fdinfo` after
    /// `lock:`. Waiting requests (`->`) are no locks.
    fn parse(line: &str) -> Option<Lock> {
        let mut words = line.split_whitespace().skip(1);
        let kind = match words.next()? {
            "POSIX" => Kind::Posix,
            "OFDLCK" => Kind::Ofd,
            "FLOCK" => Kind::Flock,
            _ => return None,
        };
        let _mode = words.next()?;
        let write = words.next()? == "WRITE";
        let pid = words.next()?.parse().ok();
        let mut file = words.next()?.split(':');
        let file = FileId {
            major: u32::from_str_radix(file.next()?, 16).ok()?,
            minor: u32::from_str_radix(file.next()?, 16).ok()?,
            inode: file.next()?.parse().ok()?,
        };
        let start = words.next()?.parse().ok()?;
        let end = match words.next()? {
            "EOF" => u64::MAX,
            number => number.parse().ok()?,
        };
        Some(Lock { kind, write, pid, file, start, end })
    }
}

/// All locks of the system, as one look shows them. The kernel hands the table out a page at a time, so a look can miss one
/// while others come and go.
pub fn locks() -> Vec<Lock> {
    fs::read_to_string("/proc/locks").expect("/proc/locks").lines().filter_map(Lock::parse).collect()
}

/// An open descriptor of a process.
#[derive(Debug, Clone)]
pub struct Descriptor {
    /// Its number.
    pub number: u32,
    /// What `/proc/PID/fd/N` links to, without the mark of deletion.
    pub path: PathBuf,
    /// True if no name leads to the file any more.
    pub deleted: bool,
    /// The file.
    pub file: FileId,
    /// True if it can write, or that cannot be told.
    pub writes: bool,
    /// The locks that this very descriptor shows.
    pub locks: Vec<Lock>,
}

/// The descriptors of a process that lead to files. Empty for a process that is gone.
pub fn descriptors(pid: u32) -> Vec<Descriptor> {
    let Ok(list) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    list.filter_map(|entry| descriptor(pid, entry.ok()?.file_name().to_str()?.parse().ok()?)).collect()
}

fn descriptor(pid: u32, number: u32) -> Option<Descriptor> {
    let link = format!("/proc/{pid}/fd/{number}");
    let target = fs::read_link(&link).ok()?;
    if !target.is_absolute() {
        return None;
    }
    let status = fs::metadata(&link).ok()?;
    let (path, marked) = without_mark(&target);
    let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
    let locks = info.lines().filter_map(|l| Lock::parse(l.strip_prefix("lock:")?)).collect();
    // The two lowest bits are the access mode, 0 to read alone.
    let flags = info.lines().find_map(|l| i64::from_str_radix(l.strip_prefix("flags:")?.trim(), 8).ok());
    Some(Descriptor {
        number,
        path,
        deleted: marked || status.nlink() == 0,
        file: FileId::from_numbers(status.dev(), status.ino()),
        writes: flags.is_none_or(|flags| flags & 3 != 0),
        locks,
    })
}

fn without_mark(target: &Path) -> (PathBuf, bool) {
    use std::os::unix::ffi::OsStrExt;
    let bytes = target.as_os_str().as_bytes();
    match bytes.strip_suffix(b" (deleted)") {
        Some(rest) => (PathBuf::from(std::ffi::OsStr::from_bytes(rest)), true),
        None => (target.to_path_buf(), false),
    }
}

/// What one process has of a database's generation, by the kernel's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standing {
    /// It has a descriptor on the present main file.
    pub has_main: bool,
    /// It has a descriptor on the present `-wal`.
    pub has_wal: bool,
    /// It has a descriptor on the present `-shm`.
    pub has_shm: bool,
    /// It holds a lock on the shared bytes of the main file.
    pub shared: bool,
    /// It holds a lock on byte 128 of `-shm`.
    pub dms: bool,
    /// One of its descriptors leads to a deleted member of this family.
    pub deleted: bool,
}

impl Standing {
    /// Looks at process `pid` and the database at `main`.
    pub fn of(pid: u32, main: &Path) -> Standing {
        let member = |suffix: &str| {
            let mut path = main.as_os_str().to_owned();
            path.push(suffix);
            PathBuf::from(path)
        };
        let paths = [main.to_path_buf(), member("-wal"), member("-shm"), member("-journal")];
        let ids: Vec<Option<FileId>> = paths.iter().map(|p| FileId::of(p)).collect();
        let descriptors = descriptors(pid);
        let global = locks();
        let has = |i: usize| ids[i].is_some_and(|id| descriptors.iter().any(|d| d.file == id && !d.deleted));
        let locked = |i: usize, range: (u64, u64)| {
            ids[i].is_some_and(|id| {
                let own = descriptors.iter().flat_map(|d| &d.locks);
                let by_name = global.iter().filter(|l| l.pid == Some(pid));
                own.chain(by_name).any(|l| l.file == id && l.kind != Kind::Flock && l.covers(range))
            })
        };
        Standing {
            has_main: has(0),
            has_wal: has(1),
            has_shm: has(2),
            shared: locked(0, SHARED),
            dms: locked(2, DMS),
            deleted: descriptors.iter().any(|d| d.deleted && paths.contains(&d.path)),
        }
    }

    /// Both locks are there, on the files that the paths name, and nothing deleted is held.
    pub fn whole(&self) -> bool {
        self.has_main && self.has_wal && self.has_shm && self.shared && self.dms && !self.deleted
    }
}

/// The files that the names of a database's main file, `-wal` and `-shm` lead to now.
pub fn generation(main: &Path) -> [Option<FileId>; 3] {
    ["", "-wal", "-shm"].map(|suffix| {
        let mut path = main.as_os_str().to_owned();
        path.push(suffix);
        FileId::of(Path::new(&path))
    })
}

/// Every process that `root` has started, directly or not, itself first.
pub fn descendants(root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&pid) = found.get(next) {
        next += 1;
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.filter_map(Result::ok) {
            let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
            found.extend(children.split_whitespace().filter_map(|w| w.parse::<u32>().ok()));
        }
    }
    found
}

/// Resident memory of a process in bytes, and the processor time that it has used.
pub fn usage(pid: u32) -> Option<(u64, std::time::Duration)> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let resident = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = resident.trim().trim_end_matches("kB").trim().parse().ok()?;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command in parentheses may contain anything, so the fields are counted from its end.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    let per_second = rustix::param::clock_ticks_per_second();
    Some((kilobytes * 1024, std::time::Duration::from_millis(ticks * 1000 / per_second.max(1))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tables_are_read_alike() {
        let from_locks = Lock::parse("12: POSIX  ADVISORY  READ 4711 08:1a:99 1073741826 1073742335").unwrap();
        assert_eq!(from_locks.pid, Some(4711));
        assert!(from_locks.covers(SHARED) && !from_locks.write);
        assert_eq!(from_locks.file, FileId { major: 8, minor: 0x1a, inode: 99 });
        let from_fdinfo = Lock::parse("\t1: OFDLCK ADVISORY  WRITE -1 fe:00:5 128 EOF").unwrap();
        assert_eq!((from_fdinfo.kind, from_fdinfo.pid, from_fdinfo.end), (Kind::Ofd, None, u64::MAX));
        assert!(Lock::parse("12: -> POSIX  ADVISORY  READ 4711 08:1a:99 0 EOF").is_none());
    }

    #[test]
    fn a_lock_of_this_process_is_seen() {
        let dir = crate::TestDir::new();
        let path = dir.join("f");
        let file = fs::File::create(&path).unwrap();
        file.lock().unwrap();
        let id = FileId::of(&path).unwrap();
        let mine = |l: &&Lock| l.file == id && l.kind == Kind::Flock && l.write;
        assert!((0..8).any(|_| locks().iter().filter(mine).count() == 1));
        fs::remove_file(&path).unwrap();
        let d = descriptors(std::process::id()).into_iter().find(|d| d.file == id).unwrap();
        assert!(d.deleted && d.path == path && d.locks.iter().any(|l| mine(&l)));
    }
}
