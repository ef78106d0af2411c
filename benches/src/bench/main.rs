//! Side by side with hermes-agent 0.19.0, in one run, alternating: what a message costs, what opening costs, and what an
//! idle gateway and an idle anchor cost. Run by `cargo xtask bench`.
//!
//! A disk's flush can differ tenfold from minute to minute, so each number stands beside the peer's of the same minute,
//! and only the ratio is worth keeping. Both sides append to a store that already holds messages, from three processes
//! at once, and a message counts when the one who sent it has been told that it is kept.

mod idle;
mod load;
mod look;
mod ours;
mod report;
mod retired;
mod snapshot;
mod texts;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};

use crate::load::{Figures, Side};

const USAGE: &str = "usage: cargo xtask bench [--seconds N] [--rounds N] [--stored N] [--idle-seconds N] [--no-report]
       cargo xtask bench holders [--rounds N] [--no-report]
       cargo xtask bench retired [--rounds N] [--mb N] [--no-report]
       cargo xtask bench snapshot [--rounds N] [--mib N] [--no-report]";

/// How long, how often, and on how much.
pub(crate) struct Settings {
    pub(crate) seconds: f64,
    pub(crate) rounds: u32,
    pub(crate) stored: u64,
    pub(crate) idle_seconds: u64,
    pub(crate) report: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        // What the orchestrating process starts.
        ["ours", "seed", store, count, texts] => ours::seed(Path::new(store), count, Path::new(texts)),
        ["ours", "append", store, name, texts, seconds, flight] => {
            ours::append(Path::new(store), name, Path::new(texts), seconds, flight)
        }
        ["ours", "open", store] => ours::open(Path::new(store)),
        ["holders", options @ ..] => look::run(options),
        ["retired", options @ ..] => retired::run(options),
        ["snapshot", "write", database, out] => snapshot::write(Path::new(database), Path::new(out)),
        ["snapshot", options @ ..] => snapshot::run(options),
        options => settings(options).and_then(|s| all(&s)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("bench: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn settings(options: &[&str]) -> Result<Settings> {
    let mut settings = Settings { seconds: 6.0, rounds: 3, stored: 17_000, idle_seconds: 20, report: true };
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let mut value = || options.next().with_context(|| format!("{option} needs a value\n{USAGE}"));
        match *option {
            "--seconds" => settings.seconds = value()?.parse()?,
            "--rounds" => settings.rounds = value()?.parse()?,
            "--stored" => settings.stored = value()?.parse()?,
            "--idle-seconds" => settings.idle_seconds = value()?.parse()?,
            "--no-report" => settings.report = false,
            _ => bail!("{USAGE}"),
        }
    }
    ensure!(settings.rounds > 0 && settings.seconds > 0.0, "{USAGE}");
    Ok(settings)
}

/// Where the set-up put the peer.
fn peer_python() -> Result<PathBuf> {
    let peers = std::env::var_os("STATEHOUSE_PEERS").context("run this by `cargo xtask bench`")?;
    let python = Path::new(&peers).join("hermes-agent/bin/python");
    ensure!(python.is_file(), "the peer is not installed: {}", python.display());
    Ok(python)
}

fn all(settings: &Settings) -> Result<()> {
    let room = tempfile::Builder::new().prefix("statehouse-bench-").tempdir()?;
    let texts = room.path().join("texts");
    std::fs::write(&texts, texts::lines(4000).join("\n"))?;
    let ours = Side::ours(room.path(), &texts)?;
    let peer = Side::peer(room.path(), &texts, peer_python()?)?;
    eprintln!("bench: storing {} messages on each side", settings.stored);
    for side in [&ours, &peer] {
        side.seed("appending", settings.stored)?;
        side.seed("opening", 100_000)?;
    }

    let mut figures = Figures::default();
    for round in 1..=settings.rounds {
        for (flight, name) in [(32, "many"), (1, "one")] {
            for side in [&ours, &peer] {
                eprintln!("bench: round {round} of {}: {} with {flight} in flight", settings.rounds, side.name());
                let run = side.append("appending", flight, settings.seconds, &format!("{name}-{round}"))?;
                figures.appended(side.name(), flight, run);
            }
        }
        for side in [&ours, &peer] {
            for _ in 0..20 {
                figures.opened(side.name(), false, side.open("opening")?);
            }
            let holder = side.hold("opening");
            for _ in 0..20 {
                figures.opened(side.name(), true, side.open("opening")?);
            }
            drop(holder);
        }
    }
    eprintln!("bench: watching an idle house for {} s", settings.idle_seconds);
    let idle = idle::services(settings.idle_seconds)?;
    let text = report::text(settings, &figures, &idle)?;
    println!("{text}");
    if settings.report {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks.md");
        // What another measurement has written there stays.
        let before = std::fs::read_to_string(&path).unwrap_or_default();
        let kept = before.find(look::HEADING).map(|at| format!("\n{}", &before[at..])).unwrap_or_default();
        std::fs::write(&path, format!("{}\n{kept}", text.trim_end()))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}
