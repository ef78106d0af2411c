//! `statehouse verify [PATH]`: the proof that a database is healthy.

use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use statehouse_ops::{Check, OtherProcess, Outcome, Proof, Seen, Verification};

use super::Context;
use crate::args::Verify;
use crate::exit;
use crate::failure::Result;
use crate::home::Place;
use crate::text::{escape_line, table};
use crate::{readiness, store};

pub(crate) fn run(context: &Context, verify: &Verify) -> Result {
    let place = Place::of(verify.target.path.as_deref(), &context.home);
    store::must_exist(&place.database)?;
    let verification = statehouse_ops::verify(&Proof {
        path: &place.database,
        own: verify.target.path.is_none(),
        write: verify.write,
        wait_for_write: verify.wait_for_write,
        ask: &|| ask(verify.wait_for_write.unwrap_or_default()),
        patience: context.patience,
        scratch: &std::env::temp_dir(),
        other: &Again,
    })?;
    context.output.answer(&verification, text);
    Ok(if verification.healthy { exit::OK } else { exit::FINDING })
}

/// What only a person can do. It is no progress, so it is said also where no terminal is, and not on stdout.
fn ask(limit: Duration) {
    let line = format!(
        "Now send the program a message that it stores, or do with it whatever makes it write. Waiting up to {} s.",
        limit.as_secs_f64()
    );
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// This program again, as a process of its own.
struct Again;

impl OtherProcess for Again {
    fn canary(&self, database: &Path, role: &str) -> std::result::Result<Option<String>, String> {
        readiness::other_process(database, role).map(|seen| seen.token)
    }

    fn read(&self, database: &Path) -> std::result::Result<Seen, String> {
        let out = readiness::run_self(&["probe".as_ref(), "read".as_ref(), "--".as_ref(), database.as_os_str()])?;
        serde_json::from_str(&out).map_err(|e| format!("another process answered what cannot be understood: {e}"))
    }
}

fn text(v: &Verification) -> String {
    let rows: Vec<Vec<String>> = v.checks.iter().map(row).collect();
    let mut out = table(&["CHECK", "RESULT", ""], &rows);
    for check in v.checks.iter().filter(|c| c.status.unhealthy()) {
        for line in [&check.detail, &check.hint] {
            if !line.is_empty() {
                out.push_str(&format!("{}: {}\n", check.id, escape_line(line)));
            }
        }
    }
    out.push_str(if v.healthy { "healthy\n" } else { "not healthy\n" });
    out
}

fn row(c: &Check) -> Vec<String> {
    let result = match c.status {
        Outcome::Ok => "ok",
        Outcome::Info => "info",
        Outcome::Warn => "warn",
        Outcome::Fail => "FAIL",
        Outcome::Skip => "skipped",
    };
    vec![c.id.to_owned(), result.to_owned(), escape_line(&c.summary)]
}
