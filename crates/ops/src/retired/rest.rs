//! What a damaged database has beside its rows: indexes, views, search indexes and triggers, made again in the new file.
//!
//! Indexes and views are made before rows come from the capture, so that what must be unique is. Search indexes and triggers are made
//! after that: what triggers did when the rows were written is among the rows of either side, and would else be done twice. What
//! cannot be made is named; nothing of it holds a row that is nowhere else but a virtual table, whose module alone reads it.

use rusqlite::Connection;
use statehouse_sqlite::salvage::Other;

use super::error::Result;
use super::virtuals::{Holds, Virtual};
use crate::maintenance::quoted;

/// What is made, and what could not be.
pub(super) struct Rest<'a> {
    others: &'a [Other],
    left: Vec<(&'a Other, String)>,
}

impl<'a> Rest<'a> {
    pub(super) fn of(others: &'a [Other]) -> Rest<'a> {
        Rest { others, left: Vec::new() }
    }

    /// Makes what must be there before rows come.
    pub(super) fn before(&mut self, writer: &Connection) {
        for other in self.others.iter().filter(|o| matches!(o.kind.as_str(), "index" | "view")) {
            if let Err(e) = writer.execute_batch(&other.sql) {
                self.left.push((other, e.to_string()));
            }
        }
    }

    /// Makes the rest.
    pub(super) fn after(&mut self, writer: &Connection) -> Result<()> {
        for other in self.others.iter().filter(|o| o.kind == "virtual table") {
            writer.execute_batch("SAVEPOINT statehouse_virtual")?;
            if let Err(why) = search_index(writer, other) {
                writer.execute_batch("ROLLBACK TO statehouse_virtual")?;
                self.left.push((other, why));
            }
            writer.execute_batch("RELEASE statehouse_virtual")?;
        }
        for other in self.others.iter().filter(|o| o.kind == "trigger") {
            let text = other.sql.to_ascii_lowercase();
            let gone = self
                .left
                .iter()
                .find(|(o, _)| o.kind == "virtual table" && text.contains(&o.name.to_ascii_lowercase()));
            let why = match gone {
                Some((gone, _)) => Some(format!("it writes into {}", gone.name)),
                None => writer.execute_batch(&other.sql).err().map(|e| e.to_string()),
            };
            self.left.extend(why.map(|why| (other, why)));
        }
        Ok(())
    }

    /// What the new file leaves out, in one sentence.
    pub(super) fn said(&self) -> Option<String> {
        if self.left.is_empty() {
            return None;
        }
        let names: Vec<String> = self.left.iter().map(|(o, why)| format!("{} {} ({why})", o.kind, o.name)).collect();
        Some(format!("the new file leaves out what could not be made again: {}", names.join(", ")))
    }
}

fn search_index(writer: &Connection, other: &Other) -> std::result::Result<(), String> {
    writer.execute_batch(&other.sql).map_err(|e| e.to_string())?;
    match Virtual::read(writer, other.name.clone(), &other.sql).holds {
        Holds::Nothing => Ok(()),
        Holds::Index(_) => {
            let name = quoted(&other.name);
            let rebuild = format!("INSERT INTO {name}({name}) VALUES ('rebuild')");
            writer.execute_batch(&rebuild).map_err(|e| e.to_string())
        }
        Holds::Words => Err("it keeps no text, and its program makes it anew".to_owned()),
        Holds::Rows(_) => Err("what it holds can be read by its module alone".to_owned()),
        Holds::Unread { why, .. } => Err(why),
    }
}
