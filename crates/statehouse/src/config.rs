//! `config.toml`: few keys, each with a default, and none ignored.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use statehouse_ops::maintenance::policy::Policy;
use statehouse_ops::maintenance::vacuum::Worth;
use statehouse_ops::snapshots::Keep;

use crate::exit;
use crate::failure::{Failure, Result, code};

/// What a home's configuration says.
#[derive(Debug, Clone, Default, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Config {
    pub(crate) gateway: Gateway,
    pub(crate) dashboard: Dashboard,
    pub(crate) scheduler: Scheduler,
    pub(crate) maintenance: Maintenance,
    pub(crate) snapshots: Snapshots,
}

#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Gateway {
    /// The port on the loopback interface.
    pub(crate) port: u16,
}

#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Dashboard {
    /// The port on the loopback interface.
    pub(crate) port: u16,
}

#[derive(Debug, Clone, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Scheduler {
    /// How many workers may run at once.
    pub(crate) workers: u8,
    /// The time between two runs of the housekeeping job.
    #[serde(deserialize_with = "duration")]
    pub(crate) housekeeping_every: Duration,
}

/// When housekeeping rewrites the store without the pages that hold nothing.
#[derive(Debug, Clone, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Maintenance {
    /// Whether at all.
    pub(crate) vacuum: bool,
    /// From which share of free pages on, from 0 to 1.
    pub(crate) vacuum_share: f64,
    /// From how many MiB of free pages on.
    pub(crate) vacuum_mib: u32,
    /// The least time between two.
    #[serde(deserialize_with = "duration")]
    pub(crate) vacuum_every: Duration,
    /// How long the services are waited for, which let go of the store meanwhile.
    #[serde(deserialize_with = "duration")]
    pub(crate) drain: Duration,
}

impl Default for Maintenance {
    fn default() -> Maintenance {
        let Policy { vacuum, worth, every, drain } = Policy::default();
        let vacuum_mib = u32::try_from(worth.bytes >> 20).unwrap_or(u32::MAX);
        Maintenance { vacuum, vacuum_share: worth.share, vacuum_mib, vacuum_every: every, drain }
    }
}

impl Maintenance {
    /// The same as the library takes it.
    pub(crate) fn policy(&self) -> Policy {
        let worth = Worth { share: self.vacuum_share, bytes: u64::from(self.vacuum_mib) << 20 };
        Policy { vacuum: self.vacuum, worth, every: self.vacuum_every, drain: self.drain }
    }
}

/// When the store is copied, and what is kept of the copies.
#[derive(Debug, Clone, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Snapshots {
    /// Whether the scheduler takes any.
    pub(crate) enabled: bool,
    /// The time between two.
    #[serde(deserialize_with = "duration")]
    pub(crate) every: Duration,
    /// How many are kept.
    pub(crate) keep: u32,
    /// For how many days; 0 if age does not matter.
    pub(crate) keep_days: u32,
    /// Which share of the volume they may have together, from 0 to 1.
    pub(crate) disk_share: f64,
    /// Whether they are compressed.
    pub(crate) compress: bool,
}

impl Default for Snapshots {
    fn default() -> Snapshots {
        let Keep { count, days, disk_share } = Keep::default();
        Snapshots {
            enabled: true,
            every: Duration::from_secs(86400),
            keep: count,
            keep_days: days.unwrap_or(0),
            disk_share,
            compress: false,
        }
    }
}

impl Snapshots {
    /// The same as the library takes it.
    pub(crate) fn keep(&self) -> Keep {
        let days = (self.keep_days > 0).then_some(self.keep_days);
        Keep { count: self.keep, days, disk_share: self.disk_share }
    }
}

impl Default for Gateway {
    fn default() -> Gateway {
        Gateway { port: 7420 }
    }
}

impl Default for Dashboard {
    fn default() -> Dashboard {
        Dashboard { port: 7421 }
    }
}

impl Default for Scheduler {
    fn default() -> Scheduler {
        Scheduler { workers: 2, housekeeping_every: Duration::from_secs(3600) }
    }
}

impl Config {
    /// What `up` writes where there is no configuration: every key with its default, commented out.
    pub(crate) const TEMPLATE: &str = "\
# Statehouse. Every key stands here with its default; take the '#' away to change one.
# The services read this file when they start. An unknown key is an error.

[gateway]
# The port on the loopback interface where messages come in; 0 takes any free one.
#port = 7420

[dashboard]
# The port on the loopback interface where the page is; 0 takes any free one.
#port = 7421

[scheduler]
# How many workers may run at once.
#workers = 2
# How often leases that are over are trimmed and the planner's statistics refreshed: \"90s\", \"30m\", \"1h\", \"1d\".
#housekeeping_every = \"1h\"

[maintenance]
# Whether housekeeping rewrites the store when many of its pages hold nothing any more. The services let go of it meanwhile
# and go on by themselves; what is asked of them waits.
#vacuum = true
# From which share of free pages on, from 0 to 1, and from how many MiB of them on: both must be reached.
#vacuum_share = 0.25
#vacuum_mib = 16
# The least time between two rewrites.
#vacuum_every = \"7d\"
# How long the services are waited for. Another program that uses the store is never waited for: the rewrite is put off, and
# `statehouse status` says by whom.
#drain = \"10s\"

[snapshots]
# Whether the scheduler copies the store, while everybody goes on working, and proves that the copy is good.
#enabled = true
# How often: \"6h\", \"1d\". When the last good one is older than twice that, `statehouse status` says so.
#every = \"1d\"
# How many are kept, and for how many days (0: age does not matter). The newest good one is never removed.
#keep = 7
#keep_days = 0
# Which share of the volume they may have together, from 0 to 1. A store that is larger than that is not copied, and
# `statehouse status` says so.
#disk_share = 0.2
# Whether they are compressed (zstd). Another program can read one that is not.
#compress = false
";

