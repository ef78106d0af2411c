//! What becomes of programs that have the database open, said before it happens, and what to type about each of them.
//!
//! One transaction leaves everybody in the same files. Another main file would leave whoever has the old one open in that: what
//! he writes is in no database, and where he pairs it by name with the new log he ruins both. So nothing goes on beside him, not
//! even by force. Only who could not be seen, or came in the last moment, can be in that case; of those it is told.

use serde::Serialize;
use statehouse_sqlite::holders::{Holder, capture_command, steps};
use statehouse_sqlite::shell::word;
use statehouse_sqlite::{Error as DatabaseError, Family, Reason};

use super::error::Error;
use crate::maintenance;
use crate::who::name;

/// Something to type, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Next {
    /// As a person would type it.
    pub command: String,
    /// Why, as a sentence.
    pub why: String,
}

/// Programs of others that go on in the same files.
pub(super) fn goes_on(h: &Holder) -> String {
    format!(
        "{} has it open and goes on in the same file: it sees the new content with its next statement; what it remembers of the old \
         content it may write into the new one, so restart it",
        name(h)
    )
}

/// What to do about programs that went on in the same files.
pub(super) fn restart(holders: &[Holder]) -> Vec<Next> {
    let next = |h: &Holder| Next { command: h.stop.clone(), why: goes_on(h) };
    holders.iter().map(next).collect()
}

/// What is said before the main file is exchanged beside what could not be seen.
pub(super) const UNSEEN: &str = "the main file is exchanged; a program that could not be seen and has it open goes on in the old files, and \
                                 what it writes from then on is in no database";

/// What to do about whoever could not be seen: his rows first.
pub(super) fn unseen(family: &Family) -> Vec<Next> {
    let path = word(&family.main().display().to_string());
    vec![
        Next {
            command: format!("sudo {}", capture_command(family, None)),
            why: format!("{UNSEEN}; this copies what such a program has written"),
        },
        Next {
            command: format!("sudo statehouse holders {path}"),
            why: "it names such a program and what ends it: end it after the capture as it says, and start it again"
                .to_owned(),
        },
    ]
}

/// What to do about those who opened the old main file in the last moment.
pub(super) fn late(left: &[Holder]) -> Vec<Next> {
    let why = |h: &Holder| {
        format!(
            "{} still waits for the main file that was replaced; end it before it writes, and start it again: it would write \
             into the old file, and into the new log",
            name(h)
        )
    };
    let next = |h: &Holder| {
        let why = why(h);
        steps(std::slice::from_ref(h), false).into_iter().map(move |command| Next { command, why: why.clone() })
    };
    left.iter().flat_map(next).collect()
}

/// Says of a refusal because of holders what would become of them, and that force does not change it.
pub(super) fn explained(e: Error, force: bool) -> Error {
    let Error::Work(maintenance::Error::Database(DatabaseError::Refused(refusal))) = e else { return e };
    if refusal.reason != Reason::Held {
        return DatabaseError::Refused(refusal).into();
    }
    let force = if force { ", and --force does not go on beside it" } else { "" };
    let detail = format!(
        "{}. Another main file takes the place of this one{force}: a program that has this one open would go on in the old files, \
         and what it writes there would be in no database. Stop it, restore, and start it again",
        refusal.detail
    );
    DatabaseError::refused(refusal.reason, refusal.path, detail).into()
}
