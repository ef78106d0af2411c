//! Which messages there must be, and which of them are missing.
//!
//! The messages of a conversation are numbered from one without gaps, and the conversation knows the last number. So after a
//! loss it can be said to the row which messages are gone, as long as anything still knows the conversation.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, params};
use statehouse_sqlite::Result;

use crate::types::SessionId;

/// The last number of each conversation.
pub(super) fn of(image: &Connection) -> Result<BTreeMap<String, u64>> {
    let there = image.query_row("SELECT 1 FROM sqlite_schema WHERE name = 'session'", [], |_| Ok(())).optional()?;
    if there.is_none() {
        return Ok(BTreeMap::new());
    }
    let mut all = image.prepare("SELECT id, last_seq FROM session")?;
    let row = |r: &rusqlite::Row<'_>| Ok((r.get::<_, SessionId>(0)?.to_string(), r.get::<_, i64>(1)?.unsigned_abs()));
    Ok(all.query_map([], row)?.collect::<rusqlite::Result<_>>()?)
}

/// A sentence for each conversation of which something is missing.
pub(super) fn missing(database: &Connection, expected: &BTreeMap<String, u64>) -> Result<Vec<String>> {
    let mut known = database.prepare("SELECT EXISTS (SELECT 1 FROM session WHERE id = ?1)")?;
    let mut numbers = database.prepare("SELECT seq FROM message WHERE session_id = ?1 AND seq <= ?2 ORDER BY seq")?;
    let mut sentences = Vec::new();
    for (name, last) in expected {
        let (Ok(id), Ok(last)) = (name.parse::<SessionId>(), i64::try_from(*last)) else { continue };
        if !known.query_row([id], |r| r.get::<_, bool>(0))? {
            sentences.push(format!("conversation {name} with {last} messages"));
            continue;
        }
        let there = numbers.query_map(params![id, last], |r| r.get(0))?.collect::<rusqlite::Result<Vec<i64>>>()?;
        let gaps = gaps(&there, last);
        if !gaps.is_empty() {
            let count: i64 = gaps.iter().map(|(from, to)| to - from + 1).sum();
            let which: Vec<String> = gaps
                .iter()
                .map(|(from, to)| if from == to { from.to_string() } else { format!("{from} to {to}") })
                .collect();
            sentences.push(format!("{count} messages of conversation {name}: number {}", which.join(", ")));
        }
    }
    Ok(sentences)
}

fn gaps(there: &[i64], last: i64) -> Vec<(i64, i64)> {
    let mut gaps = Vec::new();
    let mut next = 1;
    for seq in there.iter().chain([&(last + 1)]) {
        if *seq > next {
            gaps.push((next, seq - 1));
        }
        next = seq + 1;
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::gaps;

    #[test]
    fn gaps_are_the_numbers_that_are_not_there() {
        assert!(gaps(&[1, 2, 3], 3).is_empty() && gaps(&[], 0).is_empty());
        assert_eq!(gaps(&[], 2), [(1, 2)]);
        assert_eq!(gaps(&[2, 3, 7], 9), [(1, 1), (4, 6), (8, 9)]);
    }
}
