//! What a developer runs: `cargo xtask setup | test | bench | fuzz`.
//!
//! A newcomer has Rust, a C compiler and Python. `setup` adds the rest once (the peer that the tests drive for real,
//! and a few Debian packages), outside the checkout, so that a fresh clone finds it already there. What cannot be had
//! is said on stderr and its tests skip visibly; with `CI=true` it is a failure, so that nothing is green by absence.

mod setup;

use std::env;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: cargo xtask COMMAND

  setup                         install what the tests need, once: the peer package and a few Debian packages
  test [ARGS]                   setup, build everything, run every test; ARGS go to `cargo test`
  bench [ARGS]                  setup, then side by side with the peer; writes docs/benchmarks.md
  bench holders [ARGS]          finding who uses a database, beside lsof and fuser; writes its part of docs/benchmarks.md
  bench retired [ARGS]          capturing what a ghost wrote, and comparing it; writes its part of docs/benchmarks.md
  bench snapshot [ARGS]         a snapshot beside one plain VACUUM INTO and one plain backup; writes its part of docs/benchmarks.md
  fuzz [--seconds N] [--seed S] seeded random input through the public doors, bounded in time";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<ExitCode> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let Some((command, rest)) = arguments.split_first() else { bail!("{USAGE}") };
    match command.as_str() {
        "setup" => {
            let peers = setup::run()?;
            eprintln!("setup: everything for the tests is in place ({})", peers.display());
            Ok(ExitCode::SUCCESS)
        }
        "test" => {
            let peers = setup::run()?;
            let built = cargo(&["build", "--workspace"]).status().context("cannot start cargo")?;
            if !built.success() {
                return Ok(exit_code(built));
            }
            // Every byte of the report is cargo's own, down to its last line: other programs read it.
            let status = cargo(&["test", "--workspace"])
                .args(rest)
                .env("STATEHOUSE_PEERS", peers)
                .status()
                .context("cannot start cargo")?;
            Ok(exit_code(status))
        }
        "bench" => {
            let peers = setup::run()?;
            // The product too: one of the measurements watches it run.
            let built = cargo(&["build", "--release", "--quiet", "--package", "statehouse"]).status();
            let built = built.context("cannot start cargo")?;
            if !built.success() {
                return Ok(exit_code(built));
            }
            let status =
                cargo(&["run", "--release", "--quiet", "--package", "statehouse-benches", "--bin", "bench", "--"])
                    .args(rest)
                    .env("STATEHOUSE_PEERS", peers)
                    .status()
                    .context("cannot start cargo")?;
            Ok(exit_code(status))
        }
        "fuzz" => {
            let status = cargo(&["run", "--quiet", "--package", "statehouse-benches", "--bin", "fuzz", "--"])
                .args(rest)
                .status()
                .context("cannot start cargo")?;
            Ok(exit_code(status))
        }
        "help" | "--help" | "-h" => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        other => bail!("there is no command {other:?}\n{USAGE}"),
    }
}

/// The cargo that runs this program, at the root of the workspace.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    command
}

fn exit_code(status: std::process::ExitStatus) -> ExitCode {
    ExitCode::from(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1))
}
