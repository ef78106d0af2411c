//! A home: the directory with a store, its configuration and its side files.
//!
//! Naming a home creates nothing. Only `up` and `sessions import` call [`Home::create`], everything else finds the
//! store or answers `no_store`. Directories are 0700 and files 0600 whatever the umask says.

use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags};
use statehouse_sqlite::files;

use crate::config::Config;
use crate::exit;
use crate::failure::{Failure, Result, code};

/// The name of the store within a home.
pub(crate) const STORE: &str = "state.db";
const TOKEN_BYTES: usize = 32;

/// A home, which may not exist yet.
#[derive(Debug, Clone)]
pub(crate) struct Home {
    directory: PathBuf,
}

impl Home {
    /// The home that the command line and the environment name.
    ///
    /// # Errors
    /// When no home can be named, or the profile's name is not one.
    pub(crate) fn named(home: Option<&Path>, profile: Option<&str>) -> Result<Home> {
        let from_environment = || std::env::var_os("STATEHOUSE_HOME").filter(|h| !h.is_empty()).map(PathBuf::from);
        let default = || std::env::home_dir().filter(|h| !h.as_os_str().is_empty()).map(|h| h.join(".statehouse"));
        let named = home.map(Path::to_owned).or_else(from_environment).or_else(default).ok_or_else(|| {
            Failure::new(exit::USAGE, code::BAD_HOME, "this user has no home directory to keep a store in")
                .hint("Name a directory with --home DIR or in $STATEHOUSE_HOME.")
        })?;
        if named.as_os_str().is_empty() {
            return Err(Failure::new(exit::USAGE, code::BAD_HOME, "the home's name is empty")
                .hint("Name a directory with --home DIR."));
        }
        let mut directory = std::path::absolute(&named).map_err(|e| Failure::io("resolve", &named, e))?;
        if let Some(name) = profile {
            check_profile(name)?;
            directory = directory.join("profiles").join(name);
        }
        Ok(Home { directory })
    }

    /// The directory.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The store's main file.
    pub(crate) fn store(&self) -> PathBuf {
        self.directory.join(STORE)
    }

    /// Where the services' logs are.
    pub(crate) fn logs(&self) -> PathBuf {
        self.directory.join("logs")
    }

    /// Where starts that were refused are told of; `statehouse_ops::incidents` reads them.
    pub(crate) fn refusals(&self) -> PathBuf {
        self.logs().join("incidents")
    }

    /// The file with the token that clients of the HTTP interfaces present.
    pub(crate) fn token_file(&self) -> PathBuf {
        self.directory.join("token")
    }

    fn config_file(&self) -> PathBuf {
        self.directory.join("config.toml")
    }

