//! The adversary does what it says: a stock program loses its locks by it, and with them its sidecars.

use std::path::Path;

use statehouse_testkit::kernel::{Standing, generation};
use statehouse_testkit::stray::Stray;
use statehouse_testkit::visitor::{Python, python, shell_once};
use statehouse_testkit::{TestDir, run};

fn make(database: &Path) -> Option<()> {
    let sql = "PRAGMA journal_mode=WAL; CREATE TABLE m(id INTEGER PRIMARY KEY, t); INSERT INTO m(t) VALUES('a')";
    assert!(shell_once(database, sql)?.status.success());
    Some(())
}

fn hold(holder: &mut Python) {
    holder.sql("PRAGMA wal_autocheckpoint=0").unwrap();
    holder.sql("INSERT INTO m(t) VALUES('b')").unwrap();
}

#[test]
fn without_it_a_stranger_that_closes_leaves_the_sidecars() {
    let dir = TestDir::new();
    let database = dir.join("s.db");
    let Some(()) = make(&database) else { return };
    let mut holder = Python::open(&database);
    hold(&mut holder);
    assert!(Standing::of(holder.pid(), &database).whole());
    let before = generation(&database);
    shell_once(&database, "SELECT count(*) FROM m").unwrap().success();
    assert_eq!(generation(&database), before);
    assert!(Standing::of(holder.pid(), &database).whole());
}

#[test]
fn with_it_both_locks_are_gone_and_the_sidecars_with_the_first_stranger() {
    let dir = TestDir::new();
    let database = dir.join("s.db");
    let Some(()) = make(&database) else { return };
    let stray = Stray::at(&database, &dir.join("tally"));
    let mut holder = Python::open_with(&database, |c| {
        stray.arms(c);
    });
    hold(&mut holder);
    let tally = stray.tally(holder.pid()).unwrap();
    assert!(tally.opened.iter().all(|n| *n > 0), "{tally:?}");
    let standing = Standing::of(holder.pid(), &database);
    assert!(!standing.shared && !standing.dms && standing.has_shm, "{standing:?}");
    shell_once(&database, "SELECT count(*) FROM m").unwrap().success();
    assert!(generation(&database)[1].is_none());
    assert!(Standing::of(holder.pid(), &database).deleted);
}

#[test]
fn a_lock_asked_for_an_open_file_becomes_one_of_the_process() {
    let dir = TestDir::new();
    let file = dir.join("f");
    std::fs::write(&file, "x").unwrap();
    let program = r#"
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 1, 0))
print([l.split()[1] for l in open("/proc/locks") if l.split()[5].endswith(":%d" % os.fstat(fd).st_ino)])
"#;
    let ask = |stray: Option<&Stray>| {
        let mut command = std::process::Command::new(python());
        command.args(["-I", "-c", program]).arg(&file);
        if let Some(stray) = stray {
            stray.arms(&mut command);
        }
        run(&mut command, std::time::Duration::from_secs(10)).success().stdout
    };
    assert_eq!(ask(None).trim(), "['OFDLCK']");
    let stray = Stray::at(&dir.join("absent.db"), &dir.join("tally")).without_lock_core();
    assert_eq!(ask(Some(&stray)).trim(), "['POSIX']");
    assert_eq!(stray.victims().len(), 1);
    let elsewhere = Stray::at(&dir.join("absent.db"), &dir.join("other")).without_lock_core().only_in(&["gateway"]);
    assert_eq!(ask(Some(&elsewhere)).trim(), "['OFDLCK']");
    assert!(elsewhere.victims().is_empty());
}
