//! How the gateway says that it is well, and that it is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::json;

use crate::house::{House, until};

#[test]
fn alive_needs_no_token_and_says_nothing_else() {
    let house = House::new();
    let reply = house.call_with("GET", "/healthz", &[], b"");
    assert_eq!((reply.status, reply.json()), (200, json!({ "alive": true })));
}

#[test]
fn ready_is_what_the_probe_proves() {
    let well = Arc::new(AtomicBool::new(true));
    let asked = Arc::new(AtomicU64::new(0));
    let house = House::with(|o| {
        let (well, asked) = (Arc::clone(&well), Arc::clone(&asked));
        o.readiness = Arc::new(move || {
            asked.fetch_add(1, Ordering::SeqCst);
            json!({ "ready": well.load(Ordering::SeqCst), "canary": { "token": "t" } })
        });
    });
    let ready = until("readiness", || Some(house.get("/readyz")).filter(|r| r.status == 200));
    assert_eq!(ready.json()["ready"], true);
    assert_eq!(ready.json()["canary"]["token"], "t");
    assert_eq!(ready.json()["turns"]["resumed"], true);
    let before = asked.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| assert_eq!(house.get("/readyz").status, 200));
        }
    });
    assert!(asked.load(Ordering::SeqCst) <= before + 5, "each request starts a probe of its own");
    well.store(false, Ordering::SeqCst);
    let refused = until("the end of readiness", || Some(house.get("/readyz")).filter(|r| r.status == 503));
    assert_eq!(refused.json()["ready"], false);
    assert!(refused.header("retry-after").is_some());
}

#[test]
fn a_probe_that_breaks_down_is_not_readiness() {
    let house = House::with(|o| o.readiness = Arc::new(|| panic!("the probe breaks")));
    let reply = house.get("/readyz");
    assert_eq!((reply.status, reply.problem().as_str()), (500, "internal"));
    house.is_well();
    let house = House::with(|o| o.readiness = Arc::new(|| json!("well")));
    assert_eq!(house.get("/readyz").status, 503);
}

#[test]
fn metrics_count_and_show_no_text() {
    let house = House::new();
    house.post("/v1/messages?wait=20", &json!({ "conversation": "secret-name", "text": "secret-text", "id": "1" }));
    house.post("/v1/messages?wait=20", &json!({ "conversation": "secret-name", "text": "secret-text", "id": "1" }));
    house.get("/nowhere");
    let page = until("the count of the turn", || {
        Some(house.get("/metrics").body).filter(|p| p.contains("statehouse_turns_total{outcome=\"done\"} 1\n"))
    });
    for line in [
        "statehouse_messages_received_total{duplicate=\"false\"} 1\n",
        "statehouse_messages_received_total{duplicate=\"true\"} 1\n",
        "statehouse_http_requests_total{code=\"200\"} ",
        "statehouse_http_requests_total{code=\"404\"} 1\n",
        "statehouse_store_up 1\n",
        "statehouse_store_generation_current 1\n",
        "statehouse_turns_running 0\n",
        "# TYPE statehouse_uptime_seconds gauge\n",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("secret"));
    for line in page.lines().filter(|l| !l.starts_with('#')) {
        let (_, value) = line.rsplit_once(' ').unwrap();
        value.parse::<f64>().unwrap();
    }
}

#[test]
fn a_closed_store_is_an_answer_and_not_the_end() {
    use statehouse_sessions::Store;
    let house = House::new();
    house.is_well();
    house.store.close();
    let reply = house.post("/v1/messages", &json!({ "conversation": "c", "text": "t" }));
    assert_eq!((reply.status, reply.problem().as_str()), (503, "closed"));
    assert!(reply.header("retry-after").is_some());
    assert!(house.get("/metrics").body.contains("statehouse_store_up 0\n"));
    assert_eq!(house.call_with("GET", "/healthz", &[], b"").status, 200);
}
