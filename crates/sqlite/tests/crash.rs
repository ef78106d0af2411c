//! What a power cut leaves while our processes append, copy the log, and capture what was removed under them: at the end of
//! every flush, on every disk that could be. Each image is opened by us and by SQLite alone, with an `-shm` of any age beside
//! it and with an anchor started first, and must hold what was acknowledged.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

use rusqlite::Connection;
use statehouse_testkit::disk::{Disk, History, Judge, Lie, Losses, Promise, Way};
use statehouse_testkit::home::TestDir;
use statehouse_testkit::seed::Seed;

use crate::holder::Holder;
use crate::support::with;

/// What was asked of each process, in order: the key of a `put`, or nothing for another order.
type Orders = HashMap<u32, Vec<Option<String>>>;

/// Several of our processes on a watched disk.
struct Run {
    directory: TestDir,
    disk: Disk,
    path: PathBuf,
    holders: Vec<Holder>,
    orders: Orders,
    seed: Seed,
    asked: usize,
}

impl Run {
    fn begin(name: &str, processes: usize) -> Run {
        let directory = TestDir::new();
        let root = directory.join("root");
        std::fs::create_dir(&root).unwrap();
        let path = root.join("s.db");
        let disk = Disk::below(&root, &directory.join("notes"), Some(&with(&path, "-shm")));
        let seed = Seed::of_run(name);
        let mut run = Run { directory, disk, path, holders: Vec::new(), orders: Orders::new(), seed, asked: 0 };
        for _ in 0..processes {
            run.start();
        }
        run
    }

    fn start(&mut self) {
        let holder = Holder::on_disk(&self.disk, &self.path);
        self.orders.insert(holder.pid(), vec![None]);
        self.holders.push(holder);
    }

    /// Each process writes so many rows, all of them at the same time.
    fn put(&mut self, rows: usize) {
        for _ in 0..rows {
            for holder in &mut self.holders {
                let size = self.seed.below(6000) as usize / (1 + self.seed.below(8) as usize);
                let key = format!("{}-{}", self.asked, "x".repeat(size));
                holder.send(&format!("put {key}"));
                self.orders.get_mut(&holder.pid()).unwrap().push(Some(key));
                self.asked += 1;
            }
            for holder in &mut self.holders {
                holder.answer().unwrap();
            }
        }
    }

    fn ask(&mut self, n: usize, order: &str) -> Result<String, String> {
        let holder = &mut self.holders[n];
        self.orders.get_mut(&holder.pid()).unwrap().push(None);
        holder.order(order)
    }

    /// A program that is not ours, on the same disk.
    fn stranger(&self, program: &str, arguments: &[&str]) {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(self.path.parent().unwrap());
        let ended = self.disk.watches(&command).output().unwrap();
        // Busy is an answer too; what counts is what it does to the files.
        let locked = String::from_utf8_lossy(&ended.stderr).contains("locked");
        assert!(ended.status.success() || locked, "{ended:?}");
    }

    /// Somebody removes what no program can keep at once. From here to the next acknowledgement nothing is promised but that
    /// the database opens and is whole; not even that, if what was put there was not flushed.
    fn removed(&mut self, script: &str, was_flushed: bool) {
        self.disk.say(if was_flushed { "removing" } else { "breaking" });
        self.stranger("sh", &["-c", script]);
        self.disk.say("removed");
    }

    fn end(mut self) -> Ended {
        for holder in self.holders.drain(..) {
            self.orders.get_mut(&holder.pid()).unwrap().push(None);
            holder.end();
        }
        let history = self.disk.history();
        Ended { _directory: self.directory, history, orders: self.orders, seed: self.seed }
    }
}

/// The processes that open images, one after the other.
struct Openers {
    ours: Holder,
    anchor: Holder,
}

struct Ended {
    // Kept until the end, for the notes are in it.
    _directory: TestDir,
    history: History,
    orders: Orders,
    seed: Seed,
}

impl Ended {
    /// What was acknowledged and must be there. `None` if not even a database is promised.
    fn promised(&self, answers: &[(u32, String)]) -> Option<Promise> {
        let mut answered: HashMap<u32, usize> = HashMap::new();
        let (mut kept, mut excused) = (Vec::new(), false);
        let (mut removed, mut broken) = (false, false);
        for (who, line) in answers {
            match line.as_str() {
                "removing" => (excused, removed) = (true, false),
                "breaking" => (excused, removed, broken) = (true, false, true),
                "removed" => removed = true,
                _ => {}
            }
            let Some(orders) = self.orders.get(who) else { continue };
            let n = answered.entry(*who).or_default();
            if line.starts_with("ok")
                && let Some(key) = &orders[*n]
            {
                kept.push(key.clone());
                excused &= !removed;
                broken &= excused;
            }
            *n += 1;
        }
        (!broken).then(|| Promise::of(if excused { Vec::new() } else { kept }))
    }

    fn losses(&self, lie: &Lie, ways: &[Way]) -> Losses {
        let mut openers = Openers { ours: Holder::start(), anchor: Holder::start() };
        let mut open = |path: &Path, way: Way| {
            let found = look(&mut openers, path, way);
            openers.anchor.ok("unanchor");
            found
        };
        let promise = |answers: &[(u32, String)]| self.promised(answers);
        Judge { main: "s.db", beside: false, ways, promise: &promise, open: &mut open }.losses(
            &self.history,
            lie,
            &self.seed,
        )
    }

