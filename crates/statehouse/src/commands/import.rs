//! `statehouse sessions import ...`: takes over conversations; the source is never changed.

use std::io::IsTerminal as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use statehouse_sessions::import::check_hermes;
use statehouse_sessions::{ImportOptions, ImportReport, Store as _};
use statehouse_sqlite::words;

use super::Context;
use crate::args::Import;
use crate::exit;
use crate::failure::{Failure, Result};
use crate::store::{self, Opening};

const ROLE: &str = "import";

pub(crate) fn run(context: &Context, from: &Import) -> Result {
    let Import::Hermes { path, dry_run } = from;
    let report = if *dry_run && !context.home.check()? {
        let nowhere = Nowhere::new()?;
        import(context, &nowhere.directory.join(crate::home::STORE), path, true)?
    } else {
        if !context.home.store().exists() {
            // What cannot be imported must not make a store.
            let nowhere = Nowhere::new()?;
            check_hermes(path, &nowhere.directory)?;
        }
        let created = context.home.create()?;
        match import(context, &context.home.store(), path, *dry_run) {
            Ok(report) => report,
            Err(failure) => {
                created.undo();
                return Err(failure);
            }
        }
    };
    context.output.answer(&report, |r| {
        let would = if *dry_run { "would take over" } else { "took over" };
        format!(
            "{would} {} with {}; {} {} there already, {} cannot be taken over",
            words::count(r.sessions, "conversation"),
            words::count(r.messages, "message"),
            words::count(r.already_present, "row"),
            words::verb(r.already_present, "was", "were"),
            r.skipped
        )
    });
    Ok(exit::OK)
}

fn import(context: &Context, database: &Path, source: &Path, dry_run: bool) -> Result<ImportReport> {
    let opening = Opening { role: ROLE, create: true, patience: context.patience };
    let store = store::open_sqlite(database, &opening)?;
    let bar = progress_bar();
    let report = store.import_hermes(source, ImportOptions { dry_run }, &mut |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    store.close();
    Ok(report?)
}

/// Shown to a person who waits, and to nobody else.
fn progress_bar() -> ProgressBar {
    let target =
        if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let bar = ProgressBar::with_draw_target(None, target);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {human_pos} of {human_len} messages, {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// A directory that is removed again: for the empty store of a dry run of somebody who has none yet, and for a look at a source.
struct Nowhere {
    directory: PathBuf,
}

impl Nowhere {
    fn new() -> Result<Nowhere> {
        let random = getrandom::u64().unwrap_or_default();
        let directory = std::env::temp_dir().join(format!("statehouse-dry-run-{}-{random:016x}", std::process::id()));
        // Fails if the name is taken: in a directory that everybody may write to, somebody else's is not used.
        std::fs::DirBuilder::new().mode(0o700).create(&directory).map_err(|e| Failure::io("create", &directory, e))?;
        Ok(Nowhere { directory })
    }
}

impl Drop for Nowhere {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
