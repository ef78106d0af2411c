//! Every refusal in one shape: `{"error":{"code","message","detail","hint"}}`.
//!
//! `code` is from a closed list: those of [`Code`] and those of [`statehouse_sessions::Error::code`]. The store's errors
//! keep their own code, sentence and hint, so that the command line and the services say the same words.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use statehouse_sessions::Error as StoreError;
use statehouse_sqlite::Error as DatabaseError;

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident, $code:literal, $status:ident, $hint:literal;)*) => {
        /// What a service itself refuses, each with a code that never changes its meaning.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$doc])* $name,)* }
        impl Code {
            /// Every code, for documentation and tests.
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];
            /// The stable code.
            pub fn as_str(self) -> &'static str { match self { $(Code::$name => $code,)* } }
            /// The status that it is answered with.
            pub fn status(self) -> StatusCode { match self { $(Code::$name => StatusCode::$status,)* } }
            /// What to do next.
            pub fn hint(self) -> &'static str { match self { $(Code::$name => $hint,)* } }
        }
    };
}

codes! {
    /// The body is not JSON: syntax, UTF-8, or an escape that is half of a surrogate pair.
    InvalidJson, "invalid_json", BAD_REQUEST, "Send one JSON document in UTF-8; nothing was stored.";
    /// The body is JSON of another shape: a wrong type, a missing or an unknown field, a bad query.
    InvalidRequest, "invalid_request", BAD_REQUEST, "Compare the request with the documentation of this address; nothing was stored.";
    /// The shape is right and a value is not: empty, too long, or with a character that is not kept.
    Invalid, "invalid", UNPROCESSABLE_ENTITY, "Correct the request; nothing was stored.";
    /// No token, or a wrong one.
    Unauthorized, "unauthorized", UNAUTHORIZED, "Send `Authorization: Bearer TOKEN`; the token is in the file `token` of the home.";
    /// The Host header names another machine, as when a web page rebinds its name to this address.
    ForeignHost, "foreign_host", FORBIDDEN, "Use 127.0.0.1 or localhost, or add the name to the hosts in config.toml.";
    /// The request was made by a page of another site.
    ForeignOrigin, "foreign_origin", FORBIDDEN, "Open the address itself; pages of other sites may not call it.";
    /// Nothing is at this address.
    NotFound, "not_found", NOT_FOUND, "Check the address.";
    /// The address exists, the method does not.
    MethodNotAllowed, "method_not_allowed", METHOD_NOT_ALLOWED, "See the Allow header for the methods of this address.";
    /// The body did not arrive in time.
    Timeout, "timeout", REQUEST_TIMEOUT, "Send the body without pauses; nothing was stored.";
    /// The body is larger than the limit.
    TooLarge, "too_large", PAYLOAD_TOO_LARGE, "Send less at once; nothing was stored.";
    /// As many connections are open as are allowed.
    TooManyConnections, "too_many_connections", SERVICE_UNAVAILABLE, "Close connections that are not needed, and try again.";
    /// The message is kept and its answer is not there yet.
    AnswerPending, "answer_pending", GATEWAY_TIMEOUT, "The message is stored; read the answer later from the events of its turn.";
    /// The message is kept and cannot be answered.
    TurnFailed, "turn_failed", BAD_GATEWAY, "The message is stored; see the detail, and send it again when the responder works.";
    /// The service is closing.
    ShuttingDown, "shutting_down", SERVICE_UNAVAILABLE, "Try again when the service is back; what was acknowledged is kept.";
    /// A fault of the service.
    Internal, "internal", INTERNAL_SERVER_ERROR, "See the log of the service.";
}

/// A refusal, ready to be answered.
#[derive(Debug, Clone)]
pub struct Problem {
    /// The status of the answer.
    pub status: StatusCode,
    /// The stable code for programs.
    pub code: &'static str,
    /// One sentence for a person.
    pub message: String,
    /// What was seen, for whoever wants to know more; may be empty.
    pub detail: String,
    /// What to do next.
    pub hint: String,
    /// Seconds after which trying again makes sense.
    pub retry_after: Option<u32>,
}

#[derive(Serialize)]
struct Document<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    code: &'a str,
    message: &'a str,
    detail: &'a str,
    hint: &'a str,
}

impl Problem {
    /// A refusal by the service itself.
    pub fn new(code: Code, message: impl Into<String>) -> Problem {
        let retry_after = matches!(code, Code::TooManyConnections | Code::ShuttingDown).then_some(1);
        Problem {
            status: code.status(),
            code: code.as_str(),
            message: message.into(),
            detail: String::new(),
            hint: code.hint().to_owned(),
            retry_after,
        }
    }

    /// The same with a detail.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<String>) -> Problem {
        self.detail = detail.into();
        self
    }

    /// A fault of ours; `detail` goes to the log and to the client.
    pub fn internal(detail: impl Into<String>) -> Problem {
        let detail = detail.into();
        tracing::error!(detail, "a request failed inside the service");
        Problem::new(Code::Internal, "the service failed to answer").with_detail(detail)
    }

    /// The document alone, as it is also sent inside an event stream.
    pub fn document(&self) -> String {
        let Problem { code, message, detail, hint, .. } = self;
        json_text(&Document { error: Inner { code, message, detail, hint } })
    }
}

impl From<StoreError> for Problem {
    fn from(e: StoreError) -> Problem {
        let (status, retry_after) = match &e {
            StoreError::NotFound { .. } => (StatusCode::NOT_FOUND, None),
            StoreError::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, None),
            StoreError::Source { .. } => (StatusCode::BAD_REQUEST, None),
            StoreError::Database(d) => match d {
                DatabaseError::Full => (StatusCode::INSUFFICIENT_STORAGE, None),
                DatabaseError::Busy { .. }
                | DatabaseError::Retired { .. }
                | DatabaseError::Doubtful { .. }
                | DatabaseError::Closed => (StatusCode::SERVICE_UNAVAILABLE, Some(1)),
                // It does not pass with time.
                DatabaseError::Destroyed(_) => (StatusCode::SERVICE_UNAVAILABLE, None),
                DatabaseError::Refused(_) | DatabaseError::ReadOnly => (StatusCode::SERVICE_UNAVAILABLE, Some(5)),
                _ => (StatusCode::INTERNAL_SERVER_ERROR, None),
            },
        };
        if status.is_server_error() {
            tracing::warn!(code = e.code(), error = %e, "the store refused a request");
        }
        let detail = std::error::Error::source(&e).map(ToString::to_string).unwrap_or_default();
        // What is to be done is known once somebody has put together what is left.
        let next = match &e {
            StoreError::Database(DatabaseError::Destroyed(d)) => d.next(),
            _ => None,
        };
        let hint = next.unwrap_or_else(|| e.hint().to_owned());
        Problem { status, code: e.code(), message: e.to_string(), detail, hint, retry_after }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = json_body(self.status, self.document());
        let headers = response.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"statehouse\""));
        }
        response
    }
}

/// A document as an answer.
pub fn json(status: StatusCode, document: &impl Serialize) -> Response {
    json_body(status, json_text(document))
}

fn json_body(status: StatusCode, text: String) -> Response {
    (status, [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], text).into_response()
}

fn json_text(document: &impl Serialize) -> String {
    serde_json::to_string(document).unwrap_or_else(|e| {
        tracing::error!(error = %e, "a document could not be written as JSON");
        "null".to_owned()
    })
}
