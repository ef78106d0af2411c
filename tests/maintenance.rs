//! Maintenance of a whole database: refused beside anybody who is in the way, done alone, and never half.

pub(crate) mod ours;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use statehouse_sessions::{OpenMode, SqliteStore, Store as _};
use statehouse_testkit::user::{User, runnable_by_all};
use statehouse_testkit::visitor::{Python, Shell, shell_once};
use statehouse_testkit::volume::Volume;
use statehouse_testkit::{Child, Finished, Home, Seed, Snapshot, TestDir, need, run, until};

use crate::health::Holder;
use crate::house::{
    Client, PATIENCE, Service, Up, answer, beside, binary, cli, error_code, furnished, integrity, statehouse,
};

/// SQL that makes `rows` rows of 2000 random bytes, of which all but each tenth are deleted again.
fn bloat(rows: u32) -> [String; 2] {
    [
        format!(
            "INSERT INTO bloat(b) WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<{rows}) \
             SELECT randomblob(2000) FROM n"
        ),
        "DELETE FROM bloat WHERE id % 10".to_owned(),
    ]
}

const TABLE: &str = "CREATE TABLE IF NOT EXISTS bloat(id INTEGER PRIMARY KEY, b)";

/// A closed database of another program, most of whose pages hold nothing.
fn foreign(directory: &Path, mode: &str, rows: u32) -> PathBuf {
    let path = directory.join("other.db");
    let mut python = Python::open(&path);
    python.sql(&format!("PRAGMA journal_mode={mode}")).unwrap();
    python.sql(TABLE).unwrap();
    for sql in bloat(rows) {
        python.sql(&sql).unwrap();
    }
    python.quit();
    path
}

/// The program on a path, away from any home.
fn on(path: &Path, arguments: &[&str]) -> Finished {
    run(command_on(path, arguments).arg("--json"), PATIENCE)
}

fn command_on(path: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments).arg(path).env("STATEHOUSE_HOME", "/nonexistent");
    command
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |m| m.len())
}

#[track_caller]
fn names(finished: &Finished, pids: &[u32]) {
    let error = &finished.json()["error"];
    for pid in pids {
        let detail = error["detail"].as_str().unwrap();
        assert!(detail.contains(&format!("PID {pid} ")), "PID {pid} is not named: {error}");
    }
}

/// Each kind of structural work.
const STRUCTURAL: [&[&str]; 4] =
    [&["vacuum"], &["optimize"], &["checkpoint", "--truncate"], &["journal-mode", "delete"]];

#[test]
fn case_080_each_holder_is_named_with_what_stops_it_and_a_dry_run_is_never_gated() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 300);
    let mut python = Python::open(&path);
    python.sql("SELECT count(*) FROM bloat").unwrap();
    let Some(mut shell) = Shell::open(&path) else { return };
    shell.sql("SELECT count(*) FROM bloat;");
    let pids = [python.pid(), shell.pid()];
    let before = Snapshot::of(directory.path(), &[]);
    for line in STRUCTURAL {
        for drain in [&[][..], &["--drain", "1"]] {
            let done = on(&path, &[line, drain].concat());
            assert_eq!((done.code(), error_code(&done).as_str()), (4, "refused_held"), "{line:?}: {done:#?}");
            names(&done, &pids);
            let detail = done.json()["error"]["detail"].as_str().unwrap().to_owned();
            assert_eq!(detail.matches("to stop it: ").count(), 2, "{detail}");
        }
        let dry = on(&path, &[line, &["--dry-run"]].concat()).success().json();
        assert_eq!((&dry["dry_run"], &dry["done"]), (&json!(true), &json!(false)), "{dry}");
        assert_eq!(dry["refused"]["code"], "refused_held", "{dry}");
        assert_eq!(dry["holders"].as_array().unwrap().len(), 2, "{dry}");
        assert!(dry["would"].as_str().is_some_and(|w| !w.is_empty()), "{dry}");
        let people = run(&mut command_on(&path, &[line, &["--dry-run"]].concat()), PATIENCE).success();
        assert!(people.stdout.starts_with("would ") && people.stdout.contains(&pids[0].to_string()), "{people:#?}");
        before.assert_unchanged(directory.path(), &[]);
    }
    let rows = python.sql("SELECT count(*) FROM bloat").unwrap();
    python.sql("INSERT INTO bloat(b) VALUES('goes on')").unwrap();
    python.quit();
    shell.quit();

    // Nobody is in the way any more.
    let gain = on(&path, &["vacuum", "--dry-run"]).success().json();
    assert_eq!((&gain["refused"], &gain["worth_it"]), (&Value::Null, &json!(true)), "{gain}");
    let done = on(&path, &["vacuum"]).success().json();
    assert_eq!(done["done"], true, "{done}");
    assert_eq!(done["size_after"].as_u64().unwrap(), size(&path));
    assert!(done["size_after"].as_u64() < done["size_before"].as_u64(), "{done}");
    assert_eq!((&done["free_after"], size(&beside(&path, "-wal"))), (&json!(0), 0), "{done}");
    assert_eq!(rows.len(), 1);
    assert!(!beside(&path, ".statehouse").exists(), "nothing is left beside another program's database");
}

