//! Text for people: nothing that was stored by somebody else may drive the reader's terminal.
//!
//! Titles, messages, commands and paths come from outside. A control character among them could move the cursor, set
//! the window's title or hide what follows, so it is shown as a visible escape.

use std::fmt::Write as _;

pub(crate) use statehouse_sqlite::shell::word as shell_word;

fn dangerous(c: char) -> bool {
    // C0, DEL and C1; line and paragraph separators; the marks that reorder text around them.
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if dangerous(c) && !keep(c) {
            let _ = write!(out, "{}", c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

/// One line: every control character becomes visible.
pub(crate) fn escape_line(text: &str) -> String {
    escape(text, |_| false)
}

/// Several lines: line feeds and tabs stay.
pub(crate) fn escape_block(text: &str) -> String {
    escape(text, |c| matches!(c, '\n' | '\t'))
}

/// At most `width` characters, with an ellipsis where something was cut.
pub(crate) fn shorten(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// Rows as aligned columns, the last one ragged. Widths are counted in characters, so put text that may be wide last.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let columns = header.len();
    let mut widths: Vec<usize> = header.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (w, cell) in widths.iter_mut().zip(row) {
            *w = (*w).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let mut text = String::new();
        for (i, cell) in cells.enumerate() {
            text.push_str(cell);
            if i + 1 < columns {
                let pad = widths[i].saturating_sub(cell.chars().count()) + 2;
                text.extend(std::iter::repeat_n(' ', pad));
            }
        }
        out.push_str(text.trim_end());
        out.push('\n');
    };
    line(&mut header.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
    out
}

/// A number of bytes for people.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{n} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_cannot_drive_the_terminal() {
        assert_eq!(escape_line("a\u{1b}]0;owned\u{7}b\nc"), "a\\u{1b}]0;owned\\u{7}b\\nc");
        assert_eq!(escape_line("right\u{202e}left"), "right\\u{202e}left");
        assert_eq!(escape_block("x\n\ty\u{9b}31m"), "x\n\ty\\u{9b}31m");
        assert_eq!(escape_line("日本語 🎉 é"), "日本語 🎉 é");
    }

    #[test]
    fn columns_align_and_lines_end_clean() {
        let t = table(
            &["ID", "N", "TITLE"],
            &[vec!["a".into(), "100".into(), "x".into()], vec!["bcd".into(), "1".into(), String::new()]],
        );
        assert_eq!(t, "ID   N    TITLE\na    100  x\nbcd  1\n");
    }

    #[test]
    fn long_text_is_cut_between_characters() {
        assert_eq!(shorten("日本語です", 3), "日本…");
        assert_eq!(shorten("ab", 3), "ab");
    }
}
