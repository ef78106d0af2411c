//! What a restore of the file that was put together says to the incidents that led to it.
//!
//! Such an incident waits for a person, who has to type the restore that it prints. Once that is done the same line would take away
//! whatever was acknowledged since, so it goes. Where nothing is known to be lost, nothing is left to do: the incident is over
//! when everybody is back. Where something is lost it stays open, for somebody must read what it was.

use std::path::Path;

use super::shelf::Shelf;
use super::{Affected, Outcome, entry, now_us};
use crate::error::Result;
use crate::family::Family;
use crate::reassemble;
use crate::shell::word;

/// Tells that what was put together in the directory `evidence` is in the place of the database. Returns how many incidents are
/// about it.
///
/// # Errors
/// [`crate::Error::Io`].
pub fn put_in_place(family: &Family, role: &str, evidence: &Path) -> Result<u64> {
    let Some(name) = evidence.file_name().map(|name| name.to_string_lossy().into_owned()) else { return Ok(0) };
    let account = reassemble::account(evidence).unwrap_or_default();
    let database = family.main().display().to_string();
    Shelf::Beside(family.clone()).change_all(|mut incident| {
        if !incident.is_open() || !incident.names(&name) {
            return None;
        }
        let said = "put what was put together in the place of the database";
        incident.tell(vec![entry(role, said)]);
        if !account.lost.is_empty() {
            let read = "What was left is in the place of the database. When somebody has read what is lost";
            let close = format!("{read}: `statehouse incidents close {} {}`", incident.id, word(&database));
            incident.did(&format!("PID {} ({role}) {said}", std::process::id()), &close);
            return Some(incident);
        }
        if !account.complete {
            incident.prove(&account.loss());
        }
        incident.lost = None;
        incident.did(&format!("PID {} ({role}) {said}", std::process::id()), "");
        if incident.affected.iter().any(Affected::is_waited_for) {
            // The last one that is back closes it.
            incident.outcome = Outcome::Fenced;
        } else {
            (incident.outcome, incident.closed_at) = (Outcome::Kept, Some(now_us()));
        }
        Some(incident)
    })
}
