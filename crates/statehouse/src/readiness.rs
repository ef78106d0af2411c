//! Ready means: this process just wrote a row, another process read it back through the path, and the descriptors and
//! locks are those of the current generation. Anything less is said to be what it is.

use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde::Serialize;
use statehouse_sessions::Store;
use statehouse_sqlite::Family;
use statehouse_sqlite::holders::{self, HeldLocks, Standing};

use crate::commands::probe::Seen;
use crate::failure::Envelope;
use crate::supervise::own_executable;

/// How long the other process may take.
const PROBE_LIMIT: Duration = Duration::from_secs(15);

/// The document of `/readyz`.
#[derive(Debug, Serialize)]
pub(crate) struct Readiness {
    ready: bool,
    canary: Canary,
    generation: Generation,
    locks: Locks,
}

#[derive(Debug, Serialize)]
struct Canary {
    written: bool,
    read_by_other_process: bool,
    ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Generation {
    current: bool,
    fenced: bool,
    #[serde(flatten)]
    files: Option<statehouse_sqlite::Generation>,
}

/// What the kernel says of this process, not what SQLite believes.
#[derive(Debug, Serialize)]
struct Locks {
    in_place: bool,
    #[serde(flatten)]
    held: Option<HeldLocks>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Proves it, now.
pub(crate) fn readiness(store: &dyn Store, database: &Path, role: &str) -> Readiness {
    let canary = canary(store, database, role);
    let generation = match store.health() {
        Ok(h) => Generation { current: h.current, fenced: h.fenced, files: h.generation.into() },
        Err(_) => Generation { current: false, fenced: true, files: None },
    };
    let locks = locks(database);
    let written = canary.written && canary.read_by_other_process;
    let ready = written && generation.current && !generation.fenced && locks.in_place;
    Readiness { ready, canary, generation, locks }
}

fn locks(database: &Path) -> Locks {
    match Family::of(database).and_then(|family| holders::scan(&family)) {
        Ok(report) => match report.holders.into_iter().find(|h| h.is_self) {
            Some(me) => {
                let current = me.files.iter().all(|f| f.generation == Standing::Current && !f.deleted);
                let in_place = current && me.locks.shared && me.locks.dms && !me.naked && !me.ghost;
                Locks { in_place, held: Some(me.locks), error: None }
            }
            None => Locks { in_place: false, held: None, error: Some("this process has no file of it open".into()) },
        },
        Err(e) => Locks { in_place: false, held: None, error: Some(e.to_string()) },
    }
}

fn canary(store: &dyn Store, database: &Path, role: &str) -> Canary {
    let begun = Instant::now();
    let mut canary = Canary { written: false, read_by_other_process: false, ms: 0.0, error: None };
    match store.write_canary(role) {
        Ok(token) => {
            canary.written = true;
            match other_process(database, role) {
                Ok(seen) if seen.token.as_deref() == Some(&token) => canary.read_by_other_process = true,
                // A later canary of the same process proves as much.
                Ok(seen) => canary.error = Some(format!("another process reads {:?}", seen.written_at)),
                Err(e) => canary.error = Some(e),
            }
        }
        Err(e) => canary.error = Some(e.to_string()),
    }
    canary.ms = begun.elapsed().as_secs_f64() * 1000.0;
    canary
}

/// The newest canary of `role` as a process of its own reads it through the path.
///
/// # Errors
/// Why nothing could be read, in words.
pub(crate) fn other_process(database: &Path, role: &str) -> Result<Seen, String> {
    let out = run_self(&["probe".as_ref(), "canary".as_ref(), "--".as_ref(), role.as_ref(), database.as_os_str()])?;
    serde_json::from_str(&out).map_err(|e| format!("another process answered what cannot be understood: {e}"))
}

/// Runs this program again with `--json` and returns its one document.
///
/// # Errors
/// What it answered as an error, or why it did not answer, in words.
pub(crate) fn run_self(arguments: &[&std::ffi::OsStr]) -> Result<String, String> {
    let mut process = own_executable()
        .arg("--json")
        .arg("--supervised-by")
        .arg(std::process::id().to_string())
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("no other process could be started: {e}"))?;
    let stdout = process.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(stdout) = stdout {
            let _ = stdout.take(1 << 20).read_to_string(&mut text);
        }
        text
    });
    let begun = Instant::now();
    let status = loop {
        match process.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begun.elapsed() > PROBE_LIMIT => {
                let _ = process.kill().and_then(|()| process.wait());
                return Err(format!("another process did not answer within {} s", PROBE_LIMIT.as_secs()));
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Err(e) => return Err(format!("the end of another process could not be observed: {e}")),
        }
    };
    let text = reader.join().unwrap_or_default();
    if status.success() {
        return Ok(text);
    }
    Err(match serde_json::from_str::<Envelope<'_>>(text.trim()) {
        Ok(envelope) => envelope.error.message.clone(),
        Err(_) => format!("another process ended with {}", crate::signals::describe(status)),
    })
}
