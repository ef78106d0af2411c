//! Imports from Hermes stores: made by the real package, made in newer layouts, held and written to meanwhile.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use serde_json::{Value, json};
use statehouse_sessions::*;
use statehouse_testkit::visitor::{Python, python};
use statehouse_testkit::{Child, Snapshot, TestDir, peers, run};

use crate::House;

const DEADLINE: Duration = Duration::from_secs(120);

impl House {
    fn import(&self, path: &Path) -> ImportReport {
        self.store.import_hermes(path, ImportOptions::default(), &mut |_| {}).unwrap()
    }

    fn refusal(&self, path: &Path) -> String {
        let error = self.store.import_hermes(path, ImportOptions::default(), &mut |_| {}).unwrap_err();
        assert_eq!(error.code(), "bad_source", "{error}");
        assert!(self.store.sessions(&ListOptions { all: true, ..ListOptions::default() }).unwrap().is_empty());
        error.to_string()
    }

    fn all_sessions(&self) -> Vec<Session> {
        self.store.sessions(&ListOptions { all: true, ..ListOptions::default() }).unwrap()
    }

    /// By the ids that they had.
    fn by_origin(&self) -> BTreeMap<String, Session> {
        self.all_sessions().into_iter().map(|s| (s.origin.clone().unwrap().id, s)).collect()
    }
}

fn report(sessions: u64, messages: u64, already_present: u64) -> ImportReport {
    ImportReport { sessions, messages, skipped: 0, already_present }
}

/// A store in a newer layout, in a directory of its own.
fn newer(version: u32) -> (TestDir, PathBuf) {
    let home = TestDir::new();
    let path = home.join("state.db");
    let program = peers::hermes_program().with_file_name("make_newer_hermes_store.py");
    run(Command::new(python()).arg(program).arg(&path).arg(version.to_string()), DEADLINE).success();
    (home, path)
}

/// A plain connection to a copy of the store, so that looking leaves no trace at the original.
fn copy_of(path: &Path, beside: &TestDir) -> Connection {
    let copy = beside.join(format!("copy-{}", uuid::Uuid::now_v7()));
    std::fs::copy(path, &copy).unwrap();
    let log = PathBuf::from(format!("{}-wal", path.display()));
    if log.exists() {
        std::fs::copy(log, format!("{}-wal", copy.display())).unwrap();
    }
    Connection::open(copy).unwrap()
}

fn verbatim(value: ValueRef<'_>) -> Value {
    let hex = |b: &[u8]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(i) => json!(i),
        ValueRef::Real(r) if r.is_finite() => json!(r),
        ValueRef::Real(r) => json!({ "real": r.to_string() }),
        ValueRef::Text(t) => match String::from_utf8(t.to_vec()) {
            Ok(t) => json!(t),
            Err(_) => json!({ "text_hex": hex(t) }),
        },
        ValueRef::Blob(b) => json!({ "hex": hex(b) }),
    }
}

fn rows(c: &Connection, sql: &str) -> Vec<BTreeMap<String, Value>> {
    let mut statement = c.prepare(sql).unwrap();
    let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let mut rows = statement.query([]).unwrap();
    let mut all = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let value = |(i, name): (usize, &String)| (name.clone(), verbatim(row.get_ref(i).unwrap()));
        all.push(names.iter().enumerate().map(value).collect());
    }
    all
}

