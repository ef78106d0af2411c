//! Whether SQLite finds an image whole.

use std::path::Path;

use rusqlite::fallible_iterator::FallibleIterator as _;
use rusqlite::{Connection, ErrorCode};

use crate::connect;

/// What SQLite finds wrong with the structure; empty if nothing. What it says of search indexes is not about the structure:
/// tokenizers differ between programs.
pub(super) fn unsound(image: &Path) -> String {
    found(image).unwrap_or_else(|e| match e {
        // The image is two files laid over each other, of which another process may have changed one. The database is another matter.
        crate::Error::Damaged { detail } => {
            format!(
                "main file and log do not fit each other in the image ({detail}), which says nothing of the database"
            )
        }
        e => e.to_string(),
    })
}

fn found(image: &Path) -> crate::Result<String> {
    let connection = connect::immutable(image)?;
    let mut lines = match lines(&connection, "PRAGMA quick_check(5)") {
        // An index with a tokenizer that this SQLite does not have keeps it from looking at anything; the tables one by one
        // can be looked at.
        Err(rusqlite::Error::SqliteFailure(e, _)) if e.code == ErrorCode::Unknown => {
            let tables = lines(
                &connection,
                "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 ORDER BY name",
            )?;
            let mut all = Vec::new();
            for table in tables {
                let name = table.replace('"', "\"\"");
                all.extend(lines(&connection, &format!("PRAGMA quick_check(\"{name}\")"))?);
            }
            all
        }
        other => other?,
    };
    lines.retain(|l| l != "ok" && !is_of_search_index(l));
    Ok(lines.join("; "))
}

fn lines(connection: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare(sql)?;
    statement.query([])?.map(|r| r.get(0)).collect()
}

/// fts5_main.c, `fts5IntegrityMethod`; fts3.c, `fts3IntegrityMethod`.
fn is_of_search_index(line: &str) -> bool {
    ["malformed inverted index for FTS", "unable to validate the inverted index for FTS"]
        .iter()
        .any(|beginning| line.starts_with(beginning))
}
