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

use crate::error::{Error, Failure, Reason, Result};
use crate::family::{Family, Generation, Identity, Member, Status};
use crate::image::{self, ImageError};
use crate::secure::{self, Purpose};
use crate::wal::{self, ReadAt};
use crate::{connect, files, headers, locks};

pub(crate) const MERGED: &str = "merged";
pub(crate) const UNREADABLE: &str = "unreadable";
pub(crate) const IMAGE: &str = "main.captured";
const LOG: &str = "wal.captured";
/// In a capture whose main file was left between two commits; says which main file that is.
const TORN: &str = "torn";
/// In a capture after which another generation has begun.
pub(crate) const SUCCEEDED: &str = "succeeded";
const MANIFEST: &str = "manifest.json";

/// Ends the name of a capture that was made when the main file was gone from its path, too.
const WHOLE: &str = "-whole";
/// Is added to the name of such a capture when the one before it has become a main file and is gone as well.
const AGAIN: &str = "-again";

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

/// The main file and the log that a process had open, kept readable while its connections are closed.
#[derive(Debug)]
pub(crate) struct Kept {
    main: File,
    log: File,
}

/// Keeps the files of a generation whose log its path still names, for somebody may remove it while the handle opens again.
pub(crate) fn keep(family: &Family, generation: Generation) -> Result<Option<Kept>> {
    let main = descriptor(family, Member::Main, generation.main)?;
    let log = descriptor(family, Member::Wal, generation.wal)?;
    Ok(main.zip(log).map(|(main, log)| Kept { main, log }))
}

/// As [`capture`], from what was kept. With `late`, and the main file missing, also if another generation has begun after
/// this one: whoever has that one had the time to say so.
pub(crate) fn capture_kept(
    family: &Family,
    generation: Generation,
    lost: &[Member],
    kept: &Kept,
    late: bool,
) -> Result<()> {
    write(&Source { family, generation, lost, main: &kept.main, log: &kept.log }, late)
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
    let made = write(&Source { family, generation, lost, main: &main, log: &log }, false);
    if pinned {
        let _ = reader.execute_batch("ROLLBACK");
    }
    made
}

/// Runs a capture that found no room a second time after everything was removed that is only kept as evidence.
pub(crate) fn make_room(family: &Family, capture: impl Fn() -> Result<()>) -> Result<()> {
    match capture() {
        Err(Error::Full) => {
            let parent = directory(family);
            forget_partial(&parent);
            let evidence = complete(&parent).into_iter().filter(|p| p.join(MERGED).exists());
            evidence.for_each(|old| drop(std::fs::remove_dir_all(old)));
            entries(&parent, |name| name.ends_with(".moved")).iter().for_each(|old| drop(std::fs::remove_file(old)));
            capture()
        }
        done => done,
    }
}

/// Keeps the log alone, where there is no room for an image: beside the main file that it belongs to nothing else is needed,
/// so the next opener puts it back at its path.
///
/// # Errors
/// [`Error::Retired`] when the main file is gone as well; the system's answer.
pub(crate) fn keep_log(family: &Family, generation: Generation, lost: &[Member]) -> Result<()> {
    let log = descriptor(family, Member::Wal, generation.wal)?;
    let Some(log) = log.filter(|_| !lost.contains(&Member::Main)) else {
        return Err(Error::Retired { members: lost.to_vec() });
    };
    let parent = directory(family);
    private_directory(&parent)?;
    forget_partial(&parent);
    let identity = generation.wal.map_or((0, 0), |i| (i.inode, i.born_ns.unwrap_or(0)));
    let id = format!("{:x}-{:x}-log", identity.0, identity.1);
    let (partial, place) = (parent.join(format!("{id}.partial.{}", std::process::id())), parent.join(id));
    if has_successor(&place) {
        // Another process of ours had the same log and has taken over what is in it.
        return Ok(());
    }
    private_directory(&partial)?;
    let kept = copy_log(family, &log, &partial)
        .and_then(|_| write_text(&partial, TORN, &generation.main))
        .and_then(|()| write_text(&partial, MANIFEST, &serde_json::json!({ "version": 1, "generation": generation })))
        .and_then(|()| publish(&partial, &place, &parent));
    if kept.is_err() {
        let _ = std::fs::remove_dir_all(&partial);
    }
    kept
}

/// How many transactions the log of this generation holds, if closing it, or its main file, destroys anything.
pub(crate) fn nameless_transactions(family: &Family, generation: Generation, lost: &[Member]) -> Option<u64> {
    let nameless = |file: &File| rustix::fs::fstat(file).is_ok_and(|s| s.st_nlink == 0);
    let open = |member| descriptor(family, member, generation.get(member)).ok().flatten();
    let main_is_lost = lost.contains(&Member::Main) && open(Member::Main).is_some_and(|f| nameless(&f));
    let log = open(Member::Wal).filter(nameless);
    let transactions = log.and_then(|log| count_transactions(&log).ok()).unwrap_or(0);
    (main_is_lost || transactions > 0).then_some(transactions)
}

