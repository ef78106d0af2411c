//! Locks that were dropped behind the lock core's back are taken again, or the handle is fenced; nothing acknowledged is lost.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use statehouse_sqlite::Family;
use statehouse_sqlite::incidents::{self, Incident, Kind, Outcome};
use statehouse_testkit::home::TestDir;
use statehouse_testkit::kernel::{self, FileId, Standing, generation};
use statehouse_testkit::visitor::{Shell, shell_once};
use statehouse_testkit::wait::until;

use crate::holder::Holder;
use crate::support::{Random, with};

const SOON: Duration = Duration::from_secs(20);

fn fresh() -> (TestDir, PathBuf) {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    (directory, path)
}

fn standing(holder: &Holder, path: &Path) -> Standing {
    Standing::of(holder.pid(), path)
}

fn recorded(path: &Path) -> Vec<Incident> {
    incidents::list(&Family::of(path).unwrap()).unwrap()
}

/// A stock visitor that opens, reads and closes, and takes the sidecars away if it believes that it is the last; what it read.
fn visit(path: &Path) -> Option<String> {
    Some(shell_once(path, "SELECT count(*) FROM k")?.success().stdout.trim().to_owned())
}

/// Drops locks by an order, and has them back, with nothing else changed.
fn heals(order: impl Fn(&Path) -> String, what: &str) {
    let (directory, path) = fresh();
    std::fs::write(directory.join("other"), "another file").unwrap();
    let mut holder = Holder::with_store(&path);
    for n in 0..5 {
        holder.ok(&format!("put before{n}"));
    }
    let before = generation(&path);
    let dropped = Instant::now();
    holder.ok(&order(&path));
    until("the locks are back", SOON, || holder.events().contains("Healed") && standing(&holder, &path).whole());
    eprintln!("{what}: back after {:?}", dropped.elapsed());
    if let Some(count) = visit(&path) {
        assert_eq!(count, "5");
    }
    assert_eq!(generation(&path), before, "the visitor took nothing away");
    holder.ok("put after");
    assert_eq!(holder.ok("count"), "6");
    assert!(!holder.events().contains("Fenced"), "{}", holder.events());
    let told = recorded(&path);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((told[0].kind, told[0].outcome, told[0].pid), (Kind::LocksHealed, Outcome::Healed, holder.pid()));
    assert!(told[0].what.contains(what) && !told[0].is_open(), "{told:?}");
    let other = FileId::of(&directory.join("other")).unwrap();
    assert!(!kernel::locks().iter().any(|l| l.file == other), "no lock went to the other file");
}

#[test]
fn the_shared_range_that_was_unlocked_under_an_idle_handle_is_back_by_itself() {
    heals(|path| format!("unlock {}", path.display()), "the shared range of the main file");
}

#[test]
fn byte_128_that_was_unlocked_under_an_idle_handle_is_back_by_itself() {
    heals(|path| format!("unlock {}-shm", path.display()), "byte 128 of the index");
}

#[test]
fn an_owner_whose_number_was_closed_is_opened_anew() {
    heals(|path| format!("shut {}", path.display()), "the descriptor that holds it");
}

#[test]
fn an_owner_of_the_index_whose_number_was_closed_is_opened_anew() {
    heals(|path| format!("shut {}-shm", path.display()), "the descriptor that holds it");
}

#[test]
fn an_owner_whose_number_another_file_took_over_is_opened_anew_and_the_other_file_left_alone() {
    let other = |path: &Path| path.parent().unwrap().join("other").display().to_string();
    heals(|path| format!("steal {} {}", path.display(), other(path)), "the descriptor that holds it");
    heals(|path| format!("steal {}-shm {}", path.display(), other(path)), "the descriptor that holds it");
}

/// Has another process drop all locks while the holder is stopped.
fn drop_while_stopped(holder: &mut Holder, directory: &TestDir, path: &Path) {
    let go = directory.join("go");
    holder.ok(&format!("accomplice {} {} {}-shm", go.display(), path.display(), path.display()));
    holder.signal(Signal::STOP);
    std::fs::write(&go, "").unwrap();
    until("the locks are dropped", SOON, || with(&go, ".done").exists());
    let now = standing(holder, path);
    assert!(!now.shared && !now.dms, "{now:?}");
}

