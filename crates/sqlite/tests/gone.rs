//! The whole database is removed under processes that have it open: they have it still, and put it back.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use statehouse_sqlite::{Database, Error, Options};
use statehouse_testkit::home::TestDir;
use statehouse_testkit::kernel::Standing;
use statehouse_testkit::seed::Seed;
use statehouse_testkit::wait::until;

use crate::holder::Holder;
use crate::support::{Volume, with};

const SOON: Duration = Duration::from_secs(20);
const FILES: [&str; 3] = ["", "-wal", "-shm"];

/// A store in a directory of its own, which is not the one that the test owns.
fn fresh() -> (TestDir, PathBuf) {
    let directory = TestDir::new();
    let home = directory.join("home");
    std::fs::create_dir(&home).unwrap();
    (directory, home.join("s.db"))
}

fn put_range(holder: &mut Holder, name: &str, range: std::ops::Range<u32>) -> Vec<String> {
    let keys: Vec<String> = range.map(|n| format!("{name}{n:03}")).collect();
    for key in &keys {
        let answer = holder.order(&format!("put {key}"));
        assert!(answer.is_ok(), "put {key}: {answer:?}\n{}", holder.events());
    }
    keys
}

fn remove(path: &Path, suffixes: &[&str]) {
    for suffix in suffixes {
        std::fs::remove_file(with(path, suffix)).unwrap();
    }
}

/// What a process sees that opens the path now and knows nothing of Statehouse.
fn keys_at(path: &Path) -> Vec<String> {
    let mut reader = Holder::start();
    reader.ok(&format!("connect r rw {}", path.display()));
    let keys = reader.ok("sql r SELECT coalesce(group_concat(key, ','), '') FROM (SELECT key FROM k ORDER BY key)");
    assert_eq!(reader.ok("sql r PRAGMA integrity_check"), "ok");
    assert_eq!(reader.ok("sql r PRAGMA journal_mode"), "wal");
    keys.split(',').map(str::to_owned).collect()
}

fn assert_all_kept(path: &Path, mut acknowledged: Vec<String>) {
    acknowledged.sort();
    assert_eq!(keys_at(path), acknowledged, "each acknowledged key exactly once, and nothing else");
}

fn private(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
}

/// Three processes have the store open, something is taken away, and all go on.
fn taken_away(take: impl FnOnce(&Path)) {
    let (_directory, path) = fresh();
    let mut holders: Vec<Holder> = (0..3).map(|_| Holder::with_store(&path)).collect();
    let mut keys = Vec::new();
    for (n, holder) in holders.iter_mut().enumerate() {
        keys.extend(put_range(holder, &format!("before{n}-"), 0..10));
    }
    take(&path);
    for (n, holder) in holders.iter_mut().enumerate() {
        keys.extend(put_range(holder, &format!("after{n}-"), 0..10));
    }
    for holder in &mut holders {
        assert_eq!(holder.ok("count"), "60", "{}", holder.events());
        assert!(Standing::of(holder.pid(), &path).whole(), "{}", holder.events());
    }
    private(&path);
    drop(holders);
    assert_all_kept(&path, keys);
}

#[test]
fn removing_all_three_files_loses_nothing() {
    taken_away(|path| remove(path, &FILES));
}

#[test]
fn removing_the_main_file_alone_loses_nothing() {
    taken_away(|path| remove(path, &[""]));
}

#[test]
fn removing_main_file_and_log_loses_nothing() {
    taken_away(|path| remove(path, &["", "-wal"]));
}

#[test]
fn removing_everything_beside_the_store_as_well_loses_nothing() {
    taken_away(|path| {
        remove(path, &FILES);
        std::fs::remove_dir_all(with(path, ".statehouse")).unwrap();
    });
}

#[test]
fn removing_the_directory_of_the_store_loses_nothing() {
    taken_away(|path| std::fs::remove_dir_all(path.parent().unwrap()).unwrap());
}

#[test]
fn moving_the_directory_of_the_store_away_loses_nothing() {
    taken_away(|path| {
        let home = path.parent().unwrap();
        std::fs::rename(home, home.with_file_name("elsewhere")).unwrap();
    });
}

#[test]
fn an_empty_file_in_the_place_of_the_removed_one_is_not_taken_for_a_store() {
    taken_away(|path| {
        remove(path, &FILES);
        std::fs::write(path, "").unwrap();
    });
}

