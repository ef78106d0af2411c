//! Structural work is done alone: who is in the way is named, our own processes step aside and come back.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use statehouse_sqlite::Family;
use statehouse_sqlite::admission::{Admission, Wanted, forecast};
use statehouse_testkit::home::TestDir;
use statehouse_testkit::snapshot::Snapshot;
use statehouse_testkit::wait::until;

use crate::holder::Holder;
use crate::support::{Sibling, visitor, with};

const SOON: Duration = Duration::from_secs(20);

/// A store of ours with one row, closed.
fn store() -> (TestDir, PathBuf) {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mut maker = Holder::with_store(&path);
    maker.ok("put first");
    maker.ok("leave");
    (directory, path)
}

/// A database of somebody else, without a side directory.
fn foreign(mode: &str) -> (TestDir, PathBuf) {
    let directory = TestDir::new();
    let path = directory.join("f.db");
    visitor(&path, &format!("PRAGMA journal_mode={mode}; CREATE TABLE m(t); INSERT INTO m VALUES('a')"));
    (directory, path)
}

fn admit(path: &Path, drain: &str, force: &str) -> (Holder, Result<String, String>) {
    let mut holder = Holder::start();
    let answer = holder.order(&format!("admit {drain} {force} {}", path.display()));
    (holder, answer)
}

fn count(path: &Path) -> String {
    visitor(path, "SELECT count(*) FROM k")
}

#[test]
fn eight_members_are_named_and_with_a_drain_they_step_aside_and_go_on() {
    let (_d, path) = store();
    let mut members: Vec<Holder> = (0..8).map(|_| Holder::with_store(&path)).collect();
    let (_, refused) = admit(&path, "-", "-");
    let refused = refused.unwrap_err();
    assert!(refused.starts_with("refused_held "), "{refused}");
    for member in &members {
        assert!(refused.contains(&format!("PID {} ", member.pid())), "{} is not named: {refused}", member.pid());
    }
    members.iter_mut().enumerate().for_each(|(n, m)| drop(m.ok(&format!("put before{n}"))));

    let (mut admitted, answer) = admit(&path, "10", "-");
    answer.unwrap();
    // What is asked for meanwhile waits, and is done after that.
    members.iter_mut().enumerate().for_each(|(n, m)| m.send(&format!("put meanwhile{n}")));
    admitted.ok("admitted VACUUM");
    assert_eq!(admitted.ok("admitted SELECT count(*) FROM k"), "9");
    assert!(members.iter_mut().all(|m| m.answered().is_none()), "nobody writes beside structural work");
    admitted.ok("release");
    for member in &mut members {
        member.answer().unwrap();
    }
    members.iter_mut().enumerate().for_each(|(n, m)| drop(m.ok(&format!("put after{n}"))));
    assert_eq!(count(&path), "25");
    assert_eq!(visitor(&path, "PRAGMA integrity_check"), "ok");
}

#[test]
fn members_that_write_all_the_time_lose_nothing_over_many_drains() {
    let (d, path) = store();
    let mut writers: Vec<(Holder, PathBuf)> =
        (0..3).map(|n| (Holder::with_store(&path), d.join(format!("log{n}")))).collect();
    for (writer, log) in &mut writers {
        writer.send(&format!("tight 4 {}", log.display()));
    }
    let begun = Instant::now();
    let mut drains = 0;
    let mut admitted = Holder::start();
    while begun.elapsed() < Duration::from_secs(3) {
        admitted.ok(&format!("admit 10 - {}", path.display()));
        admitted.ok("admitted VACUUM");
        admitted.ok("admitted PRAGMA wal_checkpoint(TRUNCATE)");
        admitted.ok("release");
        drains += 1;
    }
    assert!(drains > 1, "{drains}");
    let mut rows = 1;
    for (writer, _) in &mut writers {
        rows += writer.answer().unwrap().parse::<u64>().unwrap();
    }
    assert_eq!(count(&path), rows.to_string());
    assert_eq!(visitor(&path, "PRAGMA integrity_check"), "ok");
}

