//! A file that was put in the place of the main file is not believed before it was proved.
//!
//! Whoever opens the path after such a rename pairs the log of the old main file with the new one, by their names; he shares the
//! index of the old generation, copies its log into the file that he found, and takes the log away when he closes. What
//! lies there then has pages of several states: tables without their index entries, and indexes that miss rows. SQLite opens such a
//! file without a word, a look at a unique index finds nothing in it, and a row that is sent again is taken for a new one.
//!
//! So the first thing that is done about a replaced main file is a mark beside the database (`replaced`), and it says that
//! nothing is proved until the structure of what SQLite would open, main file and log together, was looked through with its
//! indexes. It is done before anything is merged, for a merge asks those indexes. What is not whole is kept as evidence in
//! a directory of its own (`retired/unsound-…`), and the newest capture that is whole takes its place; what the other captures
//! have beyond it is merged afterwards. Whoever opens the database and finds the mark makes the proof, so that nobody begins on such
//! a file because the one that found it was killed.
//!
//! Everything here happens under the exclusive side of the recovery lock, and after it was made sure that no other program
//! still has files of two generations open: from then on whoever opens the path has one generation.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use crate::captures::{self, IMAGE, PROVED, UNREADABLE};
use crate::error::{Error, Reason, Result};
use crate::family::{Family, Identity, Member};
use crate::generation::Record;
use crate::options::Options;
use crate::{connect, prepare, proof, putback, suspect};

/// Proves what lies at the path, or puts what was captured in its place. Gives back what was done then, in a sentence. This
/// process has nothing of the database open, and no other program has files of two generations.
pub(crate) fn settle(family: &Family, options: &Options) -> Result<Option<String>> {
    match prove(family, options) {
        Ok(proved) => suspect::write(family, proved).map(|()| None),
        Err(Error::Damaged { detail }) => exchange(family, &detail).map(Some),
        Err(e) => Err(e),
    }
}

fn prove(family: &Family, options: &Options) -> Result<Option<Identity>> {
    let prepared = prepare::prepare(family, false, options.application_id)?;
    let main = prepared.inspected.generation().main;
    let connection = connect::writer(family, main, options.application_id, options.patience)?;
    let record = Record::take(family)?;
    if record.generation().main != main {
        return Err(Error::refused(Reason::Changed, family.main(), "another file took its place"));
    }
    look_through(&connection)?;
    Ok(main)
}

/// Looks through tables by a scan, and through their indexes if the database is not too large for it.
fn look_through(connection: &Connection) -> Result<()> {
    let quick = proof::is_looked_through_quickly(connection)?;
    let look = if quick { "PRAGMA integrity_check(1)" } else { "PRAGMA quick_check(1)" };
    let verdict: String = connection.query_row(look, [], |r| r.get(0))?;
    if verdict == "ok" { Ok(()) } else { Err(Error::Damaged { detail: verdict }) }
}

/// Keeps what is not whole as evidence, and puts the newest capture that is whole in its place. Changes nothing where there is none.
fn exchange(family: &Family, detail: &str) -> Result<String> {
    // SQLite begins some of its answers with a line that says which database is meant.
    let detail = detail.lines().last().unwrap_or_default();
    if !sound_capture_is_there(family)? {
        let main = family.main();
        let main = crate::shell::word(&main.to_string_lossy());
        let detail = format!(
            "{detail}: another program wrote into what lies there with a log that does not belong to it; no capture of what was there \
             before is whole either; `statehouse snapshots {main}` lists what `statehouse restore` can put in its place"
        );
        return Err(Error::Damaged { detail });
    }
    putback::refuse_users_of_main(family, "open what lies in the place of the database")?;
    let evidence = move_away(family)?;
    putback::main_file(family, false)?;
    let now = family.generation().map_err(|e| Error::io("look at", &family.main(), e))?;
    suspect::write(family, now.main)?;
    Ok(format!(
        "found that what lies in the place of the main file is not whole ({detail}): it is kept in {}, with whatever another \
         program wrote there, and what was captured took its place",
        evidence.display()
    ))
}

/// Looks for a capture that can become the main file, and marks those before it that are not whole.
fn sound_capture_is_there(family: &Family) -> Result<bool> {
    while let Some(place) = captures::of_missing_main(family, false) {
        match captures::sound(&place.join(IMAGE)) {
            Ok(_) => {
                captures::write_text(&place, PROVED, &())?;
                return Ok(true);
            }
            Err(Error::Damaged { .. }) => captures::mark(&place, UNREADABLE)?,
            Err(e) => return Err(e),
        }
    }
    Ok(false)
}

/// Moves the family into a directory of its own, the main file last: whoever is killed before that leaves the mark, and whoever is
/// killed after it leaves a missing main file, which is put back from the same capture.
fn move_away(family: &Family) -> Result<PathBuf> {
    let parent = captures::directory(family);
    captures::private_directory(&parent)?;
    let now = family.generation().map_err(|e| Error::io("look at", &family.main(), e))?;
    let (inode, born) = now.main.map_or((0, 0), |i| (i.inode, i.born_ns.unwrap_or(0)));
    let evidence = parent.join(format!("unsound-{inode:x}-{born:x}"));
    captures::private_directory(&evidence)?;
    for member in [Member::Shm, Member::Wal, Member::Journal, Member::Main] {
        let from = family.path(member);
        let to = evidence.join(from.file_name().unwrap_or_default());
        match std::fs::rename(&from, &to) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            moved => moved.map_err(|e| Error::io("move aside", &from, e))?,
        }
    }
    sync(&[&evidence, &parent, family.directory()])?;
    Ok(evidence)
}

fn sync(directories: &[&Path]) -> Result<()> {
    directories.iter().try_for_each(|directory| captures::sync_directory(directory))
}
