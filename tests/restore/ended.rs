//! Killed between the steps of an exchange of the main file: what the next opener of ours finds, and what it does first.
//!
//! Each test walks back from the last change of a restore to the first one of the exchange, and kills at each of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use statehouse_testkit::killat::{Killed, run_killed};
use statehouse_testkit::visitor::Python;
use statehouse_testkit::{Finished, Home, TestDir, run};

use super::{command, content, database, expected, sql};
use crate::house::{Client, PATIENCE, Up, answer, binary};

/// A house that is not up, in a directory of its own.
struct Stopped(TestDir);

impl Stopped {
    fn copy_of(home: &Path) -> Stopped {
        let directory = TestDir::new();
        let done = Command::new("cp").arg("-a").arg(home).arg(directory.join("home")).status().unwrap();
        assert!(done.success());
        Stopped(directory)
    }

    fn home(&self) -> PathBuf {
        self.0.join("home")
    }

    fn store(&self) -> PathBuf {
        self.home().join("state.db")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut line = Command::new(binary());
        line.arg("--json").arg("--home").arg(self.home()).args(arguments);
        line
    }

    /// An opener of ours, which does first whatever there is to do.
    fn opened(&self) -> Finished {
        run(&mut self.command(&["sessions", "list", "--all"]), PATIENCE)
    }
}

/// Calls `look` with the outcome of each kill from the end to before the exchange began, as far as `is_old` says so.
fn walk_back(trial: &dyn Fn(u64) -> (Stopped, Killed), look: &mut dyn FnMut(&Stopped, &str) -> bool) -> (u32, u32) {
    let (_whole, done) = trial(0);
    assert!(done.call.is_none() && done.finished.code() == 0, "{done:#?}");
    let (mut olds, mut news) = (0, 0);
    for n in (1..=done.at).rev() {
        let (stopped, killed) = trial(n);
        let Some(call) = &killed.call else { continue };
        let begun = stopped.home().join("state.db.statehouse/restoring.json").exists();
        match look(&stopped, &format!("killed before change {n} of {}, {call}", done.at)) {
            true => news += 1,
            false => olds += 1,
        }
        // What comes before that only makes the new file.
        if olds > 0 && !begun {
            break;
        }
    }
    (olds, news)
}

/// A house with one conversation, a copy of its store, and a store that a stranger can write to.
fn house() -> (Home, PathBuf) {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    Client::new(up.url("gateway"), &home.token()).talk("first", "1", "in the copy");
    let copy = home.around().join("copy.db");
    answer(&home, ["restore", home.store().to_str().unwrap(), "--to", copy.to_str().unwrap()]);
    Client::new(up.url("gateway"), &home.token()).talk("first", "2", "only in what is replaced");
    up.stop();
    (home, copy)
}

fn texts(store: &Path, text: &str) -> Value {
    sql(store, &[&format!("SELECT count(*) FROM message WHERE text = '{text}'")])[0][0].clone()
}

/// A message that a stranger writes under the eyes of nobody.
const STRANGE: &str = "INSERT INTO message(id, session_id, seq, role, created_at, text) SELECT randomblob(16), session_id, \
                       max(seq) + 1, role, created_at, 'strange' FROM message";

#[test]
fn what_was_captured_of_the_old_store_never_comes_back_into_the_restored_one() {
    let (home, copy) = house();
    let mut ghost = Python::open(&home.store());
    ghost.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    ghost.sql("SELECT count(*) FROM message").unwrap();
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(home.member(suffix)).unwrap();
    }
    ghost.sql(STRANGE).unwrap();
    answer(&home, ["retired", "capture", "--all"]);
    drop(ghost);
    let control = Stopped::copy_of(home.path());
    control.opened().success();
    assert_eq!(texts(&control.store(), "strange"), 1, "the control: an opener takes over what was captured");

    // It cannot be opened, so nobody takes the capture over before it is replaced.
    fs::write(home.store(), "no database ".repeat(2000)).unwrap();
    let trial = |n: u64| {
        let stopped = Stopped::copy_of(home.path());
        let killed = run_killed(&stopped.command(&["restore", copy.to_str().unwrap()]), n, &stopped.0.join("notes"));
        (stopped, killed)
    };
    let garbage = fs::read(home.store()).unwrap();
    let mut turn = false;
    let (olds, news) = walk_back(&trial, &mut |stopped, context| {
        let old = fs::read(stopped.store()).is_ok_and(|bytes| bytes == garbage);
        turn = !turn;
        // Every other time nobody opens it before the next restore.
        if turn {
            let opened = stopped.opened();
            if old {
                assert_eq!(opened.code(), 4, "{context}: {opened:#?}");
                return false;
            }
            opened.success();
            assert_eq!(texts(&stopped.store(), "in the copy"), 1, "{context}");
            assert_eq!(texts(&stopped.store(), "strange"), 0, "{context}: what was captured is back");
        }
        // And after the next restore the file that could not be read is still somewhere.
        run(&mut stopped.command(&["restore", copy.to_str().unwrap()]), PATIENCE).success();
        stopped.opened().success();
        assert_eq!((texts(&stopped.store(), "in the copy"), texts(&stopped.store(), "strange")), (1.into(), 0.into()));
        let retired = fs::read_dir(stopped.home().join("state.db.statehouse/retired")).unwrap();
        let kept = retired
            .filter_map(|place| fs::read(place.unwrap().path().join("main.replaced")).ok())
            .filter(|bytes| *bytes == garbage)
            .count();
        assert_eq!(kept, 1, "{context}: what was replaced is gone");
        !old
    });
    println!("{olds} times the old store, {news} times the new one");
    assert!(olds > 0 && news > 3, "{olds} old, {news} new");
}

