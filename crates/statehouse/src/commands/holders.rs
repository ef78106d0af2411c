//! `statehouse holders [PATH]`: which processes use a database, and whether they still hold their locks.

use std::path::{Path, PathBuf};

use statehouse_sqlite::holders::{Holder, Report, Standing, Verdict, scan};
use statehouse_sqlite::{Error, Family, Member, Reason, Status};

use super::Context;
use crate::args::Holders;
use crate::exit;
use crate::failure::Result;
use crate::home::Place;
use crate::store;
use crate::text::{bytes, escape_line, shorten, table};

pub(crate) fn run(context: &Context, holders: &Holders) -> Result {
    let place = Place::of(holders.target.path.as_deref(), &context.home);
    let report = look(&place.database)?;
    context.output.answer(&report, text);
    Ok(code(&report, holders.expect_quiet))
}

/// Everybody who uses the database at `path`.
///
/// # Errors
/// `no_store` when there is no database and nobody has one of this name open; or the system's answer.
pub(crate) fn look(path: &Path) -> Result<Report> {
    store::must_exist(path)?;
    let path = &followed(path)?;
    let family = Family::to_look_at(path)?;
    let report = scan(&family)?;
    let main = Status::of(&family.main()).map_err(|e| Error::io("look at", &family.main(), e))?;
    // A main file that was removed under a process that goes on is exactly what this is asked for.
    if main.is_none() && report.holders.is_empty() {
        return Err(Error::refused(Reason::NoStore, family.main(), "").into());
    }
    Ok(report)
}

/// The file that a path leads to. A program that was given a link has the real file open, with its log beside that one.
pub(crate) fn followed(path: &Path) -> Result<PathBuf> {
    let look = |path: &Path| Status::of(path).map_err(|e| Error::io("look at", path, e));
    let Some(status) = look(path)? else { return Ok(path.to_owned()) };
    let (real, status) = if status.mode & KIND == LINK {
        let dangling = |e: std::io::Error| Error::refused(Reason::Symlink, path, format!("it leads nowhere: {e}"));
        let real = std::fs::canonicalize(path).map_err(dangling)?;
        let status = look(&real)?;
        (real, status)
    } else {
        (path.to_owned(), Some(status))
    };
    match status {
        Some(status) if status.mode & KIND != REGULAR => {
            Err(Error::refused(Reason::NotRegular, real, "so no process can have a database open there").into())
        }
        _ => Ok(real),
    }
}

/// The bits of a mode that say what kind of file it is (`S_IFMT`, `S_IFLNK`, `S_IFREG`).
const KIND: u32 = 0o170_000;
const LINK: u32 = 0o120_000;
const REGULAR: u32 = 0o100_000;

fn code(report: &Report, expect_quiet: bool) -> u8 {
    match report.verdict {
        _ if report.alarming() => exit::FINDING,
        Verdict::Unknown => exit::REFUSED,
        Verdict::Held if expect_quiet => exit::FINDING,
        Verdict::Held | Verdict::Quiet => exit::OK,
    }
}

fn text(report: &Report) -> String {
    let path = escape_line(&report.path);
    let mut out = match report.verdict {
        Verdict::Quiet => format!("Nobody uses {path}.\n"),
        Verdict::Unknown => format!("Somebody may use {path}, and it cannot be found out who.\n"),
        Verdict::Held => format!("{path} is in use.\n"),
    };
    if !report.holders.is_empty() {
        let rows: Vec<Vec<String>> = report.holders.iter().map(row).collect();
        out.push_str(&table(&["PID", "ROLE", "USER", "FILES", "LOCKS", "COMMAND"], &rows));
    }
    for holder in report.holders.iter().filter(|h| h.naked || h.ghost) {
        out.push_str(&escape_line(&alarm(holder)));
        out.push('\n');
    }
    for holder in report.holders.iter().filter(|h| !(h.naked || h.ghost)) {
        out.push_str(&escape_line(&remedy(holder)));
        out.push('\n');
    }
    let unlinked = unlinked_bytes(report);
    if unlinked > 0 {
        let by: Vec<String> = report
            .holders
            .iter()
            .filter(|h| h.held_bytes > 0)
            .map(|h| {
                format!("PID {}: {}", h.pid.map_or_else(|| "?".to_owned(), |p| p.to_string()), bytes(h.held_bytes))
            })
            .collect();
        out.push_str(&format!(
            "{} of the disk are in deleted files that are still open ({}), and free again once their holders have ended.\n",
            bytes(unlinked),
            by.join(", ")
        ));
    }
    for limit in &report.limits {
        out.push_str(&format!("note: {}\n", escape_line(limit)));
    }
    out
}

/// What stops a holder about which nothing is wrong.
fn remedy(h: &Holder) -> String {
    let who = h.pid.map_or_else(|| "what cannot be seen from here".to_owned(), |pid| format!("PID {pid}"));
    match h.capture {
        Some(_) => format!("{who} has deleted or replaced files open; {}", h.remedy()),
        None => format!("to stop {who}: {}", h.stop),
    }
}

/// The length of all files that have no name any more. Several processes may hold the same one.
fn unlinked_bytes(report: &Report) -> u64 {
    let mut files: Vec<(u64, u64, u64)> = report
        .holders
        .iter()
        .flat_map(|h| &h.files)
        .filter(|f| f.deleted)
        .map(|f| (f.device, f.inode, f.size.unwrap_or(0)))
        .collect();
    // A map of a file may not tell its length where a descriptor of the same file does.
    files.sort_unstable_by(|a, b| b.cmp(a));
    files.dedup_by_key(|f| (f.0, f.1));
    files.iter().map(|f| f.2).sum()
}

fn row(h: &Holder) -> Vec<String> {
    let mut members: Vec<String> = Member::ALL
        .iter()
        .filter_map(|m| {
            let mut of = h.files.iter().filter(|f| f.member == *m).peekable();
            of.peek()?;
            Some(if of.any(|f| f.generation == Standing::Retired) { format!("{m}(retired)") } else { m.to_string() })
        })
        .collect();
    members.dedup();
    let locks = match (h.locks.shared, h.locks.dms) {
        (true, true) => "both",
        (true, false) => "main only",
        (false, true) => "shm only",
        (false, false) => "none",
    };
    vec![
        h.pid.map_or_else(|| "?".to_owned(), |p| p.to_string()),
        escape_line(h.role.as_deref().unwrap_or("-")),
        escape_line(h.user.as_deref().unwrap_or("?")),
        if h.parked { "none (parked)".to_owned() } else { members.join(",") },
        locks.to_owned(),
        shorten(&escape_line(&h.command.join(" ")), 100),
    ]
}

fn alarm(h: &Holder) -> String {
    let who = match h.pid {
        Some(pid) => {
            format!("PID {pid} ({})", h.role.as_deref().unwrap_or_else(|| h.command.first().map_or("?", |c| c)))
        }
        None => "A process that cannot be seen".to_owned(),
    };
    if h.ghost {
        let grows = if h.kept_back {
            " An anchor keeps them out of the main file, where they could run over others: its log grows meanwhile."
        } else {
            ""
        };
        format!(
            "{who} is writing into deleted or replaced files: its rows are nowhere else.{grows} To keep them, {}",
            h.remedy()
        )
    } else {
        format!("{who} has lost its locks: the next visitor can cut it off. Before one comes, {}", h.remedy())
    }
}
