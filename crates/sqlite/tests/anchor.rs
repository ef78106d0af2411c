//! With an anchor no visitor's close takes the sidecars away, and no stale index is trusted. Each control shows the loss.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use statehouse_sqlite::anchor::KeptBack;
use statehouse_sqlite::ofd::{self, DMS, Kind, SHARED, WAL_CHECKPOINT};
use statehouse_sqlite::{Family, Member, Reason, anchor};

use crate::holders::{database, holder};
use crate::support::{Sibling, visitor, wait_for, with};

fn anchored(path: &Path) -> anchor::Anchor {
    anchor::hold(&Family::of(path).unwrap()).unwrap()
}

fn lose_both(sibling: &mut Sibling, path: &Path) {
    sibling.touch(path);
    sibling.touch(&with(path, "-shm"));
}

/// A holder loses both locks by stray closes, then strangers come and go.
#[test]
fn a_visitors_close_leaves_the_sidecars_where_an_anchor_holds_them() {
    for with_anchor in [true, false] {
        let (_d, path) = database();
        let mut victim = holder(&path);
        let anchor = with_anchor.then(|| anchored(&path));
        let before = Family::of(&path).unwrap().generation().unwrap();
        lose_both(&mut victim, &path);
        for _ in 0..3 {
            visitor(&path, "SELECT count(*) FROM m");
        }
        visitor(&path, "INSERT INTO m(t) VALUES('of a visitor')");
        let after = Family::of(&path).unwrap().generation().unwrap();
        if let Some(anchor) = anchor {
            assert_eq!(before, after, "the generation stays");
            assert!(anchor.current());
            victim.sql("INSERT INTO m(t) VALUES('after')");
            victim.kill();
            assert_eq!(visitor(&path, "SELECT count(*) FROM m WHERE t IN ('held', 'after', 'of a visitor')"), "3");
            assert_eq!(visitor(&path, "PRAGMA integrity_check"), "ok");
        } else {
            assert_ne!(before.wal, after.wal, "the control: without an anchor the log is gone");
        }
    }
}

/// The anchor comes when the harm is half done: the locks are lost and nobody has closed yet.
#[test]
fn an_anchor_beside_a_naked_holder_leaves_its_index_alone() {
    let (_d, path) = database();
    let mut victim = holder(&path);
    lose_both(&mut victim, &path);
    let size = std::fs::metadata(with(&path, "-shm")).unwrap().len();
    assert!(size >= 32768);
    let anchor = anchored(&path);
    assert_eq!(std::fs::metadata(with(&path, "-shm")).unwrap().len(), size, "it would die of SIGBUS");
    visitor(&path, "INSERT INTO m(t) VALUES('of a visitor')");
    for _ in 0..50 {
        victim.sql("SELECT count(*) FROM m");
    }
    victim.sql("INSERT INTO m(t) VALUES('after')");
    assert!(anchor.current());
    assert_eq!(visitor(&path, "SELECT count(*) FROM m"), "4");
}

/// What a power cut leaves: a log with commits, and an index from before them.
fn power_cut() -> (tempfile::TempDir, PathBuf) {
    let (d, path) = database();
    let mut writer = holder(&path);
    let early = std::fs::read(with(&path, "-shm")).unwrap();
    for i in 0..20 {
        writer.sql(&format!("INSERT INTO m(t) VALUES('late {i}')"));
    }
    writer.kill();
    std::fs::write(with(&path, "-shm"), early).unwrap();
    (d, path)
}

#[test]
fn an_index_that_is_older_than_its_log_is_not_trusted() {
    let (_d, path) = power_cut();
    let anchor = anchored(&path);
    assert_eq!(visitor(&path, "SELECT count(*) FROM m"), "22");
    visitor(&path, "INSERT INTO m(t) VALUES('new')");
    assert_eq!(visitor(&path, "SELECT count(*) FROM m"), "23");
    assert!(anchor.current());

    // The control: whoever shares byte 128 first and says nothing makes openers trust it.
    let (_d, path) = power_cut();
    let open = |suffix: &str| std::fs::File::open(with(&path, suffix)).unwrap();
    let (main, shm) = (open(""), open("-shm"));
    assert!(ofd::try_lock(&main, Kind::Read, SHARED).unwrap());
    assert!(ofd::try_lock(&shm, Kind::Read, DMS).unwrap());
    visitor(&path, "INSERT INTO m(t) VALUES('new')");
    let left: u32 = visitor(&path, "SELECT count(*) FROM m").parse().unwrap();
    assert!(left < 10, "the control lost nothing: {left}");
    assert_eq!(visitor(&path, "PRAGMA integrity_check"), "ok", "and nobody notices");
}

