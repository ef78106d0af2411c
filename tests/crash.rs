//! What a power cut leaves while an operator works on the database of another program: at the end of every flush of every
//! file and directory, on every disk that could be. Each image is opened by us and by SQLite alone, with an `-shm` of any
//! age beside it and with an anchor started first.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use statehouse_testkit::disk::{self, Disk, History, Index, Judge, Lie, Promise, Way};
use statehouse_testkit::visitor::Python;
use statehouse_testkit::{Child, Finished, Seed, TestDir, run};

use crate::house::{PATIENCE, binary};

/// Each of them starts processes, so these are fewer than the crate below looks at.
const WAYS: [Way; 5] = [
    Way::PLAIN,
    Way { ours: false, anchored: false, index: Index::Old },
    Way { ours: false, anchored: false, index: Index::Newest },
    Way { ours: true, anchored: false, index: Index::Old },
    Way { ours: false, anchored: true, index: Index::Newest },
];

/// The database of another program on a disk whose power can fail.
struct Foreign {
    around: TestDir,
    disk: Disk,
    path: PathBuf,
    written: usize,
    seed: Seed,
}

impl Foreign {
    /// It has ten rows, closed and safe on the disk.
    fn new(name: &str) -> Foreign {
        let around = TestDir::new();
        let root = around.join("root");
        std::fs::create_dir(&root).unwrap();
        let path = root.join("o.db");
        let mut python = Python::open(&path);
        python.sql("PRAGMA journal_mode=WAL").unwrap();
        python.sql("CREATE TABLE t(id INTEGER PRIMARY KEY, key TEXT UNIQUE, filler TEXT)").unwrap();
        for n in 0..10 {
            python.sql(&insert(n)).unwrap();
        }
        python.quit();
        let disk = Disk::below(&root, &around.join("notes"), Some(&root.join("o.db-shm")));
        for n in 0..10 {
            disk.say(&format!("kept {n}"));
        }
        Foreign { around, disk, path, written: 10, seed: Seed::of_run(name) }
    }

    fn open(&self) -> Python {
        let mut python = Python::open_with(&self.path, |command| *command = self.disk.watches(command));
        python.sql("PRAGMA wal_autocheckpoint=0").unwrap();
        python
    }

    fn write(&mut self, python: &mut Python, rows: usize) {
        for _ in 0..rows {
            python.sql(&insert(self.written)).unwrap();
            self.disk.say(&format!("kept {}", self.written));
            self.written += 1;
        }
    }

    /// One of our commands on it.
    fn command(&self, arguments: &[&str]) -> Finished {
        let mut command = Command::new(binary());
        command.args(arguments).arg("--json").env("STATEHOUSE_HOME", self.around.join("nowhere"));
        run(&mut self.disk.watches(&command), PATIENCE)
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// `kill -9` of a program that does nothing at the moment.
    fn kill(&self, python: Python) {
        let inner = disk::inner(python.pid());
        assert!(Command::new("kill").args(["-9", &inner.to_string()]).status().unwrap().success());
        python.quit();
    }

    fn end(self) -> Ended {
        Ended { history: self.disk.history(), seed: self.seed, _around: self.around }
    }
}

fn insert(n: usize) -> String {
    format!("INSERT INTO t(key, filler) VALUES('{n}', '{}')", "x".repeat(n * 397 % 3000))
}

/// What must hold after these answers; `None` where nothing was promised yet.
type Promised<'a> = dyn Fn(&[(u32, String)]) -> Option<Promise> + 'a;

struct Ended {
    history: History,
    seed: Seed,
    // Kept until the end, for the notes are in it.
    _around: TestDir,
}

impl Ended {
    fn judge(&self, lie: &Lie, ways: &[Way], promise: &Promised<'_>) -> disk::Losses {
        let mut open = |path: &Path, way: Way| look(path, way);
        Judge { main: "o.db", beside: true, ways, promise, open: &mut open }.losses(&self.history, lie, &self.seed)
    }

