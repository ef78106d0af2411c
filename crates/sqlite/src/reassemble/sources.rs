//! What the files of a destroyed database still have, and what a new file is made of.
//!
//! A whole database is the best base for the new file: main file and log, if they still fit, the newest snapshot, or the main
//! file alone. Where the files do not fit any more the rows are taken off their pages, and merged into the base.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::behind::Behind;
use super::{Account, Destroyed, LONGEST, at_risk, connect, mark_ours, transaction};
use crate::captures::{self, sound};
use crate::error::{Error, Result};
use crate::family::{Family, Member};
use crate::image::{self, ImageError};
use crate::options::{Options, Schema};
use crate::salvage::{self, SalvageError};
use crate::wal::{self, ReadAt};
use crate::{files, headers, retired, secure};

/// The new file, and what it is called while it is made.
pub(super) const REBUILT: &str = "rebuilt.captured";
const PARTIAL: &str = "rebuilt.partial";
const OVERLAY: &str = "overlay.partial";
const MAIN: &str = "main.partial";
const OF_LOG: &str = "log.partial";
const OF_TABLES: &str = "tables.partial";
const EARLIER: &str = "earlier.partial";
const NEW: &str = "new.partial";
const BENEATH: &str = "beneath.partial";
const PIECED: &str = "pieced.partial";
const MADE_ON_THE_WAY: [&str; 9] = [PARTIAL, OVERLAY, MAIN, OF_LOG, OF_TABLES, EARLIER, NEW, BENEATH, PIECED];
/// The most earlier rounds of a log that are looked for.
const MOST_ROUNDS: usize = 8;
/// Bytes of a page of a store of which nothing says it.
const USUAL_PAGE: u32 = 4096;
/// Where the header of a main file says how it is written and read, and the value for a file without a log.
const VERSIONS: (u64, [u8; 2]) = (18, [1, 1]);

/// Makes the new file of what the files have. What was made on the way is gone after that, also after an error: half a file
/// would be taken for a whole one, and keeps a disk full.
pub(super) fn put_together(what: &Destroyed<'_>, options: &Options) -> Result<Account> {
    let clear = || {
        let rows = (0..MOST_ROUNDS).map(of_earlier);
        let names = MADE_ON_THE_WAY.iter().map(|name| (*name).to_owned()).chain(rows);
        names.for_each(|name| drop(std::fs::remove_file(what.evidence.join(name))));
    };
    clear();
    let made = from_files(what, options);
    clear();
    made
}

/// The file with the rows of an earlier round of the log.
fn of_earlier(n: usize) -> String {
    format!("earlier-rows-{n}.partial")
}

/// A file of the family: the copy that was made of it, else what is left of it.
fn member(what: &Destroyed<'_>, member: Member) -> Result<Option<File>> {
    let copy = what.evidence.join(format!("{member}.captured"));
    if copy.exists() {
        return files::open(&copy).map(Some).map_err(|e| Error::io("read", &copy, e));
    }
    let wanted = what.generation.get(member);
    if let Some(open) = retired::descriptor(what.family, member, wanted)? {
        return Ok(Some(open));
    }
    // The connections of this process are closed: it comes back to what it could not do before. A file is in place still.
    // What the files are to each other is not asked: a main file that was emptied beside its log is what this is about.
    let inspected = secure::inspect_to_replace(what.family)?;
    let Some(seen) = inspected.get(member).filter(|seen| Some(seen.status.identity) == wanted) else { return Ok(None) };
    headers::open(seen).map(|open| Some(open.into())).map_err(|e| Error::io("read", &what.family.path(member), e))
}

