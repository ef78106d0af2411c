//! What an OpenAI client sends and expects.

use serde_json::{Value, json};
use statehouse_sessions::{Page, Role, Store};

use crate::house::{House, TOKEN};

fn request(stream: bool) -> String {
    json!({
        "model": "gpt-4o", "temperature": 0.2, "max_tokens": 100, "stream": stream, "stream_options": null, "n": 1,
        "tools": [], "user": "u",
        "messages": [
            { "role": "system", "content": "be kind" },
            { "role": "user", "content": "first" },
            { "role": "assistant", "content": "one" },
            { "role": "user", "content": [{ "type": "text", "text": "second 日本" }] },
        ],
    })
    .to_string()
}

#[test]
fn a_completion_answers_the_last_message_and_keeps_the_conversation() {
    let house = House::new();
    let token = format!("Bearer {TOKEN}");
    let headers = [("Authorization", token.as_str()), ("X-Statehouse-Conversation", "chat 1")];
    let reply = house.call_with("POST", "/v1/chat/completions", &headers, request(false).as_bytes());
    assert_eq!(reply.status, 200, "{reply:?}");
    let document = reply.json();
    assert_eq!(document["object"], "chat.completion");
    assert_eq!(document["model"], "echo");
    assert!(document["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(document["created"].as_u64().unwrap() > 1_700_000_000);
    let choice = &document["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["message"]["role"], "assistant");
    assert!(choice["message"]["content"].as_str().unwrap().contains("second 日本"));
    assert_eq!(reply.header("x-statehouse-conversation"), Some("chat 1"));

    let again = house.call_with("POST", "/v1/chat/completions", &headers, request(false).as_bytes());
    assert_eq!(again.status, 200);
    assert_eq!(house.rows(), (1, 4));
    house.call("POST", "/v1/chat/completions", request(false).as_bytes());
    house.call("POST", "/v1/chat/completions", request(false).as_bytes());
    assert_eq!(house.rows(), (3, 8), "each request without a name is a conversation of its own");
    let session = house.store.sessions(&Default::default()).unwrap().remove(0);
    let messages = house.store.messages(session.id, &Page::default()).unwrap();
    assert_eq!((messages[0].role, messages[0].text.as_str()), (Role::User, "second 日本"));
}

#[test]
fn a_streamed_completion_is_chunks_and_a_done_line() {
    let house = House::new();
    let reply = house.call("POST", "/v1/chat/completions", request(true).as_bytes());
    assert_eq!(reply.status, 200);
    let events = reply.events();
    let (done, chunks) = events.split_last().unwrap();
    assert_eq!(done, &(String::new(), "[DONE]".to_owned()));
    let chunks: Vec<Value> = chunks.iter().map(|(_, data)| serde_json::from_str(data).unwrap()).collect();
    assert!(chunks.iter().all(|c| c["object"] == "chat.completion.chunk" && c["id"] == chunks[0]["id"]));
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    let text: String = chunks.iter().filter_map(|c| c["choices"][0]["delta"]["content"].as_str()).collect();
    assert!(text.contains("echo") && text.ends_with("second 日本"), "{text}");
    let reasons: Vec<_> = chunks.iter().map(|c| c["choices"][0]["finish_reason"].clone()).collect();
    assert_eq!(reasons.last(), Some(&json!("stop")));
    assert!(reasons[..reasons.len() - 1].iter().all(Value::is_null));
}

#[test]
fn a_repeated_request_with_a_key_is_one_message() {
    let house = House::new();
    let token = format!("Bearer {TOKEN}");
    let headers = [("Authorization", token.as_str()), ("Idempotency-Key", "k1")];
    let first = house.call_with("POST", "/v1/chat/completions", &headers, request(false).as_bytes()).json();
    let again = house.call_with("POST", "/v1/chat/completions", &headers, request(false).as_bytes()).json();
    assert_eq!(first["id"], again["id"]);
    assert_eq!(first["choices"], again["choices"]);
    assert_eq!(house.rows(), (1, 2));
}

#[test]
fn the_responder_is_the_model() {
    let house = House::new();
    let list = house.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    assert_eq!(list["data"][0]["id"], "echo");
    assert_eq!(house.get("/v1/models/echo").json(), list["data"][0]);
}
