//! Holders that a walk through `/proc` does not show, or shows only in part: of other namespaces, users, threads, machines.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use statehouse_sqlite::holders::{Evidence, Namespace, Verdict, Via};
use statehouse_sqlite::secure::{Purpose, inspect};
use statehouse_sqlite::{Family, Member, anchor, members};
use statehouse_testkit::need;

use crate::holder::Holder;
use crate::holders::{child, database, has, holder, only, report, task};
use crate::support::{Sibling, visitor, wait_for, with};

/// A report as a process sees it that is alone in a pid namespace of its own.
fn from_inside(path: &Path) -> Value {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "--map-root-user"]);
    command.arg(std::env::current_exe().unwrap());
    parsed(&task(&mut command, "scan", path))
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn holders(report: &Value) -> &Vec<Value> {
    report["holders"].as_array().unwrap()
}

fn both_locks(holder: &Value) -> bool {
    holder["locks"]["shared"] == true && holder["locks"]["dms"] == true
}

#[test]
fn a_member_of_another_container_is_one_holder_with_its_role() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    let mut first = Holder::with_store(&path);
    first.ok("put a");
    let alone = from_inside(&path);
    let [one] = holders(&alone).as_slice() else { panic!("{alone:#}") };
    assert_eq!((&one["pid"], &one["pid_namespace"], &one["evidence"]), (&Value::Null, &json!("other"), &json!("lock")));
    assert_eq!(one["role"], format!("holder-{}", first.pid()));
    assert!(both_locks(one), "its locks, which show no owner, are its own: {alone:#}");
    let stop = one["stop"].as_str().unwrap();
    let begins = format!("stop holder-{0} (PID {0} in its own container or namespace", first.pid());
    assert!(stop.starts_with(&begins) && stop.ends_with(')'), "{stop}");
    assert_eq!(alone["verdict"], "held");

    // Of two each has its locks, and nobody else is made up.
    let mut second = Holder::with_store(&path);
    second.ok("put b");
    let two = from_inside(&path);
    assert_eq!(holders(&two).len(), 2, "{two:#}");
    assert!(holders(&two).iter().all(|h| h["role"] != Value::Null && both_locks(h)), "{two:#}");

    // A third owner of such locks has no record, and is not taken for one of ours.
    let third = anchor::hold(&Family::of(&path).unwrap()).unwrap();
    let three = from_inside(&path);
    assert_eq!(holders(&three).len(), 3, "{three:#}");
    assert_eq!(holders(&three).iter().filter(|h| h["role"] == Value::Null && both_locks(h)).count(), 1, "{three:#}");
    third.release();

    // Seen from here all of them have numbers, and are listed once.
    let here = report(&path);
    assert_eq!(here.holders.iter().filter(|h| h.pid.is_some() && h.role.is_some()).count(), 2, "{here:#?}");
    assert_eq!(here.holders.len(), 2);
}

#[test]
fn a_parked_member_has_nothing_open_and_nobody_takes_the_database_for_unused() {
    let (_d, path) = database();
    let registration =
        members::register(&inspect(&Family::of(&path).unwrap(), Purpose::Own).unwrap(), "gateway").unwrap();
    let open = from_inside(&path);
    assert_eq!(holders(&open).len(), 1, "{open:#}");
    registration.set_parked(true).unwrap();
    let parked = from_inside(&path);
    assert_eq!((&parked["verdict"], &parked["holders"][0]["parked"]), (&json!("held"), &json!(true)), "{parked:#}");
    assert_eq!(parked["holders"][0]["files"], json!([]), "{parked:#}");
    assert_eq!(only(&report(&path)).pid, i32::try_from(std::process::id()).ok());
    registration.set_parked(false).unwrap();
    assert_eq!(from_inside(&path)["verdict"], "held");
    // From here it is seen to have no file.
    assert_eq!(report(&path).verdict, Verdict::Quiet);
}

#[test]
fn a_member_on_another_machine_is_seen_through_its_record() {
    let (_d, path) = database();
    let family = Family::of(&path).unwrap();
    drop(members::register(&inspect(&family, Purpose::Own).unwrap(), "x").unwrap());
    let record = json!({
        "role": "scheduler", "pid": 17, "start_ticks": 4711, "start_time": "2026-01-01T00:00:00.000000Z",
        "boot_id": "another", "machine_id": "3f2a1b2c4d5e6f708192a3b4c5d6e7f8", "pid_namespace": 4_026_531_836_u64,
        "version": "9", "sqlite": "3", "fenced": false, "parked": false,
    });
    let file = family.side_directory().join("members/17-4711");
    std::fs::write(&file, record.to_string()).unwrap();
    assert_eq!(report(&path).verdict, Verdict::Quiet, "nobody holds the record");
    let held = std::fs::File::open(&file).unwrap();
    held.lock().unwrap();
    let found = report(&path);
    let one = only(&found);
    assert_eq!((one.pid, one.evidence, one.pid_namespace), (None, Evidence::Lock, Namespace::Other));
    assert_eq!(one.role.as_deref(), Some("scheduler"));
    assert_eq!(one.stop, "stop scheduler (PID 17 on another machine, machine 3f2a1b2c…)");
    assert_eq!(found.verdict, Verdict::Held);
}

