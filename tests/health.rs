//! `holders`, `status`, `verify` and `anchor` tell the truth about any database, and leave it as it was.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use statehouse_testkit::visitor::{Python, python};
use statehouse_testkit::{Child, Finished, Home, Snapshot, TestDir, kernel, run, wait::until};

use crate::house::{PATIENCE, Up, answer, beside, binary, cli, error_code, furnished};

/// Python with a database open, told to run SQL or to open and close a file by ordinary means.
const HOLDER: &str = r#"
import json, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None)
for line in sys.stdin:
    order = json.loads(line)
    if "touch" in order:
        open(order["touch"], "rb").close()
    else:
        connection.execute(order["sql"]).fetchall()
    print("done", flush=True)
"#;

pub(crate) struct Holder(pub(crate) Child);

impl Holder {
    pub(crate) fn of(database: &Path) -> Holder {
        let mut holder = Holder(Child::spawn(Command::new(python()).args(["-I", "-c", HOLDER]).arg(database)));
        holder.order(json!({"sql": "PRAGMA wal_autocheckpoint=0"}));
        holder.order(json!({"sql": "INSERT INTO m(t) VALUES('held')"}));
        holder
    }

    pub(crate) fn order(&mut self, order: Value) {
        self.0.send(&order.to_string());
        assert_eq!(self.0.line(PATIENCE), "done");
    }

    /// What a program does that reads "some file" and does not know that it is its own database.
    pub(crate) fn loses_its_locks(&mut self, database: &Path) {
        self.order(json!({"touch": database}));
        self.order(json!({"touch": beside(database, "-shm")}));
    }

    /// It loses its locks, and a visitor that closes takes the files away.
    pub(crate) fn loses_its_files(&mut self, database: &Path) {
        self.loses_its_locks(database);
        let mut visitor = Python::open(database);
        visitor.sql("INSERT INTO m(t) VALUES('visitor')").unwrap();
        visitor.quit();
        assert!(!beside(database, "-wal").exists(), "the visitor unlinked the log");
    }
}

/// A database of another program, closed.
pub(crate) fn foreign(directory: &TestDir, mode: &str) -> PathBuf {
    let path = directory.join("other.db");
    let mut python = Python::open(&path);
    python.sql(&format!("PRAGMA journal_mode={mode}")).unwrap();
    python.sql("CREATE TABLE m(id INTEGER PRIMARY KEY, t)").unwrap();
    python.sql("INSERT INTO m(t) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<2000) SELECT 'row '||i FROM n").unwrap();
    python.quit();
    path
}

/// The program on a path, away from any home.
pub(crate) fn on(path: &Path, arguments: &[&str]) -> Finished {
    run(Command::new(binary()).args(arguments).arg(path).arg("--json").env("STATEHOUSE_HOME", "/nonexistent"), PATIENCE)
}

#[track_caller]
fn outcomes(verification: &Value) -> Vec<(String, String)> {
    let text = |v: &Value| v.as_str().unwrap().to_owned();
    let checks = verification["checks"].as_array().unwrap();
    for check in checks {
        assert!(check["ms"].is_number() && check["summary"].is_string() && check["hint"].is_string(), "{check}");
    }
    checks.iter().map(|c| (text(&c["id"]), text(&c["status"]))).collect()
}

#[track_caller]
pub(crate) fn outcome(verification: &Value, id: &str) -> String {
    outcomes(verification).into_iter().find(|c| c.0 == id).unwrap_or_else(|| panic!("no {id}: {verification}")).1
}

const CHECKS: [&str; 7] = [
    "content.whole",
    "generation.current",
    "holders.no_ghost",
    "holders.no_naked",
    "canary.written",
    "canary.read_by_other_process",
    "integrity.quick",
];

