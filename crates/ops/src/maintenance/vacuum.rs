//! `VACUUM`: the database is rewritten without its free pages.
//!
//! It takes the whole database through the log and a temporary copy, so it is only done when that gives enough back, where
//! there is room for it, and never to a database that is damaged. What cannot be done in one transaction with it, the count of
//! rows before and after, is done under the same admission, while nobody else can write.
//!
//! SQLite gives rows new numbers on the way where a table has neither a primary key of integers nor any index. A search index
//! that keeps no content of its own refers to rows by these numbers, and would find other rows after it. That is refused.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Instant;

use rusqlite::{Connection, OptionalExtension as _};
use serde::Serialize;
use statehouse_sqlite::headers::Journal;
use statehouse_sqlite::words;
use statehouse_sqlite::{Family, Member};

use super::error::{Error, Result};
use super::room::{Place, Room, Temporary};
use super::whole::{self, Rows};
use super::{Admission, Forecast, Look, Pages, Plan, Step, Wanted, Watch, checkpoint, ms, quoted, size};

/// From which gain on a rewrite is worth its cost.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worth {
    /// The least share of free pages, from 0 to 1.
    pub share: f64,
    /// The least number of bytes that it gives back.
    pub bytes: u64,
}

impl Worth {
    /// For a person who asks for it.
    pub const ASKED: Worth = Worth { share: 0.05, bytes: 64 << 10 };
    /// Whatever it gives back.
    pub const ANYWAY: Worth = Worth { share: 0.0, bytes: 0 };

    /// Why it is not worth it; `None` if it is.
    pub fn against(self, pages: Pages) -> Option<String> {
        let (share, bytes) = (pages.share(), pages.reclaimable());
        if share >= self.share && bytes >= self.bytes {
            return None;
        }
        Some(format!(
            "{} of {} {} free ({bytes} bytes, {:.1} %), and it is worth it from {} bytes and {:.0} % on",
            pages.free,
            words::count(pages.pages, "page"),
            words::verb(pages.free, "is", "are"),
            share * 100.0,
            self.bytes,
            self.share * 100.0
        ))
    }
}

/// What a rewrite would be about.
#[derive(Debug, Serialize)]
pub struct Gain {
    /// How the pages are used.
    #[serde(flatten)]
    pub pages: Pages,
    /// Bytes that it would give back.
    pub reclaimable: u64,
    /// True if that is worth it.
    pub worth_it: bool,
    /// Why not.
    pub reason: Option<String>,
    /// What it takes on the way; `null` if there is not enough room.
    pub room: Option<Room>,
}

/// The answer of `vacuum`.
#[derive(Debug, Serialize)]
pub struct Vacuumed {
    /// The main file.
    pub path: String,
    /// False if it was not worth it.
    pub done: bool,
    /// Why not.
    pub reason: Option<String>,
    /// Bytes of a page.
    pub page_size: u64,
    /// Bytes of the main file.
    pub size_before: u64,
    /// Bytes of the main file after it.
    pub size_after: u64,
    /// Pages of the database.
    pub pages_before: u64,
    /// Pages after it.
    pub pages_after: u64,
    /// Free pages among them.
    pub free_before: u64,
    /// Free pages after it.
    pub free_after: u64,
    /// False if a reader kept the log as long as the rewrite made it, which only `--force` lets happen. The next checkpoint
    /// empties it.
    pub log_emptied: bool,
    /// How long it took.
    pub ms: f64,
    /// What `--force` went on beside.
    pub overridden: Vec<String>,
}

impl Vacuumed {
    /// The answer where nothing was done.
    pub fn not_worth_it(look: &Look, reason: String) -> Vacuumed {
        let (pages, size) = (look.pages(), look.size(Member::Main));
        Vacuumed {
            path: look.family().main().to_string_lossy().into_owned(),
            done: false,
            reason: Some(reason),
            page_size: pages.page_size,
            size_before: size,
            size_after: size,
            pages_before: pages.pages,
            pages_after: pages.pages,
            free_before: pages.free,
            free_after: pages.free,
            log_emptied: look.size(Member::Wal) == 0,
            ms: 0.0,
            overridden: Vec::new(),
        }
    }
}

