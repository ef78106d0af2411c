//! A process that holds the two locks of a generation and does nothing else, so that no visitor's close can retire it.
//!
//! The last one to close a database in WAL mode deletes `-wal` and `-shm`. A program that has lost its own locks by a stray
//! close (see [`crate::ofd`]) is overlooked then, and goes on writing into deleted files. An anchor is a holder that
//! cannot lose its locks: they belong to open file descriptions that nobody else has.
//!
//! It uses raw locks and no SQLite connection, which leaves three duties that SQLite has otherwise:
//! * It must not be silently the first on byte 128 of `-shm`. To an opener that byte means "the index is alive"; after a
//!   power cut the index is older than the log, and whoever trusts it misses committed frames and overwrites them. So,
//!   like SQLite, it takes the byte exclusively if it can, empties the index, and only then shares it.
//! * It must not empty an index that somebody has mapped and lost the byte for: that process would die of SIGBUS. Such a
//!   process lived all the time, so its index is no older than its log.
//! * It must not keep others from rolling back a hot journal or from leaving rollback mode, so it refuses both, and looks
//!   again once it has the lock, for from then on neither can come about.
//!
//! When its generation retires it lets go of these locks at once, for openers wait for that. The descriptors are another
//! matter: see [`Kept`]; and before that it keeps who goes on there from copying the log into the main file: see `brake.rs`.

mod alarm;
mod brake;
mod heal;
mod kept;
mod rescue;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{Error, Reason, Result};
use crate::family::{Family, Generation, Identity, Member, Status};
use crate::headers::{self, Headers, Journal, MainHeader};
use crate::holders;
use crate::ofd::{self, DMS, Kind, PENDING, Range, SHARED};
use crate::secure::{self, Inspected, Purpose};

use brake::Brake;

pub use alarm::Alarm;
pub use brake::KeptBack;
pub use kept::{Kept, KeptFile, Over};
pub use rescue::capture;

/// How long a lock that is in the way for a moment is waited for.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the whole is begun anew because a file was replaced meanwhile.
const TRIES: usize = 5;

/// Holds a generation in place until it is dropped.
#[derive(Debug)]
pub struct Anchor {
    family: Family,
    main: Held,
    shm: Brake,
    wal: Mutex<Option<Held>>,
}

/// A file by a descriptor that may only read, so that this process never looks like one that writes into what is gone.
#[derive(Debug)]
struct Held {
    identity: Identity,
    /// Kept for its lock, and so that the bytes of a file that loses its name can still be captured.
    file: OwnedFd,
}

/// Looks whether the database can be anchored now. Takes no lock, changes nothing, and is in nobody's way.
///
/// # Errors
/// What [`secure::inspect`] and [`headers::check`] refuse; [`Reason::RollbackMode`], [`Reason::HotJournal`],
/// [`Reason::Changed`].
pub fn check(family: &Family) -> Result<Inspected> {
    look(family).map(|(inspected, _)| inspected)
}

/// Takes the two locks of the database's present generation, with ten seconds of patience for locks that are in the way.
///
/// # Errors
/// As [`hold_within`].
pub fn hold(family: &Family) -> Result<Anchor> {
    hold_within(family, PATIENCE)
}

/// Takes the two locks of the database's present generation.
///
/// The process must have no SQLite connection to this database. `-shm` is created if it is missing, with the permissions
/// and the owner of the main file.
///
/// # Errors
/// What [`check`] refuses; [`Error::Busy`] when a lock is in the way for longer than `patience`.
pub fn hold_within(family: &Family, patience: Duration) -> Result<Anchor> {
    let mut last = None;
    for _ in 0..TRIES {
        match attempt(family, patience) {
            Err(e) if e.reason() == Some(Reason::Changed) => last = Some(e),
            other => return other,
        }
    }
    Err(last.unwrap_or_else(|| changed(family, Member::Main)))
}

fn changed(family: &Family, member: Member) -> Error {
    Error::refused(Reason::Changed, family.path(member), "")
}

