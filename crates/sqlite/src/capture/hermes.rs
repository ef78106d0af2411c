//! The copies that Hermes Agent makes of a retired generation, beside its own database.
//!
//! They are directories `X.retired-wal-TIME-PID`, made whole under a name that ends in `.partial` and renamed. In them lie the
//! log, mostly the main file (one that is too large only by its header), perhaps the index, and `manifest.json`. A directory
//! without a manifest is taken as well if it has a log: what a person has copied by hand looks like that. The log is the only
//! thing that is believed, for it proves itself.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Capture, CapturedFile, Manifest, Origin};
use crate::captures::MANIFEST;
use crate::error::{Error, Result};
use crate::family::{Family, Generation, Identity, Member};
use crate::header::MainHeader;
use crate::{files, wal};

/// What stands between the name of the database and the time.
const MARK: &str = ".retired-wal-";

/// What the directory is called while it is being made.
const UNFINISHED: &str = ".partial";

/// The file of a member in such a directory; it is called as in the family. Where the directory has another name than it was
/// given, the log in it says how.
pub(super) fn file(place: &Path, member: Member) -> PathBuf {
    let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let database = match name.split_once(MARK) {
        Some((database, _)) => database.to_owned(),
        None => only_log(place).unwrap_or_default(),
    };
    place.join(format!("{database}{}", member.suffix()))
}

/// The name of the database whose log lies in a directory.
fn only_log(place: &Path) -> Option<String> {
    let names = std::fs::read_dir(place).ok()?.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let mut logs: Vec<String> = names.filter_map(|n| n.strip_suffix("-wal").map(str::to_owned)).collect();
    logs.sort();
    logs.into_iter().next()
}

/// The copy of the main file, if it is more than its header.
pub(super) fn whole_main(place: &Path) -> Option<PathBuf> {
    let path = file(place, Member::Main);
    let main = files::open(&path).ok()?;
    let header = MainHeader::read(&main).ok()??;
    let length = main.metadata().ok()?.len();
    (length >= 2 * u64::from(header.page_size) || header.pages == Some(1)).then_some(path)
}

pub(super) fn list(family: &Family) -> Result<Vec<Capture>> {
    let Ok(entries) = std::fs::read_dir(family.directory()) else { return Ok(Vec::new()) };
    let begin = format!("{}{MARK}", family.name().to_string_lossy());
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        // A link could lead anywhere.
        let directory = entry.file_type().is_ok_and(|t| t.is_dir());
        if !directory || !name.starts_with(&begin) || name.ends_with(UNFINISHED) {
            continue;
        }
        found.extend(read(entry.path(), name)?);
    }
    Ok(found)
}

