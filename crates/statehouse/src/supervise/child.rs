//! One service as a process: started, listened to, waited for.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::log::RotatingLog;

/// The longest line of the protocol; the rest of a longer one is dropped.
const LINE_LIMIT: u64 = 64 << 10;

/// What a child's threads tell the supervisor. `run` counts the starts of all children, so that a late note about an
/// earlier process is never taken for one about its successor.
pub(crate) enum Note {
    /// The child printed a line.
    Line { run: u64, line: String },
    /// The child ended, and everything that it printed was told before.
    Ended { run: u64, status: Option<ExitStatus> },
    /// This process was asked to stop.
    Stop,
}

/// A running child.
pub(crate) struct Child {
    pub(crate) pid: u32,
    pub(crate) run: u64,
    handle: OwnedFd,
}

impl Child {
    /// Starts this executable with `arguments`, tied to this process. Must be called on the main thread: the kernel ties
    /// the child to the thread that starts it.
    pub(crate) fn start(arguments: &[OsString], log: PathBuf, run: u64, notes: Sender<Note>) -> std::io::Result<Child> {
        let mut process = own_executable()
            .args(arguments)
            .arg("--supervised-by")
            .arg(std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A group of its own keeps the terminal's Ctrl-C from the children: the supervisor stops them in order.
            .process_group(0)
            .spawn()?;
        let pid = process.id();
        let handle = match pidfd(pid) {
            Ok(handle) => handle,
            Err(e) => {
                let _ = process.kill().and_then(|()| process.wait());
                return Err(e);
            }
        };
        let stdout = process.stdout.take();
        let stderr = process.stderr.take();
        let logger = thread("log", move || {
            if let Some(mut stderr) = stderr {
                copy(&mut stderr, &mut RotatingLog::new(log));
            }
        });
        let spawned = thread("child", move || {
            let lines = stdout.map(|s| {
                let notes = notes.clone();
                thread("lines", move || tell_lines(s, run, &notes))
            });
            let status = process.wait().ok();
            // A process that the child left behind may keep the pipes open, so they are given a moment and not more.
            for reader in [lines, Some(logger)].into_iter().flatten().flatten() {
                let begun = std::time::Instant::now();
                while !reader.is_finished() && begun.elapsed() < std::time::Duration::from_millis(500) {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            }
            let _ = notes.send(Note::Ended { run, status });
        });
        match spawned {
            Ok(_) => Ok(Child { pid, run, handle }),
            Err(e) => {
                let _ = pidfd_send_signal(&handle, Signal::KILL);
                Err(e)
            }
        }
    }

    /// Sends a signal; one to a child that has ended goes nowhere.
    pub(crate) fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.handle, signal);
    }
}

pub(crate) fn pidfd(pid: u32) -> std::io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(std::io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// This program again. Its path is what a process list should show; when an update has replaced the file, the running
/// image is started instead, so that all services stay of one version.
pub(crate) fn own_executable() -> Command {
    use std::os::unix::fs::MetadataExt as _;
    let running = Path::new("/proc/self/exe");
    let identity = |p: &Path| std::fs::metadata(p).map(|m| (m.dev(), m.ino())).ok();
    match std::env::current_exe() {
        Ok(path) if identity(&path).is_some() && identity(&path) == identity(running) => Command::new(path),
        _ => {
            let mut command = Command::new(running);
            command.arg0("statehouse");
            command
        }
    }
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<std::thread::JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).stack_size(256 << 10).spawn(work)
}

fn copy(from: &mut impl Read, log: &mut RotatingLog) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => log.write(&buffer[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

fn tell_lines(from: impl Read, run: u64, notes: &Sender<Note>) {
    let mut from = BufReader::new(from);
    loop {
        let mut line = Vec::new();
        match (&mut from).take(LINE_LIMIT).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let line = String::from_utf8_lossy(&line).trim_end().to_owned();
        if !line.is_empty() && notes.send(Note::Line { run, line }).is_err() {
            return;
        }
    }
}