#[test]
fn a_removed_store_comes_back_within_a_second_though_nobody_asks_for_it() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    let keys = put_range(&mut holder, "k", 0..20);
    remove(&path, &FILES);
    let removed = Instant::now();
    until("the handle goes on", SOON, || holder.events().lines().any(|l| l == "Reopened"));
    eprintln!("back after {:?}", removed.elapsed());
    assert!(Standing::of(holder.pid(), &path).whole(), "{}", holder.events());
    assert!(!holder.events().contains("Merged"), "the image is the store itself: {}", holder.events());
    drop(holder);
    assert_all_kept(&path, keys);
}

#[test]
fn a_store_that_is_removed_again_and_again_under_three_writers() {
    let (directory, path) = fresh();
    let mut holders: Vec<Holder> = (0..3).map(|_| Holder::with_store(&path)).collect();
    let seconds = 8;
    for (n, holder) in holders.iter_mut().enumerate() {
        holder.send(&format!("tight {seconds} {}", directory.join(format!("log{n}")).display()));
    }
    let end = Instant::now() + Duration::from_secs(seconds - 3);
    let mut rounds = 0;
    while Instant::now() < end {
        let before = std::fs::metadata(&path).map(|m| std::os::unix::fs::MetadataExt::ino(&m)).ok();
        for suffix in FILES {
            let _ = std::fs::remove_file(with(&path, suffix));
        }
        rounds += 1;
        until("the store is back and everybody uses it", SOON, || {
            let now = std::fs::metadata(&path).map(|m| std::os::unix::fs::MetadataExt::ino(&m)).ok();
            now.is_some() && now != before && holders.iter().all(|h| Standing::of(h.pid(), &path).whole())
        });
    }
    let mut expected = 0;
    for holder in &mut holders {
        expected += holder.answer().unwrap().parse::<usize>().unwrap();
    }
    let events: Vec<String> = holders.iter().map(Holder::events).collect();
    drop(holders);
    let mut reader = Holder::start();
    reader.ok(&format!("connect r rw {}", path.display()));
    assert_eq!(reader.ok("sql r PRAGMA integrity_check"), "ok");
    assert_eq!(reader.ok("sql r SELECT count(*) FROM k"), expected.to_string(), "{rounds} removals: {events:#?}");
    assert_eq!(reader.ok("sql r SELECT count(*) = count(DISTINCT key) FROM k"), "1");
    assert!(rounds > 1);
}

#[test]
fn one_that_is_killed_after_the_store_was_removed_takes_nothing_along() {
    let (_directory, path) = fresh();
    let mut stays = Holder::with_store(&path);
    let mut killed = Holder::with_store(&path);
    let mut keys = put_range(&mut stays, "a", 0..10);
    keys.extend(put_range(&mut killed, "b", 0..10));
    remove(&path, &FILES);
    killed.kill();
    keys.extend(put_range(&mut stays, "c", 0..10));
    assert_eq!(stays.ok("count"), "30");
    drop(stays);
    assert_all_kept(&path, keys);
}

#[test]
fn whoever_is_killed_while_the_store_is_put_back_the_others_put_it_back() {
    let mut seed = Seed::of_run("whoever_is_killed_while_the_store_is_put_back");
    for round in 0..10 {
        let (_directory, path) = fresh();
        let mut holders: Vec<Holder> = (0..3).map(|_| Holder::with_store(&path)).collect();
        let mut keys = Vec::new();
        for (n, holder) in holders.iter_mut().enumerate() {
            keys.extend(put_range(holder, &format!("before{n}-"), 0..5));
        }
        remove(&path, &FILES);
        // All are asked at once, so all notice at once, and one takes the lead.
        holders.iter_mut().enumerate().for_each(|(n, holder)| holder.send(&format!("put asked{n}")));
        let wait = Duration::from_micros(seed.below(60_000));
        std::thread::sleep(wait);
        for _ in 0..1 + seed.below(2) {
            let mut killed = holders.remove(seed.below(holders.len() as u64) as usize);
            killed.kill();
        }
        for (n, holder) in holders.iter_mut().enumerate() {
            assert!(holder.answer().is_ok(), "round {round}, killed after {wait:?}: {}", holder.events());
            keys.extend(put_range(holder, &format!("after{n}-"), 0..5));
        }
        let events: Vec<String> = holders.iter().map(Holder::events).collect();
        drop(holders);
        let seen = keys_at(&path);
        // What the killed one was asked for may be there or not.
        let missing: Vec<_> = keys.iter().filter(|k| !seen.contains(k)).collect();
        assert!(missing.is_empty(), "round {round}, killed after {wait:?}: {missing:?}\n{events:#?}");
        let distinct: std::collections::BTreeSet<_> = seen.iter().collect();
        assert_eq!(distinct.len(), seen.len());
    }
}