#[test]
fn a_stranger_is_named_with_what_stops_it_and_nothing_was_changed() {
    for mode in ["wal", "delete"] {
        let (d, path) = foreign(mode);
        let mut stranger = Sibling::connected(&path);
        stranger.sql("BEGIN");
        stranger.sql("SELECT count(*) FROM m");
        let before = Snapshot::of(d.path(), &[]);
        let (_, refused) = admit(&path, "5", "-");
        let refused = refused.unwrap_err();
        assert!(refused.starts_with("refused_held "), "{mode}: {refused}");
        assert!(refused.contains(&format!("kill {}", stranger.pid())), "{mode}: {refused}");
        let changed = before.differences(&Snapshot::of(d.path(), &[]));
        assert!(changed.is_empty(), "{mode}: {changed:?}");
        let forecast = forecast(&Family::of(&path).unwrap()).unwrap();
        assert_eq!(forecast.refused.unwrap().code(), "refused_held");
        let changed = before.differences(&Snapshot::of(d.path(), &[]));
        assert!(changed.is_empty(), "{mode}: {changed:?}");
    }
}

#[test]
fn strangers_cannot_open_meanwhile_and_can_after_that_and_nothing_is_left_beside_a_foreign_database() {
    for mode in ["wal", "delete"] {
        let (_d, path) = foreign(mode);
        let (mut admitted, answer) = admit(&path, "-", "-");
        answer.unwrap();
        let mut late = Sibling::idle();
        late.order(serde_json::json!({"connect": path, "timeout": 0.1})).unwrap();
        let error = late.order(serde_json::json!({"sql": "SELECT count(*) FROM m"})).unwrap_err();
        assert!(error.contains("locked"), "{mode}: {error}");
        admitted.ok("admitted VACUUM");
        admitted.ok("release");
        late.sql("SELECT count(*) FROM m");
        assert!(!with(&path, ".statehouse").exists(), "{mode}");
    }
}

#[test]
fn a_newcomer_of_ours_waits_at_the_gate_and_is_told_for_what() {
    let (_d, path) = store();
    let (mut admitted, answer) = admit(&path, "-", "-");
    answer.unwrap();
    let error = statehouse_sqlite::Database::open(
        &path,
        statehouse_sqlite::Options { patience: Duration::from_millis(300), ..Default::default() },
    )
    .err()
    .unwrap();
    assert_eq!(error.code(), "busy");
    assert!(error.to_string().contains(&format!("maintenance (test, PID {})", admitted.pid())), "{error}");
    let mut late = Holder::start();
    late.send(&format!("open {}", path.display()));
    admitted.ok("admitted VACUUM");
    assert!(late.answered().is_none());
    admitted.ok("release");
    late.answer().unwrap();
    late.ok("put late");
}

#[test]
fn members_go_on_by_themselves_when_whoever_drained_them_is_killed() {
    let (_d, path) = store();
    let mut member = Holder::with_store(&path);
    let (admitted, answer) = admit(&path, "10", "-");
    answer.unwrap();
    until("the member says that it parked", SOON, || member.events().contains("Parked"));
    member.send("put kept");
    admitted.signal(Signal::KILL);
    member.answer().unwrap();
    assert!(member.events().contains("Resumed"), "{}", member.events());
    assert_eq!(count(&path), "2");
}

#[test]
fn a_member_that_does_not_park_in_time_is_named_and_the_others_go_on() {
    let (_d, path) = store();
    let stopped = Holder::with_store(&path);
    let mut other = Holder::with_store(&path);
    stopped.signal(Signal::STOP);
    let (_, refused) = admit(&path, "1", "-");
    let refused = refused.unwrap_err();
    assert!(refused.starts_with("refused_held "), "{refused}");
    assert!(refused.contains(&format!("PID {} ", stopped.pid())), "{refused}");
    assert!(!refused.contains(&format!("PID {} ", other.pid())), "{refused}");
    other.ok("put on");
    stopped.signal(Signal::CONT);
}

