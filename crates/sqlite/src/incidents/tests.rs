#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::shelf::{paths, prune};
use super::*;

fn family() -> (tempfile::TempDir, Family) {
    let directory = tempfile::tempdir().unwrap();
    let family = Family::of(&directory.path().join("s.db")).unwrap();
    (directory, family)
}

fn shelf(family: &Family) -> Shelf {
    Shelf::Beside(family.clone())
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
    shelf(&family).write(&long_ago).unwrap();
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
fn an_incident_of_another_process_stays_open() {
    let (_directory, family) = family();
    record(&family, "byte 128", Outcome::Fenced);
    let mut other = list(&family).unwrap().pop().unwrap();
    (other.pid, other.id) = (1, "0000000000000001-1".into());
    shelf(&family).write(&other).unwrap();
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
