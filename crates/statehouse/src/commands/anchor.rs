//! `statehouse anchor [PATH]`: holds the two locks of a generation, and tells what it sees.

use serde_json::Value;

use crate::output::Output;
use crate::text;

/// Prints a line that an anchor printed as JSON, for a person.
pub(crate) fn print_line(line: &str, output: Output) {
    let Ok(value) = serde_json::from_str::<Value>(line) else { return };
    let pid = value["pid"].as_u64().map(|p| format!("PID {p}")).unwrap_or_else(|| "a process".to_owned());
    let command = value["command"].as_str().map(|c| format!(" ({c})")).unwrap_or_default();
    let path = value["path"].as_str().unwrap_or("the database");
    let sentence = match value["event"].as_str() {
        Some("anchored") => format!("{path} is anchored"),
        Some("released") => format!("{path} is no longer anchored"),
        Some("naked_holder") => format!("{pid}{command} has lost its locks on {path}: stop it in an orderly way"),
        Some("ghost") => format!(
            "{pid}{command} is writing into deleted or replaced files of {path}: keep it running until its log is copied"
        ),
        _ => return,
    };
    output.text(&text::escape_line(&sentence));
}
