//! `statehouse anchor [PATH]`: holds the two locks of a generation, and tells what it sees.
//!
//! An anchor has no SQLite connection. It lets go as soon as the paths name something else, because a lock on a retired
//! generation protects nobody, and takes the new generation as soon as it is there; and it steps aside while somebody does
//! structural work. Beside that it looks once a second for processes that have lost their locks or write into what is gone.

mod keeping;
mod pause;
mod tell;
mod watch;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use statehouse_sqlite::anchor::Alarm;
use statehouse_sqlite::{Error, Family, Member, Reason, Status};

use super::{Context, service};
use crate::args::{Anchor, AnchorCommand};
use crate::exit;
use crate::failure::{Failure, Result, code};
use crate::home::Place;
use crate::output::Output;
use crate::{signals, store};
use watch::{LOOK, Watch};

pub(crate) use tell::print_line;

const ROLE: &str = "anchor";
/// How often it is tried again what cannot be held yet, and how often at least the header of a file is read again though
/// nothing says that it has changed.
const RETRY: Duration = Duration::from_millis(250);
const READ_AGAIN: Duration = Duration::from_secs(2);

pub(crate) fn run(context: &Context, anchor: &Anchor) -> Result {
    if let Some(AnchorCommand::Pause(pause)) = &anchor.command {
        if anchor.wait {
            return Err(Failure::new(exit::USAGE, code::USAGE, "--wait is for the anchor, not for `anchor pause`"));
        }
        return pause::run(context, pause, anchor.target.path.as_deref());
    }
    let stop = Stop::on_signals()?;
    let Some(mut watch) = begin(context, anchor, &stop)? else { return Ok(exit::OK) };
    service::ready(context, ROLE, None);
    watch.run(&stop);
    watch.end();
    Ok(exit::OK)
}

/// Holds the database, waiting for what may be waited for; `None` if it was told to stop before.
fn begin(context: &Context, anchor: &Anchor, stop: &Stop) -> Result<Option<Watch>> {
    let begun = Instant::now();
    let mut looked = begun;
    let mut waiting = Waiting::default();
    let mut watch: Option<Watch> = None;
    loop {
        let place = Place::of(anchor.target.path.as_deref(), &context.home);
        if waiting.may_have_changed(&place) {
            let held = match &mut watch {
                Some(watch) => watch.take(),
                None => locate(&place).and_then(|family| watch.insert(Watch::new(context.output, family)).take()),
            };
            let Err(e) = held else { return Ok(watch) };
            let busy = matches!(e, Error::Busy { .. }) && begun.elapsed() < context.patience;
            match awaited(&e).filter(|_| anchor.wait) {
                Some(what) => waiting.tell(context.output, &place.database, what),
                None if busy => {}
                None => {
                    // It may be so because somebody goes on with other files, and that says more.
                    watch.iter_mut().for_each(Watch::look);
                    watch.into_iter().for_each(Watch::end);
                    return Err(refused(e));
                }
            }
            waiting.remember(&place, &e);
        }
        // What is waited for may never come because somebody goes on with other files.
        if let Some(watch) = watch.as_mut().filter(|_| anchor.wait && looked.elapsed() >= LOOK) {
            watch.look();
            looked = Instant::now();
        }
        if stop.wait(RETRY) {
            watch.into_iter().for_each(Watch::end);
            return Ok(None);
        }
    }
}

fn locate(place: &Place) -> Result<Family, Error> {
    store::directory_must_exist(&place.database)?;
    Family::of(&place.database)
}

fn refused(e: Error) -> Failure {
    let rollback = e.reason() == Some(Reason::RollbackMode);
    let mut failure = Failure::from(e);
    if rollback {
        failure.hint = "Wait until its program switches to WAL mode; `statehouse anchor --wait` does that.".to_owned();
    }
    failure
}

