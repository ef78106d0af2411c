//! What a person is told: who is in the way, what becomes of whoever has the database open, and what to type.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use statehouse_testkit::user::{User, runnable_by_all};
use statehouse_testkit::visitor::{Python, python};
use statehouse_testkit::{Child, Finished, Snapshot, TestDir, need, run};

use super::{command, content, database, expected, fill, restore, sql};
use crate::house::{PATIENCE, beside, binary};

/// As a person types it.
fn for_people(source: &Path, path: &Path, more: &[&str]) -> Finished {
    let mut line = Command::new(binary());
    line.arg("restore").args(more).args([source, path]).env("STATEHOUSE_HOME", "/nonexistent");
    run(&mut line, PATIENCE)
}

#[test]
fn beside_a_writer_that_does_not_end_the_answer_names_it_and_what_stops_it() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 30, "old");
    let good = database(&directory.join("good.db"), "wal", 4096, 50, "new");
    let mut writer = Python::open(&path);
    let mut reader = Python::open(&path);
    reader.sql("SELECT count(*) FROM t").unwrap();
    writer.sql("BEGIN IMMEDIATE").unwrap();
    let busy = restore(&good, &path, &["--patience", "1"]);
    let error = &busy.json()["error"];
    assert_eq!((busy.code(), &error["code"]), (5, &json!("busy")), "{busy:#?}");
    let message = error["message"].as_str().unwrap();
    let named = format!("held by PID {} (python3", writer.pid());
    assert!(message.contains(&named) && message.contains(&format!("kill {}", writer.pid())), "{error}");
    assert!(!message.contains(&format!("PID {}", reader.pid())), "a reader is in nobody's way: {error}");
    assert!(!busy.stderr.contains("sees the new content"), "nothing was put in: {busy:#?}");

    // A source that its own program keeps to itself names that one, and not whoever has the database open.
    writer.sql("ROLLBACK").unwrap();
    let kept = database(&directory.join("kept.db"), "delete", 4096, 50, "new");
    let mut keeper = Python::open(&kept);
    keeper.sql("BEGIN EXCLUSIVE").unwrap();
    let busy = restore(&kept, &path, &["--patience", "1"]);
    let error = &busy.json()["error"];
    assert_eq!((busy.code(), &error["code"]), (5, &json!("busy")), "{busy:#?}");
    assert!(error["message"].as_str().unwrap().contains(&format!("held by PID {} (python3", keeper.pid())), "{error}");
}

#[test]
fn what_becomes_of_a_program_that_has_it_open_is_said_before_and_what_to_type_after() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 30, "old");
    let good = database(&directory.join("good.db"), "wal", 4096, 50, "new");
    let mut holder = Python::open(&path);
    holder.sql("SELECT count(*) FROM t").unwrap();
    let pid = holder.pid();
    let dry = restore(&good, &path, &["--dry-run"]).success().json();
    let done = restore(&good, &path, &["--force"]).success();
    for next in [&dry["next"], &done.json()["next"]] {
        let command = next[0]["command"].as_str().unwrap_or_default();
        let why = next[0]["why"].as_str().unwrap_or_default();
        assert!(command.starts_with(&format!("kill {pid} ")), "{next}");
        assert!(why.starts_with(&format!("PID {pid} (python3")) && why.contains("restart it"), "{next}");
    }
    assert!(done.stderr.contains(&format!("PID {pid} (python3")) && done.stderr.contains("goes on in the same file"));
    let done = for_people(&good, &path, &[]).success();
    assert!(done.stdout.contains(&format!("\n  kill {pid} ")), "{done:#?}");
    holder.quit();
    let done = restore(&good, &path, &[]).success().json();
    assert_eq!(done["next"], json!([]), "nobody is there: {done}");
}

#[test]
fn force_exchanges_no_main_file_beside_a_program_that_has_it_open_says_why_and_leaves_no_trace() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 30, "old");
    let good = database(&directory.join("good.db"), "wal", 8192, 50, "new");
    let mut holder = Python::open(&path);
    holder.sql("SELECT count(*) FROM t").unwrap();
    let before = Snapshot::of(directory.path(), &[]);
    let refused = restore(&good, &path, &["--force", "--patience", "1"]);
    let error = &refused.json()["error"];
    assert_eq!((refused.code(), &error["code"]), (4, &json!("refused_held")), "{refused:#?}");
    assert!(!refused.stderr.contains("going on in spite of"), "it does not go on: {refused:#?}");
    let detail = error["detail"].as_str().unwrap();
    let stop = format!("to stop it: kill {}", holder.pid());
    for said in [stop.as_str(), "--force does not", "would be in no database", "Stop it, restore, and start it again"] {
        assert!(detail.contains(said), "{said}: {detail}");
    }
    before.assert_unchanged(directory.path(), &[]);
}