#[test]
fn what_gives_nothing_back_is_not_rewritten_and_nobody_is_disturbed_for_it() {
    let directory = TestDir::new();
    let path = directory.join("small.db");
    let mut python = Python::open(&path);
    python.sql("PRAGMA journal_mode=wal").unwrap();
    python.sql("CREATE TABLE m(t)").unwrap();
    // The refusal comes first, whatever there is to gain.
    let refused = on(&path, &["vacuum"]);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_held"), "{refused:#?}");
    python.quit();
    let before = Snapshot::of(directory.path(), &[]);
    let done = on(&path, &["vacuum"]).success();
    let answer = done.json();
    assert_eq!(answer["done"], false, "{answer}");
    assert!(answer["reason"].as_str().is_some_and(|r| r.contains("65536 bytes and 5 %")), "{answer}");
    before.assert_unchanged(directory.path(), &[]);
    let anyway = on(&path, &["vacuum", "--anyway"]).success();
    assert_eq!((&anyway.json()["done"], anyway.stderr.as_str()), (&json!(true), ""), "no progress in a pipe");
}

#[test]
fn force_goes_on_beside_a_holder_and_says_so() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 300);
    let mut python = Python::open(&path);
    let rows = python.sql("SELECT count(*), sum(id) FROM bloat").unwrap();
    let done = on(&path, &["vacuum", "--force"]).success();
    assert_eq!(done.json()["done"], true, "{done:#?}");
    let overridden = done.json()["overridden"][0].as_str().unwrap().to_owned();
    assert!(overridden.contains(&format!("PID {} ", python.pid())), "{overridden}");
    assert!(done.stderr.contains("in spite of PID"), "{}", done.stderr);
    assert_eq!(python.sql("SELECT count(*), sum(id) FROM bloat").unwrap(), rows);
    python.sql("INSERT INTO bloat(b) VALUES('goes on')").unwrap();
    python.quit();
    assert_eq!(integrity(&path).as_deref().unwrap_or("ok"), "ok");
}

#[test]
fn case_077_emptying_the_log_beside_a_process_that_reads_in_a_loop_disturbs_it_in_nothing() {
    const READER: &str = r#"
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=10, isolation_level=None)
print("begun", flush=True)
while True:
    assert connection.execute("SELECT count(*) FROM bloat").fetchone()[0] >= 30
"#;
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 300);
    let mut reader = Command::new(statehouse_testkit::visitor::python());
    let mut reader = Child::spawn(reader.args(["-I", "-c", READER]).arg(&path));
    reader.line(PATIENCE);
    let mut writer = Python::open(&path);
    for _ in 0..20 {
        writer.sql("INSERT INTO bloat(b) VALUES(randomblob(5000))").unwrap();
        let done = on(&path, &["checkpoint", "--truncate", "--force"]);
        // A reader that never pauses may keep the log for longer than anybody wants to wait.
        assert!(matches!(done.code(), 0 | 5), "{done:#?}");
        if done.code() == 0 {
            assert_eq!((&done.json()["wal_size_after"], &done.json()["done"]), (&json!(0), &json!(true)));
        }
        assert!(reader.ended().is_none(), "{}", reader.stderr_text());
    }
}

