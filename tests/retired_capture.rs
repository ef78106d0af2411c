//! `retired capture`: what a ghost wrote is safe before it is stopped, whoever it is and whatever happens meanwhile.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use statehouse_testkit::kernel::Standing;
use statehouse_testkit::peers::hermes_python;
use statehouse_testkit::user::{User, runnable_by_all};
use statehouse_testkit::visitor::{Python, python};
use statehouse_testkit::{Child, Finished, Seed, TestDir, need, run, wait::until};

use crate::house::{PATIENCE, beside, binary, error_code};

/// The program on a path, away from any home.
fn command(program: &Path, arguments: &[&str], path: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).arg(path).env("STATEHOUSE_HOME", "/nonexistent");
    command
}

fn cli(arguments: &[&str], path: &Path) -> Finished {
    run(&mut command(binary(), arguments, path), PATIENCE)
}

fn capture(pid: u32, path: &Path) -> Finished {
    cli(&["--json", "retired", "capture", "--pid", &pid.to_string()], path)
}

/// A database of another program, made and closed by a stranger.
fn database(directory: &TestDir) -> PathBuf {
    let path = directory.join("other.db");
    let mut stranger = Python::open(&path);
    for sql in ["PRAGMA journal_mode=WAL", "CREATE TABLE m(id INTEGER PRIMARY KEY, t)"] {
        stranger.sql(sql).unwrap();
    }
    stranger.quit();
    path
}

/// A process that goes on in files without a name, with so many rows that only it has.
fn ghost(path: &Path, rows: usize) -> Python {
    let mut ghost = Python::open(path);
    ghost.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    ghost.sql("INSERT INTO m(t) VALUES('held')").unwrap();
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(path, suffix)).unwrap();
    }
    insert(&mut ghost, rows);
    ghost
}

fn insert(ghost: &mut Python, rows: usize) {
    for _ in 0..rows {
        ghost.sql("INSERT INTO m(t) VALUES('ghost')").unwrap();
    }
}

/// What a stranger finds in an image.
fn count(image: &Path, sql: &str) -> i64 {
    let script = "import sqlite3, sys\n\
                  c = sqlite3.connect('file:' + sys.argv[1] + '?immutable=1', uri=True)\n\
                  assert c.execute('PRAGMA integrity_check').fetchall() == [('ok',)]\n\
                  print(c.execute(sys.argv[2]).fetchone()[0])";
    let mut ask = Command::new(python());
    run(ask.args(["-I", "-c", script]).arg(image).arg(sql), PATIENCE).success().stdout.trim().parse().unwrap()
}

fn image(capture: &Value) -> PathBuf {
    Path::new(capture["place"].as_str().unwrap()).join("main.captured")
}

fn captures(path: &Path) -> Vec<Value> {
    cli(&["--json", "retired", "list"], path).success().json().as_array().unwrap().clone()
}

#[test]
fn holders_verify_and_the_capture_itself_lead_from_one_line_to_the_next() {
    let directory = TestDir::new();
    let path = database(&directory);
    let mut ghost = ghost(&path, 12);
    let line = format!("statehouse retired capture --pid {} {}", ghost.pid(), path.display());
    let told = cli(&["holders"], &path);
    assert!(told.code() == 3 && told.stdout.contains(&line), "{told:?}");
    assert!(
        told.stdout.find(&line) < told.stdout.find(&format!("kill -KILL {}", ghost.pid())),
        "first this, then that: {told:?}"
    );
    assert!(told.stdout.contains(&format!("(PID {}: ", ghost.pid())), "who keeps the disk full: {told:?}");
    let verified = cli(&["verify"], &path);
    assert!(verified.code() == 3 && verified.stdout.contains(&line), "{verified:?}");

    // The line as it was told, but for the path of the program.
    let words: Vec<&str> = line.split(' ').skip(1).collect();
    let done = run(Command::new(binary()).args(&words).env("STATEHOUSE_HOME", "/nonexistent"), PATIENCE).success();
    assert!(done.stdout.contains("13 transactions"), "{done:?}");
    let all = cli(&["--json", "retired", "capture", "--all"], &path).success().json();
    assert_eq!(
        (&all["captures"][0]["already"], all["failed"].as_array().map(Vec::len)),
        (&json!(true), Some(0)),
        "{all}"
    );
    insert(&mut ghost, 1);
    let more = capture(ghost.pid(), &path).success().json()["captures"][0].clone();
    assert_eq!(more["supersedes"], all["captures"][0]["id"], "{more}");
    assert_eq!(count(&image(&more), "SELECT count(*) FROM m WHERE t = 'ghost'"), 13);
    let list = captures(&path);
    assert_eq!(list.len(), 2);
    for (field, value) in [("origin", json!("statehouse")), ("sound", json!(true)), ("merged", json!(false))] {
        assert_eq!(list[1][field], value, "{}", list[1]);
    }
    assert!(cli(&["retired", "list"], &path).success().stdout.contains(list[1]["id"].as_str().unwrap()));

    let nobody = capture(std::process::id(), &path);
    assert_eq!((nobody.code(), error_code(&nobody).as_str()), (4, "nothing_to_capture"));
    let none = capture(i32::MAX as u32, &path);
    assert_eq!((none.code(), error_code(&none).as_str()), (4, "no_process"));
    assert_eq!(cli(&["retired", "capture"], &path).code(), 2, "whose?");
    ghost.quit();
    let quiet = cli(&["--json", "retired", "capture", "--all"], &path).success().json();
    assert_eq!(quiet["captures"], json!([]));
}

