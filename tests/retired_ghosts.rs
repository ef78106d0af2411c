//! Ghosts whose own checkpoints happen, second generations, full disks and readers: whatever stands in the way of bringing rows
//! back, no row of either side is lost, and what cannot be had is said.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use statehouse_testkit::peers::hermes_python;
use statehouse_testkit::volume::Volume;
use statehouse_testkit::{Home, Snapshot, TestDir, run};

use crate::house::{Client, PATIENCE, Service, beside, binary, error_code, furnished, messages};
use crate::retired_merge::{Hermes, Program, command, ghost_of_hermes, merge, number, retired, show, sql, stats};

/// Types the line that `holders` prints for a ghost, and answers the id of the capture.
pub(crate) fn captured_as_told(path: &Path) -> String {
    let told = run(command(&["holders"]).arg(path), PATIENCE);
    assert_eq!(told.code(), 3, "{told:?}");
    let line = told.stdout.split_once("statehouse retired capture").and_then(|(_, l)| l.split([';', '\n']).next());
    let line = line.unwrap_or_else(|| panic!("no line to type: {told:?}"));
    let words: Vec<&str> = ["retired", "capture"].into_iter().chain(line.split_whitespace()).collect();
    let mut typed = Command::new(binary());
    typed.args(&words).arg("--json").env("STATEHOUSE_HOME", "/nonexistent");
    let done: Value = run(&mut typed, PATIENCE).success().json();
    done["captures"][0]["id"].as_str().unwrap().to_owned()
}

#[test]
fn a_thousand_messages_of_a_ghost_that_checkpoints_by_itself_are_captured_as_told_counted_and_brought_back() {
    let Some(interpreter) = hermes_python() else { return };
    let directory = TestDir::new();
    let store = directory.join("state.db");
    let mut ghost = ghost_of_hermes(&interpreter, &store);
    ghost.order("ghost 1000");
    let id = captured_as_told(&store);
    ghost.order("later 3");
    ghost.0.kill();
    let there = number(&store, "SELECT count(*) FROM messages WHERE content NOT LIKE 'later %'");
    assert!(there < 1010, "the control: {there} of 1010 are there without a merge");
    let later = number(&store, "SELECT count(*) FROM messages WHERE content LIKE 'later %'");
    let shown = show(&id, &store);
    let counted = &shown["tables"]["messages"];
    assert_eq!((&counted["missing"], &counted["conflicting"]), (&(1010 - there).into(), &0.into()), "{shown}");
    merge(&id, &store);
    assert_eq!(number(&store, "SELECT count(*) FROM messages"), 1010 + later);
    assert_eq!(sql(&store, "PRAGMA integrity_check"), ["ok"]);
    let said = stats(&interpreter, &store);
    assert!(said.contains(&format!("Total messages: {}", 1010 + later)), "{said}");
    assert_eq!(merge(&id, &store)["rows"], 0);
}

/// The incidents of a database that are of this kind.
fn incidents(path: &Path, kind: &str) -> Vec<Value> {
    let all: Value = run(command(&["incidents", "--all", "--json"]).arg(path), PATIENCE).success().json();
    all.as_array().unwrap().iter().filter(|i| i["kind"] == kind).cloned().collect()
}

fn text(arguments: &[&str], path: &Path) -> String {
    run(command(arguments).arg(path), PATIENCE).success().stdout
}

/// A database whose files were removed under a program that has written this since.
fn ghost_that_wrote(path: &Path, statements: &[&str]) -> Program {
    sql(path, "PRAGMA journal_mode=wal;CREATE TABLE t(id INTEGER PRIMARY KEY, v);INSERT INTO t VALUES(1, 'a')");
    let mut ghost = Program::on(path);
    ghost.sql(&["INSERT INTO t VALUES(2, 'both')"]);
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(path, suffix)).unwrap();
    }
    ghost.sql(statements);
    ghost
}