/// `F_GETLK` names one owner only, but the table of locks names the listed one.
#[test]
fn a_hidden_holder_shows_beside_a_listed_one() {
    if !need::root("entering a pid namespace") {
        return;
    }
    let (_d, path) = database();
    let _outside = holder(&path);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", "python3", "-u", "-c", Sibling::script()]);
    let mut inside = Sibling::run(&mut command);
    inside.order(json!({ "connect": path })).unwrap();
    inside.sql("INSERT INTO m(t) VALUES('inside')");
    let children = format!("/proc/{0}/task/{0}/children", inside.pid());
    let pid = std::fs::read_to_string(children).unwrap().trim().to_owned();
    let mut enter = Command::new("nsenter");
    enter.args(["--pid", "--mount", "--target", &pid]).arg(std::env::current_exe().unwrap());
    let both = parsed(&task(&mut enter, "scan", &path));
    assert_eq!(holders(&both).len(), 2, "{both:#}");
    assert_eq!((&holders(&both)[0]["pid"], &holders(&both)[1]["pid"]), (&json!(1), &Value::Null), "{both:#}");
    assert!(both_locks(&holders(&both)[1]));
    assert!(both["limits"].to_string().contains("names only one"), "{both:#}");
}

/// A main thread that ends makes its process look like a zombie, and a thread may have descriptors of its own.
#[test]
fn files_that_only_a_thread_has_are_found() {
    let ended = "import ctypes, os, sys, threading
threading.Thread(target=lambda: exec(sys.argv[1], {})).start()
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)";
    let apart = "import ctypes, sys, threading
def run():
    assert ctypes.CDLL(None).unshare(0x400) == 0
    exec(sys.argv[1], {})
threading.Thread(target=run).start()";
    for (what, script) in [("ended", ended), ("apart", apart)] {
        let (_d, path) = database();
        let mut command = Command::new("python3");
        let mut sibling = Sibling::run(command.args(["-u", "-c", script]).arg(Sibling::script()));
        sibling.order(json!({ "connect": path })).unwrap();
        sibling.sql("INSERT INTO m(t) VALUES('held')");
        let first = std::fs::read_dir(format!("/proc/{}/fd", sibling.pid())).unwrap();
        let targets = first.filter_map(|fd| std::fs::read_link(fd.unwrap().path()).ok());
        assert!(!targets.into_iter().any(|t| t == path), "{what}: the first thread does not show it");
        let found = report(&path);
        let one = only(&found);
        assert_eq!((one.pid, one.evidence), (Some(sibling.pid() as i32), Evidence::Identity), "{what}: {found:#?}");
        assert!(one.locks.shared && one.locks.dms && !one.naked, "{what}: {found:#?}");
        assert_eq!(has(one, Member::Wal).unwrap().2, Via::Descriptor);
        // What it loses is seen as well.
        sibling.touch(&path);
        assert!(only(&report(&path)).naked, "{what}");
    }
}

#[test]
fn a_zombie_holds_nothing() {
    let (_d, path) = database();
    let mut sibling = holder(&path);
    let pid = sibling.pid();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid as i32).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") Z ");
    wait_for("a zombie", state);
    assert_eq!(report(&path).verdict, Verdict::Quiet);
    assert!(sibling.order(json!({ "close": true })).is_err());
}

