//! What is not in the capture and not in the database, or may not be: nothing that is compared shows it.
//!
//! Invariant: of a capture about which this says anything nobody says that every row is there. What is certain and what is only possible
//! are different sentences.

use statehouse_sqlite::Family;
use statehouse_sqlite::capture::{self, Capture, Manifest};

use super::show::Shown;
use super::source::Source;

/// What is lost where two logs were copied into one main file and have ruined it.
const OVERWRITTEN: &str = "the process had copied rows into the main file, and so has another one: rows that one of them copied there and \
                           the other overwrote are in no file any more, and cannot be counted; a snapshot or a backup may have them";

/// What is not known where two main files had one log.
const SHARED_LOG: &str = "the main file was replaced while the process went on in the log that the path still named, and a program that \
                          opened the new main file used the same log: rows that one of them had committed and the other has written \
                          over are in no file any more, and cannot be counted; what such a program had itself is to be compared with \
                          a snapshot or a backup";

/// What is not known where the log of a process was begun anew.
const NOT_KNOWN: &str = "nothing says whether this is all that the process has written: its log was begun anew after what it had held was \
                         copied into the main file. If that was before its files were removed, nothing is missing. What the process \
                         itself copied there after that, and another one wrote over, is in no file any more; a snapshot or a backup \
                         may have it";

/// True if this log is known to have had two main files. A capture that was made later, when the log was gone as well, does not show it
/// itself.
fn shared_log(family: &Family, manifest: &Manifest) -> bool {
    let of_this_log = |c: &Capture| c.manifest.generation.wal == manifest.generation.wal && c.manifest.shares_log();
    let known = || capture::list(family).is_ok_and(|all| all.iter().any(of_this_log));
    manifest.shares_log() || manifest.generation.wal.is_some() && known()
}

/// What a process has copied into the main file before it began its log anew is in that file alone. If another one has
/// written there as well, each can have overwritten pages of the other, and nothing tells which rows were on them. A visitor that
/// was the last to close copies the log as well, and that leaves no other sign than this.
pub(super) fn overwritten(family: &Family, shown: &Shown, source: &Source) -> Option<String> {
    let by_another = !source.is_whole() || shown.tables.values().any(|t| t.only_here.is_some_and(|n| n > 0));
    let manifest = source.capture.as_ref().map(|c| &c.manifest);
    if manifest.is_some_and(|m| shared_log(family, m)) {
        return Some(SHARED_LOG.to_owned());
    }
    // An anchor lets a process copy nothing from the moment on at which its files are lost; what was copied before is in the database.
    let could_copy = source.begun_anew > 0 && !manifest.is_some_and(|m| m.kept_back);
    (could_copy && by_another).then(|| NOT_KNOWN.to_owned())
}

/// Says of a database that is damaged itself how that is, and that what was only possible has happened.
pub(super) fn ruined(shown: &mut Shown, said: Option<String>) {
    let Some(said) = said else { return };
    for gone in shown.gone.iter_mut().filter(|g| *g == NOT_KNOWN) {
        *gone = OVERWRITTEN.to_owned();
    }
    shown.gone.push(said);
}