/// Every column of every row of the source is found again, either in a field or, verbatim, in `extra`.
fn assert_all_taken(house: &House, source: &Connection) {
    let sessions = house.by_origin();
    let by_id: BTreeMap<SessionId, &Session> = sessions.values().map(|s| (s.id, s)).collect();
    for row in rows(source, "SELECT * FROM sessions") {
        let origin = row["id"].as_str().unwrap();
        let session = &sessions[origin];
        let extra: Value = serde_json::from_str(&house.store.session_extra(session.id).unwrap().unwrap()).unwrap();
        let seconds = |m: Option<Micros>| m.map_or(Value::Null, |m| json!(m.0 as f64 / 1e6));
        let flag = |f: bool| json!(i64::from(f));
        for (column, value) in &row {
            let field = match column.as_str() {
                "id" => json!(session.origin.as_ref().unwrap().id),
                "source" => json!(session.source),
                "title" => json!(session.title),
                "started_at" => seconds(Some(session.started_at)),
                "ended_at" => seconds(session.ended_at),
                "end_reason" => json!(session.end_reason),
                "archived" => flag(session.archived),
                "hidden" => flag(session.hidden),
                "pinned" => flag(session.pinned),
                "system_prompt" if !value.is_null() => json!(house.store.prompt(session.id).unwrap()),
                _ => Value::Null,
            };
            let kept = extra.get(column).unwrap_or(&field);
            assert_eq!(kept, value, "{column} of session {origin}");
        }
        let parent = session.parent_id.and_then(|p| by_id.get(&p)).map(|p| &p.origin.as_ref().unwrap().id);
        match row["parent_session_id"].as_str().filter(|p| sessions.contains_key(*p)) {
            Some(expected) => assert_eq!(parent.map(String::as_str), Some(expected), "parent of {origin}"),
            None => assert_eq!(parent, None, "parent of {origin}"),
        }
    }

    let mut expected: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for row in rows(source, "SELECT * FROM messages ORDER BY id") {
        expected.entry(row["session_id"].as_str().unwrap().to_owned()).or_default().push(row);
    }
    for (origin, session) in &sessions {
        let ours = house.store.messages(session.id, &Page::default()).unwrap();
        let theirs = expected.remove(origin).unwrap_or_default();
        assert_eq!(ours.len(), theirs.len(), "messages of {origin}");
        assert_eq!(session.messages, ours.len() as u64);
        for (n, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            assert_eq!(ours.seq, n as i64 + 1);
            assert_message(ours, theirs);
        }
    }
    assert!(expected.is_empty(), "no session for {:?}", expected.keys());
}

fn assert_message(ours: &Message, theirs: &BTreeMap<String, Value>) {
    let extra: Value = serde_json::from_str(ours.extra.as_ref().unwrap().get()).unwrap();
    for (column, value) in theirs {
        let raw = |r: &Option<Box<serde_json::value::RawValue>>| r.as_ref().map(|r| r.get().to_owned());
        let field = match column.as_str() {
            "role" => json!(ours.role),
            "content" => match raw(&ours.parts) {
                Some(parts) => json!(format!("\0json:{parts}")),
                None => json!(ours.text),
            },
            "tool_calls" => json!(raw(&ours.tool_calls)),
            "tool_call_id" => json!(ours.tool_call_id),
            "tool_name" => json!(ours.tool_name),
            "timestamp" => json!(ours.created_at.0 as f64 / 1e6),
            "session_id" => value.clone(),
            _ => Value::Null,
        };
        assert_eq!(extra.get(column).unwrap_or(&field), value, "{column} of message {}", theirs["id"]);
    }
    assert!(!ours.text.contains('\0'));
}

