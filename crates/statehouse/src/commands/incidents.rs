//! `statehouse incidents [PATH]`: what happened to a database, until somebody has looked at it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;
use statehouse_dashboard::Probe;
use statehouse_ops::incidents::{self, Found, IncidentDocument};
use statehouse_sqlite::Family;
use statehouse_sqlite::incidents::Incident;
use statehouse_sqlite::words;

use super::Context;
use crate::args::{Incidents, IncidentsCommand};
use crate::exit;
use crate::failure::{Failure, Result, code};
use crate::home::Place;
use crate::store;
use crate::text::{escape_line, shell_word, table};

pub(crate) fn run(context: &Context, args: &Incidents) -> Result {
    match &args.command {
        None => list(context, args.target.path.as_deref(), args.all),
        Some(IncidentsCommand::Show { id, target, markdown }) => show(context, target.path.as_deref(), id, *markdown),
        Some(IncidentsCommand::Close { id, target }) => close(context, target.path.as_deref(), id),
    }
}

/// The database need not be there any more: what happened to it is what is asked for.
fn family(context: &Context, path: Option<&Path>) -> Result<Family> {
    let place = Place::of(path, &context.home);
    store::must_exist(&place.database)?;
    Ok(Family::of(&place.database)?)
}

fn list(context: &Context, path: Option<&Path>, all: bool) -> Result {
    let family = family(context, path)?;
    let found = incidents::list(&family)?;
    let shown: Vec<IncidentDocument> = found.iter().filter(|i| all || i.is_open()).map(Into::into).collect();
    let closed = found.iter().filter(|i| !i.is_open()).count();
    context.output.answer(&shown, |shown| text(shown, if all { 0 } else { closed }));
    Ok(exit::OK)
}

/// The document of `statehouse incidents --all --json`, for the dashboard.
pub(super) fn probe(family: Family) -> Probe {
    Arc::new(move || match incidents::list(&family) {
        Ok(all) => serde_json::to_value(all.iter().map(IncidentDocument::from).collect::<Vec<_>>()).unwrap_or_default(),
        Err(e) => {
            tracing::warn!("the incidents cannot be read: {e}");
            serde_json::Value::Null
        }
    })
}

fn text(shown: &[IncidentDocument], closed: usize) -> String {
    let rows: Vec<Vec<String>> = shown.iter().map(row).collect();
    let mut out = match rows.is_empty() {
        true => "no incident is open\n".to_owned(),
        false => table(&["ID", "BEGAN", "STATE", "TIMES", "WHAT"], &rows),
    };
    if closed > 0 {
        out.push_str(&format!("{closed} closed; see them with --all\n"));
    }
    out
}

fn row(i: &IncidentDocument) -> Vec<String> {
    let state = match (i.open, i.needs_person) {
        (false, _) => "closed",
        (true, true) => "OPEN, needs you",
        (true, false) => "open",
    };
    vec![
        i.id.clone(),
        i.at.clone(),
        state.to_owned(),
        i.count.to_string(),
        escape_line(&format!("{}: {}", i.title, i.what)),
    ]
}

/// What `incidents show --markdown` and `incidents close` answer with `--json`.
#[derive(Serialize)]
struct Shown {
    id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    markdown: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    closed: Option<bool>,
}

fn show(context: &Context, path: Option<&Path>, id: &str, markdown: bool) -> Result {
    let family = family(context, path)?;
    let document = IncidentDocument::from(&find(&family, id)?);
    let named =
        path.map(|p| shell_word(&std::path::absolute(p).unwrap_or_else(|_| PathBuf::from(p)).to_string_lossy()));
    let report = incidents::markdown(&document, &family.main().to_string_lossy(), &named.unwrap_or_default());
    if markdown {
        let shown = Shown { id: document.id, markdown: Some(report), closed: None };
        context.output.answer(&shown, |s| s.markdown.clone().unwrap_or_default());
    } else {
        context.output.answer(&document, |_| report.clone());
    }
    Ok(exit::OK)
}

fn close(context: &Context, path: Option<&Path>, id: &str) -> Result {
    let family = family(context, path)?;
    let incident = find(&family, id)?;
    let was_open = incident.is_open();
    incidents::close(&family, &incident.id)?;
    let shown = Shown { id: incident.id, markdown: None, closed: Some(was_open) };
    context.output.answer(&shown, |s| match was_open {
        true => format!("closed {}\n", s.id),
        false => format!("{} was closed before\n", s.id),
    });
    Ok(exit::OK)
}

fn find(family: &Family, id: &str) -> Result<Incident> {
    match incidents::find(family, id)? {
        Found::One(incident) => Ok(*incident),
        Found::None => Err(Failure::new(exit::FAILED, code::NOT_FOUND, format!("no incident has the id {id}"))
            .hint("`statehouse incidents --all` lists them.")),
        Found::Several(ids) => Err(Failure::new(
            exit::FAILED,
            code::AMBIGUOUS,
            format!("{id} may be one of {}", words::count(ids.len() as u64, "incident")),
        )
        .detail(ids.join(", "))
        .hint("Give more of the id.")),
    }
}
