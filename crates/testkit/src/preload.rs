//! Small libraries in C that are preloaded into the processes of a test, and small programs, compiled when they are first
//! wanted.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::need::build_directory;

/// The compiled library; built once for each content of its source.
pub(crate) fn library(name: &str, source: &str) -> PathBuf {
    built(name, source, &format!("lib{name}"), ".so", &["-shared", "-fPIC"])
}

/// The compiled program; built once for each content of its source.
pub(crate) fn program(name: &str, source: &str) -> PathBuf {
    built(name, source, name, ".run", &[])
}

fn built(name: &str, source: &str, file: &str, suffix: &str, kind: &[&str]) -> PathBuf {
    let mut hash = DefaultHasher::new();
    source.hash(&mut hash);
    let path = build_directory().join(format!("{file}-{:016x}{suffix}", hash.finish()));
    if !path.exists() {
        compile(name, source, &path, kind);
    }
    path
}

fn compile(name: &str, source: &str, path: &Path, kind: &[&str]) {
    // Several test binaries may come here at once: each builds under a name of its own, and the rename decides.
    let own = path.with_extension(format!("{}.c", std::process::id()));
    let built = path.with_extension(format!("{}.so", std::process::id()));
    fs::write(&own, source).expect("write the source of the library");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(compiler)
        .args(["-O2", "-Wall", "-Werror"])
        .args(kind)
        .arg("-o")
        .arg(&built)
        .arg(&own)
        .arg("-ldl")
        .status()
        .expect("start the C compiler");
    assert!(status.success(), "{name} does not compile");
    fs::rename(&built, path).expect("put the library in place");
    let _ = fs::remove_file(&own);
}
