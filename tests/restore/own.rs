//! Onto a store of ours, with the house up and without.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use statehouse_ops::restore::{Asked, run};
use statehouse_sessions::{OpenMode, SqliteStore, Store as _};
use statehouse_sqlite::admission::Wanted;
use statehouse_testkit::killat::run_killed;
use statehouse_testkit::{Child, Home, Seed, Snapshot, until};

use super::sql;
use crate::house::{Client, PATIENCE, Up, answer, cli, error_code, furnished, integrity, messages, statehouse};
use crate::maintenance::ours::Member;

/// A copy of the store as a fresh process sees it.
fn copy_of(home: &Home, name: &str) -> std::path::PathBuf {
    let file = home.around().join(name);
    answer(home, ["restore", home.store().to_str().unwrap(), "--to", file.to_str().unwrap()]);
    file
}

#[test]
fn onto_the_store_of_a_house_that_is_up_with_traffic_what_is_acknowledged_after_it_is_kept() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let client = Client::new(up.url("gateway"), &home.token());
    client.talk("first", "1", "in the copy");
    let copy = copy_of(&home, "copy.db");
    client.talk("second", "2", "only in what is replaced");
    let inode = fs::metadata(home.store()).unwrap().ino();
    let stop = AtomicBool::new(false);
    let (done, acknowledged) = std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut acknowledged = Vec::new();
            for n in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let text = format!("traffic {n}.");
                // It waits meanwhile, and is not refused.
                let answered = client.message("traffic", &n.to_string(), &text).unwrap();
                assert_eq!(answered.status, 200, "{answered:?}");
                acknowledged.push(text);
            }
            acknowledged
        });
        let sent = || messages(&home).iter().filter(|(_, _, text)| text.starts_with("traffic")).count();
        until("traffic", PATIENCE, || sent() > 3);
        let done = answer(&home, ["restore", copy.to_str().unwrap()]);
        let at = client.message("after", "a", "acknowledged after it").unwrap();
        assert_eq!(at.status, 200, "{at:?}");
        std::thread::sleep(Duration::from_millis(200));
        stop.store(true, Ordering::Relaxed);
        (done, traffic.join().unwrap())
    });
    assert_eq!(
        (&done["how"], &done["verified"], &done["held_by"]),
        (&json!("live"), &json!(true), &json!([])),
        "{done}"
    );
    assert_eq!(fs::metadata(home.store()).unwrap().ino(), inode, "no file was replaced");
    let texts: Vec<String> = messages(&home).into_iter().map(|(_, _, text)| text).collect();
    let has = |text: &str| texts.iter().any(|t| t == text);
    assert!(has("in the copy") && has("acknowledged after it") && !has("only in what is replaced"), "{texts:?}");
    // All that was acknowledged is in the snapshot of the state before it or in the store; nothing is in neither.
    let before = Path::new(done["before"]["path"].as_str().unwrap());
    let kept: Vec<String> = sql(before, &["SELECT text FROM message"])
        .iter()
        .map(|row| row[0].as_str().unwrap_or_default().to_owned())
        .collect();
    assert!(kept.iter().any(|t| t == "only in what is replaced"), "{kept:?}");
    let lost: Vec<&String> = acknowledged.iter().filter(|text| !has(text) && !kept.contains(text)).collect();
    assert!(lost.is_empty(), "{lost:?}");
    let first = acknowledged.iter().position(|text| has(text)).expect("some came after it");
    assert!(acknowledged[first..].iter().all(|text| has(text)), "from the first one after it on all are there");
    // The other services see the new content, too.
    let holders = answer(&home, ["holders"]);
    assert_eq!(
        holders["holders"].as_array().unwrap().iter().filter(|h| h["naked"] == true || h["ghost"] == true).count(),
        0
    );
    assert_eq!(answer(&home, ["verify", "--write"])["healthy"], true);
    let incidents = answer(&home, ["incidents", "--all"]);
    assert!(incidents.as_array().unwrap().iter().any(|i| i["kind"] == "restored"), "{incidents:?}");
    up.stop();
}

