//! Turns that are slow, fail, break down or are interrupted.

use std::io::{BufRead, BufReader, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use serde_json::{Value, json};
use statehouse_gateway::{Answer, CannotAnswer, Question, Responder};
use statehouse_sessions::{Holder, Inbound, OpenMode, Page, Role, SqliteStore, Store, TurnState};
use tokio::sync::mpsc;

use crate::house::{House, TOKEN, until};

/// A responder that a test holds by the hand: each message is answered by what the test sends.
struct ByHand {
    asked: std::sync::mpsc::Sender<(Question, mpsc::UnboundedSender<Result<String, CannotAnswer>>)>,
}

type Asked = std::sync::mpsc::Receiver<(Question, mpsc::UnboundedSender<Result<String, CannotAnswer>>)>;

impl ByHand {
    fn new() -> (Arc<ByHand>, Asked) {
        let (asked, questions) = std::sync::mpsc::channel();
        (Arc::new(ByHand { asked }), questions)
    }
}

impl Responder for ByHand {
    fn name(&self) -> &str {
        "by-hand"
    }

    fn respond(&self, question: Question) -> Answer {
        let (pieces, answer) = mpsc::unbounded_channel();
        // A test that is over does not answer any more.
        let _ = self.asked.send((question, pieces));
        Box::pin(Pieces(answer))
    }
}

struct Pieces(mpsc::UnboundedReceiver<Result<String, CannotAnswer>>);

impl Stream for Pieces {
    type Item = Result<String, CannotAnswer>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(cx)
    }
}

const WAIT: Duration = Duration::from_secs(20);

fn listen(house: &House, turn: &Value) -> impl Iterator<Item = String> + use<> {
    let mut stream = house.connect();
    let path = format!("/v1/turns/{}/events", turn.as_str().unwrap());
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer {TOKEN}\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    BufReader::new(stream).lines().map_while(Result::ok).filter(|l| l.starts_with("event:") || l.starts_with("data:"))
}

