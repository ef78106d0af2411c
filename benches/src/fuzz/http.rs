//! The gateway's HTTP door, served in this process over a real store.
//!
//! Oracle: whatever arrives, what comes back is nothing or an HTTP answer; an error carries a code and a message; what was
//! acknowledged is in the store exactly as often as it was acknowledged; and the next good request is served.

use std::collections::HashSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use statehouse_gateway::{Options, Token};
use statehouse_sessions::{ListOptions, OpenMode, Page, Role, SqliteStore, Store};
use statehouse_testkit::Seed;

use crate::Budget;
use crate::mutate::mutate;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

pub(crate) fn run(budget: &mut Budget) -> Result<()> {
    let room = tempfile::tempdir()?;
    let store = SqliteStore::open(&room.path().join("state.db"), "fuzz", OpenMode::create())?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let options = Options::new(Token::new(TOKEN)?, Arc::new(|| json!({"ready": true})));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let door: Arc<dyn Store> = Arc::new(store.clone());
    let server = std::thread::spawn(move || -> std::io::Result<()> {
        statehouse_gateway::runtime()?.block_on(statehouse_gateway::serve(listener, door, options, async move {
            // An error means that the sender is gone, which is the end as well.
            let _ = stopped.await;
        }))
    });

    // A gateway that has not taken up its turns yet rightly says that it is not ready.
    let ready = with_body(&format!("GET /readyz HTTP/1.1\r\nHost: {address}"), b"");
    let begun = Instant::now();
    while !exchange(address, &ready)?.starts_with(b"HTTP/1.1 200") {
        ensure!(begun.elapsed() < Duration::from_secs(20), "the gateway does not get ready");
        std::thread::yield_now();
    }

    let mut acknowledged = HashSet::new();
    while budget.more() {
        let mut bytes = request(address, &mut budget.seed);
        if budget.seed.one_in(4) {
            mutate(&mut bytes, &mut budget.seed);
        }
        let answer = exchange(address, &bytes)?;
        judge(&bytes, &answer, &mut acknowledged)?;
        if budget.seed.one_in(50) {
            let good = post(address, br#"{"conversation":"control","text":"still there?"}"#);
            let answer = exchange(address, &good)?;
            ensure!(answer.starts_with(b"HTTP/1.1 200"), "a good request got {}", String::from_utf8_lossy(&answer));
            judge(&good, &answer, &mut acknowledged)?;
        }
    }
    drop(stop);
    server.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
    let mut stored = HashSet::new();
    for session in store.sessions(&ListOptions { all: true, ..ListOptions::default() })? {
        for message in store.messages(session.id, &Page::default())? {
            if message.role == Role::User {
                ensure!(!message.text.contains('\0'), "a NUL was stored");
                stored.insert(message.id.to_string());
            }
        }
    }
    let lost: Vec<_> = acknowledged.difference(&stored).collect();
    ensure!(lost.is_empty(), "acknowledged and not stored: {lost:?}");
    store.close();
    Ok(())
}

fn post(address: SocketAddr, body: &[u8]) -> Vec<u8> {
    with_body(&format!("POST /v1/messages HTTP/1.1\r\nHost: {address}"), body)
}

fn with_body(head: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "{head}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// A request that is valid, or nearly: one of each kind that the gateway knows.
fn request(address: SocketAddr, seed: &mut Seed) -> Vec<u8> {
    let name = format!("c{}", seed.below(5));
    let mut text = String::from_utf8_lossy(&seed.bytes(20)).into_owned();
    text.push_str(seed.pick::<&str>(&["", "héllo", "状態", "🙂", "\u{0}", "\"quoted\"", "<script>"]));
    let mut body = match seed.below(5) {
        0 | 1 => json!({"conversation": name, "text": text}),
        2 => json!({"conversation": name, "text": text, "id": format!("i{}", seed.below(50))}),
        3 => json!({"model": "echo", "messages": [{"role": "user", "content": text}], "stream": seed.one_in(2)}),
        _ => json!({"conversation": name, "text": [text, 1, null], "extra": {"deep": [[[{}]]]}}),
    }
    .to_string()
    .into_bytes();
    let path = seed.pick(&["/v1/messages", "/v1/messages", "/v1/messages?wait=1", "/v1/chat/completions"]).to_string();
    // Half of the damage goes into the body alone, with a length that is right, so that it gets past the HTTP parser.
    if seed.one_in(2) {
        mutate(&mut body, seed);
    }
    match seed.below(8) {
        0 => {
            let path =
                seed.pick(&["/healthz", "/readyz", "/metrics", "/v1/models", "/v1/turns/x/events", "/%00", "/../x"]);
            with_body(&format!("GET {path} HTTP/1.1\r\nHost: {address}"), b"")
        }
        _ => with_body(&format!("POST {path} HTTP/1.1\r\nHost: {address}"), &body),
    }
}

/// Sends a request and returns all that comes back. A request that damage has made incomplete is ended by our side after a
/// moment, for the server rightly waits for the rest of it.
fn exchange(address: SocketAddr, bytes: &[u8]) -> Result<Vec<u8>> {
    const MOMENT: Duration = Duration::from_millis(40);
    // Longer than any answer that is asked for with `wait`. A head that damage has made ambiguous may be waited for, and
    // one that has lost its `Connection: close` keeps an answered connection open.
    const SILENCE: Duration = Duration::from_millis(1200);
    const PATIENCE: Duration = Duration::from_secs(20);
    let begun = Instant::now();
    let mut stream = TcpStream::connect(address).context("the gateway accepts no more")?;
    stream.set_read_timeout(Some(MOMENT))?;
    // A server that refuses early closes while we still write.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut buffer = [0; 8192];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(answer),
            Ok(n) => answer.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                ensure!(begun.elapsed() < PATIENCE, "no end of the answer to {:?}", String::from_utf8_lossy(bytes));
                if !answer.is_empty() || !complete(bytes) || begun.elapsed() > SILENCE {
                    let _ = stream.shutdown(Shutdown::Write);
                }
            }
            // A reset after a refusal of something that we were still sending.
            Err(_) => return Ok(answer),
        }
    }
}