#[test]
fn an_incident_of_removed_files_closes_when_its_capture_is_merged_and_says_what_that_has_proved() {
    let directory = TestDir::new();
    let path = directory.join("app.db");
    let mut ghost = ghost_that_wrote(&path, &["INSERT INTO t VALUES(3, 'ghost')"]);
    let first = captured_as_told(&path);
    ghost.sql(&["INSERT INTO t VALUES(4, 'later')"]);
    let second = captured_as_told(&path);
    ghost.0.kill();
    let before = incidents(&path, "retired_generation");
    assert_eq!((before.len(), &before[0]["open"]), (1, &true.into()), "{before:#?}");
    merge(&first, &path);
    let between = incidents(&path, "retired_generation").remove(0);
    assert_eq!(between["open"], true, "the second capture has more: {between:#}");
    assert!(between["next"].as_str().unwrap().contains(&second), "{between:#}");
    merge(&second, &path);
    let after = incidents(&path, "retired_generation").remove(0);
    assert_eq!(
        (&after["open"], &after["outcome"], &after["needs_person"]),
        (&false.into(), &"kept".into(), &false.into())
    );
    let proved = after["proved"].as_str().unwrap();
    assert!(
        proved.contains("every row") && proved.contains(&second) && proved.contains("after it was captured"),
        "{proved}"
    );
    assert_eq!(after["nothing_lost"], false, "what was written after the capture is not known: {after:#}");
    let id = after["id"].as_str().unwrap();
    let report = text(&["incidents", "show", id, "--markdown"], &path);
    assert!(report.contains("has read it") && !report.contains("not proved"), "{report}");
    let listed = text(&["retired", "list"], &path);
    assert!(listed.contains("merged") && !listed.contains("kept"), "{listed}");
    assert_eq!(text(&["incidents"], &path).matches("retired").count(), 0);
}

#[test]
fn a_capture_with_conflicts_is_listed_as_merged_with_what_was_kept_and_its_incident_waits() {
    let directory = TestDir::new();
    let path = directory.join("app.db");
    let mut ghost = ghost_that_wrote(&path, &["INSERT INTO t VALUES(3, 'ghost'), (4, 'ghost')"]);
    let id = captured_as_told(&path);
    ghost.0.kill();
    sql(&path, "INSERT INTO t VALUES(3, 'second')");
    let said = text(&["retired", "merge", &id], &path);
    assert!(said.contains("1 row stands against another"), "{said}");
    let listed: Value = retired(&["list"], &path).success().json();
    assert_eq!((&listed[0]["merged"], &listed[0]["conflicts"]), (&true.into(), &1.into()), "{listed}");
    let list = listed[0]["conflicts_list"].as_str().unwrap();
    assert!(fs::read_to_string(list).unwrap().contains("\"second\""));
    let table = text(&["retired", "list"], &path);
    assert!(table.contains("merged, 1 conflict kept") && table.contains(list), "{table}");
    let incident = incidents(&path, "retired_generation").remove(0);
    assert_eq!((&incident["open"], &incident["needs_person"]), (&true.into(), &true.into()), "{incident:#}");
    assert!(incident["next"].as_str().unwrap().contains(list), "{incident:#}");
    assert!(incident["proved"].as_str().unwrap().contains("but for this: 1 row conflicts"), "{incident:#}");
}

#[test]
fn of_what_was_not_compared_nobody_says_that_every_row_is_there() {
    let directory = TestDir::new();
    let path = directory.join("app.db");
    let mut ghost = ghost_that_wrote(
        &path,
        &[
            "CREATE VIRTUAL TABLE w USING fts5(a, content='')",
            "INSERT INTO w(rowid, a) VALUES(1, 'x')",
            "INSERT INTO t VALUES(3, 'ghost')",
        ],
    );
    let id = captured_as_told(&path);
    ghost.0.kill();
    let shown: Value = show(&id, &path);
    assert!(shown["tables"]["w"]["not_compared"].is_string(), "{shown}");
    for arguments in [
        &["retired", "show", &id][..],
        &["retired", "merge", &id, "--dry-run"],
        &["retired", "merge", &id],
        &["retired", "merge", &id],
    ] {
        let said = text(arguments, &path);
        assert!(said.contains("1 table was not compared") && !said.contains("every row"), "{arguments:?}: {said}");
    }
    let listed = text(&["retired", "list"], &path);
    assert!(listed.contains("merged in part") && listed.contains("w was not compared"), "{listed}");
    let incident = incidents(&path, "retired_generation").remove(0);
    assert_eq!(incident["open"], true, "{incident:#}");
    assert!(incident["proved"].as_str().unwrap().contains("w was not compared"), "{incident:#}");
}

