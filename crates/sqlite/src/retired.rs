//! Capturing a retired generation from the descriptors that this process still has.
//!
//! While a descriptor is open, a deleted file can still be read, and never after. So a fenced handle first makes an image
//! of what it had (main file overlaid with its log) and puts it with a copy of the log below `X.statehouse/retired/`;
//! only then are the connections closed. What becomes of it there is told in [`crate::captures`] and [`crate::putback`].

use std::fs::File;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use serde::Serialize;

use crate::capture::merged::has_rows_of_its_own;
use crate::captures::{
    AGAIN, IMAGE, LOG, MANIFEST, MERGED, PROVED, TORN, WHOLE, complete, copy_file, create, directory, entries,
    forget_partial, has_successor, is_spent_in_vain, main_is_missing, private_directory, prune, prune_leftovers,
    publish, sound, sync_directory, write_text,
};
use crate::error::{Error, Result};
use crate::family::{Family, Generation, Identity, Member};
use crate::image::{self, ImageError};
use crate::index::Index;
use crate::locks;
use crate::wal::{self, ReadAt};

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

/// A new description of the file that SQLite has open, whatever its name leads to now. The lock core makes closing it harmless.
pub(crate) fn descriptor(family: &Family, member: Member, wanted: Option<Identity>) -> Result<Option<File>> {
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

impl Kept {
    /// What somebody has open who never had a connection.
    pub(crate) fn of(main: File, log: File) -> Kept {
        Kept { main, log }
    }

    /// True if the log still has every frame that a look found in it which the main file had not.
    pub(crate) fn has_all_of(&self, seen: &Index) -> Result<bool> {
        if seen.copied >= seen.frames {
            return Ok(true);
        }
        let last = wal::last_commit(&self.log).map_err(|e| Error::io("read", Path::new("-wal"), e))?;
        let salts = |commit: &wal::Commit| [commit.salts[0].to_be_bytes(), commit.salts[1].to_be_bytes()].concat();
        Ok(last.is_some_and(|last| salts(&last)[..] == seen.salts[..] && last.frames >= seen.frames.into()))
    }
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
    seen: Option<Index>,
    late: bool,
) -> Result<()> {
    write(&Source { family, generation, lost, main: &kept.main, log: &kept.log, upto: None }, seen, late)
}

/// Captures what this process had open when its generation was retired. `reader` must be a connection of that generation;
/// it is kept inside a read transaction meanwhile, so that nobody of that generation restarts the log or checkpoints past it.
///
/// Does nothing when the log is still the one that the path names: then nothing is lost with the generation. `seen` is what the
/// index said when a look of this process last found everything in its place.
pub(crate) fn capture(
    family: &Family,
    generation: Generation,
    lost: &[Member],
    reader: &Connection,
    seen: Option<Index>,
) -> Result<()> {
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
    let made = write(&Source { family, generation, lost, main: &main, log: &log, upto: None }, seen, false);
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
            let spent = |p: &PathBuf| p.join(MERGED).exists() && !has_rows_of_its_own(p);
            let evidence = complete(&parent).into_iter().filter(spent);
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

/// Leaves a copy of the log for a person where no capture could be made in time, and says where. Nothing reads it by itself, so
/// that it needs no recovery lock.
pub(crate) fn leave_log(family: &Family, generation: Generation) -> Result<PathBuf> {
    let lost = || Error::Retired { members: vec![Member::Wal] };
    let log = descriptor(family, Member::Wal, generation.wal)?.ok_or_else(lost)?;
    let parent = directory(family);
    private_directory(&parent)?;
    let (inode, born) = generation.wal.map_or((0, 0), |i| (i.inode, i.born_ns.unwrap_or(0)));
    let place = parent.join(format!("left-{inode:x}-{born:x}"));
    private_directory(&place)?;
    copy_log(family, &log, &place)?;
    sync_directory(&place)?;
    sync_directory(&parent)?;
    Ok(place)
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
    /// How many frames of the log belong to it; all if it is not said.
    upto: Option<u32>,
}

/// Captures the log to its end, and before that, where another file took the place of the main file, as of the last look that found
/// it there. Whoever opened the path since then has paired the old log with the new main file by their names, and what he committed was
/// made from that mixture: laid over the old main file it may take away what was there. What this process has acknowledged is in
/// the first of the two; and what came after it by a connection that had the old main file, in the second. Both are merged, and
/// only the second may become a main file. A checkpoint after that look has put later pages under the first: then it is no
/// database, and is not kept; whoever made that checkpoint has seen the old main file in its place.
fn write(source: &Source<'_>, seen: Option<Index>, late: bool) -> Result<()> {
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
    let id = |frames: u64| {
        let (inode, born) = (identity.inode, identity.born_ns.unwrap_or(0));
        format!("{inode:x}-{born:x}-{:08x}{:08x}-{frames}", commit.salts[0], commit.salts[1])
    };
    let salts = [commit.salts[0].to_be_bytes(), commit.salts[1].to_be_bytes()].concat();
    if let Some(seen) = seen.filter(|_| lost.contains(&Member::Main))
        && !main_is_missing(family)?
    {
        // A log that was begun anew since was in the main file up to there.
        let upto = if seen.salts[..] == salts[..] { seen.frames } else { 0 };
        if u64::from(upto) < commit.frames {
            match write_as(&Source { upto: Some(upto), ..*source }, &id(upto.into()), late) {
                Err(Error::Damaged { .. }) => {}
                written => written?,
            }
        }
    }
    write_as(source, &id(commit.frames), late)
}

fn write_as(source: &Source<'_>, id: &str, late: bool) -> Result<()> {
    let parent = directory(source.family);
    // One as of an earlier look has less than there was, and never stands for the main file.
    let main_lost = source.lost.contains(&Member::Main) && source.upto.is_none();
    let missing = main_lost && main_is_missing(source.family)?;
    let (plain, mut whole) = (parent.join(id), parent.join(format!("{id}{WHOLE}")));
    // One that has become a main file which is gone as well cannot become another, nor has anybody its rows if that file was taken
    // away before somebody opened it.
    while whole.exists() && !whole.join(IMAGE).exists() && (missing || is_spent_in_vain(&whole, source.family)) {
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

fn copy(source: &Source<'_>, to: &Path) -> Result<()> {
    let Source { family, generation, lost, main, log, upto } = *source;
    // From the copy, not from the log: a ghost may go on writing into that.
    let copy = copy_log(family, log, to)?;
    if let Some(frames) = upto {
        let io = |e| Error::io("write", &to.join(LOG), e);
        let header = wal::Header::read(&copy).map_err(io)?.filter(|_| frames > 0);
        let bytes = header.map_or(0, |header| header.frame_offset(frames.into()));
        copy.set_len(bytes).and_then(|()| copy.sync_all()).map_err(io)?;
    }
    let mut output = create(&to.join(IMAGE))?;
    let made = match image::overlay(main, &copy, &mut output) {
        Ok(image) => image,
        Err(ImageError::Io(e)) => return Err(Error::io("write", &to.join(IMAGE), e)),
        Err(e) => return Err(Error::Damaged { detail: e.to_string() }),
    };
    if upto.is_some() {
        drop(sound(&to.join(IMAGE))?);
        write_text(to, PROVED, &())?;
    }
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
    // The manifest comes last, for it says that everything else is there: also to whoever opens after a power cut, when a name
    // may be kept and content that was not flushed is not.
    output.sync_all().map_err(|e| Error::io("write", &to.join(IMAGE), e))?;
    if !lost.contains(&Member::Main) && checkpoint_was_interrupted(family, generation)? && !has_successor(to) {
        write_text(to, TORN, &generation.main)?;
    }
    write_text(to, MANIFEST, &manifest)
}

fn copy_log(family: &Family, log: &File, to: &Path) -> Result<File> {
    copy_file(log, &family.path(Member::Wal), &to.join(LOG))
}

/// True if the index of this generation says that the main file has pages of different commits (wal.c, `WalCkptInfo`): a checkpoint
/// was begun and not ended, or it ended before the end of the log because somebody read there. In the second case it has left out
/// every page that a later frame has as well, also its earlier content.
fn checkpoint_was_interrupted(family: &Family, generation: Generation) -> Result<bool> {
    const FRAMES: u64 = 16;
    const BACKFILL: u64 = 96;
    const BACKFILL_ATTEMPTED: u64 = 128;
    // Without the index nobody can say, and putting the log back is right as long as nobody has begun another.
    let Some(index) = descriptor(family, Member::Shm, generation.shm)? else { return Ok(true) };
    let word = |at| {
        let mut bytes = [0; 4];
        let read = index.read_at(&mut bytes, at).map_err(|e| Error::io("read", &family.path(Member::Shm), e))?;
        Ok::<_, Error>(if read == bytes.len() { u32::from_ne_bytes(bytes) } else { 0 })
    };
    let copied = word(BACKFILL)?;
    Ok(word(BACKFILL_ATTEMPTED)? > copied || copied > 0 && copied < word(FRAMES)?)
}
