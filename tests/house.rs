//! A house under test: the real binary on a home of its own, spoken to as a person or a program would.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use statehouse_testkit::{Child, Finished, Home, run};

/// Longer than anything here takes even on a loaded machine with two cores.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The program under test.
pub(crate) fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_statehouse"))
}

/// The program with these arguments on `home`.
pub(crate) fn statehouse<A: AsRef<OsStr>>(home: &Home, arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = home.command(binary());
    command.args(arguments);
    command
}

/// Runs a command of the program to its end.
pub(crate) fn cli<A: AsRef<OsStr>>(home: &Home, arguments: impl IntoIterator<Item = A>) -> Finished {
    run(&mut statehouse(home, arguments), PATIENCE)
}

/// Runs a command with `--json` that must succeed, and returns its document.
pub(crate) fn answer<A: AsRef<OsStr>>(home: &Home, arguments: impl IntoIterator<Item = A>) -> Value {
    let mut command = statehouse(home, arguments);
    run(command.arg("--json"), PATIENCE).success().json()
}

/// The `code` of the error document that a command printed.
pub(crate) fn error_code(finished: &Finished) -> String {
    finished.json()["error"]["code"].as_str().unwrap_or_else(|| panic!("no error code: {finished:#?}")).to_owned()
}

/// One service that runs alone.
pub(crate) struct Service {
    pub(crate) child: Child,
    pub(crate) name: String,
    pub(crate) url: String,
}

impl Service {
    /// Starts `statehouse NAME` and waits until it says that it is ready. `prepare` may change the command.
    pub(crate) fn start(home: &Home, name: &str, prepare: impl FnOnce(&mut Command)) -> Service {
        let mut command = statehouse(home, [name, "--json"]);
        if matches!(name, "gateway" | "dashboard") {
            command.args(["--port", "0"]);
        }
        prepare(&mut command);
        let mut child = Child::spawn(&mut command);
        let wanted = if name == "anchor" { "anchored" } else { "ready" };
        let line = child.line_where(wanted, PATIENCE, |line| {
            serde_json::from_str::<Value>(line).is_ok_and(|v| v["event"] == "ready" || v["event"] == wanted)
        });
        let ready: Value = serde_json::from_str(&line).unwrap();
        let url = ready["url"].as_str().unwrap_or_default().to_owned();
        Service { child, name: name.to_owned(), url }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }
}

/// The whole house, as `statehouse up` runs it.
pub(crate) struct Up {
    pub(crate) child: Child,
    services: Vec<(String, u32, String)>,
    pub(crate) login: Option<String>,
}

impl Up {
    /// Starts `statehouse up` on free ports and waits until everything is up.
    pub(crate) fn start(home: &Home, prepare: impl FnOnce(&mut Command)) -> Up {
        let mut up = Up::begin(home, prepare);
        up.read_until("up");
        up
    }

    /// As [`Up::start`], and waits for nothing.
    pub(crate) fn begin(home: &Home, prepare: impl FnOnce(&mut Command)) -> Up {
        let mut command = statehouse(home, ["up", "--json", "--gateway-port", "0", "--dashboard-port", "0"]);
        prepare(&mut command);
        Up { child: Child::spawn(&mut command), services: Vec::new(), login: None }
    }

    /// Reads events until one is called `event`, and remembers where the services are.
    pub(crate) fn read_until(&mut self, event: &str) -> Value {
        loop {
            let line = self.child.line(PATIENCE);
            let value: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("not JSON ({e}): {line}"));
            if value["event"] == "ready" {
                let name = value["service"].as_str().unwrap().to_owned();
                let pid = u32::try_from(value["pid"].as_u64().unwrap()).unwrap();
                self.services.retain(|s| s.0 != name);
                self.services.push((name, pid, value["url"].as_str().unwrap_or_default().to_owned()));
            }
            if value["event"] == "login" {
                self.login = value["url"].as_str().map(str::to_owned);
            }
            if value["event"] == event {
                return value;
            }
        }
    }

    fn service(&self, name: &str) -> &(String, u32, String) {
        self.services.iter().find(|s| s.0 == name).unwrap_or_else(|| panic!("{name} was never ready"))
    }

    pub(crate) fn pid(&self, name: &str) -> u32 {
        self.service(name).1
    }

    pub(crate) fn url(&self, name: &str) -> &str {
        &self.service(name).2
    }

    /// Ctrl-C, as a person does it; the house must leave in order.
    pub(crate) fn stop(mut self) {
        let status = self.child.stop(PATIENCE);
        assert!(status.success(), "{status}: {}", self.child.stderr_text());
    }
}

