//! What lies in the place now, and what that allows.

use statehouse_sqlite::admission::{self, Forecast, Wanted};
use statehouse_sqlite::headers::{Journal, MainHeader};
use statehouse_sqlite::secure::{self, Inspected};
use statehouse_sqlite::{Error as DatabaseError, Family, Member, Reason};

use super::error::Result;
use super::source::Source;
use crate::maintenance::error::io;
use crate::maintenance::room::{MARGIN, free};
use crate::maintenance::{self, Look};

/// What lies at the paths of a database.
#[derive(Debug)]
pub(crate) enum Present {
    /// SQLite can open it, as far as its headers say.
    Readable(Box<Look>),
    /// SQLite cannot or must not open it; a restore is the remedy.
    Beyond {
        /// The files.
        inspected: Box<Inspected>,
        /// What is wrong with them.
        why: String,
    },
}

impl Present {
    /// Looks without opening anything by SQLite. What is no remedy's business (a link, somebody else's file) is refused, and so
    /// is a restore inside a process that has the database open itself.
    pub(crate) fn of(family: &Family) -> Result<Present> {
        let inspected = secure::inspect_to_replace(family)?;
        admission::refuse_own(&inspected)?;
        match maintenance::look(&family.main()) {
            Ok(look) => Ok(Present::Readable(Box::new(look))),
            Err(maintenance::Error::Database(DatabaseError::Refused(r))) if is_remedied(r.reason) => {
                let why = match r.detail.is_empty() {
                    true => format!("{}: {}", r.path.display(), r.reason.sentence()),
                    false => format!("{}: {} ({})", r.path.display(), r.reason.sentence(), r.detail),
                };
                Ok(Present::Beyond { inspected: Box::new(inspected), why })
            }
            Err(e) => Err(e.into()),
        }
    }

    pub(crate) fn inspected(&self) -> &Inspected {
        match self {
            Present::Readable(look) => &look.inspected,
            Present::Beyond { inspected, .. } => inspected,
        }
    }

    fn family(&self) -> &Family {
        self.inspected().family()
    }

    /// True if there is no file at all.
    pub(crate) fn is_nothing(&self) -> bool {
        Member::ALL.into_iter().all(|m| self.inspected().get(m).is_none())
    }

    /// The header, where there is one that holds.
    pub(crate) fn header(&self) -> Option<&MainHeader> {
        match self {
            Present::Readable(look) => Some(&look.header),
            Present::Beyond { .. } => None,
        }
    }

    /// True if it is a store of ours, or was one.
    pub(crate) fn ours(&self) -> bool {
        self.inspected().created_before()
            || match self {
                Present::Readable(look) => look.is_ours(),
                Present::Beyond { .. } => false,
            }
    }

    /// True if the source can be put in as one transaction, as far as can be told before it is opened.
    pub(crate) fn can_be_live(&self, source: &Source) -> bool {
        self.header().is_some_and(|h| h.journal == Journal::Wal && h.page_size == source.header.page_size)
    }

    /// What would refuse it now. Touches nothing. A journal that is hot makes it work on the files.
    pub(crate) fn forecast(&self, live: bool) -> Result<Forecast> {
        match self {
            Present::Beyond { .. } => Ok(admission::forecast_vacant(self.family())?),
            Present::Readable(_) => {
                let forecast = admission::forecast_drained(self.family(), live)?;
                match &forecast.refused {
                    Some(e) if e.reason() == Some(Reason::HotJournal) => Ok(admission::forecast_vacant(self.family())?),
                    _ => Ok(forecast),
                }
            }
        }
    }

    /// The files, if an interrupted transaction must be rolled back before SQLite can say what they hold.
    pub(crate) fn interrupted(&self) -> Result<Option<&Inspected>> {
        let Present::Readable(look) = self else { return Ok(None) };
        let forecast = admission::forecast_drained(self.family(), false)?;
        let hot = forecast.refused.is_some_and(|e| e.reason() == Some(Reason::HotJournal));
        Ok(hot.then_some(&look.inspected))
    }

    /// Refuses before anybody is asked to stand aside and before all of a source is read. Somebody who is there only for a
    /// moment is waited for later. Without a `source` yet it is taken for one that can be put in live.
    pub(crate) fn refuse_first(&self, wanted: &Wanted<'_>, source: Option<&Source>) -> Result<()> {
        let live = source.is_none_or(|s| self.can_be_live(s));
        match self.forecast(live)?.refused {
            Some(e) if e.reason() == Some(Reason::Held) => Ok(()),
            Some(e) if e.reason() == Some(Reason::HeldUnknown) && wanted.force => Ok(()),
            Some(e) => Err(e.into()),
            None => Ok(()),
        }
    }

    fn size(&self, member: Member) -> u64 {
        self.inspected().get(member).map_or(0, |s| s.status.size)
    }

    /// Bytes that this takes on the volume at its height, and why that many; refused where there are fewer.
    pub(crate) fn room(&self, source: &Source) -> Result<Room> {
        let main = self.size(Member::Main);
        let room = match self {
            Present::Readable(look) => {
                let pages = look.pages();
                let bytes = (pages.pages * pages.page_size).max(main);
                let (new, grows) = if self.can_be_live(source) {
                    (source.pages * (u64::from(source.header.page_size) + 32), source.bytes().saturating_sub(main))
                } else {
                    (source.bytes(), bytes.saturating_sub(main))
                };
                Room { before: bytes + MARGIN, new: new + MARGIN, grows, free: 0 }
            }
            Present::Beyond { .. } => Room { before: 0, new: source.bytes() + MARGIN, grows: 0, free: 0 },
        };
        let hot = self.size(Member::Journal);
        let before = room.before + if hot > 0 { hot } else { 0 };
        let directory = self.family().directory();
        let (free, _) = free(directory).map_err(|e| io("ask for the free space of", directory, e))?;
        let room = Room { before, free, ..room };
        if room.needs() <= free {
            return Ok(room);
        }
        let numbers = format!(
            "{free} bytes are free at {}; {} bytes are needed: {} for the state that is replaced, {} for the new one, {} by \
             which the main file grows",
            directory.display(),
            room.needs(),
            room.before,
            room.new,
            room.grows
        );
        Err(maintenance::Error::NoRoom { numbers }.into())
    }
}

/// What a restore takes of the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Room {
    /// Bytes for what is replaced.
    pub before: u64,
    /// Bytes for the new content on its way.
    pub new: u64,
    /// Bytes by which the main file grows beside both.
    pub grows: u64,
    /// Bytes that are free.
    pub free: u64,
}

impl Room {
    fn needs(self) -> u64 {
        self.before + self.new + self.grows
    }
}

/// What another main file puts right. A link, a special file or somebody else's is none of these: it would be put right in the
/// wrong place.
fn is_remedied(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::NoStore
            | Reason::StoreMissing
            | Reason::EmptyBesideWal
            | Reason::WalWithoutMain
            | Reason::NotDatabase
            | Reason::WalHeader
            | Reason::Destroyed
            | Reason::HalfRestored
    )
}
