//! What one handle knows of the main file, and what a checkpoint must have made of it.
//!
//! While nobody checkpoints, the file stays as it is. When somebody has, whoever it was, the log still says what was written:
//! the pages of the frames that were copied, and nothing else. So what is there after a checkpoint is not taken for granted but
//! foretold from what was known before it. Each page that was copied must be what the log has, and each of the remembered
//! pages that was not copied must be what it was. Only where the log was begun anew between two looks nothing can be foretold;
//! our own processes look after each of their checkpoints, which is before that.
//!
//! Two things would make a file look known that is not. *A look during a checkpoint* proves nothing of what lies there after it:
//! such a look is repeated until nobody has the lock. *A stamp of the present moment*: the clock of a file system moves in
//! steps of some milliseconds, and a second write in the same step leaves the stamp as it is. So a stamp counts only once
//! that clock has gone on, and until then the content is looked at before anybody is answered.

use std::collections::BTreeMap;

use crate::examine::{Examiner, Finding, Seen, Stamp};
use crate::family::{Member, Status};
use crate::headers::{MAIN_HEADER_BYTES, MainHeader};
use crate::index::{Checkpoint, Index};
use crate::locks::{self, OpenFile};
use crate::ofd::WAL_CHECKPOINT;
use crate::sums::{sum_of, sums};
use crate::wal::{FRAME_HEADER_BYTES, Frames, Header, Piece, ReadAt, frame_offset, word};

/// How many pages at each end of the main file are remembered by their sums, and how many spread over what lies between.
const AT_EACH_END: u64 = 8;
const BETWEEN: u64 = 16;

/// The most frames of which it is foretold what a checkpoint has made. Reading more would keep a commit waiting.
const MOST_FRAMES: u32 = 8192;

/// When the stamp of a file is believed to tell that nobody has written into it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stamps {
    /// Once any later write would have left another one.
    OnceOld,
    /// Before that, too: the next look does not, and comes before anybody is answered.
    Always,
}

/// The main file as it was when somebody looked.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    stamp: Stamp,
    /// The stamp is old enough that any later write leaves another.
    certain: bool,
    checkpoint: Checkpoint,
    /// No checkpoint was on its way or broken off.
    settled: bool,
    /// Nobody held the lock of a checkpoint.
    unlocked: bool,
    header: [u8; MAIN_HEADER_BYTES],
    page_size: u32,
    /// Some pages and their sums; none if a checkpoint was on its way.
    pages: Vec<(u32, u64)>,
}

impl Known {
    /// True if a file with this stamp is what is known, and need not be looked at.
    pub(crate) fn still_is(&self, stamp: &Stamp, index: &Index, believed: Stamps) -> bool {
        (self.certain || believed == Stamps::Always) && self.unlocked && self.is_as_last_seen(stamp, index)
    }

    /// True if the file has the stamp of the last look, and nobody has checkpointed since.
    pub(crate) fn is_as_last_seen(&self, stamp: &Stamp, index: &Index) -> bool {
        self.stamp == *stamp && self.checkpoint == index.checkpoint()
    }

    /// Takes note that a commit of this process has begun the log anew, as the index says after it, when all of it was in the main
    /// file, as the index said `before` while this process had the lock of a writer: nothing was copied in between.
    pub(crate) fn goes_on_in(&mut self, before: &Index, after: &Index) {
        if self.checkpoint == before.checkpoint() && before.copied == before.frames && before.salts != after.salts {
            self.checkpoint = Checkpoint { salts: after.salts, copied: 0, attempted: 0 };
        }
    }

    /// True if every remembered page is what it was, as far as it can be read.
    fn has_its_pages(&self, file: &OpenFile, but: impl Fn(u32) -> bool) -> bool {
        let (pages, were): (Vec<u32>, Vec<u64>) = self.pages.iter().copied().filter(|(page, _)| !but(*page)).unzip();
        let are = sums(file, self.page_size, &pages);
        are.iter().all(|(page, is)| pages.binary_search(page).is_ok_and(|at| were[at] == *is))
    }
}