#[test]
fn a_handle_that_is_closed_right_after_everything_was_removed_leaves_the_store_behind() {
    for suffixes in [&FILES[..], &[""]] {
        let (_directory, path) = fresh();
        let mut holder = Holder::with_store(&path);
        let keys = put_range(&mut holder, "k", 0..10);
        remove(&path, suffixes);
        holder.ok("leave");
        drop(holder);
        assert!(path.exists());
        assert_all_kept(&path, keys);
    }
}

#[test]
fn a_capture_whose_process_was_killed_before_it_put_the_store_back_is_put_back_by_the_next() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    let keys = put_range(&mut holder, "k", 0..10);
    // A directory in the place of the store keeps the process from putting it back; the capture is made all the same.
    remove(&path, &FILES);
    std::fs::create_dir(&path).unwrap();
    until("the handle cannot go on", SOON, || holder.events().contains("NotReopened"));
    holder.kill();
    drop(holder);
    std::fs::remove_dir(&path).unwrap();
    let mut next = Holder::with_store(&path);
    assert_eq!(next.ok("count"), "10");
    drop(next);
    assert_all_kept(&path, keys);
}

#[test]
fn a_store_that_was_put_back_and_removed_again_before_its_process_went_on_is_left_behind_when_it_closes() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    let mut stopped = Holder::with_store(&path);
    let mut keys = put_range(&mut holder, "a", 0..10);
    keys.extend(put_range(&mut stopped, "b", 0..10));
    // One of ours that does not notice keeps the other from going on for a while.
    stopped.signal(rustix::process::Signal::STOP);
    remove(&path, &FILES);
    until("the store is back", SOON, || path.exists() && holder.events().contains("NotReopened"));
    remove(&path, &[""]);
    holder.ok("leave");
    stopped.kill();
    drop((holder, stopped));
    drop(Holder::with_store(&path));
    assert_all_kept(&path, keys);
}

#[test]
fn a_newcomer_waits_until_the_removed_store_is_back() {
    for beside in [false, true] {
        let (_directory, path) = fresh();
        let mut holder = Holder::with_store(&path);
        let mut keys = put_range(&mut holder, "old", 0..10);
        remove(&path, &FILES);
        if beside {
            std::fs::remove_dir_all(with(&path, ".statehouse")).unwrap();
        }
        let mut newcomer = Holder::with_store(&path);
        assert_eq!(newcomer.ok("count"), "10", "it must not begin on an empty store");
        keys.extend(put_range(&mut newcomer, "new", 0..3));
        assert_eq!(holder.ok("count"), "13");
        drop((holder, newcomer));
        assert_all_kept(&path, keys);
    }
}

#[test]
fn a_store_whose_directory_cannot_be_made_again_stays_with_its_process_until_it_can() {
    for removed in [false, true] {
        let (_directory, path) = fresh();
        let home = path.parent().unwrap().to_owned();
        let mut holder = Holder::with_store(&path);
        let keys = put_range(&mut holder, "k", 0..10);
        match removed {
            true => std::fs::remove_dir_all(&home).unwrap(),
            false => std::fs::rename(&home, home.with_file_name("elsewhere")).unwrap(),
        }
        std::fs::write(&home, "in the way").unwrap();
        until("the handle cannot go on", SOON, || holder.events().contains("NotReopened"));
        assert!(holder.events().contains("make again the directory"), "{}", holder.events());
        std::fs::remove_file(&home).unwrap();
        until("the handle goes on", SOON, || holder.events().lines().any(|l| l == "Reopened"));
        drop(holder);
        assert_all_kept(&path, keys);
    }
}

