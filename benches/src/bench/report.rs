//! The report: what was measured, where, how, and the ratios.

use std::fmt::Write;
use std::fs;
use std::process::Command;

use anyhow::{Context, Result};

use crate::Settings;
use crate::idle::{Idle, WATCHED};
use crate::load::{Figures, Line};

const OURS: &str = "statehouse";
const PEER: &str = "hermes-agent";

pub(crate) fn text(settings: &Settings, figures: &Figures, idle: &[Idle; WATCHED.len()]) -> Result<String> {
    let mut out = String::new();
    write!(
        out,
        "# Benchmarks\n\n\
         Written by `cargo xtask bench` on {date} (UTC). {machine}\n\n\
         Statehouse {version} beside hermes-agent 0.19.0, in one run, alternating ({rounds} rounds of {seconds} s each); a\n\
         disk's flush differs from minute to minute, so compare within one run only, and keep the ratio.\n\n\
         ## Three processes append to one store\n\n\
         Each store held {stored} messages before the first round. `synchronous=FULL` on both sides; a message counts when\n\
         the one who sent it was told that it is kept. \"In flight\" is for each process: ours queues so many and waits for\n\
         the oldest, the peer runs so many threads on one `SessionDB`, for its calls block. Both append the same texts\n\
         (5 to 500 words). Latency is from the call to the answer. \"Fairness\" is what the slowest process got of the\n\
         fastest one's, in the worst round.\n\n\
         | in flight | | messages/s (lowest, highest round) | p50 ms | p99 ms | max ms | fairness | failed |\n\
         |---|---|---|---|---|---|---|---|\n",
        date = jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M"),
        machine = machine(),
        version = env!("CARGO_PKG_VERSION"),
        rounds = settings.rounds,
        seconds = settings.seconds,
        stored = settings.stored,
    )?;
    let mut ratios = String::new();
    for flight in [32, 1] {
        let ours = figures.line(OURS, flight).context("our figures")?;
        let peer = figures.line(PEER, flight).context("the peer's figures")?;
        for (name, line) in [(OURS, &ours), (PEER, &peer)] {
            row(&mut out, flight, name, line)?;
        }
        let rounds = figures.ratios(OURS, PEER, flight);
        let shown: Vec<String> = rounds.iter().map(|r| format!("{r:.1}")).collect();
        writeln!(
            ratios,
            "* {flight} in flight: {:.1} times the peer's messages a second (by rounds: {}); p99 {:.2} of the peer's.",
            ours.rate / peer.rate,
            shown.join(", "),
            ours.p99 as f64 / (peer.p99.max(1)) as f64
        )?;
    }
    // Threads may cost the peer more than they bring it, so our many are also compared with its better rate.
    if let (Some(ours), Some(many), Some(one)) = (figures.line(OURS, 32), figures.line(PEER, 32), figures.line(PEER, 1))
    {
        let better = many.rate.max(one.rate);
        writeln!(
            ratios,
            "* 32 in flight against the better of the peer's two rates: {:.1} times.",
            ours.rate / better
        )?;
    }
    let mut opening = String::new();
    for (held, what) in [(false, "alone"), (true, "beside a process that has it open")] {
        for side in [OURS, PEER] {
            let (median, p99, n) = figures.opening(side, held).context("the openings")?;
            writeln!(opening, "| {what} | {side} | {:.2} | {:.2} | {n} |", millis(median), millis(p99))?;
        }
    }
    write!(
        out,
        "\n{ratios}\n\
         ## Opening a store of 100,000 messages\n\n\
         From the call that opens to the first row read, each time in a fresh process, page cache warm.\n\n\
         | | | median ms | p99 ms | times |\n|---|---|---|---|---|\n\
         {opening}\n\
         ## An idle gateway and an idle anchor\n\n\
         In the house as `statehouse up` runs it, for {seconds} s without a client.\n\n\
         | | MB resident | % of a core |\n|---|---|---|\n",
        seconds = idle[0].seconds,
    )?;
    for (name, idle) in WATCHED.iter().zip(idle) {
        writeln!(out, "| {name} | {:.1} | {:.2} |", idle.resident as f64 / 1e6, idle.core)?;
    }
    writeln!(out, "\nThe peer has no process that does only this, so there is no ratio.")?;
    Ok(out)
}

fn row(out: &mut String, flight: u32, name: &str, line: &Line) -> Result<()> {
    writeln!(
        out,
        "| {flight} | {name} | {:.0} ({:.0}, {:.0}) | {:.2} | {:.2} | {:.1} | {:.2} | {} |",
        line.rate,
        line.lowest,
        line.highest,
        millis(line.p50),
        millis(line.p99),
        millis(line.max),
        line.least_share,
        line.failures
    )?;
    Ok(())
}

fn millis(microseconds: u64) -> f64 {
    microseconds as f64 / 1000.0
}

fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpu = read("/proc/cpuinfo");
    let model = cpu
        .lines()
        .find_map(|l| l.strip_prefix("model name"))
        .map_or("unknown processor", |l| l.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let memory = read("/proc/meminfo")
        .lines()
        .find_map(|l| l.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let filesystem = Command::new("stat")
        .args(["--file-system", "--format=%T"])
        .arg(std::env::temp_dir())
        .output()
        .map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
        .unwrap_or_default();
    format!("Machine: {model}, {cores} cores, {:.0} GB, Linux {}, {filesystem}.", memory as f64 / 1e6, kernel.trim())
}
