//! The scan names every holder rightly, changes nothing, and raises no false alarm.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use statehouse_sqlite::holders::{self, Evidence, Namespace, Report, Standing, Verdict, Via, dangerous, scan};
use statehouse_sqlite::secure::{Purpose, inspect};
use statehouse_sqlite::{Family, Member, members};

use crate::holder::Holder;
use crate::support::{Sibling, visitor, with};

/// A database in WAL mode that nobody has open.
pub(crate) fn database() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    visitor(&path, "PRAGMA journal_mode=WAL; CREATE TABLE m(id INTEGER PRIMARY KEY, t); INSERT INTO m(t) VALUES('a')");
    (directory, path)
}

/// A process that has written a row and keeps its connection.
pub(crate) fn holder(path: &Path) -> Sibling {
    let mut holder = Sibling::connected(path);
    holder.sql("PRAGMA wal_autocheckpoint=0");
    holder.sql("INSERT INTO m(t) VALUES('held')");
    holder
}

/// Drops both locks of a holder by opening and closing its files, then lets a stranger close as the last one.
fn split(holder: &mut Sibling, path: &Path) {
    holder.touch(path);
    holder.touch(&with(path, "-shm"));
    visitor(path, "SELECT count(*) FROM m");
    assert!(!with(path, "-wal").exists(), "the stranger unlinks the log");
    visitor(path, "INSERT INTO m(t) VALUES('elsewhere')");
}

pub(crate) fn report(path: &Path) -> Report {
    scan(&Family::of(path).unwrap()).unwrap()
}

#[track_caller]
pub(crate) fn only(report: &Report) -> &holders::Holder {
    assert_eq!(report.holders.len(), 1, "{report:#?}");
    &report.holders[0]
}

pub(crate) fn has(holder: &holders::Holder, member: Member) -> Option<(Standing, bool, Via)> {
    holder.files.iter().find(|f| f.member == member).map(|f| (f.generation, f.deleted, f.via))
}

#[test]
fn nobody_uses_it() {
    let (_d, path) = database();
    let report = report(&path);
    assert_eq!((report.verdict, report.holders.len()), (Verdict::Quiet, 0), "{report:#?}");
    assert!(dangerous(&Family::of(&path).unwrap()).unwrap().is_empty());
}

#[test]
fn an_ordinary_holder_is_described_whole() {
    let (_d, path) = database();
    let mut sibling = holder(&path);
    let found = report(&path);
    assert_eq!((found.verdict, found.alarming()), (Verdict::Held, false));
    let one = only(&found);
    assert_eq!(one.pid, Some(sibling.pid() as i32));
    assert_eq!((one.evidence, one.pid_namespace, one.is_self), (Evidence::Identity, Namespace::Same, false));
    for member in [Member::Main, Member::Wal, Member::Shm] {
        assert_eq!(has(one, member), Some((Standing::Current, false, Via::Descriptor)));
    }
    assert!(one.locks.shared && one.locks.dms && !one.locks.write && one.locks.readers.is_empty());
    assert!(one.command[0].ends_with("python3"), "{:?}", one.command);
    assert!(one.stop.starts_with(&format!("kill {}  # {} -u -c ", sibling.pid(), one.command[0])), "{}", one.stop);
    assert!(!one.stop.contains('\n'), "the command has newlines: {}", one.stop);
    let started = one.start_time.as_deref().unwrap();
    let now = Command::new("date").args(["-u", "+%Y-%m-%dT%H:"]).output().unwrap();
    assert!(started.starts_with(String::from_utf8(now.stdout).unwrap().trim().get(..10).unwrap()), "{started}");

    sibling.sql("BEGIN IMMEDIATE");
    sibling.sql("INSERT INTO m(t) VALUES('more')");
    let writing = report(&path);
    assert!(only(&writing).locks.write);
    assert_eq!(only(&writing).locks.readers.len(), 1);
    sibling.sql("COMMIT");
    sibling.order(json!({ "close": true })).unwrap();
    assert_eq!(report(&path).verdict, Verdict::Quiet);
}

#[test]
fn a_connection_that_never_ran_a_statement_is_a_holder_without_locks() {
    let (_d, path) = database();
    let _sibling = Sibling::connected(&path);
    let found = report(&path);
    let one = only(&found);
    assert_eq!((one.naked, one.ghost, one.locks.shared, has(one, Member::Shm)), (false, false, false, None));
}

