//! What stands between a row and its table: references, triggers, checks, indexes of the program; and new files.

use super::*;

#[test]
fn children_follow_their_parents_and_those_without_one_are_conflicts() {
    let two = Two::new(
        "CREATE TABLE child(id INTEGER PRIMARY KEY, p INTEGER NOT NULL REFERENCES parent(id), up REFERENCES child(id));
         CREATE TABLE parent(id INTEGER PRIMARY KEY, name UNIQUE);
         INSERT INTO parent VALUES(1, 'a');",
        "PRAGMA foreign_keys = OFF; DELETE FROM parent; INSERT INTO parent VALUES(9, 'taken')",
        "PRAGMA foreign_keys = OFF; INSERT INTO parent VALUES(2, 'b'), (3, 'taken');
         INSERT INTO child VALUES(5, 1, 7), (6, 2, NULL), (7, 2, 6), (8, 3, NULL), (10, 77, NULL)",
    );
    let merged = two.merge();
    assert_eq!(counts(&merged.shown, "parent"), [2, 0, 1, 1, 0]);
    assert_eq!(counts(&merged.shown, "child"), [3, 0, 2, 0, 0], "one parent is in conflict, the other is nowhere");
    assert_eq!(two.rows("SELECT id FROM child ORDER BY id"), ["5", "6", "7"]);
    assert_eq!(two.rows("PRAGMA foreign_key_check"), [""; 0]);
    assert_eq!(two.merge().rows, 0);
}

#[test]
fn what_dangled_before_is_nobodys_fault() {
    let two = Two::new(
        "CREATE TABLE parent(id INTEGER PRIMARY KEY); CREATE TABLE child(id INTEGER PRIMARY KEY, p REFERENCES parent(id));
         PRAGMA foreign_keys = OFF; INSERT INTO child VALUES(1, 55)",
        "",
        "INSERT INTO child VALUES(2, NULL)",
    );
    assert_eq!(two.merge().rows, 1);
    assert_eq!(two.rows("SELECT count(*) FROM child"), ["2"]);
}

#[test]
fn triggers_fire_and_what_they_refuse_is_a_conflict() {
    let two = Two::new(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, v CHECK(v <> 'bad')); CREATE TABLE audit(id INTEGER PRIMARY KEY, what UNIQUE);
         CREATE TRIGGER note AFTER INSERT ON t BEGIN INSERT OR IGNORE INTO audit(what) VALUES(new.v); END;
         CREATE TRIGGER refuse AFTER INSERT ON t WHEN new.v = 'no' BEGIN SELECT RAISE(FAIL, 'never'); END;
         PRAGMA ignore_check_constraints = ON;",
        "INSERT INTO audit(what) VALUES('twice')",
        "DROP TRIGGER refuse; DROP TRIGGER note; PRAGMA ignore_check_constraints = ON;
         INSERT INTO t VALUES(1, 'yes'), (2, 'no'), (3, 'twice'), (4, 'bad')",
    );
    let merged = two.merge();
    assert_eq!((merged.rows, counts(&merged.shown, "t")), (2, [2, 0, 2, 0, 0]));
    assert_eq!(two.rows("SELECT id FROM t ORDER BY id"), ["1", "3"]);
    assert_eq!(two.rows("SELECT what FROM audit ORDER BY what"), ["\"twice\"", "\"yes\""]);
    let why: Vec<String> = two.conflicts().iter().map(|c| c["why"].to_string()).collect();
    assert!(why.iter().any(|w| w.contains("never")) && why.iter().any(|w| w.contains("CHECK")), "{why:?}");
}

#[test]
fn a_trigger_that_needs_its_program_is_told_before_anything_is_changed() {
    let two = Two::new(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, v); CREATE TABLE other(x);
         CREATE TRIGGER own AFTER INSERT ON t BEGIN INSERT INTO other VALUES(only_in_its_program(new.v)); END;",
        "",
        "DROP TRIGGER own; INSERT INTO t VALUES(1, 'x'); INSERT INTO other VALUES('y')",
    );
    assert_eq!(counts(&two.show(), "t"), [1, 0, 0, 0, 0]);
    let e = two.try_merge().unwrap_err();
    assert_eq!((e.code(), e.is_refusal()), ("missing_module", true), "{e:?}");
    assert_eq!(two.rows("SELECT count(*) FROM other"), ["0"]);
}

#[test]
fn a_search_index_that_triggers_keep_finds_what_came_back() {
    let base = "CREATE TABLE m(id INTEGER PRIMARY KEY, body); CREATE VIRTUAL TABLE f USING fts5(body, content=m, content_rowid=id);
         CREATE TRIGGER mi AFTER INSERT ON m BEGIN INSERT INTO f(rowid, body) VALUES(new.id, new.body); END;
         INSERT INTO m VALUES(1, 'alpha');";
    let two = Two::new(base, "INSERT INTO m VALUES(2, 'beta')", "INSERT INTO m VALUES(3, 'gamma')");
    let shown = two.show();
    assert_eq!(shown.tables.keys().collect::<Vec<_>>(), ["m"], "what an index keeps is derived");
    assert_eq!(two.merge().rows, 1);
    assert_eq!(two.rows("SELECT rowid FROM f WHERE f MATCH 'gamma'"), ["3"]);
    Connection::open(two.live()).unwrap().execute_batch("INSERT INTO f(f, rank) VALUES('integrity-check', 1)").unwrap();
}

