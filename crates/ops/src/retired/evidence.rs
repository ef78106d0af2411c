//! A copy of the database as it is, kept beside it before a merge changes it.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use statehouse_sqlite::secure::{self, Purpose};
use statehouse_sqlite::{Family, side};

use super::error::Result;
use super::into::Copy;
use super::live::Reading;

/// Copies the database at `path` into `X.statehouse/snapshots/`, proves the copy, and says where it is.
///
/// # Errors
/// [`super::Error`], with nothing left of the copy.
pub fn keep(path: &Path, scratch: &Path, patience: Duration) -> Result<PathBuf> {
    let family = Family::of(path)?;
    let inspected = secure::inspect(&family, Purpose::Own)?;
    let parent = side::create(&inspected)?;
    let directory = family.side_directory().join("snapshots");
    side::subdirectory(&inspected, parent.as_fd(), "snapshots", &directory)?;
    let name = jiff::Timestamp::now().strftime("before-merge-%Y%m%dT%H%M%S%6fZ.snapshot").to_string();
    let kept = directory.join(name);
    let copy = Copy::new(&kept)?;
    let reading = Reading::open(path, scratch, patience)?;
    drop(copy.take(&reading)?);
    reading.confirm()?;
    copy.publish()?;
    Ok(kept)
}
