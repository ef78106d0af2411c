//! The commands, one file a group. Each parses nothing and prints only through [`Output`].

pub(crate) mod anchor;
mod dashboard;
mod dry;
mod gateway;
mod holders;
mod import;
mod incidents;
mod maintain;
pub(crate) mod probe;
mod progress;
mod restore;
mod retired;
mod scheduler;
mod service;
mod sessions;
mod snapshot;
mod status;
mod unit;
mod up;
mod verify;
mod worker;

use std::time::Duration;

use crate::args::{Cli, Command, Service};
use crate::failure::Result;
use crate::home::Home;
use crate::output::Output;

/// What every command is given.
pub(crate) struct Context {
    pub(crate) output: Output,
    pub(crate) home: Home,
    pub(crate) patience: Duration,
}

pub(crate) fn run(cli: Cli, output: Output) -> Result {
    let home = Home::named(cli.common.home.as_deref(), cli.common.profile.as_deref())?;
    let context = Context { output, home, patience: cli.common.patience };
    match cli.command {
        Command::Up(up) => up::run(&context, &up),
        Command::Gateway(port) => gateway::run(&context, &port),
        Command::Dashboard(port) => dashboard::run(&context, &port),
        Command::Scheduler => scheduler::run(&context),
        Command::Anchor(anchor) => anchor::run(&context, &anchor),
        Command::Worker { command } => worker::run(&context, &command),
        Command::Sessions { command } => sessions::run(&context, command),
        Command::Holders(holders) => holders::run(&context, &holders),
        Command::Status(target) => status::run(&context, &target),
        Command::Verify(verify) => verify::run(&context, &verify),
        Command::Service { command: Service::Print(print) } => unit::run(&context, &print),
        Command::Checkpoint(checkpoint) => maintain::checkpoint(&context, &checkpoint),
        Command::Vacuum(vacuum) => maintain::vacuum(&context, &vacuum),
        Command::Optimize(optimize) => maintain::optimize(&context, &optimize),
        Command::JournalMode(mode) => maintain::journal_mode(&context, &mode),
        Command::Snapshot(snapshot) => snapshot::take(&context, &snapshot),
        Command::Snapshots(target) => snapshot::list(&context, &target),
        Command::Restore(restore) => restore::run(&context, &restore),
        Command::Retired { command } => retired::run(&context, &command),
        Command::Incidents(incidents) => incidents::run(&context, &incidents),
        Command::Probe { command } => probe::run(&context, &command),
    }
}
