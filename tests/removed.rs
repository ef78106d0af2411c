//! Somebody removes the store under the house, and the house goes on with everything that it acknowledged.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use statehouse_testkit::kernel::Standing;
use statehouse_testkit::visitor::python;
use statehouse_testkit::{Child, Home, until};

use crate::house::{Client, Service, Up, cli, furnished, integrity, messages};

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

/// Opens what is missing as soon as it is, which makes an empty file, and never closes it.
const LEAKS: &str = "import os, sqlite3, sys, time\n\
    print('begun', flush=True)\n\
    while os.path.exists(sys.argv[1]): pass\n\
    c = sqlite3.connect(sys.argv[1])\n\
    try: c.execute('SELECT count(*) FROM message')\n\
    except sqlite3.Error: print('failed', flush=True)\n\
    time.sleep(3600)";

#[test]
fn whoever_keeps_an_empty_file_open_in_the_place_of_the_store_is_named_with_what_stops_it() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    for n in 0..10 {
        client.talk("c", &n.to_string(), &format!("message {n}."));
    }
    let mut visitor = Child::spawn(Command::new(python()).args(["-I", "-c", LEAKS]).arg(home.store()));
    visitor.line(SOON);
    fs::remove_file(home.store()).unwrap();
    visitor.line_where("there is no table", SOON, |line| line == "failed");
    let stop = format!("`kill {}", visitor.pid());
    until("the incident names it", SOON, || {
        let incidents: Value = serde_json::from_str(&cli(&home, ["incidents", "--json"]).stdout).unwrap();
        incidents.as_array().unwrap().iter().any(|i| i["next"].as_str().unwrap().contains(&stop))
    });
    let holders = cli(&home, ["holders"]).stdout;
    assert!(holders.contains(&format!("to stop PID {0}: kill {0}", visitor.pid())), "{holders}");
    visitor.kill();
    for n in 10..20 {
        client.talk("c", &n.to_string(), &format!("message {n}."));
    }
    assert_present(&home);
    until("the incident is over", SOON, || cli(&home, ["incidents"]).status.code() == Some(0));
    up.stop();
}
