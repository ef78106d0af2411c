//! What another process has in deleted or replaced files is captured whole, while it goes on writing.

use std::path::Path;
use std::process::Command;

use serde_json::json;
use statehouse_sqlite::capture::{self, Capture, Origin, TakeError, Taken, Wanted, Whose};
use statehouse_sqlite::incidents::{self, Kind};
use statehouse_sqlite::rusqlite::Connection;
use statehouse_sqlite::{Family, Member, holders, immutable};

use crate::holders::{database, holder};
use crate::support::{Sibling, Volume, visitor, wait_for, with};

pub(crate) fn take(path: &Path, whose: Whose) -> Result<Taken, TakeError> {
    let family = Family::of(path).unwrap();
    capture::take(&family, &Wanted { whose, role: "test", watch: &|_, _| {} })
}

/// The one capture of a process, and whether it was there.
#[track_caller]
pub(crate) fn of(path: &Path, pid: u32) -> (Capture, bool) {
    let mut taken = take(path, Whose::Pid(pid)).unwrap();
    assert_eq!((taken.captures.len(), taken.failed.len()), (1, 0), "{taken:#?}");
    let took = taken.captures.remove(0);
    (took.capture, took.already)
}

/// The image, after SQLite found it whole.
#[track_caller]
pub(crate) fn image(capture: &Capture) -> Connection {
    let path = capture.image(&capture.place).unwrap().expect("an image");
    let image = immutable(&path).unwrap();
    let verdict: String = image.query_row("PRAGMA integrity_check", [], |r| r.get(0)).unwrap();
    assert_eq!(verdict, "ok", "{:#?}", capture.manifest);
    assert_eq!(capture.manifest.sound, Some(true));
    image
}

#[track_caller]
fn rows(capture: &Capture, text: &str) -> i64 {
    image(capture).query_row("SELECT count(*) FROM m WHERE t = ?1", [text], |r| r.get(0)).unwrap()
}

/// Every file is what the manifest says of it, by a program of its own where there is one.
pub(crate) fn proves_itself(capture: &Capture) {
    for file in &capture.manifest.files {
        let bytes = std::fs::read(capture.place.join(&file.name)).unwrap();
        assert_eq!(bytes.len() as u64, file.bytes, "{}", file.name);
        assert_eq!(blake3::hash(&bytes).to_hex().as_str(), file.blake3, "{}", file.name);
    }
}

pub(crate) fn unlink_sidecars(path: &Path) {
    for suffix in ["-wal", "-shm"] {
        std::fs::remove_file(with(path, suffix)).unwrap();
    }
}

/// A process that goes on in files that have no name, with so many rows that only it has.
fn ghost(path: &Path, rows: usize) -> Sibling {
    let mut ghost = holder(path);
    unlink_sidecars(path);
    insert(&mut ghost, "ghost", rows);
    ghost
}

