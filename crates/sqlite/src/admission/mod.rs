//! Who may do structural work on a database, and the proof.
//!
//! Structural work (VACUUM, a truncating checkpoint, a change of the journal mode, a repair) needs a database that nobody else
//! has open. [`Admission`] is the proof, and such work takes it as an argument. It is made of kernel locks alone, so it ends
//! with its process in whatever way that ends:
//!
//! * the gate of `admission.lock` is shut: processes of ours that want to open the database wait there and are told for what;
//! * its members' byte is held exclusively: no process of ours has files of the database open. Those that live long let go of
//!   them when they are asked to (a *drain*), and come back by themselves when the lock that asks is gone;
//! * SQLite's pending byte is held, so that no stranger can open the database meanwhile;
//! * all processes were looked at twice, before and after that, and nobody but this one uses the database.
//!
//! Whatever refuses an admission before the gate is shut has changed nothing on disk.

mod aside;
pub(crate) mod begun;
pub(crate) mod lock;
mod look;
mod members;
mod pending;
mod settled;
mod shut;
mod vacant;

use std::time::Duration;

use rusqlite::Connection;

use crate::connect;
use crate::error::{Error, Reason, Result};
use crate::family::{Family, Identity, Status};
use crate::generation::SHARED_BYTES;
use crate::holders::{self, Report};
use crate::{doubt, putback, recovery};

pub use aside::{Aside, AsideError, Seat};
pub use begun::finish;
use look::{Allowed, Ours, in_the_way, look_first, refuse_holders};
pub use look::{Forecast, forecast, forecast_drained, refuse_first};
pub use settled::settled;
pub use vacant::{Placed, Vacant, forecast_vacant, refuse_own};

pub(crate) use members::Entry;
use pending::Pending;
use shut::{ASIDE, Shut};

/// How often it is looked whether everybody has let go.
const AGAIN: Duration = Duration::from_millis(5);
/// The role under which an anchor registers.
pub const ANCHOR: &str = "anchor";

/// What somebody wants who asks for admission.
pub struct Wanted<'a> {
    /// What is going to be done ("vacuum"), as others are told who wait for it.
    pub what: &'a str,
    /// Ask processes of ours to park, and wait at most so long for them. Without it they are a reason to refuse.
    pub drain: Option<Duration>,
    /// Go on beside holders and beside what could not be found out. Never beside a process that uses a retired generation or
    /// that has lost its locks.
    pub force: bool,
    /// How long to wait for another who is admitted, and for locks.
    pub patience: Duration,
    /// Is told, for people, what is waited for and what was overridden.
    pub tell: &'a dyn Fn(&str),
}

/// The proof that structural work may be done. Dropping it lets everybody go on.
pub struct Admission {
    // In the order in which they must go: the connection, what keeps strangers out, what keeps our own out.
    connection: Connection,
    pending: Pending,
    _lock: Shut,
    family: Family,
    overridden: Vec<String>,
    alone: bool,
}

impl Admission {
    /// Asks for it, and waits as long as is wanted.
    ///
    /// # Errors
    /// A refusal that names everybody who is in the way ([`Reason::Held`], [`Reason::HeldUnknown`], [`Reason::HeldRetired`],
    /// [`Reason::HeldNaked`]) or says what is wrong with the files; [`Error::Busy`] while somebody else is admitted.
    pub fn obtain(family: &Family, wanted: &Wanted<'_>) -> Result<Admission> {
        Admission::with(family, wanted, Allowed::by(wanted))
    }

    /// As [`Admission::obtain`], but programs that are not ours may go on using a database in WAL mode, as long as they hold it
    /// soundly. For work that is one transaction like any other, which they see when it is committed.
    ///
    /// # Errors
    /// As [`Admission::obtain`].
    pub fn obtain_beside(family: &Family, wanted: &Wanted<'_>) -> Result<Admission> {
        Admission::with(family, wanted, Allowed { strangers: true, ..Allowed::by(wanted) })
    }

    /// As [`Admission::obtain`], for one who will exchange the main file: nobody may be left who has it open, so force goes on
    /// beside what could not be found out and beside nobody who was seen.
    ///
    /// # Errors
    /// As [`Admission::obtain`].
    pub fn obtain_to_replace(family: &Family, wanted: &Wanted<'_>) -> Result<Admission> {
        let seen = Wanted { force: false, ..*wanted };
        Admission::with(family, &seen, Allowed { unknown: wanted.force, ..Allowed::default() })
    }