#[test]
fn what_a_lockless_gateway_of_ours_had_is_taken_over_when_it_is_merged() {
    let home = furnished(Home::new());
    let gateway = Service::start(&home, "gateway", |_| {});
    let client = Client::new(&gateway.url, &home.token());
    for n in 0..5 {
        client.talk("c", &n.to_string(), &format!("message {n}."));
    }
    drop(gateway);
    let before = messages(&home).len();
    // Another program's process goes on in files of the store that were removed.
    let mut ghost = Program::on(&home.store());
    ghost.sql(&["UPDATE session SET title = title"]);
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(home.member(suffix)).unwrap();
    }
    let columns = sql(&home.store(), "SELECT group_concat(name) FROM pragma_table_info('message')")[0].clone();
    let values = columns
        .split(',')
        .map(|c| match c {
            "n" => "NULL".to_owned(),
            "id" => "randomblob(16)".to_owned(),
            "seq" => "seq + 1000".to_owned(),
            other => other.to_owned(),
        })
        .collect::<Vec<_>>()
        .join(",");
    ghost.sql(&[&format!("INSERT INTO message({columns}) SELECT {values} FROM message")]);
    let id = captured_as_told(&home.store());
    ghost.0.kill();
    // Asked by a program that takes nothing over when it opens the store.
    let there = number(&home.store(), "SELECT count(*) FROM message");
    assert_eq!(there, before as u64, "the control: nothing of it is there");
    let elsewhere = TestDir::new();
    let into = elsewhere.join("both.db");
    let kept = Snapshot::of(home.path(), &[]);
    let merged: Value =
        run(command(&["retired", "merge", &id, "--json", "--into"]).arg(&into).arg(home.store()), PATIENCE)
            .success()
            .json();
    assert!(merged["rows"].as_u64().unwrap() >= before as u64, "{merged}");
    assert_eq!(number(&into, "SELECT count(*) FROM message"), 2 * before as u64);
    kept.assert_unchanged(home.path(), &[]);
    let merged = merge(&id, &home.store());
    assert!(merged["rows"].as_u64().unwrap() >= before as u64, "{merged}");
    let copy = Path::new(merged["before"].as_str().unwrap_or_else(|| panic!("no copy beforehand: {merged}")));
    assert_eq!(number(copy, "SELECT count(*) FROM message"), before as u64);
    assert_eq!(messages(&home).len(), 2 * before);
    let told = incidents(&home.store(), "retired_generation").remove(0);
    assert_eq!(told["open"], false, "nothing is left to do: {told:#}");
    assert!(told["proved"].as_str().unwrap().contains(&id), "{told:#}");
    assert_eq!(merge(&id, &home.store())["rows"], 0);
}

#[test]
fn a_disk_that_is_full_while_rows_are_merged_leaves_the_database_and_the_capture_as_they_were() {
    let Some(volume) = Volume::new(16 << 10) else { return };
    let path = volume.join("app.db");
    sql(&path, "PRAGMA journal_mode=wal;CREATE TABLE t(id INTEGER PRIMARY KEY, v)");
    let mut ghost = Program::on(&path);
    ghost.sql(&["INSERT INTO t VALUES(1, 'both')"]);
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(&path, suffix)).unwrap();
    }
    ghost.sql(&["WITH n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) INSERT INTO t SELECT i, zeroblob(2000) FROM n"]);
    let id = captured_as_told(&path);
    ghost.0.kill();
    for left in [1 << 10, 200 << 10, 1 << 20] {
        volume.fill(left);
        let before = Snapshot::of(volume.path(), &["app.db-shm", "app.db-wal", "app.db.statehouse"]);
        let refused = retired(&["merge", &id], &path);
        assert!(!refused.status.success(), "{left} bytes were enough: {refused:?}");
        assert!(["disk_full", "no_room"].contains(&error_code(&refused).as_str()), "{refused:?}");
        before.assert_unchanged(volume.path(), &["app.db-shm", "app.db-wal", "app.db.statehouse"]);
        volume.clear();
        assert_eq!(sql(&path, "PRAGMA integrity_check;SELECT count(*) FROM t"), ["ok", "0"]);
    }
    assert_eq!(merge(&id, &path)["rows"], 1000);
    assert_eq!(sql(&path, "PRAGMA integrity_check;SELECT count(*) FROM t"), ["ok", "1000"]);
}