fn insert(sibling: &mut Sibling, text: &str, rows: usize) {
    for _ in 0..rows {
        sibling.order(json!({ "sql": "INSERT INTO m(t) VALUES(?)", "with": [text] })).unwrap();
    }
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_a_process_wrote_into_a_deleted_log_is_captured_and_the_process_goes_on() {
    let (_directory, path) = database();
    let mut ghost = ghost(&path, 30);
    let (first, already) = of(&path, ghost.pid());
    assert!(!already);
    assert_eq!(rows(&first, "ghost"), 30);
    proves_itself(&first);
    let m = &first.manifest;
    assert_eq!((m.pid, m.pids.as_slice(), m.transactions), (ghost.pid(), &[ghost.pid()][..], 31));
    assert_eq!(m.members_lost, [Member::Wal, Member::Shm]);
    assert!(m.members.iter().all(|f| f.deleted == (f.member != Member::Main) && !f.replaced), "{:?}", m.members);
    assert!(m.generation.wal.is_some_and(|w| w.born_ns.is_some()) && m.salts.is_some() && m.page_size == 4096);
    assert!(m.at_path.is_some_and(|p| p.main == m.generation.main && p.wal.is_none()));
    assert!(m.sqlite_writer.as_deref().is_some_and(|v| v.starts_with("3.")), "{m:?}");
    assert!(m.start_ticks.is_some() && m.command[0].ends_with("python3") && m.supersedes.is_none());
    let names: Vec<_> = m.files.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(names, ["main.captured", "wal.captured", "shm.captured"]);

    let (again, already) = of(&path, ghost.pid());
    assert!(already && again.id == first.id, "nothing was committed since");
    insert(&mut ghost, "ghost", 5);
    let (second, already) = of(&path, ghost.pid());
    assert!(!already && second.id != first.id);
    assert_eq!((rows(&second, "ghost"), second.manifest.supersedes.as_deref()), (35, Some(first.id.as_str())));
    let listed: Vec<_> = capture::list(&Family::of(&path).unwrap()).unwrap().into_iter().map(|c| c.id).collect();
    assert_eq!(listed, [first.id, second.id.clone()]);
    let told = incidents::list(&Family::of(&path).unwrap()).unwrap();
    let [told] = told.as_slice() else { panic!("one incident, for it is the same ghost: {told:#?}") };
    assert_eq!((told.kind, told.count, told.timeline.len()), (Kind::RetiredGeneration, 2, 2));
    assert!(told.is_open() && told.next.contains(&second.id), "{told:#?}");
    insert(&mut ghost, "ghost", 1);
    assert_eq!(visitor(&path, "SELECT count(*) FROM m"), "1", "the database itself was not touched");
}

#[test]
fn holders_say_what_copies_it_before_what_stops_it_and_how_much_of_the_disk_it_keeps() {
    let (_directory, path) = database();
    let ghost = ghost(&path, 30);
    let report = crate::holders::report(&path);
    let one = crate::holders::only(&report);
    let line = format!("statehouse retired capture --pid {} {}", ghost.pid(), path.display());
    assert_eq!(one.capture.as_deref(), Some(line.as_str()));
    let remedy = one.remedy();
    assert!(remedy.find(&line) < remedy.find(&one.stop), "{remedy}");
    let sizes: u64 = one.files.iter().filter(|f| f.deleted).filter_map(|f| f.size).sum();
    assert!(sizes > 100_000 && one.held_bytes == sizes, "{one:#?}");
    drop(ghost);
    let whole = holder(&path);
    let report = crate::holders::report(&path);
    assert_eq!((crate::holders::only(&report).capture.as_ref(), crate::holders::only(&report).held_bytes), (None, 0));
    drop(whole);
}

#[test]
fn a_main_file_that_was_renamed_over_is_captured_with_its_log() {
    let (directory, path) = database();
    let mut ghost = holder(&path);
    insert(&mut ghost, "ghost", 20);
    let other = directory.path().join("other.db");
    visitor(&other, "CREATE TABLE m(id INTEGER PRIMARY KEY, t); INSERT INTO m(t) VALUES('new')");
    std::fs::rename(&other, &path).unwrap();
    insert(&mut ghost, "ghost", 2);
    let (made, _) = of(&path, ghost.pid());
    assert_eq!(rows(&made, "ghost"), 22);
    let main = made.manifest.members.iter().find(|m| m.member == Member::Main).unwrap();
    assert!(main.deleted && main.replaced, "{main:?}");
    let told = incidents::list(&Family::of(&path).unwrap()).unwrap();
    assert_eq!((told.len(), told[0].kind), (1, Kind::ReplacedFile));
}

#[test]
fn a_file_in_rollback_mode_that_was_replaced_is_captured_when_its_transaction_has_ended() {
    let (directory, path) = database();
    let mut ghost = holder(&path);
    ghost.sql("PRAGMA journal_mode=DELETE");
    ghost.sql("PRAGMA cache_size=5");
    ghost.sql("BEGIN IMMEDIATE");
    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000)";
    // More than it keeps in memory, so half of it is in the file already.
    ghost.sql(&format!("{many} INSERT INTO m(t) SELECT 'ghost ' || i FROM n"));
    let other = directory.path().join("other.db");
    visitor(&other, "CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    std::fs::rename(&other, &path).unwrap();
    let pid = ghost.pid();
    let taking = std::thread::spawn({
        let path = path.clone();
        move || of(&path, pid).0
    });
    wait_for("the capture is begun", || with(&path, ".statehouse").join("retired").exists());
    ghost.sql("COMMIT");
    let made = taking.join().unwrap();
    let (rows, whole): (i64, i64) = image(&made)
        .query_row("SELECT count(*), count(*) FILTER (WHERE t LIKE 'ghost %') FROM m", [], |r| {
            Ok((r.get(0)?, r.get(1)?))
        })
        .unwrap();
    assert_eq!((rows, whole), (3002, 3000));
    let (again, already) = of(&path, pid);
    assert!(already && again.id == made.id);
}

#[test]
fn a_database_of_which_no_file_has_a_name_any_more_is_captured() {
    let (_directory, path) = database();
    let mut ghost = ghost(&path, 10);
    std::fs::remove_file(&path).unwrap();
    insert(&mut ghost, "ghost", 1);
    let (made, _) = of(&path, ghost.pid());
    assert_eq!(rows(&made, "ghost"), 11);
    assert!(made.id.ends_with("-whole"), "{}", made.id);
    assert_eq!(names(path.parent().unwrap()), ["s.db.statehouse"]);
}

#[test]
fn a_main_file_that_a_second_generation_has_changed_is_kept_and_called_unsound() {
    let (_directory, path) = database();
    let many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)";
    visitor(
        &path,
        &format!("CREATE TABLE o(a, b); CREATE INDEX i ON o(b); {many} INSERT INTO o SELECT i, i || 'x' FROM n"),
    );
    let mut ghost = ghost(&path, 10);
    // The others begin a log of their own, put everything elsewhere, and copy it into the main file that both have.
    visitor(&path, "DELETE FROM o WHERE a % 3 = 0; UPDATE o SET b = 'y' || b; VACUUM; PRAGMA wal_checkpoint(TRUNCATE)");
    for n in 0..300 {
        ghost.order(json!({ "sql": "UPDATE o SET b = 'ghost' WHERE a = ?", "with": [n * 50] })).ok();
    }
    let (made, _) = of(&path, ghost.pid());
    assert_eq!(made.manifest.sound, Some(false), "{:#?}", made.manifest);
    assert!(!made.manifest.detail.is_empty());
    assert!(made.image(&made.place).unwrap().is_some() && made.log().exists());
    proves_itself(&made);
}

