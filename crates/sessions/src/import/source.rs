//! Reading a database that belongs to another program, without a trace.
//!
//! Opening a database in WAL mode, even read-only, makes files beside it, and closing it may take them away. So the
//! source is opened in place only when nothing stands beside it, with `immutable=1`, which makes SQLite touch nothing
//! but the one file. With a log or journal beside it a private copy is opened instead, and the copy is consistent
//! although the owner may be writing:
//!
//! * **With a log** the main file is copied first and the log after it, and both are copied again if the log was
//!   started over meanwhile (its header then has other salts). If it was not, it only grew. A checkpoint may have
//!   written to the main file while it was copied, but every page that it wrote is a frame of this same log and so is in
//!   the copy, which SQLite reads in preference to the main file. A transaction that was being appended lacks its commit
//!   frame, and SQLite leaves it out.
//! * **Without a log** (rollback mode) main file and journal must be the same, by time, size and content, before and
//!   after.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use statehouse_sqlite::secure::{Purpose, inspect};
use statehouse_sqlite::{Family, files, headers};

use crate::error::{Error, Result};

/// How often a copy is tried that the owner's writing spoils.
const TRIES: u32 = 20;

/// A foreign database, open for reading.
pub(super) struct Source {
    pub(super) connection: Connection,
    path: PathBuf,
    /// What the file was when it was opened in place; `None` for a private copy.
    in_place: Option<Stamp>,
    /// Dropped after the connection.
    _copy: Option<PrivateDirectory>,
}

/// Enough to see that a file was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(m: &Metadata) -> Stamp {
        Stamp {
            device: m.dev(),
            inode: m.ino(),
            size: m.size(),
            modified: (m.mtime(), m.mtime_nsec()),
            changed: (m.ctime(), m.ctime_nsec()),
        }
    }

    /// `None` if there is no file.
    fn at(path: &Path) -> io::Result<Option<Stamp>> {
        match fs::metadata(path) {
            Ok(m) => Ok(Some(Stamp::of(&m))),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }
}

fn bad(path: &Path, detail: impl Into<String>) -> Error {
    Error::Source { path: path.to_owned(), detail: detail.into() }
}

/// The database at `path`: a file, or the file `name` in a directory. Links are followed once, here.
pub(super) fn resolve(path: &Path, name: &str) -> Result<PathBuf> {
    let found = fs::canonicalize(path).map_err(|e| bad(path, e.to_string()))?;
    if !found.is_dir() {
        return Ok(found);
    }
    let inside = found.join(name);
    fs::canonicalize(&inside).map_err(|e| bad(&inside, e.to_string()))
}