/// As [`check`]; also whether the main file's own header is none and the log has a good one.
fn look(family: &Family) -> Result<(Inspected, bool)> {
    // Root may anchor anybody's database; everybody else only their own.
    let root = rustix::process::geteuid().is_root();
    let inspected = secure::inspect(family, if root { Purpose::Look } else { Purpose::Own })?;
    let seen = inspected.require_main()?;
    let identity = seen.status.identity;
    if crate::locks::in_use(identity.device, identity.inode) {
        let why = std::io::Error::other("this process has a connection to it, and an anchor must have none");
        return Err(Error::io("anchor", &family.main(), why));
    }
    let headers = headers::check(&inspected)?;
    refuse_hot_journal(&inspected)?;
    let from_log = match headers {
        Headers::Database { header, from_log } => {
            require_wal_mode(family, header)?;
            from_log
        }
        Headers::InUse | Headers::New => return Err(changed(family, Member::Main)),
    };
    Ok((inspected, from_log))
}

fn attempt(family: &Family, patience: Duration) -> Result<Anchor> {
    let (inspected, from_log) = look(family)?;
    let identity = inspected.require_main()?.status.identity;
    let main = Held::open(family, Member::Main, OFlags::RDONLY)?;
    if main.identity != identity {
        return Err(changed(family, Member::Main));
    }
    lock_main(family, &main, patience)?;
    // From here on nobody gets the exclusive lock that a change of the journal mode needs, so what is read now stays.
    match MainHeader::read(&main.file).map_err(|e| Error::io("read the header of", &family.main(), e))? {
        Some(header) => require_wal_mode(family, header)?,
        None if from_log => {}
        None => return Err(changed(family, Member::Main)),
    }
    let again = secure::inspect(family, inspected.purpose())?;
    if again.generation().main != Some(identity) {
        return Err(changed(family, Member::Main));
    }
    refuse_hot_journal(&again)?;
    let shm = hold_index(&again, patience)?;
    let wal = Held::open_existing(family, Member::Wal)?;
    let anchor = Anchor { family: family.clone(), main, shm: Brake::on(shm), wal: Mutex::new(wal) };
    if anchor.current() { Ok(anchor) } else { Err(changed(family, Member::Shm)) }
}

fn require_wal_mode(family: &Family, header: MainHeader) -> Result<()> {
    match header.journal {
        Journal::Wal => Ok(()),
        Journal::Rollback => Err(Error::refused(Reason::RollbackMode, family.main(), "")),
    }
}

/// A journal whose first byte is not zero would be rolled back by the next opener, which our lock would prevent.
fn refuse_hot_journal(inspected: &Inspected) -> Result<()> {
    let family = inspected.family();
    let Some(journal) = inspected.get(Member::Journal).filter(|j| j.status.size > 0) else { return Ok(()) };
    let first = headers::first_byte(journal);
    match first.map_err(|e| Error::io("read the header of", &family.path(Member::Journal), e))? {
        None | Some(0) => Ok(()),
        Some(_) => Err(Error::refused(Reason::HotJournal, family.path(Member::Journal), "")),
    }
}

impl Held {
    fn open(family: &Family, member: Member, access: OFlags) -> Result<Held> {
        Held::open_existing_with(family, member, access)?.ok_or_else(|| changed(family, member))
    }

    fn open_existing(family: &Family, member: Member) -> Result<Option<Held>> {
        Held::open_existing_with(family, member, OFlags::RDONLY)
    }

