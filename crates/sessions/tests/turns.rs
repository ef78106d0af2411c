//! Turns: kept once, answered once.

use statehouse_sessions::*;

use crate::House;

const LEASE: i64 = 60_000_000;

fn inbound(conversation: &str, client_id: Option<&str>, text: &str) -> Inbound {
    Inbound {
        channel: "http".into(),
        conversation: conversation.into(),
        client_id: client_id.map(Into::into),
        text: text.into(),
    }
}

fn holder(name: &str) -> Holder {
    Holder(name.into())
}

#[test]
fn a_redelivery_is_one_row() {
    let house = House::new();
    let first = house.store.receive(inbound("c", Some("m1"), "hi")).unwrap();
    assert!(!first.duplicate);
    let again = house.store.receive(inbound("c", Some("m1"), "hi again")).unwrap();
    assert_eq!(again, Received { duplicate: true, ..first.clone() });
    let elsewhere = house.store.receive(inbound("d", Some("m1"), "hi")).unwrap();
    assert_ne!(elsewhere.session_id, first.session_id);
    let unnamed = [(); 2].map(|()| house.store.receive(inbound("c", None, "same")).unwrap());
    assert_ne!(unnamed[0].turn_id, unnamed[1].turn_id);
    let all = house.store.messages(first.session_id, &Page::default()).unwrap();
    assert_eq!(all.iter().map(|m| m.text.as_str()).collect::<Vec<_>>(), ["hi", "same", "same"]);
    assert_eq!(house.store.session(first.session_id).unwrap().source, "http");

    for bad in [inbound("c", None, "a\0"), inbound("c\0", None, "a"), inbound("c", Some("\0"), "a")] {
        assert_eq!(house.store.receive(bad).unwrap_err().code(), "invalid");
    }
    assert_eq!(house.store.sessions(&ListOptions::default()).unwrap().len(), 2);
}

#[test]
fn a_conversation_whose_session_ended_goes_on_in_a_new_one() {
    let house = House::new();
    let first = house.store.receive(inbound("c", Some("m1"), "hi")).unwrap();
    house.store.end(first.session_id, "reset".into()).unwrap();
    let second = house.store.receive(inbound("c", Some("m2"), "hi")).unwrap();
    let session = house.store.session(second.session_id).unwrap();
    assert_eq!(session.parent_id, Some(first.session_id));
    assert!(house.store.receive(inbound("c", Some("m1"), "hi")).unwrap().duplicate);
    assert_eq!(house.store.receive(inbound("c", None, "more")).unwrap().session_id, second.session_id);
}

#[test]
fn turns_of_a_conversation_are_answered_one_after_the_other() {
    let house = House::new();
    let (me, you) = (holder("me"), holder("you"));
    assert!(house.store.take_turn(&me, LEASE).unwrap().is_none());
    let a1 = house.store.receive(inbound("a", None, "a1")).unwrap();
    let a2 = house.store.receive(inbound("a", None, "a2")).unwrap();
    let b1 = house.store.receive(inbound("b", None, "b1")).unwrap();

    let taken = house.store.take_turn(&me, LEASE).unwrap().unwrap();
    assert_eq!((taken.id, taken.state, taken.attempts), (a1.turn_id, TurnState::Running, 1));
    assert_eq!(house.store.take_turn(&you, LEASE).unwrap().unwrap().id, b1.turn_id);
    assert!(house.store.take_turn(&me, LEASE).unwrap().is_none());

    let reply = house.store.finish_turn(a1.turn_id, &me, "answer".into()).unwrap();
    assert_eq!((reply.role, reply.session_id, reply.seq), (Role::Assistant, a1.session_id, 3));
    let again = house.store.finish_turn(a1.turn_id, &you, "another".into()).unwrap();
    assert_eq!((again.id, again.text.as_str()), (reply.id, "answer"));
    let done = house.store.turn(a1.turn_id).unwrap();
    assert_eq!((done.state, done.reply_id), (TurnState::Done, Some(reply.id)));
    assert_eq!(done.channel, "http");

    assert_eq!(house.store.take_turn(&you, LEASE).unwrap().unwrap().id, a2.turn_id);
    house.store.fail_turn(a2.turn_id, &you, "no model".into()).unwrap();
    let failed = house.store.turn(a2.turn_id).unwrap();
    assert_eq!((failed.state, failed.error.as_deref()), (TurnState::Failed, Some("no model")));
    assert_eq!(house.store.finish_turn(a2.turn_id, &you, "late".into()).unwrap_err().code(), "invalid");
    house.store.delivered(a1.turn_id).unwrap();
    house.store.delivered(a1.turn_id).unwrap();
    let rows: i64 =
        house.store.database().read(|c| Ok(c.query_row("SELECT count(*) FROM delivery", [], |r| r.get(0))?)).unwrap();
    assert_eq!(rows, 1);
    for unknown in [house.store.delivered(TurnId::new()), house.store.fail_turn(TurnId::new(), &me, String::new())] {
        assert_eq!(unknown.unwrap_err().code(), "not_found");
    }
}

