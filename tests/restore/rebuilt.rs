//! What was put together of a store that was destroyed in place goes into its place, with the house up.

use std::fs;

use serde_json::{Value, json};
use statehouse_testkit::volume::Volume;
use statehouse_testkit::{Home, until, until_some, visitor::shell_once};

use crate::house::{Client, PATIENCE, Up, answer, cli, error_code, messages};

#[test]
fn what_was_put_together_of_an_emptied_log_is_restored_and_the_house_goes_on_with_every_message() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    for n in 0..12 {
        client.talk(&format!("c{}", n % 3), &n.to_string(), &format!("said {n}."));
    }
    fs::OpenOptions::new().write(true).open(home.member("-wal")).unwrap().set_len(0).unwrap();
    let mark = home.store().with_file_name("state.db.statehouse").join("destroyed.json");
    // As soon as there is anything to restore from; who has not added what he remembers is waited for.
    let rebuilt = until_some("what was put together", PATIENCE, || {
        let mark: Value = serde_json::from_str(&fs::read_to_string(&mark).ok()?).ok()?;
        mark["account"]["rebuilt"].as_str().map(str::to_owned)
    });
    assert_eq!(client.message("c", "x", "not now").unwrap().status, 503, "the control");
    let done = answer(&home, ["restore", &rebuilt]);
    assert_eq!((&done["how"], &done["verified"]), (&json!("rename"), &json!(true)), "{done}");
    assert!(!mark.exists(), "it is about a database that is there no more");
    let took = || client.message("c", "after", "said after it.").is_ok_and(|answered| answered.status == 200);
    until("the house goes on", PATIENCE, took);
    let texts: Vec<String> = messages(&home).into_iter().filter(|m| m.1 == "user").map(|m| m.2).collect();
    for text in (0..12).map(|n| format!("said {n}.")).chain(["said after it.".to_owned()]) {
        assert_eq!(texts.iter().filter(|t| **t == text).count(), 1, "{text} in {texts:?}; {done}");
    }
    assert_eq!(texts.len(), 13, "{texts:?}");
    let verify = || cli(&home, ["verify", "--write", "--json"]).json();
    let begun = std::time::Instant::now();
    loop {
        let document = verify();
        if document["healthy"] == true {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{document:#}");
    }
    let destroyed = || {
        let all = answer(&home, ["incidents", "--all"]);
        all.as_array().unwrap().iter().find(|i| i["kind"] == "destroyed").unwrap().clone()
    };
    until("the incident is closed", PATIENCE, || destroyed()["open"] == false);
    let incident = destroyed();
    assert_eq!(incident["nothing_lost"], true, "{incident:#}");
    up.stop();
}

#[test]
fn a_restore_that_was_done_is_printed_no_more_and_typed_again_it_takes_no_row_away() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    for n in 0..4 {
        client.talk("c", &n.to_string(), &format!("said {n}."));
    }
    let older = fs::read(home.store()).unwrap();
    for n in 4..12 {
        client.talk("c", &n.to_string(), &format!("said {n}."));
    }
    let copied = || {
        let done = cli(&home, ["--json", "checkpoint"]);
        done.status.success() && done.json()["done"] == true
    };
    until("everything is in the main file", PATIENCE, copied);
    fs::write(home.store(), older).unwrap();
    let mark = home.store().with_file_name("state.db.statehouse").join("destroyed.json");
    let account = until_some("what was put together", PATIENCE, || {
        let mark: Value = serde_json::from_str(&fs::read_to_string(&mark).ok()?).ok()?;
        Some(mark["account"].clone()).filter(|a| a["rebuilt"].is_string())
    });
    assert_eq!((&account["lost"], &account["complete"]), (&json!([]), &json!(false)), "{account:#}");
    let rebuilt = account["rebuilt"].as_str().unwrap();
    let destroyed = || {
        let all = answer(&home, ["incidents", "--all"]);
        all.as_array().unwrap().iter().find(|i| i["kind"] == "destroyed").unwrap().clone()
    };
    assert!(destroyed()["next"].as_str().unwrap().contains(rebuilt), "the control: {:#}", destroyed());
    answer(&home, ["restore", rebuilt]);
    let took = || client.message("c", "after", "said after it.").is_ok_and(|answered| answered.status == 200);
    until("the house goes on", PATIENCE, took);
    until("the incident is closed", PATIENCE, || destroyed()["open"] == false);
    let incident = destroyed();
    assert!(!incident["next"].as_str().unwrap_or_default().contains("restore"), "{incident:#}");
    assert_eq!((&incident["lost"], &incident["nothing_lost"]), (&Value::Null, &json!(false)), "{incident:#}");
    let count = || messages(&home).into_iter().filter(|m| m.1 == "user").count();
    assert_eq!(count(), 13);
    let again = cli(&home, ["restore", rebuilt, "--json"]);
    assert_eq!((again.status.code(), error_code(&again)), (Some(4), "put_in_place".to_owned()), "{again:?}");
    assert!(again.stdout.contains("of message") && again.stdout.contains("that was done at"), "{again:?}");
    let planned = cli(&home, ["restore", rebuilt, "--dry-run", "--json"]);
    assert!(planned.stdout.contains("put_in_place"), "{planned:?}");
    assert_eq!(count(), 13, "nothing was taken away");
    answer(&home, ["restore", rebuilt, "--force"]);
    until("the house goes on", PATIENCE, || client.message("c", "z", "said last.").is_ok_and(|a| a.status == 200));
    assert_eq!(count(), 13, "the control: what was said after it is in what was kept");
    up.stop();
}

