//! Somebody removes the store while a house starts, or while an anchor alone still has it: what can be read of it is captured
//! before the last process ends that has it, and whoever opens the store puts it in its place.

use std::fs;
use std::time::Duration;

use statehouse_testkit::kernel::Standing;
use statehouse_testkit::{Home, Seed, until};

use crate::house::{Client, PATIENCE, Service, Up, cli, messages};

/// A home with conversations, whose house has ended. Some of the rows are in the log alone.
fn with_messages() -> Home {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    for n in 0..10 {
        client.talk("c", &n.to_string(), &format!("message {n}."));
    }
    up.stop();
    home
}

fn remove(home: &Home) {
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(home.member(suffix));
    }
}

fn assert_present(home: &Home) {
    let rows = messages(home);
    for n in 0..10 {
        let wanted = format!("message {n}.");
        assert_eq!(rows.iter().filter(|r| r.1 == "user" && r.2 == wanted).count(), 1, "{wanted} in {rows:?}");
    }
}

fn nothing_is_open(home: &Home) {
    // It exits with a finding while one is open.
    let code = || cli(home, ["incidents"]).status.code();
    until("no incident is open", PATIENCE, || code() == Some(0));
}

#[test]
fn rm_of_the_three_files_as_soon_as_the_anchor_of_a_starting_house_has_them() {
    let home = with_messages();
    let mut up = Up::begin(&home, |_| {});
    up.read_until("anchored");
    remove(&home);
    up.read_until("up");
    for name in ["gateway", "dashboard", "scheduler", "anchor"] {
        let whole = || Standing::of(up.pid(name), &home.store()).whole();
        until(&format!("the {name} uses what the path names"), PATIENCE, whole);
    }
    assert_present(&home);
    nothing_is_open(&home);
    up.stop();
}

#[test]
fn rm_of_the_three_files_at_any_moment_of_the_start_of_a_house() {
    let mut seed = Seed::of_run("a house that starts");
    for _ in 0..6 {
        let home = with_messages();
        let mut up = Up::begin(&home, |_| {});
        // Nobody can tell what was removed before anybody of the house had it.
        until("somebody has the store", PATIENCE, || is_open(&home));
        std::thread::sleep(Duration::from_millis(seed.below(300)));
        remove(&home);
        up.read_until("up");
        assert_present(&home);
        up.stop();
        assert_present(&home);
    }
}

fn is_open(home: &Home) -> bool {
    let store = home.store();
    let has = |pid: &fs::DirEntry| {
        let files = fs::read_dir(pid.path().join("fd")).into_iter().flatten().flatten();
        files.into_iter().any(|f| fs::read_link(f.path()).is_ok_and(|to| to == store))
    };
    fs::read_dir("/proc").unwrap().flatten().any(|pid| has(&pid))
}

#[test]
fn rm_of_the_three_files_that_only_an_anchor_has_and_a_gateway_that_starts_then() {
    let home = with_messages();
    let mut anchor = Service::start(&home, "anchor", |_| {});
    remove(&home);
    anchor.child.line_where("it says that it keeps them", PATIENCE, |line| line.contains("\"keeping\""));
    let mut gateway = Service::start(&home, "gateway", |_| {});
    assert_present(&home);
    until("the anchor has what the path names", PATIENCE, || Standing::of(anchor.pid(), &home.store()).whole());
    nothing_is_open(&home);
    assert!(gateway.child.stop(PATIENCE).success());
    assert!(anchor.child.stop(PATIENCE).success());
}

#[test]
fn an_anchor_that_is_stopped_while_it_alone_has_the_removed_files_captures_them() {
    let home = with_messages();
    let mut anchor = Service::start(&home, "anchor", |_| {});
    // It may not even have noticed when it is told to stop.
    remove(&home);
    assert!(anchor.child.stop(PATIENCE).success());
    assert!(!home.store().exists());
    let up = Up::start(&home, |_| {});
    assert_present(&home);
    nothing_is_open(&home);
    up.stop();
}
