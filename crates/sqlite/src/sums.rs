//! Sums of pages, by which a page is known again.
//!
//! Somebody who looks again and again, in the way of commits, reads pages that follow each other at once, and takes a quick
//! sum: it tells an older copy or garbage from what was there, and nobody is meant to be kept from forging it. What is
//! kept on the disk has a BLAKE3 sum.

use std::hash::BuildHasher;

use foldhash::quality::FixedState;

use crate::wal::ReadAt;

/// The most bytes that are read at once, but for one page that is longer.
const AT_ONCE: u32 = 256 * 1024;

/// The sum of these bytes. Only sums that were made by the same run of a program can be compared.
pub(crate) fn sum_of(bytes: &[u8]) -> u64 {
    FixedState::default().hash_one(bytes)
}

/// The sums of some pages of a main file, which are given in their order; none for a page that cannot be read.
pub(crate) fn sums(main: &dyn ReadAt, page_size: u32, pages: &[u32]) -> Vec<(u32, u64)> {
    let most = (AT_ONCE / page_size.max(1)).max(1);
    let mut sums = Vec::with_capacity(pages.len());
    let mut bytes = Vec::new();
    for run in runs(pages, most) {
        let Some(before) = run.first().and_then(|first| first.checked_sub(1)) else { continue };
        bytes.resize(run.len() * page_size as usize, 0);
        let has = main.read_most_at(&mut bytes, u64::from(before) * u64::from(page_size)).unwrap_or(0);
        let there = bytes[..has].chunks_exact(page_size.max(1) as usize);
        sums.extend(run.iter().copied().zip(there.map(sum_of)));
    }
    sums
}

/// The pages in pieces of which each follows the one before, `most` in a piece.
fn runs(pages: &[u32], most: u32) -> impl Iterator<Item = &[u32]> {
    let mut rest = pages;
    std::iter::from_fn(move || {
        let first = *rest.first()?;
        let together = (0u32..).zip(rest).take_while(|(n, page)| *n < most && first.checked_add(*n) == Some(**page));
        let (run, left) = rest.split_at(together.count());
        rest = left;
        Some(run)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_has_its_own_sum_however_they_are_read() {
        let page = |n: u32| vec![u8::try_from(n % 251).unwrap_or(0); 512];
        let main: Vec<u8> = (1..=2000).flat_map(page).collect();
        let some = [1, 2, 3, 700, 701, 702, 703, 1400, 1999, 2000];
        for pages in [&some[..], &(1..=2000).collect::<Vec<_>>()[..], &[5][..], &[][..]] {
            let expected: Vec<_> = pages.iter().map(|n| (*n, sum_of(&page(*n)))).collect();
            assert_eq!(sums(&main, 512, pages), expected);
        }
    }

    #[test]
    fn a_page_that_is_not_there_whole_has_no_sum() {
        let main = vec![7; 512 * 3 + 511];
        assert_eq!(sums(&main, 512, &[0, 3, 4, 5, u32::MAX]), [(3, sum_of(&[7; 512]))]);
        assert_eq!(sums(&main, 0, &[1]), []);
    }
}
