//! `statehouse snapshot | snapshots [PATH]`: copies of a database that were proved to be good.

use serde::Serialize;
use statehouse_ops::snapshots::{self, Snapshot, Standing, Wish};
use statehouse_sqlite::Family;
use statehouse_sqlite::words;

use super::Context;
use super::progress::Bar;
use crate::args;
use crate::exit;
use crate::failure::Result;
use crate::home::Place;
use crate::store;
use crate::text::{bytes, escape_line};

pub(crate) fn take(context: &Context, args: &args::Snapshot) -> Result {
    let path = Place::of(args.target.path.as_deref(), &context.home).database;
    store::must_exist(&path)?;
    let config = context.home.config()?.snapshots;
    let wish = Wish {
        compress: args.zstd || config.compress,
        keep: config.keep(),
        patience: context.patience,
        ..Wish::because(&args.reason)
    };
    let bar = Bar::new();
    let taken = snapshots::take(&path, &wish, &|progress| bar.told(progress));
    bar.clear();
    context.output.answer(&taken?, taken_text);
    Ok(exit::OK)
}

fn taken_text(s: &Snapshot) -> String {
    let rows: i64 = s.rows.values().sum();
    let packed = if s.compressed { format!(" ({} unpacked)", bytes(s.plain_bytes)) } else { String::new() };
    let mut out = format!(
        "snapshot {}: {}{packed}, {} in {}, verified, in {:.1} s\n{}\n",
        escape_line(&s.id),
        bytes(s.bytes),
        words::count(rows.unsigned_abs(), "row"),
        words::count(s.rows.len() as u64, "table"),
        s.ms / 1000.0,
        escape_line(&s.path.to_string_lossy()),
    );
    for note in &s.notes {
        out.push_str(&format!("note: {}\n", escape_line(note)));
    }
    out
}

/// A snapshot with what only holds now.
#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    snapshot: Snapshot,
    /// Seconds since it was taken.
    age_s: u64,
    /// Its file has another length or time than it had when it was verified.
    changed: bool,
    /// Its file is not there.
    missing: bool,
}

pub(crate) fn list(context: &Context, target: &args::Target) -> Result {
    let path = Place::of(target.path.as_deref(), &context.home).database;
    let family = Family::of(&path)?;
    let found = snapshots::all(&family)?;
    if found.is_empty() {
        // A store that is gone may still have snapshots; only where there is neither is it worth saying.
        store::must_exist(&path)?;
    }
    let listed: Vec<Listed> = found
        .into_iter()
        .rev()
        .map(|snapshot| {
            let standing = match snapshot.path.as_os_str().is_empty() {
                true => Standing::AsRecorded,
                false => snapshot.standing(),
            };
            Listed {
                age_s: snapshot.age().as_secs(),
                changed: standing == Standing::Changed,
                missing: standing == Standing::Missing,
                snapshot,
            }
        })
        .collect();
    context.output.answer(&listed, |l| list_text(l));
    Ok(exit::OK)
}

fn list_text(listed: &[Listed]) -> String {
    if listed.is_empty() {
        return "no snapshots\n".to_owned();
    }
    let mut out = format!("{:<28}  {:>7}  {:>10}  {:>10}  {:<16}  state\n", "id", "age", "size", "rows", "reason");
    for l in listed {
        let s = &l.snapshot;
        let state = match (s.verified, l.missing, l.changed) {
            (false, ..) => format!("failed: {}", s.error.as_deref().unwrap_or_default()),
            (true, true, _) => "its file was removed".to_owned(),
            (true, false, true) => "its file was changed".to_owned(),
            (true, false, false) => "verified".to_owned(),
        };
        let (size, rows) = match s.verified {
            true => (bytes(s.bytes), s.rows.values().sum::<i64>().to_string()),
            false => ("-".to_owned(), "-".to_owned()),
        };
        out.push_str(&escape_line(&format!(
            "{:<28}  {:>7}  {size:>10}  {rows:>10}  {:<16}  {state}",
            s.id,
            age(l.age_s),
            s.reason
        )));
        out.push('\n');
    }
    out
}

/// A time as short as a table wants it.
pub(crate) fn age(seconds: u64) -> String {
    match seconds {
        s if s < 120 => format!("{s} s"),
        s if s < 2 * 3600 => format!("{} min", s / 60),
        s if s < 2 * 86400 => format!("{} h", s / 3600),
        s => format!("{} d", s / 86400),
    }
}
