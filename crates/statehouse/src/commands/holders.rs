//! `statehouse holders [PATH]`: which processes use a database, and whether they still hold their locks.

use std::path::Path;

use statehouse_sqlite::holders::{Holder, Report, Standing, Verdict, scan};
use statehouse_sqlite::{Error, Family, Member, Reason, Status};

use super::Context;
use crate::args::Holders;
use crate::exit;
use crate::failure::Result;
use crate::home::Place;
use crate::store;
use crate::text::{escape_line, shorten, table};

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
    let family = Family::of(path)?;
    let report = scan(&family)?;
    let main = Status::of(&family.main()).map_err(|e| Error::io("look at", &family.main(), e))?;
    // A main file that was removed under a process that goes on is exactly what this is asked for.
    if main.is_none() && report.holders.is_empty() {
        return Err(Error::refused(Reason::NoStore, family.main(), "").into());
    }
    Ok(report)
}

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
    for limit in &report.limits {
        out.push_str(&format!("note: {}\n", escape_line(limit)));
    }
    out
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
        members.join(","),
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
        format!(
            "{who} is writing into deleted or replaced files: its rows are nowhere else. Keep it running until they are copied; what stops it is: {}",
            h.stop
        )
    } else {
        format!("{who} has lost its locks: the next visitor can cut it off. Stop it in an orderly way: {}", h.stop)
    }
}
