//! Running a command as another user.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user by number. The numbers of the tests need no entry in the password file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User(pub u32);

impl User {
    /// The superuser.
    pub const ROOT: User = User(0);
    /// The one who owns the home in a test.
    pub const OWNER: User = User(64_001);
    /// Someone else.
    pub const THIRD: User = User(64_002);

    /// Makes `command` run as this user, without supplementary groups. Only root may.
    pub fn runs(self, command: &mut Command) -> &mut Command {
        command.uid(self.0).gid(self.0)
    }

    /// Gives `path`, and everything below it if it is a directory, to this user. Symlinks are not followed.
    pub fn owns(self, path: &Path) {
        let status = fs::symlink_metadata(path).unwrap_or_else(|e| panic!("cannot look at {}: {e}", path.display()));
        if status.file_type().is_symlink() {
            std::os::unix::fs::lchown(path, Some(self.0), Some(self.0)).expect("give a link away");
            return;
        }
        if status.is_dir() {
            for entry in fs::read_dir(path).expect("list a directory") {
                self.owns(&entry.expect("a directory entry").path());
            }
        }
        chown(path, Some(self.0), Some(self.0)).expect("give a file away");
    }
}

/// A copy of `program` in `directory` that every user can run, for a checkout often lies where only its owner may go.
///
/// Another process makes the copy: what this one has open for writing is inherited, until its `exec`, by a child that another
/// test forks at that moment, and a program that is open for writing cannot be started ("text file busy").
pub fn runnable_by_all(program: &Path, directory: &Path) -> PathBuf {
    let copy = directory.join(program.file_name().expect("a program has a name"));
    let done = Command::new("cp").arg(program).arg(&copy).status().expect("run cp");
    assert!(done.success(), "cp {} {}: {done}", program.display(), copy.display());
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).expect("mode of the program");
    copy
}
