//! Ordinary files, read and written by a process that may have a database open.
//!
//! Closing any descriptor of a database file drops every POSIX lock that the process has on it, so a helper that reads
//! "some file" can take the locks of the whole process away when that file turns out to be the database under another
//! name. Everything in this workspace that opens an ordinary file goes through here: it looks at the file's identity
//! without opening it, and refuses when SQLite has that very file open in this process.
//! clippy's `disallowed-methods` points here.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, statat};

fn refuse_database_files(path: &Path) -> io::Result<()> {
    match statat(CWD, path, AtFlags::empty()) {
        Ok(s) if crate::locks::in_use(s.st_dev, s.st_ino) => {
            Err(io::Error::other(format!("{} is a file of a database that is open in this process", path.display())))
        }
        Ok(s) if FileType::from_raw_mode(s.st_mode) != FileType::RegularFile => {
            Err(io::Error::other(format!("{} is not a regular file", path.display())))
        }
        _ => Ok(()),
    }
}

/// Opens an ordinary file for reading.
///
/// # Errors
/// The system's answer, or a refusal when the path leads to an open database or to something that is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    refuse_database_files(path)?;
    #[expect(clippy::disallowed_methods, reason = "the identity was checked above")]
    OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::CLOEXEC.bits() as i32 | OFlags::NONBLOCK.bits() as i32)
        .open(path)
}

/// Reads an ordinary text file of at most `limit` bytes.
///
/// # Errors
/// As [`open`]; text that is longer or not UTF-8.
pub fn read_to_string(path: &Path, limit: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = open(path)?.take(limit + 1).read_to_string(&mut text)?;
    if read as u64 > limit {
        return Err(io::Error::other(format!("{} is larger than {limit} bytes", path.display())));
    }
    Ok(text)
}

/// Makes a file of this user's private if it is not; somebody else's is left as it is.
fn tighten(file: &File) -> io::Result<()> {
    let status = rustix::fs::fstat(file)?;
    let ours = status.st_uid == rustix::process::geteuid().as_raw();
    if ours && status.st_mode & 0o177 != 0 {
        rustix::fs::fchmod(file, Mode::RUSR | Mode::WUSR)?;
    }
    Ok(())
}

/// Opens a file for reading and writing, creates it with mode 0600 whatever the umask if it is not there, gives it that mode if it is ours and has another, and never
/// follows a symlink at the end of the path. For lock files and records.
///
/// # Errors
/// The system's answer, or a refusal as in [`open`].
pub fn open_private(path: &Path) -> io::Result<File> {
    refuse_database_files(path)?;
    let flags = OFlags::NOFOLLOW.bits() as i32;
    #[expect(clippy::disallowed_methods, reason = "the identity was checked above")]
    let new = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).custom_flags(flags).open(path);
    match new {
        Ok(file) => {
            rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
            Ok(file)
        }
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let flags = flags | OFlags::NONBLOCK.bits() as i32;
            #[expect(clippy::disallowed_methods, reason = "the identity was checked above")]
            let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
            tighten(&file)?;
            Ok(file)
        }
        Err(e) => Err(e),
    }
}

/// Writes a new private file beside `path` and renames it into place, so that a reader sees the old content or the new.
///
/// # Errors
/// The system's answer, or a refusal as in [`open`].
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    refuse_database_files(path)?;
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = Path::new(&name);
    let written = open_private(new).and_then(|mut f| {
        f.set_len(0)?;
        f.write_all(content)?;
        f.sync_all()
    });
    written.and_then(|()| std::fs::rename(new, path)).inspect_err(|_| {
        let _ = std::fs::remove_file(new);
    })
}