/// Root's processes beside an ordinary user who may not look at them: their command lines are all there is.
#[test]
fn only_a_command_line_that_chooses_this_home_speaks() {
    if !need::root("two users are needed") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let path = home.path().join("state.db");
    visitor(&path, "PRAGMA journal_mode=WAL; CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    for file in [home.path(), &path] {
        std::os::unix::fs::chown(file, Some(2001), Some(2001)).unwrap();
    }
    let as_user = || parsed(&child("scan", &path, Some(2001)));
    let (here, there) = (home.path().display(), elsewhere.path().display());
    for (words, verdict) in [
        ("grep hermes-agent gateway.log".to_owned(), "quiet"),
        ("state.db".to_owned(), "quiet"),
        (format!("{here}/hermes-agent/run_agent.py gateway"), "quiet"),
        (format!("--hermes-home {there} --log {here}/logs/x"), "quiet"),
        (format!("--hermes-home={here} gateway"), "unknown"),
        (format!("HERMES_HOME={here} gateway"), "unknown"),
        (format!("--home {here}/ --profile"), "unknown"),
        (format!("--db={here}/state.db"), "unknown"),
    ] {
        let mut command = Command::new("python3");
        let mut bystander = Sibling::run(command.args(["-u", "-c", Sibling::script()]).args(words.split(' ')));
        // What `python3` names may be a script that starts others with the same words before it is the interpreter.
        bystander.order(json!({})).unwrap();
        let found = as_user();
        assert_eq!(found["verdict"], verdict, "{words}: {found:#}");
        if verdict == "unknown" {
            let one = &holders(&found)[0];
            assert_eq!((&one["pid"], &one["evidence"]), (&json!(bystander.pid()), &json!("argv")), "{words}");
            let expected = format!("not cleared: pid {}; this settles it: sudo statehouse holders ", bystander.pid());
            assert!(found["limits"][0].as_str().unwrap().starts_with(&expected), "{found:#}");
        }
    }
    // A user who is kept out by the directory cannot hold the file, whatever it was told.
    std::fs::set_permissions(home.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let mut command = Command::new("python3");
    command.args(["-u", "-c", Sibling::script()]).arg(&path).uid(2002).gid(2002);
    let _kept_out = Sibling::run(&mut command);
    assert_eq!(as_user()["verdict"], "quiet");
}

/// `mount -o hidepid` hides the processes of others, or their files.
#[test]
fn where_proc_hides_others_their_locks_show_them() {
    if !need::root("mounting a procfs that hides") {
        return;
    }
    let (d, path) = database();
    for file in [d.path(), &path] {
        std::os::unix::fs::chown(file, Some(2001), Some(2001)).unwrap();
    }
    let as_user = |hide: &str| {
        let mut command = Command::new("unshare");
        let script =
            "mount -t proc -o hidepid=$0 proc /proc && exec setpriv --reuid 2001 --regid 2001 --clear-groups \"$@\"";
        command.args(["--mount", "sh", "-c", script, hide]).arg(std::env::current_exe().unwrap());
        parsed(&task(&mut command, "scan", &path))
    };
    for hide in ["1", "2"] {
        assert_eq!(as_user(hide)["verdict"], "quiet");
        let sibling = holder(&path);
        let found = as_user(hide);
        let [one] = holders(&found).as_slice() else { panic!("{found:#}") };
        assert_eq!((&one["pid"], &one["evidence"]), (&json!(sibling.pid()), &json!("lock")), "{found:#}");
        assert!(both_locks(one) && one["naked"] == false, "{found:#}");
        assert_eq!(found["verdict"], "held");
        let limits = found["limits"].to_string();
        assert!(limits.contains("hidepid") || found["uninspected"].as_u64().unwrap() > 0, "{found:#}");
        drop(sibling);
    }
}

#[test]
fn without_a_procfs_it_says_so() {
    if !need::root("mounting something over /proc") {
        return;
    }
    let (_d, path) = database();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs none /proc && exec \"$@\"", "sh"]);
    let said = task(command.arg(std::env::current_exe().unwrap()), "say", &path);
    assert!(said.contains("SAID look at the processes in /proc: no procfs of this process is mounted there"), "{said}");
}

#[test]
fn what_stands_in_the_place_of_a_file_is_never_waited_for() {
    let (_d, path) = database();
    let pipe = with(&path, "-shm");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let begun = Instant::now();
    assert_eq!(report(&path).verdict, Verdict::Quiet);
    assert!(begun.elapsed() < Duration::from_secs(5));
    std::fs::remove_file(&pipe).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(report(&path).verdict, Verdict::Quiet, "nothing at all is there");
    std::fs::write(&path, b"no database at all, but a file of some length").unwrap();
    let found = report(&path);
    assert!(found.limits.iter().any(|l| l.contains("does not begin as a SQLite database")), "{found:#?}");
}

/// The files vanish and come back under the eyes of the scan.
#[test]
fn files_that_vanish_during_a_look_end_no_look() {
    let (d, path) = database();
    let mut sibling = holder(&path);
    let aside = d.path().join("aside");
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                std::fs::rename(&path, &aside).unwrap();
                std::fs::rename(&aside, &path).unwrap();
            }
        });
        for _ in 0..100 {
            let found = report(&path);
            let listed = found.holders.iter().any(|h| h.pid == Some(sibling.pid() as i32));
            assert!(listed && found.verdict == Verdict::Held, "{found:#?}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    sibling.sql("SELECT 1");
}
