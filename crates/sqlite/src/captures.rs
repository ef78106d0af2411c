//! The captures of retired generations that lie beside a database, in `X.statehouse/retired/`.
//!
//! A capture is a directory that appears under its name when it is complete. It holds an image of the database
//! (`main.captured`), a copy of the log (`wal.captured`), a manifest, and marks: `merged` when every row of it is in the
//! main file, `unreadable` when only a person can use it, `succeeded` when another generation has begun since, `became` (with the
//! identity of the file) when its image is or was about to be renamed to a main file. One without
//! an image holds a log alone, or has become a main file. Names begin with inode and birth of the log, so that several
//! processes that had the same log find each other's captures.
//!
//! The image is merged by whoever opens the database next, this process or another, and the mark `merged` is written when
//! the log that has it now is copied into the main file. Until then the mark `into` names that log: as long as it lies at its
//! path the merge is not repeated, for that would bring back what was deleted since. A crash before that mark repeats the
//! merge, which is idempotent. What is not merged is never removed.

use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde::Serialize;

use crate::capture::merged::has_rows_of_its_own;
use crate::error::{Error, Failure, Result};
use crate::family::{Family, Identity, Status};
use crate::flush::{self, Committer};
use crate::wal::ReadAt;
use crate::{connect, files, image, proof};

pub(crate) const MERGED: &str = "merged";
/// In a capture whose rows are in a log that is not copied yet; says which log that is.
pub(crate) const INTO: &str = "into";
pub(crate) const UNREADABLE: &str = "unreadable";
pub(crate) const IMAGE: &str = "main.captured";
pub(crate) const LOG: &str = "wal.captured";
/// In a capture whose main file was left between two commits; says which main file that is.
pub(crate) const TORN: &str = "torn";
/// In a capture whose log was put back at its path; says beside which main file, and as which file.
pub(crate) const PUT: &str = "put";
/// The image was found whole when it was made, and need not be looked through once more.
pub(crate) const PROVED: &str = "proved";
/// In a capture after which another generation has begun.
pub(crate) const SUCCEEDED: &str = "succeeded";
/// In a capture whose image has become a main file; says which.
pub(crate) const BECAME: &str = "became";
/// In a capture of a database in whose place another content was put since. It is evidence; merging it by itself would undo that.
pub(crate) const OVERTAKEN: &str = "overtaken";
pub(crate) const MANIFEST: &str = "manifest.json";

/// In the name of a directory in which somebody captures another process's files, without any lock of ours.
pub(crate) const STAGED: &str = ".staged.";

/// Ends the name of a capture that was made when the main file was gone from its path, too.
pub(crate) const WHOLE: &str = "-whole";
/// Is added to the name of such a capture when the one before it has become a main file and is gone as well.
pub(crate) const AGAIN: &str = "-again";

/// How many captures that were merged are kept as evidence; older ones go when a new one is made.
pub(crate) const KEPT: usize = 8;

pub(crate) fn directory(family: &Family) -> PathBuf {
    family.side_directory().join("retired")
}

pub(crate) fn entries(parent: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(parent) else { return Vec::new() };
    entries.flatten().filter(|e| wanted(&e.file_name().to_string_lossy())).map(|e| e.path()).collect()
}

/// Captures that are complete, the oldest first.
pub(crate) fn complete(parent: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(parent) else { return Vec::new() };
    let mut found: Vec<_> = entries
        .flatten()
        .filter(|e| !e.file_name().to_string_lossy().contains(STAGED))
        .map(|e| e.path())
        .filter(|p| p.join(MANIFEST).exists())
        .map(|p| (std::fs::metadata(&p).and_then(|m| m.modified()).ok(), p))
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

/// Writes one of the marks of a capture.
pub(crate) fn mark(place: &Path, mark: &str) -> Result<()> {
    let path = place.join(mark);
    files::open_private(&path).and_then(|f| f.sync_all()).map_err(|e| Error::io("create", &path, e))
}

/// True if another capture of the same log was followed by a generation already. Names begin with inode and birth of the log.
pub(crate) fn has_successor(place: &Path) -> bool {
    let log = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split('-').take(2).map(str::to_owned).collect::<Vec<_>>()
    };
    let wanted = log(place);
    place.parent().is_some_and(|p| complete(p).iter().any(|c| log(c) == wanted && c.join(SUCCEEDED).exists()))
}

/// True if there is a capture of this log already.
pub(crate) fn are_of(family: &Family, log: Option<Identity>) -> bool {
    let Some(log) = log else { return false };
    let start = format!("{:x}-{:x}-", log.inode, log.born_ns.unwrap_or(0));
    complete(&directory(family)).iter().any(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&start)))
}

/// True if the image of a capture has become a main file that was taken from its path before anybody of ours had opened it: nobody
/// has its rows then but whoever has the files of which it was captured.
pub(crate) fn is_spent_in_vain(place: &Path, family: &Family) -> bool {
    if place.join(IMAGE).exists() || place.join(SUCCEEDED).exists() {
        return false;
    }
    let Ok(became) = files::read_to_string(&place.join(BECAME), 4096) else { return false };
    let Ok(now) = family.generation() else { return false };
    serde_json::to_string(&now.main).is_ok_and(|now| now != became)
}

