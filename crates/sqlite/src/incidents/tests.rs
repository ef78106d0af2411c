#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::shelf::{paths, prune};
use super::*;
use crate::error::Destruction;
use crate::family::Member;
use crate::files;
use crate::reassemble::Account;

fn family() -> (tempfile::TempDir, Family) {
    let directory = tempfile::tempdir().unwrap();
    let family = Family::of(&directory.path().join("s.db")).unwrap();
    (directory, family)
}

fn shelf(family: &Family) -> Shelf {
    Shelf::Beside(family.clone())
}

fn put(family: &Family, incident: &Incident) {
    shelf(family).make().unwrap().write(&shelf(family), incident).unwrap();
}

fn record(family: &Family, what: &str, outcome: Outcome) {
    super::record(family, "gateway", what.into(), outcome).unwrap();
}

#[test]
fn what_happens_again_within_a_minute_is_one_incident() {
    let (_directory, family) = family();
    assert!(list(&family).unwrap().is_empty());
    for _ in 0..5 {
        record(&family, "byte 128", Outcome::Healed);
    }
    record(&family, "byte 128", Outcome::Fenced);
    record(&family, "the shared range", Outcome::Healed);
    let all = list(&family).unwrap();
    let told: Vec<_> = all.iter().map(|i| (i.kind, i.what.as_str(), i.count)).collect();
    assert_eq!(told[0], (Kind::LocksHealed, "byte 128", 5));
    assert_eq!(told[1..], [(Kind::LocksLost, "byte 128", 1), (Kind::LocksHealed, "the shared range", 1)]);
    assert!(all[0].last_at >= all[0].at && all.is_sorted_by(|a, b| a.id < b.id));
    let long_ago = Incident { last_at: all[0].last_at - 120_000_000, ..all[0].clone() };
    put(&family, &long_ago);
    record(&family, "byte 128", Outcome::Healed);
    assert_eq!(list(&family).unwrap().len(), 4, "a minute later it is another one");
}

#[test]
fn a_healed_one_is_closed_at_once_and_a_fenced_one_when_the_process_goes_on() {
    let (_directory, family) = family();
    record(&family, "byte 128", Outcome::Healed);
    assert_eq!(count_open(&family).unwrap(), 0);
    record(&family, "byte 128", Outcome::Fenced);
    assert_eq!(count_open(&family).unwrap(), 1);
    close_own(&family, "gateway").unwrap();
    assert_eq!(count_open(&family).unwrap(), 0);
    record(&family, "byte 128", Outcome::Fenced);
    assert_eq!(count_open(&family).unwrap(), 1, "it happened again");
    let id = list(&family).unwrap().pop().unwrap().id;
    assert!(close(&family, &id).unwrap() && !close(&family, "nothing").unwrap());
    assert_eq!(count_open(&family).unwrap(), 0);
}

#[test]
fn whoever_puts_a_link_in_the_place_of_the_directory_leads_nobody_elsewhere() {
    let (directory, family) = family();
    record(&family, "byte 128", Outcome::Fenced);
    let victim = directory.path().join("victim");
    std::fs::create_dir(&victim).unwrap();
    files::replace(&victim.join("old.json"), b"{}").unwrap();
    let (place, aside) = (shelf(&family).directory(), directory.path().join("aside"));
    let swap = || {
        std::fs::rename(&place, &aside).unwrap();
        std::os::unix::fs::symlink(&victim, &place).unwrap();
    };
    let told = shelf(&family).change("another", |_| {
        swap();
        let mut other =
            paths(&aside).unwrap().iter().filter_map(|p| files::read_to_string(p, 1 << 20).ok()).collect::<String>();
        other = other.replace("byte 128", "another");
        Some(Incident { id: String::new(), ..serde_json::from_str(&other).unwrap() })
    });
    let id = told.unwrap().unwrap();
    let names: Vec<_> = std::fs::read_dir(&victim).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["old.json"], "nothing was written there");
    assert!(aside.join(format!("{id}.json")).exists(), "it was written where it belongs");
    assert!(super::record(&family, "gateway", "later".into(), Outcome::Fenced).is_err());
    assert_eq!(shelf(&family).change_all(Some).unwrap(), 0);
}

#[test]
fn an_incident_of_another_process_stays_open() {
    let (_directory, family) = family();
    record(&family, "byte 128", Outcome::Fenced);
    let mut other = list(&family).unwrap().pop().unwrap();
    (other.pid, other.id) = (1, "0000000000000001-1".into());
    put(&family, &other);
    close_own(&family, "gateway").unwrap();
    assert_eq!(count_open(&family).unwrap(), 1);
}

