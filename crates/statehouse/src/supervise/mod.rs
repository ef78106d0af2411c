//! Several services, each its own process, started in order, restarted when they die, stopped in order.
//!
//! A child that keeps dying is started later and later, from a quarter of a second up to half a minute, and never in a
//! hot loop. Until every service was ready once, a child that refuses ends the whole start: its own words are the
//! answer. After that nothing but a signal ends the supervisor.

mod child;
mod log;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;

pub(crate) use child::{Note, own_executable, pidfd};
use statehouse_sqlite::incidents;

use crate::event::Event;
use crate::exit;
use crate::failure::{Envelope, Failure, Result, code};
use crate::output::Output;
use crate::signals;
use child::Child;

/// The first and the longest time between the end of a child and its next start.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));
/// A child that lived as long as this is not one that keeps dying.
const SETTLED: Duration = Duration::from_secs(20);
/// How long the first start of all services may take.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long after SIGTERM a child that should end by itself is killed.
const KILL_AFTER: Duration = Duration::from_secs(signals::STOP_LIMIT.as_secs() + 2);

/// How often a service is started again whose store is not what it was when it was opened a moment before.
const LOOKED_AGAIN: u32 = 5;

/// True for what a service says that finds files removed which were there when the start began. Whoever has them open puts them
/// back, or they are captured from there; ending the start would end whoever has them.
fn is_amid_removal(failure: &Failure) -> bool {
    let of_files = [
        "no_store",
        "store_missing",
        "no_directory",
        "refused_changed",
        "refused_wal_without_main",
        "refused_empty_beside_wal",
        "refused_wal_header",
        "refused_held_retired",
        "refused_held_naked",
        "retired",
        "sqlite",
        "io",
    ];
    of_files.contains(&&*failure.code)
}

/// A service to be kept running.
pub(crate) struct Service {
    name: &'static str,
    arguments: Vec<OsString>,
    log: PathBuf,
    /// The port that was asked for, for a service that listens; 0 takes any.
    port: Option<u16>,
    /// The port that it has, kept over restarts.
    has_port: Option<u16>,
    child: Option<Child>,
    started: Instant,
    ready: bool,
    deaths: u32,
    start_at: Option<Instant>,
    last_error: Option<Failure>,
}

impl Service {
    pub(crate) fn new(name: &'static str, arguments: Vec<OsString>, log: PathBuf, port: Option<u16>) -> Service {
        Service {
            name,
            arguments,
            log,
            port,
            has_port: None,
            child: None,
            started: Instant::now(),
            ready: false,
            deaths: 0,
            start_at: None,
            last_error: None,
        }
    }

    /// Where it is told that a service did not open the store.
    fn refusals(&self) -> PathBuf {
        self.log.with_file_name("incidents")
    }

    /// A service that ends by a refusal is tried again later and later; what it refused is told meanwhile.
    fn tell_refusal(&self, status: Option<std::process::ExitStatus>) {
        let refused = status.and_then(|s| s.code()) == Some(i32::from(exit::REFUSED));
        if let Some(error) = self.last_error.as_ref().filter(|e| refused && e.code != code::PORT_IN_USE) {
            let _ = incidents::refused(&self.refusals(), self.name, &error.code, &error.message, &error.hint);
        }
    }
}

/// The supervisor of a home's services.
pub(crate) struct Supervisor {
    services: Vec<Service>,
    output: Output,
    notes: Receiver<Note>,
    tell: Sender<Note>,
    runs: u64,
}

/// What is printed once all services are ready; it gets the address of each service by name.
pub(crate) type Welcome<'a> = &'a dyn Fn(&dyn Fn(&str) -> Option<String>);

impl Supervisor {
    /// A supervisor that stops at the usual signals.
    pub(crate) fn new(services: Vec<Service>, output: Output) -> Result<Supervisor> {
        let (tell, notes) = channel();
        let stop = tell.clone();
        signals::on_stop(move || {
            let _ = stop.send(Note::Stop);
        })?;
        Ok(Supervisor { services, output, notes, tell, runs: 0 })
    }

