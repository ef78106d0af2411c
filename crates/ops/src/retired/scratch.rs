//! What is left over of a table whose rows have no key, until both sides have been read.
//!
//! It lives in a private database of SQLite's, which goes to a temporary file when it is more than a few megabytes.

use rusqlite::{Connection, OptionalExtension as _};

use super::error::Result;

/// Rows of both sides that were not the same under the same number.
#[derive(Default)]
pub(super) struct Leftover {
    /// Made with the first row, for most tables have none.
    store: Option<Connection>,
}

impl Leftover {
    pub(super) fn new() -> Leftover {
        Leftover::default()
    }

    fn store(&mut self) -> Result<&Connection> {
        if self.store.is_none() {
            let store = Connection::open("")?;
            store.execute_batch(
                "PRAGMA journal_mode = OFF;
                 CREATE TABLE ours(digest BLOB PRIMARY KEY, n INTEGER NOT NULL) WITHOUT ROWID;
                 CREATE TABLE theirs(number INTEGER PRIMARY KEY, taken INTEGER NOT NULL, digest BLOB NOT NULL);
                 BEGIN",
            )?;
            self.store = Some(store);
        }
        // It was made above.
        self.store.as_ref().ok_or_else(|| rusqlite::Error::InvalidQuery.into())
    }

    /// A row of the database.
    pub(super) fn ours(&mut self, digest: &[u8; 32]) -> Result<()> {
        let sql = "INSERT INTO ours VALUES (?1, 1) ON CONFLICT(digest) DO UPDATE SET n = n + 1";
        self.store()?.prepare_cached(sql)?.execute([digest])?;
        Ok(())
    }

    /// A row of the capture; `taken` says whether another row has its number in the database.
    pub(super) fn theirs(&mut self, number: i64, taken: bool, digest: &[u8; 32]) -> Result<()> {
        let sql = "INSERT INTO theirs VALUES (?1, ?2, ?3)";
        self.store()?.prepare_cached(sql)?.execute((number, taken, digest))?;
        Ok(())
    }

    /// Tells each row of the capture, in order: its number, whether that is taken, and whether the database has its content in
    /// a row that no other row of the capture is.
    pub(super) fn each(&self, mut tell: impl FnMut(i64, bool, bool) -> Result<()>) -> Result<()> {
        let Some(store) = &self.store else { return Ok(()) };
        let mut all = store.prepare("SELECT number, taken, digest FROM theirs ORDER BY number")?;
        let mut take = store.prepare("UPDATE ours SET n = n - 1 WHERE digest = ?1 AND n > 0 RETURNING 1")?;
        let mut rows = all.query([])?;
        while let Some(row) = rows.next()? {
            let digest: Vec<u8> = row.get(2)?;
            let is_here = take.query_row([digest], |_| Ok(())).optional()?.is_some();
            tell(row.get(0)?, row.get(1)?, is_here)?;
        }
        Ok(())
    }
}
