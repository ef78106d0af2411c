//! Snapshots when something goes wrong: killed, no room, a damaged source, a clock that was put back.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};
use statehouse_testkit::visitor::Python;
use statehouse_testkit::volume::Volume;
use statehouse_testkit::{Child, Seed, Snapshot, TestDir, run, until, wait::until_some};

use crate::house::{PATIENCE, beside, error_code};
use crate::snapshots::{assert_good, command_on, foreign, foreign_at, listed, on, taken};

fn place(path: &Path) -> PathBuf {
    beside(path, ".statehouse").join("snapshots")
}

/// The names in the directory of the snapshots.
fn names(path: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(place(path)) else { return Vec::new() };
    entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
}

fn partial(path: &Path) -> Option<String> {
    names(path).into_iter().find(|n| n.contains(".partial."))
}

/// A snapshot that was stopped in the middle of its work.
fn stopped(path: &Path) -> Child {
    let child = Child::spawn(&mut command_on(path, &["snapshot"]));
    until_some("it has begun", PATIENCE, || partial(path).filter(|n| n.ends_with(&child.pid().to_string())));
    child.signal(Signal::STOP);
    child
}

#[test]
fn whatever_is_killed_at_any_point_leaves_only_whole_snapshots_and_the_next_run_tidies_up() {
    let mut seed = Seed::of_run("snapshot kill");
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 8000);
    let mut python = Python::open(&path);
    let mut killed_before_the_end = 0;
    for round in 0..20 {
        python.sql("INSERT INTO m(t) VALUES('one more')").unwrap();
        let arguments: &[&str] = if round % 3 == 0 { &["snapshot", "--zstd"] } else { &["snapshot"] };
        let mut child = Child::spawn(&mut command_on(&path, arguments));
        if round % 2 == 0 {
            // At any time, also before it has begun and after it has ended.
            std::thread::sleep(Duration::from_millis(seed.below(900)));
        } else {
            until_some("it has begun", PATIENCE, || partial(&path));
            std::thread::sleep(Duration::from_millis(seed.below(60)));
        }
        child.kill();
        killed_before_the_end += usize::from(partial(&path).is_some());
        for snapshot in listed(&path) {
            assert_eq!(snapshot["verified"], true, "{snapshot}");
            assert_eq!((&snapshot["changed"], &snapshot["missing"]), (&json!(false), &json!(false)), "{snapshot}");
            if snapshot["compressed"] == false {
                assert_good(&snapshot);
            }
        }
    }
    assert!(killed_before_the_end > 0, "no kill met the work");
    assert_good(&taken(&path));
    assert_eq!(partial(&path), None, "{:?}", names(&path));
    assert_eq!(python.sql("SELECT count(*) FROM m").unwrap(), [json!([8020])]);
}

#[test]
fn two_at_once_are_two_and_neither_removes_what_the_other_is_making() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 30_000);
    let python = Python::open(&path);
    let mut first = stopped(&path);
    let second = taken(&path);
    let begun = partial(&path);
    first.signal(Signal::CONT);
    let first: Value = serde_json::from_str(&first.line(PATIENCE)).unwrap();
    assert!(begun.is_some(), "the second has removed what the first was making");
    assert_good(&second);
    assert_good(&first);
    assert_eq!(listed(&path).len(), 2);
    assert_ne!(listed(&path)[0]["serial"], listed(&path)[1]["serial"]);
    python.quit();
}

#[test]
fn without_room_nothing_is_begun_and_the_numbers_are_told() {
    let Some(volume) = Volume::new(8 << 10) else { return };
    let path = volume.join("other.db");
    foreign_at(&path, "wal", 3000);
    let size = fs::metadata(&path).unwrap().len();
    let before = Snapshot::of(volume.path(), &[]);
    let refused = on(&path, &["snapshot"]);
    assert_eq!((refused.code(), error_code(&refused).as_str()), (4, "no_room"), "{refused:#?}");
    let detail = refused.json()["error"]["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("bytes"), "{detail}");
    assert!(size > 2 << 20, "{size}");
    before.assert_unchanged(volume.path(), &[]);
}

#[test]
fn a_volume_that_fills_up_meanwhile_ends_it_cleanly_and_the_earlier_ones_stay() {
    let Some(volume) = Volume::new(256 << 10) else { return };
    let path = volume.join("other.db");
    foreign_at(&path, "wal", 30_000);
    let mut python = Python::open(&path);
    let good = taken(&path);
    let mut child = stopped(&path);
    volume.fill(100 << 10);
    child.signal(Signal::CONT);
    let said: Value = serde_json::from_str(&child.line(PATIENCE)).unwrap();
    let status = child.wait(PATIENCE);
    volume.clear();
    assert_eq!((status.code(), &said["error"]["code"]), (Some(1), &json!("disk_full")), "{said}");
    assert_eq!(partial(&path), None);
    assert_good(&good);
    assert_eq!(listed(&path).iter().filter(|s| s["verified"] == true).count(), 1);
    python.sql("INSERT INTO m(t) VALUES('goes on')").unwrap();
    assert_good(&taken(&path));
}

#[test]
fn case_026_a_small_temporary_directory_is_no_obstacle() {
    let Some(volume) = Volume::new(2 << 10) else { return };
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 5000);
    for held in [false, true] {
        let _python = held.then(|| Python::open(&path)).map(|mut p| {
            p.sql("INSERT INTO m(t) VALUES('held')").unwrap();
            p
        });
        let mut command = command_on(&path, &["snapshot"]);
        command.env("TMPDIR", volume.path()).env("SQLITE_TMPDIR", volume.path());
        assert_good(&run(&mut command, PATIENCE).success().json());
    }
    assert_eq!(fs::read_dir(volume.path()).unwrap().count(), 0);
}

