//! Random schedules of everything that happens to the files of a database while several of our processes write into it:
//! what was acknowledged is there afterwards, exactly once, and nobody waits for ever.
//!
//! One process of each round, the survivor, is never killed, and files are only taken away while it uses just these: a log
//! that nobody has open any more is gone, and no promise is made about it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use statehouse_testkit::home::TestDir;
use statehouse_testkit::kernel::Standing;
use statehouse_testkit::need;
use statehouse_testkit::seed::Seed;
use statehouse_testkit::visitor::shell_once;
use statehouse_testkit::wait::until;

use crate::holder::Holder;
use crate::support::with;

const SOON: Duration = Duration::from_secs(40);

struct Process {
    holder: Holder,
    stopped: bool,
    /// The key that it was asked to put and has not answered for.
    asked: Option<String>,
}

struct Storm {
    _directory: TestDir,
    path: PathBuf,
    seed: Seed,
    processes: Vec<Process>,
    acknowledged: BTreeSet<String>,
    keys: u32,
    /// What was done, for the one who has to find out what went wrong.
    log: Vec<String>,
    errors: Vec<String>,
}

impl Storm {
    fn new(seed: Seed) -> Storm {
        let directory = TestDir::new();
        let path = directory.join("s.db");
        let mut storm = Storm {
            _directory: directory,
            path,
            seed,
            processes: Vec::new(),
            acknowledged: BTreeSet::new(),
            keys: 0,
            log: Vec::new(),
            errors: Vec::new(),
        };
        for _ in 0..1 + storm.seed.below(4) {
            storm.start();
        }
        storm
    }

    fn note(&mut self, what: impl Into<String>) {
        self.log.push(what.into());
    }

