//! A small volume of its own, for what must be told apart from a full disk of the whole machine.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::home::TestDir;
use crate::need;

/// A file system in memory with a fixed size, unmounted when it is dropped.
#[derive(Debug)]
pub struct Volume(TestDir);

impl Volume {
    /// One of so many KiB; `None` after saying that the test is skipped, where this user may not mount anything.
    pub fn new(kib: u32) -> Option<Volume> {
        if !need::root("mounting a small volume") {
            return None;
        }
        let directory = TestDir::new();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={kib}k"), "tmpfs"]).arg(directory.path());
        if !mount.status().expect("run mount").success() {
            need::skip("this system does not let a small volume be mounted");
            return None;
        }
        Some(Volume(directory))
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// A path on it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Fills it until so many bytes are left.
    pub fn fill(&self, left: u64) {
        let ballast = fs::File::create(self.join("ballast")).expect("make a file");
        let block = vec![1; 4096];
        while (&ballast).write_all(&block).is_ok() {}
        let full = ballast.metadata().expect("look at a file").len();
        ballast.set_len(full.saturating_sub(left)).expect("shorten a file");
    }

    /// Makes room again.
    pub fn clear(&self) {
        fs::remove_file(self.join("ballast")).expect("remove a file");
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}
