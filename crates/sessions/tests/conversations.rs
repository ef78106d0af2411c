//! Sessions and messages.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::value::RawValue;
use statehouse_sessions::*;
use statehouse_testkit::Child;
use statehouse_testkit::visitor::Python;

use crate::House;

fn texts(messages: &[Message]) -> Vec<&str> {
    messages.iter().map(|m| m.text.as_str()).collect()
}

#[test]
fn a_session_is_created_once() {
    let house = House::new();
    let new = NewSession {
        id: SessionId::new(),
        parent_id: Some(SessionId::new()),
        title: Some("first".into()),
        source: "cli".into(),
    };
    let made = house.store.create_session(new.clone()).unwrap();
    assert_eq!((made.title.as_deref(), made.source.as_str(), made.parent_id), (Some("first"), "cli", new.parent_id));
    assert_eq!(made.started_at, made.last_active_at);
    let again = house.store.create_session(NewSession { title: Some("second".into()), ..new.clone() }).unwrap();
    assert_eq!(again.title.as_deref(), Some("first"));
    assert_eq!(house.store.sessions(&ListOptions::default()).unwrap().len(), 1);
    assert_eq!(house.store.find_session(&new.id.to_string()).unwrap().id, new.id);
    for unknown in ["nobody", &SessionId::new().to_string()] {
        assert_eq!(house.store.find_session(unknown).unwrap_err().code(), "not_found");
    }
}