#[test]
fn without_anybody_who_looks_the_next_visitor_takes_the_sidecars_away() {
    // The control: the lock core alone, in a process that does not heal.
    let (directory, path) = fresh();
    let mut holder = Holder::with_database(&path, true);
    holder.ok("sql a CREATE TABLE k(n)");
    drop_while_stopped(&mut holder, &directory, &path);
    if visit(&path).is_some() {
        let now = standing(&holder, &path);
        assert!(now.deleted && !now.has_wal, "{now:?}");
    }
}

#[test]
fn a_process_that_shares_the_description_drops_the_locks_once_and_then_no_more() {
    let (directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    holder.ok("put one");
    let go = directory.join("go");
    // Two of them, both with the descriptions of now.
    for n in [1, 2] {
        let (go, path) = (with(&go, &n.to_string()), path.display());
        holder.ok(&format!("accomplice {} {path} {path}-shm", go.display()));
    }
    std::fs::write(with(&go, "1"), "").unwrap();
    until("the locks are back", SOON, || holder.events().contains("Healed") && standing(&holder, &path).whole());
    std::fs::write(with(&go, "2"), "").unwrap();
    until("it tried again", SOON, || with(&go, "2.done").exists());
    assert!(standing(&holder, &path).whole(), "the locks are on descriptions that it has not");
    assert_eq!(recorded(&path).len(), 1);
}

#[test]
fn a_visitor_that_came_in_between_and_took_the_sidecars_away_costs_nothing() {
    let (directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    for n in 0..10 {
        holder.ok(&format!("put before{n}"));
    }
    drop_while_stopped(&mut holder, &directory, &path);
    if visit(&path).is_none() {
        holder.signal(Signal::CONT);
        return;
    }
    assert!(standing(&holder, &path).deleted, "the visitor must have taken them away");
    // Somebody else goes on in a new generation before the holder looks.
    shell_once(&path, "INSERT INTO k(key, role) VALUES('visitor', 'v')").unwrap().success();
    holder.signal(Signal::CONT);
    until("the handle goes on", SOON, || holder.events().contains("Reopened"));
    holder.ok("put after");
    assert_eq!(holder.ok("count"), "12");
    assert_eq!(visit(&path).as_deref(), Some("12"));
    assert!(standing(&holder, &path).whole() && !holder.events().contains("Healed"), "{}", holder.events());
    let told = recorded(&path);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].kind, Kind::LocksLost);
    until("the incident is closed", SOON, || !recorded(&path)[0].is_open());
}

