//! Questions about one row of the capture that only the database can answer: is there a row with this key, does another row
//! have a value that must be unique, is the row there to which it refers.
//!
//! SQLite answers them with its own collations and indexes. A question that cannot be put (a collation of the program, a
//! reference to a table that is not there) is left out here; writing the row then decides.

use rusqlite::{Connection, Row, Statement, params_from_iter};

use super::cell::Cell;
use super::pair::{Pair, PairKey};
use super::rules::Rules;
use super::schema::{Reference, Schema, Table, Unique};
use crate::maintenance::quoted;

/// Reads the columns of a pair, which begin at `from`.
pub(super) fn cells(row: &Row<'_>, from: usize, count: usize) -> rusqlite::Result<Vec<Cell>> {
    (from..from + count).map(|i| row.get_ref(i).map(Cell::from)).collect()
}

fn collated(term: &str, collation: &str, n: usize) -> String {
    format!("{term} COLLATE {} = ?{n}", quoted(collation))
}

fn first(statement: &mut Statement<'_>, values: &[&Cell], columns: usize) -> rusqlite::Result<Option<Vec<Cell>>> {
    let mut rows = statement.query(params_from_iter(values))?;
    rows.next()?.map(|row| cells(row, 0, columns)).transpose()
}

/// Finds the row with the same key.
pub(super) struct ByKey<'a> {
    statement: Statement<'a>,
    places: Vec<usize>,
    columns: usize,
}

impl<'a> ByKey<'a> {
    pub(super) fn new(live: &'a Connection, pair: &Pair) -> rusqlite::Result<Option<ByKey<'a>>> {
        let places: Vec<(usize, String)> = match &pair.key {
            PairKey::Number(place) => vec![(*place, "BINARY".to_owned())],
            PairKey::Columns(places) => places.clone(),
            PairKey::Content => return Ok(None),
        };
        let terms: Vec<String> = places
            .iter()
            .enumerate()
            .map(|(n, (place, collation))| collated(&quoted(&pair.columns[*place]), collation, n + 1))
            .collect();
        let sql = format!("SELECT {} FROM {} WHERE {}", pair.selected(), quoted(&pair.name), terms.join(" AND "));
        let places = places.into_iter().map(|(place, _)| place).collect();
        Ok(Some(ByKey { statement: live.prepare(&sql)?, places, columns: pair.columns.len() }))
    }

    /// True if the key has no value in some column, so that it names no row.
    pub(super) fn is_open(&self, row: &[Cell]) -> bool {
        self.places.iter().any(|p| row[*p].is_null())
    }

    pub(super) fn find(&mut self, row: &[Cell]) -> rusqlite::Result<Option<Vec<Cell>>> {
        let values: Vec<&Cell> = self.places.iter().map(|p| &row[*p]).collect();
        first(&mut self.statement, &values, self.columns)
    }
}

/// Finds another row that has what must be unique.
pub(super) struct Collision<'a> {
    pub(super) name: String,
    pub(super) columns: Vec<String>,
    /// The values of the terms, and whether the index is about the row; from the row's columns.
    evaluate: Option<Statement<'a>>,
    places: Vec<usize>,
    find: Statement<'a>,
    count: usize,
}

impl<'a> Collision<'a> {
    pub(super) fn all(live: &'a Connection, pair: &Pair, table: &Table) -> Vec<Collision<'a>> {
        table.uniques.iter().filter_map(|u| Collision::new(live, pair, u).ok().flatten()).collect()
    }

    fn new(live: &'a Connection, pair: &Pair, unique: &Unique) -> rusqlite::Result<Option<Collision<'a>>> {
        let terms = unique.terms.iter().enumerate();
        let mut conditions: Vec<String> =
            terms.map(|(n, (term, c))| collated(&format!("({term})"), c, n + 1)).collect();
        conditions.extend(unique.only.iter().map(|only| format!("({only})")));
        let find = live.prepare(&format!(
            "SELECT {} FROM {} WHERE {}",
            pair.selected(),
            quoted(&pair.name),
            conditions.join(" AND ")
        ))?;
        let places: Vec<usize> = unique.columns.iter().filter_map(|c| pair.place(c)).collect();
        let plain = unique.only.is_none() && places.len() == unique.terms.len();
        let evaluate = match plain {
            true => None,
            false => {
                let holes: Vec<String> = (1..=pair.columns.len()).map(|n| format!("?{n}")).collect();
                let terms: Vec<String> = unique.terms.iter().map(|(t, _)| format!("({t})")).collect();
                let sql = format!(
                    "WITH n({}) AS (SELECT {}) SELECT ({}), {} FROM n",
                    pair.selected(),
                    holes.join(", "),
                    unique.only.as_deref().unwrap_or("1"),
                    terms.join(", ")
                );
                Some(live.prepare(&sql)?)
            }
        };
        let (name, columns, count) = (unique.name.clone(), unique.columns.clone(), pair.columns.len());
        Ok(Some(Collision { name, columns, evaluate, places, find, count }))
    }

    pub(super) fn find(&mut self, row: &[Cell]) -> rusqlite::Result<Option<Vec<Cell>>> {
        let values: Vec<Cell> = match &mut self.evaluate {
            None => self.places.iter().map(|p| row[*p].clone()).collect(),
            Some(evaluate) => {
                let terms = evaluate.column_count().saturating_sub(1);
                let mut rows = evaluate.query(params_from_iter(row))?;
                let Some(found) = rows.next()? else { return Ok(None) };
                if !found.get::<_, Option<bool>>(0)?.unwrap_or(false) {
                    return Ok(None);
                }
                cells(found, 1, terms)?
            }
        };
        // Where a value is missing nothing is unique.
        if values.iter().any(Cell::is_null) {
            return Ok(None);
        }
        first(&mut self.find, &values.iter().collect::<Vec<_>>(), self.count)
    }
}

/// Asks for the row to which one refers, on both sides.
pub(super) struct Parent<'a> {
    pub(super) reference: Reference,
    places: Vec<usize>,
    live: Statement<'a>,
    theirs: Option<Statement<'a>>,
}

/// Where a row is to which another one refers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It refers to none, or to one in the database.
    Here,
    /// Only the capture has it.
    Captured,
    /// Neither side has it.
    Nowhere,
}

