//! Rounds of restores by rename while strangers open, write and close at random moments: nothing is ever corrupt, and after each
//! round the content is the restored one and what strangers committed after it.
//!
//! A few rounds are run with the suite; `STATEHOUSE_ROUNDS=50` runs as many as it says.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use statehouse_testkit::visitor::python;
use statehouse_testkit::{Child, Seed, TestDir};

use super::{database, restore, sql};
use crate::house::PATIENCE;

/// Rounds that are run with the suite.
const ROUNDS: u64 = 4;
/// Strangers at the same time.
const STRANGERS: u64 = 3;

/// Opens, writes a row of its own, and closes, again and again. It says each row that was acknowledged, and when its connection
/// that wrote it was opened; what it is told instead it says too.
const STRANGER: &str = r#"
import random, sqlite3, sys, threading, time
path, name, seed = sys.argv[1], sys.argv[2], int(sys.argv[3])
chance = random.Random(seed)
stop = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
print("up", flush=True)
n = 0
while not stop.is_set():
    n += 1
    row = f"{name}.{n}"
    try:
        connection = sqlite3.connect(path, timeout=chance.choice([0, 0.05, 5]), isolation_level=None)
        if chance.random() < 0.3:
            connection.execute("SELECT count(*) FROM t").fetchall()
        time.sleep(chance.random() * 0.02)
        connection.execute("INSERT INTO t(x) VALUES(?)", (row,))
        print("kept", row, flush=True)
        time.sleep(chance.random() * 0.02)
        connection.close()
    except sqlite3.Error as error:
        print("told", error, flush=True)
        connection.close()
    time.sleep(chance.random() * 0.3)
print("end", flush=True)
"#;

fn stranger(path: &Path, name: &str, seed: u64) -> Child {
    let mut line = Command::new(python());
    line.args(["-I", "-c", STRANGER]).arg(path).arg(name).arg(seed.to_string());
    let mut child = Child::spawn(&mut line);
    assert_eq!(child.line(PATIENCE), "up");
    child
}

/// What it has said until its end.
fn ended(mut child: Child) -> Vec<String> {
    child.close_input();
    let mut said = Vec::new();
    loop {
        match child.line(PATIENCE) {
            line if line == "end" => return said,
            line => said.push(line),
        }
    }
}

fn strings(rows: Vec<Value>) -> BTreeSet<String> {
    rows.iter().map(|row| row[0].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn strangers_that_come_and_go_beside_restores_by_rename_lose_nothing_and_ruin_nothing() {
    let rounds: u64 = std::env::var("STATEHOUSE_ROUNDS").ok().map_or(ROUNDS, |n| n.parse().expect("a number"));
    let mut seed = Seed::of_run("strangers beside restores by rename");
    let directory = TestDir::new();
    let path = database(&directory.join("s.db"), "wal", 4096, 1, "old");
    let mut here = 4096;
    let (mut done, mut refused, mut told, mut longest) = (0, 0, BTreeSet::new(), Duration::ZERO);
    for round in 0..rounds {
        // Each has other pages than the one before it, so it is by rename.
        let page_size = 12288 - here;
        let word = format!("r{round}");
        let good = database(&directory.join(format!("good{round}.db")), "wal", page_size, 100, &word);
        let base = strings(sql(&good, &["SELECT x FROM t"]));
        let before = strings(sql(&path, &["SELECT x FROM t"]));
        let all: Vec<Child> =
            (0..STRANGERS).map(|n| stranger(&path, &format!("{round}.{n}"), seed.below(1 << 30))).collect();
        std::thread::sleep(Duration::from_millis(seed.below(400)));
        let begun = Instant::now();
        let finished = restore(&good, &path, &["--patience", "5"]);
        longest = longest.max(begun.elapsed());
        std::thread::sleep(Duration::from_millis(seed.below(400)));
        let said: Vec<String> = all.into_iter().flat_map(ended).collect();
        let kept: BTreeSet<String> = said.iter().filter_map(|l| l.strip_prefix("kept ")).map(str::to_owned).collect();
        told.extend(said.iter().filter_map(|l| l.strip_prefix("told ")).map(str::to_owned));
        assert_eq!(
            sql(&path, &["PRAGMA integrity_check"]),
            [serde_json::json!(["ok"])],
            "round {round}: {finished:#?}"
        );
        let now = strings(sql(&path, &["SELECT x FROM t"]));
        let answer = finished.json();
        match finished.code() {
            0 => {
                done += 1;
                here = page_size;
                assert_eq!(answer["how"], "rename", "{answer}");
                assert!(base.is_subset(&now), "round {round}: rows of the restored file are missing");
                let snapshot = Path::new(answer["before"]["path"].as_str().unwrap());
                let replaced = strings(sql(snapshot, &["SELECT x FROM t"]));
                assert!(before.is_subset(&replaced), "round {round}: the snapshot before it lacks rows");
                let lost: Vec<_> = kept.iter().filter(|row| !now.contains(*row) && !replaced.contains(*row)).collect();
                assert!(lost.is_empty(), "round {round}: acknowledged, and nowhere: {lost:?}; {answer}");
                let strange: Vec<_> = now.iter().filter(|row| !base.contains(*row) && !kept.contains(*row)).collect();
                assert!(strange.is_empty(), "round {round}: neither restored nor written since: {strange:?}");
                // What is in the new file of theirs is not in the old one as well, or it would be a mixture of both.
                let both: Vec<_> = kept.iter().filter(|row| now.contains(*row) && replaced.contains(*row)).collect();
                assert!(both.is_empty(), "round {round}: {both:?}");
            }
            4 | 5 => {
                refused += 1;
                let missing: Vec<_> = before.iter().chain(&kept).filter(|row| !now.contains(*row)).collect();
                assert!(missing.is_empty(), "round {round}: {missing:?}; {answer}");
            }
            _ => panic!("round {round}: {finished:#?}"),
        }
    }
    let line = format!(
        "{done} of {rounds} restores were done, {refused} refused, the longest took {longest:?}; strangers were told {told:?}"
    );
    let _ = writeln!(std::io::stderr(), "{line}");
    assert!(done > 0, "{line}");
    for said in &told {
        assert!(said.contains("locked") || said.contains("busy"), "{said}");
    }
}