#[test]
fn closing_where_nothing_can_be_kept_is_never_ok_and_counts_what_is_lost() {
    for removed in [false, true] {
        let (_directory, path) = fresh();
        let home = path.parent().unwrap().to_owned();
        let mut holder = Holder::with_store(&path);
        put_range(&mut holder, "k", 0..10);
        match removed {
            true => std::fs::remove_dir_all(&home).unwrap(),
            false => std::fs::rename(&home, home.with_file_name("elsewhere")).unwrap(),
        }
        std::fs::write(&home, "in the way").unwrap();
        let told = holder.order("leave").unwrap_err();
        assert!(told.contains("make again the directory"), "{told}");
        // What was moved away is not lost.
        if removed {
            until("it says what is lost", SOON, || holder.events().contains("Lost {"));
        } else {
            assert!(!holder.events().contains("Lost {"), "{}", holder.events());
        }
    }
}

#[test]
fn a_database_that_was_put_in_the_place_of_the_removed_one_takes_its_rows_over() {
    let (directory, path) = fresh();
    let other = directory.join("other.db");
    let mut elsewhere = Holder::with_store(&other);
    let mut keys = put_range(&mut elsewhere, "other", 0..5);
    elsewhere.ok("leave");
    drop(elsewhere);
    let mut holder = Holder::with_store(&path);
    keys.extend(put_range(&mut holder, "mine", 0..10));
    remove(&path, &FILES);
    for suffix in FILES {
        std::fs::rename(with(&other, suffix), with(&path, suffix)).unwrap();
    }
    keys.extend(put_range(&mut holder, "later", 0..5));
    assert_eq!(holder.ok("count"), "20");
    drop(holder);
    assert_all_kept(&path, keys);
}

#[test]
fn a_writer_that_waits_is_told_that_the_files_are_gone_and_not_that_somebody_holds_them() {
    let (_directory, path) = fresh();
    let options = Options { create: true, patience: Duration::from_millis(400), ..Options::default() };
    let database = Database::open(&path, options).unwrap();
    database.write(|c| Ok(c.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES(1)")?)).unwrap();
    // A directory in the place of the store keeps this process from putting it back.
    remove(&path, &FILES);
    std::fs::create_dir(&path).unwrap();
    let insert = || database.submit(|c| Ok(c.execute("INSERT INTO t VALUES(2)", [])?));
    for error in [
        database.write(|c| Ok(c.execute("INSERT INTO t VALUES(2)", [])?)).unwrap_err(),
        insert().wait_for(Duration::from_millis(100)).unwrap_err(),
        database.read(|c| Ok(c.query_row("SELECT 1", [], |_| Ok(()))?)).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Retired { .. }), "{error}");
        assert_eq!(error.code(), "retired");
        assert!(error.to_string().contains("still has everything that it acknowledged"), "{error}");
    }
    std::fs::remove_dir(&path).unwrap();
    until("the handle goes on", SOON, || !database.fenced());
    let first = database.read(|c| Ok(c.query_row("SELECT min(x) FROM t", [], |r| r.get::<_, i64>(0))?)).unwrap();
    assert_eq!(first, 1);
    database.close().unwrap();
}

#[test]
fn a_full_volume_keeps_nobody_from_opening_and_reading() {
    for held in [true, false] {
        let Some(volume) = Volume::new(2048) else { return };
        let path = volume.join("s.db");
        let mut first = Holder::with_store(&path);
        put_range(&mut first, "k", 0..5);
        if !held {
            first.ok("leave");
        }
        volume.fill(0);
        let mut reader = Holder::with_store(&path);
        assert_eq!(reader.ok("count"), "5", "held: {held}");
        let refused = reader.order(&format!("put {}", "x".repeat(100_000))).unwrap_err();
        assert!(refused.starts_with("disk_full "), "{refused}");
        assert_eq!(reader.ok("count"), "5");
        volume.clear();
        reader.ok("put later");
        assert_eq!(reader.ok("count"), "6");
    }
}

#[test]
fn what_opening_must_create_on_a_full_volume_is_answered_as_a_full_disk() {
    for removed in ["-shm", "-wal", ".statehouse"] {
        let Some(volume) = Volume::new(2048) else { return };
        let path = volume.join("s.db");
        let mut first = Holder::with_store(&path);
        put_range(&mut first, "k", 0..5);
        first.ok("leave");
        drop(first);
        let mut copier = Holder::start();
        copier.ok(&format!("connect c rw {}", path.display()));
        copier.ok("sql c PRAGMA wal_checkpoint(TRUNCATE)");
        drop(copier);
        let member = with(&path, removed);
        let _ = if member.is_dir() { std::fs::remove_dir_all(&member) } else { std::fs::remove_file(&member) };
        volume.fill(0);
        let mut opener = Holder::start();
        if let Err(e) = opener.order(&format!("open {}", path.display())) {
            assert!(e.starts_with("disk_full "), "{removed}: {e}");
        }
        volume.clear();
        let mut opener = Holder::with_store(&path);
        assert_eq!(opener.ok("count"), "5");
    }
}

