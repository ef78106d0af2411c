//! What is written down of a merge: in the record of the capture, and in incidents.

use statehouse_sqlite::Family;
use statehouse_sqlite::capture::{Capture, Merge};
use statehouse_sqlite::incidents::{self, Kind as Incident, Outcome, Report};
use statehouse_sqlite::shell::word;
use statehouse_sqlite::words::{count as count_of, verb};

use super::live;
use super::merge::Merged;
use super::source::Source;

/// The role of whoever merges a capture.
const ROLE: &str = "retired merge";

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
    settle(family, capture, &merge);
}

/// Tells the incidents that wait for a capture what its merge has done.
pub(super) fn settle(family: &Family, capture: &Capture, merge: &Merge) {
    // A process that still has the files may write into them what no capture has.
    if live::refuse_danger(family).is_ok() {
        let _ = incidents::brought_back(family, ROLE, capture, merge);
    }
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
