//! Which snapshots are kept, and whether there is room for another.
//!
//! Invariant: the newest good snapshot is never removed, and nothing is removed before a newer good one is in its place.

use std::collections::BTreeSet;
use std::time::Duration;

use statehouse_sqlite::Family;

use super::Wish;
use super::error::{Error, Result, io};
use super::record::{self, Snapshot, Standing};
use crate::maintenance;
use crate::maintenance::room;

/// How many failed attempts are remembered.
const FAILURES: usize = 10;
/// How long a snapshot is kept in any case that was taken before something else was done.
const BEFORE: Duration = Duration::from_secs(86400);
/// Bytes beyond the pages: directories, the record.
const MARGIN: u64 = 64 << 10;

/// What is kept.
#[derive(Debug, Clone, PartialEq)]
pub struct Keep {
    /// How many good ones.
    pub count: u32,
    /// For how many days; `None` if age does not matter.
    pub days: Option<u32>,
    /// Which share of the volume they may have together, from 0 to 1.
    pub disk_share: f64,
}

impl Default for Keep {
    fn default() -> Keep {
        Keep { count: 7, days: None, disk_share: 0.2 }
    }
}

/// True for a snapshot that was taken before something else was done, for example a restore.
pub(super) fn is_before(reason: &str) -> bool {
    reason.starts_with("before-")
}

/// Bytes of the volume that a snapshot leaves to the database for its log.
pub(crate) fn reserve(bytes: u64) -> u64 {
    (bytes / 20).clamp(256 << 10, 64 << 20)
}

/// Refuses where there is no room for a snapshot of a database of `bytes` bytes beside `reserve` bytes.
///
/// Compressed or not, the plain copy is written first, for that is what is proved. What the compressed one takes is not known
/// before; it is counted as half of that, and the volume is watched while it is written.
pub(super) fn room(family: &Family, bytes: u64, reserve: u64, wish: &Wish) -> Result<()> {
    let Wish { compress, keep, reason, .. } = wish;
    let directory = family.directory();
    let refuse = |numbers: String| Err(Error::Work(maintenance::Error::NoRoom { numbers }));
    let (free, _) = room::free(directory).map_err(|e| io("ask for the free space of", directory, e))?;
    let size = bytes + MARGIN;
    let needed = size + if *compress { size / 2 } else { 0 };
    if free < needed + reserve {
        return refuse(format!(
            "{free} bytes are free at {}; the snapshot takes {needed} bytes, and {reserve} bytes are left to the database",
            directory.display()
        ));
    }
    let share = allowed(family, keep)?;
    // What is to make something else safe is not forgone for the sake of a share.
    if size > share && !*compress && !is_before(reason) {
        return refuse(format!(
            "snapshots may have {share} bytes at {} ({} % of the volume), and this one takes {size} bytes",
            directory.display(),
            keep.disk_share * 100.0
        ));
    }
    Ok(())
}

/// Bytes that all snapshots may have together.
fn allowed(family: &Family, keep: &Keep) -> Result<u64> {
    let directory = family.directory();
    let volume = rustix::fs::statvfs(directory).map_err(|e| io("ask for the size of", directory, e))?;
    let total = volume.f_blocks.saturating_mul(volume.f_frsize) as f64;
    Ok((total * keep.disk_share.clamp(0.0, 1.0)) as u64)
}

/// Takes a good snapshot away whose file is this, for it was taken before something that was not done.
pub(crate) fn forget(family: &Family, file: &std::path::Path) -> Result<()> {
    let all = record::all(family)?;
    if let Some(own) = all.iter().find(|s| s.path == file && is_before(&s.reason)) {
        std::fs::remove_file(&own.path).map_err(|e| io("remove", &own.path, e))?;
        let _ = std::fs::remove_file(record::record_path(&record::directory(family), &own.id));
    }
    Ok(())
}

/// Removes what is not kept. To be called when a new good one is in its place; what cannot be removed is there the next time.
pub(super) fn prune(family: &Family, keep: &Keep) -> Result<()> {
    let all = record::all(family)?;
    let standing = all.iter().map(Snapshot::standing).collect::<Vec<_>>();
    let ages = all.iter().map(Snapshot::age).collect::<Vec<_>>();
    for index in superfluous(&all, &standing, &ages, keep, allowed(family, keep)?) {
        let old = &all[index];
        // The file first: a record without one is told as such, a file without a record would be there for ever.
        let removed = old.path.as_os_str().is_empty()
            || match std::fs::remove_file(&old.path) {
                Ok(()) => true,
                Err(e) => e.kind() == std::io::ErrorKind::NotFound,
            };
        if removed {
            let _ = std::fs::remove_file(record::record_path(&record::directory(family), &old.id));
        }
    }
    Ok(())
}

