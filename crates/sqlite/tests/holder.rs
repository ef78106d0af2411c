//! The crate's own example as a second process.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use statehouse_testkit::disk::Disk;
use statehouse_testkit::powercut::Watched;
use statehouse_testkit::process::Child;

const DEADLINE: Duration = Duration::from_secs(30);

/// The example's program. Cargo builds it with a whole test run, but not when one test file alone is asked for.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--example", "holder", "--manifest-path"]);
        assert!(build.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).status().unwrap().success());
        let test = std::env::current_exe().unwrap();
        test.parent().unwrap().parent().unwrap().join("examples/holder")
    })
}

pub(crate) struct Holder(Child);

impl Holder {
    /// The example, freshly started.
    pub(crate) fn start() -> Holder {
        Holder(Child::spawn(&mut Command::new(program())))
    }

    /// The example in a pid namespace of its own, from which nobody outside is seen.
    pub(crate) fn secluded() -> Holder {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--map-root-user"]).arg(program());
        Holder(Child::spawn(&mut command))
    }

    /// Started on a disk that can be cut off from its power, with the store open.
    pub(crate) fn watched(watched: &Watched, path: &Path) -> Holder {
        let mut holder = Holder(Child::spawn(watched.arms(&mut Command::new(program()))));
        holder.ok(&format!("open {}", path.display()));
        holder
    }

    /// Started on a disk whose power can fail, with the store open. It is to be stopped by [`Holder::end`].
    pub(crate) fn on_disk(disk: &Disk, path: &Path) -> Holder {
        let mut holder = Holder(Child::spawn(&mut disk.watches(&Command::new(program()))));
        holder.ok(&format!("open {}", path.display()));
        holder
    }

    /// Started so that the disk takes no flush of a log as long as the file `mark` exists.
    pub(crate) fn on_a_disk_that_fails(mark: &Path) -> Holder {
        let mut command = Command::new(program());
        Holder(Child::spawn(
            command.env("LD_PRELOAD", statehouse_testkit::stray::library()).env("STRAY_UNFLUSHED", mark),
        ))
    }

    /// Started, protected or not, with one connection `a` that has written one row and holds its locks.
    pub(crate) fn with_database(path: &Path, protected: bool) -> Holder {
        let mut holder = Holder::start();
        if protected {
            holder.ok("protect");
        }
        holder.ok(&format!("connect a rw {}", path.display()));
        holder.ok("sql a PRAGMA journal_mode=WAL");
        holder.ok("sql a PRAGMA wal_autocheckpoint=0");
        holder.ok("sql a CREATE TABLE IF NOT EXISTS m(id INTEGER PRIMARY KEY, t)");
        holder.ok("sql a INSERT INTO m(t) VALUES('kept')");
        holder
    }

    /// Started, with the whole of `Database` open at `path`.
    pub(crate) fn with_store(path: &Path) -> Holder {
        let mut holder = Holder::start();
        holder.ok(&format!("open {}", path.display()));
        holder
    }

    /// What it was told about its handle, one event a line.
    pub(crate) fn events(&self) -> String {
        self.0.stderr_text()
    }

    /// Sends an order without waiting for its answer.
    pub(crate) fn send(&mut self, order: &str) {
        self.0.send(order);
    }

    /// The answer to an order that was sent.
    pub(crate) fn answer(&mut self) -> Result<String, String> {
        let line = self.0.line(DEADLINE);
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("ok", rest) => Ok(rest.to_owned()),
            (_, rest) => Err(rest.to_owned()),
        }
    }

    /// The answer to an order that was sent, if it has come.
    pub(crate) fn answered(&mut self) -> Option<Result<String, String>> {
        let lines = self.0.pending_lines();
        assert!(lines.len() < 2, "one order at a time: {lines:?}");
        lines.first().map(|line| match line.split_once(' ').unwrap_or((line, "")) {
            ("ok", rest) => Ok(rest.to_owned()),
            (_, rest) => Err(rest.to_owned()),
        })
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        self.0.signal(signal);
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Sends an order and gives its answer, without the first word when it went well.
    pub(crate) fn order(&mut self, order: &str) -> Result<String, String> {
        self.send(order);
        self.answer()
    }

    pub(crate) fn ok(&mut self, order: &str) -> String {
        self.order(order).unwrap_or_else(|e| panic!("{order}: {e}"))
    }

    /// Sends a `fork` order: the child's own line and the parent's, in this order.
    pub(crate) fn fork(&mut self, order: &str) -> (String, String) {
        self.0.send(&format!("fork {order}"));
        (self.0.line(DEADLINE), self.0.line(DEADLINE))
    }

    /// Closes by ordinary means what the three paths name, as a careless helper would.
    pub(crate) fn lose(&mut self, path: &Path) {
        for suffix in ["", "-wal", "-shm"] {
            self.ok(&format!("stray {}{suffix}", path.display()));
        }
    }

    /// Lets it close what is open and come to its end.
    pub(crate) fn end(mut self) {
        self.ok("leave");
        self.0.close_input();
        let ended = self.0.wait(DEADLINE);
        assert!(ended.success(), "{ended:?}: {}", self.0.stderr_text());
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill();
    }
}
