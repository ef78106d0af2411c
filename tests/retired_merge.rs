//! `retired show` and `retired merge`: rows that a process wrote into deleted files come back, and nothing else changes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use statehouse_testkit::peers::hermes_python;
use statehouse_testkit::visitor::python;
use statehouse_testkit::{Child, Finished, Seed, Snapshot, TestDir, run};

use crate::house::{PATIENCE, beside, binary, error_code};

/// The program away from any home.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).env("STATEHOUSE_HOME", "/nonexistent");
    command
}

pub(crate) fn retired(arguments: &[&str], path: &Path) -> Finished {
    run(command(&["retired"]).args(arguments).arg(path).arg("--json"), PATIENCE)
}

pub(crate) fn show(id: &str, path: &Path) -> Value {
    retired(&["show", id], path).success().json()
}

pub(crate) fn merge(id: &str, path: &Path) -> Value {
    retired(&["merge", id], path).success().json()
}

/// What Python's SQLite answers through the path, a line a row.
pub(crate) fn sql(path: &Path, statements: &str) -> Vec<String> {
    let mut python = Command::new(python());
    python.args(["-I", "-c"]).arg(
        "import sqlite3, sys\n\
         c = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)\n\
         for s in sys.argv[2].split(';'):\n    for r in c.execute(s): print(*r)\n\
         c.close()",
    );
    run(python.arg(path).arg(statements), PATIENCE).success().stdout.lines().map(str::to_owned).collect()
}

pub(crate) fn number(path: &Path, statement: &str) -> u64 {
    sql(path, statement)[0].parse().unwrap()
}

/// A program that runs SQL as it is told and keeps its files open.
pub(crate) struct Program(pub(crate) Child);

const PROGRAM: &str = r#"
import json, signal, sqlite3, sys
c = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None)
signal.signal(signal.SIGTERM, lambda *_: (c.close(), sys.exit(0)))
c.execute("PRAGMA wal_autocheckpoint=0")
c.execute("PRAGMA journal_mode=" + sys.argv[2])
for line in sys.stdin:
    order = json.loads(line)
    if "touch" in order:
        for f in order["touch"]: open(f, "rb").close()
    else:
        for s in order["sql"]: c.execute(s).fetchall()
    print("done", flush=True)
"#;

impl Program {
    pub(crate) fn on(path: &Path) -> Program {
        Program(Child::spawn(Command::new(python()).args(["-I", "-c", PROGRAM]).arg(path).arg("wal")))
    }

    /// On a database that keeps a rollback journal.
    pub(crate) fn rollback(path: &Path) -> Program {
        Program(Child::spawn(Command::new(python()).args(["-I", "-c", PROGRAM]).arg(path).arg("delete")))
    }

    fn order(&mut self, order: &Value) {
        self.0.send(&order.to_string());
        assert_eq!(self.0.line(PATIENCE), "done");
    }

    /// Opens and closes files, which drops the locks that it has on them.
    pub(crate) fn touch(&mut self, files: &[PathBuf]) {
        self.order(&serde_json::json!({ "touch": files }));
    }

    /// As [`Program::sql`]; false if the program found the database unusable, and ended.
    pub(crate) fn tried(&mut self, statements: &[&str]) -> bool {
        self.0.send(&serde_json::json!({ "sql": statements }).to_string());
        self.0.try_line(PATIENCE).is_some()
    }

    pub(crate) fn sql(&mut self, statements: &[&str]) {
        self.order(&serde_json::json!({ "sql": statements }));
    }
}

/// A directory as Hermes Agent leaves one, of the files that `pid` has open and that are at no path any more. The process
/// does nothing meanwhile.
fn capture(pid: u32, path: &Path, name: &str) -> String {
    let name = format!("{}.retired-wal-{name}", path.file_name().unwrap().to_str().unwrap());
    let place = path.parent().unwrap().join(&name);
    fs::create_dir(&place).unwrap();
    let base = path.file_name().unwrap().to_str().unwrap();
    let mut found = false;
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        if target.to_string_lossy().ends_with(&format!("{base}-wal (deleted)")) {
            fs::copy(entry.path(), place.join(format!("{base}-wal"))).unwrap();
            found = true;
        }
    }
    assert!(found, "{pid} has a deleted log");
    fs::copy(path, place.join(base)).unwrap();
    let manifest =
        serde_json::json!({ "version": 1, "database": path, "pid": pid, "captured_at": "2026-01-02T03:04:05Z" });
    fs::write(place.join("manifest.json"), manifest.to_string()).unwrap();
    name
}