#[test]
fn case_076_who_keeps_the_log_from_being_copied_is_named_and_case_078_a_long_log_is_no_sickness() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 20);
    let mut writer = Python::open(&path);
    writer.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    writer.sql("INSERT INTO bloat(b) VALUES('first')").unwrap();
    let mut reader = Python::open(&path);
    reader.sql("BEGIN").unwrap();
    reader.sql("SELECT count(*) FROM bloat").unwrap();
    for sql in bloat(2000) {
        writer.sql(&sql).unwrap();
    }
    let long = size(&beside(&path, "-wal"));
    assert!(long > 4 << 20, "{long}");

    let pinned = on(&path, &["checkpoint"]).success().json();
    assert_eq!((&pinned["mode"], &pinned["done"]), (&json!("passive"), &json!(false)), "{pinned}");
    assert!(pinned["checkpointed"].as_u64() < pinned["log"].as_u64(), "{pinned}");
    let by = pinned["pinned_by"].as_array().unwrap();
    assert_eq!(by.len(), 1, "{pinned}");
    assert_eq!((&by[0]["pid"], &by[0]["up_to"]), (&json!(reader.pid()), &pinned["checkpointed"]), "{pinned}");
    assert!(pinned["reason"].as_str().unwrap().contains(&format!("PID {} ", reader.pid())), "{pinned}");
    let dry = on(&path, &["checkpoint", "--dry-run"]).success().json();
    assert_eq!((&dry["pinned_by"][0]["pid"], &dry["refused"]), (&json!(reader.pid()), &Value::Null), "{dry}");

    reader.sql("COMMIT").unwrap();
    for _ in 0..2 {
        let done = on(&path, &["checkpoint"]).success().json();
        assert_eq!((&done["done"], &done["log"]), (&json!(true), &done["checkpointed"]), "{done}");
        assert_eq!((&done["wal_size_after"], &done["reason"]), (&json!(long), &Value::Null), "{done}");
        assert_eq!(done["pinned_by"], json!([]));
    }
    writer.quit();
    reader.quit();
}

#[test]
fn the_log_that_a_killed_program_left_is_copied_and_no_file_is_left_beside_the_database() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 20);
    let alone = Snapshot::of(directory.path(), &[]);
    let nothing = on(&path, &["checkpoint"]).success().json();
    assert_eq!((&nothing["log"], &nothing["done"]), (&json!(0), &json!(true)), "{nothing}");
    alone.assert_unchanged(directory.path(), &[]);

    let mut python = Python::open(&path);
    python.sql("INSERT INTO bloat(b) VALUES('kept')").unwrap();
    drop(python);
    assert!(size(&beside(&path, "-wal")) > 0);
    let left = Snapshot::of(directory.path(), &[]);
    let dry = on(&path, &["checkpoint", "--dry-run"]).success().json();
    assert!(dry["log"].as_u64() > Some(0), "{dry}");
    left.assert_unchanged(directory.path(), &[]);
    let done = on(&path, &["checkpoint"]).success().json();
    assert_eq!((&done["done"], &done["log"]), (&json!(true), &done["checkpointed"]), "{done}");
    let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["other.db"]);
    let kept = shell_once(&path, "SELECT count(*) FROM bloat WHERE b = 'kept'");
    assert_eq!(kept.map_or_else(|| "1".to_owned(), |k| k.success().stdout.trim().to_owned()), "1");
}

#[test]
fn a_database_in_rollback_mode_has_no_log_and_is_rewritten_all_the_same() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "delete", 300);
    let before = Snapshot::of(directory.path(), &[]);
    for line in [&["checkpoint"][..], &["checkpoint", "--dry-run"], &["checkpoint", "--truncate"]] {
        let done = on(&path, line).success().json();
        assert_eq!(done["done"], false, "{done}");
        let said = [&done["reason"], &done["would"]].into_iter().find_map(Value::as_str).unwrap();
        assert!(said.contains("rollback mode, so there is no log"), "{done}");
        before.assert_unchanged(directory.path(), &[]);
    }
    for line in [&["vacuum"][..], &["optimize"]] {
        assert_eq!(on(&path, line).success().json()["done"], true, "{line:?}");
        let names: Vec<_> = fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["other.db"], "{line:?}");
    }
    assert_eq!(integrity(&path).as_deref().unwrap_or("ok"), "ok");

    // A reader in a transaction holds no lock that lasts, and is in the way for as long as it reads.
    let mut reader = Python::open(&path);
    reader.sql("BEGIN").unwrap();
    reader.sql("SELECT count(*) FROM bloat").unwrap();
    for line in [&["vacuum", "--anyway"][..], &["optimize"], &["journal-mode", "wal"]] {
        let refused = on(&path, line);
        assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_held"), "case_094 {line:?}");
        names_of(&refused, reader.pid());
    }
    reader.quit();
}

#[track_caller]
fn names_of(finished: &Finished, pid: u32) {
    names(finished, &[pid]);
}

/// The bytes of the header that say the mode, read by a process that is not ours and has nothing open.
fn header_mode(path: &Path) -> [u8; 2] {
    let bytes = fs::read(path).unwrap();
    [bytes[18], bytes[19]]
}

