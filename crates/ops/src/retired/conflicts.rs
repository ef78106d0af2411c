//! The rows that stand against each other, listed for a person: one JSON document a line, in a private file beside the capture.
//!
//! They hold what the rows hold, so nobody but the owner of the database may read them, and nothing else shows them.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json, json};
use statehouse_sqlite::files;

use super::cell::Cell;
use super::compare::Conflict;
use super::error::{Result, io};
use super::pair::{Pair, PairKey};

/// A list that is being written.
pub(super) struct List {
    to: PathBuf,
    new: PathBuf,
    file: Option<BufWriter<File>>,
    published: bool,
}

impl List {
    /// Nothing is made before there is a conflict.
    pub(super) fn new(to: &Path) -> List {
        let new = PathBuf::from(format!("{}.{}.new", to.to_string_lossy(), std::process::id()));
        List { to: to.to_owned(), new, file: None, published: false }
    }

    pub(super) fn add(&mut self, pair: &Pair, conflict: &Conflict<'_>) -> Result<()> {
        if self.file.is_none() {
            let file = files::open_private(&self.new).map_err(|e| io("create", &self.new, e))?;
            file.set_len(0).map_err(|e| io("write", &self.new, e))?;
            self.file = Some(BufWriter::new(file));
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        let line = json!({
            "table": pair.name,
            "key": key(pair, conflict.theirs),
            "why": conflict.why,
            "captured": object(pair, conflict.theirs),
            "here": conflict.ours.map(|ours| object(pair, ours)),
        });
        writeln!(file, "{line}").map_err(|e| io("write", &self.new, e))
    }

    /// Puts the list in its place, before what it belongs to is committed. Without a conflict an older list goes.
    pub(super) fn publish(mut self) -> Result<Option<PathBuf>> {
        match self.file.take() {
            None => {
                let _ = std::fs::remove_file(&self.to);
                Ok(None)
            }
            Some(file) => {
                let file = file.into_inner().map_err(|e| io("write", &self.new, e.into_error()))?;
                file.sync_all().map_err(|e| io("write", &self.new, e))?;
                std::fs::rename(&self.new, &self.to).map_err(|e| io("rename", &self.new, e))?;
                self.published = true;
                Ok(Some(self.to.clone()))
            }
        }
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if !self.published {
            let _ = std::fs::remove_file(&self.new);
        }
    }
}

/// The values by which a row is known; all of them where nothing else tells it from others.
pub(super) fn key(pair: &Pair, row: &[Cell]) -> Json {
    let of = |places: Vec<usize>| {
        Json::Object(places.into_iter().map(|p| (pair.columns[p].clone(), row[p].json())).collect::<Map<_, _>>())
    };
    match &pair.key {
        PairKey::Number(place) => of(vec![*place]),
        PairKey::Columns(places) => of(places.iter().map(|(p, _)| *p).collect()),
        PairKey::Content => Json::Null,
    }
}

fn object(pair: &Pair, row: &[Cell]) -> Json {
    Json::Object(pair.columns.iter().cloned().zip(row.iter().map(Cell::json)).collect::<Map<_, _>>())
}
