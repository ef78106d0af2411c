//! What processes remember of their writes is right whatever happened between a write and the destruction of its log.

use std::path::Path;

use rustix::process::Signal;
use statehouse_sqlite::reassemble;
use statehouse_testkit::home::TestDir;
use statehouse_testkit::wait::until;

use crate::holder::Holder;
use crate::reassembled::{SOON, account, checkpoint, empty, evidence, keys, put};
use crate::support::{Volume, visitor, with};

fn sorted(mut keys: Vec<String>) -> Vec<String> {
    keys.sort();
    keys
}

fn role(database: &Path, key: &str) -> String {
    visitor(database, &format!("SELECT role FROM k WHERE key = '{key}'"))
}

#[test]
fn writes_from_before_the_index_was_made_anew_are_still_known() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let mut one = Holder::with_store(&path);
    put(&mut one, "early", 3, &mut Vec::new());
    checkpoint(&path);
    let mut kept = (0..3).map(|n| format!("early{n}")).collect();
    put(&mut one, "late", 5, &mut kept);
    empty(&with(&path, "-shm"));
    until("it goes on", SOON, || one.events().contains("Reopened"));
    empty(&with(&path, "-wal"));
    let account = account(&path, 0);
    assert!(account.lost.is_empty() && account.complete, "{account:#?}");
    assert_eq!(keys(account.rebuilt.as_ref().unwrap()), sorted(kept));
}

#[test]
fn an_index_and_a_log_that_are_emptied_together_lose_nothing_that_processes_know() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let (mut one, mut two) = (Holder::with_store(&path), Holder::with_store(&path));
    let mut kept = Vec::new();
    put(&mut one, "early", 3, &mut kept);
    checkpoint(&path);
    put(&mut one, "one", 5, &mut kept);
    put(&mut two, "two", 5, &mut kept);
    let (wal, shm) = (with(&path, "-wal"), with(&path, "-shm"));
    empty(&shm);
    empty(&wal);
    let account = account(&path, 10);
    assert_eq!(keys(account.rebuilt.as_ref().unwrap()), sorted(kept), "{account:#?}");
}

#[test]
fn a_write_that_needs_another_process_s_is_there_whoever_comes_first() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let (mut one, mut two) = (Holder::with_store(&path), Holder::with_store(&path));
    let mut kept = Vec::new();
    put(&mut one, "early", 3, &mut kept);
    checkpoint(&path);
    put(&mut one, "parent", 1, &mut kept);
    two.ok("after child parent0");
    kept.push("child".into());
    one.signal(Signal::STOP);
    empty(&with(&path, "-wal"));
    let first = account(&path, 1);
    assert_eq!(first.failed, 1, "{first:#?}");
    assert!(
        first.lost.iter().any(|l| l.contains("1 acknowledged writes")),
        "it is said as long as it is so: {first:#?}"
    );
    one.signal(Signal::CONT);
    let mut last = first;
    until("both are there", SOON, || {
        last = account(&path, 2);
        last.failed == 0
    });
    assert!(last.lost.is_empty() && last.complete, "{last:#?}");
    assert_eq!(keys(last.rebuilt.as_ref().unwrap()), sorted(kept));
}

#[test]
fn a_process_that_was_idle_does_not_undo_what_others_wrote_since() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let (mut one, mut two) = (Holder::with_store(&path), Holder::with_store(&path));
    put(&mut one, "early", 3, &mut Vec::new());
    checkpoint(&path);
    one.ok("set title old");
    two.ok("set title new");
    checkpoint(&path);
    two.ok("put late");
    one.signal(Signal::STOP);
    empty(&with(&path, "-wal"));
    let first = account(&path, 1);
    one.signal(Signal::CONT);
    until("the other one has been there", SOON, || one.events().contains("NotReopened"));
    let rebuilt = first.rebuilt.as_ref().unwrap();
    assert_eq!(role(rebuilt, "title"), "new", "{:#?}", reassemble::account(&evidence(&path).unwrap()));
}

#[test]
fn a_write_that_found_its_row_there_is_known_though_whoever_made_it_has_ended() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let (mut one, mut two) = (Holder::with_store(&path), Holder::with_store(&path));
    let mut kept = Vec::new();
    put(&mut one, "early", 3, &mut kept);
    checkpoint(&path);
    one.ok("put twice");
    two.ok("put twice");
    two.ok("put late");
    kept.extend(["twice".into(), "late".into()]);
    one.kill();
    empty(&with(&path, "-wal"));
    let account = account(&path, 1);
    assert_eq!(keys(account.rebuilt.as_ref().unwrap()), sorted(kept), "{account:#?}");
}

#[test]
fn what_finds_no_room_on_a_full_disk_is_added_when_there_is_room() {
    // With room for nothing, and with room for the evidence alone.
    for left in [0, 6 << 20] {
        let Some(volume) = Volume::new(32 << 10) else { return };
        let path = volume.join("s.db");
        let mut holder = Holder::with_store(&path);
        let mut kept = Vec::new();
        put(&mut holder, &"x".repeat(100_000), 20, &mut kept);
        checkpoint(&path);
        put(&mut holder, "late", 5, &mut kept);
        volume.fill(left);
        empty(&with(&path, "-wal"));
        until("it is cut off", SOON, || holder.events().contains("NotReopened"));
        if left > 0 {
            let mark = || std::fs::read_to_string(with(&path, ".statehouse/destroyed.json")).unwrap_or_default();
            until("it says why", SOON, || mark().contains("could not be added yet"));
        }
        volume.clear();
        let account = account(&path, 5);
        assert!(account.lost.is_empty() && account.complete && account.verified, "{left}: {:#?}", account.unusable);
        assert_eq!(keys(account.rebuilt.as_ref().unwrap()), sorted(kept), "{left}");
    }
}
