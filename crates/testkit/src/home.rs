//! A directory for one test, and a home in it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::volume::Volume;

/// A directory that is removed when the test ends. Its path has no symlinks, and other users may look into it, so
/// that what they are refused is refused by the product or by what the test made, not by the way there.
#[derive(Debug)]
pub struct TestDir {
    path: PathBuf,
    // Held for its removal.
    directory: TempDir,
}

/// A test that fails leaves its directory for who asks for it with `STATEHOUSE_KEEP=1`.
impl Drop for TestDir {
    fn drop(&mut self) {
        if std::thread::panicking() && std::env::var_os("STATEHOUSE_KEEP").is_some() {
            eprintln!("kept: {}", self.path.display());
            self.directory.disable_cleanup(true);
        }
    }
}

impl TestDir {
    /// A new empty directory.
    #[expect(clippy::new_without_default, reason = "making a directory is an act, not a default")]
    pub fn new() -> TestDir {
        let directory = tempfile::Builder::new().prefix("statehouse-test-").tempdir().expect("a temporary directory");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).expect("mode of the directory");
        TestDir { path: fs::canonicalize(directory.path()).expect("the directory's real path"), directory }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

/// A Statehouse home that no test shares, inside a [`TestDir`].
#[derive(Debug)]
pub struct Home {
    directory: TestDir,
    path: PathBuf,
}

impl Home {
    /// A home that does not exist yet, as a newcomer has it.
    #[expect(clippy::new_without_default, reason = "making a directory is an act, not a default")]
    pub fn new() -> Home {
        Home::named("home")
    }

    /// A home with this last component, which does not exist yet.
    pub fn named(name: impl AsRef<Path>) -> Home {
        let directory = TestDir::new();
        let path = directory.join(name);
        Home { directory, path }
    }

    /// A home on a volume of its own, which does not exist yet.
    pub fn on(volume: &Volume) -> Home {
        Home { directory: TestDir::new(), path: volume.join("home") }
    }

    /// The home itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory around the home, for what the test needs beside it.
    pub fn around(&self) -> &TestDir {
        &self.directory
    }

    /// The store's main file.
    pub fn store(&self) -> PathBuf {
        self.path.join("state.db")
    }

    /// Another member of the store's family, by its suffix (`-wal`, `-shm`, `-journal`).
    pub fn member(&self, suffix: &str) -> PathBuf {
        self.path.join(format!("state.db{suffix}"))
    }

    /// The token that the gateway wants to see.
    pub fn token(&self) -> String {
        fs::read_to_string(self.path.join("token")).expect("the token of the home").trim().to_owned()
    }

    /// `program` with this home, and with nothing of the developer's own settings.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.directory.path())
            .env("LANG", "C.UTF-8")
            .env("TZ", "UTC")
            .env("STATEHOUSE_HOME", &self.path)
            .current_dir(self.directory.path());
        command
    }
}