#[test]
fn the_oldest_go_first_and_everything_is_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_directory, family) = family();
    for n in 0..MOST_FILES + 7 {
        record(&family, &format!("lock {n}"), Outcome::Healed);
    }
    let all = list(&family).unwrap();
    assert_eq!((all.len(), all[0].what.as_str()), (MOST_FILES, "lock 7"));
    let place = shelf(&family).directory();
    assert_eq!(place.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    for path in paths(&place).unwrap() {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    prune(&place, MOST_FILES, 1000).unwrap();
    let left = list(&family).unwrap();
    assert!(!left.is_empty() && left.len() < 10);
    assert_eq!(left.last(), all.last(), "the newest stays");
}

#[test]
fn what_is_no_incident_harms_nobody() {
    let (_directory, family) = family();
    record(&family, "byte 128", Outcome::Healed);
    let place = shelf(&family).directory();
    #[expect(clippy::disallowed_methods, reason = "a file that lies there by accident")]
    for (name, content) in [("zz.json", &b"{\"id\": 7"[..]), ("a.json", b"\xff\xfe"), ("note.txt", b"")] {
        std::fs::write(place.join(name), content).unwrap();
    }
    std::os::unix::fs::symlink("/dev/zero", place.join("y.json")).unwrap();
    assert_eq!(list(&family).unwrap().len(), 1);
    record(&family, "byte 128", Outcome::Healed);
    assert_eq!(list(&family).unwrap()[0].count, 2);
}

fn generation(inode: u64) -> Generation {
    let identity = |inode| Some(crate::family::Identity { device: 1, inode, born_ns: Some(7) });
    Generation { main: identity(inode), wal: identity(inode + 1), shm: identity(inode + 2) }
}

fn begin(family: &Family, generation: Generation) -> Story {
    let why = Error::Retired { members: vec![crate::family::Member::Wal] };
    Story::begin(family, "gateway", generation, &why, None)
}

/// Makes another process part of the newest incident: one that lives and has not come back, or one that is gone.
fn joined_by(family: &Family, process: ProcessId) {
    let mut incident = list(family).unwrap().pop().unwrap();
    incident.affects(process, "scheduler", now_us(), None);
    put(family, &incident);
}

/// A process that lives as long as the test.
fn init() -> ProcessId {
    let stat = std::process::id();
    let parent = std::os::unix::process::parent_id();
    assert_ne!(stat, parent);
    let text = files::read_to_string(Path::new(&format!("/proc/{parent}/stat")), 4096);
    let text = text.unwrap();
    let start_ticks = text.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap();
    ProcessId { pid: i32::try_from(parent).unwrap(), start_ticks }
}

#[test]
fn a_retirement_is_closed_by_the_last_process_that_comes_back() {
    let (_directory, family) = family();
    let mut story = begin(&family, generation(10));
    story.write(&family).unwrap();
    assert!(list(&family).unwrap()[0].is_open());
    joined_by(&family, init());
    story.back(&family).unwrap();
    let told = &list(&family).unwrap()[0];
    assert!(told.is_open() && !told.needs_a_person() && !told.nothing_is_lost(), "one is not back: {told:?}");
    // The same process again, as the other one would end it.
    joined_by(&family, ProcessId { pid: init().pid, start_ticks: init().start_ticks });
    let mut incident = list(&family).unwrap().pop().unwrap();
    incident.affects(init(), "scheduler", 0, Some(now_us()));
    put(&family, &incident);
    begin(&family, generation(10)).back(&family).unwrap();
    let all = list(&family).unwrap();
    assert_eq!(all.len(), 1, "one generation is one incident");
    assert!(!all[0].is_open() && all[0].nothing_is_lost() && all[0].outcome == Outcome::Kept, "{:?}", all[0]);
    begin(&family, generation(20)).back(&family).unwrap();
    assert_eq!(list(&family).unwrap().len(), 2, "and another generation is another");
    begin(&family, generation(20)).back(&family).unwrap();
    let all = list(&family).unwrap();
    assert_eq!(all.len(), 3, "and what happens to the same files after everybody was back");
    assert!(all.iter().all(|i| i.count == 1 && !i.is_open()), "{all:?}");
}

#[test]
fn an_incident_says_what_was_noticed_first_whoever_tells_first() {
    let (_directory, family) = family();
    let mut why = Error::Retired { members: vec![crate::family::Member::Main] };
    let first = Story::begin(&family, "gateway", generation(10), &why, None);
    why = Error::Retired { members: vec![crate::family::Member::Wal] };
    let mut late = Story::begin(&family, "anchor", generation(10), &why, None);
    late.write(&family).unwrap();
    assert_eq!(list(&family).unwrap()[0].what, "the log was removed");
    let noticed = list(&family).unwrap()[0].at;
    first.back(&family).unwrap();
    let all = list(&family).unwrap();
    assert_eq!(all.len(), 1, "{all:?}");
    assert!(all[0].at < noticed && all[0].what == "the main file was removed", "{:?}", all[0]);
    late.back(&family).unwrap();
    assert_eq!(list(&family).unwrap()[0].what, "the main file was removed");
}

#[test]
fn a_process_that_was_killed_does_not_keep_an_incident_open_when_another_is_back() {
    let (_directory, family) = family();
    let mut story = begin(&family, generation(10));
    story.write(&family).unwrap();
    joined_by(&family, ProcessId { pid: init().pid, start_ticks: 1 });
    story.back(&family).unwrap();
    assert!(!list(&family).unwrap()[0].is_open());
}

#[test]
fn what_could_not_be_kept_is_told_as_lost_and_waits_for_a_person() {
    let (_directory, family) = family();
    begin(&family, generation(10)).lost(&family, "up to 3 transactions".into()).unwrap();
    let told = &list(&family).unwrap()[0];
    assert!(told.needs_a_person() && told.lost.as_deref() == Some("up to 3 transactions"), "{told:?}");
    begin(&family, generation(10)).back(&family).unwrap();
    assert!(list(&family).unwrap()[0].needs_a_person(), "another process that is back does not bring it back");
}

#[test]
fn what_one_that_was_killed_left_behind_is_closed_by_whoever_brings_it_back() {
    let (_directory, family) = family();
    begin(&family, generation(10)).kept(&family).unwrap();
    let mut incident = list(&family).unwrap().pop().unwrap();
    assert!(incident.is_open());
    incident.affected[0].process.start_ticks = 1;
    put(&family, &incident);
    merged(&family, "gateway", &generation(10), 5).unwrap();
    let told = &list(&family).unwrap()[0];
    assert!(!told.is_open() && told.done.contains("5 rows") && told.nothing_is_lost(), "{told:?}");
    merged(&family, "gateway", &generation(30), 0).unwrap();
    assert_eq!(list(&family).unwrap().len(), 1, "nothing was missing, and nobody had told of anything");
    merged(&family, "gateway", &generation(30), 2).unwrap();
    assert_eq!(list(&family).unwrap()[1].kind, Kind::Merged);
}

#[test]
fn a_report_that_comes_again_is_counted_and_a_timeline_is_bounded() {
    let (_directory, family) = family();
    let report = |what: &str, lost: Option<&str>| Report {
        kind: Kind::Repaired,
        role: "repair".into(),
        what: what.into(),
        cause: "c\nd".into(),
        evidence: vec![format!("seen {}", now_us())],
        done: String::new(),
        lost: lost.map(Into::into),
        next: String::new(),
        outcome: Outcome::Waits,
        open: true,
    };
    let id = super::report(&family, report("an index", Some("one row"))).unwrap();
    for _ in 0..100 {
        assert_eq!(super::report(&family, report("an index", None)).unwrap(), id);
    }
    super::report(&family, report("another", None)).unwrap();
    let all = list(&family).unwrap();
    assert_eq!((all.len(), all[0].count), (2, 101));
    assert_eq!((all[0].timeline.len() as u64 + all[0].left_out, all[0].timeline.len()), (101, 60));
    assert_eq!(all[0].lost.as_deref(), Some("one row"), "what was lost stays lost");
    assert!(!all[0].cause.contains('\n') && all[0].evidence.len() <= 24);
}

#[test]
fn open_ones_outlive_closed_ones() {
    let (_directory, family) = family();
    record(&family, "the oldest", Outcome::Fenced);
    for n in 0..20 {
        record(&family, &format!("lock {n}"), Outcome::Healed);
    }
    prune(&shelf(&family).directory(), 5, u64::MAX).unwrap();
    let left = list(&family).unwrap();
    assert_eq!(
        left.iter().map(|i| i.what.as_str()).collect::<Vec<_>>(),
        ["the oldest", "lock 16", "lock 17", "lock 18", "lock 19"]
    );
}

#[test]
fn what_somebody_stopped_with_the_lock_keeps_nobody_waiting_for_long() {
    let (_directory, family) = family();
    record(&family, "byte 128", Outcome::Healed);
    let lock = files::open_private(&shelf(&family).directory().join("lock")).unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let begun = std::time::Instant::now();
    record(&family, "byte 128", Outcome::Healed);
    assert!(begun.elapsed() < std::time::Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(list(&family).unwrap()[0].count, 2);
}

#[test]
fn starts_that_are_refused_are_counted_until_one_succeeds() {
    let (directory, _family) = family();
    let place = directory.path().join("incidents");
    for _ in 0..3 {
        refused(&place, "up", "refused_symlink", "is a link", "remove it").unwrap();
    }
    refused(&place, "gateway", "refused_symlink", "is a link", "remove it").unwrap();
    let all = list_in(&place).unwrap();
    assert_eq!((all.len(), all[0].count, all[0].needs_a_person()), (2, 3, true));
    opened(&place, "up").unwrap();
    let open: Vec<String> = list_in(&place).unwrap().into_iter().filter(Incident::is_open).map(|i| i.role).collect();
    assert_eq!(open, ["gateway"]);
    opened(&directory.path().join("nothing"), "up").unwrap();
    assert!(!directory.path().join("nothing").exists());
}

#[test]
fn what_the_last_one_of_several_put_together_is_what_is_told_of_the_loss() {
    let (_keep, family) = family();
    let destruction = Destruction {
        member: Member::Wal,
        path: family.path(Member::Wal),
        what: "cut off".into(),
        frames: Some(9),
        copied: Some(0),
    };
    let why = Error::Destroyed(Box::new(destruction));
    let mut first = Story::begin(&family, "gateway", generation(1), &why, None);
    let mut second = Story::begin(&family, "scheduler", generation(1), &why, None);
    let rebuilt = Some(family.side_directory().join("rebuilt.captured"));
    let half = Account { rebuilt, lost: vec!["frames 3 to 9".into()], complete: true, ..Account::default() };
    first.put_together(&half, 1, true);
    first.write(&family).unwrap();
    second.put_together(&Account { lost: Vec::new(), ..half }, 0, false);
    second.write(&family).unwrap();
    first.tell("cannot open the database again yet".into());
    first.write(&family).unwrap();
    let all = list(&family).unwrap();
    assert_eq!((all.len(), &all[0].lost), (1, &None), "{all:#?}");
    assert_eq!(all[0].done.matches("put together in").count(), 1, "who only finds it has not done it: {}", all[0].done);
    first.back(&family).unwrap();
    assert!(!list(&family).unwrap()[0].is_open());
}

#[test]
fn what_is_lost_stays_open_after_the_restore_and_the_restore_is_told_no_more() {
    let (_keep, family) = family();
    let destruction = Destruction {
        member: Member::Main,
        path: family.main(),
        what: "cut off".into(),
        frames: Some(9),
        copied: Some(0),
    };
    let why = Error::Destroyed(Box::new(destruction));
    let told = |n: u64, lost: &[&str]| {
        let evidence = family.side_directory().join(format!("retired/destroyed-{n}"));
        std::fs::create_dir_all(&evidence).unwrap();
        let rebuilt = Some(evidence.join("rebuilt.captured"));
        let lost = lost.iter().map(|s| (*s).to_owned()).collect();
        let account = Account { rebuilt, lost, ..Account::default() };
        files::replace(&evidence.join("account.json"), &serde_json::to_vec(&account).unwrap()).unwrap();
        let mut story = Story::begin(&family, "gateway", generation(n), &why, None);
        story.put_together(&account, 1, true);
        story.write(&family).unwrap();
        (evidence, story)
    };
    let (first, story) = told(1, &["2 messages"]);
    let (second, other) = told(11, &[]);
    let all = || list(&family).unwrap();
    assert!(all().iter().all(|i| i.next.contains("statehouse restore")), "the control: {:#?}", all());
    assert_eq!(put_in_place(&family, "restore", &first).unwrap(), 1, "a name that only begins with it is another one");
    assert_eq!(put_in_place(&family, "restore", &second).unwrap(), 1);
    story.back(&family).unwrap();
    other.back(&family).unwrap();
    let all = all();
    assert!(all.iter().all(|i| !i.next.contains("statehouse restore")), "{all:#?}");
    let ends: Vec<_> = all.iter().map(|i| (i.is_open(), i.lost.as_deref(), i.proved.as_str())).collect();
    let (lost, not_known) = ((true, Some("lost: 2 messages"), ""), (false, None, "nothing is known to be lost"));
    assert!(ends.contains(&lost) && ends.contains(&not_known), "{ends:?}");
}

#[test]
fn what_one_process_doubts_and_another_finds_destroyed_is_one_incident() {
    let (_keep, family) = family();
    let destruction = Destruction {
        member: Member::Main,
        path: family.main(),
        what: "emptied".into(),
        frames: Some(9),
        copied: Some(0),
    };
    let why = Error::Destroyed(Box::new(destruction));
    let mut first = Story::begin(&family, "gateway", generation(1), &why, None);
    let doubt = Error::Doubtful { path: family.main() };
    let mut second = Story::begin(&family, "scheduler", generation(1), &doubt, None);
    let mut other = Story::begin(&family, "dashboard", generation(2), &doubt, None);
    first.write(&family).unwrap();
    second.write(&family).unwrap();
    assert_eq!(list(&family).unwrap().len(), 1, "{:#?}", list(&family).unwrap());
    other.write(&family).unwrap();
    assert_eq!(list(&family).unwrap().len(), 2, "the control: those are other files");
}