#[test]
fn rows_that_an_index_knows_by_number_keep_it_or_stay_in_the_capture() {
    let base = "CREATE TABLE m(body); CREATE VIRTUAL TABLE f USING fts5(body, content=m); INSERT INTO m VALUES('a')";
    let two = Two::new(base, "INSERT INTO m VALUES('here')", "INSERT INTO m VALUES('there'), ('free')");
    assert_eq!(counts(&two.show(), "m"), [1, 1, 1, 1, 0]);
    two.merge();
    assert_eq!(two.rows("SELECT rowid, body FROM m ORDER BY rowid"), ["1|\"a\"", "2|\"here\"", "3|\"free\""]);
}

#[test]
fn a_new_file_has_the_rows_of_both_and_the_database_is_as_it_was() {
    let two = Two::new(
        "CREATE TABLE t(id INTEGER PRIMARY KEY, v)",
        "INSERT INTO t VALUES(1, 'here'), (2, 'a')",
        "INSERT INTO t VALUES(2, 'b'), (3, 'there')",
    );
    let before = std::fs::read(two.live()).unwrap();
    let out = two.directory.path().join("out.db");
    let into = |to: &Path| with(two.directory.path(), |asked| merge_into(&two.live(), &two.id(), to, asked));
    let merged = into(&out).unwrap();
    assert_eq!((merged.rows, merged.shown.conflicting()), (1, 1));
    assert_eq!(rows(&out, "SELECT id FROM t"), ["1", "2", "3"]);
    assert_eq!(std::fs::read(two.live()).unwrap(), before);
    assert_eq!(into(&out).unwrap_err().code(), "exists");
    assert_eq!(rows(&out, "SELECT id FROM t"), ["1", "2", "3"]);
    let mut left: Vec<_> = std::fs::read_dir(two.directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["captured.db", "live.db", "out.db", "out.db.conflicts.jsonl"]);
}

#[test]
fn a_damaged_capture_is_refused() {
    let many = "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200) INSERT INTO t SELECT i, randomblob(500) FROM n";
    let two = Two::new("CREATE TABLE t(id INTEGER PRIMARY KEY, v)", "", many);
    let mut bytes = std::fs::read(two.captured()).unwrap();
    bytes[3 * 4096..5 * 4096].fill(0xa5);
    std::fs::write(two.captured(), bytes).unwrap();
    let e = two.try_merge().unwrap_err();
    assert_eq!((e.code(), e.is_refusal()), ("damaged", true), "{e:?}");
    assert_eq!(two.rows("SELECT count(*) FROM t"), ["0"]);
}

#[test]
fn messages_of_hermes_that_got_the_same_number_are_two_messages() {
    let base = "CREATE TABLE schema_version(version INTEGER NOT NULL); INSERT INTO schema_version VALUES(30);
        CREATE TABLE state_meta(key TEXT PRIMARY KEY, value TEXT);
        CREATE TABLE sessions(id TEXT PRIMARY KEY, source TEXT NOT NULL, started_at REAL NOT NULL, title TEXT,
          message_count INTEGER DEFAULT 0, tool_call_count INTEGER DEFAULT 0);
        CREATE UNIQUE INDEX ut ON sessions(title) WHERE title IS NOT NULL;
        CREATE TABLE messages(id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions(id),
          role TEXT NOT NULL, content TEXT, tool_calls TEXT, timestamp REAL NOT NULL, active INTEGER NOT NULL DEFAULT 1,
          display_order INTEGER);
        CREATE INDEX im ON messages(session_id, timestamp);
        INSERT INTO sessions VALUES('s', 'cli', 1.0, 'one', 1, 0);
        INSERT INTO messages(session_id, role, content, timestamp) VALUES('s', 'user', 'first', 1.0);";
    let say = |n: u32, text: &str, calls: &str| {
        format!(
            "INSERT INTO messages(session_id, role, content, tool_calls, timestamp) VALUES('s', 'assistant', '{text}', {calls}, {n});
             UPDATE sessions SET message_count = message_count + 1 WHERE id = 's';"
        )
    };
    let live = say(2, "here", "NULL")
        + &say(3, "both", "NULL")
        + "INSERT INTO sessions VALUES('h', 'cli', 2.0, 'name', 0, 0); INSERT INTO state_meta VALUES('fts_stale', '1')";
    let captured = say(2, "there", "'[{},{}]'")
        + &say(4, "one more", "NULL")
        + &say(5, "and one", "NULL")
        + "INSERT INTO sessions VALUES('g', 'cli', 2.0, 'name', 1, 0); INSERT INTO state_meta VALUES('last', '7');
           INSERT INTO messages(session_id, role, content, timestamp) VALUES('g', 'user', 'in a new one', 6);";
    let two = Two::new(base, &live, &captured);
    let shown = two.show();
    assert_eq!(counts(&shown, "messages"), [2, 1, 0, 2, 2]);
    assert!(shown.tables["state_meta"].left_alone.is_some());
    let merged = two.merge();
    assert_eq!(merged.rows, 5, "four messages and a session");
    let texts = two.rows("SELECT content FROM messages ORDER BY id");
    let wanted = ["\"first\"", "\"here\"", "\"both\"", "\"and one\"", "\"in a new one\"", "\"there\"", "\"one more\""];
    assert_eq!(texts, wanted, "those with a number of their own keep it, the others follow");
    assert_eq!(
        two.rows("SELECT id, message_count, tool_call_count, title FROM sessions ORDER BY id"),
        ["\"g\"|1|0|null", "\"h\"|0|0|\"name\"", "\"s\"|6|2|\"one\"",]
    );
    assert_eq!(two.rows("SELECT count(*) FROM state_meta WHERE key = 'last'"), ["0"]);
    let again = two.merge();
    assert_eq!((again.rows, counts(&again.shown, "messages")), (0, [0, 5, 0, 2, 0]));
    assert_eq!(two.rows("SELECT content FROM messages ORDER BY id"), wanted);
}
