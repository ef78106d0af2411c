//! Writing rows of a capture into a database, in a transaction that is open.
//!
//! Rows keep their keys and, where those are free, their numbers. Triggers fire, generated columns make themselves, and what a
//! constraint of the table refuses is a conflict, not the end of the merge. Numbers that must be given anew are beyond those of both
//! sides, so that they take none that a later row brings along.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, ErrorCode, ffi, params_from_iter};

use super::cell::Cell;
use super::compare::{Conflict, Landed, New, Sink};
use super::conflicts::List;
use super::error::{Error, Result};
use super::pair::{Pair, PairKey};
use super::quiet::Quiet;
use super::rules::{Rules, tool_calls};
use super::schema::{Schema, Table};
use crate::maintenance::quoted;

/// Writes what is missing, and lists what conflicts.
pub(super) struct Apply<'a> {
    writer: &'a Connection,
    theirs: &'a Connection,
    rules: Rules,
    pub(super) list: List,
    /// Rows that were written, by table.
    pub(super) brought: BTreeMap<String, u64>,
    /// Rows that the table refused when they were written, by table.
    pub(super) refused: BTreeMap<String, u64>,
    tables: BTreeMap<String, Into>,
    pub(super) sessions: Sessions,
    /// True while each row must be announced that is written.
    pub(super) announces: bool,
}

/// What Hermes Agent's own code does beside writing a message.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    /// Messages and tool calls by session.
    raised: BTreeMap<Vec<u8>, (i64, i64)>,
    new: BTreeSet<Vec<u8>>,
}

/// How rows get into one table.
struct Into {
    sql: String,
    /// The places of the columns that are written.
    places: Vec<usize>,
    /// The place of the number among the columns, if it is one of them.
    number: Option<usize>,
    /// True if the number is written beside the columns.
    beside: bool,
    /// True if what a trigger did before it refused must be undone by hand.
    guarded: bool,
    /// The next number that neither side has; `None` if there is none, so that SQLite looks for one.
    next: Option<i64>,
}

