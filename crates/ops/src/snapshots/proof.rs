//! Whether a file is a good copy: opened, looked at as a whole, and counted.
//!
//! A copy cannot be better than its source, so what the database itself says about its content is not against it: rows that break
//! a constraint of their table, and foreign keys that lead nowhere, are noted; the latter must be the same ones as in the
//! database. What SQLite says of full-text indexes is noted too: it compares them with what its own tokenizer makes of the
//! content, and programs bring their own. Everything else is damage.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::types::ValueRef;
use statehouse_sqlite::immutable;
use statehouse_sqlite::words;

use super::error::Result;
use crate::maintenance::whole::{Depth, Rows, faults};
use crate::verify::is_of_search_index;

/// How many lines of a check are read. A file with more than that is not good.
const MOST_LINES: u32 = 10_000;
/// How many of them are told.
const TOLD: usize = 20;

/// A database that was proved to be good.
#[derive(Debug, Clone, PartialEq)]
pub struct Proved {
    /// Rows of each table that programs made.
    pub rows: BTreeMap<String, i64>,
    /// Bytes of a page.
    pub page_size: u32,
    /// `PRAGMA user_version`.
    pub user_version: i64,
    /// `PRAGMA application_id`.
    pub application_id: i64,
    /// What was found that is not against it.
    pub notes: Vec<String>,
}

/// What is compared between a copy and its source.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Counts {
    pub(super) rows: Rows,
    pub(super) foreign_keys: ForeignKeys,
}

/// The rows whose foreign keys lead nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ForeignKeys {
    /// How many there are, and a hash that tells which.
    Broken { rows: u64, which: blake3::Hash },
    /// SQLite cannot check them, and says why.
    Unchecked(String),
}

impl Counts {
    /// Counts in what must be one read transaction.
    pub(super) fn of(connection: &Connection) -> Result<Counts> {
        Ok(Counts { rows: Rows::count(connection, |_| true)?, foreign_keys: foreign_keys(connection)? })
    }

    /// What is different in the copy; empty if nothing is.
    pub(super) fn differences(&self, copy: &Counts) -> String {
        let mut found = self.rows.differences(&copy.rows);
        if self.foreign_keys != copy.foreign_keys {
            found.push_str("; other foreign keys are broken in the copy than in the database");
        }
        found.trim_start_matches("; ").to_owned()
    }
}

fn foreign_keys(connection: &Connection) -> rusqlite::Result<ForeignKeys> {
    let mut hasher = blake3::Hasher::new();
    let mut count = 0;
    let mut ask = || -> rusqlite::Result<()> {
        let mut statement = connection.prepare("PRAGMA foreign_key_check")?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            count += 1;
            for column in 0..4 {
                match row.get_ref(column)? {
                    ValueRef::Integer(n) => hasher.update(&n.to_le_bytes()),
                    ValueRef::Text(t) | ValueRef::Blob(t) => hasher.update(t),
                    ValueRef::Null | ValueRef::Real(_) => hasher.update(&[0]),
                };
                hasher.update(&[0xff]);
            }
        }
        Ok(())
    };
    match ask() {
        Ok(()) => Ok(ForeignKeys::Broken { rows: count, which: hasher.finalize() }),
        // A schema whose keys do not fit together, or that needs a function or collation of its own program.
        Err(rusqlite::Error::SqliteFailure(e, text)) if e.code == rusqlite::ErrorCode::Unknown => {
            Ok(ForeignKeys::Unchecked(text.unwrap_or_else(|| e.to_string())))
        }
        Err(e) => Err(e),
    }
}

/// What a look at a file came to: what it says, or why the file is not good.
pub(super) type Verdict<T> = std::result::Result<T, String>;

/// Bytes of pages that a look keeps, so that finding each row in an index does not read the same pages again and again.
const CACHE: i64 = 64 << 20;

/// Bytes of a copy that are mapped while its structure is looked at, which reads every page twice. It has just been written, so
/// that much of it is in memory; of a larger one the rest is read with calls.
const MAPPED: i64 = 1 << 30;

/// Opens a file that nobody changes meanwhile and that has no log.
fn open(path: &Path) -> Result<Connection> {
    let connection = immutable(path)?;
    connection.pragma_update(None, "trusted_schema", 0)?;
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "cache_size", -(CACHE >> 10))?;
    connection.pragma_update(None, "cell_size_check", 1)?;
    Ok(connection)
}

/// Looks at all of such a file.
pub(super) fn judge(path: &Path) -> Result<Verdict<Proved>> {
    Ok(match structure_of(path, open)? {
        Ok(notes) => content(path)?.map(|(proved, _)| proved.with(notes)),
        Err(found) => Err(found),
    })
}

