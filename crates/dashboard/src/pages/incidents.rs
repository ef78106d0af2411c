//! What happened to the store, and the notice that stands on every page while something waits for a person.
//!
//! What is shown is the document of the command line. The notice is looked up once for each page, before its handler runs, and is kept
//! beside the request, so that no page can be written without it.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use serde_json::Value;
use statehouse_http::{Code, Problem, same_origin};

use super::layout::Place;
use super::{HOLDERS_FRESH, Shown, shown};
use crate::api::path;
use crate::app::{App, Visitor, see_other};

tokio::task_local! {
    /// How many incidents wait for a person; nothing where the request is not for a page.
    pub(crate) static NOTICE: u64;
}

/// How many incidents wait for a person. One that cannot be asked about is told on its own page.
pub(crate) async fn notice_of(app: &App) -> u64 {
    let document = app.incidents.ask(HOLDERS_FRESH).await.unwrap_or_default();
    all(&document).iter().filter(|i| is(i, "needs_person")).count() as u64
}

/// The notice of this request's page.
pub(super) fn notice() -> Option<Markup> {
    let waiting = NOTICE.try_with(|n| *n).unwrap_or(0);
    (waiting > 0).then(|| {
        html! {
            aside.notice.bad role="alert" aria-label="Incidents" {
                p { strong { @if waiting == 1 { "An incident waits for you." } @else { (waiting) " incidents wait for you." } }
                    " " a href="/incidents" { "See what happened to the store" } }
            }
        }
    })
}

