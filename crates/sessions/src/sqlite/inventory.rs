//! Which messages there must be, and which of them are missing.
//!
//! The messages of a conversation are numbered from one without gaps, and the conversation knows the last number. So after a
//! loss it can be said to the row which messages are gone, as long as anything still knows the conversation.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension as _, params};
use statehouse_sqlite::Result;

use crate::types::SessionId;

/// Behind the name of a conversation: numbers that it had lost before.
const WITHOUT: &str = " without ";
/// The same where it is not known which they are.
const SOME: &str = "some";

/// The last number of each conversation, and which numbers it had lost before: an earlier loss is no part of this one.
pub(super) fn of(image: &Connection) -> Result<BTreeMap<String, u64>> {
    let there = image.query_row("SELECT 1 FROM sqlite_schema WHERE name = 'session'", [], |_| Ok(())).optional()?;
    if there.is_none() {
        return Ok(BTreeMap::new());
    }
    let mut all = image.prepare("SELECT id, last_seq, messages FROM session")?;
    let row = |r: &rusqlite::Row<'_>| Ok((r.get::<_, SessionId>(0)?, r.get::<_, i64>(1)?, r.get::<_, i64>(2)?));
    let mut inventory = BTreeMap::new();
    for found in all.query_map([], row)? {
        let (id, last, messages) = found?;
        inventory.insert(id.to_string(), last.unsigned_abs());
        if messages >= last {
            continue;
        }
        // Only an image that has as many as its conversation says knows which ones these are.
        let there = numbers(image, id, last).unwrap_or_default();
        if there.len() as i64 == messages {
            for (from, to) in gaps(&there, last) {
                inventory.insert(format!("{id}{WITHOUT}{from}-{to}"), (to - from + 1).unsigned_abs());
            }
        } else {
            inventory.insert(format!("{id}{WITHOUT}{SOME}"), (last - messages).unsigned_abs());
        }
    }
    Ok(inventory)
}

fn numbers(database: &Connection, id: SessionId, last: i64) -> rusqlite::Result<Vec<i64>> {
    database
        .prepare_cached("SELECT seq FROM message WHERE session_id = ?1 AND seq <= ?2 ORDER BY seq")?
        .query_map(params![id, last], |r| r.get(0))?
        .collect()
}

/// A sentence for each conversation of which something is missing that was not missing before.
pub(super) fn missing(database: &Connection, expected: &BTreeMap<String, u64>) -> Result<Vec<String>> {
    let mut known = database.prepare("SELECT EXISTS (SELECT 1 FROM session WHERE id = ?1)")?;
    let mut sentences = Vec::new();
    for (name, last) in expected {
        let (Ok(id), Ok(last)) = (name.parse::<SessionId>(), i64::try_from(*last)) else { continue };
        let (before, some) = lost_before(expected, name);
        if !known.query_row([id], |r| r.get::<_, bool>(0))? {
            let lost = last - before.iter().map(|(from, to)| to - from + 1).sum::<i64>().max(some);
            sentences.push(format!("conversation {name} with {lost} messages"));
            continue;
        }
        let mut there = numbers(database, id, last)?;
        there.extend(before.iter().flat_map(|(from, to)| *from..=(*to).min(last)));
        there.sort_unstable();
        let gaps = gaps(&there, last);
        let count: i64 = gaps.iter().map(|(from, to)| to - from + 1).sum();
        let of_before = (some - before.iter().map(|(from, to)| to - from + 1).sum::<i64>()).max(0);
        if count > of_before {
            let which: Vec<String> = gaps
                .iter()
                .map(|(from, to)| if from == to { from.to_string() } else { format!("{from} to {to}") })
                .collect();
            let among = if of_before > 0 {
                format!(" (among these are {of_before} that were lost before)")
            } else {
                String::new()
            };
            let lost = count - of_before;
            sentences.push(format!("{lost} messages of conversation {name}: number {}{among}", which.join(", ")));
        }
    }
    Ok(sentences)
}