#[test]
fn a_running_house_is_healthy_and_every_process_is_named() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let proof = answer(&home, ["verify", "--write"]);
    assert_eq!(proof["healthy"], true);
    let (last, first) = CHECKS.split_last().unwrap();
    let end = ["canary.members", last];
    let all = ["store.ours"].iter().chain(first).chain(&end);
    assert_eq!(outcomes(&proof), all.map(|id| ((*id).to_owned(), "ok".to_owned())).collect::<Vec<_>>());
    let looked = answer(&home, ["verify"]);
    assert_eq!((outcome(&looked, "canary.written").as_str(), &looked["healthy"]), ("skip", &Value::Bool(true)));

    let report = answer(&home, ["holders"]);
    assert_eq!(report["verdict"], "held");
    let holders = report["holders"].as_array().unwrap();
    for role in ["anchor", "gateway", "dashboard", "scheduler"] {
        let holder = holders.iter().find(|h| h["role"] == role).unwrap_or_else(|| panic!("no {role}: {report}"));
        assert_eq!(holder["pid"], up.pid(role));
        assert_eq!((&holder["naked"], &holder["ghost"]), (&Value::Bool(false), &Value::Bool(false)), "{holder}");
        assert_eq!((&holder["locks"]["shared"], &holder["locks"]["dms"]), (&Value::Bool(true), &Value::Bool(true)));
    }
    assert_eq!(holders.len(), 4, "nobody else: {report}");
    assert_eq!(cli(&home, ["holders", "--expect-quiet"]).code(), 3);

    let status = answer(&home, ["status"]);
    for field in [
        "path",
        "size",
        "wal_size",
        "journal_mode",
        "sqlite",
        "filesystem",
        "generation",
        "members",
        "last_snapshot",
        "incidents_open",
    ] {
        assert!(status.get(field).is_some(), "{field}: {status}");
    }
    assert_eq!((&status["kind"], &status["journal_mode"]), (&json!("statehouse"), &json!("wal")));
    assert_eq!(status["filesystem"]["wal_ok"], true);
    assert!(["main", "wal", "shm"].iter().all(|m| status["generation"][m]["inode"].is_u64()), "{status}");
    assert_eq!(status["members"].as_array().unwrap().len(), 4, "{status}");
    up.stop();
    assert_eq!(answer(&home, ["holders", "--expect-quiet"])["verdict"], "quiet");
    assert_eq!(answer(&home, ["status"])["members"], json!([]));
    assert_eq!(answer(&home, ["verify", "--write"])["healthy"], true);
}

#[test]
fn a_closed_database_of_anybody_is_looked_at_without_a_trace() {
    for mode in ["wal", "delete"] {
        let directory = TestDir::new();
        let path = foreign(&directory, mode);
        let before = Snapshot::of(directory.path(), &[]);
        let proof = on(&path, &["verify"]).success().json();
        assert_eq!((outcome(&proof, "integrity.quick").as_str(), &proof["healthy"]), ("ok", &json!(true)), "{proof}");
        let status = on(&path, &["status"]).success().json();
        assert_eq!(status["kind"], "other");
        assert_eq!(status["journal_mode"], if mode == "wal" { "wal" } else { "rollback" });
        assert_eq!(on(&path, &["holders", "--expect-quiet"]).success().json()["verdict"], "quiet");
        before.assert_unchanged(directory.path(), &[]);
        // The empty transaction of --write leaves every byte where it was.
        let proof = on(&path, &["verify", "--write"]).success().json();
        assert_eq!(outcomes(&proof), CHECKS.map(|id| (id.to_owned(), "ok".to_owned())), "{mode}: {proof}");
        assert_eq!(before.entries()[path.file_name().unwrap()].bytes, Some(fs::read(&path).unwrap()));
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["other.db"], "{mode}");
    }
    // The same for our own store.
    let home = furnished(Home::new());
    let before = Snapshot::of(home.path(), &[]);
    assert_eq!(answer(&home, ["verify"])["healthy"], true);
    answer(&home, ["status"]);
    before.assert_unchanged(home.path(), &[]);
}

#[test]
fn a_log_that_a_killed_process_left_is_read_and_stays() {
    let directory = TestDir::new();
    let path = foreign(&directory, "wal");
    Holder::of(&path).0.kill();
    assert!(fs::metadata(beside(&path, "-wal")).unwrap().len() > 32);
    let before = Snapshot::of(directory.path(), &[]);
    let proof = on(&path, &["verify"]).success().json();
    assert_eq!(outcome(&proof, "integrity.quick"), "ok");
    before.assert_unchanged(directory.path(), &[]);
    let read = |suffix| fs::read(beside(&path, suffix)).unwrap();
    let content = ["", "-wal"].map(read);
    // By a relative name, as a person types it.
    let mut relative = Command::new(binary());
    relative
        .args(["verify", "--write", "other.db"])
        .current_dir(directory.path())
        .env("STATEHOUSE_HOME", "/nonexistent");
    run(&mut relative, PATIENCE).success();
    assert_eq!(["", "-wal"].map(read), content);
    assert!(beside(&path, "-shm").exists());
}

