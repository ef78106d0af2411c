//! What happened to a store is told beside it, once, with what each process did, until somebody has looked at it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use statehouse_testkit::wait::until;
use statehouse_testkit::{Home, Snapshot, TestDir};

use crate::health::{Holder, foreign, on};
use crate::house::{Client, Up, answer, beside, cli, error_code, furnished};

const SOON: Duration = Duration::from_secs(30);
const ROLES: [&str; 4] = ["anchor", "gateway", "dashboard", "scheduler"];

fn all(home: &Home) -> Vec<Value> {
    answer(home, ["incidents", "--all"]).as_array().unwrap().clone()
}

/// Waits until there is one incident, closed, with every process of the house back; returns it.
fn one_closed(home: &Home) -> Value {
    let over = |i: &Value| {
        let back = |role: &&str| {
            i["affected"].as_array().unwrap().iter().any(|a| a["role"] == *role && a["back_at"].is_string())
        };
        i["open"] == false && ROLES.iter().all(back)
    };
    until("the incident is over", SOON, || all(home).iter().any(over));
    let found = all(home);
    assert_eq!(found.len(), 1, "one retirement is one incident: {found:#?}");
    found[0].clone()
}

fn after(remove: impl Fn(&Home), kind: &str) {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    for n in 0..5 {
        client.talk("c", &n.to_string(), "secret of the content");
    }
    assert_eq!(all(&home), [] as [Value; 0]);
    remove(&home);
    client.talk("c", "after", "and one after that");
    let incident = one_closed(&home);
    assert_eq!(
        (&incident["kind"], &incident["count"], &incident["outcome"]),
        (&json!(kind), &json!(1), &json!("kept")),
        "{incident:#}"
    );
    assert_eq!((&incident["nothing_lost"], &incident["needs_person"]), (&json!(true), &json!(false)));
    let text = incident.to_string();
    assert!(!text.contains("secret of the content"), "nothing of the content: {text}");
    assert_eq!(answer(&home, ["incidents"]), json!([]), "nobody need look at it");
    assert_eq!(answer(&home, ["status"])["incidents_open"], 0);

    let id = incident["id"].as_str().unwrap();
    let end = id.rsplit('-').next().unwrap();
    let report = cli(&home, ["incidents", "show", end, "--markdown"]).success().stdout;
    for part in [
        "## Timeline (UTC)",
        "## Impact",
        "## Cause",
        "## Data loss",
        "## Actions",
        "Nothing that was acknowledged was lost.",
    ] {
        assert!(report.contains(part), "{part} is not in {report}");
    }
    for role in ROLES {
        let who = format!("{role} (PID {})", up.pid(role));
        let lines = report.lines().filter(|l| l.starts_with("| ") && l.contains(&who)).count();
        assert!(lines >= 2, "{who} has {lines} lines: {report}");
        assert!(report.lines().any(|l| l.starts_with(&format!("* {who} for ")) && l.ends_with(" ms")), "{report}");
    }
    let times: Vec<&str> = incident["timeline"].as_array().unwrap().iter().map(|e| e["at"].as_str().unwrap()).collect();
    assert!(times.is_sorted(), "{times:?}");
    up.stop();
    assert_eq!(all(&home).len(), 1, "stopping is no incident: {:#?}", all(&home));
}

#[test]
fn the_log_and_the_index_of_a_live_house_are_removed() {
    after(|home| ["-wal", "-shm"].iter().for_each(|s| fs::remove_file(home.member(s)).unwrap()), "retired_generation");
}

#[test]
fn all_files_of_a_live_house_are_removed() {
    after(
        |home| ["", "-wal", "-shm"].iter().for_each(|s| fs::remove_file(home.member(s)).unwrap()),
        "retired_generation",
    );
}

#[test]
fn another_file_takes_the_place_of_the_store_of_a_live_house() {
    after(
        |home| {
            let copy = home.path().join("copy");
            fs::copy(home.store(), &copy).unwrap();
            fs::rename(copy, home.store()).unwrap();
        },
        "replaced_file",
    );
}

#[test]
fn each_time_is_an_incident_of_its_own() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    // The index alone leaves main file and log as they are, so what is told before and after is about the same files.
    let deeds: [&[&str]; 5] = [&["-wal", "-shm"], &["-wal", "-shm"], &["-shm"], &["-shm"], &["-wal", "-shm"]];
    for (n, members) in (1..).zip(deeds) {
        client.talk("c", &n.to_string(), "x");
        for suffix in members {
            fs::remove_file(home.member(suffix)).unwrap();
        }
        until("it is over", SOON, || {
            let found = all(&home);
            let whole = |i: &Value| i["open"] == false && i["affected"].as_array().unwrap().len() == ROLES.len();
            found.len() == n && found.iter().all(whole)
        });
    }
    up.stop();
}

