//! Small libraries and programs in C for the processes of a test, compiled when they are first wanted.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::need::build_directory;

/// The compiled library, to be preloaded; built once for each content of its source.
pub(crate) fn library(name: &str, source: &str) -> PathBuf {
    built(&format!("lib{name}"), ".so", &["-shared", "-fPIC"], source)
}

/// The compiled program; built once for each content of its source.
pub(crate) fn program(name: &str, source: &str) -> PathBuf {
    built(name, "", &[], source)
}

fn built(name: &str, end: &str, how: &[&str], source: &str) -> PathBuf {
    let mut hash = DefaultHasher::new();
    source.hash(&mut hash);
    let path = build_directory().join(format!("{name}-{:016x}{end}", hash.finish()));
    if !path.exists() {
        compile(how, source, &path);
    }
    path
}

fn compile(how: &[&str], source: &str, path: &Path) {
    // Several test binaries may come here at once: each builds under a name of its own, and the rename decides.
    let own = path.with_extension(format!("{}.c", std::process::id()));
    let built = path.with_extension(format!("{}.built", std::process::id()));
    fs::write(&own, source).expect("write the source");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let status = Command::new(compiler)
        .args(["-O2", "-Wall", "-Werror"])
        .args(how)
        .arg("-o")
        .arg(&built)
        .arg(&own)
        .arg("-ldl")
        .status()
        .expect("start the C compiler");
    assert!(status.success(), "{} does not compile", path.display());
    fs::rename(&built, path).expect("put it in place");
    let _ = fs::remove_file(&own);
}
