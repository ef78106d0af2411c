//! What a merge leaves as it is: the source and what lies beside it, every list that is there, and, where there is nothing to
//! bring back, the database.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

const PARTED: (&str, &str, &str) = (
    "CREATE TABLE t(k TEXT PRIMARY KEY, v); INSERT INTO t VALUES('a', 1)",
    "UPDATE t SET v = 2",
    "UPDATE t SET v = 3; INSERT INTO t VALUES('b', 1)",
);

fn names(directory: &Path) -> Vec<String> {
    let mut all: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

#[test]
fn a_backup_in_a_directory_where_nothing_can_be_written_is_merged_and_nothing_is_written_beside_it() {
    let two = Two::new(PARTED.0, PARTED.1, PARTED.2);
    let away = tempfile::tempdir().unwrap();
    let backup = away.path().join("backup.db");
    std::fs::copy(two.captured(), &backup).unwrap();
    std::fs::write(away.path().join("backup.db.conflicts.jsonl"), "precious").unwrap();
    std::fs::set_permissions(away.path(), std::fs::Permissions::from_mode(0o500)).unwrap();
    let before = names(away.path());
    let id = backup.to_str().unwrap();
    let evidence = || keep(&two.live(), &Wish::because("before-merge"), &|_| {});
    let merged = with(two.directory.path(), |asked| merge(&two.live(), id, &evidence, asked)).unwrap();
    assert_eq!((merged.rows, merged.shown.conflicting()), (1, 1));
    assert_eq!(names(away.path()), before);
    assert_eq!(std::fs::read_to_string(away.path().join("backup.db.conflicts.jsonl")).unwrap(), "precious");
    let list = merged.conflicts.unwrap();
    assert!(list.starts_with(two.directory.path().join("live.db.statehouse")), "{}", list.display());
    assert_eq!(std::fs::metadata(&list).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(away.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn a_list_is_never_written_over_and_the_same_is_not_listed_twice() {
    let two = Two::new(PARTED.0, PARTED.1, PARTED.2);
    let first = two.merge().conflicts.unwrap();
    let text = std::fs::read(&first).unwrap();
    assert_eq!(two.merge().conflicts.unwrap(), first, "the same conflicts");
    two.run("UPDATE t SET v = 4 WHERE k = 'a'", "");
    let second = two.merge().conflicts.unwrap();
    assert_ne!(second, first);
    assert_eq!(std::fs::read(&first).unwrap(), text);
    assert_eq!(names(first.parent().unwrap()).len(), 2, "nothing is left of those that were not needed");
}

#[test]
fn a_list_of_a_new_file_is_never_written_over() {
    let two = Two::new(PARTED.0, PARTED.1, PARTED.2);
    let out = two.directory.path().join("out.db");
    std::fs::write(two.directory.path().join("out.db.conflicts.jsonl"), "precious").unwrap();
    let merged = with(two.directory.path(), |asked| merge_into(&two.live(), &two.id(), &out, asked)).unwrap();
    assert_eq!(merged.conflicts.unwrap(), two.directory.path().join("out.db.conflicts-2.jsonl"));
    assert_eq!(std::fs::read_to_string(two.directory.path().join("out.db.conflicts.jsonl")).unwrap(), "precious");
}

#[test]
fn a_merge_with_nothing_to_bring_takes_no_copy_and_changes_no_byte_also_beside_conflicts() {
    for captured in ["", "UPDATE t SET v = 3"] {
        let two = Two::new(PARTED.0, PARTED.1, captured);
        let conflicts = u64::from(!captured.is_empty());
        let live = if captured.is_empty() { "UPDATE t SET v = 1" } else { "" };
        two.run(live, "");
        let before = (std::fs::read(two.live()).unwrap(), std::fs::metadata(two.live()).unwrap().modified().unwrap());
        let copies = std::cell::Cell::new(0);
        let evidence = || {
            copies.set(copies.get() + 1);
            keep(&two.live(), &Wish::because("before-merge"), &|_| {})
        };
        let merged = with(two.directory.path(), |asked| merge(&two.live(), &two.id(), &evidence, asked)).unwrap();
        assert_eq!((merged.done, merged.rows, merged.before, copies.get()), (false, 0, None, 0));
        assert_eq!(merged.shown.conflicting(), conflicts);
        assert_eq!(merged.conflicts.is_some(), conflicts > 0, "they are listed all the same");
        let after = (std::fs::read(two.live()).unwrap(), std::fs::metadata(two.live()).unwrap().modified().unwrap());
        assert!(before == after, "the database was changed");
        let beside: Vec<_> = names(two.directory.path()).into_iter().filter(|n| n.starts_with("live.db-")).collect();
        assert_eq!(beside, [""; 0]);
    }
}
