//! What a power cut leaves of a database that several of our processes write into, while strangers copy its log and some of
//! the processes are killed: every row that was acknowledged, in a database that is whole.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use rusqlite::Connection;
use statehouse_testkit::home::TestDir;
use statehouse_testkit::powercut::{Notes, Watched};
use statehouse_testkit::seed::Seed;

use crate::holder::Holder;
use crate::support::with;

/// How many rows are written, and at how many points the power fails.
const ROWS: usize = 900;
const CUTS: usize = 200;
const PROCESSES: usize = 3;

/// What was asked of each process, in order: the key of a `put`, or nothing for another order.
type Orders = HashMap<u32, Vec<Option<String>>>;

struct Run {
    directory: TestDir,
    notes: Notes,
    orders: Orders,
}

fn stranger(watched: &Watched, path: &Path, seed: &mut Seed) {
    let synchronous = seed.pick(&["FULL", "NORMAL"]);
    let what = seed.pick(&[
        "PRAGMA wal_checkpoint(PASSIVE)",
        "PRAGMA wal_checkpoint(FULL)",
        "PRAGMA wal_checkpoint(RESTART)",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "UPDATE k SET role = 'stranger' WHERE n = (SELECT max(n) FROM k)",
        "VACUUM",
    ]);
    let sql = format!("PRAGMA busy_timeout = 2000; PRAGMA synchronous = {synchronous}; {what}");
    // Busy is an answer too; what counts is what it does to the files.
    let ended = watched.arms(Command::new("sqlite3").arg(path).arg(sql)).output().unwrap();
    assert!(ended.status.success() || String::from_utf8_lossy(&ended.stderr).contains("locked"), "{ended:?}");
}

fn run(seed: &mut Seed, watched: impl FnOnce(Watched) -> Watched) -> Run {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    let watched = watched(Watched::at(&path, &directory.join("notes")));
    let mut orders = Orders::new();
    let start = |orders: &mut Orders| {
        let holder = Holder::watched(&watched, &path);
        orders.insert(holder.pid(), vec![None]);
        holder
    };
    let mut holders: Vec<_> = (0..PROCESSES).map(|_| (start(&mut orders), false)).collect();
    let mut asked = 0;
    let mut last = String::new();
    while asked < ROWS {
        for (holder, busy) in &mut holders {
            if *busy && let Some(answer) = holder.answered() {
                answer.unwrap();
                *busy = false;
            }
            if !*busy {
                // Some are long enough for several pages, so that the log begins anew many times.
                let size = seed.below(12_000) as usize / (1 + seed.below(8) as usize);
                // Others are there already, or will be in a moment, by another process that may not have flushed them.
                let key = if seed.one_in(3) { last } else { format!("{asked}-{}", "x".repeat(size)) };
                last = key.clone();
                holder.send(&format!("put {key}"));
                orders.get_mut(&holder.pid()).unwrap().push(Some(key));
                *busy = true;
                asked += 1;
            }
        }
        if seed.one_in(60) {
            stranger(&watched, &path, seed);
        }
        if seed.one_in(500) {
            let n = seed.below(PROCESSES as u64) as usize;
            holders[n].0.kill();
            holders[n] = (start(&mut orders), false);
        }
        std::thread::sleep(std::time::Duration::from_micros(100));
    }
    for (holder, busy) in &mut holders {
        if *busy {
            holder.answer().unwrap();
        }
    }
    drop(holders);
    Run { directory, notes: watched.notes(), orders }
}

/// What is missing or broken after power cuts at random points, a sentence each.
fn losses(run: &Run, seed: &mut Seed) -> Vec<String> {
    let image: PathBuf = run.directory.join("left.db");
    // Many just after the log began anew, when what is left of the old one must not come back.
    let beginnings = run.notes.beginnings();
    let mut point = |n: usize| match n % 2 {
        0 => seed.below(run.notes.len() as u64) as usize,
        _ => (*seed.pick(&beginnings) + seed.below(12) as usize).min(run.notes.len() - 1),
    };
    let mut points: Vec<_> = (0..CUTS).map(&mut point).collect();
    points.sort_unstable();
    let mut losses = Vec::new();
    let mut looked = 0;
    run.notes.cut(&points, seed, |point, files, answers| {
        let _ = std::fs::remove_file(with(&image, "-shm"));
        std::fs::write(&image, &files[0]).unwrap();
        std::fs::write(with(&image, "-wal"), &files[1]).unwrap();
        let mut answered: HashMap<u32, usize> = HashMap::new();
        let mut acknowledged = Vec::new();
        for (pid, line) in answers {
            let Some(orders) = run.orders.get(pid) else { continue };
            let n = answered.entry(*pid).or_default();
            if line.starts_with("ok")
                && let Some(key) = &orders[*n]
            {
                acknowledged.push(key);
            }
            *n += 1;
        }
        if acknowledged.is_empty() {
            return;
        }
        looked += 1;
        let whole = || -> rusqlite::Result<_> {
            let left = Connection::open(&image)?;
            let check: String = left.query_row("PRAGMA integrity_check", [], |r| r.get(0))?;
            let mut kept = left.prepare("SELECT 1 FROM k WHERE key = ?1")?;
            let mut missing = 0;
            for key in &acknowledged {
                missing += usize::from(!kept.exists([key])?);
            }
            Ok((check, missing))
        };
        match whole() {
            Ok((check, 0)) if check == "ok" => {}
            other => losses.push(format!("after note {point}, of {} acknowledged: {other:?}", acknowledged.len())),
        }
    });
    assert!(looked > CUTS / 2, "only {looked} cuts had something to lose");
    losses
}

#[test]
fn a_power_cut_at_any_point_leaves_every_acknowledged_row_and_a_whole_database() {
    let mut seed = Seed::of_run("power cut");
    let run = run(&mut seed, |w| w);
    let losses = losses(&run, &mut seed);
    assert!(losses.is_empty(), "{losses:#?}");
}

#[test]
fn a_power_cut_on_a_disk_that_lies_about_flushes_loses_rows() {
    let mut seed = Seed::of_run("power cut, lying disk");
    let run = run(&mut seed, Watched::on_a_disk_that_lies);
    assert!(!losses(&run, &mut seed).is_empty(), "the test sees no loss where there must be one");
}