fn beside(main: &Path, suffix: &str) -> PathBuf {
    let mut name = main.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

impl Source {
    /// Opens `main` for reading. A private copy, if one is needed, is made below `scratch`.
    pub(super) fn open(main: &Path, scratch: &Path) -> Result<Source> {
        let io = |e: io::Error| bad(main, e.to_string());
        // Refuses what is open in this process: closing a second descriptor of it would drop the process's locks.
        let mut file = files::open(main).map_err(io)?;
        let stamp = Stamp::of(&file.metadata().map_err(io)?);
        if stamp.size == 0 {
            return Err(bad(main, "the file has zero bytes"));
        }
        let mut header = [0; 16];
        let has_header = file.read_exact(&mut header).is_ok() && header == *b"SQLite format 3\0";
        drop(file);
        if has_side_files(main).map_err(io)? {
            return Source::copied(main, scratch);
        }
        if !has_header {
            return Err(bad(main, "it is not an SQLite database"));
        }
        let connection =
            open_uri(main, "immutable=1", OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(|e| bad(main, e.to_string()))?;
        Ok(Source { connection, path: main.to_owned(), in_place: Some(stamp), _copy: None })
    }

    /// Opens a private copy of `main` and of what stands beside it.
    pub(super) fn copied(main: &Path, scratch: &Path) -> Result<Source> {
        let io = |e: io::Error| bad(main, e.to_string());
        let directory = PrivateDirectory::new(scratch).map_err(io)?;
        let copy = directory.0.join("source");
        for attempt in 1.. {
            match copy_once(main, &copy) {
                Ok(true) => break,
                // The owner took its log away between two looks.
                Err(e) if e.kind() != io::ErrorKind::NotFound || attempt == TRIES => return Err(io(e)),
                _ => {}
            }
            if attempt == TRIES {
                return Err(bad(main, "it is written to faster than it can be copied; stop its program, or try later"));
            }
            // The owner's checkpoints come in bursts; a later try meets a quieter moment.
            std::thread::sleep(Duration::from_millis(50) * attempt);
        }
        // SQLite would leave out what was committed into a log whose header is damaged, without a word.
        Family::of(&copy)
            .and_then(|copy| inspect(&copy, Purpose::Look))
            .and_then(|copy| headers::check(&copy))
            .map_err(|e| bad(main, format!("a copy of it is no whole database: {e}")))?;
        let connection = open_uri(&copy, "", OpenFlags::SQLITE_OPEN_READ_WRITE)
            .map_err(|e| bad(main, format!("a copy of it cannot be opened: {e}")))?;
        Ok(Source { connection, path: main.to_owned(), in_place: None, _copy: Some(directory) })
    }

    /// True if what was read from the file in place is what the file is. A private copy always is.
    pub(super) fn settled(&self) -> bool {
        match self.in_place {
            None => true,
            Some(before) => {
                matches!(Stamp::at(&self.path), Ok(Some(now)) if now == before)
                    && matches!(has_side_files(&self.path), Ok(false))
            }
        }
    }
}

/// True if a log or journal with content stands beside the main file.
fn has_side_files(main: &Path) -> io::Result<bool> {
    for suffix in ["-wal", "-journal"] {
        if content(&beside(main, suffix))?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// `#`, `?` and `%` in a path would otherwise cut the address short and open another file.
fn open_uri(path: &Path, parameters: &str, flags: OpenFlags) -> rusqlite::Result<Connection> {
    let mut uri = String::from("file:");
    for byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => uri.push(char::from(*byte)),
            byte => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri.push('?');
    uri.push_str(parameters);
    let connection = Connection::open_with_flags(uri, flags | OpenFlags::SQLITE_OPEN_URI)?;
    // The file's own views and triggers are not ours to run.
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "query_only", true)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    // Reads page one, so that a file that is no database is told apart here.
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
    Ok(connection)
}

/// Copies main file, log and journal. False if they were changed meanwhile in a way that spoils the copy.
fn copy_once(main: &Path, copy: &Path) -> io::Result<bool> {
    let (wal, journal) = (beside(main, "-wal"), beside(main, "-journal"));
    for suffix in ["-wal", "-journal"] {
        remove(&beside(copy, suffix))?;
    }
    let before = (Stamp::at(main)?, content(&journal)?);
    let log = if content(&wal)?.is_some() { Some(head(&wal)?) } else { None };
    let main_hash = copy_file(main, copy)?;
    if before.1.is_some() {
        copy_file(&journal, &beside(copy, "-journal"))?;
    }
    if let Some(log) = log {
        copy_file(&wal, &beside(copy, "-wal"))?;
        return Ok(head(&beside(copy, "-wal"))? == log && head(&wal)? == log && content(&journal)? == before.1);
    }
    // A file's times move in steps of some milliseconds: only the content proves that it was not written to.
    let same_content = hash(files::open(main)?, io::sink())? == main_hash;
    Ok(same_content && content(&wal)?.is_none() && (Stamp::at(main)?, content(&journal)?) == before)
}

/// What is known of a file that holds something.
fn content(path: &Path) -> io::Result<Option<Stamp>> {
    Ok(Stamp::at(path)?.filter(|s| s.size > 0))
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

/// The header of a log: its salts change whenever it is started over.
fn head(wal: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(32);
    files::open(wal)?.take(32).read_to_end(&mut head)?;
    Ok(head)
}

fn copy_file(from: &Path, to: &Path) -> io::Result<blake3::Hash> {
    let target = files::open_private(to)?;
    target.set_len(0)?;
    hash(files::open(from)?, target)
}

fn hash(mut from: File, mut to: impl Write) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => return Ok(hasher.finalize()),
            Ok(read) => read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let part = buffer.get(..read).unwrap_or_default();
        hasher.update(part);
        to.write_all(part)?;
    }
}

/// A directory that only this user can enter, gone when it is dropped.
struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    fn new(parent: &Path) -> io::Result<PrivateDirectory> {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        sweep(parent);
        let name = format!("import-{}-{}", std::process::id(), uuid::Uuid::now_v7().simple());
        let path = parent.join(name);
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(PrivateDirectory(path))
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Removes what imports left that were killed: their names carry the process id.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        let owner = entry.file_name();
        let owner = owner.to_str().and_then(|n| n.strip_prefix("import-")?.split('-').next()?.parse::<i32>().ok());
        let gone = owner.is_some_and(|pid| {
            Path::new(OsStr::new("/proc")).is_dir() && !Path::new("/proc").join(pid.to_string()).exists()
        });
        if gone {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
