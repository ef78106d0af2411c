//! What somebody does to the files of a house that is up.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use statehouse_testkit::kernel::{DMS, FileId, SHARED};
use statehouse_testkit::visitor::{Python, shell_once};
use statehouse_testkit::{Home, Seed, need, thief};

/// One thing that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deed {
    /// `rm` of these members.
    Remove(&'static [&'static str]),
    /// `mv` of the main file to another name.
    MoveAway,
    /// An older copy is renamed over the main file.
    OlderOver,
    /// A copy of the present state is renamed over the main file.
    PresentOver,
    /// Another program's database is renamed over the main file, and taken away again.
    ForeignOver,
    /// Locks of these services are dropped, and strangers come and go.
    Unlock,
}

pub(crate) const SERVICES: [&str; 4] = ["anchor", "gateway", "dashboard", "scheduler"];

const DEEDS: &[Deed] = &[
    Deed::Remove(&["-wal"]),
    Deed::Remove(&["-shm"]),
    Deed::Remove(&["-wal", "-shm"]),
    Deed::Remove(&[""]),
    Deed::Remove(&["", "-wal", "-shm"]),
    Deed::MoveAway,
    Deed::OlderOver,
    Deed::PresentOver,
    Deed::ForeignOver,
    Deed::Unlock,
    Deed::Unlock,
    Deed::Unlock,
];

impl Deed {
    /// Every deed once in as many rounds as there are, in turn; so that a short run has all of them.
    pub(crate) fn of_round(round: u64, seed: &mut Seed) -> Vec<Deed> {
        let first = DEEDS[(round % DEEDS.len() as u64) as usize];
        // Some rounds have a second one behind it, before the house has got over the first. What opens the path would find there
        // what the first one has left, and a stranger that opens a missing store makes an empty one.
        let second: Vec<Deed> = DEEDS.iter().copied().filter(|d| !d.opens()).collect();
        if seed.one_in(3) { vec![first, *seed.pick(&second)] } else { vec![first] }
    }

    /// True if somebody opens the store by its path for it.
    fn opens(self) -> bool {
        matches!(self, Deed::Unlock | Deed::PresentOver)
    }
}

/// Where things are kept that are renamed over the store.
pub(crate) struct Stock {
    directory: PathBuf,
    next: u64,
}

impl Stock {
    pub(crate) fn new(home: &Home) -> Stock {
        let directory = home.path().join("elsewhere");
        fs::create_dir_all(&directory).unwrap();
        Stock { directory, next: 0 }
    }

    fn place(&mut self, name: &str) -> PathBuf {
        self.next += 1;
        self.directory.join(format!("{name}-{}", self.next))
    }

    fn older(&self) -> PathBuf {
        self.directory.join("older")
    }

    /// Keeps a copy of the store as it is now, to be an older one later. False where nothing can make one.
    pub(crate) fn keep_older(&mut self, home: &Home) -> bool {
        let to = self.place("backup");
        backup(&home.store(), &to) && fs::rename(&to, self.older()).is_ok()
    }
}

/// A copy of the whole state that a backup program makes.
fn backup(store: &Path, to: &Path) -> bool {
    let mut shell = Python::open(store);
    let made = shell.sql(&format!("VACUUM INTO '{}'", to.display())).is_ok();
    shell.quit();
    made
}

/// Does it. What is not possible at this moment (somebody else did it, or the house is not done with the deed before) is not done. Returns how
/// many locks were dropped.
pub(crate) fn act(deed: Deed, home: &Home, pids: &[u32], stock: &mut Stock, seed: &mut Seed) -> usize {
    let store = home.store();
    match deed {
        Deed::Remove(members) => {
            for member in members {
                let _ = fs::remove_file(home.member(member));
                if seed.one_in(3) {
                    std::thread::sleep(Duration::from_micros(seed.below(20_000)));
                }
            }
        }
        Deed::MoveAway => drop(fs::rename(&store, stock.place("moved"))),
        Deed::OlderOver => {
            let copy = stock.place("copy");
            if fs::copy(stock.older(), &copy).is_ok() {
                fs::rename(copy, &store).unwrap();
            }
        }
        Deed::PresentOver => {
            let copy = stock.place("copy");
            if backup(&store, &copy) {
                fs::rename(copy, &store).unwrap();
            }
        }
        Deed::ForeignOver => foreign_over(&store, stock, seed),
        Deed::Unlock => return unlock(home, pids, seed),
    }
    0
}

fn foreign_over(store: &Path, stock: &mut Stock, seed: &mut Seed) {
    let foreign = stock.place("foreign");
    let mut other = Python::open(&foreign);
    other.sql("CREATE TABLE o(a)").unwrap();
    other.sql("INSERT INTO o VALUES(randomblob(9000))").unwrap();
    other.quit();
    let before = fs::read(&foreign).unwrap();
    let identity = FileId::of(&foreign);
    fs::rename(&foreign, store).unwrap();
    std::thread::sleep(Duration::from_millis(seed.below(600)));
    assert_eq!(FileId::of(store), identity, "nobody takes the other program's database away");
    assert!(fs::read(store).unwrap() == before, "and nobody writes into it");
    fs::rename(store, foreign).unwrap();
}

/// Both locks of a generation fall in some or all services, or one of them; then strangers come and go.
fn unlock(home: &Home, pids: &[u32], seed: &mut Seed) -> usize {
    let mut dropped = 0;
    let everybody = seed.one_in(2);
    for pid in pids {
        if !everybody && seed.one_in(2) {
            continue;
        }
        let which = seed.below(3);
        for (suffix, range, skip) in [("", SHARED, 1), ("-shm", DMS, 2)] {
            if which == skip {
                continue;
            }
            let Some(file) = FileId::of(&home.member(suffix)) else { continue };
            match thief::unlock(*pid, file, Some(range)) {
                Ok(n) => dropped += n,
                Err(e) => need::skip(&format!("locks of other processes cannot be dropped: {e}")),
            }
        }
    }
    for _ in 0..=seed.below(3) {
        visit(&home.store(), seed);
    }
    dropped
}

/// Somebody opens the store, looks or writes, and closes it. What it is told does not matter.
fn visit(store: &Path, seed: &mut Seed) {
    if !store.exists() {
        return;
    }
    let sql = *seed.pick(&[
        "SELECT count(*) FROM message",
        "CREATE TABLE IF NOT EXISTS visit(a); INSERT INTO visit VALUES(1)",
        "PRAGMA wal_checkpoint",
    ]);
    if seed.one_in(2) {
        drop(shell_once(store, sql));
    } else {
        let mut python = Python::open(store);
        for one in sql.split(';') {
            let _ = python.sql(one);
        }
        python.quit();
    }
}
