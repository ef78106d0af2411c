//! A capture and its database, made of real files: every kind of table, and what a person would see of it.

#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at the first surprise")]

mod bring;
mod fed;
mod modules;
mod names;
mod random;
mod tables;
mod trouble;
mod untouched;

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;

use super::*;
use crate::snapshots::Wish;

/// A database, and a file that grew from the same one.
struct Two {
    directory: TempDir,
}

impl Two {
    /// Both begin with `base`; then each is changed by itself.
    fn new(base: &str, live: &str, captured: &str) -> Two {
        let two = Two { directory: tempfile::tempdir().unwrap() };
        Connection::open(two.live()).unwrap().execute_batch(base).unwrap();
        std::fs::copy(two.live(), two.captured()).unwrap();
        two.run(live, captured);
        two
    }

    fn run(&self, live: &str, captured: &str) {
        Connection::open(self.live()).unwrap().execute_batch(live).unwrap();
        Connection::open(self.captured()).unwrap().execute_batch(captured).unwrap();
    }

    fn live(&self) -> PathBuf {
        self.directory.path().join("live.db")
    }

    fn captured(&self) -> PathBuf {
        self.directory.path().join("captured.db")
    }

    fn id(&self) -> String {
        self.captured().to_str().unwrap().to_owned()
    }

    fn show(&self) -> Shown {
        with(self.directory.path(), |asked| show(&self.live(), &self.id(), true, asked)).unwrap()
    }

    fn try_merge(&self) -> Result<Merged> {
        let scratch = self.directory.path();
        let evidence = || keep(&self.live(), &Wish::because("before-merge"), &|_| {});
        with(scratch, |asked| merge(&self.live(), &self.id(), &evidence, asked))
    }

    fn merge(&self) -> Merged {
        self.try_merge().unwrap()
    }

    fn rows(&self, sql: &str) -> Vec<String> {
        rows(&self.live(), sql)
    }

    fn conflicts(&self) -> Vec<serde_json::Value> {
        let place = self.directory.path().join("live.db.statehouse/conflicts");
        let lists = std::fs::read_dir(place).map(|all| all.map(|e| e.unwrap().path()).collect::<Vec<_>>());
        let Some(last) = lists.unwrap_or_default().into_iter().max() else { return Vec::new() };
        let text = std::fs::read_to_string(last).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }
}

/// What a query answers, a text a row, by a connection of its own.
fn rows(path: &Path, sql: &str) -> Vec<String> {
    let c = Connection::open(path).unwrap();
    let mut statement = c.prepare(sql).unwrap();
    let n = statement.column_count();
    let mut rows = statement.query([]).unwrap();
    let mut found = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let cells: Vec<String> = (0..n).map(|i| cell::Cell::from(row.get_ref(i).unwrap()).json().to_string()).collect();
        found.push(cells.join("|"));
    }
    found
}

fn with<T>(scratch: &Path, work: impl FnOnce(&Asked<'_>) -> T) -> T {
    work(&Asked { scratch, patience: Duration::from_secs(5), watch: &|_| {} })
}

/// Missing, same, conflicting, only here, renumbered.
fn counts(shown: &Shown, table: &str) -> [u64; 5] {
    let t = &shown.tables[table];
    [t.missing, t.same, t.conflicting, t.only_here.unwrap(), t.renumbered]
}
