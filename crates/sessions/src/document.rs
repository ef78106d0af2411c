//! The JSON documents of conversations, messages, finds and jobs.
//!
//! The command line and the dashboard's API answer with the same documents, so they are written once, here. They are a
//! contract: fields are added and never change. Times are RFC 3339 in UTC with microseconds.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::types::{Hit, Job, JobKind, Message, MessageId, Micros, Origin, Role, Session, SessionId};

/// A time as text. What lies outside the years that RFC 3339 can write becomes the nearest that it can.
pub fn time(at: Micros) -> String {
    let nearest = if at.0 < 0 { Timestamp::MIN } else { Timestamp::MAX };
    format!("{:.6}", Timestamp::from_microsecond(at.0).unwrap_or(nearest))
}

/// One conversation, as in a list.
#[derive(Debug, Serialize)]
pub struct SessionDocument<'a> {
    id: SessionId,
    parent_id: Option<SessionId>,
    origin: Option<&'a Origin>,
    title: Option<&'a str>,
    source: &'a str,
    started_at: String,
    last_active_at: String,
    ended_at: Option<String>,
    end_reason: Option<&'a str>,
    messages: u64,
    archived: bool,
    hidden: bool,
    pinned: bool,
}

impl<'a> From<&'a Session> for SessionDocument<'a> {
    fn from(s: &'a Session) -> Self {
        Self {
            id: s.id,
            parent_id: s.parent_id,
            origin: s.origin.as_ref(),
            title: s.title.as_deref(),
            source: &s.source,
            started_at: time(s.started_at),
            last_active_at: time(s.last_active_at),
            ended_at: s.ended_at.map(time),
            end_reason: s.end_reason.as_deref(),
            messages: s.messages,
            archived: s.archived,
            hidden: s.hidden,
            pinned: s.pinned,
        }
    }
}

/// What is kept verbatim, as every reader can read it: half of a surrogate pair, which Python writes as an escape and
/// strict readers refuse, becomes U+FFFD. One such message would otherwise make a whole document unreadable.
fn readable(raw: &RawValue) -> Cow<'_, RawValue> {
    match crate::json::mended(raw.get()).and_then(|mended| RawValue::from_string(mended).ok()) {
        Some(mended) => Cow::Owned(mended),
        None => Cow::Borrowed(raw),
    }
}

/// One message.
#[derive(Debug, Serialize)]
pub struct MessageDocument<'a> {
    id: MessageId,
    seq: i64,
    role: Role,
    text: &'a str,
    parts: Option<Cow<'a, RawValue>>,
    tool_calls: Option<Cow<'a, RawValue>>,
    tool_call_id: Option<&'a str>,
    tool_name: Option<&'a str>,
    created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<Cow<'a, RawValue>>,
}

impl<'a> From<&'a Message> for MessageDocument<'a> {
    fn from(m: &'a Message) -> Self {
        Self {
            id: m.id,
            seq: m.seq,
            role: m.role,
            text: &m.text,
            parts: m.parts.as_deref().map(readable),
            tool_calls: m.tool_calls.as_deref().map(readable),
            tool_call_id: m.tool_call_id.as_deref(),
            tool_name: m.tool_name.as_deref(),
            created_at: time(m.created_at),
            extra: m.extra.as_deref().map(readable),
        }
    }
}

/// One conversation with messages: the fields of [`SessionDocument`], and in the place of the count the messages
/// themselves; the count is `message_count`.
#[derive(Debug, Serialize)]
pub struct ConversationDocument<'a> {
    id: SessionId,
    parent_id: Option<SessionId>,
    origin: Option<&'a Origin>,
    title: Option<&'a str>,
    source: &'a str,
    started_at: String,
    last_active_at: String,
    ended_at: Option<String>,
    end_reason: Option<&'a str>,
    archived: bool,
    hidden: bool,
    pinned: bool,
    message_count: u64,
    messages: Vec<MessageDocument<'a>>,
}

impl<'a> ConversationDocument<'a> {
    /// The document of `session` with `messages`, all of them or a page.
    pub fn new(session: &'a Session, messages: &'a [Message]) -> Self {
        let s = SessionDocument::from(session);
        Self {
            id: s.id,
            parent_id: s.parent_id,
            origin: s.origin,
            title: s.title,
            source: s.source,
            started_at: s.started_at,
            last_active_at: s.last_active_at,
            ended_at: s.ended_at,
            end_reason: s.end_reason,
            archived: s.archived,
            hidden: s.hidden,
            pinned: s.pinned,
            message_count: s.messages,
            messages: messages.iter().map(MessageDocument::from).collect(),
        }
    }
}