    fn assert_kept(&self, promise: &Promised<'_>) {
        let begun = Instant::now();
        let losses = self.judge(&Lie::None, &WAYS, promise);
        println!("{} flushes, {} images opened, {:?}", self.history.flushes(), losses.opened, begun.elapsed());
        losses.assert_none(&self.history);
    }
}

/// The rows that were acknowledged.
fn kept(answers: &[(u32, String)]) -> Vec<String> {
    answers.iter().filter_map(|(_, line)| line.strip_prefix("kept ").map(str::to_owned)).collect()
}

/// True if this has been said.
fn said(answers: &[(u32, String)], line: &str) -> bool {
    answers.iter().any(|(_, l)| l == line)
}

/// The rows of the database, and those of captures and snapshots beside it with the kind of file before each.
fn look(path: &Path, way: Way) -> Result<BTreeSet<String>, String> {
    let _anchor = way.anchored.then(|| anchored(path)).transpose()?.flatten();
    if way.ours {
        let mut verify = Command::new(binary());
        verify.arg("verify").arg(path).arg("--json").env("STATEHOUSE_HOME", "/nonexistent");
        let verified = run(&mut verify, PATIENCE);
        let wrong = wrong(&verified).map_err(|e| format!("verify: {e}"))?;
        if !wrong.is_empty() {
            return Err(format!("verify: {}", wrong.join("; ")));
        }
    }
    let mut found = keys(path, false).map_err(|e| e.to_string())?;
    let beside = path.with_file_name("o.db.statehouse");
    for (kind, directory) in [("captured", "retired"), ("snapshot", "snapshots")] {
        for file in files(&beside.join(directory)) {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            // One that is not complete yet has no manifest, and no record.
            let complete = match kind {
                "captured" => name == "main.captured" && file.with_file_name("manifest.json").exists(),
                _ => name.ends_with(".snapshot") && file.with_extension("json").exists(),
            };
            if complete {
                let keys = keys(&file, true).map_err(|e| format!("{}: {e}", file.display()))?;
                found.extend(keys.into_iter().map(|key| format!("{kind} {key}")));
            }
        }
    }
    Ok(found)
}

/// What a verification finds wrong. That the capture of a ghost waits for a person is so until it is acknowledged.
fn wrong(verified: &Finished) -> Result<Vec<String>, String> {
    let answer: Value = serde_json::from_str(&verified.stdout)
        .map_err(|e| format!("{e}: {} {}", verified.stdout.trim(), verified.stderr.trim()))?;
    let Some(checks) = answer["checks"].as_array() else { return Err(answer.to_string()) };
    let wrong = checks
        .iter()
        .filter(|check| matches!(check["status"].as_str(), Some("warn" | "fail")) && check["id"] != "incidents.open");
    Ok(wrong.map(|check| format!("{} {}", check["id"], check["summary"])).collect())
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => found.extend(files(&entry.path())),
            _ => found.push(entry.path()),
        }
    }
    found
}

fn keys(path: &Path, alone: bool) -> rusqlite::Result<BTreeSet<String>> {
    let connection = match alone {
        true => {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
            Connection::open_with_flags(format!("file:{}?immutable=1", path.display()), flags)?
        }
        false => Connection::open(path)?,
    };
    connection.pragma_update(None, "synchronous", "OFF")?;
    let check: String = connection.query_row("PRAGMA integrity_check", [], |r| r.get(0))?;
    if check != "ok" {
        return Err(rusqlite::Error::InvalidParameterName(check));
    }
    let mut read = connection.prepare("SELECT key FROM t")?;
    read.query_map([], |r| r.get(0))?.collect()
}

/// An anchor that stands. `None` where it leaves to others what must be rolled back first.
fn anchored(path: &Path) -> Result<Option<Child>, String> {
    let mut command = Command::new(binary());
    command.arg("anchor").arg(path).arg("--json").env("STATEHOUSE_HOME", "/nonexistent");
    let mut anchor = Child::spawn(&mut command);
    let Some(line) = anchor.try_line(PATIENCE) else { return Err("the anchor said nothing".to_owned()) };
    let answer: Value = serde_json::from_str(&line).map_err(|e| format!("{e}: {line}"))?;
    match (answer["event"].as_str(), answer["error"]["code"].as_str()) {
        (Some("anchored"), _) => Ok(Some(anchor)),
        (_, Some("refused_hot_journal" | "refused_rollback_mode")) => Ok(None),
        _ => Err(format!("not anchored: {line}")),
    }
}

#[test]
fn a_power_cut_during_a_checkpoint_leaves_every_row_of_another_program() {
    let mut foreign = Foreign::new("crash images of checkpoints");
    let mut python = foreign.open();
    for _ in 0..2 {
        foreign.write(&mut python, 2);
        foreign.command(&["checkpoint", foreign.path()]).success();
    }
    foreign.write(&mut python, 2);
    foreign.kill(python);
    foreign.command(&["checkpoint", "--truncate", foreign.path()]).success();
    let mut python = foreign.open();
    foreign.write(&mut python, 1);
    python.quit();
    let ended = foreign.end();
    let promise = |answers: &[(u32, String)]| Some(Promise::of(kept(answers)));
    ended.assert_kept(&promise);
    for lie in [Lie::Files("-wal"), Lie::Files(".db")] {
        ended.judge(&lie, &[Way::PLAIN], &promise).assert_some(&lie);
    }
}

#[test]
fn a_power_cut_during_a_snapshot_leaves_every_row_and_after_it_the_snapshot() {
    let mut foreign = Foreign::new("crash images of snapshots");
    let mut python = foreign.open();
    for round in 0..2 {
        foreign.write(&mut python, 2);
        foreign.command(&["snapshot", foreign.path()]).success();
        foreign.disk.say(&format!("snapshot {round}"));
    }
    foreign.write(&mut python, 1);
    python.quit();
    let ended = foreign.end();
    let promise = |answers: &[(u32, String)]| {
        let mut promised = kept(answers);
        let taken = answers.iter().rposition(|(_, line)| line.starts_with("snapshot ")).unwrap_or(0);
        promised.extend(kept(&answers[..taken]).into_iter().map(|key| format!("snapshot {key}")));
        Some(Promise::of(promised))
    };
    ended.assert_kept(&promise);
    for lie in [Lie::Directories, Lie::Files("-wal")] {
        ended.judge(&lie, &[Way::PLAIN], &promise).assert_some(&lie);
    }
}

