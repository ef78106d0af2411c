//! The files of one database: their names, their identities, and a generation.
//!
//! SQLite pairs a database with its write-ahead log, its shared index and its rollback journal by name alone.
//! A name says nothing about which file is behind it, so everything here that must tell two files apart compares
//! [`Identity`], never a path.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Reason, Result};

#[cfg_attr(target_os = "linux", path = "family/linux.rs")]
#[cfg_attr(target_os = "macos", path = "family/macos.rs")]
#[cfg_attr(windows, path = "family/windows.rs")]
mod system;

/// One file of a family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Member {
    /// The database file itself.
    Main,
    /// The write-ahead log, `X-wal`.
    Wal,
    /// The shared index of the write-ahead log, `X-shm`.
    Shm,
    /// The rollback journal, `X-journal`.
    Journal,
}

impl Member {
    /// All members, the main file first.
    pub const ALL: [Member; 4] = [Member::Main, Member::Wal, Member::Shm, Member::Journal];

    /// What SQLite appends to the name of the main file.
    pub fn suffix(self) -> &'static str {
        match self {
            Member::Main => "",
            Member::Wal => "-wal",
            Member::Shm => "-shm",
            Member::Journal => "-journal",
        }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Member::Main => "main",
            Member::Wal => "wal",
            Member::Shm => "shm",
            Member::Journal => "journal",
        })
    }
}

/// What makes a file that file: device, inode and, where the file system tells it, the time of birth.
///
/// ext4 hands an inode number out again at once, so the number alone would take a new file for the old one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Identity {
    /// Device number as `makedev` composes it; on Windows the serial number of the volume.
    pub device: u64,
    /// Inode number; on Windows the index of the file on its volume.
    pub inode: u64,
    /// Nanoseconds since 1970 at which the file was created; `None` where the file system does not tell.
    pub born_ns: Option<i64>,
}

/// What the system tells about a file, without opening it for its content and without following a final symlink.
#[derive(Debug, Clone, Copy)]
pub struct Status {
    /// Which file it is.
    pub identity: Identity,
    /// Type and permission bits, as in `st_mode`; on Windows the type alone.
    pub mode: u32,
    /// Number of hard links.
    pub links: u32,
    /// Owner; 0 on Windows, where owners have no numbers.
    pub uid: u32,
    /// Length in bytes.
    pub size: u64,
    /// When the content was changed last, in nanoseconds since 1970. Anybody who may write can set it.
    pub modified_ns: i64,
    /// When anything about the file was changed last. Nobody can set it.
    pub changed_ns: i64,
    /// True if the file is itself a mount point (a single file mounted into a container).
    pub mount_root: bool,
}