/// One find of a search. `snippet` carries the found words between U+2068 and U+2069.
#[derive(Debug, Serialize)]
pub struct HitDocument<'a> {
    session_id: SessionId,
    message_id: MessageId,
    role: Role,
    snippet: &'a str,
    score: f64,
    created_at: String,
}

impl<'a> From<&'a Hit> for HitDocument<'a> {
    fn from(h: &'a Hit) -> Self {
        Self {
            session_id: h.session_id,
            message_id: h.message_id,
            role: h.role,
            snippet: &h.snippet,
            score: h.score,
            created_at: time(h.created_at),
        }
    }
}

/// One job.
#[derive(Debug, Serialize)]
pub struct JobDocument<'a> {
    id: crate::types::JobId,
    name: &'a str,
    what: &'a JobKind,
    schedule: String,
    timezone: &'static str,
    next_due_at: String,
    paused: bool,
    catch_up: &'static str,
}

impl<'a> From<&'a Job> for JobDocument<'a> {
    fn from(j: &'a Job) -> Self {
        Self {
            id: j.id,
            name: &j.name,
            what: &j.kind,
            schedule: format!("every {}", interval(j.every_seconds)),
            timezone: "UTC",
            next_due_at: time(j.next_due_at),
            paused: j.paused,
            catch_up: "once",
        }
    }
}

/// Seconds as a person writes them, in the largest unit that is exact: `90s`, `30m`, `6h`, `1d`.
pub fn interval(seconds: u64) -> String {
    for (unit, name) in [(86_400, 'd'), (3_600, 'h'), (60, 'm')] {
        if seconds > 0 && seconds.is_multiple_of(unit) {
            return format!("{}{name}", seconds / unit);
        }
    }
    format!("{seconds}s")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    #[test]
    fn times_have_microseconds_and_never_fail() {
        assert_eq!(time(Micros(0)), "1970-01-01T00:00:00.000000Z");
        assert_eq!(time(Micros(1_767_225_599_000_001)), "2025-12-31T23:59:59.000001Z");
        assert!(time(Micros(i64::MAX)).starts_with("9999-12-3"));
        assert!(time(Micros(i64::MIN)).ends_with('Z'));
    }

    #[test]
    fn intervals_are_exact() {
        let all = [0, 1, 59, 60, 90, 3600, 5400, 86_400, 90_000].map(interval);
        assert_eq!(all, ["0s", "1s", "59s", "1m", "90s", "1h", "90m", "1d", "25h"]);
    }

    #[test]
    fn a_conversation_has_the_fields_of_a_list_entry_and_its_messages() {
        let id = SessionId::new();
        let session = Session {
            id,
            parent_id: None,
            origin: Some(Origin { system: "hermes".into(), id: "20260101_ab".into() }),
            title: Some("日本 <b>".into()),
            source: "http".into(),
            started_at: Micros(1),
            last_active_at: Micros(2),
            ended_at: None,
            end_reason: None,
            messages: 7,
            archived: false,
            hidden: false,
            pinned: true,
        };
        let parts = RawValue::from_string(r#"[{"type":"text",  "text":"kept as it is"}]"#.into()).unwrap();
        let message = Message {
            id: MessageId::new(),
            session_id: id,
            seq: 1,
            role: Role::Assistant,
            text: "\u{1f600}".into(),
            parts: Some(parts),
            tool_calls: Some(RawValue::from_string(r#"["half \ud83e of a pair"]"#.into()).unwrap()),
            tool_call_id: None,
            tool_name: None,
            created_at: Micros(3),
            extra: None,
        };
        let list: serde_json::Value = serde_json::to_value(SessionDocument::from(&session)).unwrap();
        let messages = [message];
        let text = serde_json::to_string(&ConversationDocument::new(&session, &messages)).unwrap();
        assert!(text.contains(r#""parts":[{"type":"text",  "text":"kept as it is"}]"#), "{text}");
        let whole: serde_json::Value = serde_json::from_str(&text).unwrap();
        for (name, value) in list.as_object().unwrap() {
            if name == "messages" {
                assert_eq!(value, &whole["message_count"]);
            } else {
                assert_eq!(value, &whole[name], "{name}");
            }
        }
        assert_eq!(whole["messages"][0]["role"], "assistant");
        assert_eq!(whole["messages"][0]["tool_calls"][0], "half \u{fffd} of a pair");
        assert_eq!(whole["messages"][0]["created_at"], "1970-01-01T00:00:00.000003Z");
        assert_eq!(whole["origin"], serde_json::json!({"system": "hermes", "id": "20260101_ab"}));
    }
}
