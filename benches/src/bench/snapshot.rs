//! What a snapshot costs: `snapshots::take` with all its proofs beside one plain `VACUUM INTO` and one plain backup in a single
//! step, in one run, alternating, and what a writer in another process notices of each. Run by `cargo xtask bench snapshot`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use statehouse_ops::snapshots::{self, Wish};
use statehouse_sqlite::rusqlite::backup::Backup;
use statehouse_sqlite::rusqlite::{Connection, OpenFlags};

/// The heading under which the figures stand in the report of all benchmarks.
const HEADING: &str = "## A snapshot";

/// What is compared, in the order in which it is done.
const SIDES: [&str; 4] = ["nothing", "VACUUM INTO", "backup in one step", "statehouse snapshot"];

fn now() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros()
}

/// A writer: one row a commit, `synchronous=FULL`, 200 a second, until its standard input ends; when each began and how long
/// it took go to `out`.
pub(crate) fn write(database: &Path, out: &Path) -> Result<()> {
    let connection = Connection::open(database)?;
    connection.busy_timeout(Duration::from_secs(30))?;
    connection.execute_batch("PRAGMA synchronous=FULL")?;
    let mut out = std::io::BufWriter::new(std::fs::File::create(out)?);
    let (gone, end) = std::sync::mpsc::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop(gone);
    });
    let pause = Duration::from_millis(5);
    while end.recv_timeout(pause) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
        let (at, begun) = (now(), Instant::now());
        connection.execute("INSERT INTO message(session, role, text) VALUES(1, 'user', hex(randomblob(200)))", [])?;
        writeln!(out, "{at} {}", begun.elapsed().as_micros())?;
    }
    out.flush()?;
    Ok(())
}

struct Writer {
    child: Child,
    out: PathBuf,
}

impl Writer {
    fn start(database: &Path, out: PathBuf) -> Result<Writer> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["snapshot", "write"]).arg(database).arg(&out).stdin(Stdio::piped());
        Ok(Writer { child: command.spawn().context("cannot start a writer")?, out })
    }

    fn end(mut self) -> Result<Vec<(u128, u64)>> {
        drop(self.child.stdin.take());
        ensure!(self.child.wait()?.success(), "the writer failed");
        let text = std::fs::read_to_string(&self.out)?;
        let line = |l: &str| -> Option<(u128, u64)> {
            let (at, took) = l.split_once(' ')?;
            Some((at.parse().ok()?, took.parse().ok()?))
        };
        Ok(text.lines().filter_map(line).collect())
    }
}

/// A store of about so many MiB: messages with an index, as such stores are.
fn fill(database: &Path, mib: u64) -> Result<()> {
    let connection = Connection::open(database)?;
    connection.execute_batch(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;
         CREATE TABLE message(id INTEGER PRIMARY KEY, session INTEGER NOT NULL, role TEXT NOT NULL, text TEXT NOT NULL);
         CREATE INDEX message_session ON message(session, id);",
    )?;
    while std::fs::metadata(database)?.len() < mib << 20 {
        connection.execute_batch(
            "INSERT INTO message(session, role, text)
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
             SELECT i % 500, 'user', hex(randomblob(50 + abs(random() % 600))) FROM n;
             PRAGMA wal_checkpoint(TRUNCATE)",
        )?;
    }
    Ok(())
}

/// Does it once; returns the milliseconds that the read transaction stood, where that is known.
fn once(side: &str, database: &Path, copy: &Path, quiet: Duration) -> Result<Option<f64>> {
    let open = || Connection::open_with_flags(database, OpenFlags::SQLITE_OPEN_READ_ONLY);
    match side {
        "nothing" => std::thread::sleep(quiet),
        "VACUUM INTO" => drop(open()?.execute("VACUUM INTO ?1", [copy.to_str().context("a path")?])?),
        "backup in one step" => {
            let (from, mut to) = (open()?, Connection::open(copy)?);
            Backup::new(&from, &mut to)?.step(-1)?;
        }
        _ => {
            let mut wish = Wish::because("bench");
            wish.keep.count = 1;
            return Ok(Some(snapshots::take(database, &wish, &|_| {})?.read_ms));
        }
    }
    Ok(None)
}