impl<'a> Apply<'a> {
    /// Proves that every table can be written into that has rows to come, before anything is changed: the functions, collations and
    /// tokenizers of its indexes and triggers are there.
    pub(super) fn new(
        writer: &'a Connection,
        theirs: &'a Connection,
        rules: Rules,
        wanted: &[&Pair],
        list: List,
        sessions: Sessions,
    ) -> Result<Apply<'a>> {
        let mut tables = BTreeMap::new();
        for pair in wanted {
            let into = Into::new(writer, theirs, rules, pair)?;
            tables.insert(pair.name.clone(), into);
        }
        let (brought, refused) = Default::default();
        Ok(Apply { writer, theirs, rules, list, brought, refused, tables, sessions, announces: false })
    }

    /// Makes the tables that only the capture has, with their indexes.
    pub(super) fn create(writer: &Connection, theirs: &Connection, pair: &Pair) -> Result<()> {
        let mut all = theirs.prepare(
            "SELECT sql FROM sqlite_schema WHERE tbl_name = ?1 AND type IN ('table', 'index') AND sql IS NOT NULL
             ORDER BY type DESC",
        )?;
        let mut rows = all.query([&pair.theirs.stored])?;
        while let Some(row) = rows.next()? {
            writer.execute_batch(&row.get::<_, String>(0)?)?;
        }
        Ok(())
    }

    fn insert(&mut self, pair: &Pair, new: &New<'_>) -> Result<Landed> {
        let Some(into) = self.tables.get_mut(&pair.name) else {
            // Rows came that were not there at the first look: somebody wrote in between.
            let into = Into::new(self.writer, self.theirs, self.rules, pair)?;
            self.tables.insert(pair.name.clone(), into);
            return self.insert(pair, new);
        };
        let mut row: Vec<Cell> = into.places.iter().map(|p| new.cells[*p].clone()).collect();
        if new.renumber
            && let Some(at) = into.number
        {
            row[at] = into.fresh();
        }
        if into.beside {
            row.push(new.rowid.map_or_else(|| into.fresh(), Cell::Integer));
        }
        let announces = self.announces;
        let mut result = write(self.writer, into, &row, announces);
        if into.beside && new.rowid.is_some() && matches!(&result, Err(e) if is_taken(e)) {
            // A trigger, or a row before it, has taken the number.
            row.pop();
            row.push(into.fresh());
            result = write(self.writer, into, &row, announces);
        }
        match result {
            Ok(1) => {}
            Ok(_) => return Ok(self.refuse(pair, "a rule of the table left it out".to_owned())),
            Err(e) if e.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) && !self.writer.is_autocommit() => {
                return Ok(self.refuse(pair, e.to_string()));
            }
            Err(e) if e.sqlite_error_code() == Some(ErrorCode::ConstraintViolation) => {
                return Err(self.ended_by_trigger(pair, &e));
            }
            Err(e) => return Err(e.into()),
        }
        *self.brought.entry(pair.name.clone()).or_default() += 1;
        self.follow(pair, new);
        Ok(Landed::In)
    }

    /// A constraint that has ended the transaction was that of a trigger which says so.
    fn ended_by_trigger(&self, pair: &Pair, e: &rusqlite::Error) -> Error {
        let names = || -> rusqlite::Result<Vec<String>> {
            let mut all = self
                .writer
                .prepare("SELECT name FROM sqlite_schema WHERE type = 'trigger' AND sql LIKE '%rollback%'")?;
            all.query_map([], |r| r.get(0))?.collect()
        };
        let of = match names().unwrap_or_default() {
            names if names.is_empty() => String::new(),
            names => format!("; triggers that say RAISE(ROLLBACK): {}", names.join(", ")),
        };
        Error::EndedByTrigger { table: pair.name.clone(), why: format!("it says: {e}{of}") }
    }

    fn refuse(&mut self, pair: &Pair, why: String) -> Landed {
        *self.refused.entry(pair.name.clone()).or_default() += 1;
        Landed::Refused(why)
    }

    /// Remembers what Hermes Agent's own code does beside writing a message.
    fn follow(&mut self, pair: &Pair, new: &New<'_>) {
        if self.rules != Rules::Hermes {
            return;
        }
        let text = |column: &str| match pair.place(column).map(|p| &new.cells[p]) {
            Some(Cell::Text(bytes)) => Some(bytes.clone()),
            _ => None,
        };
        if pair.name.eq_ignore_ascii_case("sessions") {
            self.sessions.new.extend(text("id"));
        } else if pair.name.eq_ignore_ascii_case("messages")
            && let Some(session) = text("session_id")
        {
            // The counts are about messages that are active.
            let active = pair.place("active").is_none_or(|p| !matches!(new.cells[p], Cell::Integer(0)));
            let calls = tool_calls(pair.place("tool_calls").map(|p| &new.cells[p]));
            let (messages, all_calls) = self.sessions.raised.entry(session).or_default();
            if active {
                *messages += 1;
                *all_calls += calls;
            }
        }
    }
}

impl Sessions {
    /// What follows from the messages that were written. A session that came with the capture has its counts already.
    pub(super) fn finish(self, writer: &Connection, schema: &Schema) -> Result<()> {
        let Some(sessions) = schema.get("sessions").filter(|_| !self.raised.is_empty()) else { return Ok(()) };
        let calls = match sessions.has("tool_call_count") {
            true => ", tool_call_count = coalesce(tool_call_count, 0) + ?3",
            false => "",
        };
        let sql = format!("UPDATE sessions SET message_count = coalesce(message_count, 0) + ?2{calls} WHERE id = ?1");
        let mut raise = writer.prepare(&sql)?;
        for (session, (messages, calls)) in self.raised {
            if self.new.contains(&session) {
                continue;
            }
            let mut values = vec![Cell::Text(session), Cell::Integer(messages), Cell::Integer(calls)];
            values.truncate(raise.parameter_count());
            raise.execute(params_from_iter(values))?;
        }
        Ok(())
    }
}

