//! Structural work is done alone: who is in the way is named, our own processes step aside and come back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use statehouse_sqlite::admission::{Admission, Wanted, forecast};
use statehouse_sqlite::rusqlite::Connection;
use statehouse_sqlite::{Database, Error, Failure, Family, Options, Result, Schema, ofd};
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

fn admit(path: &Path, drain: &str, force: &str) -> (Holder, std::result::Result<String, String>) {
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
    let error =
        Database::open(&path, Options { patience: Duration::from_millis(300), ..Default::default() }).err().unwrap();
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
    until("the member says that it goes on", SOON, || member.events().contains("Resumed"));
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
    assert!(busy.starts_with("busy ") && busy.contains("held by maintenance (test, PID "), "{busy}");
    assert!(busy.contains(&format!("PID {}", first.pid())), "{busy}");
    first.ok("release");
    second.ok(&format!("admit - - {}", path.display()));
}

#[test]
fn several_who_ask_at_once_are_admitted_one_after_the_other() {
    for (_d, path) in [store(), foreign("wal"), foreign("delete")] {
        for _ in 0..5 {
            let mut all: Vec<Holder> = (0..3).map(|_| Holder::start()).collect();
            for holder in &mut all {
                holder.send(&format!("admit - - {}", path.display()));
            }
            let begun = Instant::now();
            let mut waiting: Vec<usize> = (0..3).collect();
            while !waiting.is_empty() {
                assert!(begun.elapsed() < SOON, "{waiting:?}");
                waiting.retain(|n| match all[*n].answered() {
                    Some(answer) => {
                        answer.unwrap();
                        all[*n].ok("admitted VACUUM");
                        all[*n].ok("release");
                        false
                    }
                    None => true,
                });
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

#[test]
fn a_process_that_has_the_database_open_itself_is_refused() {
    let (_d, path) = store();
    let database = Database::open(&path, Default::default()).unwrap();
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

/// The table of the example, and a reason why a handle cannot go on.
#[derive(Default)]
struct Broken(AtomicBool);

impl Schema for Broken {
    fn current(&self, connection: &Connection) -> Result<bool> {
        if self.0.load(Ordering::SeqCst) { Err(Error::Full) } else { Ok(connection.table_exists(None, "k")?) }
    }

    fn migrate(&self, _: &Connection) -> std::result::Result<(), Failure> {
        Err(Failure::Abort("the table is there".into()))
    }

    fn merge(&self, live: &Connection, retired: &Connection) -> std::result::Result<u64, Failure> {
        let mut read = retired.prepare("SELECT key FROM k")?;
        let mut keys = read.query([])?;
        while let Some(key) = keys.next()? {
            live.execute("INSERT OR IGNORE INTO k(key) VALUES(?1)", [key.get::<_, String>(0)?])?;
        }
        Ok(0)
    }
}

#[test]
fn a_member_that_was_cut_off_never_starves_maintenance() {
    let (_d, path) = store();
    let broken = Arc::new(Broken::default());
    let options = Options { role: "gateway".into(), schema: Some(broken.clone()), ..Options::default() };
    let member = Database::open(&path, options).unwrap();
    member.write(|c| Ok(c.execute("INSERT INTO k(key) VALUES('kept')", [])?)).unwrap();
    broken.0.store(true, Ordering::SeqCst);
    remove_sidecars(&path);
    until("it has kept what it had", SOON, || {
        std::fs::read_dir(with(&path, ".statehouse").join("retired")).is_ok_and(|kept| kept.count() > 0)
    });
    let mut admitted = Holder::start();
    until("somebody is admitted", SOON, || admitted.order(&format!("admit - - {}", path.display())).is_ok());
    assert!(member.fenced());
    admitted.ok("admitted VACUUM");
    admitted.ok("admitted PRAGMA wal_checkpoint(TRUNCATE)");
    admitted.ok("release");
    broken.0.store(false, Ordering::SeqCst);
    member.write(|c| Ok(c.execute("INSERT INTO k(key) VALUES('later')", [])?)).unwrap();
    assert_eq!(count(&path), "3");
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

fn remove_sidecars(path: &Path) {
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(with(path, suffix)).unwrap();
    }
}

#[test]
fn a_log_that_is_removed_while_a_member_is_about_to_park_loses_no_row() {
    let (_d, path) = store();
    let mut member = Holder::with_store(&path);
    member.ok("put kept");
    member.send("count 1500");
    let mut admitted = Holder::start();
    admitted.send(&format!("admit 10 - {}", path.display()));
    until("the drain is wanted", SOON, || drains(&path));
    std::thread::sleep(Duration::from_millis(500));
    remove_sidecars(&path);
    let _ = member.answer();
    // Whether somebody is admitted is a matter of moments.
    let _ = (admitted.answer(), admitted.order("release"));
    until("the member goes on", SOON, || member.order("put later").is_ok());
    let mut keys = Holder::with_store(&path);
    assert_eq!(keys.ok("count"), "3");
}

/// True while somebody asks members to park.
fn drains(path: &Path) -> bool {
    let Ok(file) =
        std::fs::OpenOptions::new().read(true).write(true).open(with(path, ".statehouse").join("admission.lock"))
    else {
        return false;
    };
    let byte = ofd::Range { start: 2, length: 1 };
    ofd::conflict(&file, ofd::Kind::Write, byte).unwrap().is_some()
}

#[test]
fn members_are_drained_though_somebody_has_removed_what_lay_beside_the_database() {
    for what in ["", "admission.lock"] {
        let (_d, path) = store();
        let mut member = Holder::with_store(&path);
        member.ok("put one");
        let side = with(&path, ".statehouse");
        if what.is_empty() {
            std::fs::remove_dir_all(&side).unwrap()
        } else {
            std::fs::remove_file(side.join(what)).unwrap()
        }
        member.ok("put two");
        let mut admitted = Holder::start();
        until("somebody is admitted", SOON, || admitted.order(&format!("admit 5 - {}", path.display())).is_ok());
        admitted.ok("admitted VACUUM");
        admitted.ok("release");
        member.ok("put three");
        assert_eq!(count(&path), "4");
    }
}

#[test]
fn what_was_queued_is_written_before_a_handle_that_shall_park_is_closed() {
    let (_d, path) = store();
    let database = Database::open(&path, Options::default()).unwrap();
    let reader = database.clone();
    let (began, begun) = std::sync::mpsc::channel();
    let read = std::thread::spawn(move || {
        reader.read(|_| {
            began.send(()).unwrap();
            std::thread::sleep(Duration::from_millis(2500));
            Ok(())
        })
    });
    begun.recv().unwrap();
    let mut admitted = Holder::start();
    admitted.send(&format!("admit 10 - {}", path.display()));
    until("the drain is wanted", SOON, || drains(&path));
    std::thread::sleep(Duration::from_millis(500));
    let tickets: Vec<_> = (0..20)
        .map(|n| database.submit(move |c| Ok(c.execute("INSERT INTO k(key) VALUES(?1)", [format!("q{n}")])?)))
        .collect();
    database.close().unwrap();
    let answers: Vec<_> = tickets.into_iter().map(|t| t.wait().map_err(|e| e.to_string())).collect();
    read.join().unwrap().ok();
    admitted.answer().unwrap();
    admitted.ok("release");
    assert!(answers.iter().all(std::result::Result::is_ok), "{answers:?}");
    assert_eq!(count(&path), "21");
}

#[test]
fn a_stranger_whom_the_namespace_hides_and_who_came_between_the_looks_is_noticed() {
    let (_d, path) = foreign("wal");
    let side = with(&path, ".statehouse");
    std::fs::create_dir(&side).unwrap();
    let recovery = std::fs::File::create(side.join("recovery.lock")).unwrap();
    recovery.lock().unwrap();
    let mut admitted = Holder::secluded();
    let mut stranger = Sibling::idle();
    admitted.send(&format!("admit - - {}", path.display()));
    until("the gate is shut", SOON, || side.join("admission.lock").exists());
    stranger.order(serde_json::json!({ "connect": path })).unwrap();
    stranger.sql("SELECT count(*) FROM m");
    drop(recovery);
    let refused = admitted.answer().unwrap_err();
    assert!(refused.starts_with("refused_held "), "{refused}");
}

#[test]
fn rows_of_a_member_that_could_not_keep_them_yet_outlive_structural_work() {
    let (_d, path) = store();
    let mut member = Holder::with_store(&path);
    for n in 0..200 {
        member.ok(&format!("put {n:0400}"));
    }
    visitor(&path, "PRAGMA wal_checkpoint(PASSIVE)");
    visitor(&path, "DELETE FROM k WHERE n % 3 = 0; PRAGMA wal_checkpoint(PASSIVE)");
    let before: u64 = count(&path).parse().unwrap();
    member.ok("put kept");
    let in_the_way = with(&path, ".statehouse").join("retired");
    std::fs::write(&in_the_way, "a letter").unwrap();
    remove_sidecars(&path);
    until("it cannot go on", SOON, || member.events().contains("NotReopened"));
    let mut admitted = Holder::start();
    for force in ["-", "force"] {
        let refused = admitted.order(&format!("admit 1 {force} {}", path.display())).unwrap_err();
        assert!(refused.starts_with("refused_held_retired "), "{refused}");
        assert!(refused.contains(&format!("PID {} ", member.pid())), "{refused}");
    }
    std::fs::remove_file(in_the_way).unwrap();
    member.ok("put later");
    admitted.ok(&format!("admit 10 - {}", path.display()));
    admitted.ok("admitted VACUUM");
    admitted.ok("admitted PRAGMA wal_checkpoint(TRUNCATE)");
    admitted.ok("release");
    assert_eq!(visitor(&path, "SELECT count(*) FROM k WHERE key IN ('kept', 'later')"), "2");
    assert_eq!(count(&path), (before + 2).to_string());
    assert_eq!(visitor(&path, "PRAGMA integrity_check"), "ok");
}

#[test]
fn a_stranger_that_has_opened_the_file_and_asked_nothing_yet_is_named() {
    for mode in ["wal", "delete"] {
        let (_d, path) = foreign(mode);
        let stranger = Sibling::connected(&path);
        let (_, refused) = admit(&path, "-", "-");
        let refused = refused.unwrap_err();
        assert!(
            refused.starts_with("refused_held ") && refused.contains(&format!("PID {} ", stranger.pid())),
            "{refused}"
        );
    }
}

#[test]
fn rows_outlive_a_log_that_is_removed_under_structural_work() {
    let (_d, path) = store();
    let mut member = Holder::with_store(&path);
    member.ok("put kept");
    let (mut admitted, answer) = admit(&path, "10", "-");
    answer.unwrap();
    remove_sidecars(&path);
    admitted.kill();
    member.ok("put later");
    assert_eq!(member.ok("count"), "3");
}

#[test]
fn members_go_on_with_a_whole_database_whenever_the_admitted_process_is_killed() {
    let (_d, path) = store();
    let mut random = crate::support::Random::new("kills of a VACUUM");
    let mut members: Vec<Holder> = (0..2).map(|_| Holder::with_store(&path)).collect();
    visitor(
        &path,
        "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i<20000) INSERT INTO k(key) SELECT hex(randomblob(100))||i FROM c; DELETE FROM k WHERE n % 2 = 0 AND n > 1",
    );
    let mut rows: u64 = count(&path).parse().unwrap();
    for round in 0..8 {
        let (mut admitted, answer) = admit(&path, "10", "-");
        answer.unwrap();
        admitted.send("admitted VACUUM");
        std::thread::sleep(Duration::from_micros(random.below(150_000)));
        if random.below(2) == 0 && admitted.answered().is_some() {
            admitted.send("admitted PRAGMA wal_checkpoint(TRUNCATE)");
            std::thread::sleep(Duration::from_micros(random.below(30_000)));
        }
        admitted.kill();
        for (n, member) in members.iter_mut().enumerate() {
            member.ok(&format!("put r{round}-{n}"));
            rows += 1;
        }
        assert_eq!(count(&path), rows.to_string());
    }
    assert_eq!(visitor(&path, "PRAGMA integrity_check"), "ok");
}

#[test]
fn one_that_waited_at_the_gate_of_a_foreign_database_leaves_nothing_beside_it() {
    let (_d, path) = foreign("wal");
    let side = with(&path, ".statehouse");
    let (mut first, answer) = admit(&path, "-", "-");
    answer.unwrap();
    let mut second = Holder::start();
    second.send(&format!("admit - force {}", path.display()));
    until("it waits for the first", SOON, || second.events().contains("waiting for maintenance"));
    first.ok("release");
    assert_eq!(second.answer().unwrap(), "", "it went on in spite of nobody");
    second.ok("release");
    assert!(!side.exists());
}

#[test]
fn a_handle_that_was_closed_is_in_nobody_s_way_though_something_of_it_is_kept() {
    let (_d, path) = store();
    let database = Database::open(&path, Options::default()).unwrap();
    let ticket = database.submit(|_| Ok(()));
    let kept = database.clone();
    database.close().unwrap();
    let (_admitted, answer) = admit(&path, "-", "-");
    answer.unwrap();
    drop((ticket, kept));
}

#[test]
fn a_row_that_was_deleted_after_its_capture_was_merged_stays_deleted() {
    let (_d, path) = store();
    visitor(&path, "PRAGMA wal_checkpoint(TRUNCATE)");
    let broken = Arc::new(Broken::default());
    let options = Options { role: "gateway".into(), schema: Some(broken.clone()), ..Options::default() };
    let member = Database::open(&path, options.clone()).unwrap();
    member.write(|c| Ok(c.execute("INSERT INTO k(key) VALUES('kept')", [])?)).unwrap();
    broken.0.store(true, Ordering::SeqCst);
    // Somebody reads for long in the generation into which the rows are taken over.
    let mut reader = Sibling::connected(&path);
    remove_sidecars(&path);
    reader.sql("INSERT INTO k(key) VALUES('new')");
    reader.sql("BEGIN");
    reader.sql("SELECT count(*) FROM k");
    until("it has kept what it had", SOON, || {
        std::fs::read_dir(with(&path, ".statehouse").join("retired")).is_ok_and(|kept| kept.count() > 0)
    });
    broken.0.store(false, Ordering::SeqCst);
    until("it goes on", SOON, || {
        member
            .read(|c| Ok(c.query_row("SELECT count(*) FROM k WHERE key = 'kept'", [], |r| r.get::<_, i64>(0))?))
            .is_ok_and(|n| n == 1)
    });
    member.write(|c| Ok(c.execute("DELETE FROM k WHERE key = 'kept'", [])?)).unwrap();
    let begun = Instant::now();
    drop(Database::open(&path, options.clone()).unwrap());
    assert!(begun.elapsed() < options.patience, "a reader keeps nobody waiting: {:?}", begun.elapsed());
    reader.sql("ROLLBACK");
    drop(Database::open(&path, options.clone()).unwrap());
    member.close().unwrap();
    drop(Database::open(&path, options).unwrap());
    let kept = std::fs::read_dir(with(&path, ".statehouse").join("retired")).unwrap().next().unwrap().unwrap();
    assert!(kept.path().join("merged").exists(), "the log was copied by then");
    assert_eq!(visitor(&path, "SELECT group_concat(key) FROM k"), "first,new");
}

#[test]
fn whoever_asks_while_a_handle_is_parked_is_told_in_time_for_what_it_waits() {
    let (_d, path) = store();
    let options = Options { patience: Duration::from_millis(400), ..Options::default() };
    let database = Database::open(&path, options.clone()).unwrap();
    let second = Database::open(&path, options).unwrap();
    let (mut admitted, answer) = admit(&path, "10", "-");
    answer.unwrap();
    for database in [&database, &second] {
        let begun = Instant::now();
        let written = database.write(|c| Ok(c.execute("INSERT INTO k(key) VALUES('never')", [])?)).unwrap_err();
        let read = database.read(|_| Ok(())).unwrap_err();
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
        for error in [written, read] {
            assert_eq!(error.code(), "busy", "{error}");
            assert!(error.to_string().contains(&format!("maintenance (test, PID {})", admitted.pid())), "{error}");
        }
    }
    admitted.ok("admitted VACUUM");
    admitted.ok("release");
    until("both go on", SOON, || [&database, &second].iter().all(|d| d.read(|_| Ok(())).is_ok()));
    assert_eq!(count(&path), "1");
}

#[test]
fn nobody_else_is_admitted_though_the_lock_file_was_removed_meanwhile() {
    for make in [|| store(), || foreign("delete"), || foreign("wal")] {
        let (_d, path) = make();
        let (mut first, answer) = admit(&path, "-", "-");
        answer.unwrap();
        std::fs::remove_dir_all(with(&path, ".statehouse")).unwrap();
        let (_second, refused) = admit(&path, "1", "force");
        let refused = refused.unwrap_err();
        assert!(refused.starts_with("busy "), "{refused}");
        let mut late = Holder::start();
        late.send(&format!("open {}", path.display()));
        std::thread::sleep(Duration::from_millis(500));
        assert!(late.answered().is_none());
        first.ok("admitted VACUUM");
        first.ok("release");
        // Whether it wanted to open while somebody was admitted for longer than it waits is a matter of the machine.
        let _ = late.answer();
    }
}

#[test]
fn members_lose_nothing_while_logs_are_removed_and_maintenance_comes_and_is_killed() {
    let (d, path) = store();
    let mut random = crate::support::Random::new("removals beside drains");
    let mut writers: Vec<(Holder, PathBuf)> =
        (0..3).map(|n| (Holder::with_store(&path), d.join(format!("log{n}")))).collect();
    for (writer, log) in &mut writers {
        writer.send(&format!("tight 12 {}", log.display()));
    }
    let begun = Instant::now();
    let (mut done, mut refused, mut removed) = (0, 0, 0);
    while begun.elapsed() < Duration::from_secs(11) {
        let mut admitted = Holder::start();
        admitted.send(&format!("admit 3 - {}", path.display()));
        std::thread::sleep(Duration::from_micros(random.below(600_000)));
        if random.below(2) == 0 {
            let file = ["-wal", "-shm"][random.below(2) as usize];
            if random.below(2) == 0 {
                removed += u32::from(std::fs::remove_file(with(&path, file)).is_ok());
            } else {
                for suffix in ["-wal", "-shm"] {
                    removed += u32::from(std::fs::remove_file(with(&path, suffix)).is_ok());
                }
            }
        }
        match admitted.answer() {
            Ok(_) => {
                done += 1;
                admitted.send("admitted VACUUM");
                std::thread::sleep(Duration::from_micros(random.below(30_000)));
                if random.below(2) == 0 {
                    admitted.kill();
                } else {
                    admitted.answer().unwrap();
                    admitted.ok("admitted PRAGMA wal_checkpoint(TRUNCATE)");
                    admitted.ok("release");
                }
            }
            Err(_) => refused += 1,
        }
    }
    println!("{done} admitted, {refused} refused, {removed} files removed");
    assert!(done > 0 && removed > 0);
    let mut rows = 1;
    for (writer, _) in &mut writers {
        rows += writer.answer().unwrap().parse::<u64>().unwrap();
    }
    assert_eq!(visitor(&path, "PRAGMA integrity_check"), "ok");
    assert_eq!(count(&path), rows.to_string());
}

/// The lock file as a process of ours sees it that wants to shut the gate.
fn gate(path: &Path) -> std::fs::File {
    let file = with(path, ".statehouse").join("admission.lock");
    std::fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(file).unwrap()
}

const MEMBERS: ofd::Range = ofd::Range { start: 0, length: 1 };
const GATE: ofd::Range = ofd::Range { start: 1, length: 1 };

#[test]
fn a_refusal_after_the_gate_was_shut_leaves_nothing_beside_a_foreign_database() {
    for mode in ["wal", "delete"] {
        let (_d, path) = foreign(mode);
        let mut stranger = Sibling::idle();
        std::fs::create_dir(with(&path, ".statehouse")).unwrap();
        let gate = gate(&path);
        // As a process of ours that is about to end.
        assert!(ofd::try_lock(&gate, ofd::Kind::Read, MEMBERS).unwrap());
        let mut admitted = Holder::start();
        admitted.send(&format!("admit - - {}", path.display()));
        until("it has shut the gate", SOON, || ofd::conflict(&gate, ofd::Kind::Read, GATE).unwrap().is_some());
        stranger.order(serde_json::json!({ "connect": path })).unwrap();
        stranger.sql("BEGIN");
        stranger.sql("SELECT count(*) FROM m");
        drop(gate);
        let refused = admitted.answer().unwrap_err();
        assert!(
            refused.starts_with("refused_held ") && refused.contains(&format!("PID {} ", stranger.pid())),
            "{refused}"
        );
        assert!(!with(&path, ".statehouse").exists(), "{mode}");
    }
}

#[test]
fn a_stranger_who_tries_without_a_pause_never_comes_in() {
    for mode in ["wal", "delete"] {
        let (_d, path) = foreign(mode);
        visitor(
            &path,
            "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM c WHERE i<20000) INSERT INTO m SELECT hex(randomblob(50)) FROM c",
        );
        let (mut admitted, answer) = admit(&path, "-", "-");
        answer.unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let hammer = scope.spawn(|| {
                let mut late = Sibling::idle();
                late.order(serde_json::json!({"connect": path, "timeout": 0})).unwrap();
                let mut tries = 0;
                while !over.load(Ordering::SeqCst) || tries == 0 {
                    let answer = late.order(serde_json::json!({"sql": "SELECT count(*) FROM m"}));
                    tries += 1;
                    assert!(answer.is_err(), "{mode}: came in");
                }
                tries
            });
            let mut worked = Vec::new();
            for sql in
                ["VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)", "DELETE FROM m WHERE rowid % 2", "REINDEX", "VACUUM"]
            {
                // Nothing may stop this thread before the other has heard that it is over.
                worked.push(admitted.order(&format!("admitted {sql}")));
            }
            over.store(true, Ordering::SeqCst);
            println!("{mode}: tried {} times", hammer.join().unwrap());
            worked.into_iter().for_each(|answer| drop(answer.unwrap()));
        });
        admitted.ok("release");
        assert_eq!(visitor(&path, "PRAGMA integrity_check"), "ok");
    }
}

#[test]
fn strangers_are_kept_out_again_after_work_that_took_the_exclusive_lock() {
    for (from, to) in [("wal", "delete"), ("delete", "wal")] {
        let (_d, path) = foreign(from);
        let wanted =
            Wanted { what: "test", drain: None, force: false, patience: Duration::from_secs(2), tell: &|_| {} };
        let admission = Admission::obtain(&Family::of(&path).unwrap(), &wanted).unwrap();
        let now =
            admission.alone(|c| Ok(c.query_row(&format!("PRAGMA journal_mode={to}"), [], |r| r.get::<_, String>(0))?));
        assert_eq!(now.unwrap(), to);
        let mut late = Sibling::idle();
        late.order(serde_json::json!({"connect": path, "timeout": 0.1})).unwrap();
        let error = late.order(serde_json::json!({"sql": "SELECT count(*) FROM m"})).unwrap_err();
        assert!(error.contains("locked"), "{error}");
        admission.connection().execute_batch("INSERT INTO m VALUES('b'); VACUUM").unwrap();
        drop(admission);
        assert_eq!(late.sql("SELECT count(*) FROM m")[0][0], 2);
        assert_eq!(visitor(&path, "PRAGMA journal_mode; PRAGMA integrity_check"), format!("{to}\nok"));
    }
}

#[test]
fn what_keeps_others_waiting_ends_with_the_admission_though_a_copy_of_the_process_lives() {
    let (_d, path) = store();
    let (mut admitted, answer) = admit(&path, "-", "-");
    answer.unwrap();
    admitted.ok("shadow");
    admitted.ok("release");
    let all = ofd::Range { start: 0, length: 4 };
    assert_eq!(ofd::conflict(gate(&path), ofd::Kind::Write, all).unwrap(), None);
    let main = std::fs::File::open(&path).unwrap();
    assert_eq!(ofd::conflict(&main, ofd::Kind::Write, ofd::PENDING).unwrap(), None);
}
