//! The store itself: which files are in use, whether they are the ones that the paths name, and who holds them.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use serde_json::Value;
use statehouse_http::Problem;
use statehouse_sessions::Health;

use super::layout::Place;
use super::{HOLDERS_FRESH, Shown, shown};
use crate::app::App;
use crate::words::count;

const ANCHOR: &str = "anchor";

/// `GET /store`.
pub(crate) async fn store(State(app): State<Arc<App>>) -> Result<Response, Shown> {
    let health = app.store(|s| s.health()).await?;
    let holders = app.holders.ask(HOLDERS_FRESH).await;
    let snapshots = app.snapshots.ask(HOLDERS_FRESH).await;
    let content = html! {
        h1 { "Store" }
        section aria-labelledby="files" {
            h2 #files { "Files in use" }
            (verdict(&health))
            p { code.path { (health.path.display()) } }
            (generation(&health))
            @if let Ok(document) = &snapshots { (last_snapshot(document)) }
        }
        section aria-labelledby="who" {
            h2 #who { "Who holds them" }
            @match &holders {
                Ok(document) => (table(document, health.destroyed.is_some())),
                Err(problem) => (not_looked(problem)),
            }
        }
    };
    Ok(shown("Store", Place::Store, "", &content))
}

/// The card of the first page: the same in three lines.
pub(super) async fn card(app: &App, good_for: Duration) -> Markup {
    let health = app.store(|s| s.health()).await;
    let holders = app.holders.ask(good_for).await;
    html! {
        section.card aria-labelledby="store-card" {
            div.heading { h2 #store-card { "Store" } a href="/store" { "Files and holders" } }
            @match &health {
                Ok(health) => {
                    (verdict(health))
                    p { code.path { (health.path.display()) } }
                    dl.identities {
                        @for (name, identity) in members(health) {
                            div { dt { (name) } dd { (identity) } }
                        }
                    }
                },
                Err(problem) => (not_looked(problem)),
            }
            @match &holders {
                Ok(document) => (summary(document, health.as_ref().is_ok_and(|h| h.destroyed.is_some()))),
                Err(problem) => (not_looked(problem)),
            }
        }
    }
}

fn verdict(health: &Health) -> Markup {
    html! {
        @if let Some(destroyed) = &health.destroyed {
            p.state.bad { "Destroyed: " (destroyed.what) }
            p.state.bad { (destroyed.next) }
        } @else if health.fenced {
            p.state.bad { "Cut off: the files that this dashboard used were removed or replaced. It neither reads nor writes until it has opened the new ones." }
        } @else if health.current {
            p.state.good { "Current: the paths name the files that are in use." }
        } @else {
            p.state.bad { "Not current: the paths name other files than those that are in use, or nothing." }
        }
    }
}

fn members(health: &Health) -> [(&'static str, String); 3] {
    let generation = serde_json::to_value(health.generation).unwrap_or_default();
    ["main", "wal", "shm"].map(|name| match generation.get(name) {
        Some(Value::Object(id)) => (name, format!("device {}, inode {}", number(id, "device"), number(id, "inode"))),
        _ => (name, "none".into()),
    })
}

fn number(identity: &serde_json::Map<String, Value>, field: &str) -> u64 {
    identity.get(field).and_then(Value::as_u64).unwrap_or_default()
}

fn generation(health: &Health) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-labelledby="files" {
            table {
                thead { tr { th scope="col" { "File" } th scope="col" { "Identity" } } }
                tbody {
                    @for (name, identity) in members(health) { tr { th scope="row" { (name) } td { (identity) } } }
                }
            }
        }
    }
}

/// One line on the last good snapshot, and what a person should look after.
fn last_snapshot(document: &Value) -> Markup {
    let (last, failed) = (&document["last"], &document["failed"]);
    html! {
        @if last.is_object() {
            p.quiet {
                "Last good snapshot: " (text(last, "created_at")) ", "
                (last.get("bytes").and_then(Value::as_u64).unwrap_or_default()) " bytes."
            }
        } @else if document.is_object() {
            p.quiet { "There is no good snapshot yet." }
        }
        @if !text(document, "warning").is_empty() { p.state.warn { "Snapshots: " (text(document, "warning")) "." } }
        @if failed.is_object() { p.state.warn { "The last attempt failed: " (text(failed, "error")) } }
    }
}

fn not_looked(problem: &Problem) -> Markup {
    html! {
        div.notice.bad role="alert" { p { strong { (problem.message) } } p { (problem.hint) } }
    }
}

fn holders_of(document: &Value) -> &[Value] {
    document.get("holders").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn is(holder: &Value, what: &str) -> bool {
    holder.get(what) == Some(&Value::Bool(true))
}

fn text<'a>(holder: &'a Value, field: &str) -> &'a str {
    holder.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// What is wrong with a holder, in words.
fn faults(holder: &Value) -> Vec<&'static str> {
    let mut faults = Vec::new();
    if is(holder, "ghost") {
        faults.push("is writing into a deleted WAL");
    }
    if is(holder, "naked") {
        faults.push("has lost its locks");
    }
    faults
}

fn name(holder: &Value) -> String {
    let pid = holder.get("pid").and_then(Value::as_i64).map_or("An unseen process".to_owned(), |p| format!("PID {p}"));
    match text(holder, "role") {
        "" => pid,
        role => format!("{pid} ({role})"),
    }
}