#[test]
fn a_destroyed_store_waits_for_a_person_on_every_page_until_it_is_closed() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    client.talk("c", "1", "kept");
    fs::OpenOptions::new().write(true).open(home.store()).unwrap().set_len(0).unwrap();
    let destroyed = |i: &Value| i["kind"] == "destroyed" && i["needs_person"] == true;
    until("it is told", SOON, || all(&home).iter().any(destroyed));
    let found = all(&home);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0]["lost"].is_string() && found[0]["nothing_lost"] == false, "{found:#?}");
    let dashboard = Client::new(up.url("dashboard"), &home.token());
    until("the notice", SOON, || dashboard.get("/incidents").unwrap().1.contains("An incident waits for you"));
    let proof = cli(&home, ["verify", "--json"]);
    assert_eq!(crate::health::outcome(&proof.json(), "incidents.open"), "warn");
    let id = found[0]["id"].as_str().unwrap();
    assert_eq!(answer(&home, ["incidents", "close", id])["closed"], true);
    assert_eq!(answer(&home, ["incidents", "close", id])["closed"], false, "it was closed before");
    until("the notice is gone", SOON, || !dashboard.get("/incidents").unwrap().1.contains("incident waits"));
    assert_eq!(answer(&home, ["incidents"]), json!([]));
    drop(up);
}

#[test]
fn a_start_that_is_refused_again_and_again_is_one_incident_and_changes_nothing_but_the_logs() {
    let home = furnished(Home::new());
    let real = home.path().with_extension("real");
    fs::rename(home.store(), &real).unwrap();
    std::os::unix::fs::symlink(&real, home.store()).unwrap();
    let before = Snapshot::of(home.path(), &["logs"]);
    for _ in 0..4 {
        let done = cli(&home, ["up", "--json", "--gateway-port", "0", "--dashboard-port", "0"]);
        assert_eq!(done.code(), 4, "{done:#?}");
    }
    before.assert_unchanged(home.path(), &["logs"]);
    let found = all(&home);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(
        (&found[0]["kind"], &found[0]["count"], &found[0]["needs_person"]),
        (&json!("refused_open"), &json!(4), &json!(true))
    );
    assert!(found[0]["what"].as_str().unwrap().contains("symbolic link"), "{found:#?}");
    // A command of a moment tells whoever typed it, and leaves no trace at all.
    let before = Snapshot::of(home.path(), &[]);
    assert_eq!(error_code(&cli(&home, ["sessions", "list", "--json"])), "refused_symlink");
    before.assert_unchanged(home.path(), &[]);
    fs::remove_file(home.store()).unwrap();
    fs::rename(&real, home.store()).unwrap();
    Up::start(&home, |_| {}).stop();
    assert_eq!(answer(&home, ["incidents"]), json!([]), "the next start that succeeds closes it");
    assert_eq!(all(&home).len(), 1);
}

#[test]
fn a_database_of_another_program_has_no_incidents_and_gets_no_directory() {
    let directory = TestDir::new();
    let path = foreign(&directory, "wal");
    let holder = Holder::of(&path);
    let before = Snapshot::of(directory.path(), &[]);
    assert_eq!(on(&path, &["incidents"]).success().json(), json!([]));
    let unknown = on(&path, &["incidents", "show", "20260101"]);
    assert_eq!((unknown.code(), error_code(&unknown).as_str()), (1, "not_found"));
    before.assert_unchanged(directory.path(), &[]);
    drop(holder);
}

#[test]
fn an_id_may_be_shortened_while_it_is_clear_which_is_meant() {
    let home = furnished(Home::new());
    let place = beside(&home.store(), ".statehouse").join("incidents");
    fs::create_dir_all(&place).unwrap();
    for id in ["20260101T000000.000000-aaaa0001", "20260101T000001.000000-aaaa0002"] {
        write(&place, id);
    }
    let show = |id: &str| cli(&home, ["incidents", "show", id, "--json"]);
    assert_eq!(show("aaaa0002").success().json()["id"], "20260101T000001.000000-aaaa0002");
    assert_eq!(show("20260101T000000").success().json()["id"], "20260101T000000.000000-aaaa0001");
    let unclear = show("aaaa");
    assert_eq!((unclear.code(), error_code(&unclear).as_str()), (1, "ambiguous_id"));
    assert!(unclear.json()["error"]["detail"].as_str().unwrap().contains("aaaa0001"));
    assert_eq!(error_code(&show("")), "not_found");
    // An id is never a path.
    assert_eq!(error_code(&show("../incidents/20260101T000000.000000-aaaa0001")), "not_found");
}

fn write(place: &Path, id: &str) {
    let incident = json!({ "id": id, "at": 1, "kind": "repaired", "role": "repair", "pid": 1, "what": "x", "outcome": "kept", "count": 1,
        "last_at": 1, "closed_at": null });
    fs::write(place.join(format!("{id}.json")), incident.to_string()).unwrap();
}
