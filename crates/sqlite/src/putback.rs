//! Putting right, after a generation was retired, what lies at the paths before anybody opens them again.
//!
//! Everything here happens under the exclusive side of the recovery lock, so of several processes that miss a file one
//! puts it back and the others find it. What stands in the way is moved below `X.statehouse/retired/`, never deleted.
//!
//! *A main file that was removed* is made again from a capture, whose image is then the newest state of the database. The
//! image itself becomes the main file, by a rename that replaces nothing: so it needs no room on the disk, is there whole
//! or not at all, and loses against whatever somebody else has put at the path by then, into which its rows are merged
//! instead. What still lies beside the missing file would be paired by name with the new one, so it is moved aside first;
//! the image has what was in it.
//!
//! *A checkpoint that did not come to the end of the log* (its process was killed, the disk was full, somebody was reading)
//! leaves pages of different commits in the main file, which only the log puts right. SQLite's index says so
//! (`nBackfillAttempted` beyond `nBackfill`, or `nBackfill` before the last frame). Then a copy of the log is put back at its path: with it the main file is what it was, and nothing has to
//! be merged into a damaged tree.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;

use crate::admission::begun;
use crate::captures::{
    self, IMAGE, LOG, MERGED, PROVED, PUT, SUCCEEDED, TORN, UNREADABLE, complete, directory, main_is_missing, mark,
    private_directory, sync_directory,
};
use crate::error::{Error, Reason, Result};
use crate::family::{Family, Generation, Member, Status};
use crate::secure::{self, Purpose};
use crate::{files, headers, holders, suspect};

/// Where the header of a main file says how it is written and read, and the value for a log there.
/// <https://www.sqlite.org/fileformat2.html#the_database_header>
const VERSIONS: (u64, [u8; 2]) = (18, [2, 2]);

/// Makes the main file again if it is missing and a capture has it. `considerate` leaves out a capture after which another
/// generation has begun, for a process that has that one may not have noticed yet.
///
/// To be called with the exclusive side of the recovery lock. False if the file is missing still, for want of a capture;
/// opening says so.
pub(crate) fn main_file(family: &Family, considerate: bool) -> Result<bool> {
    if !main_is_missing(family)? {
        return Ok(true);
    }
    let Some(place) = captures::of_missing_main(family, considerate) else { return Ok(false) };
    let image = place.join(IMAGE);
    if !place.join(PROVED).exists()
        && let Err(e) = captures::sound(&image)
    {
        if matches!(e, Error::Damaged { .. }) {
            mark(&place, UNREADABLE)?;
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
    let identity = crate::family::Status::of_descriptor(file.as_fd()).map_err(io("look at"))?.identity;
    drop(file);
    captures::write_text(&place, captures::BECAME, &Some(identity))?;
    move_leftovers(family)?;
    if !rename_new(&image, &family.main())? {
        return Ok(true);
    }
    sync_directory(family.directory())?;
    // That another generation has begun says who opens it: until then somebody may take it away again.
    mark(&place, MERGED)?;
    Ok(true)
}

/// Moves aside what stands beside the missing file, and an empty file that nobody uses.
fn move_leftovers(family: &Family) -> Result<()> {
    for member in [Member::Shm, Member::Wal, Member::Journal, Member::Main] {
        let path = family.path(member);
        let Some(status) = Status::of(&path).map_err(|e| Error::io("look at", &path, e))? else { continue };
        if member == Member::Main {
            if !captures::is_empty(&status) {
                continue;
            }
            refuse_users_of_main(family, "an empty file open in the place of the database")?;
        }
        move_member(family, member, status.identity.inode)?;
    }
    Ok(())
}

/// Somebody who has `what` open could go on there after it lost its name; in an empty file too: for SQLite asks whether a file was moved only where it
/// has pages, and finds log and journal by the path. What he writes would come beside the log of the database that is put back, or
/// leave a journal that cuts it off to nothing. Processes of ours write into no file that was not proved.
pub(crate) fn refuse_users_of_main(family: &Family, what: &str) -> Result<()> {
    let users = users_of_main(family)?;
    let Some(user) = users.first() else { return Ok(()) };
    let holder = format!("{}, which has {what}; {}", name(user), user.to_stop());
    Err(Error::Busy { waited: std::time::Duration::ZERO, holder: Some(holder) })
}

/// Who has the file open that lies in the place of the main file.
fn users_of_main(family: &Family) -> Result<Vec<holders::Holder>> {
    let uses = |h: &holders::Holder| {
        h.role.is_none()
            && h.files.iter().any(|f| f.member == Member::Main && f.generation == holders::Standing::Current)
    };
    Ok(holders::scan(family)?.holders.into_iter().filter(uses).collect())
}

fn name(holder: &holders::Holder) -> String {
    let pid = holder.pid.map_or_else(|| "a process that cannot be seen".to_owned(), |pid| format!("PID {pid}"));
    match holder.role.as_ref().or(holder.command.first()) {
        Some(program) => format!("{pid} ({})", crate::words::one_line(std::slice::from_ref(program))),
        None => pid,
    }
}

/// What a person has to do before the main file can be put back; `None` if nobody is in the way.
pub(crate) fn in_the_way(family: &Family) -> Option<String> {
    if Status::of(&family.main()).ok()?.is_none_or(|s| !captures::is_empty(&s)) {
        return None;
    }
    let users = users_of_main(family).ok().filter(|users| !users.is_empty())?;
    let each = |of: &dyn Fn(&holders::Holder) -> String, by: &str| users.iter().map(of).collect::<Vec<_>>().join(by);
    let verb = crate::words::verb(users.len() as u64, "has", "have");
    Some(format!(
        "{} {verb} an empty file open in the place of the database. As long as that is so, what was captured cannot be put back. To end \
         that: {}. The rest goes by itself.",
        each(&name, ", "),
        each(&|h| format!("`{}`", h.stop), ", ")
    ))
}

/// Renames unless something has the new name; true if it did.
pub(crate) fn rename_new(from: &Path, to: &Path) -> Result<bool> {
    let renamed = match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system that cannot do that in one step can do it in two.
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty())
            .and_then(|()| rustix::fs::unlinkat(CWD, from, AtFlags::empty())),
        renamed => renamed,
    };
    match renamed {
        Ok(()) => Ok(true),
        Err(Errno::EXIST) => Ok(false),
        Err(e) => Err(Error::io("put back", to, e)),
    }
}

