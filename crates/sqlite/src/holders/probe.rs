//! Asks the kernel who holds SQLite's locks, from a child process that lives for this question alone.
//!
//! `/proc/locks` leaves out what belongs to a process of a pid namespace that is not seen from here, and what another machine
//! holds on a file of a server. `F_GETLK` tells of it, but it needs an ordinary descriptor of the file, and closing that
//! descriptor would drop the POSIX locks that the asking process has on it. So a child asks: record locks belong to a process
//! and its table of descriptors, and what a child with a table of its own opens and closes is nothing to its parent's.
//!
//! Invariant: the calling program cannot tell that there was a child. It is made by a bare `clone` without a signal, so no
//! handler for forks runs, no `SIGCHLD` comes, and no `wait` for any child finds it; it makes system calls only, allocates
//! nothing, takes no lock, and starts with every signal blocked. It has a second, for a file system may never answer.

#![expect(unsafe_code, reason = "a child that the host program never sees can be made by bare system calls only")]

use std::ffi::{CStr, CString, c_int};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::target::FileId;
use crate::family::{Family, Member};
use crate::ofd::{DMS, PENDING, RESERVED, Range, SHARED};

/// How long the child may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// The name of the child, by which another look at the same moment knows it.
pub(super) const NAME: &CStr = c"statehouse-ask";

/// The members on which SQLite takes locks, and the bytes that mean something on each. Each byte of the index is one lock.
const QUESTIONS: [(Member, &[Range]); 2] = [
    (Member::Main, &[SHARED, RESERVED, PENDING]),
    (Member::Shm, &[DMS, byte(120), byte(121), byte(122), byte(123), byte(124), byte(125), byte(126), byte(127)]),
];

const fn byte(start: i64) -> Range {
    Range { start, length: 1 }
}

/// A lock that stands in the way of an exclusive one on a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Conflict {
    pub(super) member: Member,
    pub(super) file: FileId,
    pub(super) range: Range,
    pub(super) write: bool,
    /// A process that is seen from here; -1 for an open file description; 0 for a process that is not seen from here, and
    /// something else below zero for one of another machine.
    pub(super) pid: i32,
}

/// What the kernel answered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) conflicts: Vec<Conflict>,
    /// Members of which it could not be asked, and why.
    pub(super) unasked: Vec<(Member, String)>,
    /// It did not answer within its time.
    pub(super) never_answered: bool,
    /// False if the main file begins with something that is no SQLite database. True also for an empty file.
    pub(super) is_sqlite: Option<bool>,
}

const WORDS: usize = 24;
const RANGES: usize = 9;

/// What the child says about one member, written in one piece.
type Message = [i64; WORDS];

// The words of a message.
const OUTCOME: usize = 0;
const ERRNO: usize = 1;
const DEVICE: usize = 2;
const INODE: usize = 3;
const MAGIC: usize = 4;
const LOCKS: usize = 6;

const ASKED: i64 = 1;
const MISSING: i64 = 2;
const SPECIAL: i64 = 3;
const FAILED: i64 = 4;

const MAGIC_OK: i64 = 1;
const MAGIC_OTHER: i64 = 2;

/// Children that were killed and have not ended, because they are stuck in the kernel. No further one is made meanwhile.
static STUCK: Mutex<Vec<libc::pid_t>> = Mutex::new(Vec::new());

/// Asks about every lock of SQLite on the files that the paths name now.
pub(super) fn ask(family: &Family) -> Answer {
    ask_within(family, PATIENCE, 0)
}

/// `delay` is how many milliseconds the child waits before it begins, for the tests.
fn ask_within(family: &Family, patience: Duration, delay: c_int) -> Answer {
    let paths: Vec<(Member, &[Range], CString)> = QUESTIONS
        .into_iter()
        .filter_map(|(m, ranges)| Some((m, ranges, CString::new(family.path(m).as_os_str().as_bytes()).ok()?)))
        .collect();
    let mut answer = Answer::default();
    let mut heard = 0;
    let outcome = start(&paths, delay).and_then(|child| {
        let deadline = Instant::now() + patience;
        for (member, ranges, _) in &paths {
            match child.message(deadline) {
                Ok(message) => answer.take(*member, ranges, &message),
                Err(e) => {
                    child.end(Instant::now());
                    return Err(e);
                }
            }
            heard += 1;
        }
        child.end(deadline);
        Ok(())
    });
    if let Err(e) = outcome {
        answer.never_answered = e.kind() == std::io::ErrorKind::TimedOut;
        answer.unasked.extend(paths.iter().skip(heard).map(|(m, _, _)| (*m, e.to_string())));
    }
    answer
}

