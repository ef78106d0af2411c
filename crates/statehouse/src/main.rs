//! Statehouse's command line: parse, call, render, exit.

mod args;
mod commands;
mod config;
mod event;
mod exit;
mod failure;
mod home;
mod lock;
mod output;
mod readiness;
mod signals;
mod store;
mod supervise;
mod text;

use std::process::ExitCode;
use std::sync::OnceLock;

use clap::Parser as _;
use clap::error::ErrorKind;

use args::Cli;
use failure::{Failure, Result};
use output::Output;
use rustix::fs::Mode;

/// The mask that this process was started with.
static INHERITED_UMASK: OnceLock<u32> = OnceLock::new();

/// Puts back the mask that this process was started with, for a program that it runs for its user and that is none of ours.
pub(crate) fn restore_umask() {
    if let Some(mask) = INHERITED_UMASK.get() {
        rustix::process::umask(Mode::from_bits_retain(*mask));
    }
}

fn main() -> ExitCode {
    // What this program makes is its user's alone. A mask that takes bits from the user would lock it out of its own files.
    let before = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let _ = INHERITED_UMASK.set(before.bits());
    let code = match Cli::try_parse() {
        Ok(cli) => answer(cli),
        Err(e) => misunderstood(&without_hidden(e)),
    };
    // What was asked for was done, and the one who asked does not know it.
    let untold = output::incomplete();
    // What was acknowledged is gone, and nothing else says so to whoever looks at the exit status alone.
    let lost = store::lost();
    ExitCode::from(if code == exit::OK && (untold || lost) { exit::FAILED } else { code })
}

fn answer(cli: Cli) -> u8 {
    let output = Output { json: cli.common.json };
    logging();
    run(cli, output).unwrap_or_else(|failure| {
        failure.report(output.json);
        failure.exit
    })
}

fn run(cli: Cli, output: Output) -> Result {
    signals::outlive_size_limit()?;
    if let Some(supervisor) = cli.common.supervised_by {
        signals::end_with(supervisor)?;
    }
    commands::run(cli, output)
}

/// Logs go to stderr, where a supervisor collects them; they never carry what people wrote to each other.
fn logging() {
    use std::io::IsTerminal as _;
    let subscriber = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .with_max_level(if std::io::stderr().is_terminal() { tracing::Level::WARN } else { tracing::Level::INFO })
        .finish();
    // Only a second call in one process can fail, and there is one.
    let _ = tracing::subscriber::set_global_default(subscriber);
}

/// Nobody is sent to what the program only asks itself.
fn without_hidden(mut e: clap::Error) -> clap::Error {
    use clap::error::{ContextKind, ContextValue};
    const HIDDEN: [&str; 2] = ["probe", "--supervised-by"];
    let is_hidden = |name: &str| HIDDEN.contains(&name);
    for kind in [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg] {
        let left = match e.get(kind) {
            Some(ContextValue::String(name)) if is_hidden(name) => Vec::new(),
            Some(ContextValue::Strings(names)) if names.iter().any(|n| is_hidden(n)) => {
                names.iter().filter(|n| !is_hidden(n)).cloned().collect()
            }
            _ => continue,
        };
        e.remove(kind);
        if !left.is_empty() {
            e.insert(kind, ContextValue::Strings(left));
        }
    }
    e
}

/// Help and version are answers; everything else that clap says is an error of usage. What was asked with `--json`
/// is answered with JSON even when the rest of the line makes no sense.
fn misunderstood(e: &clap::Error) -> u8 {
    use std::io::Write as _;
    let json = std::env::args_os().skip(1).take_while(|a| a != "--").any(|a| a == "--json");
    if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        Output { json }.text(&e.render().to_string());
        return exit::OK;
    }
    if !json {
        let _ = write!(std::io::stderr().lock(), "{}", e.render());
        return exit::USAGE;
    }
    let rendered = e.render().to_string();
    let mut lines = rendered.lines().map(str::trim).filter(|l| !l.is_empty());
    let first = lines.next().unwrap_or("the command line cannot be understood");
    Failure::new(exit::USAGE, failure::code::USAGE, first.strip_prefix("error: ").unwrap_or(first))
        .detail(lines.collect::<Vec<_>>().join(" "))
        .hint("Run `statehouse --help`.")
        .report(true);
    exit::USAGE
}
