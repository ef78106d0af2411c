//! What became of the rows of a capture when somebody merged it: that it was done, and what a person still has to look at.
//!
//! A capture of ours says it itself, in its mark `merged`. A capture that another program has made is left as it is, for it
//! may lie where nothing can be written; of that one the record is in `X.statehouse/merges/`. An empty mark is that of an
//! opener that has taken over every row.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Capture, Origin, place};
use crate::captures::{self, MERGED};
use crate::error::{Error, Result};
use crate::family::Family;
use crate::{files, secure, side};

/// Where the records of merged captures are that are not ours.
pub(super) const DIRECTORY: &str = "merges";

/// The longest record that is read.
const LONGEST: u64 = 1 << 20;

/// What a merge has done and what it has left.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Merge {
    /// When, in microseconds since 1970; 0 where it is not known.
    #[serde(default)]
    pub at: u64,
    /// Rows that were brought back.
    #[serde(default)]
    pub rows: u64,
    /// Rows that stand against others and were kept.
    #[serde(default)]
    pub conflicts: u64,
    /// Where these are listed.
    #[serde(default)]
    pub list: Option<PathBuf>,
    /// What else is not in the database, or not known to be, a sentence each.
    #[serde(default)]
    pub left: Vec<String>,
    /// Tables whose rows say something about their file alone, and differ; they stay where they are.
    #[serde(default)]
    pub of_the_file: Vec<String>,
}

impl Merge {
    /// True if every row of the capture is known to be in the database.
    pub fn is_complete(&self) -> bool {
        self.conflicts == 0 && self.left.is_empty()
    }

    /// What a mark says; `None` if there is none.
    fn read(mark: &Path) -> Option<Merge> {
        if !mark.exists() {
            return None;
        }
        let text = files::read_to_string(mark, LONGEST).unwrap_or_default();
        Some(serde_json::from_str(&text).unwrap_or_default())
    }
}

/// True if the capture in this directory was merged and has rows that are nowhere else.
pub(crate) fn has_rows_of_its_own(place: &Path) -> bool {
    Merge::read(&place.join(MERGED)).is_some_and(|m| !m.is_complete())
}

impl Capture {
    /// What its merge has done; `None` if it was not merged.
    pub fn merge(&self) -> Option<Merge> {
        let beside = self.side.as_ref().filter(|_| self.origin == Origin::Hermes);
        let beside = beside.and_then(|side| Merge::read(&side.join(DIRECTORY).join(format!("{}.json", self.id))));
        beside.or_else(|| Merge::read(&self.place.join(MERGED)))
    }

    /// True if it was merged, so that nobody merges it again by itself.
    pub fn is_merged(&self) -> bool {
        self.merge().is_some()
    }

    /// True if an opener has taken its rows over into a log that was not copied yet when it did.
    pub fn is_in_the_log(&self) -> bool {
        self.place.join(captures::INTO).exists()
    }

    /// Writes down that it was merged into `family`. Of a capture that does not lie beside that database nothing is written.
    ///
    /// # Errors
    /// [`Error::Io`], or a refusal of the side directory.
    pub fn set_merged(&self, family: &Family, merge: &Merge) -> Result<()> {
        let text = serde_json::to_vec(merge).unwrap_or_default();
        let write = |path: &Path| files::replace(path, &text).map_err(|e| Error::io("write", path, e));
        if self.place.parent() == Some(&captures::directory(family)) {
            return write(&self.place.join(MERGED));
        }
        let Some(beside) = self.side.as_ref().filter(|s| **s == family.side_directory()) else { return Ok(()) };
        let directory = beside.join(DIRECTORY);
        let inspected = secure::inspect_place(family)?;
        let made = side::create(&inspected)?;
        side::subdirectory(&inspected, made.as_fd(), DIRECTORY, &directory)?;
        let path = directory.join(format!("{}.json", self.id));
        write(&path)?;
        place::give_as(family, &family.main(), &path);
        captures::sync_directory(&directory)
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at the first surprise")]

    use super::*;

    /// A directory with captures that were all merged; the second one has kept a row.
    fn merged(captures: usize) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let parent = directory.path().join("app.db.statehouse/retired");
        for n in 0..captures {
            let place = parent.join(format!("{n:02}"));
            std::fs::create_dir_all(&place).unwrap();
            std::fs::write(place.join(captures::MANIFEST), r#"{"version":2,"generation":{}}"#).unwrap();
            let merge = Merge { conflicts: u64::from(n == 1), ..Merge::default() };
            let mark = if n == 0 { Vec::new() } else { serde_json::to_vec(&merge).unwrap() };
            std::fs::write(place.join(MERGED), mark).unwrap();
        }
        (directory, parent)
    }

    #[test]
    fn a_capture_that_has_kept_conflicts_is_never_removed_to_make_room() {
        let (_directory, parent) = merged(captures::KEPT + 4);
        captures::prune(&parent);
        let left: Vec<_> = captures::complete(&parent);
        assert_eq!(left.len(), captures::KEPT + 1, "{left:?}");
        assert!(parent.join("01").exists() && !parent.join("00").exists(), "{left:?}");
    }

    #[test]
    fn an_empty_mark_is_that_of_an_opener_that_took_over_everything() {
        let (directory, _) = merged(2);
        let family = Family::of(&directory.path().join("app.db")).unwrap();
        let found = crate::capture::list(&family).unwrap();
        let complete: Vec<_> = found.iter().map(|c| (c.id.as_str(), c.merge().unwrap().is_complete())).collect();
        assert_eq!(complete, [("00", true), ("01", false)]);
    }
}
