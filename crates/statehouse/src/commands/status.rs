//! `statehouse status [PATH]`: what a database is and how it stands, without opening it.

use statehouse_ops::StatusDocument;
use statehouse_sessions::sqlite::APPLICATION_ID;
use statehouse_sqlite::words;

use super::Context;
use super::snapshot::age;
use crate::args::Target;
use crate::config::Snapshots;
use crate::exit;
use crate::failure::Result;
use crate::home::Place;
use crate::store;
use crate::text::{bytes, escape_line};

pub(crate) fn run(context: &Context, target: &Target) -> Result {
    let place = Place::of(target.path.as_deref(), &context.home);
    store::must_exist(&place.database)?;
    let snapshots = match target.path.is_none() {
        // What cannot be read of the configuration is no reason to say nothing of the store.
        true => context.home.config().unwrap_or_default().snapshots,
        false => Snapshots { enabled: false, ..Snapshots::default() },
    };
    let every = snapshots.enabled.then_some(snapshots.every);
    let document = statehouse_ops::status(&place.database, APPLICATION_ID, every)?;
    context.output.answer(&document, text);
    Ok(if document.destroyed.is_some() { exit::FINDING } else { exit::OK })
}

fn text(d: &StatusDocument) -> String {
    let yes = |b: bool| if b { "works" } else { "does not work" };
    let members = match d.members.len() {
        0 => "no process of Statehouse has it open".to_owned(),
        _ => d.members.iter().map(|m| format!("{} (PID {})", m.role, m.process.pid)).collect::<Vec<_>>().join(", "),
    };
    let maintenance = &d.maintenance;
    let last_vacuum = match &maintenance.last_vacuum {
        Some(v) => format!("{} ({} before, {} after)", v.at, bytes(v.size_before), bytes(v.size_after)),
        None => "none".to_owned(),
    };
    let rows = [
        ("database", d.path.clone()),
        ("kind", d.kind.to_owned()),
        ("size", bytes(d.size)),
        ("log", bytes(d.wal_size)),
        ("journal mode", d.journal_mode.unwrap_or("unknown").to_owned()),
        ("user version", d.user_version.map_or_else(|| "unknown".to_owned(), |v| v.to_string())),
        (
            "SQLite",
            match &d.sqlite.last_writer {
                Some(v) => format!("{}, last written by {v}", d.sqlite.library),
                None => d.sqlite.library.to_owned(),
            },
        ),
        ("file system", format!("{} (WAL mode {} here)", d.filesystem.kind, yes(d.filesystem.wal_ok))),
        ("members", members),
        (
            "last snapshot",
            match &d.last_snapshot {
                Some(s) => format!("{} ({}, {} ago)", s.created_at, bytes(s.bytes), age(s.age_s)),
                None => "none".to_owned(),
            },
        ),
        ("open incidents", d.incidents_open.to_string()),
        ("last vacuum", last_vacuum),
    ];
    let mut out: String = rows.iter().map(|(name, value)| format!("{name:<15}  {}\n", escape_line(value))).collect();
    if let Some(destroyed) = &d.destroyed {
        out.push_str(&escape_line(&format!("DESTROYED: {}", destroyed.what)));
        out.push_str(&format!("\n  {}\n", escape_line(&destroyed.next)));
    }
    if d.heals_from_log {
        out.push_str("note: the first page of the main file is damaged; a good one is in the log, and the next checkpoint heals it\n");
    }
    if let Some(warning) = &d.snapshot_warning {
        out.push_str(&format!("warning: {}\n", escape_line(warning)));
    }
    if let Some(f) = &d.last_snapshot_error {
        out.push_str(&escape_line(&format!(
            "warning: {} in a row {} failed, the last at {}: {}",
            words::count(f.failures, "snapshot"),
            words::verb(f.failures, "has", "have"),
            f.at,
            f.error
        )));
        out.push('\n');
    }
    if let Some(since) = &maintenance.deferred_since {
        let by = if maintenance.by.is_empty() {
            maintenance.reason.clone().unwrap_or_default()
        } else {
            maintenance.by.join("; ")
        };
        out.push_str(&escape_line(&format!(
            "warning: a vacuum is due since {since} and was put off {}, because of {}",
            words::count(maintenance.deferrals, "time"),
            by
        )));
        out.push('\n');
    }
    out
}
