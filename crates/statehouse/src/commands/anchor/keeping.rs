//! The retired generations that an anchor keeps, what was told of each, and whom it keeps from the main file meanwhile.

use std::time::Duration;

use statehouse_sqlite::Family;
use statehouse_sqlite::anchor::{Alarm, Anchor, Kept, KeptBack};
use statehouse_sqlite::holders::Holder;

use super::tell;
use crate::output::Output;

/// How many are kept at most.
const MOST: usize = 4;

/// One of them.
struct One {
    kept: Kept,
    told: bool,
    /// That who goes on there is kept back was told.
    told_back: bool,
}

/// All of them, the newest last.
pub(super) struct Keeping {
    output: Output,
    family: Family,
    all: Vec<One>,
}

impl Keeping {
    pub(super) fn new(output: Output, family: Family) -> Keeping {
        Keeping { output, family, all: Vec::new() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(super) fn add(&mut self, kept: Kept) {
        self.all.push(One { kept, told: false, told_back: false });
        while self.all.len() > MOST {
            let first = |f: fn(&Kept) -> bool| self.all.iter().position(|one| f(&one.kept));
            let least = first(|k| !k.is_worth_keeping() && !k.is_written()).or_else(|| first(|k| !k.is_written()));
            let old = self.all.remove(least.unwrap_or(0));
            if old.told {
                tell::let_go(self.output, &self.family, &old.kept, "crowded_out");
            }
        }
        self.tell();
    }

    /// True if something may be lost when this process ends.
    pub(super) fn is_owed(&self, ours: bool) -> bool {
        self.all.iter().any(|one| one.kept.is_owed(ours))
    }

    /// True if nobody has captured for `long` what is missing at its path.
    pub(super) fn is_left_alone(&self, long: Duration) -> bool {
        self.all.iter().any(|one| one.kept.age() >= long && one.kept.is_left_alone())
    }

    /// To be called at each turn.
    pub(super) fn watch(&mut self) {
        for one in &mut self.all {
            one.kept.watch();
            if one.told && !one.told_back && one.kept.kept_back() == KeptBack::Yes {
                tell::kept_back(self.output, &self.family, &one.kept);
                one.told_back = true;
            }
        }
    }

    /// Keeps everybody back who has to be, also in what is held; that one only if it may be done `beside` an earlier one.
    /// True if there is somebody who cannot be yet.
    pub(super) fn keep_back(&mut self, held: Option<&Anchor>, beside: impl Fn() -> bool) -> bool {
        let somebody = |held| self.all.iter().any(|one| one.kept.is_beside(held)) && beside();
        let held = held.map(|held| held.keep_back(somebody(held)));
        let kept = self.all.iter_mut().map(|one| one.kept.keep_back());
        held.into_iter().chain(kept).fold(false, |soon, now| soon | (now == KeptBack::Soon))
    }

    /// What tells at once that something happens to these files, and to those that are held.
    pub(super) fn alarm(&self, held: Option<&Anchor>) -> Option<Alarm> {
        Alarm::of(held, self.all.iter().map(|one| &one.kept))
    }

    /// Lets go of what need not be kept any longer. `now` are those who have the database open.
    pub(super) fn review(&mut self, now: &[Holder]) {
        let (output, family) = (self.output, &self.family);
        self.all.retain_mut(|one| {
            let Some(over) = one.kept.over(now) else { return true };
            if one.told {
                tell::let_go(output, family, &one.kept, over);
            }
            false
        });
        self.tell();
    }

    fn tell(&mut self) {
        for one in self.all.iter_mut().filter(|one| !one.told && one.kept.is_worth_keeping()) {
            tell::keeping(self.output, &self.family, &one.kept);
            (one.told, one.told_back) = (true, one.kept.kept_back() == KeptBack::Yes);
        }
    }

    /// Lets go of everything.
    pub(super) fn end(self) {
        for one in self.all.iter().filter(|one| one.told) {
            tell::let_go(
                self.output,
                &self.family,
                &one.kept,
                if one.kept.is_captured() { "captured" } else { "stopped" },
            );
        }
    }
}