impl Status {
    /// The status of what `path` names, `None` if nothing does. A final symlink is not followed.
    ///
    /// # Errors
    /// Whatever the system answers, except "no such file".
    pub fn of(path: &Path) -> std::io::Result<Option<Status>> {
        match system::status(path) {
            Ok(status) => Ok(Some(status)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound || is_too_long(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// True if the system says that no file can have this name, so that there is none.
pub(crate) fn is_too_long(e: &std::io::Error) -> bool {
    e.kind() == std::io::ErrorKind::InvalidFilename
}

/// The names of one database's files. The directory is resolved once, so that a later change of a symlink above
/// it cannot make two names of one family mean two places.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Family {
    directory: PathBuf,
    name: OsString,
}

impl Family {
    /// The family of the database at `path`. The directory must exist; the main file need not.
    ///
    /// # Errors
    /// [`Reason::NoDirectory`] when the directory does not exist or cannot be resolved.
    pub fn of(path: &Path) -> Result<Family> {
        let (family, given) = Family::resolve(path)?;
        match given {
            None => Ok(family),
            Some(given) => Err(Error::refused(
                Reason::NoDirectory,
                given,
                "a link on the way leads to where names mean other files, as /proc/PID/root does",
            )),
        }
    }

    /// As [`Family::of`], for who only looks at the files and opens none: a way through the root of another process
    /// (`/proc/PID/root`) is taken as it stands. SQLite would resolve it by the text of the link, to another file of this name.
    ///
    /// # Errors
    /// As [`Family::of`].
    pub fn to_look_at(path: &Path) -> Result<Family> {
        let (family, given) = Family::resolve(path)?;
        Ok(given.map_or(family.clone(), |directory| Family { directory, ..family }))
    }

    /// The family by the resolved name of its directory; with the directory as it was given, if that is another one.
    fn resolve(path: &Path) -> Result<(Family, Option<PathBuf>)> {
        let name =
            path.file_name().ok_or_else(|| Error::refused(Reason::NotRegular, path, "the path names a directory"))?;
        let parent = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        let directory =
            std::fs::canonicalize(parent).map_err(|e| Error::refused(Reason::NoDirectory, parent, e.to_string()))?;
        // The status of what a link leads to is that of its `.`. Only Linux has links that lead elsewhere than they say.
        let identity = |path: &Path| Status::of(path).ok().flatten().map(|s| s.identity);
        let differ = |a: Option<Identity>, b: Option<Identity>| a.zip(b).is_some_and(|(a, b)| a != b);
        let other = cfg!(target_os = "linux") && differ(identity(&parent.join(".")), identity(&directory));
        let given = if other { std::path::absolute(parent).ok() } else { None };
        Ok((Family { directory, name: name.to_owned() }, given))
    }

    /// The directory, with symlinks resolved.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The name of the main file within its directory.
    pub fn name(&self) -> &OsStr {
        &self.name
    }

    /// The name of a member within the directory.
    pub fn member_name(&self, member: Member) -> OsString {
        let mut name = self.name.clone();
        name.push(member.suffix());
        name
    }

    /// The full path of a member.
    pub fn path(&self, member: Member) -> PathBuf {
        self.directory.join(self.member_name(member))
    }

    /// The full path of the main file.
    pub fn main(&self) -> PathBuf {
        self.path(Member::Main)
    }

    /// Where the crate keeps what it must remember about this database (`X.statehouse`).
    pub fn side_directory(&self) -> PathBuf {
        let mut name = self.name.clone();
        name.push(".statehouse");
        self.directory.join(name)
    }

    /// What the paths name now.
    ///
    /// # Errors
    /// Whatever `statx` answers, except "no such file".
    pub fn generation(&self) -> std::io::Result<Generation> {
        Ok(Generation::of(&self.statuses()?))
    }

    /// The status of main file, log and index, in this order.
    ///
    /// # Errors
    /// As [`Family::generation`].
    pub(crate) fn statuses(&self) -> std::io::Result<[Option<Status>; 3]> {
        let status = |m| Status::of(&self.path(m));
        Ok([status(Member::Main)?, status(Member::Wal)?, status(Member::Shm)?])
    }
}

/// The identities of main file, log and index that are in use together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// The main file.
    pub main: Option<Identity>,
    /// The write-ahead log.
    pub wal: Option<Identity>,
    /// The shared index.
    pub shm: Option<Identity>,
}

impl Generation {
    /// The generation of what was looked at.
    pub(crate) fn of([main, wal, shm]: &[Option<Status>; 3]) -> Generation {
        let identity = |status: &Option<Status>| status.map(|s| s.identity);
        Generation { main: identity(main), wal: identity(wal), shm: identity(shm) }
    }

    /// The identity of one member.
    pub fn get(&self, member: Member) -> Option<Identity> {
        match member {
            Member::Main => self.main,
            Member::Wal => self.wal,
            Member::Shm => self.shm,
            Member::Journal => None,
        }
    }

    /// The members that differ between two generations.
    pub fn differences(&self, other: &Generation) -> Vec<Member> {
        [Member::Main, Member::Wal, Member::Shm].into_iter().filter(|m| self.get(*m) != other.get(*m)).collect()
    }
}
