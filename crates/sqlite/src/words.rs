//! Moments, command lines and numbers of things as people read them.

/// A command as one harmless line: control characters are spelled out, so that nothing in it can end the line or reach a
/// terminal, and it is cut to a readable length.
pub(crate) fn one_line(command: &[String]) -> String {
    const LENGTH: usize = 100;
    let mut line = String::new();
    for c in command.join(" ").chars() {
        if line.len() >= LENGTH {
            line.push('…');
            break;
        }
        let hidden = matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        if c.is_control() || hidden {
            line.extend(c.escape_default());
        } else {
            line.push(c);
        }
    }
    line
}

/// Microseconds since 1970 as RFC 3339 in UTC with microseconds.
pub fn rfc3339(micros: u64) -> String {
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let (days, second) = (seconds / 86400, seconds % 86400);
    // Days to a date in the proleptic Gregorian calendar, counted from 1 March of year 0 in eras of 400 years.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (h, m, s) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{fraction:06}Z")
}

/// So many of something: `1 row`, `2 rows`, `0 processes`. The word is given as one of it.
pub fn count(n: u64, one: &str) -> String {
    if n == 1 {
        return format!("1 {one}");
    }
    let before_y = one.strip_suffix('y').filter(|stem| !stem.ends_with(['a', 'e', 'o', 'u']));
    match before_y {
        Some(stem) => format!("{n} {stem}ies"),
        None if one.ends_with(['s', 'x']) || one.ends_with("ch") || one.ends_with("sh") => format!("{n} {one}es"),
        None => format!("{n} {one}s"),
    }
}

/// The form of a verb that goes with so many: `one` for one, else `many`.
pub fn verb<'a>(n: u64, one: &'a str, many: &'a str) -> &'a str {
    if n == 1 { one } else { many }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_becomes_one_harmless_line() {
        assert_eq!(one_line(&["\u{1b}[31m".to_owned(), "\u{202e}x".to_owned()]), "\\u{1b}[31m \\u{202e}x");
        assert!(one_line(&["x".repeat(1000)]).chars().count() < 110);
    }

    #[test]
    fn one_is_one_and_everything_else_is_many() {
        let words = ["row", "process", "entry", "day", "index", "branch"];
        assert_eq!(words.map(|w| count(1, w)), ["1 row", "1 process", "1 entry", "1 day", "1 index", "1 branch"]);
        assert_eq!(
            words.map(|w| count(0, w)),
            ["0 rows", "0 processes", "0 entries", "0 days", "0 indexes", "0 branches"]
        );
        assert_eq!((count(2, "row"), verb(1, "was", "were"), verb(2, "was", "were")), ("2 rows".into(), "was", "were"));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(rfc3339(951_827_696_000_001), "2000-02-29T12:34:56.000001Z");
        assert_eq!(rfc3339(4_107_542_399_999_999), "2100-02-28T23:59:59.999999Z");
    }
}
