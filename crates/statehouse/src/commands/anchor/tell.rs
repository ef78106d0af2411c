//! What an anchor says, as JSON for programs and as sentences for people.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};
use statehouse_sqlite::anchor::{Anchor, Kept, KeptBack};
use statehouse_sqlite::holders::{self, Holder};
use statehouse_sqlite::words;
use statehouse_sqlite::{Family, Generation};

use crate::output::Output;
use crate::text;

/// What it means for a process that goes on in what was removed.
const KEPT_BACK: &str =
    "whoever still writes there can commit, but nothing of that is copied into the main file, and that log grows";

fn path(family: &Family) -> String {
    family.main().to_string_lossy().into_owned()
}

pub(super) fn waiting(output: Output, database: &Path, what: &str) {
    tell(output, &json!({"event": "waiting", "path": database.to_string_lossy(), "for": what}));
}

pub(super) fn anchored(output: Output, family: &Family, held: &Anchor) {
    tell(output, &json!({"event": "anchored", "path": path(family), "generation": held.generation()}));
}

pub(super) fn released(output: Output, family: &Family, generation: &Generation, why: &str) {
    tell(
        output,
        &json!({
            "event": "released",
            "pid": std::process::id(),
            "path": path(family),
            "generation": generation,
            "why": why,
        }),
    );
}

pub(super) fn keeping(output: Output, family: &Family, kept: &Kept) {
    let until = jiff::Timestamp::now().checked_add(kept.left()).unwrap_or(jiff::Timestamp::MAX);
    tell(
        output,
        &json!({
            "event": "keeping",
            "pid": std::process::id(),
            "path": path(family),
            "generation": kept.generation(),
            "files": kept.files(),
            "transactions": kept.transactions(),
            "kept_back": kept.kept_back() == KeptBack::Yes,
            "until": format!("{until:.6}"),
            "capture": holders::capture_command(family, i32::try_from(std::process::id()).ok()),
        }),
    );
}

/// Told where it was not yet so when it was told what is kept.
pub(super) fn kept_back(output: Output, family: &Family, kept: &Kept) {
    tell(
        output,
        &json!({
            "event": "kept_back",
            "pid": std::process::id(),
            "path": path(family),
            "generation": kept.generation(),
        }),
    );
}

pub(super) fn let_go(output: Output, family: &Family, kept: &Kept, why: impl Serialize) {
    tell(
        output,
        &json!({
            "event": "let_go",
            "pid": std::process::id(),
            "path": path(family),
            "generation": kept.generation(),
            "why": why,
        }),
    );
}

pub(super) fn finding(output: Output, family: &Family, event: &str, holder: &Holder) {
    tell(
        output,
        &json!({
            "event": event,
            "pid": holder.pid,
            "path": path(family),
            "start_time": holder.start_time,
            "command": holder.command,
            "role": holder.role,
            "files": holder.files,
            "locks": holder.locks,
            "hold": holder.hold,
            "capture": holder.capture,
            "stop": holder.stop,
            "remedy": holder.remedy(),
        }),
    );
}

fn tell(output: Output, event: &Value) {
    if output.json {
        output.document(event);
    } else {
        print_line(&event.to_string(), output);
    }
}

/// Prints a line that an anchor printed as JSON, for a person.
pub(crate) fn print_line(line: &str, output: Output) {
    let Ok(value) = serde_json::from_str::<Value>(line) else { return };
    if let Some(sentence) = sentence(&value) {
        output.text(&text::escape_line(&sentence));
    }
}

fn sentence(value: &Value) -> Option<String> {
    let command = value["command"].as_array().and_then(|c| c.first()).and_then(Value::as_str);
    let name = value["role"].as_str().or(command).map(|n| format!(" ({n})")).unwrap_or_default();
    let who = value["pid"].as_u64().map_or_else(|| "a process".to_owned(), |p| format!("PID {p}{name}"));
    let path = value["path"].as_str().unwrap_or("the database");
    let remedy = value["remedy"].as_str().unwrap_or_default();
    let why = value["why"].as_str().unwrap_or_default();
    Some(match value["event"].as_str()? {
        "waiting" => match value["for"].as_str().unwrap_or_default() {
            "database" => format!("waiting until {path} exists"),
            "wal_mode" => format!("waiting until {path} is in WAL mode"),
            "rollback" => format!("waiting until the program of {path} has rolled back an interrupted transaction"),
            _ => format!("waiting until {path} is free"),
        },
        "anchored" => format!("{path} is anchored"),
        "released" => match why {
            "maintenance" => {
                format!("{path} is not anchored while maintenance is done; the anchor comes back by itself")
            }
            "retired" => format!("{path} is no longer anchored: its files were removed or replaced"),
            _ => format!("{path} is no longer anchored"),
        },
        "keeping" => {
            let file =
                |f: &Value| Some(format!("/proc/{}/fd/{} ({})", value["pid"], f["descriptor"], f["member"].as_str()?));
            let files: Vec<String> = value["files"].as_array()?.iter().filter_map(file).collect();
            let grows = if value["kept_back"] == true { format!("; {KEPT_BACK}") } else { String::new() };
            format!(
                "removed or replaced files of {path} with {} in their log can still be read: {}; copy them \
                 with `{}` before this anchor is stopped, and before {}{grows}",
                words::count(value["transactions"].as_u64().unwrap_or(0), "transaction"),
                files.join(", "),
                value["capture"].as_str().unwrap_or_default(),
                value["until"].as_str().unwrap_or_default()
            )
        }
        "kept_back" => format!("removed or replaced files of {path}: {KEPT_BACK}"),
        "let_go" => {
            let what = format!("removed or replaced files of {path} are no longer kept");
            match why {
                "captured" => format!("{what}: they were copied"),
                "expired" => format!("{what}: nobody has copied them for a day"),
                "crowded_out" => format!("{what}: newer ones took their place"),
                "stopped" => format!("{what}: the anchor was stopped"),
                _ => format!("{what}: there is nothing in them that is lost"),
            }
        }
        "naked_holder" => format!("{who} has lost its locks on {path}; before anybody else opens it, {remedy}"),
        "ghost" => {
            format!("{who} is writing into deleted or replaced files of {path}; its rows are nowhere else: {remedy}")
        }
        _ => return None,
    })
}