#[derive(Default)]
struct Figures {
    seconds: Vec<f64>,
    latencies: Vec<u64>,
    reading: Vec<f64>,
}

fn median(of: &mut [f64]) -> f64 {
    of.sort_by(f64::total_cmp);
    of.get(of.len() / 2).copied().unwrap_or(f64::NAN)
}

fn p99(of: &mut [u64]) -> f64 {
    of.sort_unstable();
    of.get(of.len() * 99 / 100).map_or(f64::NAN, |us| *us as f64 / 1000.0)
}

/// Measures, and gives the text for the report.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let (mut rounds, mut mib, mut report) = (5u32, 500u64, true);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("{argument} needs a value"));
        match *argument {
            "--rounds" => rounds = value()?.parse()?,
            "--mib" => mib = value()?.parse()?,
            "--no-report" => report = false,
            _ => bail!("usage: cargo xtask bench snapshot [--rounds N] [--mib N] [--no-report]"),
        }
    }
    ensure!(rounds > 0, "at least one round");
    let room = tempfile::Builder::new().prefix("statehouse-bench-").tempdir()?;
    let database = room.path().join("s.db");
    fill(&database, mib)?;
    let writer = Writer::start(&database, room.path().join("latencies"))?;
    let mut figures: [Figures; SIDES.len()] = Default::default();
    let mut windows = Vec::new();
    let mut quiet = Duration::from_secs(2);
    for round in 0..=rounds {
        for (n, side) in SIDES.iter().enumerate() {
            let copy = room.path().join("copy");
            let (at, begun) = (now(), Instant::now());
            let reading = once(side, &database, &copy, quiet)?;
            let took = begun.elapsed();
            if copy.exists() {
                std::fs::remove_file(&copy)?;
            }
            // The first round warms the page cache.
            if round > 0 {
                figures[n].seconds.push(took.as_secs_f64());
                figures[n].reading.extend(reading);
                windows.push((n, at, now()));
            }
            if n == 2 {
                quiet = took;
            }
        }
    }
    for (at, latency) in writer.end()? {
        for (n, from, to) in &windows {
            if (*from..*to).contains(&at) {
                figures[*n].latencies.push(latency);
            }
        }
    }
    let text = text(rounds, mib, &mut figures);
    println!("{text}");
    if report { crate::look::publish(HEADING, &text) } else { Ok(()) }
}

fn text(rounds: u32, mib: u64, figures: &mut [Figures; SIDES.len()]) -> String {
    let mut out = format!(
        "{HEADING}\n\nWritten by `cargo xtask bench snapshot` on {} (UTC): a store of {mib} MiB in WAL mode, page cache warm, while another \
         process commits one row 200 times a second; median of {rounds}, alternating. A snapshot is the copying and all that \
         proves it: full integrity check, rows and foreign keys counted on both sides, BLAKE3, the flush. The other two are the \
         copying alone, as SQLite does it by default.\n\n\
         | | seconds | snapshot takes | writer's p99 ms | max ms |\n|---|---|---|---|---|\n",
        jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M")
    );
    let ours = median(&mut figures[3].seconds);
    let reading = median(&mut figures[3].reading);
    for (name, f) in SIDES.iter().zip(figures) {
        let seconds = median(&mut f.seconds);
        let max = f.latencies.iter().max().copied().unwrap_or(0) as f64 / 1000.0;
        let p99 = p99(&mut f.latencies);
        let ratio = if *name == SIDES[0] { String::new() } else { format!("{:.2} times", ours / seconds) };
        out.push_str(&format!("| {name} | {seconds:.2} | {ratio} | {p99:.1} | {max:.1} |\n"));
    }
    out.push_str(&format!("\nIts read transaction stood for {reading:.0} ms of that.\n"));
    out
}
