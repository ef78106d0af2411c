//! Another file was put in the place of the main file while somebody else came and went, who knows nothing of that.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use statehouse_testkit::home::TestDir;
use statehouse_testkit::wait::until;

use crate::holder::Holder;
use crate::support::{Sibling, visitor, with};

const SOON: Duration = Duration::from_secs(20);

/// Long keys, so that the tables soon have many pages.
fn key(name: &str, n: u32) -> String {
    format!("{name}{n:03}{}", "x".repeat(150))
}

fn put(holder: &mut Holder, keys: &mut Vec<String>, name: &str, many: u32) {
    for n in 0..many {
        holder.ok(&format!("put {}", key(name, n)));
        keys.push(key(name, n));
    }
}

fn assert_whole(path: &Path, mut keys: Vec<String>) {
    assert_eq!(visitor(path, "PRAGMA integrity_check"), "ok");
    keys.sort();
    let there = visitor(path, "SELECT key FROM k NOT INDEXED WHERE key NOT LIKE 'guest%' ORDER BY +key");
    assert_eq!(there.lines().collect::<Vec<_>>(), keys, "each acknowledged row once, and nothing else");
}

/// A copy of the main file alone, as `cp` makes it, and after that so much that all of it is copied and the log begins anew.
/// Ends with every process of ours stopped, the copy renamed over the main file, and a guest who has come, done `deed`, and gone.
fn replaced_with_a_guest(holders: &mut [Holder], path: &Path, keys: &mut Vec<String>, deed: &[&str]) {
    let copy = path.with_file_name("copy");
    put(&mut holders[0], keys, "early", 60);
    visitor(path, "PRAGMA wal_checkpoint(TRUNCATE)");
    std::fs::copy(path, &copy).unwrap();
    put(&mut holders[0], keys, "between", 60);
    visitor(path, "PRAGMA wal_checkpoint(TRUNCATE)");
    for (n, holder) in holders.iter_mut().enumerate() {
        put(holder, keys, &format!("late{n}-"), 20);
    }
    for holder in holders.iter() {
        holder.signal(Signal::STOP);
    }
    std::fs::rename(&copy, path).unwrap();
    let mut guest = Sibling::connected(path);
    for sql in deed {
        // What he found there may be damaged already, and he goes on as people do.
        let _ = guest.order(serde_json::json!({ "sql": sql }));
    }
    let _ = guest.order(serde_json::json!({ "close": true }));
    let found = visitor_of_a_copy(path);
    assert_ne!(found, "ok", "the control: what lies there now is no store");
    for holder in holders.iter() {
        holder.signal(Signal::CONT);
    }
}

/// What is wrong with the files that lie at the paths now, found in copies of them.
fn visitor_of_a_copy(path: &Path) -> String {
    let directory = TestDir::new();
    let copy = directory.join("s.db");
    for suffix in ["", "-wal"] {
        if with(path, suffix).exists() {
            std::fs::copy(with(path, suffix), with(&copy, suffix)).unwrap();
        }
    }
    let run = std::process::Command::new("sqlite3").arg(&copy).arg("PRAGMA integrity_check(1)").output().unwrap();
    if run.status.success() { String::from_utf8_lossy(&run.stdout).trim().to_owned() } else { "damaged".to_owned() }
}

fn evidence(path: &Path) -> Vec<PathBuf> {
    let retired = with(path, ".statehouse").join("retired");
    let entries = std::fs::read_dir(retired).unwrap().flatten().map(|e| e.path());
    entries.filter(|p| p.file_name().unwrap().to_string_lossy().starts_with("unsound-")).collect()
}

fn goes_on_whole(deed: &[&str]) {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mut keys = Vec::new();
    let mut holders = [Holder::with_store(&path), Holder::with_store(&path)];
    replaced_with_a_guest(&mut holders, &path, &mut keys, deed);
    for (n, holder) in holders.iter_mut().enumerate() {
        put(holder, &mut keys, &format!("after{n}-"), 5);
    }
    assert_whole(&path, keys.clone());
    assert_eq!(evidence(&path).len(), 1, "what was found there is kept");
    assert!(evidence(&path)[0].join("s.db").exists());
    for key in keys.iter().take(150).step_by(7) {
        // It is a new row only if nobody has one with this key.
        holders[1].ok(&format!("put {key}"));
    }
    assert_whole(&path, keys);
}

