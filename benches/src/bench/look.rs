//! How long it takes to find who uses a database: `statehouse holders` beside `lsof` and `fuser`, in one run, alternating.
//! Run by `cargo xtask bench holders`.
//!
//! Once beside the processes that the machine has anyhow, and once beside 300 more with 100 descriptors each. Each side is a
//! process that starts, looks, prints and ends, as a person would run it. Only the ratio is worth keeping.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use statehouse_sqlite::rusqlite::Connection;

const PROCESSES: usize = 300;
const DESCRIPTORS: usize = 100;

/// The heading under which the figures stand in the report of all benchmarks.
pub(crate) const HEADING: &str = "## Finding who uses a database";

/// Starts processes that have files open and do nothing; they end when their standard input does.
const CROWD: &str = "
import os, sys
n, d, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
for _ in range(n):
    if os.fork() == 0:
        for _ in range(d):
            os.open(path, os.O_RDONLY)
        sys.stdout.write('.\\n')
        sys.stdout.flush()
        sys.stdin.buffer.read()
        os._exit(0)
sys.stdin.buffer.read()
";

/// A crowd that ends with this value.
struct Crowd(Child);

impl Crowd {
    fn start(file: &Path) -> Result<Crowd> {
        let mut command = Command::new("python3");
        command.args(["-c", CROWD]).args([PROCESSES.to_string(), DESCRIPTORS.to_string()]).arg(file);
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start python3")?;
        let mut crowd = Crowd(child);
        let ready = BufReader::new(crowd.0.stdout.take().context("its output is a pipe")?);
        ensure!(ready.lines().take(PROCESSES).filter_map(Result::ok).count() == PROCESSES, "a process did not start");
        Ok(crowd)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

struct Side {
    name: &'static str,
    program: PathBuf,
    arguments: &'static [&'static str],
    milliseconds: Vec<f64>,
}

impl Side {
    fn look(&mut self, database: &Path) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.args(self.arguments).arg(database).stdout(Stdio::null()).stderr(Stdio::null());
        let begun = Instant::now();
        let status = command.status().with_context(|| format!("cannot start {}", self.program.display()))?;
        self.milliseconds.push(begun.elapsed().as_secs_f64() * 1000.0);
        ensure!(status.success(), "{} failed: {status}", self.name);
        Ok(())
    }

    fn median(&mut self) -> f64 {
        self.milliseconds.sort_by(f64::total_cmp);
        self.milliseconds.get(self.milliseconds.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

fn sides() -> Result<[Side; 3]> {
    let side = |name, program, arguments| Side { name, program, arguments, milliseconds: Vec::new() };
    Ok([
        side("statehouse holders", crate::idle::binary()?, &["holders"]),
        side("lsof", "lsof".into(), &[]),
        side("fuser", "fuser".into(), &[]),
    ])
}

/// Measures, and gives the text for the report.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let mut rounds = 15;
    let mut report = true;
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match *argument {
            "--rounds" => rounds = arguments.next().context("--rounds needs a value")?.parse()?,
            "--no-report" => report = false,
            _ => bail!("usage: cargo xtask bench holders [--rounds N] [--no-report]"),
        }
    }
    ensure!(rounds > 0, "at least one round");
    let room = tempfile::Builder::new().prefix("statehouse-bench-").tempdir()?;
    let database = room.path().join("s.db");
    let connection = Connection::open(&database)?;
    connection.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x); INSERT INTO t VALUES(1)")?;
    let text = text(rounds, &database, room.path())?;
    drop(connection);
    println!("{text}");
    if report { publish(HEADING, &text) } else { Ok(()) }
}

/// Puts a section of its own into the report of all benchmarks.
pub(crate) fn publish(heading: &str, text: &str) -> Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/benchmarks.md");
    let before = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    std::fs::write(&path, replaced(&before, heading, text)).with_context(|| format!("cannot write {}", path.display()))
}

fn text(rounds: u32, database: &Path, room: &Path) -> Result<String> {
    let mut out = format!(
        "{HEADING}\n\nWritten by `cargo xtask bench holders` on {} (UTC): milliseconds from start to end of the process, \
         median of {rounds}, alternating.\n\n| beside | statehouse holders | lsof | fuser |\n|---|---|---|---|\n",
        jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M")
    );
    for (name, crowded) in [
        ("nothing else".to_owned(), false),
        (format!("{PROCESSES} processes with {DESCRIPTORS} descriptors each"), true),
    ] {
        let file = room.join("open by many");
        std::fs::write(&file, "x")?;
        let _crowd = if crowded { Some(Crowd::start(&file)?) } else { None };
        let mut sides = sides()?;
        for _ in 0..rounds {
            for side in &mut sides {
                side.look(database)?;
            }
        }
        let [ours, lsof, fuser] = sides.each_mut().map(Side::median);
        out.push_str(&format!(
            "| {name} | {ours:.1} | {lsof:.1} ({:.2}) | {fuser:.1} ({:.2}) |\n",
            ours / lsof,
            ours / fuser
        ));
    }
    out.push_str("\nIn parentheses: what `statehouse holders` takes of it.\n");
    Ok(out)
}

/// A report with this section in the place of an older one.
fn replaced(report: &str, heading: &str, section: &str) -> String {
    let before = report.find(heading).map_or(report, |at| &report[..at]);
    let rest = report.get(before.len()..).unwrap_or("");
    let after = rest.get(heading.len()..).and_then(|r| r.find("\n## ").map(|at| &r[at..])).unwrap_or("");
    format!("{}\n\n{section}{after}", before.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_section_is_replaced() {
        let section = format!("{HEADING}\n\nnew\n");
        let once = replaced("# B\n\n## Other\n\nx\n", HEADING, &section);
        assert_eq!(once, format!("# B\n\n## Other\n\nx\n\n{section}"));
        assert_eq!(replaced(&once, HEADING, &section), once);
        let middle = format!("# B\n\n{HEADING}\n\nold\n\n## Other\n\nx\n");
        assert_eq!(replaced(&middle, HEADING, &section), format!("# B\n\n{section}\n## Other\n\nx\n"));
    }
}
