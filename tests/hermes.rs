//! A store of the real hermes-agent 0.19.0 is taken over whole, left as it was, and served.

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use statehouse_testkit::peers::{hermes_program, hermes_python, make_hermes_store};
use statehouse_testkit::visitor::python;
use statehouse_testkit::{Child, Home, Snapshot, run};

use crate::house::{Client, PATIENCE, Up, answer, cli};

const SESSIONS: u32 = 300;
const MESSAGES: u32 = 17_000;

/// Reads a Hermes store with Python's SQLite, without a line of the product's code: every session, and of every message
/// the columns that both know, in the order in which it was stored.
const DUMP: &str = r#"
import json, sqlite3, sys
connection = sqlite3.connect("file:" + sys.argv[1] + "?mode=ro", uri=True)
connection.row_factory = sqlite3.Row
sessions = [dict(row) for row in connection.execute("SELECT id, source, parent_session_id, title, archived FROM sessions")]
messages = {}
for row in connection.execute("SELECT * FROM messages ORDER BY session_id, id"):
    content, parts = row["content"], None
    if isinstance(content, str) and content.startswith("\0json:"):
        # A lone surrogate is no text; it is stored as the escape that it was, and read as the replacement character.
        parts, content = json.loads(content[6:].encode("utf-8", "replace")), None
        parts = json.loads(json.dumps(parts, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    messages.setdefault(row["session_id"], []).append({
        "role": row["role"], "content": content, "parts": parts,
        "tool_calls": json.loads(row["tool_calls"]) if row["tool_calls"] else None,
        "tool_call_id": row["tool_call_id"], "tool_name": row["tool_name"],
        "timestamp": row["timestamp"],
    })
print(json.dumps({"sessions": sessions, "messages": messages}))
"#;

fn dump(store: &Path) -> Value {
    let mut command = Command::new(python());
    command.args(["-I", "-c", DUMP]).arg(store);
    run(&mut command, PATIENCE).success().json()
}

/// Seconds since 1970 as the JSON of the product says them, to the microsecond.
fn micros(time: &Value) -> i64 {
    let text = time.as_str().expect("a time");
    let stamp: jiff::Timestamp = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
    stamp.as_microsecond()
}

/// Every session of `source` is in the home, with every message in order and every column that counts.
fn assert_same(home: &Home, source: &Value) {
    let list = answer(home, ["sessions", "list", "--all"]);
    let ours: HashMap<&str, &Value> =
        list.as_array().unwrap().iter().filter_map(|s| Some((s["origin"]["id"].as_str()?, s))).collect();
    let theirs = source["sessions"].as_array().unwrap();
    assert_eq!(ours.len(), theirs.len());
    for their in theirs {
        let id = their["id"].as_str().unwrap();
        let our = ours.get(id).unwrap_or_else(|| panic!("the session {id} is missing"));
        assert_eq!(our["title"], their["title"], "{id}");
        assert_eq!(our["source"], their["source"], "{id}");
        assert_eq!(our["archived"].as_bool(), Some(their["archived"] == 1), "{id}");
        let parent = their["parent_session_id"].as_str().map(|p| ours[p]["id"].clone());
        assert_eq!(our["parent_id"], parent.unwrap_or_default(), "{id}: lineage");
        let none = Vec::new();
        let wanted = source["messages"][id].as_array().unwrap_or(&none);
        assert_eq!(our["messages"].as_u64(), Some(wanted.len() as u64), "{id}: the number of messages");
        let shown = answer(home, ["sessions", "show", id]);
        let messages = shown["messages"].as_array().unwrap();
        assert_eq!(messages.len(), wanted.len(), "{id}");
        for (n, (got, want)) in messages.iter().zip(wanted).enumerate() {
            let at = format!("message {n} of {id}: {got} for {want}");
            assert_eq!(got["role"], want["role"], "{at}");
            if want["parts"].is_null() {
                assert_eq!(got["text"].as_str(), Some(want["content"].as_str().unwrap_or_default()), "{at}");
            } else {
                assert_eq!(got["parts"], want["parts"], "{at}");
            }
            for key in ["tool_calls", "tool_call_id", "tool_name"] {
                assert_eq!(got[key], want[key], "{key} of {at}");
            }
            let seconds = want["timestamp"].as_f64().unwrap();
            assert!((micros(&got["created_at"]) as f64 / 1e6 - seconds).abs() < 1e-5, "{at}");
        }
    }
}

#[test]
fn a_real_store_is_imported_row_by_row_and_the_house_serves_it() {
    let home = Home::new();
    let hermes = home.around().join("hermes");
    std::fs::create_dir(&hermes).unwrap();
    let store = hermes.join("state.db");
    let Some(made) = make_hermes_store(&store, SESSIONS, MESSAGES, 19) else { return };
    assert!(made["sessions"].as_u64() >= Some(300) && made["messages"].as_u64() >= Some(17_000), "{made}");
    let source = dump(&store);
    let before = Snapshot::of(&hermes, &[]);

    let path = hermes.to_str().unwrap();
    let report = answer(&home, ["sessions", "import", "hermes", path]);
    assert_eq!(report["sessions"], made["sessions"], "{report}");
    assert_eq!(report["messages"], made["messages"], "{report}");
    assert_eq!(report["skipped"], 0, "{report}");
    before.assert_unchanged(&hermes, &[]);
    assert_same(&home, &source);

    // Its full-text indexes were written by another SQLite, whose tokenizers are not ours.
    let proof = answer(&home, ["verify", store.to_str().unwrap()]);
    assert_eq!(proof["healthy"], true, "{proof}");
    before.assert_unchanged(&hermes, &[]);

    let again = answer(&home, ["sessions", "import", "hermes", path]);
    assert_eq!((&again["sessions"], &again["messages"]), (&Value::from(0), &Value::from(0)), "{again}");
    before.assert_unchanged(&hermes, &[]);
    assert_same(&home, &source);

    let up = Up::start(&home, |_| {});
    // A word that the store's maker uses in CJK and one in Latin script; found on the page and in its JSON.
    let dashboard = Client::new(up.url("dashboard"), &home.token());
    for (word, encoded) in [("東京の天気", "%E6%9D%B1%E4%BA%AC%E3%81%AE%E5%A4%A9%E6%B0%97"), ("naïve", "naive")] {
        let (status, page) = dashboard.get(&format!("/search?q={encoded}")).unwrap();
        assert!(status == 200 && page.contains(word), "{status} {page}");
        let (_, found) = dashboard.get(&format!("/api/search?q={encoded}")).unwrap();
        let found: Value = serde_json::from_str(&found).unwrap();
        let hit = found.as_array().and_then(|h| h.first()).unwrap_or_else(|| panic!("{found}")).clone();
        let session = hit["session_id"].as_str().unwrap();
        let shown = answer(&home, ["sessions", "show", session]);
        let has = |m: &Value| m["id"] == hit["message_id"] && m.to_string().contains(word);
        assert!(shown["messages"].as_array().unwrap().iter().any(has), "{hit}");
    }
    Client::new(up.url("gateway"), &home.token()).talk("new", "1", "beside the imported ones");
    up.stop();
}

#[test]
fn a_store_that_hermes_has_open_is_imported_as_it_stands() {
    let Some(interpreter) = hermes_python() else { return };
    let home = Home::new();
    let hermes = home.around().join("hermes");
    std::fs::create_dir(&hermes).unwrap();
    let store = hermes.join("state.db");
    let mut command = Command::new(interpreter);
    command.arg(hermes_program()).arg(&store).args(["20", "300", "7", "--hold"]);
    let mut holder = Child::spawn(&mut command);
    let made: Value = serde_json::from_str(&holder.line(Duration::from_secs(60))).unwrap();
    let source = dump(&store);
    // Every reader marks its place in the `-shm` of a live store, the peer's own too; all else must stay.
    let before = Snapshot::of(&hermes, &["state.db-shm"]);
    let report = answer(&home, ["sessions", "import", "hermes", store.to_str().unwrap()]);
    assert_eq!(report["messages"], made["messages"], "{report}");
    before.assert_unchanged(&hermes, &["state.db-shm"]);
    assert_same(&home, &source);
    holder.send("go on");
    assert!(holder.wait(Duration::from_secs(60)).success(), "{}", holder.stderr_text());
}

#[test]
fn what_is_no_hermes_store_is_said_and_nothing_is_taken() {
    let home = crate::house::furnished(Home::new());
    let letter = home.around().join("letter.db");
    std::fs::write(&letter, "not a database").unwrap();
    for path in [home.around().join("nothing"), letter, home.store()] {
        let before = Snapshot::of(home.around().path(), &["home"]);
        let done = cli(&home, ["sessions", "import", "hermes", path.to_str().unwrap(), "--json"]);
        assert!(!done.status.success(), "{done:?}");
        assert!(!crate::house::error_code(&done).is_empty(), "{done:?}");
        before.assert_unchanged(home.around().path(), &["home"]);
    }
    assert_eq!(answer(&home, ["sessions", "list", "--all"]), serde_json::json!([]));
}
