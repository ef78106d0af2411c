//! What was put together of a store that was destroyed in place goes into its place, with the house up.

use std::fs;

use serde_json::{Value, json};
use statehouse_testkit::{Home, until, until_some};

use crate::house::{Client, PATIENCE, Up, answer, cli, messages};

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