#[test]
fn a_closed_database_is_anchored_and_then_used() {
    let (_d, path) = database();
    let anchor = anchored(&path);
    assert_eq!(std::fs::metadata(with(&path, "-shm")).unwrap().len(), 3);
    let mode = |p: &Path| std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(p).unwrap()) & 0o777;
    assert_eq!(mode(&with(&path, "-shm")), mode(&path) & 0o666);
    assert_eq!(anchor.generation().wal, None);
    let family = Family::of(&path).unwrap();
    let seen = statehouse_sqlite::holders::scan(&family).unwrap();
    assert_eq!((seen.holders.len(), seen.alarming()), (1, false), "{seen:#?}");
    assert!(seen.holders[0].is_self && seen.holders[0].locks.shared && seen.holders[0].locks.dms);
    let mut first = holder(&path);
    assert!(anchor.current());
    assert!(anchor.generation().wal.is_some(), "the log that came into being is held");
    first.order(json!({ "close": true })).unwrap();
    assert!(anchor.current(), "a close in an orderly way is none of the last one");
    assert!(with(&path, "-wal").exists());
    // What others may not do meanwhile is what would retire the generation.
    let mut flip = std::process::Command::new("sqlite3");
    let flip = flip.arg(&path).arg("PRAGMA journal_mode=DELETE").output().unwrap();
    assert!(String::from_utf8_lossy(&flip.stderr).contains("locked"), "{flip:?}");
    anchor.release();
    visitor(&path, "SELECT count(*) FROM m");
    assert!(!with(&path, "-wal").exists(), "after the release everything is as before");
    assert_eq!(visitor(&path, "PRAGMA journal_mode=DELETE"), "delete");
}

#[test]
fn an_anchor_notices_that_its_generation_is_gone_and_still_has_the_bytes() {
    for what in ["-wal", "-shm", ""] {
        let (_d, path) = database();
        let mut victim = holder(&path);
        let anchor = anchored(&path);
        assert!(anchor.current());
        std::fs::remove_file(with(&path, what)).unwrap();
        assert!(!anchor.current(), "{what:?} is gone");
        std::fs::write(with(&path, what), b"").unwrap();
        assert!(!anchor.current(), "{what:?} is another file");
        let seen = statehouse_sqlite::holders::scan(&Family::of(&path).unwrap()).unwrap();
        let own = seen.holders.iter().find(|h| h.is_self).unwrap();
        assert!(!own.ghost && !own.naked, "an anchor writes nothing: {own:#?}");
        victim.sql("INSERT INTO m(t) VALUES('into the void')");
        victim.kill();
        let read = |member: Member| {
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut std::fs::File::from(anchor.file(member).unwrap()), &mut bytes).unwrap();
            bytes
        };
        let mut image = Vec::new();
        let made = statehouse_sqlite::image::overlay(&read(Member::Main), &read(Member::Wal), &mut image).unwrap();
        assert!(made.transactions >= 2);
        assert!(image.windows(13).any(|w| w == b"into the void"), "the last row is in what the anchor holds");
    }
}

#[test]
fn rollback_mode_and_a_hot_journal_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    let reason = |path: &Path| anchor::hold(&Family::of(path).unwrap()).unwrap_err().reason();
    assert_eq!(reason(&path), Some(Reason::NoStore));
    visitor(&path, "CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    assert_eq!(reason(&path), Some(Reason::RollbackMode));
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing was made");

    let (_d, path) = database();
    std::fs::write(with(&path, "-journal"), [0xd9; 512]).unwrap();
    assert_eq!(reason(&path), Some(Reason::HotJournal));
    assert!(!with(&path, "-shm").exists());
    std::fs::write(with(&path, "-journal"), [0; 512]).unwrap();
    assert!(anchor::hold(&Family::of(&path).unwrap()).is_ok(), "a journal that was zeroed is over");
}

/// Openers and anchors that arrive together on a closed database, again and again.
#[test]
fn anchors_and_openers_that_arrive_together_get_along() {
    let (_d, path) = database();
    let family = Family::of(&path).unwrap();
    for round in 0..30 {
        std::thread::scope(|scope| {
            let anchors: Vec<_> = (0..3).map(|_| scope.spawn(|| anchor::hold(&family).unwrap())).collect();
            let visit = scope.spawn(|| {
                visitor(&path, "PRAGMA busy_timeout=20000; INSERT INTO m(t) VALUES('x')");
            });
            let anchors: Vec<_> = anchors.into_iter().map(|a| a.join().unwrap()).collect();
            visit.join().unwrap();
            assert!(anchors.iter().all(anchor::Anchor::current), "round {round}");
            let same = anchors.iter().all(|a| a.generation().shm == anchors[0].generation().shm);
            assert!(same, "round {round}");
        });
        assert_eq!(visitor(&path, "SELECT count(*) FROM m WHERE t='x'"), (round + 1).to_string());
    }
}