/// Writes nonsense over a page in the middle of the main file.
fn damage(path: &Path) {
    let main = fs::OpenOptions::new().write(true).open(path).unwrap();
    let page = main.metadata().unwrap().len() / 4096 / 2;
    main.write_all_at(&[0x5a; 4096], page * 4096).unwrap();
}

#[test]
fn case_028_a_failed_snapshot_evicts_nothing_and_is_remembered() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 2000);
    let good = taken(&path);
    damage(&path);
    for held in [false, true] {
        let _python = held.then(|| Python::open(&path)).map(|mut p| {
            p.sql("INSERT INTO twin(t) VALUES('held')").unwrap();
            p
        });
        for n in 1..=12 {
            let failed = on(&path, &["snapshot"]);
            assert_eq!((failed.code(), error_code(&failed).as_str()), (1, "unverified"), "{failed:#?}");
            let listed = listed(&path);
            assert_eq!((&listed[0]["verified"], &listed[0]["path"]), (&json!(false), &json!("")), "{listed:?}");
            assert!(listed[0]["error"].as_str().is_some_and(|e| !e.is_empty()), "{listed:?}");
            assert!(listed.len() <= 11, "{n}: what is remembered of failures is bounded");
            assert_eq!(listed.last().unwrap()["id"], good["id"]);
        }
    }
    assert_good(&good);
    assert_eq!(names(&path).iter().filter(|n| n.contains("snapshot") || n.contains("unsound")).count(), 1);
    let status = on(&path, &["status"]).success().json();
    assert_eq!(status["last_snapshot"]["id"], good["id"]);
    assert_eq!(
        (&status["last_snapshot_error"]["code"], &status["last_snapshot_error"]["failures"]),
        (&json!("unverified"), &json!(24))
    );
}

#[test]
fn where_there_is_no_good_snapshot_the_best_there_is_is_kept_until_there_is_one() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 2000);
    let whole = fs::read(&path).unwrap();
    damage(&path);
    for _ in 0..2 {
        assert_eq!(on(&path, &["snapshot"]).code(), 1);
        let kept: Vec<_> = names(&path).into_iter().filter(|n| !n.ends_with(".json")).collect();
        assert!(kept.len() == 1 && kept[0].ends_with(".unsound"), "{kept:?}");
        let newest = &listed(&path)[0];
        assert_eq!(newest["path"], place(&path).join(&kept[0]).to_str().unwrap(), "{newest}");
        let size = fs::metadata(place(&path).join(&kept[0])).unwrap().len();
        assert_eq!(size, whole.len() as u64);
    }
    fs::write(&path, &whole).unwrap();
    assert_good(&taken(&path));
    assert!(!names(&path).iter().any(|n| n.ends_with(".unsound")), "{:?}", names(&path));
}

#[test]
fn a_clock_that_was_put_back_does_not_make_the_newest_the_first_to_go() {
    let directory = TestDir::new();
    let path = foreign(directory.path(), "wal", 10);
    let home = TestDir::new();
    fs::write(home.join("config.toml"), "[snapshots]\nkeep = 2\nkeep_days = 5\n").unwrap();
    let take = || {
        let mut command = command_on(&path, &["snapshot"]);
        run(command.arg("--home").arg(home.path()), PATIENCE).success().json()
    };
    // Three that were taken when the clock was far ahead.
    for _ in 0..3 {
        let snapshot = take();
        let record = place(&path).join(format!("{}.json", snapshot["id"].as_str().unwrap()));
        let mut text: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
        text["created_at"] = json!("2099-01-01T00:00:00.000000Z");
        fs::write(&record, text.to_string()).unwrap();
    }
    let newest = take();
    let ids: Vec<_> = listed(&path).iter().map(|s| s["id"].clone()).collect();
    assert_eq!(ids.len(), 2, "{ids:?}");
    assert_eq!(ids[0], newest["id"]);
    assert_good(&newest);
    until("nothing else is left", PATIENCE, || names(&path).len() == 4);
    // What is too old goes, but never the last one.
    let record = place(&path).join(format!("{}.json", newest["id"].as_str().unwrap()));
    let mut text: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    text["created_at"] = json!("2001-01-01T00:00:00.000000Z");
    fs::write(&record, text.to_string()).unwrap();
    let last = take();
    let left = listed(&path);
    assert!(left.iter().all(|s| s["id"] != newest["id"]), "{left:?}");
    assert_eq!(left[0]["id"], last["id"]);
}