fn database(directory: &TestDir) -> PathBuf {
    let path = directory.join("app.db");
    sql(
        &path,
        "PRAGMA journal_mode=wal;CREATE TABLE t(id INTEGER PRIMARY KEY, v);CREATE TABLE k(a TEXT PRIMARY KEY, v);\
         INSERT INTO t VALUES(1, 'a'), (2, 'b');INSERT INTO k VALUES('one', 1)",
    );
    path
}

/// A program that goes on in a deleted log, and what it had written there.
fn ghost(path: &Path) -> Program {
    let mut ghost = Program::on(path);
    ghost.sql(&["INSERT INTO t VALUES(3, 'both')"]);
    ghost.touch(&[path.to_owned(), beside(path, "-shm")]);
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(path, suffix)).unwrap();
    }
    ghost.sql(&["INSERT INTO t VALUES(4, 'ghost'), (5, 'ghost')", "INSERT INTO k VALUES('two', 2)"]);
    ghost
}

#[test]
fn what_a_ghost_wrote_comes_back_when_it_is_gone_and_not_before() {
    let directory = TestDir::new();
    let path = database(&directory);
    let ghost = ghost(&path);
    let id = capture(ghost.0.pid(), &path, "1");
    let before = Snapshot::of(directory.path(), &[]);
    let shown = show(&id, &path);
    assert_eq!(shown["tables"]["t"]["missing"], 3, "{shown}");
    assert_eq!(shown["tables"]["t"]["same"], 2, "{shown}");
    assert_eq!(shown["tables"]["k"]["missing"], 1, "{shown}");
    assert_eq!((&shown["source"], &shown["pid"]), (&"image".into(), &ghost.0.pid().into()), "{shown}");
    assert_eq!(shown["captured_at"], "2026-01-02T03:04:05.000000Z", "{shown}");
    assert_eq!(shown["commits_missing"], shown["transactions"], "{shown}");
    let refused = retired(&["merge", &id], &path);
    assert_eq!((refused.status.code(), error_code(&refused)), (Some(4), "refused_held_retired".to_owned()));
    let plan: Value = retired(&["merge", &id, "--dry-run"], &path).success().json();
    assert_eq!((&plan["would_refuse"], &plan["done"]), (&"refused_held_retired".into(), &false.into()), "{plan}");
    before.assert_unchanged(directory.path(), &[]);
    let mut ghost = ghost;
    ghost.0.kill();
    let plan: Value = retired(&["merge", &id, "--dry-run"], &path).success().json();
    assert_eq!(plan["tables"], shown["tables"], "a preview has the same numbers");
    before.assert_unchanged(directory.path(), &[]);
    let merged = merge(&id, &path);
    assert_eq!((&merged["rows"], &merged["read_back"]), (&4.into(), &true.into()), "{merged}");
    assert_eq!(sql(&path, "SELECT * FROM t ORDER BY id"), ["1 a", "2 b", "3 both", "4 ghost", "5 ghost"]);
    assert_eq!(sql(&path, "SELECT * FROM k"), ["one 1", "two 2"]);
    assert!(!path.parent().unwrap().join(&id).join("merged").exists(), "nothing is written into another's capture");
    let listed: Value = run(command(&["retired", "list", "--json"]).arg(&path), PATIENCE).success().json();
    assert_eq!((&listed[0]["merged"], &listed[0]["conflicts"]), (&true.into(), &0.into()), "{listed}");
    let kept = PathBuf::from(merged["before"].as_str().unwrap());
    assert_eq!(sql(&kept, "SELECT count(*) FROM t"), ["2"], "the database as it was is kept");
    let listed: Value = run(command(&["snapshots", "--json"]).arg(&path), PATIENCE).success().json();
    assert_eq!((&listed[0]["reason"], &listed[0]["verified"]), (&"before-merge".into(), &true.into()), "{listed}");
    assert_eq!(listed[0]["path"], merged["before"], "{listed}");
    let again = merge(&id, &path);
    assert_eq!((&again["rows"], &again["done"], &again["commits_missing"]), (&0.into(), &false.into(), &0.into()));
    let incidents = run(command(&["incidents", "--all", "--json"]).arg(&path), PATIENCE);
    let all: Value = incidents.success().json();
    let merged: Vec<&Value> = all.as_array().unwrap().iter().filter(|i| i["kind"] == "merged").collect();
    assert_eq!(merged.len(), 1, "it is on record: {all:#}");
}