#[test]
fn a_turn_whose_lease_is_over_is_taken_up_by_another() {
    let house = House::new();
    let (dead, alive) = (holder("dead"), holder("alive"));
    let a = house.store.receive(inbound("a", None, "a")).unwrap();
    house.store.receive(inbound("a", None, "later")).unwrap();
    assert_eq!(house.store.take_turn(&dead, -1).unwrap().unwrap().id, a.turn_id);
    let again = house.store.take_turn(&alive, LEASE).unwrap().unwrap();
    assert_eq!((again.id, again.attempts), (a.turn_id, 2));
    // The one that came too late neither closes the turn nor renews a lease that is not its own.
    house.store.fail_turn(a.turn_id, &dead, "gave up".into()).unwrap();
    assert_eq!(house.store.turn(a.turn_id).unwrap().state, TurnState::Running);
    assert_eq!(house.store.renew_turns(&dead, -LEASE, &[a.turn_id]).unwrap(), 0);
    assert!(house.store.take_turn(&dead, LEASE).unwrap().is_none());
    assert_eq!(house.store.renew_turns(&alive, -LEASE, &[a.turn_id]).unwrap(), 0);
    assert_eq!(house.store.take_turn(&dead, LEASE).unwrap().unwrap().id, a.turn_id);
}

#[test]
fn a_turn_that_was_taken_by_a_call_whose_answer_was_lost_is_given_back_and_not_prolonged_for_ever() {
    let house = House::new();
    let me = holder("me");
    let (a, b) =
        (house.store.receive(inbound("a", None, "a")).unwrap(), house.store.receive(inbound("b", None, "b")).unwrap());
    // Taken twice: the first answer never came.
    assert_eq!(house.store.take_turn(&me, LEASE).unwrap().unwrap().id, a.turn_id);
    assert_eq!(house.store.take_turn(&me, LEASE).unwrap().unwrap().id, b.turn_id);
    assert!(house.store.take_turn(&me, LEASE).unwrap().is_none());
    assert_eq!(house.store.renew_turns(&me, LEASE, &[b.turn_id]).unwrap(), 1);
    assert_eq!(house.store.take_turn(&me, LEASE).unwrap().unwrap().id, a.turn_id);
    assert!(house.store.take_turn(&me, LEASE).unwrap().is_none(), "the other is still being answered");
}

#[test]
fn leases_are_given_back_and_trimmed() {
    let house = House::new();
    let (old, new) = (holder("old"), holder("new"));
    let a = house.store.receive(inbound("a", None, "a")).unwrap();
    let b = house.store.receive(inbound("b", None, "b")).unwrap();
    assert_eq!(house.store.take_turn(&old, LEASE).unwrap().unwrap().id, a.turn_id);
    assert_eq!(house.store.take_turn(&new, LEASE).unwrap().unwrap().id, b.turn_id);
    assert_eq!(house.store.trim_leases(Micros::now()).unwrap(), 0);
    assert_eq!(house.store.release_other_turns(&new).unwrap(), 1);
    assert_eq!(house.store.turn(a.turn_id).unwrap().state, TurnState::Queued);
    assert_eq!(house.store.turn(b.turn_id).unwrap().state, TurnState::Running);
    assert_eq!(house.store.trim_leases(Micros(i64::MAX)).unwrap(), 1);
    assert_eq!(house.store.turn(b.turn_id).unwrap().state, TurnState::Queued);
    assert_eq!(house.store.take_turn(&old, LEASE).unwrap().unwrap().id, a.turn_id);
}

#[test]
fn two_processes_never_take_the_same_turn() {
    let house = House::new();
    for n in 0..20 {
        house.store.receive(inbound(&n.to_string(), None, "x")).unwrap();
    }
    let other = SqliteStore::open(&house.path(), "other", OpenMode::existing()).unwrap();
    let take_all = |store: &SqliteStore, name: &str| {
        std::iter::from_fn(|| store.take_turn(&holder(name), LEASE).unwrap()).map(|t| t.id).collect::<Vec<_>>()
    };
    let (mut a, b) = std::thread::scope(|scope| {
        let b = scope.spawn(|| take_all(&other, "b"));
        (take_all(&house.store, "a"), b.join().unwrap())
    });
    a.extend(b);
    assert_eq!(a.len(), 20);
    a.sort();
    a.dedup();
    assert_eq!(a.len(), 20);
}
