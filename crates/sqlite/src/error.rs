//! What can go wrong, as types. Each error has a stable code for programs, one sentence for a person, and what to
//! do next; the binary, the HTTP answers and the page all show these same words.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;

use crate::family::Member;

/// The result of everything in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation on a database did not happen.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The files are not safe to open, or may not be opened now. Nothing on disk has changed.
    #[error(transparent)]
    Refused(Box<Refusal>),
    /// A lock was held for longer than the caller was ready to wait. Nothing was written.
    #[error("the database is busy: waited {} ms{}", waited.as_millis(), by(holder))]
    Busy {
        /// How long the caller waited.
        waited: Duration,
        /// Who holds the lock, as a person would name it, if that could be found out.
        holder: Option<String>,
    },
    /// The volume or a quota is full. The transaction was rolled back.
    #[error("the disk is full; nothing of this write was kept")]
    Full,
    /// The database cannot be written (permissions, or a read-only volume).
    #[error("the database is read-only")]
    ReadOnly,
    /// The files that this handle uses are no longer what the paths name; the handle refuses reads and writes.
    #[error(
        "the files of this database ({}) were removed or replaced under this process; it still has everything that it \
         acknowledged and is putting it back, and what was not acknowledged may be missing",
        list(members)
    )]
    Retired {
        /// The members whose paths name something else now, or nothing.
        members: Vec<Member>,
    },
    /// The locks that keep this generation in place were taken from this process, or could not be used any more.
    #[error("this process has lost its locks on the database; what was not acknowledged may be missing")]
    LocksLost,
    /// Somebody truncated or overwrote a file in place. The handle refuses reads and writes.
    #[error(transparent)]
    Destroyed(Box<Destruction>),
    /// Somebody other than SQLite has written into the main file; whether anything is destroyed is being found out.
    #[error("{} was written into by a program that is not SQLite; its content is being checked", path.display())]
    Doubtful {
        /// The main file.
        path: PathBuf,
    },
    /// The disk did not take a flush of the log. The write is there for everybody to see, and a power cut may take it away.
    #[error("the disk did not confirm that this write is kept; it may be kept or not")]
    Unflushed,
    /// The content is damaged.
    #[error("the database is damaged: {detail}")]
    Damaged {
        /// What SQLite said.
        detail: String,
    },
    /// The handle is shutting down.
    #[error("the database handle is closed")]
    Closed,
    /// The caller's own closure refused; its savepoint was rolled back.
    #[error("{0}")]
    Aborted(Box<dyn std::error::Error + Send + Sync>),
    /// A system call on one of the files failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was tried, as a fragment ("read the header of").
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// What the system answered.
        source: std::io::Error,
    },
    /// Anything else that SQLite answered.
    #[error("SQLite: {0}")]
    Sqlite(rusqlite::Error),
}

fn by(holder: &Option<String>) -> String {
    holder.as_ref().map(|h| format!(", held by {h}")).unwrap_or_default()
}

fn list(members: &[Member]) -> String {
    members.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// A refusal: what is wrong with the files, and which one.
#[derive(Debug)]
pub struct Refusal {
    /// The kind, with a code of its own.
    pub reason: Reason,
    /// The file or directory that it is about.
    pub path: PathBuf,
    /// What was seen.
    pub detail: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason.sentence())?;
        if !self.detail.is_empty() {
            write!(f, " ({})", self.detail)?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

/// What was destroyed in place, and what that means for what was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Destruction {
    /// Which file.
    pub member: Member,
    /// Its path.
    pub path: PathBuf,
    /// What was done to it, as the end of a sentence ("cut off to 0 bytes by another program").
    pub what: String,
    /// Frames of the log that were committed when it was whole; `None` if this process has not seen that.
    pub frames: Option<u32>,
    /// How many of these were in the main file.
    pub copied: Option<u32>,
}

impl Destruction {
    /// What is known to be lost, as a sentence.
    pub fn loss(&self) -> String {
        match (self.member, self.frames.zip(self.copied)) {
            (Member::Shm, _) => "It only indexes the log, so nothing is lost.".into(),
            (Member::Wal, Some((frames, copied))) if frames == copied => {
                "All that was in it is in the main file too, so nothing that was acknowledged is lost.".into()
            }
            (Member::Wal, Some((frames, copied))) => format!(
                "The last {} of its {frames} frames were not in the main file yet: what was acknowledged after the last \
                 checkpoint is lost, unless a copy has it.",
                frames.saturating_sub(copied)
            ),
            (Member::Main, Some((frames, _))) if frames > 0 => format!(
                "The log holds the pages of the last {frames} frames; every other page is lost, unless a copy has it."
            ),
            (Member::Main, Some(_)) => "The log is empty, so every page is lost, unless a copy has it.".into(),
            _ => "How much of it is lost is not known.".into(),
        }
    }
}

impl fmt::Display for Destruction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was {}; writing has stopped. {}", self.path.display(), self.what, self.loss())
    }
}

