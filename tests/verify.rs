//! The proof after a restart or a recovery: every live process writes, and a program's own commit is seen through the path.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use statehouse_testkit::visitor::Python;
use statehouse_testkit::{Child, Home, Snapshot, TestDir};

use crate::health::{Holder, foreign, on, outcome};
use crate::house::{Client, PATIENCE, Up, beside, binary, cli};

fn check(document: &Value, id: &str) -> Value {
    document["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|c| c["id"] == id)
        .unwrap_or_else(|| panic!("no {id}: {document}"))
        .clone()
}

/// `verify --wait-for-write` that has asked for the message.
struct Waiting(Child);

impl Waiting {
    fn on(command: &mut Command, seconds: &str) -> Waiting {
        command.args(["--wait-for-write", seconds, "--json"]).stdin(Stdio::null());
        let child = Child::spawn(command);
        let begun = Instant::now();
        while !child.stderr_text().contains("send the program a message") {
            assert!(begun.elapsed() < PATIENCE, "it never asked: {}", child.stderr_text());
            std::thread::sleep(Duration::from_millis(5));
        }
        Waiting(child)
    }

    fn of(path: &Path, seconds: &str) -> Waiting {
        Waiting::on(Command::new(binary()).arg("verify").arg(path).env("STATEHOUSE_HOME", "/nonexistent"), seconds)
    }

    fn end(mut self) -> (i32, Value) {
        let line = self.0.line(PATIENCE);
        let status = self.0.wait(PATIENCE);
        (status.code().unwrap(), serde_json::from_str(&line).unwrap())
    }
}

#[test]
fn a_service_that_is_stopped_is_named_because_it_does_not_write() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let well = cli(&home, ["verify", "--write", "--json"]).json();
    assert_eq!(check(&well, "canary.members")["status"], "ok", "{well}");
    let detail = check(&well, "canary.members")["detail"].as_str().unwrap().to_owned();
    for role in ["gateway", "dashboard", "scheduler"] {
        assert!(detail.contains(&format!("{role} (PID {})", up.pid(role))), "{detail}");
        let pid = Pid::from_raw(i32::try_from(up.pid(role)).unwrap()).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        let done = cli(&home, ["verify", "--write", "--json", "--patience", "1.5"]);
        kill_process(pid, Signal::CONT).unwrap();
        assert_eq!(done.code(), 3, "{done:#?}");
        let found = check(&done.json(), "canary.members");
        let said = found["summary"].as_str().unwrap();
        assert_eq!(found["status"], "fail");
        assert!(
            said.contains(&format!("{role} (PID {})", up.pid(role))) && said.matches("PID").count() == 1,
            "{found}"
        );
    }
    assert_eq!(cli(&home, ["verify", "--write", "--json"]).json()["healthy"], true);
    up.stop();
}

#[test]
fn without_write_nothing_is_asked_of_the_services() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let looked = cli(&home, ["verify", "--json"]).json();
    assert!(looked["checks"].as_array().unwrap().iter().all(|c| c["id"] != "canary.members"), "{looked}");
    assert!(!beside(&home.store(), ".statehouse").join("canary").exists());
    up.stop();
}

