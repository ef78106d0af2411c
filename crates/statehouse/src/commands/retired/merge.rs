//! `retired show`, `retired merge`: what only a capture has, and bringing it back.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use statehouse_ops::maintenance::look;
use statehouse_ops::retired::{self, Asked, Evidence, Kind, Merged, Shown, TableShown};
use statehouse_ops::snapshots::Wish;
use statehouse_sqlite::Event;
use statehouse_sqlite::words::{count, verb};

use crate::args::{RetiredMerge, RetiredShow};
use crate::commands::Context;
use crate::commands::progress::Bar;
use crate::exit;
use crate::failure::Result;
use crate::home::Place;
use crate::store;
use crate::text::{escape_line, table};

pub(crate) fn show(context: &Context, args: &RetiredShow) -> Result {
    let path = database(context, args.target.path.as_deref())?;
    let bar = Bar::new();
    let shown = with(context, &bar, |asked| retired::show(&path, &args.id, args.rows, asked))?;
    bar.clear();
    context.output.answer(&shown, |s| text(s) + &listed(s) + &verdict(s));
    Ok(exit::OK)
}

pub(crate) fn merge(context: &Context, args: &RetiredMerge) -> Result {
    let path = database(context, args.target.path.as_deref())?;
    let bar = Bar::new();
    let config = context.home.config()?.snapshots;
    let wish = Wish { patience: context.patience, keep: config.keep(), ..Wish::because("before-merge") };
    let evidence = || retired::keep(&path, &wish, &|progress| bar.told(progress));
    let merged = match (&args.into, args.dry_run) {
        (Some(into), _) => {
            let into = std::path::absolute(into).unwrap_or_else(|_| into.clone());
            with(context, &bar, |asked| retired::merge_into(&path, &args.id, &into, asked))?
        }
        (None, true) => with(context, &bar, |asked| retired::preview(&path, &args.id, asked))?,
        (None, false) if look(&path)?.is_ours() => own(context, &bar, &path, &args.id, &evidence)?,
        (None, false) => with(context, &bar, |asked| retired::merge(&path, &args.id, &evidence, asked))?,
    };
    bar.clear();
    context.output.answer(&merged, |m| text(&m.shown) + &done(m));
    Ok(if merged.read_back == Some(false) { exit::FINDING } else { exit::OK })
}

fn database(context: &Context, path: Option<&Path>) -> Result<PathBuf> {
    let path = Place::of(path, &context.home).database;
    store::must_exist(&path)?;
    Ok(path)
}