#[test]
fn a_store_of_the_real_package_is_taken_over_row_by_row() {
    let (house, home, scratch) = (House::new(), TestDir::new(), TestDir::new());
    let path = home.join("state.db");
    let Some(made) = peers::make_hermes_store(&path, 300, 17_000, 7) else { return };
    let count = |what: &str| made[what].as_u64().unwrap();
    assert_eq!(count("sessions"), 300);
    for what in ["tool_calls", "structured", "titles", "ended", "children", "archived", "inactive"] {
        assert!(count(what) > 0, "the source has no {what}");
    }
    let source = copy_of(&path, &scratch);
    let before = Snapshot::of(home.path(), &[]);

    let mut steps = Vec::new();
    let dry = ImportOptions { dry_run: true };
    let planned = house.store.import_hermes(&path, dry, &mut |p| steps.push(p)).unwrap();
    let expected = report(300, count("messages"), 0);
    assert_eq!(planned, expected);
    assert!(house.all_sessions().is_empty());
    let last = steps.last().unwrap();
    assert!(steps.len() > 10 && (last.done, last.total) == (count("messages"), count("messages")));

    // A home is as good a name as its file.
    assert_eq!(house.import(home.path()), expected);
    before.assert_unchanged(home.path(), &[]);
    assert_all_taken(&house, &source);
    assert_eq!(house.import(&path), report(0, 0, 300 + count("messages")));
    before.assert_unchanged(home.path(), &[]);

    assert!(peers::extend_hermes_store(&path, 50, 8).is_some());
    assert_eq!(house.import(&path), report(0, 50, 300 + count("messages")));
    assert_all_taken(&house, &copy_of(&path, &scratch));

    // The same store at another place is the same store.
    let elsewhere = scratch.join("state.db");
    std::fs::copy(&path, &elsewhere).unwrap();
    assert_eq!(house.import(&elsewhere), report(0, 0, 350 + count("messages")));
    assert!(!house.store.search("東京の天気", 5).unwrap().is_empty());
    assert!(!house.store.search("🦀 cafe", 5).unwrap().is_empty());
}

#[test]
fn a_store_is_read_whole_beside_its_owner_and_after_its_owner_was_killed() {
    let (house, home, scratch) = (House::new(), TestDir::new(), TestDir::new());
    let path = home.join("state.db");
    let Some(python) = peers::hermes_python() else { return };
    let mut owner =
        Child::spawn(Command::new(python).arg(peers::hermes_program()).arg(&path).args(["5", "60", "3", "--hold"]));
    let made: Value = serde_json::from_str(&owner.line(DEADLINE)).unwrap();
    let wal = home.join("state.db-wal");
    assert!(std::fs::metadata(&wal).unwrap().len() > 0, "the owner keeps its last writes in the log");
    let before = Snapshot::of(home.path(), &[]);
    let messages = made["messages"].as_u64().unwrap();
    assert_eq!(house.import(&path), report(5, messages, 0));
    before.assert_unchanged(home.path(), &[]);
    assert_all_taken(&house, &copy_of(&path, &scratch));

    owner.kill();
    let before = Snapshot::of(home.path(), &[]);
    assert!(std::fs::metadata(&wal).unwrap().len() > 0);
    assert_eq!(house.import(&path), report(0, 0, 5 + messages));
    let another = House::new();
    assert_eq!(another.import(&path), report(5, messages, 0));
    before.assert_unchanged(home.path(), &[]);
    let side = another.store.database().family().side_directory();
    let left: Vec<_> =
        std::fs::read_dir(side).unwrap().filter_map(|e| e.unwrap().file_name().into_string().ok()).collect();
    assert!(!left.iter().any(|n| n.starts_with("import-")), "private copies are gone: {left:?}");
}

