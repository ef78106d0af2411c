//! Peers: other people's programs, installed by `cargo xtask setup`, that tests drive for real.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::need;

/// The Python interpreter that has hermes-agent 0.19.0, or `None` after saying that the test is skipped; with `CI=true`
/// its absence is a failure.
pub fn hermes_python() -> Option<PathBuf> {
    let python = peers().map(|p| p.join("hermes-agent/bin/python")).filter(|p| p.is_file());
    if python.is_none() {
        need::skip("hermes-agent is not installed; `cargo xtask setup` installs it");
    }
    python
}

/// Where the set-up installs peers: `$STATEHOUSE_PEERS`, else in the user's cache.
fn peers() -> Option<PathBuf> {
    if let Some(chosen) = env::var_os("STATEHOUSE_PEERS").filter(|v| !v.is_empty()) {
        return Some(chosen.into());
    }
    let cache = match env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|p| p.is_absolute()) {
        Some(cache) => cache,
        None => PathBuf::from(env::var_os("HOME")?).join(".cache"),
    };
    Some(cache.join("statehouse/peers"))
}

/// The program that builds a Hermes store; its arguments are explained in it.
pub fn hermes_program() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/programs/make_hermes_store.py"))
}

/// Builds a Hermes store at `path` with the package's own API, and returns what the program says that it made.
/// `None` if the package is not there.
pub fn make_hermes_store(path: &Path, sessions: u32, messages: u32, seed: u64) -> Option<Value> {
    hermes_store(path, &[&sessions.to_string(), &messages.to_string(), &seed.to_string()])
}

/// Appends messages to a Hermes store with the package's own API.
pub fn extend_hermes_store(path: &Path, messages: u32, seed: u64) -> Option<Value> {
    hermes_store(path, &["0", "0", &seed.to_string(), "--more", &messages.to_string()])
}

fn hermes_store(path: &Path, arguments: &[&str]) -> Option<Value> {
    let python = hermes_python()?;
    let done =
        Command::new(python).arg(hermes_program()).arg(path).args(arguments).output().expect("the peer's Python");
    assert!(done.status.success(), "make_hermes_store.py: {}", String::from_utf8_lossy(&done.stderr));
    Some(serde_json::from_slice(&done.stdout).expect("a JSON summary"))
}
