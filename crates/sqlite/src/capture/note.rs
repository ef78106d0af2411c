//! What is written down of a capture: its name, its manifest, and which older one it stands for.

use std::time::{SystemTime, UNIX_EPOCH};

use super::find::Ghost;
use super::make::{Files, Made};
use super::{By, Capture, CapturedFile, CapturedMember, Manifest, Origin};
use crate::captures::WHOLE;
use crate::error::Result;
use crate::family::{Family, Generation, Identity, Member, Status};
use crate::process;

/// Ends the name of a capture that has the log alone.
pub(super) const ALONE: &str = "-log";

/// One name for one state of one generation, as captures of our own processes have it.
pub(super) fn id(log: Option<Identity>, made: &Made, main_is_missing: bool) -> String {
    let (inode, born) = log.map_or((0, 0), |i| (i.inode, i.born_ns.unwrap_or(0)));
    let state = match made.log.header.filter(|_| made.log.frames > 0) {
        Some(header) => format!("{:08x}{:08x}-{}", header.salts[0], header.salts[1], made.log.frames),
        // Nothing but its content tells one main file from another.
        None => {
            let content = made.image.as_ref().map_or(&made.log.blake3, |i| &i.blake3);
            format!("empty-{}", content.get(..16).unwrap_or_default())
        }
    };
    let end = match &made.image {
        None => ALONE,
        Some(_) if main_is_missing => WHOLE,
        Some(_) => "",
    };
    format!("{inode:x}-{born:x}-{state}{end}")
}

#[expect(clippy::too_many_arguments, reason = "each is a part of what is written down, and there is one caller")]
pub(super) fn manifest(
    family: &Family,
    ghost: &Ghost,
    files: &Files,
    made: &Made,
    generation: Generation,
    at_path: Generation,
    copied: Vec<CapturedFile>,
    id: &str,
) -> Result<Manifest> {
    let main = made.main.and_then(|n| files.mains.get(n)).or(files.mains.first());
    let open = main.into_iter().chain(&files.log).map(|o| (&o.status, o.held.member));
    let open: Vec<(&Status, Member)> = open.chain(files.index.iter().map(|(s, held)| (s, held.member))).collect();
    let member = |(status, member): &(&Status, Member)| {
        let named = at_path.get(*member);
        CapturedMember {
            member: *member,
            deleted: status.links == 0,
            replaced: named.is_some_and(|n| n != status.identity),
            bytes: status.size,
        }
    };
    let lost = |(status, member): &&(&Status, Member)| at_path.get(*member) != Some(status.identity);
    let holder = &files.holder;
    let unsigned = |pid: Option<i32>| pid.and_then(|p| u32::try_from(p).ok());
    let pid = unsigned(holder.pid).unwrap_or(0);
    let imaged = made.image.as_ref();
    let frames = made.log.frames;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    Ok(Manifest {
        version: 2,
        database: family.main().display().to_string(),
        captured_at_unix_us: u64::try_from(now).unwrap_or(u64::MAX),
        pid,
        start_ticks: holder.start_ticks,
        pids: ghost.holders.iter().filter_map(|h| unsigned(h.pid)).collect(),
        command: holder.command.clone(),
        role: holder.role.clone(),
        by: Some(By { pid: std::process::id(), uid: rustix::process::geteuid().as_raw() }),
        sqlite: rusqlite::version().to_owned(),
        sqlite_library: library(pid),
        sqlite_writer: imaged.and_then(|i| i.writer.clone()),
        generation,
        at_path: Some(at_path),
        members_lost: open.iter().filter(lost).map(|(_, member)| *member).collect(),
        members: open.iter().map(member).collect(),
        page_size: imaged.map(|i| i.page_size).or(made.log.header.map(|h| h.page_size)).unwrap_or(0),
        salts: made.log.header.filter(|_| frames > 0).map(|h| h.salts),
        frames,
        transactions: made.log.transactions,
        pages: imaged.map_or(u64::from(made.log.size), |i| i.pages),
        sound: imaged.map(|i| i.unsound.is_empty()),
        detail: imaged.map_or_else(|| made.detail.clone(), |i| i.unsound.clone()),
        files: copied,
        supersedes: older(family, generation, made, id)?,
        kept_back: ghost.holders.iter().any(|h| h.kept_back),
    })
}

/// The newest capture of the same log that has nothing which this one lacks.
fn older(family: &Family, generation: Generation, made: &Made, id: &str) -> Result<Option<String>> {
    let Some(log) = generation.wal else { return Ok(None) };
    let salts = made.log.header.filter(|_| made.log.frames > 0).map(|h| h.salts);
    let has_less = |c: &Capture| {
        let further = c.manifest.salts == salts && c.manifest.frames <= made.log.frames;
        // What a log held before it was begun anew is in the main file.
        c.origin == Origin::Statehouse
            && c.id != id
            && c.manifest.generation.wal == Some(log)
            && (further || c.manifest.salts != salts && made.image.is_some())
    };
    Ok(super::list(family)?.into_iter().rev().find(has_less).map(|c| c.id))
}

/// The name of the SQLite library that a process has mapped.
fn library(pid: u32) -> Option<String> {
    let mut text = Vec::new();
    process::read_file(rustix::fs::CWD, &format!("/proc/{pid}/maps"), &mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let names = text.lines().filter_map(|line| line.rsplit_once('/').map(|(_, name)| name));
    names
        .filter(|name| name.contains("sqlite3") && name.contains(".so"))
        .max_by_key(|n| n.starts_with("lib"))
        .map(str::to_owned)
}