const WRITE: &str = "INSERT INTO k(key, role) VALUES ('guest' || random(), 'guest')";

#[test]
fn a_copy_moved_over_the_store_into_which_a_guest_copied_the_log_costs_no_row_and_doubles_none() {
    goes_on_whole(&["SELECT count(*) FROM k", "PRAGMA wal_checkpoint(PASSIVE)"]);
}

#[test]
fn a_copy_moved_over_the_store_with_a_guest_who_only_looked_costs_no_row_and_doubles_none() {
    goes_on_whole(&["SELECT count(*) FROM k"]);
}

#[test]
fn a_copy_moved_over_the_store_with_a_guest_who_emptied_the_log_costs_no_row_and_doubles_none() {
    goes_on_whole(&["SELECT count(*) FROM k", "PRAGMA wal_checkpoint(TRUNCATE)"]);
}

#[test]
fn a_copy_moved_over_the_store_with_a_guest_who_began_the_log_anew_costs_no_row_and_doubles_none() {
    goes_on_whole(&["PRAGMA wal_checkpoint(FULL)", WRITE, "PRAGMA wal_checkpoint(RESTART)", WRITE]);
}

/// He would copy the old log into the file that was proved a moment before, as soon as he closes it.
#[test]
fn nobody_goes_on_as_long_as_a_guest_has_the_old_log_open_with_the_new_file() {
    let directory = TestDir::new();
    let (path, copy) = (directory.join("s.db"), directory.join("copy"));
    let mut keys = Vec::new();
    let mut holder = Holder::with_store(&path);
    put(&mut holder, &mut keys, "early", 60);
    visitor(&path, "PRAGMA wal_checkpoint(TRUNCATE)");
    std::fs::copy(&path, &copy).unwrap();
    put(&mut holder, &mut keys, "between", 60);
    visitor(&path, "PRAGMA wal_checkpoint(TRUNCATE)");
    put(&mut holder, &mut keys, "late", 20);
    holder.signal(Signal::STOP);
    std::fs::rename(&copy, &path).unwrap();
    let mut guest = Sibling::connected(&path);
    let _ = guest.order(serde_json::json!({ "sql": "SELECT count(*) FROM k" }));
    holder.signal(Signal::CONT);
    until("it says who is in the way", SOON, || holder.events().contains(&format!("PID {}", guest.pid())));
    assert!(!holder.events().lines().any(|line| line == "Reopened"), "{}", holder.events());
    let _ = guest.order(serde_json::json!({ "close": true }));
    put(&mut holder, &mut keys, "after", 5);
    assert_whole(&path, keys);
}

#[test]
fn a_store_that_nobody_has_proved_after_it_was_replaced_is_proved_by_the_next_who_opens_it() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mut keys = Vec::new();
    let mut holders = [Holder::with_store(&path)];
    // As long as a stranger has files of both generations, nobody goes on; so this one is killed with the mark made.
    let copy = directory.join("copy2");
    put(&mut holders[0], &mut keys, "first", 60);
    visitor(&path, "PRAGMA wal_checkpoint(TRUNCATE)");
    std::fs::copy(&path, &copy).unwrap();
    put(&mut holders[0], &mut keys, "more", 60);
    visitor(&path, "PRAGMA wal_checkpoint(TRUNCATE)");
    put(&mut holders[0], &mut keys, "last", 20);
    holders[0].signal(Signal::STOP);
    std::fs::rename(&copy, &path).unwrap();
    let mut guest = Sibling::connected(&path);
    let _ = guest.order(serde_json::json!({ "sql": "SELECT count(*) FROM k" }));
    holders[0].signal(Signal::CONT);
    let mark = with(&path, ".statehouse").join("replaced");
    until("it notices", SOON, || mark.exists());
    holders[0].kill();
    let _ = guest.order(serde_json::json!({ "close": true }));
    let mut next = Holder::with_store(&path);
    put(&mut next, &mut keys, "next", 5);
    assert_whole(&path, keys);
}