#[test]
fn beside_a_program_that_writes_into_deleted_files_the_capture_is_named_before_what_stops_it() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 30, "old");
    let good = database(&directory.join("good.db"), "wal", 4096, 50, "new");
    let mut ghost = Python::open(&path);
    ghost.sql("INSERT INTO t VALUES(1000, 'held')").unwrap();
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(&path, suffix)).unwrap();
    }
    ghost.sql("INSERT INTO t VALUES(1001, 'only it has it')").unwrap();
    for force in [&[][..], &["--force"]] {
        let refused = restore(&good, &path, force);
        let error = &refused.json()["error"];
        assert_eq!((refused.code(), &error["code"]), (4, &json!("refused_held_retired")), "{refused:#?}");
        let detail = error["detail"].as_str().unwrap();
        let capture = detail.find(&format!("statehouse retired capture --pid {} ", ghost.pid()));
        let stop = detail.find(&format!("kill -KILL {}", ghost.pid()));
        assert!(capture.is_some() && capture < stop, "{detail}");
    }
}

#[test]
fn beside_a_program_that_may_not_be_looked_at_force_says_how_to_save_what_it_writes_into_the_old_files() {
    if !need::root("running programs as two users") {
        return;
    }
    let directory = TestDir::new();
    let place = directory.join("place");
    fs::create_dir(&place).unwrap();
    let path = database(&place.join("s.db"), "delete", 4096, 30, "old");
    let good = database(&place.join("good.db"), "wal", 4096, 50, "new");
    User::OWNER.owns(&place);
    fs::set_permissions(&place, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
    let program = runnable_by_all(binary(), directory.path());
    // Its command line speaks for it; what it has open only it and root may see.
    let mut other = Command::new(python());
    other.args(["-I", "-c", "import sys; print('up', flush=True); sys.stdin.read()"]).arg(&path);
    let mut other = Child::spawn(&mut other);
    assert_eq!(other.line(PATIENCE), "up");
    let ask = |more: &[&str]| {
        let mut line = Command::new(&program);
        line.args(["restore", "--json"]).args(more).args([&good, &path]).env("STATEHOUSE_HOME", "/nonexistent");
        run(User::OWNER.runs(&mut line).current_dir(&place), PATIENCE)
    };
    let refused = ask(&[]);
    assert_eq!((refused.code(), &refused.json()["error"]["code"]), (4, &json!("refused_unknown")), "{refused:#?}");
    let dry = ask(&["--dry-run", "--force"]).success().json();
    let done = ask(&["--force"]).success();
    assert!(done.stderr.contains("goes on in the old files"), "said before: {done:#?}");
    assert_eq!(done.json()["how"], "rename", "{done:#?}");
    for next in [&dry["next"], &done.json()["next"]] {
        let line = |n: usize| next[n]["command"].as_str().unwrap_or_default().to_owned();
        assert_eq!(line(0), format!("sudo statehouse retired capture --all {}", path.display()), "{next}");
        assert_eq!(line(1), format!("sudo statehouse holders {}", path.display()), "{next}");
        assert!(next[0]["why"].as_str().unwrap().contains("is in no database"), "{next}");
    }
}

#[test]
fn where_nothing_was_there_no_directory_with_its_files_is_named() {
    for left in [&[][..], &["-wal"]] {
        let directory = TestDir::new();
        let path = database(&directory.join("s.db"), "wal", 4096, 30, "old");
        let good = database(&directory.join("good.db"), "wal", 4096, 50, "new");
        fs::remove_file(&path).unwrap();
        for suffix in left {
            fs::write(beside(&path, suffix), "left").unwrap();
        }
        let dry = restore(&good, &path, &["--dry-run"]).success().json();
        let notes = dry["notes"].to_string();
        assert_eq!(notes.contains("nothing is there"), left.is_empty(), "{dry}");
        let done = restore(&good, &path, &[]).success().json();
        let named = [&done["before"]["path"], &done["replaced"]];
        match left.is_empty() {
            true => assert_eq!(named, [&Value::Null; 2], "{done}"),
            false => {
                let place = Path::new(named[0].as_str().unwrap());
                assert_eq!(named[0], named[1], "{done}");
                assert_eq!(fs::read(place.join("wal.replaced")).unwrap(), b"left", "{done}");
            }
        }
        let retired = fs::read_dir(beside(&path, ".statehouse").join("retired")).unwrap().count();
        assert_eq!(retired, left.len(), "an empty directory is left: {done}");
        assert_eq!(content(&path), expected(50, "new"));
    }
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 30, "old");
    let good = database(&directory.join("good.db"), "wal", 4096, 50, "new");
    fs::remove_file(&path).unwrap();
    let said = for_people(&good, &path, &[]).success().stdout;
    assert!(said.contains("nothing was there that could be kept") && !said.contains("replaced-"), "{said}");
}