/// True if a capture says that its log must be put back before anybody opens the database, or a restore has left something to
/// do.
pub(crate) fn unsettled(family: &Family) -> bool {
    begun::left(family)
        || complete(&directory(family)).iter().any(|p| p.join(TORN).exists() && !p.join(SUCCEEDED).exists())
}

/// Puts the log of the newest capture back at its path if the main file cannot do without it. To be called with the exclusive
/// side of the recovery lock. Says nothing about what lies at the path instead of that main file: it may be refused yet.
pub(crate) fn log(family: &Family) -> Result<()> {
    let parent = directory(family);
    match unsucceeded(&parent).into_iter().rfind(|p| p.join(TORN).exists()) {
        Some(torn) if put_back(family, &torn, &parent)? => mark(&torn, SUCCEEDED),
        // Somebody has begun a log of his own beside half of a checkpoint.
        Some(torn) if is_of_what_lies_there(family, &torn)? => suspect::doubt(family),
        _ => Ok(()),
    }
}

/// True if the main file is the one that this capture's log was half copied into.
fn is_of_what_lies_there(family: &Family, place: &Path) -> Result<bool> {
    let marked = place.join(TORN);
    let text = files::read_to_string(&marked, 4096).map_err(|e| Error::io("read", &marked, e))?;
    let now = family.generation().map_err(|e| Error::io("look at", &family.main(), e))?;
    Ok(now.main.is_some() && serde_json::to_string(&now.main).is_ok_and(|now| now == text))
}

/// As [`log`], for one who is about to begin a generation of what lies at the path, and found nothing to refuse there: what was
/// not put back now never will be. To be called with the exclusive side of the recovery lock.
pub(crate) fn settle(family: &Family) -> Result<()> {
    begun::finish(family)?;
    log(family)?;
    if suspect::is_suspect(family) {
        // What was captured may have to take the place of what lies there.
        return Ok(());
    }
    for torn in unsucceeded(&directory(family)).into_iter().filter(|p| p.join(TORN).exists()) {
        if !torn.join(IMAGE).exists() {
            // The log alone was kept, and now that another was begun there is nothing that could be merged by itself.
            mark(&torn, UNREADABLE)?;
        }
        mark(&torn, SUCCEEDED)?;
    }
    Ok(())
}

/// Remembers that another generation has begun after all that was captured so far. Not before it has: a database that is refused
/// (another program's, a newer version's) may be taken away again, and then the last capture is what the main file is made of.
/// Nor does a generation succeed one that became a main file which nobody had opened when it was taken away.
pub(crate) fn succeed(family: &Family) -> Result<()> {
    let open = unsucceeded(&directory(family)).into_iter().filter(|place| !captures::is_spent_in_vain(place, family));
    open.into_iter().try_for_each(|place| mark(&place, SUCCEEDED))
}

