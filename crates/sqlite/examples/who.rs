//! Says who uses a database, as JSON: `cargo run -p statehouse-sqlite --example who -- /path/to/x.db`. It works on every
//! system that this crate compiles for. It ends with 0, with 3 if a holder is in danger or endangers the database, and with
//! 4 if the answer is not sure.

use std::process::ExitCode;

use statehouse_sqlite::holders::{Report, Verdict, scan};
use statehouse_sqlite::{Error, Family};

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: who PATH");
        return ExitCode::from(2);
    };
    match look(path.as_ref()) {
        Ok((report, text)) => {
            println!("{text}");
            ExitCode::from(match report.verdict {
                _ if report.alarming() => 3,
                Verdict::Unknown => 4,
                Verdict::Held | Verdict::Quiet => 0,
            })
        }
        Err(e) => {
            eprintln!("error: {e}\nhint: {}", e.hint());
            ExitCode::FAILURE
        }
    }
}

fn look(path: &std::path::Path) -> Result<(Report, String), Error> {
    let report = scan(&Family::of(path)?)?;
    let text = serde_json::to_string_pretty(&report).map_err(|e| Error::io("describe", path, e))?;
    Ok((report, text))
}
