//! What must change before somebody can have lost a lock or begun to write into what is gone.
//!
//! A look at every process costs milliseconds; these signs cost a part of one. Who watches a database all the time reads them
//! and looks only where they have changed. Of the locks only the two count that protect a generation, for readers and writers
//! take and release others all the time.

use super::target::Target;
use super::walk::Walker;
use crate::error::Result;
use crate::family::{Family, Generation};
use crate::holders::text::Lock;
use crate::ofd::{DMS, SHARED};

/// Who holds the two locks of the present generation, which files that is, and which processes there are: one that was forked
/// off has its parent's files and none of its locks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Signs {
    /// Owner, inode, and which of the two it covers.
    locks: Vec<(i32, u64, bool, bool)>,
    generation: Option<Generation>,
    /// In ascending order.
    processes: Vec<i32>,
}

impl Signs {
    /// Reads them.
    ///
    /// # Errors
    /// As [`super::scan`].
    pub fn read(family: &Family) -> Result<Signs> {
        let mut walker = Walker::new()?;
        let target = Target::of(family)?;
        // A reader's mark beside byte 128 becomes one lock with it, so the range says less than what it covers.
        let protects = |l: Lock| {
            target.shown(l.device, l.inode)?;
            let (shared, dms) = (l.covers(SHARED), l.covers(DMS));
            (shared || dms).then_some((l.pid, l.inode, shared, dms))
        };
        let mut locks: Vec<_> = walker.lock_table()?.into_iter().filter_map(protects).collect();
        locks.sort_unstable();
        let mut processes = walker.processes()?;
        processes.sort_unstable();
        Ok(Signs { locks, generation: family.generation().ok(), processes })
    }

    /// The processes that are new since `before`; nothing if more than that has changed.
    pub fn newcomers(&self, before: &Signs) -> Option<Vec<i32>> {
        let same = self.locks == before.locks && self.generation == before.generation;
        let new = |pid: &&i32| before.processes.binary_search(pid).is_err();
        same.then(|| self.processes.iter().filter(new).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_process_is_told_apart_from_a_lost_lock() {
        let signs = |locks: &[(i32, u64, bool, bool)], processes: &[i32]| Signs {
            locks: locks.to_vec(),
            generation: None,
            processes: processes.to_vec(),
        };
        let both = [(7, 1, true, false), (7, 2, false, true)];
        let before = signs(&both, &[1, 7, 9]);
        assert_eq!(signs(&both, &[1, 7, 8]).newcomers(&before), Some(vec![8]));
        assert_eq!(signs(&both, &[1]).newcomers(&before), Some(vec![]));
        assert_eq!(signs(&both[1..], &[1, 7, 9]).newcomers(&before), None);
    }
}
