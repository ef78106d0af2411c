//! Capturing a retired generation from the descriptors that this process still has, and taking over what only it holds.
//!
//! While a descriptor is open, a deleted log can still be read, and never after. So a fenced handle first makes an image
//! of what it had (main file overlaid with its log) and puts it with a copy of the log below `X.statehouse/retired/`;
//! only then are the connections closed. The image is merged by whoever opens the database next, this process or
//! another, and the mark `merged` is written after that commit. A crash in between repeats the merge, which is idempotent.
//!
//! There is one state in which the main file alone cannot be gone on with: a checkpoint that was begun and never ended
//! (its process was killed, the disk was full) leaves pages of different commits in it, which only the log puts right.
//! SQLite's index says so (`nBackfillAttempted` beyond `nBackfill`). Then a copy of the log is put back at its path, before
//! anybody opens: with it the main file is what it was, and nothing has to be merged into a damaged tree.

use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde::Serialize;

use crate::error::{Error, Failure, Result};
use crate::family::{Family, Generation, Identity, Member};
use crate::image::{self, ImageError};
use crate::wal::{self, ReadAt};
use crate::{connect, files, locks};

const MERGED: &str = "merged";
const UNREADABLE: &str = "unreadable";
const IMAGE: &str = "main.captured";
const LOG: &str = "wal.captured";
/// In a capture whose main file was left between two commits; says which main file that is.
const TORN: &str = "torn";
/// In a capture after which another generation has begun.
const SUCCEEDED: &str = "succeeded";
const MANIFEST: &str = "manifest.json";

/// How many captures that were merged are kept as evidence; older ones go when a new one is made.
const KEPT: usize = 8;

#[derive(Debug, Serialize)]
struct Manifest<'a> {
    version: u32,
    database: String,
    captured_at_unix_us: u128,
    pid: u32,
    sqlite: &'static str,
    generation: Generation,
    members_lost: &'a [Member],
    frames: u64,
    transactions: u64,
    pages: u64,
}

fn directory(family: &Family) -> PathBuf {
    family.side_directory().join("retired")
}

/// A new description of the file that SQLite has open, whatever its name leads to now. The lock core makes closing it harmless.
fn descriptor(family: &Family, member: Member, wanted: Option<Identity>) -> Result<Option<File>> {
    let path = family.path(member);
    let open = locks::descriptors(&path).into_iter().find(|d| wanted == Some(d.identity));
    let Some(open) = open else { return Ok(None) };
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
    let magic = format!("/proc/self/fd/{}", open.fd);
    let file = rustix::fs::open(magic, flags, rustix::fs::Mode::empty()).map_err(|e| Error::io("read", &path, e))?;
    Ok(Some(file.into()))
}

/// Captures what this process had open when its generation was retired. `reader` must be a connection of that generation;
/// it is kept inside a read transaction meanwhile, so that nobody of that generation restarts the log or checkpoints past it.
///
/// Does nothing when the log is still the one that the path names: then nothing is lost with the generation.
pub(crate) fn capture(family: &Family, generation: Generation, lost: &[Member], reader: &Connection) -> Result<()> {
    if !lost.contains(&Member::Wal) && !lost.contains(&Member::Main) {
        return Ok(());
    }
    let (Some(main), Some(log)) =
        (descriptor(family, Member::Main, generation.main)?, descriptor(family, Member::Wal, generation.wal)?)
    else {
        return Ok(());
    };
    // A connection that cannot even begin to read is no reason to leave the bytes behind.
    let pinned = reader.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema;").is_ok();
    let made = write(family, generation, lost, &main, &log);
    if pinned {
        let _ = reader.execute_batch("ROLLBACK");
    }
    made
}

