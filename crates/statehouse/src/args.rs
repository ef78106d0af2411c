//! The command line, as clap sees it. One subcommand is one file under `commands/`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Keeps one SQLite database whole while many processes use it.
///
/// Start with `statehouse up`: it makes a home if there is none, starts the services and prints where to look.
/// PATH is a database file or a home; without it the home's own store is meant.
///
/// Exit status: 0 done or healthy, 1 failed, 2 usage, 3 finding, 4 refused (nothing was done), 5 busy past patience.
#[derive(Debug, Parser)]
#[command(name = "statehouse", version, propagate_version = true, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes, anywhere on the line.
#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The home [default: $STATEHOUSE_HOME, else ~/.statehouse]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) home: Option<PathBuf>,
    /// A named profile: the home below HOME/profiles/NAME
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// Answer with JSON on stdout, errors too
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// How long to wait for a lock before exiting with status 5
    #[arg(long, global = true, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) patience: Duration,
    /// Set by a supervisor: end when that process is no longer the parent
    #[arg(long, global = true, hide = true, value_name = "PID")]
    pub(crate) supervised_by: Option<u32>,
}

/// A number of seconds, fractions allowed.
pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    let number: f64 = text.parse().map_err(|_| "give a number of seconds, for example 10 or 0.5".to_string())?;
    if number > 1e9 {
        return Err("that is longer than thirty years".into());
    }
    Duration::try_from_secs_f64(number).map_err(|_| "give a number of seconds that is not negative".to_string())
}