impl std::error::Error for Destruction {}

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident, $code:literal, $sentence:literal, $hint:literal;)*) => {
        /// Why opening was refused. Each has a code that never changes its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Reason { $($(#[$doc])* $name,)* }
        impl Reason {
            /// Every reason, for documentation and tests.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)*];
            /// The stable code.
            pub fn code(self) -> &'static str { match self { $(Reason::$name => $code,)* } }
            /// What is wrong, as the end of a sentence that begins with the path.
            pub fn sentence(self) -> &'static str { match self { $(Reason::$name => $sentence,)* } }
            /// What to do next.
            pub fn hint(self) -> &'static str { match self { $(Reason::$name => $hint,)* } }
        }
    };
}

reasons! {
    /// The main file does not exist and the caller did not ask to create it.
    NoStore, "no_store", "there is no database here", "Start with `statehouse up`, or name the right home with --home.";
    /// A database was here before, and its main file is gone.
    StoreMissing, "store_missing", "a database was here before and its main file is gone", "Put the file back from a snapshot or backup; if it is meant to be gone, move the directory that ends in .statehouse away too.";
    /// The directory does not exist or cannot be read.
    NoDirectory, "no_directory", "the directory cannot be used", "Create the directory, or name another path.";
    /// A symlink stands where a file of the database must be.
    Symlink, "refused_symlink", "is a symbolic link, and a database is never opened through one", "Name the real file, or remove the link.";
    /// A directory, FIFO, socket or device stands where a file of the database must be.
    NotRegular, "refused_not_regular", "is not a regular file", "Move it away, or name another path.";
    /// A file of the database has a second hard link.
    HardLink, "refused_hard_link", "has a second hard link, so another name can lead to the same bytes with another log", "Remove the other name, or copy the database with `VACUUM INTO`.";
    /// A file of the database belongs to another user.
    Owner, "refused_owner", "belongs to another user", "Run the command as the owner of the database, or give the file to this user with chown.";
    /// The permission bits keep the owner out.
    Permission, "refused_permission", "cannot be read and written by this user", "Check the mode of the file and of its directory.";
    /// The file is itself a mount point, so its log would live elsewhere.
    MountedFile, "refused_mounted_file", "is mounted as a single file, so its log would live in another directory", "Mount the directory that holds the database, not the file.";
    /// A main file of zero bytes beside a log: opening would delete the log.
    EmptyBesideWal, "refused_empty_beside_wal", "has zero bytes beside a log with content; opening it would delete the log", "Copy the -wal file away first; then restore the main file from a backup.";
    /// A log without a main file: creating one would destroy the log.
    WalWithoutMain, "refused_wal_without_main", "is left over without its main file; creating one would destroy it", "Restore the main file beside it, or move the left-over file away.";
    /// A log whose header is garbage and whose frames are valid: SQLite would ignore committed data.
    WalHeader, "refused_wal_header", "has a damaged header before valid frames; SQLite would ignore what was committed in it", "Copy the family away, then recover the frames from the copy.";
    /// A file was truncated or overwritten while it was in use, and nobody has said since how to go on.
    Destroyed, "refused_destroyed", "was truncated or overwritten while it was in use", "Keep every file as it is. Where a file is named that was put together of what is left, `statehouse restore FILE` puts it in the place of the database. If you put the files in order by other means, remove the file `destroyed.json` from the directory that ends in .statehouse after that.";
    /// A restore was ended before the new main file was in its place, and the log of the old one is moved aside.
    HalfRestored, "refused_half_restored", "is without its log, because a restore was ended before it was done", "Run `statehouse restore` with the same source once more. Nothing is lost: what was there is in the directory that the detail names.";
    /// The database is in rollback mode and the operation is for WAL mode.
    RollbackMode, "refused_rollback_mode", "is in rollback mode, which has no log to protect", "Wait until its program switches to WAL mode.";
    /// A transaction was interrupted and is not rolled back yet.
    HotJournal, "refused_hot_journal", "belongs to an interrupted transaction that must be rolled back first", "Open the database once with its own program, then try again.";
    /// Not an SQLite database.
    NotDatabase, "refused_not_database", "is not an SQLite database", "Name another file, or restore this one from a backup.";
    /// The name leaves no room for the names of what is kept beside it.
    NameTooLong, "refused_name_too_long", "has a name that is too long for what must be kept beside it", "Give the database, while nobody uses it, a name of at most 244 bytes.";
    /// An SQLite database of another program.
    OtherApplication, "refused_other_application", "is a database of another program", "Name another file; to take over conversations from Hermes Agent use `statehouse sessions import hermes PATH`.";
    /// Another engine's file stands beside the database.
    OtherEngine, "refused_other_engine", "belongs to another database engine that uses the same main file", "Close that program and move its file away.";
    /// WAL mode does not work on this file system.
    FileSystem, "refused_filesystem", "is on a file system on which shared locks or shared memory do not work", "Move the home to a local disk.";
    /// Somebody has the database open, and the work needs it alone.
    Held, "refused_held", "is in use", "Stop what is named and try again. Processes of Statehouse let go of it for the time by themselves with `--drain 10`; `--dry-run` only says what would be done.";
    /// Somebody may have the database open, and it could not be found out.
    HeldUnknown, "refused_unknown", "may be in use by a process that could not be looked at", "Run `sudo statehouse holders` with this path, which can look at every process.";
    /// A process goes on writing into files that were unlinked or replaced.
    HeldRetired, "refused_held_retired", "is still held by a process that uses deleted or replaced files of it", "Its rows are nowhere else, and an orderly stop could copy its old log over the database. First hold it (`kill -STOP`), then copy what it has (`statehouse retired capture --all` with this path), then end it (`kill -KILL`); `statehouse holders` gives these lines with their numbers.";
    /// A process uses the database and has lost its locks.
    HeldNaked, "refused_held_naked", "is in use by a process that has lost its locks", "Run `statehouse holders` with this path before anything else opens it, and type what it says of that process in that order: where the process has removed files open, these are copied before it is stopped.";
    /// A newer version wrote the store.
    NewerSchema, "refused_newer_schema", "was written by a newer version", "Use that version, or a later one.";
    /// Something changed a file between the check and the open.
    Changed, "refused_changed", "changed while it was being opened", "Find out what replaces it, and try again.";
    /// The lock core could not be installed.
    LockCore, "refused_lock_core", "cannot be protected on this system", "Check that /proc is mounted.";
    /// A pragma did not take.
    Setting, "refused_setting", "did not take a setting that the promises depend on", "Report this with the output of `statehouse status --json`.";
}

