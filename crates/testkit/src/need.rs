//! What a test needs from the machine: there, or skipped where everyone sees it, or a failure in CI.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Says that a test cannot run here. With `CI=true` that is a failure, for a suite must not be green by absence.
pub fn skip(why: &str) {
    assert!(env::var_os("CI").is_none_or(|v| v != "true"), "CI=true, and this test cannot run: {why}");
    say(why);
}

fn say(why: &str) {
    // Written to the stream itself: the test harness hides what print macros write when a test passes.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {why}");
}

/// The path of a command, or `None` after saying that the test is skipped.
pub fn command(name: &str) -> Option<PathBuf> {
    let found = find(name);
    if found.is_none() {
        skip(&format!("there is no command {name}; `cargo xtask setup` installs it"));
    }
    found
}

/// As [`command`], for one that is a part of a system and that no set-up brings: its absence is said, in CI too.
pub fn command_of_the_system(name: &str) -> Option<PathBuf> {
    let found = find(name);
    if found.is_none() {
        say(&format!("this system has no command {name}"));
    }
    found
}

fn find(name: &str) -> Option<PathBuf> {
    env::var_os("PATH").and_then(|path| env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file()))
}

/// True for root; otherwise it is said that the test is skipped, in CI too: no set-up can make a user root.
pub fn root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        say(&format!("{what} needs root"));
    }
    root
}

/// Where tests may build programs: the test's own target directory, else the system's temporary one.
pub fn build_directory() -> PathBuf {
    env::var_os("CARGO_TARGET_TMPDIR").map_or_else(
        || {
            // Cargo tells only integration tests where the target directory is; every test binary lies inside it.
            let binary = env::current_exe().unwrap_or_default();
            binary
                .ancestors()
                .find(|dir| dir.join("CACHEDIR.TAG").is_file())
                .map_or_else(env::temp_dir, Path::to_path_buf)
        },
        PathBuf::from,
    )
}
