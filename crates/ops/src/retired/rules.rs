//! What is known of a program's tables beyond their schema.
//!
//! In general there is no proof that two rows with one number are two rows and not one that was changed, so they are a conflict.
//! Where the program is known its rows say more: a message of Hermes Agent never becomes another message.
//! The facts about Hermes Agent's tables are those of its published schemas 30 and 31 and of its release 0.19.0.

use super::cell::Cell;
use super::pair::Pair;
use super::schema::Schema;

/// Whose tables these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rules {
    /// Nobody's that is known.
    None,
    /// Hermes Agent's.
    Hermes,
}

/// What makes a message the one that it is. The first four are there in every version.
const MESSAGE: [&str; 7] = ["session_id", "timestamp", "role", "content", "tool_call_id", "tool_calls", "tool_name"];

impl Rules {
    /// Recognises a program by its tables.
    pub(super) fn of(schema: &Schema) -> Rules {
        let has = |table: &str, columns: &[&str]| schema.get(table).is_some_and(|t| columns.iter().all(|c| t.has(c)));
        let hermes = has("messages", &["id", "session_id", "role", "content", "timestamp"])
            && has("sessions", &["id", "source", "started_at", "message_count"])
            && has("schema_version", &["version"]);
        if hermes { Rules::Hermes } else { Rules::None }
    }

    /// Columns that follow from others: they are not compared, and the program or its triggers fill them in.
    pub(super) fn derived(self, table: &str) -> &'static [&'static str] {
        match self {
            Rules::Hermes if table.eq_ignore_ascii_case("messages") => &["display_order", "display_identity"],
            _ => &[],
        }
    }

    /// Why the rows of a table are not brought back.
    pub(super) fn left_alone(self, table: &str) -> Option<&'static str> {
        if self == Rules::None {
            return None;
        }
        match table.to_ascii_lowercase().as_str() {
            "schema_version" => Some("it says which version the tables of one file have"),
            "state_meta" => Some("it says how far the indexes of one file are"),
            "compression_locks" | "session_turn_leases" | "gateway_heartbeats" => {
                Some("it says what processes were doing at the time")
            }
            _ => None,
        }
    }

    /// The columns that make a row of an append-only table what it is; the program has an index over the first of them.
    pub(super) fn identity(self, pair: &Pair) -> Option<Vec<usize>> {
        if self != Rules::Hermes || !pair.name.eq_ignore_ascii_case("messages") {
            return None;
        }
        let places: Vec<usize> = MESSAGE.iter().filter_map(|c| pair.place(c)).collect();
        (places.len() >= 4).then_some(places)
    }

    /// True if two rows of such a table with one number are two rows.
    pub(super) fn are_two(self, pair: &Pair, theirs: &[Cell], ours: &[Cell]) -> bool {
        let Some(identity) = self.identity(pair) else { return false };
        let differ = identity.iter().any(|i| theirs.get(*i) != ours.get(*i));
        // Newer versions give each message an id of its own for ever.
        let one = pair
            .place("message_uid")
            .is_some_and(|i| matches!((theirs.get(i), ours.get(i)), (Some(a), Some(b)) if !a.is_null() && a == b));
        differ && !one
    }

    /// A column that is emptied rather than keep a row out that would take a name which another row has by now.
    pub(super) fn gives_up(self, table: &str, index_columns: &[String]) -> Option<&'static str> {
        let is_title = matches!(index_columns, [c] if c.eq_ignore_ascii_case("title"));
        (self == Rules::Hermes && table.eq_ignore_ascii_case("sessions") && is_title).then_some("title")
    }
}

/// How many tool calls a message says that it makes, as Hermes Agent counts them.
pub(super) fn tool_calls(cell: Option<&Cell>) -> i64 {
    match cell {
        Some(Cell::Text(bytes)) => match serde_json::from_slice::<serde_json::Value>(bytes) {
            Ok(serde_json::Value::Array(calls)) => i64::try_from(calls.len()).unwrap_or(0),
            Ok(serde_json::Value::Null) | Err(_) => 0,
            Ok(_) => 1,
        },
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tool_calls_are_counted_as_their_program_does() {
        let of = |text: &str| tool_calls(Some(&Cell::Text(text.as_bytes().to_vec())));
        assert_eq!((of("[{},{}]"), of("{}"), of("[]"), of("no json"), of("null")), (2, 1, 0, 0, 0));
        assert_eq!(tool_calls(Some(&Cell::Null)), 0);
    }
}
