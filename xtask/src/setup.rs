//! Installs what the tests need beyond Rust, a C compiler and Python.
//!
//! The peer lives in a virtual environment of its own below `$STATEHOUSE_PEERS`, else in the user's cache directory. A
//! stamp file is written last, so an interrupted installation has none and is done again from nothing; a stamp that names
//! another version counts as none. A lock keeps two checkouts from installing at the same moment.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

/// The peer, pinned: the tests compare with what this very release does.
const PEER: &str = "hermes-agent==0.19.0";

/// Commands that tests run, with the Debian package that brings each.
const COMMANDS: &[(&str, &str)] =
    &[("sqlite3", "sqlite3"), ("strace", "strace"), ("curl", "curl"), ("lsof", "lsof"), ("fuser", "psmisc")];

/// Installs what is missing and returns the directory of the peers.
///
/// # Errors
/// With `CI=true` whatever could not be installed; otherwise only what makes the directory itself unusable.
pub(crate) fn run() -> Result<PathBuf> {
    let peers = directory()?;
    fs::create_dir_all(&peers).with_context(|| format!("cannot create {}", peers.display()))?;
    let lock = File::create(peers.join("setup.lock")).context("cannot create the lock of the set-up")?;
    lock.lock().context("cannot lock the set-up")?;
    tolerate("Debian's commands", debian())?;
    tolerate(PEER, hermes(&peers.join("hermes-agent")))?;
    Ok(peers)
}

fn directory() -> Result<PathBuf> {
    if let Some(chosen) = env::var_os("STATEHOUSE_PEERS").filter(|v| !v.is_empty()) {
        return std::path::absolute(chosen).context("STATEHOUSE_PEERS is not a usable path");
    }
    let cache = match env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|p| p.is_absolute()) {
        Some(cache) => cache,
        None => PathBuf::from(env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?).join(".cache"),
    };
    Ok(cache.join("statehouse/peers"))
}

/// On a developer's machine a missing peer costs its tests and is said; in CI it is a failure.
fn tolerate(what: &str, outcome: Result<()>) -> Result<()> {
    match outcome {
        Err(e) if env::var_os("CI").is_some_and(|v| v == "true") => Err(e.context(format!("cannot install {what}"))),
        Err(e) => {
            eprintln!("setup: cannot install {what}: {e:#}");
            eprintln!("setup: the tests that need it will print SKIPPED (with CI=true this is a failure)");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn hermes(venv: &Path) -> Result<()> {
    let stamp = venv.join("statehouse.stamp");
    if fs::read_to_string(&stamp).is_ok_and(|s| s.trim() == PEER) {
        return Ok(());
    }
    eprintln!("setup: installing {PEER} into {}", venv.display());
    if venv.exists() {
        fs::remove_dir_all(venv).with_context(|| format!("cannot remove the unfinished {}", venv.display()))?;
    }
    let create = || quiet(Command::new("python3").args(["-m", "venv"]).arg(venv));
    if let Err(first) = create() {
        // Debian splits the bootstrap of pip off into a package of its own.
        let _ = fs::remove_dir_all(venv);
        apt_install(&["python3-venv"]).context(first)?;
        create()?;
    }
    quiet(Command::new(venv.join("bin/python")).args(["-m", "pip", "install", "--quiet", "--no-input", PEER]))?;
    quiet(Command::new(venv.join("bin/python")).args(["-c", "import hermes_state"]))?;
    fs::write(&stamp, PEER).with_context(|| format!("cannot write {}", stamp.display()))
}

fn debian() -> Result<()> {
    let missing: Vec<&str> = COMMANDS.iter().filter(|(command, _)| !on_path(command)).map(|(_, p)| *p).collect();
    if missing.is_empty() {
        return Ok(());
    }
    eprintln!("setup: installing {}", missing.join(", "));
    apt_install(&missing)
}

fn apt_install(packages: &[&str]) -> Result<()> {
    ensure!(on_path("apt-get"), "{} missing, and there is no apt-get to install from", packages.join(", "));
    let root = fs::metadata("/proc/self").is_ok_and(|m| std::os::unix::fs::MetadataExt::uid(&m) == 0);
    let sudo = !root;
    if sudo && !Command::new("sudo").args(["-n", "true"]).stderr(Stdio::null()).status().is_ok_and(|s| s.success()) {
        bail!("{} missing; install with: sudo apt-get install {}", packages.join(", "), packages.join(" "));
    }
    let apt = |arguments: &[&str]| {
        let mut command = if sudo { Command::new("sudo") } else { Command::new("apt-get") };
        if sudo {
            command.args(["-n", "apt-get"]);
        }
        quiet(command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    let install: Vec<&str> =
        ["install", "--yes", "--quiet", "--no-install-recommends"].iter().chain(packages).copied().collect();
    // The lists are refreshed only when they do not serve, for that is the slow part.
    apt(&install).or_else(|_| apt(&["update", "--quiet"]).and_then(|()| apt(&install)))
}

fn on_path(command: &str) -> bool {
    env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|dir| dir.join(command).is_file()))
}

/// Runs a command without its output, which is shown only when it fails.
fn quiet(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    bail!("{name} ended with {}:\n{}", output.status, String::from_utf8_lossy(&said).trim_end())
}