    /// Checks that what is there can be a home, without changing anything. `Ok(false)` if nothing is there.
    ///
    /// # Errors
    /// Something else stands there, it belongs to somebody else, or everybody may write into it.
    pub(crate) fn check(&self) -> Result<bool> {
        let bad = |what: &str, hint: &str| {
            Err(Failure::new(
                exit::REFUSED,
                code::BAD_HOME,
                format!("{} cannot be a home: {what}", self.directory.display()),
            )
            .hint(hint))
        };
        let metadata = match std::fs::metadata(&self.directory) {
            Ok(m) => m,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return match std::fs::symlink_metadata(&self.directory) {
                    Ok(_) => {
                        bad("it is a symbolic link to nothing", "Remove the link, or make the directory it names.")
                    }
                    Err(_) => Ok(false),
                };
            }
            Err(e) => return Err(Failure::io("look at", &self.directory, e)),
        };
        let me = rustix::process::geteuid();
        if !metadata.is_dir() {
            return bad("it is not a directory", "Name a directory.");
        }
        if metadata.uid() != me.as_raw() && !me.is_root() {
            return bad("it belongs to another user", "Run as its owner, or name another directory.");
        }
        if metadata.mode() & 0o1000 != 0 {
            return bad("it is shared by everybody", "Name a directory of its own, for example one below it.");
        }
        Ok(true)
    }

    /// Makes the directory if it is not there, and keeps others out of it.
    ///
    /// # Errors
    /// As [`Home::check`], or the system's answer.
    pub(crate) fn create(&self) -> Result<Created> {
        let mut made = Vec::new();
        if !self.check()? {
            let mut missing: Vec<&Path> =
                self.directory.ancestors().take_while(|a| std::fs::symlink_metadata(a).is_err()).collect();
            missing.reverse();
            for directory in missing {
                private_directory(directory)?;
                made.push(directory.to_owned());
            }
        }
        Ok(Created { made })
    }

    /// Writes what a home has beside its store (`config.toml`, `token`, `logs/`) where it is missing, and tightens modes.
    ///
    /// # Errors
    /// The system's answer.
    pub(crate) fn furnish(&self) -> Result<()> {
        tighten(&self.directory, 0o700)?;
        private_directory(&self.logs())?;
        let config = self.config_file();
        if std::fs::symlink_metadata(&config).is_err() {
            create_private(&config, Config::TEMPLATE.as_bytes())?;
        } else {
            tighten(&config, 0o600)?;
        }
        let token = self.token_file();
        if std::fs::symlink_metadata(&token).is_err() {
            create_private(&token, format!("{}\n", new_token()?).as_bytes())?;
        } else {
            tighten(&token, 0o600)?;
        }
        Ok(())
    }

    /// The token.
    ///
    /// # Errors
    /// It is missing, or it is not one.
    pub(crate) fn token(&self) -> Result<String> {
        let path = self.token_file();
        let text = files::read_to_string(&path, 4096)
            .map_err(|e| Failure::io("read", &path, e).hint("`statehouse up` writes a token where there is none."))?;
        let token = text.trim();
        if token.len() < 16 || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Failure::new(exit::FAILED, code::BAD_HOME, format!("{} holds no token", path.display()))
                .detail("a token is one line of at least 16 printable ASCII characters")
                .hint("Remove the file; `statehouse up` writes a new one."));
        }
        Ok(token.to_owned())
    }

    /// The configuration; the defaults where there is no file.
    ///
    /// # Errors
    /// A key that is unknown or a value that cannot be used, named with its line.
    pub(crate) fn config(&self) -> Result<Config> {
        let path = self.config_file();
        match files::read_to_string(&path, 1 << 20) {
            Ok(text) => Config::parse(&text, &path),
            Err(e) if matches!(e.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => {
                Ok(Config::default())
            }
            Err(e) => Err(Failure::io("read", &path, e)),
        }
    }
}

/// The directories that [`Home::create`] made. A refusal that comes later takes them away again.
#[derive(Debug)]
pub(crate) struct Created {
    made: Vec<PathBuf>,
}

impl Created {
    /// Removes the directories again, as far as they are empty.
    pub(crate) fn undo(self) {
        for directory in self.made.iter().rev() {
            if std::fs::remove_dir(directory).is_err() {
                break;
            }
        }
    }
}

fn check_profile(name: &str) -> Result<()> {
    let fits = name.chars().all(|c| c.is_alphanumeric() || "-_.".contains(c));
    if name.is_empty() || name.len() > 64 || name.starts_with(['.', '-']) || !fits {
        return Err(Failure::new(exit::USAGE, code::USAGE, format!("{name:?} cannot be the name of a profile"))
            .hint("Use up to 64 letters, digits, '-', '_' and '.', beginning with a letter, a digit or '_'."));
    }
    Ok(())
}

/// Makes a directory with mode 0700 whatever the umask, or leaves the one that is there.
fn private_directory(path: &Path) -> Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => tighten(path, 0o700),
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && path.is_dir() => tighten(path, 0o700),
        Err(e) => Err(Failure::io("create", path, e)),
    }
}

/// Takes mode bits away from exactly the file or directory that was looked at: the mode is set through a descriptor that
/// cannot be used for anything else, so closing it drops no lock, and swapping the path leads nowhere.
fn tighten(path: &Path, mode: u32) -> Result<()> {
    let failed = |e: rustix::io::Errno| Failure::io("set the mode of", path, std::io::Error::from(e));
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let fd = rustix::fs::openat(CWD, path, flags, Mode::empty()).map_err(failed)?;
    let now = rustix::fs::fstat(&fd).map_err(failed)?;
    let now_bits = Mode::from_raw_mode(now.st_mode).bits() & 0o7777;
    let wanted = now_bits & mode;
    // A link at the path was followed: what it leads to must be ours before it is changed.
    if now_bits != wanted && now.st_uid == rustix::process::geteuid().as_raw() {
        let through = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
        rustix::fs::chmodat(CWD, through, Mode::from_bits_retain(wanted), rustix::fs::AtFlags::empty())
            .map_err(failed)?;
    }
    Ok(())
}