fn from_files(what: &Destroyed<'_>, options: &Options) -> Result<Account> {
    let schema = options.schema.as_deref();
    let mut account = Account { at_risk: at_risk(what), ..Account::default() };
    let path = |name: &str| what.evidence.join(name);
    let (partial, overlay) = (path(PARTIAL), path(OVERLAY));
    let mut images = Vec::new();
    match overlaid(what, true, &overlay) {
        Ok(()) => images.push((overlay.clone(), "the main file with its log")),
        Err(Error::Damaged { detail }) => account.unusable.push(format!("the main file with its log: {detail}")),
        Err(e) => return Err(e),
    }
    match snapshot(what.family) {
        Some(Ok(path)) => images.push((path, "the newest snapshot")),
        Some(Err(why)) => account.unusable.push(why),
        None => account.unusable.push("there is no snapshot".into()),
    }
    // What was taken over from a removed log may have been in the destroyed one alone.
    let unmerged = captures::unmerged(what.family).into_iter().map(|place| place.join(captures::IMAGE));
    images.extend(unmerged.map(|image| (image, "what was captured of removed files")));
    let mut whole = sound_ones(images, &mut account);
    let mut rows = Vec::new();
    if what.destruction.member == Member::Main || whole.first().is_none_or(|(path, _)| *path != overlay) {
        // The files are no database together any more, or have less than they had. The main file may be one by itself, if it is an older copy, and most of
        // their pages are what they were.
        let main = path(MAIN);
        match overlaid(what, false, &main) {
            Ok(()) => whole.extend(sound_ones(vec![(main, "the main file alone")], &mut account)),
            Err(Error::Damaged { detail }) => account.unusable.push(format!("the main file alone: {detail}")),
            Err(e) => return Err(e),
        }
        let earlier = earlier(what)?;
        let mut main = member(what, Member::Main)?;
        if let Some(behind) = behind(what, options)? {
            match pieced(what, &behind, &earlier) {
                Ok((path, image)) => {
                    let name = "the pages of the log and of the main file over those of a new store";
                    whole.extend(sound_ones(vec![(path, name)], &mut account));
                    main = Some(image);
                }
                Err(Error::Damaged { detail }) => {
                    account.unusable.push(format!("the pages over a new store: {detail}"))
                }
                Err(e) => return Err(e),
            }
        }
        rows = sound_ones(rows_of(what, main.as_ref(), &earlier, &mut account)?, &mut account);
    }
    if let Some(schema) = schema {
        // A database that somebody has copied there is whole, and is another one.
        whole.retain(|(path, image)| match schema.current(image) {
            Ok(_) => true,
            Err(e) => {
                account.unusable.push(format!("{}: {e}", path.file_name().unwrap_or_default().display()));
                false
            }
        });
    }
    if let Some(schema) = schema {
        for (_, image) in whole.iter().chain(&rows) {
            for (key, count) in schema.inventory(image)? {
                let known = account.expected.entry(key).or_default();
                *known = count.max(*known);
            }
        }
    }
    // What only has rows has neither indexes nor constraints, so it serves as the base only where nobody knows a better one.
    let known_schema = schema.is_some();
    let mut sources = whole.into_iter().chain(rows.into_iter().filter(|_| known_schema)).peekable();
    let is_base = |path: &Path| {
        ![OF_LOG, OF_TABLES].iter().any(|name| path.ends_with(name))
            && !(0..MOST_ROUNDS).any(|n| path.ends_with(of_earlier(n)))
    };
    let base = sources.next_if(|(path, _)| is_base(path));
    if base.is_none() && sources.peek().is_none() {
        return Ok(account);
    }
    let copy = match base {
        Some((base, image)) => {
            // A file that SQLite has open is read by nobody else in this process.
            drop(image);
            let source = files::open(&base).map_err(|e| Error::io("read", &base, e))?;
            captures::copy_file(&source, &base, &partial)?
        }
        None => captures::create(&partial)?,
    };
    let (at, versions) = VERSIONS;
    if copy.metadata().is_ok_and(|m| m.len() > 0) {
        copy.write_all_at(&versions, at).map_err(|e| Error::io("write", &partial, e))?;
    }
    drop(copy);
    if let Some(schema) = schema {
        merge_all(schema, options, &partial, sources, &mut account)?;
    }
    let rebuilt = path(REBUILT);
    std::fs::rename(&partial, &rebuilt).map_err(|e| Error::io("rename", &partial, e))?;
    account.rebuilt = Some(rebuilt);
    Ok(account)
}