impl Examiner<'_> {
    /// Looks at the main file after its time, or the checkpoint, has changed.
    pub(crate) fn main(&self, seen: &mut Seen) -> Option<Finding> {
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
        let parsed = MainHeader::parse(&header);
        if !whole || parsed.as_ref().is_none_or(|h| own_size && h.page_size != index.page_size) {
            return found("overwritten by another program: it does not begin as this database does".into());
        }
        let page_size = parsed.map_or(0, |h| h.page_size);
        let stamp = Stamp::of(&status);
        let settled = unlocked && index.quiet().is_some();
        let pages = if settled { remembered(&file, stamp.size, page_size) } else { Vec::new() };
        let certain = is_old(&stamp);
        let checkpoint = index.checkpoint();
        let now = Known { stamp, certain, checkpoint, settled, unlocked, header, page_size, pages };
        let same = |before: &&Known| before.checkpoint == checkpoint && before.unlocked && unlocked;
        let known = [&seen.main, &seen.base].into_iter().flatten().find(same);
        let compared = match known {
            Some(before) => self.compare(before, &now, &index, &file)?,
            None => self.follow(seen.base.as_ref(), &now, &index, &file),
        };
        // Nobody has checkpointed up to here, if not up to the end. Else it is looked at again at the next look.
        if self.index().is_none_or(|i| i.checkpoint() != checkpoint) || unlocked && self.checkpointing() {
            return None;
        }
        if compared.is_none() {
            if settled {
                seen.base = Some(now.clone());
            }
            seen.main = Some(now);
        }
        compared
    }

    /// Compares two looks between which nobody checkpointed. `None` outside if it cannot be told.
    fn compare(&self, before: &Known, now: &Known, index: &Index, file: &OpenFile) -> Option<Option<Finding>> {
        let found = |what: String| Some(Some(Finding::Destroyed(Member::Main, what)));
        if before.settled {
            let (is, was) = (now.stamp.size, before.stamp.size);
            if is < was {
                return found(format!("cut off by another program to {is} bytes from {was}"));
            }
            if now.header != before.header || !before.has_its_pages(file, |_| false) {
                return found("overwritten by another program".into());
            }
            // Mode, owner or links may have changed.
            let written = (is, now.stamp.modified_ns) != (was, before.stamp.modified_ns);
            return Some(written.then_some(Finding::Doubt));
        }
        // A checkpoint that broke off again has written page 1 from the log or not at all.
        if now.header != before.header && !self.log_has_header(&now.header, index)? {
            return found("overwritten by another program".into());
        }
        Some(None)
    }

    /// Compares with what was known before somebody checkpointed.
    fn follow(&self, base: Option<&Known>, now: &Known, index: &Index, file: &OpenFile) -> Option<Finding> {
        let found = |what: String| Some(Finding::Destroyed(Member::Main, what));
        if now.settled && !self.has_last_copied(index) {
            return found("overwritten by another program: the page that was copied into it last is not there".into());
        }
        let base = base.filter(|b| {
            let grown = index.copied >= b.checkpoint.copied;
            now.unlocked && b.checkpoint.salts == index.salts && b.page_size == index.page_size && grown
        })?;
        let written = self.written_since(base.checkpoint.copied, index)?;
        // What is copied, but not settled, may be any of the frames of a page or none.
        if !base.has_its_pages(file, |page| written.pages.contains_key(&page) || page > written.least) {
            return found("overwritten by another program: a page is not what it was before a checkpoint".into());
        }
        if now.settled {
            let copied = written.pages.iter().filter_map(|(page, sum)| Some((*page, (*sum)?)));
            let copied: BTreeMap<u32, u64> = copied.filter(|(page, _)| *page <= written.least).collect();
            let pages: Vec<u32> = copied.keys().copied().collect();
            for (page, is) in sums(file, index.page_size, &pages) {
                if copied.get(&page) != Some(&is) {
                    return found(format!(
                        "overwritten by another program: page {page} is not what was copied into it"
                    ));
                }
            }
        }
        None
    }

    /// What the frames after the first `copied` have. `None` if they are too many, or were overwritten meanwhile.
    fn written_since(&self, copied: u32, index: &Index) -> Option<Written> {
        let log = self.file(Member::Wal)?;
        let mut written = Written { pages: BTreeMap::new(), least: index.pages };
        if index.frames.saturating_sub(copied) > MOST_FRAMES {
            return None;
        }
        // From the end, for of each page the newest frame counts, and the others need no sum.
        let mut piece = Piece::new(index.page_size);
        let (first, mut end) = (u64::from(copied), u64::from(index.frames));
        while first < end {
            let begin = end.saturating_sub(piece.most()).max(first);
            piece.read(&log, begin..end).ok()?;
            for n in (begin..end).rev() {
                let (header, page) = piece.frame(n)?.split_at_checked(FRAME_HEADER_BYTES as usize)?;
                if header[8..16] != index.salts {
                    return None;
                }
                let copied = n < u64::from(index.copied);
                written.pages.entry(word(header, 0)).or_insert_with(|| copied.then(|| sum_of(page)));
                let commit = word(header, 4);
                if commit != 0 {
                    written.least = written.least.min(commit);
                }
            }
            end = begin;
        }
        Some(written)
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
        sums(&main, size, &[number]).first().is_none_or(|(_, is)| *is == sum_of(&bytes[FRAME_HEADER_BYTES as usize..]))
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

/// What frames of a log have.
struct Written {
    /// The sum of each page as its newest frame has it; none if that frame was not copied yet.
    pages: BTreeMap<u32, Option<u64>>,
    /// The fewest pages that the database had after one of the commits. A page beyond was cut off for a while, and what is there
    /// now need not be in any frame.
    least: u32,
}

/// True if a write after this moment is sure to leave another stamp.
fn is_old(stamp: &Stamp) -> bool {
    let then = i128::from(stamp.changed_ns.max(stamp.modified_ns));
    files_clock() > then.saturating_add(grain(then))
}

/// What the clock says, in nanoseconds since 1970, by which the kernel stamps files: it moves with the ticks of the kernel.
#[cfg(target_os = "linux")]
fn files_clock() -> i128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

/// A time, in nanoseconds since 1970, that is before the stamp of any later write: a tick is 20 ms at most.
#[cfg(not(target_os = "linux"))]
fn files_clock() -> i128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i128::try_from(now.as_nanos()).unwrap_or(0) - 20_000_000
}

