//! Reading any database without a trace, and proving that it could be written.
//!
//! An ordinary open of a database in WAL mode makes files beside it, and the last close takes them away. So:
//! * nobody has it open and nothing stands beside it: the one file is read with `immutable=1`, which touches nothing else;
//! * nobody has it open and a log stands beside it: a private image of both is read;
//! * somebody has it open: an ordinary read-only attachment, for what it would make is there already.

use std::fs::File;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, FileControl, OpenFlags};
use statehouse_sqlite::holders::{Report, Verdict};
use statehouse_sqlite::image::{self, ImageError};
use statehouse_sqlite::secure::Inspected;
use statehouse_sqlite::{Error, Family, Member, Reason, Result, files, immutable, protect, uri};

/// How often an image is begun anew because the log was restarted meanwhile.
const TRIES: u32 = 20;

/// A database that can be read.
pub(crate) struct Attached {
    // Closed before the directory goes.
    connection: Connection,
    _image: Option<Scratch>,
    uri: String,
}

impl Attached {
    /// The same as a name that another connection of this process can attach for reading.
    pub(crate) fn uri(&self) -> &str {
        &self.uri
    }
}

impl std::ops::Deref for Attached {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}

/// True if somebody uses the database in such a way that one more may join. Beside a process that uses deleted files, or has lost
/// its locks, an ordinary attachment would begin a second generation, so the files are read instead.
pub(crate) fn may_join(report: &Report) -> bool {
    report.verdict != Verdict::Quiet && !report.holders.iter().any(|h| h.ghost || h.naked)
}

/// Attaches to a database for reading. `held` says whether another process has it open; `scratch` is a directory for a
/// private image.
pub(crate) fn read(inspected: &Inspected, held: bool, scratch: &Path, patience: Duration) -> Result<Attached> {
    let family = inspected.family();
    let has_content = |m| inspected.get(m).is_some_and(|s| s.status.size > 0);
    let (connection, image, uri) = if held {
        protect()?;
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        (Connection::open_with_flags(family.main(), flags)?, None, uri(&family.main(), "mode=ro"))
    } else if has_content(Member::Journal) {
        // Somebody may have begun to write since it was looked who is there: then the journal is his, and he is at work.
        if let Some(holder) = crate::who::writes(family) {
            return Err(Error::Busy { waited: Duration::ZERO, holder: Some(holder) });
        }
        return Err(Error::refused(
            Reason::HotJournal,
            family.path(Member::Journal),
            "what the database holds is only known after that",
        ));
    } else if has_content(Member::Wal) {
        let image = Scratch::new(scratch)?;
        let copy = image.0.join("image");
        make_image(inspected, &copy)?;
        (immutable(&copy)?, Some(image), uri(&copy, "immutable=1"))
    } else {
        (immutable(&family.main())?, None, uri(&family.main(), "immutable=1"))
    };
    connection.busy_timeout(patience)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "query_only", 1)?;
    connection.pragma_update(None, "trusted_schema", 0)?;
    Ok(Attached { connection, _image: image, uri })
}

fn make_image(inspected: &Inspected, copy: &Path) -> Result<()> {
    let family = inspected.family();
    let open = |member: Member| -> Result<File> {
        let path = inspected.get(member).map_or_else(|| family.path(member), |s| s.magic_path());
        files::open(&path).map_err(|e| Error::io("read", &family.path(member), e))
    };
    let (main, log) = (open(Member::Main)?, open(Member::Wal)?);
    let mut output = files::open_private(copy).map_err(|e| Error::io("create", copy, e))?;
    for attempt in 1.. {
        match image::overlay(&main, &log, &mut output) {
            Ok(_) => break,
            Err(ImageError::Changed) if attempt < TRIES => std::thread::sleep(Duration::from_millis(20) * attempt),
            // A volume that fails says nothing about the database.
            Err(ImageError::Io(e)) => return Err(Error::io("copy the database to", copy, e)),
            Err(e) => return Err(Error::Damaged { detail: e.to_string() }),
        }
    }
    Ok(())
}

/// A private directory that goes with its owner.
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    pub(crate) fn new(parent: &Path) -> Result<Scratch> {
        let mut taken = None;
        for n in 0..1000 {
            let path = parent.join(format!("statehouse-image-{}-{n}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Scratch(path)),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => taken = Some(e),
                Err(e) => return Err(Error::io("create", &path, e)),
            }
        }
        Err(Error::io("create a directory in", parent, taken.unwrap_or_else(|| std::io::ErrorKind::Other.into())))
    }
}

impl Scratch {
    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Takes the write lock of a database that is not ours, runs `meanwhile`, and rolls back. Nothing is written: neither
/// the lock nor an empty transaction changes a page, and the close does no checkpoint.
pub(crate) fn with_write_lock<T>(
    family: &Family,
    held: bool,
    had_log: bool,
    patience: Duration,
    meanwhile: impl FnOnce(&Connection) -> T,
) -> Result<T> {
    if held {
        protect()?;
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(family.main(), flags)?;
    if held || had_log {
        // A log that was there stays as it was; files that only this connection made may go with it.
        connection.file_control(None::<&str>, FileControl::PersistWal(&mut 1))?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    }
    connection.busy_timeout(patience)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    let answer = meanwhile(&connection);
    connection.execute_batch("ROLLBACK")?;
    Ok(answer)
}