#[test]
fn one_lost_lock_is_seen_and_which() {
    for (lost, shared, dms) in [("", false, true), ("-shm", true, false)] {
        let (_d, path) = database();
        let mut sibling = holder(&path);
        sibling.touch(&with(&path, lost));
        let found = report(&path);
        let one = only(&found);
        assert_eq!(
            (one.naked, one.ghost, one.locks.shared, one.locks.dms),
            (true, false, shared, dms),
            "lost {lost:?}"
        );
        let danger = dangerous(&Family::of(&path).unwrap()).unwrap().pop().expect("it is dangerous");
        assert_eq!((danger.pid, danger.naked), (Some(sibling.pid() as i32), true));
        // The control: the lock that was left is not lost by looking.
        let again = report(&path);
        assert_eq!((only(&again).locks.shared, only(&again).locks.dms), (shared, dms));
    }
}

#[test]
fn a_ghost_is_told_from_those_who_use_the_files_of_now() {
    let (_d, path) = database();
    let mut ghost = holder(&path);
    split(&mut ghost, &path);
    let current = holder(&path);
    let found = report(&path);
    assert_eq!(found.holders.len(), 2, "{found:#?}");
    let of = |pid: u32| found.holders.iter().find(|h| h.pid == Some(pid as i32)).unwrap();
    let (bad, good) = (of(ghost.pid()), of(current.pid()));
    assert!(bad.ghost && bad.naked && !good.ghost && !good.naked, "{found:#?}");
    assert_eq!(has(bad, Member::Main), Some((Standing::Current, false, Via::Descriptor)));
    for member in [Member::Wal, Member::Shm] {
        assert_eq!(has(bad, member), Some((Standing::Retired, true, Via::Descriptor)));
        assert_eq!(has(good, member).unwrap().0, Standing::Current);
    }
    let log = bad.files.iter().find(|f| f.member == Member::Wal).unwrap();
    assert!(log.size.unwrap() > 4096 && log.writable, "what is held and deleted has a size");
    let through = format!("/proc/{}/fd/{}", ghost.pid(), log.descriptor.unwrap());
    assert_eq!(std::fs::metadata(through).unwrap().len(), log.size.unwrap());
    let danger = dangerous(&Family::of(&path).unwrap()).unwrap().pop().unwrap();
    assert_eq!(danger.pid, Some(ghost.pid() as i32));
    current.kill();
    let alone = report(&path);
    assert_eq!((alone.verdict, only(&alone).ghost), (Verdict::Held, true), "a ghost alone holds it");
}

#[test]
fn sidecars_that_were_removed_make_a_ghost_that_still_has_its_locks() {
    let (_d, path) = database();
    let _sibling = holder(&path);
    std::fs::remove_file(with(&path, "-wal")).unwrap();
    std::fs::remove_file(with(&path, "-shm")).unwrap();
    let found = report(&path);
    assert_eq!((only(&found).ghost, only(&found).naked), (true, false));
}

#[test]
fn a_replaced_or_moved_main_file_makes_a_ghost() {
    let (d, path) = database();
    let sibling = holder(&path);
    let copy = d.path().join("copy");
    std::fs::copy(&path, &copy).unwrap();
    std::fs::rename(&copy, &path).unwrap();
    let replaced = report(&path);
    assert_eq!(has(only(&replaced), Member::Main), Some((Standing::Retired, true, Via::Descriptor)));
    assert!(only(&replaced).ghost && !only(&replaced).naked, "{replaced:#?}");
    sibling.kill();

    let (d, path) = database();
    let _sibling = holder(&path);
    std::fs::rename(&path, d.path().join("aside.db")).unwrap();
    std::fs::copy(d.path().join("aside.db"), &path).unwrap();
    let moved = report(&path);
    assert_eq!(has(only(&moved), Member::Main), Some((Standing::Retired, false, Via::Descriptor)), "{moved:#?}");
    assert!(only(&moved).ghost && !only(&moved).naked);
}

