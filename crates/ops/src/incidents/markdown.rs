//! An incident as a report that can be sent to somebody: what happened, to whom, why, what is lost, what is to be done.
//!
//! It says no more than was checked. Where our code has not proved that nothing is lost, the report says that it is not known.

use super::IncidentDocument;
use statehouse_sqlite::words;

/// Text that may hold anything as one harmless line of Markdown.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' => out.extend(['\\', c]),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// The first letter as at the beginning of a sentence, and a full stop at its end.
fn sentence(text: &str) -> String {
    let text = plain(text.trim());
    let mut letters = text.chars();
    let Some(first) = letters.next() else { return String::new() };
    let rest = letters.as_str();
    let stop = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{}{rest}{stop}", first.to_uppercase())
}

/// A process as a person would name it.
fn who(pid: u32, role: &str) -> String {
    match role {
        "" => "a person".to_owned(),
        role => format!("{} (PID {pid})", plain(role)),
    }
}

/// The report. `database` is the main file, `path` is what names it on a command line; it may be empty.
pub fn markdown(incident: &IncidentDocument, database: &str, path: &str) -> String {
    let sections = [
        ("", head(incident, database)),
        ("Timeline (UTC)", timeline(incident)),
        ("Impact", impact(incident)),
        ("Cause", cause(incident)),
        ("Data loss", loss(incident)),
        ("What was done", done(incident)),
        ("Actions", actions(incident, path)),
    ];
    let mut out = format!("# {}\n", incident.title);
    for (title, text) in sections {
        if !title.is_empty() {
            out.push_str(&format!("\n## {title}\n"));
        }
        out.push('\n');
        out.push_str(&text);
    }
    out
}

fn head(i: &IncidentDocument, database: &str) -> String {
    let state = match (&i.closed_at, i.needs_person) {
        (Some(at), _) => format!("closed at {at}"),
        (None, true) => "open; a person must do something".to_owned(),
        (None, false) => "open; it closes by itself when every process is back".to_owned(),
    };
    let times =
        if i.count > 1 { format!(" ({} times, the last time at {})", i.count, i.last_at) } else { String::new() };
    format!(
        "{}\n\n* Incident: `{}` (`{}`)\n* Database: {}\n* Began: {}{times}\n* State: {state}\n",
        sentence(&i.what),
        i.id,
        i.kind,
        plain(database),
        i.at,
    )
}

fn timeline(i: &IncidentDocument) -> String {
    let mut out = String::from("| time | who | what |\n|---|---|---|\n");
    for (n, entry) in i.timeline.iter().enumerate() {
        // As many as the record keeps of the beginning.
        if i.timeline_left_out > 0 && n == 20 {
            out.push_str(&format!(
                "| | | {} {} left out here |\n",
                words::count(i.timeline_left_out, "entry"),
                words::verb(i.timeline_left_out, "is", "are")
            ));
        }
        let at = entry.at.trim_end_matches('Z').replace('T', " ");
        out.push_str(&format!("| {at} | {} | {} |\n", who(entry.pid, &entry.role), plain(&entry.sentence)));
    }
    out
}

fn impact(i: &IncidentDocument) -> String {
    if i.affected.is_empty() {
        return match i.kind {
            "refused_open" => "The process that was to use the database did not start.\n".to_owned(),
            _ => "No process was cut off.\n".to_owned(),
        };
    }
    let mut out = String::from("Cut off, so that nothing was read or acknowledged meanwhile:\n\n");
    for a in &i.affected {
        let who = who(u32::try_from(a.pid).unwrap_or(0), &a.role);
        let how_long = match a.ms {
            Some(ms) => format!("for {ms:.0} ms"),
            None => format!("since {}; it has not told that it is back", a.cut_off_at),
        };
        out.push_str(&format!("* {who} {how_long}\n"));
    }
    out
}

fn cause(i: &IncidentDocument) -> String {
    let cause = if i.cause.is_empty() { "Not known.".to_owned() } else { sentence(&i.cause) };
    let mut out = format!("{cause}\n");
    if !i.evidence.is_empty() {
        out.push_str("\nEvidence:\n\n");
        for line in &i.evidence {
            out.push_str(&format!("* {}\n", plain(line)));
        }
    }
    out
}

fn loss(i: &IncidentDocument) -> String {
    match &i.lost {
        Some(lost) => format!("{}\n", sentence(lost)),
        None if !i.proved.is_empty() => format!("{}\n", sentence(&i.proved)),
        None if i.nothing_lost => "Nothing that was acknowledged was lost.\n".to_owned(),
        None => "Nothing is known to be lost, and it is not proved yet that nothing is.\n".to_owned(),
    }
}

fn done(i: &IncidentDocument) -> String {
    if i.done.is_empty() {
        return "Nothing yet.\n".to_owned();
    }
    i.done.split("; ").map(|step| format!("* {}\n", plain(step))).collect()
}

/// What is between backquotes is to be typed, and stays as it is.
fn with_commands(text: &str) -> String {
    let parts = text.split('`').enumerate();
    parts.map(|(n, part)| if n % 2 == 0 { plain(part) } else { format!("`{part}`") }).collect()
}

fn actions(i: &IncidentDocument, path: &str) -> String {
    let path = if path.is_empty() { String::new() } else { format!(" {path}") };
    let mut out = String::new();
    if !i.next.is_empty() {
        out.push_str(&format!("* {}\n", with_commands(&i.next)));
    }
    out.push_str(&format!("* Prove that the database is healthy: `statehouse verify{path}`\n"));
    if matches!(
        i.kind,
        "retired_generation" | "replaced_file" | "locks_lost" | "locks_healed" | "destroyed" | "doubtful"
    ) {
        out.push_str(
            "* Find what removes, replaces or closes files there: look at what ran at the time of the first entry.\n",
        );
    }
    if i.open {
        out.push_str(&format!("* When that is done: `statehouse incidents close {}{path}`\n", i.id));
    }
    out
}
