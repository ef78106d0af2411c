//! Whether what a commit has written is in the log, and joined to what was there before it.
//!
//! Somebody who cuts the log off between the last look of a commit and its write leaves no trace in any length: the commit is
//! written where it belongs, beyond the new end, the file is as long as it should be again, and between the two is a hole. The
//! index goes on being right, so everybody reads what is left of it, and the next one who reads the log from its beginning, after
//! a crash or in a new index, finds its end before the hole.
//!
//! So before a commit is acknowledged its frames are read back, with the one before them, and each must carry the salts of the
//! round and the running checksum. Frames that are committed do not change until the log is begun anew, which the index says
//! before anything is written: with the same salts before and after the reading there is no other reason for what does not fit.

use crate::examine::{PAUSE, TRIES};
use crate::index::Index;
use crate::remembered::Span;
use crate::wal::{FRAME_HEADER_BYTES, Header, Piece, ReadAt, stored_checksum, verify};

/// True if the log does not have these frames, or not the one before them, though it was not begun anew. What cannot be read
/// proves nothing.
pub(crate) fn is_missing(log: &dyn ReadAt, span: Span, index: impl Fn() -> Option<Index>) -> bool {
    for _ in 0..TRIES {
        let Some(before) = index() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        if before.salts != span.salts || before.frames < span.last {
            return false;
        }
        if are_there(log, span).unwrap_or(true) {
            return false;
        }
        match index() {
            Some(after) => return after.salts == span.salts,
            None => std::thread::sleep(PAUSE),
        }
    }
    false
}

fn are_there(log: &dyn ReadAt, span: Span) -> std::io::Result<bool> {
    let Some(header) =
        Header::read(log)?.filter(|h| [h.salts[0].to_be_bytes(), h.salts[1].to_be_bytes()].concat() == span.salts)
    else {
        return Ok(false);
    };
    // Counted from zero here.
    let first = u64::from(span.first.saturating_sub(2));
    let mut checksum = match first.checked_sub(1) {
        None => header.checksum,
        Some(earlier) => {
            let mut frame = [0; FRAME_HEADER_BYTES as usize];
            if !log.fill_at(&mut frame, header.frame_offset(earlier))? {
                return Ok(false);
            }
            stored_checksum(&frame)
        }
    };
    let mut piece = Piece::new(header.page_size);
    for n in first..u64::from(span.last) {
        if piece.frame(n).is_none() {
            piece.read(log, n..u64::from(span.last))?;
        }
        let Some((_, after)) = piece.frame(n).and_then(|frame| verify(&header, frame, n, checksum)) else {
            return Ok(false);
        };
        checksum = after;
    }
    Ok(true)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;

    /// A log of five commits, and the frames that the last one made.
    fn log() -> (Vec<u8>, Span, Header) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.db");
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch("PRAGMA journal_mode=wal; CREATE TABLE t(v)").unwrap();
        let wal = path.with_extension("db-wal");
        let frames = |size: u64| u32::try_from((size - 32) / (24 + 4096)).unwrap();
        let mut before = 0;
        for _ in 0..4 {
            before = frames(std::fs::metadata(&wal).unwrap().len());
            connection.execute_batch("INSERT INTO t VALUES (randomblob(9000))").unwrap();
        }
        #[expect(clippy::disallowed_methods, reason = "its only connection is this test's, and is not used again")]
        let bytes = std::fs::read(&wal).unwrap();
        let header = Header::read(&bytes).unwrap().unwrap();
        let salts = bytes[16..24].try_into().unwrap();
        let last = frames(bytes.len() as u64);
        assert!(before > 2 && last > before + 1, "{before} {last}");
        (bytes, Span { salts, first: before + 1, last }, header)
    }

    #[test]
    fn a_hole_before_a_commit_or_in_it_is_found_wherever_the_log_was_cut_off() {
        let (bytes, span, header) = log();
        assert!(are_there(&bytes, span).unwrap(), "the control");
        assert!(are_there(&bytes, Span { first: 1, ..span }).unwrap(), "from the beginning of a round as well");
        let begins = usize::try_from(header.frame_offset(u64::from(span.first) - 1)).unwrap();
        for cut in (0..begins).step_by(97) {
            let mut holed = bytes.clone();
            holed[cut..begins].fill(0);
            assert!(!are_there(&holed, span).unwrap(), "cut off at {cut}, written from {begins}");
        }
        // Between two writes of one commit.
        let second = usize::try_from(header.frame_offset(u64::from(span.first))).unwrap();
        for cut in (0..second).step_by(97) {
            let mut holed = bytes.clone();
            holed[cut..second].fill(0);
            assert!(!are_there(&holed, span).unwrap(), "cut off at {cut}, written from {second}");
        }
        for cut in (0..bytes.len()).step_by(97) {
            assert!(!are_there(&bytes[..cut].to_vec(), span).unwrap(), "cut off at {cut}");
        }
    }

    #[test]
    fn a_log_that_was_begun_anew_or_cannot_be_told_about_is_no_alarm() {
        let (bytes, span, header) = log();
        let index = |salts| Index {
            page_size: header.page_size,
            frames: span.last,
            pages: 9,
            checksum: [0; 2],
            salts,
            copied: 0,
            attempted: 0,
            making: 0,
        };
        let holed = vec![0; bytes.len()];
        assert!(!is_missing(&bytes, span, || Some(index(span.salts))), "the control");
        assert!(is_missing(&holed, span, || Some(index(span.salts))));
        assert!(!is_missing(&holed, span, || Some(index([0; 8]))), "begun anew before it was read");
        let looks = std::cell::Cell::new(0);
        let anew = || {
            looks.set(looks.get() + 1);
            Some(index(if looks.get() == 1 { span.salts } else { [0; 8] }))
        };
        assert!(!is_missing(&holed, span, anew), "begun anew while it was read");
        assert!(!is_missing(&holed, span, || None), "an index that says nothing");
    }
}