#[test]
fn case_095_the_journal_mode_is_changed_for_good_or_not_at_all() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 20);
    let mut holder = Python::open(&path);
    holder.sql("INSERT INTO bloat(b) VALUES('held')").unwrap();
    let before = Snapshot::of(directory.path(), &[]);
    let refused = on(&path, &["journal-mode", "delete"]);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_held"), "{refused:#?}");
    names_of(&refused, holder.pid());
    // What is so already needs nobody to go.
    let same = on(&path, &["journal-mode", "wal"]).success().json();
    assert_eq!((&same["changed"], &same["on_disk"]), (&json!(false), &json!("wal")), "{same}");
    before.assert_unchanged(directory.path(), &[]);
    holder.quit();

    for (to, from, bytes) in [("delete", "wal", [1, 1]), ("wal", "delete", [2, 2]), ("delete", "wal", [1, 1])] {
        let dry = on(&path, &["journal-mode", to, "--dry-run"]).success().json();
        assert_eq!((&dry["before"], &dry["wanted"], &dry["refused"]), (&json!(from), &json!(to), &Value::Null));
        let done = on(&path, &["journal-mode", to]).success().json();
        for (field, value) in [("before", from), ("after", to), ("on_disk", to)] {
            assert_eq!(done[field], value, "{done}");
        }
        assert_eq!((header_mode(&path), &done["changed"]), (bytes, &json!(true)));
        if to == "delete" {
            assert!(!beside(&path, "-wal").exists() && !beside(&path, "-shm").exists());
        }
        let mut python = Python::open(&path);
        assert_eq!(python.sql("PRAGMA journal_mode").unwrap(), [json!([to])]);
        assert_eq!(python.sql("SELECT count(*) FROM bloat WHERE b = 'held'").unwrap(), [json!([1])]);
        python.sql("INSERT INTO bloat(b) VALUES('after')").unwrap();
        python.quit();
        assert_eq!(header_mode(&path), bytes, "nobody changed it back");
    }
    let status = on(&path, &["status"]).success().json();
    let change = &status["maintenance"]["last_mode_change"];
    assert_eq!((&change["from"], &change["to"]), (&json!("wal"), &json!("delete")), "{status}");

    let home = furnished(Home::new());
    let before = Snapshot::of(home.path(), &[]);
    let ours = cli(&home, ["journal-mode", "delete", "--json"]);
    assert_eq!((ours.code(), error_code(&ours).as_str()), (4, "wal_only"), "{ours:#?}");
    before.assert_unchanged(home.path(), &[]);
    assert_eq!(answer(&home, ["journal-mode", "wal"])["changed"], false);
    // Somebody has changed it all the same.
    let mut python = Python::open(&home.store());
    assert_eq!(python.sql("PRAGMA journal_mode=delete").unwrap(), [json!(["delete"])]);
    python.quit();
    assert_eq!(answer(&home, ["journal-mode", "wal"])["on_disk"], "wal");
    assert_eq!(answer(&home, ["verify"])["healthy"], true);
    let dry = answer(&home, ["journal-mode", "delete", "--dry-run"]);
    assert_eq!(dry["refused"]["code"], "wal_only", "{dry}");
}

#[test]
fn a_damaged_database_is_not_rewritten() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 300);
    let whole = fs::read(&path).unwrap();
    // A page without a header of its own; and a wrong number of free pages, which SQLite would rewrite without a word.
    let mut page = whole.clone();
    page[4096 * 2..][..200].fill(0xee);
    let mut count = whole.clone();
    count[39] += 1;
    for damaged in [page, count] {
        fs::write(&path, &damaged).unwrap();
        for line in [&["vacuum", "--anyway"][..], &["optimize"]] {
            let refused = on(&path, line);
            assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "damaged"), "{refused:#?}");
            assert!(!refused.json()["error"]["detail"].as_str().unwrap().is_empty());
            assert!(fs::read(&path).unwrap() == damaged, "{line:?} changed it");
        }
    }
    fs::write(&path, &whole).unwrap();
    assert_eq!(on(&path, &["vacuum", "--anyway"]).success().json()["done"], true);
}

