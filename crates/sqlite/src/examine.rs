//! What is looked at to tell whether a file of a database was destroyed in place, and why no other process can make it look so.
//!
//! Whatever looks wrong is looked at again, after a pause and in an order in which no commit, checkpoint, restart or rebuilding
//! by anybody explains it, before it is called destroyed. There is no false alarm: a house that stops for nothing is no better
//! than one that goes on over rubble.
//!
//! **The index** is mapped in pieces of 32 KiB and never shrinks while its lock is held. A shorter one was cut off. One that was
//! made longer again since has a new time of change, and then every frame is looked up in it.
//!
//! **The log.** Its restarts change the salts in the index first, to a pair that never comes back, and its commits are in the
//! file before the index speaks of them. So between two looks at the index with the same salts, the log is at least as long as
//! the first one says and carries these salts in its header; and the number of its frames never falls.
//!
//! **The main file** is written by checkpoints only. A checkpoint holds a lock, says in the index how far it will go before its
//! first write (`nBackfillAttempted`) and how far it is after its last (`nBackfill`). While the index says that nobody
//! checkpointed, and nobody holds that lock, the time of the last change stays as it is, and so does the content. Of it the
//! header is remembered, and the sum of what lies at both ends of the file (all of a small one). When the time has changed,
//! a shorter file, another header or another sum is proof; a change of mode, owner or links is none, and harmless; and
//! whatever else wrote into it is in doubt ([`Finding::Doubt`]): the handle stops, proves the whole content, and goes on or
//! not. Whatever a checkpoint writes, the file begins as a database of this page size, and the page that was copied last is
//! what the log has.
//!
//! What this cannot see:
//! * a stranger's write between the same two looks as a checkpoint, if what is there then passes for what a checkpoint leaves;
//! * an older copy of a large database that has the same header and differs in its middle only;
//! * garbage in the middle of the log, or in the index behind its head, until SQLite stumbles over it;
//! * a log that was cut off and that a stranger has written beyond its end since, both between two looks;
//! * while a checkpoint was broken off and nobody has ended it, and before the first one after an index was rebuilt: an older
//!   copy of the same database with the same header;
//! * any change in the moment between the last look and the write of a commit. Then the commit is not acknowledged.
//!
//! A full proof would read all of it, and so does `statehouse verify`.

use std::hash::{DefaultHasher, Hasher};
use std::time::Duration;

use crate::error::{Destruction, Error};
use crate::family::{Family, Generation, Member, Status};
use crate::headers::{MAIN_HEADER_BYTES, MainHeader};
use crate::index::{Checkpoint, Index, REGION_BYTES};
use crate::locks::{self, OpenFile};
use crate::ofd::WAL_CHECKPOINT;
use crate::wal::{FRAME_HEADER_BYTES, Frames, HEADER_BYTES, Header, ReadAt, frame_offset, word};

/// How often what looks wrong is looked at again before it is believed.
const LOOKS: usize = 2;

/// The pause before each.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

/// How much of each end of the main file is remembered by its sum.
const END_BYTES: u64 = 32 * 1024;

/// How often a look that others interfered with is made anew.
pub(crate) const TRIES: usize = 100;

/// What was found.
#[derive(Debug)]
pub(crate) enum Finding {
    Destroyed(Member, String),
    /// Another process of ours had the index made anew: what this one has read by the old one is worth nothing.
    MadeAnew,
    Doubt,
}

/// What the files say at one moment.
#[derive(Clone, Copy)]
pub(crate) struct Look {
    /// Read before the rest.
    index: Option<Index>,
    main: Status,
    wal: Status,
    shm: Status,
}

impl Look {
    /// Looks at a generation; `None` when its paths name something else or the index cannot be read.
    fn take(family: &Family, generation: &Generation) -> Option<Look> {
        let index = OpenFile(generation.shm?);
        Look::with(Index::read(&index).ok()?, family.statuses().ok()?, generation)
    }

    /// The same from what was looked at already.
    pub(crate) fn with(index: Option<Index>, [main, wal, shm]: [Option<Status>; 3], of: &Generation) -> Option<Look> {
        let look = Look { index, main: main?, wal: wal?, shm: shm? };
        let now =
            Generation { main: Some(look.main.identity), wal: Some(look.wal.identity), shm: Some(look.shm.identity) };
        (now == *of).then_some(look)
    }
}

