//! Keeping triggers from adding to a table what the capture brings along itself.
//!
//! What a trigger added when its process wrote a row is in the capture, as it was at that time, or was taken away since. Fired
//! again when the row is brought back it would add that a second time, with another number or another time of day. So while rows
//! of a table are brought back, and only where the capture has the very same triggers and all of its tables, plain additions of
//! theirs to tables that are brought back as well are left out. Everything else that they do happens: what they refuse, what
//! they change, the search indexes that they keep. It is a temporary trigger of this connection that leaves a row out, so
//! nothing of it is in the database.

use rusqlite::Connection;

use super::error::Result;
use crate::maintenance::quoted;

/// Says whether the next row is one of the merge's own.
const OWN: &str = "statehouse_own_row";

/// Tables to which triggers add nothing for now.
pub(super) struct Quiet<'a> {
    writer: &'a Connection,
    names: Vec<String>,
    own: bool,
}

impl<'a> Quiet<'a> {
    /// `tables` are those to which nothing is added; `written` is the one whose rows are brought back, which may be among them.
    pub(super) fn over(writer: &'a Connection, tables: &[String], written: &str) -> Result<Quiet<'a>> {
        let mut quiet = Quiet { writer, names: Vec::new(), own: false };
        for (n, table) in tables.iter().enumerate() {
            let name = format!("statehouse_quiet_{n}");
            let what = if table.eq_ignore_ascii_case(written) {
                writer.execute_batch(&format!(
                    "CREATE TEMP TABLE {OWN}(n INTEGER NOT NULL); INSERT INTO temp.{OWN} VALUES (0)"
                ))?;
                quiet.own = true;
                format!("SELECT RAISE(IGNORE) WHERE (SELECT n FROM {OWN}) = 0; UPDATE {OWN} SET n = 0")
            } else {
                "SELECT RAISE(IGNORE)".to_owned()
            };
            quiet.names.push(name.clone());
            let table = quoted(table);
            writer.execute_batch(&format!(
                "CREATE TEMP TRIGGER {name} BEFORE INSERT ON main.{table} BEGIN {what}; END"
            ))?;
        }
        Ok(quiet)
    }

    /// True if each row that is written must be announced.
    pub(super) fn is_over_its_own(&self) -> bool {
        self.own
    }

    /// The next row that is inserted is the merge's own.
    pub(super) fn announce(writer: &Connection) -> rusqlite::Result<()> {
        writer.prepare_cached(&format!("UPDATE temp.{OWN} SET n = 1"))?.execute([]).map(drop)
    }
}

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        // Where it cannot be taken away the transaction has failed, and goes with its connection.
        for name in &self.names {
            let _ = self.writer.execute_batch(&format!("DROP TRIGGER IF EXISTS temp.{name}"));
        }
        if self.own {
            let _ = self.writer.execute_batch(&format!("DROP TABLE IF EXISTS temp.{OWN}"));
        }
    }
}
