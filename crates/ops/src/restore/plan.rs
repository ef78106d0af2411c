//! What would be done, and what would refuse it now. Changes nothing.

use serde::Serialize;
use statehouse_sqlite::holders::Holder;
use statehouse_sqlite::{Error as DatabaseError, Family, Reason};

use super::compare::Compared;
use super::error::{Error, Result};
use super::found::Found;
use super::present::{Present, Room};
use super::recovered::RolledBack;
use super::source::Source;
use super::{
    Asked, Change, How, Next, Tables, compare, held, lossy, permitted, rebuilt, refuse_itself, refuse_stranger,
};
use crate::attach;

/// The answer of a dry run.
#[derive(Debug, Serialize)]
pub struct Planned {
    /// The source as it is called.
    pub source: String,
    /// `snapshot`, `capture` or `file`.
    pub kind: &'static str,
    /// The main file.
    pub path: String,
    /// Always true.
    pub dry_run: bool,
    /// How it would be done.
    pub how: How,
    /// What would be done, in words.
    pub would: String,
    /// What would be replaced.
    pub tables: Tables,
    /// How the schema that would be replaced differs from that of the source.
    pub schema: Vec<Change>,
    /// What it takes; `null` if there is not enough room.
    pub room: Option<Room>,
    /// The holders that were found, as `holders` shows them.
    pub holders: Vec<Holder>,
    /// What it would leave to be typed about programs that use it.
    pub next: Vec<Next>,
    /// What should be known about it.
    pub notes: Vec<String>,
    /// What would refuse it now; the caller fills in its own shape of an error.
    #[serde(skip)]
    pub refused: Option<Error>,
}

/// Looks at everything and does nothing.
///
/// # Errors
/// Where there is nothing that could be planned: no source, a bad one, a place that can hold no database.
pub fn plan(asked: &Asked<'_>) -> Result<Planned> {
    let family = Family::of(asked.path)?;
    let present = Present::of(&family)?;
    let found = Found::of(asked.source, Some(&family))?;
    refuse_itself(&found, &family)?;
    let source = Source::verified(found, asked.scratch, asked.wanted.patience, asked.watch)?;
    let live = present.can_be_live(&source);
    let forecast = present.forecast(live)?;
    let joins = attach::may_join(&forecast.report);
    let mut notes = source.notes.clone();
    let compared = replaced(asked, &present, &source, joins, &mut notes)?;
    let ours = asked.ours || present.ours();
    let unfit = permitted(asked, source.fits(present.header(), None, ours))
        .and_then(|()| refuse_stranger(asked, &source, &compared.of_here()))
        .and_then(|()| permitted(asked, rebuilt::again(&family, &source, &compared.tables)))
        .err();
    let (room, crowded) = match present.room(&source) {
        Ok(room) => (Some(room), None),
        Err(e) => (None, Some(e)),
    };
    let unknown = |e: &DatabaseError| e.reason() == Some(Reason::HeldUnknown) && asked.wanted.force;
    let overridden = forecast.refused.as_ref().is_some_and(unknown);
    let refused = forecast.refused.filter(|e| !unknown(e)).map(Error::from);
    let held = refused.map(|e| if live { e } else { held::explained(e, asked.wanted.force) });
    let next = match (live, overridden) {
        (true, _) if held.is_none() => {
            let others =
                forecast.report.holders.iter().filter(|h| !h.is_self && h.role.is_none() && !h.files.is_empty());
            held::restart(&others.cloned().collect::<Vec<_>>())
        }
        (false, true) => held::unseen(&family),
        _ => Vec::new(),
    };
    let how = if live { How::Live } else { How::Rename };
    let place = family.main();
    let would = match how {
        How::Live => format!("put the content of {} into {} as one transaction", source.found.name(), place.display()),
        _ => format!("put a copy of {} in the place of {}", source.found.name(), place.display()),
    };
    Ok(Planned {
        source: source.found.name(),
        kind: source.found.kind(),
        path: lossy(&place),
        dry_run: true,
        how,
        would,
        tables: compared.tables,
        schema: compared.schema,
        room,
        holders: forecast.report.holders,
        next,
        notes,
        refused: unfit.or(held).or(crowded),
    })
}

/// What of the present state would be replaced, as far as it can be read.
pub(super) fn replaced(
    asked: &Asked<'_>,
    present: &Present,
    source: &Source,
    joins: bool,
    notes: &mut Vec<String>,
) -> Result<Compared> {
    Ok(match present {
        Present::Beyond { why, .. } => {
            notes.push(match present.is_nothing() {
                true => format!("nothing is there that would be replaced: {why}"),
                false => format!("what is there cannot be read, and is kept as it is: {why}"),
            });
            compare::compare(None, source.uri())?
        }
        Present::Readable(look) => match attach::read(&look.inspected, joins, asked.scratch, asked.wanted.patience) {
            Ok(here) => compare::compare(Some(here.uri()), source.uri()).or_else(|e| {
                notes.push(format!("what is there cannot be compared: {e}"));
                compare::compare(None, source.uri())
            })?,
            // As it will be when the interrupted transaction is rolled back.
            Err(e) if e.reason() == Some(Reason::HotJournal) => {
                let rolled_back = RolledBack::of(&look.inspected, asked.scratch);
                rolled_back.and_then(|r| r.compare(source)).or_else(|e| {
                    notes.push(format!("what is there cannot be compared: {e}"));
                    compare::compare(None, source.uri())
                })?
            }
            Err(e) => {
                notes.push(format!("what is there cannot be compared: {e}"));
                compare::compare(None, source.uri())?
            }
        },
    })
}
