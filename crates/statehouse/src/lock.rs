//! One process a role on a home: a kernel lock, and a record of who has it.
//!
//! The lock is what decides: it ends with the process, whatever ends the process, so nothing stale is ever left. The
//! record inside the file only gives the refusal a name. It is written after the lock is taken, so that a process that
//! is turned away changes nothing.

use std::fs::{File, TryLockError};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use statehouse_sqlite::files;

use crate::exit;
use crate::failure::{Failure, Result, code};
use crate::home::Home;

/// Who holds a role.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) pid: u32,
    pub(crate) host: String,
    pub(crate) since: String,
    pub(crate) version: String,
    /// The pid namespace in which the number means something.
    #[serde(default)]
    pub(crate) pid_namespace: Option<u64>,
}

/// The pid namespace of this process, by inode.
fn namespace() -> Option<u64> {
    std::fs::metadata("/proc/self/ns/pid").ok().map(|m| m.ino())
}

impl Record {
    fn mine() -> Record {
        let host = files::read_to_string(Path::new("/proc/sys/kernel/hostname"), 4096).unwrap_or_default();
        Record {
            pid: std::process::id(),
            host: host.trim().to_owned(),
            since: jiff::Timestamp::now().round(jiff::Unit::Second).unwrap_or_default().to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid_namespace: namespace(),
        }
    }

    /// True if the number names that process here too, and not somebody else.
    fn is_here(&self) -> bool {
        let mine = Record::mine();
        self.host == mine.host && (self.pid_namespace.is_none() || self.pid_namespace == mine.pid_namespace)
    }
}

/// A role that this process has until it ends.
#[derive(Debug)]
pub(crate) struct RoleLock {
    _file: File,
}

/// Refuses if another process has `role`; creates and changes nothing.
///
/// # Errors
/// `already_running`, naming the process.
pub(crate) fn check(home: &Home, role: &str) -> Result<()> {
    let path = home.directory().join(format!("{role}.lock"));
    let file = match files::open(&path) {
        Ok(f) => f,
        Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => return Ok(()),
        Err(e) => return Err(Failure::io("open", &path, e)),
    };
    match file.try_lock_shared() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(held(home, role, file)),
        Err(TryLockError::Error(e)) => Err(Failure::io("lock", &path, e)),
    }
}

/// Takes `role` on a home that exists.
///
/// # Errors
/// `already_running`, naming the process that has it.
pub(crate) fn take(home: &Home, role: &str) -> Result<RoleLock> {
    let path = home.directory().join(format!("{role}.lock"));
    loop {
        let mut file = files::open_private(&path).map_err(|e| Failure::io("open", &path, e))?;
        match patiently(&file) {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(held(home, role, file)),
            Err(TryLockError::Error(e)) => return Err(Failure::io("lock", &path, e)),
        }
        // Somebody may have removed or replaced the file between the open and the lock; a lock on a file that no
        // longer has the name keeps nobody out.
        let named = std::fs::symlink_metadata(&path).map(|m| (m.dev(), m.ino())).ok();
        let locked = file.metadata().map(|m| (m.dev(), m.ino())).ok();
        if named != locked {
            continue;
        }
        let record = serde_json::to_string(&Record::mine()).unwrap_or_default();
        file.set_len(0).and_then(|()| file.write_all(record.as_bytes())).map_err(|e| Failure::io("write", &path, e))?;
        return Ok(RoleLock { _file: file });
    }
}

/// A moment of patience: [`check`] in another process holds the lock for some microseconds.
fn patiently(file: &File) -> std::result::Result<(), TryLockError> {
    for _ in 0..10 {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
            decided => return decided,
        }
    }
    file.try_lock()
}

/// The refusal. The holder writes its record right after it has the lock, so an empty one is worth a short wait.
fn held(home: &Home, role: &str, mut file: File) -> Failure {
    let begun = Instant::now();
    let record = loop {
        let mut text = String::new();
        let read = file.seek(SeekFrom::Start(0)).and_then(|_| (&mut file).take(4096).read_to_string(&mut text));
        match read.ok().and_then(|_| serde_json::from_str::<Record>(&text).ok()) {
            Some(record) => break Some(record),
            None if begun.elapsed() > Duration::from_millis(500) => break None,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let what = if role == "up" { "`statehouse up`" } else { role };
    let here = record.as_ref().is_none_or(Record::is_here);
    let who = match &record {
        Some(r) => format!("PID {} on {} has had it since {} (version {})", r.pid, r.host, r.since, r.version),
        None => "the process that has it has not written its name".to_owned(),
    };
    let pid = record.map(|r| r.pid);
    let place = if here { "" } else { " of another container or machine" };
    let named = pid.map(|p| format!(", PID {p}{place}")).unwrap_or_default();
    Failure::new(
        exit::REFUSED,
        code::ALREADY_RUNNING,
        format!("another {what} is running on {}{named}", home.directory().display()),
    )
    .detail(who)
    .hint(match pid {
        Some(p) if !here => {
            format!("Use the one that runs, or stop it where it runs; PID {p} is another process here.")
        }
        Some(p) => format!("Use the one that runs, or stop it first with `kill {p}`."),
        None => "Try again in a moment.".to_owned(),
    })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn case_037_the_second_is_refused_and_the_first_is_named() {
        let temp = tempfile::tempdir().unwrap();
        let home = Home::named(Some(temp.path()), None).unwrap();
        check(&home, "gateway").unwrap();
        assert_eq!(std::fs::read_dir(temp.path()).unwrap().count(), 0, "checking creates nothing");
        let first = take(&home, "gateway").unwrap();
        for failure in [check(&home, "gateway").unwrap_err(), take(&home, "gateway").unwrap_err()] {
            assert_eq!((failure.exit, &*failure.code), (exit::REFUSED, "already_running"));
            assert!(failure.message.contains(&std::process::id().to_string()), "{failure:?}");
            assert!(failure.detail.contains("since 20"), "{failure:?}");
        }
        take(&home, "scheduler").unwrap();
        drop(first);
        check(&home, "gateway").unwrap();
        take(&home, "gateway").unwrap();
    }

    #[test]
    fn nobody_is_told_to_kill_a_number_of_another_container() {
        let temp = tempfile::tempdir().unwrap();
        let home = Home::named(Some(temp.path()), None).unwrap();
        let _first = take(&home, "gateway").unwrap();
        for elsewhere in [
            Record { pid: 1, pid_namespace: Some(1), ..Record::mine() },
            Record { pid: 1, host: "another".into(), ..Record::mine() },
        ] {
            // The lock is on the file, whatever it says.
            let mut file = files::open_private(&temp.path().join("gateway.lock")).unwrap();
            file.set_len(0).unwrap();
            file.write_all(serde_json::to_string(&elsewhere).unwrap().as_bytes()).unwrap();
            let failure = check(&home, "gateway").unwrap_err();
            assert!(failure.message.contains("PID 1 of another container or machine"), "{failure:?}");
            assert!(!failure.hint.contains("kill"), "{failure:?}");
        }
    }
}