/// What the volumes have to say to a rewrite of what `look` saw. The log will have been copied and emptied before it begins.
///
/// # Errors
/// [`Error::NoRoom`], or the system's answer.
pub fn room(look: &Look, temporary: &Temporary) -> Result<Room> {
    let pages = look.pages();
    let grows = (pages.pages * pages.page_size).saturating_sub(look.size(Member::Main));
    let returned = look.size(Member::Wal).saturating_sub(grows);
    // The main file grows before the log is given back.
    Room::to_grow(look.family(), grows)?;
    Room::find(look.family(), pages, look.header.journal == Journal::Wal, returned, temporary)
}

/// What it would gain, and what would refuse it now.
pub fn plan(look: &Look, worth: Worth, temporary: &Temporary, forecast: Forecast) -> Plan<Gain> {
    let pages = look.pages();
    let reason = worth.against(pages);
    let (room, against) = match room(look, temporary) {
        Ok(room) => (Some(room), None),
        Err(e) => (None, Some(e)),
    };
    let would = match &reason {
        None => format!(
            "rewrite {} without the {} that {} nothing",
            words::count(pages.pages, "page"),
            pages.free,
            words::verb(pages.free, "holds", "hold")
        ),
        Some(reason) => format!("do nothing: {reason}"),
    };
    // What is not done needs no room.
    let against = against.filter(|_| reason.is_none());
    let gain = Gain { pages, reclaimable: pages.reclaimable(), worth_it: reason.is_none(), reason, room };
    Plan::new(look, would, gain, forecast, against)
}

/// How a rewrite is done.
pub struct How<'a> {
    /// From which gain on.
    pub worth: Worth,
    /// Where temporary files may go.
    pub temporary: &'a Temporary,
    /// Is told the steps.
    pub watch: Watch<'a>,
}

/// Everything from the look to the answer: refused first, then weighed, then done.
///
/// # Errors
/// What refuses it, with nothing done; or what went wrong.
pub fn run(path: &Path, wanted: &Wanted<'_>, how: &How<'_>) -> Result<Vacuumed> {
    let seen = super::look(path)?;
    super::refuse_first(seen.family(), wanted)?;
    if let Some(reason) = how.worth.against(seen.pages()) {
        return Ok(Vacuumed::not_worth_it(&seen, reason));
    }
    room(&seen, how.temporary)?;
    vacuum(&Admission::obtain(seen.family(), wanted)?, how)
}

