//! A source as a new file elsewhere. Touches no database, and works while all of them are in use.

use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;
use statehouse_sqlite::{Family, Member, Status, immutable};

use super::error::{Error, Result};
use super::found::Found;
use super::source::Source;
use super::{Asked, How, Restored, compare, copy, lossy};
use crate::maintenance::error::io;
use crate::maintenance::room::{MARGIN, free};
use crate::maintenance::whole;
use crate::maintenance::{self, ms};

/// Writes the source into the new file `to`, in rollback mode so that it is one file, and proves it.
///
/// # Errors
/// [`Error::Exists`]; [`maintenance::Error::NoRoom`]; a source that is not good; what went wrong. No file is left then.
pub fn to(asked: &Asked<'_>, to: &Path) -> Result<Restored> {
    let begun = Instant::now();
    // The ids are those of this database, which need not be there.
    let family = Family::to_look_at(asked.path).ok();
    if let Some(found) = crate::target::belongs_to_a_database(to) {
        return Err(Error::OfDatabase { path: to.to_owned(), found });
    }
    let new = Family::of(to)?;
    refuse_existing(&new)?;
    let found = Found::of(asked.source, family.as_ref())?;
    let source = Source::verified(found, asked.scratch, asked.wanted.patience, asked.watch)?;
    let directory = new.directory();
    let (room, _) = free(directory).map_err(|e| io("ask for the free space of", directory, e))?;
    let needs = source.bytes() + MARGIN;
    if room < needs {
        let numbers = format!("{room} bytes are free at {}; {needs} bytes are needed", directory.display());
        return Err(maintenance::Error::NoRoom { numbers }.into());
    }
    let partial = partial(&new);
    let made = copy::write(&source, &partial, false, asked.watch).and_then(|()| publish(&partial, &new));
    if let Err(e) = made {
        let _ = std::fs::remove_file(&partial);
        return Err(e);
    }
    let fresh = immutable(&new.main())?;
    whole::require(&fresh, &new.main())?;
    copy::same(&source, &fresh, None)?;
    Ok(Restored {
        source: source.found.name(),
        kind: source.found.kind(),
        path: lossy(&new.main()),
        how: How::To,
        before: None,
        tables: compare::compare(None, source.uri())?.tables,
        schema: Vec::new(),
        lost: None,
        held_by: Vec::new(),
        replaced: None,
        next: Vec::new(),
        verified: true,
        notes: source.notes.clone(),
        overridden: Vec::new(),
        ms: ms(begun),
    })
}

/// A file that SQLite would take for the log or the journal of the new one is as bad as the file itself.
fn refuse_existing(new: &Family) -> Result<()> {
    for member in Member::ALL {
        let path = new.path(member);
        if Status::of(&path).map_err(|e| io("look at", &path, e))?.is_some() {
            return Err(Error::Exists { path });
        }
    }
    Ok(())
}

fn partial(new: &Family) -> PathBuf {
    let mut name = new.name().to_owned();
    name.push(format!(".partial.{}", std::process::id()));
    new.directory().join(name)
}

/// Gives the file its name, unless something has it by now.
fn publish(partial: &Path, new: &Family) -> Result<()> {
    refuse_existing(new)?;
    let main = new.main();
    let renamed = match rustix::fs::renameat_with(CWD, partial, CWD, &main, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => rustix::fs::linkat(CWD, partial, CWD, &main, AtFlags::empty())
            .and_then(|()| rustix::fs::unlinkat(CWD, partial, AtFlags::empty())),
        renamed => renamed,
    };
    match renamed {
        Ok(()) => copy::flush_directory(new.directory()),
        Err(Errno::EXIST) => Err(Error::Exists { path: main }),
        Err(e) => Err(io("create", &main, e).into()),
    }
}