impl Answer {
    fn take(&mut self, member: Member, ranges: &[Range], message: &Message) {
        let errno = || std::io::Error::from_raw_os_error(message[ERRNO] as i32).to_string();
        match message[OUTCOME] {
            ASKED => {}
            MISSING => return,
            SPECIAL => return self.unasked.push((member, "it is not a regular file".to_owned())),
            _ => return self.unasked.push((member, errno())),
        }
        if member == Member::Main {
            self.is_sqlite = match message[MAGIC] {
                MAGIC_OK => Some(true),
                MAGIC_OTHER => Some(false),
                _ => None,
            };
        }
        let file = (message[DEVICE] as u64, message[INODE] as u64);
        for (range, lock) in ranges.iter().zip(message[LOCKS..].chunks_exact(2)) {
            let write = match lock[0] as c_int {
                libc::F_RDLCK => false,
                libc::F_WRLCK => true,
                _ => continue,
            };
            self.conflicts.push(Conflict { member, file, range: *range, write, pid: lock[1] as i32 });
        }
    }
}

fn late(why: String) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::TimedOut, why)
}

/// A child that was asked, and the end of the pipe from which its answers come.
struct Child {
    pid: libc::pid_t,
    answers: OwnedFd,
}

fn start(paths: &[(Member, &[Range], CString)], delay: c_int) -> std::io::Result<Child> {
    let mut stuck = STUCK.lock().unwrap_or_else(PoisonError::into_inner);
    stuck.retain(|pid| !ended(*pid));
    if !stuck.is_empty() {
        return Err(late("an earlier question has no answer yet, for the file system does not respond".to_owned()));
    }
    drop(stuck);
    let (answers, to) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // SAFETY: both sets are plain data of this frame that the calls fill; the mask of this thread is put back below, in
    // this process, whatever `clone` answers.
    let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: as above.
    unsafe {
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
    }
    // SAFETY: flags of zero and no stack make a fork without a signal at its end: the child goes on here on a copy of this
    // memory with this thread alone. It runs `child` and nothing else, which makes system calls only and never returns, so
    // it does not matter in what state other threads have left the allocator or any lock.
    let pid = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    if pid == 0 {
        child(paths, to.as_raw_fd(), delay);
    }
    let failed = std::io::Error::last_os_error();
    // SAFETY: as above; it restores what the first call has stored.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    if pid < 0 {
        return Err(failed);
    }
    Ok(Child { pid: pid as libc::pid_t, answers })
}

/// The whole life of the child.
fn child(paths: &[(Member, &[Range], CString)], to: RawFd, delay: c_int) -> ! {
    // SAFETY: system calls on numbers and on plain data of this frame. The descriptors that are closed are this process's
    // own copies: the table was copied by `clone`, and a close drops the POSIX locks of the closer only.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::prctl(libc::PR_SET_NAME, NAME.as_ptr());
        leave_only(to);
        if delay > 0 {
            libc::poll(std::ptr::null_mut(), 0, delay);
        }
        for (_, ranges, path) in paths {
            let message = question(path, ranges);
            libc::write(to, message.as_ptr().cast(), size_of::<Message>());
        }
        libc::_exit(0)
    }
}

/// Closes everything but one descriptor, so that nothing of the parent's is kept open by a child that hangs.
///
/// # Safety
/// Only for a process that needs no other descriptor any more.
unsafe fn leave_only(kept: RawFd) {
    let close_range = |first: RawFd, last: libc::c_uint| {
        // SAFETY: closes numbers of this process's own table, as the caller wants.
        unsafe { libc::syscall(libc::SYS_close_range, first as libc::c_uint, last, 0) == 0 }
    };
    let below = kept == 0 || close_range(0, (kept - 1) as libc::c_uint);
    let above = close_range(kept.saturating_add(1), libc::c_uint::MAX);
    if !(below && above) {
        // A kernel before 5.9, or a filter that does not know the call.
        for descriptor in (0..1024).filter(|d| *d != kept) {
            // SAFETY: as above.
            unsafe { libc::close(descriptor) };
        }
    }
}