fn write(family: &Family, generation: Generation, lost: &[Member], main: &File, log: &File) -> Result<()> {
    let identity = generation.wal.unwrap_or(Identity { device: 0, inode: 0, born_ns: None });
    let Some(commit) = wal::last_commit(log).map_err(|e| Error::io("read", &family.path(Member::Wal), e))? else {
        if !lost.contains(&Member::Main) {
            // An empty log: everything is in the main file, which the path still names.
            return Ok(());
        }
        return write_as(
            family,
            generation,
            lost,
            main,
            log,
            &format!("{:x}-{:x}-empty", identity.inode, identity.born_ns.unwrap_or(0)),
        );
    };
    // One name for one state of one log: a second process of ours that had the same generation need not copy it again.
    let id = format!(
        "{:x}-{:x}-{:08x}{:08x}-{}",
        identity.inode,
        identity.born_ns.unwrap_or(0),
        commit.salts[0],
        commit.salts[1],
        commit.frames
    );
    write_as(family, generation, lost, main, log, &id)
}

fn write_as(family: &Family, generation: Generation, lost: &[Member], main: &File, log: &File, id: &str) -> Result<()> {
    let parent = directory(family);
    let place = parent.join(id);
    if place.exists() {
        return Ok(());
    }
    private_directory(&parent)?;
    // The recovery lock is held, so whoever began these does not live any more.
    for abandoned in entries(&parent, |name| name.contains(".partial.")) {
        let _ = std::fs::remove_dir_all(abandoned);
    }
    let partial = parent.join(format!("{id}.partial.{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&partial);
    private_directory(&partial)?;
    let copied = copy(family, generation, lost, main, log, &partial);
    if let Err(e) = copied.and_then(|()| publish(&partial, &place, &parent)) {
        let _ = std::fs::remove_dir_all(&partial);
        return Err(e);
    }
    prune(&parent);
    prune_leftovers(&parent);
    Ok(())
}

fn copy(family: &Family, generation: Generation, lost: &[Member], main: &File, log: &File, to: &Path) -> Result<()> {
    let create = |name: &str| {
        let path = to.join(name);
        files::open_private(&path).map_err(|e| Error::io("create", &path, e))
    };
    let mut copy = create(LOG)?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let read = log.read_at(&mut buffer, at).map_err(|e| Error::io("read", &family.path(Member::Wal), e))?;
        if read == 0 {
            break;
        }
        image::Sink::write_at(&mut copy, &buffer[..read], at).map_err(|e| full_or(e, "write", &to.join(LOG)))?;
        at += read as u64;
    }
    // From the copy, not from the log: a ghost may go on writing into that.
    let mut output = create(IMAGE)?;
    let made = image::overlay(main, &copy, &mut output);
    let made = match made {
        Ok(image) => image,
        Err(ImageError::Io(e)) => return Err(full_or(e, "write", &to.join(IMAGE))),
        Err(e) => return Err(Error::Damaged { detail: e.to_string() }),
    };
    let manifest = Manifest {
        version: 1,
        database: family.main().display().to_string(),
        captured_at_unix_us: std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default()
            .as_micros(),
        pid: std::process::id(),
        sqlite: rusqlite::version(),
        generation,
        members_lost: lost,
        frames: made.frames,
        transactions: made.transactions,
        pages: made.pages,
    };
    let text = serde_json::to_vec_pretty(&manifest).map_err(|e| Error::io("write", to, std::io::Error::from(e)))?;
    files::replace(&to.join(MANIFEST), &text).map_err(|e| full_or(e, "write", &to.join(MANIFEST)))?;
    for file in [&copy, &output] {
        file.sync_all().map_err(|e| full_or(e, "write", to))?;
    }
    if !lost.contains(&Member::Main) && checkpoint_was_interrupted(family, generation)? && !has_successor(to) {
        let text = serde_json::to_vec(&generation.main).map_err(|e| Error::io("write", to, std::io::Error::from(e)))?;
        files::replace(&to.join(TORN), &text).map_err(|e| full_or(e, "write", &to.join(TORN)))?;
    }
    Ok(())
}

/// True if the index of this generation says that a checkpoint was begun and not ended (wal.c, `WalCkptInfo`).
fn checkpoint_was_interrupted(family: &Family, generation: Generation) -> Result<bool> {
    const BACKFILL: u64 = 96;
    const BACKFILL_ATTEMPTED: u64 = 128;
    let Some(index) = descriptor(family, Member::Shm, generation.shm)? else { return Ok(false) };
    let word = |at| {
        let mut bytes = [0; 4];
        let read = index.read_at(&mut bytes, at).map_err(|e| Error::io("read", &family.path(Member::Shm), e))?;
        Ok::<_, Error>(if read == bytes.len() { u32::from_ne_bytes(bytes) } else { 0 })
    };
    Ok(word(BACKFILL_ATTEMPTED)? > word(BACKFILL)?)
}

/// True if another capture of the same log was followed by a generation already. Names begin with inode and birth of the log.
fn has_successor(place: &Path) -> bool {
    let log = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split('-').take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    let wanted = log(place);
    place.parent().is_some_and(|p| complete(p).iter().any(|c| log(c) == wanted && c.join(SUCCEEDED).exists()))
}

/// True if a capture says that its log must be put back before anybody opens the database.
pub(crate) fn unsettled(family: &Family) -> bool {
    complete(&directory(family)).iter().any(|p| p.join(TORN).exists() && !p.join(SUCCEEDED).exists())
}

/// Puts the log of the newest capture back at its path if the main file cannot do without it, and remembers that from now
/// on another generation may begin. To be called with the exclusive side of the recovery lock.
pub(crate) fn settle(family: &Family) -> Result<()> {
    let parent = directory(family);
    let open: Vec<_> = complete(&parent).into_iter().filter(|p| !p.join(SUCCEEDED).exists()).collect();
    if let Some(torn) = open.iter().rev().find(|p| p.join(TORN).exists()) {
        put_back(family, torn, &parent)?;
    }
    for place in open {
        let path = place.join(SUCCEEDED);
        files::open_private(&path).and_then(|f| f.sync_all()).map_err(|e| full_or(e, "create", &path))?;
    }
    Ok(())
}

fn put_back(family: &Family, place: &Path, parent: &Path) -> Result<()> {
    let marked = place.join(TORN);
    let text = files::read_to_string(&marked, 4096).map_err(|e| Error::io("read", &marked, e))?;
    let now = family.generation().map_err(|e| Error::io("look at", &family.main(), e))?;
    let same = serde_json::to_string(&now.main).is_ok_and(|now| now == text);
    if now.main.is_none() || !same || now.wal.is_some() {
        // Another main file, or somebody has begun a log of their own: this log does not belong there any more.
        return Ok(());
    }
    let new = parent.join("log.new");
    let log = family.path(Member::Wal);
    let mut from = files::open(&place.join(LOG)).map_err(|e| Error::io("read", &place.join(LOG), e))?;
    let mut to = files::open_private(&new).map_err(|e| full_or(e, "create", &new))?;
    let copied = to.set_len(0).and_then(|()| std::io::copy(&mut from, &mut to)).and_then(|_| to.sync_all());
    copied.map_err(|e| full_or(e, "write", &new))?;
    let cwd = rustix::fs::CWD;
    match rustix::fs::renameat_with(cwd, &new, cwd, &log, rustix::fs::RenameFlags::NOREPLACE) {
        Ok(()) => sync_directory(family.directory()),
        Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(full_or(e.into(), "put back", &log)),
    }
}

fn full_or(e: std::io::Error, action: &'static str, path: &Path) -> Error {
    match e.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => Error::Full,
        _ => Error::io(action, path, e),
    }
}

