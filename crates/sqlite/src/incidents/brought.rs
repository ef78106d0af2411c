//! What a merge of a capture says to the incidents that tell of its files.
//!
//! Such an incident waits for a person, because rows are in a capture alone. A merge that has proved that all of them are in the database
//! leaves nothing to do, and closes it, unless another capture that it names is still to be merged. Where the merge has left rows
//! in the capture, the incident says how many, and where they are listed.
//!
//! What is proved is about the capture. Whether a process of another program wrote anything after it was captured is not
//! known, so the incident does not say that nothing is lost.

use super::shelf::Shelf;
use super::{Affected, Incident, Kind, Outcome, entry, now_us};
use crate::capture::{self, Capture, Merge, Origin};
use crate::error::Result;
use crate::family::Family;
use crate::shell::word;
use crate::words::{count, verb};

/// Tells that a capture was merged by somebody who asked for it, after the database was read back. Returns how many
/// incidents it closed.
///
/// # Errors
/// [`crate::Error::Io`].
pub fn brought_back(family: &Family, role: &str, merged: &Capture, merge: &Merge) -> Result<u64> {
    let captures = capture::list(family)?;
    let database = family.main().display().to_string();
    let closed = std::cell::Cell::new(0);
    Shelf::Beside(family.clone()).change_all(|mut incident| {
        if !incident.is_open() || !is_about_files(incident.kind) || !incident.names(&merged.id) {
            return None;
        }
        let rows = count(merge.rows, "row");
        let was = verb(merge.rows, "was", "were");
        let said = match merge.rows {
            0 => format!("found every row of the capture {} that can be brought back in the database", merged.id),
            _ => format!("merged the capture {}: {rows} {was} brought back", merged.id),
        };
        incident.tell(vec![entry(role, said.clone())]);
        incident.prove(&proved(merged, merge));
        let next = next(&incident, merged, merge, &captures, &database);
        incident.did(&format!("PID {} ({role}) {said}", std::process::id()), &next);
        let cut_off = incident.affected.iter().any(Affected::is_waited_for);
        if next.is_empty() && incident.lost.is_none() && !cut_off {
            (incident.outcome, incident.closed_at) = (Outcome::Kept, Some(now_us()));
            closed.set(closed.get() + 1);
        }
        Some(incident)
    })?;
    Ok(closed.get())
}

fn is_about_files(kind: Kind) -> bool {
    matches!(kind, Kind::RetiredGeneration | Kind::ReplacedFile | Kind::LocksLost)
}

/// What the merge has proved; empty if that nothing is lost.
fn proved(merged: &Capture, merge: &Merge) -> String {
    let foreign = merged.manifest.by.is_some() || merged.origin == Origin::Hermes;
    let after = "what its process wrote after it was captured is not in it, and is not known";
    let but = match merge.of_the_file.as_slice() {
        [] => String::new(),
        tables => format!(" (but for {}, which says something about its file alone)", tables.join(", ")),
    };
    let all =
        format!("every row of the capture {}{but} is in the database, where a fresh connection has read it", merged.id);
    match (merge.is_complete(), foreign) {
        (true, false) => String::new(),
        (true, true) => format!("{all}; {after}"),
        (false, _) => {
            let but = [kept(merge)].into_iter().flatten().chain(merge.left.iter().cloned()).collect::<Vec<_>>();
            let end = if foreign { format!("; {after}") } else { String::new() };
            format!("{all}, but for this: {}{end}", but.join("; "))
        }
    }
}

fn kept(merge: &Merge) -> Option<String> {
    (merge.conflicts > 0).then(|| {
        let do_so = verb(merge.conflicts, "conflicts and is", "conflict and are");
        format!("{} {do_so} kept in the capture", count(merge.conflicts, "row"))
    })
}

/// What a person has to do yet; empty for nothing.
fn next(incident: &Incident, merged: &Capture, merge: &Merge, captures: &[Capture], database: &str) -> String {
    let mut todo = Vec::new();
    if let Some(list) = &merge.list {
        todo.push(format!("Look at the rows that stand against each other in {}.", list.display()));
    }
    if !merge.left.is_empty() {
        todo.push(format!(
            "See what else is not in the database: `statehouse retired show {} {}`",
            word(&merged.id),
            word(database)
        ));
    }
    let waits = |c: &&Capture| c.id != merged.id && incident.names(&c.id) && !is_settled(c, merged, captures);
    if let Some(other) = captures.iter().find(waits) {
        todo.push(format!(
            "Bring back what only another capture has: `statehouse retired merge {} {}`",
            word(&other.id),
            word(database)
        ));
    }
    todo.join(" ")
}

/// True if every row of a capture is known to be in the database, by its own merge or by that of one that stands for it.
fn is_settled(capture: &Capture, just: &Capture, all: &[Capture]) -> bool {
    let mut at = capture;
    // Each stands for older ones, so there are no more steps than captures.
    for _ in 0..=all.len() {
        if at.id == just.id || at.merge().is_some_and(|m| m.is_complete()) {
            return true;
        }
        let Some(newer) = all.iter().find(|c| c.manifest.supersedes.as_deref() == Some(at.id.as_str())) else {
            return false;
        };
        at = newer;
    }
    false
}