/// Pages of two states can be trees and yet have rows that no index knows.
fn fits_its_indexes(image: Connection) -> Result<Connection> {
    let verdict: String = image.query_row("PRAGMA integrity_check(1)", [], |r| r.get(0))?;
    if verdict == "ok" { Ok(image) } else { Err(Error::Damaged { detail: verdict }) }
}

/// Those of the images that SQLite finds whole, open.
fn sound_ones(images: Vec<(PathBuf, &str)>, account: &mut Account) -> Vec<(PathBuf, Connection)> {
    let mut whole = Vec::new();
    for (path, name) in images {
        match sound(&path).and_then(fits_its_indexes) {
            Ok(image) => {
                account.sources.push(name.to_owned());
                whole.push((path, image));
            }
            Err(Error::Damaged { detail }) => account.unusable.push(format!("{name}: {detail}")),
            Err(e) => account.unusable.push(format!("{name}: {e}")),
        }
    }
    whole
}

/// The rows that can still be read of the files, each kind in a file of its own: those on the pages of the log, and those of
/// the tables as far as they can be walked.
fn rows_of(
    what: &Destroyed<'_>,
    main: Option<&File>,
    earlier: &[File],
    account: &mut Account,
) -> Result<Vec<(PathBuf, &'static str)>> {
    let Some(main) = main else { return Ok(Vec::new()) };
    let log = member(what, Member::Wal)?;
    let mut found = Vec::new();
    let mut take = |name: &str, what_for: &'static str, made: std::result::Result<(), SalvageError>| match made {
        Ok(()) => found.push((what.evidence.join(name), what_for)),
        Err(e) => account.unusable.push(format!("{what_for}: {e}")),
    };
    if let Some(log) = &log {
        let made = salvage::from_log(main, log, &what.evidence.join(OF_LOG));
        take(OF_LOG, "rows of the log", made.map(drop));
    }
    for (n, round) in earlier.iter().enumerate() {
        let name = of_earlier(n);
        let made = salvage::from_log(main, round, &what.evidence.join(&name));
        take(&name, "rows of the log before it was begun anew", made.map(drop));
    }
    let nothing = Vec::new();
    let log: &dyn ReadAt = log.as_ref().map_or(&nothing, |log| log);
    let made = salvage::readable(main, log, &what.evidence.join(OF_TABLES));
    take(OF_TABLES, "rows of the tables", made.map(drop));
    Ok(found)
}

/// What earlier rounds of the log have left behind its end, each as a log, the newest first.
fn earlier(what: &Destroyed<'_>) -> Result<Vec<File>> {
    let Some(log) = member(what, Member::Wal)? else { return Ok(Vec::new()) };
    let path = what.evidence.join(EARLIER);
    let failed = |e| Error::io("write", &path, e);
    let mut rounds = Vec::new();
    let mut end = wal::end_of_round(&log).map_err(failed)?;
    while rounds.len() < MOST_ROUNDS {
        let mut round = captures::create(&path)?;
        // It is read through its descriptor, and its name is for the next one.
        std::fs::remove_file(&path).map_err(failed)?;
        let found = wal::earlier_round(&log, end, &mut round).map_err(failed)?;
        if found.end == end {
            break;
        }
        end = found.end;
        if found.frames > 0 {
            rounds.push(round);
        }
    }
    Ok(rounds)
}

/// The main file with the pages of a new store behind it; `None` if it has all of these itself, or nobody knows them.
fn behind(what: &Destroyed<'_>, options: &Options) -> Result<Option<Behind>> {
    let Some(schema) = options.schema.as_deref() else { return Ok(None) };
    let page_size = what.index.or(what.now).map_or(USUAL_PAGE, |index| index.page_size);
    let main = member(what, Member::Main)?;
    let behind = Behind::of(main, page_size, schema, options, &what.evidence.join(NEW))?;
    Ok(Some(behind).filter(Behind::is_needed))
}