#[test]
fn processes_that_share_one_log_make_one_capture() {
    let (_directory, path) = database();
    let (mut one, mut other) = (holder(&path), holder(&path));
    unlink_sidecars(&path);
    insert(&mut one, "ghost", 3);
    insert(&mut other, "ghost", 4);
    let taken = take(&path, Whose::All).unwrap();
    assert_eq!((taken.captures.len(), taken.failed.len()), (1, 0), "{taken:#?}");
    let mut pids = taken.captures[0].pids.clone();
    pids.sort_unstable();
    let mut expected = [one.pid(), other.pid()];
    expected.sort_unstable();
    assert_eq!(pids, expected);
    assert_eq!(rows(&taken.captures[0].capture, "ghost"), 7);
    let (alone, already) = of(&path, other.pid());
    assert!(already && alone.id == taken.captures[0].capture.id);
}

#[test]
fn whoever_has_nothing_is_told_so_and_nothing_is_made() {
    let (_directory, path) = database();
    let whole = holder(&path);
    let refused = |pid: u32| take(&path, Whose::Pid(pid)).unwrap_err();
    assert_eq!(refused(whole.pid()).code(), "nothing_to_capture");
    assert_eq!(refused(std::process::id()).code(), "nothing_to_capture");
    assert_eq!(refused(u32::MAX).code(), "no_process");
    assert_eq!(refused(i32::MAX as u32).code(), "no_process");
    let taken = take(&path, Whose::All).unwrap();
    assert!(taken.captures.is_empty() && taken.failed.is_empty());
    drop(whole);
    // The index alone holds no row.
    let mut reader = Sibling::idle();
    let mut closing = holder(&path);
    reader.order(json!({ "map": with(&path, "-shm") })).unwrap();
    closing.order(json!({ "close": true })).unwrap();
    wait_for("the sidecars are gone", || !with(&path, "-shm").exists());
    let only = take(&path, Whose::Pid(reader.pid())).unwrap_err();
    assert!(matches!(only, TakeError::OnlyIndex { .. }), "{only:?}");
    assert!(!with(&path, ".statehouse").exists(), "{:?}", names(&with(&path, ".statehouse")));
}

