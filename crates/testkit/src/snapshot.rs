//! What a directory looks like, to prove that an operation has changed nothing on disk.
//!
//! Regular files are opened and read, so a process that has a database open by way of SQLite must not take a snapshot
//! of it by itself; tests take it from the test process, which has no connection.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Type and permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// Inode number.
    pub inode: u64,
    /// Hard links.
    pub links: u64,
    /// Time of the last change of content, seconds and nanoseconds.
    pub modified: (i64, i64),
    /// Time of the last change of anything, seconds and nanoseconds.
    pub changed: (i64, i64),
    /// The bytes of a regular file.
    pub bytes: Option<Vec<u8>>,
    /// The target of a symlink.
    pub target: Option<PathBuf>,
}

/// Every name below a directory with all that can be seen of it but for the time of the last access.
#[derive(Clone, PartialEq, Eq)]
pub struct Snapshot {
    entries: BTreeMap<OsString, Entry>,
}

impl Snapshot {
    /// Takes the state of `directory` and of everything below it; `leave_out` names paths (relative to it) that may
    /// change, with all that lies below them.
    pub fn of(directory: &Path, leave_out: &[&str]) -> Snapshot {
        let mut entries = BTreeMap::new();
        add(directory, Path::new(""), leave_out, &mut entries);
        Snapshot { entries }
    }

    /// The entries, by path relative to the directory.
    pub fn entries(&self) -> &BTreeMap<OsString, Entry> {
        &self.entries
    }

    /// What is different in `later`, a line each; empty if nothing is.
    pub fn differences(&self, later: &Snapshot) -> Vec<String> {
        let mut lines = Vec::new();
        for (name, before) in &self.entries {
            match later.entries.get(name) {
                None => lines.push(format!("{name:?} is gone")),
                Some(after) if after != before => lines.push(format!("{name:?}: {}", difference(before, after))),
                Some(_) => {}
            }
        }
        lines.extend(later.entries.keys().filter(|n| !self.entries.contains_key(*n)).map(|n| format!("{n:?} is new")));
        lines
    }

    /// Panics with the differences if anything changed since.
    pub fn assert_unchanged(&self, directory: &Path, leave_out: &[&str]) {
        let differences = self.differences(&Snapshot::of(directory, leave_out));
        assert!(differences.is_empty(), "{} has changed: {differences:#?}", directory.display());
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.entries.keys()).finish()
    }
}

fn difference(before: &Entry, after: &Entry) -> String {
    let mut parts = Vec::new();
    if before.mode != after.mode {
        parts.push(format!("mode {:o} -> {:o}", before.mode, after.mode));
    }
    if before.owner != after.owner {
        parts.push(format!("owner {:?} -> {:?}", before.owner, after.owner));
    }
    if before.inode != after.inode {
        parts.push(format!("inode {} -> {}", before.inode, after.inode));
    }
    if before.links != after.links {
        parts.push(format!("links {} -> {}", before.links, after.links));
    }
    if before.bytes != after.bytes {
        let length = |e: &Entry| e.bytes.as_ref().map_or(0, Vec::len);
        parts.push(format!("content ({} -> {} bytes)", length(before), length(after)));
    }
    if before.target != after.target {
        parts.push(format!("target {:?} -> {:?}", before.target, after.target));
    }
    if before.modified != after.modified {
        parts.push("time of modification".into());
    }
    if before.changed != after.changed {
        parts.push("time of change".into());
    }
    parts.join(", ")
}

fn add(root: &Path, below: &Path, leave_out: &[&str], entries: &mut BTreeMap<OsString, Entry>) {
    if leave_out.iter().any(|name| below == Path::new(name)) {
        return;
    }
    let path = if below.as_os_str().is_empty() { root.to_path_buf() } else { root.join(below) };
    let status = fs::symlink_metadata(&path).unwrap_or_else(|e| panic!("cannot look at {}: {e}", path.display()));
    let kind = status.file_type();
    let entry = Entry {
        mode: status.mode(),
        owner: (status.uid(), status.gid()),
        inode: status.ino(),
        links: status.nlink(),
        modified: (status.mtime(), status.mtime_nsec()),
        changed: (status.ctime(), status.ctime_nsec()),
        bytes: kind
            .is_file()
            .then(|| fs::read(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()))),
        target: kind.is_symlink().then(|| fs::read_link(&path).unwrap_or_default()),
    };
    // What may change inside changes the times of the directory that holds it.
    let holds_exempt = leave_out.iter().any(|name| Path::new(name).parent() == Some(below));
    let entry = if holds_exempt { Entry { modified: (0, 0), changed: (0, 0), links: 0, ..entry } } else { entry };
    entries.insert(below.as_os_str().to_owned(), entry);
    if kind.is_dir() {
        let list = fs::read_dir(&path).unwrap_or_else(|e| panic!("cannot list {}: {e}", path.display()));
        for child in list {
            add(root, &below.join(child.expect("a directory entry").file_name()), leave_out, entries);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Snapshot;
    use crate::TestDir;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn every_kind_of_change_is_seen() {
        let dir = TestDir::new();
        std::fs::write(dir.join("a"), "1").unwrap();
        std::fs::create_dir(dir.join("logs")).unwrap();
        let before = Snapshot::of(dir.path(), &["logs"]);
        std::fs::write(dir.join("logs/x"), "free to change").unwrap();
        before.assert_unchanged(dir.path(), &["logs"]);
        std::fs::set_permissions(dir.join("a"), std::fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(before.differences(&Snapshot::of(dir.path(), &["logs"])).len(), 1);
        std::fs::write(dir.join("a"), "2").unwrap();
        std::fs::write(dir.join("b"), "").unwrap();
        let seen = before.differences(&Snapshot::of(dir.path(), &["logs"]));
        assert!(
            seen.iter().any(|l| l.contains("content")) && seen.iter().any(|l| l.contains("\"b\" is new")),
            "{seen:?}"
        );
    }
}
