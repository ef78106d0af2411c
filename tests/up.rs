//! `statehouse up`: one a home, all its services as processes of their own, restarted when they die, gone when it goes.

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use statehouse_testkit::{Child, Home, Snapshot, kernel, wait::until};

use crate::house::{Client, PATIENCE, Service, Up, cli, error_code, furnished, statehouse};

const SERVICES: [&str; 4] = ["anchor", "gateway", "dashboard", "scheduler"];

fn kill(pid: u32, signal: Signal) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// True while `pid` is a process that has not ended (a zombie has).
fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|s| !s.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}

#[test]
fn every_service_is_a_process_of_its_own_and_all_stop_in_order() {
    let home = Home::new();
    let mut up = Up::start(&home, |_| {});
    let pids: Vec<u32> = SERVICES.iter().map(|s| up.pid(s)).collect();
    let mut distinct = pids.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 4);
    assert!(pids.iter().all(|p| kernel::descendants(up.child.pid()).contains(p)), "{pids:?}");
    for service in ["gateway", "dashboard"] {
        assert!(up.url(service).starts_with("http://127.0.0.1:"), "{}", up.url(service));
    }
    assert_eq!((up.url("anchor"), up.url("scheduler")), ("", ""));
    let login = up.login.clone().expect("a login link");
    assert!(login.starts_with(up.url("dashboard")), "{login}");
    let first = Client::new(up.url("gateway"), &home.token()).talk("c", "1", "before the stop");
    assert_eq!(first["duplicate"], false);
    let status = up.child.stop(PATIENCE);
    assert!(status.success(), "{status}: {}", up.child.stderr_text());
    assert!(pids.iter().all(|p| !alive(*p)), "a service outlived its supervisor");
    assert_eq!(up.child.pending_lines(), Vec::<String>::new(), "an orderly stop is no news");
}

#[test]
fn a_person_is_told_where_to_look() {
    let home = Home::named("a home's \"name\"");
    let mut command = statehouse(&home, ["up", "--gateway-port", "0", "--dashboard-port", "0"]);
    let mut up = Child::spawn(&mut command);
    let mut text = String::new();
    while !text.contains("Ctrl-C") {
        text = text + &up.line(PATIENCE) + "\n";
    }
    assert!(text.contains("Answers are echoes until a responder is configured"), "{text}");
    // The command that is shown works as it stands.
    let begin = text.find("curl ").expect("a curl line");
    let end = text[begin..].find("wait=10'").unwrap() + begin + "wait=10'".len();
    let done = std::process::Command::new("sh").args(["-c", &format!("{} -sS", &text[begin..end])]).output().unwrap();
    let said: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done:?}"));
    assert!(said["reply"]["text"].as_str().unwrap().contains("hello"), "{said}");
    assert!(up.stop(PATIENCE).success());
}

#[test]
fn a_second_one_is_refused_and_names_the_first() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let before =
        Snapshot::of(home.path(), &["logs", "state.db.statehouse", "state.db", "state.db-wal", "state.db-shm"]);
    let second = cli(&home, ["up", "--json", "--gateway-port", "0", "--dashboard-port", "0"]);
    assert_eq!((second.code(), error_code(&second).as_str()), (4, "already_running"), "{second:#?}");
    let error = &second.json()["error"];
    assert!(error["message"].as_str().unwrap().contains(&format!("PID {}", up.child.pid())), "{error}");
    assert!(error["detail"].as_str().unwrap().contains("since 20"), "{error}");
    before.assert_unchanged(home.path(), &["logs", "state.db.statehouse", "state.db", "state.db-wal", "state.db-shm"]);
    up.stop();
    Up::start(&home, |_| {}).stop();
}

#[test]
fn case_037_a_second_gateway_is_refused_and_one_after_a_kill_starts_at_once() {
    let home = furnished(Home::new());
    let mut first = Service::start(&home, "gateway", |_| {});
    let second = cli(&home, ["gateway", "--port", "0", "--json"]);
    assert_eq!((second.code(), error_code(&second).as_str()), (4, "already_running"), "{second:#?}");
    let error = &second.json()["error"];
    assert!(error["message"].as_str().unwrap().contains(&first.pid().to_string()), "{error}");
    assert!(error["detail"].as_str().unwrap().contains(env!("CARGO_PKG_VERSION")), "{error}");
    first.child.kill();
    let third = Service::start(&home, "gateway", |_| {});
    assert_ne!(third.pid(), first.pid());
}

