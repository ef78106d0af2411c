//! With the house up somebody truncates the store, or copies another file onto it: nothing is acknowledged any more, everybody
//! is told, and nothing of what is left is touched.

use std::path::Path;

use serde_json::Value;
use statehouse_testkit::{Home, visitor::shell_once, wait::until};

use crate::house::{Client, PATIENCE, Up, cli, error_code};

fn cut(file: &Path) {
    std::fs::OpenOptions::new().write(true).open(file).unwrap().set_len(0).unwrap();
}

fn copy_over(file: &Path) {
    let other = file.with_file_name("other.db");
    shell_once(&other, "CREATE TABLE o(a); INSERT INTO o VALUES(randomblob(9000))").unwrap().success();
    std::fs::copy(&other, file).unwrap();
}

/// `put_together` if something can be made of what is left, so that there is a command to name.
fn destroyed(suffix: &str, put_together: bool, deed: impl Fn(&Path)) {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    for n in 0..5 {
        client.talk("before", &n.to_string(), "kept");
    }
    let gateway = up.pid("gateway");
    deed(&home.member(suffix));
    for n in 0..3 {
        let refused = client.message("after", &n.to_string(), "never acknowledged").unwrap();
        assert_eq!((refused.status, &refused.body["error"]["code"]), (503, &Value::from("destroyed")), "{refused:?}");
    }
    let mark = home.store().with_file_name("state.db.statehouse").join("destroyed.json");
    until("the mark", PATIENCE, || mark.exists());
    // What was on its way into the file at that moment may still have come, and was acknowledged to nobody.
    let after = std::fs::read(home.member(suffix)).unwrap();
    let (status, page) = client.get("/readyz").unwrap();
    assert_eq!(status, 503, "{page}");

    let verified = cli(&home, ["--json", "verify"]);
    assert_eq!(verified.status.code(), Some(3), "{verified:?}");
    let document: Value = serde_json::from_str(&verified.stdout).unwrap();
    assert_eq!(document["healthy"], false);
    let check = &document["checks"][0];
    assert_eq!((&check["id"], &check["status"]), (&Value::from("content.whole"), &Value::from("fail")), "{check}");
    assert!(check["hint"].as_str().unwrap().contains("destroyed.json"), "{check}");

    // Whoever only asks how it stands is told the same, and what to type.
    let named = |text: &str| {
        let file = text.contains("statehouse restore /") && text.contains("rebuilt.captured");
        text.contains("writing has stopped") && (file || !put_together)
    };
    until("status says what happened and what to type", PATIENCE, || {
        let status = cli(&home, ["status"]);
        status.status.code() == Some(3) && named(&status.stdout)
    });
    let dashboard = Client::new(up.url("dashboard"), &home.token());
    let (_, page) = dashboard.get("/store").unwrap();
    let page = page.replace("&quot;", "\"");
    assert!(named(&page) && !page.contains(">in order<") && !page.contains("were removed or replaced"), "{page}");
    let hint = client.message("after", "hint", "never acknowledged").unwrap().body["error"]["hint"].clone();
    assert!(!put_together || hint.as_str().unwrap().contains("statehouse restore /"), "{hint}");

    assert!(
        [gateway, up.pid("dashboard")].iter().all(|pid| Path::new(&format!("/proc/{pid}/exe")).exists()),
        "nobody dies of it"
    );
    assert!(std::fs::read(home.member(suffix)).unwrap() == after, "nothing is written into what is left");
    up.stop();
    let again = cli(&home, ["--json", "gateway"]);
    assert_eq!(error_code(&again), "refused_destroyed", "and a new start does not begin on it in silence");
    assert!(std::fs::read(home.member(suffix)).unwrap() == after);
}

#[test]
fn an_emptied_store_is_told_to_everybody() {
    destroyed("", true, cut);
}

#[test]
fn an_emptied_log_is_told_to_everybody() {
    destroyed("-wal", true, cut);
}

#[test]
fn a_store_with_another_database_copied_over_it_is_told_to_everybody() {
    destroyed("", false, copy_over);
}

/// What the mark says was put together, when `enough` of the account is there.
fn account(home: &Home, enough: impl Fn(&Value) -> bool) -> Value {
    let mark = home.store().with_file_name("state.db.statehouse").join("destroyed.json");
    let mut account = Value::Null;
    until("what was put together", PATIENCE, || {
        let text = std::fs::read_to_string(&mark).unwrap_or_default();
        account = serde_json::from_str::<Value>(&text).unwrap_or_default()["account"].clone();
        !account.is_null() && enough(&account)
    });
    account
}

#[test]
fn every_message_of_an_emptied_log_is_in_what_was_put_together() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    for n in 0..12 {
        client.talk(&format!("c{}", n % 3), &n.to_string(), &format!("said {n}"));
    }
    cut(&home.member("-wal"));
    let found = account(&home, |a| a["run_again"].as_u64() > Some(0) && a["lost"] == serde_json::json!([]));
    assert_eq!((&found["verified"], &found["complete"]), (&true.into(), &true.into()), "{found:#}");
    let rebuilt = found["rebuilt"].as_str().unwrap();
    let texts = shell_once(Path::new(rebuilt), "SELECT text FROM message WHERE role = 'user'").unwrap();
    let texts: Vec<_> = texts.success().stdout.lines().map(str::to_owned).collect();
    for n in 0..12 {
        assert!(texts.contains(&format!("said {n}")), "said {n} is missing of {texts:?}: {found:#}");
    }
    up.stop();
}

#[test]
fn what_an_older_copy_over_the_store_has_lost_is_named_to_the_message() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    let mut said = 0;
    let mut talk = |count: u32| {
        for _ in 0..count {
            client.talk("c", &said.to_string(), &format!("said {said} {}", "x".repeat(900)));
            said += 1;
        }
    };
    let copied = |home: &Home| {
        until("everything is in the main file", PATIENCE, || {
            let done = cli(home, ["--json", "checkpoint"]);
            done.status.success() && serde_json::from_str::<Value>(&done.stdout).unwrap()["done"] == true
        });
    };
    talk(30);
    copied(&home);
    let older = std::fs::read(home.store()).unwrap();
    talk(60);
    copied(&home);
    talk(10);
    std::fs::write(home.store(), older).unwrap();
    let found = account(&home, |a| a["run_again"].as_u64() > Some(0));
    assert_eq!(found["verified"], true, "{found:#}");
    let rebuilt = Path::new(found["rebuilt"].as_str().unwrap());
    let run = shell_once(rebuilt, "SELECT seq FROM message ORDER BY seq").unwrap();
    let there: Vec<u32> = run.success().stdout.lines().map(|l| l.parse().unwrap()).collect();
    let all = 2 * said;
    let missing: Vec<u32> = (1..=all).filter(|n| !there.contains(n)).collect();
    assert!(there.len() >= 60 && !missing.is_empty(), "{there:?}");
    let lost = found["lost"].as_array().unwrap();
    assert_eq!(lost.len(), 1, "{found:#}");
    let sentence = lost[0].as_str().unwrap();
    let (count, ranges) = (sentence.split(' ').next().unwrap(), sentence.split("number ").nth(1).unwrap());
    assert_eq!(count, missing.len().to_string(), "{sentence}: {missing:?}");
    let named: Vec<u32> = ranges
        .split(", ")
        .flat_map(|range| {
            let (from, to) = range.split_once(" to ").unwrap_or((range, range));
            from.parse::<u32>().unwrap()..=to.parse().unwrap()
        })
        .collect();
    assert_eq!(named, missing, "{sentence}");
    up.stop();
}
