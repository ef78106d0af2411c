//! `statehouse anchor [PATH]`: holds the two locks of a generation, and tells what it sees.
//!
//! An anchor has no SQLite connection. It lets go as soon as the paths name something else, because a lock on a retired
//! generation protects nobody, and takes the new generation as soon as it is there; and it steps aside while somebody does
//! structural work. Beside that it looks once a second for processes that have lost their locks or write into what is gone.

mod pause;
mod tell;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    fn on_signals() -> Result<Stop> {
        let stop = Stop(Arc::default());
        let told = stop.clone();
        signals::on_stop(move || {
            if !std::mem::replace(&mut *told.lock(), true) {
                signals::limit_stop();
            }
            told.0.1.notify_all();
        })?;
        Ok(stop)
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits at most `limit`; true if it is time to stop.
    fn wait(&self, limit: Duration) -> bool {
        let stop = self.lock();
        *self.0.1.wait_timeout_while(stop, limit, |stop| !*stop).unwrap_or_else(PoisonError::into_inner).0
    }
}
