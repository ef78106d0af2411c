//! The JSON Lines that services and their supervisor print, and what they look like to a person.

use serde::{Deserialize, Serialize};

use crate::output::Output;
use crate::text;

/// One line of a stream.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// A service can be used.
    Ready {
        /// Which one.
        service: String,
        /// Its process.
        pid: u32,
        /// Where it listens, if it does.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        url: Option<String>,
    },
    /// All services are ready.
    Up,
    /// A link that lets a browser into the dashboard once.
    Login {
        /// The link.
        url: String,
    },
    /// A service ended without being asked to.
    Exited {
        /// Which one.
        service: String,
        /// The process that it was.
        pid: u32,
        /// "exit status 1", "killed by SIGKILL".
        status: String,
    },
}

impl Event {
    /// Prints the event.
    pub(crate) fn print(&self, output: Output) {
        output.answer(self, Event::sentence);
    }

    fn sentence(&self) -> String {
        match self {
            Event::Ready { service, pid, url: Some(url) } => format!("{service} is ready at {url} (PID {pid})"),
            Event::Ready { service, pid, url: None } => format!("{service} is ready (PID {pid})"),
            Event::Up => "Statehouse is up.".to_owned(),
            Event::Login { url } => format!("Open the dashboard with this link, which works once: {url}"),
            Event::Exited { service, pid, status } => {
                text::escape_line(&format!("{service} (PID {pid}) ended: {status}; it is started again"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn lines_are_those_of_the_contract() {
        let line = |e: Event| serde_json::to_string(&e).unwrap();
        assert_eq!(
            line(Event::Ready { service: "gateway".into(), pid: 123, url: Some("http://127.0.0.1:7420".into()) }),
            r#"{"event":"ready","service":"gateway","pid":123,"url":"http://127.0.0.1:7420"}"#
        );
        assert_eq!(
            line(Event::Ready { service: "anchor".into(), pid: 1, url: None }),
            r#"{"event":"ready","service":"anchor","pid":1}"#
        );
        assert_eq!(line(Event::Up), r#"{"event":"up"}"#);
        assert_eq!(
            line(Event::Exited { service: "gateway".into(), pid: 1, status: "killed by SIGKILL".into() }),
            r#"{"event":"exited","service":"gateway","pid":1,"status":"killed by SIGKILL"}"#
        );
    }
}
