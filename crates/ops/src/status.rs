//! What a database is and how it stands, without opening it.
//!
//! Everything here comes from `stat`, from the headers and from the side directory, so that it can be asked beside any
//! holder, on any database, in any state, and changes nothing.

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use statehouse_sqlite::headers::{self, Headers, Journal, MainHeader};
use statehouse_sqlite::secure::{self, Inspected, Purpose};
use statehouse_sqlite::{Family, Generation, Member, Reason, destroyed, files, filesystem, members, rusqlite};

use crate::incidents;
use crate::maintenance::policy::Memory;
use crate::snapshots;

/// The document of `statehouse status`.
#[derive(Debug, Serialize)]
pub struct StatusDocument {
    /// The main file; what is not UTF-8 in its name is replaced.
    pub path: String,
    /// What kind of database: "statehouse", or "other" for one that is not ours.
    pub kind: &'static str,
    /// Bytes of the main file.
    pub size: u64,
    /// Bytes of the log, 0 without one.
    pub wal_size: u64,
    /// "wal", or "rollback" for every mode that needs no log.
    pub journal_mode: Option<&'static str>,
    /// Bytes of a page.
    pub page_size: Option<u32>,
    /// The number of `PRAGMA user_version`, in which many programs keep the version of their schema.
    pub user_version: Option<u32>,
    /// True if the main file's own first page is damaged and a good one is in the log; the next checkpoint heals it.
    pub heals_from_log: bool,
    /// The SQLite versions that have to do with it.
    pub sqlite: Versions,
    /// The file system that it is on.
    pub filesystem: FileSystem,
    /// What the paths name now.
    pub generation: Generation,
    /// Processes of ours that have it open.
    pub members: Vec<members::Record>,
    /// The newest good snapshot; `null` if there is none.
    pub last_snapshot: Option<snapshots::Last>,
    /// What has failed since then; `null` if nothing has.
    pub last_snapshot_error: Option<snapshots::Failed>,
    /// Why a person should look after the snapshots; `null` if all is well.
    pub snapshot_warning: Option<String>,
    /// What was done to the content, if somebody truncated or overwrote a file and nobody has restored it yet; `null` if nobody did.
    pub destroyed: Option<Destroyed>,
    /// Incidents that nobody has closed.
    pub incidents_open: u64,
    /// What is remembered of maintenance.
    pub maintenance: Memory,
    /// The version of this program.
    pub version: &'static str,
}

/// What is known of a database whose content was destroyed in place.
#[derive(Debug, Serialize)]
pub struct Destroyed {
    /// What happened, and what is left and lost, in sentences.
    pub what: String,
    /// The file that was put together of what is left; `null` if there is none yet.
    pub rebuilt: Option<String>,
    /// What to do, with the command to type.
    pub next: String,
}

/// Versions of SQLite.
#[derive(Debug, Serialize)]
pub struct Versions {
    /// The library in this program.
    pub library: &'static str,
    /// The library that changed the file last, as its header says.
    pub last_writer: Option<String>,
}

/// A file system, as far as it matters here.
#[derive(Debug, Serialize)]
pub struct FileSystem {
    /// The kind, for example "ext4".
    #[serde(rename = "type")]
    pub kind: String,
    /// True if WAL mode works on it.
    pub wal_ok: bool,
}

/// Looks at the database at `path`. `application_id` tells ours from others; `snapshot_every` is the time between two snapshots,
/// where they are taken without anybody asking.
///
/// # Errors
/// A refusal when there is no database or its files are not safe to look at, or the system's answer.
pub fn status(path: &Path, application_id: i32, snapshot_every: Option<Duration>) -> snapshots::Result<StatusDocument> {
    let family = Family::of(path)?;
    let mark = destroyed::mark(&family)?;
    // What is wrong with the files of a database that was destroyed is said by the mark, and better.
    let inspected = match secure::inspect(&family, Purpose::Look) {
        Err(_) if mark.is_some() => secure::inspect_to_replace(&family)?,
        inspected => inspected?,
    };
    let main_bytes = match mark {
        Some(_) => inspected.get(Member::Main).map_or(0, |main| main.status.size),
        None => inspected.require_main()?.status.size,
    };
    let (header, heals) = match headers::check(&inspected) {
        Ok(Headers::Database { header, from_log }) => (Some(header), from_log),
        Ok(Headers::New | Headers::InUse) => (None, false),
        Err(_) if mark.is_some() => (None, false),
        Err(e) => return Err(e.into()),
    };
    let destroyed = mark.map(|mark| Destroyed {
        what: mark.words(),
        rebuilt: mark.account.as_ref().and_then(|a| a.rebuilt.as_ref()).map(|r| r.to_string_lossy().into_owned()),
        next: mark.next(&family).unwrap_or_else(|| Reason::Destroyed.hint().to_owned()),
    });
    let filesystem = filesystem::classify(family.directory())?;
    // Only beside a store of ours there is a mark.
    let ours = destroyed.is_some() || header.is_some_and(|h| h.application_id == application_id.cast_unsigned());
    let snapshots = snapshots::state(&family, snapshot_every)?;
    Ok(StatusDocument {
        path: family.main().to_string_lossy().into_owned(),
        kind: if ours { "statehouse" } else { "other" },
        size: main_bytes,
        wal_size: inspected.get(Member::Wal).map_or(0, |w| w.status.size),
        journal_mode: header.map(journal_mode),
        page_size: header.map(|h| h.page_size),
        user_version: header.map(|h| h.user_version),
        heals_from_log: heals,
        sqlite: Versions { library: rusqlite::version(), last_writer: last_writer(&inspected) },
        filesystem: FileSystem { kind: filesystem.kind.clone(), wal_ok: filesystem.wal_ok },
        generation: inspected.generation(),
        members: members::list(&family)?,
        last_snapshot: snapshots.last,
        last_snapshot_error: snapshots.failed,
        snapshot_warning: snapshots.warning,
        destroyed,
        incidents_open: incidents::open(&family)?.0,
        maintenance: Memory::read(&family),
        version: env!("CARGO_PKG_VERSION"),
    })
}

fn journal_mode(header: MainHeader) -> &'static str {
    match header.journal {
        Journal::Wal => "wal",
        Journal::Rollback => "rollback",
    }
}

/// The version number at byte 96 of the header, as <https://www.sqlite.org/fileformat2.html#validfor> describes it.
/// Informative only, so whatever keeps it from being read makes it unknown.
fn last_writer(inspected: &Inspected) -> Option<String> {
    let file = files::open(&inspected.get(Member::Main)?.magic_path()).ok()?;
    let mut bytes = [0; 4];
    file.read_exact_at(&mut bytes, 96).ok()?;
    let number = u32::from_be_bytes(bytes);
    (number > 3_000_000).then(|| format!("{}.{}.{}", number / 1_000_000, number / 1000 % 1000, number % 1000))
}