/// What changes with every write, and with nothing else that matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    size: u64,
    modified_ns: i64,
    changed_ns: i64,
}

impl Stamp {
    fn of(status: &Status) -> Stamp {
        Stamp { size: status.size, modified_ns: status.modified_ns, changed_ns: status.changed_ns }
    }
}

/// What is known of the main file.
#[derive(Debug)]
struct Known {
    stamp: Stamp,
    checkpoint: Checkpoint,
    /// No checkpoint was on its way or broken off.
    settled: bool,
    /// Nobody held the lock of a checkpoint.
    unlocked: bool,
    header: [u8; MAIN_HEADER_BYTES],
    /// The sum of both ends of the file.
    sum: Option<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// What was found, once it was.
    pub(crate) verdict: Option<Error>,
    pub(crate) index: Option<Index>,
    /// The index file when it was found whole.
    pub(crate) whole: Option<Stamp>,
    main: Option<Known>,
}

pub(crate) struct Examiner<'a> {
    pub(crate) family: &'a Family,
    pub(crate) generation: &'a Generation,
}

impl Examiner<'_> {
    pub(crate) fn file(&self, member: Member) -> Option<OpenFile> {
        self.generation.get(member).map(OpenFile)
    }

    pub(crate) fn index(&self) -> Option<Index> {
        Index::read(&self.file(Member::Shm)?).ok()?
    }

    pub(crate) fn destroyed(&self, seen: &Seen, member: Member, what: String) -> Error {
        let index = seen.index;
        Error::Destroyed(Box::new(Destruction {
            member,
            path: self.family.path(member),
            what,
            frames: index.map(|i| i.frames),
            copied: index.map(|i| i.copied),
        }))
    }

    /// The look that is made every time; false if something is to be looked at again.
    pub(crate) fn finds_nothing(&self, seen: &mut Seen, look: &Look) -> bool {
        if self.index_and_log(seen, look).is_some() {
            return false;
        }
        let Some(index) = look.index else { return true };
        seen.index = Some(index);
        match &seen.main {
            Some(known) if known.stamp == Stamp::of(&look.main) && known.checkpoint == index.checkpoint() => true,
            _ => self.main(seen).is_none(),
        }
    }

    /// The looks that decide.
    pub(crate) fn look_again(&self, seen: &mut Seen) -> Option<Finding> {
        let mut finding = None;
        let mut looks = 0;
        for _ in 0..TRIES {
            std::thread::sleep(PAUSE);
            let look = Look::take(self.family, self.generation)?;
            finding = self.index_and_log(seen, &look);
            if finding.is_some() {
                // Between two heads with the same salts nobody has begun the log anew.
                let after = self.index();
                if look.index.map(|i| i.salts) != after.map(|i| i.salts) {
                    continue;
                }
                // What others have committed since this process looked last is lost as well, and is counted.
                seen.index = after.or(seen.index);
            } else {
                seen.index = look.index.or(seen.index);
                finding = self.main(seen);
            }
            looks += 1;
            if finding.is_none() || looks == LOOKS {
                break;
            }
        }
        finding
    }

    /// The log, if it lacks what the last look found in it alone though nobody has copied anything since: the main file is as that
    /// look found it. What was committed between that look and the destruction is not known.
    pub(crate) fn log_went_with_the_index(&self, seen: &Seen) -> Option<Error> {
        let index = seen.index.filter(|index| index.copied < index.frames)?;
        let [main, wal, _] = self.family.statuses().ok()?;
        let (main, wal) = (main?, wal?);
        let named = (Some(main.identity), Some(wal.identity)) == (self.generation.main, self.generation.wal);
        let untouched = seen
            .main
            .as_ref()
            .is_some_and(|known| known.stamp == Stamp::of(&main) && known.checkpoint == index.checkpoint());
        let mut header = [0; HEADER_BYTES as usize];
        let whole = wal.size >= index.log_bytes()
            && self.file(Member::Wal)?.fill_at(&mut header, 0).ok()?
            && header[16..24] == index.salts;
        if !named || !untouched || whole {
            return None;
        }
        let (now, was) = (wal.size, index.log_bytes());
        let what = format!("destroyed together with its index by another program: it has {now} bytes and had {was}");
        match self.destroyed(seen, Member::Wal, what) {
            Error::Destroyed(d) => Some(Error::Destroyed(Box::new(Destruction { frames: None, copied: None, ..*d }))),
            other => Some(other),
        }
    }

    /// See [`crate::content::Content::index_survived`].
    pub(crate) fn index_survived(&self, before: Option<Stamp>, idle: bool) -> bool {
        for _ in 0..TRIES {
            let Some(look) = Look::take(self.family, self.generation) else { return false };
            if before == Some(Stamp::of(&look.shm)) {
                return true;
            }
            if !idle {
                return false;
            }
            if let (Some(index), Some(file)) = (look.index, self.file(Member::Shm)) {
                return index.is_whole(&file).unwrap_or(false);
            }
            // Somebody writes its head at this moment.
            std::thread::sleep(PAUSE);
        }
        false
    }

    /// What is wrong with index and log, if nobody has begun the log anew meanwhile.
    fn index_and_log(&self, seen: &mut Seen, look: &Look) -> Option<Finding> {
        let found = |member, what: String| Some(Finding::Destroyed(member, what));
        if look.shm.size < REGION_BYTES {
            return found(Member::Shm, format!("cut off to {} bytes by another program", look.shm.size));
        }
        if look.main.size == 0 {
            return found(Member::Main, "emptied by another program".into());
        }
        let index = look.index?;
        if seen.index.is_some_and(|before| before.making != index.making) {
            return Some(Finding::MadeAnew);
        }
        if look.shm.size < index.bytes() {
            return found(Member::Shm, format!("cut off to {} bytes by another program", look.shm.size));
        }
        // Shared memory is written without a trace in these times, but for once in a while; a change of length leaves one.
        let stamp = Stamp::of(&look.shm);
        if seen.whole != Some(stamp) {
            if !index.is_whole(&self.file(Member::Shm)?).ok()? {
                return found(Member::Shm, "cut off by another program and made longer again".into());
            }
            seen.whole = Some(stamp);
        }
        if index.frames > 0 && look.wal.size < index.log_bytes() {
            let (now, was) = (look.wal.size, index.log_bytes());
            return found(Member::Wal, format!("cut off to {now} bytes by another program while {was} were in use"));
        }
        if index.frames > 0 {
            let mut bytes = [0; HEADER_BYTES as usize];
            // A log that cannot be read is not proved to be destroyed; SQLite will say the same.
            if self.file(Member::Wal)?.fill_at(&mut bytes, 0).ok()? {
                let header = Header::parse(&bytes);
                if header.is_none() || bytes[16..24] != index.salts {
                    return found(Member::Wal, "overwritten by another program".into());
                }
            }
        }
        match seen.index {
            Some(before) if before.salts == index.salts && before.frames > index.frames => {
                let lost = before.frames - index.frames;
                found(Member::Wal, format!("overwritten by another program: {lost} of its frames are gone"))
            }
            _ => None,
        }
    }

    /// Looks at the main file after its time, or the checkpoint, has changed.
    fn main(&self, seen: &mut Seen) -> Option<Finding> {
        let found = |what: String| Some(Finding::Destroyed(Member::Main, what));
        let file = self.file(Member::Main)?;
        let index = self.index()?;
        let unlocked = !self.checkpointing();
        let status = Status::of(&self.family.main()).ok()??;
        if status.identity != file.0 {
            return None;
        }
        let mut header = [0; MAIN_HEADER_BYTES];
        let whole = file.fill_at(&mut header, 0).ok()?;
        let own_size = index.page_size != 0;
        if !whole || MainHeader::parse(&header).is_none_or(|h| own_size && h.page_size != index.page_size) {
            return found("overwritten by another program: it does not begin as this database does".into());
        }
        let stamp = Stamp::of(&status);
        let settled = unlocked && index.quiet().is_some();
        let sum = if settled { sum_of_ends(&file, stamp.size) } else { None };
        // Nobody has checkpointed up to here, if not up to the end.
        let still = self.index().is_some_and(|i| i.checkpoint() == index.checkpoint());
        if !still {
            seen.main = None;
            return None;
        }
        match &mut seen.main {
            Some(k) if k.checkpoint == index.checkpoint() && k.unlocked && unlocked && !self.checkpointing() => {
                if k.settled {
                    if stamp.size < k.stamp.size {
                        return found(format!(
                            "cut off by another program to {} bytes from {}",
                            stamp.size, k.stamp.size
                        ));
                    }
                    if header != k.header || (sum != k.sum && sum.is_some() && k.sum.is_some()) {
                        return found("overwritten by another program".into());
                    }
                    if (stamp.size, stamp.modified_ns) != (k.stamp.size, k.stamp.modified_ns) {
                        return Some(Finding::Doubt);
                    }
                    // Mode, owner or links have changed.
                    k.stamp = stamp;
                    return None;
                }
                // A checkpoint that broke off again has written page 1 from the log or not at all.
                if header != k.header && !self.log_has_header(&header, &index)? {
                    return found("overwritten by another program".into());
                }
                k.stamp = stamp;
                k.header = header;
                None
            }
            _ => self.learn(
                seen,
                &index,
                Known { stamp, checkpoint: index.checkpoint(), settled, unlocked, header, sum },
            ),
        }
    }

    /// Takes what is there for what a checkpoint has left, if the log does not say otherwise.
    fn learn(&self, seen: &mut Seen, index: &Index, known: Known) -> Option<Finding> {
        let copied = !known.settled || self.has_last_copied(index);
        if self.index().is_none_or(|i| i.checkpoint() != index.checkpoint()) {
            seen.main = None;
            return None;
        }
        if !copied {
            let what = "overwritten by another program: the page that was copied into it last is not there".into();
            return Some(Finding::Destroyed(Member::Main, what));
        }
        seen.main = Some(known);
        None
    }

    /// False if the main file proves not to have what was copied into it last.
    fn has_last_copied(&self, index: &Index) -> bool {
        let (Some(main), Some(log)) = (self.file(Member::Main), self.file(Member::Wal)) else { return true };
        // With later frames there may be one of the same page; then the earlier one was left out.
        if index.copied == 0 || index.copied != index.frames {
            return true;
        }
        let size = index.page_size;
        let mut bytes = vec![0; FRAME_HEADER_BYTES as usize + size as usize];
        let read = log.fill_at(&mut bytes, frame_offset(size, u64::from(index.copied) - 1)).unwrap_or(false);
        let number = word(&bytes, 0);
        if !read || bytes[8..16] != index.salts || number == 0 || number > index.pages {
            return true;
        }
        hash(&main, number, size).is_none_or(|h| h == hash_of(&bytes[FRAME_HEADER_BYTES as usize..]))
    }

    /// True if somebody holds the lock of a checkpoint, or that cannot be found out.
    fn checkpointing(&self) -> bool {
        let start = WAL_CHECKPOINT.start;
        self.generation.shm.is_none_or(|shm| locks::locked_by_anybody(shm, start, start + WAL_CHECKPOINT.length))
    }

    /// True if the log carries a page 1 that begins like this; `None` if it was begun anew meanwhile.
    fn log_has_header(&self, wanted: &[u8; MAIN_HEADER_BYTES], index: &Index) -> Option<bool> {
        let log = self.file(Member::Wal)?;
        let mut frames = Frames::new(&log, Header::read(&log).ok()??);
        let mut has = false;
        while let Some(frame) = frames.next().ok()? {
            has |= frame.page == 1 && frames.page()[..MAIN_HEADER_BYTES] == *wanted;
        }
        (self.index()?.salts == index.salts).then_some(has)
    }
}

/// A sum of the first and the last part of a file; `None` if it cannot be read.
fn sum_of_ends(file: &OpenFile, size: u64) -> Option<u64> {
    let first = size.min(END_BYTES);
    let last = (size - first).min(END_BYTES);
    let mut bytes = vec![0; usize::try_from(first + last).ok()?];
    let (start, end) = bytes.split_at_mut(usize::try_from(first).ok()?);
    let read = file.fill_at(start, 0).ok()? && file.fill_at(end, size - last).ok()?;
    read.then(|| hash_of(&bytes))
}

pub(crate) fn hash(main: &OpenFile, number: u32, size: u32) -> Option<u64> {
    let mut bytes = vec![0; size as usize];
    let read = main.fill_at(&mut bytes, u64::from(number.checked_sub(1)?) * u64::from(size)).ok()?;
    read.then(|| hash_of(&bytes))
}

pub(crate) fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}
