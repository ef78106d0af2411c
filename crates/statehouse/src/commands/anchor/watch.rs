//! The anchor at work: what it holds, what it keeps, when it lets go, and what it sees of others.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use statehouse_sqlite::admission::{ANCHOR, Seat};
use statehouse_sqlite::anchor::{self, Alarm, Anchor};
use statehouse_sqlite::holders::{self, Holder, Signs};
use statehouse_sqlite::incidents::Story;
use statehouse_sqlite::secure::{self, Inspected, Purpose};
use statehouse_sqlite::{Error, Family, Generation, resident, side};

use super::keeping::Keeping;
use super::{RETRY, Stop, Woken, tell};
use crate::output::Output;

/// How often the paths are compared with what is held, and it is asked whether anchors are wanted aside.
const COMPARE: Duration = Duration::from_millis(100);
/// How often a lock is tried that a checkpoint of somebody who goes on in a retired generation keeps away.
const STEP: Duration = Duration::from_millis(3);
/// For how long after a generation retired; after that it is done at each turn.
const HURRY: Duration = Duration::from_secs(10);
/// How long a lock that is in the way is waited for before anything else is looked at again.
const SLICE: Duration = Duration::from_millis(200);
/// How often holders are looked at, if something says that they have changed.
pub(super) const LOOK: Duration = Duration::from_secs(1);
/// How often they are looked at all the same: where all is well, and where something is wrong or kept.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
const LOOK_AGAIN_ALARMED: Duration = Duration::from_secs(5);
/// How often a failure to take the present generation is said again.
const SAY_AGAIN: Duration = Duration::from_secs(60);
/// How long the other processes are left to tell first of a generation that was retired: they know more of it.
const OTHERS_FIRST: Duration = Duration::from_secs(2);
/// How long nothing can be held before it is told what is waited for.
const LASTS: Duration = Duration::from_secs(2);

/// Why the anchor lets go.
#[derive(Clone, Copy)]
enum Why {
    /// The paths name something else.
    Retired,
    /// Somebody does structural work.
    Maintenance,
    /// It was told to stop.
    Stopped,
}

impl Why {
    fn word(self) -> &'static str {
        match self {
            Why::Retired => "retired",
            Why::Maintenance => "maintenance",
            Why::Stopped => "stopped",
        }
    }
}

