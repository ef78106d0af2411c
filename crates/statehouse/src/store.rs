//! Opening the home's store, for every command that needs our schema.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use statehouse_sessions::{OpenMode, SqliteStore, Store};
use statehouse_sqlite::words;
use statehouse_sqlite::{Error, Event, Observer, Reason};

use crate::failure::Result;

/// How to open.
pub(crate) struct Opening<'a> {
    /// What this process is, as `holders` shows it.
    pub(crate) role: &'a str,
    /// Make the store if there is none.
    pub(crate) create: bool,
    /// How long a write waits for its turn.
    pub(crate) patience: Duration,
}

/// Opens the store at `path`.
///
/// # Errors
/// `no_store` where there is none and none is to be made; a refusal; or what the database answered.
pub(crate) fn open(path: &Path, opening: &Opening<'_>) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(open_sqlite(path, opening)?))
}

/// As [`open`], for what needs the engine itself.
pub(crate) fn open_sqlite(path: &Path, opening: &Opening<'_>) -> Result<SqliteStore> {
    if !opening.create {
        must_exist(path)?;
    }
    let mode = OpenMode {
        create: opening.create,
        patience: opening.patience,
        observer: Some(Arc::new(log)),
        ..OpenMode::existing()
    };
    Ok(SqliteStore::open(path, opening.role, mode)?)
}

/// Opens the store at `path`, tells `also` what happens, and closes it.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_observed(path: &Path, role: &str, patience: Duration, also: Observer) -> Result<()> {
    must_exist(path)?;
    let observer: Observer = Arc::new(move |event| {
        log(event);
        also(event);
    });
    let mode = OpenMode { patience, observer: Some(observer), ..OpenMode::existing() };
    SqliteStore::open(path, role, mode)?;
    Ok(())
}

/// True once rows were lost with a handle that could not keep them.
static LOST: AtomicBool = AtomicBool::new(false);

/// True if this process has closed a store and could not keep what only it had of it.
pub(crate) fn lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

/// What happens to the handle belongs into the log; it never carries anything of the content.
fn log(event: &Event) {
    match event {
        Event::Fenced { cause } => tracing::warn!("the store is not read or written any more: {cause}"),
        Event::Healed { what } => tracing::warn!(
            "locks of this process on the store were gone and were taken again, nothing is lost: {what}; something in this \
             process closes or unlocks what is not its own"
        ),
        Event::Merged { rows } => tracing::info!(
            "{} that only the retired files had {} taken over",
            words::count(*rows, "row"),
            words::verb(*rows, "was", "were")
        ),
        Event::Reopened => tracing::info!("the store is open again"),
        Event::Lost { cause, transactions } => {
            LOST.store(true, Ordering::Relaxed);
            tracing::error!(
                "the store was closed while only this process still had its removed files, and they could not be kept: \
                 {} may be lost: {cause}",
                words::count(*transactions, "transaction")
            );
        }
        Event::Parked { by } => tracing::info!("the store was let go of for {by}; what is asked for meanwhile waits"),
        Event::Resumed => tracing::info!("the store is in use again"),
        Event::NotReopened { cause } => tracing::warn!("the store cannot be opened again yet: {cause}"),
    }
}

/// A missing home and a missing store are the same to who asks for either: there is no store. A store whose main file
/// alone is gone is another matter, which the database layer tells.
///
/// # Errors
/// `no_store`.
pub(crate) fn must_exist(path: &Path) -> Result<()> {
    Ok(directory_must_exist(path)?)
}

/// As [`must_exist`], for who tells errors apart.
///
/// # Errors
/// `no_store`.
pub(crate) fn directory_must_exist(path: &Path) -> Result<(), Error> {
    match path.parent().map(std::fs::metadata) {
        Some(Err(e)) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
            Err(Error::refused(Reason::NoStore, path, format!("the directory cannot be used: {e}")))
        }
        _ => Ok(()),
    }
}
