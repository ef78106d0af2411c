//! `retired capture`, `retired list`: what is saved before its process ends.

use serde::Serialize;
use serde_json::{Value, json};
use statehouse_ops::progress::Progress;
use statehouse_sqlite::Family;
use statehouse_sqlite::capture::{self, Capture, Failed, Taken, Took, Wanted, Whose};
use statehouse_sqlite::holders::{NOT_ORDERLY, SHARED_LOG};
use statehouse_sqlite::words::count;

use crate::args::{RetiredCapture, Target};
use crate::commands::Context;
use crate::commands::progress::Bar;
use crate::exit;
use crate::failure::{Failure, Result};
use crate::home::Place;
use crate::store;
use crate::text::{bytes, escape_line, shell_word, shorten, table};

/// A capture as `list` and `capture` tell it.
#[derive(Serialize)]
struct Told {
    id: String,
    captured_at: String,
    pid: u32,
    pids: Vec<u32>,
    command: Vec<String>,
    role: Option<String>,
    origin: capture::Origin,
    frames: u64,
    transactions: u64,
    sound: Option<bool>,
    image: bool,
    detail: String,
    merged: bool,
    /// Rows that stand against others and were kept, when it was merged.
    conflicts: u64,
    /// Where these are listed.
    conflicts_list: Option<String>,
    /// What else the merge has left, a sentence each.
    left: Vec<String>,
    supersedes: Option<String>,
    bytes: u64,
    place: String,
}

impl Told {
    fn of(capture: &Capture) -> Told {
        let m = &capture.manifest;
        let merge = capture.merge();
        let left = merge.clone().unwrap_or_default();
        let moment =
            i64::try_from(m.captured_at_unix_us).ok().and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
        let image = match capture.origin {
            capture::Origin::Statehouse => capture.image(&capture.place).is_ok_and(|i| i.is_some()),
            capture::Origin::Hermes => m.files.iter().any(|f| !f.name.ends_with("-wal") && !f.name.ends_with("-shm")),
        };
        Told {
            id: capture.id.clone(),
            captured_at: format!("{:.6}", moment.unwrap_or(jiff::Timestamp::UNIX_EPOCH)),
            pid: m.pid,
            pids: if m.pids.is_empty() { vec![m.pid] } else { m.pids.clone() },
            command: m.command.clone(),
            role: m.role.clone(),
            origin: capture.origin,
            frames: m.frames,
            transactions: m.transactions,
            sound: m.sound,
            image,
            detail: m.detail.clone(),
            merged: merge.is_some(),
            conflicts: left.conflicts,
            conflicts_list: left.list.map(|l| l.display().to_string()),
            left: left.left,
            supersedes: m.supersedes.clone(),
            bytes: capture.bytes(),
            place: capture.place.display().to_string(),
        }
    }
}

fn family(context: &Context, target: &Target) -> Result<Family> {
    let place = Place::of(target.path.as_deref(), &context.home);
    store::must_exist(&place.database)?;
    // A ghost of a database whose files are all gone is what this is for, so nothing needs to be at the path.
    Ok(Family::of(&crate::commands::holders::followed(&place.database)?)?)
}

pub(crate) fn capture(context: &Context, args: &RetiredCapture) -> Result {
    let family = family(context, &args.target)?;
    let whose = args.pid.map_or(Whose::All, Whose::Pid);
    let bar = Bar::new();
    bar.begins("looking for processes", None);
    let begun = std::cell::Cell::new(0);
    let watch = |done: u64, total: u64| {
        if begun.replace(total) != total {
            bar.told(Progress::Begins { what: "copying", bytes: Some(total) });
        }
        bar.told(Progress::At(done));
    };
    let taken = capture::take(&family, &Wanted { whose, role: "capture", watch: &watch });
    drop(bar);
    let taken = taken?;
    let code = if taken.failed.is_empty() {
        exit::OK
    } else if taken.captures.is_empty() && taken.failed.iter().all(|f| f.why.is_refusal()) {
        exit::REFUSED
    } else {
        exit::FINDING
    };
    let path = family.main();
    context.output.answer(&document(&family, taken), |document| text(document, &path.display().to_string()));
    Ok(code)
}

fn document(family: &Family, taken: Taken) -> Value {
    let captures: Vec<Value> = taken.captures.iter().map(|took| of_took(family, took)).collect();
    let failed: Vec<Value> = taken.failed.into_iter().map(of_failed).collect();
    json!({ "captures": captures, "failed": failed, "limits": taken.limits })
}

fn of_took(family: &Family, took: &Took) -> Value {
    let mut told = serde_json::to_value(Told::of(&took.capture)).unwrap_or_default();
    let path = shell_word(&family.main().display().to_string());
    told["already"] = took.already.into();
    told["pids"] = took.pids.clone().into();
    told["incident"] = took.incident.clone().into();
    told["stop"] = took.stop.clone().into();
    told["end"] = took.end.clone().into();
    told["kill"] = took.kill.into();
    told["shares_log"] = took.capture.manifest.shares_log().into();
    told["next"] = format!("statehouse retired show {} {path}", shell_word(&took.capture.id)).into();
    told
}

