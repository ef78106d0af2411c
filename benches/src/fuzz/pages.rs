//! The readers of logs and pages below SQLite: transactions, images of any commit, what a main file lacks, b-trees, salvage.
//!
//! The damage is sealed with right checksums, in either byte order, so that it gets past the reader of frames and into what reads
//! the pages. Oracle: lists, images and counts of one log agree with each other; on undamaged files the reader of pages gives as many
//! rows as SQLite counts; a salvaged file is sound and has the rows that are reported; and nothing takes much longer than
//! its input is large, which is how an unbounded chain or depth shows.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use statehouse_sqlite::image::{overlay, overlay_at};
use statehouse_sqlite::pages::{self, FilePages, LogPages, PageSource, Record};
use statehouse_sqlite::rusqlite::Connection;
use statehouse_sqlite::salvage::{self, SalvageError};
use statehouse_sqlite::wal::{Checksum, Contents, Extent, Transactions, Upto, lacking, last_commit};
use statehouse_testkit::Seed;

use crate::Budget;
use crate::mutate::{damage, mutate};

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

pub(crate) fn run(budget: &mut Budget) -> Result<()> {
    let room = tempfile::tempdir()?;
    let mut sound = family(&room.path().join("0.db"), &mut budget.seed)?;
    let mut round = 0_u64;
    while budget.more() {
        round += 1;
        if round.is_multiple_of(200) {
            sound = family(&room.path().join(format!("{round}.db")), &mut budget.seed)?;
            undamaged(&sound, room.path())?;
        }
        let mut family = sound.clone();
        let Family { main, log } = &mut family;
        match budget.seed.below(4) {
            0 => mutate(log, &mut budget.seed),
            1 => damage(main, &mut budget.seed),
            _ => {
                scribble(log, &mut budget.seed);
                seal(log, budget.seed.one_in(2));
            }
        }
        let size = main.len() + log.len();
        let begun = Instant::now();
        agree(&family, &mut budget.seed)?;
        walk(&family)?;
        if round.is_multiple_of(4) {
            salvaged(&family, &room.path().join("salvaged"))?;
        }
        ensure!(begun.elapsed() < Duration::from_secs(20), "{:?} for {size} bytes", begun.elapsed());
    }
    Ok(())
}

/// A main file and a log over it.
#[derive(Clone)]
struct Family {
    main: Vec<u8>,
    log: Vec<u8>,
}

/// Makes one with tables of both kinds, long rows, deleted rows and free pages.
fn family(path: &Path, seed: &mut Seed) -> Result<Family> {
    let page_size = seed.pick(&[512, 1024, 4096]);
    let encoding = seed.pick(&["UTF-8", "UTF-16le"]);
    let vacuum = seed.pick(&["NONE", "INCREMENTAL"]);
    let connection = Connection::open(path)?;
    connection.execute_batch(&format!(
        "PRAGMA page_size={page_size}; PRAGMA encoding='{encoding}'; PRAGMA auto_vacuum={vacuum};
         PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0;
         CREATE TABLE m(id INTEGER PRIMARY KEY, t TEXT, n INT); CREATE INDEX i ON m(n, t);
         CREATE TABLE w(k TEXT PRIMARY KEY, v) WITHOUT ROWID; CREATE TABLE f(a);"
    ))?;
    for part in 0..2 {
        for n in 0..40 {
            let length = if seed.one_in(10) { seed.below(5000) } else { seed.below(90) };
            let text = format!("{part}.{n} {}", "x".repeat(length as usize));
            connection.execute("INSERT INTO m(t, n) VALUES(?1, ?2)", (&text, n % 7))?;
            connection.execute("INSERT INTO w VALUES(?1, ?2)", (&text, n))?;
            connection.execute("INSERT INTO f VALUES(?1)", [&text])?;
        }
        connection.execute_batch("DELETE FROM f; DELETE FROM m WHERE id % 3 = 1; PRAGMA incremental_vacuum(3)")?;
        if part == 0 {
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        }
    }
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    // Read before the close; nothing else uses this database.
    Ok(Family { main: std::fs::read(path)?, log: std::fs::read(&log)? })
}

/// Damages headers of pages, cells, frames, or copies a page over another.
fn scribble(log: &mut [u8], seed: &mut Seed) {
    let size = FRAME_HEADER + page_size(log);
    let frames = (log.len() - HEADER) / size;
    for _ in 0..=seed.below(12) {
        let start = HEADER + seed.below(frames as u64) as usize * size;
        let page = start + FRAME_HEADER;
        let odd = *seed.pick(&[0_u8, 1, 2, 5, 10, 13, 0x7f, 0x80, 0xff]);
        match seed.below(5) {
            0 => log[page + seed.below(16) as usize] = odd,
            1 => log[page + seed.below(page_size(log) as u64) as usize] = odd,
            // The number of the page, or the size after the commit. Sizes of which the images would fill the memory are left out.
            2 => log[start + *seed.pick(&[0, 1, 2, 3, 6, 7])] = odd & 3,
            3 => {
                let from = HEADER + seed.below(frames as u64) as usize * size + FRAME_HEADER;
                log.copy_within(from..from + size - FRAME_HEADER, page);
            }
            _ => damage(&mut log[page..page + size - FRAME_HEADER], seed),
        }
    }
}

fn page_size(log: &[u8]) -> usize {
    u32::from_be_bytes([log[8], log[9], log[10], log[11]]) as usize
}