#[test]
fn a_visitor_that_came_in_between_and_emptied_the_index_is_noticed() {
    let (directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    for n in 0..10 {
        holder.ok(&format!("put before{n}"));
    }
    let before = generation(&path);
    let go = directory.join("go");
    holder.ok(&format!("accomplice {} {}-shm", go.display(), path.display()));
    holder.signal(Signal::STOP);
    std::fs::write(&go, "").unwrap();
    until("byte 128 is free", SOON, || with(&go, ".done").exists());
    assert!(!standing(&holder, &path).dms);
    // It finds byte 128 free, empties the index, and makes it anew from the log; the shared range keeps the files in place.
    let Some(count) = visit(&path) else { return holder.signal(Signal::CONT) };
    assert_eq!(count, "10");
    assert_eq!(generation(&path), before);
    holder.signal(Signal::CONT);
    until("the holder has decided", SOON, || !recorded(&path).is_empty());
    until("the lock is back", SOON, || standing(&holder, &path).whole());
    holder.ok("put after");
    assert_eq!(holder.ok("count"), "11");
    assert_eq!(visit(&path).as_deref(), Some("11"));
}

#[test]
fn an_index_that_was_cut_off_in_between_is_made_anew() {
    let (directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    for n in 0..10 {
        holder.ok(&format!("put before{n}"));
    }
    // A stranger keeps byte 128, so that nobody who opens the database empties the index as the first one.
    let stranger = Shell::open(&path).map(|mut shell| {
        assert_eq!(shell.sql("SELECT count(*) FROM k;"), ["10"]);
        shell
    });
    drop_while_stopped(&mut holder, &directory, &path);
    // Closed at once, for who has a descriptor and no lock is a holder that must not be overlooked.
    std::fs::OpenOptions::new().write(true).open(with(&path, "-shm")).unwrap().set_len(3).unwrap();
    holder.signal(Signal::CONT);
    until("the handle goes on", SOON, || holder.events().contains("Reopened"));
    assert!(!holder.events().contains("Healed"), "{}", holder.events());
    holder.ok("put after");
    assert_eq!(holder.ok("count"), "11");
    assert_eq!(visit(&path).unwrap_or("11".into()), "11");
    assert!(standing(&holder, &path).whole());
    drop(stranger);
}

#[test]
fn a_read_that_may_have_met_an_emptied_index_gives_no_answer() {
    let (directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    holder.ok("put one");
    holder.ok("read-on");
    let go = directory.join("go");
    // The read keeps its own lock; the file's other guard, the shared range, stands as well.
    holder.ok(&format!("accomplice {} {}-shm@128", go.display(), path.display()));
    holder.signal(Signal::STOP);
    std::fs::write(&go, "").unwrap();
    until("byte 128 is free", SOON, || with(&go, ".done").exists());
    let Some(count) = visit(&path) else { return holder.signal(Signal::CONT) };
    assert_eq!(count, "1");
    holder.signal(Signal::CONT);
    until("the handle is fenced", SOON, || holder.events().contains("Fenced"));
    let answer = holder.order("read-end");
    assert!(answer.as_ref().is_err_and(|e| e.contains("locks_lost")), "{answer:?}");
    until("the handle goes on", SOON, || holder.events().contains("Reopened"));
    assert_eq!(holder.ok("count"), "1");
    assert!(!holder.events().contains("Healed"), "{}", holder.events());
}

#[test]
fn a_read_under_which_the_index_was_emptied_gives_no_answer_before_anybody_has_noticed() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    for n in 0..10 {
        holder.ok(&format!("put only in the log {n}"));
    }
    let answer = holder.order(&format!("read-emptied {}", path.display()));
    assert!(answer.as_ref().is_err_and(|e| e.contains("locks_lost")), "{answer:?}");
    until("the handle goes on", SOON, || holder.order("count") == Ok("10".into()));
    assert!(standing(&holder, &path).whole());
}

#[test]
fn a_lock_of_a_transaction_that_was_gone_when_it_ended_is_not_forgotten() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_database(&path, true);
    let locked = format!("locked {}", path.display());
    holder.ok("sql a BEGIN IMMEDIATE");
    holder.ok("sql a INSERT INTO m(t) VALUES('x')");
    holder.ok("sql a COMMIT");
    assert_eq!(holder.ok(&locked), "true");
    holder.ok("sql a BEGIN IMMEDIATE");
    holder.ok("sql a INSERT INTO m(t) VALUES('y')");
    holder.ok(&format!("unlock {}-shm 120 1", path.display()));
    holder.ok("sql a COMMIT");
    // Everything that should stand does; but another writer may have had the log meanwhile.
    assert!(standing(&holder, &path).whole());
    assert_eq!(holder.ok(&locked), "false");
    holder.ok("close a");
    holder.ok(&format!("connect a rw {}", path.display()));
    holder.ok("sql a SELECT count(*) FROM m");
    assert_eq!(holder.ok(&locked), "true", "a new beginning");
}

#[test]
fn a_read_goes_on_when_only_byte_128_was_dropped() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    holder.ok("put one");
    holder.ok("read-on");
    holder.ok(&format!("unlock {}-shm 128 1", path.display()));
    until("the lock is back", SOON, || holder.events().contains("Healed") && standing(&holder, &path).whole());
    holder.ok("put two");
    assert_eq!(holder.ok("read-end"), "1 1", "it goes on reading what it began with");
    assert!(!holder.events().contains("Fenced"), "{}", holder.events());
}