/// Opens a file, asks about its locks, and closes it.
///
/// # Safety
/// Only in the child: closing the file drops the POSIX locks that the process has on it.
unsafe fn question(path: &CStr, ranges: &[Range]) -> Message {
    let mut message: Message = [0; WORDS];
    // SAFETY: `status` is plain data of this frame that the calls fill, `path` a C string, and every call gets a
    // descriptor that was opened here. `errno` is this process's own copy of the parent's.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        let fail = |message: &mut Message| {
            let errno = *libc::__errno_location();
            message[OUTCOME] = if errno == libc::ENOENT { MISSING } else { FAILED };
            message[ERRNO] = i64::from(errno);
        };
        let special = |status: &libc::stat| status.st_mode & libc::S_IFMT != libc::S_IFREG;
        // A special file is not opened at all; should one take the place of the file at this moment, opening it does not wait.
        if libc::lstat(path.as_ptr(), &raw mut status) != 0 {
            fail(&mut message);
            return message;
        }
        if special(&status) {
            message[OUTCOME] = SPECIAL;
            return message;
        }
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC;
        let file = libc::open(path.as_ptr(), flags);
        if file < 0 || libc::fstat(file, &raw mut status) != 0 {
            fail(&mut message);
            return message;
        }
        if special(&status) {
            message[OUTCOME] = SPECIAL;
            libc::close(file);
            return message;
        }
        message[OUTCOME] = ASKED;
        message[DEVICE] = status.st_dev as i64;
        message[INODE] = status.st_ino as i64;
        message[MAGIC] = magic(file);
        let mut slots = message.iter_mut().skip(LOCKS);
        for range in ranges.iter().take(RANGES) {
            let mut lock: libc::flock = std::mem::zeroed();
            lock.l_type = libc::F_WRLCK as libc::c_short;
            lock.l_whence = libc::SEEK_SET as libc::c_short;
            lock.l_start = range.start;
            lock.l_len = range.length;
            let known = libc::fcntl(file, libc::F_GETLK, &raw mut lock) == 0;
            if !known {
                fail(&mut message);
                message[OUTCOME] = FAILED;
                break;
            }
            if let (Some(kind), Some(pid)) = (slots.next(), slots.next()) {
                *kind = i64::from(lock.l_type);
                *pid = i64::from(lock.l_pid);
            }
        }
        libc::close(file);
    }
    message
}

/// Whether a file begins as a SQLite database does. One that is shorter than its first page says nothing.
///
/// # Safety
/// As [`question`].
unsafe fn magic(file: RawFd) -> i64 {
    const BEGINNING: &[u8; 16] = b"SQLite format 3\0";
    let mut begins = [0_u8; 16];
    // SAFETY: reads at most as many bytes as the buffer of this frame has.
    let n = unsafe { libc::pread(file, begins.as_mut_ptr().cast(), begins.len(), 0) };
    match n {
        16 if begins == *BEGINNING => MAGIC_OK,
        0 => MAGIC_OK,
        n if n > 0 => MAGIC_OTHER,
        _ => 0,
    }
}

