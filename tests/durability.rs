//! Acknowledged means kept: through `kill -9` at any point, and through what a power cut leaves on disk.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use statehouse_testkit::visitor::python;
use statehouse_testkit::{Child, Home, Seed, need, run, until};

use crate::house::{Client, Service, Up, beside, binary, furnished, integrity, messages, statehouse};

/// How often one of our processes is killed.
const ROUNDS: u32 = 200;

/// What clients have been told, and what they do not know.
#[derive(Default)]
struct Ledger {
    acknowledged: HashSet<String>,
    unanswered: HashSet<String>,
}

/// Sends numbered messages until told to stop; after a lost answer the same message is sent again, as a platform does.
fn keep_talking(name: &str, address: &Mutex<String>, token: &str, ledger: &Mutex<Ledger>, stop: &AtomicBool) {
    let sequence = AtomicU64::new(0);
    while !stop.load(Ordering::Relaxed) {
        let n = sequence.fetch_add(1, Ordering::Relaxed);
        let text = format!("{name}-{n} says something");
        ledger.lock().unwrap().unanswered.insert(text.clone());
        loop {
            let client = Client::new(&address.lock().unwrap().clone(), token);
            match client.message(&format!("conversation of {name}"), &format!("{name}-{n}"), &text) {
                Ok(answered) if answered.status == 200 => {
                    let mut ledger = ledger.lock().unwrap();
                    ledger.unanswered.remove(&text);
                    ledger.acknowledged.insert(text.clone());
                    break;
                }
                // A gateway that is starting or stopping may say 503; then as after a lost connection.
                Ok(answered) => assert!(answered.status >= 500, "{answered:?}"),
                Err(_) => {}
            }
            if stop.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn assert_kept(home: &Home, ledger: &Mutex<Ledger>) {
    // Clients go on meanwhile: what was acknowledged before the look must be there, what is there must have been sent by
    // the end of it.
    let acknowledged = ledger.lock().unwrap().acknowledged.clone();
    let rows = messages(home);
    let mut seen: HashMap<&str, u32> = HashMap::new();
    for (_, _, text) in rows.iter().filter(|r| r.1 == "user") {
        *seen.entry(text).or_default() += 1;
    }
    for text in &acknowledged {
        assert!(seen.contains_key(text.as_str()), "acknowledged and lost: {text}");
    }
    let sent = {
        let ledger = ledger.lock().unwrap();
        ledger.acknowledged.union(&ledger.unanswered).cloned().collect::<HashSet<String>>()
    };
    for (text, count) in seen {
        assert_eq!(count, 1, "stored more than once: {text}");
        assert!(sent.contains(text), "nobody sent this: {text}");
    }
}

#[test]
fn kill_at_any_point_loses_nothing_that_was_acknowledged() {
    let home = furnished(Home::new());
    let mut seed = Seed::of_run("kill_at_any_point_loses_nothing_that_was_acknowledged");
    let token = home.token();
    let mut services: Vec<Service> =
        ["anchor", "gateway", "dashboard", "scheduler"].map(|name| Service::start(&home, name, |_| {})).into();
    let address = Mutex::new(services[1].url.clone());
    let ledger = Mutex::new(Ledger::default());
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in ["ada", "ben", "cleo"] {
            let (address, token, ledger, stop) = (&address, &token, &ledger, &stop);
            scope.spawn(move || keep_talking(name, address, token, ledger, stop));
        }
        // A panic in a round must not leave the scope waiting for clients that nobody stops.
        let rounds = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for round in 0..ROUNDS {
                // Half of the rounds hit the gateway, where the acknowledgements come from.
                let victim = if seed.one_in(2) { 1 } else { seed.below(services.len() as u64) as usize };
                let job = if seed.one_in(2) { "ddl-check" } else { "housekeeping" };
                let mut worker = Child::spawn(&mut statehouse(&home, ["worker", "run", job]));
                std::thread::sleep(Duration::from_micros(seed.below(60_000)));
                if seed.one_in(2) {
                    worker.kill();
                }
                let name = services[victim].name.clone();
                services[victim].child.kill();
                services[victim] = Service::start(&home, &name, |_| {});
                if name == "gateway" {
                    *address.lock().unwrap() = services[victim].url.clone();
                }
                if round % 50 == 49 {
                    assert_kept(&home, &ledger);
                }
            }
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = rounds {
            std::panic::resume_unwind(panic);
        }
    });
    let asked = ledger.lock().unwrap().acknowledged.len();
    assert!(asked > ROUNDS as usize, "only {asked} messages were acknowledged in {ROUNDS} rounds");
    // Every interrupted turn is taken up again and answered once.
    until("every message has its answer", Duration::from_secs(60), || {
        let rows = messages(&home);
        let of = |role: &str| rows.iter().filter(|r| r.1 == role).count();
        assert!(of("assistant") <= of("user"), "more answers than messages");
        of("assistant") == of("user")
    });
    assert_kept(&home, &ledger);
    drop(services);
    assert_kept(&home, &ledger);
    if let Some(verdict) = integrity(&home.store()) {
        assert_eq!(verdict, "ok");
    }
}

/// One line of a trace that matters here, in the order in which the calls ended (or, for `Answer`, began).
#[derive(Debug, PartialEq)]
enum Step {
    /// Bytes of the log with this text in them were written.
    Logged(u32),
    /// The log was flushed.
    Flushed,
    /// An answer to a client was about to be written.
    Answer,
}

/// Reads the output of `strace -f -y`. A call that another thread interrupts stands on two lines; a flush counts when it
/// has ended well, an answer when it begins.
fn steps(trace: &str) -> Vec<Step> {
    let mut pending: HashMap<&str, String> = HashMap::new();
    let mut steps = Vec::new();
    for line in trace.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        let begins = !call.starts_with("<... ");
        let whole = if let Some(begun) = call.strip_suffix("<unfinished ...>") {
            pending.insert(thread, begun.to_owned());
            None
        } else if let Some(rest) = call.strip_prefix("<... ") {
            let rest = rest.split_once(" resumed>").map_or("", |(_, r)| r);
            pending.remove(thread).map(|begun| begun + rest)
        } else {
            Some(call.to_owned())
        };
        let is_answer = |c: &str| c.contains("<socket:") || c.contains("<TCP:");
        if begins && is_answer(call) && call.contains("HTTP/1.1 200") {
            steps.push(Step::Answer);
        }
        let Some(whole) = whole else { continue };
        if !whole.contains("state.db-wal>") {
            continue;
        }
        let name = whole.split('(').next().unwrap_or_default();
        if name.ends_with("sync") && whole.ends_with("= 0") {
            steps.push(Step::Flushed);
        } else if name.starts_with("pwrite") || name.starts_with("write") {
            for (at, _) in whole.match_indices("needle<") {
                let number: String = whole[at + 7..].chars().take_while(char::is_ascii_digit).collect();
                steps.push(Step::Logged(number.parse().unwrap()));
            }
        }
    }
    steps
}