#[test]
fn a_store_that_was_destroyed_is_restored_and_its_house_goes_on_whether_it_is_still_up_or_not() {
    for still_up in [true, false] {
        let home = Home::new();
        let up = Up::start(&home, |_| {});
        let client = Client::new(up.url("gateway"), &home.token());
        client.talk("first", "1", "in the copy");
        let copy = copy_of(&home, "copy.db");
        fs::OpenOptions::new().write(true).open(home.store()).unwrap().set_len(0).unwrap();
        let mark = home.store().with_file_name("state.db.statehouse/destroyed.json");
        until("the mark", PATIENCE, || mark.exists());
        assert_ne!(client.message("first", "x", "not now").unwrap().status, 200, "the control");
        let stays = if still_up {
            Some(up)
        } else {
            up.stop();
            assert_eq!(error_code(&cli(&home, ["--json", "gateway"])), "refused_destroyed", "the control");
            None
        };
        let done = answer(&home, ["restore", copy.to_str().unwrap()]);
        assert_eq!(done["how"], "rename", "{done}");
        let aside = Path::new(done["replaced"].as_str().unwrap());
        assert!(!mark.exists() && aside.join("destroyed.json").exists(), "the mark is kept with what it is about");
        let up = stays.unwrap_or_else(|| Up::start(&home, |_| {}));
        let client = Client::new(up.url("gateway"), &home.token());
        let took = || client.message("first", "2", "goes on").is_ok_and(|answered| answered.status == 200);
        until("the house goes on", PATIENCE, took);
        assert!(messages(&home).iter().any(|(_, _, text)| text == "in the copy"));
        up.stop();
    }
}

#[test]
fn a_restore_that_is_killed_under_members_leaves_the_store_whole_and_they_go_on() {
    let mut seed = Seed::of_run("restore killed under members");
    let home = furnished(Home::new());
    sql(&home.store(), &["CREATE TABLE big(id INTEGER PRIMARY KEY, b)"]);
    let copy = copy_of(&home, "copy.db");
    let fill = "INSERT INTO big WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<400) SELECT i, randomblob(2000) FROM n";
    sql(&copy, &[fill]);
    let mut members: Vec<Member> = (0..2).map(|n| Member::of(&home.store(), n)).collect();
    let command = statehouse(&home, ["restore", copy.to_str().unwrap(), "--json"]);
    let notes = home.around().join("seen");
    let (mut step, mut first, mut killed) = (1, 0, 0);
    for round in 0.. {
        // The first runs to its end, and says how many points there are.
        let n = if round == 0 { 0 } else { first + (round - 1) * step };
        if round > 0 && n > 0 && killed >= 20 {
            break;
        }
        let run = run_killed(&command, n, &notes);
        if round == 0 {
            assert_eq!(run.finished.code(), 0, "{run:#?}");
            step = (run.at / 20).max(1);
            first = 1 + seed.below(step);
        } else if run.call.is_none() {
            break;
        }
        killed += u64::from(run.call.is_some());
        // Each restore takes their table away with the rest, and they write into whatever is there.
        let rows = &sql(&home.store(), &["SELECT count(*), count(DISTINCT id) FROM big"])[0];
        assert!([json!([0, 0]), json!([400, 400])].contains(rows), "killed before {run:?}: {rows}");
        sql(&home.store(), &["CREATE TABLE IF NOT EXISTS note(t)"]);
        for member in &mut members {
            member.send();
            member.settle();
        }
        assert_eq!(integrity(&home.store()).as_deref().unwrap_or("ok"), "ok", "killed before {run:?}");
        sql(&home.store(), &["DELETE FROM big"]);
    }
    assert!(killed >= 15, "{killed}");
    assert_eq!(answer(&home, ["verify", "--write"])["healthy"], true);
}

#[test]
fn a_store_that_is_missing_is_restored_and_opens_again() {
    let home = furnished(Home::new());
    let copy = copy_of(&home, "copy.db");
    for suffix in ["", "-wal", "-shm"] {
        let _ = fs::remove_file(home.member(suffix));
    }
    assert_eq!(error_code(&cli(&home, ["--json", "gateway"])), "store_missing", "the control");
    let done = answer(&home, ["restore", copy.to_str().unwrap()]);
    assert_eq!((&done["how"], &done["before"]["id"]), (&json!("rename"), &Value::Null), "{done}");
    let mode = fs::metadata(home.store()).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o600);
    Up::start(&home, |_| {}).stop();
}

