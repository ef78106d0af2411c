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
//! header is remembered, and the sums of some pages (`known.rs`; all of a small file). When the time has changed,
//! a shorter file, another header or another page is proof; a change of mode, owner or links is none, and harmless; and
//! whatever else wrote into it is in doubt ([`Finding::Doubt`]): the handle stops, proves the whole content, and goes on or
//! not. What a checkpoint has made of it is told by the log: each page of the frames that were copied is what the log has, each
//! other one what it was. Our own processes look before and after each checkpoint that they make, and a commit that begins the
//! log anew is known to whoever made it. So a write of anybody beside a checkpoint is found by the process that made the
//! checkpoint, whatever the others have learned meanwhile; and where it is found, the mark tells all (`destroyed.rs`).
//!
//! What this cannot see:
//! * a write between the same two looks as a checkpoint *and* a new beginning of the log by others (the log no longer tells
//!   what was copied), or as a checkpoint of more frames than are read (`known.rs`), if what is there then has the header of
//!   this database and the page that was copied last;
//! * an older copy of a large database between the same two looks as a checkpoint, that has the same header, the same sums of the
//!   remembered pages and every page that was copied;
//! * garbage in the middle of the log, or in the index behind its head, until SQLite stumbles over it;
//! * a log that was cut off and that a stranger has written beyond its end since, both between two looks;
//! * while a checkpoint was broken off and nobody has ended it, and before the first one after an index was rebuilt: an older
//!   copy of the same database with the same header;
//! * any change in the moment between the last look and the write of a commit. The frames of a commit are read back for that
//!   before it is acknowledged, with the one before them (`written.rs`): a log that was cut off and grew again shows only there.
//!
//! What is not seen is not lost in silence for that: until the main file has a commit the process that made it remembers
//! what it wrote (`remembered.rs`), and the looks that follow are made at what is there then.
//!
//! A full proof would read all of it, and so does `statehouse verify`.

use std::time::Duration;

use crate::error::{Destruction, Error};
use crate::family::{Family, Generation, Member, Status};
use crate::index::{Index, REGION_BYTES};
use crate::known::{Known, Stamps};
use crate::locks::OpenFile;
use crate::wal::{HEADER_BYTES, Header, ReadAt};

/// How often what looks wrong is looked at again before it is believed.
const LOOKS: usize = 2;

/// The pause before each.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

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
    pub(crate) size: u64,
    pub(crate) modified_ns: i64,
    pub(crate) changed_ns: i64,
}

impl Stamp {
    pub(crate) fn of(status: &Status) -> Stamp {
        Stamp { size: status.size, modified_ns: status.modified_ns, changed_ns: status.changed_ns }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// What was found, once it was.
    pub(crate) verdict: Option<Error>,
    pub(crate) index: Option<Index>,
    /// The index file when it was found whole.
    pub(crate) whole: Option<Stamp>,
    /// How often locks that were gone were taken again.
    pub(crate) retaken: u64,
    /// The main file when it was looked at last.
    pub(crate) main: Option<Known>,
    /// The main file when it was last known for certain, with no checkpoint on its way.
    pub(crate) base: Option<Known>,
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
    pub(crate) fn finds_nothing(&self, seen: &mut Seen, look: &Look, believed: Stamps) -> bool {
        if self.index_and_log(seen, look).is_some() {
            return false;
        }
        let Some(index) = look.index else { return true };
        seen.index = Some(index);
        match &seen.main {
            Some(known) if known.still_is(&Stamp::of(&look.main), &index, believed) => true,
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
        let untouched = seen.main.as_ref().is_some_and(|known| known.is_as_last_seen(&Stamp::of(&main), &index));
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
}
