//! Processes that a test starts: they die with it, they speak in lines, and every wait for them has an end.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use crate::wait::until_some;

/// Makes the child a group of its own that is killed with the thread that starts it.
fn leash(command: &mut Command) {
    let parent = rustix::process::getpid();
    command.process_group(0);
    die_with_parent(command, parent);
}

#[expect(unsafe_code, reason = "only a call between fork and exec reaches the child before its program runs")]
fn die_with_parent(command: &mut Command, parent: Pid) {
    let ask = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the request; then nobody would ever send the signal.
        if rustix::process::getppid() != Some(parent) {
            return Err(std::io::Error::other("the test is gone"));
        }
        Ok(())
    };
    // SAFETY: the closure runs in the child between fork and exec, where only async-signal-safe work is sound. It makes
    // two system calls by way of rustix and allocates nothing on its way to success; the error that would allocate
    // arises only when the test is dead and the child is to end anyway.
    unsafe {
        command.pre_exec(ask);
    }
}

/// A running process. Dropping it kills its whole process group.
#[derive(Debug)]
pub struct Child {
    name: String,
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
    status: Option<ExitStatus>,
}

impl Child {
    /// Starts `command` with piped streams. The child dies when the calling thread ends.
    pub fn spawn(command: &mut Command) -> Child {
        let name = format!("{:?}", command.get_program());
        leash(command);
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("cannot start {name}: {e}"));
        let stdout = process.stdout.take().expect("piped");
        let mut error = process.stderr.take().expect("piped");
        let (send, lines) = channel();
        let stderr = Arc::new(Mutex::new(Vec::new()));
        let kept = stderr.clone();
        let out = std::thread::spawn(move || {
            for line in BufReader::new(stdout).split(b'\n').map_while(Result::ok) {
                if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        let err = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = error.read(&mut buffer) {
                kept.lock().unwrap().extend_from_slice(&buffer[..n]);
            }
        });
        let stdin = process.stdin.take();
        Child { name, process, stdin, lines, stderr, readers: vec![out, err], status: None }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends one line to its standard input.
    pub fn send(&mut self, line: &str) {
        let stdin = self.stdin.as_mut().expect("standard input is open");
        let sent = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        sent.unwrap_or_else(|e| panic!("cannot speak to {}: {e}\n{}", self.name, self.stderr_text()));
    }

    /// Closes its standard input.
    pub fn close_input(&mut self) {
        self.stdin = None;
    }

    /// The next line of its standard output, within `deadline`.
    pub fn line(&mut self, deadline: Duration) -> String {
        self.try_line(deadline).unwrap_or_else(|| panic!("{} said nothing more\n{}", self.name, self.stderr_text()))
    }

    /// The next line of its standard output; `None` once it is closed. Panics when `deadline` passes.
    pub fn try_line(&mut self, deadline: Duration) -> Option<String> {
        match self.lines.recv_timeout(deadline) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{} said nothing for {deadline:?}\n{}", self.name, self.stderr_text())
            }
        }
    }

    /// The next line that `wanted` accepts; others are passed over.
    pub fn line_where(&mut self, what: &str, deadline: Duration, mut wanted: impl FnMut(&str) -> bool) -> String {
        let begun = Instant::now();
        let mut passed = Vec::new();
        loop {
            let left = deadline.saturating_sub(begun.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) if wanted(&line) => return line,
                Ok(line) => passed.push(line),
                Err(e) => panic!(
                    "{}: no line with {what} within {deadline:?} ({e}); it said {passed:#?}\n{}",
                    self.name,
                    self.stderr_text()
                ),
            }
        }
    }

    /// Lines that have arrived and were not read yet.
    pub fn pending_lines(&mut self) -> Vec<String> {
        self.lines.try_iter().collect()
    }

    /// Sends a signal to the process alone, not to its group.
    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.process.id() as i32) {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// `kill -9` of the process alone, and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.process.kill();
        self.status = self.process.wait().ok();
    }

    /// Its exit status if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.process.try_wait().expect("wait for a child");
        }
        self.status
    }

    /// Waits for its end, at most `deadline`.
    pub fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let name = format!("{} ends", self.name);
        until_some(&name, deadline, || self.ended())
    }

    /// SIGTERM, then waits for its end.
    pub fn stop(&mut self, deadline: Duration) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait(deadline)
    }

    /// What has arrived of its standard error so far; a line that it has just written may still be on its way.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr.lock().unwrap()).into_owned()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.process.id() as i32) {
            // The group, for what the process itself has started; it may be gone already.
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        self.stdin = None;
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "stderr of {}:\n{}", self.name, self.stderr_text());
        }
        // A stranger may have inherited the pipes and keep them open, so the readers are left to end by themselves.
        self.readers.clear();
    }
}

