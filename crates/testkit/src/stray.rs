//! The adversary: a library preloaded into a process that drops its POSIX locks all the time, and can take the product's
//! lock core out of action. `programs/stray.c` says what it does; this is how a test arms a command with it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::preload;

const SOURCE: &str = include_str!("../programs/stray.c");

/// How a process is sabotaged.
#[derive(Debug, Clone)]
pub struct Stray {
    main: PathBuf,
    between: bool,
    held_back: bool,
    posix_locks: bool,
    roles: Vec<String>,
    tally: PathBuf,
}

impl Stray {
    /// Opens and closes all three files of the database at `main` around every write, flush and lock call. Each process
    /// that does so keeps its counters in `tally`, a directory.
    pub fn at(main: &Path, tally: &Path) -> Stray {
        fs::create_dir_all(tally).expect("the directory of the tallies");
        Stray {
            main: main.to_path_buf(),
            between: false,
            held_back: false,
            posix_locks: false,
            roles: Vec::new(),
            tally: tally.to_path_buf(),
        }
    }

    /// Also turns open-file-description locks into POSIX locks: the lock core is in effect off.
    #[must_use]
    pub fn without_lock_core(mut self) -> Stray {
        self.posix_locks = true;
        self
    }

    /// Opens and closes the files only between two transactions of a process, never inside one.
    #[must_use]
    pub fn between_transactions(mut self) -> Stray {
        self.between = true;
        self
    }

    /// Opens and closes nothing until [`Stray::begin`].
    #[must_use]
    pub fn held_back(mut self) -> Stray {
        self.held_back = true;
        self
    }

    /// Lets go of what was held back.
    pub fn begin(&self) {
        fs::write(self.start(), "").expect("the mark of the start");
    }

    fn start(&self) -> PathBuf {
        self.tally.join("start")
    }

    /// Acts only in processes that have one of these words as an argument.
    #[must_use]
    pub fn only_in(mut self, roles: &[&str]) -> Stray {
        self.roles = roles.iter().map(|r| (*r).to_owned()).collect();
        self
    }

    /// Arms `command` and what it starts.
    pub fn arms<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let member = |suffix: &str| {
            let mut path = self.main.clone().into_os_string();
            path.push(suffix);
            path
        };
        command.env("LD_PRELOAD", library()).env("STRAY_TALLY", &self.tally);
        command.env("STRAY_MAIN", &self.main).env("STRAY_WAL", member("-wal")).env("STRAY_SHM", member("-shm"));
        if self.held_back {
            command.env("STRAY_START", self.start());
        }
        if self.between {
            command.env("STRAY_BETWEEN", "1");
        }
        if self.posix_locks {
            command.env("STRAY_POSIX", "1");
        }
        if !self.roles.is_empty() {
            command.env("STRAY_ROLES", self.roles.join(":"));
        }
        command
    }

    /// What the process with this id has suffered so far; `None` if the library did not act in it.
    pub fn tally(&self, pid: u32) -> Option<Tally> {
        let bytes = fs::read(self.tally.join(pid.to_string())).ok()?;
        let mut words = bytes.as_chunks::<8>().0.iter().map(|c| u64::from_ne_bytes(*c));
        let mut next = || words.next().unwrap_or_default();
        Some(Tally { sweeps: next(), opened: [next(), next(), next()], translated: next(), lock_calls: next() })
    }

    /// The ids of all processes in which the library has acted.
    pub fn victims(&self) -> Vec<u32> {
        let list = fs::read_dir(&self.tally).expect("the directory of the tallies");
        list.filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok()).collect()
    }
}

/// Counters of one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often the files were opened and closed.
    pub sweeps: u64,
    /// How often each of main file, `-wal` and `-shm` could be opened.
    pub opened: [u64; 3],
    /// Locks turned into POSIX ones.
    pub translated: u64,
    /// Calls that set or released a record lock.
    pub lock_calls: u64,
}

/// The compiled library.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| preload::library("stray", SOURCE))
}
