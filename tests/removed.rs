//! Somebody removes the store under the house, and the house goes on with everything that it acknowledged.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use statehouse_testkit::kernel::Standing;
use statehouse_testkit::{Home, until};

use crate::house::{Client, Service, Up, furnished, integrity, messages};

const SOON: Duration = Duration::from_secs(20);

fn removed_under_the_house(remove: impl Fn(&Home)) {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    for n in 0..10 {
        client.talk("c", &n.to_string(), &format!("message {n}."));
    }
    remove(&home);
    let begun = Instant::now();
    for n in 10..20 {
        client.talk("c", &n.to_string(), &format!("message {n}."));
    }
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    for name in ["gateway", "dashboard", "scheduler"] {
        let whole = || Standing::of(up.pid(name), &home.store()).whole();
        until(&format!("the {name} uses what the path names"), SOON, whole);
    }
    assert_present(&home);
    up.stop();
    assert_present(&home);
    if let Some(verdict) = integrity(&home.store()) {
        assert_eq!(verdict, "ok");
    }
    Up::start(&home, |_| {}).stop();
    assert_present(&home);
}

fn assert_present(home: &Home) {
    let rows = messages(home);
    for n in 0..20 {
        let wanted = format!("message {n}.");
        for role in ["user", "assistant"] {
            let found = rows.iter().filter(|r| r.1 == role && r.2.contains(&wanted)).count();
            assert_eq!(found, 1, "{role}: {wanted}");
        }
    }
}

fn remove_beginning_with(home: &Home, start: &str) {
    for entry in fs::read_dir(home.path()).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(start) {
            let gone: fn(&Path) -> std::io::Result<()> =
                if entry.path().is_dir() { |p| fs::remove_dir_all(p) } else { |p| fs::remove_file(p) };
            gone(&entry.path()).unwrap();
        }
    }
}

#[test]
fn rm_of_the_three_files_while_the_house_is_up() {
    removed_under_the_house(|home| {
        for suffix in ["", "-wal", "-shm"] {
            fs::remove_file(home.member(suffix)).unwrap();
        }
    });
}

#[test]
fn rm_of_everything_that_begins_with_the_name_of_the_store_while_the_house_is_up() {
    removed_under_the_house(|home| remove_beginning_with(home, "state.db"));
}

#[test]
fn rm_of_the_main_file_alone_while_the_house_is_up() {
    removed_under_the_house(|home| fs::remove_file(home.store()).unwrap());
}

#[test]
fn a_service_that_ends_with_rows_that_it_could_not_keep_does_not_end_well() {
    let home = furnished(Home::new());
    let mut gateway = Service::start(&home, "gateway", |_| {});
    Client::new(&gateway.url, &home.token()).talk("c", "1", "lost");
    // A file in the place of the directory keeps it from being made again.
    fs::remove_dir_all(home.path()).unwrap();
    fs::write(home.path(), "").unwrap();
    let status = gateway.child.stop(SOON);
    assert_eq!(status.code(), Some(1), "{}", gateway.child.stderr_text());
    until("it says what is lost", SOON, || gateway.child.stderr_text().contains("transactions may be lost"));
    fs::remove_file(home.path()).unwrap();
}
