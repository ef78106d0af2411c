//! The reader of logs, and the image of a generation that is made by it.
//!
//! Oracle: SQLite itself. For a main file with a damaged log, the reader's last commit never lies beyond that of the
//! undamaged log; where an image can be made it is never larger than the two files and its missing pages together allow;
//! and where SQLite, on copies of both files, recovers the same number of frames, the image has the same rows.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use statehouse_sqlite::image::overlay;
use statehouse_sqlite::rusqlite::{Connection, OpenFlags};
use statehouse_sqlite::wal::last_commit;
use statehouse_testkit::Seed;

use crate::Budget;
use crate::mutate::{damage, mutate};

pub(crate) fn run(budget: &mut Budget) -> Result<()> {
    let room = tempfile::tempdir()?;
    let (main, log) = family(room.path(), &mut budget.seed)?;
    let whole = last_commit(&log)?.context("the log of a live database has commits")?;
    let mut round = 0_u64;
    while budget.more() {
        round += 1;
        let mut torn = log.clone();
        match budget.seed.below(4) {
            // The header and the first frames, where every length and salt stands.
            0 => {
                let end = torn.len().min(32 + 24 + 64);
                damage(&mut torn[..end], &mut budget.seed);
            }
            1 => torn.truncate(budget.seed.below(log.len() as u64 + 1) as usize),
            2 => damage(&mut torn, &mut budget.seed),
            _ => mutate(&mut torn, &mut budget.seed),
        }
        let seen = last_commit(&torn)?;
        if torn.len() <= log.len() {
            ensure!(
                seen.is_none_or(|s| s.frames <= whole.frames),
                "more frames than there were: {seen:?} of {whole:?}"
            );
        }
        let mut image = Vec::new();
        let made = overlay(&main, &torn, &mut image);
        if let Ok(made) = &made {
            ensure!(image.len() as u64 == made.pages * u64::from(made.page_size), "{made:?}: {} bytes", image.len());
        }
        // Asking SQLite costs a few milliseconds and four files, so it judges one round in ten.
        if round.is_multiple_of(10) && made.is_ok() {
            let ours = rows_of_image(&room.path().join("image"), &image)?;
            let theirs = rows_by_recovery(&room.path().join("copy"), &main, &torn)?;
            ensure!(ours == theirs, "the image has {ours:?}, SQLite recovers {theirs:?}");
        }
    }
    Ok(())
}

/// A main file and its log with some transactions that no checkpoint has moved, copied before the close.
fn family(room: &Path, seed: &mut Seed) -> Result<(Vec<u8>, Vec<u8>)> {
    let path = room.join("s.db");
    let connection = Connection::open(&path)?;
    connection.execute_batch(
        "PRAGMA page_size=1024; PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0;
         CREATE TABLE m(id INTEGER PRIMARY KEY, t); INSERT INTO m VALUES(1, 'before');
         PRAGMA wal_checkpoint(TRUNCATE);",
    )?;
    for n in 0..40 {
        let text: String = (0..seed.below(1500)).map(|_| 'x').collect();
        connection.execute("INSERT INTO m(t) VALUES(?1)", [format!("{n} {text}")])?;
    }
    // A second library in this process would have to beware of these reads; nothing else uses this database.
    let copies = (std::fs::read(&path)?, std::fs::read(room.join("s.db-wal"))?);
    drop(connection);
    Ok(copies)
}

/// Number of rows and the total length of their texts, or SQLite's refusal.
type Rows = Result<(i64, i64), String>;

fn rows(connection: &Connection) -> Rows {
    connection
        .query_row("SELECT count(*), coalesce(sum(length(t)), 0) FROM m", [], |r| Ok((r.get(0)?, r.get(1)?)))
        // Damage is the same answer, whatever words it comes in.
        .map_err(|e| format!("{:?}", e.sqlite_error_code()))
}

fn rows_of_image(path: &Path, image: &[u8]) -> Result<Rows> {
    std::fs::write(path, image)?;
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    Ok(rows(&connection))
}

fn rows_by_recovery(path: &Path, main: &[u8], log: &[u8]) -> Result<Rows> {
    let beside = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        std::path::PathBuf::from(name)
    };
    for suffix in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(beside(suffix));
    }
    std::fs::write(path, main)?;
    std::fs::write(beside("-wal"), log)?;
    let connection = Connection::open(path)?;
    Ok(rows(&connection))
}