/// A home with everything in it, as `up` leaves it when it has run once.
pub(crate) fn furnished(home: Home) -> Home {
    Up::start(&home, |_| {}).stop();
    home
}

/// A client of the gateway.
#[derive(Clone)]
pub(crate) struct Client {
    agent: ureq::Agent,
    url: String,
    token: String,
}

/// What the gateway said to a message.
#[derive(Debug, Clone)]
pub(crate) struct Answered {
    pub(crate) status: u16,
    pub(crate) body: Value,
}

impl Client {
    pub(crate) fn new(url: &str, token: &str) -> Client {
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .build()
            .new_agent();
        Client { agent, url: url.trim_end_matches('/').to_owned(), token: token.to_owned() }
    }

    /// `GET`, with the token.
    pub(crate) fn get(&self, path: &str) -> Result<(u16, String), ureq::Error> {
        let mut response = self
            .agent
            .get(format!("{}{path}", self.url))
            .header("Authorization", format!("Bearer {}", self.token))
            .call()?;
        Ok((response.status().as_u16(), response.body_mut().read_to_string()?))
    }

    /// `POST` of a body, with the token.
    pub(crate) fn post(&self, path: &str, body: &[u8]) -> Result<Answered, ureq::Error> {
        let mut response = self
            .agent
            .post(format!("{}{path}", self.url))
            .header("Authorization", format!("Bearer {}", self.token))
            .header("Content-Type", "application/json")
            .send(body)?;
        let text = response.body_mut().read_to_string()?;
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Ok(Answered { status: response.status().as_u16(), body })
    }

    /// One message; `Err` when no answer came (the process died), else the status and the answer.
    pub(crate) fn message(&self, conversation: &str, id: &str, text: &str) -> Result<Answered, ureq::Error> {
        let body = json!({"conversation": conversation, "id": id, "text": text});
        self.post("/v1/messages", body.to_string().as_bytes())
    }

    /// One message that must be answered, with its reply.
    pub(crate) fn talk(&self, conversation: &str, id: &str, text: &str) -> Value {
        let body = json!({"conversation": conversation, "id": id, "text": text});
        let answered = self.post("/v1/messages?wait=30", body.to_string().as_bytes()).expect("an answer");
        assert_eq!(answered.status, 200, "{answered:?}");
        let reply = answered.body["reply"]["text"].as_str().unwrap_or_default();
        assert!(reply.contains(text), "{answered:?}");
        answered.body
    }
}

/// Sends bytes as they are and returns everything that comes back until the server closes or falls silent.
pub(crate) fn raw(url: &str, request: &[u8]) -> String {
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    // A server that refuses early closes while we still write; what it said is still to be read.
    let _ = stream.write_all(request);
    let mut all = Vec::new();
    let mut buffer = [0; 8192];
    while let Ok(n @ 1..) = stream.read(&mut buffer) {
        all.extend_from_slice(&buffer[..n]);
    }
    String::from_utf8_lossy(&all).into_owned()
}

/// The messages of the store that a fresh process sees, by way of the command line: (session, role, text).
pub(crate) fn messages(home: &Home) -> Vec<(String, String, String)> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    let list = answer(home, ["sessions", "list", "--all"]);
    let sessions = list.as_array().expect("an array of sessions");
    let mut rows = Vec::new();
    for session in sessions {
        let id = text(&session["id"]);
        let shown = answer(home, ["sessions", "show", &id]);
        for message in shown["messages"].as_array().expect("an array of messages") {
            rows.push((id.clone(), text(&message["role"]), text(&message["text"])));
        }
    }
    rows
}

/// What Debian's SQLite says about the store's structure. The store must be closed or held by others only; `None`
/// where there is no `sqlite3`.
pub(crate) fn integrity(store: &Path) -> Option<String> {
    let done = statehouse_testkit::visitor::shell_once(store, "PRAGMA integrity_check")?;
    Some(done.success().stdout.trim().to_owned())
}

/// A path beside the store, by suffix.
pub(crate) fn beside(store: &Path, suffix: &str) -> PathBuf {
    let mut path = store.as_os_str().to_owned();
    path.push(suffix);
    PathBuf::from(path)
}
