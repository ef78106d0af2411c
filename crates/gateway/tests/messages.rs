//! Our own channel: messages in, answers out.

use serde_json::json;
use statehouse_sessions::{Page, Role, Store, TurnId};

use crate::house::{House, TOKEN, until};

#[test]
fn a_message_is_in_the_store_when_its_sender_hears_of_it_and_the_echo_says_what_it_is() {
    let house = House::new();
    let text = "Grüße 日本 \u{1f600} <b>\"\\\n";
    let reply = house.post("/v1/messages?wait=20", &json!({ "conversation": "c1", "text": text }));
    assert_eq!(reply.status, 200, "{reply:?}");
    let receipt = reply.json();
    assert_eq!(receipt["duplicate"], false);
    let answer = receipt["reply"]["text"].as_str().unwrap();
    assert!(answer.contains(text) && answer.contains("echo") && answer.contains("no responder is configured"));

    let session = receipt["session_id"].as_str().unwrap().parse().unwrap();
    let messages = house.store.messages(session, &Page::default()).unwrap();
    assert_eq!(messages.iter().map(|m| m.role).collect::<Vec<_>>(), [Role::User, Role::Assistant]);
    assert_eq!(messages[0].text, text);
    assert_eq!(messages[0].id.to_string(), receipt["message_id"].as_str().unwrap());
    assert_eq!(messages[1].text, answer);
    assert_eq!(messages[1].id.to_string(), receipt["reply"]["message_id"].as_str().unwrap());

    let second = house.post("/v1/messages?wait=20", &json!({ "conversation": "c1", "text": "more" })).json();
    assert_eq!(second["session_id"], receipt["session_id"]);
    let other = house.post("/v1/messages", &json!({ "conversation": "c2", "text": "more" })).json();
    assert_ne!(other["session_id"], receipt["session_id"]);
    assert!(other.get("reply").is_none());
}

#[test]
fn the_same_id_again_is_one_message_and_one_answer() {
    let house = House::new();
    let message = json!({ "conversation": "c", "text": "once", "id": "m-1" });
    let first = house.post("/v1/messages?wait=20", &message).json();
    let again = house.post("/v1/messages?wait=20", &message).json();
    assert_eq!(again["duplicate"], true);
    for field in ["message_id", "session_id", "turn_id", "reply"] {
        assert_eq!(first[field], again[field], "{field}");
    }
    assert_eq!(house.rows(), (1, 2));
}

#[test]
fn many_senders_at_once_lose_nothing_and_answers_come_in_order_within_a_conversation() {
    let house = House::new();
    std::thread::scope(|scope| {
        for sender in 0..6 {
            let house = &house;
            scope.spawn(move || {
                for n in 0..10 {
                    let conversation = format!("c{}", sender % 3);
                    let text = format!("{sender}/{n}");
                    let reply = house.post("/v1/messages", &json!({ "conversation": conversation, "text": text }));
                    assert_eq!(reply.status, 200, "{reply:?}");
                }
            });
        }
    });
    until("all answers", || (house.rows() == (3, 120)).then_some(()));
    for session in house.store.sessions(&Default::default()).unwrap() {
        let messages = house.store.messages(session.id, &Page::default()).unwrap();
        let said = |role| messages.iter().filter(move |m| m.role == role).map(|m| m.text.as_str());
        for (question, answer) in said(Role::User).zip(said(Role::Assistant)) {
            assert!(answer.ends_with(&format!(": {question}")), "{question} was answered by {answer}");
        }
    }
}

#[test]
fn a_listener_that_comes_late_hears_the_whole_answer() {
    let house = House::new();
    let receipt = house.post("/v1/messages?wait=20", &json!({ "conversation": "c", "text": "two\nlines" })).json();
    let reply = house.get(&format!("/v1/turns/{}/events", receipt["turn_id"].as_str().unwrap()));
    assert_eq!(reply.status, 200);
    let events = reply.events();
    let (last, deltas) = events.split_last().unwrap();
    assert_eq!(last.0, "done");
    let done: serde_json::Value = serde_json::from_str(&last.1).unwrap();
    assert_eq!(done["text"], receipt["reply"]["text"]);
    assert_eq!(done["message_id"], receipt["reply"]["message_id"]);
    let heard: String = deltas
        .iter()
        .map(|(name, data)| {
            assert_eq!(name, "delta");
            serde_json::from_str::<serde_json::Value>(data).unwrap()["text"].as_str().unwrap().to_owned()
        })
        .collect();
    assert_eq!(heard, receipt["reply"]["text"].as_str().unwrap());
}

#[test]
fn an_unknown_turn_is_not_found() {
    let house = House::new();
    for id in [TurnId::new().to_string(), "no-uuid".into(), "%FF".into()] {
        let reply = house.get(&format!("/v1/turns/{id}/events"));
        assert!(
            matches!((reply.status, reply.problem().as_str()), (404, "not_found") | (400, "invalid_request")),
            "{reply:?}"
        );
    }
}

#[test]
fn an_ordinary_http_client_gets_along() {
    let house = House::new();
    let agent: ureq::Agent = ureq::Agent::config_builder().http_status_as_error(false).build().into();
    let url = format!("http://{}/v1/messages?wait=20", house.address);
    // The content type that `curl -d` sends.
    let mut response = agent
        .post(&url)
        .header("Authorization", format!("Bearer {TOKEN}"))
        .header("Content-Type", "application/x-www-form-urlencoded")
        .send(r#"{"conversation":"c","text":"hi"}"#)
        .unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.body_mut().read_to_string().unwrap().contains("hi"));
    let response = agent.post(&url).send("{}").unwrap();
    assert_eq!(response.status(), 401);
    assert!(response.headers()["www-authenticate"].to_str().unwrap().starts_with("Bearer"));
}