#[test]
fn a_power_cut_after_a_capture_leaves_what_only_a_ghost_had_and_after_the_merge_it_is_in_the_database() {
    let mut foreign = Foreign::new("crash images of captures");
    let mut ghost = foreign.open();
    foreign.write(&mut ghost, 3);
    foreign.disk.say("removing");
    let mut remove = Command::new("rm");
    remove.args([format!("{}-wal", foreign.path()), format!("{}-shm", foreign.path())]);
    run(&mut foreign.disk.watches(&remove), PATIENCE).success();
    foreign.write(&mut ghost, 3);
    let captured = foreign.command(&["retired", "capture", "--all", foreign.path()]).success().json();
    foreign.disk.say("captured");
    foreign.kill(ghost);
    // Another program goes on with what is there.
    let mut python = foreign.open();
    // Its number is not one that the ghost has given to a row of its own.
    python.sql("INSERT INTO t(id, key) VALUES(1000, 'of the second generation')").unwrap();
    foreign.disk.say("kept of the second generation");
    let list = foreign.command(&["retired", "list", foreign.path()]).success().json();
    let id = list[0]["id"].as_str().unwrap_or_else(|| panic!("{captured} {list}"));
    python.quit();
    foreign.command(&["retired", "merge", id, foreign.path()]).success();
    foreign.disk.say("merged");
    let ended = foreign.end();
    let promise = |answers: &[(u32, String)]| {
        // The rows that were safe before, and those of the second generation, are not the ghost's.
        let (ghosts, others): (Vec<_>, Vec<_>) =
            kept(answers).into_iter().partition(|key| key.parse().is_ok_and(|n: usize| n >= 10));
        let ghosts = match () {
            () if said(answers, "merged") || !said(answers, "removing") => ghosts,
            () if said(answers, "captured") => ghosts.iter().map(|key| format!("captured {key}")).collect(),
            // Nobody can keep what is in a deleted file alone.
            () => Vec::new(),
        };
        Some(Promise::of([others, ghosts].concat()))
    };
    ended.assert_kept(&promise);
    ended.judge(&Lie::Directories, &[Way::PLAIN], &promise).assert_some(&Lie::Directories);
}

#[test]
fn a_power_cut_during_a_restore_leaves_the_old_store_or_the_new_one_and_never_takes_the_old_rows_away() {
    let mut foreign = Foreign::new("crash images of restores");
    let source = foreign.around.join("source.db");
    let mut python = Python::open(&source);
    python.sql("CREATE TABLE t(id INTEGER PRIMARY KEY, key TEXT UNIQUE, filler TEXT)").unwrap();
    for n in 0..5 {
        python.sql(&format!("INSERT INTO t(key, filler) VALUES('new {n}', '{}')", "y".repeat(2000))).unwrap();
    }
    python.quit();
    // A log without anybody, and then somebody who has the database open.
    let mut python = foreign.open();
    foreign.write(&mut python, 3);
    foreign.kill(python);
    foreign.disk.say("restoring");
    foreign.command(&["restore", source.to_str().unwrap(), foreign.path()]).success();
    foreign.disk.say("restored");
    let mut python = foreign.open();
    foreign.write(&mut python, 2);
    foreign.disk.say("restoring");
    foreign.command(&["restore", source.to_str().unwrap(), foreign.path()]).success();
    foreign.disk.say("restored");
    python.quit();
    let ended = foreign.end();
    let promise = |answers: &[(u32, String)]| {
        let lines: Vec<_> = answers.iter().map(|(_, line)| line.as_str()).collect();
        // What was replaced before is in a snapshot, what is there since the last time is in the database.
        let replaced = lines.iter().rposition(|l| *l == "restored").unwrap_or(0);
        let mut present = kept(&answers[replaced..]);
        if replaced > 0 {
            present.extend((0..5).map(|n| format!("new {n}")));
        }
        let promised: Vec<_> = kept(&answers[..replaced]).into_iter().map(|key| format!("snapshot {key}")).collect();
        let restoring = lines.iter().rposition(|l| *l == "restoring").is_some_and(|at| at >= replaced && at > 0);
        if !restoring {
            return Some(Promise::of([promised, present].concat()));
        }
        let wrong = move |found: &BTreeSet<String>| {
            let old = present.iter().all(|key| found.contains(key));
            let new = (0..5).all(|n| found.contains(&format!("new {n}")));
            let saved = present.iter().all(|key| found.contains(&format!("snapshot {key}")));
            (!(old || new && saved)).then(|| format!("rows are missing from both: {found:?}"))
        };
        Some(Promise { kept: promised, wrong: Box::new(wrong) })
    };
    ended.assert_kept(&promise);
    ended.judge(&Lie::Directories, &[Way::PLAIN], &promise).assert_some(&Lie::Directories);
}