/// True if a server has all of a request: its head has ended, and as many bytes follow as the head says.
fn complete(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, _)) = text.split_once("\r\n\r\n") else { return false };
    let body = bytes.windows(4).position(|w| w == b"\r\n\r\n").map_or(0, |at| bytes.len() - at - 4);
    let length = head.lines().find_map(|l| l.strip_prefix("Content-Length: ")?.trim().parse::<usize>().ok());
    length.is_some_and(|n| n <= body)
}

fn judge(request: &[u8], answer: &[u8], acknowledged: &mut HashSet<String>) -> Result<()> {
    if answer.is_empty() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(answer);
    let shown = || format!("{:?} was answered with {text:?}", String::from_utf8_lossy(request));
    ensure!(text.starts_with("HTTP/1."), "{}", shown());
    let status: u16 = text.split(' ').nth(1).and_then(|s| s.parse().ok()).with_context(shown)?;
    ensure!(status < 500, "{}", shown());
    let body = text.split_once("\r\n\r\n").map_or("", |(_, b)| b);
    let document = body.find('{').zip(body.rfind('}')).map_or("", |(from, to)| &body[from..=to]);
    if status == 200 && text.contains("\"turn_id\"") {
        let value: Value = serde_json::from_str(document).with_context(shown)?;
        acknowledged.insert(value["message_id"].as_str().with_context(shown)?.to_owned());
    }
    // An answer of the HTTP parser itself has no body; everything that reached a handler explains itself.
    if (400..500).contains(&status) && !document.is_empty() {
        let value: Value = serde_json::from_str(document).with_context(shown)?;
        ensure!(value["error"]["code"].is_string() && value["error"]["message"].is_string(), "{}", shown());
    }
    Ok(())
}