#[test]
fn beside_a_program_that_goes_on_in_the_database_rows_are_merged_and_it_sees_them() {
    let directory = TestDir::new();
    let path = database(&directory);
    let mut ghost = ghost(&path);
    let id = capture(ghost.0.pid(), &path, "1");
    ghost.0.kill();
    let mut second = Program::on(&path);
    second.sql(&["INSERT INTO t VALUES(3, 'second'), (9, 'second')", "BEGIN IMMEDIATE"]);
    let busy = retired(&["merge", &id, "--patience", "0.2"], &path);
    assert_eq!((busy.status.code(), error_code(&busy)), (Some(5), "busy".to_owned()), "{busy:?}");
    assert!(busy.stdout.contains(&second.0.pid().to_string()), "{busy:?}");
    second.sql(&["COMMIT"]);
    let merged = merge(&id, &path);
    assert_eq!((&merged["rows"], &merged["tables"]["t"]["conflicting"]), (&3.into(), &1.into()), "{merged}");
    second.sql(&["INSERT INTO t SELECT max(id) + 1, count(*) FROM t"]);
    second.0.close_input();
    second.0.wait(PATIENCE);
    assert_eq!(
        sql(&path, "SELECT * FROM t ORDER BY id"),
        ["1 a", "2 b", "3 second", "4 ghost", "5 ghost", "9 second", "10 6"]
    );
    let list = fs::read_to_string(merged["conflicts"].as_str().unwrap()).unwrap();
    assert!(list.contains("\"both\"") && list.contains("\"second\""), "{list}");
    assert_eq!(sql(&path, "PRAGMA integrity_check"), ["ok"]);
}

#[test]
fn a_new_file_and_what_cannot_be_found() {
    let directory = TestDir::new();
    let path = database(&directory);
    let mut ghost = ghost(&path);
    let id = capture(ghost.0.pid(), &path, "1");
    ghost.0.kill();
    let before = Snapshot::of(directory.path(), &[]);
    let elsewhere = TestDir::new();
    let out = elsewhere.join("out.db");
    let merged: Value =
        run(command(&["retired", "merge", &id, "--json", "--into"]).arg(&out).arg(&path), PATIENCE).success().json();
    assert_eq!((&merged["rows"], &merged["done"]), (&4.into(), &true.into()), "{merged}");
    assert_eq!(sql(&out, "SELECT count(*) FROM t"), ["5"]);
    before.assert_unchanged(directory.path(), &[]);
    let there = run(command(&["retired", "merge", &id, "--json", "--into"]).arg(&out).arg(&path), PATIENCE);
    assert_eq!((there.status.code(), error_code(&there)), (Some(4), "exists".to_owned()));
    let unknown = retired(&["show", "nothing"], &path);
    assert_eq!((unknown.status.code(), error_code(&unknown)), (Some(1), "not_found".to_owned()));
    let empty = directory.join("empty");
    fs::create_dir(&empty).unwrap();
    let nothing = retired(&["show", empty.to_str().unwrap()], &path);
    assert_eq!((nothing.status.code(), error_code(&nothing)), (Some(4), "unreadable_capture".to_owned()));
    // A backup is as good as a capture.
    let shown = show(out.to_str().unwrap(), &path);
    assert_eq!(shown["tables"]["t"]["missing"], 3, "{shown}");
}