/// Which of `all`, the oldest first, are not kept.
fn superfluous(all: &[Snapshot], standing: &[Standing], ages: &[Duration], keep: &Keep, bytes: u64) -> BTreeSet<usize> {
    let mut gone = BTreeSet::new();
    let newest = (0..all.len()).rev().find(|&i| all[i].verified && standing[i] == Standing::AsRecorded);
    let (mut count, mut sum, mut failures) = (0, 0u64, 0);
    for i in (0..all.len()).rev() {
        let snapshot = &all[i];
        if !snapshot.verified {
            failures += 1;
            // Its file was kept only because there was nothing better.
            if failures > FAILURES || (newest.is_some() && !snapshot.path.as_os_str().is_empty()) {
                gone.insert(i);
            }
            continue;
        }
        if standing[i] == Standing::Missing {
            // It is told for as long as it would have been kept.
            count += 1;
            if count > keep.count {
                gone.insert(i);
            }
            continue;
        }
        count += 1;
        sum = sum.saturating_add(snapshot.bytes);
        let kept = Some(i) == newest || (is_before(&snapshot.reason) && ages[i] < BEFORE);
        let too_old = keep.days.is_some_and(|days| ages[i] > Duration::from_secs(u64::from(days) * 86400));
        if !kept && (count > keep.count.max(1) || too_old || sum > bytes) {
            sum -= snapshot.bytes;
            count -= 1;
            gone.insert(i);
        }
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(serial: u64, reason: &str, verified: bool) -> Snapshot {
        let text = serde_json::json!({
            "id": format!("s{serial}"), "database": "/d", "serial": serial, "created_at": "2026-01-01T00:00:00Z",
            "reason": reason, "bytes": 100, "rows": {}, "verified": verified, "blake3": verified.then_some("h"),
            "compressed": false, "plain_bytes": 100, "plain_blake3": null, "page_size": 4096, "user_version": 0,
            "application_id": 0, "journal_mode": "wal", "error": null, "error_code": null, "failures": 0, "notes": [],
            "read_ms": 0.0, "ms": 0.0, "modified_ns": 0,
        });
        let mut snapshot: Snapshot = serde_json::from_value(text).unwrap_or_else(|e| unreachable!("{e}"));
        if verified {
            snapshot.path = "/d/file".into();
        }
        snapshot
    }

    fn gone(all: &[Snapshot], standing: &[Standing], ages: &[u64], keep: &Keep, bytes: u64) -> Vec<u64> {
        let ages: Vec<_> = ages.iter().map(|h| Duration::from_secs(h * 3600)).collect();
        superfluous(all, standing, &ages, keep, bytes).into_iter().map(|i| all[i].serial).collect()
    }

    #[test]
    fn count_age_and_share_each_remove_the_oldest_and_never_the_newest_good_one() {
        let all: Vec<_> = (1..=5).map(|n| snapshot(n, "asked", true)).collect();
        let (good, young) = ([Standing::AsRecorded; 5], [0; 5]);
        let keep = Keep { count: 3, days: None, disk_share: 0.2 };
        assert_eq!(gone(&all, &good, &young, &keep, 1000), [1, 2]);
        assert_eq!(gone(&all, &good, &young, &keep, 250), [1, 2, 3]);
        assert_eq!(gone(&all, &good, &young, &keep, 0), [1, 2, 3, 4], "the newest stays whatever it takes");
        let keep = Keep { count: 9, days: Some(2), disk_share: 0.2 };
        assert_eq!(gone(&all, &good, &[100, 49, 48, 1, 0], &keep, 1000), [1, 2]);
        assert_eq!(gone(&all, &good, &[99; 5], &keep, 1000), [1, 2, 3, 4]);
        let none = Keep { count: 0, days: None, disk_share: 0.2 };
        assert_eq!(gone(&all, &good, &young, &none, 1000), [1, 2, 3, 4]);
    }

    #[test]
    fn what_was_taken_before_something_else_stays_for_a_day() {
        let all = [snapshot(1, "before-restore", true), snapshot(2, "asked", true), snapshot(3, "asked", true)];
        let keep = Keep { count: 1, days: Some(0), disk_share: 0.2 };
        assert_eq!(gone(&all, &[Standing::AsRecorded; 3], &[23, 5, 1], &keep, 100), [2]);
        assert_eq!(gone(&all, &[Standing::AsRecorded; 3], &[25, 5, 1], &keep, 100), [1, 2]);
    }

    #[test]
    fn a_failed_one_evicts_nothing_and_a_changed_one_is_not_the_newest_good_one() {
        let all = [snapshot(1, "asked", true), snapshot(2, "asked", true), snapshot(3, "asked", false)];
        let keep = Keep { count: 1, days: None, disk_share: 0.2 };
        assert_eq!(gone(&all[..1], &[Standing::AsRecorded], &[0], &keep, 1000), [0; 0]);
        let standing = [Standing::AsRecorded, Standing::Changed, Standing::Missing];
        let removed = gone(&all, &standing, &[0; 3], &keep, 1000);
        assert!(!removed.contains(&1), "the only one that is as it was recorded stays: {removed:?}");
        let mut kept = snapshot(4, "asked", false);
        kept.path = "/d/s4.unsound".into();
        let all = [all[0].clone(), kept];
        assert_eq!(gone(&all, &[Standing::AsRecorded; 2], &[0; 2], &keep, 1000), [4], "there is something better");
        assert_eq!(gone(&all[1..], &[Standing::AsRecorded], &[0], &keep, 1000), [0; 0], "there is not");
    }
}