#[test]
fn a_database_in_use_by_another_program_is_verified_beside_it() {
    let directory = TestDir::new();
    let path = foreign(&directory, "wal");
    let mut holder = Holder::of(&path);
    let before = kernel::generation(&path);
    let proof = on(&path, &["verify", "--write"]).success().json();
    assert_eq!(outcomes(&proof), CHECKS.map(|id| (id.to_owned(), "ok".to_owned())), "{proof}");
    let report = on(&path, &["holders"]).success().json();
    assert_eq!((&report["verdict"], &report["holders"][0]["pid"]), (&json!("held"), &json!(holder.0.pid())));
    assert_eq!(kernel::generation(&path), before);
    assert!(kernel::Standing::of(holder.0.pid(), &path).whole());
    assert!(!beside(&path, ".statehouse").exists(), "nothing is made beside somebody else's database");

    // While somebody keeps the write lock, the proof fails in the time that it was given.
    holder.order(json!({"sql": "BEGIN IMMEDIATE"}));
    let busy = on(&path, &["verify", "--write", "--patience", "0.2"]);
    assert_eq!(busy.code(), 3, "{busy:#?}");
    assert_eq!(outcome(&busy.json(), "canary.written"), "fail");
}

#[test]
fn a_process_that_lost_its_locks_is_named_and_not_harmed() {
    let directory = TestDir::new();
    let path = foreign(&directory, "wal");
    let mut holder = Holder::of(&path);
    let pid = holder.0.pid();
    let mut anchor = Child::spawn(
        Command::new(binary()).args(["anchor", "--json"]).arg(&path).env("STATEHOUSE_HOME", "/nonexistent"),
    );
    anchor.line_where("anchored", PATIENCE, |l| l.contains("\"anchored\""));
    let lost = Instant::now();
    holder.loses_its_locks(&path);
    let line = anchor.line_where("naked_holder", PATIENCE, |l| l.contains("\"naked_holder\""));
    let event: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(event["pid"], pid, "{event}");
    assert!(lost.elapsed() < Duration::from_secs(2), "told after {:?}", lost.elapsed());

    let before = kernel::generation(&path);
    let found = on(&path, &["holders"]);
    assert_eq!(found.code(), 3, "{found:#?}");
    let naked: Vec<Value> =
        found.json()["holders"].as_array().unwrap().iter().filter(|h| h["naked"] == true).cloned().collect();
    assert_eq!(naked.iter().map(|h| &h["pid"]).collect::<Vec<_>>(), [&json!(pid)]);
    assert!(naked[0]["stop"].as_str().unwrap().contains(&pid.to_string()), "{naked:?}");
    let proof = on(&path, &["verify", "--write"]);
    assert_eq!(proof.code(), 3);
    let proof = proof.json();
    assert_eq!(
        (outcome(&proof, "holders.no_naked"), outcome(&proof, "holders.no_ghost")),
        ("fail".into(), "ok".into())
    );
    for id in ["canary.written", "canary.read_by_other_process", "integrity.quick"] {
        assert_eq!(outcome(&proof, id), "skip", "not opened beside it");
    }
    assert_eq!(kernel::generation(&path), before, "looking did not cut it off");
    assert!(anchor.stop(PATIENCE).success());
}