#[test]
fn a_store_that_is_written_to_meanwhile_is_read_as_of_one_moment() {
    let house = House::new();
    let (_home, path) = newer(30);
    // Two rows a transaction, with checkpoints in between that change the main file.
    let program = r#"
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA wal_autocheckpoint=200")
print("ready", flush=True)
n = 0
while True:
    n += 1
    db.execute("BEGIN IMMEDIATE")
    for half in ("a", "b"):
        db.execute("INSERT INTO messages(session_id, role, content, timestamp) VALUES ('child', 'user', ?, ?)",
                   (f"{n} {half} " + "x" * 2000, 1765000100.0 + n))
    db.execute("COMMIT")
    time.sleep(0.005)
"#;
    let mut writer = Child::spawn(Command::new(python()).args(["-c", program]).arg(&path));
    assert_eq!(writer.line(DEADLINE), "ready");
    let mut total = 0;
    let begun = std::time::Instant::now();
    // Enough for the writer's checkpoints to have come in between.
    while total < 200 {
        assert!(begun.elapsed() < DEADLINE, "the writer wrote {total} rows only");
        let done = house.import(&path);
        total += done.messages;
        let child = &house.by_origin()["child"];
        let ours = house.store.messages(child.id, &Page::default()).unwrap();
        let written: Vec<&str> = ours.iter().filter_map(|m| m.text.strip_suffix('x')).collect();
        assert_eq!(written.len() % 2, 0, "half a transaction was read");
        for (n, pair) in written.chunks(2).enumerate() {
            assert!(pair[0].starts_with(&format!("{} a ", n + 1)) && pair[1].starts_with(&format!("{} b ", n + 1)));
        }
    }
    writer.kill();
    total += house.import(&path).messages;
    let scratch = TestDir::new();
    let source = copy_of(&path, &scratch);
    let there: u64 = source.query_row("SELECT count(*) FROM messages", [], |r| r.get::<_, i64>(0)).unwrap() as u64;
    assert_eq!(total, there);
    assert_all_taken(&house, &source);
}

#[test]
fn a_store_that_its_owner_opens_while_it_is_read_in_place_is_read_again() {
    let house = House::new();
    let (_home, path) = newer(30);
    let mut owner = None;
    let mut first = true;
    let done = house.store.import_hermes(&path, ImportOptions::default(), &mut |_| {
        if std::mem::take(&mut first) {
            let mut python = Python::open(&path);
            let row = "INSERT INTO messages(session_id, role, content, timestamp) VALUES ('child', 'user', 'late', 1765000300)";
            python.sql(row).unwrap();
            owner = Some(python);
        }
    });
    assert_eq!(done.unwrap(), report(5, 21, 0));
    let scratch = TestDir::new();
    assert_all_taken(&house, &copy_of(&path, &scratch));
    owner.unwrap().quit();
}

#[test]
fn newer_layouts_lose_nothing() {
    for version in [23, 30, 31, 32] {
        let (house, scratch) = (House::new(), TestDir::new());
        let (home, path) = newer(version);
        let before = Snapshot::of(home.path(), &[]);
        assert_eq!(house.import(&path), report(5, 20, 0), "version {version}");
        assert_eq!(house.import(&path), report(0, 0, 25), "version {version}");
        before.assert_unchanged(home.path(), &[]);
        assert_all_taken(&house, &copy_of(&path, &scratch));

        let sessions = house.by_origin();
        let child = &sessions["child"];
        assert_eq!(child.parent_id, Some(sessions["parent"].id));
        assert!(child.pinned && sessions["parent"].hidden && sessions["parent"].archived);
        assert_eq!(house.store.prompt(child.id).unwrap().as_deref(), Some("Be brief."));
        let lost = &sessions["lost parent"];
        assert!(lost.parent_id.is_some() && lost.started_at.0 > 0);
        assert_eq!(sessions["nobody"].messages, 2);
        assert_eq!(house.store.find_session("child").unwrap().id, child.id);

        let texts = |origin: &str| {
            let messages = house.store.messages(sessions[origin].id, &Page::default()).unwrap();
            messages.into_iter().map(|m| (m.role, m.text)).collect::<Vec<_>>()
        };
        assert_eq!(texts("child")[1], (Role::User, "café \u{fffd}".into()));
        assert_eq!(texts("child").iter().filter(|(_, t)| t == "same").count(), 2);
        assert_eq!(texts("parent")[0], (Role::System, "a role of its own".into()));
        assert_eq!(texts("parent")[4], (Role::User, "a NUL \u{fffd} inside".into()));
        assert_eq!(texts("parent")[6].1, "\u{fffd}(A\u{fffd}");
        let sums: Vec<(String, String, i64)> = house
            .store
            .database()
            .read(|c| {
                let mut all = c.prepare("SELECT model, endpoint, input_tokens FROM usage ORDER BY input_tokens")?;
                let rows = all.query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
                Ok(rows.collect::<Result<_, _>>()?)
            })
            .unwrap();
        let expected = [("m", "http://a", 5), ("m", "http://b", 6), ("m", "", 7)];
        assert_eq!(sums, expected.map(|(m, e, n)| (m.to_owned(), e.to_owned(), n)));
    }
}

