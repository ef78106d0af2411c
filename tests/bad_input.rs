//! Whatever a client sends: a clear answer in the shape of every error, nothing stored, and the gateway goes on.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;
use statehouse_testkit::Home;

use crate::house::{Client, PATIENCE, Service, furnished, messages, raw};

/// A request by hand, so that nothing of it is made right on the way.
fn request(head: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("{head}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len()).into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Status and document of an answer.
fn parse(answer: &str) -> (u16, Value) {
    let status =
        answer.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or_else(|| panic!("no status: {answer:?}"));
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    // A chunked body carries its sizes on lines of their own.
    let json = body.find('{').zip(body.rfind('}')).map_or("", |(from, to)| &body[from..=to]);
    (status, serde_json::from_str(json).unwrap_or(Value::Null))
}

#[test]
fn each_bad_request_is_told_what_is_wrong_and_nothing_is_stored() {
    let home = furnished(Home::new());
    let mut gateway = Service::start(&home, "gateway", |_| {});
    let token = home.token();
    let client = Client::new(&gateway.url, &token);
    client.talk("good", "1", "before the storm");

    let host = gateway.url.trim_start_matches("http://").to_owned();
    let head = |host: &str, token: Option<&str>| {
        let line = token.map(|t| format!("\r\nAuthorization: Bearer {t}")).unwrap_or_default();
        format!("POST /v1/messages HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json{line}")
    };
    let good = head(&host, Some(&token));
    let valid = br#"{"conversation":"bad","text":"never stored"}"#;
    let mut cases: Vec<(&str, Vec<u8>, &[u16])> = vec![
        ("no token", request(&head(&host, None), valid), &[401]),
        ("a wrong token", request(&head(&host, Some("wrong")), valid), &[401]),
        ("a foreign host", request(&head("evil.example", Some(&token)), valid), &[403]),
        ("two hosts", request(&format!("{}\r\nHost: evil.example", head(&host, Some(&token))), valid), &[400, 403]),
        ("no host", request(&head(&host, Some(&token)).replace(&format!("\r\nHost: {host}"), ""), valid), &[400, 403]),
    ];
    let bodies: [(&str, &[u8]); 17] = [
        ("nothing", b""),
        ("not JSON", b"hello"),
        ("half a document", br#"{"conversation":"bad","text":"never st"#),
        ("two documents", br#"{"conversation":"bad","text":"never stored"}{}"#),
        ("an array", b"[]"),
        ("null", b"null"),
        ("a number for text", br#"{"conversation":"bad","text":7}"#),
        ("null for text", br#"{"conversation":"bad","text":null}"#),
        ("an object for a conversation", br#"{"conversation":{},"text":"never stored"}"#),
        ("no text", br#"{"conversation":"bad"}"#),
        ("no conversation", br#"{"text":"never stored"}"#),
        ("an unknown field", br#"{"conversation":"bad","text":"never stored","urgent":true}"#),
        ("a field twice", br#"{"conversation":"bad","text":"never stored","text":"never stored"}"#),
        ("invalid UTF-8", b"{\"conversation\":\"bad\",\"text\":\"never \xff\xfe stored\"}"),
        ("a NUL", br#"{"conversation":"bad","text":"never\u0000stored"}"#),
        ("a lone surrogate", br#"{"conversation":"bad","text":"never \ud800 stored"}"#),
        ("an empty conversation", br#"{"conversation":"","text":"never stored"}"#),
    ];
    for (name, body) in bodies {
        cases.push((name, request(&good, body), &[400, 422]));
    }
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    cases.push(("a very deep document", request(&good, deep.as_bytes()), &[400, 413, 422]));
    let long_name = format!(r#"{{"conversation":"{}","text":"never stored"}}"#, "n".repeat(100_000));
    cases.push(("a conversation with a very long name", request(&good, long_name.as_bytes()), &[400, 413, 422]));
    cases.push(("an unknown path", request(&good.replace("/v1/messages", "/v1/nothing"), valid), &[404]));
    cases.push(("a wrong method", request(&good.replace("POST", "DELETE"), valid), &[405]));
    cases.push((
        "a nonsense wait",
        request(&good.replace("/v1/messages", "/v1/messages?wait=soon"), valid),
        &[400, 422],
    ));
    cases.push((
        "an unknown turn",
        request(&good.replace("POST /v1/messages", "GET /v1/turns/none/events"), b""),
        &[400, 404],
    ));

    for (name, bytes, allowed) in &cases {
        let answer = raw(&gateway.url, bytes);
        let (status, document) = parse(&answer);
        assert!(allowed.contains(&status), "{name}: {answer}");
        let error = &document["error"];
        assert!(error["code"].as_str().is_some_and(|c| !c.is_empty()), "{name}: {answer}");
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{name}: {answer}");
        assert!(!answer.contains(&token), "{name}: the token is in the answer");
    }
    assert!(gateway.child.ended().is_none(), "the gateway lives");
    client.talk("good", "2", "after the storm");
    drop(gateway);
    let rows = messages(&home);
    assert_eq!(rows.iter().filter(|r| r.1 == "user").count(), 2, "{rows:?}");
    assert!(!rows.iter().any(|r| r.2.contains("stored")), "{rows:?}");
}

#[test]
fn a_body_of_a_hundred_megabytes_is_refused_without_being_kept() {
    let home = furnished(Home::new());
    let gateway = Service::start(&home, "gateway", |_| {});
    let host = gateway.url.trim_start_matches("http://").to_owned();
    let token = home.token();
    let before = statehouse_testkit::kernel::usage(gateway.pid()).unwrap().0;
    for declared in [true, false] {
        let length = if declared { "Content-Length: 104857600" } else { "Transfer-Encoding: chunked" };
        let mut stream = TcpStream::connect(&host).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(
            stream,
            "POST /v1/messages HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\
             Content-Type: application/json\r\n{length}\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let block = vec![b'x'; 1 << 20];
        for i in 0..100 {
            let mut part = Vec::new();
            if !declared {
                part.extend_from_slice(format!("{:x}\r\n", block.len()).as_bytes());
            } else if i == 0 {
                part.extend_from_slice(br#"{"conversation":"bad","text":""#);
            }
            part.extend_from_slice(&block[part.len().min(if declared { 30 } else { 0 })..]);
            if !declared {
                part.extend_from_slice(b"\r\n");
            }
            // A server that has said no closes; the rest need not be sent.
            if stream.write_all(&part).is_err() {
                break;
            }
        }
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        if declared {
            assert_eq!(parse(&answer).0, 413, "{answer}");
        } else if !answer.is_empty() {
            // The reset that follows an early answer may overtake it on the way; when it arrives it says this.
            assert_eq!(parse(&answer).0, 413, "{answer}");
        }
    }
    let after = statehouse_testkit::kernel::usage(gateway.pid()).unwrap().0;
    assert!(after < before + (32 << 20), "the gateway grew from {before} to {after} bytes");
    Client::new(&gateway.url, &token).talk("good", "1", "still here");
}

#[test]
fn slow_and_silent_clients_do_not_stop_others() {
    let home = furnished(Home::new());
    let gateway = Service::start(&home, "gateway", |_| {});
    let host = gateway.url.trim_start_matches("http://").to_owned();
    let silent: Vec<TcpStream> = (0..50)
        .map(|i| {
            let mut stream = TcpStream::connect(&host).unwrap();
            if i % 2 == 0 {
                stream.write_all(b"POST /v1/messages HTTP/1.1\r\nHost:").unwrap();
            }
            stream
        })
        .collect();
    Client::new(&gateway.url, &home.token()).talk("good", "1", "through the crowd");
    drop(silent);
}
