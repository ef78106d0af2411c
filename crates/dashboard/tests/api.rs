//! What programs get.

use serde_json::json;
use statehouse_sessions::{JobKind, Role, Store};

use crate::house::House;

#[test]
fn lists_and_conversations_are_the_documents_of_the_command_line() {
    let house = House::new();
    let id = house.conversation(Some("a title"), &["question 日本", "answer"]);
    let list = house.json("/api/sessions");
    assert_eq!(list.as_array().unwrap().len(), 1);
    let entry = &list[0];
    assert_eq!(entry["id"], id.to_string());
    assert_eq!((&entry["title"], &entry["source"], &entry["messages"]), (&json!("a title"), &json!("http"), &json!(2)));
    for time in ["started_at", "last_active_at"] {
        let text = entry[time].as_str().unwrap();
        assert!(text.len() == 27 && text.ends_with('Z'), "{text}");
    }
    for field in ["parent_id", "origin", "archived", "pinned"] {
        assert!(entry.get(field).is_some(), "{field}");
    }
    let whole = house.json(&format!("/api/sessions/{id}"));
    assert_eq!(whole["id"], entry["id"]);
    let texts: Vec<_> = whole["messages"].as_array().unwrap().iter().map(|m| m["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["question 日本", "answer"]);
    assert_eq!(whole["messages"][0]["role"], "user");
}

#[test]
fn pages_of_a_conversation() {
    let house = House::new();
    let id = house.conversation(None, &[]);
    let ids: Vec<_> = (0..10).map(|n| house.say(id, Role::User, &n.to_string())).collect();
    let texts = |query: &str| -> String {
        let document = house.json(&format!("/api/sessions/{id}?{query}"));
        assert_eq!(document["message_count"], 10);
        document["messages"].as_array().unwrap().iter().map(|m| m["text"].as_str().unwrap()).collect()
    };
    assert_eq!(texts("limit=3"), "789");
    assert_eq!(texts(&format!("limit=3&before={}", ids[7])), "456");
    assert_eq!(texts(&format!("limit=3&after={}", ids[2])), "345");
    assert_eq!(house.get(&format!("/api/sessions/{id}?limit=x")).problem(), "invalid_request");
    assert_eq!(house.get(&format!("/api/sessions/{id}?before=x")).problem(), "invalid_request");
    assert_eq!(house.get("/api/sessions/unknown").problem(), "not_found");
    assert_eq!(house.get("/api/nothing").problem(), "not_found");
}

#[test]
fn search_store_and_jobs() {
    let house = House::new();
    let id = house.conversation(None, &["the word Übermut stands here"]);
    let hits = house.json("/api/search?q=ubermut");
    assert_eq!(hits[0]["session_id"], id.to_string());
    for field in ["message_id", "role", "snippet", "score", "created_at"] {
        assert!(hits[0].get(field).is_some(), "{field}");
    }
    assert_eq!(house.get("/api/search").problem(), "invalid_request");

    let store = house.json("/api/store");
    assert_eq!((&store["current"], &store["fenced"]), (&json!(true), &json!(false)));
    assert!(store["generation"]["wal"]["inode"].is_u64());
    assert_eq!(store["holders"]["verdict"], "held");

    house.store.ensure_job("tidy", JobKind::Housekeeping { name: "optimize".into() }, 60).unwrap();
    let jobs = house.json("/api/jobs");
    assert_eq!(
        (&jobs[0]["name"], &jobs[0]["schedule"], &jobs[0]["paused"]),
        (&json!("tidy"), &json!("every 1m"), &json!(false))
    );
}