#[test]
fn messages_keep_their_order_and_everything_in_them() {
    let house = House::new();
    let id = house.session();
    let json = |s: &str| Some(RawValue::from_string(s.into()).unwrap());
    let new = NewMessage {
        parts: json(r#"[{"type":"text" , "text":"caf\u00e9"}]"#),
        tool_calls: json(r#"[{"id":"c1","n":1.0e3}]"#),
        tool_call_id: Some("c0".into()),
        tool_name: Some("shell".into()),
        created_at: Micros(5),
        ..NewMessage::text(id, Role::Tool, "東京 🦀")
    };
    let stored = house.store.append(new.clone()).unwrap();
    let read = house.store.message(new.id).unwrap();
    for m in [&stored, &read] {
        assert_eq!((m.id, m.session_id, m.seq, m.role, m.created_at), (new.id, id, 1, Role::Tool, Micros(5)));
        assert_eq!(m.text, "東京 🦀");
        assert_eq!(m.parts.as_ref().unwrap().get(), new.parts.as_ref().unwrap().get());
        assert_eq!(m.tool_calls.as_ref().unwrap().get(), new.tool_calls.as_ref().unwrap().get());
        assert_eq!((m.tool_call_id.as_deref(), m.tool_name.as_deref()), (Some("c0"), Some("shell")));
    }
    house.say(id, "two");
    house.say(id, "");
    let all = house.store.messages(id, &Page::default()).unwrap();
    assert_eq!(texts(&all), ["東京 🦀", "two", ""]);
    assert_eq!(all.iter().map(|m| m.seq).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(house.store.session(id).unwrap().messages, 3);
}

#[test]
fn the_same_id_again_changes_nothing() {
    let house = House::new();
    let id = house.session();
    let new = NewMessage::text(id, Role::User, "once");
    let first = house.store.append(new.clone()).unwrap();
    let again = house.store.append(NewMessage { text: "twice".into(), ..new.clone() }).unwrap();
    assert_eq!((again.text.as_str(), again.seq), ("once", first.seq));
    let by_ticket = house.store.append_ticket(new).wait().unwrap();
    assert_eq!(by_ticket.seq, first.seq);
    assert_eq!(house.store.session(id).unwrap().messages, 1);
    assert_eq!(house.say(id, "next").seq, 2);
}

#[test]
fn what_cannot_be_stored_is_refused_whole() {
    let house = House::new();
    let id = house.session();
    let bad = [
        NewMessage::text(id, Role::User, "a\0b"),
        NewMessage { tool_name: Some("\0".into()), ..NewMessage::text(id, Role::Tool, "") },
        NewMessage { tool_call_id: Some("\0".into()), ..NewMessage::text(id, Role::Tool, "") },
    ];
    for new in bad {
        assert_eq!(house.store.append(new.clone()).unwrap_err().code(), "invalid");
        let by_ticket: Error = house.store.append_ticket(new.clone()).wait().unwrap_err().into();
        assert_eq!(by_ticket.code(), "invalid");
        assert_eq!(house.store.message(new.id).unwrap_err().code(), "not_found");
    }
    let nobody = NewMessage::text(SessionId::new(), Role::User, "x");
    assert_eq!(house.store.append(nobody).unwrap_err().code(), "not_found");
    assert_eq!(house.store.rename(id, Some("a\0".into())).unwrap_err().code(), "invalid");
    assert_eq!(house.store.end(id, "\0".into()).unwrap_err().code(), "invalid");
    let titled = NewSession { id: SessionId::new(), parent_id: None, title: Some("\0".into()), source: "x".into() };
    assert_eq!(house.store.create_session(titled).unwrap_err().code(), "invalid");
    assert_eq!(house.store.session(id).unwrap().messages, 0);
    assert_eq!(house.store.sessions(&ListOptions::default()).unwrap().len(), 1);
}

#[test]
fn pages_are_cut_at_messages() {
    let house = House::new();
    let id = house.session();
    let ids: Vec<MessageId> = (1..=5).map(|n| house.say(id, &n.to_string()).id).collect();
    let page = |before: Option<usize>, after: Option<usize>, limit| {
        let page = Page { before: before.map(|n| ids[n - 1]), after: after.map(|n| ids[n - 1]), limit };
        let found = house.store.messages(id, &page).unwrap();
        texts(&found).concat()
    };
    assert_eq!(page(None, None, None), "12345");
    assert_eq!(page(None, None, Some(2)), "45");
    assert_eq!(page(Some(4), None, Some(2)), "23");
    assert_eq!(page(None, Some(2), Some(2)), "34");
    assert_eq!(page(Some(5), Some(2), Some(9)), "34");
    assert_eq!(page(Some(4), None, None), "123");
    assert_eq!(page(None, Some(5), None), "");
    assert_eq!(page(None, None, Some(0)), "");

    let elsewhere = house.say(house.session(), "x").id;
    for odd in [elsewhere, MessageId::new()] {
        let page = Page { after: Some(odd), ..Page::default() };
        assert_eq!(house.store.messages(id, &page).unwrap_err().code(), "not_found");
    }
    assert_eq!(house.store.messages(SessionId::new(), &Page::default()).unwrap_err().code(), "not_found");
}

#[test]
fn lists_show_the_newest_activity_first_and_hide_what_is_put_away() {
    let house = House::new();
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|t| house.titled(Some(t)));
    for (session, at) in [(a, i64::MAX - 1), (b, i64::MAX - 3), (c, i64::MAX - 2)] {
        let new = NewMessage { created_at: Micros(at), ..NewMessage::text(session, Role::User, "x") };
        house.store.append(new).unwrap();
    }
    let set = |column: &'static str, session: SessionId| {
        let sql = format!("UPDATE session SET {column} = 1 WHERE id = ?1");
        house.store.database().write(move |c| Ok(c.execute(&sql, [session])?)).unwrap();
    };
    let list = |all, limit| {
        let found = house.store.sessions(&ListOptions { all, limit, source: None }).unwrap();
        found.iter().filter_map(|s| s.title.clone()).collect::<String>()
    };
    assert_eq!(list(false, None), "acbd");
    assert_eq!(list(false, Some(2)), "ac");
    set("pinned", d);
    assert_eq!(list(false, None), "dacb");
    set("archived", a);
    set("hidden", b);
    assert_eq!(list(false, None), "dc");
    assert_eq!(list(true, None), "dacb");
    let other = ListOptions { source: Some("telegram".into()), ..ListOptions::default() };
    assert!(house.store.sessions(&other).unwrap().is_empty());
}

#[test]
fn a_title_can_be_set_and_cleared_and_the_first_end_wins() {
    let house = House::new();
    let id = house.session();
    assert_eq!(house.store.rename(id, Some("t".into())).unwrap().title.as_deref(), Some("t"));
    assert_eq!(house.store.rename(id, None).unwrap().title, None);
    let ended = house.store.end(id, "done".into()).unwrap();
    let again = house.store.end(id, "later".into()).unwrap();
    assert_eq!((again.end_reason.as_deref(), again.ended_at), (Some("done"), ended.ended_at));
    assert!(ended.ended_at.is_some());
    assert_eq!(house.store.rename(SessionId::new(), None).unwrap_err().code(), "not_found");
    assert_eq!(house.store.end(SessionId::new(), String::new()).unwrap_err().code(), "not_found");
}

#[test]
fn two_handles_append_to_one_session_without_losing_a_place() {
    let house = House::new();
    let id = house.session();
    let handles = [
        SqliteStore::open(&house.path(), "a", OpenMode::existing()).unwrap(),
        SqliteStore::open(&house.path(), "b", OpenMode::existing()).unwrap(),
    ];
    std::thread::scope(|scope| {
        for store in &handles {
            scope.spawn(move || {
                let new = |n: u32| NewMessage::text(id, Role::User, n.to_string());
                let tickets: Vec<_> = (0..50).map(|n| store.append_ticket(new(n))).collect();
                for ticket in tickets {
                    ticket.wait().unwrap();
                }
            });
        }
    });
    let all = house.store.messages(id, &Page::default()).unwrap();
    assert_eq!(all.iter().map(|m| m.seq).collect::<Vec<_>>(), (1..=100).collect::<Vec<_>>());
    assert_eq!(house.store.session(id).unwrap().messages, 100);
}

/// The other half of [`processes_of_several_programs_append_to_one_session`], in a process of its own.
#[test]
#[ignore = "started by another test, as a process"]
fn appender() {
    let Some(path) = std::env::var_os("STATEHOUSE_TEST_STORE") else { return };
    let id: SessionId = std::env::var("STATEHOUSE_TEST_SESSION").unwrap().parse().unwrap();
    let store = SqliteStore::open(path.as_ref(), "appender", OpenMode::existing()).unwrap();
    for n in 0..40 {
        store.append(NewMessage::text(id, Role::User, format!("{} {n}", std::process::id()))).unwrap();
    }
    store.close();
}

#[test]
fn processes_of_several_programs_append_to_one_session() {
    let house = House::new();
    let id = house.session();
    let mut others: Vec<Child> = (0..2)
        .map(|_| {
            Child::spawn(
                Command::new(std::env::current_exe().unwrap())
                    .args(["--ignored", "--exact", "conversations::appender"])
                    .env("STATEHOUSE_TEST_STORE", house.path())
                    .env("STATEHOUSE_TEST_SESSION", id.to_string()),
            )
        })
        .collect();
    // A program with a stock library comes and goes beside them.
    let mut rounds = 0;
    while others.iter_mut().any(|c| c.ended().is_none()) {
        let mut stock = Python::open(&house.path());
        let sql = format!(
            "UPDATE session SET title = '{rounds}' WHERE hex(id) = '{}'",
            id.0.simple().to_string().to_uppercase()
        );
        stock.sql(&sql).unwrap();
        stock.quit();
        house.say(id, "here");
        rounds += 1;
    }
    for other in &mut others {
        assert!(other.wait(Duration::from_secs(60)).success());
    }
    let all = house.store.messages(id, &Page::default()).unwrap();
    assert_eq!(all.len(), 80 + rounds);
    assert_eq!(all.iter().map(|m| m.seq).collect::<Vec<_>>(), (1..=all.len() as i64).collect::<Vec<_>>());
    for process in others.iter().map(Child::pid) {
        let theirs: Vec<&str> = all.iter().filter_map(|m| m.text.strip_prefix(&format!("{process} "))).collect();
        assert_eq!(theirs, (0..40).map(|n| n.to_string()).collect::<Vec<_>>());
    }
    let session = house.store.session(id).unwrap();
    assert_eq!((session.messages, session.title), (all.len() as u64, Some((rounds - 1).to_string())));
}

#[test]
fn the_change_counter_moves_with_every_commit_of_anyone() {
    let house = House::new();
    let id = house.session();
    let other = SqliteStore::open(&house.path(), "other", OpenMode::existing()).unwrap();
    let settled = || {
        let begun = Instant::now();
        loop {
            let (a, b) = (house.store.change_counter().unwrap(), house.store.change_counter().unwrap());
            if a == b {
                return a;
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "it moves although nothing is written");
        }
    };
    let mut last = settled();
    for round in 0..10 {
        let writer = if round % 2 == 0 { &house.store } else { &other };
        writer.append(NewMessage::text(id, Role::User, "x")).unwrap();
        let now = house.store.change_counter().unwrap();
        assert!(now > last, "round {round}");
        last = settled();
    }
}

#[test]
fn a_canary_is_read_back_by_another_handle() {
    let house = House::new();
    let other = SqliteStore::open(&house.path(), "other", OpenMode::existing()).unwrap();
    assert_eq!(other.canary("gateway").unwrap(), None);
    let first = house.store.write_canary("gateway").unwrap();
    assert_eq!(other.canary("gateway").unwrap().unwrap().token, first);
    let second = house.store.write_canary("gateway").unwrap();
    assert_ne!(first, second);
    assert_eq!(other.canary("gateway").unwrap().unwrap().token, second);
    assert_eq!(other.canary("dashboard").unwrap(), None);
}

#[test]
fn health_names_the_files_in_use() {
    let house = House::new();
    house.session();
    let health = house.store.health().unwrap();
    assert!(health.current && !health.fenced);
    assert_eq!(health.path, house.path().canonicalize().unwrap());
    assert!(health.generation.main.is_some() && health.generation.wal.is_some());
    house.store.optimize().unwrap();
}
