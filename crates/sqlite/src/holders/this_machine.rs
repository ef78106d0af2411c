//! One real process with a real file, on whatever system the tests run.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test builds its situation by ordinary means")]

use std::process::{Child, Command, Stdio};

use super::*;

/// A program of the system that does nothing for a minute. It has the file as its standard input.
fn start(file: std::fs::File) -> Ended {
    let mut command = if cfg!(windows) { Command::new("ping") } else { Command::new("sleep") };
    if cfg!(windows) {
        command.args(["-n", "60", "127.0.0.1"])
    } else {
        command.arg("60")
    };
    Ended(command.stdin(Stdio::from(file)).stdout(Stdio::null()).spawn().unwrap())
}

/// A child that does not outlive its test.
struct Ended(Child);

impl Ended {
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn a_process_that_has_the_log_open_is_found_and_is_gone_when_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state.db");
    std::fs::write(&path, "main").unwrap();
    let wal =
        std::fs::File::options().read(true).write(true).create_new(true).open(directory.path().join("state.db-wal"));
    let mut child = start(wal.unwrap());
    let pid = Some(child.0.id().cast_signed());
    let family = Family::of(&path).unwrap();
    let of_child = |report: &Report| report.holders.iter().find(|h| h.pid == pid).cloned();

    let report = scan(&family).unwrap();
    let holder = of_child(&report).unwrap_or_else(|| unreachable!("it is not found: {report:?}"));
    assert_ne!(report.verdict, Verdict::Quiet);
    assert_eq!(
        holder.files.iter().map(|f| (f.member, f.generation)).collect::<Vec<_>>(),
        [(Member::Wal, Standing::Current)]
    );
    assert!(holder.files[0].writable && !holder.is_self && !holder.ghost, "{holder:?}");
    assert!(!holder.command.is_empty() && holder.start_time.is_some(), "{holder:?}");

    if cfg!(unix) {
        std::fs::remove_file(directory.path().join("state.db-wal")).unwrap();
        std::fs::write(directory.path().join("state.db-wal"), "new").unwrap();
        let report = scan(&family).unwrap();
        assert!(of_child(&report).is_some_and(|h| h.ghost), "it writes into a removed log: {report:?}");
        assert!(dangerous(&family).unwrap().iter().any(|h| h.pid == pid));
    }

    child.end();
    let report = scan(&family).unwrap();
    assert_eq!(of_child(&report), None, "it has ended");
    assert!(report.holders.is_empty(), "{report:?}");
}
