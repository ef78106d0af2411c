//! Records: the values of a row or an entry as they are stored. <https://www.sqlite.org/fileformat2.html#record_format>

/// How text is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// UTF-8.
    Utf8,
    /// UTF-16, the low byte first.
    Utf16Le,
    /// UTF-16, the high byte first.
    Utf16Be,
}

impl Encoding {
    /// The number in the header of a file; zero, in one that was never written, is UTF-8.
    pub fn of(number: u32) -> Option<Encoding> {
        match number {
            0 | 1 => Some(Encoding::Utf8),
            2 => Some(Encoding::Utf16Le),
            3 => Some(Encoding::Utf16Be),
            _ => None,
        }
    }

    /// The text that these bytes are; `None` if they are none, or would not become the same bytes again.
    pub fn decode(self, bytes: &[u8]) -> Option<String> {
        let unit = match self {
            Encoding::Utf8 => return String::from_utf8(bytes.to_vec()).ok(),
            Encoding::Utf16Le => u16::from_le_bytes,
            Encoding::Utf16Be => u16::from_be_bytes,
        };
        let (pairs, rest) = bytes.as_chunks::<2>();
        let units: Vec<u16> = pairs.iter().map(|pair| unit(*pair)).collect();
        if rest.is_empty() { String::from_utf16(&units).ok() } else { None }
    }
}

/// One stored value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// Nothing, or the rowid where the column is another name for it.
    Null,
    /// A whole number.
    Integer(i64),
    /// A number. One that is no number (NaN) is read as NULL by SQLite.
    Real(f64),
    /// Text, in the encoding of the database; it may be damaged or never have been valid.
    Text(&'a [u8]),
    /// Bytes.
    Blob(&'a [u8]),
}

/// A record: a list of types and then the values.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    types: &'a [u8],
    body: &'a [u8],
}

impl<'a> Record<'a> {
    /// Splits a record; `None` if its lengths contradict each other.
    pub fn parse(bytes: &'a [u8]) -> Option<Record<'a>> {
        let (header, used) = varint(bytes)?;
        let header = usize::try_from(header).ok().filter(|h| *h >= used && *h <= bytes.len())?;
        let record = Record { types: &bytes[used..header], body: &bytes[header..] };
        let mut length: u64 = 0;
        let mut types = record.types;
        while !types.is_empty() {
            let (kind, used) = varint(types)?;
            types = &types[used..];
            length = length.checked_add(size(kind)?)?;
        }
        (length <= record.body.len() as u64).then_some(record)
    }

    /// True if nothing is left over after the last value, as it is in every record that SQLite writes.
    pub fn is_exact(&self) -> bool {
        let mut types = self.types;
        let mut length: u64 = 0;
        while let Some((kind, used)) = varint(types) {
            types = &types[used..];
            length = length.saturating_add(size(kind).unwrap_or(u64::MAX));
        }
        length == self.body.len() as u64
    }

    /// The values in order.
    pub fn values(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (mut types, mut body) = (self.types, self.body);
        std::iter::from_fn(move || {
            let (kind, used) = varint(types)?;
            types = &types[used..];
            let (bytes, rest) = body.split_at_checked(usize::try_from(size(kind)?).ok()?)?;
            body = rest;
            Some(value(kind, bytes))
        })
    }
}

/// Bytes that a value of a type takes; `None` for the two types that are reserved.
fn size(kind: u64) -> Option<u64> {
    match kind {
        0 | 8 | 9 => Some(0),
        1..=4 => Some(kind),
        5 => Some(6),
        6 | 7 => Some(8),
        10 | 11 => None,
        _ => Some((kind - 12) / 2),
    }
}

fn value(kind: u64, bytes: &[u8]) -> Value<'_> {
    match kind {
        0 => Value::Null,
        8 => Value::Integer(0),
        9 => Value::Integer(1),
        7 => Value::Real(f64::from_bits(integer(bytes) as u64)),
        1..=6 => Value::Integer(integer(bytes)),
        _ if kind % 2 == 0 => Value::Blob(bytes),
        _ => Value::Text(bytes),
    }
}

/// A big-endian whole number of up to eight bytes, its sign in the first.
fn integer(bytes: &[u8]) -> i64 {
    let first = bytes.first().map_or(0, |b| i64::from(*b as i8));
    bytes.iter().skip(1).fold(first, |n, b| n << 8 | i64::from(*b))
}

/// A number of variable length and the bytes that it takes. <https://www.sqlite.org/fileformat2.html#varint>
pub(super) fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number: u64 = 0;
    for (n, byte) in bytes.iter().take(9).enumerate() {
        if n == 8 {
            return Some((number << 8 | u64::from(*byte), 9));
        }
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 == 0 {
            return Some((number, n + 1));
        }
    }
    None
}
