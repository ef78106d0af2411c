//! From the values of a foreign row to our fields, and what is kept beside them.
//!
//! A field takes a value over when the value is what the field means; whenever that loses anything, the value itself
//! goes into `extra` under its column's name as well. There, bytes are `{"hex": ...}`, text that is not UTF-8 is
//! `{"text_hex": ...}`, and a number that JSON has no word for is `{"real": ...}`. Columns that are NULL are left out.

use rusqlite::types::ValueRef;
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value, json};

use crate::json::parse;
use crate::types::*;

/// What is kept of a row beyond our fields.
pub(super) type Extra = Map<String, Value>;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// A value as JSON, with nothing lost.
pub(super) fn verbatim(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(i) => i.into(),
        ValueRef::Real(r) => Number::from_f64(r).map_or_else(|| json!({ "real": r.to_string() }), Value::Number),
        ValueRef::Text(t) => match std::str::from_utf8(t) {
            Ok(t) => t.into(),
            Err(_) => json!({ "text_hex": hex(t) }),
        },
        ValueRef::Blob(b) => json!({ "hex": hex(b) }),
    }
}

/// A row of the source, by the names of its columns.
#[derive(Clone)]
pub(super) struct Fields<'r> {
    names: &'r [String],
    values: Vec<ValueRef<'r>>,
    /// The columns that became a field of ours, or were looked at and found to say nothing more.
    used: Vec<bool>,
}

impl<'r> Fields<'r> {
    pub(super) fn of(row: &'r rusqlite::Row<'_>, names: &'r [String]) -> rusqlite::Result<Fields<'r>> {
        let values = (0..names.len()).map(|i| row.get_ref(i)).collect::<rusqlite::Result<Vec<_>>>()?;
        Ok(Fields { names, used: vec![false; values.len()], values })
    }

    /// The value of a column, NULL if this layout does not have it.
    pub(super) fn get(&self, name: &str) -> ValueRef<'r> {
        let at = self.names.iter().position(|n| n.eq_ignore_ascii_case(name));
        at.and_then(|at| self.values.get(at)).copied().unwrap_or(ValueRef::Null)
    }

    /// The column is wholly represented by our fields.
    pub(super) fn used(&mut self, name: &str) {
        let at = self.names.iter().position(|n| n.eq_ignore_ascii_case(name));
        if let Some(used) = at.and_then(|at| self.used.get_mut(at)) {
            *used = true;
        }
    }

    /// Text for a field of ours: without NUL, and always valid. The column counts as used if that changed nothing.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        let (text, exact) = match self.get(name) {
            ValueRef::Null => return None,
            ValueRef::Text(t) => match std::str::from_utf8(t) {
                Ok(t) if !t.contains('\0') => (t.to_owned(), true),
                _ => (String::from_utf8_lossy(t).replace('\0', "\u{fffd}"), false),
            },
            ValueRef::Blob(b) => (String::from_utf8_lossy(b).replace('\0', "\u{fffd}"), false),
            ValueRef::Integer(i) => (i.to_string(), false),
            ValueRef::Real(r) => (r.to_string(), false),
        };
        if exact {
            self.used(name);
        }
        Some(text)
    }

    /// JSON for a field of ours, verbatim; `None` (and kept in `extra`) if it is none.
    pub(super) fn json(&mut self, name: &str) -> Option<Box<RawValue>> {
        let ValueRef::Text(t) = self.get(name) else { return None };
        let text = std::str::from_utf8(t).ok()?;
        let raw = raw(text)?;
        if raw.get() == text {
            self.used(name);
        }
        Some(raw)
    }

    /// A moment, if it is a sane one. The column counts as used if the moment says all of it.
    pub(super) fn moment(&mut self, name: &str) -> Option<Micros> {
        let seconds = match self.get(name) {
            ValueRef::Real(r) => r,
            ValueRef::Integer(i) => i as f64,
            _ => return None,
        };
        let moment = moment(seconds)?;
        if moment.0 as f64 / 1e6 == seconds {
            self.used(name);
        }
        Some(moment)
    }

    /// A yes or no; anything but 0 and 1 is kept in `extra` as well.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        let value = self.get(name);
        if let ValueRef::Integer(0 | 1) = value {
            self.used(name);
        }
        !matches!(value, ValueRef::Null | ValueRef::Integer(0))
    }

    /// A count, 0 if it is none. The column counts as used if it is one.
    pub(super) fn count(&mut self, name: &str) -> i64 {
        match self.get(name) {
            ValueRef::Integer(i) if i >= 0 => {
                self.used(name);
                i
            }
            ValueRef::Real(r) => r.max(0.0) as i64,
            _ => 0,
        }
    }

    /// Everything that no field of ours says.
    pub(super) fn rest(&self) -> Extra {
        self.names
            .iter()
            .zip(&self.values)
            .zip(&self.used)
            .filter(|((_, value), used)| !**used && !matches!(value, ValueRef::Null))
            .map(|((name, value), _)| (name.clone(), verbatim(*value)))
            .collect()
    }
}

