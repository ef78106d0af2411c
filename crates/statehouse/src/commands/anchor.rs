//! `statehouse anchor [PATH]`: holds the two locks of a generation, and tells what it sees.
//!
//! An anchor has no SQLite connection. It lets go as soon as the paths name something else, because a lock on a retired
//! generation protects nobody and only keeps bytes alive, and takes the new generation as soon as it is there. Beside
//! that it looks once a second for processes that have lost their locks or write into what is gone.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use statehouse_sqlite::anchor::{self, Anchor};
use statehouse_sqlite::holders::{self, Holder};
use statehouse_sqlite::members::{self, Registration};
use statehouse_sqlite::secure::{self, Purpose};
use statehouse_sqlite::{Family, Reason};

use super::{Context, service};
use crate::args::Target;
use crate::exit;
use crate::failure::Result;
use crate::home::Place;
use crate::output::Output;
use crate::{signals, store, text};

const ROLE: &str = "anchor";
/// How often the paths are compared with what is held.
const COMPARE: Duration = Duration::from_millis(100);
/// How often holders are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often a lost generation's successor is tried, and how often a failure to take it is said again.
const RETRY: Duration = Duration::from_millis(250);
const SAY_AGAIN: Duration = Duration::from_secs(60);

pub(crate) fn run(context: &Context, target: &Target) -> Result {
    let place = Place::of(target.path.as_deref(), &context.home);
    store::must_exist(&place.database)?;
    let family = Family::of(&place.database)?;
    let stop = Stop::on_signals()?;
    let held = anchor::hold(&family)?;
    // A database that is not ours gets no side directory because of an anchor.
    let registration = if family.side_directory().is_dir() { Some(register(&family)?) } else { None };
    let mut watch = Watch { output: context.output, family, held: None, reported: HashSet::new(), failed: None };
    watch.anchored(held);
    service::ready(context, ROLE, None);
    watch.run(&stop);
    watch.release();
    drop(registration);
    Ok(exit::OK)
}

fn register(family: &Family) -> Result<Registration> {
    let root = rustix::process::geteuid().is_root();
    let inspected = secure::inspect(family, if root { Purpose::Look } else { Purpose::Own })?;
    Ok(members::register(&inspected, ROLE)?)
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

/// A finding is told once for each process that it is about.
type Finding = (&'static str, Option<i32>, Option<u64>);

struct Watch {
    output: Output,
    family: Family,
    held: Option<Anchor>,
    reported: HashSet<Finding>,
    /// When a failure to take the present generation was last said.
    failed: Option<Instant>,
}

impl Watch {
    fn run(&mut self, stop: &Stop) {
        let mut look_at = Instant::now();
        while !stop.wait(if self.held.is_some() { COMPARE } else { RETRY }) {
            if self.held.as_ref().is_some_and(|a| !a.current()) {
                self.release();
            }
            if self.held.is_none() {
                self.take();
            }
            if Instant::now() >= look_at {
                self.look();
                // Counted from the end, so that a machine on which looking takes long is not kept busy with it.
                look_at = Instant::now() + LOOK;
            }
        }
    }

    fn take(&mut self) {
        match anchor::hold(&self.family) {
            Ok(held) => self.anchored(held),
            Err(e) => {
                // Between two generations there is nothing to hold for a moment; only what lasts is worth a line.
                let passing = matches!(e.reason(), Some(Reason::NoStore | Reason::Changed));
                if self.failed.is_none_or(|f| f.elapsed() > SAY_AGAIN) && !passing {
                    self.failed = Some(Instant::now());
                    tracing::warn!("the present generation cannot be held: {e}");
                }
            }
        }
    }

    fn anchored(&mut self, held: Anchor) {
        self.failed = None;
        self.tell(json!({"event": "anchored", "path": self.path(), "generation": held.generation()}));
        self.held = Some(held);
    }

    fn release(&mut self) {
        if let Some(held) = self.held.take() {
            let generation = held.generation();
            held.release();
            self.tell(json!({
                "event": "released", "pid": std::process::id(), "path": self.path(), "generation": generation,
            }));
        }
    }

    /// Tells what is wrong with the holders that was not told before, and forgets what is over.
    fn look(&mut self) {
        let now = match holders::dangerous(&self.family) {
            // Most of the time nothing is wrong, and the quick look is all that is needed.
            Ok(found) if found.is_empty() => Vec::new(),
            Ok(_) => match holders::scan(&self.family) {
                Ok(report) => report.holders,
                Err(e) => return tracing::warn!("the holders cannot be looked at: {e}"),
            },
            Err(e) => return tracing::warn!("the holders cannot be looked at: {e}"),
        };
        let mut present = HashSet::new();
        for holder in now.iter().filter(|h| !h.is_self && !h.fenced) {
            for (wrong, event) in [(holder.naked, "naked_holder"), (holder.ghost, "ghost")] {
                let finding = (event, holder.pid, holder.start_ticks);
                if wrong && present.insert(finding) && !self.reported.contains(&finding) {
                    self.tell(describe(event, &self.path(), holder));
                }
            }
        }
        self.reported = present;
    }

    fn path(&self) -> String {
        self.family.main().to_string_lossy().into_owned()
    }

    fn tell(&self, event: Value) {
        if self.output.json {
            self.output.document(&event);
        } else {
            print_line(&event.to_string(), self.output);
        }
    }
}

fn describe(event: &str, path: &str, holder: &Holder) -> Value {
    json!({
        "event": event,
        "pid": holder.pid,
        "path": path,
        "start_time": holder.start_time,
        "command": holder.command,
        "role": holder.role,
        "files": holder.files,
        "locks": holder.locks,
        "stop": holder.stop,
    })
}

/// Prints a line that an anchor printed as JSON, for a person.
pub(crate) fn print_line(line: &str, output: Output) {
    let Ok(value) = serde_json::from_str::<Value>(line) else { return };
    let command = value["command"].as_array().and_then(|c| c.first()).and_then(Value::as_str);
    let name = value["role"].as_str().or(command).map(|n| format!(" ({n})")).unwrap_or_default();
    let who = value["pid"].as_u64().map_or_else(|| "a process".to_owned(), |p| format!("PID {p}{name}"));
    let path = value["path"].as_str().unwrap_or("the database");
    let stop = value["stop"].as_str().unwrap_or_default();
    let sentence = match value["event"].as_str() {
        Some("anchored") => format!("{path} is anchored"),
        Some("released") => format!("{path} is no longer anchored"),
        Some("naked_holder") => format!("{who} has lost its locks on {path}; stop it in an orderly way: {stop}"),
        Some("ghost") => {
            format!("{who} is writing into deleted or replaced files of {path}; keep it running until they are copied")
        }
        _ => return,
    };
    output.text(&text::escape_line(&sentence));
}
