//! Text that a person can paste into a shell.

use std::fmt::Write as _;

/// A word as a person would type it into a shell.
pub fn word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    if word.chars().any(char::is_control) {
        let mut out = String::from("$'");
        for c in word.chars() {
            match c {
                '\'' | '\\' => {
                    out.push('\\');
                    out.push(c);
                }
                '\n' => out.push_str("\\n"),
                c if (c as u32) < 0x80 && c.is_control() => {
                    let _ = write!(out, "\\x{:02x}", c as u32);
                }
                c => out.push(c),
            }
        }
        out.push('\'');
        return out;
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_shell() {
        assert_eq!(word("/home/me/.statehouse"), "/home/me/.statehouse");
        assert_eq!(word("/a b/c#?"), "'/a b/c#?'");
        assert_eq!(word("it's"), r"'it'\''s'");
        assert_eq!(word("a\nb'c"), r"$'a\nb\'c'");
        assert_eq!(word(""), "''");
    }
}