impl Child {
    /// The next message, or why none comes.
    fn message(&self, deadline: Instant) -> std::io::Result<Message> {
        let mut bytes = [0_u8; size_of::<Message>()];
        let mut have = 0;
        while have < bytes.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(late(format!("the file system did not answer within {} s", PATIENCE.as_secs())));
            }
            let mut poll = libc::pollfd { fd: self.answers.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            let milliseconds = c_int::try_from(left.as_millis()).unwrap_or(c_int::MAX).max(1);
            // SAFETY: one structure of this frame, and its number is said.
            if unsafe { libc::poll(&raw mut poll, 1, milliseconds) } <= 0 {
                continue;
            }
            match rustix::io::retry_on_intr(|| rustix::io::read(&self.answers, &mut bytes[have..]))? {
                0 => return Err(std::io::Error::other("the process that was to ask ended without an answer")),
                n => have += n,
            }
        }
        let mut message: Message = [0; WORDS];
        for (word, bytes) in message.iter_mut().zip(bytes.as_chunks().0) {
            *word = i64::from_ne_bytes(*bytes);
        }
        Ok(message)
    }

    /// Waits until the child has ended, and ends it at the deadline.
    fn end(&self, deadline: Instant) {
        let mut pause = Duration::from_micros(20);
        while !ended(self.pid) {
            if Instant::now() >= deadline {
                // SAFETY: the number is that of a child that nobody has waited for, so it is still its own.
                unsafe { libc::kill(self.pid, libc::SIGKILL) };
                return self.end_killed();
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(5));
        }
    }

    /// A killed child ends at once, unless it is stuck in a call that cannot be interrupted.
    fn end_killed(&self) {
        let deadline = Instant::now() + PATIENCE / 10;
        while !ended(self.pid) {
            if Instant::now() >= deadline {
                return STUCK.lock().unwrap_or_else(PoisonError::into_inner).push(self.pid);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// True if the child is gone, which this finds out by taking its status.
fn ended(pid: libc::pid_t) -> bool {
    let mut status = 0;
    // SAFETY: `status` is a place for an int. `__WCLONE` restricts the call to children without a signal, so that it can
    // never take the status of a child of the program, should the number be one by now.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, libc::__WCLONE | libc::WNOHANG) };
    waited == pid || (waited < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD))
}

#[cfg(test)]
mod tests {
    #![expect(
        clippy::unwrap_used,
        clippy::panic,
        clippy::disallowed_methods,
        reason = "a test takes locks by itself and stops at the first surprise"
    )]

    use std::os::unix::fs::OpenOptionsExt;

    use super::*;
    use crate::ofd::{self, Kind};

    fn database() -> (tempfile::TempDir, Family) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.db");
        rusqlite::Connection::open(&path).unwrap().execute_batch("CREATE TABLE t(x)").unwrap();
        let family = Family::of(&path).unwrap();
        (directory, family)
    }

    #[test]
    fn every_range_is_asked_for_and_the_kind_is_told() {
        let (_d, family) = database();
        assert_eq!(ask(&family), Answer { is_sqlite: Some(true), ..Answer::default() });
        let open = |path: &std::path::Path| {
            std::fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(path)
                .unwrap()
        };
        let (main, index) = (open(&family.main()), open(&family.path(Member::Shm)));
        for (member, ranges) in QUESTIONS {
            for range in ranges {
                for kind in [Kind::Read, Kind::Write] {
                    let file = if member == Member::Main { &main } else { &index };
                    assert!(ofd::try_lock(file, kind, *range).unwrap());
                    let found = ask(&family).conflicts;
                    let [one] = found.as_slice() else { panic!("{member} {range:?}: {found:?}") };
                    assert_eq!((one.member, one.range, one.pid), (member, *range, -1));
                    assert_eq!(one.write, kind == Kind::Write);
                    ofd::unlock(file, *range).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_child_that_has_no_answer_in_time_is_ended() {
        let (_d, family) = database();
        let begun = Instant::now();
        let answer = ask_within(&family, Duration::from_millis(50), 60_000);
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert!(answer.never_answered);
        let late = "the file system did not answer within 1 s".to_owned();
        assert_eq!(answer.unasked, [(Member::Main, late.clone()), (Member::Shm, late)]);
        assert!(STUCK.lock().unwrap().is_empty(), "it could be ended");
        assert_eq!(ask(&family).unasked, [], "and the next question is answered");
    }

    #[test]
    fn special_files_are_not_asked() {
        let (_d, family) = database();
        let index = family.path(Member::Shm);
        std::os::unix::net::UnixListener::bind(&index).unwrap();
        assert_eq!(ask(&family).unasked, [(Member::Shm, "it is not a regular file".to_owned())]);
        std::fs::remove_file(&index).unwrap();
        std::os::unix::fs::symlink(family.main(), &index).unwrap();
        assert_eq!(ask(&family).unasked, [(Member::Shm, "it is not a regular file".to_owned())]);
    }
}
