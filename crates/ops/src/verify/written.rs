//! A write, and another process that reads what came of it.

use std::time::Instant;

use statehouse_sessions::{OpenMode, SqliteStore, Store as _};
use statehouse_sqlite::Member;

use super::view::View;
use super::{Proof, ROLE, Seen};
use crate::check::{Check, Found, Outcome, run};
use crate::{attach, who};

impl View {
    pub(super) fn written(&self, proof: &Proof<'_>) -> Vec<Check> {
        let skipped =
            |found: &dyn Fn() -> Found| vec![run("canary.written", found), run("canary.read_by_other_process", found)];
        if !proof.write {
            return skipped(&|| Found::new(Outcome::Skip, "not asked for").hint("Give --write to prove it."));
        }
        if self.danger().is_some() {
            return skipped(&|| self.danger().unwrap_or_else(|| Found::new(Outcome::Skip, "")));
        }
        let mut read = Found::new(Outcome::Skip, "nothing was written that could be read");
        let mut read_ms = 0.0;
        let mut written = run("canary.written", || {
            let (written, reading) = if self.ours { self.canary(proof) } else { self.foreign(proof) };
            if let Some((found, took)) = reading {
                read = found;
                read_ms = took;
            }
            written
        });
        written.ms -= read_ms;
        let mut read = run("canary.read_by_other_process", || read);
        read.ms = read_ms;
        vec![written, read]
    }

    /// A row of our own store.
    pub(super) fn canary(&self, proof: &Proof<'_>) -> (Found, Option<(Found, f64)>) {
        let main = self.family().main();
        let mode = OpenMode { patience: proof.patience, ..OpenMode::existing() };
        let store = match SqliteStore::open(&main, ROLE, mode) {
            Ok(store) => store,
            Err(e) => return (failed("the store cannot be opened", &e), None),
        };
        let answer = match store.write_canary(ROLE) {
            Err(e) => (failed("a row cannot be written", &e), None),
            Ok(token) => {
                let begun = Instant::now();
                let found = match proof.other.canary(&main, ROLE) {
                    Ok(Some(seen)) if seen == token => {
                        Found::new(Outcome::Ok, "another process reads that row through the path")
                    }
                    Ok(seen) => Found::new(Outcome::Fail, "another process reads something else through the path")
                        .detail(format!("it reads {}", seen.as_deref().unwrap_or("no row")))
                        .hint("Run `statehouse holders`: the path leads to other files than those that were written."),
                    Err(e) => Found::new(Outcome::Fail, "another process cannot read through the path").detail(e),
                };
                let took = begun.elapsed().as_secs_f64() * 1000.0;
                let written = match store.database().check() {
                    Ok(()) => Found::new(Outcome::Ok, "a row was written and is durable"),
                    Err(e) => Found::error("a row was written and the files went from under it", &e),
                };
                (written, Some((found, took)))
            }
        };
        store.close();
        answer
    }

    /// An empty transaction of a database that is not ours.
    pub(super) fn foreign(&self, proof: &Proof<'_>) -> (Found, Option<(Found, f64)>) {
        let had_log = self.inspected.get(Member::Wal).is_some();
        let begun = Instant::now();
        let done = attach::with_write_lock(self.family(), self.held(), had_log, proof.patience, |connection| {
            let begun = Instant::now();
            let found = match (Seen::by(connection), proof.other.read(&self.family().main())) {
                (Ok(mine), Ok(theirs)) if mine.content() == theirs.content() => {
                    Found::new(Outcome::Ok, "another process reads the same through the path while this one may write")
                }
                (Ok(mine), Ok(theirs)) => {
                    Found::new(Outcome::Fail, "another process reads something else through the path")
                        .detail(format!("this one reads {:?}, the other {:?}", mine.content(), theirs.content()))
                        .hint("Run `statehouse holders`: the path leads to other files than those that are in use.")
                }
                (Err(e), _) => Found::new(Outcome::Fail, "it cannot be read").detail(e.to_string()),
                (_, Err(e)) => Found::new(Outcome::Fail, "another process cannot read through the path").detail(e),
            };
            (found, begun.elapsed().as_secs_f64() * 1000.0)
        });
        match done {
            Ok(read) => {
                (Found::new(Outcome::Ok, "the write lock was taken and given back; nothing was written"), Some(read))
            }
            Err(e) => {
                let e = who::named(e, self.family(), begun);
                (Found::error("the write lock cannot be taken", &e), None)
            }
        }
    }
}

fn failed(summary: &str, e: &statehouse_sessions::Error) -> Found {
    Found::new(Outcome::Fail, summary).detail(e.to_string()).hint(e.hint())
}
