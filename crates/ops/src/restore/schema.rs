//! How the schemas of two databases differ: what a restore takes away or brings along beside rows.

use std::collections::BTreeMap;

use rusqlite::Connection;
use serde::Serialize;

use super::compare::Tables;
use super::error::Result;

/// On which side something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stands {
    /// Only the database has it.
    OnlyHere,
    /// Only the source has it.
    OnlyThere,
    /// Both have it, and it is not the same.
    Different,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// What differs: `table`, `column`, `index`, `view`, `trigger`, or the name of a number in the header.
    pub what: String,
    /// Its name; `null` for a number in the header.
    pub name: Option<String>,
    /// On which side it is.
    pub stands: Stands,
    /// The number here, for one in the header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub here: Option<i64>,
    /// The number in the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub there: Option<i64>,
}

impl Change {
    fn of(what: &str, name: &str, stands: Stands) -> Change {
        Change { what: what.to_owned(), name: Some(name.to_owned()), stands, here: None, there: None }
    }

    /// True if the database has something that the source does not have like that.
    pub fn is_replaced(&self) -> bool {
        self.stands != Stands::OnlyThere
    }

    /// As people read it, as a fragment.
    pub fn sentence(&self) -> String {
        let what = &self.what;
        match (&self.name, self.here, self.there, self.stands) {
            (None, Some(here), Some(there), _) => format!("{what} is {here} here and {there} in the source"),
            (name, .., stands) => {
                let name = name.as_deref().unwrap_or_default();
                match stands {
                    Stands::OnlyHere => format!("the {what} {name} is only here"),
                    Stands::OnlyThere => format!("the {what} {name} is only in the source"),
                    Stands::Different => format!("the {what} {name} is declared in another way in the source"),
                }
            }
        }
    }
}

/// Everything by which the schemas differ. The tables were compared before.
pub(super) fn changes(here: &Connection, there: &Connection, tables: &Tables) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    for number in ["application_id", "user_version"] {
        let of = |c: &Connection| c.pragma_query_value(None, number, |r| r.get::<_, i64>(0));
        let (here, there) = (of(here)?, of(there)?);
        if here != there {
            let (here, there) = (Some(here), Some(there));
            changes.push(Change { what: number.to_owned(), name: None, stands: Stands::Different, here, there });
        }
    }
    let (mine, theirs) = (objects(here)?, objects(there)?);
    for ((kind, lower), (name, sql)) in &mine {
        match theirs.get(&(kind.clone(), lower.clone())) {
            None => changes.push(Change::of(kind, name, Stands::OnlyHere)),
            // Columns that only one has say more than that the text is another.
            Some((_, text)) if text != sql && !has_other_columns(tables, name) => {
                changes.push(Change::of(kind, name, Stands::Different));
            }
            Some(_) => {}
        }
    }
    let only_there = theirs.iter().filter(|(key, _)| !mine.contains_key(*key));
    changes.extend(only_there.map(|((kind, _), (name, _))| Change::of(kind, name, Stands::OnlyThere)));
    for (name, table) in tables {
        let column = |c: &String| format!("{name}.{c}");
        let of =
            |c: &Vec<String>, stands| c.iter().map(|c| Change::of("column", &column(c), stands)).collect::<Vec<_>>();
        changes.extend(of(&table.columns_only_here, Stands::OnlyHere));
        changes.extend(of(&table.columns_only_there, Stands::OnlyThere));
    }
    Ok(changes)
}

fn has_other_columns(tables: &Tables, name: &str) -> bool {
    tables.get(name).is_some_and(|t| !t.columns_only_here.is_empty() || !t.columns_only_there.is_empty())
}

/// What programs have declared: by kind and name, the name as it is written, and the text. What a module keeps for itself follows
/// from what it is.
fn objects(connection: &Connection) -> rusqlite::Result<BTreeMap<(String, String), (String, String)>> {
    let mut all = connection.prepare(
        "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'
           AND tbl_name NOT IN (SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'shadow')",
    )?;
    let rows = all.query_map([], |r| {
        let (kind, name, sql): (String, String, String) = (r.get(0)?, r.get(1)?, r.get(2)?);
        Ok(((kind, name.to_ascii_lowercase()), (name, sql)))
    })?;
    rows.collect()
}
