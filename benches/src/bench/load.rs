//! The two sides of a comparison, and the load of three processes on one store.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use statehouse_testkit::{Child, run};

const PROCESSES: usize = 3;
const PATIENCE: Duration = Duration::from_secs(300);

/// One of the two that are compared.
pub(crate) struct Side {
    name: &'static str,
    program: PathBuf,
    first_arguments: Vec<OsString>,
    room: PathBuf,
    texts: PathBuf,
}

impl Side {
    pub(crate) fn ours(room: &Path, texts: &Path) -> Result<Side> {
        let program = std::env::current_exe().context("where this program is")?;
        Side::new("statehouse", program, vec!["ours".into()], room, texts)
    }

    pub(crate) fn peer(room: &Path, texts: &Path, python: PathBuf) -> Result<Side> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bench/peer.py");
        Side::new("hermes-agent", python, vec![script.into()], room, texts)
    }

    fn new(name: &'static str, program: PathBuf, first: Vec<OsString>, room: &Path, texts: &Path) -> Result<Side> {
        let room = room.join(name);
        std::fs::create_dir(&room)?;
        Ok(Side { name, program, first_arguments: first, room, texts: texts.to_owned() })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    fn command(&self, action: &str, store: &str, rest: &[&str]) -> Command {
        let directory = self.room.join(store);
        let mut command = Command::new(&self.program);
        command.args(&self.first_arguments).arg(action).arg(directory.join("state.db")).args(rest);
        command.env("HERMES_HOME", &directory).current_dir(&self.room);
        command
    }

    fn texts(&self) -> &str {
        self.texts.to_str().unwrap_or_default()
    }

    pub(crate) fn seed(&self, store: &str, count: u64) -> Result<()> {
        std::fs::create_dir(self.room.join(store))?;
        run(&mut self.command("seed", store, &[&count.to_string(), self.texts()]), PATIENCE).success();
        Ok(())
    }

    /// Three processes append at the same time; each begins when all have opened the store.
    pub(crate) fn append(&self, store: &str, flight: u32, seconds: f64, run: &str) -> Result<Appended> {
        let (duration, flight) = (seconds.to_string(), flight.to_string());
        let mut children: Vec<Child> = (0..PROCESSES)
            .map(|n| {
                let name = format!("bench-{run}-{n}");
                let rest = [name.as_str(), self.texts(), duration.as_str(), flight.as_str()];
                Child::spawn(&mut self.command("append", store, &rest))
            })
            .collect();
        for child in &mut children {
            child.line_where("ready", PATIENCE, |line| line == "ready");
        }
        let begun = Instant::now();
        for child in &mut children {
            child.send("go");
        }
        let mut appended = Appended::default();
        for child in &mut children {
            let line = child.line_where("the latencies", PATIENCE, |line| line.starts_with('{'));
            let value: Value = serde_json::from_str(&line)?;
            let latencies: Vec<u64> =
                value["latencies"].as_array().into_iter().flatten().filter_map(Value::as_u64).collect();
            appended.by_process.push(latencies.len() as u64);
            appended.latencies.extend(latencies);
            appended.failures += value["failures"].as_array().map_or(0, Vec::len);
        }
        // The last answer may come after the time is over; what is counted is divided by all of it.
        appended.seconds = begun.elapsed().as_secs_f64();
        for child in &mut children {
            child.wait(PATIENCE);
        }
        Ok(appended)
    }

    /// A process that has the store open and does nothing, until it is dropped.
    pub(crate) fn hold(&self, store: &str) -> Child {
        let rest = ["bench-holder", self.texts(), "0", "1"];
        let mut child = Child::spawn(&mut self.command("append", store, &rest));
        child.line_where("ready", PATIENCE, |line| line == "ready");
        child
    }

    /// Microseconds to open a store in a fresh process and read from it.
    pub(crate) fn open(&self, store: &str) -> Result<u64> {
        let done = run(&mut self.command("open", store, &[]), PATIENCE).success();
        done.json().as_u64().context("a number of microseconds")
    }
}

/// What three processes did in one run.
#[derive(Debug, Default)]
pub(crate) struct Appended {
    pub(crate) seconds: f64,
    pub(crate) latencies: Vec<u64>,
    pub(crate) by_process: Vec<u64>,
    pub(crate) failures: usize,
}

/// Everything that was measured.
#[derive(Debug, Default)]
pub(crate) struct Figures {
    appended: BTreeMap<(&'static str, u32), Vec<Appended>>,
    opened: BTreeMap<(&'static str, bool), Vec<u64>>,
}

/// One line of the table of appends.
pub(crate) struct Line {
    pub(crate) rate: f64,
    pub(crate) lowest: f64,
    pub(crate) highest: f64,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
    pub(crate) least_share: f64,
    pub(crate) failures: usize,
}

impl Figures {
    pub(crate) fn appended(&mut self, side: &'static str, flight: u32, run: Appended) {
        self.appended.entry((side, flight)).or_default().push(run);
    }

    /// `held`: another process had it open.
    pub(crate) fn opened(&mut self, side: &'static str, held: bool, microseconds: u64) {
        self.opened.entry((side, held)).or_default().push(microseconds);
    }

    /// All runs of one side taken together.
    pub(crate) fn line(&self, side: &'static str, flight: u32) -> Option<Line> {
        let runs = self.appended.get(&(side, flight))?;
        let mut all: Vec<u64> = runs.iter().flat_map(|r| r.latencies.iter().copied()).collect();
        all.sort_unstable();
        let seconds: f64 = runs.iter().map(|r| r.seconds).sum();
        let rates = runs.iter().map(|r| r.latencies.len() as f64 / r.seconds);
        let shares = runs.iter().filter_map(|r| {
            let (least, most) = (r.by_process.iter().min()?, r.by_process.iter().max()?);
            Some(*least as f64 / (*most).max(1) as f64)
        });
        Some(Line {
            rate: all.len() as f64 / seconds,
            lowest: rates.clone().fold(f64::INFINITY, f64::min),
            highest: rates.fold(0.0, f64::max),
            p50: at(&all, 0.5),
            p99: at(&all, 0.99),
            max: all.last().copied().unwrap_or_default(),
            least_share: shares.fold(f64::INFINITY, f64::min),
            failures: runs.iter().map(|r| r.failures).sum(),
        })
    }

    /// How many times the peer's messages a second ours were, in each round: the two ran within the same seconds.
    pub(crate) fn ratios(&self, ours: &'static str, peer: &'static str, flight: u32) -> Vec<f64> {
        let rate = |r: &Appended| r.latencies.len() as f64 / r.seconds;
        let runs = |side| self.appended.get(&(side, flight)).map(Vec::as_slice).unwrap_or_default();
        let mut ratios: Vec<f64> =
            runs(ours).iter().zip(runs(peer)).map(|(o, p)| rate(o) / rate(p).max(f64::MIN_POSITIVE)).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }

    /// Median, 99th percentile and number of the openings of one side, in microseconds.
    pub(crate) fn opening(&self, side: &'static str, held: bool) -> Option<(u64, u64, usize)> {
        let mut all = self.opened.get(&(side, held))?.clone();
        all.sort_unstable();
        Some((at(&all, 0.5), at(&all, 0.99), all.len()))
    }
}

fn at(sorted: &[u64], fraction: f64) -> u64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get(((last as f64) * fraction).round() as usize).copied().unwrap_or_default()
}
