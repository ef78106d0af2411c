//! Numbers for Prometheus, in its text format 0.0.4. No label ever carries what a person wrote.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use statehouse_sessions::Health;

/// Counters since the process started.
#[derive(Debug)]
pub(crate) struct Metrics {
    started: Instant,
    pub(crate) received: AtomicU64,
    pub(crate) duplicates: AtomicU64,
    pub(crate) turns_done: AtomicU64,
    pub(crate) turns_failed: AtomicU64,
    requests: Mutex<BTreeMap<u16, u64>>,
    refusals: Mutex<BTreeMap<&'static str, u64>>,
}

impl Metrics {
    pub(crate) fn new() -> Metrics {
        Metrics {
            started: Instant::now(),
            received: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            turns_done: AtomicU64::new(0),
            turns_failed: AtomicU64::new(0),
            requests: Mutex::default(),
            refusals: Mutex::default(),
        }
    }

    /// Counts an answered request.
    pub(crate) fn answered(&self, status: u16) {
        *self.requests.lock().unwrap_or_else(PoisonError::into_inner).entry(status).or_default() += 1;
    }

    /// Counts a call of the store that failed.
    pub(crate) fn store_refused(&self, code: &'static str) {
        *self.refusals.lock().unwrap_or_else(PoisonError::into_inner).entry(code).or_default() += 1;
    }

    /// The page. `running` is the number of turns that are being answered; `health` is `None` when the store did not answer.
    pub(crate) fn render(&self, running: usize, health: Option<&Health>) -> String {
        let mut page = String::with_capacity(2048);
        let mut metric = |name: &str, kind: &str, help: &str, rows: &[(String, f64)]| {
            let _ = writeln!(page, "# HELP statehouse_{name} {help}\n# TYPE statehouse_{name} {kind}");
            for (labels, value) in rows {
                let _ = writeln!(page, "statehouse_{name}{labels} {value}");
            }
        };
        let one = |value: f64| vec![(String::new(), value)];
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
        let version = format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION"));
        metric("build_info", "gauge", "The version that runs.", &[(version, 1.0)]);
        metric("uptime_seconds", "gauge", "Seconds since the start.", &one(self.started.elapsed().as_secs_f64()));
        metric(
            "messages_received_total",
            "counter",
            "Inbound messages that were acknowledged.",
            &[
                ("{duplicate=\"false\"}".into(), count(&self.received)),
                ("{duplicate=\"true\"}".into(), count(&self.duplicates)),
            ],
        );
        metric(
            "turns_total",
            "counter",
            "Turns that ended, by outcome.",
            &[
                ("{outcome=\"done\"}".into(), count(&self.turns_done)),
                ("{outcome=\"failed\"}".into(), count(&self.turns_failed)),
            ],
        );
        metric("turns_running", "gauge", "Turns that are being answered.", &one(running as f64));
        let labelled = |name: &str, key: String, n: u64| (format!("{{{name}=\"{key}\"}}"), n as f64);
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let rows: Vec<_> = requests.iter().map(|(code, n)| labelled("code", code.to_string(), *n)).collect();
        metric("http_requests_total", "counter", "Answered requests, by status.", &rows);
        let refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let rows: Vec<_> = refusals.iter().map(|(code, n)| labelled("code", (*code).to_owned(), *n)).collect();
        metric("store_errors_total", "counter", "Calls of the store that failed, by error code.", &rows);
        let yes = |truth: bool| if truth { 1.0 } else { 0.0 };
        metric("store_up", "gauge", "1 if the store answered just now.", &one(yes(health.is_some())));
        if let Some(health) = health {
            let fenced = one(yes(health.fenced));
            metric("store_fenced", "gauge", "1 while cut off from a retired generation.", &fenced);
            let current = one(yes(health.current));
            metric("store_generation_current", "gauge", "1 if the paths name the files in use.", &current);
        }
        page
    }
}