#[test]
fn a_message_to_the_program_is_seen_through_the_path_and_without_one_the_proof_fails() {
    for mode in ["wal", "delete"] {
        let directory = TestDir::new();
        let path = foreign(&directory, mode);
        let mut holder = Holder::of(&path);
        let (code, document) = Waiting::of(&path, "1").end();
        assert_eq!((code, outcome(&document, "write.seen").as_str()), (3, "fail"), "{mode}: {document}");
        assert_eq!(outcome(&document, "canary.written"), "skip", "it never writes by itself");
        assert!(!beside(&path, ".statehouse").exists());

        let waiting = Waiting::of(&path, "50");
        holder.order(json!({"sql": "UPDATE m SET t = 'changed' WHERE id = 7"}));
        let (code, document) = waiting.end();
        assert_eq!((code, outcome(&document, "write.seen").as_str()), (0, "ok"), "{mode}: {document}");
        let detail = check(&document, "write.seen")["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(&format!("PID {}", holder.0.pid())), "the program is named: {detail}");
    }
}

#[test]
fn a_lock_that_somebody_keeps_is_told_with_his_name_and_how_long_it_was_waited_for() {
    let directory = TestDir::new();
    let path = foreign(&directory, "wal");
    let mut holder = Holder::of(&path);
    holder.order(json!({"sql": "BEGIN IMMEDIATE"}));
    let document = on(&path, &["verify", "--write", "--patience", "0.5"]).json();
    let found = check(&document, "canary.written");
    let said = found.to_string();
    assert_eq!(found["status"], "fail", "{found}");
    assert!(said.contains(&format!("PID {}", holder.0.pid())) && !said.contains("waited 0 ms"), "{found}");
}

#[test]
fn a_commit_of_a_passing_program_is_not_credited_to_the_one_that_is_watched() {
    for mode in ["wal", "delete"] {
        let directory = TestDir::new();
        let path = foreign(&directory, mode);
        let mut holder = Holder::of(&path);
        let waiting = Waiting::of(&path, "3");
        let mut visitor = Python::open(&path);
        visitor.sql("INSERT INTO m(t) VALUES('of a stranger')").unwrap();
        visitor.quit();
        let (code, document) = waiting.end();
        let found = check(&document, "write.seen");
        assert_eq!((code, &found["status"]), (3, &json!("fail")), "{mode}: {found}");
        let said = found["summary"].as_str().unwrap();
        assert!(said.contains("another process") && said.contains(&format!("PID {}", holder.0.pid())), "{found}");

        // And it goes on waiting: what the program writes after that counts.
        let waiting = Waiting::of(&path, "50");
        let mut visitor = Python::open(&path);
        visitor.sql("INSERT INTO m(t) VALUES('of a stranger')").unwrap();
        visitor.quit();
        holder.order(json!({"sql": "UPDATE m SET t = 'changed' WHERE id = 7"}));
        let (code, document) = waiting.end();
        assert_eq!((code, outcome(&document, "write.seen").as_str()), (0, "ok"), "{mode}: {document}");
    }
}

#[test]
fn what_is_no_message_does_not_pass_for_one() {
    let directory = TestDir::new();
    let path = foreign(&directory, "wal");
    let mut holder = Holder::of(&path);
    let waiting = Waiting::of(&path, "2.5");
    // Transactions that write nothing, reads, and a copy of the log into the main file.
    holder.order(json!({"sql": "BEGIN IMMEDIATE"}));
    holder.order(json!({"sql": "COMMIT"}));
    holder.order(json!({"sql": "SELECT count(*) FROM m"}));
    holder.order(json!({"sql": "PRAGMA wal_checkpoint(TRUNCATE)"}));
    let (code, document) = waiting.end();
    assert_eq!((code, outcome(&document, "write.seen").as_str()), (3, "fail"), "{document}");
}

#[test]
fn a_program_that_opens_and_closes_for_each_message_is_seen_too() {
    let directory = TestDir::new();
    let path = foreign(&directory, "wal");
    let waiting = Waiting::of(&path, "50");
    let mut python = Python::open(&path);
    python.sql("INSERT INTO m(t) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<500) SELECT 'more '||i FROM n").unwrap();
    python.quit();
    let (code, document) = waiting.end();
    assert_eq!((code, outcome(&document, "write.seen").as_str()), (0, "ok"), "{document}");
}

#[test]
fn a_message_that_goes_to_a_deleted_log_fails_the_proof_and_says_so() {
    let directory = TestDir::new();
    let path = foreign(&directory, "wal");
    let mut holder = Holder::of(&path);
    holder.loses_its_files(&path);
    let before = Snapshot::of(directory.path(), &[]);
    let waiting = Waiting::of(&path, "50");
    holder.order(json!({"sql": "INSERT INTO m(t) VALUES('the message')"}));
    let (code, document) = waiting.end();
    assert_eq!(code, 3);
    let found = check(&document, "write.seen");
    assert_eq!(found["status"], "fail", "{found}");
    let said = found["summary"].as_str().unwrap();
    assert!(said.contains("deleted log") && said.contains(&format!("PID {}", holder.0.pid())), "{found}");
    assert!(found["hint"].as_str().unwrap().contains("retired capture"), "{found}");
    before.assert_unchanged(directory.path(), &[]);
}

#[test]
fn in_a_house_only_a_message_counts_and_not_what_its_services_write_by_themselves() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    let waiting = || {
        let mut command = crate::house::statehouse(&home, ["verify"]);
        Waiting::on(&mut command, "3")
    };
    let first = waiting();
    // The gateway writes a row for its own readiness.
    assert_eq!(client.get("/readyz").unwrap().0, 200);
    let (code, document) = first.end();
    assert_eq!((code, outcome(&document, "write.seen").as_str()), (3, "fail"), "{document}");
    let second = waiting();
    client.talk("c", "1", "a message");
    let (code, document) = second.end();
    assert_eq!((code, outcome(&document, "write.seen").as_str()), (0, "ok"), "{document}");
    up.stop();
    assert_eq!(on(&home.store(), &["verify"]).success().json()["healthy"], true);
}