pub(super) fn read(place: PathBuf, id: String) -> Result<Option<Capture>> {
    let path = file(&place, Member::Wal);
    let log = match files::open(&path) {
        Ok(log) => log,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io("read", &path, e)),
    };
    let commit = wal::last_commit(&log).map_err(|e| Error::io("read", &path, e))?;
    let text = files::read_to_string(&place.join(MANIFEST), 1 << 20).unwrap_or_default();
    let said: Value = serde_json::from_str(&text).unwrap_or_default();
    let identity =
        |v: &Value| Some(Identity { device: v.get(0)?.as_u64()?, inode: v.get(1)?.as_u64()?, born_ns: None });
    let generation = Generation {
        main: identity(&said["main"]["identity"]),
        wal: identity(&said["wal"]["identity"]),
        shm: identity(&said["shm"]["identity"]),
    };
    let named = name_says(&id);
    let at = said["captured_at"].as_str().and_then(micros).or(named.map(|(at, _)| at));
    let pid = said["pid"].as_u64().and_then(|p| u32::try_from(p).ok()).or(named.map(|(_, pid)| pid));
    let copies = [Member::Main, Member::Wal, Member::Shm].map(|m| file(&place, m));
    let copied = |path: &PathBuf| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        Some(CapturedFile { name, bytes: path.metadata().ok()?.len(), blake3: String::new() })
    };
    let files: Vec<_> = copies.iter().filter_map(copied).collect();
    let pid = pid.unwrap_or(0);
    let manifest = Manifest {
        version: 0,
        database: said["database"].as_str().unwrap_or_default().to_owned(),
        captured_at_unix_us: at.unwrap_or(0),
        pid,
        start_ticks: None,
        pids: vec![pid],
        command: Vec::new(),
        role: None,
        by: None,
        sqlite: said["sqlite"].as_str().unwrap_or_default().to_owned(),
        sqlite_library: None,
        sqlite_writer: None,
        generation,
        at_path: None,
        members_lost: vec![Member::Wal],
        members: Vec::new(),
        page_size: commit.map_or(0, |c| c.page_size),
        salts: commit.map(|c| c.salts),
        frames: commit.map_or(0, |c| c.frames),
        transactions: commit.map_or(0, |c| c.transactions),
        pages: commit.map_or(0, |c| u64::from(c.pages)),
        sound: None,
        detail: String::new(),
        files,
        supersedes: None,
        kept_back: false,
    };
    Ok(Some(Capture { id, place, origin: Origin::Hermes, manifest, side: None }))
}

/// Time and process from a name that ends in `-YYYYmmdd-HHMMSS-PID` and perhaps `-N`.
fn name_says(id: &str) -> Option<(u64, u32)> {
    let mut words = id.rsplit_once(MARK)?.1.split('-');
    let (date, time, pid) = (words.next()?, words.next()?, words.next()?);
    let digits = format!("{date}{time}");
    (date.len() == 8 && time.len() == 6).then_some(())?;
    Some((of_digits(&digits)?, pid.parse().ok()?))
}

/// Microseconds since 1970 of a moment in UTC as `2026-01-31T12:34:56.789Z`; fractions are left out.
fn micros(text: &str) -> Option<u64> {
    let whole = text.get(..19)?;
    let zone = text.get(19..)?.trim_start_matches(|c: char| c == '.' || c.is_ascii_digit());
    if !matches!(zone, "Z" | "+00:00") {
        return None;
    }
    of_digits(&whole.chars().filter(char::is_ascii_digit).collect::<String>())
}

/// The moment of fourteen digits, from the year to the second.
fn of_digits(digits: &str) -> Option<u64> {
    let number = |from: usize, to: usize| digits.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(4, 6)?, number(6, 8)?);
    let (hour, minute, second) = (number(8, 10)?, number(10, 12)?, number(12, 14)?);
    if digits.len() != 14 || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days from a date in the proleptic Gregorian calendar, counted from 1 March of year 0 in eras of 400 years.
    let years = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (years.div_euclid(400), years.rem_euclid(400));
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year - 719_468;
    u64::try_from(((days * 24 + hour) * 60 + minute) * 60 + second).ok()?.checked_mul(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::rfc3339;

    #[test]
    fn moments_are_read_as_they_are_written() {
        for text in ["2000-02-29T12:34:56Z", "2026-11-30T13:00:00.123456Z", "1970-01-01T00:00:00+00:00"] {
            let read = micros(text).map(rfc3339).unwrap_or_default();
            assert_eq!(read.get(..19), text.get(..19));
        }
        for none in ["", "2026-11-30", "2026-13-30T00:00:00Z", "2026-11-30T13:00:00+02:00", "é2026-11-30T13:00:00Z"] {
            assert_eq!(micros(none), None, "{none}");
        }
        let named = name_says("state.db.retired-wal-20261130-130000-77-2");
        assert_eq!(named.map(|(at, pid)| (rfc3339(at), pid)), Some(("2026-11-30T13:00:00.000000Z".into(), 77)));
        assert_eq!(name_says("state.db.retired-wal-x"), None);
    }
}
