//! The table of situations: what `statehouse holders PATH` answers when a database is used in this way or that.
//!
//! Each situation is built for real, with processes, users, namespaces, mounts and control groups, and looked at through the
//! program as an operator would, in most cases twice: plainly, and with `--expect-quiet`. A row says all that must be
//! right about each holder: what it has, which locks, whether it is naked or a ghost, by what it was found, where it lives,
//! and what would stop it. Whoever is listed and is not in the row is an error as well.

use std::any::Any;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use statehouse_testkit::user::{User, runnable_by_all};
use statehouse_testkit::{Finished, TestDir, need, run};

use crate::house::{PATIENCE, binary};

mod actor;
mod connections;
mod descriptors;
mod elsewhere;
mod generations;
mod inputs;
mod judge;
mod ours;
mod page;
mod processes;
mod stops;
mod users;

pub(crate) use actor::Actor;

/// One row.
pub(crate) struct Situation {
    name: &'static str,
    /// Builds it. `None` after it was said why it cannot be built on this machine.
    build: fn(&Place) -> Option<Scene>,
    /// `held`, `quiet`, `unknown`, or the code of an error.
    verdict: &'static str,
    holders: &'static [Who],
    /// The exit status, without and with `--expect-quiet`.
    exit: (i32, i32),
    /// Words that must be in the limits; with none of them there must be no limits at all.
    limits: &'static [&'static str],
}

const QUIET: (i32, i32) = (0, 0);
const HELD: (i32, i32) = (0, 3);
const ALARM: (i32, i32) = (3, 3);
const UNKNOWN: (i32, i32) = (4, 4);
const REFUSED: (i32, i32) = (4, 4);
const FAILED: (i32, i32) = (1, 1);

/// What is said where some processes cannot be looked at.
const OTHERS: &str = "processes of others cannot be listed";

/// What most rows have in common: nobody, and nothing to say about it.
const NOBODY: Situation =
    Situation { name: "", build: |_| None, verdict: "quiet", holders: &[], exit: QUIET, limits: &[] };

/// What must be said about one holder.
pub(crate) struct Who {
    /// What it has, in the order main, wal, shm, journal; `!` marks what is not what the path names any more, `~` what it has
    /// mapped only, `?` what only a lock shows.
    files: &'static str,
    /// `shared dms reserved write checkpoint readers`, those that it holds.
    locks: &'static str,
    naked: bool,
    ghost: bool,
    fenced: bool,
    role: Option<&'static str>,
    evidence: &'static str,
    namespace: &'static str,
    stop: Stop,
}