/// A process that has ended.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
    /// From start to end.
    pub took: Duration,
}

impl Finished {
    /// The exit code; panics after a signal.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("ended by signal {:?}: {self:?}", self.status.signal()))
    }

    /// Standard output as one JSON document.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("not one JSON document ({e}): {}", self.short()))
    }

    /// What a person needs of it to see what went wrong; a document of megabytes is cut.
    fn short(&self) -> String {
        let cut = |text: &str| match text.char_indices().nth(2000) {
            Some((at, _)) => format!("{}… ({} bytes)", &text[..at], text.len()),
            None => text.to_owned(),
        };
        format!("{}\nstdout: {}\nstderr: {}", self.status, cut(&self.stdout), cut(&self.stderr))
    }

    /// Itself, after the check that it ended with 0.
    pub fn success(self) -> Finished {
        assert!(self.status.success(), "{}", self.short());
        self
    }
}

/// Runs `command` to its end. It is killed, and the test fails, when `deadline` passes first.
pub fn run(command: &mut Command, deadline: Duration) -> Finished {
    run_with_input(command, b"", deadline)
}

/// As [`run`], with `input` on standard input.
pub fn run_with_input(command: &mut Command, input: &[u8], deadline: Duration) -> Finished {
    let begun = Instant::now();
    let line = format!("{command:?}");
    leash(command);
    let mut process = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("cannot start {line}: {e}"));
    let collect = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut all = Vec::new();
            let _ = from.read_to_end(&mut all);
            String::from_utf8_lossy(&all).into_owned()
        })
    };
    let stdout = collect(Box::new(process.stdout.take().expect("piped")));
    let stderr = collect(Box::new(process.stderr.take().expect("piped")));
    // A program that does not read its input closes the pipe; that is its right.
    let _ = process.stdin.take().expect("piped").write_all(input);
    let status = loop {
        if let Some(status) = process.try_wait().expect("wait for a child") {
            break status;
        }
        if begun.elapsed() > deadline {
            let _ = process.kill();
            let _ = process.wait();
            panic!(
                "still running after {deadline:?}: {line}\nstdout: {}\nstderr: {}",
                stdout.join().unwrap_or_default(),
                stderr.join().unwrap_or_default()
            );
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let took = begun.elapsed();
    Finished { status, stdout: stdout.join().unwrap_or_default(), stderr: stderr.join().unwrap_or_default(), took }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_speaks_in_lines_and_dies_when_dropped() {
        let mut child = Child::spawn(&mut Command::new("cat"));
        child.send("hello");
        assert_eq!(child.line(Duration::from_secs(5)), "hello");
        let proc = format!("/proc/{}", child.pid());
        assert!(std::path::Path::new(&proc).exists());
        drop(child);
        assert!(!std::path::Path::new(&proc).exists());
    }

    #[test]
    fn a_run_reports_status_output_and_input() {
        let done = run_with_input(
            Command::new("sh").args(["-c", "cat; echo oops >&2; exit 3"]),
            b"in",
            Duration::from_secs(5),
        );
        assert_eq!((done.code(), done.stdout.as_str(), done.stderr.as_str()), (3, "in", "oops\n"));
    }
}
