//! An anchor is known to others, steps aside when it is asked to, and leaves nothing behind.

use std::path::Path;
use std::time::Duration;

use statehouse_sqlite::admission::{Aside, AsideError, Seat};
use statehouse_sqlite::secure::{Inspected, Purpose, inspect};
use statehouse_sqlite::{Error, Family, anchor, holders, members};

use crate::holder::Holder;
use crate::holders::{database, holder};
use crate::support::{Volume, visitor, wait_for, with};

const SHORT: Duration = Duration::from_millis(300);

fn inspected(path: &Path) -> Inspected {
    inspect(&Family::of(path).unwrap(), Purpose::Own).unwrap()
}

fn seated(path: &Path) -> Seat {
    let mut seat = Seat::take(&inspected(path)).unwrap();
    seat.enter(Duration::ZERO).unwrap();
    seat
}

fn parked(path: &Path) -> Vec<bool> {
    members::list(&Family::of(path).unwrap()).unwrap().iter().map(|r| r.parked).collect()
}

#[test]
fn an_anchor_that_is_asked_steps_aside_and_comes_back_when_nobody_asks_any_more() {
    let (_d, path) = database();
    let family = Family::of(&path).unwrap();
    let mut seat = seated(&path);
    assert_eq!(parked(&path), [false]);
    assert!(!seat.unwanted());
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| Aside::ask(&family, Duration::from_secs(20)));
        wait_for("the anchor is asked", || seat.unwanted());
        assert!(!asked.is_finished(), "nobody goes on before it has let go");
        seat.step_aside().unwrap();
        let aside = asked.join().unwrap().unwrap();
        assert_eq!(parked(&path), [true]);
        assert!(matches!(seat.enter(Duration::ZERO), Err(Error::Busy { .. })));
        assert_eq!(parked(&path), [true], "an attempt that failed leaves it parked");
        drop(aside);
    });
    assert!(!seat.unwanted());
    seat.enter(Duration::ZERO).unwrap();
    assert_eq!(parked(&path), [false]);
}

#[test]
fn an_anchor_that_does_not_step_aside_is_named() {
    let (_d, path) = database();
    let family = Family::of(&path).unwrap();
    let seat = seated(&path);
    match Aside::ask(&family, SHORT) {
        Err(e @ AsideError::Stays(_)) => assert!(e.to_string().contains(&format!("PID {}", std::process::id())), "{e}"),
        other => panic!("{other:?}"),
    }
    assert!(!seat.unwanted(), "who was refused does not go on asking");
}

#[test]
fn where_no_anchor_has_been_nothing_is_asked_and_nothing_made() {
    let (_d, path) = database();
    Aside::ask(&Family::of(&path).unwrap(), SHORT).unwrap();
    assert!(!with(&path, ".statehouse").exists());
}

#[test]
fn the_last_anchor_takes_away_what_anchors_made() {
    let (_d, path) = database();
    let side = with(&path, ".statehouse");
    let (first, second) = (seated(&path), seated(&path));
    first.leave();
    assert!(side.exists(), "somebody is still there");
    second.leave();
    assert!(!side.exists());
}

#[test]
fn what_others_put_beside_the_database_stays() {
    for what in ["created", "snapshots/", "members/5-5", "."] {
        let (_d, path) = database();
        let side = with(&path, ".statehouse");
        // Before: made by somebody else. It was made private, as everything of ours is.
        if what == "." {
            std::fs::create_dir(&side).unwrap();
        }
        let seat = seated(&path);
        let lock = (what == "members/5-5").then(|| {
            let file = std::fs::File::create(side.join(what)).unwrap();
            file.lock().unwrap();
            file
        });
        match what.strip_suffix('/') {
            Some(directory) => std::fs::create_dir(side.join(directory)).unwrap(),
            None if what == "created" => std::fs::write(side.join(what), b"").unwrap(),
            None => {}
        }
        seat.leave();
        assert!(side.join(what).exists(), "{what}");
        assert!(side.join("admission.lock").exists(), "{what}");
        drop(lock);
    }
}

