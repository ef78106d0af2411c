//! Tells at once that a file of an anchored generation was removed, renamed or replaced.
//!
//! An anchor compares the paths ten times a second. A program can copy its whole log into the main file in less, so what has to be
//! done before that ([`super::brake`]) is done as soon as the kernel tells of it. What is watched are the files and not their
//! directory: so nothing is heard of other files, and nothing of what is written. That a directory above was renamed is not
//! heard, nor anything where the user has no watch left; then the next comparison finds it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};

use super::{Anchor, Kept};
use crate::secure;

/// Readable when something has happened.
#[derive(Debug)]
pub struct Alarm(OwnedFd);

impl Alarm {
    /// One for what is held and kept now; `None` where the system has none to give.
    pub fn of<'a>(held: Option<&Anchor>, kept: impl Iterator<Item = &'a Kept>) -> Option<Alarm> {
        let alarm = Alarm(inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK).ok()?);
        if let Some(anchor) = held {
            alarm.hear(anchor.main.file.as_fd());
            alarm.hear(anchor.shm.index.file.as_fd());
        }
        // An index that was moved may come back.
        kept.filter_map(Kept::index).for_each(|index| alarm.hear(index));
        Some(alarm)
    }

    fn hear(&self, file: BorrowedFd<'_>) {
        // A file that loses a name, also to one that is renamed over it, has its number of links changed.
        let what = WatchFlags::ATTRIB | WatchFlags::MOVE_SELF;
        let _ = inotify::add_watch(&self.0, secure::magic_path(file), what);
    }

    /// Is quiet again until something else happens.
    pub fn heard(&self) {
        let mut buffer = [MaybeUninit::uninit(); 1024];
        let mut events = Reader::new(&self.0, &mut buffer);
        while events.next().is_ok() {}
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