#[test]
fn case_012_a_file_that_is_called_deleted_fools_nobody() {
    let (d, path) = database();
    let named = with(&path, "-wal (deleted)");
    std::fs::write(&named, b"x").unwrap();
    let mut sibling = Sibling::idle();
    sibling.order(json!({ "open": named })).unwrap();
    assert_eq!(report(&path).verdict, Verdict::Quiet);
    // Gone, it still is no log of this database: its name ends in the mark twice now.
    std::fs::remove_file(&named).unwrap();
    assert_eq!(report(&path).verdict, Verdict::Quiet);
    // And a real one that kept a second name is retired although it is not gone.
    let mut real = holder(&path);
    std::fs::hard_link(with(&path, "-wal"), d.path().join("kept")).unwrap();
    split(&mut real, &path);
    let found = report(&path);
    let one = found.holders.iter().find(|h| h.pid == Some(real.pid() as i32)).unwrap();
    assert_eq!(has(one, Member::Wal), Some((Standing::Retired, false, Via::Descriptor)), "{found:#?}");
    assert!(one.ghost);
}

#[test]
fn case_013_every_spelling_of_the_path_finds_the_holder() {
    let (d, path) = database();
    let link = d.path().join("link");
    std::os::unix::fs::symlink(d.path(), &link).unwrap();
    let mut sibling = holder(&link.join("s.db"));
    split(&mut sibling, &path);
    for spelling in [path.clone(), link.join("s.db"), d.path().join("./link/././s.db")] {
        let found = report(&spelling);
        assert!(only(&found).ghost, "{}: {found:#?}", spelling.display());
    }
}

#[test]
fn the_same_path_in_another_directory_is_another_database() {
    let (d, path) = database();
    let (_other_d, other) = database();
    let _sibling = holder(&other);
    let mut visitor = Sibling::idle();
    visitor.order(json!({ "open": d.path().join("s.db") })).unwrap();
    assert_eq!(only(&report(&path)).pid, Some(visitor.pid() as i32));
    drop(visitor);
    // A directory that was moved away and made anew: those in the old one use the old database.
    let base = tempfile::tempdir().unwrap();
    let home = base.path().join("home");
    std::fs::create_dir(&home).unwrap();
    std::fs::copy(&path, home.join("s.db")).unwrap();
    let _in_old = holder(&home.join("s.db"));
    std::fs::rename(&home, base.path().join("old home")).unwrap();
    std::fs::create_dir(&home).unwrap();
    std::fs::copy(&path, home.join("s.db")).unwrap();
    assert_eq!(report(&home.join("s.db")).verdict, Verdict::Quiet);
    assert_eq!(report(&base.path().join("old home/s.db")).holders.len(), 1);
}

#[test]
fn a_map_whose_descriptor_is_closed_is_seen() {
    let (_d, path) = database();
    let holder = holder(&path);
    let mut mapper = Sibling::idle();
    mapper.order(json!({ "map": with(&path, "-shm") })).unwrap();
    let found = report(&path);
    let one = found.holders.iter().find(|h| h.pid == Some(mapper.pid() as i32)).expect("the map is seen");
    assert_eq!(has(one, Member::Shm), Some((Standing::Current, false, Via::Mapping)));
    assert!(one.naked, "who maps the index and holds no lock is naked");
    drop(holder);
    std::fs::remove_file(with(&path, "-shm")).unwrap();
    let found = report(&path);
    assert_eq!(has(only(&found), Member::Shm), Some((Standing::Retired, true, Via::Mapping)));
}