/// What must be said to stop a holder.
pub(crate) enum Stop {
    /// `kill PID`, with its command behind it.
    Process,
    /// `kill -9 PID`, with its command behind it.
    Killed,
    /// `kill PID`, for a process whose command cannot be read.
    Number,
    /// This, whatever the process is.
    By(&'static str),
    /// Something that names this: where the process is, for it cannot be stopped from here.
    There(&'static str),
}

/// A connection in order.
const USER: Who = Who {
    files: "main wal shm",
    locks: "shared dms",
    naked: false,
    ghost: false,
    fenced: false,
    role: None,
    evidence: "identity",
    namespace: "same",
    stop: Stop::Process,
};
/// A descriptor of the main file and nothing else.
const ONLY_OPEN: Who = Who { files: "main", locks: "", ..USER };

/// One whose sidecars are gone.
const CUT_OFF: Who = Who { files: "main wal! shm!", ghost: true, ..USER };
/// One that lost its locks first, and its sidecars then.
const STRANDED: Who = Who { locks: "", naked: true, ..CUT_OFF };
/// A connection that may not be looked at: only its locks show it.
const BY_LOCK: Who = Who { files: "main? shm?", evidence: "lock", ..USER };

/// Lets a process lose its files as it happens in the field: it drops both locks by opening and closing its files under the
/// name that it knows, and a stranger comes and goes, who sees them under `path`.
fn strand(actor: &mut Actor, its_path: &Path, path: &Path) {
    actor.sql("INSERT INTO m(t) VALUES('b')");
    actor.stray(&[its_path, &with(its_path, "-shm")]);
    let mut stranger = Actor::idle();
    stranger.uses(path);
    stranger.order(serde_json::json!(["close"]));
    assert!(!with(path, "-wal").exists(), "the stranger unlinked the log");
}

/// What a builder leaves: everything that must live while it is looked at.
pub(crate) struct Scene {
    path: PathBuf,
    /// The processes of the row, in its order; `None` where no number is expected.
    pids: Vec<Option<u32>>,
    /// The command in front of the program: another user, another namespace.
    through: Vec<String>,
    _alive: Vec<Box<dyn Any>>,
}

impl Scene {
    /// Looked at by this user, from here.
    fn of(place: &Place, pids: impl IntoIterator<Item = u32>, alive: impl Any) -> Option<Scene> {
        let pids = pids.into_iter().map(Some).collect();
        Some(Scene { path: place.path.clone(), pids, through: Vec::new(), _alive: vec![Box::new(alive)] })
    }

    /// The same for one actor.
    fn with(place: &Place, actor: Actor) -> Option<Scene> {
        Scene::of(place, [actor.pid()], actor)
    }

    fn at(self, path: PathBuf) -> Scene {
        Scene { path, ..self }
    }

    fn through<S: AsRef<str>>(self, command: &[S]) -> Scene {
        Scene { through: command.iter().map(|w| w.as_ref().to_owned()).collect(), ..self }
    }

    fn seen_by(self, user: User) -> Scene {
        let id = user.0.to_string();
        self.through(&["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"])
    }

    /// True if it is looked at by an ordinary user, and a process of this name or number is somebody else's.
    fn is_foreign(&self, user: &serde_json::Value) -> bool {
        let looks = self.through.iter().position(|w| w == "--reuid").and_then(|at| self.through.get(at + 1));
        looks.is_some_and(|id| user.as_str() != Some(id))
    }

    fn unnumbered(self) -> Scene {
        Scene { pids: self.pids.iter().map(|_| None).collect(), ..self }
    }
}

/// Where a situation is built: a directory of its own with a database in it.
pub(crate) struct Place<'a> {
    group: &'a Group,
    directory: PathBuf,
    path: PathBuf,
}

impl Place<'_> {
    /// The database by another member's name.
    fn member(&self, suffix: &str) -> PathBuf {
        with(&self.path, suffix)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A directory in it.
    fn make(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    /// One more database, closed and in WAL mode.
    fn another(&self, path: &Path) {
        fs::copy(template(), path).unwrap();
    }

    /// Gives all of it to a user who is not root.
    fn give_to(&self, user: User) {
        user.owns(&self.directory);
    }
}

/// What the rows of one test share.
pub(crate) struct Group {
    directory: TestDir,
    program: OnceLock<PathBuf>,
}

impl Group {
    fn new() -> Group {
        Group { directory: TestDir::new(), program: OnceLock::new() }
    }

    /// The program where every user can run it.
    fn program(&self) -> &Path {
        self.program.get_or_init(|| runnable_by_all(binary(), self.directory.path()))
    }

    fn place(&self, name: &str) -> Place<'_> {
        let directory = self.directory.join(name);
        fs::create_dir(&directory).unwrap();
        let path = directory.join("s.db");
        fs::copy(template(), &path).unwrap();
        Place { group: self, directory, path }
    }

    /// One look at a scene.
    fn look(&self, scene: &Scene, arguments: &[&str]) -> Finished {
        let program = if scene.through.is_empty() { binary() } else { self.program() };
        let mut command = match scene.through.split_first() {
            Some((wrapper, rest)) => {
                let mut command = Command::new(wrapper);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        command.env("STATEHOUSE_HOME", self.directory.join("no home")).current_dir("/");
        run(command.arg("holders").args(arguments).arg("--").arg(&scene.path), PATIENCE)
    }
}

pub(crate) fn with(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// A closed database in WAL mode with one row. Its bytes are copied for each situation.
fn template() -> &'static Path {
    static TEMPLATE: OnceLock<(TestDir, PathBuf)> = OnceLock::new();
    let (_, path) = TEMPLATE.get_or_init(|| {
        let directory = TestDir::new();
        let path = directory.join("template.db");
        let mut actor = Actor::idle();
        actor.order(serde_json::json!(["connect", path]));
        actor.sql("PRAGMA journal_mode=WAL");
        actor.sql("CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
        actor.sql("INSERT INTO m(t) VALUES('a')");
        actor.order(serde_json::json!(["close"]));
        (directory, path)
    });
    path
}

/// True where this test may make namespaces; otherwise it is said that the test is skipped.
fn namespaces(what: &str) -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    let allowed = || {
        let mut try_one = Command::new("unshare");
        try_one.args(["--mount", "--pid", "--fork", "--mount-proc", "true"]);
        run(&mut try_one, PATIENCE).status.success()
    };
    if !need::root(what) {
        return false;
    }
    let allowed = *ALLOWED.get_or_init(allowed);
    if !allowed {
        need::skip(&format!("{what} is not allowed here, not even to root"));
    }
    allowed
}

/// Builds every row and looks at it. Fails with all that is wrong, by the name of the row.
pub(crate) fn check(table: &[Situation]) {
    let group = Group::new();
    let mut wrong = Vec::new();
    for (i, row) in table.iter().enumerate() {
        let place = group.place(&i.to_string());
        let Some(scene) = (row.build)(&place) else { continue };
        let plain = group.look(&scene, &["--json"]);
        for complaint in judge::compare(row, &scene, &plain) {
            wrong.push(format!("{}: {complaint}\n{}{}", row.name, plain.stdout, plain.stderr));
        }
        let text = group.look(&scene, &["--expect-quiet"]);
        if text.code() != row.exit.1 {
            wrong.push(format!("{}: --expect-quiet ended with {}, not {}", row.name, text.code(), row.exit.1));
        }
        // What a person reads is not compared word by word here, but nothing in it may reach the terminal.
        if [&text.stdout, &text.stderr].iter().any(|s| s.chars().any(|c| c.is_control() && c != '\n')) {
            wrong.push(format!("{}: a control character in {text:?}", row.name));
        }
    }
    assert!(wrong.is_empty(), "{} are wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn there_are_as_many_as_promised() {
    let tables: [&[Situation]; 9] = [
        connections::TABLE,
        descriptors::TABLE,
        elsewhere::TABLE,
        generations::TABLE,
        inputs::TABLE,
        ours::TABLE,
        processes::TABLE,
        stops::TABLE,
        users::TABLE,
    ];
    let mut names: Vec<&str> = tables.iter().flat_map(|t| t.iter()).map(|s| s.name).collect();
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all, "two situations have the same name");
    assert!(all >= 25, "{all} situations");
}