/// Empties or halves the main file of a store that is so young that its log had everything not long ago, and restores as printed.
fn young(part: u64) {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    let mut said = 0;
    let mut talk = |count: u32| {
        for _ in 0..count {
            client.talk(&format!("c{}", said % 3), &said.to_string(), &format!("said {said}. {}", "x".repeat(500)));
            said += 1;
        }
        said
    };
    talk(20);
    let copied = || {
        let done = cli(&home, ["--json", "checkpoint"]);
        done.status.success() && done.json()["done"] == true
    };
    until("everything is in the main file", PATIENCE, copied);
    let said = talk(4);
    let length = fs::metadata(home.store()).unwrap().len() * part / 2 / 4096 * 4096;
    fs::OpenOptions::new().write(true).open(home.store()).unwrap().set_len(length).unwrap();
    let mark = home.store().with_file_name("state.db.statehouse").join("destroyed.json");
    let account = until_some("what was put together", PATIENCE, || {
        let mark: Value = serde_json::from_str(&fs::read_to_string(&mark).ok()?).ok()?;
        Some(mark["account"].clone()).filter(|a| a["rebuilt"].is_string() && a["failed"] == 0)
    });
    let rebuilt = account["rebuilt"].as_str().unwrap();
    answer(&home, ["restore", rebuilt]);
    let there = shell_once(std::path::Path::new(rebuilt), "SELECT count(*) FROM message").unwrap();
    let there: u32 = there.success().stdout.trim().parse().unwrap();
    let lost = account["lost"].as_array().unwrap().iter().map(|l| l.as_str().unwrap());
    let named: u32 = lost.map(|l| l.split(' ').next().unwrap().parse::<u32>().unwrap()).sum();
    assert_eq!(there + named, 2 * said, "what is there and what is named as lost: {account:#}");
    // Far more than the last few, which the processes remember: the log still has what it wrote before it was begun anew.
    assert!(there > said, "{there} of {}: {account:#}", 2 * said);
    let took = || client.message("c", "after", "said after it.").is_ok_and(|answered| answered.status == 200);
    until("the house goes on", PATIENCE, took);
    up.stop();
}

#[test]
fn what_the_log_still_has_of_an_emptied_young_store_is_restored_as_printed_and_the_rest_is_named() {
    young(0);
}

#[test]
fn what_the_log_still_has_of_a_halved_young_store_is_restored_as_printed_and_the_rest_is_named() {
    young(1);
}

#[test]
fn an_emptied_main_file_on_a_full_disk_is_put_together_once_there_is_room() {
    let Some(volume) = Volume::new(8 << 10) else { return };
    let home = Home::on(&volume);
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    for n in 0..8 {
        client.talk("c", &n.to_string(), &format!("said {n}."));
    }
    volume.fill(40 << 10);
    fs::OpenOptions::new().write(true).open(home.store()).unwrap().set_len(0).unwrap();
    let mark = home.store().with_file_name("state.db.statehouse").join("destroyed.json");
    let account = || {
        let text = fs::read_to_string(&mark).unwrap_or_default();
        serde_json::from_str::<Value>(&text).unwrap_or_default()["account"].clone()
    };
    until("somebody has tried", PATIENCE, || account().to_string().contains("the disk is full"));
    assert!(account()["rebuilt"].is_null(), "the control: {:#}", account());
    // By then each of the three has closed its connections, and comes back to files that it knows by their paths alone.
    let given_up = || {
        let list = fs::read_dir(mark.with_file_name("incidents")).unwrap().flatten();
        let texts: Vec<String> = list.filter_map(|e| fs::read_to_string(e.path()).ok()).collect();
        let told = |role: &str| {
            let line = format!("\"role\":\"{role}\",\"sentence\":\"cannot open the database again yet");
            texts.iter().any(|text| text.contains(&line))
        };
        ["gateway", "dashboard", "scheduler"].into_iter().all(told)
    };
    until("everybody has closed the database", PATIENCE, given_up);
    volume.clear();
    let rebuilt = until_some("what was put together", PATIENCE, || account()["rebuilt"].as_str().map(str::to_owned));
    answer(&home, ["restore", &rebuilt]);
    let took = || client.message("c", "after", "said after it.").is_ok_and(|answered| answered.status == 200);
    until("the house goes on", PATIENCE, took);
    up.stop();
}
