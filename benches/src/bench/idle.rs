//! What a gateway costs that has nothing to do, in the house as `statehouse up` runs it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use statehouse_testkit::kernel::usage;
use statehouse_testkit::{Child, Home};

/// What was seen.
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

pub(crate) fn gateway(seconds: u64) -> Result<Idle> {
    const READY: Duration = Duration::from_secs(30);
    let home = Home::new();
    let mut command = home.command(binary()?);
    command.args(["up", "--json", "--gateway-port", "0", "--dashboard-port", "0"]);
    let mut up = Child::spawn(&mut command);
    let mut pid = None;
    up.line_where("up", READY, |line| {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        if event["service"] == "gateway" {
            pid = event["pid"].as_u64().and_then(|p| u32::try_from(p).ok());
        }
        event["event"] == "up"
    });
    let pid = pid.context("the gateway said its process id")?;
    // Starting costs something that an idle gateway does not; one look later it is at rest.
    std::thread::sleep(Duration::from_secs(2));
    let (_, before) = usage(pid).context("the gateway lives")?;
    std::thread::sleep(Duration::from_secs(seconds));
    let (resident, after) = usage(pid).context("the gateway lives")?;
    up.stop(READY);
    let core = (after - before).as_secs_f64() / (seconds as f64) * 100.0;
    Ok(Idle { resident, core, seconds })
}
