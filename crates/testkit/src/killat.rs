//! A process that is killed right before the call that would change something on the disk for the N-th time, or for which that
//! call fails with an I/O error.
//!
//! So that "killed at every stage" means each of them, and not those that a clock happens to hit: what a command does to the
//! disk is counted in one run, and then it is run again and killed at each of these calls.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::preload;
use crate::process::{Finished, run};
use crate::visitor::DEADLINE;

const SOURCE: &str = include_str!("../programs/killat.c");

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| preload::program("killat", SOURCE))
}

/// What became of a run.
#[derive(Debug)]
pub struct Killed {
    /// Which of its changing calls was not made; after a run to its end, how many there were.
    pub at: u64,
    /// The name of that call; `None` if it ran to its end.
    pub call: Option<String>,
    /// Its answer.
    pub finished: Finished,
}

/// What became of a run in which a call failed.
#[derive(Debug)]
pub struct Failing {
    /// How many changing calls there were, those that failed among them.
    pub calls: u64,
    /// The name of the first one that failed; `None` if there were fewer.
    pub call: Option<String>,
    /// The file that it was about, as it named it; without a directory where it named that by a descriptor.
    pub file: String,
    /// Its answer.
    pub finished: Finished,
}

/// How a disk fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// One call fails, and the next one is made again.
    Once,
    /// From that call on none is made any more.
    Dead,
}

/// Runs `command`, and kills it right before its `n`-th change; never if `n` is 0. `notes` is a file for what was seen.
pub fn run_killed(command: &Command, n: u64, notes: &Path) -> Killed {
    let finished = traced("kill", command, n, notes);
    let text = fs::read_to_string(notes).expect("what was seen");
    let (at, call, _) = seen(&text);
    Killed { at, call, finished }
}

/// Runs `command`, whose `n`-th change is not made and answers EIO; none if `n` is 0. `notes` is a file for what was seen.
pub fn run_failing(command: &Command, fault: Fault, n: u64, notes: &Path) -> Failing {
    let how = if fault == Fault::Once { "fail" } else { "dead" };
    let finished = traced(how, command, n, notes);
    let text = fs::read_to_string(notes).expect("what was seen");
    let (calls, call, file) = seen(&text);
    Failing { calls, call, file, finished }
}

fn seen(text: &str) -> (u64, Option<String>, String) {
    let mut words = text.trim_end_matches('\n').splitn(3, ' ');
    let number = words.next().and_then(|n| n.parse().ok()).expect("a number");
    let call = words.next().expect("a name").to_owned();
    (number, Some(call).filter(|c| c != "end"), words.next().unwrap_or_default().to_owned())
}

fn traced(how: &str, command: &Command, n: u64, notes: &Path) -> Finished {
    let mut armed = Command::new(program());
    let own: Vec<OsString> = [how.into(), n.to_string().into(), notes.into(), command.get_program().to_owned()].into();
    armed.args(own).args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        armed.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => armed.env(name, value),
            None => armed.env_remove(name),
        };
    }
    run(&mut armed, DEADLINE)
}