/// Rewrites the database.
///
/// # Errors
/// [`Error::Unsound`], [`Error::NoRoom`], [`Error::Renumbers`] with nothing changed; what SQLite answers, with everything as it
/// was.
pub fn vacuum(admission: &Admission, how: &How<'_>) -> Result<Vacuumed> {
    let begun = Instant::now();
    let (family, connection) = (admission.family(), admission.connection());
    connection.pragma_update(None, "trusted_schema", 0)?;
    let wal = checkpoint::empty_the_log(admission, how.watch)?;
    let before = Pages::of(connection)?;
    let size_before = size(family, Member::Main)?;
    let mut answer = Vacuumed {
        path: family.main().to_string_lossy().into_owned(),
        done: false,
        // What is free may have been used since the first look.
        reason: how.worth.against(before),
        page_size: before.page_size,
        size_before,
        size_after: size_before,
        pages_before: before.pages,
        pages_after: before.pages,
        free_before: before.free,
        free_after: before.free,
        log_emptied: true,
        ms: 0.0,
        overridden: admission.overridden().to_vec(),
    };
    if answer.reason.is_none() {
        refuse_renumbering(connection)?;
        let room = Room::find(family, before, wal, 0, how.temporary)?;
        (how.watch)(Step::Checking);
        whole::require(connection, &family.main())?;
        (how.watch)(Step::Counting);
        let rows = Rows::count(connection, |_| true)?;
        (how.watch)(Step::Rewriting { bytes: room.copy_needs + room.log_needs });
        {
            let _place = room.copy_at.as_deref().map(|at| Place::set(connection, at)).transpose()?;
            if let Err(e) = connection.execute_batch("VACUUM") {
                // Everything is as it was, but for a log that may be as long as the database.
                let _ = checkpoint::empty_the_log(admission, how.watch);
                return Err(e.into());
            }
        }
        (how.watch)(Step::Counting);
        let found = rows.differences(&Rows::count(connection, |_| true)?);
        // Those beside whom force goes on may have written between the two counts.
        if !found.is_empty() && answer.overridden.is_empty() {
            return Err(Error::RowsDiffer { found });
        }
        answer.log_emptied = match checkpoint::empty_the_log(admission, how.watch) {
            Ok(_) => true,
            Err(Error::Database(statehouse_sqlite::Error::Busy { .. })) => false,
            Err(e) => return Err(e),
        };
        let after = Pages::of(connection)?;
        answer.done = true;
        answer.size_after = size(family, Member::Main)?;
        (answer.pages_after, answer.free_after) = (after.pages, after.free);
        super::policy::remember_vacuum(admission, &answer);
    }
    answer.ms = ms(begun);
    Ok(answer)
}

/// Bytes that a rewrite in this process has written so far: in its temporary copy and in the log. For a progress bar.
pub fn written(family: &Family) -> u64 {
    let log = size(family, Member::Wal).unwrap_or(0);
    let Ok(descriptors) = std::fs::read_dir("/proc/self/fd") else { return log };
    // The copy has no name: SQLite makes it without one, or takes the name away at once.
    let copies = descriptors.flatten().filter_map(|d| std::fs::metadata(d.path()).ok());
    log + copies.filter(|m| m.is_file() && m.nlink() == 0).map(|m| m.len()).sum::<u64>()
}

/// Refuses where a search index refers to rows by numbers that a rewrite does not keep.
fn refuse_renumbering(connection: &Connection) -> Result<()> {
    let mut statement = connection
        .prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND rootpage = 0 AND sql IS NOT NULL")?;
    let indexes = statement.query_map([], |r| Ok((r.get::<_, String>(0)?, r.get::<_, String>(1)?)))?;
    for index in indexes {
        let (index, sql) = index?;
        let Some(external) = External::parse(&sql) else { continue };
        if external.by_row_number && renumbered(connection, &external.table)? {
            return Err(Error::Renumbers { table: external.table, index });
        }
    }
    Ok(())
}

