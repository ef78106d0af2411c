//! Takes apart what the kernel writes about descriptors, maps and locks. Accepts any bytes and never fails: a line that
//! cannot be understood is no fact.

use crate::ofd::Range;

/// One record lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lock {
    /// Owned by an open file description and not by a process.
    pub(crate) ofd: bool,
    pub(crate) write: bool,
    /// The owner as the kernel shows it: a process, -1 for an open file description, 0 for one that cannot be named here.
    pub(crate) pid: i32,
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
    pub(crate) start: i64,
    /// The last byte, inclusive.
    pub(crate) end: i64,
}

impl Lock {
    /// `POSIX  ADVISORY  READ 1234 fe:00:12345 1073741826 1073742335`, after the number of the line. Locks of whole files
    /// (`FLOCK`) and requests that wait (`->`) are no record locks that are held.
    fn parse(line: &[u8]) -> Option<Lock> {
        let line = std::str::from_utf8(line).ok()?;
        let mut fields = line.split_ascii_whitespace();
        let ofd = match fields.nth(1)? {
            "POSIX" => false,
            "OFDLCK" => true,
            _ => return None,
        };
        let write = match fields.nth(1)? {
            "READ" => false,
            "WRITE" => true,
            _ => return None,
        };
        let pid = fields.next()?.parse().ok()?;
        let mut file = fields.next()?.split(':');
        let device = (u32::from_str_radix(file.next()?, 16).ok()?, u32::from_str_radix(file.next()?, 16).ok()?);
        let inode = file.next()?.parse().ok()?;
        let start = fields.next()?.parse().ok()?;
        let end = match fields.next()? {
            "EOF" => i64::MAX,
            end => end.parse().ok()?,
        };
        Some(Lock { ofd, write, pid, device, inode, start, end })
    }

    pub(crate) fn covers(&self, range: Range) -> bool {
        self.start <= range.start && range.last() <= self.end
    }

    pub(crate) fn touches(&self, range: Range) -> bool {
        self.start <= range.last() && range.start <= self.end
    }
}

/// The record locks in `/proc/locks`.
pub(crate) fn locks(text: &[u8]) -> Vec<Lock> {
    text.split(|b| *b == b'\n').filter_map(Lock::parse).collect()
}

/// What is needed of `/proc/PID/fdinfo/N`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DescriptorInfo {
    pub(crate) writable: bool,
    pub(crate) path_only: bool,
    pub(crate) locks: Vec<Lock>,
}

impl DescriptorInfo {
    pub(crate) fn parse(text: &[u8]) -> DescriptorInfo {
        const ACCESS: u32 = 0o3;
        const PATH: u32 = 0o10_000_000;
        let mut info = DescriptorInfo::default();
        for line in text.split(|b| *b == b'\n') {
            if let Some(lock) = line.strip_prefix(b"lock:") {
                info.locks.extend(Lock::parse(lock));
            } else if let Some(flags) = line.strip_prefix(b"flags:") {
                let flags = std::str::from_utf8(flags).ok().and_then(|f| u32::from_str_radix(f.trim(), 8).ok());
                let flags = flags.unwrap_or(0);
                info.path_only = flags & PATH != 0;
                info.writable = flags & ACCESS != 0 && !info.path_only;
            }
        }
        info
    }
}

/// The lines of a long text. A process has hundreds of maps, and this finds the ends of their lines by words and not by bytes.
fn lines(mut text: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (whole, mut rest) = (text, text);
        let length = std::io::BufRead::skip_until(&mut rest, b'\n').unwrap_or(0);
        text = rest;
        let line = whole.get(..length).filter(|l| !l.is_empty())?;
        Some(line.strip_suffix(b"\n").unwrap_or(line))
    })
}

/// One shared map of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mapping<'a> {
    /// The addresses, which name the map in `/proc/PID/map_files`.
    pub(crate) area: &'a [u8],
    pub(crate) writable: bool,
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
    /// As the kernel writes it: a newline in a name stands as `\012`.
    pub(crate) path: &'a [u8],
}

/// The shared maps of files in `/proc/PID/maps`:
/// `7f0000000000-7f0000008000 rw-s 00000000 fe:00 12345      /home/s.db-shm (deleted)`.
pub(crate) fn mappings(text: &[u8]) -> impl Iterator<Item = Mapping<'_>> {
    lines(text).filter_map(|line| {
        // Nearly every map is private, so the letter is looked at before anything is taken apart.
        let space = line.iter().position(|b| *b == b' ')?;
        if line.get(space + 4) != Some(&b's') {
            return None;
        }
        let mut fields = line.splitn(6, |b| *b == b' ');
        let area = fields.next()?;
        let rights = fields.next()?;
        let device = std::str::from_utf8(fields.nth(1)?).ok()?;
        let (major, minor) = device.split_once(':')?;
        let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
        let inode = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let path = fields.next()?.trim_ascii_start();
        path.starts_with(b"/").then_some(Mapping { area, writable: rights.get(1) == Some(&b'w'), device, inode, path })
    })
}