#[test]
fn a_merge_that_is_killed_at_any_point_leaves_the_old_or_the_new_database() {
    let mut seed = Seed::of_run("a_merge_that_is_killed");
    let directory = TestDir::new();
    let path = database(&directory);
    let mut ghost = ghost(&path);
    let many =
        "WITH n(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n WHERE i < 20099) INSERT INTO t SELECT i, 'many' FROM n";
    ghost.sql(&[many]);
    let id = capture(ghost.0.pid(), &path, "1");
    ghost.0.kill();
    let mut killed = 0;
    for _ in 0..12 {
        let mut child = Child::spawn(command(&["retired", "merge", &id, "--json"]).arg(&path));
        std::thread::sleep(std::time::Duration::from_millis(seed.below(700)));
        child.kill();
        let rows = number(&path, "SELECT count(*) FROM t");
        assert!(rows == 2 || rows == 20_005, "{rows}");
        assert_eq!(sql(&path, "PRAGMA integrity_check"), ["ok"]);
        killed += u32::from(rows == 2);
    }
    assert!(killed > 0, "none was killed before its end");
    merge(&id, &path);
    assert_eq!(number(&path, "SELECT count(*) FROM t"), 20_005);
    assert_eq!(merge(&id, &path)["rows"], 0);
}

/// The unmodified hermes-agent with its store open, which appends and makes its own repair's backup when it is told to.
const HERMES: &str = r#"
import sqlite3, sys
from pathlib import Path
import hermes_state
path, session = Path(sys.argv[1]), sys.argv[2]
store = hermes_state.SessionDB(db_path=path)
store.create_session(session, "cli")
store.create_session("shared", "cli")
print("open", flush=True)
for line in sys.stdin:
    what, _, n = line.strip().partition(" ")
    if what == "pin":
        # Something in this process reads all the time, so that nothing of the log is copied into the main file.
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM messages").fetchone()
    elif what == "backup":
        assert hermes_state._backup_db_file(path) is not None
    else:
        for i in range(int(n)):
            store.append_message("shared" if i % 2 else session, "assistant", f"{what} {i} of {session}",
                tool_calls=[{"id": "c"}] if i % 10 == 0 else None)
    print("done", flush=True)
"#;

pub(crate) struct Hermes(pub(crate) Child);

impl Hermes {
    pub(crate) fn on(interpreter: &Path, store: &Path, session: &str) -> Hermes {
        let mut start = Command::new(interpreter);
        let home = store.parent().unwrap();
        start.args(["-c", HERMES]).arg(store).arg(session).env("HERMES_HOME", home).env("HOME", home).current_dir(home);
        let mut hermes = Hermes(Child::spawn(&mut start));
        assert_eq!(hermes.0.line(PATIENCE), "open");
        hermes
    }

    pub(crate) fn order(&mut self, order: &str) {
        self.0.send(order);
        assert_eq!(self.0.line(PATIENCE), "done");
    }
}

pub(crate) fn stats(interpreter: &Path, store: &Path) -> String {
    let home = store.parent().unwrap();
    let mut stats = Command::new(interpreter.with_file_name("hermes"));
    stats.args(["sessions", "stats"]).env("HERMES_HOME", home).env("HOME", home).current_dir(home);
    run(&mut stats, PATIENCE).success().stdout
}

/// One from whose log nothing is copied into the main file.
fn hermes_ghost(interpreter: &Path, store: &Path) -> Hermes {
    let mut ghost = Hermes::on(interpreter, store, "ghost");
    ghost.order("before 10");
    ghost.order("pin");
    left_without_locks(interpreter, store, ghost)
}

/// A ghost of hermes-agent whose own checkpoints happen.
pub(crate) fn ghost_of_hermes(interpreter: &Path, store: &Path) -> Hermes {
    let mut ghost = Hermes::on(interpreter, store, "ghost");
    ghost.order("before 10");
    left_without_locks(interpreter, store, ghost)
}

