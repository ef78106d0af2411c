//! Which transactions of a log a main file lacks.
//!
//! Decided by the bytes of the pages alone, because a retired generation's index may be gone and because a second
//! generation may have written over the main file. Some tens of bytes are kept for each page that the log wrote.

use std::collections::BTreeMap;
use std::io;

use super::{Frames, Header, ReadAt};

/// What of a log is in a main file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lacking {
    /// Complete transactions that the log holds.
    pub transactions: u64,
    /// How many of them, from the first on, are in the main file: the most for which every page that they wrote is there as
    /// of that transaction, or of a later one.
    pub contained: u64,
    /// The others.
    pub missing: u64,
    /// True if pages of the missing ones are in the main file already: a copying of the log was interrupted, and the main
    /// file by itself lies between two commits.
    pub torn: bool,
}

/// What is known of one page that the log wrote.
#[derive(Default)]
struct State {
    /// The first transaction of those since when its image in the log is not what the main file has.
    since: Option<u64>,
    /// Earlier such stretches, ended by the page being cut off: first and last transaction.
    stretches: Vec<(u64, u64)>,
    /// The last transaction whose image of the page is in the main file.
    matched: u64,
}

/// Compares a main file with the transactions of a log.
///
/// The main file may be changed by others meanwhile, and by a second generation before; a page of theirs counts as
/// lacking. Equal bytes count as present even where they came there another way. Of page 1 those bytes are left out
/// that say how changes are kept and counted, which a copy in rollback mode has otherwise.
///
/// # Errors
/// The system's answer.
pub fn lacking(main: &dyn ReadAt, wal: &dyn ReadAt) -> io::Result<Lacking> {
    let Some(header) = Header::read(wal)? else { return Ok(Lacking::default()) };
    let mut states: BTreeMap<u32, State> = BTreeMap::new();
    let transactions = each_image(main, wal, header, &mut |transaction, images, size| {
        for (page, same) in images {
            let state = states.entry(*page).or_default();
            if *same {
                // What is there as of this transaction is there for all before it.
                *state = State { matched: transaction, ..State::default() };
            } else {
                state.since.get_or_insert(transaction);
            }
        }
        for state in states.range_mut(size.saturating_add(1)..).map(|(_, s)| s) {
            if let Some(since) = state.since.take()
                && since < transaction
            {
                state.stretches.push((since, transaction - 1));
            }
        }
    })?;
    let contained = last_sound(&states, transactions);
    let torn = if states.values().any(|s| s.matched > contained) {
        is_torn(main, wal, header, contained, &states)?
    } else {
        false
    };
    Ok(Lacking { transactions, contained, missing: transactions - contained, torn })
}

/// The last transaction that no page contradicts; zero, before the first, contradicts nobody.
fn last_sound(states: &BTreeMap<u32, State>, transactions: u64) -> u64 {
    // At each transaction how many stretches begin minus how many ended just before.
    let mut changes: BTreeMap<u64, i64> = BTreeMap::new();
    for state in states.values() {
        let open = state.since.map(|since| (since, transactions));
        for (first, last) in state.stretches.iter().copied().chain(open) {
            *changes.entry(first).or_default() += 1;
            *changes.entry(last + 1).or_default() -= 1;
        }
    }
    let (mut sound, mut running, mut begin) = (0, 0, 0);
    for (at, change) in changes {
        if running == 0 && at > begin {
            sound = at - 1;
        }
        running += change;
        begin = at;
    }
    if running == 0 && begin <= transactions { transactions } else { sound }
}

/// True if a page is there as of a transaction after `contained` and not, with the same bytes, as of that one.
fn is_torn(
    main: &dyn ReadAt,
    wal: &dyn ReadAt,
    header: Header,
    contained: u64,
    states: &BTreeMap<u32, State>,
) -> io::Result<bool> {
    let mut later: BTreeMap<u32, bool> =
        states.iter().filter(|(_, s)| s.matched > contained).map(|(page, _)| (*page, false)).collect();
    each_image(main, wal, header, &mut |transaction, images, _| {
        for (page, same) in images {
            if transaction <= contained
                && let Some(kept) = later.get_mut(page)
            {
                *kept = *same;
            }
        }
    })?;
    Ok(later.values().any(|kept| !kept))
}

/// What a transaction did: its number, each page with whether its last image is what the main file has, and the size after it.
type Look<'a> = dyn FnMut(u64, &BTreeMap<u32, bool>, u32) + 'a;

/// Goes through the transactions and returns how many there are.
fn each_image(main: &dyn ReadAt, wal: &dyn ReadAt, header: Header, look: &mut Look<'_>) -> io::Result<u64> {
    let mut frames = Frames::new(wal, header);
    let mut images = BTreeMap::new();
    let mut page = vec![0; header.page_size as usize];
    let mut transactions = 0;
    while let Some(frame) = frames.next()? {
        let offset = u64::from(frame.page - 1) * u64::from(header.page_size);
        let there = main.fill_at(&mut page, offset)?;
        images.insert(frame.page, there && same(frame.page, &page, frames.page()));
        if frame.commit != 0 {
            transactions += 1;
            // A page that the transaction wrote and cut off again is none that anybody misses.
            images.retain(|number, _| *number <= frame.commit);
            look(transactions, &images, frame.commit);
            images.clear();
        }
    }
    Ok(transactions)
}

/// True if two images of a page say the same. <https://www.sqlite.org/fileformat2.html#the_database_header>
fn same(number: u32, a: &[u8], b: &[u8]) -> bool {
    const SKIPPED: [std::ops::Range<usize>; 3] = [18..20, 24..28, 92..100];
    if number != 1 {
        return a == b;
    }
    let mut at = 0;
    SKIPPED.iter().all(|skipped| {
        let equal = a.get(at..skipped.start) == b.get(at..skipped.start);
        at = skipped.end;
        equal
    }) && a.get(at..) == b.get(at..)
}