    fn start(&mut self) {
        let mut holder = Holder::start();
        let begun = Instant::now();
        while let Err(e) = holder.order(&format!("open {}", self.path.display())) {
            // A process whose record was removed with the side directory is a stranger until it has written a new one.
            if e.starts_with("refused_held_retired") && begun.elapsed() < SOON {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            let events: Vec<_> = self.processes.iter().map(|p| (p.holder.pid(), p.holder.events())).collect();
            panic!("{e} after {:#?}\n{events:#?}", self.log);
        }
        self.note(format!("start {}", holder.pid()));
        self.processes.push(Process { holder, stopped: false, asked: None });
    }

    /// Takes the answers that have come.
    fn collect(&mut self) {
        for process in &mut self.processes {
            if process.asked.is_none() {
                continue;
            }
            match process.holder.answered() {
                None => {}
                Some(Ok(_)) => self.acknowledged.extend(process.asked.take()),
                Some(Err(e)) => {
                    self.errors.push(e);
                    process.asked = None;
                }
            }
        }
    }

    fn put(&mut self) {
        let n = self.seed.below(self.processes.len() as u64) as usize;
        let key = format!("key{:05}", self.keys);
        let process = &mut self.processes[n];
        if process.asked.is_some() || process.stopped {
            return;
        }
        self.keys += 1;
        process.holder.send(&format!("put {key}"));
        process.asked = Some(key);
    }

    /// True if the survivor uses exactly what the paths name, and will notice when it does not any more.
    fn survivor_is_current(&self) -> bool {
        let survivor = &self.processes[0];
        !survivor.stopped && Standing::of(survivor.holder.pid(), &self.path).whole()
    }

    fn visit(&mut self) {
        let sql = *self.seed.pick(&[
            "SELECT count(*) FROM k",
            "INSERT INTO stranger VALUES(1)",
            "CREATE TABLE IF NOT EXISTS stranger(x)",
            "PRAGMA wal_checkpoint(TRUNCATE)",
            "PRAGMA wal_checkpoint(PASSIVE)",
        ]);
        self.note(sql);
        // It may be refused while the files are being replaced; it must not do harm.
        let _ = shell_once(&self.path, sql);
    }

    fn remove(&mut self) {
        if !self.survivor_is_current() {
            return;
        }
        let which = *self.seed.pick(&[
            &["-wal", "-shm"][..],
            &["-shm", "-wal"],
            &["-wal"],
            &["-shm"],
            &[""],
            &["", "-wal", "-shm"],
            &["-wal", "-shm", ""],
        ]);
        self.note(format!("remove {which:?}"));
        for suffix in which {
            let _ = std::fs::remove_file(with(&self.path, suffix));
        }
    }

    fn replace_main(&mut self) {
        let copy = with(&self.path, ".copy");
        let _ = std::fs::remove_file(&copy);
        let made = shell_once(&self.path, &format!("VACUUM INTO '{}'", copy.display()));
        if made.is_none_or(|m| !m.status.success()) || !self.survivor_is_current() {
            return;
        }
        for _ in 0..4 {
            self.put();
        }
        std::thread::sleep(Duration::from_millis(5));
        self.collect();
        self.note("replace main");
        std::fs::rename(&copy, &self.path).unwrap();
        // A stranger who opens the new file beside the old log damages it, whatever we do.
        self.settle();
    }

    fn settle(&mut self) {
        // One that was stopped while it recovers, or has the turn, keeps the others waiting until it goes on.
        self.resume();
        let log = format!("{:#?}", self.log);
        until(&format!("the survivor goes on after {log}"), SOON, || self.survivor_is_current());
    }

    fn strike(&mut self) {
        let n = self.seed.below(self.processes.len() as u64) as usize;
        let pid = self.processes[n].holder.pid();
        match self.seed.below(4) {
            0 | 1 => {
                let stop = !self.processes[n].stopped;
                self.note(format!("{} {pid}", if stop { "stop" } else { "continue" }));
                self.processes[n].stopped = stop;
                self.processes[n].holder.signal(if stop { Signal::STOP } else { Signal::CONT });
            }
            // The survivor stays; so does one that has the rows of a log which the survivor was not there to see.
            _ if n == 0 => {}
            2 => {
                self.note(format!("kill {pid}"));
                self.collect();
                let mut process = self.processes.remove(n);
                process.holder.kill();
                // What it had answered before counts.
                if process.asked.is_some() && matches!(process.holder.answered(), Some(Ok(_))) {
                    self.acknowledged.extend(process.asked.take());
                }
            }
            _ => {
                let process = &mut self.processes[n];
                if process.stopped || process.asked.is_some() {
                    return;
                }
                leave(&mut process.holder, &mut self.log);
                self.processes.remove(n);
                self.note(format!("leave {pid}"));
            }
        }
    }

    fn resume(&mut self) {
        for process in &mut self.processes {
            process.stopped = false;
            process.holder.signal(Signal::CONT);
        }
    }

    fn step(&mut self) {
        match self.seed.below(24) {
            0 | 1 => self.remove(),
            2 => self.replace_main(),
            3 => self.visit(),
            4 | 5 => self.strike(),
            6 => {
                self.resume();
                if self.processes.len() < 4 {
                    self.start();
                }
            }
            7 if self.survivor_is_current() && self.seed.one_in(3) => {
                self.note("remove the side directory");
                let _ = std::fs::remove_dir_all(with(&self.path, ".statehouse"));
            }
            _ => self.put(),
        }
        std::thread::sleep(Duration::from_millis(self.seed.below(12)));
        self.collect();
    }

    fn finish(mut self) {
        self.resume();
        for process in &mut self.processes {
            if let Some(key) = process.asked.take() {
                match process.holder.answer() {
                    Ok(_) => drop(self.acknowledged.insert(key)),
                    Err(e) => self.errors.push(e),
                }
            }
        }
        let log = format!("{:#?}\n{:#?}", self.log, self.errors);
        let counts: Vec<_> = self.processes.iter_mut().map(|p| p.holder.order("count")).collect();
        let events: Vec<_> = self.processes.iter().map(|p| p.holder.events()).collect();
        let kept = keys(&self.path);
        let lost: Vec<_> = self.acknowledged.iter().filter(|k| !kept.contains(k)).collect();
        assert!(lost.is_empty(), "lost {lost:?} of {} after {log}\n{events:#?}", self.acknowledged.len());
        let distinct: BTreeSet<_> = kept.iter().collect();
        assert_eq!(distinct.len(), kept.len(), "doubled after {log}");
        for count in counts {
            assert_eq!(count, Ok(kept.len().to_string()), "after {log}\n{events:#?}");
        }
        let retired = with(&self.path, ".statehouse").join("retired");
        let captures: Vec<_> = std::fs::read_dir(retired).into_iter().flatten().flatten().map(|e| e.path()).collect();
        let open: Vec<_> = captures
            .iter()
            .filter(|p| p.join("manifest.json").exists() && !p.join("merged").exists())
            .filter(|p| !p.to_string_lossy().contains(".partial."))
            .collect();
        assert!(open.is_empty(), "never merged: {open:?} after {log}\n{events:#?}");
        assert!(captures.len() < 32, "{captures:#?}");
        for process in &mut self.processes {
            leave(&mut process.holder, &mut self.log);
        }
        assert_eq!(keys(&self.path), kept, "after everybody has left");
    }
}

/// Closes a handle. One that could not keep what it had, because others were recovering all the while, says so; whether that
/// was all there was of a row, the end of the storm shows.
fn leave(holder: &mut Holder, log: &mut Vec<String>) {
    if let Err(told) = holder.order("leave") {
        assert!(told.starts_with("busy "), "{told}");
        log.push(format!("{} left: {told}", holder.pid()));
    }
}

/// All keys that a process sees which opens the path now and knows nothing of Statehouse, in a database that is whole.
fn keys(path: &Path) -> Vec<String> {
    let mut reader = Holder::start();
    reader.ok(&format!("connect r rw {}", path.display()));
    let keys = reader.ok("sql r SELECT coalesce(group_concat(key, ','), '') FROM (SELECT key FROM k ORDER BY key)");
    assert_eq!(reader.ok("sql r PRAGMA integrity_check"), "ok");
    keys.split(',').filter(|k| !k.is_empty()).map(str::to_owned).collect()
}

#[test]
fn what_was_acknowledged_is_kept_once_whatever_happens_to_the_files() {
    if need::command("sqlite3").is_none() {
        return;
    }
    let mut seed = Seed::of_run("storms");
    let end = Instant::now() + Duration::from_secs(12);
    while Instant::now() < end {
        let mut storm = Storm::new(Seed::new(seed.bits()));
        for _ in 0..60 {
            storm.step();
        }
        storm.finish();
    }
}