/// Which numbers of a conversation were lost before, and how many at least.
fn lost_before(expected: &BTreeMap<String, u64>, name: &str) -> (Vec<(i64, i64)>, i64) {
    let prefix = format!("{name}{WITHOUT}");
    let mut ranges = Vec::new();
    let mut some = 0;
    for (key, count) in expected.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix)) {
        let which = &key[prefix.len()..];
        match which.split_once('-').and_then(|(from, to)| Some((from.parse().ok()?, to.parse().ok()?))) {
            Some(range) => ranges.push(range),
            None => some = i64::try_from(*count).unwrap_or(i64::MAX),
        }
    }
    ranges.sort_unstable();
    // Two sources may know different parts of one gap.
    let mut joined: Vec<(i64, i64)> = Vec::new();
    for (from, to) in ranges {
        match joined.last_mut() {
            Some(last) if from <= last.1 + 1 => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    (joined, some)
}

fn gaps(there: &[i64], last: i64) -> Vec<(i64, i64)> {
    let mut gaps = Vec::new();
    let mut next = 1;
    for seq in there.iter().chain([&(last + 1)]) {
        if *seq > next {
            gaps.push((next, seq - 1));
        }
        next = next.max(seq + 1);
    }
    gaps
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use statehouse_sqlite::Schema as _;

    use super::*;
    use crate::sqlite::SessionsSchema;

    #[test]
    fn gaps_are_the_numbers_that_are_not_there() {
        assert!(gaps(&[1, 2, 3], 3).is_empty() && gaps(&[], 0).is_empty());
        assert_eq!(gaps(&[], 2), [(1, 2)]);
        assert_eq!(gaps(&[2, 3, 7], 9), [(1, 1), (4, 6), (8, 9)]);
    }

    fn store(id: SessionId, last: i64, says: i64, there: &[i64]) -> Connection {
        let store = Connection::open_in_memory().unwrap();
        SessionsSchema.migrate(&store).unwrap();
        store.pragma_update(None, "ignore_check_constraints", 1).unwrap();
        store
            .execute(
                "INSERT INTO session(id, source, started_at, last_active_at, messages, last_seq, updated_at)
                 VALUES (?1, 'test', 1, 1, ?2, ?3, 1)",
                params![id, says, last],
            )
            .unwrap();
        for seq in there {
            store
                .execute(
                    "INSERT INTO message(id, session_id, seq, role, text, created_at) VALUES (?1, ?2, ?3, 'user', 'x', 1)",
                    params![crate::types::MessageId::new(), id, seq],
                )
                .unwrap();
        }
        store.execute("UPDATE session SET messages = ?1, last_seq = ?2", params![says, last]).unwrap();
        store
    }

    #[test]
    fn what_an_earlier_deed_has_lost_is_not_told_as_the_loss_of_this_one() {
        let id = SessionId::new();
        let there = [1, 2, 6, 7, 8];
        let before = of(&store(id, 8, 5, &there)).unwrap();
        assert!(missing(&store(id, 8, 5, &there), &before).unwrap().is_empty(), "{before:?}");
        let lost = missing(&store(id, 6, 3, &[1, 2, 6]), &before).unwrap();
        assert_eq!(lost, [format!("2 messages of conversation {id}: number 7 to 8")]);
        // Where only the number is known of what was lost before.
        let torn = of(&store(id, 8, 5, &[1, 2])).unwrap();
        assert!(missing(&store(id, 8, 5, &there), &torn).unwrap().is_empty(), "{torn:?}");
        let lost = missing(&store(id, 6, 3, &[1, 2, 6]), &torn).unwrap();
        let among = "number 3 to 5, 7 to 8 (among these are 3 that were lost before)";
        assert_eq!(lost, [format!("2 messages of conversation {id}: {among}")]);
        // The control: nothing was lost before, and so all of it is told.
        let whole = of(&store(id, 8, 8, &[1, 2])).unwrap();
        let lost = missing(&store(id, 8, 5, &there), &whole).unwrap();
        assert_eq!(lost, [format!("3 messages of conversation {id}: number 3 to 5")]);
    }
}