    /// Starts everything, keeps it running, and returns after everything has stopped.
    ///
    /// `anchored` is called when the first one stands, before the others are started.
    pub(crate) fn run(&mut self, anchored: &dyn Fn(), welcome: Welcome<'_>) -> Result<()> {
        let ended = self.start_all(anchored, welcome).and_then(|go_on| if go_on { self.keep() } else { Ok(()) });
        self.stop_all();
        ended
    }

    /// Starts the services, the first one alone, and waits until all are ready. `Ok(false)` if it was asked to stop.
    fn start_all(&mut self, anchored: &dyn Fn(), welcome: Welcome<'_>) -> Result<bool> {
        let limit = Instant::now() + START_LIMIT;
        let mut waiting: VecDeque<usize> = (0..self.services.len()).collect();
        let mut held_up = Vec::new();
        while let Some(next) = waiting.pop_front() {
            self.start(next);
            held_up.push(next);
            // The anchor stands before anybody opens the store; the others come up together.
            if next > 0 && !waiting.is_empty() {
                continue;
            }
            while !held_up.iter().all(|i| self.services[*i].ready) {
                if !self.turn(Some(limit), true)? {
                    return Ok(false);
                }
            }
            if next == 0 {
                anchored();
            }
        }
        Event::Up.print(self.output);
        let services = &self.services;
        welcome(&|name| {
            services.iter().find(|s| s.name == name).and_then(|s| s.has_port).map(|p| format!("http://127.0.0.1:{p}"))
        });
        Ok(true)
    }

    fn keep(&mut self) -> Result<()> {
        while self.turn(None, false)? {}
        Ok(())
    }

    /// Waits for one note or the next start that is due. `Ok(false)` if it was asked to stop.
    fn turn(&mut self, limit: Option<Instant>, first: bool) -> Result<bool> {
        let now = Instant::now();
        let due: Vec<usize> =
            (0..self.services.len()).filter(|i| self.services[*i].start_at.is_some_and(|t| t <= now)).collect();
        for i in due {
            self.start(i);
        }
        let next = self.services.iter().filter_map(|s| s.start_at).chain(limit).min();
        let note = match next {
            Some(at) => match self.notes.recv_timeout(at.saturating_duration_since(now)) {
                Ok(note) => note,
                Err(RecvTimeoutError::Timeout) if limit.is_some_and(|l| Instant::now() >= l) => {
                    return Err(self.not_ready());
                }
                Err(_) => return Ok(true),
            },
            None => match self.notes.recv() {
                Ok(note) => note,
                Err(_) => return Ok(false),
            },
        };
        match note {
            Note::Stop => return Ok(false),
            Note::Line { run, line } => self.line(run, &line),
            Note::Ended { run, status } => {
                if let Some(i) = self.index(run) {
                    self.ended(i, status, first)?;
                }
            }
        }
        Ok(true)
    }

    fn not_ready(&self) -> Failure {
        let names: Vec<&str> = self.services.iter().filter(|s| !s.ready).map(|s| s.name).collect();
        Failure::new(
            exit::FAILED,
            code::SERVICE_FAILED,
            format!("{} did not become ready within {} s", names.join(", "), START_LIMIT.as_secs()),
        )
        .hint("Look into the logs below logs/ in the home.")
    }

    fn index(&self, run: u64) -> Option<usize> {
        self.services.iter().position(|s| s.child.as_ref().is_some_and(|c| c.run == run))
    }

    fn start(&mut self, i: usize) {
        self.runs += 1;
        let service = &mut self.services[i];
        let mut arguments = service.arguments.clone();
        if let Some(port) = service.has_port.or(service.port) {
            arguments.push("--port".into());
            arguments.push(port.to_string().into());
        }
        service.start_at = None;
        service.started = Instant::now();
        service.ready = false;
        service.last_error = None;
        match Child::start(&arguments, service.log.clone(), self.runs, self.tell.clone()) {
            Ok(child) => service.child = Some(child),
            Err(e) => {
                tracing::warn!("{} cannot be started: {e}", service.name);
                self.later(i);
            }
        }
    }

    /// Plans the next start after a death.
    fn later(&mut self, i: usize) {
        let service = &mut self.services[i];
        let factor = 1u32 << service.deaths.min(16);
        service.start_at = Some(Instant::now() + BACKOFF.0.saturating_mul(factor).min(BACKOFF.1));
        service.deaths += 1;
    }

