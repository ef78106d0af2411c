//! Everything that is looked at and made before SQLite opens a database of ours.

use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::error::{Error, Reason, Result};
use crate::family::{Family, Member};
use crate::generation::PRESENCE_BYTE;
use crate::headers::{self, Headers};
use crate::holders::{self, Holder};
use crate::secure::{self, Inspected, Purpose};
use crate::{destroyed, filesystem, members, ofd, side};

/// How long an opener waits for processes of ours that use a retired generation: they notice within a second.
const NOTICE: Duration = Duration::from_secs(5);

/// How long processes of ours take to write their records anew, and a bit.
const UNKNOWN: Duration = Duration::from_millis(1500);

/// A family that may be opened.
pub(crate) struct Prepared {
    pub(crate) inspected: Inspected,
    /// The main file was made just now, or holds nothing yet.
    pub(crate) fresh: bool,
}

/// Checks the files, creates and tightens what is ours, and makes the side directory. A refusal leaves the disk as it was.
pub(crate) fn prepare(family: &Family, create: bool, application_id: i32) -> Result<Prepared> {
    // Before the files: one that was destroyed may not pass for what it was, and this says more.
    destroyed::refuse(family)?;
    let mut inspected = secure::inspect(family, Purpose::Own)?;
    if !create {
        inspected.require_main()?;
    }
    filesystem::classify(family.directory())?.require_wal(family.directory())?;
    let fresh = match headers::check(&inspected)? {
        Headers::New => true,
        Headers::InUse => false,
        Headers::Database { header, .. } => {
            if application_id != 0 && header.application_id != application_id.cast_unsigned() {
                let detail = format!("its application id is {:#010x}", header.application_id);
                return Err(Error::refused(Reason::OtherApplication, family.main(), detail));
            }
            false
        }
    };
    // SQLite deletes any log beside an empty main file, even an empty log that another process has open.
    if fresh && inspected.get(Member::Wal).is_some() {
        return Err(Error::refused(Reason::EmptyBesideWal, family.main(), ""));
    }
    if inspected.get(Member::Main).is_none() {
        inspected = secure::create_main(&inspected)?;
    }
    secure::tighten(&inspected)?;
    side::create(&inspected)?;
    Ok(Prepared { inspected, fresh })
}

/// Refuses beside a process that goes on writing into a retired generation, or that has lost its locks. Gives back one
/// of ours that does; it will notice by itself and let go.
///
/// One of ours that has lost its locks is no danger to an opening while somebody holds the presence byte: then nothing is
/// truncated under its map, and nothing of ours unlinks.
pub(crate) fn refuse_dangerous_strangers(family: &Family) -> Result<Option<Holder>> {
    let (ours, foreign): (Vec<_>, Vec<_>) =
        holders::dangerous(family)?.into_iter().partition(|holder| holder.role.is_some());
    if let Some(holder) = foreign.first() {
        return Err(held_by(family, holder));
    }
    let kept = ours.is_empty() || presence_is_held(family);
    Ok(ours.into_iter().find(|h| h.ghost || !kept))
}

/// True if one that looks like a stranger may be a process of ours: whoever removed our files has just removed the records as
/// well by which ours are known, until they notice.
pub(crate) fn may_be_ours(family: &Family) -> bool {
    !members::are_recorded(family) || members::recorded_for(family).is_some_and(|time| time < UNKNOWN)
}

/// Waits until no process of ours uses a retired generation. The caller must not hold the recovery lock, for that is what
/// they need to let go.
///
/// # Errors
/// A refusal that names the process when it did not let go in time.
pub(crate) fn wait_for_ours(family: &Family) -> Result<()> {
    let begun = Instant::now();
    loop {
        match refuse_dangerous_strangers(family) {
            Ok(None) => return Ok(()),
            Ok(Some(holder)) if begun.elapsed() >= NOTICE => return Err(held_by(family, &holder)),
            Err(e) if begun.elapsed() >= UNKNOWN || !may_be_ours(family) => return Err(e),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn held_by(family: &Family, holder: &Holder) -> Error {
    let reason = if holder.ghost { Reason::HeldRetired } else { Reason::HeldNaked };
    let pid = holder.pid.map_or_else(|| "a process that is not visible here".into(), |pid| format!("PID {pid}"));
    Error::refused(reason, family.main(), format!("{pid}; {}", holder.to_stop()))
}

/// True if somebody holds the byte of the index that says that the generation is in use. This process has no connection
/// yet whose locks a close could drop.
fn presence_is_held(family: &Family) -> bool {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let Ok(index) = rustix::fs::open(family.path(Member::Shm), flags, Mode::empty()) else { return false };
    let (start, end) = PRESENCE_BYTE;
    let byte = ofd::Range { start, length: end - start };
    matches!(ofd::conflict(&index, ofd::Kind::Write, byte), Ok(Some(_)))
}
