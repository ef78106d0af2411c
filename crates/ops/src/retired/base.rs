//! The database that a capture is compared with, even where it is damaged itself.
//!
//! A ghost and another generation that both copy their logs into one main file can ruin it for both. Then SQLite cannot read
//! the database at the path any more, although most of its rows are still on its pages. Those are walked into a private file, and the
//! capture is compared with that: so it can be said what both sides have together, and a new file can be written of it. The
//! damaged database itself is never merged into.

use std::ops::Deref;
use std::path::Path;

use rusqlite::Connection;
use statehouse_sqlite::salvage::Other;
use statehouse_sqlite::words;
use statehouse_sqlite::{Family, Member, files, immutable, salvage};

use super::error::{Error, Result, io};
use super::live::Reading;
use super::show::Asked;
use crate::attach::Scratch;
use crate::maintenance::whole;

/// What is compared with.
pub(super) enum Base {
    /// The database.
    Whole(Reading),
    /// The rows that can still be read of it.
    Rows {
        rows: Connection,
        /// What became of the database.
        said: String,
        /// What SQLite says of it.
        found: String,
        /// What else it has than tables with rows of their own.
        others: Vec<Other>,
        #[expect(dead_code, reason = "it goes when the connection has been closed")]
        scratch: Scratch,
    },
}

impl Deref for Base {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        match self {
            Base::Whole(reading) => reading,
            Base::Rows { rows, .. } => rows,
        }
    }
}

impl Base {
    /// Opens the database at `path`. Where there is a suspicion against it, it is proved first.
    pub(super) fn open(path: &Path, suspicious: bool, asked: &Asked<'_>) -> Result<Base> {
        let opened = Reading::open(path, asked.scratch, asked.patience);
        let damage = match opened {
            Ok(reading) if !suspicious => return Ok(Base::Whole(reading)),
            Ok(reading) => match whole::require(&reading, path) {
                Ok(()) => return Ok(Base::Whole(reading)),
                Err(e) => Error::from(e),
            },
            Err(e) => e,
        };
        if damage.is_of_the_database() { Base::walk(path, &damage, asked) } else { Err(damage) }
    }

    /// The rows that can still be read. No connection to the database is open in this process.
    pub(super) fn walk(path: &Path, damage: &Error, asked: &Asked<'_>) -> Result<Base> {
        let family = Family::of(path)?;
        let scratch = Scratch::new(asked.scratch)?;
        let output = scratch.path().join("rows-of-the-database");
        let open = |m: Member| files::open(&family.path(m)).map_err(|e| io("read", &family.path(m), e));
        let main = open(Member::Main)?;
        let found = match files::open(&family.path(Member::Wal)) {
            Ok(log) => salvage::readable(&main, &log, &output),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => salvage::readable(&main, &Vec::new(), &output),
            Err(e) => return Err(io("read", &family.path(Member::Wal), e)),
        };
        let Ok(found) = found else {
            return Err(Error::from(statehouse_sqlite::Error::Damaged { detail: damage.damage() }));
        };
        let said = format!(
            "the database itself is damaged ({}): {} can still be read of it, and {} of its pages and cells cannot; `retired merge \
             --into FILE` writes a new file with the rows of both",
            damage.damage(),
            words::count(found.rows, "row"),
            found.unread
        );
        Ok(Base::Rows { rows: immutable(&output)?, said, found: damage.damage(), others: found.others, scratch })
    }

    /// What is wrong with the database, if it is damaged.
    pub(super) fn damage(&self) -> Option<&str> {
        match self {
            Base::Whole(_) => None,
            Base::Rows { found, .. } => Some(found),
        }
    }

    /// What a damaged database has beside tables with rows of their own.
    pub(super) fn others(&self) -> &[Other] {
        match self {
            Base::Whole(_) => &[],
            Base::Rows { others, .. } => others,
        }
    }

    /// As [`Reading::confirm`].
    pub(super) fn confirm(&self) -> Result<()> {
        match self {
            Base::Whole(reading) => reading.confirm(),
            Base::Rows { .. } => Ok(()),
        }
    }

    /// What is to be known of the database, if it is damaged.
    pub(super) fn said(&self) -> Option<String> {
        match self {
            Base::Whole(_) => None,
            Base::Rows { said, .. } => Some(said.clone()),
        }
    }
}