#[test]
fn a_strange_name_and_a_strange_command_are_shown_harmlessly() {
    let directory = tempfile::tempdir().unwrap();
    let home = directory.path().join("a\nb (deleted)");
    std::fs::create_dir(&home).unwrap();
    let path = home.join("数 据#.db");
    visitor(&path, "PRAGMA journal_mode=WAL; CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    let script = directory.path().join("\u{1b}[31m\n; reboot.py");
    std::fs::write(&script, Sibling::script()).unwrap();
    let mut sibling = Sibling::run(Command::new("python3").arg("-u").arg(&script).arg("x\ny"));
    sibling.order(json!({ "connect": path })).unwrap();
    sibling.sql("INSERT INTO m(t) VALUES('held')");
    split(&mut sibling, &path);
    let found = report(&path);
    let one = only(&found);
    assert!(one.ghost, "{found:#?}");
    assert!(!one.stop.chars().any(char::is_control), "{:?}", one.stop);
    assert_eq!(one.command.last().map(String::as_str), Some("x\ny"), "the list of words is exact");
}

#[test]
fn roles_come_from_the_records_and_a_fenced_member_is_no_ghost() {
    let (_d, path) = database();
    let family = Family::of(&path).unwrap();
    let registration = members::register(&inspect(&family, Purpose::Own).unwrap(), "gateway").unwrap();
    let own = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let found = report(&path);
    assert_eq!((only(&found).role.as_deref(), only(&found).is_self), (Some("gateway"), true));
    std::fs::remove_file(&path).unwrap();
    visitor(&path, "PRAGMA journal_mode=WAL; CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    assert!(only(&report(&path)).ghost);
    assert!(dangerous(&family).unwrap().is_empty(), "a process is no danger to itself");
    registration.set_fenced(true).unwrap();
    let fenced = report(&path);
    assert_eq!((only(&fenced).ghost, only(&fenced).fenced), (false, true));
    drop(own);
}

#[test]
fn case_090_words_in_a_command_line_are_no_holder() {
    let (_d, path) = database();
    let _bystander =
        Sibling::run(Command::new("python3").args(["-u", "-c", Sibling::script(), "hermes gateway"]).arg(&path));
    assert_eq!(report(&path).verdict, Verdict::Quiet, "whoever can be looked at and has no file is no holder");
}

/// As an ordinary user beside processes of root, and then beside one of root's that really holds it.
#[test]
fn what_cannot_be_inspected_is_cleared_by_the_locks_or_named() {
    if !rustix::process::geteuid().is_root() {
        statehouse_testkit::need::skip("two users are needed, and only root can be both");
        return;
    }
    let (d, path) = database();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(d.path(), everybody).unwrap();
    for file in [d.path(), &path] {
        std::os::unix::fs::chown(file, Some(2001), Some(2001)).unwrap();
    }
    let as_user = || -> serde_json::Value {
        let run = child("scan", &path, Some(2001));
        serde_json::from_str(&run).unwrap_or_else(|e| panic!("{e}: {run}"))
    };
    let _idle = Sibling::idle();
    let quiet = as_user();
    assert_eq!(quiet["verdict"], "quiet", "{quiet:#}");
    assert!(quiet["uninspected"].as_u64().unwrap() > 0);
    assert!(quiet["limits"][0].as_str().unwrap().contains("sudo statehouse holders"), "{quiet:#}");

    let mut root = holder(&path);
    let held = as_user();
    assert_eq!(held["verdict"], "held", "{held:#}");
    assert_eq!(held["holders"][0]["pid"], root.pid());
    assert_eq!(held["holders"][0]["evidence"], "lock");
    assert_eq!(
        (&held["holders"][0]["locks"]["shared"], &held["holders"][0]["locks"]["dms"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(held["holders"][0]["user"], "root");
    // With one lock lost the other one tells it.
    root.touch(&path);
    let naked = as_user();
    assert_eq!(naked["holders"][0]["naked"], true, "{naked:#}");
    drop(root);

    // The path in the arguments of a process that may open it and cannot be looked at: weak, but not nothing.
    let mut bystander = Sibling::run(Command::new("python3").args(["-u", "-c", Sibling::script(), "--db"]).arg(&path));
    // Once it answers it is no longer about to become that program.
    bystander.touch(Path::new("/dev/null"));
    let unknown = as_user();
    assert_eq!(unknown["verdict"], "unknown", "{unknown:#}");
    assert_eq!(unknown["holders"][0]["pid"], bystander.pid());
    assert_eq!(unknown["holders"][0]["evidence"], "argv");
    drop(bystander);

    // A lock of an open file description tells no owner.
    let anchor = statehouse_sqlite::anchor::hold(&Family::of(&path).unwrap()).unwrap();
    let hidden = as_user();
    assert_eq!(hidden["verdict"], "unknown", "{hidden:#}");
    assert_eq!(hidden["holders"][0]["pid"], serde_json::Value::Null);
    anchor.release();
    assert_eq!(as_user()["verdict"], "quiet");
}

/// A holder in a pid and mount namespace of its own, where the directory has another name.
#[test]
fn a_holder_in_a_container_is_found_and_its_retired_files_are_told_by_the_directory() {
    let (d, path) = database();
    let mount = tempfile::tempdir().unwrap();
    let inside = mount.path().join("s.db");
    let script = "mount --bind \"$0\" \"$1\" && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--map-root-user", "sh", "-c", script]);
    command.arg(d.path()).arg(mount.path()).args(["python3", "-u", "-c", Sibling::script()]);
    let mut sibling = Sibling::run(&mut command);
    sibling.order(json!({ "connect": inside })).unwrap();
    sibling.sql("INSERT INTO m(t) VALUES('held')");
    let found = report(&path);
    let one = only(&found);
    assert_eq!((one.pid_namespace, one.naked, one.ghost), (Namespace::Other, false, false), "{found:#?}");
    assert!(one.locks.shared && one.locks.dms);
    sibling.touch(&inside);
    sibling.touch(&with(&inside, "-shm"));
    visitor(&path, "SELECT count(*) FROM m");
    assert!(!with(&path, "-wal").exists());
    let found = report(&path);
    assert_eq!(has(only(&found), Member::Wal), Some((Standing::Retired, true, Via::Descriptor)), "{found:#?}");
    assert!(only(&found).ghost);
    // Another database whose files have the same names within the namespace is not this one.
    let (other, other_path) = database();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--fork", "--kill-child", "--map-root-user", "sh", "-c", script]);
    command.arg(other.path()).arg(d.path()).args(["python3", "-u", "-c", Sibling::script()]);
    let mut elsewhere = Sibling::run(&mut command);
    elsewhere.order(json!({ "connect": path })).unwrap();
    elsewhere.sql("INSERT INTO m(t) VALUES('elsewhere')");
    elsewhere.touch(&path);
    elsewhere.touch(&with(&path, "-shm"));
    visitor(&other_path, "SELECT count(*) FROM m");
    assert!(only(&report(&other_path)).ghost);
    let here = report(&path);
    assert!(here.holders.iter().all(|h| h.pid != only(&report(&other_path)).pid), "{here:#?}");
}

/// From inside a pid namespace a holder outside shows by its locks only.
#[test]
fn a_holder_outside_the_pid_namespace_shows_by_its_locks() {
    let (_d, path) = database();
    let mut holder = holder(&path);
    let inside = || -> serde_json::Value {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--map-root-user"]);
        command.arg(std::env::current_exe().unwrap());
        let run = task(&mut command, "scan", &path);
        serde_json::from_str(&run).unwrap_or_else(|e| panic!("{e}: {run}"))
    };
    let held = inside();
    assert_eq!(held["verdict"], "held", "{held:#}");
    assert_eq!(held["holders"][0]["pid"], serde_json::Value::Null);
    assert_eq!(held["holders"][0]["pid_namespace"], "other");
    assert_eq!(
        (&held["holders"][0]["locks"]["shared"], &held["holders"][0]["locks"]["dms"]),
        (&json!(true), &json!(true))
    );
    holder.order(json!({ "close": true })).unwrap();
    let quiet = inside();
    assert_eq!(quiet["verdict"], "quiet", "{quiet:#}");
    assert!(quiet["limits"].to_string().contains("pid namespace"), "{quiet:#}");
}

/// The scan beside a live connection of the same process that has no lock core: nothing may be lost.
#[test]
fn a_thousand_looks_beside_a_connection_without_the_lock_core_lose_no_lock() {
    let (_d, path) = database();
    let mut own = Holder::with_database(&path, false);
    let own_pid = own.pid().to_string();
    let locks = || {
        let table = std::fs::read_to_string("/proc/locks").unwrap();
        let of_process = |l: &&str| l.split_whitespace().nth(4) == Some(own_pid.as_str());
        let mut lines: Vec<String> =
            table.lines().filter(of_process).map(|l| l.split_once(' ').unwrap().1.to_owned()).collect();
        lines.sort();
        lines
    };
    let before = locks();
    assert_eq!(before.len(), 2, "the shared range and byte 128: {before:?}");
    let sizes: Vec<u64> = (0..10)
        .map(|_| {
            let answer = own.ok(&format!("scan 100 {}", path.display()));
            let [alarms, children, size] = answer.split(' ').collect::<Vec<_>>().try_into().unwrap();
            assert_eq!((alarms, children), ("0", "-1"), "no alarm, and no child is left");
            size.parse().unwrap()
        })
        .collect();
    assert_eq!(locks(), before);
    println!("KB in memory after each hundred: {sizes:?}");
    assert!(sizes[9] < sizes[0] + 1024, "it grew: {sizes:?}");
    visitor(&path, "SELECT count(*) FROM m");
    assert!(with(&path, "-wal").exists());
    // The control: a look that opens the file does lose them.
    own.ok(&format!("stray {}", path.display()));
    assert_eq!(locks().len(), before.len() - 1);
}

/// Many processes that open, write and close all the time, some of them the last one each time.
#[test]
fn no_false_alarm_while_others_come_and_go() {
    let (_d, path) = database();
    let family = Family::of(&path).unwrap();
    let stop = AtomicBool::new(false);
    let turns = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut sibling = Sibling::idle();
                while !stop.load(Ordering::Relaxed) {
                    sibling.order(json!({ "connect": path, "timeout": 30 })).unwrap();
                    sibling.sql("INSERT INTO m(t) VALUES('x')");
                    sibling.order(json!({ "close": true })).unwrap();
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                visitor(&path, "PRAGMA busy_timeout=30000; SELECT count(*) FROM m");
            }
        });
        let begun = Instant::now();
        let mut scans = 0;
        // Both conditions: enough looks, and enough that happened meanwhile.
        while (scans < 150 || turns.load(Ordering::Relaxed) < 150) && begun.elapsed() < Duration::from_secs(60) {
            let alarm = dangerous(&family).unwrap();
            let report = scan(&family).unwrap();
            if !alarm.is_empty() || report.alarming() {
                stop.store(true, Ordering::Relaxed);
                panic!("after {scans} scans: {alarm:#?} {report:#?}");
            }
            scans += 1;
        }
        stop.store(true, Ordering::Relaxed);
        println!("{scans} scans during {} openings", turns.load(Ordering::Relaxed));
        assert!(scans >= 150 && turns.load(Ordering::Relaxed) >= 150);
    });
}