fn count_transactions(log: &File) -> std::io::Result<u64> {
    let Some(header) = wal::Header::read(log)? else { return Ok(0) };
    let mut frames = wal::Frames::new(log, header);
    let mut count = 0;
    while let Some(frame) = frames.next()? {
        count += u64::from(frame.commit != 0);
    }
    Ok(count)
}

/// What a capture is made of.
struct Source<'a> {
    family: &'a Family,
    generation: Generation,
    lost: &'a [Member],
    main: &'a File,
    log: &'a File,
}

fn write(source: &Source<'_>, late: bool) -> Result<()> {
    let Source { family, generation, lost, log, .. } = *source;
    let identity = generation.wal.unwrap_or(Identity { device: 0, inode: 0, born_ns: None });
    let Some(commit) = wal::last_commit(log).map_err(|e| Error::io("read", &family.path(Member::Wal), e))? else {
        if !lost.contains(&Member::Main) {
            // An empty log: everything is in the main file, which the path still names.
            return Ok(());
        }
        let id = format!("{:x}-{:x}-empty", identity.inode, identity.born_ns.unwrap_or(0));
        return write_as(source, &id, late);
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
    write_as(source, &id, late)
}

fn write_as(source: &Source<'_>, id: &str, late: bool) -> Result<()> {
    let parent = directory(source.family);
    let main_lost = source.lost.contains(&Member::Main);
    let missing = main_lost && main_is_missing(source.family)?;
    let (plain, mut whole) = (parent.join(id), parent.join(format!("{id}{WHOLE}")));
    // One that has become a main file which is gone as well cannot become another.
    while missing && whole.exists() && !whole.join(IMAGE).exists() {
        whole.as_mut_os_string().push(AGAIN);
    }
    // One that was made while the main file was in its place does not stand for that. And whoever went on from this log has
    // more than this process.
    if whole.exists() || plain.exists() && !missing || missing && !late && has_successor(&whole) {
        return Ok(());
    }
    let place = if main_lost { whole } else { plain };
    private_directory(&parent)?;
    forget_partial(&parent);
    let mut partial = place.clone();
    partial.as_mut_os_string().push(format!(".partial.{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&partial);
    private_directory(&partial)?;
    let copied = copy(source, &partial);
    if let Err(e) = copied.and_then(|()| publish(&partial, &place, &parent)) {
        let _ = std::fs::remove_dir_all(&partial);
        return Err(e);
    }
    prune(&parent);
    prune_leftovers(&parent);
    Ok(())
}

/// The recovery lock is held, so whoever began these does not live any more.
fn forget_partial(parent: &Path) {
    for abandoned in entries(parent, |name| name.contains(".partial.")) {
        let _ = std::fs::remove_dir_all(abandoned);
    }
}

fn copy(source: &Source<'_>, to: &Path) -> Result<()> {
    let Source { family, generation, lost, main, log } = *source;
    // From the copy, not from the log: a ghost may go on writing into that.
    let copy = copy_log(family, log, to)?;
    let mut output = create(&to.join(IMAGE))?;
    let made = match image::overlay(main, &copy, &mut output) {
        Ok(image) => image,
        Err(ImageError::Io(e)) => return Err(Error::io("write", &to.join(IMAGE), e)),
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
    write_text(to, MANIFEST, &manifest)?;
    output.sync_all().map_err(|e| Error::io("write", to, e))?;
    if !lost.contains(&Member::Main) && checkpoint_was_interrupted(family, generation)? && !has_successor(to) {
        write_text(to, TORN, &generation.main)?;
    }
    Ok(())
}

fn create(path: &Path) -> Result<File> {
    files::open_private(path).map_err(|e| Error::io("create", path, e))
}

fn copy_log(family: &Family, log: &File, to: &Path) -> Result<File> {
    let path = to.join(LOG);
    let mut copy = create(&path)?;
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        let read = log.read_at(&mut buffer, at).map_err(|e| Error::io("read", &family.path(Member::Wal), e))?;
        if read == 0 {
            copy.sync_all().map_err(|e| Error::io("write", &path, e))?;
            return Ok(copy);
        }
        image::Sink::write_at(&mut copy, &buffer[..read], at).map_err(|e| Error::io("write", &path, e))?;
        at += read as u64;
    }
}

fn write_text(to: &Path, name: &str, content: &impl Serialize) -> Result<()> {
    let path = to.join(name);
    let text = serde_json::to_vec(content).map_err(|e| Error::io("write", &path, std::io::Error::from(e)))?;
    files::replace(&path, &text).map_err(|e| Error::io("write", &path, e))
}

/// True if the index of this generation says that a checkpoint was begun and not ended (wal.c, `WalCkptInfo`).
fn checkpoint_was_interrupted(family: &Family, generation: Generation) -> Result<bool> {
    const BACKFILL: u64 = 96;
    const BACKFILL_ATTEMPTED: u64 = 128;
    // Without the index nobody can say, and putting the log back is right as long as nobody has begun another.
    let Some(index) = descriptor(family, Member::Shm, generation.shm)? else { return Ok(true) };
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
    if let Some(torn) = open.iter().rev().find(|p| p.join(TORN).exists())
        && !put_back(family, torn, &parent)?
        && !torn.join(IMAGE).exists()
    {
        // The log alone was kept, and now that another was begun there is nothing that could be merged by itself.
        mark(torn, UNREADABLE)?;
    }
    for place in open {
        mark(&place, SUCCEEDED)?;
    }
    Ok(())
}

/// Writes one of the marks of a capture.
pub(crate) fn mark(place: &Path, mark: &str) -> Result<()> {
    let path = place.join(mark);
    files::open_private(&path).and_then(|f| f.sync_all()).map_err(|e| Error::io("create", &path, e))
}

/// The newest capture of which a missing main file can be made again. `considerate` leaves out those after whose log
/// another one was begun.
pub(crate) fn of_missing_main(family: &Family, considerate: bool) -> Option<PathBuf> {
    let whole = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().contains(WHOLE));
    unmerged(family)
        .into_iter()
        .filter(|p| whole(p) && !(considerate && has_successor(p)) && !p.join(SUCCEEDED).exists())
        .max_by_key(|p| captured_at(p))
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

fn captured_at(place: &Path) -> u64 {
    let text = files::read_to_string(&place.join(MANIFEST), 1 << 20).unwrap_or_default();
    let manifest: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    manifest["captured_at_unix_us"].as_u64().unwrap_or(0)
}

/// True if it was put back; false if something else has begun there.
fn put_back(family: &Family, place: &Path, parent: &Path) -> Result<bool> {
    let marked = place.join(TORN);
    let text = files::read_to_string(&marked, 4096).map_err(|e| Error::io("read", &marked, e))?;
    let now = family.generation().map_err(|e| Error::io("look at", &family.main(), e))?;
    let same = serde_json::to_string(&now.main).is_ok_and(|now| now == text);
    if now.main.is_none() || !same || now.wal.is_some() {
        // Another main file, or somebody has begun a log of their own: this log does not belong there any more.
        return Ok(false);
    }
    let new = parent.join("log.new");
    let log = family.path(Member::Wal);
    let mut from = files::open(&place.join(LOG)).map_err(|e| Error::io("read", &place.join(LOG), e))?;
    let mut to = files::open_private(&new).map_err(|e| Error::io("create", &new, e))?;
    let copied = to.set_len(0).and_then(|()| std::io::copy(&mut from, &mut to)).and_then(|_| to.sync_all());
    copied.map_err(|e| Error::io("write", &new, e))?;
    let cwd = rustix::fs::CWD;
    match rustix::fs::renameat_with(cwd, &new, cwd, &log, rustix::fs::RenameFlags::NOREPLACE) {
        Ok(()) => sync_directory(family.directory()).map(|()| true),
        Err(rustix::io::Errno::EXIST) => Ok(false),
        Err(e) => Err(Error::io("put back", &log, e)),
    }
}

fn private_directory(path: &Path) -> Result<()> {
    match rustix::fs::mkdir(path, rustix::fs::Mode::RWXU) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(e) => Err(Error::io("create", path, e)),
    }
}

fn publish(partial: &Path, place: &Path, parent: &Path) -> Result<()> {
    sync_directory(partial)?;
    std::fs::rename(partial, place).map_err(|e| Error::io("rename", partial, e))?;
    sync_directory(parent)
}

pub(crate) fn sync_directory(path: &Path) -> Result<()> {
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
    // One whose image is gone without a mark has become a main file, and whoever made it so did not live to mark it.
    let open = |p: &PathBuf| p.join(IMAGE).exists() && !p.join(MERGED).exists() && !p.join(UNREADABLE).exists();
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
        self::mark(&place, mark)?;
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
    let image = sound(path)?;
    live.execute_batch("BEGIN IMMEDIATE")?;
    let done = merge(live, &image).map_err(Error::from).and_then(|n| Ok(live.execute_batch("COMMIT").map(|()| n)?));
    if done.is_err() && !live.is_autocommit() {
        let _ = live.execute_batch("ROLLBACK");
    }
    done
}

/// Opens an image that SQLite finds whole.
pub(crate) fn sound(image: &Path) -> Result<Connection> {
    let image = connect::immutable(image)?;
    let verdict: String = image.query_row("PRAGMA quick_check(1)", [], |r| r.get(0))?;
    if verdict == "ok" { Ok(image) } else { Err(Error::Damaged { detail: verdict }) }
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

pub(crate) fn move_member(family: &Family, member: Member, inode: u64) -> Result<()> {
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