#[test]
fn a_side_directory_that_was_removed_is_made_again_and_the_anchor_is_asked_by_the_new_one() {
    let (_d, path) = database();
    let family = Family::of(&path).unwrap();
    let mut seat = seated(&path);
    assert!(seat.is_in_place());
    std::fs::remove_dir_all(with(&path, ".statehouse")).unwrap();
    assert!(!seat.is_in_place());
    assert!(members::list(&family).unwrap().is_empty());
    seat.look_after(&inspected(&path)).unwrap();
    assert!(seat.is_in_place());
    assert_eq!(parked(&path), [false]);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| Aside::ask(&family, Duration::from_secs(20)));
        wait_for("the anchor is asked", || seat.unwanted());
        seat.step_aside().unwrap();
        asked.join().unwrap().unwrap();
    });
    seat.leave();
    assert!(!with(&path, ".statehouse").exists());
}

#[test]
fn structural_work_waits_for_the_anchor_and_the_anchor_for_structural_work() {
    let (_d, path) = database();
    let mut seat = seated(&path);
    let anchor = anchor::hold(&Family::of(&path).unwrap()).unwrap();
    let mut worker = Holder::start();
    worker.send(&format!("admit - - {}", path.display()));
    wait_for("the anchor is asked", || seat.unwanted());
    assert!(worker.answered().is_none());
    anchor.release();
    seat.step_aside().unwrap();
    worker.answer().unwrap();
    assert!(seat.unwanted() && matches!(seat.enter(SHORT), Err(Error::Busy { .. })));
    worker.ok("admitted VACUUM");
    worker.ok("release");
    seat.enter(Duration::from_secs(20)).unwrap();
    assert!(anchor::hold(&Family::of(&path).unwrap()).unwrap().current());
}

/// Removes the whole family, as `rm state.db*` does.
fn remove_all(path: &Path) {
    for suffix in ["", "-shm", "-wal"] {
        std::fs::remove_file(with(path, suffix)).unwrap();
    }
}

#[test]
fn what_an_anchor_keeps_of_removed_files_holds_up_nobody() {
    let (_d, path) = database();
    let family = Family::of(&path).unwrap();
    let mut seat = seated(&path);
    let victim = holder(&path);
    let anchor = anchor::hold(&family).unwrap();
    assert!(anchor.current());
    remove_all(&path);
    let kept = anchor.retire().unwrap();
    seat.step_aside().unwrap();
    victim.kill();
    assert_eq!(kept.files().len(), 2);
    visitor(&path, "PRAGMA journal_mode=WAL; CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    let seen = holders::scan(&family).unwrap();
    let own = seen.holders.iter().find(|h| h.is_self).unwrap();
    assert!(!own.naked && !own.ghost, "{own:#?}");
    assert!(!seen.alarming());
    // Somebody else's look sees the same, and neither opening nor structural work waits for it.
    Holder::with_store(&path).kill();
    let mut worker = Holder::start();
    worker.ok(&format!("admit - - {}", path.display()));
    worker.ok("admitted VACUUM");
    worker.ok("release");
    assert!(!kept.files().is_empty());
}

#[test]
fn an_anchor_on_a_full_disk_holds_all_the_same_and_is_known_as_soon_as_there_is_room() {
    let Some(volume) = Volume::new(400) else { return };
    let path = volume.join("s.db");
    visitor(&path, "PRAGMA journal_mode=WAL; CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    let mut victim = holder(&path);
    volume.fill(0);
    let mut seat = seated(&path);
    let anchor = anchor::hold(&Family::of(&path).unwrap()).unwrap();
    assert!(!seat.is_in_place() && anchor.current());
    victim.sql("SELECT count(*) FROM m");
    volume.clear();
    seat.look_after(&inspected(&path)).unwrap();
    assert!(seat.is_in_place());
    assert_eq!(parked(&path), [false]);
    // It is a member by now: structural work asks it.
    let mut worker = Holder::start();
    victim.kill();
    worker.send(&format!("admit - - {}", path.display()));
    wait_for("the anchor is asked", || seat.unwanted());
    assert!(worker.answered().is_none());
    anchor.release();
    seat.step_aside().unwrap();
    worker.answer().unwrap();
}
