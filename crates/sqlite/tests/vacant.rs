//! Another main file is put in the place of one that nobody has open.

use std::path::Path;
use std::time::Duration;

use statehouse_sqlite::Family;
use statehouse_sqlite::admission::{Vacant, Wanted};
use statehouse_testkit::home::TestDir;
use statehouse_testkit::wait::until;

use crate::support::{Sibling, visitor, with};

fn has_open(pid: u32, path: &Path) -> bool {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    links.filter_map(|e| std::fs::read_link(e.path()).ok()).any(|link| link == path)
}

/// It would get the lock of the old main file when all is over, and pair that file by name with the log of the new one.
#[test]
fn who_waits_for_the_lock_of_the_old_file_never_meets_the_log_of_the_new_one() {
    let directory = TestDir::new();
    let (path, new) = (directory.join("s.db"), directory.join("new"));
    visitor(&path, "PRAGMA journal_mode=WAL; CREATE TABLE m(t); INSERT INTO m VALUES('old')");
    visitor(&new, "PRAGMA page_size=8192; PRAGMA journal_mode=WAL; CREATE TABLE m(t); INSERT INTO m VALUES('new')");
    let family = Family::of(&path).unwrap();
    let tell = |_: &str| {};
    let wanted = Wanted { what: "test", drain: None, force: false, patience: Duration::from_secs(5), tell: &tell };
    let vacant = Vacant::obtain(&family, &wanted).unwrap();
    let mut late = Sibling::idle();
    late.order(serde_json::json!({ "connect": path, "timeout": 3 })).unwrap();
    let pid = late.pid();
    let waiting = std::thread::spawn(move || {
        let told = late.order(serde_json::json!({ "sql": "INSERT INTO m VALUES('late')" }));
        late.order(serde_json::json!({ "close": 1 })).unwrap();
        (told, late)
    });
    until("it waits for the lock", Duration::from_secs(20), || has_open(pid, &path));
    let aside = vacant.aside().unwrap();
    let placed = vacant.place(&new, &aside).unwrap();
    let left = vacant.leave(placed, &|_| {}).unwrap();
    assert!(!has_open(pid, &aside.join("main.replaced")), "nobody has the old file any more");
    drop(vacant);
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(visitor(&path, "INSERT INTO m VALUES('after'); SELECT group_concat(t) FROM m"), "new,after");
    let (told, _late) = waiting.join().unwrap();
    assert!(told.unwrap_err().contains("locked"), "it had its time");
    assert_eq!(visitor(&path, "SELECT group_concat(t) FROM m; PRAGMA integrity_check"), "new,after\nok");
    assert!(!with(&path, "-journal").exists());
}