#[test]
fn a_rewrite_that_would_renumber_the_rows_of_a_search_index_is_refused() {
    let make = |path: &Path| {
        let mut python = Python::open(path);
        for sql in [
            "PRAGMA journal_mode=wal",
            "CREATE TABLE docs(t)",
            "CREATE VIRTUAL TABLE ft USING fts5(t, content='docs')",
            "INSERT INTO docs(rowid, t) VALUES(1, 'apple'), (2, 'pear'), (3, 'plum')",
            "INSERT INTO ft(rowid, t) SELECT rowid, t FROM docs",
            "INSERT INTO ft(ft, rowid, t) VALUES('delete', 1, 'apple')",
            "DELETE FROM docs WHERE rowid = 1",
        ] {
            python.sql(sql).unwrap();
        }
        python.quit();
    };
    const FIND: &str = "SELECT t FROM ft WHERE ft MATCH 'plum'";
    let directory = TestDir::new();
    let (control, path) = (directory.join("control.db"), directory.join("docs.db"));
    make(&control);
    let mut python = Python::open(&control);
    assert_eq!(python.sql(FIND).unwrap(), [json!(["plum"])]);
    python.sql("VACUUM").unwrap();
    let found = python.sql(FIND);
    python.quit();
    assert_ne!(found, Ok(vec![json!(["plum"])]), "the control: an ordinary VACUUM breaks the index");

    make(&path);
    let refused = on(&path, &["vacuum", "--anyway"]);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "would_renumber"), "{refused:#?}");
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("docs") && message.contains("ft"), "{message}");
    let mut python = Python::open(&path);
    assert_eq!(python.sql(FIND).unwrap(), [json!(["plum"])]);
    // Rows that are numbered from 1 on without a gap keep their numbers.
    python.sql("DROP TABLE ft").unwrap();
    python.sql("DELETE FROM docs").unwrap();
    python.sql("INSERT INTO docs(t) VALUES('apple'), ('plum')").unwrap();
    python.sql("CREATE VIRTUAL TABLE ft USING fts5(t, content='docs')").unwrap();
    python.sql("INSERT INTO ft(ft) VALUES('rebuild')").unwrap();
    python.quit();
    assert_eq!(on(&path, &["vacuum", "--anyway"]).success().json()["done"], true);
    let mut python = Python::open(&path);
    assert_eq!(python.sql(FIND).unwrap(), [json!(["plum"])]);
    python.quit();
}

#[test]
fn search_indexes_are_merged_where_this_sqlite_can_read_them_and_else_left_alone() {
    let directory = TestDir::new();
    let path = directory.join("index.db");
    let mut python = Python::open(&path);
    for sql in [
        "PRAGMA journal_mode=wal",
        "CREATE TABLE docs(id INTEGER PRIMARY KEY, t)",
        "CREATE INDEX docs_t ON docs(t)",
        "CREATE VIRTUAL TABLE \"our \"\" words\" USING fts5(t)",
        "CREATE VIRTUAL TABLE none USING fts5(t, content='')",
        "CREATE VIRTUAL TABLE older USING fts4(t)",
        "CREATE VIRTUAL TABLE theirs USING fts5(t)",
    ] {
        python.sql(sql).unwrap();
    }
    for n in 0..200 {
        for table in ["docs", "\"our \"\" words\"", "none", "older", "theirs"] {
            let rowid = if table == "docs" { "id" } else { "rowid" };
            python.sql(&format!("INSERT INTO {table}({rowid}, t) VALUES({n}, 'word{n} again')")).unwrap();
        }
    }
    const SEGMENTS: &str = "SELECT count(*) FROM \"our \"\" words_data\"";
    let segments = python.sql(SEGMENTS).unwrap();
    // Made by a program that brings a tokenizer of its own.
    python.sql("PRAGMA writable_schema=ON").unwrap();
    python.sql("UPDATE sqlite_schema SET sql = replace(sql, 'fts5(t)', 'fts5(t, tokenize=''of_their_own'')') WHERE name = 'theirs'").unwrap();
    python.quit();

    let done = on(&path, &["optimize"]).success().json();
    assert_eq!(done["done"], true, "{done}");
    let of = |name: &str| {
        let indexes = done["search_indexes"].as_array().unwrap();
        indexes.iter().find(|i| i["name"] == name).unwrap_or_else(|| panic!("no {name}: {done}")).clone()
    };
    assert_eq!(of("our \" words")["done"], true, "{done}");
    assert_eq!(of("none")["done"], true, "{done}");
    assert!(of("older")["reason"].as_str().unwrap().contains("fts4"), "{done}");
    assert!(of("theirs")["reason"].as_str().unwrap().contains("no such tokenizer: of_their_own"), "{done}");
    assert_eq!(on(&path, &["vacuum", "--anyway"]).success().json()["done"], true);

    let mut python = Python::open(&path);
    assert!(python.sql(SEGMENTS).unwrap()[0][0].as_i64() < segments[0][0].as_i64());
    for table in ["\"our \"\" words\"", "none", "older"] {
        let name = table.trim_matches('"').to_owned();
        let of = if table.starts_with('"') { format!("\"{name}\"") } else { name };
        let found = python.sql(&format!("SELECT count(*) FROM {of} WHERE {of} MATCH 'again'")).unwrap();
        assert_eq!(found, [json!([200])], "{table}");
    }
    assert_eq!(python.sql("SELECT count(*) FROM theirs_docsize").unwrap(), [json!([200])]);
    python.quit();
}

