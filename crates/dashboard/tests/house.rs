//! A dashboard in this process, on a thread of its own, with a store in a directory of its own.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use statehouse_dashboard::{Options, Token};
use statehouse_sessions::{NewMessage, NewSession, OpenMode, Role, SessionId, SqliteStore, Store};
use tokio::sync::oneshot;

pub(crate) const TOKEN: &str = "0123456789abcdef0123456789abcdef";
pub(crate) const CODE: &str = "c0dec0dec0dec0dec0dec0dec0dec0de";

pub(crate) struct House {
    pub(crate) address: SocketAddr,
    pub(crate) store: Arc<SqliteStore>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    pub(crate) directory: tempfile::TempDir,
}

impl House {
    pub(crate) fn new() -> House {
        House::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut Options)) -> House {
        let directory = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&directory.path().join("state.db"), "dashboard", OpenMode::create()).unwrap();
        let store = Arc::new(store);
        let holders = Arc::new(|| json!({ "path": "/h/state.db", "verdict": "held", "uninspected": 0, "holders": [] }));
        let mut options = Options::new(Token::new(TOKEN).unwrap(), holders);
        options.login_code = Some(CODE.into());
        options.limits.grace = Duration::from_secs(1);
        change(&mut options);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel();
        let shared: Arc<dyn Store> = store.clone();
        let thread = std::thread::spawn(move || {
            let runtime = statehouse_dashboard::runtime().unwrap();
            let shutdown = async {
                let _ = stopped.await;
            };
            runtime.block_on(statehouse_dashboard::serve(listener, shared, options, shutdown)).unwrap();
        });
        House { address, store, stop: Some(stop), thread: Some(thread), directory }
    }

    /// A conversation with these texts, in turn of the user and of the assistant.
    pub(crate) fn conversation(&self, title: Option<&str>, texts: &[&str]) -> SessionId {
        let id = SessionId::new();
        let new = NewSession { id, parent_id: None, title: title.map(Into::into), source: "http".into() };
        self.store.create_session(new).unwrap();
        for (n, text) in texts.iter().enumerate() {
            self.say(id, if n % 2 == 0 { Role::User } else { Role::Assistant }, text);
        }
        id
    }

    pub(crate) fn say(&self, id: SessionId, role: Role, text: &str) -> String {
        self.store.append(NewMessage::text(id, role, text)).unwrap().id.to_string()
    }

    /// A request with these headers only, besides Host.
    pub(crate) fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head.push_str(&format!("Host: {}\r\n", self.address));
        }
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        let mut stream = self.connect();
        stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
        Reply::read(&mut stream)
    }

    /// A request with the token.
    pub(crate) fn get(&self, path: &str) -> Reply {
        self.call("GET", path, &[("Authorization", &format!("Bearer {TOKEN}"))], "")
    }

    /// A page that must be there, with the token.
    pub(crate) fn page(&self, path: &str) -> String {
        let reply = self.get(path);
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        assert_eq!(reply.header("content-type"), Some("text/html; charset=utf-8"));
        reply.body
    }

    pub(crate) fn json(&self, path: &str) -> Value {
        let reply = self.get(path);
        assert_eq!(reply.status, 200, "{path}: {reply:?}");
        reply.json()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        stream
    }
}

impl Drop for House {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            self.store.close();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Reply {
    fn read(stream: &mut TcpStream) -> Reply {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {text:?}"));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).expect("a status");
        Reply { status, head: head.to_owned(), body: body.to_owned() }
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
        let document = self.json();
        for field in ["code", "message", "detail", "hint"] {
            assert!(document["error"][field].is_string(), "{field} is missing in {self:?}");
        }
        document["error"]["code"].as_str().unwrap().to_owned()
    }

    /// The cookie that the answer sets, as a browser sends it back.
    pub(crate) fn cookie(&self) -> Option<String> {
        self.header("set-cookie").map(|c| c.split(';').next().unwrap().to_owned())
    }
}