fn all(document: &Value) -> &[Value] {
    document.as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn is(value: &Value, field: &str) -> bool {
    value.get(field) == Some(&Value::Bool(true))
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value.get(field).map_or(&[], all)
}

fn number(value: &Value, field: &str) -> u64 {
    value.get(field).and_then(Value::as_u64).unwrap_or_default()
}

/// A time in UTC to the second, with the exact one in the markup.
fn at(value: &Value, field: &str) -> Markup {
    let exact = text(value, field);
    let short = exact.get(..19).unwrap_or(exact).replace('T', " ");
    html! { time datetime=(exact) { (short) } }
}

/// `GET /incidents`.
pub(crate) async fn incidents(State(app): State<Arc<App>>) -> Result<Response, Shown> {
    let document = app.incidents.ask(HOLDERS_FRESH).await?;
    // The newest first, and before them what is open.
    let (open, closed): (Vec<_>, Vec<_>) = all(&document).iter().rev().partition(|i| is(i, "open"));
    let content = html! {
        h1 { "Incidents" }
        @if !document.is_array() { p.state.bad { "The incidents cannot be read; the log of the dashboard says why." } }
        @else if open.is_empty() { p.state.good { "No incident is open." } } @else { (table("Open", &open)) }
        @if !closed.is_empty() { (table("Closed", &closed)) }
        p.quiet {
            "Times are UTC. The same on the command line: " code { "statehouse incidents --all" } ". What is wrong now is on the page "
            a href="/store" { "Store" } "."
        }
    };
    Ok(shown("Incidents", Place::Incidents, "", &content))
}

fn table(title: &str, incidents: &[&Value]) -> Markup {
    html! {
        h2 { (title) }
        div.scroll tabindex="0" role="region" aria-label=(title) {
            table {
                thead { tr { th scope="col" { "Began" } th scope="col" { "What" } th scope="col" { "Times" } th scope="col" { "State" } } }
                tbody {
                    @for incident in incidents {
                        tr.bad[is(incident, "needs_person")] {
                            td data-label="Began" { (at(incident, "at")) }
                            th scope="row" data-label="What" {
                                a href={ "/incidents/" (text(incident, "id")) } { (text(incident, "title")) }
                                p.quiet { (text(incident, "what")) }
                            }
                            td data-label="Times" { (number(incident, "count")) }
                            td data-label="State" { (state(incident)) }
                        }
                    }
                }
            }
        }
    }
}

fn state(incident: &Value) -> Markup {
    html! {
        @if is(incident, "needs_person") { strong.bad { "waits for you" } }
        @else if is(incident, "open") { "going on; closes by itself" }
        @else { "closed" }
    }
}

/// `GET /incidents/{id}`.
pub(crate) async fn incident(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, Shown> {
    let id = path(id)?;
    let document = app.incidents.ask(HOLDERS_FRESH).await?;
    let found = all(&document).iter().find(|i| text(i, "id") == id).ok_or_else(missing)?;
    Ok(shown(text(found, "title"), Place::Incidents, "", &report(found)))
}

fn missing() -> Problem {
    Problem::new(Code::NotFound, "no incident has this id")
}

fn report(i: &Value) -> Markup {
    html! {
        h1 { (text(i, "title")) }
        p { (text(i, "what")) "." }
        p { (state(i)) ", since " (at(i, "at")) " UTC"
            @if number(i, "count") > 1 { "; it happened " (number(i, "count")) " times, last at " (at(i, "last_at")) } "." }
        @if is(i, "open") {
            @if !text(i, "next").is_empty() { p { strong { "What to do: " } (text(i, "next")) } }
            form method="post" action={ "/incidents/" (text(i, "id")) "/close" } {
                button type="submit" { "I have looked at it: close it" }
            }
        }
        h2 { "Data loss" }
        @if let Some(lost) = i.get("lost").and_then(Value::as_str) { p.state.bad { (lost) } }
        @else if is(i, "nothing_lost") { p.state.good { "Nothing that was acknowledged was lost." } }
        @else { p.state.warn { "Nothing is known to be lost, and it is not proved yet that nothing is." } }
        @if !list(i, "affected").is_empty() {
            h2 { "Who was cut off" }
            ul { @for a in list(i, "affected") { (affected(a)) } }
        }
        h2 { "Cause" }
        p { @if text(i, "cause").is_empty() { "Not known." } @else { (text(i, "cause")) "." } }
        @if !list(i, "evidence").is_empty() {
            ul { @for line in list(i, "evidence") { li { (line.as_str().unwrap_or_default()) } } }
        }
        @if !text(i, "done").is_empty() { h2 { "What was done" } p { (text(i, "done")) } }
        h2 { "Timeline" }
        div.scroll tabindex="0" role="region" aria-label="Timeline" {
            table {
                thead { tr { th scope="col" { "UTC" } th scope="col" { "Who" } th scope="col" { "What" } } }
                tbody { @for entry in list(i, "timeline") { (line(entry)) } }
            }
        }
        p.quiet { "As a report to send to somebody: " code { "statehouse incidents show " (text(i, "id")) " --markdown" } }
    }
}

fn affected(a: &Value) -> Markup {
    html! {
        li {
            (text(a, "role")) " (PID " (number(a, "pid")) ") "
            @match a.get("ms").and_then(Value::as_f64) {
                Some(ms) => { "for " (format!("{ms:.0}")) " ms" },
                None => { "since " (at(a, "cut_off_at")) "; it has not told that it is back" },
            }
        }
    }
}

fn line(entry: &Value) -> Markup {
    html! {
        tr {
            td data-label="UTC" { (at(entry, "at")) }
            td data-label="Who" {
                @match text(entry, "role") { "" => "a person", role => { (role) " (PID " (number(entry, "pid")) ")" } }
            }
            td data-label="What" { (text(entry, "sentence")) }
        }
    }
}

/// `POST /incidents/{id}/close`, from the button of the page or from a program with the token.
pub(crate) async fn close_incident(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Shown> {
    let program = app.visitor(&headers) == Visitor::Program;
    if !program {
        same_origin(&headers)?;
    }
    let id = path(id)?;
    let close = Arc::clone(&app.options.close_incident);
    let closed = tokio::task::spawn_blocking(move || close(&id))
        .await
        .map_err(|e| Problem::internal(format!("closing did not return: {e}")))?
        .map_err(Problem::internal)?;
    if !closed {
        return Err(missing().into());
    }
    app.incidents.forget().await;
    Ok(if program { axum::http::StatusCode::NO_CONTENT.into_response() } else { see_other("/incidents") })
}