/// Creates a file that is not there with mode 0600 and writes it whole. Another process that was faster wins.
fn create_private(path: &Path, content: &[u8]) -> Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = PathBuf::from(name);
    let written = files::open_private(&new).and_then(|mut f| {
        f.set_len(0)?;
        f.write_all(content)?;
        f.sync_all()
    });
    // A hard link fails where the name exists, so that two starts at once end with one token.
    let placed = written.and_then(|()| std::fs::hard_link(&new, path));
    let removed = std::fs::remove_file(&new);
    match placed {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(Failure::io("write", path, e)),
        Ok(()) => removed.map_err(|e| Failure::io("remove", &new, e)),
    }
}

fn new_token() -> Result<String> {
    let mut random = [0u8; TOKEN_BYTES];
    getrandom::fill(&mut random)
        .map_err(|e| Failure::new(exit::FAILED, code::IO, "the system gave no random bytes").detail(e.to_string()))?;
    Ok(random.iter().map(|b| format!("{b:02x}")).collect())
}

/// What PATH on a command line means.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The database.
    pub(crate) database: PathBuf,
}

impl Place {
    /// The database that `path` names: the file itself, or the store of the home it is; without a path the home's store.
    pub(crate) fn of(path: Option<&Path>, home: &Home) -> Place {
        let database = match path {
            None => home.store(),
            Some(p) if p.is_dir() => p.join(STORE),
            Some(p) => p.to_owned(),
        };
        // A path that cannot be made absolute names nothing, which whoever looks at it will say.
        Place { database: std::path::absolute(&database).unwrap_or(database) }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn mode(path: &Path) -> u32 {
        std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn names_of_profiles() {
        for good in ["work", "a", "日本", "x-1_2.y"] {
            check_profile(good).unwrap();
        }
        for bad in ["", ".", "..", "a/b", "../x", ".hidden", "-x", "a b", "a\nb", &"x".repeat(65)] {
            assert_eq!(check_profile(bad).unwrap_err().exit, exit::USAGE, "{bad:?}");
        }
    }

    #[test]
    fn a_furnished_home_is_private_and_keeps_its_token() {
        let temp = tempfile::tempdir().unwrap();
        for name in ["plain", "a#b?c%20 d", "日本語", "line\nfeed"] {
            let home = Home { directory: temp.path().join(name).join("deep") };
            assert!(!home.check().unwrap());
            home.create().unwrap();
            home.furnish().unwrap();
            let token = home.token().unwrap();
            assert_eq!(token.len(), 64);
            home.furnish().unwrap();
            assert_eq!(home.token().unwrap(), token);
            for (path, want) in [
                (home.directory().to_owned(), 0o700),
                (home.logs(), 0o700),
                (home.token_file(), 0o600),
                (home.config_file(), 0o600),
            ] {
                assert_eq!(mode(&path), want, "{}", path.display());
            }
            home.config().unwrap();
            let names = std::fs::read_dir(home.directory()).unwrap().count();
            assert_eq!(names, 3, "no temporary file is left");
        }
    }

    #[test]
    fn what_cannot_be_a_home_is_refused_and_left_alone() {
        let temp = tempfile::tempdir().unwrap();
        let shared = temp.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o1777)).unwrap();
        let link = temp.path().join("link");
        std::os::unix::fs::symlink(temp.path().join("nothing"), &link).unwrap();
        for path in [shared.clone(), link] {
            let failure = Home { directory: path.clone() }.create().unwrap_err();
            assert_eq!((failure.exit, &*failure.code), (exit::REFUSED, "bad_home"), "{}", path.display());
        }
        assert_eq!(mode(&shared), 0o1777);
        assert!(!temp.path().join("nothing").exists());
    }

    #[test]
    fn undoing_takes_away_only_what_was_made() {
        let temp = tempfile::tempdir().unwrap();
        let home = Home { directory: temp.path().join("a/b") };
        home.create().unwrap().undo();
        assert!(temp.path().exists() && !temp.path().join("a").exists());
    }
}
