//! What it costs to save what a ghost wrote, and to say what of it is missing: `statehouse retired capture` and `retired show` beside
//! `cp` of the same bytes, in one run, alternating. Run by `cargo xtask bench retired`.
//!
//! The ghost is another program's process whose sidecars were unlinked and whose log is 40 MB long; once its database is
//! small, so that the log is what is measured, and once it has 536 MB.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

/// The heading under which the figures stand in the report of all benchmarks.
const HEADING: &str = "## Saving what a ghost wrote";

/// Makes a database of so many MB, loses its sidecars, writes a log of 40 MB, and one row more for each line of its input.
const GHOST: &str = "
import os, sqlite3, sys
path, size = sys.argv[1], int(sys.argv[2]) * 1000000
c = sqlite3.connect(path, isolation_level=None)
c.execute('PRAGMA journal_mode=WAL')
c.execute('PRAGMA synchronous=OFF')
c.execute('CREATE TABLE message(id INTEGER PRIMARY KEY, session INTEGER NOT NULL, role TEXT NOT NULL, text TEXT NOT NULL)')
c.execute('CREATE INDEX message_session ON message(session, id)')
def add(n):
    c.execute('WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) INSERT INTO message(session, role, text) '
              'SELECT i % 500, \\'user\\', hex(randomblob(50 + abs(random() % 600))) FROM n', (n,))
while os.path.getsize(path) < size:
    add(10000)
    c.execute('PRAGMA wal_checkpoint(TRUNCATE)').fetchall()
c.execute('PRAGMA wal_autocheckpoint=0')
log = path + '-wal'
add(1)
at = os.open(log, os.O_RDONLY)
os.unlink(log)
os.unlink(path + '-shm')
while os.fstat(at).st_size < 40000000:
    add(500)
os.close(at)
print('open', flush=True)
for line in sys.stdin:
    add(1)
    print('done', flush=True)
";

struct Ghost {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Ghost {
    fn start(database: &Path, megabytes: u64) -> Result<Ghost> {
        let mut command = Command::new("python3");
        command.args(["-c", GHOST]).arg(database).arg(megabytes.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("cannot start python3")?;
        let lines = BufReader::new(child.stdout.take().context("its output is a pipe")?).lines();
        let mut ghost = Ghost { child, lines };
        ghost.hears("open")?;
        Ok(ghost)
    }

    fn hears(&mut self, word: &str) -> Result<()> {
        let line = self.lines.next().context("the ghost ended")??;
        ensure!(line == word, "the ghost said {line}");
        Ok(())
    }

    /// Otherwise the next capture has nothing to do.
    fn writes(&mut self) -> Result<()> {
        writeln!(self.child.stdin.as_mut().context("its input is a pipe")?)?;
        self.hears("done")
    }
}

impl Drop for Ghost {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn seconds(command: &mut Command) -> Result<(f64, Vec<u8>)> {
    let begun = Instant::now();
    let done = command.output().with_context(|| format!("cannot start {command:?}"))?;
    let took = begun.elapsed().as_secs_f64();
    ensure!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stdout));
    Ok((took, done.stdout))
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Measures, and gives the text for the report.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (mut rounds, mut megabytes, mut report) = (5_u32, 536_u64, true);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match *argument {
            "--rounds" => rounds = value()?.parse()?,
            "--mb" => megabytes = value()?.parse()?,
            "--no-report" => report = false,
            _ => bail!("usage: cargo xtask bench retired [--rounds N] [--mb N] [--no-report]"),
        }
    }
    ensure!(rounds > 0, "at least one round");
    let mut text = format!(
        "{HEADING}\n\nWritten by `cargo xtask bench retired` on {} (UTC): seconds from start to end of the process, page cache warm, \
         median of {rounds}, alternating; a log of 40 MB that another process has in a deleted file. A capture flushes what it \
         copies and has SQLite check its image; `cp` and `sync` are the copying and flushing of the same files alone.\n\n\
         | database | retired capture | cp and sync | retired show |\n|---|---|---|---|\n",
        jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M")
    );
    for size in [1, megabytes] {
        text.push_str(&row(rounds, size)?);
    }
    println!("{text}");
    if report { crate::look::publish(HEADING, &text) } else { Ok(()) }
}

fn row(rounds: u32, megabytes: u64) -> Result<String> {
    let room = tempfile::Builder::new().prefix("statehouse-bench-").tempdir()?;
    let database = room.path().join("s.db");
    let mut ghost = Ghost::start(&database, megabytes)?;
    let program = crate::idle::binary()?;
    let ours = |words: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("--json").arg("retired").args(words).arg(&database).env("STATEHOUSE_HOME", "/nonexistent");
        command
    };
    let pid = ghost.child.id().to_string();
    let (mut captures, mut copies, mut shows) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=rounds {
        ghost.writes()?;
        let (capture, answer) = seconds(&mut ours(&["capture", "--pid", &pid]))?;
        let answer: serde_json::Value = serde_json::from_slice(&answer)?;
        let field = |name: &str| answer["captures"][0][name].as_str().map(str::to_owned);
        let (place, id) = (PathBuf::from(field("place").context("a place")?), field("id").context("an id")?);
        let copy = room.path().join("copy");
        let mut plain = Command::new("sh");
        plain.args(["-c", "mkdir \"$2\" && cp \"$1\"/*.captured \"$2\" && sync \"$2\"/*", "sh"]).arg(&place).arg(&copy);
        let (copied, _) = seconds(&mut plain)?;
        std::fs::remove_dir_all(&copy)?;
        let (shown, _) = seconds(&mut ours(&["show", &id]))?;
        std::fs::remove_dir_all(&place)?;
        // The first round warms the page cache.
        if round > 0 {
            captures.push(capture);
            copies.push(copied);
            shows.push(shown);
        }
    }
    Ok(format!(
        "| {megabytes} MB | {:.2} | {:.2} | {:.2} |\n",
        median(&mut captures),
        median(&mut copies),
        median(&mut shows)
    ))
}
