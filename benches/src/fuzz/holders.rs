//! The look at who uses a database, among processes that have strange names and arguments and hold strangely named files.
//!
//! Oracle: a process that was started with the database open is among the holders, by a descriptor on the main file, and is
//! neither naked nor a ghost; one that holds nothing, whatever its arguments say, holds no file.

use std::ffi::OsString;
use std::fs::File;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};
use statehouse_sqlite::holders::{Via, scan};
use statehouse_sqlite::rusqlite::Connection;
use statehouse_sqlite::{Family, Member};
use statehouse_testkit::Seed;

use crate::Budget;

pub(crate) fn run(budget: &mut Budget) -> Result<()> {
    while budget.more() {
        let room = tempfile::tempdir()?;
        let path = room.path().join(word(&mut budget.seed, "db"));
        // A database whose only connection is closed again: this process itself is no holder while it looks.
        Connection::open(&path)?.execute_batch("PRAGMA journal_mode=WAL; CREATE TABLE t(x);")?;
        let family = Family::of(&path)?;
        let mut with = sleeper(&mut budget.seed, &[path.clone().into_os_string()], Stdio::from(File::open(&path)?))?;
        let mut without = sleeper(&mut budget.seed, &[path.clone().into_os_string()], Stdio::null())?;
        let report = scan(&family);
        let ids = (with.id(), without.id());
        for child in [&mut with, &mut without] {
            child.kill()?;
            child.wait()?;
        }
        let report = report.with_context(|| format!("{}", path.display()))?;
        let of = |pid: u32| report.holders.iter().find(|h| h.pid.and_then(|p| u32::try_from(p).ok()) == Some(pid));
        let holder = of(ids.0).with_context(|| format!("the holder of {path:?} was not found: {report:?}"))?;
        ensure!(
            holder.files.iter().any(|f| f.member == Member::Main && f.via == Via::Descriptor)
                && !holder.ghost
                && !holder.naked,
            "{holder:?}"
        );
        ensure!(of(ids.1).is_none_or(|h| h.files.is_empty()), "{:?} holds nothing", of(ids.1));
    }
    Ok(())
}

/// A process that sleeps, under a random name, with random arguments around those given.
fn sleeper(seed: &mut Seed, arguments: &[OsString], input: Stdio) -> Result<Child> {
    let mut command = Command::new("/bin/sh");
    command.arg0(word(seed, "sh")).args(["-c", "exec sleep 100 <&0", "sh"]).arg(word(seed, "")).args(arguments);
    command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("a process to look at")
}

/// A name of random bytes and of what parsers of `/proc` trip over. No NUL and no slash, for no name may have them.
fn word(seed: &mut Seed, tail: &str) -> OsString {
    const ODD: &[&str] = &[
        " ",
        "\n",
        " (deleted)",
        ")",
        "(",
        "\\012",
        "\t",
        "-wal",
        "-shm",
        ":",
        "状",
        "->",
        "lock:\t1:",
        "'",
        "\"",
        "$(x)",
    ];
    let mut bytes = b"n".to_vec();
    for _ in 0..seed.below(6) {
        if seed.one_in(2) {
            bytes.extend_from_slice(seed.pick::<&str>(ODD).as_bytes());
        } else {
            bytes.extend(seed.bytes(3).into_iter().filter(|b| *b != 0 && *b != b'/'));
        }
    }
    bytes.extend_from_slice(tail.as_bytes());
    OsString::from_vec(bytes)
}