/// Makes every checksum right.
fn seal(log: &mut [u8], big_endian: bool) {
    log[3] = 0x82 | u8::from(big_endian);
    let put = |at: &mut [u8], sum: Checksum| {
        at[..4].copy_from_slice(&sum.0.to_be_bytes());
        at[4..8].copy_from_slice(&sum.1.to_be_bytes());
    };
    let mut sum = Checksum::default().mix(&log[..24], big_endian);
    put(&mut log[24..HEADER], sum);
    let size = FRAME_HEADER + page_size(log);
    for frame in log[HEADER..].chunks_exact_mut(size) {
        sum = sum.mix(&frame[..8], big_endian).mix(&frame[FRAME_HEADER..], big_endian);
        put(&mut frame[16..FRAME_HEADER], sum);
    }
}

/// What is said of one log must agree.
fn agree(Family { main, log }: &Family, seed: &mut Seed) -> Result<()> {
    let listed = Transactions::of(log)?.collect::<Result<Vec<_>, _>>()?;
    let last = last_commit(log)?;
    let count = listed.len() as u64;
    ensure!(last.map_or(0, |l| l.transactions) == count, "{last:?} and {count} transactions");
    ensure!(last.map_or(0, |l| l.frames) == listed.last().map_or(0, |t| t.last + 1), "{last:?} and {listed:?}");
    let extent = Extent::of(log)?;
    ensure!(extent.committed == last.map_or(0, |l| l.frames), "{extent:?} and {last:?}");
    let seen = lacking(main, log)?;
    ensure!(seen.transactions == count && seen.contained + seen.missing == count, "{seen:?} and {count}");
    ensure!(!seen.torn || seen.missing > 0, "{seen:?}");
    let (mut all, mut upto) = (Vec::new(), Vec::new());
    let whole = overlay(main, log, &mut all);
    let again = overlay_at(main, log, Upto::Commit(count), &mut upto);
    ensure!(whole.is_ok() == again.is_ok(), "{whole:?} and {again:?}");
    ensure!(whole.is_err() || count == 0 || all == upto, "two images of one commit differ");
    if whole.is_ok() && count > 0 {
        let seen = lacking(&all, log)?;
        ensure!(seen.missing == 0 && !seen.torn, "the image lacks what it was made of: {seen:?}");
    }
    let some = seed.below(count + 1);
    let mut part = Vec::new();
    if let Ok(image) = overlay_at(main, log, Upto::Commit(some), &mut part) {
        ensure!(part.len() as u64 == image.pages * u64::from(image.page_size), "{image:?}: {} bytes", part.len());
        ensure!(image.transactions == some, "{image:?} is not of {some}");
    }
    let beyond = overlay_at(main, log, Upto::Commit(count + 1), &mut part);
    ensure!(beyond.is_err(), "an image of a transaction that is not there: {beyond:?}");
    Ok(())
}

fn walk(Family { main, log }: &Family) -> Result<()> {
    let contents = Contents::read(log, Upto::Last)?;
    let (file, both) = (FilePages::of(main)?, LogPages::of(main, log, &contents)?);
    let sources = [file.as_ref().map(|f| f as &dyn PageSource), both.as_ref().map(|b| b as &dyn PageSource)];
    for source in sources.into_iter().flatten() {
        let objects = pages::schema(source)?.0;
        for root in objects.iter().map(|o| o.root).chain([0, 1, 2, u32::MAX]) {
            let mut read = 0;
            let walked = pages::walk(source, root, &mut |row| {
                read += row.payload.len();
                let _ = Record::parse(row.payload).map(|record| record.values().count());
                Ok(ControlFlow::Continue(()))
            })?;
            // A page may be given as often as it has cells; what lies elsewhere, once.
            let most = 2 * (main.len() + log.len()) + 70_000 * walked.rows as usize;
            ensure!(read <= most, "{read} bytes of rows out of {} and {}", main.len(), log.len());
            let _ = pages::seek(source, root, 7, &mut Vec::new())?;
        }
    }
    Ok(())
}

fn salvaged(Family { main, log }: &Family, output: &Path) -> Result<()> {
    let _ = std::fs::remove_file(output);
    let salvaged = match salvage::from_log(main, log, output) {
        Ok(salvaged) => salvaged,
        Err(SalvageError::Empty) => return Ok(()),
        Err(e) => return Err(e).context("salvage"),
    };
    let copy = Connection::open(output)?;
    let verdict: String = copy.query_row("PRAGMA integrity_check(1)", [], |r| r.get(0))?;
    // Constraints of a damaged schema may be anything; the structure may not.
    ensure!(verdict == "ok" || verdict.contains("CHECK") || verdict.contains("NULL"), "{verdict}: {salvaged:?}");
    let lost = salvaged.lost_and_found.iter().map(|name| (name, salvaged.unplaced));
    for (name, rows) in salvaged.tables.iter().map(|(name, rows)| (name, *rows)).chain(lost) {
        let there: i64 =
            copy.query_row(&format!("SELECT count(*) FROM \"{}\"", name.replace('"', "\"\"")), [], |r| r.get(0))?;
        ensure!(there as u64 == rows, "{name} has {there} rows: {salvaged:?}");
    }
    Ok(())
}

/// Nothing is missing of what is whole.
fn undamaged(Family { main, log }: &Family, room: &Path) -> Result<()> {
    let mut image = Vec::new();
    overlay(main, log, &mut image)?;
    let source = FilePages::of(&image)?.context("the image is a database")?;
    let path = room.join("image");
    std::fs::write(&path, &image)?;
    let connection = Connection::open(&path)?;
    for object in pages::schema(&source)?.0.iter().filter(|o| o.kind == "table") {
        let theirs: i64 = connection.query_row(&format!("SELECT count(*) FROM {}", object.name), [], |r| r.get(0))?;
        let walked = pages::walk(&source, object.root, &mut |_| Ok(ControlFlow::Continue(())))?;
        ensure!(walked.rows == theirs as u64 && walked.unread_count == 0, "{}: {theirs} and {walked:?}", object.name);
    }
    Ok(())
}