/// Seconds since 1970 as a moment between 2000 and 2100. Salvaged stores carry garbage here, and Hermes itself ignores
/// what lies outside of a window.
pub(super) fn moment(seconds: f64) -> Option<Micros> {
    (946_684_800.0..4_102_444_800.0).contains(&seconds).then(|| Micros((seconds * 1e6).round() as i64))
}

/// The JSON of `text`, verbatim but for blanks around it.
pub(super) fn raw(text: &str) -> Option<Box<RawValue>> {
    RawValue::from_string(text.to_owned()).ok()
}

/// What a person reads in structured content: the texts of its parts, a line each.
pub(super) fn plain(parts: &RawValue) -> String {
    let mut lines = Vec::new();
    if let Some(value) = parse(parts.get()) {
        texts(&value, &mut lines);
    }
    lines.join("\n").replace('\0', "\u{fffd}")
}

fn texts(value: &Value, lines: &mut Vec<String>) {
    match value {
        Value::String(s) => lines.push(s.clone()),
        Value::Array(parts) => parts.iter().for_each(|p| texts(p, lines)),
        Value::Object(part) => {
            for key in ["text", "content"] {
                if let Some(inner @ (Value::String(_) | Value::Array(_) | Value::Object(_))) = part.get(key) {
                    return texts(inner, lines);
                }
            }
        }
        _ => {}
    }
}

/// The role that comes nearest, and whether it is the very one.
pub(super) fn role(name: &str) -> (Role, bool) {
    match name {
        "user" => (Role::User, true),
        "assistant" => (Role::Assistant, true),
        "system" => (Role::System, true),
        "tool" => (Role::Tool, true),
        "human" => (Role::User, false),
        "model" | "ai" => (Role::Assistant, false),
        "function" => (Role::Tool, false),
        _ => (Role::System, false),
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test stops at what it did not expect")]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost_in_json() {
        assert_eq!(verbatim(ValueRef::Blob(&[0, 255])), json!({ "hex": "00ff" }));
        assert_eq!(verbatim(ValueRef::Text(b"a\xff")), json!({ "text_hex": "61ff" }));
        assert_eq!(verbatim(ValueRef::Text(b"a\0")), json!("a\0"));
        assert_eq!(verbatim(ValueRef::Real(f64::INFINITY)), json!({ "real": "inf" }));
        assert_eq!(verbatim(ValueRef::Real(1700000000.1234567)).to_string(), "1700000000.1234567");
        assert_eq!(verbatim(ValueRef::Integer(i64::MIN)), json!(i64::MIN));
    }

    #[test]
    fn only_sane_moments_count() {
        assert_eq!(moment(1_700_000_000.5), Some(Micros(1_700_000_000_500_000)));
        for insane in [0.0, -1.0, f64::NAN, f64::INFINITY, 1.7e12, 1e300] {
            assert_eq!(moment(insane), None, "{insane}");
        }
    }

    #[test]
    fn structured_content_reads_as_its_texts() {
        let text = |json: &str| plain(&raw(json).unwrap());
        assert_eq!(text(r#"[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}},"b"]"#), "a\nb");
        assert_eq!(text(r#"{"content":[{"text":"c"}]}"#), "c");
        assert_eq!(text(r#"[{"type":"text","text":"caf\u00e9 \ud83e"}]"#), "café \u{fffd}");
        assert_eq!(text("[1,null]"), "");
        assert!(raw("[NaN]").is_none());
    }
}
