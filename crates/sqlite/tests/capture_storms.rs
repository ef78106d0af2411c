//! A process that writes without a pause is captured as of one commit, with everything that it had acknowledged before.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use statehouse_sqlite::Family;
use statehouse_sqlite::capture::{self, Capture, Whose};
use statehouse_testkit::Child;

use crate::capture::{image, of, proves_itself, take, unlink_sidecars};
use crate::holders::database;
use crate::support::{Random, wait_for};

/// Writes one row after the other as fast as it can, and says in a shared file how many were acknowledged.
const STORM: &str = r#"
import mmap, os, sqlite3, struct, sys
path, tally, autocheckpoint, synchronous, text = sys.argv[1:6]
with open(tally, "r+b") as f:
    shared = mmap.mmap(f.fileno(), 8)
c = sqlite3.connect(path, isolation_level=None, timeout=10)
c.execute(f"PRAGMA wal_autocheckpoint={autocheckpoint}")
c.execute(f"PRAGMA synchronous={synchronous}")
c.execute("INSERT INTO m(id, t) VALUES(2, 'held')")
print("open", flush=True)
sys.stdin.readline()
n = 2
while True:
    n += 1
    c.execute("INSERT INTO m(id, t) VALUES(?, ?)", (n, text))
    if n % 3 == 0:
        c.execute("UPDATE m SET t = t || 'u' WHERE id = ?", (n // 2,))
    shared[:8] = struct.pack("<Q", n)
"#;

/// A process that writes all the time, and how much it has acknowledged.
struct Storm {
    _directory: tempfile::TempDir,
    path: PathBuf,
    tally: PathBuf,
    ghost: Child,
}

impl Storm {
    /// One that copies its log into the main file after so many pages.
    fn begin(autocheckpoint: &str) -> Storm {
        let (directory, path) = database();
        let tally = directory.path().join("tally");
        std::fs::write(&tally, [0; 8]).unwrap();
        let mut command = Command::new("python3");
        command.args(["-u", "-c", STORM]).arg(&path).arg(&tally);
        command.arg(autocheckpoint).arg(if autocheckpoint == "0" { "FULL" } else { "OFF" }).arg("x".repeat(300));
        let mut ghost = Child::spawn(&mut command);
        assert_eq!(ghost.line(Duration::from_secs(30)), "open");
        unlink_sidecars(&path);
        ghost.send("go");
        let storm = Storm { _directory: directory, path, tally, ghost };
        wait_for("it writes", || storm.acknowledged() > 10);
        storm
    }

    fn acknowledged(&self) -> i64 {
        i64::from_le_bytes(std::fs::read(&self.tally).unwrap().try_into().unwrap())
    }

    /// Looks at an image of it: a prefix of what was written, whole, and not shorter than `before`.
    #[track_caller]
    fn proves(&self, made: &Capture, before: i64) -> i64 {
        let image = image(made);
        let (rows, last): (i64, i64) =
            image.query_row("SELECT count(*), max(id) FROM m", [], |r| Ok((r.get(0)?, r.get(1)?))).unwrap();
        assert_eq!(rows, last, "a prefix, and every row of it: {:#?}", made.manifest);
        assert!(rows >= before, "{before} rows were acknowledged before, and {rows} are there: {:#?}", made.manifest);
        let updated: i64 = image.query_row("SELECT count(*) FROM m WHERE t LIKE '%u'", [], |r| r.get(0)).unwrap();
        assert!(updated + 2 >= rows / 3, "of {rows} rows {updated} were updated");
        proves_itself(made);
        rows
    }
}

/// Captures it so often, and looks at each image.
fn storm(name: &str, autocheckpoint: &str, times: usize) {
    let mut random = Random::new(name);
    let storm = Storm::begin(autocheckpoint);
    let (mut seen, mut different) = (0, 0);
    for _ in 0..times {
        let before = storm.acknowledged();
        let (made, already) = of(&storm.path, storm.ghost.pid());
        seen = storm.proves(&made, before).max(seen);
        different += u64::from(!already);
        let wait = storm.acknowledged() + random.below(20) as i64;
        wait_for("it goes on", || storm.acknowledged() > wait);
    }
    assert!(storm.acknowledged() > seen, "it was never stopped");
    assert!(different > 1, "it wrote between the captures");
}

#[test]
fn a_process_that_writes_as_fast_as_it_can_is_captured_twenty_times() {
    storm("writing", "0", 20);
}

#[test]
fn a_process_that_checkpoints_and_begins_its_log_anew_all_the_time_is_captured_twenty_times() {
    storm("beginning anew", "1", 20);
}

#[test]
fn a_process_that_checkpoints_now_and_then_is_captured_twenty_times() {
    storm("checkpointing", "40", 20);
}

#[test]
fn a_process_that_is_killed_meanwhile_is_captured_whole_or_it_is_said_that_it_has_ended() {
    let mut random = Random::new("killed meanwhile");
    let (mut had, mut gone) = (0, 0);
    for round in 0..12 {
        let mut storm = Storm::begin(if round % 2 == 0 { "0" } else { "1" });
        let before = storm.acknowledged();
        let moment = Duration::from_micros(random.below(40_000));
        let (path, pid) = (storm.path.clone(), storm.ghost.pid());
        let taking = std::thread::spawn(move || take(&path, Whose::Pid(pid)));
        std::thread::sleep(moment);
        storm.ghost.kill();
        match taking.join().unwrap() {
            Ok(taken) => {
                storm.proves(&taken.captures[0].capture, before);
                had += 1;
            }
            Err(e) => {
                let honest = ["no_process", "nothing_to_capture", "process_ended"];
                assert!(honest.contains(&e.code()), "{e:?}");
                assert!(capture::list(&Family::of(&storm.path).unwrap()).unwrap().is_empty());
                gone += 1;
            }
        }
    }
    println!("{had} were captured, {gone} had ended");
    assert!(had > 0);
}
