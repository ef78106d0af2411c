//! The mark that says that what lies in the place of the main file is not believed, or was proved since.
//!
//! It is made before anything is done about such a file, so that nobody begins on it because the one that found it was killed.

use serde::{Deserialize, Serialize};

use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::family::{Family, Identity};
use crate::{captures, files};

/// The mark, below the side directory.
const MARK: &str = "replaced";

/// What the mark says.
#[derive(Serialize, Deserialize)]
struct Mark {
    /// The file that was proved since; nothing as long as none was.
    proved: Option<Identity>,
}

fn path(family: &Family) -> PathBuf {
    family.side_directory().join(MARK)
}

/// Writes the mark: what was proved, or that nothing is.
pub(crate) fn write(family: &Family, proved: Option<Identity>) -> Result<()> {
    captures::write_text(&family.side_directory(), MARK, &Mark { proved })
}

/// What was proved; `None` without a mark. A mark that cannot be read says that nothing was.
fn read(family: &Family) -> Option<Mark> {
    let path = path(family);
    if !path.exists() {
        return None;
    }
    let text = files::read_to_string(&path, 4096).unwrap_or_default();
    Some(serde_json::from_str(&text).unwrap_or(Mark { proved: None }))
}

/// Remembers that the main file was replaced, unless what lies there was proved already.
pub(crate) fn suspect(family: &Family) -> Result<()> {
    let now = family.generation().map_err(|e| Error::io("look at", &family.main(), e))?;
    if now.main.is_none() || is_proved(family, now.main) || is_suspect(family) { Ok(()) } else { write(family, None) }
}

/// Remembers that the main file cannot be believed though it is the same one, whatever was proved before.
pub(crate) fn doubt(family: &Family) -> Result<()> {
    if is_suspect(family) { Ok(()) } else { write(family, None) }
}

/// True if the main file was replaced and nobody has proved yet what took its place.
pub(crate) fn is_suspect(family: &Family) -> bool {
    read(family).is_some_and(|mark| mark.proved.is_none())
}

/// True if this file was proved after the main file had been replaced.
pub(crate) fn is_proved(family: &Family, main: Option<Identity>) -> bool {
    main.is_some() && read(family).is_some_and(|mark| mark.proved == main)
}
