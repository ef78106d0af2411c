//! Maintenance of our own store: its members let go of it and go on, whatever is killed.

use super::*;

/// What a member process of these tests is told.
const MEMBER_STORE: &str = "STATEHOUSE_TEST_MEMBER_OF";

/// Not a test: the body of a process of ours that has a store open and writes a row for each line that it is sent.
#[test]
#[ignore = "started by other tests in a process of its own"]
fn member_process() {
    let path = std::env::var_os(MEMBER_STORE).expect("the test that starts it says which store");
    let mode = OpenMode { patience: PATIENCE, ..OpenMode::existing() };
    let store = SqliteStore::open(Path::new(&path), "member", mode).unwrap();
    store.database().write(|c| Ok(c.execute_batch("CREATE TABLE IF NOT EXISTS note(t)")?)).unwrap();
    println!("\nopen");
    for line in std::io::stdin().lines() {
        let text = line.unwrap();
        store.database().write(move |c| Ok(c.execute("INSERT INTO note VALUES(?1)", [&text])?)).unwrap();
        println!("kept");
    }
    store.close();
}

pub(crate) struct Member {
    child: Child,
    name: usize,
    kept: usize,
    sent: usize,
}

impl Member {
    pub(crate) fn of(store: &Path, name: usize) -> Member {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "maintenance::ours::member_process", "--ignored", "--nocapture"])
            .env(MEMBER_STORE, store);
        let mut child = Child::spawn(&mut command);
        child.line_where("open", PATIENCE, |l| l == "open");
        Member { child, name, kept: 0, sent: 0 }
    }

    pub(crate) fn send(&mut self) {
        self.child.send(&format!("note {} {}", self.name, self.sent));
        self.sent += 1;
    }

    /// Waits until everything that was sent is acknowledged.
    pub(crate) fn settle(&mut self) {
        while self.kept < self.sent {
            self.child.line_where("kept", PATIENCE, |l| l == "kept");
            self.kept += 1;
        }
    }
}