#[test]
fn case_079_a_volume_without_room_is_told_with_numbers_and_a_small_temporary_directory_is_no_obstacle() {
    let Some(volume) = Volume::new(8 << 10) else { return };
    // 5 MB, of which a tenth is free: what is kept does not fit beside it once more.
    let path = volume.join("big.db");
    let mut python = Python::open(&path);
    python.sql("PRAGMA journal_mode=wal").unwrap();
    python.sql(TABLE).unwrap();
    // In parts, so that the log does not fill the volume.
    for _ in 0..5 {
        python.sql(&bloat(500)[0]).unwrap();
        python.sql("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    }
    python.sql("DELETE FROM bloat WHERE id <= 250").unwrap();
    python.quit();
    let before = Snapshot::of(volume.path(), &[]);
    let refused = on(&path, &["vacuum"]);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "no_room"), "{refused:#?}");
    let detail = refused.json()["error"]["detail"].as_str().unwrap().to_owned();
    let dry = on(&path, &["vacuum", "--dry-run"]).success().json();
    assert_eq!((&dry["refused"]["code"], &dry["room"]), (&json!("no_room"), &Value::Null), "{dry}");
    let free = rustix::fs::statvfs(volume.path()).unwrap();
    let free = (free.f_bavail * free.f_frsize).to_string();
    assert!(detail.contains(&free) && detail.contains(volume.path().to_str().unwrap()), "{free}: {detail}");
    before.assert_unchanged(volume.path(), &[]);

    // What is kept fits once, and the copy goes elsewhere.
    let mut python = Python::open(&path);
    python.sql("DELETE FROM bloat WHERE id <= 1300").unwrap();
    python.quit();
    let dry = on(&path, &["vacuum", "--dry-run"]).success().json();
    assert!(!dry["room"]["copy_at"].as_str().unwrap().starts_with(volume.path().to_str().unwrap()), "{dry}");
    assert_eq!(on(&path, &["vacuum"]).success().json()["done"], true);

    // A database with room beside it does not care how small the temporary directory is.
    let Some(tiny) = Volume::new(64) else { return };
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 2000);
    let mut python = Python::open_with(&path, |c| {
        c.env("SQLITE_TMPDIR", tiny.path());
    });
    python.sql("UPDATE bloat SET b = zeroblob(200000)").unwrap();
    let full = python.sql("VACUUM").unwrap_err();
    assert!(full.contains("full"), "the control: {full}");
    python.sql("DELETE FROM bloat WHERE id % 20").unwrap();
    python.quit();
    let mut command = command_on(&path, &["vacuum", "--json"]);
    let done = run(command.env("SQLITE_TMPDIR", tiny.path()).env("TMPDIR", tiny.path()), PATIENCE).success();
    assert_eq!(done.json()["done"], true, "{done:#?}");
}

#[test]
fn a_rewrite_that_meets_a_limit_leaves_the_database_as_it_was_and_no_long_log() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 1000);
    let bytes = fs::read(&path).unwrap();
    let rows = "SELECT count(*), sum(id), sum(length(b)) FROM bloat";
    let mut python = Python::open(&path);
    let expected = python.sql(rows).unwrap();
    python.quit();
    // A file may have so many blocks of 512 bytes: fewer than the copy, or the log, needs.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "ulimit -f 200; exec \"$@\"", "sh"]).arg(binary()).args(["vacuum", "--json"]).arg(&path);
    let failed = run(command.env("STATEHOUSE_HOME", "/nonexistent"), PATIENCE);
    assert_eq!(failed.code(), 1, "{failed:#?}");
    assert!(!failed.json()["error"]["hint"].as_str().unwrap().is_empty(), "{failed:#?}");
    assert_eq!(size(&beside(&path, "-wal")), 0);
    assert!(fs::read(&path).unwrap() == bytes, "the main file has changed");
    let mut python = Python::open(&path);
    assert_eq!(python.sql(rows).unwrap(), expected);
    python.quit();
    assert_eq!(on(&path, &["vacuum"]).success().json()["done"], true);
}

