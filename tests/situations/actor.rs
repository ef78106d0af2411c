//! A process under orders: `actor.py` does what a program that uses a database might do, one thing at a time.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use statehouse_testkit::kernel;
use statehouse_testkit::process::Child;
use statehouse_testkit::visitor::python;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/situations/actor.py");
const DEADLINE: Duration = Duration::from_secs(60);

/// One such process, with what it has started.
pub(crate) struct Actor {
    child: Child,
    pid: u32,
}

impl Actor {
    /// One that has nothing open.
    pub(crate) fn idle() -> Actor {
        Actor::with::<&str>(&[], &[])
    }

    /// One whose command line begins with `wrapper` (a command that runs a command) and ends in `arguments`.
    pub(crate) fn with<S: AsRef<std::ffi::OsStr>>(wrapper: &[S], arguments: &[S]) -> Actor {
        let mut command = match wrapper.split_first() {
            Some((program, rest)) => {
                let mut command = Command::new(program);
                command.args(rest).arg(python());
                command
            }
            None => Command::new(python()),
        };
        command.args(["-I", "-u", SCRIPT]).args(arguments).current_dir("/");
        Actor::start(&mut command)
    }

    pub(crate) fn start(command: &mut Command) -> Actor {
        let mut actor = Actor { child: Child::spawn(command), pid: 0 };
        // It has answered, so it runs and has started nobody yet: the youngest descendant of the wrapper is it.
        actor.order(json!(["nothing"]));
        actor.pid = kernel::descendants(actor.child.pid()).pop().expect("itself at least");
        actor
    }

    /// One with the database open and a row read, so that it has all files and both locks.
    pub(crate) fn using(path: &Path) -> Actor {
        let mut actor = Actor::idle();
        actor.uses(path);
        actor
    }

    /// Opens the database and reads a row.
    pub(crate) fn uses(&mut self, path: &Path) {
        self.order(json!(["connect", path]));
        self.sql("PRAGMA wal_autocheckpoint=0");
        self.sql("SELECT count(*) FROM m");
    }

    /// Its number as this test process sees it.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn sql(&mut self, text: &str) -> Value {
        self.order(json!(["sql", text]))
    }

    /// Opens and closes these files by ordinary means.
    pub(crate) fn stray(&mut self, files: &[&Path]) {
        for file in files {
            self.order(json!(["stray", file]));
        }
    }

    /// Gives an order, waits until it is carried out and returns what it gave.
    #[track_caller]
    pub(crate) fn order(&mut self, order: Value) -> Value {
        self.child.send(&order.to_string());
        let line = self.child.line(DEADLINE);
        let mut answer: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert!(answer["error"].is_null(), "{order}: {answer}");
        answer["ok"].take()
    }

    /// The same for an order that starts a process: its number.
    #[track_caller]
    pub(crate) fn starts(&mut self, order: Value) -> u32 {
        u32::try_from(self.order(order).as_u64().expect("a process number")).expect("a process number")
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        self.child.signal(signal);
    }
}
