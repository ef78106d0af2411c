//! Processes of ours, which say themselves what they are.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;
use statehouse_sqlite::admission::{Admission, Wanted};
use statehouse_sqlite::{Database, Family, Options};
use statehouse_testkit::process::Child;
use statehouse_testkit::{Home, until};

use super::{Actor, HELD, NOBODY, Place, Scene, Situation, Stop, USER, Who, check, namespaces};
use crate::house::{PATIENCE, Service, binary, furnished};

/// An anchor that has its locks.
pub(super) fn anchor(path: &Path) -> Child {
    let mut child = Child::spawn(Command::new(binary()).args(["anchor", "--json"]).arg(path));
    child.line_where("anchored", PATIENCE, |l| l.contains("\"anchored\""));
    child
}

/// A process with a handle of this crate's own open, by the name of this role.
fn member(path: &Path, role: &str) -> Child {
    driven(Command::new(std::env::current_exe().unwrap()), path, role)
}

fn driven(mut command: Command, path: &Path, role: &str) -> Child {
    command.args(["situations::ours::a_process_of_ours", "--exact", "--ignored", "--nocapture"]);
    command.env("STATEHOUSE_TEST_PATH", path).env("STATEHOUSE_TEST_ROLE", role);
    let mut child = Child::spawn(&mut command);
    child.line_where("that it has done it", PATIENCE, |l| l.ends_with("DONE"));
    child
}

/// Where a member can be made: in a database of ours.
fn store(place: &Place) -> PathBuf {
    let path = place.join("ours.db");
    let mut first = member(&path, "first");
    first.close_input();
    first.wait(PATIENCE);
    path
}

#[test]
#[ignore = "started by other tests in a process of its own"]
fn a_process_of_ours() {
    let path = PathBuf::from(std::env::var_os("STATEHOUSE_TEST_PATH").unwrap());
    let role = std::env::var("STATEHOUSE_TEST_ROLE").unwrap();
    let until_told = || {
        println!("DONE");
        std::io::stdin().read_line(&mut String::new()).unwrap();
    };
    if role == "maintenance" {
        let tell = |text: &str| eprintln!("{text}");
        let wanted = Wanted { what: "vacuum", drain: Some(PATIENCE), force: false, patience: PATIENCE, tell: &tell };
        let admission = Admission::obtain(&Family::of(&path).unwrap(), &wanted).unwrap();
        until_told();
        drop(admission);
        return;
    }
    let options = Options { role, create: true, ..Options::default() };
    let database = Database::open(&path, options).unwrap();
    database.read(|c| Ok(c.query_row("SELECT count(*) FROM sqlite_master", [], |_| Ok(()))?)).unwrap();
    until_told();
    database.close().unwrap();
}

/// A member whose record outlived it, and a stranger that has the member's number now. Inside a pid namespace, where numbers
/// can be chosen.
fn a_number_that_came_back(place: &Place) -> Option<Scene> {
    let path = store(place);
    let wrapper = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let mut inside = Actor::with(&wrapper, &[]);
    let pid = inside.starts(json!([
        "run_with",
        {"STATEHOUSE_TEST_PATH": path, "STATEHOUSE_TEST_ROLE": "gateway"},
        std::env::current_exe().unwrap(),
        "situations::ours::a_process_of_ours",
        "--exact",
        "--ignored",
        "--nocapture"
    ]));
    inside.order(json!(["kill", pid]));
    inside.order(json!(["bring_back", pid]));
    let again = inside.starts(json!(["child", ["connect", path], ["sql", "SELECT count(*) FROM sqlite_master"]]));
    assert_eq!(again, pid, "the number came back");
    let records = super::with(&path, ".statehouse").join("members");
    assert!(fs::read_dir(&records).unwrap().count() > 0, "the record is still there");
    let outer = inside.pid().to_string();
    let scene = Scene::of(place, [again], inside)?.at(path);
    Some(scene.through(&["nsenter", "--target", &outer, "--mount", "--pid"]))
}