/// A word that is shown in a list and means something to nobody else.
fn word(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.chars().count() > 40 || !text.chars().all(good) {
        return Err("give one word of at most 40 letters, digits, '-', '_' and '.'".to_owned());
    }
    Ok(text.to_owned())
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start all services, each as its own process, and keep them running
    Up(Up),
    /// Run the gateway alone: it takes messages and answers them
    Gateway(Port),
    /// Run the dashboard alone: it shows and searches the conversations
    Dashboard(Port),
    /// Run the scheduler alone: it starts a worker for each job that is due
    Scheduler,
    /// Hold a database's two locks, so that no visitor's close can remove its log
    ///
    /// It tells which processes have lost their locks or write into deleted files, steps aside for maintenance and comes back.
    Anchor(Anchor),
    /// Work of the scheduler, one process a job
    Worker {
        #[command(subcommand)]
        command: Worker,
    },
    /// Conversations: list, show, search, rename, end, import
    Sessions {
        #[command(subcommand)]
        command: Sessions,
    },
    /// Which processes use a database, and whether they still hold their locks
    Holders(Holders),
    /// What a database is and how it stands
    Status(Target),
    /// Prove that a database is healthy
    Verify(Verify),
    /// Run this program as a service of the system
    Service {
        #[command(subcommand)]
        command: Service,
    },
    /// Copy the log of a database into its main file
    Checkpoint(Checkpoint),
    /// Rewrite a database without the pages that hold nothing, if that is worth it
    Vacuum(Vacuum),
    /// Refresh the planner's statistics and merge the search indexes
    Optimize(Optimize),
    /// Change between a write-ahead log and a rollback journal; never under a program that uses the database
    JournalMode(JournalMode),
    /// Copy a database while it is used, and prove that the copy is good
    Snapshot(Snapshot),
    /// The snapshots that are kept of a database
    Snapshots(Target),
    /// Put a snapshot, or another good file, in the place of a database
    Restore(Restore),
    /// What processes wrote into deleted or replaced files: capture it, compare it, bring it back
    Retired {
        #[command(subcommand)]
        command: Retired,
    },
    /// What happened to a database, until somebody has looked at it
    Incidents(Incidents),
    /// What the services' own readiness checks run in a process apart
    #[command(hide = true)]
    Probe {
        #[command(subcommand)]
        command: Probe,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Target {
    /// A database file or a home [default: the home's store]
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Anchor {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Wait until there is a database, and until it is in WAL mode, instead of refusing
    #[arg(long)]
    pub(crate) wait: bool,
    #[command(subcommand)]
    pub(crate) command: Option<AnchorCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AnchorCommand {
    /// Run a command while the anchor steps aside, and exit with its status
    Pause(Pause),
}

#[derive(Debug, Args)]
pub(crate) struct Pause {
    /// A database file or a home [default: the home's store]
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Service {
    /// Print a systemd unit
    Print(PrintUnit),
}

#[derive(Debug, Args)]
pub(crate) struct PrintUnit {
    /// What the unit is to run: anchor or up
    #[arg(value_name = "UNIT", value_parser = unit)]
    pub(crate) unit: Unit,
    /// A database file or a home [default: the home's store]
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
    /// A unit for this user's own service manager
    #[arg(long)]
    pub(crate) user: bool,
}

/// What can be run by a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    /// The anchor of one database.
    Anchor,
    /// All services of one home.
    Up,
}

fn unit(text: &str) -> Result<Unit, String> {
    match text {
        "anchor" => Ok(Unit::Anchor),
        "up" => Ok(Unit::Up),
        "guard" | "watch" => Err(format!("this version has no {text}; there are units for anchor and up")),
        _ => Err("there are units for anchor and up".to_owned()),
    }
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Port of the gateway, 0 for any free one [default: 7420, or what config.toml says]
    #[arg(long, value_name = "N")]
    pub(crate) gateway_port: Option<u16>,
    /// Port of the dashboard, 0 for any free one [default: 7421, or what config.toml says]
    #[arg(long, value_name = "N")]
    pub(crate) dashboard_port: Option<u16>,
}

#[derive(Debug, Args)]
pub(crate) struct Port {
    /// The port on the loopback interface, 0 for any free one [default: what config.toml says]
    #[arg(long, value_name = "N")]
    pub(crate) port: Option<u16>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Worker {
    /// Do the work of one job: open the store, work, close, exit
    Run {
        /// Name or id of the job
        job: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Sessions {
    /// List conversations, newest first
    List {
        /// Also those that are archived or hidden
        #[arg(long)]
        all: bool,
        /// At most so many
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// Only those of this source
        #[arg(long, value_name = "SOURCE")]
        source: Option<String>,
    },
    /// Show one conversation with its messages
    Show {
        /// Its id here, or the id that it had where it was imported from
        id: String,
        /// At most so many messages: the last ones, or the first ones with --after
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// Only messages before this one
        #[arg(long, value_name = "MESSAGE")]
        before: Option<String>,
        /// Only messages after this one
        #[arg(long, value_name = "MESSAGE")]
        after: Option<String>,
    },
    /// Find messages that contain all the words
    Search {
        /// The words
        #[arg(required = true)]
        query: Vec<String>,
        /// At most so many finds
        #[arg(long, value_name = "N", default_value_t = 20)]
        limit: u64,
        /// The order of the finds
        #[arg(long, value_enum, default_value_t = Sort::Rank)]
        sort: Sort,
        /// Only conversations of this source
        #[arg(long, value_name = "SOURCE")]
        source: Option<String>,
    },
    /// Give a conversation another title; no title takes it away
    Rename {
        /// Its id
        id: String,
        /// The title
        title: Option<String>,
    },
    /// End a conversation
    End {
        /// Its id
        id: String,
        /// Why
        #[arg(long, default_value = "ended_by_user")]
        reason: String,
    },
    /// Take over conversations from another program
    Import {
        #[command(subcommand)]
        from: Import,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sort {
    /// Best first
    Rank,
    /// Newest first
    Newest,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Import {
    /// From Hermes Agent; its store is read and never changed
    Hermes {
        /// A Hermes home or its state.db
        path: PathBuf,
        /// Only say what would be taken over
        #[arg(long)]
        dry_run: bool,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Holders {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Exit 0 only if nobody uses the database, 3 if somebody does
    #[arg(long)]
    pub(crate) expect_quiet: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Prove that a write works too: a row of this process and of each live service, or for a database of another program a
    /// transaction that is rolled back
    #[arg(long)]
    pub(crate) write: bool,
    /// Wait so long for a write of the program that uses the database, and prove that a fresh process sees it
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) wait_for_write: Option<Duration>,
}

/// What all work takes that needs a database alone.
#[derive(Debug, Args)]
pub(crate) struct Structural {
    /// Ask processes of Statehouse to let go of the database meanwhile, and wait so long for them
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) drain: Option<Duration>,
    /// Go on beside other holders, and say which; never beside one that uses deleted files or has lost its locks
    #[arg(long)]
    pub(crate) force: bool,
    /// Only say what would be done, what it would gain, and what would refuse it now
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Checkpoint {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Empty the log after it. This needs the database alone; without it nobody is disturbed
    #[arg(long)]
    pub(crate) truncate: bool,
    #[command(flatten)]
    pub(crate) structural: Structural,
}

#[derive(Debug, Args)]
pub(crate) struct Vacuum {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Also if hardly anything is to be gained
    #[arg(long)]
    pub(crate) anyway: bool,
    #[command(flatten)]
    pub(crate) structural: Structural,
}

#[derive(Debug, Args)]
pub(crate) struct Optimize {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) structural: Structural,
}

#[derive(Debug, Args)]
pub(crate) struct JournalMode {
    /// The mode that is wanted
    #[arg(value_enum)]
    pub(crate) mode: JournalModeName,
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(flatten)]
    pub(crate) structural: Structural,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum JournalModeName {
    /// A write-ahead log: readers and a writer at the same time
    Wal,
    /// A rollback journal that is deleted after each transaction
    Delete,
}

#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Compress it; it must be unpacked before another program can read it
    #[arg(long)]
    pub(crate) zstd: bool,
    /// Why, as the list shows it
    #[arg(long, value_name = "WORD", default_value = "asked", value_parser = word)]
    pub(crate) reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The id of a snapshot or of a capture, or a database file
    #[arg(value_name = "ID|FILE")]
    pub(crate) source: OsString,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Write it to this new file, and touch nothing else
    #[arg(long, value_name = "FILE", conflicts_with_all = ["drain", "force"])]
    pub(crate) to: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) structural: Structural,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Retired {
    /// Copy what a process has in deleted or replaced files, before it ends and takes it along
    Capture(RetiredCapture),
    /// The captures that lie beside a database
    List(Target),
    /// Compare a capture with the database, row by row
    Show(RetiredShow),
    /// Bring back the rows that only a capture has
    Merge(RetiredMerge),
}

#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("whose").required(true)))]
pub(crate) struct RetiredCapture {
    #[command(flatten)]
    pub(crate) target: Target,
    /// The process
    #[arg(long, value_name = "N", group = "whose")]
    pub(crate) pid: Option<u32>,
    /// Every process that has such files
    #[arg(long, group = "whose")]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RetiredShow {
    /// The id of the capture
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Also each row, with its key
    #[arg(long)]
    pub(crate) rows: bool,
}

#[derive(Debug, Args)]
pub(crate) struct RetiredMerge {
    /// The id of the capture
    pub(crate) id: String,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Only say what would be brought back
    #[arg(long, conflicts_with = "into")]
    pub(crate) dry_run: bool,
    /// Write the database with these rows to a new file, and leave the database as it is
    #[arg(long, value_name = "FILE")]
    pub(crate) into: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, disable_help_subcommand = true)]
pub(crate) struct Incidents {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Also those that are closed
    #[arg(long)]
    pub(crate) all: bool,
    #[command(subcommand)]
    pub(crate) command: Option<IncidentsCommand>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum IncidentsCommand {
    /// Everything that is known about one
    Show {
        /// Its id
        id: String,
        #[command(flatten)]
        target: Target,
        /// As a report that can be sent to somebody
        #[arg(long)]
        markdown: bool,
    },
    /// Close one, because somebody has looked at it
    Close {
        /// Its id
        id: String,
        #[command(flatten)]
        target: Target,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Probe {
    /// Print the newest canary row of a role as this process sees it through the path
    Canary {
        /// The role
        role: String,
        /// A database file or a home [default: the home's store]
        #[arg(value_name = "PATH")]
        path: Option<PathBuf>,
    },
    /// Print what this process reads of any database
    Read {
        /// A database file or a home
        #[arg(value_name = "PATH")]
        path: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_tree_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn seconds_may_be_fractions_and_never_negative() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for bad in ["-1", "x", "", "NaN", "inf", "1e300"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
