//! Search through the door.

use serde_json::value::RawValue;
use statehouse_sessions::*;

use crate::House;

#[test]
fn hits_come_newest_first_and_show_where() {
    let house = House::new();
    let id = house.session();
    for (n, text) in
        ["Ein Café in Łódź", "CAFE\u{301} am Bahnhof", "kein Kaffee", "私は東京に住む 🦀"].iter().enumerate()
    {
        let new = NewMessage { created_at: Micros(100 - n as i64), ..NewMessage::text(id, Role::User, *text) };
        house.store.append(new).unwrap();
    }
    let found = |query: &str, limit| {
        let hits = house.store.search(query, limit).unwrap();
        hits.iter().map(|h| h.snippet.clone()).collect::<Vec<_>>()
    };
    assert_eq!(found("cafe", 9), ["Ein \u{2068}Café\u{2069} in Łódź", "\u{2068}CAFE\u{301}\u{2069} am Bahnhof"]);
    assert_eq!(found("cafe", 1), ["Ein \u{2068}Café\u{2069} in Łódź"]);
    assert_eq!(found("lodz cafe", 9), ["Ein \u{2068}Café\u{2069} in \u{2068}Łódź\u{2069}"]);
    assert_eq!(found("\"AM BAHN\"", 9), ["CAFE\u{301} \u{2068}am Bahn\u{2069}hof"]);
    assert_eq!(found("京", 9), ["私は東\u{2068}京\u{2069}に住む 🦀"]);
    assert_eq!(found("🦀", 9), ["私は東京に住む \u{2068}🦀\u{2069}"]);
    for nothing in ["", "\"", "bahn", "cafe kaffee", "%", "_"] {
        assert!(found(nothing, 9).is_empty(), "{nothing:?}");
    }
    assert!(found("cafe", 0).is_empty());
    let hit = &house.store.search("kaffee", 1).unwrap()[0];
    assert_eq!((hit.session_id, hit.role, hit.created_at), (id, Role::User, Micros(98)));
    assert_eq!(house.store.message(hit.message_id).unwrap().text, "kein Kaffee");
    assert!(hit.score > 0.0);
}

#[test]
fn what_a_tool_was_called_with_is_found() {
    let house = House::new();
    let id = house.session();
    let calls = r#"[{"function":{"name":"write_file","arguments":"{\"path\":\"/tmp/\\u6771\\u4eac.txt\"}"}}]"#;
    let new = NewMessage {
        tool_calls: Some(RawValue::from_string(calls.into()).unwrap()),
        ..NewMessage::text(id, Role::Assistant, "")
    };
    house.store.append(new).unwrap();
    for query in ["東京", "write_file", "\"/tmp/\""] {
        assert_eq!(house.store.search(query, 9).unwrap().len(), 1, "{query}");
    }
}
