//! A record lives as long as its process.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use statehouse_sqlite::secure::{Inspected, Purpose, inspect};
use statehouse_sqlite::{Family, members};

use crate::support::wait_for;

fn inspected(path: &Path) -> Inspected {
    inspect(&Family::of(path).unwrap(), Purpose::Own).unwrap()
}

fn names(family: &Family) -> Vec<String> {
    let directory = std::fs::read_dir(family.side_directory().join("members")).unwrap();
    directory.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_record_says_who_is_there_until_it_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let family = Family::of(&directory.path().join("s.db")).unwrap();
    assert!(members::list(&family).unwrap().is_empty());
    let inspected = inspected(&family.main());
    let one = members::register(&inspected, "gateway").unwrap();
    let two = members::register(&inspected, "work\ner").unwrap();
    let mode = |p: &Path| std::fs::metadata(p).unwrap().mode() & 0o7777;
    assert_eq!(mode(&family.side_directory()), 0o700);
    assert_eq!(mode(&family.side_directory().join("members")), 0o700);
    for name in names(&family) {
        assert_eq!(mode(&family.side_directory().join("members").join(&name)), 0o600, "{name}");
        assert!(name.starts_with(&format!("{}-", std::process::id())), "{name}");
    }
    let mut roles: Vec<_> = members::list(&family).unwrap().into_iter().map(|r| (r.role.clone(), r.fenced)).collect();
    roles.sort();
    assert_eq!(roles, [("gateway".to_owned(), false), ("worker".to_owned(), false)]);
    one.set_fenced(true).unwrap();
    let records = members::list(&family).unwrap();
    let gateway = records.iter().find(|r| r.role == "gateway").unwrap();
    assert!(gateway.fenced && gateway.is_local() && gateway.process.lives());
    assert_eq!(gateway.process.pid as u32, std::process::id());
    assert_eq!(gateway.sqlite, statehouse_sqlite::rusqlite::version());
    assert!(!gateway.boot_id.is_empty() && gateway.pid_namespace > 0 && gateway.start_time.ends_with('Z'));
    drop(one);
    assert_eq!(members::list(&family).unwrap().len(), 1);
    drop(two);
    assert!(names(&family).is_empty());
}

#[test]
fn the_record_of_a_killed_process_is_stale_and_is_cleared_away_by_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let family = Family::of(&directory.path().join("s.db")).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["members::child_task", "--exact", "--ignored", "--nocapture"]);
    command.env("STATEHOUSE_TEST_PATH", family.main()).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    wait_for("the record", || members::list(&family).unwrap().len() == 1);
    assert_eq!(members::list(&family).unwrap()[0].process.pid as u32, child.id());
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names(&family).len(), 1, "a killed process cannot clear up");
    assert!(members::list(&family).unwrap().is_empty());
    assert_eq!(names(&family).len(), 1, "listing changes nothing");
    let own = members::register(&inspected(&family.main()), "x").unwrap();
    assert_eq!(names(&family).len(), 1);
    drop(own);
}

#[test]
fn what_else_lies_in_the_directory_is_no_record() {
    let directory = tempfile::tempdir().unwrap();
    let family = Family::of(&directory.path().join("s.db")).unwrap();
    let own = members::register(&inspected(&family.main()), "x").unwrap();
    let place = family.side_directory().join("members");
    std::fs::write(place.join("1-1"), b"not json").unwrap();
    std::fs::write(place.join("readme"), b"kept").unwrap();
    assert!(Command::new("mkfifo").arg(place.join("2-2")).status().unwrap().success());
    std::os::unix::fs::symlink("/etc/passwd", place.join("3-3")).unwrap();
    assert_eq!(members::list(&family).unwrap().len(), 1);
    drop(members::register(&inspected(&family.main()), "y").unwrap());
    assert!(place.join("readme").exists() && std::fs::symlink_metadata(place.join("3-3")).is_ok());
    drop(own);
}

#[test]
#[ignore = "started by another test in a process of its own"]
fn child_task() {
    let path = PathBuf::from(std::env::var_os("STATEHOUSE_TEST_PATH").unwrap());
    let _own = members::register(&inspected(&path), "worker").unwrap();
    // Ends when the test does, for its stdin ends then.
    let _ = std::io::stdin().read_line(&mut String::new());
}