impl<'a> Parent<'a> {
    pub(super) fn all(
        live: &'a Connection,
        theirs: &'a Connection,
        captured: &Schema,
        pair: &Pair,
        table: &Table,
    ) -> Vec<Parent<'a>> {
        table.references.iter().filter_map(|r| Parent::new(live, theirs, captured, pair, r).ok().flatten()).collect()
    }

    fn new(
        live: &'a Connection,
        theirs: &'a Connection,
        captured: &Schema,
        pair: &Pair,
        reference: &Reference,
    ) -> rusqlite::Result<Option<Parent<'a>>> {
        let Some(places) = reference.from.iter().map(|c| pair.place(c)).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let terms: Vec<String> = (1..).zip(&reference.to).map(|(n, c)| format!("{} = ?{n}", quoted(c))).collect();
        let sql = format!("SELECT 1 FROM {} WHERE {}", quoted(&reference.parent), terms.join(" AND "));
        // What a salvaged log has of the parents may be nothing.
        let theirs = captured.get(&reference.parent).and_then(|parent| {
            let term = |(n, c): (usize, &String)| format!("{} = ?{n}", quoted(parent.stored_column(c)));
            let terms: Vec<String> = (1..).zip(&reference.to).map(term).collect();
            let sql = format!("SELECT 1 FROM {} WHERE {}", quoted(&parent.stored), terms.join(" AND "));
            theirs.prepare(&sql).ok()
        });
        Ok(Some(Parent { reference: reference.clone(), places, live: live.prepare(&sql)?, theirs }))
    }

    pub(super) fn values<'r>(&self, row: &'r [Cell]) -> Vec<&'r Cell> {
        self.places.iter().map(|p| &row[*p]).collect()
    }

    pub(super) fn standing(&mut self, row: &[Cell]) -> rusqlite::Result<Standing> {
        let values: Vec<&Cell> = self.places.iter().map(|p| &row[*p]).collect();
        if values.iter().any(|v| v.is_null()) || self.live.exists(params_from_iter(&values))? {
            return Ok(Standing::Here);
        }
        let captured = match &mut self.theirs {
            Some(theirs) => theirs.exists(params_from_iter(&values))?,
            None => false,
        };
        Ok(if captured { Standing::Captured } else { Standing::Nowhere })
    }
}

/// Finds the rows of an append-only table that are the same but for their number.
pub(super) struct Twins<'a> {
    places: Vec<usize>,
    number: usize,
    live: Statement<'a>,
    theirs: Statement<'a>,
}

impl<'a> Twins<'a> {
    pub(super) fn new(
        live: &'a Connection,
        theirs: &'a Connection,
        pair: &Pair,
        rules: Rules,
    ) -> rusqlite::Result<Option<Twins<'a>>> {
        let (Some(places), PairKey::Number(number)) = (rules.identity(pair), &pair.key) else { return Ok(None) };
        let sql = |table: &str, column: &dyn Fn(usize) -> String| {
            let terms: Vec<String> = (1..).zip(&places).map(|(n, p)| format!("{} IS ?{n}", column(*p))).collect();
            let id = column(*number);
            format!("SELECT {id} FROM {} WHERE {} ORDER BY {id}", quoted(table), terms.join(" AND "))
        };
        let live = live.prepare(&sql(&pair.name, &|p| quoted(&pair.columns[p])))?;
        let stored = |p: usize| quoted(pair.theirs.stored_column(&pair.columns[p]));
        let theirs = theirs.prepare(&sql(&pair.theirs.stored, &stored))?;
        Ok(Some(Twins { places, number: *number, live, theirs }))
    }

    /// True if the database has this row under another number, and no other row of the capture is that one.
    pub(super) fn is_there(&mut self, row: &[Cell]) -> rusqlite::Result<bool> {
        let values: Vec<&Cell> = self.places.iter().map(|p| &row[*p]).collect();
        let ask = |statement: &mut Statement<'_>| -> rusqlite::Result<Vec<i64>> {
            statement.query_map(params_from_iter(&values), |r| r.get(0))?.collect()
        };
        let live = ask(&mut self.live)?;
        if live.is_empty() {
            return Ok(false);
        }
        let theirs = ask(&mut self.theirs)?;
        let spare = live.iter().filter(|id| theirs.binary_search(id).is_err()).count();
        let Cell::Integer(own) = row[self.number] else { return Ok(false) };
        let before = theirs.iter().filter(|id| **id < own && live.binary_search(id).is_err()).count();
        Ok(before < spare)
    }
}
