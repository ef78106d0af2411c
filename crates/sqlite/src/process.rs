//! What Linux tells about a process: which one it is, what it runs, and whose it is.
//!
//! Everything here is text of `/proc` taken apart by functions that accept any bytes: a command may contain newlines,
//! parentheses and escape sequences, and a process may be gone between two reads.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};

pub(crate) use crate::words::{one_line, rfc3339};

/// Clock ticks a second in `/proc/PID/stat` (`USER_HZ`), the same on every architecture that Rust supports on Linux.
const TICKS_PER_SECOND: u64 = 100;

/// A process, told apart from a later one that got the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// The number, in this process's own pid namespace.
    pub pid: i32,
    /// When it started, in clock ticks (1/100 s) since the machine did.
    pub start_ticks: u64,
}

impl ProcessId {
    /// This process.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn own() -> std::io::Result<ProcessId> {
        let mut text = Vec::new();
        read_file(rustix::fs::CWD, "/proc/self/stat", &mut text)?;
        let stat = Stat::parse(&text).ok_or_else(|| std::io::Error::other("/proc/self/stat cannot be understood"))?;
        Ok(ProcessId { pid: rustix::process::getpid().as_raw_nonzero().get(), start_ticks: stat.start_ticks })
    }

    /// True if this very process still runs.
    pub fn lives(self) -> bool {
        let mut text = Vec::new();
        read_file(rustix::fs::CWD, &format!("/proc/{}/stat", self.pid), &mut text).is_ok()
            && Stat::parse(&text).is_some_and(|s| s.start_ticks == self.start_ticks && !s.ended())
    }
}

/// What is needed of `/proc/PID/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) state: u8,
    pub(crate) flags: u64,
    pub(crate) start_ticks: u64,
}