fn unsucceeded(parent: &Path) -> Vec<std::path::PathBuf> {
    complete(parent).into_iter().filter(|p| !p.join(SUCCEEDED).exists()).collect()
}

/// True if it was put back; false if something else has begun there.
fn put_back(family: &Family, place: &Path, parent: &Path) -> Result<bool> {
    let now = family.generation().map_err(|e| Error::io("look at", &family.main(), e))?;
    if !is_of_what_lies_there(family, place)? || now.wal.is_some() {
        // Another main file, or somebody has begun a log of their own: this log does not belong there any more.
        return Ok(false);
    }
    let new = parent.join("log.new");
    let log = family.path(Member::Wal);
    let mut from = files::open(&place.join(LOG)).map_err(|e| Error::io("read", &place.join(LOG), e))?;
    let mut to = files::open_private(&new).map_err(|e| Error::io("create", &new, e))?;
    let copied = to.set_len(0).and_then(|()| std::io::copy(&mut from, &mut to)).and_then(|_| to.sync_all());
    copied.map_err(|e| Error::io("write", &new, e))?;
    let identity = Status::of_descriptor(to.as_fd()).map_err(|e| Error::io("look at", &new, e))?.identity;
    captures::write_text(place, PUT, &Generation { main: now.main, wal: Some(identity), shm: None })?;
    let put = rename_new(&new, &log)?;
    if put {
        sync_directory(family.directory())?;
    }
    Ok(put)
}

/// True if the log in `now` was put back beside another main file: somebody has replaced that since, and SQLite would pair the two
/// by their names.
pub(crate) fn is_unpaired(family: &Family, now: &Generation) -> bool {
    let put = |place: &std::path::PathBuf| {
        serde_json::from_str::<Generation>(&files::read_to_string(&place.join(PUT), 4096).ok()?).ok()
    };
    let puts = complete(&directory(family));
    now.wal.is_some() && puts.iter().filter_map(put).any(|put| put.wal == now.wal && put.main != now.main)
}

/// Takes such a log away from its path, with the index that was made of it. To be called with the exclusive side of the recovery
/// lock.
pub(crate) fn move_unpaired_log(family: &Family) -> Result<()> {
    let now = family.generation().map_err(|e| Error::io("look at", &family.main(), e))?;
    if !is_unpaired(family, &now) {
        return Ok(());
    }
    for member in [Member::Shm, Member::Wal] {
        if let Some(identity) = now.get(member) {
            move_member(family, member, identity.inode)?;
        }
    }
    Ok(())
}

/// Takes a log away from its path that SQLite would not read: a stranger who found the old index, but not the log that
/// belongs to it, has appended to a new file as if the log were there.
pub(crate) fn move_headless_log(family: &Family) -> Result<()> {
    let inspected = secure::inspect(family, Purpose::Own)?;
    let headless = headers::check(&inspected).is_err_and(|e| e.reason() == Some(Reason::WalHeader));
    match inspected.generation().wal {
        Some(log) if headless => move_member(family, Member::Wal, log.inode),
        _ => Ok(()),
    }
}

fn move_member(family: &Family, member: Member, inode: u64) -> Result<()> {
    let parent = directory(family);
    private_directory(&parent)?;
    let to = parent.join(format!("{member}-{inode:x}.moved"));
    let from = family.path(member);
    match std::fs::rename(&from, &to) {
        // Whoever removes files may have been quicker.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        moved => moved.map_err(|e| Error::io("move aside", &from, e)),
    }
}

/// Takes away from the paths what belongs to a retired generation and would be paired, by name, with files that it does not
/// belong to: an old log beside a new main file, or an old index beside a new log. They are moved, not deleted.
pub(crate) fn move_aside(family: &Family, generation: Generation, lost: &[Member]) -> Result<()> {
    if !lost.contains(&Member::Wal) && !lost.contains(&Member::Main) {
        return Ok(());
    }
    let now = family.generation().map_err(|e| Error::io("look at", &family.main(), e))?;
    for member in [Member::Shm, Member::Wal] {
        if generation.get(member).is_none() || now.get(member) != generation.get(member) {
            continue;
        }
        move_member(family, member, generation.get(member).map_or(0, |i| i.inode))?;
    }
    Ok(())
}