#[test]
fn nothing_is_done_beside_a_process_that_has_lost_its_locks() {
    let directory = TestDir::new();
    let path = directory.join("other.db");
    let mut python = Python::open(&path);
    python.sql("PRAGMA journal_mode=wal").unwrap();
    python.sql("CREATE TABLE m(id INTEGER PRIMARY KEY, t)").unwrap();
    python.quit();
    let mut holder = Holder::of(&path);
    holder.loses_its_locks(&path);
    let before = Snapshot::of(directory.path(), &[]);
    for line in STRUCTURAL.into_iter().chain([&["checkpoint"][..]]) {
        for force in [&[][..], &["--force"]] {
            let done = on(&path, &[line, force].concat());
            assert_eq!((done.code(), error_code(&done).as_str()), (4, "refused_held_naked"), "{line:?}: {done:#?}");
            before.assert_unchanged(directory.path(), &[]);
        }
        let dry = on(&path, &[line, &["--dry-run"]].concat()).success().json();
        assert_eq!(dry["refused"]["code"], "refused_held_naked", "{dry}");
        before.assert_unchanged(directory.path(), &[]);
    }
}

#[test]
fn maintenance_of_what_is_no_database_is_refused_and_changes_nothing() {
    let directory = TestDir::new();
    fs::write(
        directory.join("letter"),
        "Dear reader, this is no database at all, and long enough for a header to be looked for in it. Yours",
    )
    .unwrap();
    fs::write(directory.join("empty"), "").unwrap();
    let real = foreign(directory.path(), "wal", 10);
    std::os::unix::fs::symlink(&real, directory.join("link")).unwrap();
    fs::create_dir(directory.join("home")).unwrap();
    let before = Snapshot::of(directory.path(), &[]);
    for (name, code) in [
        ("letter", "refused_not_database"),
        ("empty", "no_store"),
        ("nothing", "no_store"),
        ("home", "no_store"),
        ("link", "refused_symlink"),
    ] {
        for line in STRUCTURAL.into_iter().chain([&["checkpoint"][..]]) {
            let done = on(&directory.join(name), line);
            assert_eq!((done.code(), error_code(&done).as_str()), (4, code), "{name} {line:?}: {done:#?}");
            before.assert_unchanged(directory.path(), &[]);
        }
    }
}

#[test]
fn force_never_changes_the_journal_mode_under_a_program_that_uses_the_database() {
    for (mode, to) in [("delete", "wal"), ("wal", "delete")] {
        let directory = TestDir::new();
        let path = foreign(directory.path(), mode, 10);
        let mut idle = Python::open(&path);
        idle.sql("SELECT count(*) FROM bloat").unwrap();
        let before = header_mode(&path);
        let refused = on(&path, &["journal-mode", to, "--force"]);
        assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_held"), "{mode}: {refused:#?}");
        names_of(&refused, idle.pid());
        assert_eq!(header_mode(&path), before, "{mode}");
        idle.sql("INSERT INTO bloat(b) VALUES(1)").unwrap();
    }
}

#[test]
fn commands_that_only_look_for_a_moment_put_nobody_off() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 10);
    let done = std::sync::atomic::AtomicBool::new(false);
    let busy = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        for look in [&["verify"][..], &["checkpoint"], &["vacuum", "--dry-run"]] {
            let (path, done) = (&path, &done);
            scope.spawn(move || {
                while !done.load(busy) {
                    on(path, look);
                }
            });
        }
        let all: Vec<_> = (0..15).map(|_| on(&path, &["vacuum", "--anyway"])).collect();
        done.store(true, busy);
        let refused: Vec<_> = all.iter().filter(|f| f.code() != 0).collect();
        assert!(refused.is_empty(), "{refused:#?}");
    });
}

#[test]
fn one_who_waited_in_vain_beside_a_holder_is_told_how_long_and_for_whom() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 10);
    let mut writer = Python::open(&path);
    writer.sql("BEGIN IMMEDIATE").unwrap();
    let busy = on(&path, &["vacuum", "--anyway", "--force", "--patience", "0.3"]);
    assert_eq!((busy.code(), error_code(&busy).as_str()), (5, "busy"), "{busy:#?}");
    let text = busy.stdout.clone();
    assert!(text.contains(&format!("PID {}", writer.pid())) && !text.contains("waited 0 ms"), "{text}");
}