#[test]
fn a_killed_service_comes_back_where_it_was_and_the_conversation_goes_on() {
    let home = Home::new();
    let mut up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    let before = client.talk("c", "1", "before the kill");
    for service in SERVICES {
        let (pid, url) = (up.pid(service), up.url(service).to_owned());
        kill(pid, Signal::KILL);
        let exited = up.read_until("exited");
        assert_eq!((&exited["service"], &exited["pid"]), (&Value::from(service), &Value::from(pid)));
        assert_eq!(exited["status"], "killed by SIGKILL");
        let ready = up.read_until("ready");
        assert_eq!(ready["service"], service);
        assert_ne!(ready["pid"], Value::from(pid));
        assert_eq!(up.url(service), url, "{service} keeps its address");
    }
    let again = client.talk("c", "1", "before the kill");
    assert_eq!((&again["duplicate"], &again["message_id"]), (&Value::Bool(true), &before["message_id"]));
    let after = client.talk("c", "2", "after the kill");
    assert_eq!(after["session_id"], before["session_id"]);
    up.stop();
}

#[test]
fn killing_the_supervisor_leaves_nobody_behind() {
    let home = Home::new();
    let mut up = Up::start(&home, |_| {});
    let pids: Vec<u32> = SERVICES.iter().map(|s| up.pid(s)).collect();
    up.child.kill();
    until("all services are gone", PATIENCE, || pids.iter().all(|p| !alive(*p)));
    // Nothing stale keeps the next one out.
    Up::start(&home, |_| {}).stop();
}

#[test]
fn a_stopped_service_does_not_hold_the_end_up() {
    let home = Home::new();
    let mut up = Up::start(&home, |_| {});
    let pid = up.pid("dashboard");
    kill(pid, Signal::STOP);
    let status = up.child.stop(PATIENCE);
    assert!(status.success(), "{status}");
    assert!(!alive(pid));
}

#[test]
fn a_service_that_keeps_dying_is_started_later_and_later() {
    let home = Home::new();
    let mut up = Up::start(&home, |_| {});
    std::fs::write(home.path().join("token"), "short").unwrap();
    kill(up.pid("gateway"), Signal::KILL);
    let mut times = Vec::new();
    for _ in 0..4 {
        let exited = up.read_until("exited");
        assert_eq!(exited["service"], "gateway");
        times.push(Instant::now());
    }
    let gaps: Vec<Duration> = times.windows(2).map(|w| w[1] - w[0]).collect();
    for (gap, least) in gaps.iter().zip([250, 500, 1000]) {
        assert!(*gap >= Duration::from_millis(least - 50), "{gaps:?}");
    }
    // The others are not touched by it, and the way back needs nobody.
    std::fs::write(home.path().join("token"), "0123456789abcdef0123456789abcdef").unwrap();
    let ready = up.read_until("ready");
    assert_eq!(ready["service"], "gateway");
    Client::new(up.url("gateway"), &home.token()).talk("c", "1", "back again");
    up.stop();
}

#[test]
fn a_port_that_is_taken_is_said_so_and_nothing_is_made() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for line in [
        ["up", "--gateway-port", &port, "--dashboard-port", "0"],
        ["up", "--gateway-port", "0", "--dashboard-port", &port],
    ] {
        let done = cli(&home, line.iter().chain(&["--json"]));
        assert_eq!((done.code(), error_code(&done).as_str()), (4, "port_in_use"), "{done:#?}");
        assert!(done.json()["error"]["message"].as_str().unwrap().contains(&port));
    }
    assert!(!home.path().exists(), "a start that was refused makes no home");
}

#[test]
fn a_home_that_is_not_one_is_refused() {
    let home = Home::new();
    std::fs::write(home.path(), "a file").unwrap();
    let done = cli(&home, ["up", "--json", "--gateway-port", "0", "--dashboard-port", "0"]);
    assert_eq!((done.code(), error_code(&done).as_str()), (4, "bad_home"), "{done:#?}");
    assert_eq!(std::fs::read(home.path()).unwrap(), b"a file");
}

#[test]
fn a_relative_home_is_the_same_home_for_every_service() {
    let home = Home::new();
    let up = Up::start(&home, |c| {
        c.env("STATEHOUSE_HOME", Path::new("home").as_os_str());
    });
    Client::new(up.url("gateway"), &home.token()).talk("c", "1", "from a relative home");
    up.stop();
    let list = cli(&home, ["sessions", "list", "--json"]).success().json();
    assert_eq!(list.as_array().unwrap().len(), 1);
}

#[test]
fn under_nohup_it_outlives_its_terminal() {
    let home = Home::new();
    let up = Up::start(&home, |c| {
        let program = c.get_program().to_owned();
        let arguments: Vec<_> = c.get_args().map(ToOwned::to_owned).collect();
        let environment: Vec<_> = c.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
        *c = std::process::Command::new("/bin/sh");
        c.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(program).args(arguments);
        c.env_clear().envs(environment.into_iter().filter_map(|(k, v)| Some((k, v?))));
    });
    kill(up.child.pid(), Signal::HUP);
    kill(up.pid("gateway"), Signal::HUP);
    Client::new(up.url("gateway"), &home.token()).talk("c", "1", "still here");
    up.stop();
}