/// Our own processes, which hold their locks by descriptions of their own, opened, used and killed beside a stranger.
#[test]
fn processes_of_ours_are_whole_at_every_moment() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    let mut first = Holder::with_store(&path);
    first.ok("put a");
    let found = report(&path);
    let one = only(&found);
    assert_eq!((one.pid, one.naked, one.ghost), (Some(first.pid() as i32), false, false));
    assert!(one.role.is_some() && one.locks.shared && one.locks.dms, "{one:#?}");
    let family = Family::of(&path).unwrap();
    let stop = AtomicBool::new(false);
    let turns = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for worker in 0..2 {
            let (path, stop, turns) = (&path, &stop, &turns);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let turn = turns.fetch_add(1, Ordering::Relaxed);
                    let mut short = Holder::with_store(path);
                    short.ok(&format!("put {worker}-{turn}"));
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                visitor(&path, "PRAGMA busy_timeout=30000; SELECT count(*) FROM sqlite_master");
            }
        });
        let begun = Instant::now();
        let mut scans = 0;
        while (scans < 50 || turns.load(Ordering::Relaxed) < 50) && begun.elapsed() < Duration::from_secs(60) {
            let (alarm, report) = (dangerous(&family).unwrap(), scan(&family).unwrap());
            if !alarm.is_empty() || report.alarming() {
                stop.store(true, Ordering::Relaxed);
                panic!("after {scans} scans: {alarm:#?} {report:#?}");
            }
            scans += 1;
        }
        stop.store(true, Ordering::Relaxed);
        assert!(scans >= 50 && turns.load(Ordering::Relaxed) >= 50, "{scans} scans");
    });
}

