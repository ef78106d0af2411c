//! Text that a person can paste into a shell.

use std::fmt::Write as _;

/// A word as a person would type it into a shell.
pub fn word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    if word.chars().any(char::is_control) {
        // The shell takes line ends away from the end of what a command prints, so these follow as they are.
        let text = word.trim_end_matches('\n');
        let mut out = String::from("\"$(printf '");
        for (at, c) in text.char_indices() {
            match c {
                // It would be an option.
                '-' if at == 0 => out.push_str("\\055"),
                '%' => out.push_str("%%"),
                '\\' => out.push_str("\\\\"),
                c if c == '\'' || c.is_control() => {
                    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                        let _ = write!(out, "\\{byte:03o}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push_str("')\"");
        if text.len() < word.len() {
            let _ = write!(out, "'{}'", &word[text.len()..]);
        }
        return out;
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;

    #[test]
    fn words_for_a_shell() {
        assert_eq!(word("/home/me/.statehouse"), "/home/me/.statehouse");
        assert_eq!(word("/a b/c#?"), "'/a b/c#?'");
        assert_eq!(word("it's"), r"'it'\''s'");
        assert_eq!(word("a\nb'c"), r#""$(printf 'a\012b\047c')""#);
        assert_eq!(word(""), "''");
    }

    #[test]
    fn every_shell_takes_a_word_for_what_it_is() {
        for text in ["a\nb", "100%\tx\\n'\"$HOME`", "ends\n\n", "\n", "\u{85}c", "--help\x1b[1m", "\x011"] {
            let line = format!("printf %s {}", word(text));
            let said = std::process::Command::new("sh").args(["-c", &line]).output().unwrap();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), text, "{line}");
        }
    }
}
