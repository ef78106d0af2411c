//! Where answers go. With `--json` stdout carries JSON and nothing else; without it, text for people.
//!
//! A reader that goes away (`| head`) is not an error: the rest of the answer is dropped and the exit status stays what
//! the work itself deserves.

use std::io::{IsTerminal as _, Write as _};

use serde::Serialize;

/// How this run answers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    pub(crate) json: bool,
}

impl Output {
    /// True if a person watches stdout.
    pub(crate) fn terminal(self) -> bool {
        !self.json && std::io::stdout().is_terminal()
    }

    /// One JSON document on one line.
    pub(crate) fn document(self, value: &impl Serialize) {
        match serde_json::to_string(value) {
            Ok(line) => self.text(&line),
            Err(e) => tracing::error!("an answer cannot be written as JSON: {e}"),
        }
    }

    /// Text, ended with a line feed if it has none.
    pub(crate) fn text(self, text: &str) {
        let mut out = std::io::stdout().lock();
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.write_all(end.as_bytes())).and_then(|()| out.flush());
    }

    /// A document for programs, or what `text` makes of it for people.
    pub(crate) fn answer<T: Serialize>(self, value: &T, text: impl FnOnce(&T) -> String) {
        if self.json {
            self.document(value);
        } else {
            let text = text(value);
            if !text.is_empty() {
                self.text(&text);
            }
        }
    }
}