#[test]
fn a_store_whose_log_was_moved_aside_is_never_opened_as_if_it_were_whole() {
    let (home, copy) = house();
    let mut python = Python::open(&home.store());
    python.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    python.sql(STRANGE).unwrap();
    drop(python);
    let wal = home.member("-wal");
    let mut log = fs::read(&wal).unwrap();
    log[..4].copy_from_slice(b"\0\0\0\0");
    fs::write(&wal, &log).unwrap();
    let trial = |n: u64| {
        let stopped = Stopped::copy_of(home.path());
        let killed = run_killed(&stopped.command(&["restore", copy.to_str().unwrap()]), n, &stopped.0.join("notes"));
        (stopped, killed)
    };
    let mut half = 0;
    let (olds, news) = walk_back(&trial, &mut |stopped, context| {
        let opened = stopped.opened();
        if opened.code() == 0 {
            assert_eq!(texts(&stopped.store(), "only in what is replaced"), 0, "{context}: opened without its log");
            return true;
        }
        let error = &opened.json()["error"];
        assert_eq!(opened.code(), 4, "{context}: {opened:#?}");
        if error["code"] == "refused_half_restored" {
            half += 1;
            // It says where the log is, and it is there.
            let place = error["detail"].as_str().unwrap().rsplit(' ').next().unwrap();
            assert_eq!(fs::read(Path::new(place).join("wal.replaced")).unwrap(), log, "{context}");
            // Nor is it called healthy.
            let verified = run(&mut stopped.command(&["verify"]), PATIENCE);
            let check = &verified.json()["checks"][0];
            assert_eq!((verified.code(), &check["id"], &check["status"]), (3, &"content.whole".into(), &"fail".into()));
        } else {
            assert_eq!(error["code"], "refused_wal_header", "{context}: {opened:#?}");
        }
        let again = run(&mut stopped.command(&["restore", copy.to_str().unwrap()]), PATIENCE).success().json();
        let place = Path::new(again["replaced"].as_str().unwrap());
        assert!(place.join("main.replaced").exists(), "{context}: {again}");
        assert_eq!(fs::read(place.join("wal.replaced")).unwrap(), log, "{context}: one place has all of it: {again}");
        assert_eq!(stopped.opened().code(), 0, "{context}");
        false
    });
    println!("{olds} times the old store, {half} of them without its log, {news} times the new one");
    assert!(half > 0 && news > 0, "{olds} old, {half} half, {news} new");
}

#[test]
fn a_damaged_database_is_whole_for_other_programs_until_the_restored_one_is_there() {
    let sources = TestDir::new();
    let good = database(&sources.join("good.db"), "wal", 8192, 400, "new");
    let make = || {
        let directory = TestDir::new();
        let path = database(&directory.join("state.db"), "wal", 4096, 300, "old");
        let root =
            &sql(&path, &["CREATE INDEX t_x ON t(x)", "SELECT rootpage FROM sqlite_schema WHERE name = 't_x'"])[0][0];
        let entry =
            format!("INSERT INTO sqlite_schema VALUES('index', 't_x', 't', {root}, 'CREATE INDEX t_x ON t(x)')");
        let writable = "PRAGMA writable_schema=ON";
        sql(&path, &[writable, "DELETE FROM sqlite_schema WHERE name = 't_x'"]);
        // What is damaged, and one good row more, is in a log of which nothing was copied.
        let mut python = Python::open(&path);
        for statement in
            ["PRAGMA wal_autocheckpoint=0", "INSERT INTO t VALUES(777, 'new in the log')", writable, &entry]
        {
            python.sql(statement).unwrap();
        }
        drop(python);
        let home = directory.join("home");
        fs::create_dir(&home).unwrap();
        super::copy_all(directory.path(), &home);
        Stopped(directory)
    };
    let seen = |stopped: &Stopped| {
        let there = stopped.0.join("looked at");
        super::copy_all(&stopped.home(), &there);
        content(&there.join("state.db"))
    };
    let old = seen(&make());
    assert!(old.as_ref().is_ok_and(|v| v.to_string().contains("missing from index")), "the control: {old:?}");
    let trial = |n: u64| {
        let stopped = make();
        let killed = run_killed(&command(&["restore"], &[&good, &stopped.store()]), n, &stopped.0.join("notes"));
        (stopped, killed)
    };
    let (olds, news) = walk_back(&trial, &mut |stopped, context| {
        let seen = seen(stopped);
        if seen == expected(400, "new") {
            return true;
        }
        assert_eq!(seen, old, "{context}: neither old nor new");
        false
    });
    assert!(olds > 2 && news > 0, "{olds} old, {news} new");
}
