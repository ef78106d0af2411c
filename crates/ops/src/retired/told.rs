//! What is written down of a merge: in the record of the capture, and in incidents.

use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use statehouse_sqlite::capture::{self, Capture, Merge};
use statehouse_sqlite::incidents::{self, Kind as Incident, Outcome, Report};
use statehouse_sqlite::shell::word;
use statehouse_sqlite::words::{count as count_of, verb};
use statehouse_sqlite::{Family, files, secure, side};

use super::error::{Result, io};
use super::live;
use super::merge::Merged;
use super::show::Asked;
use super::source::Source;

/// The role of whoever merges a capture.
pub(super) const ROLE: &str = "retired merge";

/// Writes down that the capture was merged and what the merge has left, and tells it to the incidents that wait for it. The rows are
/// safe without either, and a merge that is repeated writes it down.
pub(super) fn record(family: &Family, source: &Source, merged: &Merged) {
    let Some(capture) = &source.capture else { return };
    let merge = Merge {
        at: u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or(0),
        rows: capture.merge().map_or(0, |m| m.rows) + merged.rows,
        conflicts: merged.shown.conflicting(),
        list: merged.conflicts.clone(),
        left: merged.shown.left(),
        of_the_file: merged.shown.of_the_file(),
    };
    let _ = capture.set_merged(family, &merge);
    settle(family, ROLE, capture, &merge);
}

/// Tells the incidents that wait for a capture what its merge has done.
pub(super) fn settle(family: &Family, role: &str, capture: &Capture, merge: &Merge) {
    // A process that still has the files may write into them what no capture has.
    if live::refuse_danger(family).is_ok() {
        let _ = incidents::brought_back(family, role, capture, merge);
    }
}

/// Says of a capture that was put in the place of the database that nothing of it is missing there, if that is so. Returns what to
/// know where it is not.
///
/// # Errors
/// [`super::Error`], with nothing said.
pub fn restored(path: &Path, id: &str, asked: &Asked<'_>) -> Result<Option<String>> {
    let family = Family::of(path)?;
    let shown = super::show(path, id, false, asked)?;
    let captures = capture::list(&family)?;
    let Some(capture) = captures.iter().find(|c| c.id == shown.id) else { return Ok(None) };
    if !shown.is_all_here() {
        return Ok(Some(format!(
            "the log of the capture has more than its image; to see and to bring back that: `statehouse retired show {id} {path}` and \
             `statehouse retired merge {id} {path}`",
            id = word(&capture.id),
            path = word(&path.to_string_lossy())
        )));
    }
    let at = u64::try_from(jiff::Timestamp::now().as_microsecond()).unwrap_or(0);
    let merge = Merge { at, ..capture.merge().unwrap_or_default() };
    let merge = Merge { conflicts: 0, list: None, left: Vec::new(), of_the_file: Vec::new(), ..merge };
    capture.set_merged(&family, &merge)?;
    settle(&family, "restore", capture, &merge);
    Ok(None)
}

/// What a merge is about to commit.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begun {
    pub(super) rows: u64,
    pub(super) before: Option<PathBuf>,
}

const BEGUN: &str = "begun";

fn begun_at(family: &Family, source: &Source) -> PathBuf {
    let id = Path::new(&source.id).file_name().unwrap_or_default().to_string_lossy().into_owned();
    family.side_directory().join(BEGUN).join(format!("{id}.json"))
}

/// Writes down what is about to be committed, so that the next merge can say it if this one is ended before it has.
pub(super) fn begin(family: &Family, source: &Source, rows: u64, kept: &Path) {
    let note = || -> Result<()> {
        let at = begun_at(family, source);
        let inspected = secure::inspect_place(family)?;
        let made = side::create(&inspected)?;
        side::subdirectory(&inspected, made.as_fd(), BEGUN, &family.side_directory().join(BEGUN))?;
        let text = serde_json::to_vec(&Begun { rows, before: Some(kept.to_owned()) }).unwrap_or_default();
        files::replace(&at, &text).map_err(|e| io("write", &at, e))
    };
    // The rows are safe without it.
    let _ = note();
}

/// What a merge of the same capture had begun to commit, and has not ended.
pub(super) fn begun(family: &Family, source: &Source) -> Option<Begun> {
    let text = files::read_to_string(&begun_at(family, source), 1 << 20).ok()?;
    serde_json::from_str(&text).ok()
}

/// A merge has ended, one way or the other.
pub(super) fn ended(family: &Family, source: &Source) {
    let at = begun_at(family, source);
    let _ = std::fs::remove_file(&at);
    // Only an empty one goes.
    let _ = at.parent().map(std::fs::remove_dir);
}

/// Leaves a record beside the database. One that cannot be written keeps nobody from the answer.
pub(super) fn tell(family: &Family, merged: &Merged) {
    let rows = merged.rows;
    let conflicts = merged.shown.conflicting();
    let next = match &merged.conflicts {
        Some(list) => format!("look at the rows that stand against each other in {}", list.display()),
        None if conflicts > 0 => format!(
            "look at the rows that stand against each other: `statehouse retired show {} {} --rows`",
            word(&merged.shown.id),
            word(&merged.shown.path)
        ),
        None => String::new(),
    };
    let _ = incidents::report(
        family,
        Report {
            kind: Incident::Merged,
            role: ROLE.to_owned(),
            what: format!("the capture {}", merged.shown.id),
            cause: "somebody asked for what only the capture had".to_owned(),
            evidence: merged.before.iter().map(|p| p.to_string_lossy().into_owned()).collect(),
            done: format!(
                "{} {} brought back, {conflicts} {} and {} left as {}",
                count_of(rows, "row"),
                verb(rows, "was", "were"),
                verb(conflicts, "conflicts", "conflict"),
                verb(conflicts, "was", "were"),
                verb(conflicts, "it is", "they are"),
            ),
            lost: None,
            next,
            outcome: Outcome::Kept,
            open: conflicts > 0,
        },
    );
}
