//! Search by a scan of every message. It needs no index, so it cannot be stale or damaged; an index that comes later
//! narrows down which rows are looked at here and changes nothing else.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use serde_json::Value;

use crate::fold::{Folded, fold_into};
use crate::json;
use crate::query::Query;
use crate::types::*;

/// How many bytes of text stand before the first find, and how many follow it, at most.
const BEFORE: usize = 60;
const AFTER: usize = 160;

/// Bounds what one search may keep in memory, whatever was asked for.
const MOST: usize = 10_000;

pub(super) fn search(c: &Connection, query: &Query, limit: u64) -> rusqlite::Result<Vec<Hit>> {
    let limit = usize::try_from(limit).unwrap_or(MOST).min(MOST);
    if query.is_empty() || limit == 0 {
        return Ok(Vec::new());
    }
    let mut newest = BinaryHeap::new();
    let mut folded = String::new();
    let mut scan = c.prepare_cached("SELECT text, tool_name, tool_calls, created_at, n FROM message")?;
    let mut messages = scan.query([])?;
    while let Some(row) = messages.next()? {
        let place = Reverse((row.get::<_, Micros>(3)?, row.get::<_, i64>(4)?));
        if newest.len() == limit && newest.peek().is_some_and(|oldest| *oldest < place) {
            continue;
        }
        let text = searchable(row)?;
        if query.beyond_ascii() && text.is_ascii() {
            continue;
        }
        fold_into(&text, &mut folded);
        if query.matches(&folded) {
            newest.push(place);
            if newest.len() > limit {
                newest.pop();
            }
        }
    }
    let mut load = c.prepare_cached(
        "SELECT text, tool_name, tool_calls, created_at, session_id, id, role FROM message WHERE n = ?1",
    )?;
    newest
        .into_sorted_vec()
        .into_iter()
        .map(|Reverse((_, n))| {
            load.query_row([n], |row| {
                let text = searchable(row)?;
                let folded = Folded::of(&text);
                let places = query.places(&folded);
                Ok(Hit {
                    session_id: row.get(4)?,
                    message_id: row.get(5)?,
                    role: row.get(6)?,
                    snippet: snippet(&text, &places),
                    score: places.len() as f64 / (1.0 + (folded.text.len() as f64 / 256.0)).sqrt(),
                    created_at: row.get(3)?,
                })
            })
        })
        .collect()
}

/// What of a message can be found: its text, and what a tool was called with. Expects text, tool name and tool calls
/// in the first three columns.
fn searchable<'r>(row: &'r Row<'_>) -> rusqlite::Result<Cow<'r, str>> {
    let column = |i| -> rusqlite::Result<Option<Cow<'r, str>>> {
        Ok(match row.get_ref(i)? {
            ValueRef::Text(t) => Some(String::from_utf8_lossy(t)),
            _ => None,
        })
    };
    let mut text = column(0)?.unwrap_or_default();
    if let Some(name) = column(1)? {
        let text = text.to_mut();
        text.push('\n');
        text.push_str(&name);
    }
    if let Some(calls) = column(2)? {
        let text = text.to_mut();
        match json::parse(&calls) {
            Some(calls) => strings(&calls, text),
            None => {
                text.push('\n');
                text.push_str(&calls);
            }
        }
    }
    Ok(text)
}

/// Adds every string within `value`, a line each. The arguments of a call are JSON within a string.
fn strings(value: &Value, out: &mut String) {
    match value {
        Value::String(s) => match json::parse(s) {
            Some(inner @ (Value::Array(_) | Value::Object(_))) => strings(&inner, out),
            _ => {
                out.push('\n');
                out.push_str(s);
            }
        },
        Value::Array(items) => items.iter().for_each(|v| strings(v, out)),
        Value::Object(fields) => fields.values().for_each(|v| strings(v, out)),
        _ => {}
    }
}

fn snippet(text: &str, places: &[(usize, usize)]) -> String {
    let (first, _) = places.first().copied().unwrap_or_default();
    let mut from = first.saturating_sub(BEFORE);
    // A cut goes to the next blank if one is near, so that no word is torn; characters never are.
    if from > 0 {
        from = text.ceil_char_boundary(from);
        let blank = text.get(from..first).and_then(|t| t.char_indices().find(|(_, c)| c.is_whitespace()));
        from = blank.map_or(from, |(at, c)| from + at + c.len_utf8());
    }
    let to = text.floor_char_boundary(first.saturating_add(AFTER).min(text.len()));
    let mut out = String::with_capacity(to - from + 32);
    if from > 0 {
        out.push('…');
    }
    let mut at = from;
    let plain = |out: &mut String, from: usize, to: usize| {
        let part = text.get(from..to).unwrap_or_default();
        out.extend(part.chars().filter_map(|c| match c {
            '\u{2068}' | '\u{2069}' => None,
            c if c.is_whitespace() || c.is_control() => Some(' '),
            c => Some(c),
        }));
    };
    for (begin, end) in places.iter().copied().filter(|(b, e)| *b >= from && *b < to && e > b) {
        // The last find may reach beyond the cut; it is shown as far as the text goes.
        let end = end.min(to);
        plain(&mut out, at, begin);
        out.push('\u{2068}');
        plain(&mut out, begin, end);
        out.push('\u{2069}');
        at = end;
    }
    plain(&mut out, at, to);
    if to < text.len() {
        out.push('…');
    }
    out
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]
mod tests {
    use super::*;

    fn shown(text: &str, query: &str) -> String {
        snippet(text, &Query::parse(query).places(&Folded::of(text)))
    }

    #[test]
    fn what_was_found_is_marked() {
        assert_eq!(shown("im Café um\nacht", "cafe ACHT"), "im \u{2068}Café\u{2069} um \u{2068}acht\u{2069}");
    }

    #[test]
    fn a_cut_tears_neither_words_nor_characters() {
        let text = format!("{} needle {}", "wörter ".repeat(40), "東京".repeat(100));
        let shown = shown(&text, "needle");
        assert!(shown.starts_with("…wörter "), "{shown}");
        assert!(shown.contains("\u{2068}needle\u{2069}"), "{shown}");
        assert!(shown.ends_with('…'), "{shown}");
    }

    #[test]
    fn arguments_of_calls_are_read_as_what_they_say() {
        let calls = r#"[{"function":{"name":"write","arguments":"{\"text\":\"\u6771\u4eac\"}"}}]"#;
        let mut out = String::new();
        strings(&serde_json::from_str(calls).unwrap(), &mut out);
        assert_eq!(out.lines().collect::<Vec<_>>(), ["", "東京", "write"]);
    }
}