impl Error {
    /// A refusal.
    pub fn refused(reason: Reason, path: impl Into<PathBuf>, detail: impl Into<String>) -> Error {
        Error::Refused(Box::new(Refusal { reason, path: path.into(), detail: detail.into() }))
    }

    /// A failed system call; a full volume or quota is its own error, whatever met it.
    pub fn io(action: &'static str, path: &Path, source: impl Into<std::io::Error>) -> Error {
        let source = source.into();
        match source.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Error::Full,
            _ => Error::Io { action, path: path.to_owned(), source },
        }
    }

    /// The reason, if this is a refusal.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Error::Refused(r) => Some(r.reason),
            _ => None,
        }
    }

    /// The stable code for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Error::Refused(r) => r.reason.code(),
            Error::Busy { .. } => "busy",
            Error::Full => "disk_full",
            Error::ReadOnly => "read_only",
            Error::Retired { .. } => "retired",
            Error::LocksLost => "locks_lost",
            Error::Destroyed(_) => "destroyed",
            Error::Doubtful { .. } => "doubtful",
            Error::Unflushed => "not_durable",
            Error::Damaged { .. } => "damaged",
            Error::Closed => "closed",
            Error::Aborted(_) => "aborted",
            Error::Io { .. } => "io",
            Error::Sqlite(_) => "sqlite",
        }
    }

    /// The same after so long a wait.
    pub(crate) fn after(self, waited: Duration) -> Error {
        match self {
            Error::Busy { holder, .. } => Error::Busy { waited, holder },
            other => other,
        }
    }

    /// The same error once more, for the others whose transaction failed with it. A cause that cannot be copied becomes
    /// its text.
    pub(crate) fn again(&self) -> Error {
        match self {
            Error::Refused(r) => Error::refused(r.reason, r.path.clone(), r.detail.clone()),
            Error::Busy { waited, holder } => Error::Busy { waited: *waited, holder: holder.clone() },
            Error::Full => Error::Full,
            Error::ReadOnly => Error::ReadOnly,
            Error::Retired { members } => Error::Retired { members: members.clone() },
            Error::LocksLost => Error::LocksLost,
            Error::Destroyed(d) => Error::Destroyed(d.clone()),
            Error::Doubtful { path } => Error::Doubtful { path: path.clone() },
            Error::Unflushed => Error::Unflushed,
            Error::Damaged { detail } => Error::Damaged { detail: detail.clone() },
            Error::Closed => Error::Closed,
            Error::Aborted(e) => Error::Aborted(e.to_string().into()),
            Error::Io { action, path, source } => {
                let source = match source.raw_os_error() {
                    Some(code) => std::io::Error::from_raw_os_error(code),
                    None => std::io::Error::new(source.kind(), source.to_string()),
                };
                Error::Io { action, path: path.clone(), source }
            }
            Error::Sqlite(rusqlite::Error::SqliteFailure(code, text)) => {
                Error::Sqlite(rusqlite::Error::SqliteFailure(*code, text.clone()))
            }
            Error::Sqlite(e) => Error::Aborted(e.to_string().into()),
        }
    }

    /// True if the connection is not to be trusted any more: its generation or its locks are gone, or one of the files
    /// could not be read, written or flushed.
    pub(crate) fn poisons(&self) -> bool {
        use rusqlite::ErrorCode as C;
        match self {
            Error::Retired { .. }
            | Error::LocksLost
            | Error::Unflushed
            | Error::Destroyed(_)
            | Error::Doubtful { .. } => true,
            Error::Sqlite(e) => {
                matches!(e.sqlite_error_code(), Some(C::SystemIoFailure | C::CannotOpen | C::FileLockingProtocolFailed))
            }
            _ => false,
        }
    }

    /// True if going on needs a person. An index that was destroyed is made anew from the log.
    pub(crate) fn needs_a_person(&self) -> bool {
        matches!(self, Error::Destroyed(d) if d.member != Member::Shm)
    }

    /// What to do next.
    pub fn hint(&self) -> &'static str {
        match self {
            Error::Refused(r) => r.reason.hint(),
            Error::Busy { .. } => "Wait for the holder, or give more time with --patience.",
            Error::Full => "Free space on the volume, then try again; what was acknowledged is kept.",
            Error::ReadOnly => "Check the permissions of the file and whether the volume is mounted read-only.",
            Error::Retired { .. } => {
                "Leave this process running, it goes on by itself; its log says what keeps it from that. Run `statehouse holders`, and find out what removes or replaces the files."
            }
            Error::LocksLost => {
                "Nothing to do: the handle opens the database again. Find out what closes descriptors in this process."
            }
            Error::Destroyed(d) if d.member == Member::Shm => {
                "Nothing to do: the handle goes on by itself. Find out what truncates or overwrites files there."
            }
            Error::Destroyed(_) => {
                "Stop every program that uses it, keep every file, and run `statehouse verify`; what was whole is copied below the \
                 directory that ends in .statehouse, in `retired`."
            }
            Error::Doubtful { .. } => "Nothing to do: the handle goes on by itself when the content is whole.",
            Error::Unflushed => {
                "Look into the system's log for errors of the disk, then send the write again with the same id."
            }
            Error::Damaged { .. } => {
                "Keep every file of the database. `statehouse snapshots` lists what `statehouse restore` can put in its place, which keeps what is there; \
                 without a snapshot or backup, `.recover` of sqlite3 on a copy of all its files gives the rows that can still be read."
            }
            Error::Closed => "Open the database again.",
            Error::Aborted(_) | Error::Io { .. } | Error::Sqlite(_) => {
                "See the detail; nothing of this operation was kept."
            }
        }
    }
}

