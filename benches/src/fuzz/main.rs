//! Random input through the public doors, bounded in time. Run by `cargo xtask fuzz [--seconds N] [--seed S]`.
//!
//! This is seeded generation and mutation, **not** coverage-guided fuzzing: it finds what a careless or hostile client,
//! a torn log or a damaged store can do in minutes, and each run can be repeated by its seed. Every target has an
//! oracle beyond "did not panic", stated in its file.

mod holders;
mod http;
mod import;
mod log;
mod mutate;
mod pages;
mod search;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use statehouse_testkit::Seed;

const USAGE: &str = "usage: cargo xtask fuzz [--seconds N] [--seed S] [--only http|log|pages|search|import|holders]";

/// How long a target may run, and where its randomness comes from.
pub(crate) struct Budget {
    end: Instant,
    pub(crate) seed: Seed,
    rounds: u64,
}

impl Budget {
    /// True while there is time; counts the rounds.
    pub(crate) fn more(&mut self) -> bool {
        let more = Instant::now() < self.end;
        self.rounds += u64::from(more);
        more
    }
}

type Target = fn(&mut Budget) -> Result<()>;

const TARGETS: &[(&str, Target)] = &[
    ("http", http::run),
    ("log", log::run),
    ("pages", pages::run),
    ("search", search::run),
    ("import", import::run),
    ("holders", holders::run),
];

fn main() -> ExitCode {
    match all() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("fuzz: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn all() -> Result<()> {
    let (mut seconds, mut seed, mut only) = (60_u64, None, None);
    let mut options = std::env::args().skip(1);
    while let Some(option) = options.next() {
        let mut value = || options.next().with_context(|| format!("{option} needs a value\n{USAGE}"));
        match option.as_str() {
            "--seconds" => seconds = value()?.parse().context(USAGE)?,
            "--seed" => seed = Some(value()?.parse().context(USAGE)?),
            "--only" => only = Some(value()?),
            _ => bail!("{USAGE}"),
        }
    }
    let first: u64 = seed.unwrap_or_else(|| Seed::of_run("fuzz").bits());
    let chosen: Vec<_> = TARGETS.iter().filter(|(name, _)| only.as_ref().is_none_or(|o| o == name)).collect();
    if chosen.is_empty() {
        bail!("{USAGE}");
    }
    let each = Duration::from_secs(seconds) / u32::try_from(chosen.len())?;
    for (name, target) in chosen {
        // A target's randomness does not depend on which others run, so that a failure can be repeated alone.
        let seed = Seed::new(first ^ name.bytes().fold(0, |h: u64, b| h.wrapping_mul(131).wrapping_add(b.into())));
        let mut budget = Budget { end: Instant::now() + each, seed, rounds: 0 };
        // A panic is a find like any other, and its seed must be said too.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| target(&mut budget)));
        outcome
            .unwrap_or_else(|_| Err(anyhow::anyhow!("it panicked; the place stands above")))
            .with_context(|| format!("{name}, after {} rounds; repeat with --seed {first}", budget.rounds))?;
        println!("fuzz: {name}: {} rounds, nothing found (--seed {first})", budget.rounds);
    }
    Ok(())
}
