//! What was put together of a destroyed database goes in its place once.
//!
//! An incident printed the line that does it, and a person may find that line again: in a terminal, in a chat, in a report.
//! Typed once more it would take away whatever was written since. So it is written down beside the file that it is in its place,
//! the incident stops saying so, and the same line is refused unless it is forced.

use std::ffi::OsStr;

use statehouse_sqlite::words::{count, rfc3339};
use statehouse_sqlite::{Family, incidents, reassemble};

use super::error::{Error, Result};
use super::found::Found;
use super::present::Present;
use super::source::Source;
use super::{Asked, Tables, permitted, plan};
use crate::attach;

/// Refuses a source that was put in this place before, unless it is forced.
pub(super) fn refuse_again(asked: &Asked<'_>, family: &Family, present: &Present, source: &Source) -> Result<()> {
    if asked.wanted.force || put_in_place_at(family, &source.found).is_none() {
        return Ok(());
    }
    let forecast = present.forecast(present.can_be_live(source))?;
    let joins = attach::may_join(&forecast.report);
    let compared = plan::replaced(asked, present, source, joins, &mut Vec::new())?;
    permitted(asked, again(family, source, &compared.tables))
}

/// The refusal, with what is only here.
pub(super) fn again(family: &Family, source: &Source, tables: &Tables) -> Result<()> {
    let Some(at) = put_in_place_at(family, &source.found) else { return Ok(()) };
    let newer: Vec<String> = tables
        .iter()
        .filter_map(|(name, table)| Some((name, table.only_here.filter(|n| *n > 0)?)))
        .map(|(name, n)| format!("{} of {name}", count(n.unsigned_abs(), "row")))
        .collect();
    let newer = match (newer.as_slice(), tables.values().any(|t| t.here.is_some())) {
        ([], false) => "what is here now cannot be read".to_owned(),
        ([], true) => "no row is only here".to_owned(),
        (newer, _) => format!("newer, and only here: {}", newer.join(", ")),
    };
    let found = format!("that was done at {}; {newer}", rfc3339(at));
    Err(Error::PutInPlace { path: source.found.path().to_owned(), found })
}

fn put_in_place_at(family: &Family, found: &Found) -> Option<u64> {
    let Found::File(path) = found else { return None };
    reassemble::put_in_place_at(&reassemble::evidence_of(family, path)?)
}

/// Writes down that it is in its place, and finishes the incidents that led to it. Any other source says nothing about those.
pub(super) fn settle(family: &Family, asked: &OsStr) -> statehouse_sqlite::Result<()> {
    let Some(evidence) = reassemble::evidence_of(family, asked.as_ref()) else { return Ok(()) };
    // One of them shall not fail because the other does.
    let noted = reassemble::note_in_place(&evidence);
    incidents::put_in_place(family, "restore", &evidence)?;
    noted
}
