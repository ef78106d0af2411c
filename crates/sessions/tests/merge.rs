//! Two images of one store that went on apart, brought together again.

use statehouse_sessions::sqlite::SessionsSchema;
use statehouse_sessions::*;
use statehouse_sqlite::Schema as _;
use statehouse_sqlite::rusqlite::{Connection, OpenFlags};

use crate::House;

/// A second store in the same directory that starts as a copy of the first.
fn twin(house: &House) -> SqliteStore {
    let path = house.home.path().join("twin.db");
    let plain = Connection::open(house.path()).unwrap();
    plain.execute("VACUUM INTO ?1", [path.to_str().unwrap()]).unwrap();
    SqliteStore::open(&path, "twin", OpenMode::existing()).unwrap()
}

/// Merges what only `retired` has into `live`, as the database layer does it.
fn merge(live: &House, retired: &SqliteStore) -> u64 {
    let path = retired.database().family().main();
    live.store
        .database()
        .write(move |c| {
            let retired = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
            SessionsSchema.merge(c, &retired)
        })
        .unwrap()
}

fn inbound(client_id: &str, text: &str) -> Inbound {
    Inbound { channel: "http".into(), conversation: "c".into(), client_id: Some(client_id.into()), text: text.into() }
}

fn texts(store: &SqliteStore, id: SessionId) -> Vec<String> {
    store.messages(id, &Page::default()).unwrap().into_iter().map(|m| m.text).collect()
}

#[test]
fn messages_of_both_generations_are_kept_each_once() {
    let live = House::new();
    let shared = live.session();
    live.say(shared, "both");
    let retired = twin(&live);
    live.say(shared, "live 1");
    live.say(shared, "live 2");
    for n in 1..=3 {
        retired.append(NewMessage::text(shared, Role::User, format!("retired {n}"))).unwrap();
    }
    let only = NewSession { id: SessionId::new(), parent_id: Some(shared), title: None, source: "cli".into() };
    let only = retired.create_session(only).unwrap().id;
    retired.append(NewMessage::text(only, Role::User, "alone")).unwrap();

    assert_eq!(merge(&live, &retired), 5);
    let kept = texts(&live.store, shared);
    assert_eq!(kept, ["both", "live 1", "live 2", "retired 1", "retired 2", "retired 3"]);
    let seqs: Vec<i64> = live.store.messages(shared, &Page::default()).unwrap().iter().map(|m| m.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6]);
    assert_eq!(live.store.session(shared).unwrap().messages, 6);
    assert_eq!(texts(&live.store, only), ["alone"]);
    let session = live.store.session(only).unwrap();
    assert_eq!((session.messages, session.parent_id), (1, Some(shared)));

    assert_eq!(merge(&live, &retired), 0, "a second time there is nothing to take");
    assert_eq!(live.say(shared, "after").seq, 7);
}

#[test]
fn of_two_versions_of_a_session_the_newer_is_kept() {
    let live = House::new();
    let [newer_live, newer_retired] = ["a", "b"].map(|t| live.titled(Some(t)));
    let retired = twin(&live);
    retired.rename(newer_live, Some("old".into())).unwrap();
    live.store.rename(newer_live, Some("new".into())).unwrap();
    live.store.rename(newer_retired, Some("old".into())).unwrap();
    retired.rename(newer_retired, Some("new".into())).unwrap();
    retired.end(newer_retired, "done".into()).unwrap();
    assert_eq!(merge(&live, &retired), 1);
    for id in [newer_live, newer_retired] {
        assert_eq!(live.store.session(id).unwrap().title.as_deref(), Some("new"));
    }
    assert_eq!(live.store.session(newer_retired).unwrap().end_reason.as_deref(), Some("done"));
}

#[test]
fn a_turn_answered_in_either_generation_is_not_answered_again() {
    let live = House::new();
    let holder = Holder("gateway".into());
    let both = live.store.receive(inbound("m1", "hi")).unwrap();
    let retired = twin(&live);
    // The retired generation answered; the live one has it open, and touched it later.
    retired.take_turn(&holder, 60_000_000).unwrap().unwrap();
    let reply = retired.finish_turn(both.turn_id, &holder, "answer".into()).unwrap();
    live.store.take_turn(&holder, 60_000_000).unwrap().unwrap();
    // A message that only the retired generation has, and one that the platform delivered to both.
    let only = retired.receive(inbound("m2", "only there")).unwrap();
    let twice_there = retired.receive(inbound("m3", "twice")).unwrap();
    let twice_here = live.store.receive(inbound("m3", "twice")).unwrap();

    assert!(merge(&live, &retired) > 0);
    let turn = live.store.turn(both.turn_id).unwrap();
    assert_eq!((turn.state, turn.reply_id), (TurnState::Done, Some(reply.id)));
    assert_eq!(live.store.turn(only.turn_id).unwrap().state, TurnState::Queued);
    assert!(live.store.receive(inbound("m2", "only there")).unwrap().duplicate);
    assert_eq!(live.store.turn(twice_there.turn_id).unwrap().state, TurnState::Failed);
    assert_eq!(live.store.turn(twice_here.turn_id).unwrap().state, TurnState::Queued);
    assert_eq!(live.store.receive(inbound("m3", "twice")).unwrap().turn_id, twice_here.turn_id);

    let mut open = Vec::new();
    while let Some(turn) = live.store.take_turn(&holder, 60_000_000).unwrap() {
        live.store.finish_turn(turn.id, &holder, "ok".into()).unwrap();
        open.push(turn.id);
    }
    open.sort();
    let mut expected = [only.turn_id, twice_here.turn_id];
    expected.sort();
    assert_eq!(open, expected);
    assert_eq!(merge(&live, &retired), 0);
}

#[test]
fn jobs_are_one_by_name_and_no_occurrence_is_run_twice() {
    let live = House::new();
    let kind = || JobKind::Housekeeping { name: "trim".into() };
    let holder = Holder("s".into());
    let shared = live.store.ensure_job("shared", kind(), 60).unwrap();
    let retired = twin(&live);
    let claimed = retired.claim_occurrence(&holder, shared.next_due_at).unwrap().unwrap();
    retired.finish_occurrence(shared.id, claimed.due_at, Some("broke".into())).unwrap();
    let there = retired.ensure_job("made twice", kind(), 60).unwrap();
    let here = live.store.ensure_job("made twice", kind(), 60).unwrap();
    assert_ne!(there.id, here.id);
    retired.claim_occurrence(&holder, there.next_due_at).unwrap().unwrap();

    assert!(merge(&live, &retired) > 0);
    assert_eq!(live.store.jobs().unwrap().len(), 2);
    let due = here.next_due_at.max(there.next_due_at).max(shared.next_due_at);
    let mut again = Vec::new();
    while let Some(o) = live.store.claim_occurrence(&holder, due).unwrap() {
        again.push((o.job.name, o.due_at));
    }
    assert!(!again.contains(&("shared".into(), claimed.due_at)), "{again:?}");
    assert_eq!(merge(&live, &retired), 0);
}
