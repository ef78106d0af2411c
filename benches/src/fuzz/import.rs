//! The import from Hermes Agent, fed with stores that were damaged in place.
//!
//! Oracle: an import ends with a count or an error, never otherwise; the damaged source is not changed by a byte; what an
//! import took is readable, message by message; a second import of the same damage takes nothing new; and our own store
//! stays whole.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use statehouse_sessions::{ImportOptions, ListOptions, OpenMode, Page, SqliteStore, Store};
use statehouse_testkit::Snapshot;
use statehouse_testkit::peers::make_hermes_store;

use crate::Budget;
use crate::mutate::damage;

/// How many damaged stores go into one store of ours before it is checked as a whole and begun anew.
const A_STORE: usize = 20;

pub(crate) fn run(budget: &mut Budget) -> Result<()> {
    let room = tempfile::tempdir()?;
    let original = room.path().join("original.db");
    // Said on stderr, and with CI=true a failure.
    if make_hermes_store(&original, 12, 150, 1).is_none() {
        return Ok(());
    }
    let whole = fs::read(&original)?;
    while budget.more() {
        let round = tempfile::tempdir_in(room.path())?;
        let store = SqliteStore::open(&round.path().join("state.db"), "fuzz", OpenMode::create())?;
        for n in 0..A_STORE {
            let home = round.path().join(n.to_string());
            fs::create_dir(&home)?;
            let mut bytes = whole.clone();
            // Half of the damage goes where it reaches furthest: the header and the schema.
            let end = if budget.seed.one_in(2) { bytes.len().min(8192) } else { bytes.len() };
            damage(&mut bytes[..end], &mut budget.seed);
            if budget.seed.one_in(10) {
                bytes.truncate(budget.seed.below(bytes.len() as u64) as usize);
            }
            fs::write(home.join("state.db"), &bytes)?;
            one(&store, &home)?;
            if !budget.more() {
                break;
            }
        }
        readable(&store)?;
        let verdict: String =
            store.database().read(|c| Ok(c.query_row("PRAGMA integrity_check", [], |r| r.get(0))?))?;
        ensure!(verdict == "ok", "our own store: {verdict}");
        store.close();
    }
    Ok(())
}

fn one(store: &SqliteStore, home: &Path) -> Result<()> {
    let before = Snapshot::of(home, &[]);
    let first = store.import_hermes(home, ImportOptions::default(), &mut |_| {});
    if first.is_ok() {
        let again = store.import_hermes(home, ImportOptions::default(), &mut |_| {}).context("a second import")?;
        ensure!(again.sessions == 0 && again.messages == 0, "a second import took more: {again:?} after {first:?}");
    }
    let changed = before.differences(&Snapshot::of(home, &[]));
    ensure!(changed.is_empty(), "the source was changed: {changed:?}");
    Ok(())
}

fn readable(store: &SqliteStore) -> Result<()> {
    for session in store.sessions(&ListOptions { all: true, ..ListOptions::default() })? {
        let messages = store.messages(session.id, &Page::default())?;
        ensure!(messages.len() as u64 == session.messages, "{} messages of {}", messages.len(), session.messages);
    }
    Ok(())
}
