//! The writes that were acknowledged and that only the log has, kept in memory until the main file has them too.
//!
//! As long as a commit was not copied into the main file, the log is the only file that has it. If somebody empties the log
//! in place, no descriptor reads it any more. But the requests are still there: closures that can run again by their nature.
//! So each is kept until every frame of its commit was copied, and when the files were destroyed in place they are run on what
//! was put together ([`crate::reassemble`]).
//!
//! Each commit is kept with the frames that it made, so that whoever puts the database together can tell of which frames of
//! the log somebody still knew the content, and which are lost.
//!
//! A checkpoint that somebody who reads has held up says how far it came, and yet has left out each page that a later frame
//! has as well. So of a log that is copied in part the main file has a commit for certain only up to the end of a checkpoint
//! that came to the end of the log as it was then ([`Copied`]).
//!
//! What is kept is bounded by the length of the log that it stands for, and by a number of requests: a reader that keeps the
//! log from being copied for hours does not fill the memory. What was let go of is missing from the account then, and counts
//! as lost.

use std::collections::VecDeque;

use rusqlite::Connection;

use crate::error::Failure;
use crate::index::Index;

/// The most requests that are kept.
const MOST_REQUESTS: usize = 16 * 1024;

/// The longest log of which the requests are kept, in frames.
const MOST_FRAMES: u32 = 16 * 1024;

/// A request that can be run once more though it was answered.
pub(crate) trait Again: Send {
    /// Runs it; its value is dropped.
    fn again(&self, connection: &Connection) -> Result<(), Failure>;
}

/// Up to which frame of which round of the log the main file has everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Copied {
    pub(crate) salts: [u8; 8],
    pub(crate) last: u32,
}

impl Copied {
    /// What the index alone proves.
    fn by(index: &Index) -> Option<Copied> {
        (index.copied >= index.frames).then_some(Copied { salts: index.salts, last: index.copied })
    }
}

/// The frames of a log that one commit made. One that made none has the place behind those that it read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    /// Which round of the log.
    pub(crate) salts: [u8; 8],
    /// The first frame, from 1.
    pub(crate) first: u32,
    /// The last frame.
    pub(crate) last: u32,
}

impl Span {
    /// The frames that a commit made: `before` was read when its transaction had begun, `after` when it had ended, and
    /// `last` is what SQLite says was the last frame of it, or 0 if it made none. A write that found there what it was to make is
    /// acknowledged like any other, and whoever made it may not live any more: so it is remembered as well, as long as the log
    /// has anything that the main file has not.
    pub(crate) fn of_commit(before: Option<Index>, after: Option<Index>, last: u32) -> Option<Span> {
        let (before, after) = (before?, after?);
        if last == 0 {
            let next = before.frames.saturating_add(1);
            return (before.copied < before.frames).then_some(Span {
                salts: before.salts,
                first: next,
                last: before.frames,
            });
        }
        // The first commit of a round changes the salts, and begins at the first frame.
        let first = if before.salts == after.salts { before.frames.saturating_add(1) } else { 1 };
        (first <= last && last <= after.frames).then_some(Span { salts: after.salts, first, last })
    }
}

struct Commit {
    span: Span,
    requests: Vec<Box<dyn Again>>,
}

/// The commits of one handle, the oldest first.
#[derive(Default)]
pub(crate) struct Remembered {
    commits: VecDeque<Commit>,
    requests: usize,
    copied: Option<Copied>,
}

impl Remembered {
    /// Keeps the requests of a commit that was acknowledged. Without a span nothing of it is in the log alone.
    pub(crate) fn keep(&mut self, span: Option<Span>, requests: Vec<Box<dyn Again>>) {
        let Some(span) = span.filter(|_| !requests.is_empty()) else { return };
        self.requests += requests.len();
        self.commits.push_back(Commit { span, requests });
        while self.requests > MOST_REQUESTS
            || self
                .commits
                .front()
                .is_some_and(|c| c.span.salts == span.salts && span.last - c.span.last.min(span.last) > MOST_FRAMES)
        {
            self.drop_oldest();
        }
    }

    /// Notes the frames of a commit of which nobody was told that it is kept: nothing that was acknowledged is lost with them.
    pub(crate) fn note(&mut self, span: Option<Span>) {
        self.commits.extend(span.map(|span| Commit { span, requests: Vec::new() }));
    }

