//! New messages, as they are stored by whatever process.

use std::io::{BufRead, BufReader, Write};

use serde_json::Value;
use statehouse_sessions::{NewMessage, OpenMode, Role, SqliteStore, Store};

use crate::house::{House, TOKEN};

/// The messages of a stream, as they come.
fn follow(house: &House, path: &str, more: &str) -> impl Iterator<Item = Value> + use<> {
    let mut stream = house.connect();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n{more}\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut lines = BufReader::new(stream).lines().map_while(Result::ok);
    assert_eq!(lines.next().unwrap(), "HTTP/1.1 200 OK");
    lines.find(String::is_empty).unwrap();
    lines.filter_map(|l| l.strip_prefix("data: ").map(|data| serde_json::from_str(data).unwrap()))
}

#[test]
fn messages_of_this_and_of_other_processes_appear_once_and_in_order() {
    let house = House::new();
    let id = house.conversation(None, &["old"]);
    let other_conversation = house.conversation(None, &["x"]);
    let events = format!("/api/sessions/{id}/events");
    let mut early = follow(&house, &events, "");
    let first = house.say(id, Role::User, "one <b>");
    let seen = early.next().unwrap();
    assert_eq!(
        (seen["id"].as_str(), seen["text"].as_str(), seen["role"].as_str()),
        (Some(first.as_str()), Some("one <b>"), Some("user"))
    );
    assert!(seen["html"].as_str().unwrap().contains("one &lt;b&gt;"));

    // Another handle on the same file stands for another process.
    let other = SqliteStore::open(&house.directory.path().join("state.db"), "gateway", OpenMode::existing()).unwrap();
    house.say(other_conversation, Role::User, "not here");
    for n in 0..120 {
        other.append(NewMessage::text(id, Role::Assistant, format!("{n}"))).unwrap();
    }
    let texts: Vec<_> = early.by_ref().take(120).map(|m| m["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(texts, (0..120).map(|n| n.to_string()).collect::<Vec<_>>());

    let after = follow(&house, &format!("{events}?after={first}"), "").next().unwrap();
    assert_eq!(after["text"], "0");
    let back = follow(&house, &events, &format!("Last-Event-ID: {first}\r\n")).next().unwrap();
    assert_eq!(back["text"], "0");
    other.close();
}

#[test]
fn a_conversation_that_is_empty_or_not_there() {
    let house = House::new();
    let id = house.conversation(None, &[]);
    let mut live = follow(&house, &format!("/api/sessions/{id}/events"), "");
    house.say(id, Role::User, "first");
    assert_eq!(live.next().unwrap()["text"], "first");
    assert_eq!(house.get("/api/sessions/unknown/events").problem(), "not_found");
    assert_eq!(house.get(&format!("/api/sessions/{id}/events?after=x")).problem(), "invalid_request");
}

#[test]
fn a_watcher_does_not_hold_the_end_up() {
    let house = House::new();
    let id = house.conversation(None, &["x"]);
    let watcher = follow(&house, &format!("/api/sessions/{id}/events"), "");
    let begin = std::time::Instant::now();
    drop(house);
    assert!(begin.elapsed() < std::time::Duration::from_secs(5));
    assert_eq!(watcher.count(), 0);
}
