//! A store of Statehouse knows what its rows mean: which of two versions is the newer one, and that two messages are two. So
//! what its captures hold is merged by the store itself, when it is opened.

use std::path::Path;

use rusqlite::Connection;
use statehouse_sessions::sqlite::{APPLICATION_ID, merge_retired};
use statehouse_sqlite::Family;

use super::error::{Error, Result};
use super::show::Asked;
use super::source::Source;

/// True for a store of Statehouse.
pub(super) fn is_ours(connection: &Connection) -> Result<bool> {
    let id: i32 = connection.pragma_query_value(None, "application_id", |r| r.get(0))?;
    Ok(id == APPLICATION_ID)
}

/// Takes over what the source has, in the transaction that is open. Returns the number of rows.
pub(super) fn merge(live: &Connection, source: &Source) -> Result<u64> {
    let one = |rows| merge_retired(live, rows).map_err(|e| Error::from(statehouse_sqlite::Error::from(e)));
    source.parts().map(one).sum()
}

/// Sees to it that the store finds what `id` names when it is opened: a capture whose image is missing or not sound is
/// given one that was made of its log, and one from elsewhere is put beside the store.
///
/// # Errors
/// [`Error`].
pub fn offer(path: &Path, id: &str, asked: &Asked<'_>) -> Result<()> {
    let family = Family::of(path)?;
    let source = Source::find(&family, id, &asked.opening(true))?;
    let parent = family.side_directory().join("retired");
    let is_beside = source.place.as_ref().is_some_and(|p| p.parent() == Some(&parent));
    let Some(place) = source.place.as_ref().filter(|_| is_beside) else {
        let place = source.place.clone().unwrap_or_else(|| source.id.clone().into());
        let why = format!("a store of Statehouse takes over what lies in {}; copy it there", parent.display());
        return Err(Error::Unreadable { place, why });
    };
    let image = place.join("main.captured");
    if image.exists() || place.join("merged").exists() {
        return Ok(());
    }
    let copy = super::into::Copy::new(&image)?;
    drop(copy.take(&source)?);
    copy.publish()
}