/// Runs one task of this binary in a process of its own and returns what it printed.
pub(crate) fn child(what: &str, path: &Path, user: Option<u32>) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    if let Some(uid) = user {
        std::os::unix::process::CommandExt::uid(&mut command, uid);
        std::os::unix::process::CommandExt::gid(&mut command, uid);
    }
    task(&mut command, what, path)
}

pub(crate) fn task(command: &mut Command, what: &str, path: &Path) -> String {
    command.args(["holders::child_task", "--exact", "--ignored", "--nocapture"]);
    command.env("STATEHOUSE_TEST_TASK", what).env("STATEHOUSE_TEST_PATH", path);
    let run = command.output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{text}{}", String::from_utf8_lossy(&run.stderr));
    text.lines().find_map(|l| l.find('{').map(|at| l[at..].to_owned())).unwrap_or(text)
}

#[test]
#[ignore = "started by other tests in a process of its own"]
fn child_task() {
    let path = PathBuf::from(std::env::var_os("STATEHOUSE_TEST_PATH").unwrap());
    let family = Family::of(&path).unwrap();
    match std::env::var("STATEHOUSE_TEST_TASK").unwrap().as_str() {
        "say" => println!("SAID {}", scan(&family).err().map(|e| e.to_string()).unwrap_or_default()),
        "scan" => println!("{}", serde_json::to_string(&scan(&family).unwrap()).unwrap()),
        other => panic!("{other}"),
    }
}