/// An image of what is left of the main file, with the pages of every round of the log over it. What an earlier round had was all
/// in the main file before the next one began, so each page is the newest that anything has.
fn pieced(what: &Destroyed<'_>, behind: &Behind, earlier: &[File]) -> Result<(PathBuf, File)> {
    let (beneath, to) = (what.evidence.join(BENEATH), what.evidence.join(PIECED));
    let write = |main: &dyn ReadAt, log: &dyn ReadAt, to: &Path| {
        let mut output = captures::create(to)?;
        match image::overlay(main, log, &mut output) {
            Ok(_) => Ok(output),
            Err(ImageError::Io(e)) => Err(Error::io("write", to, e)),
            Err(e) => Err(Error::Damaged { detail: e.to_string() }),
        }
    };
    let mut under = write(behind, &Vec::new(), &beneath)?;
    for round in earlier.iter().rev() {
        // The one before is read through its descriptor.
        std::fs::remove_file(&beneath).map_err(|e| Error::io("remove", &beneath, e))?;
        under = write(&under, round, &beneath)?;
    }
    let nothing = Vec::new();
    let log = member(what, Member::Wal)?;
    let pieced = write(&under, log.as_ref().map_or(&nothing as &dyn ReadAt, |log| log), &to)?;
    Ok((to, pieced))
}

/// Takes over into a copy of one image what only the others have. Rows whose parents nobody has any more get new ones.
fn merge_all(
    schema: &dyn Schema,
    options: &Options,
    base: &Path,
    images: impl Iterator<Item = (PathBuf, Connection)>,
    account: &mut Account,
) -> Result<()> {
    let live = connect(base)?;
    mark_ours(&live, options)?;
    if !schema.current(&live)? {
        // A snapshot may be older than the program, and a new file has nothing yet.
        transaction(&live, &|c| schema.migrate(c))?;
    }
    live.pragma_update(None, "foreign_keys", 0)?;
    for (path, image) in images {
        // What one source lacks (a table, a column that nobody knows any more) is no reason to go without the others.
        if let Err(e) = transaction(&live, &|c| schema.merge(c, &image).map(drop)) {
            account.unusable.push(format!("{}: {e}", path.file_name().unwrap_or_default().display()));
        }
    }
    transaction(&live, &|c| schema.adopt(c))?;
    Ok(())
}

fn overlaid(what: &Destroyed<'_>, with_log: bool, to: &Path) -> Result<()> {
    let damaged = |detail: String| Error::Damaged { detail };
    let main = member(what, Member::Main)?.ok_or_else(|| damaged("there is no main file".into()))?;
    let mut output = captures::create(to)?;
    let made = match member(what, Member::Wal)? {
        Some(log) if with_log => image::overlay(&main, &log, &mut output),
        _ => image::overlay(&main, &Vec::new(), &mut output),
    };
    match made {
        Ok(_) => Ok(()),
        Err(ImageError::Io(e)) => Err(Error::io("write", to, e)),
        Err(e) => Err(damaged(e.to_string())),
    }
}

/// The newest snapshot that was proved good; or why it cannot be used.
fn snapshot(family: &Family) -> Option<std::result::Result<PathBuf, String>> {
    let place = family.side_directory().join("snapshots");
    let record = |path: PathBuf| -> Option<(String, PathBuf)> {
        let record: serde_json::Value = serde_json::from_str(&files::read_to_string(&path, LONGEST).ok()?).ok()?;
        let good = record["verified"].as_bool()?;
        let file = place.join(Path::new(record["path"].as_str()?).file_name()?);
        (good && file.exists()).then_some((record["created_at"].as_str()?.to_owned(), file))
    };
    let entries = std::fs::read_dir(&place).ok()?.flatten().map(|e| e.path());
    let newest = entries.filter(|p| p.extension().is_some_and(|e| e == "json")).filter_map(record).max()?.1;
    if newest.extension().is_some_and(|e| e == "zst") {
        return Some(Err(format!("the newest snapshot is compressed: {}", newest.display())));
    }
    Some(Ok(newest))
}