    fn line(&mut self, run: u64, line: &str) {
        let Some(i) = self.index(run) else { return };
        let service = &mut self.services[i];
        if let Ok(envelope) = serde_json::from_str::<Envelope<'_>>(line) {
            service.last_error = Some(envelope.error.into_owned());
            return;
        }
        match serde_json::from_str::<Event>(line) {
            Ok(event) => {
                if let Event::Ready { url, .. } = &event {
                    service.ready = true;
                    // Also what an earlier house was refused.
                    let _ = incidents::opened(&service.refusals(), service.name);
                    service.has_port = url.as_deref().and_then(|u| u.rsplit(':').next()).and_then(|p| p.parse().ok());
                }
                event.print(self.output);
            }
            // Events that only the service itself knows, such as those of the anchor, pass through as they are.
            Err(_) if self.output.json => {
                if serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(line).is_ok() {
                    self.output.text(line);
                }
            }
            Err(_) => crate::commands::anchor::print_line(line, self.output),
        }
    }

    fn ended(&mut self, i: usize, status: Option<std::process::ExitStatus>, first: bool) -> Result<()> {
        let service = &mut self.services[i];
        let Some(child) = service.child.take() else { return Ok(()) };
        let words = status.map_or_else(|| "an end that could not be observed".to_owned(), signals::describe);
        if first && service.deaths < LOOKED_AGAIN && service.last_error.as_ref().is_some_and(is_amid_removal) {
            let error = service.last_error.take().map(|e| e.message).unwrap_or_default();
            tracing::warn!(
                "{} did not find the store as it was a moment ago, and is started again: {error}",
                service.name
            );
            self.later(i);
            return Ok(());
        }
        if first && let Some(mut failure) = service.last_error.take() {
            failure.exit = status.and_then(|s| s.code()).and_then(|c| u8::try_from(c).ok()).unwrap_or(exit::FAILED);
            return Err(failure);
        }
        service.tell_refusal(status);
        let mut status = words;
        if let Some(error) = &service.last_error {
            status = format!("{status}: {}", error.message);
            // A port that was only kept, and not asked for, is given up when somebody else has taken it.
            if error.code == code::PORT_IN_USE && service.port == Some(0) {
                service.has_port = None;
            }
        }
        if service.ready && service.started.elapsed() >= SETTLED {
            service.deaths = 0;
        }
        service.ready = false;
        Event::Exited { service: service.name.to_owned(), pid: child.pid, status }.print(self.output);
        self.later(i);
        Ok(())
    }

    /// Stops the gateway first, so that nothing new is taken in, and the anchor last, when nobody needs it any more.
    fn stop_all(&mut self) {
        let of = |name: &str, s: &[Service]| s.iter().position(|s| s.name == name);
        let gateway: Vec<usize> = of("gateway", &self.services).into_iter().collect();
        let anchor: Vec<usize> = of("anchor", &self.services).into_iter().collect();
        let rest: Vec<usize> =
            (0..self.services.len()).filter(|i| !gateway.contains(i) && !anchor.contains(i)).collect();
        let mut kill = false;
        for group in [gateway, rest, anchor] {
            for i in &group {
                if let Some(child) = &self.services[*i].child {
                    child.signal(if kill { Signal::KILL } else { Signal::TERM });
                }
            }
            let limit = Instant::now() + KILL_AFTER;
            while group.iter().any(|i| self.services[*i].child.is_some()) {
                let left = if kill { KILL_AFTER } else { limit.saturating_duration_since(Instant::now()) };
                match self.notes.recv_timeout(left) {
                    Ok(Note::Ended { run, .. }) => {
                        if let Some(i) = self.index(run) {
                            self.services[i].child = None;
                        }
                    }
                    Ok(Note::Line { .. }) => {}
                    // Asked again, or out of patience: what is left is killed.
                    Ok(Note::Stop) | Err(_) => {
                        kill = true;
                        for child in group.iter().filter_map(|i| self.services[*i].child.as_ref()) {
                            child.signal(Signal::KILL);
                        }
                    }
                }
            }
        }
    }
}
