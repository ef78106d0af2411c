//! What an attempt to open was about to open may lose its name in the middle of it, and this process may be the last one that
//! can still read it: the one that was there before has ended, and nobody else has begun. So it is captured before its
//! descriptors are closed, and the next attempt puts it back.

use std::fs::File;

use rustix::fs::{Mode, OFlags};

use crate::error::{Error, Result};
use crate::family::{Family, Member};
use crate::options::Options;
use crate::prepare::Prepared;
use crate::retired::{self, Kept};
use crate::secure::Inspected;
use crate::{captures, recovery, side};

/// Captures what has no name any more of what was looked at. To be called without the recovery lock.
pub(super) fn keep(family: &Family, options: &Options, prepared: &Prepared) -> Result<()> {
    let had = prepared.inspected.generation();
    let now = family.generation().map_err(|e| Error::io("look at", &family.main(), e))?;
    let lost = had.differences(&now);
    let gone = |member: &Member| *member != Member::Shm && is_nameless(&prepared.inspected, *member);
    if prepared.fresh || !lost.iter().any(gone) {
        return Ok(());
    }
    let Some(main) = read(&prepared.inspected, Member::Main)? else { return Ok(()) };
    let log = match read(&prepared.inspected, Member::Wal)? {
        Some(log) => log,
        // There was none, which is as good as an empty one.
        None => rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|e| Error::io("open", std::path::Path::new("/dev/null"), e))?
            .into(),
    };
    let kept = Kept::of(main, log);
    side::make_again(family)?;
    let _lock = recovery::exclusive(family, options.patience)?;
    // Whoever had it open as well has captured it, and may have more.
    if captures::are_of(family, had.wal) {
        return Ok(());
    }
    retired::make_room(family, || retired::capture_kept(family, had, &lost, &kept, None, false))
}

fn is_nameless(inspected: &Inspected, member: Member) -> bool {
    inspected.get(member).is_some_and(|seen| seen.links().is_ok_and(|links| links == 0))
}

/// The file itself, whatever its name leads to now.
fn read(inspected: &Inspected, member: Member) -> Result<Option<File>> {
    let Some(seen) = inspected.get(member) else { return Ok(None) };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(seen.magic_path(), flags, Mode::empty())
        .map_err(|e| Error::io("read", &inspected.family().path(member), e))?;
    Ok(Some(file.into()))
}