/// It makes its own backup, which drops its locks, and then its sidecars are unlinked.
pub(crate) fn left_without_locks(interpreter: &Path, store: &Path, mut ghost: Hermes) -> Hermes {
    ghost.order("backup");
    stats(interpreter, store);
    for suffix in ["-wal", "-shm"] {
        let _ = fs::remove_file(beside(store, suffix));
    }
    ghost
}

#[test]
fn a_thousand_messages_that_hermes_wrote_into_deleted_files_are_counted_and_come_back() {
    let Some(interpreter) = hermes_python() else { return };
    let directory = TestDir::new();
    let store = directory.join("state.db");
    let mut ghost = hermes_ghost(&interpreter, &store);
    ghost.order("ghost 1000");
    let id = capture(ghost.0.pid(), &store, "20260102-030405-1");
    ghost.0.kill();
    let there = number(&store, "SELECT count(*) FROM messages");
    assert!(there <= 10, "the control: {there} of 1010 are there without a merge");
    let shown = show(&id, &store);
    assert_eq!(shown["tables"]["messages"]["missing"], 1010 - there, "{shown}");
    assert_eq!(shown["tables"]["messages"]["conflicting"], 0, "{shown}");
    merge(&id, &store);
    assert_eq!(number(&store, "SELECT count(*) FROM messages"), 1010);
    assert_eq!(sql(&store, "PRAGMA integrity_check"), ["ok"]);
    let said = stats(&interpreter, &store);
    assert!(said.contains("1010") || said.contains("1,010"), "{said}");
    let counts = "SELECT sum(message_count), sum(tool_call_count) FROM sessions";
    assert_eq!(sql(&store, counts), ["1010 101"]);
    assert_eq!(sql(&store, "SELECT count(*) FROM messages_fts WHERE messages_fts MATCH 'ghost'"), ["1010"]);
    assert_eq!(merge(&id, &store)["rows"], 0);
}

#[test]
fn a_second_hermes_that_wrote_meanwhile_keeps_all_that_it_has() {
    let Some(interpreter) = hermes_python() else { return };
    let directory = TestDir::new();
    let store = directory.join("state.db");
    let mut ghost = hermes_ghost(&interpreter, &store);
    ghost.order("ghost 200");
    let id = capture(ghost.0.pid(), &store, "20260102-030405-1");
    ghost.0.kill();
    let there = number(&store, "SELECT count(*) FROM messages");
    let mut second = Hermes::on(&interpreter, &store, "second");
    second.order("second 80");
    let before = sql(&store, "SELECT id, content FROM messages ORDER BY id");
    assert_eq!(before.len() as u64, there + 80);
    let shown = show(&id, &store);
    let messages = &shown["tables"]["messages"];
    assert_eq!(messages["renumbered"], 80, "{shown}");
    assert_eq!(messages["missing"], 210 - there - 80, "{shown}");
    let merged = merge(&id, &store);
    second.order("after 4");
    second.0.close_input();
    second.0.wait(PATIENCE);
    let after = sql(&store, "SELECT id, content FROM messages ORDER BY id");
    assert!(before.iter().all(|row| after.contains(row)), "no row of the live side is changed: {merged}");
    let all = "SELECT count(*), count(DISTINCT content || timestamp) FROM messages";
    assert_eq!(sql(&store, all), ["294 294"]);
    let of = |text: &str| number(&store, &format!("SELECT count(*) FROM messages WHERE content LIKE '{text} %'"));
    assert_eq!((of("before"), of("ghost"), of("second"), of("after")), (10, 200, 80, 4));
    let counted = "SELECT count(*) FROM sessions s WHERE message_count <> (SELECT count(*) FROM messages WHERE session_id = s.id)";
    assert_eq!(sql(&store, counted), ["0"]);
    assert_eq!(sql(&store, "PRAGMA integrity_check"), ["ok"]);
    assert_eq!(merge(&id, &store)["rows"], 0);
}
