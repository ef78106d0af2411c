//! A gateway in this process, on a thread of its own, with a store in a directory of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use statehouse_gateway::{Options, Token};
use statehouse_sessions::{ListOptions, OpenMode, SqliteStore, Store};
use tokio::sync::oneshot;

pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";

pub(crate) struct House {
    pub(crate) address: SocketAddr,
    pub(crate) store: Arc<SqliteStore>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _directory: Option<tempfile::TempDir>,
}

impl House {
    pub(crate) fn new() -> House {
        House::with(|_| {})
    }

    /// A gateway with other options than the usual ones.
    pub(crate) fn with(change: impl FnOnce(&mut Options)) -> House {
        let directory = tempfile::tempdir().unwrap();
        let mut house = House::at(directory.path(), change);
        house._directory = Some(directory);
        house
    }

    /// A gateway on a store that outlives it.
    pub(crate) fn at(directory: &Path, change: impl FnOnce(&mut Options)) -> House {
        let store = SqliteStore::open(&directory.join("state.db"), "gateway", OpenMode::create()).unwrap();
        let store = Arc::new(store);
        let mut options = Options::new(Token::new(TOKEN).unwrap(), Arc::new(|| json!({ "ready": true })));
        options.limits.grace = Duration::from_secs(1);
        // So that a test which gets its answers gets them because the runner was woken.
        options.turns.poll = Duration::from_secs(3600);
        change(&mut options);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shared: Arc<dyn Store> = store.clone();
        let thread = std::thread::spawn(move || {
            let runtime = statehouse_gateway::runtime().unwrap();
            let shutdown = async {
                let _ = stopped.await;
            };
            runtime.block_on(statehouse_gateway::serve(listener, shared, options, shutdown)).unwrap();
        });
        House { address, store, stop: Some(stop), thread: Some(thread), _directory: None }
    }

    /// Ends the gateway in order; the store is closed.
    pub(crate) fn close(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            self.store.close();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }

    /// A request with the token and a body.
    pub(crate) fn call(&self, method: &str, path: &str, body: &[u8]) -> Reply {
        self.call_with(method, path, &[("Authorization", &format!("Bearer {TOKEN}"))], body)
    }

    /// A request with these headers only, besides Host and the length.
    pub(crate) fn call_with(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Reply {
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        let mut request = head.into_bytes();
        request.extend_from_slice(body);
        self.raw(&request)
    }

    pub(crate) fn post(&self, path: &str, document: &Value) -> Reply {
        self.call("POST", path, document.to_string().as_bytes())
    }

    pub(crate) fn get(&self, path: &str) -> Reply {
        self.call("GET", path, b"")
    }

    /// Sends bytes as they are, and reads until the gateway closes.
    pub(crate) fn raw(&self, request: &[u8]) -> Reply {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        Reply::read(&mut stream)
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }

    /// The number of conversations and of messages in the store.
    pub(crate) fn rows(&self) -> (usize, u64) {
        let all = self.store.sessions(&ListOptions { all: true, ..ListOptions::default() }).unwrap();
        (all.len(), all.iter().map(|s| s.messages).sum())
    }

    /// The gateway is there, and takes a message.
    pub(crate) fn is_well(&self) {
        let reply = self.post("/v1/messages?wait=20", &json!({ "conversation": "is well", "text": "are you there" }));
        assert_eq!(reply.status, 200, "{reply:?}");
        assert!(reply.json()["reply"]["text"].as_str().unwrap().contains("are you there"));
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn read(stream: &mut TcpStream) -> Reply {
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap_or_else(|e| panic!("{e} after {:?}", String::from_utf8_lossy(&all)));
        let text = String::from_utf8(all).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        let body = if chunked { unchunk(body) } else { body.to_owned() };
        Reply { status, head: head.to_owned(), body }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e} in {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|l| {
            let (n, value) = l.split_once(':')?;
            n.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// Asserts an answer in the error shape and gives its code.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/json"), "{self:?}");
        let document = self.json();
        let error = document["error"].as_object().unwrap_or_else(|| panic!("not the error shape: {self:?}"));
        for field in ["code", "message", "detail", "hint"] {
            assert!(error[field].is_string(), "{field} is missing in {self:?}");
        }
        assert!(!error["message"].as_str().unwrap().is_empty() && !error["hint"].as_str().unwrap().is_empty());
        error["code"].as_str().unwrap().to_owned()
    }

    /// The events of an event stream: their names and data.
    pub(crate) fn events(&self) -> Vec<(String, String)> {
        assert_eq!(self.header("content-type"), Some("text/event-stream"), "{self:?}");
        let field = |block: &str, name: &str| -> Option<String> {
            let lines: Vec<_> = block.lines().filter_map(|l| l.strip_prefix(name)).map(str::trim_start).collect();
            (!lines.is_empty()).then(|| lines.join("\n"))
        };
        self.body
            .split("\n\n")
            .filter_map(|block| Some((field(block, "event:").unwrap_or_default(), field(block, "data:")?)))
            .collect()
    }
}

fn unchunk(mut body: &str) -> String {
    let mut text = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        text.push_str(&rest[..length]);
        body = rest[length..].strip_prefix("\r\n").unwrap();
        if length == 0 {
            return text;
        }
    }
    panic!("the chunks have no end");
}

/// Waits until something is so.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
