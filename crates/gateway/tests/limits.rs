//! Clients that hold on to what they get: bounded in time and number.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use crate::house::{House, Reply, TOKEN};

#[test]
fn a_head_or_a_body_that_drips_is_cut_off() {
    let house = House::with(|o| {
        o.limits.header_time = Duration::from_millis(300);
        o.limits.body_time = Duration::from_millis(300);
    });
    let mut head = house.connect();
    head.write_all(b"GET /healthz HTTP/1.1\r\nHost: localh").unwrap();
    let mut body = house.connect();
    let request = format!(
        "POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 50\r\n\r\n{{\"conv"
    );
    body.write_all(request.as_bytes()).unwrap();
    let begin = Instant::now();
    let mut rest = Vec::new();
    head.read_to_end(&mut rest).unwrap();
    let reply = Reply::read(&mut body);
    assert_eq!((reply.status, reply.problem().as_str()), (408, "timeout"));
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert_eq!(house.rows(), (0, 0));
}

#[test]
fn one_connection_too_many_is_told_so_and_the_others_go_on() {
    let house = House::with(|o| o.limits.connections = 3);
    let ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let mut held: Vec<_> = (0..3).map(|_| house.connect()).collect();
    for stream in &mut held {
        stream.write_all(ask).unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200");
    }
    let reply = house.raw(ask);
    assert_eq!((reply.status, reply.problem().as_str()), (503, "too_many_connections"));
    drop(held.pop());
    let begin = Instant::now();
    while house.call_with("GET", "/healthz", &[], b"").status != 200 {
        assert!(begin.elapsed() < Duration::from_secs(10), "the place was not given back");
    }
}

#[test]
fn shutting_down_does_not_wait_for_those_who_only_listen() {
    let house = House::with(|o| o.limits.header_time = Duration::from_secs(60));
    let mut idle = house.connect();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = [0; 12];
    idle.read_exact(&mut answer).unwrap();
    let begin = Instant::now();
    house.close();
    assert!(begin.elapsed() < Duration::from_secs(4), "took {:?}", begin.elapsed());
}

#[test]
fn a_client_that_does_not_read_its_answers_loses_its_place() {
    let house = House::with(|o| {
        o.limits.connections = 1;
        o.limits.write_time = Duration::from_millis(300);
    });
    let text = "x".repeat(1_000_000);
    let message = serde_json::json!({ "conversation": "c", "text": text });
    let receipt = house.post("/v1/messages?wait=20", &message).json();
    let ask = format!(
        "GET /v1/turns/{}/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n",
        receipt["turn_id"].as_str().unwrap()
    );
    // Two megabytes for each of these, which is more than the kernel keeps for anybody.
    let hog = crate::house::until("the place", || {
        let mut hog = house.connect();
        hog.write_all(ask.repeat(20).as_bytes()).unwrap();
        let mut answer = [0; 12];
        hog.read_exact(&mut answer).unwrap();
        (&answer == b"HTTP/1.1 200").then_some(hog)
    });
    assert_eq!(house.call_with("GET", "/healthz", &[], b"").status, 503);
    crate::house::until("the place that the hog had", || {
        (house.call_with("GET", "/healthz", &[], b"").status == 200).then_some(())
    });
    drop(hog);
}
