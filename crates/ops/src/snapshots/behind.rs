//! Bringing a copy to the disk while it is made, in small pieces behind the one who makes it.
//!
//! A copy that is flushed when it is complete goes to the disk all at once, and a program that commits a row meanwhile waits until
//! the disk has taken hundreds of megabytes, for its flush is behind them in the queue. So a thread follows the copying and hands
//! the disk a small piece at a time, waiting for each: somebody's flush waits for one piece. The room is asked for before, so that
//! writing a piece does not have to find a place for it, which on ext4 makes the commits of others wait for it; and the flush at the end
//! finds little to do, which is also why a snapshot is done sooner.
//!
//! Nothing rests on it: what counts is the flush at the end and the reading back after it.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use statehouse_sqlite::image::Sink;
use statehouse_sqlite::writeback::write_back;

use super::error::{self, Error};

/// Bytes of a piece: a disk takes it in less than a millisecond, and larger ones are hardly faster.
const PIECE: u64 = 256 << 10;
/// Bytes that are written with one call: much less work for the kernel than a page at a time, and it keeps them, and gives them back, in
/// larger parts.
const BUFFER: usize = 1 << 20;
/// How many words of the one who copies may wait. If the disk is slower than the copying, the copying waits then: else memory
/// would fill up with what is to be written, until the kernel writes it all at once.
const AHEAD: usize = 64;

/// The thread that writes behind a copy.
pub(super) struct Behind<'scope> {
    reached: SyncSender<u64>,
    thread: ScopedJoinHandle<'scope, io::Result<()>>,
}

impl<'scope> Behind<'scope> {
    /// Follows whoever fills this empty file with about `bytes` bytes.
    pub(super) fn start<'env: 'scope>(
        scope: &'scope Scope<'scope, 'env>,
        file: &'env File,
        bytes: u64,
    ) -> io::Result<Behind<'scope>> {
        match fallocate(file, FallocateFlags::KEEP_SIZE, 0, bytes.max(1)) {
            // Not every file system can.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
        let (reached, follow) = sync_channel(AHEAD);
        let thread =
            Builder::new().name("snapshot disk".to_owned()).spawn_scoped(scope, move || along(file, &follow))?;
        Ok(Behind { reached, thread })
    }

    /// Says that the file was filled up to here.
    pub(super) fn reached(&self, offset: u64) {
        // A thread that has ended has met an error, which `end` tells.
        let _ = self.reached.send(offset);
    }

    /// Waits until everything that was said to be there was written.
    pub(super) fn end(self) -> io::Result<()> {
        drop(self.reached);
        self.thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes the copy ended early")))
    }
}

/// The file that is filled, from its beginning to its end in large pieces, with somebody behind.
pub(super) struct Filling<'a> {
    path: &'a Path,
    file: &'a File,
    behind: &'a Behind<'a>,
    buffer: Vec<u8>,
    /// Where the buffer begins.
    at: u64,
}

impl<'a> Filling<'a> {
    pub(super) fn new(path: &'a Path, file: &'a File, behind: &'a Behind<'a>) -> Filling<'a> {
        Filling { path, file, behind, buffer: Vec::with_capacity(BUFFER), at: 0 }
    }

    /// The directory in which it lies.
    pub(super) fn directory(&self) -> &'a Path {
        self.path.parent().unwrap_or(self.path)
    }

    /// What is to be told of an error of writing it.
    pub(super) fn failed(&self, e: io::Error) -> Error {
        error::io("write", self.path, e)
    }

    fn empty(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.buffer, self.at)?;
        self.at += self.buffer.len() as u64;
        self.buffer.clear();
        self.behind.reached(self.at);
        Ok(())
    }
}

impl Sink for Filling<'_> {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if self.at + self.buffer.len() as u64 != offset {
            self.empty()?;
            self.at = offset;
        }
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BUFFER { self.empty() } else { Ok(()) }
    }

    fn set_length(&mut self, length: u64) -> io::Result<()> {
        self.empty()?;
        self.file.set_len(length)
    }
}

fn along(file: &File, follow: &Receiver<u64>) -> io::Result<()> {
    let mut written = 0;
    for reached in follow {
        while written + PIECE <= reached {
            write_back(file, written, PIECE)?;
            written += PIECE;
        }
    }
    Ok(())
}