#[test]
fn a_capture_that_is_killed_at_any_moment_leaves_no_half_one_under_a_name() {
    let mut seed = Seed::of_run("killed captures");
    let directory = TestDir::new();
    let path = database(&directory);
    let mut ghost = ghost(&path, 2000);
    let begun = std::time::Instant::now();
    capture(ghost.pid(), &path).success();
    let whole = begun.elapsed();
    let (mut killed, mut done) = (0, 0);
    let mut expected = 2000;
    for _ in 0..40 {
        insert(&mut ghost, 1);
        expected += 1;
        let arguments = ["--json", "retired", "capture", "--pid", &ghost.pid().to_string()];
        let mut capturer = Child::spawn(&mut command(binary(), &arguments, &path));
        let moment = Duration::from_micros(seed.below(whole.as_micros() as u64 * 5 / 4));
        std::thread::sleep(moment);
        if capturer.ended().is_some() {
            done += 1;
        } else {
            capturer.kill();
            killed += 1;
        }
        for made in captures(&path) {
            let place = PathBuf::from(made["place"].as_str().unwrap());
            let manifest: Value =
                serde_json::from_str(&fs::read_to_string(place.join("manifest.json")).unwrap()).unwrap();
            for file in manifest["files"].as_array().unwrap() {
                let length = fs::metadata(place.join(file["name"].as_str().unwrap())).unwrap().len();
                assert_eq!(json!(length), file["bytes"], "{made}");
            }
        }
    }
    assert!(killed > 5, "{killed} were killed and {done} were quicker");
    // Each is whole, and the next one clears up behind those that were killed.
    let last = capture(ghost.pid(), &path).success().json()["captures"][0].clone();
    assert_eq!(count(&image(&last), "SELECT count(*) FROM m WHERE t = 'ghost'"), expected);
    for made in captures(&path) {
        assert!(count(&image(&made), "SELECT count(*) FROM m WHERE t = 'ghost'") >= 2000);
    }
    let names: Vec<_> =
        fs::read_dir(beside(&path, ".statehouse/retired")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names.len(), captures(&path).len(), "{names:?}");
}