#[test]
fn descriptors_of_any_number_are_found() {
    let (_directory, path) = database();
    let mut ghost = Sibling::run(Command::new("bash").args([
        "-c",
        "ulimit -n 5000 2>/dev/null || ulimit -n $(ulimit -Hn); exec python3 -u -c \"$1\"",
        "bash",
        Sibling::script(),
    ]));
    for _ in 0..900 {
        ghost.order(json!({ "open": "/dev/null" })).unwrap();
    }
    ghost.order(json!({ "connect": path })).unwrap();
    insert(&mut ghost, "ghost", 5);
    unlink_sidecars(&path);
    insert(&mut ghost, "ghost", 5);
    let found = holders::scan(&Family::of(&path).unwrap()).unwrap();
    assert!(found.holders[0].files.iter().all(|f| f.descriptor.is_some_and(|d| d > 900)), "{found:#?}");
    assert_eq!(rows(&of(&path, ghost.pid()).0, "ghost"), 10);
}

#[test]
fn an_index_that_is_only_mapped_is_in_the_capture_where_the_system_lets_it_be_read() {
    if !statehouse_testkit::need::root("opening what another process has mapped") {
        return;
    }
    let (_directory, path) = database();
    let mut first = holder(&path);
    let mut other = Sibling::idle();
    for member in ["", "-wal"] {
        other.order(json!({ "open": with(&path, member) })).unwrap();
    }
    other.order(json!({ "map": with(&path, "-shm") })).unwrap();
    insert(&mut first, "ghost", 3);
    unlink_sidecars(&path);
    let (made, _) = of(&path, other.pid());
    assert_eq!(rows(&made, "ghost"), 3);
    assert!(made.manifest.files.iter().any(|f| f.name == "shm.captured" && f.bytes >= 32768), "{:?}", made.manifest);
    proves_itself(&made);
}

#[test]
fn on_a_small_disk_the_log_is_kept_alone_and_on_a_full_one_nothing_is_left() {
    let Some(volume) = Volume::new(8 << 10) else { return };
    let path = volume.join("s.db");
    visitor(&path, "PRAGMA journal_mode=WAL; CREATE TABLE m(id INTEGER PRIMARY KEY, t); INSERT INTO m(t) VALUES('a')");
    let mut ghost = ghost(&path, 200);
    volume.fill(1 << 20);
    let before = names(volume.path());
    let refused = take(&path, Whose::Pid(ghost.pid())).unwrap_err();
    assert_eq!(refused.code(), "no_room");
    assert!(refused.detail().contains("bytes are free") && refused.is_refusal(), "{}", refused.detail());
    assert_eq!(names(volume.path()), before, "nothing is left behind");
    volume.clear();
    let log = std::fs::metadata(format!("/proc/{}/fd/{}", ghost.pid(), log_descriptor(&path))).unwrap().len();
    volume.fill((1 << 20) + log + log / 2);
    let (alone, _) = of(&path, ghost.pid());
    assert!(alone.id.ends_with("-log") && alone.manifest.sound.is_none(), "{:#?}", alone.manifest);
    assert!(alone.image(&alone.place).unwrap().is_none() && alone.manifest.detail.contains("room"));
    proves_itself(&alone);
    assert_eq!(alone.manifest.transactions, 201);
    // With room again there is an image, too, and it stands for the other.
    volume.clear();
    let (whole, already) = of(&path, ghost.pid());
    assert!(!already && whole.manifest.supersedes.as_deref() == Some(alone.id.as_str()), "{:#?}", whole.manifest);
    assert_eq!(rows(&whole, "ghost"), 200);
    insert(&mut ghost, "ghost", 1);
}