#[test]
fn a_handle_that_is_closed_on_a_full_volume_says_that_the_removed_log_is_lost() {
    let Some(volume) = Volume::new(2048) else { return };
    let path = volume.join("s.db");
    let mut holder = Holder::with_store(&path);
    put_range(&mut holder, "k", 0..5);
    remove(&path, &["-wal", "-shm"]);
    volume.fill(0);
    let told = holder.order("leave").unwrap_err();
    assert!(told.starts_with("disk_full "), "{told}");
    // It comes by another pipe than the answer.
    until("it says what is lost", SOON, || {
        let events = holder.events();
        events.contains("Lost {") && events.contains("transactions: 5")
    });
}

#[test]
fn a_handle_that_is_closed_while_another_recovers_for_ever_leaves_a_copy_of_its_log() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    put_range(&mut holder, "k", 0..5);
    // As a process of ours that was stopped in the middle of a recovery.
    let lock = std::fs::File::create(with(&path, ".statehouse/recovery.lock")).unwrap();
    lock.lock().unwrap();
    let log = std::fs::read(with(&path, "-wal")).unwrap();
    remove(&path, &["-wal", "-shm"]);
    let told = holder.order("leave").unwrap_err();
    assert!(told.starts_with("busy "), "{told}");
    until("it says what is lost", SOON, || holder.events().contains("Lost {"));
    let events = holder.events();
    let left: Vec<_> = std::fs::read_dir(with(&path, ".statehouse/retired"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| events.contains(p.to_str().unwrap()))
        .collect();
    assert_eq!(left.len(), 1, "{events}");
    assert_eq!(std::fs::read(left[0].join("wal.captured")).unwrap(), log);
}

#[test]
fn a_log_that_fits_is_kept_though_an_image_does_not() {
    let Some(volume) = Volume::new(8192) else { return };
    let path = volume.join("s.db");
    let mut holder = Holder::with_store(&path);
    let mut keys: Vec<String> = (0..20).map(|n| format!("{n:02}{}", "x".repeat(100_000))).collect();
    keys.iter().for_each(|key| drop(holder.ok(&format!("put {key}"))));
    let mut copier = Holder::start();
    copier.ok(&format!("connect c rw {}", path.display()));
    copier.ok("sql c PRAGMA wal_checkpoint(TRUNCATE)");
    copier.ok("close c");
    keys.extend(put_range(&mut holder, "k", 0..5));
    remove(&path, &["-wal", "-shm"]);
    volume.fill(512 << 10);
    holder.ok("leave");
    assert!(!holder.events().contains("Lost"), "{}", holder.events());
    drop(holder);
    let mut next = Holder::with_store(&path);
    assert_eq!(next.ok("count"), "25");
    drop(next);
    volume.clear();
    assert_all_kept(&path, keys);
}

#[test]
fn a_removed_store_on_a_full_volume_comes_back_when_there_is_room() {
    let Some(volume) = Volume::new(4096) else { return };
    let path = volume.join("s.db");
    let mut holder = Holder::with_store(&path);
    let keys = put_range(&mut holder, "k", 0..5);
    volume.fill(0);
    remove(&path, &FILES);
    // What was removed stays on the disk as long as somebody has it, so that nothing becomes free.
    until("the handle cannot go on", SOON, || holder.events().contains("NotReopened"));
    assert!(holder.events().contains("the disk is full"), "{}", holder.events());
    volume.clear();
    until("the handle goes on", SOON, || holder.events().lines().any(|l| l == "Reopened"));
    drop(holder);
    assert_all_kept(&path, keys);
}

#[test]
fn what_was_taken_over_from_a_removed_log_is_not_lost_with_the_next_log() {
    let (_directory, path) = fresh();
    let mut holder = Holder::with_store(&path);
    holder.ok("put kept");
    remove(&path, &["-wal", "-shm"]);
    until("it goes on", SOON, || holder.events().contains("Reopened"));
    // Nobody is left to capture the second one.
    drop(holder);
    remove(&path, &["-wal", "-shm"]);
    assert_all_kept(&path, vec!["kept".to_owned()]);
}