#[test]
fn a_process_that_writes_into_deleted_files_is_named() {
    let directory = TestDir::new();
    let path = foreign(&directory, "wal");
    let mut holder = Holder::of(&path);
    // The control of what an anchor is for.
    holder.loses_its_files(&path);
    let found = on(&path, &["holders"]);
    assert_eq!(found.code(), 3);
    let report = found.json();
    assert_eq!((&report["verdict"], &report["holders"][0]["ghost"]), (&json!("held"), &json!(true)), "{report}");
    let before = Snapshot::of(directory.path(), &[]);
    let proof = on(&path, &["verify", "--write"]);
    assert_eq!(proof.code(), 3);
    let proof = proof.json();
    assert_eq!(
        (outcome(&proof, "holders.no_ghost"), outcome(&proof, "generation.current")),
        ("fail".into(), "fail".into())
    );
    assert_eq!(outcome(&proof, "integrity.quick"), "skip");
    before.assert_unchanged(directory.path(), &[]);
}

#[test]
fn an_anchor_keeps_the_files_in_place_and_goes_along_with_a_new_generation() {
    let directory = TestDir::new();
    let path = foreign(&directory, "wal");
    let mut anchor = Child::spawn(Command::new(binary()).args(["anchor", "--json"]).arg(&path));
    let anchored: Value =
        serde_json::from_str(&anchor.line_where("anchored", PATIENCE, |l| l.contains("\"anchored\""))).unwrap();
    assert_eq!(anchored["path"], path.to_str().unwrap());
    assert!(anchored["generation"]["main"]["inode"].is_u64(), "{anchored}");
    let mut visitor = Python::open(&path);
    visitor.sql("INSERT INTO m(t) VALUES('visitor')").unwrap();
    let held = kernel::generation(&path);
    visitor.quit();
    assert_eq!(kernel::generation(&path), held, "the last visitor leaves the files where they are");

    fs::rename(&path, directory.join("old")).unwrap();
    fs::copy(directory.join("old"), directory.join("new")).unwrap();
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(&path, suffix)).unwrap();
    }
    fs::rename(directory.join("new"), &path).unwrap();
    anchor.line_where("released", PATIENCE, |l| l.contains("\"released\""));
    let again: Value =
        serde_json::from_str(&anchor.line_where("anchored", PATIENCE, |l| l.contains("\"anchored\""))).unwrap();
    assert_ne!(again["generation"]["main"], anchored["generation"]["main"]);
    until("nothing deleted is held but what can only be read there", PATIENCE, || {
        let kept = [beside(&path, "-wal"), beside(&path, "-shm")];
        kernel::descriptors(anchor.pid()).iter().filter(|d| d.deleted).all(|d| kept.contains(&d.path) && !d.writes)
    });
    assert!(anchor.stop(PATIENCE).success());
    assert!(anchor.line(PATIENCE).contains("\"released\""));
}

#[test]
fn an_anchor_refuses_what_it_would_harm() {
    let directory = TestDir::new();
    let rollback = foreign(&directory, "delete");
    let before = Snapshot::of(directory.path(), &[]);
    let done = on(&rollback, &["anchor"]);
    assert_eq!((done.code(), error_code(&done).as_str()), (4, "refused_rollback_mode"), "{done:#?}");
    before.assert_unchanged(directory.path(), &[]);

    let directory = TestDir::new();
    let wal = foreign(&directory, "wal");
    // The start of a journal that was not rolled back: its magic number, as the file format has it.
    fs::write(beside(&wal, "-journal"), [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7, 0, 0, 0, 1]).unwrap();
    let before = Snapshot::of(directory.path(), &[]);
    let done = on(&wal, &["anchor"]);
    assert_eq!((done.code(), error_code(&done).as_str()), (4, "refused_hot_journal"), "{done:#?}");
    before.assert_unchanged(directory.path(), &[]);
}

#[test]
fn damage_is_found_and_nothing_is_done_about_it() {
    let directory = TestDir::new();
    let path = foreign(&directory, "delete");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2 / 4096 * 4096;
    bytes[middle..middle + 64].fill(0xee);
    fs::write(&path, &bytes).unwrap();
    let done = on(&path, &["verify"]);
    assert_eq!(done.code(), 3, "{done:#?}");
    let proof = done.json();
    assert_eq!((outcome(&proof, "integrity.quick").as_str(), &proof["healthy"]), ("fail", &json!(false)));
    assert_eq!(fs::read(&path).unwrap(), bytes);
    fs::write(&path, "a letter to my aunt, who has no database").unwrap();
    let done = on(&path, &["verify"]);
    assert_eq!((done.code(), error_code(&done).as_str()), (4, "refused_not_database"));
}