#[test]
fn what_changes_in_the_source_is_brought_up_to_date_until_it_is_changed_here() {
    let house = House::new();
    let (_home, path) = newer(30);
    let mut owner = Python::open(&path);
    let title = |origin: &str| house.by_origin()[origin].title.clone();
    house.import(&path);
    let first = house.by_origin()["child"].id;
    owner.sql("UPDATE sessions SET title = 'theirs', end_reason = 'idle', ended_at = 1765000009.5").unwrap();
    assert_eq!(house.import(&path), report(0, 0, 25));
    assert_eq!(title("child").as_deref(), Some("theirs"));
    assert_eq!(house.by_origin()["parent"].end_reason.as_deref(), Some("idle"));

    house.store.rename(first, Some("mine".into())).unwrap();
    owner.sql("UPDATE sessions SET title = 'theirs again'").unwrap();
    house.import(&path);
    assert_eq!(title("child").as_deref(), Some("mine"));
    assert_eq!(title("parent").as_deref(), Some("theirs again"));

    // The package rewrites whole transcripts: the same messages come back with other row ids.
    owner.sql("CREATE TEMP TABLE kept AS SELECT * FROM messages WHERE session_id = 'child'").unwrap();
    owner.sql("DELETE FROM messages WHERE session_id = 'child'").unwrap();
    owner.sql("UPDATE kept SET id = id + 1000").unwrap();
    owner.sql("INSERT INTO messages SELECT * FROM kept").unwrap();
    assert_eq!(house.import(&path), report(0, 0, 25));
    owner.quit();
}

#[test]
fn two_homes_with_a_session_of_one_name_stay_two() {
    let house = House::new();
    let (_first, one) = newer(30);
    let (_second, two) = newer(30);
    let plain = Connection::open(&two).unwrap();
    plain.execute("UPDATE sessions SET started_at = started_at + 1 WHERE id = 'child'", []).unwrap();
    drop(plain);
    house.import(&one);
    let done = house.import(&two);
    assert_eq!((done.sessions, done.messages), (1, 10));
    assert_eq!(house.all_sessions().len(), 6);
}

#[test]
fn a_store_in_rollback_mode_and_one_with_a_hot_journal_are_read() {
    let house = House::new();
    let (home, path) = newer(30);
    let plain = Connection::open(&path).unwrap();
    plain.pragma_update(None, "journal_mode", "delete").unwrap();
    drop(plain);
    let before = Snapshot::of(home.path(), &[]);
    assert_eq!(house.import(&path), report(5, 20, 0));
    before.assert_unchanged(home.path(), &[]);

    // A writer that dies with its changes in the main file and the way back in the journal.
    let program = r#"
import os, sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("PRAGMA cache_size=1")
db.execute("BEGIN")
for n in range(300):
    db.execute("INSERT INTO messages(session_id, role, content, timestamp) VALUES ('child', 'user', ?, 1765000200)", ("z" * 3000,))
os._exit(9)
"#;
    let died = run(Command::new(python()).args(["-c", program]).arg(&path), DEADLINE);
    assert_eq!(died.code(), 9);
    assert!(std::fs::metadata(home.join("state.db-journal")).unwrap().len() > 0);
    let before = Snapshot::of(home.path(), &[]);
    assert_eq!(house.import(&path), report(0, 0, 25));
    before.assert_unchanged(home.path(), &[]);
}