/// How far apart the stamps of a file system may be that has made this one: some keep hundredths of a second, or whole
/// seconds, or every other one, and then what is finer is zero.
fn grain(stamp_ns: i128) -> i128 {
    let mut grain = 1;
    while grain < 1_000_000_000 && stamp_ns % (grain * 10) == 0 {
        grain *= 10;
    }
    2 * grain
}

/// The sums of some pages of a file: those at both ends, and some between. All of a small one.
fn remembered(file: &OpenFile, size: u64, page_size: u32) -> Vec<(u32, u64)> {
    let count = size.checked_div(u64::from(page_size)).unwrap_or(0);
    let between = count.saturating_sub(2 * AT_EACH_END);
    let step = between.div_ceil(BETWEEN).max(1);
    let first = 1..=count.min(AT_EACH_END);
    let last = count.saturating_sub(AT_EACH_END).max(AT_EACH_END) + 1..=count;
    let spread = (AT_EACH_END + 1..=count.saturating_sub(AT_EACH_END)).step_by(usize::try_from(step).unwrap_or(1));
    let numbers: Vec<u32> = first.chain(spread).chain(last).filter_map(|n| u32::try_from(n).ok()).collect();
    sums(file, page_size, &numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_without_fractions_of_a_second_is_not_old_before_the_next_one_could_differ() {
        assert_eq!(grain(1_700_000_000_123_456_789), 2);
        assert_eq!(grain(1_700_000_000_120_000_000), 20_000_000);
        assert_eq!(grain(1_700_000_001_000_000_000), 2_000_000_000);
        assert_eq!(grain(0), 2_000_000_000);
        let now = i64::try_from(files_clock()).unwrap_or(0);
        let stamp = |ns| Stamp { size: 0, modified_ns: 0, changed_ns: ns };
        let second = 1_000_000_000;
        assert!(!is_old(&stamp(now + 1)), "of this moment");
        assert!(is_old(&stamp((now - second) | 1)));
        assert!(!is_old(&stamp(now / second * second)), "of a file system that keeps seconds");
        assert!(is_old(&stamp((now / second - 3) * second)));
    }
}
