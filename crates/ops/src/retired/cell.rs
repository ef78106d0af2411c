//! One value of a row, exactly as it is stored, and how two are compared.
//!
//! Values are the same if their type and their bytes are: `1` and `1.0` are two values, and text is bytes, whether or not they
//! are UTF-8. So nothing that one side has is taken for what the other has because SQL calls them equal.

use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, ValueRef};
use serde_json::{Value as Json, json};

/// One value.
#[derive(Debug, Clone)]
pub(super) enum Cell {
    Null,
    Integer(i64),
    Real(f64),
    Text(Vec<u8>),
    Blob(Vec<u8>),
}

impl From<ValueRef<'_>> for Cell {
    fn from(value: ValueRef<'_>) -> Cell {
        match value {
            ValueRef::Null => Cell::Null,
            ValueRef::Integer(n) => Cell::Integer(n),
            ValueRef::Real(x) => Cell::Real(x),
            ValueRef::Text(bytes) => Cell::Text(bytes.to_vec()),
            ValueRef::Blob(bytes) => Cell::Blob(bytes.to_vec()),
        }
    }
}

impl ToSql for Cell {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(self.as_ref()))
    }
}

impl PartialEq for Cell {
    fn eq(&self, other: &Cell) -> bool {
        same(self.as_ref(), other.as_ref())
    }
}

impl Cell {
    pub(super) fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Cell::Null => ValueRef::Null,
            Cell::Integer(n) => ValueRef::Integer(*n),
            Cell::Real(x) => ValueRef::Real(*x),
            Cell::Text(bytes) => ValueRef::Text(bytes),
            Cell::Blob(bytes) => ValueRef::Blob(bytes),
        }
    }

    pub(super) fn is_null(&self) -> bool {
        matches!(self, Cell::Null)
    }

    /// For people and programs. What JSON cannot say is an object that names its type.
    pub(super) fn json(&self) -> Json {
        match self {
            Cell::Null => Json::Null,
            Cell::Integer(n) => json!(n),
            Cell::Real(x) if x.is_finite() => json!(x),
            Cell::Real(x) => json!({ "real": x.to_string() }),
            Cell::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => json!(text),
                Err(_) => json!({ "text": hex(bytes) }),
            },
            Cell::Blob(bytes) => json!({ "blob": hex(bytes) }),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// True if type and bytes are the same.
pub(super) fn same(a: ValueRef<'_>, b: ValueRef<'_>) -> bool {
    match (a, b) {
        (ValueRef::Null, ValueRef::Null) => true,
        (ValueRef::Integer(a), ValueRef::Integer(b)) => a == b,
        (ValueRef::Real(a), ValueRef::Real(b)) => a.to_bits() == b.to_bits(),
        (ValueRef::Text(a), ValueRef::Text(b)) | (ValueRef::Blob(a), ValueRef::Blob(b)) => a == b,
        _ => false,
    }
}

/// A number that stands for these values: equal for equal ones, and different for different ones but for a chance that never
/// comes. It is BLAKE3's, so nobody can make two rows of one number either.
pub(super) fn digest<'a>(values: impl Iterator<Item = ValueRef<'a>>) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    for value in values {
        let (tag, bytes): (u8, &[u8]) = match &value {
            ValueRef::Null => (0, &[]),
            ValueRef::Integer(n) => (1, &n.to_le_bytes()),
            ValueRef::Real(x) => (2, &x.to_bits().to_le_bytes()),
            ValueRef::Text(bytes) => (3, bytes),
            ValueRef::Blob(bytes) => (4, bytes),
        };
        hasher.update(&[tag]);
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    }
    *hasher.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sql_calls_equal_is_not_the_same() {
        let nan = f64::from_bits(0x7ff8_0000_0000_0001);
        assert_ne!(Cell::Integer(1), Cell::Real(1.0));
        assert_ne!(Cell::Real(0.0), Cell::Real(-0.0));
        assert_eq!(Cell::Real(nan), Cell::Real(nan));
        assert_ne!(Cell::Text(b"a".to_vec()), Cell::Blob(b"a".to_vec()));
        assert_ne!(Cell::Null, Cell::Text(Vec::new()));
    }

    #[test]
    fn a_digest_knows_where_a_value_ends() {
        let of = |cells: &[Cell]| digest(cells.iter().map(Cell::as_ref));
        let text = |t: &str| Cell::Text(t.as_bytes().to_vec());
        assert_ne!(of(&[text("ab"), text("c")]), of(&[text("a"), text("bc")]));
        assert_ne!(of(&[Cell::Null]), of(&[]));
        assert_eq!(of(&[text("ab")]), of(&[text("ab")]));
    }

    #[test]
    fn what_json_cannot_say_names_its_type() {
        assert_eq!(Cell::Blob(vec![0, 255]).json(), json!({ "blob": "00ff" }));
        assert_eq!(Cell::Text(vec![0xff]).json(), json!({ "text": "ff" }));
        assert_eq!(Cell::Real(f64::INFINITY).json(), json!({ "real": "inf" }));
        assert_eq!(Cell::Text(b"x".to_vec()).json(), json!("x"));
    }
}