/// True if a rewrite gives the rows of a table other numbers than they have.
fn renumbered(connection: &Connection, table: &str) -> Result<bool> {
    // A table of another kind, or none of this name, has no numbers that a rewrite could change.
    let plain: Option<bool> = connection
        .query_row(
            "SELECT wr = 0 AND type = 'table' FROM pragma_table_list WHERE schema = 'main' AND name = ?1 COLLATE NOCASE",
            [table],
            |r| r.get(0),
        )
        .optional()?;
    if plain != Some(true) {
        return Ok(false);
    }
    let (indexes, keys): (i64, i64) = connection.query_row(
        "SELECT (SELECT count(*) FROM pragma_index_list(?1)),
                (SELECT count(*) FROM pragma_table_info(?1) WHERE pk > 0)",
        [table],
        |r| Ok((r.get(0)?, r.get(1)?)),
    )?;
    // A key without an index of its own is the number itself.
    if indexes > 0 || keys > 0 {
        return Ok(false);
    }
    let sql = format!("SELECT count(*), coalesce(min(rowid), 1), coalesce(max(rowid), 0) FROM {}", quoted(table));
    let (count, first, last): (i64, i64, i64) =
        connection.query_row(&sql, [], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
    Ok(first != 1 || last != count)
}

/// A search index whose content is in a table of its program.
#[derive(Debug, PartialEq, Eq)]
struct External {
    table: String,
    by_row_number: bool,
}

impl External {
    /// Reads it from the statement that made the index.
    fn parse(sql: &str) -> Option<External> {
        let (head, arguments) = sql.split_once('(')?;
        if !head.to_ascii_lowercase().contains("fts") {
            return None;
        }
        let mut table = None;
        let mut by_row_number = true;
        for argument in split(arguments.trim_end().strip_suffix(')').unwrap_or(arguments)) {
            let Some((key, value)) = argument.split_once('=') else { continue };
            let value = unquote(value.trim());
            match key.trim().to_ascii_lowercase().as_str() {
                "content" => table = Some(value).filter(|t| !t.is_empty()),
                "content_rowid" => {
                    by_row_number = ["rowid", "oid", "_rowid_"].iter().any(|n| value.eq_ignore_ascii_case(n));
                }
                _ => {}
            }
        }
        Some(External { table: table?, by_row_number })
    }
}

/// The table whose rows a search index refers to by their numbers, from the statement that made the index.
pub(crate) fn content_of_search_index(sql: &str) -> Option<String> {
    External::parse(sql).filter(|e| e.by_row_number).map(|e| e.table)
}

/// The arguments of a statement, split at the commas that are not inside quotes.
pub(crate) fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut from, mut inside) = (0, None);
    for (at, c) in text.char_indices() {
        match (inside, c) {
            (None, '\'' | '"' | '`') => inside = Some(c),
            (None, '[') => inside = Some(']'),
            (None, ',') => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            (Some(end), c) if c == end => inside = None,
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

/// A name without the quotes around it.
pub(crate) fn unquote(text: &str) -> String {
    let mut chars = text.chars();
    match (chars.next(), chars.next_back()) {
        (Some(a @ ('\'' | '"' | '`')), Some(b)) if a == b => chars.as_str().replace(&format!("{a}{a}"), &a.to_string()),
        (Some('['), Some(']')) => chars.as_str().to_owned(),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn external(sql: &str) -> Option<(String, bool)> {
        External::parse(sql).map(|e| (e.table, e.by_row_number))
    }

    #[test]
    fn indexes_whose_content_is_elsewhere_are_found() {
        let found = |table: &str, by| Some((table.to_owned(), by));
        assert_eq!(external("CREATE VIRTUAL TABLE f USING fts5(t, content='docs')"), found("docs", true));
        assert_eq!(external("CREATE VIRTUAL TABLE f USING FTS5 ( t , content = \"d o,cs\" )"), found("d o,cs", true));
        assert_eq!(
            external("create virtual table f using fts5(t, content=docs, content_rowid=id)"),
            found("docs", false)
        );
        assert_eq!(
            external("create virtual table f using fts5(t, content=docs, content_rowid='ROWID')"),
            found("docs", true)
        );
        assert_eq!(external("CREATE VIRTUAL TABLE f USING fts4(content=[docs], t)"), found("docs", true));
        assert_eq!(external("CREATE VIRTUAL TABLE f USING fts5(t, content='')"), None, "it keeps none at all");
        assert_eq!(external("CREATE VIRTUAL TABLE f USING fts5(content, tokenize='porter, content=x')"), None);
        assert_eq!(external("CREATE VIRTUAL TABLE f USING rtree(id, a, b)"), None);
    }

    #[test]
    fn it_is_worth_it_by_share_and_by_bytes() {
        let pages = |pages, free| Pages { page_size: 4096, pages, free };
        assert!(Worth::ASKED.against(pages(100, 20)).is_none());
        assert!(Worth::ASKED.against(pages(100, 10)).is_some(), "40 KiB");
        assert!(Worth::ASKED.against(pages(10_000, 100)).is_some(), "1 %");
        assert!(Worth::ANYWAY.against(pages(100, 0)).is_none());
    }
}