#[test]
fn a_copy_of_an_older_schema_is_brought_up_to_date_and_one_of_a_newer_schema_is_refused() {
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    let newer = copy_of(&home, "newer.db");
    sql(&newer, &["UPDATE meta SET value = '99' WHERE key IN ('schema', 'min_reader', 'min_writer')"]);
    up.stop();
    let before = Snapshot::of(home.path(), &[]);
    let refused = cli(&home, ["restore", newer.to_str().unwrap(), "--json"]);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_newer_schema"), "{refused:#?}");
    before.assert_unchanged(home.path(), &[]);
    // The oldest that there is: our mark, and no table yet.
    let older = home.around().join("older.db");
    sql(&older, &["PRAGMA application_id=1400129651", "PRAGMA user_version=0"]);
    let up = Up::start(&home, |_| {});
    let done = answer(&home, ["restore", older.to_str().unwrap()]);
    assert!(done["notes"].to_string().contains("schema is older"), "{done}");
    Client::new(up.url("gateway"), &home.token()).talk("after", "1", "into the new schema");
    assert_eq!(messages(&home).iter().filter(|(_, role, _)| role == "user").count(), 1);
    up.stop();
}

#[test]
fn another_program_never_takes_the_place_of_a_store_of_ours_unasked() {
    let home = furnished(Home::new());
    let other = home.around().join("other.db");
    sql(&other, &["CREATE TABLE message(a)"]);
    let refused = cli(&home, ["restore", other.to_str().unwrap(), "--json"]);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "refused_other_application"), "{refused:#?}");
}

/// What the process of the next test is told.
const INSIDE: &str = "STATEHOUSE_TEST_RESTORE_INSIDE";

/// Not a test: the body of a process that has a store open and restores it.
#[test]
fn restoring_process() {
    let Some(path) = std::env::var_os(INSIDE) else { return };
    let (store, source) =
        std::env::split_paths(&path).collect::<Vec<_>>().try_into().map(|[a, b]: [_; 2]| (a, b)).unwrap();
    let open = SqliteStore::open(&store, "member", OpenMode { patience: PATIENCE, ..OpenMode::existing() }).unwrap();
    let attempt = || {
        run(&Asked {
            source: source.as_os_str(),
            path: &store,
            ours: true,
            scratch: &std::env::temp_dir(),
            wanted: Wanted {
                what: "restore",
                drain: Some(Duration::from_secs(2)),
                force: true,
                patience: Duration::from_secs(2),
                tell: &|_| {},
            },
            watch: &|_| {},
            before: &|_| {},
        })
    };
    let inside = attempt().map(|done| format!("{done:?}")).unwrap_or_else(|e| format!("{e:?}").replace('\n', " "));
    // Also where the paths lead somewhere else by now.
    let aside = store.with_file_name("aside");
    fs::rename(&store, &aside).unwrap();
    let moved = attempt().map(|done| format!("{done:?}")).unwrap_or_else(|e| format!("{e:?}").replace('\n', " "));
    fs::rename(&aside, &store).unwrap();
    println!("\ninside {inside}");
    println!("moved {moved}");
    open.close();
    println!("closed {}", attempt().map(|done| format!("{:?}", done.how)).unwrap_or_else(|e| e.to_string()));
}

#[test]
fn case_032_a_process_that_has_the_store_open_itself_is_refused() {
    let home = furnished(Home::new());
    let copy = copy_of(&home, "copy.db");
    let paths = std::env::join_paths([home.store(), copy]).unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "restore::own::restoring_process", "--nocapture"]).env(INSIDE, paths);
    let mut child = Child::spawn(&mut command);
    let inside = child.line_where("inside", PATIENCE, |l| l.starts_with("inside "));
    assert!(inside.contains("Held") && inside.contains("this very process has it open"), "{inside}");
    let moved = child.line_where("moved", PATIENCE, |l| l.starts_with("moved "));
    assert!(moved.contains("Held"), "{moved}");
    let closed = child.line_where("closed", PATIENCE, |l| l.starts_with("closed "));
    assert_eq!(closed, "closed Live");
    child.wait(PATIENCE);
}