fn with<T>(context: &Context, bar: &Bar, work: impl FnOnce(&Asked<'_>) -> retired::Result<T>) -> retired::Result<T> {
    work(&Asked { scratch: &std::env::temp_dir(), patience: context.patience, watch: &|progress| bar.told(progress) })
}

/// A store of ours knows by itself what its rows mean: opening it takes over what its captures hold.
fn own(context: &Context, bar: &Bar, path: &Path, id: &str, evidence: Evidence<'_>) -> Result<Merged> {
    let mut preview = with(context, bar, |asked| retired::preview(path, id, asked))?;
    if preview.shown.to_bring_back() + preview.shown.conflicting() > 0 {
        preview.before = Some(evidence()?);
    }
    with(context, bar, |asked| retired::offer(path, id, asked))?;
    let rows = Arc::new(AtomicU64::new(0));
    let told = rows.clone();
    let observer = move |event: &Event| {
        if let Event::Merged { rows } = event {
            told.fetch_add(*rows, Ordering::Relaxed);
        }
    };
    store::open_observed(path, "retired merge", context.patience, Arc::new(observer))?;
    Ok(preview.taken(path, rows.load(Ordering::Relaxed)))
}

fn text(s: &Shown) -> String {
    let from = match s.source {
        Kind::Image => "its image",
        Kind::Log => "the pages of its log alone, which hold a part of the rows",
        Kind::Both => "its image and from the pages of its log, for each has rows that the other does not show",
    };
    let made = s.captured_at.as_deref().map_or_else(String::new, |at| format!(", captured {at}"));
    let pid = s.pid.map_or_else(String::new, |pid| format!(", from PID {pid}"));
    let mut out = escape_line(&format!("capture {}{made}{pid}", s.id)) + "\n";
    out += &format!(
        "{} in its log, {} of them not in the database; rows were read from {from}\n",
        count(s.transactions, "transaction"),
        s.commits_missing
    );
    let differs = |t: &TableShown| {
        t.missing + t.conflicting + t.renumbered > 0
            || t.not_compared.is_some()
            || !t.columns_only_captured.is_empty()
            || t.captured_as.is_some()
            || !t.columns_captured_as.is_empty()
            || t.only_here.is_some_and(|n| n > 0)
    };
    let rows: Vec<Vec<String>> = s.tables.iter().filter(|(_, t)| differs(t)).map(|(n, t)| row(n, t)).collect();
    if !rows.is_empty() {
        out += &table(&["TABLE", "MISSING", "RENUMBERED", "CONFLICTING", "SAME", "ONLY HERE", ""], &rows);
    }
    if s.unplaced > 0 {
        let fit = verb(s.unplaced, "fits", "fit");
        out += &format!(
            "{} of the log {fit} no table; a new file (`retired merge {} --into FILE`) has them in the table lost_and_found\n",
            count(s.unplaced, "row"),
            escape_line(&s.id)
        );
    }
    for gone in &s.gone {
        out += &format!("cannot be had or is not known: {}\n", escape_line(gone));
    }
    if let Some(restore) = &s.restore {
        out += &escape_line(&format!(
            "the capture is whole by itself; to put all of it in the place of the damaged database, whose files are kept: {restore}"
        ));
        out.push('\n');
    }
    for index in &s.rebuild {
        out += &escape_line(&format!(
            "no trigger tells the search index {} of rows that come to {}; when they are there: {}",
            index.index, index.over, index.command
        ));
        out.push('\n');
    }
    out
}

/// How it stands in one sentence; empty where the table of what differs says it.
fn verdict(s: &Shown) -> String {
    let not_compared = s.not_compared();
    if s.is_all_here() {
        "every row of it is in the database\n".to_owned()
    } else if not_compared > 0 {
        let was = verb(not_compared, "was", "were");
        let rest = format!("{} {was} not compared", count(not_compared, "table"));
        match s.to_bring_back() + s.conflicting() {
            0 => format!("no row is missing in what was compared; {rest}\n"),
            _ => format!("{rest}, so there may be more that only it has\n"),
        }
    } else {
        String::new()
    }
}

fn row(name: &str, t: &TableShown) -> Vec<String> {
    let mut notes = Vec::new();
    if t.only_captured {
        notes.push("the database has no such table".to_owned());
    }
    if let Some(why) = &t.left_alone {
        notes.push(format!("not brought back: {why}"));
    }
    if let Some(why) = &t.not_compared {
        notes.push(format!("not compared: {why}"));
    }
    if let Some(why) = &t.aside {
        notes.push(format!("kept aside: {why}"));
    }
    if let Some(there) = &t.captured_as {
        notes.push(format!("{there} in the capture"));
    }
    for (here, there) in &t.columns_captured_as {
        notes.push(format!("the column {here} is {there} in the capture"));
    }
    if !t.columns_only_captured.is_empty() {
        notes.push(format!("only the capture has the columns {}", t.columns_only_captured.join(", ")));
    }
    vec![
        escape_line(name),
        t.missing.to_string(),
        t.renumbered.to_string(),
        t.conflicting.to_string(),
        t.same.to_string(),
        t.only_here.map_or_else(|| "unknown".to_owned(), |n| n.to_string()),
        escape_line(&notes.join("; ")),
    ]
}

fn listed(s: &Shown) -> String {
    let mut out = String::new();
    for (name, table) in &s.tables {
        let Some(rows) = &table.rows else { continue };
        for (what, keys) in [("missing", &rows.missing), ("conflicting", &rows.conflicting)] {
            for key in keys {
                out += &format!("{}\n", escape_line(&format!("{name} {what} {key}")));
            }
        }
        if rows.truncated {
            out += &format!("{} and more\n", escape_line(name));
        }
    }
    out
}

/// What may happen to rows that are there.
fn changes(s: &Shown) -> String {
    let of: Vec<String> = s.may_change.iter().map(|(table, by)| format!("{table} ({})", by.join(", "))).collect();
    format!("; rows that are there may be changed or taken away in {}", of.join("; "))
}

fn done(m: &Merged) -> String {
    let mut out = String::new();
    if m.dry_run {
        let rows = count(m.shown.to_bring_back(), "row");
        out += &match m.shown.would_refuse.as_deref() {
            // Nothing is brought into it.
            Some("damaged_database") => format!("{rows} could be brought back if the database were sound\n"),
            _ if m.shown.may_change.is_empty() => format!("would bring {rows} back and change no row that is there\n"),
            _ => format!("would bring {rows} back{}\n", escape_line(&changes(&m.shown))),
        };
        out += &verdict(&m.shown);
        if let Some(code) = &m.shown.would_refuse {
            let because = m.shown.refused_because.as_ref().map_or_else(String::new, |b| format!(" ({b})"));
            out += &escape_line(&format!("and would be refused now: {code}{because}"));
            out.push('\n');
        }
        return out;
    }
    let brought = format!("{} {} brought back", count(m.rows, "row"), verb(m.rows, "was", "were"));
    match (&m.into, m.done) {
        (Some(into), _) => out += &format!("{brought} in {}\n", escape_line(&into.to_string_lossy())),
        (None, true) => out += &format!("{brought}\n"),
        (None, false) => out += "there was nothing to bring back, and the database was not changed\n",
    }
    if !m.done || m.shown.not_compared() > 0 {
        out += &verdict(&m.shown);
    }
    if let Some(list) = &m.conflicts {
        let n = m.shown.conflicting();
        let stand = verb(n, "stands against another and was", "stand against others and were");
        out += &format!("{} {stand} left: {}\n", count(n, "row"), escape_line(&list.to_string_lossy()));
    }
    if let Some(before) = &m.before {
        out += &format!("the database as it was before: {}\n", escape_line(&before.to_string_lossy()));
    }
    if m.read_back == Some(false) {
        out += "a fresh connection does not find all of them; run `statehouse holders` and `statehouse verify`\n";
    }
    out
}
