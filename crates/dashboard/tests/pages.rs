//! What people see.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use statehouse_sessions::{JobKind, NewMessage, Role, Store};

use crate::house::House;

const EVIL: &str = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>&";

#[test]
fn nothing_that_was_said_is_markup() {
    let evil = EVIL;
    let house = House::with(|o| {
        o.holders = Arc::new(move || {
            json!({ "verdict": "held", "limits": [evil], "holders": [{ "pid": 7, "command": [evil], "user": evil, "role": evil,
                "naked": true, "stop": evil, "files": [{ "member": evil }] }] })
        });
    });
    let id = house.conversation(Some(EVIL), &[EVIL, EVIL]);
    house
        .store
        .append(NewMessage {
            tool_calls: Some(serde_json::value::to_raw_value(&json!([{ "name": EVIL }])).unwrap()),
            parts: Some(serde_json::value::to_raw_value(&json!({ "</pre><script>": EVIL })).unwrap()),
            tool_name: Some(EVIL.into()),
            ..NewMessage::text(id, Role::Tool, EVIL)
        })
        .unwrap();
    house.store.end(id, EVIL.into()).unwrap();
    house.store.ensure_job(EVIL, JobKind::Housekeeping { name: EVIL.into() }, 60).unwrap();
    let search = "/search?q=%3Cscript%3E+alert";
    for path in
        ["/", &format!("/sessions/{id}"), search, "/store", "/jobs", "/%3Cscript%3Ealert(1)", "/sessions/%3Cscript%3E"]
    {
        let page = house.get(path).body;
        let scripts = page.matches("<script").count();
        assert_eq!(scripts, 1, "{path} has a script that is not ours: {page}");
        assert!(!page.contains("<img") && !page.contains("onerror=alert(1)>\""), "{path}");
        // An address stays percent-encoded when it is shown.
        assert!(page.contains("&lt;script&gt;") || page.contains("/%3Cscript%3E"), "{path} does not show it: {page}");
    }
}

