//! How a process learns that it should stop, and how it is tied to the process that started it.

use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use statehouse_sqlite::files;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit;
use crate::failure::{Failure, Result, code};

/// Ties this process to the supervisor that started it: when that one ends, however it ends, the kernel sends SIGTERM.
///
/// # Errors
/// The supervisor is gone already.
pub(crate) fn end_with(supervisor: u32) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(|e| {
        Failure::new(exit::FAILED, code::IO, "this process cannot be tied to its supervisor").detail(e.to_string())
    })?;
    // The kernel reports only a death that comes after the request; the supervisor may have died before it.
    let parent = getppid().map(Pid::as_raw_nonzero).map(|p| p.get().unsigned_abs());
    if parent != Some(supervisor) {
        return Err(Failure::new(exit::FAILED, code::SERVICE_FAILED, "the supervisor of this process is gone"));
    }
    Ok(())
}

/// From here on a write beyond the limit for file sizes is an error of that write, and not the end of the process.
///
/// # Errors
/// The system's answer.
pub(crate) fn outlive_size_limit() -> Result<()> {
    let failed =
        |e: std::io::Error| Failure::new(exit::FAILED, code::IO, "cannot watch for signals").detail(e.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let _inside = runtime.enter();
    // A handler is enough, and it stays when nobody listens to it any more.
    signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map_err(failed).map(drop)
}

/// Calls `stop` on a thread of its own at each SIGTERM, SIGINT or SIGHUP. The signals are caught from the moment that
/// this returns. A SIGHUP that the parent had ignored (`nohup`) stays ignored: the process is to outlive its terminal.
///
/// # Errors
/// The system's answer.
pub(crate) fn on_stop(mut stop: impl FnMut() + Send + 'static) -> Result<()> {
    on_each(move |_| stop())
}

/// As [`on_stop`], for somebody who must know which signal it was.
///
/// # Errors
/// The system's answer.
pub(crate) fn on_each(mut stop: impl FnMut(Signal) + Send + 'static) -> Result<()> {
    let failed =
        |e: std::io::Error| Failure::new(exit::FAILED, code::IO, "cannot watch for signals").detail(e.to_string());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(failed)?;
    let (mut term, mut int, mut hup) = {
        let _inside = runtime.enter();
        let watch = |kind| signal(kind).map_err(failed);
        let hup = if hangup_is_ignored() { None } else { Some(watch(SignalKind::hangup())?) };
        (watch(SignalKind::terminate())?, watch(SignalKind::interrupt())?, hup)
    };
    let watch = move || {
        runtime.block_on(async {
            loop {
                stop(tokio::select! {
                    _ = term.recv() => Signal::TERM,
                    _ = int.recv() => Signal::INT,
                    Some(_) = async { hup.as_mut()?.recv().await } => Signal::HUP,
                });
            }
        });
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(failed)?;
    Ok(())
}

/// True if SIGHUP was ignored when this process was started.
fn hangup_is_ignored() -> bool {
    let status = files::read_to_string(Path::new("/proc/self/status"), 64 << 10).unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:")).map(str::trim);
    // The first bit stands for the first signal, which is SIGHUP.
    mask.and_then(|m| u64::from_str_radix(m, 16).ok()).is_some_and(|m| m & 1 != 0)
}

/// A stop that takes longer than this is cut short, so that no service outlives its supervisor because of one request.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(8);

/// Ends the process if it is still there after [`STOP_LIMIT`].
pub(crate) fn limit_stop() {
    let cut = || {
        std::thread::sleep(STOP_LIMIT);
        tracing::warn!("stopping took longer than {} s and is cut short", STOP_LIMIT.as_secs());
        std::process::exit(i32::from(exit::FAILED));
    };
    if let Err(e) = std::thread::Builder::new().name("stop-limit".into()).spawn(cut) {
        tracing::warn!("the time to stop is not limited: {e}");
    }
}

/// How a process ended, in words: "exit status 1", "killed by SIGKILL".
pub(crate) fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(number)) => format!("killed by {}", signal_name(number)),
        (None, None) => status.to_string(),
    }
}

fn signal_name(number: i32) -> String {
    let name = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        31 => "SIGSYS",
        other => return format!("signal {other}"),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt as _;

    #[test]
    fn ends_are_named() {
        assert_eq!(describe(ExitStatus::from_raw(0x0300)), "exit status 3");
        assert_eq!(describe(ExitStatus::from_raw(9)), "killed by SIGKILL");
        assert_eq!(describe(ExitStatus::from_raw(0x87)), "killed by SIGBUS");
    }
}
