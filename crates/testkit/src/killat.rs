//! A process that is killed right before the call that would change something on the disk for the N-th time.
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

/// Runs `command`, and kills it right before its `n`-th change; never if `n` is 0. `notes` is a file for what was seen.
pub fn run_killed(command: &Command, n: u64, notes: &Path) -> Killed {
    let mut armed = Command::new(program());
    let arguments: Vec<OsString> = [n.to_string().into(), notes.into(), command.get_program().to_owned()].into();
    armed.args(arguments).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => armed.env(name, value),
            None => armed.env_remove(name),
        };
    }
    let finished = run(&mut armed, DEADLINE);
    let text = fs::read_to_string(notes).expect("what was seen");
    let (at, call) = text.trim().split_once(' ').expect("a number and a name");
    let call = Some(call.to_owned()).filter(|c| c != "end");
    Killed { at: at.parse().expect("a number"), call, finished }
}
