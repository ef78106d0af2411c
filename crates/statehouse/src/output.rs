//! Where answers go. With `--json` stdout carries JSON and nothing else; without it, text for people.
//!
//! A reader that goes away (`| head`) is not an error: the rest of the answer is dropped and the exit status stays what
//! the work itself deserves. An answer that cannot be written for another reason (a full disk) is one.

use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

/// Some answer could not be written.
static INCOMPLETE: AtomicBool = AtomicBool::new(false);

/// True if an answer of this run could not be written though somebody wanted it.
pub(crate) fn incomplete() -> bool {
    INCOMPLETE.load(Ordering::Relaxed)
}

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
        let written =
            out.write_all(text.as_bytes()).and_then(|()| out.write_all(end.as_bytes())).and_then(|()| out.flush());
        // Said once: a service that goes on would say it with every event.
        if let Err(e) = written
            && e.kind() != ErrorKind::BrokenPipe
            && !INCOMPLETE.swap(true, Ordering::Relaxed)
        {
            let _ = writeln!(std::io::stderr(), "statehouse: the answer cannot be written: {e}");
        }
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