#[test]
fn the_list_shows_the_newest_first_and_goes_on_in_pages() {
    let house = House::new();
    assert!(house.page("/").contains("No conversation yet"));
    for n in 0..65 {
        house.conversation(Some(&format!("title-{n:02}.")), &["hello", "an answer"]);
    }
    let titles =
        |page: &str| -> Vec<u32> { page.split("title-").skip(1).map(|rest| rest[..2].parse().unwrap()).collect() };
    let first = house.page("/");
    assert_eq!(titles(&first), (35..65).rev().collect::<Vec<_>>());
    assert!(first.contains("Assistant: an answer") && first.contains("2 messages"));
    assert!(first.contains(r#"href="/?page=2""#));
    assert_eq!(titles(&house.page("/?page=2")), (5..35).rev().collect::<Vec<_>>());
    let last = house.page("/?page=3");
    assert_eq!(titles(&last), (0..5).rev().collect::<Vec<_>>());
    assert!(!last.contains("page=4") && last.contains("page=2"));
    assert!(house.page("/?page=99").contains("nothing on this page"));
    assert_eq!(house.get("/?page=x").status, 400);
}

#[test]
fn a_long_conversation_is_whole_over_its_pages() {
    let house = House::new();
    let id = house.conversation(None, &[]);
    let ids: Vec<String> = (0..230).map(|n| house.say(id, Role::User, &format!("said-{n:03}."))).collect();
    let said =
        |page: &str| -> Vec<usize> { page.split("said-").skip(1).map(|rest| rest[..3].parse().unwrap()).collect() };
    let here = format!("/sessions/{id}");
    let newest = house.page(&here);
    assert_eq!(said(&newest), (130..230).collect::<Vec<_>>());
    assert!(newest.contains(&format!("data-follow=\"/api/sessions/{id}/events?after={}\"", ids[229])));
    assert!(newest.contains(&format!("{here}?before={}", ids[130])) && !newest.contains("Later messages"));
    let middle = house.page(&format!("{here}?before={}", ids[130]));
    assert_eq!(said(&middle), (30..130).collect::<Vec<_>>());
    assert!(middle.contains("Later messages") && !middle.contains("data-follow"));
    let oldest = house.page(&format!("{here}?before={}", ids[30]));
    assert_eq!(said(&oldest), (0..30).collect::<Vec<_>>());
    assert!(!oldest.contains("Earlier messages"));
    assert_eq!(said(&house.page(&format!("{here}?after={}", ids[29]))), (30..130).collect::<Vec<_>>());
    assert_eq!(said(&house.page(&format!("{here}?after={}", ids[129]))), (130..230).collect::<Vec<_>>());
    let around = house.page(&format!("{here}?at={}", ids[100]));
    assert_eq!(said(&around), (50..151).collect::<Vec<_>>());
    assert!(around.contains("wanted"));
    assert_eq!(said(&house.page(&format!("{here}?at={}", ids[0]))), (0..51).collect::<Vec<_>>());
}

#[test]
fn what_is_not_there_is_said_on_a_page() {
    let house = House::new();
    for path in ["/nowhere", "/sessions/unknown", "/sessions/01a22a84-d64d-7139-806b-5fea72fb4859"] {
        let reply = house.get(path);
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.body.contains("This did not work") && reply.body.contains("not_found"), "{path}");
    }
    assert_eq!(house.get("/sessions/x?before=no-id").status, 400);
    let (one, other) = (house.conversation(None, &["a"]), house.conversation(None, &[]));
    let message = house.say(other, Role::User, "elsewhere");
    let page = house.get(&format!("/sessions/{one}?at={message}"));
    assert_eq!(page.status, 404);
    assert!(!page.body.contains("elsewhere"), "a message is shown in a conversation that it is not in");
}

#[test]
fn the_whole_of_a_very_long_text_does_not_make_a_very_long_page() {
    let house = House::new();
    let id = house.conversation(None, &[&"日".repeat(200_000)]);
    let page = house.page(&format!("/sessions/{id}"));
    assert!(page.len() < 400_000 && page.contains("200000 characters"), "{}", page.len());
}

#[test]
fn search_marks_what_was_found_and_leads_to_the_place() {
    let house = House::new();
    let id = house.conversation(Some("Travel"), &["The ferry to Thessaloniki leaves at nine", "Noted"]);
    house.conversation(Some("Other"), &["nothing of that"]);
    let page = house.page("/search?q=thessaloniki");
    assert!(page.contains("<mark>Thessaloniki</mark>"), "{page}");
    assert!(page.contains("1 find for") && page.contains("Travel") && !page.contains("Other"));
    assert!(page.contains(&format!("/sessions/{id}?at=")));
    assert!(page.contains(r#"value="thessaloniki""#));
    assert!(house.page("/search?q=nosuchword").contains("Nothing was found"));
    assert!(house.page("/search").contains("Write what you look for"));
    assert!(house.page("/search?q=%20").contains("Write what you look for"));
}

#[test]
fn holders_that_are_not_in_order_are_named_in_words() {
    let house = House::with(|o| {
        o.holders = Arc::new(|| {
            let locks = json!({ "shared": true, "dms": true, "reserved": false, "write": true, "readers": [0, 1] });
            let file = |member: &str, generation: &str| json!({ "member": member, "generation": generation });
            json!({ "verdict": "held", "uninspected": 0, "limits": ["Other namespaces show by their locks only."], "holders": [
                { "pid": 11, "role": "gateway", "command": ["statehouse", "gateway"], "user": "me", "self": false, "naked": false,
                  "ghost": false, "files": [file("main", "current"), file("wal", "current"), file("wal", "current")], "locks": locks },
                { "pid": 12, "role": null, "command": ["hermes"], "user": "me", "naked": true, "ghost": false,
                  "files": [file("main", "current")], "locks": { "readers": [] }, "stop": "kill 12" },
                { "pid": null, "role": null, "command": [], "user": "", "naked": false, "ghost": true, "files": [file("wal", "retired")] },
            ]})
        });
    });
    let page = house.page("/store");
    for part in [
        "PID 12 has lost its locks.",
        "An unseen process is writing into a deleted WAL.",
        "kill 12",
        "main, wal<",
        "wal (retired)",
        "shared, index, write, 2 readers",
        "Other namespaces",
        "statehouse gateway",
        "Current: the paths name",
        "in order",
    ] {
        assert!(page.contains(part), "{part} is not on {page}");
    }
    let card = house.page("/");
    assert!(card.contains("PID 12 has lost its locks.") && card.contains("is writing into a deleted WAL"));
}

#[test]
fn the_store_page_tells_of_the_last_snapshot_in_one_line_and_of_what_has_failed_since() {
    let house = House::with(|o| {
        o.snapshots = Arc::new(|| {
            json!({
                "last": {"id": "s", "created_at": "2026-11-30T01:02:03.000000Z", "age_s": 60, "bytes": 4096},
                "failed": {"at": "2026-11-30T02:00:00Z", "code": "disk_full", "error": "no <room>", "failures": 1},
                "warning": "the last good snapshot is 3 days old",
            })
        });
    });
    let page = house.page("/store");
    for part in [
        "Last good snapshot: 2026-11-30T01:02:03.000000Z, 4096 bytes.",
        "The last attempt failed: no &lt;room&gt;",
        "Snapshots: the last good snapshot is 3 days old.",
    ] {
        assert!(page.contains(part), "{part} is not on {page}");
    }
    let house = House::with(|o| o.snapshots = Arc::new(|| json!({"last": null, "failed": null, "warning": null})));
    let page = house.page("/store");
    assert!(page.contains("There is no good snapshot yet.") && !page.contains("The last attempt"), "{page}");
}

#[test]
fn a_look_at_the_holders_that_fails_is_shown_beside_the_rest() {
    let house = House::with(|o| o.holders = Arc::new(|| panic!("the look breaks")));
    house.conversation(Some("still here"), &["x"]);
    assert!(house.page("/").contains("still here"));
    assert!(house.page("/store").contains("the service failed to answer"));
    let house = House::with(|o| {
        o.holders =
            Arc::new(|| json!({ "error": { "code": "io", "message": "cannot look into /proc", "hint": "mount it" } }));
    });
    assert!(house.page("/store").contains("cannot look into /proc"));
    let house = House::with(|o| {
        o.holders =
            Arc::new(|| json!({ "verdict": "unknown", "holders": [], "limits": [{ "message": "no /proc here" }] }));
    });
    let page = house.page("/store");
    assert!(page.contains("could not be seen who holds it") && page.contains("no /proc here"), "{page}");
    assert!(!page.contains("none has lost its locks"), "what was not seen is called good: {page}");
}

#[test]
fn the_store_page_tells_when_the_paths_name_other_files() {
    let house = House::new();
    assert!(house.page("/store").contains("Current: the paths name"));
    let wal = house.directory.path().join("state.db-wal");
    std::fs::rename(&wal, house.directory.path().join("away")).unwrap();
    let shown = house.get("/store");
    assert!(!shown.body.contains("Current: the paths name"), "{shown:?}");
}

#[test]
fn jobs_are_listed() {
    let house = House::new();
    assert!(house.page("/jobs").contains("No job yet"));
    house.store.ensure_job("tidy", JobKind::Housekeeping { name: "optimize".into() }, 5400).unwrap();
    let page = house.page("/jobs");
    assert!(page.contains("tidy") && page.contains("every 90m") && page.contains("housekeeping: optimize"));
    assert!(house.page("/incidents").contains("No incident is open"));
}

#[test]
fn an_incident_that_waits_for_a_person_stands_on_every_page_until_it_is_closed() {
    let open = Arc::new(AtomicBool::new(true));
    let (asked, closed) = (Arc::clone(&open), Arc::clone(&open));
    let house = House::with(|o| {
        o.incidents = Arc::new(move || {
            let open = asked.load(Ordering::Relaxed);
            json!([{ "id": "20260101T000000.000000-1a2b3c4d", "title": "A file was truncated", "what": EVIL, "open": open,
                "needs_person": open, "count": 2, "at": "2026-01-01T00:00:00.000000Z", "last_at": "2026-01-01T00:00:01.000000Z",
                "lost": "the last 3 frames", "cause": EVIL, "evidence": [EVIL], "next": "statehouse verify", "done": EVIL,
                "affected": [{ "pid": 7, "role": EVIL, "cut_off_at": "2026-01-01T00:00:00.000000Z", "ms": 812.0 }],
                "timeline": [{ "at": "2026-01-01T00:00:00.000000Z", "pid": 7, "role": "gateway", "sentence": EVIL }] }])
        });
        o.close_incident =
            Arc::new(move |id| Ok(id == "20260101T000000.000000-1a2b3c4d" && closed.swap(false, Ordering::Relaxed)));
    });
    let id = house.conversation(Some("x"), &["y"]);
    let pages = ["/", "/store", "/jobs", "/incidents", "/search?q=y", &format!("/sessions/{id}"), "/nowhere"];
    for path in pages {
        assert!(house.get(path).body.contains("An incident waits for you"), "no notice on {path}");
    }
    let login = house.call("GET", "/login", &[], "");
    assert!(!login.body.contains("incident waits"), "a stranger learns nothing");
    let here = "/incidents/20260101T000000.000000-1a2b3c4d";
    let page = house.page(here);
    for part in [
        "A file was truncated",
        "the last 3 frames",
        "statehouse verify",
        "for 812 ms",
        "2 times",
        &format!("action=\"{here}/close\""),
    ] {
        assert!(page.contains(part), "{part} is not on {page}");
    }
    assert_eq!(page.matches("<script").count(), 1, "{page}");
    assert_eq!(house.json("/api/incidents")[0]["count"], 2);
    assert_eq!(house.get("/incidents/unknown").status, 404);

    // A form of another site cannot press the button, and neither can a stranger.
    let cookie = house.call("GET", &format!("/login?code={}", crate::house::CODE), &[], "").cookie().unwrap();
    let press = |headers: &[(&str, &str)]| house.call("POST", &format!("{here}/close"), headers, "").status;
    assert_eq!(press(&[("Cookie", &cookie), ("Origin", "http://evil.example"), ("Sec-Fetch-Site", "cross-site")]), 403);
    assert_eq!(press(&[]), 303);
    assert!(house.page("/").contains("An incident waits for you"), "it is still open");
    let origin = format!("http://{}", house.address);
    assert_eq!(press(&[("Cookie", &cookie), ("Origin", &origin)]), 303);
    for path in pages {
        assert!(!house.get(path).body.contains("incident waits"), "the notice is gone from {path}");
    }
    assert!(!house.page(here).contains("close it"), "there is no button any more");
}