impl Stat {
    /// The name in parentheses may contain anything, even `) R 1`, so the fields are counted from the last parenthesis.
    pub(crate) fn parse(text: &[u8]) -> Option<Stat> {
        let end = text.iter().rposition(|b| *b == b')')?;
        let rest = std::str::from_utf8(text.get(end + 1..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        // Fields as proc_pid_stat(5) counts them: the state is the third, the flags the ninth, the start the 22nd.
        let flags = fields.nth(5)?.parse().ok()?;
        let start_ticks = fields.nth(12)?.parse().ok()?;
        Some(Stat { state, flags, start_ticks })
    }

    /// A thread of the kernel has no files of its own (`PF_KTHREAD`).
    pub(crate) fn of_kernel(&self) -> bool {
        self.flags & 0x0020_0000 != 0
    }

    /// A zombie or a process that is being taken apart has closed everything already.
    pub(crate) fn ended(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

/// What is needed of `/proc/PID/status`: who it acts as, and whether permission bits bind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Powers {
    pub(crate) euid: u32,
    /// It may open any file (`CAP_DAC_OVERRIDE` or `CAP_DAC_READ_SEARCH`).
    pub(crate) any_file: bool,
}

impl Powers {
    pub(crate) fn parse(text: &[u8]) -> Option<Powers> {
        let value = |name: &[u8]| {
            let line = text.split(|b| *b == b'\n').find_map(|l| l.strip_prefix(name))?;
            std::str::from_utf8(line).ok()
        };
        let euid = value(b"Uid:")?.split_ascii_whitespace().nth(1)?.parse().ok()?;
        let capabilities = u64::from_str_radix(value(b"CapEff:")?.trim(), 16).ok()?;
        Some(Powers { euid, any_file: capabilities & 0b110 != 0 })
    }
}

/// The numbers of a process in each pid namespace that it is in, its own last (`NSpid` of `/proc/PID/status`).
pub(crate) fn namespace_pids(status: &[u8]) -> Vec<i32> {
    let line = status.split(|b| *b == b'\n').find_map(|l| l.strip_prefix(b"NSpid:"));
    let text = line.and_then(|l| std::str::from_utf8(l).ok()).unwrap_or("");
    text.split_ascii_whitespace().filter_map(|n| n.parse().ok()).collect()
}

/// Reads a file of the kernel whole into `text`, which is emptied first and keeps its room.
pub(crate) fn read_file(directory: impl AsFd, name: &str, text: &mut Vec<u8>) -> rustix::io::Result<()> {
    let file = rustix::fs::openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    read_all(&file, text)
}

pub(crate) fn read_all(file: &OwnedFd, text: &mut Vec<u8>) -> rustix::io::Result<()> {
    text.clear();
    loop {
        text.reserve(16384);
        if rustix::io::retry_on_intr(|| rustix::io::read(file, rustix::buffer::spare_capacity(text)))? == 0 {
            return Ok(());
        }
    }
}

/// The words of `/proc/PID/cmdline`.
pub(crate) fn command(text: &[u8]) -> Vec<String> {
    let text = text.strip_suffix(b"\0").unwrap_or(text);
    if text.is_empty() {
        return Vec::new();
    }
    text.split(|b| *b == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

/// The moment at which the machine started, by the clock of now.
pub(crate) fn boot_time() -> Option<SystemTime> {
    let mut text = Vec::new();
    read_file(rustix::fs::CWD, "/proc/uptime", &mut text).ok()?;
    let uptime: f64 = std::str::from_utf8(&text).ok()?.split_ascii_whitespace().next()?.parse().ok()?;
    SystemTime::now().checked_sub(Duration::try_from_secs_f64(uptime).ok()?)
}

/// A start in clock ticks as RFC 3339 in UTC. The kernel counts hundredths of a second, so finer digits are zero.
pub(crate) fn start_time(boot: SystemTime, ticks: u64) -> String {
    let hundredths = 1000 / TICKS_PER_SECOND;
    let since = boot.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let millis = (since / hundredths).saturating_add(ticks).saturating_mul(hundredths);
    rfc3339(millis.saturating_mul(1000))
}

/// The inode of a namespace of a process (`pid`, `mnt`), which names it.
pub(crate) fn namespace(process: &str, kind: &str) -> Option<u64> {
    rustix::fs::stat(format!("/proc/{process}/ns/{kind}")).ok().map(|s| s.st_ino)
}

/// Users as `/etc/passwd` has them; one that is elsewhere is shown by number.
#[derive(Debug, Default)]
pub(crate) struct Users(Vec<User>);

#[derive(Debug)]
struct User {
    uid: u32,
    name: String,
    home: PathBuf,
}

impl Users {
    pub(crate) fn read() -> Users {
        let mut text = Vec::new();
        match read_file(rustix::fs::CWD, "/etc/passwd", &mut text) {
            Ok(()) => Users::parse(&text),
            Err(_) => Users::default(),
        }
    }

    pub(crate) fn parse(text: &[u8]) -> Users {
        let text = String::from_utf8_lossy(text);
        let line = |l: &str| {
            let mut fields = l.split(':');
            let name = fields.next()?.to_owned();
            let uid = fields.nth(1)?.parse().ok()?;
            Some(User { uid, name, home: fields.nth(2).unwrap_or("").into() })
        };
        Users(text.lines().filter_map(line).collect())
    }

    fn of(&self, uid: u32) -> Option<&User> {
        self.0.iter().find(|u| u.uid == uid)
    }

    pub(crate) fn name(&self, uid: u32) -> String {
        self.of(uid).map_or_else(|| uid.to_string(), |u| u.name.clone())
    }

    /// The home directory of a user, if it is known.
    pub(crate) fn home(&self, uid: u32) -> Option<&Path> {
        self.of(uid).map(|u| u.home.as_path()).filter(|h| h.is_absolute())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let stat = |name: &str| {
            format!("7 ({name}) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 1000 20 18446744073709551615")
        };
        for name in ["cat", "a) R 1 2 3", "((((", "two words\nand a line", ""] {
            let parsed = Stat::parse(stat(name).as_bytes()).unwrap();
            assert_eq!(parsed, Stat { state: b'S', flags: 4_194_560, start_ticks: 4711 });
        }
        for broken in ["", ")", "7 (x) S", "7 (x) S 1 7 7 0 -1 x", "no parenthesis"] {
            assert_eq!(Stat::parse(broken.as_bytes()), None);
        }
        assert!(Stat::parse(b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20 0 1 0 1 0 0").unwrap().of_kernel());
    }

    #[test]
    fn powers_are_those_in_effect() {
        let text = b"Name:\tUid:\nUmask:\t0022\nUid:\t1000\t2001\t1000\t1000\nCapEff:\t0000000000000004\n";
        assert_eq!(Powers::parse(text), Some(Powers { euid: 2001, any_file: true }));
        assert_eq!(Powers::parse(b"Uid:\t1\t2\t3\t4\n"), None);
    }

    #[test]
    fn a_command_is_its_words() {
        assert_eq!(command(b"a\0\0b c\0"), ["a", "", "b c"]);
        assert!(command(b"").is_empty());
    }

    #[test]
    fn a_start_in_ticks_becomes_a_date() {
        assert_eq!(start_time(UNIX_EPOCH + Duration::from_millis(1239), 100), "1970-01-01T00:00:02.230000Z");
    }

    #[test]
    fn users_are_named_where_they_are_known() {
        let users = Users::parse(b"root:x:0:0:root:/root:/bin/sh\nbroken\n:x:y\nme:x:1000:1000::/home/me:/bin/sh\n");
        assert_eq!((users.name(0), users.name(1000), users.name(7)), ("root".into(), "me".into(), "7".into()));
        assert_eq!((users.home(1000), users.home(7)), (Some(Path::new("/home/me")), None));
    }
}