#[test]
fn a_lock_that_stays_in_the_way_is_waited_for_and_then_named() {
    let (_d, path) = database();
    let mut owner = Sibling::connected(&path);
    owner.sql("PRAGMA locking_mode=EXCLUSIVE");
    owner.sql("INSERT INTO m(t) VALUES('mine')");
    let begun = std::time::Instant::now();
    let waiting = std::thread::scope(|scope| {
        let hold = scope.spawn(|| anchor::hold(&Family::of(&path).unwrap()));
        wait_for("the anchor waits", || begun.elapsed() > Duration::from_millis(100) || hold.is_finished());
        owner.order(json!({ "close": true })).unwrap();
        hold.join().unwrap()
    });
    assert!(waiting.unwrap().current());
}

fn bytes(kept: &anchor::Kept, member: Member) -> Vec<u8> {
    let file = kept.files().into_iter().find(|f| f.member == member).unwrap();
    std::fs::read(format!("/proc/self/fd/{}", file.descriptor)).unwrap()
}

/// Until the time in which somebody may be removing one file after another is over.
fn settled(kept: &mut anchor::Kept) {
    let begun = std::time::Instant::now();
    wait_for("files that are removed one by one are gone", || {
        kept.watch();
        let _ = kept.over(&[]);
        begun.elapsed() > Duration::from_secs(4)
    });
}

#[test]
fn the_rows_of_a_killed_process_are_kept_after_all_its_files_were_removed() {
    let (_d, path) = database();
    let mut victim = holder(&path);
    let anchor = anchored(&path);
    assert!(anchor.current());
    for suffix in ["-shm", "-wal", ""] {
        std::fs::remove_file(with(&path, suffix)).unwrap();
    }
    assert!(!anchor.current());
    let mut kept = anchor.retire().unwrap();
    victim.sql("INSERT INTO m(t) VALUES('into the void')");
    let dangerous = statehouse_sqlite::holders::dangerous(&Family::of(&path).unwrap()).unwrap();
    assert_eq!(dangerous.iter().map(|h| h.pid).collect::<Vec<_>>(), [Some(victim.pid() as i32)], "{dangerous:#?}");
    assert!(kept.is_worth_keeping() && kept.over(&dangerous).is_none());
    victim.kill();
    settled(&mut kept);
    assert_eq!(kept.over(&[]), None);
    assert_eq!(kept.transactions(), 2);
    let mut image = Vec::new();
    statehouse_sqlite::image::overlay(&bytes(&kept, Member::Main), &bytes(&kept, Member::Wal), &mut image).unwrap();
    let copy = with(&path, ".copy");
    std::fs::write(&copy, image).unwrap();
    assert_eq!(visitor(&copy, "SELECT count(*) FROM m WHERE t IN ('a', 'held', 'into the void')"), "3");
}

#[test]
fn files_that_nothing_is_lost_with_are_not_kept() {
    use anchor::Over;
    // Moved away: they have other names.
    let (_d, path) = database();
    let _victim = holder(&path);
    let anchor = anchored(&path);
    assert!(anchor.current());
    for suffix in ["", "-wal", "-shm"] {
        std::fs::rename(with(&path, suffix), with(&path, &format!(".old{suffix}"))).unwrap();
    }
    let mut moved = anchor.retire().unwrap();
    assert!(!moved.is_worth_keeping());
    // Replaced, with an empty log.
    let (_e, path) = database();
    let anchor = anchored(&path);
    let copy = with(&path, ".copy");
    std::fs::copy(&path, &copy).unwrap();
    std::fs::rename(&copy, &path).unwrap();
    assert!(!anchor.current());
    let mut replaced = anchor.retire().unwrap();
    settled(&mut replaced);
    assert_eq!(replaced.over(&[]), Some(Over::Empty));
    settled(&mut moved);
    assert_eq!(moved.over(&[]), Some(Over::Named));
    // A database without a log that was removed, and nothing put in its place: all of it is in the main file.
    let (_f, path) = database();
    let anchor = anchored(&path);
    std::fs::remove_file(&path).unwrap();
    let mut removed = anchor.retire().unwrap();
    settled(&mut removed);
    assert_eq!(removed.over(&[]), None);
    assert!(bytes(&removed, Member::Main).starts_with(b"SQLite format 3"));
}

