//! What the triggers of a database write, as far as their statements say it.
//!
//! A row that is brought back fires the triggers of its table, and they may write into tables that the capture has itself: an
//! audit log, a search index. Its process fired them once already, so such a table would have their rows twice. Which tables
//! these are must be known beforehand, and the statements of the triggers say it.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::Connection;

use super::sql::{Token, tokens};
use crate::maintenance::vacuum::unquote;

/// What happens to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Insert,
    Update,
    Delete,
}

/// Something that a trigger does to a table, whose name is in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Act {
    event: Event,
    table: String,
    /// True if it only adds rows, whatever is there.
    adds: bool,
}

#[derive(Debug)]
struct Trigger {
    name: String,
    text: String,
    /// When it fires; `None` for what cannot be read.
    event: Option<Event>,
    /// In lower case.
    table: String,
    acts: Vec<Act>,
}

/// All triggers of a database.
#[derive(Debug, Default)]
pub(super) struct Triggers {
    all: Vec<Trigger>,
    /// For each table that is fed the tables of which it is.
    feeders: BTreeMap<String, Vec<String>>,
}

/// How rows come into a table when one is inserted into another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Feed {
    /// True if something else than a plain addition may happen there.
    pub(super) changes: bool,
}

impl Triggers {
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Triggers> {
        let mut all = connection.prepare("SELECT name, tbl_name, sql FROM sqlite_schema WHERE type = 'trigger'")?;
        let rows = all.query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
        let parse = |row: rusqlite::Result<(String, String, String)>| {
            let (name, table, text) = row?;
            let (event, acts) = parse(&text).map_or((None, Vec::new()), |(e, acts)| (Some(e), acts));
            Ok(Trigger { name, table: table.to_ascii_lowercase(), event, acts, text })
        };
        let mut found = Triggers { all: rows.map(parse).collect::<rusqlite::Result<_>>()?, feeders: BTreeMap::new() };
        let firing: BTreeSet<String> = found.all.iter().map(|t| t.table.clone()).collect();
        for table in firing {
            for fed in found.fed_by(&table).into_keys() {
                found.feeders.entry(fed).or_default().push(table.clone());
            }
        }
        Ok(found)
    }

    /// Every table into which rows come when one is inserted into `table`, through however many triggers.
    pub(super) fn fed_by(&self, table: &str) -> BTreeMap<String, Feed> {
        self.fired_by(table).1
    }

    /// Tables of which `table` is fed, in lower case.
    pub(super) fn feeders(&self, table: &str) -> &[String] {
        self.feeders.get(&table.to_ascii_lowercase()).map_or(&[], Vec::as_slice)
    }

    /// True if a row that is inserted into `table` fires the same triggers there as here, so that what they have added is there.
    pub(super) fn fires_as(&self, table: &str, there: &Triggers) -> bool {
        let same = |a: &Trigger, b: &Trigger| a.name.eq_ignore_ascii_case(&b.name) && a.text == b.text;
        self.fired_by(table).0.into_iter().all(|fired| there.all.iter().any(|t| same(fired, t)))
    }

    /// Rows that are there and that may change or go when a row is inserted into `table`: each trigger that does it, and of which
    /// table. What is said to a search index in the form of rows is none.
    pub(super) fn changes(&self, table: &str) -> Vec<(String, String)> {
        let fired = self.fired_by(table).0;
        let all =
            fired.iter().flat_map(|t| t.acts.iter().filter(|a| !a.adds).map(|a| (t.name.clone(), a.table.clone())));
        all.collect()
    }

    fn fired_by(&self, table: &str) -> (Vec<&Trigger>, BTreeMap<String, Feed>) {
        let mut fed: BTreeMap<String, Feed> = BTreeMap::new();
        let mut fired: Vec<&Trigger> = Vec::new();
        let mut seen = BTreeSet::new();
        let mut open = vec![(Event::Insert, table.to_ascii_lowercase())];
        while let Some(at) = open.pop() {
            if !seen.insert(at.clone()) {
                continue;
            }
            for trigger in self.all.iter().filter(|t| t.table == at.1 && t.event == Some(at.0)) {
                fired.push(trigger);
                for act in &trigger.acts {
                    if act.event == Event::Insert {
                        fed.entry(act.table.clone()).or_default().changes |= !act.adds;
                    }
                    open.push((act.event, act.table.clone()));
                }
            }
        }
        (fired, fed)
    }
}