    /// Opens what the path names; every member was inspected before, and what is no regular file is not taken.
    fn open_existing_with(family: &Family, member: Member, access: OFlags) -> Result<Option<Held>> {
        let path = family.path(member);
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
                return Err(Error::refused(Reason::Permission, path, ""));
            }
            Err(Errno::LOOP) => return Err(Error::refused(Reason::Symlink, path, "")),
            Err(e) => return Err(Error::io("open", &path, e)),
        };
        let status = Status::of_descriptor(file.as_fd()).map_err(|e| Error::io("look at", &path, e))?;
        if status.kind() != rustix::fs::FileType::RegularFile {
            return Err(Error::refused(Reason::NotRegular, path, ""));
        }
        Ok((status.links > 0).then_some(Held { identity: status.identity, file }))
    }

    /// The same file by a description of its own.
    fn again(&self, family: &Family, member: Member) -> Result<Held> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(CWD, secure::magic_path(self.file.as_fd()), flags, Mode::empty())
            .map_err(|e| Error::io("open", &family.path(member), e))?;
        Ok(Held { identity: self.identity, file })
    }
}

/// Tries a lock again and again while somebody else's is in the way.
fn wait_for(held: &Held, path: &Path, kind: Kind, range: Range, patience: Duration) -> Result<()> {
    let begun = Instant::now();
    let io = |e| Error::io("lock", path, e);
    while !ofd::try_lock(&held.file, kind, range).map_err(io)? {
        if begun.elapsed() > patience {
            let owner = ofd::conflict(&held.file, kind, range).map_err(io)?.and_then(|c| c.pid);
            return Err(Error::Busy { waited: begun.elapsed(), holder: owner.map(|pid| format!("pid {pid}")) });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// The shared lock as SQLite takes it: through the pending byte, so that somebody who waits for the exclusive lock is not
/// starved.
fn lock_main(family: &Family, main: &Held, patience: Duration) -> Result<()> {
    wait_for(main, &family.main(), Kind::Read, PENDING, patience)?;
    wait_for(main, &family.main(), Kind::Read, SHARED, patience)?;
    ofd::unlock(&main.file, PENDING).map_err(|e| Error::io("unlock", &family.main(), e))
}

/// Takes byte 128 of the index, which is created if it is missing.
fn hold_index(inspected: &Inspected, patience: Duration) -> Result<Held> {
    let family = inspected.family();
    let io = |e: std::io::Error| Error::io("lock", &family.path(Member::Shm), e);
    let index = match Held::open_existing_with(family, Member::Shm, OFlags::RDWR)? {
        Some(index) => index,
        None => create_index(inspected)?,
    };
    let begun = Instant::now();
    loop {
        // Looking at every process takes milliseconds, and openers are turned away while the byte is held exclusively, so
        // the look comes first. Whoever maps the index after it must have taken the byte, which the next line sees.
        let free = ofd::conflict(&index.file, Kind::Write, DMS).map_err(io)?.is_none();
        let mapped = free && !holders::mapping_index(family)?.is_empty();
        if free && ofd::try_lock(&index.file, Kind::Write, DMS).map_err(io)? {
            if !mapped {
                rustix::fs::ftruncate(&index.file, 3).map_err(|e| io(e.into()))?;
            }
            if !ofd::try_lock(&index.file, Kind::Read, DMS).map_err(io)? {
                return Err(changed(family, Member::Shm));
            }
            break;
        }
        if free {
            continue;
        }
        // Somebody shares it, so the index is alive. If all of them end at this moment it is no worse: an index that was
        // in use while the machine was up never lags behind an acknowledged commit.
        if ofd::try_lock(&index.file, Kind::Read, DMS).map_err(io)? {
            break;
        }
        // Somebody has it exclusively and is emptying the index, which takes a moment.
        if begun.elapsed() > patience {
            let owner = ofd::conflict(&index.file, Kind::Read, DMS).map_err(io)?.and_then(|c| c.pid);
            return Err(Error::Busy { waited: begun.elapsed(), holder: owner.map(|pid| format!("pid {pid}")) });
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    // The lock moves to a description that can only read, without a gap.
    let reader = index.again(family, Member::Shm)?;
    if !ofd::try_lock(&reader.file, Kind::Read, DMS).map_err(io)? {
        return Err(changed(family, Member::Shm));
    }
    Ok(reader)
}

fn create_index(inspected: &Inspected) -> Result<Held> {
    let family = inspected.family();
    let name = family.member_name(Member::Shm);
    let io = |e: Errno| Error::io("create", &family.path(Member::Shm), e);
    // As SQLite does: whoever may use the main file may use the index.
    let mode = Mode::from_raw_mode(inspected.require_main()?.status.mode & 0o666);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::openat(inspected.directory(), name, flags, mode).map_err(|e| match e {
        Errno::EXIST => changed(family, Member::Shm),
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            Error::refused(Reason::Permission, family.directory(), "no file can be created in it")
        }
        Errno::NOSPC | Errno::DQUOT => Error::Full,
        e => io(e),
    })?;
    rustix::fs::fchmod(&file, mode).map_err(io)?;
    inspected.hand_over(file.as_fd()).map_err(|e| Error::io("create", &family.path(Member::Shm), e))?;
    let status = Status::of_descriptor(file.as_fd()).map_err(|e| Error::io("create", &family.main(), e))?;
    Ok(Held { identity: status.identity, file })
}

impl Anchor {
    /// The names of the database's files.
    pub fn family(&self) -> &Family {
        &self.family
    }

    /// The generation that is held.
    pub fn generation(&self) -> Generation {
        let wal = self.wal.lock().unwrap_or_else(PoisonError::into_inner);
        Generation {
            main: Some(self.main.identity),
            wal: wal.as_ref().map(|w| w.identity),
            shm: Some(self.shm.index.identity),
        }
    }

    /// True while the paths name the files that are held. A log that came into being since is taken hold of on the way, so
    /// that its bytes outlive its name. Once this is false the anchor protects nobody any more and should be released.
    pub fn current(&self) -> bool {
        let Ok(now) = self.family.generation() else { return false };
        if now.main != Some(self.main.identity) || now.shm != Some(self.shm.index.identity) {
            return false;
        }
        let mut wal = self.wal.lock().unwrap_or_else(PoisonError::into_inner);
        match (wal.as_ref(), now.wal) {
            (Some(held), now) => now == Some(held.identity),
            (None, None) => true,
            (None, Some(_)) => match Held::open_existing(&self.family, Member::Wal) {
                Ok(held) => {
                    *wal = held;
                    true
                }
                Err(_) => false,
            },
        }
    }

    /// A descriptor of a held file, for capturing what lost its name.
    pub fn file(&self, member: Member) -> Option<OwnedFd> {
        let copy = |held: &Held| held.file.try_clone().ok();
        match member {
            Member::Main => copy(&self.main),
            Member::Shm => copy(&self.shm.index),
            Member::Wal => self.wal.lock().unwrap_or_else(PoisonError::into_inner).as_ref().and_then(copy),
            Member::Journal => None,
        }
    }

    /// Lets go of both locks and all files.
    pub fn release(self) {
        drop(self);
    }

    /// Keeps those who go on in this generation from copying its log into the main file, if its index was removed, or if `beside` it
    /// somebody goes on in an earlier one of the same main file (see [`Kept::is_beside`]). To be called as soon as something was
    /// removed.
    pub fn keep_back(&self, beside: bool) -> KeptBack {
        self.shm.beside(beside);
        self.shm.tend(&self.family, self.main.identity, true)
    }

    /// Lets go of both locks because the generation has retired. Its bytes stay readable, and who goes on there is kept back;
    /// [`Kept::over`] says until when.
    pub fn retire(self) -> Option<Kept> {
        // Before the others, with which whoever goes on there may become the last one who has the main file.
        self.keep_back(false);
        let generation = self.generation();
        let Anchor { family, main, shm, wal } = self;
        // The locks go even where the descriptors stay. If that fails a descriptor goes as well, for somebody waits for it.
        let shm = shm.leave().then_some(shm);
        let unlocked = ofd::unlock(&main.file, Range { start: 0, length: 0 }).is_ok();
        let wal = wal.into_inner().unwrap_or_else(PoisonError::into_inner);
        unlocked.then(|| Kept::of(family, generation, main, wal.map(|w| w.file), shm))
    }
}
