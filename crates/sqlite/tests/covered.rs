//! What destroys the main file is found although a checkpoint, or the look at one, could cover it up.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::inplace::{Scene, checkpoint};
use crate::support::{visitor, with};

/// Another program that holds the lock of a checkpoint until it is dropped.
struct Checkpointing(Child);

impl Checkpointing {
    fn begin(scene: &Scene) -> Checkpointing {
        // wal.c: the locks begin at byte 120 of the index, and that of a checkpoint is the second.
        let script = "
import fcntl, sys
index = open(sys.argv[1], 'r+b')
fcntl.lockf(index, fcntl.LOCK_EX, 1, 121)
print('held', flush=True)
sys.stdin.read()
";
        let mut python = Command::new(statehouse_testkit::visitor::python());
        python.args(["-I", "-c", script]).arg(with(&scene.files.path, "-shm"));
        let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "held\n");
        Checkpointing(child)
    }
}

impl Drop for Checkpointing {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn change_the_time(scene: &Scene) {
    use std::os::unix::fs::PermissionsExt;
    for mode in [0o640, 0o600] {
        std::fs::set_permissions(&scene.files.path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

fn is_refused(scene: &mut Scene) {
    let refused = scene.holder.order("put never").unwrap_err();
    assert!(refused.starts_with("destroyed "), "{refused}");
}

#[test]
fn an_older_copy_after_a_look_during_a_checkpoint_is_not_taken_for_what_it_has_left() {
    let mut scene = Scene::new();
    scene.holder.ok("put known");
    let checkpointing = Checkpointing::begin(&scene);
    change_the_time(&scene);
    // The look before this commit finds the lock of a checkpoint taken.
    scene.holder.ok("put during");
    drop(checkpointing);
    std::fs::copy(&scene.files.older, &scene.files.path).unwrap();
    is_refused(&mut scene);
}

#[test]
fn an_older_copy_is_found_though_a_stranger_has_checkpointed_into_it_before_anybody_looked() {
    let mut scene = Scene::new();
    let path = scene.files.path.clone();
    visitor(&path, "CREATE TABLE large(a); INSERT INTO large VALUES(randomblob(100000))");
    checkpoint(&path, "TRUNCATE");
    std::fs::copy(&path, &scene.files.older).unwrap();
    // What is new is in pages that no later frame has, or the log would bring them back.
    visitor(&path, "UPDATE large SET a = randomblob(100000)");
    checkpoint(&path, "TRUNCATE");
    scene.holder.ok("put known");
    let pid = Pid::from_raw(scene.holder.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    std::fs::copy(&scene.files.older, &scene.files.path).unwrap();
    checkpoint(&scene.files.path, "PASSIVE");
    kill_process(pid, Signal::CONT).unwrap();
    is_refused(&mut scene);
}

#[test]
fn a_checkpoint_by_a_stranger_that_nobody_saw_is_no_alarm() {
    let mut scene = Scene::new();
    let pid = Pid::from_raw(scene.holder.pid().cast_signed()).unwrap();
    for (n, mode) in ["PASSIVE", "FULL", "RESTART", "TRUNCATE", "PASSIVE"].into_iter().enumerate() {
        scene.holder.ok(&format!("put before{n}"));
        kill_process(pid, Signal::STOP).unwrap();
        visitor(&scene.files.path, "CREATE TABLE s(a); INSERT INTO s VALUES(randomblob(100000)); DROP TABLE s");
        checkpoint(&scene.files.path, mode);
        visitor(&scene.files.path, "VACUUM");
        kill_process(pid, Signal::CONT).unwrap();
        scene.holder.ok(&format!("put after{n}"));
    }
    assert_eq!(scene.holder.events(), "");
    assert_eq!(scene.holder.ok("count"), (scene.acknowledged + 10).to_string());
}

/// While an old log lies beside a main file that somebody has put there, whoever opens the path pairs the two by their names.
fn a_stranger_comes_between(sql: &str) {
    let mut scene = Scene::new();
    let path = scene.files.path.clone();
    visitor(&path, "CREATE TABLE large(a); INSERT INTO large VALUES(randomblob(100000))");
    for n in 0..40 {
        scene.holder.ok(&format!("put {n}{}", "x".repeat(500)));
    }
    checkpoint(&path, "PASSIVE");
    scene.holder.ok("put known");
    let acknowledged = scene.acknowledged + 41;
    let pid = Pid::from_raw(scene.holder.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    std::fs::rename(&scene.files.older, &path).unwrap();
    let told = Command::new("sqlite3").arg(&path).arg(sql).output().unwrap();
    let seen = Command::new("sqlite3").arg(&path).arg("PRAGMA integrity_check").output().unwrap();
    eprintln!("the stranger was told {told:?}; what it sees is {}", String::from_utf8_lossy(&seen.stdout));
    kill_process(pid, Signal::CONT).unwrap();
    scene.holder.ok("put after");
    eprintln!("{}", scene.holder.events());
    assert_eq!(scene.holder.ok("count"), (acknowledged + 1).to_string(), "{}", scene.holder.events());
    assert_eq!(visitor(&path, "SELECT count(*) FROM k"), (acknowledged + 1).to_string());
    assert_eq!(visitor(&path, "PRAGMA integrity_check"), "ok");
}

#[test]
fn a_stranger_that_reads_an_old_log_beside_a_new_main_file_costs_no_row() {
    a_stranger_comes_between("SELECT count(*) FROM k");
}

#[test]
fn a_stranger_that_writes_into_an_old_log_beside_a_new_main_file_costs_no_row() {
    a_stranger_comes_between("CREATE TABLE s(a); INSERT INTO s VALUES(randomblob(20000))");
}

#[test]
fn a_stranger_that_copies_an_old_log_into_a_new_main_file_costs_no_row() {
    a_stranger_comes_between("PRAGMA wal_checkpoint");
}

#[test]
fn rows_that_were_checkpointed_after_a_look_do_not_make_a_capture_as_of_that_look_a_mixture() {
    let mut scene = Scene::new();
    let path = scene.files.path.clone();
    // Enough for several pages of the index, so that a later row is on other ones than an earlier.
    for n in 0..120 {
        scene.holder.ok(&format!("put m{n}{}", "x".repeat(120)));
    }
    checkpoint(&path, "PASSIVE");
    scene.holder.ok("put zzz");
    let pid = Pid::from_raw(scene.holder.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    // Both in the old main file and beyond what the holder has looked at.
    visitor(&path, "INSERT INTO k(key, role) VALUES ('aaa', 'stranger')");
    checkpoint(&path, "PASSIVE");
    std::fs::rename(&scene.files.older, &path).unwrap();
    kill_process(pid, Signal::CONT).unwrap();
    scene.holder.ok("put after");
    let rows = scene.acknowledged + 120 + 3;
    assert_eq!(scene.holder.ok("count"), rows.to_string(), "{}", scene.holder.events());
    assert_eq!(visitor(&path, "PRAGMA integrity_check"), "ok");
    let captures = std::fs::read_dir(with(&path, ".statehouse").join("retired")).unwrap().map(|e| e.unwrap().path());
    let unreadable: Vec<_> = captures.filter(|place| place.join("unreadable").exists()).collect();
    assert!(unreadable.is_empty(), "{unreadable:?}");
}
