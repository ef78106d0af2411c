//! JSON of other programs, read for the words in it.

use serde_json::Value;

/// Reads JSON as far as it can be read: an escape of half a surrogate pair, which Python writes and serde_json
/// refuses, reads as U+FFFD.
pub(crate) fn parse(json: &str) -> Option<Value> {
    serde_json::from_str(json).ok().or_else(|| serde_json::from_str(&mended(json)?).ok())
}

/// The same text without halves of surrogate pairs; `None` if there is nothing to mend.
pub(crate) fn mended(json: &str) -> Option<String> {
    let bytes = json.as_bytes();
    let unit = |at: usize| -> Option<u16> {
        let digits = json.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut out = String::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(next) = bytes.get(at..).and_then(|rest| rest.iter().position(|b| *b == b'\\')) {
        at += next;
        match unit(at) {
            Some(0xd800..0xdc00) if matches!(unit(at + 6), Some(0xdc00..0xe000)) => at += 12,
            Some(0xd800..0xe000) => {
                out.push_str(json.get(copied..at)?);
                out.push_str("\\ufffd");
                at += 6;
                copied = at;
            }
            // Whatever the escape is, what it escapes is not the begin of another.
            _ => at += 2,
        }
    }
    if copied == 0 {
        return None;
    }
    out.push_str(json.get(copied..)?);
    Some(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::parse;

    #[test]
    fn half_a_pair_reads_as_a_replacement() {
        assert_eq!(parse(r#"["\ud83e\udd80"]"#), Some(json!(["🦀"])));
        assert_eq!(parse(r#"["a\ud83eb","\udd80\ud83e\udd80"]"#), Some(json!(["a\u{fffd}b", "\u{fffd}🦀"])));
        assert_eq!(parse(r#"["\\ud83e"]"#), Some(json!(["\\ud83e"])));
        assert_eq!(parse(r#"["\\\ud83e"]"#), Some(json!(["\\\u{fffd}"])));
        assert_eq!(parse(r#"["\ud83e"#), None);
        assert_eq!(parse("NaN"), None);
    }
}