#[test]
fn what_an_anchor_keeps_is_captured_and_then_it_lets_go() {
    let directory = TestDir::new();
    let path = database(&directory);
    let mut anchor = Child::spawn(&mut command(binary(), &["anchor", "--json"], &path));
    let event = |anchor: &mut Child, name: &str| {
        let is = |l: &str| serde_json::from_str::<Value>(l).is_ok_and(|v| v["event"] == name);
        serde_json::from_str::<Value>(&anchor.line_where(name, PATIENCE, is)).unwrap()
    };
    event(&mut anchor, "ready");
    let mut victim = Python::open(&path);
    victim.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    insert(&mut victim, 5);
    until("the anchor holds the log", PATIENCE, || {
        statehouse_testkit::kernel::descriptors(anchor.pid()).iter().any(|d| d.path == beside(&path, "-wal"))
    });
    for suffix in ["", "-wal", "-shm"] {
        fs::remove_file(beside(&path, suffix)).unwrap();
    }
    insert(&mut victim, 5);
    // Which of the two comes first is a matter of its looks.
    let (mut keeping, mut ghost) = (Value::Null, Value::Null);
    while keeping.is_null() || ghost.is_null() {
        let told: Value = serde_json::from_str(&anchor.line(PATIENCE)).unwrap();
        match told["event"].as_str() {
            Some("keeping") => keeping = told,
            Some("ghost") => ghost = told,
            _ => {}
        }
    }
    assert!(ghost["capture"].as_str().unwrap().contains(&format!("--pid {}", victim.pid())), "{ghost}");
    drop(victim);
    let line = format!("statehouse retired capture --pid {} {}", anchor.pid(), path.display());
    assert_eq!(keeping["capture"], line.as_str());
    let made = capture(anchor.pid(), &path).success().json()["captures"][0].clone();
    assert_eq!(count(&image(&made), "SELECT count(*) FROM m WHERE t = 'ghost'"), 10);
    assert_eq!(event(&mut anchor, "let_go")["why"], "captured");
}

#[test]
fn a_process_of_another_user_is_captured_by_root_for_that_user_and_by_nobody_else() {
    if !need::root("running as another user") {
        return;
    }
    let directory = TestDir::new();
    let path = database(&directory);
    User::OWNER.owns(directory.path());
    let tool_place = TestDir::new();
    fs::set_permissions(tool_place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let tool = runnable_by_all(binary(), tool_place.path());
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // Root's own process on the owner's database.
    let mut ghost = ghost(&path, 7);
    let pid = ghost.pid().to_string();
    for user in [User::OWNER, User::THIRD] {
        let mut denied = command(&tool, &["--json", "retired", "capture", "--pid", &pid], &path);
        let denied = run(user.runs(&mut denied), PATIENCE);
        assert_eq!((denied.code(), error_code(&denied).as_str()), (4, "refused_other_user"), "{denied:?}");
        let hint = denied.json()["error"]["hint"].as_str().unwrap().to_owned();
        assert!(hint.contains(&format!("sudo statehouse retired capture --pid {pid} {}", path.display())), "{hint}");
        assert!(!beside(&path, ".statehouse").exists());
    }
    let made = capture(ghost.pid(), &path).success().json()["captures"][0].clone();
    assert!(made["incident"].is_string(), "{made}");
    let mut pending = vec![beside(&path, ".statehouse")];
    while let Some(place) = pending.pop() {
        let status = fs::symlink_metadata(&place).unwrap();
        assert_eq!(status.uid(), User::OWNER.0, "{}", place.display());
        let mode = if status.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(status.mode() & 0o777, mode, "{}", place.display());
        if status.is_dir() {
            pending.extend(fs::read_dir(&place).unwrap().map(|e| e.unwrap().path()));
        }
    }
    // So the owner finds it and can use it.
    let mut list = command(&tool, &["--json", "retired", "list"], &path);
    let list = run(User::OWNER.runs(&mut list), PATIENCE).success().json();
    assert_eq!((list[0]["id"].clone(), list[0]["transactions"].clone()), (made["id"].clone(), json!(8)), "{list}");
    insert(&mut ghost, 1);
}

#[test]
fn where_nothing_can_be_written_it_is_refused_and_nothing_changes() {
    if !need::root("running as another user") {
        return;
    }
    let directory = TestDir::new();
    let path = database(&directory);
    User::OWNER.owns(directory.path());
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let tool_place = TestDir::new();
    fs::set_permissions(tool_place.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let tool = runnable_by_all(binary(), tool_place.path());
    let program = "import sqlite3, sys\n\
                   c = sqlite3.connect(sys.argv[1], isolation_level=None)\n\
                   c.execute('PRAGMA wal_autocheckpoint=0')\n\
                   c.execute(\"INSERT INTO m(t) VALUES('ghost')\")\n\
                   print('open', flush=True)\n\
                   sys.stdin.read()";
    let mut ghost = Command::new("/usr/bin/python3");
    ghost.args(["-I", "-c", program]).arg(&path).current_dir("/");
    let mut ghost = Child::spawn(User::OWNER.runs(&mut ghost));
    assert_eq!(ghost.line(PATIENCE), "open");
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(beside(&path, suffix)).unwrap();
    }
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o555)).unwrap();
    let mut refused = command(&tool, &["--json", "retired", "capture", "--pid", &ghost.pid().to_string()], &path);
    let refused = run(User::OWNER.runs(&mut refused), PATIENCE);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_permission"), "{refused:?}");
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    assert!(!beside(&path, ".statehouse").exists());
    let mut done = command(&tool, &["--json", "retired", "capture", "--pid", &ghost.pid().to_string()], &path);
    let done = run(User::OWNER.runs(&mut done), PATIENCE).success().json();
    assert_eq!(count(&image(&done["captures"][0]), "SELECT count(*) FROM m"), 1);
}

