//! Times and names as people read them.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use maud::{Markup, html};
use statehouse_sessions::document::time;
use statehouse_sessions::{Micros, Role, Session};

/// A time: the distance for what was lately, the date for what was not; the exact time is in the markup.
pub(crate) fn when(at: Micros) -> Markup {
    html! { time datetime=(time(at)) title=(date(at)) { (distance(at, Micros::now())) } }
}

/// A time as a date of the machine's own time zone.
pub(crate) fn date(at: Micros) -> String {
    match Timestamp::from_microsecond(at.0) {
        Ok(t) => t.to_zoned_datetime(TimeZone::system()).strftime("%-d %b %Y, %H:%M").to_string(),
        Err(_) => time(at),
    }
}

fn distance(at: Micros, now: Micros) -> String {
    let seconds = now.0.saturating_sub(at.0) / 1_000_000;
    match seconds {
        // A clock that runs a little ahead is not the future.
        -60..60 => "just now".into(),
        60..3600 => format!("{} min ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => date(at),
    }
}

/// The title of a conversation, or what stands for one.
pub(crate) fn title(session: &Session) -> String {
    match session.title.as_deref().map(str::trim) {
        Some(title) if !title.is_empty() => title.to_owned(),
        _ => format!("Conversation of {}", date(session.started_at)),
    }
}

/// Who speaks, as a person would say it.
pub(crate) fn speaker(role: Role) -> &'static str {
    match role {
        Role::User => "You",
        Role::Assistant => "Assistant",
        Role::System => "Instructions",
        Role::Tool => "Tool",
    }
}

/// The beginning of a text on one line, cut between characters.
pub(crate) fn beginning(text: &str, most: usize) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if let Some((cut, _)) = line.char_indices().nth(most) {
            line.truncate(cut);
            line.push('…');
            break;
        }
    }
    line
}

/// "1 message", "2 messages".
pub(crate) fn count(n: u64, one: &str) -> String {
    if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_read_well() {
        let now = Micros(1_767_225_600_000_000);
        let ago = |seconds: i64| distance(Micros(now.0 - seconds * 1_000_000), now);
        assert_eq!(
            [-30, 0, 59, 60, 3599, 3600, 86_399].map(ago),
            ["just now", "just now", "just now", "1 min ago", "59 min ago", "1 h ago", "23 h ago"]
        );
        assert!(ago(86_400).contains("2025"), "{}", ago(86_400));
        assert!(distance(Micros(i64::MIN), now).ends_with('Z'));
    }

    #[test]
    fn beginnings_are_cut_between_characters() {
        assert_eq!(beginning(" a\n b  c ", 10), "a b c");
        assert_eq!(beginning("日本語日本語", 3), "日本語…");
        assert_eq!(beginning("one two three", 7), "one two…");
        assert_eq!(beginning("", 3), "");
    }
}