    fn with(family: &Family, wanted: &Wanted<'_>, allowed: Allowed) -> Result<Admission> {
        crate::locks::protect()?;
        let (inspected, mut overridden) = look_first(family, wanted, allowed)?;
        tell_overridden(wanted, &overridden);

        let lock = Shut::make(&inspected, wanted)?;
        if wanted.drain.is_some() {
            lock.lock.drain()?;
        }
        for left in lock.wait_for_members(family, wanted)? {
            // Only force comes here.
            if !overridden.contains(&left) {
                tell_overridden(wanted, std::slice::from_ref(&left));
                overridden.push(left);
            }
        }

        let identity = inspected.require_main()?.status.identity;
        let pending = Pending::open(family, identity)?;
        // A main file that was left between two commits needs its log back before anybody opens it.
        if putback::unsettled(family) {
            let _lock = recovery::exclusive(family, wanted.patience)?;
            putback::settle(family)?;
        }
        // Whoever recovers from removed files writes the main file anew; a database that never had such a one needs no wait.
        let _recovery = recovery::was_taken(family).then(|| recovery::shared(family, wanted.patience)).transpose()?;
        let connection = connect::structural(family, wanted.patience)?;
        if doubt::raised(family) {
            doubt::settle(family, &connection)?;
        }
        let (family_names, none) = (family.clone(), Vec::new());
        let admission =
            Admission { connection, pending, _lock: lock, family: family_names, overridden: none, alone: false };
        if let Err(why) = admission.keep_strangers_out(wanted.patience) {
            // Whoever came in since the first look is named by the second.
            let strict = Allowed { holders: false, unknown: false, ..allowed };
            refuse_holders(family, &holders::scan(family)?, Ours::MustBeGone { kept_out: false }, strict)?;
            return Err(why);
        }
        if Status::of(&family.main()).ok().flatten().map(|s| s.identity) != Some(identity) {
            return Err(Error::refused(Reason::Changed, family.main(), "another file took its place"));
        }
        let gone = Ours::MustBeGone { kept_out: admission.is_wal()? };
        let ours = if wanted.force { Ours::Refuse } else { gone };
        let report = holders::scan(family)?;
        for seen in refuse_holders(family, &report, ours, allowed)? {
            if !overridden.contains(&seen) {
                tell_overridden(wanted, std::slice::from_ref(&seen));
                overridden.push(seen);
            }
        }
        admission.refuse_hidden(identity, &report)?;
        let alone = in_the_way(&report, gone).next().is_none();
        Ok(Admission { overridden, alone, ..admission })
    }

    /// The connection for the work. Its settings are those of every connection of ours, but for what a database in rollback
    /// mode needs.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// The names of the database's files.
    pub fn family(&self) -> &Family {
        &self.family
    }

    /// True if nobody else was seen to use the database; false where force goes on beside somebody.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// What force overrode, each as a person would say it.
    pub fn overridden(&self) -> &[String] {
        &self.overridden
    }

    /// Lets go of what keeps strangers from opening while `work` runs, for work that takes SQLite's exclusive lock itself.
    /// A stranger who comes in between makes that lock fail, and nothing else.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn alone<T>(&self, work: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.pending.release()?;
        let done = work(&self.connection);
        // What follows is protected again where SQLite's mode allows it; the work itself is done or not.
        // Each stranger that tries to come in has the byte for a moment.
        let _ = self.keep_strangers_out(ASIDE);
        done
    }

    /// Closes the connection and keeps everybody out all the same, for work on the files themselves.
    ///
    /// # Errors
    /// As [`Vacant::obtain`]: nobody at all may have a file of the database open.
    pub fn vacate(self, wanted: &Wanted<'_>) -> Result<Vacant> {
        let Admission { connection, pending, _lock: lock, family, overridden, .. } = self;
        connection.close().map_err(|(_, e)| e)?;
        pending.take(wanted.patience)?;
        Vacant::settle(&family, lock, Some(pending), wanted, overridden)
    }

    /// Whoever has used the database in WAL mode holds a shared lock. Where the list of processes is not the machine's own, one
    /// that came between the two looks is not in it, and the kernel names no lock of it. But it tells that there is one.
    fn refuse_hidden(&self, identity: Identity, report: &Report) -> Result<()> {
        let (start, end) = SHARED_BYTES;
        let explained = report.holders.iter().any(|h| !h.is_self && h.locks.shared);
        if explained || !self.is_wal()? || !crate::locks::locked_by_others(identity, start, end) {
            return Ok(());
        }
        let who = "a process that is not visible here; sudo statehouse holders, run on the host, names it";
        Err(Error::refused(Reason::Held, self.family.main(), who))
    }

    fn is_wal(&self) -> Result<bool> {
        Ok(self.connection.pragma_query_value(None, "journal_mode", |r| r.get::<_, String>(0))? == "wal")
    }

    /// In WAL mode our connection has its shared lock by now, and whoever wants one needs the pending byte first. In rollback
    /// mode there is no lasting shared lock, so the exclusive lock is taken and kept.
    fn keep_strangers_out(&self, patience: Duration) -> Result<()> {
        if self.is_wal()? {
            return self.pending.take(patience);
        }
        self.connection.execute_batch("PRAGMA locking_mode=EXCLUSIVE; BEGIN EXCLUSIVE; COMMIT")?;
        Ok(())
    }
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission").field("family", &self.family).finish_non_exhaustive()
    }
}

fn tell_overridden(wanted: &Wanted<'_>, overridden: &[String]) {
    for what in overridden {
        (wanted.tell)(&format!("going on in spite of {what}"));
    }
}