/// `destroyed` is the content, whatever the locks are: then nothing of this is in order.
fn summary(document: &Value, destroyed: bool) -> Markup {
    let holders = holders_of(document);
    let bad: Vec<_> = holders.iter().filter(|h| !faults(h).is_empty()).collect();
    let unknown = text(document, "verdict") == "unknown";
    html! {
        @if let Some(error) = document.get("error") {
            (error_of(error))
        } @else if !bad.is_empty() {
            @for holder in bad { p.state.bad { (name(holder)) " " (faults(holder).join(" and ")) "." } }
        } @else if unknown {
            p.state.warn { "It could not be seen who holds it." }
        } @else if destroyed {
            p.state.warn {
                @match holders.len() { 1 => "One process holds it", n => { (n) " processes hold it" } }
                ". Those of Statehouse neither read nor write until what is left was restored."
            }
        } @else {
            p.state.good {
                @match holders.len() { 1 => "One process holds it", n => { (n) " processes hold it" } }
                ", and none has lost its locks."
            }
        }
        @if unknown && !holders.is_empty() { p.state.warn { "It could not be seen whether others hold it too." } }
    }
}

fn error_of(error: &Value) -> Markup {
    html! {
        div.notice.bad role="alert" { p { strong { (text(error, "message")) } } p { (text(error, "hint")) } }
    }
}

fn table(document: &Value, destroyed: bool) -> Markup {
    let holders = holders_of(document);
    html! {
        (summary(document, destroyed))
        @if !holders.is_empty() {
            div.scroll tabindex="0" role="region" aria-labelledby="who" {
                table.holders {
                    thead { tr {
                        th scope="col" { "PID" } th scope="col" { "State" } th scope="col" { "Role" } th scope="col" { "Command" }
                        th scope="col" { "User" } th scope="col" { "Files" } th scope="col" { "Locks" }
                    } }
                    tbody { @for holder in holders { (row(holder, destroyed)) } }
                }
            }
        }
        @if let Some(limits) = document.get("limits").and_then(Value::as_array).filter(|l| !l.is_empty()) {
            h3 { "What could not be seen" }
            ul { @for limit in limits { li { (limit.as_str().unwrap_or_else(|| text(limit, "message"))) } } }
        }
    }
}

fn row(holder: &Value, destroyed: bool) -> Markup {
    let faults = faults(holder);
    let command = holder
        .get("command")
        .and_then(Value::as_array)
        .map_or(String::new(), |words| words.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "));
    html! {
        // The labels stand beside the cells where the screen is too narrow for columns.
        tr.bad[!faults.is_empty()] {
            th scope="row" data-label="PID" {
                @match holder.get("pid").and_then(Value::as_i64) { Some(pid) => { (pid) }, None => { "unseen" } }
            }
            td data-label="State" {
                @if faults.is_empty() && !destroyed { span.good { "in order" } }
                @if faults.is_empty() && destroyed {
                    @match text(holder, "role") {
                        "" => "holds what was destroyed",
                        ANCHOR => "holds the locks, and writes nothing",
                        _ => "stopped",
                    }
                }
                @for fault in &faults { strong.fault { (fault) } }
                @if is(holder, "ghost") {
                    p.quiet { "Let it live until its deleted log is copied: what it wrote is nowhere else." }
                    @if !text(holder, "hold").is_empty() {
                        p.quiet { "To hold it first, so that it writes nothing more: " code { (text(holder, "hold")) } }
                    }
                    @if !text(holder, "capture").is_empty() {
                        p.quiet { "To copy it: " code { (text(holder, "capture")) } }
                        p.quiet { "To end it after that: " code { (text(holder, "stop")) } }
                    }
                } @else if !faults.is_empty() && !text(holder, "stop").is_empty() {
                    p.quiet { "To stop it: " code { (text(holder, "stop")) } }
                }
            }
            td data-label="Role" {
                @match text(holder, "role") { "" => "–", role => { (role) } }
                @if is(holder, "self") { span.quiet { " (this page)" } }
            }
            td data-label="Command" { code { (crate::words::beginning(&command, 200)) } }
            td data-label="User" { (text(holder, "user")) }
            td data-label="Files" { (files(holder)) }
            td data-label="Locks" { (locks(holder)) }
        }
    }
}

fn files(holder: &Value) -> Markup {
    let mut seen: Vec<(&str, bool)> = Vec::new();
    for file in holder.get("files").and_then(Value::as_array).into_iter().flatten() {
        // A file that is open twice and mapped too is still one file.
        let entry = (text(file, "member"), text(file, "generation") == "retired" || is(file, "deleted"));
        if !entry.0.is_empty() && !seen.contains(&entry) {
            seen.push(entry);
        }
    }
    html! {
        @for (n, (member, retired)) in seen.iter().enumerate() {
            @if n > 0 { ", " }
            @if *retired { strong.bad { (member) " (retired)" } } @else { (member) }
        }
    }
}

fn locks(holder: &Value) -> Markup {
    let held = holder.get("locks").cloned().unwrap_or_default();
    let mut names: Vec<String> = [
        ("shared", "shared"),
        ("dms", "index"),
        ("reserved", "reserved"),
        ("write", "write"),
        ("checkpoint", "checkpoint"),
    ]
    .iter()
    .filter(|(field, _)| is(&held, field))
    .map(|(_, name)| (*name).to_owned())
    .collect();
    let readers = held.get("readers").and_then(Value::as_array).map_or(0, Vec::len);
    if readers > 0 {
        names.push(count(readers as u64, "reader"));
    }
    html! { @if names.is_empty() { "none" } @else { (names.join(", ")) } }
}
