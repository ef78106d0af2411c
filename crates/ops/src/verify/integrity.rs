//! The structure of the file, as SQLite's own quick check sees it.

use statehouse_sqlite::secure::{self, Purpose};

use super::Proof;
use super::view::View;
use crate::attach;
use crate::check::{Found, Outcome};

impl View {
    /// Looks at the structure. What SQLite says of search indexes goes into `of_search_indexes`.
    pub(super) fn integrity(&self, proof: &Proof<'_>, of_search_indexes: &mut Vec<String>) -> Found {
        if let Some(danger) = self.danger() {
            return danger;
        }
        // The files may have changed since the first look: a write made the log.
        let inspected = match secure::inspect(self.family(), Purpose::Look) {
            Ok(inspected) => inspected,
            Err(e) => return Found::error("its files cannot be looked at", &e),
        };
        let checked = attach::read(&inspected, self.held(), proof.scratch, proof.patience).and_then(|attached| {
            let mut statement = attached.prepare("PRAGMA quick_check(20)")?;
            let lines = statement.query_map([], |r| r.get::<_, String>(0))?;
            Ok(lines.collect::<rusqlite::Result<Vec<String>>>()?)
        });
        let checked = checked.map(|lines| {
            let (indexes, structure) = lines.into_iter().partition(|line| is_of_search_index(line));
            *of_search_indexes = indexes;
            structure
        });
        match checked {
            Ok(lines) if lines.is_empty() || lines == ["ok"] => Found::new(Outcome::Ok, "the structure is sound"),
            Ok(lines) => Found::new(Outcome::Fail, "the structure is damaged")
                .detail(lines.join("; "))
                .hint("Do not delete any file of the database; copy the whole family first. `statehouse restore` puts a snapshot or backup in its place \
                     and keeps what is there; without one, `.recover` of sqlite3 on the copy gives the rows that can still be read."),
            Err(e) => Found::error("the structure cannot be checked", &e),
        }
    }
}

/// True if this line of a check is about what a full-text index holds, and not about the pages of the file (fts5_main.c,
/// `fts5IntegrityMethod`; fts3.c, `fts3IntegrityMethod`).
pub(crate) fn is_of_search_index(line: &str) -> bool {
    ["malformed inverted index for FTS", "unable to validate the inverted index for FTS"]
        .iter()
        .any(|beginning| line.starts_with(beginning))
}

/// SQLite compares a full-text index with what its own tokenizer makes of the content. Tokenizers differ between versions and
/// programs bring their own, so for an index that another SQLite wrote a difference proves nothing.
pub(super) fn cannot_judge(lines: &[String]) -> Found {
    Found::new(Outcome::Skip, "its search index cannot be judged by another SQLite than the one that wrote it")
        .detail(lines.join("; "))
        .hint("Let its own program check it: INSERT INTO the_index(the_index, rank) VALUES('integrity-check', 1).")
}
