//! Where a new file may be written: nowhere that a database would take it for one of its own.
//!
//! A file called `X-wal` is the log of `X` for SQLite, whatever is in it and whoever made it, and `X` need not be there yet. A
//! file in the side directory of a database is one of its snapshots, captures or records for this program.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// What SQLite adds to the name of a main file.
const SUFFIXES: [&str; 3] = ["-wal", "-shm", "-journal"];

/// What this program adds to it for its directory.
const SIDE: &[u8] = b".statehouse";

/// What lies in such a directory.
const KEPT: [&str; 4] = ["snapshots", "retired", "incidents", "restoring"];

/// Why a new file may not be written there, in words; `None` if it may.
pub(crate) fn belongs_to_a_database(to: &Path) -> Option<String> {
    let name = to.file_name().unwrap_or_default().as_bytes();
    for suffix in SUFFIXES {
        if let Some(main) = name.strip_suffix(suffix.as_bytes()).filter(|main| !main.is_empty()) {
            let main = to.with_file_name(OsStr::from_bytes(main));
            return Some(format!("SQLite takes a file of this name for a part of the database {}", main.display()));
        }
    }
    let absolute = std::path::absolute(to).unwrap_or_else(|_| to.to_owned());
    // By another way it is the same directory.
    let directory = absolute.parent()?;
    let directory = std::fs::canonicalize(directory).unwrap_or_else(|_| directory.to_owned());
    let side = directory.ancestors().find(|d| is_side(d))?;
    Some(format!("{} is where a database keeps its snapshots and records", side.display()))
}

fn is_side(directory: &Path) -> bool {
    let name = directory.file_name().unwrap_or_default().as_bytes();
    let Some(main) = name.strip_suffix(SIDE).filter(|main| !main.is_empty()) else { return false };
    let has = |path: &Path| std::fs::symlink_metadata(path).is_ok();
    has(&directory.with_file_name(OsStr::from_bytes(main))) || KEPT.iter().any(|k| has(&directory.join(k)))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn what_is_called_like_a_part_of_a_database_or_lies_among_its_records_is_one() {
        let place = statehouse_testkit::TestDir::new();
        let in_it = |name: &str| belongs_to_a_database(&place.join(name)).is_some();
        for part in ["s.db-wal", "s.db-shm", "s.db-journal", "s.db-wal-wal"] {
            assert!(in_it(part), "{part}");
        }
        for free in ["s.db", "wal", "-wal", "s.wal", "s.db-wal.keep"] {
            assert!(!in_it(free), "{free}");
        }
        // A directory that is only called so is none.
        std::fs::create_dir_all(place.join("my.statehouse/deep")).unwrap();
        std::fs::create_dir_all(place.join(".statehouse")).unwrap();
        assert!(!in_it("my.statehouse/x.db") && !in_it(".statehouse/x.db"));
        std::fs::create_dir(place.join("my.statehouse/snapshots")).unwrap();
        std::os::unix::fs::symlink(place.join("my.statehouse/deep"), place.join("way")).unwrap();
        for side in ["my.statehouse/x.db", "my.statehouse/deep/x.db", "way/x.db", "my.statehouse/snapshots/e.snapshot"]
        {
            assert!(in_it(side), "{side}");
        }
    }
}