#[test]
fn the_log_is_flushed_before_every_acknowledgement() {
    const MESSAGES: u32 = 30;
    let Some(strace) = need::command("strace") else { return };
    let home = furnished(Home::new());
    let trace = home.around().join("trace");
    let gateway = Service::start(&home, "gateway", |command| {
        let mut traced = Command::new(&strace);
        traced.args(["-f", "-y", "-s", "20000", "-e", "trace=fsync,fdatasync,write,writev,sendto,sendmsg,pwrite64"]);
        traced.arg("-o").arg(&trace).arg("--").arg(command.get_program()).args(command.get_args()).env_clear();
        traced.envs(command.get_envs().filter_map(|(k, v)| Some((k, v?))));
        *command = traced;
    });
    let client = Client::new(&gateway.url, &home.token());
    for n in 0..MESSAGES {
        let answered = client.message("traced", &n.to_string(), &format!("needle<{n}>")).unwrap();
        assert_eq!(answered.status, 200, "{answered:?}");
    }
    drop(gateway);
    let steps = steps(&fs::read_to_string(&trace).unwrap());
    let answers = steps.iter().filter(|s| **s == Step::Answer).count();
    assert_eq!(answers, MESSAGES as usize, "the trace shows every acknowledgement");
    let mut answer = 0;
    for (i, step) in steps.iter().enumerate() {
        if *step != Step::Answer {
            continue;
        }
        // One client, one message at a time: the n-th answer acknowledges the n-th message.
        let logged = steps[..i].iter().position(|s| *s == Step::Logged(answer));
        let logged = logged.unwrap_or_else(|| panic!("message {answer} was acknowledged before it was in the log"));
        assert!(steps[logged..i].contains(&Step::Flushed), "message {answer} was acknowledged before a flush");
        answer += 1;
    }
}

/// Rows that an honest but careless opener sees: a stranger's read lock on byte 128 tells SQLite that somebody has
/// vouched for the `-shm`, so it is trusted.
fn rows_seen_beside_a_careless_lock(store: &std::path::Path) -> i64 {
    let program = r#"
import fcntl, os, sqlite3, struct, sys
shm = os.open(sys.argv[1] + "-shm", os.O_RDWR)
fcntl.fcntl(shm, 37, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 128, 1, 0))
child = os.fork()
if child == 0:
    connection = sqlite3.connect(sys.argv[1])
    print(connection.execute(sys.argv[2]).fetchone()[0], flush=True)
    os._exit(0)
os.waitpid(child, 0)
"#;
    let mut command = Command::new(python());
    command.args(["-I", "-c", program]).arg(store).arg("SELECT count(*) FROM message");
    let done = run(&mut command, Duration::from_secs(20)).success();
    done.stdout.trim().parse().unwrap_or_else(|_| panic!("{done:?}"))
}