#[test]
fn what_a_process_of_ours_has_captured_need_not_be_kept_any_longer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    let mut ours = crate::holder::Holder::with_store(&path);
    ours.ok("put one");
    let anchor = anchored(&path);
    assert!(anchor.current());
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(with(&path, suffix)).unwrap();
    }
    let mut kept = anchor.retire().unwrap();
    assert!(kept.is_worth_keeping());
    wait_for("the store is put back", || path.exists());
    ours.ok("put two");
    wait_for("the capture is found", || kept.over(&[]) == Some(anchor::Over::Captured));
}

/// Whoever has a copy of an anchor's descriptors can unlock them.
#[test]
fn an_anchor_whose_locks_were_released_by_another_process_takes_them_again_and_says_so() {
    for healed in [true, false] {
        let (_d, path) = database();
        let mut victim = holder(&path);
        let anchor = anchored(&path);
        let before = Family::of(&path).unwrap().generation().unwrap();
        assert_eq!(anchor.heal().unwrap(), None, "nothing is gone yet");
        for (member, range) in [(Member::Main, SHARED), (Member::Shm, DMS)] {
            ofd::unlock(anchor.file(member).unwrap(), range).unwrap();
        }
        if healed {
            let what = anchor.heal().unwrap().unwrap();
            assert!(what.contains("shared range") && what.contains("byte 128"), "{what}");
            assert_eq!(anchor.heal().unwrap(), None);
        }
        lose_both(&mut victim, &path);
        for _ in 0..3 {
            visitor(&path, "SELECT count(*) FROM m");
        }
        let after = Family::of(&path).unwrap().generation().unwrap();
        assert_eq!(before == after, healed, "the control: nobody takes them again, and the log is gone");
        let told = statehouse_sqlite::incidents::list(&Family::of(&path).unwrap()).unwrap();
        assert_eq!(told.len(), usize::from(healed), "{told:#?}");
    }
}

#[test]
fn an_anchor_leaves_a_database_alone_that_somebody_is_about_to_delete() {
    let (_d, path) = database();
    let anchor = anchored(&path);
    ofd::unlock(anchor.file(Member::Main).unwrap(), SHARED).unwrap();
    let last = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    assert!(ofd::try_lock(&last, Kind::Write, SHARED).unwrap());
    assert!(matches!(anchor.heal(), Err(statehouse_sqlite::Error::Busy { .. })));
    drop(last);
    assert!(anchor.heal().unwrap().is_some());
}

fn remove(path: &Path, suffixes: &[&str]) {
    suffixes.iter().for_each(|suffix| std::fs::remove_file(with(path, suffix)).unwrap());
}

/// What SQLite says of a checkpoint: whether somebody was in the way, frames of the log, frames that were copied.
fn checkpoint(sibling: &mut Sibling, mode: &str) -> Vec<i64> {
    let answer = sibling.sql(&format!("PRAGMA wal_checkpoint({mode})"));
    answer[0].as_array().unwrap().iter().map(|n| n.as_i64().unwrap()).collect()
}

#[test]
fn who_goes_on_in_a_removed_log_commits_and_copies_nothing_until_the_anchor_is_gone() {
    let (_d, path) = database();
    let mut ghost = holder(&path);
    let anchor = anchored(&path);
    assert!(anchor.current());
    assert_eq!(anchor.keep_back(false), KeptBack::No, "a generation that is in its place is left alone");
    assert_eq!(checkpoint(&mut ghost, "TRUNCATE"), [0, 0, 0]);
    ghost.sql("INSERT INTO m(t) VALUES('in the log')");
    remove(&path, &["-wal", "-shm"]);
    assert_eq!(anchor.keep_back(false), KeptBack::Yes);
    assert_eq!(checkpoint(&mut ghost, "PASSIVE")[0], 1, "before the other locks are let go of");
    let mut kept = anchor.retire().unwrap();
    assert_eq!(kept.kept_back(), KeptBack::Yes);
    let main = std::fs::read(&path).unwrap();
    for mode in ["PASSIVE", "FULL", "RESTART", "TRUNCATE"] {
        let size = bytes(&kept, Member::Wal).len();
        ghost.sql(&format!("INSERT INTO m(t) VALUES('{mode}')"));
        assert_eq!(checkpoint(&mut ghost, mode)[0], 1, "{mode} is told that somebody is in the way");
        assert!(bytes(&kept, Member::Wal).len() > size, "{mode} begins no log anew");
    }
    assert_eq!(std::fs::read(&path).unwrap(), main, "nothing is copied");
    // Nobody is known to write, but somebody has the index, so it is kept.
    settled(&mut kept);
    assert_eq!((kept.over(&[]), kept.is_written()), (None, true));
    drop(kept);
    assert_eq!(checkpoint(&mut ghost, "TRUNCATE"), [0, 0, 0], "the control: then it copies all of it");
}