/// The unmodified hermes-agent with its store open: it appends, and makes its own repair's backup, when it is told to; with
/// `go on` it appends without end and counts in a file what was acknowledged.
const HERMES: &str = r#"
import sys, threading
from pathlib import Path
import hermes_state
path = Path(sys.argv[1])
store = hermes_state.SessionDB(db_path=path)
store.create_session("s1", "cli")
print("open", flush=True)
for line in sys.stdin:
    order = line.strip()
    if order == "backup":
        assert hermes_state._backup_db_file(path) is not None
    elif order.startswith("go on "):
        tally = open(order[6:], "w")
        print("done", flush=True)
        n = 0
        while True:
            store.append_message("s1", "user", f"without end {n}")
            n += 1
            tally.seek(0)
            tally.write(f"{n}\n")
            tally.flush()
    else:
        for n in range(int(order)):
            store.append_message("s1", "user", f"message {n}")
    print("done", flush=True)
"#;

#[test]
fn everything_that_an_unmodified_hermes_acknowledged_is_captured_while_it_goes_on_writing() {
    let Some(interpreter) = hermes_python() else { return };
    let directory = TestDir::new();
    let store = directory.join("state.db");
    let settings = |command: &mut Command| {
        command.env("HERMES_HOME", directory.path()).env("HOME", directory.path()).current_dir(directory.path());
    };
    let mut start = Command::new(&interpreter);
    settings(start.args(["-c", HERMES]).arg(&store));
    let mut hermes = Child::spawn(&mut start);
    assert_eq!(hermes.line(PATIENCE), "open");
    let order = |hermes: &mut Child, order: &str| {
        hermes.send(order);
        assert_eq!(hermes.line(PATIENCE), "done");
    };
    order(&mut hermes, "10");
    order(&mut hermes, "backup");
    let standing = Standing::of(hermes.pid(), &store);
    assert!(!standing.shared && !standing.dms, "its own backup drops its locks: {standing:?}");
    let mut stats = Command::new(interpreter.with_file_name("hermes"));
    settings(stats.args(["sessions", "stats"]));
    run(&mut stats, PATIENCE).success();
    assert!(!beside(&store, "-wal").exists(), "its own visitor takes the log away");
    order(&mut hermes, "1000");
    // The control: what it acknowledged is not all in the file at the path.
    let there = count(&store, "SELECT count(*) FROM messages");
    assert!(there < 1010, "{there}");
    let tally = directory.join("tally");
    order(&mut hermes, &format!("go on {}", tally.display()));
    let without_end = || fs::read_to_string(&tally).unwrap_or_default().trim().parse().unwrap_or(0i64);
    until("it goes on", PATIENCE, || without_end() > 20);
    let holders = cli(&["--json", "holders"], &store);
    assert_eq!((holders.code(), &holders.json()["holders"][0]["ghost"]), (3, &json!(true)), "{holders:?}");
    let before = 1010 + without_end();
    let made = capture(hermes.pid(), &store).success().json()["captures"][0].clone();
    assert_eq!((&made["sound"], &made["image"]), (&json!(true), &json!(true)), "{made}");
    let counted = count(&image(&made), "SELECT count(*) FROM messages");
    assert!(counted >= before, "{counted} of at least {before}");
    let end = 1010 + without_end();
    until("it was not stopped", PATIENCE, || 1010 + without_end() > end);
    hermes.kill();
    assert!(!captures(&store).is_empty());
}