#[test]
fn the_directory_of_a_capture_is_restored_as_its_id_is_and_says_how_to_bring_back_rows_alone() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 100, "new");
    let mut ghost = Python::open(&path);
    ghost.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    ghost.sql(&fill(101, 150, "new")).unwrap();
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(&path, suffix)).unwrap();
    }
    ghost.sql(&fill(151, 200, "new")).unwrap();
    let made = run(&mut command(&["retired", "capture", "--all"], &[&path]), PATIENCE).success().json();
    drop(ghost);
    let capture = &made["captures"][0];
    let (place, id) = (Path::new(capture["place"].as_str().unwrap()), capture["id"].as_str().unwrap());
    sql(&path, &["INSERT INTO t VALUES(1000, 'since then')"]);
    let by_id = restore(Path::new(id), &path, &["--dry-run"]).success().json();
    let by_place = restore(place, &path, &["--dry-run"]).success().json();
    for part in ["kind", "source", "how", "tables", "notes"] {
        assert_eq!(by_id[part], by_place[part], "{part}: {by_id} {by_place}");
    }
    let notes = by_place["notes"].to_string();
    assert!(notes.contains("is a capture") && notes.contains(&format!("statehouse retired merge {id}")), "{notes}");
    let done = restore(place, &path, &[]).success().json();
    assert_eq!((&done["kind"], &done["source"]), (&json!("capture"), &json!(id)), "{done}");
    assert_eq!(content(&path), expected(200, "new"));
}

#[test]
fn another_directory_is_called_one_and_what_in_it_can_be_named_is_said() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 30, "old");
    // Where a database is in use, its directory looks like a copy that somebody has made by hand.
    let mut python = Python::open(&path);
    python.sql("UPDATE t SET x = x").unwrap();
    let replaced = directory.join("replaced-1");
    fs::create_dir(&replaced).unwrap();
    fs::copy(&path, replaced.join("main.replaced")).unwrap();
    let before = Snapshot::of(directory.path(), &["s.db-shm"]);
    for (source, says) in
        [(directory.path(), "no capture"), (&replaced, "main.replaced"), (Path::new("/dev/null"), "not a file")]
    {
        let refused = restore(source, &path, &[]);
        let error = &refused.json()["error"];
        assert_eq!((refused.code(), &error["code"]), (4, &json!("source_unfit")), "{refused:#?}");
        assert!(error["detail"].as_str().unwrap().contains(says), "{error}");
    }
    before.assert_unchanged(directory.path(), &["s.db-shm"]);
}

#[test]
fn one_row_is_not_1_rows() {
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 1, "old");
    sql(&path, &["CREATE TABLE child(p REFERENCES t(id))", "PRAGMA foreign_keys=OFF", "INSERT INTO child VALUES(77)"]);
    let mut line = Command::new(binary());
    let taken = run(line.arg("snapshot").arg(&path).env("STATEHOUSE_HOME", "/nonexistent"), PATIENCE).success().stdout;
    assert!(taken.contains("2 rows in 2 tables") && taken.contains("1 row has a foreign key"), "{taken}");
    let good = database(&directory.join("good.db"), "wal", 4096, 2, "new");
    sql(
        &good,
        &["DELETE FROM t WHERE id = 1", "CREATE TABLE child(p REFERENCES t(id))", "INSERT INTO child VALUES(77)"],
    );
    let said = for_people(&good, &path, &[]).success().stdout;
    assert!(said.contains("1 row refers to rows"), "{said}");
    let all = run(&mut command(&["incidents", "--all"], &[&path]), PATIENCE).success().json();
    assert!(
        all.to_string().contains("row was there before") || all.to_string().contains("rows were there before"),
        "{all}"
    );
    let alone = database(&directory.join("alone.db"), "wal", 4096, 1, "old");
    let mut line = Command::new(binary());
    let taken = run(line.arg("snapshot").arg(&alone).env("STATEHOUSE_HOME", "/nonexistent"), PATIENCE).success().stdout;
    assert!(taken.contains("1 row in 1 table,"), "{taken}");
}
