//! What is left of an earlier round of a log, as a log of its own.
//!
//! When all of a log is in the main file it is begun anew from its first frame, with other salts, and what lies behind the end of
//! the new round stays there until it is written over. SQLite never reads it again, for the main file has it. If the main
//! file is destroyed, it may be the last place of these pages.
//!
//! A frame's checksum goes on from that of the frame before it. So every frame but the first that is left proves that it belongs
//! behind the one before it, and nothing that was only written over by chance passes for a frame. The frames are given a header
//! and a chain of their own, and then they are read as any log is.

use std::io;

use super::{
    Checksum, FRAME_HEADER_BYTES, Frames, HEADER_BYTES, Header, MAGIC, ReadAt, VERSION, checksum_frame, frame_offset,
    stored_checksum, word,
};
use crate::image::Sink;

/// Where the round that a log has now ends: how many frames it has.
///
/// # Errors
/// The system's answer.
pub fn end_of_round(wal: &dyn ReadAt) -> io::Result<u64> {
    let Some(header) = Header::read(wal)? else { return Ok(0) };
    let mut frames = Frames::new(wal, header);
    let mut end = 0;
    while let Some(frame) = frames.next()? {
        end = frame.index + 1;
    }
    Ok(end)
}

/// What was found behind the end of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Earlier {
    /// Frames that were written as a log; none if nothing was.
    pub frames: u64,
    /// Where what is left of the round ends. Behind it the one before may go on.
    pub end: u64,
}

/// Writes the frames of the earlier round that are left in a log from the frame `first` on, up to the last that completes a
/// transaction, as a log. The further behind, the older: each round was written over the beginning of those before it.
///
/// # Errors
/// The system's answer.
pub fn earlier_round(wal: &dyn ReadAt, first: u64, output: &mut dyn Sink) -> io::Result<Earlier> {
    let nothing = Earlier { frames: 0, end: first };
    let Some(header) = Header::read(wal)? else { return Ok(nothing) };
    let mut bytes = vec![0; FRAME_HEADER_BYTES as usize + header.page_size as usize];
    let read = |index: u64, bytes: &mut [u8]| wal.fill_at(bytes, frame_offset(header.page_size, index));
    if !read(first, &mut bytes)? {
        return Ok(nothing);
    }
    let salts = [word(&bytes, 8), word(&bytes, 12)];
    if salts == header.salts {
        return Ok(nothing);
    }
    let mut before = stored_checksum(&bytes);
    let head = head(&header, salts);
    output.write_at(&head, 0)?;
    let mut chain = Checksum(word(&head, 24), word(&head, 28));
    let (mut written, mut complete, mut end) = (0, 0, first + 1);
    for index in first + 1.. {
        end = index;
        if !read(index, &mut bytes)? || [word(&bytes, 8), word(&bytes, 12)] != salts || word(&bytes, 0) == 0 {
            break;
        }
        let stored = stored_checksum(&bytes);
        if checksum_frame(before, &bytes, header.big_endian) != stored {
            break;
        }
        before = stored;
        chain = checksum_frame(chain, &bytes, header.big_endian);
        bytes[16..20].copy_from_slice(&chain.0.to_be_bytes());
        bytes[20..24].copy_from_slice(&chain.1.to_be_bytes());
        output.write_at(&bytes, frame_offset(header.page_size, written))?;
        written += 1;
        if word(&bytes, 4) != 0 {
            complete = written;
        }
    }
    output.set_length(if complete == 0 { 0 } else { frame_offset(header.page_size, complete) })?;
    Ok(Earlier { frames: complete, end })
}

fn head(of: &Header, salts: [u32; 2]) -> [u8; HEADER_BYTES as usize] {
    let mut head = [0; HEADER_BYTES as usize];
    let words =
        [MAGIC | u32::from(of.big_endian), VERSION, of.page_size, of.sequence.wrapping_sub(1), salts[0], salts[1]];
    for (place, word) in head.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_be_bytes());
    }
    let sum = Checksum::default().mix(&head[..24], of.big_endian);
    head[24..28].copy_from_slice(&sum.0.to_be_bytes());
    head[28..].copy_from_slice(&sum.1.to_be_bytes());
    head
}

#[cfg(test)]
#[cfg(target_os = "linux")]
#[expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;
    use crate::wal::last_commit;

    #[test]
    fn what_a_log_that_was_begun_anew_has_of_the_round_before_is_a_log_of_its_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.db");
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection
            .execute_batch(
                "PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0; CREATE TABLE t(id INTEGER PRIMARY KEY, x)",
            )
            .unwrap();
        for n in 0..40 {
            connection.execute("INSERT INTO t(x) VALUES (?1)", [format!("{n}{}", "x".repeat(3000))]).unwrap();
        }
        let log = || std::fs::read(directory.path().join("s.db-wal")).unwrap();
        let old = log();
        assert_eq!(
            earlier_round(&old, end_of_round(&old).unwrap(), &mut Vec::new()).unwrap().frames,
            0,
            "there was no round before"
        );
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
        connection.execute("INSERT INTO t(x) VALUES ('new')", []).unwrap();
        let now = log();
        let mut earlier = Vec::new();
        let frames = earlier_round(&now, end_of_round(&now).unwrap(), &mut earlier).unwrap().frames;
        let (before, after) = (last_commit(&old).unwrap().unwrap(), last_commit(&earlier).unwrap().unwrap());
        let lost = end_of_round(&now).unwrap() + 1;
        assert_eq!(
            (after.frames, frames),
            (before.frames - lost, frames),
            "all but what was written over, and one more"
        );
        assert_eq!((after.salts, after.pages), (before.salts, before.pages));
        // And what is left of the round before that one is behind it.
        for n in 0..4 {
            connection.execute("INSERT INTO t(x) VALUES (?1)", [format!("{n}{}", "y".repeat(3000))]).unwrap();
        }
        connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).unwrap();
        connection.execute("INSERT INTO t(x) VALUES ('newer')", []).unwrap();
        let newer = log();
        let second = earlier_round(&newer, end_of_round(&newer).unwrap(), &mut Vec::new()).unwrap();
        let mut oldest = Vec::new();
        let third = earlier_round(&newer, second.end, &mut oldest).unwrap();
        assert_eq!(last_commit(&oldest).unwrap().unwrap().salts, before.salts);
        assert!(third.end == before.frames && third.frames > frames / 2, "{third:?} of {frames}");
        // A scribble ends it.
        let mut scribbled = now.clone();
        let at = frame_offset(4096, before.frames - 3) as usize + 100;
        scribbled[at] ^= 1;
        let mut less = Vec::new();
        assert!(earlier_round(&scribbled, lost - 1, &mut less).unwrap().frames < frames);
        assert!(last_commit(&less).unwrap().is_some_and(|c| c.frames < frames));
    }
}