#[test]
fn a_checkpoint_that_is_on_its_way_is_waited_for() {
    let (_d, path) = database();
    let _ghost = holder(&path);
    let anchor = anchored(&path);
    assert!(anchor.current());
    let checkpointer = std::fs::OpenOptions::new().read(true).write(true).open(with(&path, "-shm")).unwrap();
    assert!(ofd::try_lock(&checkpointer, Kind::Write, WAL_CHECKPOINT).unwrap());
    remove(&path, &["-wal", "-shm"]);
    assert_eq!(anchor.keep_back(false), KeptBack::Soon);
    let mut kept = anchor.retire().unwrap();
    assert_eq!(kept.keep_back(), KeptBack::Soon);
    ofd::unlock(&checkpointer, WAL_CHECKPOINT).unwrap();
    assert_eq!(kept.keep_back(), KeptBack::Yes);
    assert!(!ofd::try_lock(&checkpointer, Kind::Write, WAL_CHECKPOINT).unwrap());
}

#[test]
fn an_index_that_others_may_have_to_make_is_never_in_their_way() {
    // Only the log was removed: the index is that of whoever opens the database next.
    let (_d, path) = database();
    let _ghost = holder(&path);
    let anchor = anchored(&path);
    assert!(anchor.current());
    remove(&path, &["-wal"]);
    assert!(!anchor.current());
    assert_eq!(anchor.keep_back(false), KeptBack::No);
    // Moved away without the main file, and with it; and back.
    let (directory, path) = database();
    let _ghost = holder(&path);
    let away = directory.path().join("away");
    std::fs::create_dir(&away).unwrap();
    let away = away.join(path.file_name().unwrap());
    let anchor = anchored(&path);
    assert!(anchor.current());
    let moved = |from: &Path, to: &Path, suffix: &str| std::fs::rename(with(from, suffix), with(to, suffix)).unwrap();
    moved(&path, &away, "-shm");
    assert_eq!(anchor.keep_back(false), KeptBack::Yes);
    moved(&path, &away, "");
    assert_eq!(anchor.keep_back(false), KeptBack::No, "they are a database under another name");
    moved(&away, &path, "");
    assert_eq!(anchor.keep_back(false), KeptBack::Yes);
    moved(&away, &path, "-shm");
    assert_eq!(anchor.keep_back(false), KeptBack::No);
    assert!(anchor.current());
}

/// Of two that go on in the same removed files one is killed in the middle of a commit.
#[test]
fn an_index_that_has_to_be_made_anew_can_be() {
    let (_d, path) = database();
    let mut ghost = holder(&path);
    let anchor = anchored(&path);
    assert!(anchor.current());
    let index = std::fs::OpenOptions::new().read(true).write(true).open(with(&path, "-shm")).unwrap();
    remove(&path, &["-wal", "-shm"]);
    assert_eq!(anchor.keep_back(false), KeptBack::Yes);
    std::os::unix::fs::FileExt::write_all_at(&index, &[0xff; 8], 8).unwrap();
    assert_eq!(anchor.keep_back(false), KeptBack::No);
    ghost.sql("INSERT INTO m(t) VALUES('after the index was made anew')");
    assert_eq!(anchor.keep_back(false), KeptBack::Yes);
}

#[test]
fn the_next_generation_copies_nothing_either_while_somebody_goes_on_and_can_begin_all_the_same() {
    let (_d, path) = database();
    let mut ghost = holder(&path);
    let anchor = anchored(&path);
    assert!(anchor.current());
    remove(&path, &["-wal", "-shm"]);
    let mut kept = anchor.retire().unwrap();
    let next = anchored(&path);
    assert!(kept.is_beside(&next));
    assert_eq!(next.keep_back(true), KeptBack::Soon, "its index is not made yet");
    let mut second = Sibling::connected(&path);
    second.sql("INSERT INTO m(t) VALUES('of the next')");
    assert_eq!(next.keep_back(true), KeptBack::Yes);
    assert_eq!(checkpoint(&mut second, "FULL")[0], 1);
    ghost.sql("INSERT INTO m(t) VALUES('of the ghost')");
    ghost.kill();
    wait_for("nobody goes on there any more", || {
        let _ = kept.over(&[]);
        !kept.is_beside(&next)
    });
    assert_eq!(next.keep_back(false), KeptBack::No);
    assert_eq!(checkpoint(&mut second, "TRUNCATE"), [0, 0, 0]);
}
