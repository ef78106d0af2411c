//! A store of Statehouse knows what its rows mean: which of two versions is the newer one, and that two messages are two. So
//! what its captures hold is merged by the store itself, when it is opened.

use std::path::Path;

use rusqlite::Connection;
use statehouse_sessions::sqlite::{APPLICATION_ID, merge_retired};
use statehouse_sqlite::Family;

use super::error::{Error, Result, io};
use super::show::Asked;
use super::source::{Kind, Source};

/// True for a store of Statehouse.
pub(super) fn is_ours(connection: &Connection) -> Result<bool> {
    let id: i32 = connection.pragma_query_value(None, "application_id", |r| r.get(0))?;
    Ok(id == APPLICATION_ID)
}

/// Takes over what the source has, in the transaction that is open. Returns the number of rows.
pub(super) fn merge(live: &Connection, source: &Source) -> Result<u64> {
    source.parts().map(|rows| take_over(live, rows)).sum()
}

fn take_over(live: &Connection, rows: &Connection) -> Result<u64> {
    merge_retired(live, rows).map_err(|e| Error::from(statehouse_sqlite::Error::from(e)))
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
    let is_beside = |p: &&Path| p.parent() == Some(&parent);
    let Some(place) = source.place().filter(is_beside) else {
        let place = source.place().map_or_else(|| source.id.clone().into(), Path::to_owned);
        let why = format!("a store of Statehouse takes over what lies in {}; copy it there", parent.display());
        return Err(Error::Unreadable { place, why });
    };
    let image = place.join("main.captured");
    if place.join("merged").exists() || image.exists() && source.kind == Kind::Image {
        return Ok(());
    }
    together(&source, place, &image)
}

/// Puts all parts of a capture into one file, which becomes its image. What was its image stays beside it.
fn together(source: &Source, place: &Path, image: &Path) -> Result<()> {
    let new = place.join("main.together");
    // Left behind by one that was killed.
    let _ = std::fs::remove_file(&new);
    let copy = super::into::Copy::new(&new)?;
    let writer = copy.take(source)?;
    // The parent of a row may be in the store alone.
    writer.pragma_update(None, "foreign_keys", 0)?;
    for rows in source.parts().skip(1) {
        writer.execute_batch("BEGIN IMMEDIATE")?;
        take_over(&writer, rows)?;
        writer.execute_batch("COMMIT")?;
    }
    drop(writer);
    copy.publish()?;
    if image.exists() {
        let kept = place.join("main.unsound");
        let _ = std::fs::remove_file(&kept);
        std::fs::hard_link(image, &kept).map_err(|e| io("keep", image, e))?;
    }
    std::fs::rename(&new, image).map_err(|e| io("rename", &new, e))?;
    // Said of what was there before.
    let _ = std::fs::remove_file(place.join("unreadable"));
    Ok(())
}
