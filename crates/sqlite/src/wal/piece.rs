//! Frames of a log that are read at once: a look at many of them costs few calls.

use std::io;
use std::ops::Range;

use super::{FRAME_HEADER_BYTES, ReadAt, frame_offset};

/// The most bytes that are read at once, but for one frame that is longer.
const AT_ONCE: u64 = 256 * 1024;

/// Some frames that follow each other, as the log has them: nothing is verified.
pub(crate) struct Piece {
    page_size: u32,
    frames: Range<u64>,
    bytes: Vec<u8>,
}

impl Piece {
    /// A piece without frames.
    pub(crate) fn new(page_size: u32) -> Piece {
        Piece { page_size, frames: 0..0, bytes: Vec::new() }
    }

    fn frame_bytes(&self) -> u64 {
        FRAME_HEADER_BYTES + u64::from(self.page_size)
    }

    /// How many frames are read at once.
    pub(crate) fn most(&self) -> u64 {
        (AT_ONCE / self.frame_bytes()).max(1)
    }

    /// Reads these frames, or as many of them as the log has whole.
    pub(crate) fn read(&mut self, log: &dyn ReadAt, frames: Range<u64>) -> io::Result<()> {
        let frame_bytes = self.frame_bytes();
        let wanted = frames.end.saturating_sub(frames.start).min(self.most()) * frame_bytes;
        self.frames = frames.start..frames.start;
        self.bytes.resize(usize::try_from(wanted).unwrap_or(0), 0);
        let has = log.read_most_at(&mut self.bytes, frame_offset(self.page_size, frames.start))?;
        self.frames.end += has as u64 / frame_bytes;
        Ok(())
    }

    /// One of the frames, with its header; `None` if it was not read.
    pub(crate) fn frame(&self, index: u64) -> Option<&[u8]> {
        if !self.frames.contains(&index) {
            return None;
        }
        let bytes = usize::try_from(self.frame_bytes()).ok()?;
        let at = usize::try_from(index - self.frames.start).ok()? * bytes;
        self.bytes.get(at..at + bytes)
    }
}