#[test]
fn a_dry_run_says_that_our_own_store_keeps_its_mode_whoever_uses_it() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let plan = answer(&home, ["journal-mode", "delete", "--dry-run"]);
    assert_eq!(plan["refused"]["code"], "wal_only", "{plan:#}");
    up.stop();
}

#[test]
fn a_name_that_leaves_no_room_for_what_is_kept_beside_it_is_told_so() {
    let directory = TestDir::new();
    let short = foreign(directory.path(), "wal", 10);
    let path = directory.join("n".repeat(246));
    fs::rename(short, &path).unwrap();
    for look in [&["holders"][..], &["status"], &["verify"], &["vacuum", "--dry-run"]] {
        on(&path, look).success();
    }
    let before = Snapshot::of(directory.path(), &[]);
    let plan = on(&path, &["vacuum", "--anyway", "--dry-run"]).success().json();
    assert_eq!(plan["refused"]["code"], "refused_name_too_long", "{plan:#}");
    let refused = on(&path, &["vacuum", "--anyway"]);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_name_too_long"), "{refused:#?}");
    assert!(before.differences(&Snapshot::of(directory.path(), &[])).is_empty());
}

#[test]
fn the_main_file_must_be_able_to_grow_before_the_log_is_given_back() {
    let Some(volume) = Volume::new(6 * 1024) else { return };
    let path = volume.join("s.db");
    let mut python = Python::open(&path);
    for sql in ["PRAGMA journal_mode=wal", "PRAGMA wal_autocheckpoint=0", TABLE] {
        python.sql(sql).unwrap();
    }
    for sql in bloat(800) {
        python.sql(&sql).unwrap();
    }
    // The log holds the pages, and the main file has not one of them.
    // Dropped is killed.
    drop(python);
    volume.fill(0);
    let plan = on(&path, &["vacuum", "--dry-run"]).success().json();
    assert_eq!(plan["refused"]["code"], "no_room", "{plan:#}");
    let refused = on(&path, &["vacuum"]);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "no_room"), "{refused:#?}");
}

#[test]
fn without_proc_nothing_is_rewritten_and_the_reason_is_told() {
    if !need::root("hiding /proc in a mount namespace of its own") {
        return;
    }
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 10);
    for command in ["vacuum --anyway", "checkpoint --truncate", "anchor"] {
        let line = format!("mount -t tmpfs none /proc && exec \"$0\" {command} --json \"$1\"");
        let mut unshare = Command::new("unshare");
        unshare.args(["-m", "sh", "-c", &line]).arg(binary()).arg(&path).env("STATEHOUSE_HOME", "/nonexistent");
        let refused = run(&mut unshare, PATIENCE);
        assert_eq!(
            (refused.code(), error_code(&refused).as_str()),
            (4, "refused_lock_core"),
            "{command}: {refused:#?}"
        );
        assert!(refused.stdout.contains("/proc"), "{refused:#?}");
    }
}

#[test]
fn beside_a_replaced_main_file_nothing_is_said_of_a_log_that_belongs_to_another() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 10);
    let mut ghost = Python::open(&path);
    ghost.sql("INSERT INTO bloat(b) VALUES(1)").unwrap();
    let other = TestDir::new();
    fs::rename(foreign(other.path(), "delete", 10), &path).unwrap();
    for line in [&["checkpoint"][..], &["checkpoint", "--truncate"], &["checkpoint", "--truncate", "--force"]] {
        let refused = on(&path, line);
        assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_held_retired"), "{refused:#?}");
        assert!(refused.stdout.contains(&format!("PID {}", ghost.pid())), "{refused:#?}");
    }
}

#[test]
fn an_ordinary_user_is_told_how_to_find_out_who_may_hold_it() {
    if !need::root("a process of root that an ordinary user cannot look at") {
        return;
    }
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 10);
    User::OWNER.owns(directory.path());
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = runnable_by_all(binary(), directory.path());
    let uri = format!("file:{}?mode=ro", path.display());
    let _root = Child::spawn(Command::new("sh").args(["-c", "read line", "sh", &uri]));
    let mut command = Command::new(program);
    command.args(["vacuum", "--anyway", "--json"]).arg(&path).current_dir("/");
    User::OWNER.runs(&mut command);
    let refused = run(&mut command, PATIENCE);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_unknown"), "{refused:#?}");
    assert!(refused.stdout.contains("sudo statehouse holders"), "{refused:#?}");
}