/// A finding is told once for each process that it is about.
type Finding = (&'static str, Option<i32>, Option<u64>);

pub(super) struct Watch {
    output: Output,
    family: Family,
    seat: Option<Seat>,
    held: Option<Anchor>,
    kept: Keeping,
    /// Until then it is tried often to keep somebody back who cannot be yet.
    hurry: Option<Instant>,
    /// Says at once that a file of what is held or kept was removed or moved.
    alarm: Option<Alarm>,
    reported: HashSet<Finding>,
    /// What the last look at the holders was based on, and when it was.
    signs: Option<Signs>,
    looked: Option<Instant>,
    /// Something has changed, so the next look counts as well.
    again: bool,
    /// Processes that were new at the last look.
    newcomers: Vec<i32>,
    /// The failure that was said last.
    said: Option<(&'static str, Instant)>,
    /// When the seat was last tried to be put in its place again.
    tried: Option<Instant>,
    /// Since when nothing is held, and what was told that it is waited for.
    lost: Option<Instant>,
    waiting: Option<&'static str>,
    /// What is to be told beside the database of a generation that was retired, and whether some of it is told already.
    story: Option<Story>,
    begun: bool,
    /// It was a store of ours when it was held. Whoever removes everything removes what says so as well.
    ours: bool,
    /// When it was last tried to capture what is kept.
    captured: Option<Instant>,
    /// The pages of the program that only its start needed were given back.
    light: bool,
}

impl Watch {
    pub(super) fn new(output: Output, family: Family) -> Watch {
        let kept = Keeping::new(output, family.clone());
        Watch {
            output,
            family,
            seat: None,
            held: None,
            kept,
            hurry: None,
            alarm: None,
            reported: HashSet::new(),
            signs: None,
            looked: None,
            again: false,
            newcomers: Vec::new(),
            said: None,
            tried: None,
            lost: None,
            waiting: None,
            story: None,
            begun: false,
            ours: false,
            captured: None,
            light: false,
        }
    }

    pub(super) fn run(&mut self, stop: &Stop) {
        let mut look_at = Instant::now();
        self.listen();
        while self.wait(stop) {
            self.check();
            if self.held.is_none()
                && let Err(e) = self.take()
            {
                self.failed(&e);
            }
            self.kept.watch();
            if self.ours && self.kept.is_left_alone(OTHERS_FIRST) && self.captured.is_none_or(|t| t.elapsed() >= LOOK) {
                self.capture();
            }
            self.tell_story(false);
            if Instant::now() >= look_at {
                self.look();
                // Counted from the end, so that a machine on which looking takes long is not kept busy with it.
                look_at = Instant::now() + LOOK;
                if !std::mem::replace(&mut self.light, true) {
                    resident::give_back();
                }
            }
        }
    }

    /// Waits for the next turn; false if it is time to stop. Who goes on in what was removed just now is kept from the main file
    /// meanwhile: of all that is to be done only that may not wait.
    fn wait(&mut self, stop: &Stop) -> bool {
        let now = Instant::now();
        let turn = now + if self.held.is_some() { COMPARE } else { RETRY };
        loop {
            let soon = self.kept.keep_back(self.held.as_ref(), || !is_ours(&self.family));
            let left = turn.saturating_duration_since(Instant::now());
            let limit = if soon && self.hurry > Some(now) { STEP.min(left) } else { left };
            match stop.wait_for(limit, self.alarm.as_ref()) {
                Woken::Stop => return false,
                Woken::Alarm => self.alarm.iter().for_each(Alarm::heard),
                Woken::Time => {}
            }
            // However often something happens to the files, the turn comes.
            if Instant::now() >= turn {
                return true;
            }
        }
    }

    /// Hears what happens to the files that are held and kept now.
    fn listen(&mut self) {
        self.alarm = self.kept.alarm(self.held.as_ref());
    }

    /// Takes the present generation, as a member.
    ///
    /// # Errors
    /// What [`anchor::check`] refuses, before anything is made; [`Error::Busy`].
    pub(super) fn take(&mut self) -> Result<(), Error> {
        if let Some(seat) = self.seat.as_ref().filter(|s| s.unwanted()) {
            return Err(Error::Busy { waited: Duration::ZERO, holder: Some(seat.doing()) });
        }
        let inspected = anchor::check(&self.family)?;
        let seat = match &mut self.seat {
            Some(seat) => {
                seat.look_after(&inspected)?;
                seat
            }
            None => self.seat.insert(Seat::take(&inspected)?),
        };
        seat.enter(Duration::ZERO)?;
        match anchor::hold_within(&self.family, SLICE) {
            Ok(held) => {
                (self.said, self.lost, self.waiting) = (None, None, None);
                tell::anchored(self.output, &self.family, &held);
                self.held = Some(held);
                self.ours |= is_ours(&self.family);
                self.listen();
                if let Some(story) = &mut self.story {
                    story.is_back(true);
                }
                Ok(())
            }
            Err(e) => {
                seat.step_aside()?;
                Err(e)
            }
        }
    }

    /// Lets go if what is held is retired, or somebody wants the anchor aside.
    fn check(&mut self) {
        let Some(held) = &self.held else { return };
        if !held.current() {
            return self.release(Why::Retired);
        }
        match held.heal() {
            Ok(None) => {}
            Ok(Some(what)) => {
                tracing::warn!("locks of this anchor were released by another process, and are taken again: {what}");
            }
            // Somebody has the database alone at this moment; the next look tells what came of it.
            Err(Error::Busy { .. }) => {}
            Err(e) => return self.warn("the locks cannot be taken again", &e),
        }
        let Some(seat) = &mut self.seat else { return };
        if seat.unwanted() {
            return self.release(Why::Maintenance);
        }
        // One that has no place because the disk is full is not tried again at each turn.
        if seat.is_in_place() || self.tried.is_some_and(|t| t.elapsed() < LOOK) {
            return;
        }
        self.tried = Some(Instant::now());
        match inspect(&self.family).and_then(|inspected| seat.look_after(&inspected)) {
            Ok(()) => {}
            Err(Error::Busy { .. }) => self.release(Why::Maintenance),
            Err(e) => self.warn("others cannot be told of this anchor", &e),
        }
    }

    fn failed(&mut self, e: &Error) {
        // Maintenance takes its time, and was told when the anchor stepped aside.
        if self.seat.as_ref().is_some_and(Seat::unwanted) {
            return;
        }
        if let Some(what) = super::awaited(e) {
            // Between two generations there is nothing to hold for a moment; only what lasts is worth a line.
            if self.lost.is_some_and(|lost| lost.elapsed() > LASTS) && self.waiting.replace(what) != Some(what) {
                tell::waiting(self.output, &self.family.main(), what);
            }
        } else {
            self.warn("the present generation cannot be held", e);
        }
    }

    fn warn(&mut self, what: &'static str, e: &Error) {
        if self.said.is_none_or(|(said, when)| said != what || when.elapsed() > SAY_AGAIN) {
            self.said = Some((what, Instant::now()));
            tracing::warn!("{what}: {e}");
        }
    }

    fn release(&mut self, why: Why) {
        if let Some(held) = self.held.take() {
            let generation = held.generation();
            self.lost = Some(Instant::now());
            self.hurry = Some(Instant::now() + HURRY);
            let kept = match why {
                Why::Retired => held.retire(),
                Why::Maintenance | Why::Stopped => {
                    held.release();
                    None
                }
            };
            if let Some(seat) = &mut self.seat
                && let Err(e) = seat.step_aside()
            {
                tracing::warn!("others cannot be told that the anchor has let go: {e}");
            }
            tell::released(self.output, &self.family, &generation, why.word());
            if let Some(kept) = kept {
                self.kept.add(kept);
                // Who else has it decides for how long it is kept.
                self.looked = None;
            }
            if matches!(why, Why::Retired) {
                self.begin_story(generation);
            }
        }
    }

    /// Beside a store of ours the anchor's part belongs to what the other processes tell. Beside another program's database
    /// nothing is made for it: its findings are told in its own words.
    fn begin_story(&mut self, generation: Generation) {
        match &mut self.story {
            // What it took hold of in between was moved aside again.
            Some(story) => story.is_back(false),
            None if is_ours(&self.family) => {
                self.story = Some(Story::of_anchor(&self.family, ANCHOR, generation));
                self.begun = false;
            }
            None => {}
        }
    }

    /// Tells it, when the others have had the time to begin; at once if the anchor ends.
    fn tell_story(&mut self, ends: bool) {
        let Some(mut story) = self.story.take_if(|story| ends || story.age() >= OTHERS_FIRST) else { return };
        let told = if !self.begun {
            story.join_others(&self.family);
            story.write(&self.family)
        } else {
            Ok(())
        };
        self.begun = true;
        let told = match (told, self.held.is_some()) {
            (Ok(()), true) => story.back(&self.family),
            (told, _) => {
                self.story = Some(story);
                told
            }
        };
        if let Err(e) = told {
            self.warn("an incident cannot be told beside the database", &e);
        }
    }

    /// Tells what is wrong with the holders that was not told before, and forgets what is over.
    ///
    /// Looking at every process takes milliseconds of the processor, and more on a large machine, so it is done where
    /// something says that the answer may be another one. Whatever has changed is looked at twice: the first look may have
    /// come in the middle of it.
    pub(super) fn look(&mut self) {
        let signs = match Signs::read(&self.family) {
            Ok(signs) => signs,
            Err(e) => return self.warn("the holders cannot be looked at", &e),
        };
        let alarmed = !self.reported.is_empty() || !self.kept.is_empty();
        let limit = if alarmed { LOOK_AGAIN_ALARMED } else { LOOK_AGAIN };
        let due = self.looked.is_none_or(|l| l.elapsed() >= limit);
        let newcomers = self.signs.as_ref().and_then(|before| signs.newcomers(before));
        self.signs = Some(signs);
        let changed = newcomers.is_none();
        let newcomers = newcomers.unwrap_or_default();
        let both = [std::mem::replace(&mut self.newcomers, newcomers.clone()), newcomers].concat();
        let again = std::mem::replace(&mut self.again, changed);
        let among_new = || holders::dangerous_among(&self.family, &both);
        if !(changed || again || due) && (both.is_empty() || among_new().is_ok_and(|found| found.is_empty())) {
            return;
        }
        self.looked = Some(Instant::now());
        match self.holders() {
            Ok(now) => {
                self.report(&now);
                self.kept.review(&now);
            }
            Err(e) => self.warn("the holders cannot be looked at", &e),
        }
    }

    fn holders(&self) -> Result<Vec<Holder>, Error> {
        // Most of the time nothing is wrong, and the quick look is all that is needed.
        let found = holders::dangerous(&self.family)?;
        if found.is_empty() { Ok(found) } else { Ok(holders::scan(&self.family)?.holders) }
    }

    fn report(&mut self, now: &[Holder]) {
        let mut present = HashSet::new();
        for holder in now.iter().filter(|h| !h.is_self && !h.fenced) {
            for (wrong, event) in [(holder.naked, "naked_holder"), (holder.ghost, "ghost")] {
                let finding = (event, holder.pid, holder.start_ticks);
                if wrong && present.insert(finding) && !self.reported.contains(&finding) {
                    tell::finding(self.output, &self.family, event, holder);
                }
            }
        }
        self.reported = present;
    }

    /// Captures what is kept.
    fn capture(&mut self) {
        self.captured = Some(Instant::now());
        match anchor::capture(&self.family, self.ours) {
            Ok(()) => self.story.iter_mut().for_each(|story| story.captured(&self.family)),
            Err(e) => {
                let hint = e.hint();
                tracing::warn!("what is kept of removed files could not be captured: {e}: {} {hint}", e.detail());
            }
        }
    }

    /// Lets go of everything, and leaves nothing behind but what would be lost with its descriptors.
    pub(super) fn end(mut self) {
        // It may have been removed since the last turn.
        if self.held.as_ref().is_some_and(|held| !held.current()) {
            self.release(Why::Retired);
        }
        if self.kept.is_owed(self.ours) {
            self.capture();
        }
        self.tell_story(true);
        self.release(Why::Stopped);
        self.kept.end();
        if let Some(seat) = self.seat.take() {
            seat.leave();
        }
    }
}

/// True for a store of ours.
fn is_ours(family: &Family) -> bool {
    family.side_directory().join(side::CREATED).exists()
}

fn inspect(family: &Family) -> Result<Inspected, Error> {
    let root = rustix::process::geteuid().is_root();
    secure::inspect(family, if root { Purpose::Look } else { Purpose::Own })
}
