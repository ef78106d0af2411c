//! `statehouse anchor pause [PATH] -- COMMAND ...`: the anchor steps aside while a foreign program does its own maintenance.
//!
//! Some programs count every process that has their database open and refuse to work beside one; others change the journal
//! mode, which an anchor makes impossible. While the command runs nobody protects the database, so it must need no protection:
//! nobody may have lost its locks or write into what is gone. The anchor is kept aside by a kernel lock of this process, so it
//! comes back however this process ends.

use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Signal, pidfd_send_signal};
use statehouse_sqlite::admission::{Aside, AsideError};
use statehouse_sqlite::holders::{self, Holder};
use statehouse_sqlite::{Error, Family, Reason, files};

use super::super::Context;
use crate::args::Pause;
use crate::exit;
use crate::failure::{Failure, Result, code};
use crate::home::Place;
use crate::supervise::pidfd;
use crate::{signals, text};

/// How long anchors have for stepping aside: each asks ten times a second whether it should.
const PATIENCE: Duration = Duration::from_secs(5);

pub(super) fn run(context: &Context, pause: &Pause, path: Option<&Path>) -> Result {
    let place = Place::of(pause.path.as_deref().or(path), &context.home);
    let report = super::super::holders::look(&place.database)?;
    let family = Family::of(&place.database)?;
    let Some((program, arguments)) = pause.command.split_first() else {
        return Err(Failure::new(exit::USAGE, code::USAGE, "there is no command to run"));
    };
    refuse_unprotected(&family, report.holders)?;
    let relay = Relay::default();
    relay.listen()?;
    let aside = Aside::ask(&family, PATIENCE).map_err(|e| stays(&family, e))?;
    // Once more, for it takes the anchor a moment to step aside.
    refuse_unprotected(&family, holders::dangerous(&family)?)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::inherit()).stdout(Stdio::inherit()).stderr(Stdio::inherit());
    let status = relay.run(&mut command).map_err(|e| {
        Failure::new(exit::FAILED, code::IO, format!("cannot start {}", program.to_string_lossy()))
            .detail(e.to_string())
            .hint("Nothing was run, and the anchor is back. Check the name of the program.")
    })?;
    drop(aside);
    Ok(exit_status(status))
}

/// As a shell has it: the status, or 128 and the number of the signal.
fn exit_status(status: ExitStatus) -> u8 {
    let number = status.code().or_else(|| status.signal().map(|s| s + 128)).unwrap_or(i32::from(exit::FAILED));
    u8::try_from(number).unwrap_or(exit::FAILED)
}

/// Refuses beside somebody whom the anchor protects at this moment, or whose rows are nowhere else.
fn refuse_unprotected(family: &Family, holders: Vec<Holder>) -> Result<()> {
    let wrong: Vec<Holder> = holders.into_iter().filter(|h| h.naked && !h.fenced || h.ghost).collect();
    let Some(first) = wrong.iter().find(|h| h.ghost).or(wrong.first()) else { return Ok(()) };
    let reason = if first.ghost { Reason::HeldRetired } else { Reason::HeldNaked };
    let named: Vec<String> = wrong.iter().map(name).collect();
    let mut failure = Failure::from(Error::refused(reason, family.main(), named.join("; ")));
    failure.hint = if first.ghost {
        format!("The anchor stays. What the process has is nowhere else: {}; then try again.", first.remedy())
    } else {
        let remedies: Vec<String> = wrong.iter().map(Holder::remedy).collect();
        format!("The anchor is all that protects it, and stays. Before you try again, {}", remedies.join("; "))
    };
    Err(failure)
}

fn name(holder: &Holder) -> String {
    let what = match (holder.ghost, holder.naked) {
        (true, _) => "writes into deleted or replaced files",
        (false, _) => "has lost its locks",
    };
    let command = holder.role.clone().unwrap_or_else(|| text::shorten(&holder.command.join(" "), 60));
    holder
        .pid
        .map_or_else(|| format!("a process that is not visible here {what}"), |p| format!("PID {p} ({command}) {what}"))
}

fn stays(family: &Family, e: AsideError) -> Failure {
    match e {
        AsideError::Other(e) => e.into(),
        AsideError::Stays(_) => {
            let detail = format!("{e}, though it was asked for {} s", PATIENCE.as_secs());
            let mut failure = Failure::from(Error::refused(Reason::Held, family.main(), detail));
            failure.hint =
                "Nothing was run. See whether that process still works (it may be stopped or hang), or stop it and \
                            start it again afterwards."
                    .to_owned();
            failure
        }
    }
}

/// Passes signals on to the command.
#[derive(Clone, Default)]
struct Relay(Arc<Mutex<Running>>);

#[derive(Default)]
enum Running {
    /// The command has not been started.
    #[default]
    NotYet,
    /// A signal came before.
    Stopped(Signal),
    /// The command by its handle, which names it even if its number is handed out again.
    Command(std::os::fd::OwnedFd),
}

impl Relay {
    fn listen(&self) -> Result<()> {
        let relay = self.clone();
        signals::on_each(move |signal| {
            let mut running = relay.0.lock().unwrap_or_else(PoisonError::into_inner);
            match &*running {
                Running::NotYet => *running = Running::Stopped(signal),
                Running::Stopped(_) => {}
                // What a terminal sends reaches everybody whom it runs; the command would be told twice.
                Running::Command(_) if signal != Signal::TERM && in_foreground() => {}
                // If it has ended already that is no error.
                Running::Command(command) => drop(pidfd_send_signal(command, signal)),
            }
        })
    }

    fn run(&self, command: &mut Command) -> std::io::Result<ExitStatus> {
        let mut process = {
            let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Running::Stopped(signal) = &*running {
                return Ok(ExitStatus::from_raw(signal.as_raw()));
            }
            // What the command makes must have the modes that it would have had without us.
            crate::restore_umask();
            let process = command.spawn()?;
            *running = Running::Command(pidfd(process.id())?);
            process
        };
        process.wait()
    }
}

/// True if this process belongs to those whom its terminal sends its signals to.
fn in_foreground() -> bool {
    let stat = files::read_to_string(Path::new("/proc/self/stat"), 4096).unwrap_or_default();
    // The name in parentheses may contain anything, so the fields are counted from its end: state, parent, group, session,
    // terminal, the terminal's group.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    matches!((fields.get(2), fields.get(5)), (Some(own), Some(terminals)) if own == terminals)
}