fn private_directory(path: &Path) -> Result<()> {
    match rustix::fs::mkdir(path, rustix::fs::Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(full_or(e.into(), "create", path)),
    }
}

fn publish(partial: &Path, place: &Path, parent: &Path) -> Result<()> {
    sync_directory(partial)?;
    std::fs::rename(partial, place).map_err(|e| Error::io("rename", partial, e))?;
    sync_directory(parent)
}

fn sync_directory(path: &Path) -> Result<()> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
        .and_then(rustix::fs::fsync)
        .map_err(|e| Error::io("flush", path, e))
}

/// Captures that are complete, the oldest first.
fn complete(parent: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(parent) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .map(|e| e.path())
        .filter(|p| p.join(MANIFEST).exists())
        .map(|p| (std::fs::metadata(&p).and_then(|m| m.modified()).ok(), p))
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// Removes what is beyond the number that is kept. One that is not merged is never removed.
fn prune(parent: &Path) {
    let merged: Vec<_> = complete(parent).into_iter().filter(|p| p.join(MERGED).exists()).collect();
    for old in merged.iter().take(merged.len().saturating_sub(KEPT)) {
        let _ = std::fs::remove_dir_all(old);
    }
}

fn entries(parent: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(parent) else { return Vec::new() };
    entries.flatten().filter(|e| wanted(&e.file_name().to_string_lossy())).map(|e| e.path()).collect()
}

/// Removes the oldest files that were moved aside. What they hold is in the captures.
fn prune_leftovers(parent: &Path) {
    let mut moved: Vec<_> = entries(parent, |name| name.ends_with(".moved"))
        .into_iter()
        .map(|p| (std::fs::metadata(&p).and_then(|m| m.modified()).ok(), p))
        .collect();
    moved.sort();
    for (_, old) in moved.iter().take(moved.len().saturating_sub(KEPT)) {
        let _ = std::fs::remove_file(old);
    }
}

/// True if some capture has not been merged yet.
pub(crate) fn pending(family: &Family) -> bool {
    !unmerged(family).is_empty()
}

fn unmerged(family: &Family) -> Vec<PathBuf> {
    let open = |p: &PathBuf| !p.join(MERGED).exists() && !p.join(UNREADABLE).exists();
    complete(&directory(family)).into_iter().filter(open).collect()
}

/// Takes over, in the order in which they were captured, what only the captures hold. `merge` runs inside a write
/// transaction on `live`. An image that SQLite finds damaged is left for a person, and marked so.
///
/// Returns the number of rows that were taken over.
pub(crate) fn merge(
    family: &Family,
    live: &Connection,
    merge: &dyn Fn(&Connection, &Connection) -> Result<u64, Failure>,
) -> Result<u64> {
    let mut rows = 0;
    for place in unmerged(family) {
        let mark = match one(&place.join(IMAGE), live, merge) {
            Ok(taken) => {
                rows += taken;
                MERGED
            }
            Err(Error::Damaged { .. }) => UNREADABLE,
            Err(e) => return Err(e),
        };
        let path = place.join(mark);
        files::open_private(&path).and_then(|f| f.sync_all()).map_err(|e| full_or(e, "create", &path))?;
        if mark == MERGED {
            // Every row of it is in the live database now; the log itself stays as evidence.
            let _ = std::fs::remove_file(place.join(IMAGE));
        }
    }
    Ok(rows)
}

fn one(
    path: &Path,
    live: &Connection,
    merge: &dyn Fn(&Connection, &Connection) -> Result<u64, Failure>,
) -> Result<u64> {
    let image = connect::immutable(path)?;
    let verdict: String = image.query_row("PRAGMA quick_check(1)", [], |r| r.get(0))?;
    if verdict != "ok" {
        return Err(Error::Damaged { detail: verdict });
    }
    live.execute_batch("BEGIN IMMEDIATE")?;
    let done = merge(live, &image).map_err(Error::from).and_then(|n| Ok(live.execute_batch("COMMIT").map(|()| n)?));
    if done.is_err() && !live.is_autocommit() {
        let _ = live.execute_batch("ROLLBACK");
    }
    done
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
        let parent = directory(family);
        private_directory(&parent)?;
        let inode = generation.get(member).map_or(0, |i| i.inode);
        let to = parent.join(format!("{member}-{inode:x}.moved"));
        let from = family.path(member);
        std::fs::rename(&from, &to).map_err(|e| Error::io("move aside", &from, e))?;
    }
    Ok(())
}