pub(super) const TABLE: &[Situation] = &[
    Situation {
        name: "an anchor of a database of another program",
        build: |p| {
            let anchor = anchor(&p.path);
            Scene::of(p, [anchor.pid()], anchor)
        },
        verdict: "held",
        holders: &[Who { files: "main shm", role: Some("anchor"), ..USER }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a gateway",
        build: |p| {
            let home = furnished(Home::new());
            let gateway = Service::start(&home, "gateway", |_| {});
            let path = home.store();
            Some(Scene::of(p, [gateway.pid()], (gateway.child, home))?.at(path))
        },
        verdict: "held",
        holders: &[Who { role: Some("gateway"), ..USER }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a member that was killed and left its record",
        build: |p| {
            let path = store(p);
            member(&path, "gateway").kill();
            Some(Scene::of(p, [], ())?.at(path))
        },
        ..NOBODY
    },
    Situation {
        name: "a parked member, and who does the structural work",
        build: |p| {
            let path = store(p);
            let parked = member(&path, "gateway");
            let admitted = member(&path, "maintenance");
            Some(Scene::of(p, [admitted.pid(), parked.pid()], (parked, admitted))?.at(path))
        },
        verdict: "held",
        holders: &[USER, Who { files: "", locks: "", role: Some("gateway"), evidence: "lock", ..USER }],
        exit: HELD,
        ..NOBODY
    },
];

const AS_ROOT: &[Situation] = &[
    Situation {
        name: "a member in another pid namespace",
        build: |p| {
            let path = store(p);
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(std::env::current_exe().unwrap());
            let child = driven(command, &path, "gateway");
            let pid = *statehouse_testkit::kernel::descendants(child.pid()).last()?;
            Some(Scene::of(p, [pid], child)?.at(path))
        },
        verdict: "held",
        holders: &[Who { role: Some("gateway"), namespace: "other", stop: Stop::Killed, ..USER }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "from inside a container: a member outside, seen by its record",
        build: |p| {
            let path = store(p);
            let child = member(&path, "gateway");
            let scene = Scene::of(p, [child.pid()], child)?.at(path).unnumbered();
            Some(scene.through(&["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]))
        },
        verdict: "held",
        holders: &[Who {
            role: Some("gateway"),
            namespace: "other",
            files: "main? shm?",
            evidence: "lock",
            stop: Stop::There("gateway"),
            ..USER
        }],
        exit: HELD,
        limits: &["not the machine's own pid namespace"],
    },
    Situation {
        name: "a stranger that has the number of a dead member",
        build: a_number_that_came_back,
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        limits: &["not the machine's own pid namespace"],
    },
    Situation {
        name: "a fenced member that cannot let go because the disk is full",
        build: a_fenced_member,
        verdict: "held",
        holders: &[Who { files: "main wal!", locks: "", role: Some("gateway"), fenced: true, ..USER }],
        exit: HELD,
        ..NOBODY
    },
];

/// A small volume of a test's own.
struct Volume(PathBuf);

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// Its files were removed while there is no room to keep a copy of what they hold, so it keeps them open and serves nobody.
fn a_fenced_member(place: &Place) -> Option<Scene> {
    let at = place.make("volume");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "none"]).arg(&at).status().unwrap();
    assert!(mounted.success(), "a small volume");
    let volume = Volume(at.clone());
    let path = at.join("ours.db");
    let child = member(&path, "gateway");
    let filler = fs::write(at.join("filler"), vec![1; 8 << 20]);
    assert!(filler.is_err(), "the volume is full");
    for suffix in ["-wal", "-shm"] {
        // It may have put the second one aside by then, for it noticed that the first is gone.
        let _ = fs::remove_file(super::with(&path, suffix));
        // What that freed is taken as well.
        let _ = fs::write(at.join(format!("filler{suffix}")), vec![1; 8 << 20]);
    }
    let family = Family::of(&path).unwrap();
    until("it is fenced", PATIENCE, || {
        let records = statehouse_sqlite::members::list(&family).unwrap_or_default();
        let standing = statehouse_testkit::kernel::Standing::of(child.pid(), &path);
        records.iter().any(|r| r.fenced) && standing.deleted && !standing.shared && !standing.has_shm
    });
    Some(Scene::of(place, [child.pid()], (child, volume))?.at(path))
}

#[test]
fn processes_of_ours() {
    check(TABLE);
    if namespaces("making namespaces and volumes") {
        check(AS_ROOT);
    }
}