/// What has to happen before the database can be held, if it is something that happens by itself.
fn awaited(e: &Error) -> Option<&'static str> {
    match e.reason() {
        Some(Reason::NoStore | Reason::NoDirectory | Reason::StoreMissing) => Some("database"),
        Some(Reason::RollbackMode) => Some("wal_mode"),
        Some(Reason::HotJournal) => Some("rollback"),
        Some(Reason::Changed) => Some("lock"),
        None if matches!(e, Error::Busy { .. }) => Some("lock"),
        _ => None,
    }
}

/// What is waited for, and what the files looked like: reading a header again and again would be of no use.
#[derive(Default)]
struct Waiting {
    what: Option<&'static str>,
    seen: Option<(PathBuf, Look)>,
    read: Option<Instant>,
}

/// What `stat` says of main file and journal: identity, length and time of change.
type Look = [Option<(statehouse_sqlite::Identity, u64, i64)>; 2];

fn look(place: &Place) -> Look {
    [Member::Main, Member::Journal].map(|member| {
        let mut path = place.database.clone().into_os_string();
        path.push(member.suffix());
        let status = Status::of(path.as_ref()).ok().flatten()?;
        Some((status.identity, status.size, status.changed_ns))
    })
}

impl Waiting {
    fn may_have_changed(&self, place: &Place) -> bool {
        let Some((path, seen)) = &self.seen else { return true };
        let due = self.read.is_none_or(|read| read.elapsed() >= READ_AGAIN);
        due || *path != place.database || *seen != look(place)
    }

    fn tell(&mut self, output: Output, database: &Path, what: &'static str) {
        if self.what.replace(what) != Some(what) {
            tell::waiting(output, database, what);
        }
    }

    /// What was seen is remembered only where nothing but a change of the files can help.
    fn remember(&mut self, place: &Place, e: &Error) {
        let of_files = matches!(e.reason(), Some(Reason::NoStore | Reason::RollbackMode | Reason::HotJournal));
        self.seen = of_files.then(|| (place.database.clone(), look(place)));
        self.read = Some(Instant::now());
    }
}

/// Set by a signal, waited for everywhere.
#[derive(Clone)]
struct Stop {
    told: Arc<AtomicBool>,
    /// Readable from the first signal on.
    bell: Arc<OwnedFd>,
}

/// What ended a wait.
#[derive(PartialEq, Eq)]
enum Woken {
    /// It is time to stop.
    Stop,
    /// Something has happened to a file.
    Alarm,
    /// Nothing; the time is over.
    Time,
}

impl Stop {
    fn on_signals() -> Result<Stop> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Failure::new(exit::FAILED, code::IO, "cannot watch for signals").detail(e.to_string()))?;
        let stop = Stop { told: Arc::default(), bell: Arc::new(bell) };
        let told = stop.clone();
        signals::on_stop(move || {
            if !told.told.swap(true, Ordering::Relaxed) {
                signals::limit_stop();
            }
            // It is never read, so it can only fail when it is readable already.
            let _ = rustix::io::write(&told.bell, &1_u64.to_ne_bytes());
        })?;
        Ok(stop)
    }

    /// Waits at most `limit`; true if it is time to stop.
    fn wait(&self, limit: Duration) -> bool {
        self.wait_for(limit, None) == Woken::Stop
    }

    /// As [`Stop::wait`], and not longer than until something happens to a file.
    fn wait_for(&self, limit: Duration, alarm: Option<&Alarm>) -> Woken {
        let until = Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let time = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
            let mut asked = vec![PollFd::new(&*self.bell, PollFlags::IN)];
            asked.extend(alarm.map(|alarm| PollFd::new(alarm, PollFlags::IN)));
            match poll(&mut asked, Some(&time)) {
                Ok(0) => return Woken::Time,
                Ok(_) if !asked[0].revents().is_empty() => return Woken::Stop,
                Ok(_) => return Woken::Alarm,
                Err(Errno::INTR) => {}
                // Not to be had: then it is a wait like any other.
                Err(_) => {
                    std::thread::sleep(left);
                    let stopped = self.told.load(Ordering::Relaxed);
                    return if stopped { Woken::Stop } else { Woken::Time };
                }
            }
        }
    }
}