/// A home whose store is mostly free pages.
fn bloated(rows: u32) -> Home {
    let home = furnished(Home::new());
    let mut python = Python::open(&home.store());
    python.sql(TABLE).unwrap();
    for sql in bloat(rows) {
        python.sql(&sql).unwrap();
    }
    python.sql("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    python.quit();
    home
}

fn notes(store: &Path) -> Vec<Value> {
    let mut python = Python::open(store);
    let rows = python.sql("SELECT DISTINCT t FROM note ORDER BY t").unwrap();
    python.quit();
    rows
}

#[test]
fn eight_members_are_named_and_with_a_drain_the_store_is_rewritten_and_all_eight_go_on() {
    let home = bloated(1500);
    let mut members: Vec<Member> = (0..8).map(|n| Member::of(&home.store(), n)).collect();
    let pids: Vec<u32> = members.iter().map(|m| m.child.pid()).collect();
    let refused = cli(&home, ["vacuum", "--json"]);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_held"), "{refused:#?}");
    names(&refused, &pids);
    assert!(refused.json()["error"]["hint"].as_str().unwrap().contains("--drain 10"));
    let dry = answer(&home, ["vacuum", "--dry-run"]);
    assert_eq!((&dry["refused"]["code"], &dry["worth_it"]), (&json!("refused_held"), &json!(true)), "{dry}");

    let before = size(&home.store());
    let mut vacuum = Child::spawn(&mut statehouse(&home, ["vacuum", "--drain", "10", "--json"]));
    // They write all the time, before, while and after it is done.
    while vacuum.ended().is_none() {
        for member in &mut members {
            member.send();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(vacuum.ended().unwrap().success(), "{}", vacuum.stderr_text());
    let done: Value = serde_json::from_str(&vacuum.line(PATIENCE)).unwrap();
    assert_eq!((&done["done"], &done["overridden"]), (&json!(true), &json!([])), "{done}");
    assert!(done["size_after"].as_u64().unwrap() < before / 2, "{before}: {done}");
    for member in &mut members {
        member.send();
        member.settle();
    }
    let expected: usize = members.iter().map(|m| m.sent).sum();
    assert_eq!(notes(&home.store()).len(), expected);
    let holders = answer(&home, ["holders"]);
    let held: Vec<u64> = holders["holders"].as_array().unwrap().iter().filter_map(|h| h["pid"].as_u64()).collect();
    assert!(pids.iter().all(|p| held.contains(&u64::from(*p))), "{holders}");
    assert_eq!(answer(&home, ["verify"])["healthy"], true);
    assert!(answer(&home, ["status"])["maintenance"]["last_vacuum"]["at"].is_string());
}

#[test]
fn a_rewrite_that_is_killed_at_any_point_leaves_the_store_whole_and_its_members_go_on() {
    let mut seed = Seed::of_run("vacuum killed");
    let home = bloated(1000);
    let mut members: Vec<Member> = (0..2).map(|n| Member::of(&home.store(), n)).collect();
    let rows = "SELECT count(*), sum(id), sum(length(b)) FROM bloat";
    let mut python = Python::open(&home.store());
    let expected = python.sql(rows).unwrap();
    python.quit();
    // How long one takes that is left alone.
    let begun = std::time::Instant::now();
    answer(&home, ["vacuum", "--anyway", "--drain", "10"]);
    let whole = u64::try_from(begun.elapsed().as_micros()).unwrap();
    let mut killed = 0;
    for _ in 0..20 {
        let mut vacuum = Child::spawn(&mut statehouse(&home, ["vacuum", "--anyway", "--drain", "10", "--json"]));
        std::thread::sleep(Duration::from_micros(seed.below(whole)));
        killed += usize::from(vacuum.ended().is_none());
        vacuum.kill();
        for member in &mut members {
            member.send();
            member.settle();
        }
        let mut python = Python::open(&home.store());
        assert_eq!(python.sql(rows).unwrap(), expected);
        python.quit();
    }
    assert!(killed >= 10, "only {killed} were killed before their end");
    assert_eq!(answer(&home, ["verify", "--write"])["healthy"], true);
    answer(&home, ["vacuum", "--anyway", "--drain", "10"]);
    members.iter_mut().for_each(|m| m.child.close_input());
    for member in &mut members {
        member.child.wait(PATIENCE);
    }
    assert_eq!(integrity(&home.store()).as_deref().unwrap_or("ok"), "ok");
    assert_eq!(notes(&home.store()).len(), members.iter().map(|m| m.sent).sum::<usize>());
}

#[test]
fn case_092_gateway_and_dashboard_give_housekeeping_its_turn_and_a_stranger_who_does_not_is_counted_and_named() {
    let home = bloated(1500);
    fs::write(
        home.path().join("config.toml"),
        "[maintenance]\nvacuum_mib = 1\nvacuum_share = 0.2\nvacuum_every = \"1h\"\ndrain = \"20s\"\n",
    )
    .unwrap();
    let gateway = Service::start(&home, "gateway", |_| {});
    let _dashboard = Service::start(&home, "dashboard", |_| {});
    let client = Client::new(&gateway.url, &home.token());
    client.talk("c", "before", "before");
    let mut stranger = Python::open(&home.store());
    stranger.sql("SELECT count(*) FROM bloat").unwrap();

    for n in 1..=3 {
        let put_off = answer(&home, ["worker", "run", "housekeeping"]);
        assert_eq!((&put_off["vacuum"], &put_off["deferrals"]), (&json!("deferred"), &json!(n)), "{put_off}");
        let status = answer(&home, ["status"]);
        let maintenance = &status["maintenance"];
        assert_eq!((&maintenance["deferrals"], &maintenance["last_vacuum"]), (&json!(n), &Value::Null), "{status}");
        let by = maintenance["by"].as_array().unwrap();
        assert!(by.len() == 1 && by[0].as_str().unwrap().contains(&format!("PID {} ", stranger.pid())), "{status}");
        assert_eq!(maintenance["deferred_since"], put_off["since"]);
        client.talk("c", &format!("deferred {n}"), "still served");
    }
    let people = cli(&home, ["status"]).success().stdout;
    assert!(people.contains("put off 3 times") && people.contains(&stranger.pid().to_string()), "{people}");
    stranger.quit();

    let before = size(&home.store());
    let done = answer(&home, ["worker", "run", "housekeeping"]);
    assert_eq!(done["vacuum"], "done", "{done}");
    assert!(size(&home.store()) < before / 2, "{done}");
    let maintenance = answer(&home, ["status"])["maintenance"].clone();
    assert!(maintenance["last_vacuum"]["at"].is_string() && maintenance["deferred_since"].is_null(), "{maintenance}");
    assert_eq!(maintenance["deferrals"], 0);
    client.talk("c", "after", "after");
    assert_eq!(answer(&home, ["verify", "--write"])["healthy"], true);
    let again = answer(&home, ["worker", "run", "housekeeping"]);
    assert_eq!(again["vacuum"], "not_due", "{again}");
}

#[test]
fn a_whole_house_lets_go_of_its_store_for_a_rewrite_and_goes_on() {
    let home = bloated(1500);
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    client.talk("c", "before", "before");
    let refused = cli(&home, ["vacuum", "--json"]);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_held"), "{refused:#?}");
    names(&refused, &["gateway", "dashboard", "scheduler"].map(|service| up.pid(service)));
    let before = size(&home.store());
    for line in [&["vacuum"][..], &["optimize"], &["checkpoint", "--truncate"]] {
        let done = answer(&home, line.iter().chain(&["--drain", "20"]));
        assert_eq!(done["done"], true, "{done}");
        client.talk("c", line[0], "goes on");
    }
    assert!(size(&home.store()) < before / 2);
    assert_eq!(answer(&home, ["verify", "--write"])["healthy"], true);
    for service in ["anchor", "gateway", "dashboard", "scheduler"] {
        until(&format!("{service} is back"), PATIENCE, || {
            let holders = answer(&home, ["holders"]);
            holders["holders"].as_array().unwrap().iter().any(|h| h["pid"] == up.pid(service))
        });
    }
    up.stop();
}

#[test]
fn the_worker_that_the_scheduler_starts_rewrites_the_store_under_running_services() {
    let home = bloated(1500);
    let config = "[scheduler]\nhousekeeping_every = \"1s\"\n[maintenance]\nvacuum_mib = 1\nvacuum_share = 0.2\n";
    fs::write(home.path().join("config.toml"), config).unwrap();
    let before = size(&home.store());
    let gateway = Service::start(&home, "gateway", |_| {});
    let _dashboard = Service::start(&home, "dashboard", |_| {});
    let _scheduler = Service::start(&home, "scheduler", |_| {});
    let client = Client::new(&gateway.url, &home.token());
    let mut n = 0;
    until("the store is rewritten", PATIENCE, || {
        n += 1;
        client.talk("c", &format!("{n}"), "all the time");
        answer(&home, ["status"])["maintenance"]["last_vacuum"]["at"].is_string()
    });
    assert!(size(&home.store()) < before / 2);
    client.talk("c", "after", "after");
    assert_eq!(answer(&home, ["verify", "--write"])["healthy"], true);
}