    /// Lets go of what the main file has, by what the index says of it now and by what a checkpoint of this process has proved.
    pub(crate) fn forget(&mut self, now: Option<Index>, proved: Option<Copied>) {
        let Some(now) = now else { return };
        for copied in [Copied::by(&now), proved].into_iter().flatten().filter(|copied| copied.salts == now.salts) {
            if self.copied.is_none_or(|known| known.salts != copied.salts || known.last < copied.last) {
                self.copied = Some(copied);
            }
        }
        let last = self.copied.filter(|copied| copied.salts == now.salts).map_or(0, |copied| copied.last);
        // A log begins another round only when all of it was copied.
        while self.commits.front().is_some_and(|c| c.span.salts != now.salts || c.span.last <= last) {
            self.drop_oldest();
        }
    }

    /// True if the main file, as far as is known here, has nothing of the log or all of it up to where the index says.
    pub(crate) fn is_whole_without(&self, log: &Index) -> bool {
        let known = Copied { salts: log.salts, last: log.copied };
        log.copied == log.attempted && (log.copied == 0 || Copied::by(log).is_some() || self.copied == Some(known))
    }

    fn drop_oldest(&mut self) {
        self.requests -= self.commits.pop_front().map_or(0, |c| c.requests.len());
    }

    /// Lets go of what was written into other rounds of the log than these. All of it was copied when the log was begun anew. An
    /// idle process may never have noticed, and what it wrote long ago must not undo what others wrote since.
    pub(crate) fn forget_all_but(&mut self, rounds: &[[u8; 8]]) {
        self.commits.retain(|c| rounds.contains(&c.span.salts));
        self.count();
    }

    fn count(&mut self) {
        self.requests = self.commits.iter().map(|c| c.requests.len()).sum();
    }

    /// True if the main file has everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.commits.is_empty()
    }

    /// How many commits are remembered.
    pub(crate) fn len(&self) -> usize {
        self.commits.len()
    }

    /// Which frames of a round of the log are known here.
    pub(crate) fn spans(&self, salts: [u8; 8]) -> Vec<(u32, u32)> {
        let known = self.commits.iter().map(|c| c.span).filter(|span| span.salts == salts && span.first <= span.last);
        known.map(|span| (span.first, span.last)).collect()
    }

    /// Runs everything once more, inside the transaction that `connection` is in. Returns for each request whether it
    /// succeeded.
    pub(crate) fn run(&self, connection: &Connection) -> rusqlite::Result<Vec<bool>> {
        let mut succeeded = Vec::with_capacity(self.requests);
        for request in self.commits.iter().flat_map(|c| &c.requests) {
            connection.execute_batch("SAVEPOINT again")?;
            let done = request.again(connection).is_ok();
            if !done {
                connection.execute_batch("ROLLBACK TO again")?;
            }
            connection.execute_batch("RELEASE again")?;
            succeeded.push(done);
        }
        Ok(succeeded)
    }

    /// Keeps of what [`Remembered::run`] ran what did not succeed: it may need what another process adds later.
    pub(crate) fn keep_failed(&mut self, succeeded: &[bool]) {
        let mut succeeded = succeeded.iter();
        for commit in &mut self.commits {
            commit.requests.retain(|_| !succeeded.next().copied().unwrap_or(false));
        }
        self.commits.retain(|c| !c.requests.is_empty());
        self.count();
    }
}

impl std::fmt::Debug for Remembered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remembered").field("commits", &self.commits.len()).field("requests", &self.requests).finish()
    }
}