/// Looks at the structure of a copy that this process has just written and that nobody else can know, every page and every entry of
/// an index. Gives what is not against it.
pub(super) fn structure(copy: &Path) -> Result<Verdict<Vec<String>>> {
    structure_of(copy, |path| {
        let connection = open(path)?;
        // A mapped file that shrinks, or cannot be read, ends the process: nobody shrinks this one, and it was written just now.
        connection.pragma_update(None, "mmap_size", MAPPED)?;
        // Else a mapped page is looked at again whenever it is used. The check itself looks at every cell of every page.
        connection.pragma_update(None, "cell_size_check", 0)?;
        Ok(connection)
    })
}

fn structure_of(path: &Path, open: impl Fn(&Path) -> Result<Connection>) -> Result<Verdict<Vec<String>>> {
    damage(open(path).and_then(|c| Ok(faults(&c, Depth::Full, MOST_LINES)?))).map(|lines| lines.and_then(sorted))
}

/// Counts what such a file holds.
pub(super) fn content(path: &Path) -> Result<Verdict<(Proved, Counts)>> {
    damage(open(path).and_then(|c| counted(&c)))
}

/// Damage that keeps a look from ending is an answer too.
fn damage<T>(looked: Result<T>) -> Result<Verdict<T>> {
    match looked {
        Ok(seen) => Ok(Ok(seen)),
        Err(super::Error::Work(crate::maintenance::Error::Database(statehouse_sqlite::Error::Damaged { detail }))) => {
            Ok(Err(detail))
        }
        Err(e) => Err(e),
    }
}

fn sorted(lines: Vec<String>) -> Verdict<Vec<String>> {
    if lines.len() >= MOST_LINES as usize {
        return Err(format!("more than {} things are wrong: {}", lines.len(), told(&lines)));
    }
    let (of_content, structure): (Vec<String>, Vec<String>) =
        lines.into_iter().partition(|line| is_of_search_index(line) || is_of_content(line));
    if !structure.is_empty() {
        return Err(told(&structure));
    }
    let mut notes = of_content;
    if notes.len() > TOLD {
        let more = notes.len() - TOLD;
        notes.truncate(TOLD);
        notes.push(format!("and {more} more like these"));
    }
    Ok(notes)
}

fn counted(connection: &Connection) -> Result<(Proved, Counts)> {
    let counts = Counts::of(connection)?;
    let notes = match &counts.foreign_keys {
        ForeignKeys::Broken { rows: 0, .. } => None,
        ForeignKeys::Broken { rows, .. } => Some(format!(
            "{} {} a foreign key that leads nowhere",
            words::count(*rows, "row"),
            words::verb(*rows, "has", "have")
        )),
        ForeignKeys::Unchecked(why) => Some(format!("its foreign keys cannot be checked: {why}")),
    };
    let number = |name: &str| connection.pragma_query_value(None, name, |r| r.get::<_, i64>(0));
    let proved = Proved {
        rows: counts.rows.clone().of_programs(),
        page_size: u32::try_from(number("page_size")?).unwrap_or(0),
        user_version: number("user_version")?,
        application_id: number("application_id")?,
        notes: notes.into_iter().collect(),
    };
    Ok((proved, counts))
}

impl Proved {
    /// With what was found in the structure, which comes first.
    pub(super) fn with(self, structure: Vec<String>) -> Proved {
        Proved { notes: structure.into_iter().chain(self.notes).collect(), ..self }
    }
}

fn told(lines: &[String]) -> String {
    lines.iter().take(TOLD).map(String::as_str).collect::<Vec<_>>().join("; ")
}

/// True if this line of a check says that a row breaks a rule of its table (pragma.c, `PragTyp_INTEGRITY_CHECK`).
fn is_of_content(line: &str) -> bool {
    let of_type = |line: &str| {
        line.strip_prefix("non-").and_then(|l| l.split_once(" value in ")).is_some_and(|(kind, _)| !kind.contains(' '))
    };
    ["NULL value in ", "NUMERIC value in ", "TEXT value in ", "CHECK constraint failed in "]
        .iter()
        .any(|beginning| line.starts_with(beginning))
        || of_type(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_about_the_content_is_told_from_damage() {
        for line in
            ["NULL value in t.c", "CHECK constraint failed in t", "non-INTEGER value in t.c", "TEXT value in t.c"]
        {
            assert!(is_of_content(line), "{line}");
        }
        for line in [
            "non-unique entry in index i",
            "row 3 missing from index i",
            "wrong # of entries in index i",
            "Tree 2 page 3: btreeInitPage() returns error code 11",
            "non-x y value in t",
        ] {
            assert!(!is_of_content(line), "{line}");
        }
    }
}