/// A name that the kernel gives a descriptor, without the mark that it puts on one whose name is gone. A file may be
/// called that literally, so the mark is a hint and never a proof.
pub(crate) fn unmarked(link: &[u8]) -> (&[u8], bool) {
    match link.strip_suffix(b" (deleted)") {
        Some(name) => (name, true),
        None => (link, false),
    }
}

/// Directory and last name of an absolute path.
pub(crate) fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = path.iter().rposition(|b| *b == b'/')?;
    let directory = if slash == 0 { &path[..1] } else { &path[..slash] };
    path.starts_with(b"/").then_some((directory, &path[slash + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ofd::{DMS, SHARED};

    #[test]
    fn locks_are_read_by_owner_kind_and_range() {
        let text = b"1: POSIX  ADVISORY  READ 1234 fe:00:12345 1073741826 1073742335
2: OFDLCK ADVISORY  WRITE -1 fe:01:99 128 128
3: FLOCK  ADVISORY  WRITE 77 fe:00:5 0 EOF
4: POSIX  ADVISORY  WRITE 88 08:1a:7 0 EOF
4: -> POSIX  ADVISORY  WRITE 89 08:1a:7 0 EOF
5: POSIX  MANDATORY READ x fe:00:1 0 0
6: LEASE  ACTIVE    READ 5 fe:00:5 0 EOF
\xff\xfe
7: POSIX";
        let found = locks(text);
        assert_eq!(found.len(), 3);
        assert!(found[0].covers(SHARED) && !found[0].ofd && !found[0].write);
        assert_eq!((found[0].pid, found[0].device, found[0].inode), (1234, (0xfe, 0), 12345));
        assert!(found[1].covers(DMS) && found[1].ofd && found[1].write);
        assert_eq!((found[2].device, found[2].end), ((8, 0x1a), i64::MAX));
        assert!(found[2].covers(SHARED) && found[2].touches(DMS));
    }

    #[test]
    fn a_descriptor_tells_its_access_and_its_locks() {
        let text =
            b"pos:\t0\nflags:\t02100002\nmnt_id:\t22\nino:\t12\nlock:\t1: OFDLCK ADVISORY  READ -1 fe:00:12 128 128\n";
        let info = DescriptorInfo::parse(text);
        assert!(info.writable && !info.path_only);
        assert_eq!(info.locks.len(), 1);
        assert!(!DescriptorInfo::parse(b"flags:\t02100000\n").writable);
        let path_only = DescriptorInfo::parse(b"flags:\t012200000\n");
        assert!(path_only.path_only && !path_only.writable);
        assert_eq!(DescriptorInfo::parse(b"flags:\tzzz\nlock:\n"), DescriptorInfo::default());
    }

    #[test]
    fn only_shared_maps_of_files_count() {
        let text = b"7f0-7f8 rw-s 00000000 fe:00 12345                     /h/a b-shm (deleted)
7f8-7f9 r--p 00000000 fe:00 12345                     /h/lib.so
7f9-7fa rw-s 00000000 00:05 7                          /dev/zero (deleted)
7fa-7fb rw-s 00000000 00:01 8 anon
7fb-7fc rw-p 00000000 00:00 0
7fc
\xff";
        let all: Vec<_> = mappings(text).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].inode, all[0].path), (12345, &b"/h/a b-shm (deleted)"[..]));
        assert!(all[0].writable);
    }

    #[test]
    fn one_mark_is_taken_off_and_not_two() {
        assert_eq!(unmarked(b"/h/s.db-wal (deleted)"), (&b"/h/s.db-wal"[..], true));
        assert_eq!(unmarked(b"/h/s.db-wal (deleted) (deleted)"), (&b"/h/s.db-wal (deleted)"[..], true));
        assert_eq!(unmarked(b"/h/s.db-wal"), (&b"/h/s.db-wal"[..], false));
        assert_eq!(split(b"/s.db"), Some((&b"/"[..], &b"s.db"[..])));
        assert_eq!(split(b"/h/s.db"), Some((&b"/h"[..], &b"s.db"[..])));
        assert_eq!((split(b"pipe:[7]"), split(b"")), (None, None));
    }

    /// A deterministic stream of bytes out of the characters that the kernel's texts are made of.
    #[test]
    fn any_text_is_accepted() {
        let seed = std::env::var("STATEHOUSE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0x5eed_u64);
        println!("STATEHOUSE_SEED={seed}");
        let mut state = seed | 1;
        let alphabet = b"0123456789abcdef:-> \n\t/POSIXOFDLCKREADWRITEADVISORYEOFlock:flags:rws()\\\0\xff";
        for _ in 0..5000 {
            let text: Vec<u8> = (0..200)
                .map(|_| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    alphabet[(state >> 20) as usize % alphabet.len()]
                })
                .collect();
            for lock in locks(&text) {
                let _ = (lock.covers(SHARED), lock.touches(DMS));
            }
            DescriptorInfo::parse(&text);
            mappings(&text).for_each(drop);
            let _ = (unmarked(&text), split(&text));
            crate::process::Stat::parse(&text);
            crate::process::Powers::parse(&text);
            let command = crate::process::command(&text);
            let process = crate::holders::stop::Process { pid: 1, command: &command, cgroup: &text, uid: None };
            crate::holders::stop::stop(&process, &|_| None);
        }
    }
}