    /// Every image is whole and holds what was promised.
    fn assert_kept(&self) {
        let begun = std::time::Instant::now();
        let losses = self.losses(&Lie::None, &Way::ALL);
        let flushes = self.history.flushes();
        println!("{flushes} flushes, {} images opened, {:?}", losses.opened, begun.elapsed());
        losses.assert_none(&self.history);
        assert!(flushes > 20, "only {flushes} flushes");
    }

    /// A disk that does not keep what it says it flushed must lose rows, or the test would see no loss at all.
    fn assert_lost(&self, lie: &Lie) {
        self.losses(lie, &[Way::PLAIN]).assert_some(lie);
    }
}

fn look(openers: &mut Openers, path: &Path, way: Way) -> Result<BTreeSet<String>, String> {
    if way.anchored {
        let held = openers.anchor.order(&format!("anchor {}", path.display()));
        // It leaves to others what must be rolled back first, and what is not in WAL mode yet.
        let left = |e: &String| e.starts_with("refused_hot_journal") || e.starts_with("refused_rollback_mode");
        if let Some(e) = held.err().filter(|e| !left(e)) {
            return Err(format!("not anchored: {e}"));
        }
    }
    let mut counted = None;
    if way.ours {
        openers.ours.order(&format!("open {}", path.display())).map_err(|e| format!("not opened: {e}"))?;
        counted = Some(openers.ours.order("count").map_err(|e| format!("not read: {e}"))?);
        openers.ours.order("leave").map_err(|e| format!("not closed: {e}"))?;
    }
    let read = || -> rusqlite::Result<_> {
        let left = Connection::open(path)?;
        left.pragma_update(None, "synchronous", "OFF")?;
        let check: String = left.query_row("PRAGMA integrity_check", [], |r| r.get(0))?;
        let mut keys = BTreeSet::new();
        if left.table_exists(None, "k")? {
            let mut read = left.prepare("SELECT key FROM k")?;
            for key in read.query_map([], |r| r.get(0))? {
                keys.insert(key?);
            }
        }
        Ok((check, keys))
    };
    match read() {
        Ok((check, keys)) if check == "ok" => match counted {
            Some(count) if count != keys.len().to_string() => Err(format!("{count} rows for us, {} alone", keys.len())),
            _ => Ok(keys),
        },
        Ok((check, _)) => Err(check),
        Err(e) => Err(e.to_string()),
    }
}

#[test]
fn a_power_cut_while_three_processes_append_leaves_what_was_acknowledged() {
    let mut run = Run::begin("crash images of appending", 3);
    run.put(5);
    let ended = run.end();
    ended.assert_kept();
    ended.assert_lost(&Lie::Files("-wal"));
    ended.assert_lost(&Lie::Directories);
}

#[test]
fn a_power_cut_while_the_log_is_copied_leaves_what_was_acknowledged() {
    let mut run = Run::begin("crash images of checkpoints", 2);
    run.put(2);
    for mode in ["PASSIVE", "FULL", "RESTART", "TRUNCATE"] {
        let sql = format!("PRAGMA busy_timeout = 2000; PRAGMA synchronous = FULL; PRAGMA wal_checkpoint({mode})");
        run.stranger("sqlite3", &["s.db", &sql]);
        run.put(1);
    }
    let order = format!("admit 10 - {}", run.path.display());
    run.start();
    run.ask(2, "leave").unwrap();
    run.ask(2, &order).unwrap();
    run.ask(2, "admitted PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    run.ask(2, "release").unwrap();
    run.ask(2, &format!("open {}", run.path.display())).unwrap();
    run.put(2);
    let ended = run.end();
    ended.assert_kept();
    ended.assert_lost(&Lie::Files(".db"));
}

#[test]
fn a_power_cut_while_removed_logs_are_captured_and_merged_leaves_what_was_acknowledged() {
    let mut run = Run::begin("crash images of captures", 2);
    run.put(2);
    run.removed("rm s.db-wal s.db-shm", true);
    run.put(2);
    run.removed("cp s.db other && sync other && mv other s.db", true);
    run.put(1);
    run.removed("rm s.db s.db-wal s.db-shm", true);
    run.put(2);
    run.removed("cp s.db other && mv other s.db", false);
    run.put(1);
    run.end().assert_kept();
}

#[test]
fn what_a_power_cut_left_of_the_first_transaction_is_no_reason_to_refuse() {
    let directory = TestDir::new();
    let path = directory.join("s.db");
    // The header of a journal that restores zero pages of 4096 bytes, and a main file without its first sector.
    let mut journal = vec![0; 512];
    journal[..8].copy_from_slice(&[0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7]);
    journal[20..28].copy_from_slice(&[0, 0, 2, 0, 0, 0, 16, 0]);
    let mut main = vec![0; 4096];
    main[4000..].fill(7);
    let mut holder = Holder::start();
    let order = format!("open {}", path.display());
    for (head, expected) in [(0, true), (b'n', false)] {
        // What begins with anything at all is somebody's file, and SQLite would empty it.
        main[0] = head;
        std::fs::write(&path, &main).unwrap();
        std::fs::write(with(&path, "-journal"), &journal).unwrap();
        let opened = holder.order(&order);
        assert_eq!(opened.is_ok(), expected, "{opened:?}");
        if expected {
            holder.ok("put kept");
            assert_eq!(holder.ok("count"), "1");
            holder.ok("leave");
            std::fs::remove_dir_all(with(&path, ".statehouse")).unwrap();
            for suffix in ["-wal", "-shm"] {
                std::fs::remove_file(with(&path, suffix)).unwrap();
            }
        } else {
            assert!(opened.unwrap_err().starts_with("refused_not_database"));
            assert_eq!(std::fs::read(&path).unwrap(), main, "nothing was changed");
        }
    }
}