#[test]
fn pieces_are_heard_while_the_answer_grows_by_the_early_and_the_late() {
    let (responder, asked) = ByHand::new();
    let house = House::with(|o| o.responder = responder);
    let receipt = house.post("/v1/messages", &json!({ "conversation": "c", "text": "q" })).json();
    let mut early = listen(&house, &receipt["turn_id"]);
    let (question, answer) = asked.recv_timeout(WAIT).unwrap();
    assert_eq!(question.text, "q");
    answer.send(Ok("one ".into())).unwrap();
    assert_eq!(early.next().unwrap(), "event: delta");
    assert_eq!(early.next().unwrap(), r#"data: {"text":"one "}"#);
    let mut late = listen(&house, &receipt["turn_id"]);
    assert_eq!(late.next().unwrap(), "event: delta");
    assert_eq!(late.next().unwrap(), r#"data: {"text":"one "}"#);
    answer.send(Ok("two".into())).unwrap();
    drop(answer);
    for listener in [&mut early, &mut late] {
        assert_eq!(listener.next().unwrap(), "event: delta");
        assert_eq!(listener.next().unwrap(), r#"data: {"text":"two"}"#);
        assert_eq!(listener.next().unwrap(), "event: done");
        assert!(listener.next().unwrap().contains(r#""text":"one two""#));
    }
}

#[test]
fn within_a_conversation_one_after_the_other_and_beside_it_at_once() {
    let (responder, asked) = ByHand::new();
    let house = House::with(|o| o.responder = responder);
    for (conversation, text) in [("a", "a1"), ("a", "a2"), ("b", "b1")] {
        house.post("/v1/messages", &json!({ "conversation": conversation, "text": text }));
    }
    let mut open = [asked.recv_timeout(WAIT).unwrap(), asked.recv_timeout(WAIT).unwrap()];
    open.sort_by(|x, y| x.0.text.cmp(&y.0.text));
    assert_eq!(open.each_ref().map(|(q, _)| q.text.as_str()), ["a1", "b1"]);
    assert!(asked.recv_timeout(Duration::from_millis(100)).is_err(), "a2 began before a1 was answered");
    open[0].1.send(Ok("x".into())).unwrap();
    let [first, _second] = open;
    drop(first);
    assert_eq!(asked.recv_timeout(WAIT).unwrap().0.text, "a2");
}

#[test]
fn more_turns_than_places_wait_for_their_turn() {
    let (responder, asked) = ByHand::new();
    let house = House::with(|o| {
        o.responder = responder;
        o.turns.at_once = 2;
    });
    for n in 0..5 {
        house.post("/v1/messages", &json!({ "conversation": format!("c{n}"), "text": "q" }));
    }
    let mut open = vec![asked.recv_timeout(WAIT).unwrap(), asked.recv_timeout(WAIT).unwrap()];
    assert!(asked.recv_timeout(Duration::from_millis(100)).is_err());
    for _ in 0..3 {
        open.remove(0).1.send(Ok("x".into())).unwrap();
        open.push(asked.recv_timeout(WAIT).unwrap());
    }
}

#[test]
fn a_turn_that_cannot_be_answered_says_why_and_the_next_one_is_answered() {
    let (responder, asked) = ByHand::new();
    let house = House::with(|o| o.responder = responder);
    let waiting = std::thread::scope(|scope| {
        let waiter = scope.spawn(|| house.post("/v1/messages?wait=20", &json!({ "conversation": "c", "text": "q" })));
        let (_, answer) = asked.recv_timeout(WAIT).unwrap();
        answer.send(Ok("half".into())).unwrap();
        answer.send(Err(CannotAnswer("the model is away".into()))).unwrap();
        waiter.join().unwrap()
    });
    assert_eq!(waiting.status, 200);
    let document = waiting.json();
    assert!(document["reply"].is_null());
    assert_eq!(document["error"]["code"], "turn_failed");
    assert_eq!(document["error"]["detail"], "the model is away");
    let turn = house.store.turn(document["turn_id"].as_str().unwrap().parse().unwrap()).unwrap();
    assert_eq!((turn.state, turn.error.as_deref()), (TurnState::Failed, Some("the model is away")));
    let late: Vec<_> = listen(&house, &document["turn_id"]).collect();
    assert_eq!(late[late.len() - 2], "event: error");

    house.post("/v1/messages", &json!({ "conversation": "c", "text": "q2" }));
    let (question, _) = asked.recv_timeout(WAIT).unwrap();
    assert_eq!(question.text, "q2");
}

struct Breaks;

impl Responder for Breaks {
    fn name(&self) -> &str {
        "breaks"
    }
    fn respond(&self, _: Question) -> Answer {
        panic!("the responder breaks")
    }
}

struct Endless(Arc<AtomicU64>);

impl Responder for Endless {
    fn name(&self) -> &str {
        "endless"
    }
    fn respond(&self, _: Question) -> Answer {
        struct Always(Arc<AtomicU64>);
        impl Stream for Always {
            type Item = Result<String, CannotAnswer>;
            fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
                self.0.fetch_add(1, Ordering::Relaxed);
                Poll::Ready(Some(Ok("x".repeat(100))))
            }
        }
        Box::pin(Always(Arc::clone(&self.0)))
    }
}

#[test]
fn a_responder_that_breaks_down_or_never_ends_fails_its_turn_only() {
    let house = House::with(|o| o.responder = Arc::new(Breaks));
    let document = house.post("/v1/messages?wait=20", &json!({ "conversation": "c", "text": "q" })).json();
    assert_eq!(document["error"]["code"], "turn_failed");
    let chat = house.post("/v1/chat/completions", &json!({ "messages": [{ "role": "user", "content": "q" }] }));
    assert_eq!((chat.status, chat.problem().as_str()), (502, "turn_failed"));

    let pieces = Arc::new(AtomicU64::new(0));
    let house = House::with(|o| {
        o.responder = Arc::new(Endless(Arc::clone(&pieces)));
        o.turns.answer_bytes = 1 << 20;
    });
    let document = house.post("/v1/messages?wait=20", &json!({ "conversation": "c", "text": "q" })).json();
    assert!(document["error"]["detail"].as_str().unwrap().contains("longer than"), "{document}");
    assert!(pieces.load(Ordering::Relaxed) < 20_000);

    let (responder, asked) = ByHand::new();
    let house = House::with(|o| {
        o.responder = responder;
        o.turns.answer_time = Duration::from_millis(200);
    });
    let document = house.post("/v1/messages?wait=20", &json!({ "conversation": "c", "text": "q" })).json();
    assert!(document["error"]["detail"].as_str().unwrap().contains("no answer within"), "{document}");
    drop(asked);
}

#[test]
fn a_turn_that_a_dead_gateway_left_is_answered_once() {
    let directory = tempfile::tempdir().unwrap();
    let inbound = |text: &str| Inbound {
        channel: "http".into(),
        conversation: "c".into(),
        client_id: None,
        text: text.to_owned(),
    };
    let received = {
        // What a gateway leaves that died between taking a turn up and answering it, with a lease that is far from over.
        let store = SqliteStore::open(&directory.path().join("state.db"), "gateway", OpenMode::create()).unwrap();
        let received = store.receive(inbound("interrupted")).unwrap();
        store.receive(inbound("queued")).unwrap();
        let taken = store.take_turn(&Holder("gateway 1 dead".into()), 3_600_000_000).unwrap().unwrap();
        assert_eq!(taken.id, received.turn_id);
        store.close();
        received
    };
    for start in 0..3 {
        let house = House::at(directory.path(), |_| {});
        let messages = until("both answers", || {
            let messages = house.store.messages(received.session_id, &Page::default()).unwrap();
            (messages.len() >= 4).then_some(messages)
        });
        // Whatever a start does with what it finds, it has done before it answers this.
        house.is_well();
        assert_eq!(house.store.messages(received.session_id, &Page::default()).unwrap().len(), 4, "at start {start}");
        let answers: Vec<_> = messages.iter().filter(|m| m.role == Role::Assistant).map(|m| m.text.as_str()).collect();
        assert!(answers[0].ends_with("interrupted") && answers[1].ends_with("queued"), "{answers:?}");
        house.close();
    }
}

#[test]
fn a_lease_that_ran_out_over_a_running_answer_begins_no_second_one() {
    let (responder, asked) = ByHand::new();
    let house = House::with(|o| {
        o.responder = responder;
        o.turns.poll = Duration::from_millis(20);
        o.turns.lease = Duration::from_secs(3600);
    });
    let receipt = house.post("/v1/messages", &json!({ "conversation": "c", "text": "q" })).json();
    let (_, answer) = asked.recv_timeout(WAIT).unwrap();
    answer.send(Ok("only ".into())).unwrap();
    // What the runner finds after the machine has slept: its turn is free, and something was committed.
    house.store.trim_leases(statehouse_sessions::Micros(i64::MAX)).unwrap();
    let id = receipt["turn_id"].as_str().unwrap().parse().unwrap();
    until("the turn to be leased again", || (house.store.turn(id).unwrap().attempts == 2).then_some(()));
    answer.send(Ok("once".into())).unwrap();
    drop(answer);
    let reply = until("the answer", || house.store.turn(id).unwrap().reply_id);
    assert_eq!(house.store.message(reply).unwrap().text, "only once");
    assert!(asked.try_recv().is_err(), "the responder was asked again");
}

#[test]
fn a_turn_that_another_process_queued_is_taken_up() {
    let directory = tempfile::tempdir().unwrap();
    let house = House::at(directory.path(), |o| o.turns.poll = Duration::from_millis(50));
    house.is_well();
    let other = SqliteStore::open(&directory.path().join("state.db"), "worker", OpenMode::existing()).unwrap();
    let inbound = Inbound { channel: "cron".into(), conversation: "c".into(), client_id: None, text: "tick".into() };
    let received = other.receive(inbound).unwrap();
    until("the answer", || (other.turn(received.turn_id).unwrap().state == TurnState::Done).then_some(()));
    other.close();
}

#[test]
fn a_turn_that_ends_the_process_each_time_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let turn = {
        let store = SqliteStore::open(&directory.path().join("state.db"), "gateway", OpenMode::create()).unwrap();
        let inbound = Inbound { channel: "http".into(), conversation: "c".into(), client_id: None, text: "x".into() };
        let received = store.receive(inbound).unwrap();
        for n in 0..3 {
            store.take_turn(&Holder(format!("dead {n}")), 0).unwrap().unwrap();
        }
        store.close();
        received.turn_id
    };
    let house = House::at(directory.path(), |o| o.turns.attempts = 3);
    let failed =
        until("the end of the turn", || Some(house.store.turn(turn).unwrap()).filter(|t| t.state == TurnState::Failed));
    assert!(failed.error.unwrap().contains("taken up 3 times"));
    house.is_well();
}

#[test]
fn closing_lets_a_running_answer_end_and_leaves_the_rest_for_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let (responder, asked) = ByHand::new();
    let house = House::at(directory.path(), |o| {
        o.responder = responder;
        o.limits.grace = Duration::from_millis(600);
    });
    let post = |c: &str| house.post("/v1/messages", &json!({ "conversation": c, "text": c })).json();
    let (ends, stays) = (post("ends"), post("stays"));
    let mut open = [asked.recv_timeout(WAIT).unwrap(), asked.recv_timeout(WAIT).unwrap()];
    open.sort_by(|x, y| x.0.text.cmp(&y.0.text));
    let [(_, answer), (_, _kept_open)] = open;
    let listener = listen(&house, &stays["turn_id"]);
    answer.send(Ok("in time".into())).unwrap();
    drop(answer);
    house.close();
    assert_eq!(listener.count(), 0, "a listener hears no end that did not happen");

    let house = House::at(directory.path(), |_| {});
    let end = |turn: &Value| {
        let id = turn["turn_id"].as_str().unwrap().parse().unwrap();
        until("the end of a turn", || {
            let turn = house.store.turn(id).unwrap();
            turn.reply_id.map(|r| house.store.message(r).unwrap().text)
        })
    };
    assert_eq!(end(&ends), "in time");
    assert!(end(&stays).contains("echo"));
}