#[test]
fn a_read_whose_own_lock_was_dropped_is_not_healed_over() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    holder.ok("put one");
    holder.ok("read-on");
    holder.ok(&format!("unlock {}-shm", path.display()));
    until("the handle is fenced", SOON, || holder.events().contains("Fenced"));
    let told = recorded(&path);
    assert_eq!((told.len(), told[0].kind), (1, Kind::LocksLost), "{told:?}");
    assert!(told[0].is_open() && told[0].what.contains("the lock of a transaction"), "{told:?}");
    // A read that does not end keeps the handle from going on; it must end first.
    let _ = holder.order("read-end");
    until("the handle goes on", SOON, || holder.events().contains("Reopened"));
    holder.ok("put two");
    assert_eq!(holder.ok("count"), "2");
    assert!(standing(&holder, &path).whole() && !holder.events().contains("Healed"));
    assert!(!recorded(&path)[0].is_open());
}

#[test]
fn a_write_whose_own_lock_was_dropped_is_made_again_and_not_acknowledged_as_it_is() {
    let (directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    holder.ok("put one");
    let (drop_it, end) = (directory.join("drop"), directory.join("end"));
    holder.ok(&format!("accomplice {} {}-shm", drop_it.display(), path.display()));
    holder.send(&format!("put-when slow {}", end.display()));
    until("the transaction is open", SOON, || with(&end, ".inside").exists());
    std::fs::write(&drop_it, "").unwrap();
    until("its locks are dropped", SOON, || with(&drop_it, ".done").exists());
    // Another writer may have the log now.
    let other = shell_once(&path, "INSERT INTO k(key, role) VALUES('other', 'o')");
    std::fs::write(&end, "").unwrap();
    assert_eq!(holder.answer(), Ok(String::new()));
    assert!(holder.events().contains("Fenced") && !holder.events().contains("Healed"), "{}", holder.events());
    assert_eq!(recorded(&path).first().map(|i| i.kind), Some(Kind::LocksLost));
    let expected = if other.is_some() { "3" } else { "2" };
    assert_eq!(holder.ok("count"), expected);
    assert!(standing(&holder, &path).whole());
    assert_eq!(visit(&path).unwrap_or(expected.to_owned()), expected);
}

#[test]
fn a_thousand_random_drops_under_load_lose_nothing_that_was_acknowledged() {
    let (directory, path) = fresh();
    let seed = Random::new("random drops").next() >> 1;
    let mut holder = Holder::with_store(&path);
    holder.ok("put first");
    let log = directory.join("acknowledged");
    holder.send(&format!("batter {seed} 1000 16 {} {}", log.display(), path.display()));
    let told = loop {
        if let Some(answer) = holder.answered() {
            break answer.unwrap();
        }
        // A visitor that comes at the wrong moment takes the sidecars away.
        if visit(&path).is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let events = holder.events();
    let count = |what: &str| events.lines().filter(|l| l.starts_with(what)).count();
    eprintln!("{told}; {} healed, {} fenced, {} puts refused", count("Healed"), count("Fenced"), count("put:"));
    let acknowledged = std::fs::read_to_string(&log).unwrap();
    let mut expected: Vec<&str> = acknowledged.lines().chain(["first"]).collect();
    expected.sort_unstable();
    assert!(expected.len() > 50 && count("Healed") > 20, "{events}");
    until("the handle is whole", SOON, || standing(&holder, &path).whole());
    let mut reader = Holder::start();
    reader.ok(&format!("connect r rw {}", path.display()));
    assert_eq!(reader.ok("sql r PRAGMA integrity_check"), "ok");
    let there = reader.ok("sql r SELECT group_concat(key, ' ') FROM (SELECT key FROM k ORDER BY key)");
    let there: Vec<&str> = there.split(' ').collect();
    let lost: Vec<_> = expected.iter().filter(|k| there.binary_search(k).is_err()).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}\n{events}", lost.len(), expected.len());
    assert!(told.contains(" 0 stale reads"), "{told}");
    assert!(recorded(&path).len() <= incidents::MOST_FILES);
}