#[test]
fn a_read_that_goes_on_is_waited_for_and_not_disturbed() {
    let (_d, path) = store();
    let mut member = Holder::with_store(&path);
    member.send("count 1500");
    let begun = Instant::now();
    let (mut admitted, answer) = admit(&path, "10", "-");
    answer.unwrap();
    assert!(begun.elapsed() > Duration::from_millis(500), "{:?}", begun.elapsed());
    assert_eq!(member.answer().unwrap(), "1");
    admitted.ok("release");
    assert_eq!(member.ok("count"), "1");
}

#[test]
fn force_goes_on_beside_a_holder_says_so_and_never_beside_a_ghost() {
    let (_d, path) = foreign("wal");
    let mut stranger = Sibling::connected(&path);
    stranger.sql("SELECT count(*) FROM m");
    let (mut admitted, answer) = admit(&path, "-", "force");
    assert!(answer.unwrap().contains(&format!("PID {} ", stranger.pid())));
    admitted.ok("admitted VACUUM");
    admitted.ok("release");
    stranger.sql("INSERT INTO m VALUES('b')");

    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(with(&path, suffix)).unwrap();
    }
    let (_, refused) = admit(&path, "-", "force");
    let refused = refused.unwrap_err();
    assert!(refused.starts_with("refused_held_retired "), "{refused}");
    assert!(refused.contains(&format!("PID {} ", stranger.pid())), "{refused}");
}

#[test]
fn force_never_goes_on_beside_a_process_that_has_lost_its_locks() {
    let (_d, path) = foreign("wal");
    let mut stranger = Sibling::connected(&path);
    stranger.sql("SELECT count(*) FROM m");
    stranger.touch(&path);
    let (_, refused) = admit(&path, "-", "force");
    let refused = refused.unwrap_err();
    assert!(refused.starts_with("refused_held_naked "), "{refused}");
}

#[test]
fn two_are_never_admitted_at_once() {
    let (_d, path) = store();
    let (mut first, answer) = admit(&path, "-", "-");
    answer.unwrap();
    let (mut second, busy) = admit(&path, "-", "-");
    let busy = busy.unwrap_err();
    // The first is seen as a holder, or its gate is met.
    assert!(busy.starts_with("busy ") || busy.starts_with("refused_held "), "{busy}");
    assert!(busy.contains(&format!("PID {}", first.pid())), "{busy}");
    first.ok("release");
    second.ok(&format!("admit - - {}", path.display()));
}

#[test]
fn a_process_that_has_the_database_open_itself_is_refused() {
    let (_d, path) = store();
    let database = statehouse_sqlite::Database::open(&path, Default::default()).unwrap();
    let wanted = Wanted {
        what: "test",
        drain: Some(Duration::from_secs(1)),
        force: true,
        patience: Duration::from_secs(1),
        tell: &|_| {},
    };
    let error = Admission::obtain(&Family::of(&path).unwrap(), &wanted).unwrap_err();
    assert_eq!(error.code(), "refused_held");
    database.close().unwrap();
    Admission::obtain(&Family::of(&path).unwrap(), &wanted).unwrap();
}

#[test]
fn a_member_that_was_cut_off_never_starves_maintenance() {
    let (_d, path) = store();
    let mut member = Holder::with_store(&path);
    member.ok("put kept");
    // Something stands where its capture would go, so it stays cut off.
    let in_the_way = with(&path, ".statehouse").join("retired");
    std::fs::write(&in_the_way, "a letter").unwrap();
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(with(&path, suffix)).unwrap();
    }
    until("it cannot go on", SOON, || member.events().contains("NotReopened"));
    let mut admitted = Holder::start();
    until("somebody is admitted", SOON, || admitted.order(&format!("admit - - {}", path.display())).is_ok());
    admitted.ok("admitted VACUUM");
    admitted.ok("release");
    std::fs::remove_file(in_the_way).unwrap();
    member.ok("put later");
    let mut keys = Holder::with_store(&path);
    assert_eq!(keys.ok("count"), "3");
}

#[test]
fn a_handle_that_is_closed_while_it_is_parked_ends_at_once() {
    let (_d, path) = store();
    let mut member = Holder::with_store(&path);
    let (_admitted, answer) = admit(&path, "10", "-");
    answer.unwrap();
    let begun = Instant::now();
    member.ok("leave");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}
