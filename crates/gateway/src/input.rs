//! What clients send, and the rules that it must keep. Everything here refuses before anything is stored.

use axum::body::Bytes;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use statehouse_http::{Code, Problem};

/// The longest name of a conversation or id of a message, in bytes.
const NAME_BYTES: usize = 256;

/// The body of `POST /v1/messages`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewMessage {
    pub(crate) conversation: String,
    pub(crate) text: String,
    pub(crate) id: Option<String>,
}

/// The body of `POST /v1/chat/completions`, as far as it is used; clients send much more.
#[derive(Debug, Deserialize)]
pub(crate) struct ChatRequest {
    pub(crate) messages: Vec<ChatMessage>,
    pub(crate) stream: Option<bool>,
}

/// One message of a [`ChatRequest`].
#[derive(Debug, Deserialize)]
pub(crate) struct ChatMessage {
    role: String,
    content: Option<ChatContent>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "`content` is a string or an array of parts")]
enum ChatContent {
    Text(String),
    Parts(Vec<ChatPart>),
}

#[derive(Debug, Deserialize)]
struct ChatPart {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

/// Reads a JSON object whatever content type it was sent as: `curl -d` says that it is a form.
pub(crate) fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, Problem> {
    // serde would also take an array of the values in the order of the fields, which nobody documented.
    let object = body.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
    let parsed = if object {
        serde_json::from_slice(body)
    } else {
        serde_json::from_slice::<IgnoredAny>(body)
            .and_then(|_| Err(serde_json::Error::custom("the document is not an object")))
    };
    parsed.map_err(|e| {
        let (code, message) = match e.classify() {
            serde_json::error::Category::Data => {
                (Code::InvalidRequest, "the document does not have the expected shape")
            }
            _ => (Code::InvalidJson, "the body is not a JSON document"),
        };
        Problem::new(code, message).with_detail(e.to_string())
    })
}

impl NewMessage {
    /// Checks the values.
    pub(crate) fn check(self) -> Result<Self, Problem> {
        name("conversation", &self.conversation)?;
        text(&self.text)?;
        if let Some(id) = &self.id {
            name("id", id)?;
        }
        Ok(self)
    }
}

impl ChatRequest {
    /// The text of the last message of the user, which is the inbound one; earlier messages are in the store already.
    pub(crate) fn inbound(self) -> Result<String, Problem> {
        let Some(last) = self.messages.into_iter().rev().find(|m| m.role == "user") else {
            return Err(invalid("messages has none of the role user"));
        };
        let inbound = match last.content {
            Some(ChatContent::Text(text)) => text,
            Some(ChatContent::Parts(parts)) => {
                let mut texts = Vec::with_capacity(parts.len());
                for part in parts {
                    match (part.kind.as_str(), part.text) {
                        ("text" | "input_text", Some(text)) => texts.push(text),
                        // To leave a picture out in silence would answer another question than the one that was asked.
                        _ => {
                            return Err(invalid("the last message of the user has a part that is not text")
                                .with_detail(format!("type: {:.64}", part.kind)));
                        }
                    }
                }
                texts.join("\n")
            }
            None => String::new(),
        };
        text(&inbound)?;
        Ok(inbound)
    }
}

/// The value of a header that names a conversation or a message.
pub(crate) fn named_header(headers: &HeaderMap, header: &'static str) -> Result<Option<String>, Problem> {
    let Some(value) = headers.get(header) else { return Ok(None) };
    let value = std::str::from_utf8(value.as_bytes()).map_err(|_| invalid(format!("{header} is not UTF-8")))?;
    name(header, value)?;
    Ok(Some(value.to_owned()))
}

/// The value of `?wait=`, in seconds.
pub(crate) fn wait(seconds: Option<&str>) -> Result<Option<std::time::Duration>, Problem> {
    const MOST: f64 = 300.0;
    let Some(seconds) = seconds else { return Ok(None) };
    match seconds.parse::<f64>() {
        Ok(s) if (0.0..=MOST).contains(&s) => Ok(Some(std::time::Duration::from_secs_f64(s))),
        _ => Err(Problem::new(Code::InvalidRequest, format!("wait must be a number of seconds from 0 to {MOST}"))
            .with_detail(format!("wait={seconds:.64}"))),
    }
}

fn name(field: &str, value: &str) -> Result<(), Problem> {
    if value.trim().is_empty() {
        Err(invalid(format!("{field} is empty")))
    } else if value.len() > NAME_BYTES {
        Err(invalid(format!("{field} is longer than {NAME_BYTES} bytes")))
    } else if value.chars().any(char::is_control) {
        Err(invalid(format!("{field} has a control character")))
    } else {
        Ok(())
    }
}

fn text(value: &str) -> Result<(), Problem> {
    if value.trim().is_empty() {
        Err(invalid("text is empty"))
    } else if value.contains('\0') {
        Err(invalid("text has a NUL character"))
    } else {
        Ok(())
    }
}

fn invalid(message: impl Into<String>) -> Problem {
    Problem::new(Code::Invalid, message)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;

    fn chat(json: &'static str) -> Result<String, &'static str> {
        parse::<ChatRequest>(&Bytes::from_static(json.as_bytes())).and_then(ChatRequest::inbound).map_err(|p| p.code)
    }

    #[test]
    fn the_last_user_message_is_the_inbound_one() {
        assert_eq!(
            chat(
                r#"{"model":"m","temperature":1,"messages":[{"role":"system","content":"s"},{"role":"user","content":"a"},
                {"role":"assistant","content":null,"tool_calls":[]},{"role":"user","content":"b"},{"role":"assistant","content":"c"}]}"#
            ),
            Ok("b".into())
        );
        let parts =
            r#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]}"#;
        assert_eq!(chat(parts), Ok("a\nb".into()));
        let picture = r#"{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}"#;
        assert_eq!(chat(picture), Err("invalid"));
        assert_eq!(chat(r#"{"messages":[]}"#), Err("invalid"));
        assert_eq!(chat(r#"{"messages":[{"role":"user"}]}"#), Err("invalid"));
        assert_eq!(chat(r#"{"messages":[{"role":"user","content":7}]}"#), Err("invalid_request"));
        assert_eq!(chat(r#"{"messages":"hi"}"#), Err("invalid_request"));
    }

    #[test]
    fn a_wait_is_a_bounded_number() {
        assert_eq!(wait(None).unwrap(), None);
        assert_eq!(wait(Some("0.5")).unwrap(), Some(std::time::Duration::from_millis(500)));
        for bad in ["", "-1", "NaN", "inf", "301", "5s"] {
            assert_eq!(wait(Some(bad)).unwrap_err().code, "invalid_request", "{bad}");
        }
    }
}
