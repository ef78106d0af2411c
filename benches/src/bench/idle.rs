//! What a gateway and an anchor cost that have nothing to do, in the house as `statehouse up` runs it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use statehouse_testkit::kernel::usage;
use statehouse_testkit::{Child, Home};

/// The services that are watched.
pub(crate) const WATCHED: [&str; 2] = ["gateway", "anchor"];

/// What was seen of one service.
pub(crate) struct Idle {
    /// Resident bytes at the end.
    pub(crate) resident: u64,
    /// Of one core, in percent.
    pub(crate) core: f64,
    /// How long it was watched.
    pub(crate) seconds: u64,
}

/// The release build of the product, beside this program.
pub(crate) fn binary() -> Result<PathBuf> {
    let me = std::env::current_exe().context("where this program is")?;
    let binary = me.parent().unwrap_or(Path::new(".")).join("statehouse");
    ensure!(binary.is_file(), "there is no {}; run this by `cargo xtask bench`", binary.display());
    Ok(binary)
}

pub(crate) fn services(seconds: u64) -> Result<[Idle; WATCHED.len()]> {
    const READY: Duration = Duration::from_secs(30);
    let home = Home::new();
    let mut command = home.command(binary()?);
    command.args(["up", "--json", "--gateway-port", "0", "--dashboard-port", "0"]);
    let mut up = Child::spawn(&mut command);
    let mut pids = [None; WATCHED.len()];
    up.line_where("up", READY, |line| {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        if let Some(at) = WATCHED.iter().position(|name| event["event"] == "ready" && event["service"] == *name) {
            pids[at] = event["pid"].as_u64().and_then(|p| u32::try_from(p).ok());
        }
        event["event"] == "up"
    });
    // Starting costs something that an idle service does not; one look later it is at rest.
    std::thread::sleep(Duration::from_secs(3));
    let look = |pid: Option<u32>| usage(pid.context("every service said its process id")?).context("the service lives");
    let mut before = Vec::new();
    for pid in pids {
        before.push(look(pid)?.1);
    }
    std::thread::sleep(Duration::from_secs(seconds));
    let mut seen = Vec::new();
    for (pid, before) in pids.into_iter().zip(before) {
        let (resident, after) = look(pid)?;
        let core = (after - before).as_secs_f64() / (seconds as f64) * 100.0;
        seen.push(Idle { resident, core, seconds });
    }
    up.stop(READY);
    seen.try_into().ok().context("each service was watched")
}