/// The recovery lock is held, so whoever began these does not live any more.
pub(crate) fn forget_partial(parent: &Path) {
    for abandoned in entries(parent, |name| name.contains(".partial.")) {
        let _ = std::fs::remove_dir_all(abandoned);
    }
}

/// Removes what is beyond the number that is kept. One that is not merged is never removed, nor one that has rows which a merge
/// has left in it.
pub(crate) fn prune(parent: &Path) {
    let spent = |p: &PathBuf| p.join(MERGED).exists() && !has_rows_of_its_own(p);
    let merged: Vec<_> = complete(parent).into_iter().filter(spent).collect();
    for old in merged.iter().take(merged.len().saturating_sub(KEPT)) {
        let _ = std::fs::remove_dir_all(old);
    }
}

/// Removes the oldest files that were moved aside. What they hold is in the captures.
pub(crate) fn prune_leftovers(parent: &Path) {
    let mut moved: Vec<_> = entries(parent, |name| name.ends_with(".moved"))
        .into_iter()
        .map(|p| (std::fs::metadata(&p).and_then(|m| m.modified()).ok(), p))
        .collect();
    moved.sort();
    for (_, old) in moved.iter().take(moved.len().saturating_sub(KEPT)) {
        let _ = std::fs::remove_file(old);
    }
}

pub(crate) fn captured_at(place: &Path) -> u64 {
    let text = files::read_to_string(&place.join(MANIFEST), 1 << 20).unwrap_or_default();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    manifest["captured_at_unix_us"].as_u64().unwrap_or(0)
}

/// The newest capture of which a missing main file can be made again. `considerate` leaves out those after whose log
/// another one was begun. One as of an earlier look has less than there was, so it is the last choice: where a stranger has written into
/// the log since, it may be the only one that is a database.
pub(crate) fn of_missing_main(family: &Family, considerate: bool) -> Option<PathBuf> {
    // Where a log was removed that was half copied, the image was made with it, and is the newest state until another begins.
    let torn = |p: &PathBuf| p.join(TORN).exists() && p.join(IMAGE).exists();
    let whole = |p: &PathBuf| torn(p) || p.file_name().is_some_and(|n| n.to_string_lossy().contains(WHOLE));
    unmerged(family)
        .into_iter()
        .filter(|p| whole(p) || p.join(PROVED).exists())
        .filter(|p| !(p.join(SUCCEEDED).exists() || considerate && has_successor(p)))
        .max_by_key(|p| (whole(p), captured_at(p)))
}

/// True if the path of the main file names nothing, or an empty file. Something of another kind is not missing: opening
/// refuses it.
///
/// # Errors
/// The system's answer.
pub(crate) fn main_is_missing(family: &Family) -> Result<bool> {
    let status = Status::of(&family.main()).map_err(|e| Error::io("look at", &family.main(), e))?;
    Ok(status.is_none_or(|s| is_empty(&s)))
}

/// True for a regular file of zero bytes.
pub(crate) fn is_empty(status: &Status) -> bool {
    status.kind() == rustix::fs::FileType::RegularFile && status.size == 0
}

/// True if some capture has not been merged yet.
pub(crate) fn pending(family: &Family) -> bool {
    !unmerged(family).is_empty()
}

pub(crate) fn unmerged(family: &Family) -> Vec<PathBuf> {
    // One whose image is gone without a mark has become a main file, and whoever made it so did not live to mark it.
    let closed = [MERGED, UNREADABLE, OVERTAKEN];
    let open = |p: &PathBuf| p.join(IMAGE).exists() && !closed.iter().any(|mark| p.join(mark).exists());
    complete(&directory(family)).into_iter().filter(open).collect()
}

/// Takes over, in the order in which they were captured, what only the captures hold. `merge` runs inside a write
/// transaction on `live`. An image that SQLite finds damaged is left for a person, and marked so.
///
/// Returns the number of rows that were taken over.
pub(crate) fn merge(
    family: &Family,
    live: &Committer,
    merge: &dyn Fn(&Connection, &Connection) -> Result<u64, Failure>,
) -> Result<u64> {
    let mut rows = 0;
    let mut merged = Vec::new();
    let mut looked = !proof::is_looked_through_quickly(live)?;
    for place in unmerged(family) {
        if is_in_the_log(&place, family)? {
            merged.push(place);
            continue;
        }
        // A merge looks rows up by the indexes of the database. In one that is not whole it would find what is not there.
        if place.join(TORN).exists() || !looked {
            is_whole_again(&place, family, live)?;
            looked = true;
        }
        match one(&place.join(IMAGE), live, merge) {
            Ok(taken) => {
                rows += taken;
                merged.push(place);
            }
            Err(Error::Damaged { .. }) => mark(&place, UNREADABLE)?,
            Err(e) => return Err(e),
        }
    }
    // As long as they are in a log alone the images may be their only safe place: whoever removed one log may remove the next,
    // and this process may be killed before it has captured it. Where a reader keeps the log from being copied that is done by
    // the next opener.
    if flush::copy_beside_readers(live).is_err() {
        live.flush()?;
        let log = log_now(family)?;
        for place in merged {
            let path = place.join(INTO);
            files::replace(&path, log.as_bytes()).map_err(|e| Error::io("write", &path, e))?;
        }
        return Ok(rows);
    }
    for place in merged {
        mark(&place, MERGED)?;
        // Every row of it is in the main file now; the log itself stays as evidence.
        let _ = std::fs::remove_file(place.join(IMAGE));
    }
    Ok(rows)
}

