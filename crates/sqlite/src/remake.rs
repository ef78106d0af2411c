//! A main file that was removed is made again from a capture.
//!
//! The newest state of the database is then in an image that one of our processes made of the files that it still had
//! open (see [`crate::retired`]). The image itself becomes the main file, by a rename that replaces nothing: so it needs
//! no room on the disk, is there whole or not at all, and loses against whatever somebody else has put at the path by
//! then, into which its rows are merged instead. Everything happens under the exclusive side of the recovery lock, so of
//! several processes that miss the file one makes it and the others find it.
//!
//! What still lies beside the missing file belongs to it and would be paired by name with the new one. It is moved aside
//! first; the image has what was in it.

use std::path::Path;

use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::family::{Family, Member, Status};
use crate::{files, holders, retired};

/// Where the header of a main file says how it is written and read, and the value for a log there.
/// <https://www.sqlite.org/fileformat2.html#the_database_header>
const VERSIONS: (u64, [u8; 2]) = (18, [2, 2]);

/// Makes the main file again if it is missing and a capture has it. `considerate` leaves out a capture after which another
/// generation has begun, for a process that has that one may not have noticed yet.
///
/// To be called with the exclusive side of the recovery lock. False if the file is missing still, for want of a capture;
/// opening says so.
pub(crate) fn main_file(family: &Family, considerate: bool) -> Result<bool> {
    if !retired::main_is_missing(family)? {
        return Ok(true);
    }
    let Some(place) = retired::of_missing_main(family, considerate) else { return Ok(false) };
    let image = place.join(retired::IMAGE);
    if let Err(e) = retired::sound(&image) {
        if matches!(e, Error::Damaged { .. }) {
            retired::mark(&place, retired::UNREADABLE)?;
        }
        return Err(e);
    }
    let io = |action: &'static str| {
        let image = image.clone();
        move |e: std::io::Error| Error::io(action, &image, e)
    };
    let file = files::open_private(&image).map_err(io("open"))?;
    // It was a file of its own so far, and is one with a log from now on, without a moment in another mode.
    let (at, versions) = VERSIONS;
    std::os::unix::fs::FileExt::write_all_at(&file, &versions, at)
        .and_then(|()| file.sync_all())
        .map_err(io("write"))?;
    drop(file);
    move_leftovers(family)?;
    if !rename_new(&image, &family.main())? {
        return Ok(true);
    }
    retired::sync_directory(family.directory())?;
    retired::mark(&place, retired::MERGED)?;
    retired::mark(&place, retired::SUCCEEDED)?;
    Ok(true)
}

/// Moves aside what stands beside the missing file, and an empty file that nobody uses.
fn move_leftovers(family: &Family) -> Result<()> {
    for member in [Member::Shm, Member::Wal, Member::Journal, Member::Main] {
        let path = family.path(member);
        let Some(status) = Status::of(&path).map_err(|e| Error::io("look at", &path, e))? else { continue };
        if member == Member::Main {
            if !retired::is_empty(&status) {
                continue;
            }
            refuse_users_of_main(family)?;
        }
        retired::move_member(family, member, status.identity.inode)?;
    }
    Ok(())
}

/// Somebody who has the empty file open could fill it after it lost its name.
fn refuse_users_of_main(family: &Family) -> Result<()> {
    let uses = |h: &&holders::Holder| {
        h.files.iter().any(|f| f.member == Member::Main && f.generation == holders::Standing::Current)
    };
    let report = holders::scan(family)?;
    let Some(user) = report.holders.iter().find(uses) else { return Ok(()) };
    let holder =
        format!("a process that has an empty file open in the place of the database; to stop it: {}", user.stop);
    Err(Error::Busy { waited: std::time::Duration::ZERO, holder: Some(holder) })
}

/// Renames unless something has the new name; true if it did.
fn rename_new(from: &Path, to: &Path) -> Result<bool> {
    let renamed = match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system that cannot do that in one step can do it in two.
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty())
            .and_then(|()| rustix::fs::unlinkat(CWD, from, AtFlags::empty())),
        renamed => renamed,
    };
    match renamed {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(e) => Err(Error::io("make again", to, e)),
    }
}