#[test]
fn another_programs_database_in_the_place_of_the_store_is_not_healthy() {
    let home = furnished(Home::new());
    let directory = TestDir::new();
    fs::copy(foreign(&directory, "delete"), home.store()).unwrap();
    let done = cli(&home, ["verify", "--json"]);
    assert_eq!((done.code(), outcome(&done.json(), "store.ours").as_str()), (3, "fail"), "{done:#?}");
    // Named as a database of anybody's, it is what it is.
    assert_eq!(on(&home.store(), &["verify"]).success().json()["healthy"], true);
}

/// Paths at which no database can be, and a link that leads to one.
#[test]
fn holders_says_what_is_wrong_with_a_path() {
    let directory = TestDir::new();
    let path = foreign(&directory, "wal");
    let holder = Holder::of(&path);
    let link = directory.path().join("link.db");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let through = on(&link, &["holders"]).success().json();
    assert_eq!(through["holders"][0]["pid"], json!(holder.0.pid()), "the link is followed: {through}");

    let missing = on(&directory.path().join("missing.db"), &["holders"]);
    assert_eq!((missing.code(), &missing.json()["error"]["code"]), (4, &json!("no_store")));
    let nowhere = on(&directory.path().join("no/such/missing.db"), &["holders"]);
    assert_eq!((nowhere.code(), &nowhere.json()["error"]["code"]), (4, &json!("no_store")));
    let pipe = directory.path().join("pipe.db");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let special = on(&pipe, &["holders"]);
    assert_eq!((special.code(), &special.json()["error"]["code"]), (4, &json!("refused_not_regular")));
    let dangling = directory.path().join("dangling.db");
    std::os::unix::fs::symlink("gone", &dangling).unwrap();
    let dangling = on(&dangling, &["holders"]);
    assert_eq!((dangling.code(), &dangling.json()["error"]["code"]), (4, &json!("refused_symlink")));
    let text = directory.path().join("text.db");
    std::fs::write(&text, "a shopping list").unwrap();
    let other = on(&text, &["holders"]).success().json();
    assert_eq!(other["verdict"], "quiet");
    assert!(other["limits"].to_string().contains("does not begin as a SQLite database"), "{other}");
}

/// What was deleted and is held still fills the disk.
#[test]
fn case_097_the_bytes_of_deleted_files_are_told() {
    let directory = TestDir::new();
    let path = foreign(&directory, "wal");
    let holder = Holder::of(&path);
    let length = |suffix| std::fs::metadata(beside(&path, suffix)).unwrap().len();
    let held = length("-wal") + length("-shm");
    std::fs::remove_file(beside(&path, "-wal")).unwrap();
    std::fs::remove_file(beside(&path, "-shm")).unwrap();
    let mut command = Command::new(binary());
    let said = run(command.arg("holders").arg(&path).env("STATEHOUSE_HOME", "/nonexistent"), PATIENCE);
    assert_eq!(said.code(), 3);
    let expected = format!("{:.1} KiB of the disk are in deleted files", held as f64 / 1024.0);
    assert!(said.stdout.contains(&expected), "expected {expected:?} in {}", said.stdout);
    drop(holder);
}

#[test]
fn what_holders_says_stops_a_service_of_the_house_for_good() {
    let home = Home::new();
    let mut up = Up::start(&home, |_| {});
    let report = answer(&home, ["holders"]);
    let holders = report["holders"].as_array().unwrap();
    for service in ["anchor", "gateway", "dashboard", "scheduler"] {
        let holder = holders.iter().find(|h| h["role"] == service).unwrap_or_else(|| panic!("{service}: {report:#}"));
        // Whoever kills the service alone meets it again a moment later.
        let expected = format!(
            "kill {}  # statehouse up, which starts its {service} again when PID {} alone is stopped",
            up.child.pid(),
            holder["pid"]
        );
        assert_eq!(holder["stop"], expected);
    }
    let line = holders[0]["stop"].as_str().unwrap();
    run(Command::new("sh").args(["-c", line]), PATIENCE).success();
    assert!(up.child.wait(PATIENCE).success());
    assert_eq!(answer(&home, ["holders"])["verdict"], "quiet");
}
