//! The database as it is, kept as a snapshot before a merge changes it.

use std::path::{Path, PathBuf};

use statehouse_sqlite::Family;

use super::error::Result;
use crate::progress::Watch;
use crate::snapshots::{self, Wish};

/// Takes a snapshot of the database at `path` with the reason `before-merge`, and says where its file is. To be called in a process
/// that has no connection to it.
///
/// # Errors
/// [`super::Error`], with the database and the earlier snapshots as they were.
pub fn keep(path: &Path, wish: &Wish, watch: Watch<'_>) -> Result<PathBuf> {
    let wish = Wish { reason: "before-merge".to_owned(), ..wish.clone() };
    Ok(snapshots::take(path, &wish, watch)?.path)
}

/// Takes a snapshot away again, for nothing was done after it.
pub(super) fn forget(family: &Family, kept: &Path) {
    let _ = snapshots::forget(family, kept);
}