fn of_failed(failed: Failed) -> Value {
    let pid = failed.pid;
    let why = Failure::from(failed.why);
    json!({ "pid": pid, "error": why })
}

fn text(document: &Value, path: &str) -> String {
    let list = |name: &str| document[name].as_array().cloned().unwrap_or_default();
    let word = |value: &Value| escape_line(value.as_str().unwrap_or_default());
    let mut out = String::new();
    for c in list("captures") {
        let pids: Vec<String> = c["pids"].as_array().into_iter().flatten().map(Value::to_string).collect();
        let number = |field: &str, one: &str| count(c[field].as_u64().unwrap_or(0), one);
        let done =
            if c["already"] == true { "was captured before, and has written nothing since" } else { "is captured" };
        out.push_str(&format!(
            "What PID {} has in deleted or replaced files of {} {done}: {} in {}, {}.\n  {}\n",
            pids.join(", "),
            escape_line(path),
            number("transactions", "transaction"),
            number("frames", "frame"),
            bytes(c["bytes"].as_u64().unwrap_or(0)),
            word(&c["place"]),
        ));
        match (c["image"] == true, &c["sound"]) {
            (false, _) => out.push_str(&format!("  It has the log alone: {}.\n", word(&c["detail"]))),
            (true, Value::Bool(false)) => out.push_str(&format!(
                "  Something else has changed the main file meanwhile, so the rows are to be had from the log: {}.\n",
                word(&c["detail"])
            )),
            _ => {}
        }
        out.push_str(&format!("  What only it has: {}\n", word(&c["next"])));
        let end: Vec<String> = c["end"].as_array().into_iter().flatten().map(word).collect();
        out.push_str(match (end.len() > 1, c["kill"] == true) {
            (true, true) => {
                "  What the process writes from here on is not in the capture. To end it without losing that, hold it, copy once \
                 more, and kill it"
            }
            (false, true) => "  The process is held and may be killed now",
            (_, false) => "  The process may be stopped now; what it writes from here on is not in the capture",
        });
        let why = match (c["kill"] == true, c["shares_log"] == true) {
            (true, true) => format!(" ({SHARED_LOG})"),
            (true, false) => format!(" ({NOT_ORDERLY})"),
            _ => String::new(),
        };
        out.push_str(&format!("{why}:\n    {}\n", end.join("\n    ")));
    }
    for f in list("failed") {
        let error = &f["error"];
        out.push_str(&format!("Not captured: {}.\n", word(&error["message"])));
        for part in ["detail", "hint"].map(|p| word(&error[p])).into_iter().filter(|p| !p.is_empty()) {
            out.push_str(&format!("  {part}\n"));
        }
    }
    if out.is_empty() {
        out = format!("No process has deleted or replaced files of {}.\n", escape_line(path));
    }
    for limit in list("limits") {
        out.push_str(&format!("note: {}\n", word(&limit)));
    }
    out
}

pub(crate) fn list(context: &Context, target: &Target) -> Result {
    let family = family(context, target)?;
    let captures: Vec<Told> = capture::list(&family)?.iter().map(Told::of).collect();
    context.output.answer(&captures, |captures| rows(captures, &family.main().display().to_string()));
    Ok(exit::OK)
}

fn rows(captures: &[Told], path: &str) -> String {
    if captures.is_empty() {
        return format!("There is no capture beside {}.\n", escape_line(path));
    }
    let row = |c: &Told| {
        let state = match (c.merged, c.image, c.sound) {
            (true, ..) if c.conflicts > 0 => format!("merged, {} kept", count(c.conflicts, "conflict")),
            (true, ..) if !c.left.is_empty() => "merged in part".to_owned(),
            (true, ..) => "merged".to_owned(),
            (_, false, _) => "log alone".to_owned(),
            (_, _, Some(false)) => "not sound".to_owned(),
            _ => "whole".to_owned(),
        };
        vec![
            escape_line(&c.id),
            c.captured_at.get(..19).unwrap_or_default().to_owned(),
            c.pid.to_string(),
            c.transactions.to_string(),
            bytes(c.bytes),
            state,
            shorten(&escape_line(&c.command.join(" ")), 60),
        ]
    };
    let rows: Vec<_> = captures.iter().map(row).collect();
    let mut out = table(&["ID", "CAPTURED (UTC)", "PID", "TRANSACTIONS", "SIZE", "STATE", "COMMAND"], &rows);
    for c in captures {
        if let Some(list) = &c.conflicts_list {
            out.push_str(&escape_line(&format!("{}: what was kept is listed in {list}", c.id)));
            out.push('\n');
        }
        for left in &c.left {
            out.push_str(&escape_line(&format!("{}: {left}", c.id)));
            out.push('\n');
        }
    }
    out
}
