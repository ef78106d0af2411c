//! What nobody should send: a clear answer in the error shape, nothing stored, the gateway alive.

use std::io::Write;

use crate::house::{House, Reply, TOKEN};

fn refused(house: &House, reply: &Reply, status: u16, code: &str) {
    assert_eq!((reply.status, reply.problem().as_str()), (status, code), "{reply:?}");
    assert_eq!(house.rows(), (0, 0), "something was stored after {reply:?}");
}

#[test]
fn bodies_that_are_no_message_are_refused() {
    let house = House::new();
    let name = "n".repeat(257);
    let cases: Vec<(Vec<u8>, u16, &str)> = vec![
        (b"".to_vec(), 400, "invalid_json"),
        (b"{".to_vec(), 400, "invalid_json"),
        (b"{\"conversation\":\"c\",\"text\":\"t\"} x".to_vec(), 400, "invalid_json"),
        (b"{\"conversation\":\"c\",\"text\":\"\xff\xfe\"}".to_vec(), 400, "invalid_json"),
        (br#"{"conversation":"c","text":"\ud83d"}"#.to_vec(), 400, "invalid_json"),
        (br#"{"conversation":"c","text":"\udc00 x"}"#.to_vec(), 400, "invalid_json"),
        ("[".repeat(100_000).into_bytes(), 400, "invalid_json"),
        (b"[]".to_vec(), 400, "invalid_request"),
        (br#"["c","t",null]"#.to_vec(), 400, "invalid_request"),
        (b"null".to_vec(), 400, "invalid_request"),
        (br#"{"conversation":"c"}"#.to_vec(), 400, "invalid_request"),
        (br#"{"conversation":"c","text":7}"#.to_vec(), 400, "invalid_request"),
        (br#"{"conversation":["c"],"text":"t"}"#.to_vec(), 400, "invalid_request"),
        (br#"{"conversation":"c","text":"t","id":1}"#.to_vec(), 400, "invalid_request"),
        (br#"{"conversation":"c","text":"t","role":"system"}"#.to_vec(), 400, "invalid_request"),
        (br#"{"conversation":"c","text":"t","text":"u"}"#.to_vec(), 400, "invalid_request"),
        (br#"{"conversation":"c","text":"a\u0000b"}"#.to_vec(), 422, "invalid"),
        (br#"{"conversation":"c\u0000","text":"t"}"#.to_vec(), 422, "invalid"),
        (br#"{"conversation":"c\nd","text":"t"}"#.to_vec(), 422, "invalid"),
        (br#"{"conversation":"","text":"t"}"#.to_vec(), 422, "invalid"),
        (br#"{"conversation":"c","text":" \n"}"#.to_vec(), 422, "invalid"),
        (br#"{"conversation":"c","text":"t","id":""}"#.to_vec(), 422, "invalid"),
        (format!(r#"{{"conversation":"{name}","text":"t"}}"#).into_bytes(), 422, "invalid"),
        (format!(r#"{{"conversation":"c","text":"t","id":"{name}"}}"#).into_bytes(), 422, "invalid"),
    ];
    for (body, status, code) in cases {
        let reply = house.call("POST", "/v1/messages", &body);
        refused(&house, &reply, status, code);
        let start = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        assert!(!reply.json()["error"]["message"].as_str().unwrap().is_empty(), "{start}");
    }
    let good = br#"{"conversation":"c","text":"t"}"#;
    for query in ["?wait=-1", "?wait=soon", "?wait=1e9", "?wiat=5", "?wait=%FF"] {
        refused(&house, &house.call("POST", &format!("/v1/messages{query}"), good), 400, "invalid_request");
    }
    house.is_well();
}

#[test]
fn chat_completions_without_a_question_are_refused() {
    let house = House::new();
    for (body, status, code) in [
        ("{", 400, "invalid_json"),
        (r#"{"model":"echo"}"#, 400, "invalid_request"),
        (r#"{"messages":[{"role":"user","content":"a\u0000"}]}"#, 422, "invalid"),
        (r#"{"messages":[{"role":"system","content":"a"}]}"#, 422, "invalid"),
        (r#"{"messages":[{"role":"user","content":"\udfff"}]}"#, 400, "invalid_json"),
    ] {
        refused(&house, &house.call("POST", "/v1/chat/completions", body.as_bytes()), status, code);
    }
    let token = format!("Bearer {TOKEN}");
    let good = br#"{"messages":[{"role":"user","content":"a"}]}"#;
    for name in ["\u{1}", "\u{ff}".repeat(200).as_str(), " "] {
        let headers = [("Authorization", token.as_str()), ("X-Statehouse-Conversation", name)];
        let reply = house.call_with("POST", "/v1/chat/completions", &headers, good);
        // A control character in a header is refused below us, before there is a request.
        if reply.body.is_empty() {
            assert_eq!(reply.status, 400);
            assert_eq!(house.rows(), (0, 0));
        } else {
            refused(&house, &reply, 422, "invalid");
        }
    }
    house.is_well();
}

#[test]
fn a_stranger_is_refused_before_anything_else() {
    let house = House::new();
    let good = br#"{"conversation":"c","text":"t"}"#;
    let token = format!("Bearer {TOKEN}");
    let basic = format!("Basic {TOKEN}");
    let unauthorized: [&[(&str, &str)]; 5] = [
        &[],
        &[("Authorization", "Bearer wrong")],
        &[("Authorization", "Bearer")],
        &[("Authorization", TOKEN)],
        &[("Authorization", &basic)],
    ];
    for headers in unauthorized {
        for path in ["/v1/messages", "/v1/models", "/readyz", "/metrics", "/nowhere"] {
            refused(&house, &house.call_with("POST", path, headers, good), 401, "unauthorized");
        }
    }
    for host in ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "[::2]", ""] {
        let headers = [("Host", host), ("Authorization", token.as_str())];
        refused(&house, &house.call_with("POST", "/v1/messages", &headers, good), 403, "foreign_host");
        refused(&house, &house.call_with("GET", "/healthz", &[("Host", host)], b""), 403, "foreign_host");
    }
    for origin in ["http://evil.example", "null", "http://localhost.evil.example:7420", "file://"] {
        let headers = [("Origin", origin), ("Authorization", token.as_str())];
        refused(&house, &house.call_with("POST", "/v1/messages", &headers, good), 403, "foreign_origin");
    }
    for host in ["localhost", "localhost:1", "127.0.0.1", "[::1]:7420"] {
        let headers = [("Host", host), ("Authorization", token.as_str())];
        assert_eq!(house.call_with("GET", "/v1/models", &headers, b"").status, 200, "{host}");
    }
    let named = House::with(|o| o.hosts = statehouse_gateway::Hosts::new(["house.lan".to_owned()]));
    assert_eq!(named.call_with("GET", "/healthz", &[("Host", "house.lan:7420")], b"").status, 200);
}

#[test]
fn addresses_and_methods_that_do_not_exist_answer_in_the_error_shape() {
    let house = House::new();
    refused(&house, &house.get("/"), 404, "not_found");
    refused(&house, &house.get("/v1/messages/x"), 404, "not_found");
    refused(&house, &house.get("/v1/models/gpt-4o"), 404, "not_found");
    for (method, path, allowed) in [
        ("GET", "/v1/messages", "POST"),
        ("DELETE", "/v1/models", "GET"),
        ("PUT", "/healthz", "GET"),
        ("BREW", "/metrics", "GET"),
    ] {
        let reply = house.call(method, path, b"");
        refused(&house, &reply, 405, "method_not_allowed");
        assert!(reply.header("allow").is_some_and(|a| a.contains(allowed)), "{reply:?}");
    }
}

/// A client that sends all of its body before it reads, as many do, must still get the answer.
fn send_hundred_megabytes(house: &House, head: &str, piece: &[u8], end: &[u8]) -> Reply {
    let mut stream = house.connect();
    stream.write_all(head.as_bytes()).unwrap();
    for _ in 0..100 {
        stream.write_all(piece).unwrap();
    }
    stream.write_all(end).unwrap();
    Reply::read(&mut stream)
}

#[test]
fn a_hundred_megabytes_are_refused_and_the_client_hears_why() {
    let house = House::new();
    let token = format!("Authorization: Bearer {TOKEN}");
    let megabyte = vec![b'x'; 1 << 20];
    let common = format!("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\n{token}\r\n");

    let head = format!("{common}Content-Length: {}\r\n\r\n", 100 << 20);
    refused(&house, &send_hundred_megabytes(&house, &head, &megabyte, b""), 413, "too_large");

    let mut chunk = format!("{:x}\r\n", megabyte.len()).into_bytes();
    chunk.extend_from_slice(&megabyte);
    chunk.extend_from_slice(b"\r\n");
    let head = format!("{common}Transfer-Encoding: chunked\r\n\r\n");
    refused(&house, &send_hundred_megabytes(&house, &head, &chunk, b"0\r\n\r\n"), 413, "too_large");

    // Without a token nothing of the body is wanted either.
    let head = format!("POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", 100 << 20);
    refused(&house, &send_hundred_megabytes(&house, &head, &megabyte, b""), 401, "unauthorized");

    // A client that asks first is told before it sends.
    let head = format!("{common}Content-Length: {}\r\nExpect: 100-continue\r\n\r\n", 100 << 20);
    let reply = house.raw(head.as_bytes());
    refused(&house, &reply, 413, "too_large");

    let resident = std::fs::metadata("/proc/self").is_ok().then(resident_megabytes);
    assert!(resident.is_none_or(|mb| mb < 200), "the bodies were kept in memory: {resident:?} MB");
    house.is_well();
}

fn resident_megabytes() -> u64 {
    let status = statehouse_status();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

#[expect(clippy::disallowed_methods, reason = "a file of the kernel, in a test")]
fn statehouse_status() -> String {
    std::fs::read_to_string("/proc/self/status").unwrap()
}

#[test]
fn a_body_of_just_the_limit_is_taken() {
    let house = House::new();
    let frame = r#"{"conversation":"c","text":""}"#.len();
    let text = "x".repeat((1 << 20) - frame);
    let body = format!(r#"{{"conversation":"c","text":"{text}"}}"#);
    assert_eq!(house.call("POST", "/v1/messages", format!("{body} ").as_bytes()).problem(), "too_large");
    assert_eq!(house.rows(), (0, 0));
    assert_eq!(house.call("POST", "/v1/messages", body.as_bytes()).status, 200);
}

#[test]
fn what_is_not_http_ends_the_connection_and_nothing_else() {
    let house = House::new();
    for junk in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"GET\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nHost: local\0host\r\n\r\n",
    ] {
        let mut stream = house.connect();
        stream.write_all(junk).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut answer = Vec::new();
        // Either an answer or the end of the connection, within the time that the stream waits.
        let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{:?}", String::from_utf8_lossy(&answer));
    }
    let long = format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(200_000));
    let mut stream = house.connect();
    let _ = stream.write_all(long.as_bytes());
    let mut answer = Vec::new();
    let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
    assert_eq!(house.rows(), (0, 0));
    house.is_well();
}