/// Takes a `CREATE TRIGGER` apart.
fn parse(text: &str) -> Option<(Event, Vec<Act>)> {
    let all = tokens(text);
    let mut at = all.iter().position(|t| t.is("trigger"))? + 1;
    if all.get(at)?.is("if") {
        at += 3;
    }
    at += if all.get(at + 1)?.text == "." { 3 } else { 1 };
    let event = all.get(at..)?.iter().find_map(event)?;
    let begin = all.iter().position(|t| t.depth == 0 && t.is("begin"))?;
    let statements = all.get(begin + 1..)?.split(|t| t.depth == 0 && t.text == ";");
    Some((event, statements.filter_map(acts).flatten().collect()))
}

fn event(token: &Token<'_>) -> Option<Event> {
    [("insert", Event::Insert), ("update", Event::Update), ("delete", Event::Delete)]
        .into_iter()
        .find_map(|(word, event)| token.is(word).then_some(event))
}

/// What a statement writes; `None` if it only reads.
fn acts(statement: &[Token<'_>]) -> Option<Vec<Act>> {
    let own: Vec<&Token<'_>> = statement.iter().filter(|t| t.depth == 0).collect();
    let first = own.iter().position(|t| event(t).is_some() || t.is("replace"))?;
    let event = event(own[first]).unwrap_or(Event::Insert);
    let otherwise = own.get(first + 1).is_some_and(|t| t.is("or"));
    let mut name = first + 1 + if otherwise { 2 } else { 0 };
    if own.get(name).is_some_and(|t| t.is("into") || t.is("from")) {
        name += 1;
    }
    let upserts = own.windows(2).any(|w| w[0].is("on") && w[1].is("conflict"));
    let replaces = own[first].is("replace") || otherwise && own.get(first + 2).is_some_and(|t| t.is("replace"));
    let adds = event == Event::Insert && !replaces && !otherwise && !upserts;
    let table = unquote(own.get(name)?.text).to_ascii_lowercase();
    let mut acts = vec![Act { event, table: table.clone(), adds }];
    // The row that is there already is changed, or gives way.
    for (event, is) in [(Event::Update, upserts), (Event::Delete, replaces)] {
        acts.extend(is.then(|| Act { event, table: table.clone(), adds: false }));
    }
    Some(acts)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    fn triggers(sql: &str) -> Triggers {
        let c = Connection::open_in_memory().unwrap();
        c.execute_batch(sql).unwrap();
        Triggers::read(&c).unwrap()
    }

    const ALL: &str = "CREATE TABLE t(id INTEGER PRIMARY KEY, v); CREATE TABLE a(x, n); CREATE TABLE \"b c\"(x UNIQUE, n); CREATE TABLE d(x);
        CREATE TABLE e(x);
        CREATE TRIGGER one AFTER INSERT ON t WHEN new.v IS NOT NULL BEGIN
          UPDATE OR IGNORE a SET x = replace(new.v, 'insert into e', '') WHERE x = 1; -- INSERT INTO e
          INSERT INTO \"B C\"(x) SELECT CASE new.v WHEN 1 THEN 2 END WHERE 1 ON CONFLICT(x) DO UPDATE SET n = 1;
          SELECT 1;
        END;
        CREATE TRIGGER IF NOT EXISTS main.\"insert\" BEFORE UPDATE OF x ON a BEGIN INSERT INTO d VALUES(new.x); DELETE FROM e; END;
        CREATE TRIGGER three AFTER DELETE ON t BEGIN INSERT INTO e VALUES(1); END;";

    #[test]
    fn what_triggers_write_is_followed_from_one_to_the_next() {
        let found = triggers(ALL);
        let fed: Vec<_> = found.fed_by("T").into_iter().map(|(t, f)| (t, f.changes)).collect();
        assert_eq!(fed, [("b c".to_owned(), true), ("d".to_owned(), false)]);
        assert_eq!(found.feeders("D"), ["t"]);
        assert!(found.feeders("e").is_empty(), "nothing is deleted from it");
    }

    #[test]
    fn the_same_triggers_are_the_same_word_for_word() {
        let found = triggers(ALL);
        assert!(found.fires_as("t", &triggers(ALL)));
        assert!(found.fires_as("d", &Triggers::default()), "nothing fires");
        assert!(!found.fires_as("t", &triggers(&ALL.replace("new.x", "new.x || 1"))), "one that fires the other");
        assert!(found.fires_as("t", &triggers(&ALL.replace("VALUES(1)", "VALUES(2)"))), "it does not fire");
    }
}