/// Which of the frames from `first` to `last` no span has, as ranges.
pub(crate) fn uncovered(first: u32, last: u32, mut spans: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    spans.sort_unstable();
    let mut gaps = Vec::new();
    let mut next = first;
    for (from, to) in spans {
        if from > next && next <= last {
            gaps.push((next, (from - 1).min(last)));
        }
        next = next.max(to.saturating_add(1));
    }
    if next <= last {
        gaps.push((next, last));
    }
    gaps
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    struct Insert(i64);

    impl Again for Insert {
        fn again(&self, connection: &Connection) -> Result<(), Failure> {
            connection.execute("INSERT INTO t VALUES (?1)", [self.0])?;
            Ok(())
        }
    }

    fn index(salts: u8, frames: u32, copied: u32) -> Option<Index> {
        Some(Index {
            page_size: 4096,
            frames,
            pages: 9,
            checksum: [0; 2],
            salts: [salts; 8],
            copied,
            attempted: copied,
            making: 0,
        })
    }

    fn span(salts: u8, first: u32, last: u32) -> Option<Span> {
        Some(Span { salts: [salts; 8], first, last })
    }

    #[test]
    fn a_commit_has_the_frames_after_those_that_were_there() {
        assert_eq!(Span::of_commit(index(1, 4, 0), index(1, 9, 0), 7), span(1, 5, 7), "others may have written since");
        assert_eq!(Span::of_commit(index(1, 4, 4), index(2, 3, 0), 3), span(2, 1, 3), "it began the log anew");
        assert_eq!(Span::of_commit(index(1, 4, 4), index(1, 4, 0), 4), None, "that is no frame of it");
        assert_eq!(Span::of_commit(index(1, 4, 2), index(1, 9, 2), 0), span(1, 5, 4), "it wrote nothing");
        assert_eq!(Span::of_commit(index(1, 4, 4), index(1, 4, 4), 0), None, "and what it found is in the main file");
        assert_eq!(Span::of_commit(None, index(1, 4, 0), 4), None);
    }

    #[test]
    fn what_the_main_file_has_is_forgotten_and_the_rest_can_be_run_again() {
        let mut memory = Remembered::default();
        for n in 0..4 {
            memory.keep(span(1, n + 1, n + 1), vec![Box::new(Insert(i64::from(n)))]);
        }
        memory.keep(None, vec![Box::new(Insert(9))]);
        memory.forget(None, None);
        memory.forget(index(1, 4, 2), None);
        assert_eq!(memory.len(), 4, "a page of a later frame was left out");
        assert!(!memory.is_whole_without(&index(1, 4, 2).unwrap()));
        memory.forget(index(1, 4, 2), Some(Copied { salts: [7; 8], last: 2 }));
        assert_eq!(memory.len(), 4, "that was another round");
        memory.forget(index(1, 4, 2), Some(Copied { salts: [1; 8], last: 2 }));
        assert!(memory.is_whole_without(&index(1, 4, 2).unwrap()));
        assert_eq!(memory.spans([1; 8]), [(3, 3), (4, 4)]);
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t(n UNIQUE); INSERT INTO t VALUES (3)").unwrap();
        let succeeded = memory.run(&connection).unwrap();
        assert_eq!(succeeded, [true, false], "the one that is there already fails alone");
        let rows: i64 = connection.query_row("SELECT count(*) FROM t", [], |r| r.get(0)).unwrap();
        assert_eq!(rows, 2);
        memory.keep_failed(&succeeded);
        assert_eq!((memory.spans([1; 8]), memory.requests), (vec![(4, 4)], 1), "it is tried again");
        memory.keep(span(2, 1, 1), vec![Box::new(Insert(7))]);
        memory.forget_all_but(&[[1; 8], [2; 8]]);
        assert_eq!(memory.len(), 2);
        memory.forget_all_but(&[[2; 8]]);
        assert_eq!((memory.spans([1; 8]), memory.spans([2; 8])), (vec![], vec![(1, 1)]));
        memory.forget(index(2, 1, 1), None);
        assert!(memory.is_empty());
        memory.keep(span(2, 5, 4), vec![Box::new(Insert(7))]);
        assert_eq!((memory.len(), memory.spans([2; 8])), (1, vec![]), "it has no frames");
    }

    #[test]
    fn it_is_bounded() {
        let mut memory = Remembered::default();
        for n in 0..40_000 {
            memory.keep(span(1, n + 1, n + 1), vec![Box::new(Insert(0))]);
        }
        assert!(memory.requests <= MOST_REQUESTS && memory.commits.len() <= MOST_FRAMES as usize + 1);
        assert_eq!(memory.spans([1; 8]).last(), Some(&(40_000, 40_000)), "the newest stay");
    }

    #[test]
    fn gaps_are_what_no_span_has() {
        assert_eq!(uncovered(3, 10, vec![]), [(3, 10)]);
        assert_eq!(uncovered(3, 10, vec![(1, 4), (9, 12), (4, 6)]), [(7, 8)]);
        assert_eq!(uncovered(3, 10, vec![(5, 6)]), [(3, 4), (7, 10)]);
        assert!(uncovered(3, 10, vec![(1, 99)]).is_empty() && uncovered(3, 2, vec![]).is_empty());
        assert_eq!(uncovered(1, 3, vec![(7, 9)]), [(1, 3)]);
    }
}