impl From<rusqlite::Error> for Error {
    /// Sorts by the extended result code; SQLite's text is kept as detail only.
    fn from(e: rusqlite::Error) -> Error {
        use rusqlite::ErrorCode as C;
        match e.sqlite_error_code() {
            Some(C::DatabaseBusy | C::DatabaseLocked) => Error::Busy { waited: Duration::ZERO, holder: None },
            Some(C::DiskFull) => Error::Full,
            // The index could not be made longer, which takes nothing but room.
            Some(C::SystemIoFailure) if e.sqlite_extended_error_code() == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE) => {
                Error::Full
            }
            // SQLite's own look at whether its path still leads to the file that it has open.
            Some(C::ReadOnly) if e.sqlite_extended_error_code() == Some(rusqlite::ffi::SQLITE_READONLY_DBMOVED) => {
                Error::Retired { members: vec![Member::Main] }
            }
            Some(C::ReadOnly) => Error::ReadOnly,
            Some(C::DatabaseCorrupt | C::NotADatabase) => Error::Damaged { detail: e.to_string() },
            _ => Error::Sqlite(e),
        }
    }
}

/// Why a write closure did not succeed: SQLite said so, or the caller's own rule did.
#[derive(Debug)]
pub enum Failure {
    /// SQLite's answer.
    Sqlite(rusqlite::Error),
    /// The caller's refusal; it reaches the caller as [`Error::Aborted`].
    Abort(Box<dyn std::error::Error + Send + Sync>),
}

impl Failure {
    /// Refuse with an error of the caller's own.
    pub fn abort(e: impl std::error::Error + Send + Sync + 'static) -> Failure {
        Failure::Abort(Box::new(e))
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(e: rusqlite::Error) -> Failure {
        Failure::Sqlite(e)
    }
}

impl From<Failure> for Error {
    fn from(f: Failure) -> Error {
        match f {
            Failure::Sqlite(e) => e.into(),
            Failure::Abort(e) => Error::Aborted(e),
        }
    }
}