#[test]
fn an_older_shm_beside_a_log_with_commits_loses_nothing() {
    const TALKS: i64 = 6;
    let home = furnished(Home::new());
    let gateway = Service::start(&home, "gateway", |_| {});
    let client = Client::new(&gateway.url, &home.token());
    client.talk("c", "0", "before the power cut 0");
    let old_shm = fs::read(home.member("-shm")).unwrap();
    let log_then = fs::metadata(home.member("-wal")).unwrap().len();
    let salts = |log: &std::path::Path| fs::read(log).unwrap()[16..24].to_owned();
    let salts_then = salts(&home.member("-wal"));
    // Few enough that the log does not begin anew meanwhile: then the old index would speak of frames that are gone.
    for n in 1..TALKS {
        client.talk("c", &n.to_string(), &format!("before the power cut {n}"));
    }
    // The copies are made by this process, which has no connection, while the gateway is at rest.
    let cut = furnished(Home::new());
    for name in ["state.db", "state.db-wal"] {
        fs::copy(home.path().join(name), cut.path().join(name)).unwrap();
    }
    fs::write(cut.member("-shm"), &old_shm).unwrap();
    assert!(fs::metadata(cut.member("-wal")).unwrap().len() > log_then, "the log has grown since the index was copied");

    assert_eq!(salts(&cut.member("-wal")), salts_then, "the log has not begun anew since the index was copied");

    // The control: the arrangement really is a trap.
    let trap = cut.around().join("trap");
    fs::create_dir(&trap).unwrap();
    for suffix in ["", "-wal", "-shm"] {
        fs::copy(cut.member(suffix), beside(&trap.join("state.db"), suffix)).unwrap();
    }
    let seen = rows_seen_beside_a_careless_lock(&trap.join("state.db"));
    assert!(seen < 2 * TALKS, "the old index hides nothing ({seen} rows), so this test would prove nothing");

    let up = Up::start(&cut, |_| {});
    let client = Client::new(up.url("gateway"), &cut.token());
    client.talk("c", "after", "after the power cut");
    let rows = messages(&cut);
    for n in 0..TALKS {
        let wanted = format!("before the power cut {n}");
        assert_eq!(rows.iter().filter(|r| r.1 == "user" && r.2 == wanted).count(), 1, "{wanted}");
    }
    assert!(rows.iter().any(|r| r.2 == "after the power cut"));
    up.stop();
    if let Some(verdict) = integrity(&cut.store()) {
        assert_eq!(verdict, "ok");
    }
}

#[test]
fn a_killed_house_comes_back_with_everything() {
    let home = Home::new();
    let mut up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    for n in 0..10 {
        client.talk("c", &n.to_string(), &format!("message {n}"));
    }
    let family = statehouse_testkit::kernel::descendants(up.child.pid());
    assert!(family.len() >= 5, "up and four services: {family:?}");
    up.child.kill();
    // Nobody is left that could be in the way of the next start.
    let alive = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == binary());
    until("the services end with their supervisor", Duration::from_secs(10), || !family.iter().any(alive));
    drop(up);
    let up = Up::start(&home, |_| {});
    Client::new(up.url("gateway"), &home.token()).talk("c", "10", "message 10");
    let rows = messages(&home);
    for n in 0..11 {
        assert_eq!(rows.iter().filter(|r| r.1 == "user" && r.2 == format!("message {n}")).count(), 1);
    }
    up.stop();
}

#[test]
fn a_limit_for_file_sizes_is_an_error_of_the_write_and_not_the_end_of_the_service() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let home = furnished(Home::new());
    let gateway = Service::start(&home, "gateway", |_| {});
    let client = Client::new(&gateway.url, &home.token());
    client.talk("c", "0", "before the limit");
    let pid = Pid::from_raw(i32::try_from(gateway.child.pid()).unwrap());
    let log = fs::metadata(home.member("-wal")).unwrap().len();
    let usual = prlimit(pid, Resource::Fsize, Rlimit { current: Some(log), maximum: None }).unwrap();
    let body = serde_json::json!({"conversation": "c", "id": "1", "text": "x".repeat(500_000)}).to_string();
    let refused = client.post("/v1/messages", body.as_bytes()).expect("an answer");
    assert!(refused.status >= 500, "{refused:?}");
    assert!(refused.body["error"]["code"].is_string(), "{refused:?}");
    prlimit(pid, Resource::Fsize, usual).unwrap();
    let kept = client.post("/v1/messages?wait=30", body.as_bytes()).expect("the same process answers");
    assert_eq!(kept.status, 200, "{kept:?}");
    let rows = messages(&home);
    assert_eq!(rows.iter().filter(|r| r.1 == "user").count(), 2, "each message once");
}