#[test]
fn a_reader_of_a_database_with_a_rollback_journal_keeps_the_merge_waiting_and_is_named() {
    let directory = TestDir::new();
    let (path, other) = (directory.join("app.db"), directory.join("backup.db"));
    for path in [&path, &other] {
        sql(path, "CREATE TABLE t(id INTEGER PRIMARY KEY, v);INSERT INTO t VALUES(1, 'a')");
    }
    sql(&other, "INSERT INTO t VALUES(2, 'b')");
    let mut reader = Program::rollback(&path);
    reader.sql(&["BEGIN", "SELECT count(*) FROM t"]);
    let busy = retired(&["merge", other.to_str().unwrap(), "--patience", "0.3"], &path);
    assert_eq!((busy.status.code(), error_code(&busy)), (Some(5), "busy".to_owned()), "{busy:?}");
    assert!(busy.stdout.contains(&reader.0.pid().to_string()), "{busy:?}");
    assert_eq!(sql(&path, "SELECT count(*) FROM t"), ["1"]);
    reader.sql(&["COMMIT"]);
    assert_eq!(merge(other.to_str().unwrap(), &path)["rows"], 1);
    assert_eq!(sql(&path, "PRAGMA integrity_check;SELECT count(*) FROM t"), ["ok", "2"]);
}

#[test]
fn where_a_ghost_and_a_second_hermes_ruined_the_main_file_a_new_file_has_what_both_still_have_and_the_loss_is_said() {
    let Some(interpreter) = hermes_python() else { return };
    let directory = TestDir::new();
    let store = directory.join("state.db");
    let mut ghost = ghost_of_hermes(&interpreter, &store);
    ghost.order("ghost 200");
    let mut second = Hermes::on(&interpreter, &store, "second");
    second.order("second 80");
    // Both copy their logs into the same file.
    ghost.order("more 300");
    second.order("again 60");
    ghost.order("last 300");
    let id = captured_as_told(&store);
    ghost.0.kill();
    second.0.kill();
    let before = Snapshot::of(directory.path(), &["state.db-shm"]);
    let shown = show(&id, &store);
    let said = shown["gone"].to_string();
    assert!(said.contains("damaged") && said.contains("cannot be counted"), "the loss is said: {shown}");
    let refused = retired(&["merge", &id], &store);
    assert_eq!((refused.status.code(), error_code(&refused)), (Some(4), "damaged_database".to_owned()), "{refused:?}");
    before.assert_unchanged(directory.path(), &["state.db-shm"]);
    let elsewhere = TestDir::new();
    let into = elsewhere.join("both.db");
    let merged: Value =
        run(command(&["retired", "merge", &id, "--json", "--into"]).arg(&into).arg(&store), PATIENCE).success().json();
    let messages = &shown["tables"]["messages"];
    let missing = messages["missing"].as_u64().unwrap() + messages["renumbered"].as_u64().unwrap();
    assert_eq!(merged["brought"]["messages"].as_u64(), Some(missing), "{merged}");
    assert_eq!(sql(&into, "PRAGMA integrity_check"), ["ok"]);
    // What the ghost's log holds is all there; what SQLite wrote over is not, and that was said.
    let of = |text: &str| number(&into, &format!("SELECT count(*) FROM messages WHERE content LIKE '{text} %'"));
    assert_eq!((of("before"), of("ghost"), of("last"), of("again")), (10, 200, 300, 60));
}