fn log_descriptor(path: &Path) -> i32 {
    let report = crate::holders::report(path);
    let log = report.holders[0].files.iter().find(|f| f.member == Member::Wal).unwrap();
    log.descriptor.unwrap()
}

#[test]
fn copies_that_hermes_agent_made_are_listed_and_read() {
    let (directory, path) = database();
    let mut writer = holder(&path);
    insert(&mut writer, "ghost", 9);
    let place = directory.path().join("s.db.retired-wal-20261130-120000-4711");
    std::fs::create_dir(&place).unwrap();
    for member in ["", "-wal", "-shm"] {
        std::fs::copy(with(&path, member), place.join(format!("s.db{member}"))).unwrap();
    }
    let manifest = json!({
        "version": 1, "database": path, "trigger": "halt", "pid": 4712, "captured_at": "2026-11-30T12:00:01Z",
        "sqlite": "3.40.1", "wal": {"identity": [5, 6], "file": "s.db-wal"}, "shm": null,
        "main": {"identity": [5, 4], "mode": "copied", "file": "s.db"},
    });
    std::fs::write(place.join("manifest.json"), manifest.to_string()).unwrap();
    // Without a manifest and without the main file; unfinished; no capture at all; a link that leads elsewhere.
    let bare = directory.path().join("s.db.retired-wal-20261130-110000-99-2");
    std::fs::create_dir(&bare).unwrap();
    std::fs::copy(with(&path, "-wal"), bare.join("s.db-wal")).unwrap();
    std::fs::write(bare.join("s.db.header"), [0; 100]).unwrap();
    for other in ["s.db.retired-wal-20261130-130000-1.partial", "s.db.retired-wal-20261130-140000-1"] {
        std::fs::create_dir(directory.path().join(other)).unwrap();
    }
    std::fs::copy(with(&path, "-wal"), directory.path().join("s.db.retired-wal-20261130-130000-1.partial/s.db-wal"))
        .unwrap();
    std::os::unix::fs::symlink(&place, directory.path().join("s.db.retired-wal-20261130-150000-1")).unwrap();

    let found = capture::list(&Family::of(&path).unwrap()).unwrap();
    let told: Vec<_> = found.iter().map(|c| (c.manifest.pid, c.manifest.transactions, c.origin)).collect();
    assert_eq!(told, [(99, 10, Origin::Hermes), (4712, 10, Origin::Hermes)], "{found:#?}");
    let scratch = tempfile::tempdir().unwrap();
    assert_eq!(found[0].image(scratch.path()).unwrap(), None, "the live main file must serve");
    assert!(found[0].log().exists());
    let made = immutable(&found[1].image(scratch.path()).unwrap().unwrap()).unwrap();
    let count: i64 = made.query_row("SELECT count(*) FROM m WHERE t = 'ghost'", [], |r| r.get(0)).unwrap();
    assert_eq!(count, 9);
    assert_eq!(names(&place), ["manifest.json", "s.db", "s.db-shm", "s.db-wal"], "nothing was added");
}