    /// Reads the text of a configuration; `path` names it in errors.
    ///
    /// # Errors
    /// What is wrong, with its place in the file.
    pub(crate) fn parse(text: &str, path: &Path) -> Result<Config> {
        let bad = |detail: String| {
            Failure::new(exit::USAGE, code::BAD_CONFIG, format!("{} cannot be understood", path.display()))
                .detail(detail)
                .hint("Correct that line, or move the file away: `statehouse up` writes a new one.")
        };
        let config: Config = toml::from_str(text).map_err(|e| bad(e.to_string().trim_end().to_owned()))?;
        if config.scheduler.workers == 0 {
            return Err(bad("scheduler.workers must be at least 1".into()));
        }
        if !(0.0..=1.0).contains(&config.maintenance.vacuum_share) {
            return Err(bad("maintenance.vacuum_share must be a number from 0 to 1".into()));
        }
        if !(0.0..=1.0).contains(&config.snapshots.disk_share) {
            return Err(bad("snapshots.disk_share must be a number from 0 to 1".into()));
        }
        if config.snapshots.keep == 0 {
            return Err(bad("snapshots.keep must be at least 1".into()));
        }
        Ok(config)
    }
}

fn duration<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    parse_duration(&text).ok_or_else(|| {
        serde::de::Error::custom(format!(
            "{text:?} is not a time of at least one second such as \"90s\", \"30m\", \"1h\""
        ))
    })
}

/// A whole number with a unit (`s`, `m`, `h`, `d`), at least a second and at most a year.
fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let factor = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86400,
        _ => return None,
    };
    let number = number.trim_end();
    if !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let seconds = number.parse::<u64>().ok()?.checked_mul(factor)?;
    (1..=366 * 86400).contains(&seconds).then(|| Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(text, Path::new("/h/config.toml"))
    }

    #[test]
    fn the_template_says_the_defaults() {
        assert_eq!(parse(Config::TEMPLATE).unwrap(), Config::default());
        let all: String = Config::TEMPLATE
            .lines()
            .map(|l| l.strip_prefix('#').filter(|l| !l.starts_with(' ')).unwrap_or(l))
            .fold(String::new(), |a, l| a + l + "\n");
        assert!(all.contains("\nport = 7420\n"), "{all}");
        assert_eq!(parse(&all).unwrap(), Config::default());
    }

    #[test]
    fn what_is_unknown_or_wrong_is_named() {
        for (text, named) in [
            ("[gateway]\nprot = 1\n", "prot"),
            ("[gatway]\n", "gatway"),
            ("[gateway]\nport = 70000\n", "port"),
            ("[gateway]\nport = \"x\"\n", "port"),
            ("[scheduler]\nhousekeeping_every = \"fast\"\n", "fast"),
            ("[scheduler]\nhousekeeping_every = \"0s\"\n", "0s"),
            ("[scheduler]\nworkers = 0\n", "workers"),
            ("[maintenance]\nvacuum_share = 1.5\n", "vacuum_share"),
            ("[maintenance]\nvacuum_share = nan\n", "vacuum_share"),
            ("[maintenance]\nvacuum_mib = -1\n", "vacuum_mib"),
            ("[maintenance]\nvacuum_every = \"soon\"\n", "soon"),
            ("[snapshots]\ndisk_share = 20\n", "disk_share"),
            ("[snapshots]\nkeep = 0\n", "keep"),
            ("[snapshots]\nevery = \"daily\"\n", "daily"),
            ("[gateway\n", "gateway"),
        ] {
            let failure = parse(text).unwrap_err();
            assert_eq!((failure.exit, &*failure.code), (exit::USAGE, "bad_config"));
            assert!(failure.detail.contains(named), "{text:?}: {}", failure.detail);
        }
    }

    #[test]
    fn durations() {
        assert_eq!(parse_duration("1s"), Some(Duration::from_secs(1)));
        assert_eq!(parse_duration("90 m"), Some(Duration::from_secs(5400)));
        for bad in ["", "s", "1", "-1s", "1.5h", "999999999999d", "1é", "+1s"] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }
}