#[test]
fn a_log_whose_header_is_damaged_is_not_left_out_in_silence() {
    let house = House::new();
    let (home, path) = newer(30);
    let mut owner = Python::open(&path);
    let row = "INSERT INTO messages(session_id, role, content, timestamp) VALUES ('child', 'user', 'late', 1765000300)";
    owner.sql(row).unwrap();
    let cold = home.join("cold.db");
    std::fs::copy(&path, &cold).unwrap();
    let mut log = std::fs::read(home.join("state.db-wal")).unwrap();
    owner.quit();
    std::fs::write(home.join("cold.db-wal"), &log).unwrap();
    log[..16].fill(0x55);
    let damaged = home.join("damaged.db");
    std::fs::copy(&cold, &damaged).unwrap();
    std::fs::write(home.join("damaged.db-wal"), &log).unwrap();
    let before = Snapshot::of(home.path(), &[]);
    assert!(house.refusal(&damaged).contains("damaged header"));
    assert_eq!(house.import(&cold), report(5, 21, 0), "the control: with its header the log is read");
    before.assert_unchanged(home.path(), &[]);
}

#[test]
fn odd_paths_name_the_files_that_they_name() {
    let house = House::new();
    let (_home, path) = newer(30);
    let around = TestDir::new();
    for name in ["a#b", "a?mode=rw", "a%41", "東 京", "new\nline"] {
        let home = around.join(name);
        std::fs::create_dir(&home).unwrap();
        std::fs::copy(&path, home.join("state.db")).unwrap();
        let before = Snapshot::of(around.path(), &[]);
        let done = house.import(&home);
        assert_eq!(done.messages + done.already_present, if done.messages > 0 { 20 } else { 25 }, "{name:?}");
        before.assert_unchanged(around.path(), &[]);
    }
    std::os::unix::fs::symlink(&path, around.join("link.db")).unwrap();
    assert_eq!(house.import(&around.join("link.db")), report(0, 0, 25));
}

#[test]
fn a_column_whose_name_is_no_text_is_imported_and_panics_nobody() {
    let house = House::new();
    let (_home, path) = newer(30);
    let mut bytes = std::fs::read(&path).unwrap();
    let name = b"billing_mode";
    let places: Vec<usize> = (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(name)).collect();
    assert!(!places.is_empty(), "the schema has the column");
    for at in places {
        bytes[at + 7] = 0xff;
    }
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(house.import(&path), report(5, 20, 0));
}

#[test]
fn what_is_no_hermes_store_is_refused_and_left_alone() {
    let house = House::new();
    let home = TestDir::new();
    let file = |name: &str, content: &[u8]| {
        std::fs::write(home.join(name), content).unwrap();
        home.join(name)
    };
    let empty = file("empty.db", b"");
    let text = file("text.db", b"this is no database, but long enough to look like something");
    let cut = file("cut.db", b"SQLite format 3\0 and then nothing");
    let other = home.join("other.db");
    Connection::open(&other).unwrap().execute_batch("CREATE TABLE sessions(id)").unwrap();
    let own = home.join("own.db");
    SqliteStore::open(&own, "other", OpenMode::create()).unwrap().close();
    let before = Snapshot::of(home.path(), &["own.db.statehouse", "own.db-shm", "own.db-wal"]);
    assert!(house.refusal(&home.join("nothing.db")).contains("No such file"));
    assert!(house.refusal(home.path()).contains("No such file"));
    assert!(house.refusal(&empty).contains("zero bytes"));
    assert!(house.refusal(&text).contains("not an SQLite database"));
    house.refusal(&cut);
    assert!(house.refusal(&other).contains("no table messages"));
    assert!(house.refusal(&own).contains("no table sessions"));
    assert!(house.refusal(&house.path()).contains("open in this process"));
    assert!(house.refusal(Path::new("/dev/null")).contains("not a regular file"));
    before.assert_unchanged(home.path(), &["own.db.statehouse", "own.db-shm", "own.db-wal"]);
}