impl Into {
    fn new(writer: &Connection, theirs: &Connection, rules: Rules, pair: &Pair) -> Result<Into> {
        let table: &Table = pair.live.as_ref().unwrap_or(&pair.theirs);
        let derived = rules.derived(&pair.name);
        let places: Vec<usize> = (0..pair.columns.len())
            .filter(|p| !derived.iter().any(|d| pair.columns[*p].eq_ignore_ascii_case(d)))
            .collect();
        let number = match pair.key {
            PairKey::Number(place) => places.iter().position(|p| *p == place),
            _ => None,
        };
        // With the statement its triggers are prepared.
        let prepared = |sql: &str| match writer.prepare(sql) {
            Ok(_) => Ok(()),
            Err(e) => Err(Error::CannotWrite { table: pair.name.clone(), why: e.to_string() }),
        };
        let rowid = table.rowid.as_ref().filter(|_| number.is_none());
        let mut names: Vec<String> = places.iter().map(|p| quoted(&pair.columns[*p])).collect();
        names.extend(rowid.cloned());
        let sql = match names.is_empty() {
            true => format!("INSERT INTO {} DEFAULT VALUES", quoted(&pair.name)),
            false => {
                let holes: Vec<String> = (1..=names.len()).map(|n| format!("?{n}")).collect();
                format!("INSERT INTO {}({}) VALUES ({})", quoted(&pair.name), names.join(", "), holes.join(", "))
            }
        };
        prepared(&sql)?;
        Ok(Into {
            sql,
            places,
            number,
            beside: rowid.is_some(),
            guarded: table.triggers > 0,
            next: next_number(writer, theirs, pair, table)?,
        })
    }

    fn fresh(&mut self) -> Cell {
        let Some(next) = self.next else { return Cell::Null };
        self.next = next.checked_add(1);
        Cell::Integer(next)
    }
}

/// A number beyond all that either side has.
fn next_number(writer: &Connection, theirs: &Connection, pair: &Pair, table: &Table) -> Result<Option<i64>> {
    let largest = |c: &Connection, table: &Table| -> rusqlite::Result<i64> {
        let Some(rowid) = &table.rowid else { return Ok(0) };
        c.query_row(&format!("SELECT coalesce(max({rowid}), 0) FROM {}", quoted(&table.stored)), [], |r| r.get(0))
    };
    let mut last = largest(writer, table)?;
    if pair.numbered {
        last = last.max(largest(theirs, &pair.theirs)?);
    }
    // Numbers that were given once are not given again where the table says so.
    let given = writer.query_row("SELECT max(seq) FROM sqlite_sequence WHERE name = ?1", [&table.name], |r| {
        r.get::<_, Option<i64>>(0)
    });
    if let Ok(Some(given)) = given {
        last = last.max(given);
    }
    Ok(last.checked_add(1))
}

fn write(writer: &Connection, into: &Into, row: &[Cell], announces: bool) -> rusqlite::Result<usize> {
    let insert = || {
        if announces {
            Quiet::announce(writer)?;
        }
        writer.prepare_cached(&into.sql)?.execute(params_from_iter(row))
    };
    if !into.guarded {
        return insert();
    }
    writer.prepare_cached("SAVEPOINT statehouse_row")?.execute([])?;
    let result = insert();
    // A trigger may have ended the whole transaction; then there is nothing to go back to.
    if !writer.is_autocommit() {
        if result.is_err() {
            writer.prepare_cached("ROLLBACK TO statehouse_row")?.execute([])?;
        }
        writer.prepare_cached("RELEASE statehouse_row")?.execute([])?;
    }
    result
}

fn is_taken(e: &rusqlite::Error) -> bool {
    e.sqlite_error().is_some_and(|e| e.extended_code == ffi::SQLITE_CONSTRAINT_ROWID)
}

impl Sink for Apply<'_> {
    fn missing(&mut self, pair: &Pair, new: &New<'_>) -> Result<Landed> {
        self.insert(pair, new)
    }

    fn conflict(&mut self, pair: &Pair, conflict: &Conflict<'_>) -> Result<()> {
        if pair.left_alone.is_some() {
            return Ok(());
        }
        self.list.add(pair, conflict)
    }
}