/// A main file that was left between two commits is whole with its log, which is back at its path by now. Where somebody had begun
/// another log before that, rows would be brought into rubble, and the image that has all of them would go.
fn is_whole_again(place: &Path, family: &Family, live: &Connection) -> Result<()> {
    let verdict: String = live.query_row("PRAGMA integrity_check(1)", [], |r| r.get(0))?;
    if verdict == "ok" {
        return Ok(());
    }
    let word = |text: std::borrow::Cow<'_, str>| crate::shell::word(&text);
    let (id, main) = (place.file_name().unwrap_or_default().to_string_lossy(), family.main());
    let restore = format!("statehouse restore {} {}", word(id), word(main.to_string_lossy()));
    let detail = format!(
        "{verdict}: its log was removed when a part of it was copied, and another program has begun a new one since; what was captured \
         has everything up to then: `{restore}`"
    );
    Err(Error::Damaged { detail })
}

/// The log that lies at its path, in the words of a mark.
fn log_now(family: &Family) -> Result<String> {
    let now = family.generation().map_err(|e| Error::io("look at", &family.main(), e))?;
    Ok(serde_json::json!({ "main": now.main, "wal": now.wal }).to_string())
}

/// True if the rows of a capture were merged into the log that lies at its path.
fn is_in_the_log(place: &Path, family: &Family) -> Result<bool> {
    let log = log_now(family)?;
    Ok(files::read_to_string(&place.join(INTO), 4096).is_ok_and(|into| into == log))
}

pub(crate) fn one(
    path: &Path,
    live: &Connection,
    merge: &dyn Fn(&Connection, &Connection) -> Result<u64, Failure>,
) -> Result<u64> {
    let image = match path.with_file_name(PROVED).exists() {
        true => connect::immutable(path)?,
        false => sound(path)?,
    };
    live.execute_batch("BEGIN IMMEDIATE")?;
    let done = merge(live, &image).map_err(Error::from).and_then(|n| Ok(live.execute_batch("COMMIT").map(|()| n)?));
    if done.is_err() && !live.is_autocommit() {
        let _ = live.execute_batch("ROLLBACK");
    }
    done
}

/// Opens an image that SQLite finds whole, its indexes too: pages of two states can be trees and yet have entries that no row has,
/// and such an image must never become a main file.
pub(crate) fn sound(image: &Path) -> Result<Connection> {
    let image = connect::immutable(image)?;
    let verdict: String = image.query_row("PRAGMA integrity_check(1)", [], |r| r.get(0))?;
    if verdict == "ok" { Ok(image) } else { Err(Error::Damaged { detail: verdict }) }
}

pub(crate) fn create(path: &Path) -> Result<File> {
    files::open_private(path).map_err(|e| Error::io("create", path, e))
}

/// Copies all of `from`, which `source` names in errors, into a private file, and flushes it.
pub(crate) fn copy_file(from: &impl ReadAt, source: &Path, to: &Path) -> Result<File> {
    let mut copy = create(to)?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let read = from.read_at(&mut buffer, at).map_err(|e| Error::io("read", source, e))?;
        if read == 0 {
            copy.sync_all().map_err(|e| Error::io("write", to, e))?;
            return Ok(copy);
        }
        image::Sink::write_at(&mut copy, &buffer[..read], at).map_err(|e| Error::io("write", to, e))?;
        at += read as u64;
    }
}

pub(crate) fn write_text(to: &Path, name: &str, content: &impl Serialize) -> Result<()> {
    let path = to.join(name);
    let text = serde_json::to_vec(content).map_err(|e| Error::io("write", &path, std::io::Error::from(e)))?;
    files::replace(&path, &text).map_err(|e| Error::io("write", &path, e))
}

pub(crate) fn private_directory(path: &Path) -> Result<()> {
    match rustix::fs::mkdir(path, rustix::fs::Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(Error::io("create", path, e)),
    }
}

pub(crate) fn publish(partial: &Path, place: &Path, parent: &Path) -> Result<()> {
    sync_directory(partial)?;
    std::fs::rename(partial, place).map_err(|e| Error::io("rename", partial, e))?;
    sync_directory(parent)?;
    // The first one has made the directory.
    parent.parent().map_or(Ok(()), sync_directory)
}

pub(crate) fn sync_directory(path: &Path) -> Result<()> {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open(path, flags, rustix::fs::Mode::empty())
        .and_then(rustix::fs::fsync)
        .map_err(|e| Error::io("flush", path, e))
}
