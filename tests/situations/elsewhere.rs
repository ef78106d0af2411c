//! Holders in other namespaces, mounts and roots, and looks from there.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::{
    ALARM, Actor, BY_LOCK, FAILED, Group, HELD, NOBODY, Place, STRANDED, Scene, Situation, Stop, USER, Who, check,
    namespaces, strand,
};
use crate::house::{cli, error_code};

const PID_NAMESPACE: [&str; 5] = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
/// `sh -c THIS sh FROM TO COMMAND...`
const BIND: &str = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";

/// The command that runs another in a mount namespace of its own, where `from` is mounted on `to` as well.
pub(super) fn bound(namespaces: &[&str], from: &Path, to: &Path) -> Vec<String> {
    let command = ["unshare", "--mount"].iter().chain(namespaces).chain(&["sh", "-c", BIND, "sh"]);
    let mut command: Vec<String> = command.map(|w| (*w).to_owned()).collect();
    command.extend([from, to].map(|p| p.to_str().unwrap().to_owned()));
    command
}

/// A container, as far as processes can tell: a pid and a mount namespace of its own and another root, into which only the
/// directory of the database is mounted, as `/data`.
struct Container {
    actor: Actor,
    root: PathBuf,
}

impl Container {
    fn start(place: &Place) -> Container {
        let root = place.make("root");
        let data = root.join("data");
        fs::create_dir(&data).unwrap();
        let home = place.make("home");
        fs::rename(&place.path, home.join("s.db")).unwrap();
        let mut actor = Actor::with(&bound(&["--pid", "--fork", "--kill-child"], &home, &data), &[]);
        actor.order(json!(["chroot", root]));
        actor.uses(Path::new("/data/s.db"));
        Container { actor, root }
    }

    fn scene(self, place: &Place) -> Option<Scene> {
        Some(Scene::of(place, [self.actor.pid()], self.actor)?.at(place.join("home/s.db")))
    }
}

/// A container in which the database is at a path that leads to another one here, and the path to it from here.
fn behind_a_root(place: &Place) -> (Actor, PathBuf) {
    let inside = place.make("inside");
    let mut actor = Actor::with(&bound(&["--pid", "--fork", "--kill-child"], &place.directory, &inside), &[]);
    actor.uses(&inside.join("s.db"));
    place.another(&inside.join("s.db"));
    let root = PathBuf::from(format!("/proc/{}/root", actor.pid()));
    let path = root.join(inside.strip_prefix("/").unwrap()).join("s.db");
    (actor, path)
}

/// The number of a process in its own pid namespace.
fn inner(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix("NSpid:")).expect("a kernel with pid namespaces");
    line.split_whitespace().last().unwrap().parse().unwrap()
}

/// The first process of another pid namespace. Python handles no SIGTERM, so it takes none.
const CONTAINED: Who = Who { namespace: "other", stop: Stop::Killed, ..USER };

pub(super) const TABLE: &[Situation] = &[
    Situation {
        name: "a holder in another pid namespace",
        build: |p| {
            let mut actor = Actor::with(&PID_NAMESPACE, &[]);
            actor.uses(&p.path);
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[CONTAINED],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "the first process of another pid namespace, which handles SIGTERM",
        build: |p| {
            let mut actor = Actor::with(&PID_NAMESPACE, &[]);
            actor.order(json!(["catch_term"]));
            actor.uses(&p.path);
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[Who { namespace: "other", ..USER }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a second process of another pid namespace",
        build: |p| {
            let mut actor = Actor::with(&PID_NAMESPACE, &[]);
            actor.starts(json!(["child", ["connect", p.path], ["sql", "SELECT count(*) FROM m"]]));
            let pid = *statehouse_testkit::kernel::descendants(actor.pid()).last()?;
            Scene::of(p, [pid], actor)
        },
        verdict: "held",
        holders: &[Who { namespace: "other", ..USER }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a holder in another mount namespace, where the directory has another name",
        build: |p| {
            let to = p.group.directory.join("bound");
            fs::create_dir(&to).unwrap();
            let mut actor = Actor::with(&bound(&[], &p.directory, &to), &[]);
            actor.uses(&to.join("s.db"));
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a holder in another mount namespace that was cut off",
        build: |p| {
            let to = p.group.directory.join("bound and stranded");
            fs::create_dir(&to).unwrap();
            let mut actor = Actor::with(&bound(&[], &p.directory, &to), &[]);
            actor.uses(&to.join("s.db"));
            strand(&mut actor, &to.join("s.db"), &p.path);
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[STRANDED],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "a holder in another root (chroot)",
        build: |p| {
            let mut actor = Actor::idle();
            actor.order(json!(["chroot", p.directory]));
            actor.uses(Path::new("/s.db"));
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a holder in another root that was cut off",
        build: |p| {
            let mut actor = Actor::idle();
            actor.order(json!(["chroot", p.directory]));
            actor.uses(Path::new("/s.db"));
            strand(&mut actor, Path::new("/s.db"), &p.path);
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[STRANDED],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "a holder in a container",
        build: |p| Container::start(p).scene(p),
        verdict: "held",
        holders: &[CONTAINED],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a holder in a container that was cut off",
        build: |p| {
            let mut container = Container::start(p);
            strand(&mut container.actor, Path::new("/data/s.db"), &p.join("home/s.db"));
            container.scene(p)
        },
        verdict: "held",
        holders: &[Who { namespace: "other", stop: Stop::Killed, ..STRANDED }],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "a holder in a container whose root was removed",
        build: |p| {
            let container = Container::start(p);
            fs::remove_dir_all(&container.root).unwrap();
            container.scene(p)
        },
        verdict: "held",
        holders: &[CONTAINED],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "only the main file is mounted elsewhere, so that the log is another",
        build: |p| {
            let to = p.make("inside").join("s.db");
            fs::write(&to, b"").unwrap();
            let mut actor = Actor::with(&bound(&[], &p.path, &to), &[]);
            actor.uses(&to);
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[Who { files: "main", locks: "shared", ..USER }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "from inside a container: a holder outside",
        build: |p| Some(Scene::with(p, Actor::using(&p.path))?.unnumbered().through(&PID_NAMESPACE)),
        verdict: "held",
        holders: &[Who {
            namespace: "other",
            stop: Stop::By("sudo statehouse holders, run on the host, names it"),
            ..BY_LOCK
        }],
        exit: HELD,
        limits: &["not the machine's own pid namespace"],
    },
    Situation {
        name: "from inside a container: nobody",
        build: |p| Some(Scene::of(p, [], ())?.through(&PID_NAMESPACE)),
        limits: &["not the machine's own pid namespace"],
        ..NOBODY
    },
    Situation {
        name: "from inside the container of the holder, as docker exec looks",
        build: |p| {
            let mut actor = Actor::with(&PID_NAMESPACE, &[]);
            actor.uses(&p.path);
            let (outer, inner) = (actor.pid().to_string(), inner(actor.pid()));
            let scene = Scene::of(p, [inner], actor)?;
            Some(scene.through(&["nsenter", "--target", &outer, "--mount", "--pid"]))
        },
        verdict: "held",
        holders: &[Who {
            stop: Stop::By("stop this container from outside: its first process takes no signal from within"),
            ..USER
        }],
        exit: HELD,
        limits: &["not the machine's own pid namespace"],
    },
    Situation {
        name: "looked at through the root of the container (/proc/PID/root), beside a file that has this name here",
        build: |p| {
            let (actor, path) = behind_a_root(p);
            Some(Scene::with(p, actor)?.at(path))
        },
        verdict: "held",
        holders: &[CONTAINED],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "looked at through the root of the container, where it was cut off",
        build: |p| {
            let (mut actor, path) = behind_a_root(p);
            strand(&mut actor, &p.join("inside/s.db"), &p.path);
            Some(Scene::with(p, actor)?.at(path))
        },
        verdict: "held",
        holders: &[Who { namespace: "other", stop: Stop::Killed, ..STRANDED }],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        // The numbers that it shows are those of the machine, and it sees everybody.
        name: "from inside a pid namespace that has the /proc of the machine",
        build: |p| {
            let scene = Scene::with(p, Actor::using(&p.path))?;
            Some(scene.through(&["unshare", "--pid", "--fork", "--kill-child"]))
        },
        verdict: "held",
        holders: &[Who { namespace: "other", ..USER }],
        exit: HELD,
        limits: &["not the machine's own pid namespace"],
    },
    Situation {
        name: "from inside the mounts of a container and outside its pid namespace",
        build: |p| {
            let mut actor = Actor::with(&PID_NAMESPACE, &[]);
            actor.uses(&p.path);
            let outer = actor.pid().to_string();
            Some(Scene::of(p, [], actor)?.through(&["nsenter", "--target", &outer, "--mount"]))
        },
        verdict: "io",
        exit: FAILED,
        ..NOBODY
    },
    Situation {
        name: "from inside a mount namespace where the directory has another name: a holder that was cut off",
        build: |p| {
            let to = p.group.directory.join("looked at here");
            fs::create_dir(&to).unwrap();
            let mut actor = Actor::using(&p.path);
            strand(&mut actor, &p.path, &p.path);
            Some(Scene::with(p, actor)?.at(to.join("s.db")).through(&bound(&[], &p.directory, &to)))
        },
        verdict: "held",
        holders: &[STRANDED],
        exit: ALARM,
        ..NOBODY
    },
];

/// What opens the database would be led to the file of this machine that has the same name.
#[test]
fn nothing_is_opened_through_the_root_of_a_container() {
    if !namespaces("making namespaces") {
        return;
    }
    let group = Group::new();
    let place = group.place("s");
    let (_actor, path) = behind_a_root(&place);
    for command in ["status", "verify", "anchor"] {
        let home = statehouse_testkit::Home::new();
        let seen = cli(&home, [command.as_ref(), path.as_os_str(), "--json".as_ref()]);
        assert_eq!((seen.code(), error_code(&seen)), (4, "no_directory".to_owned()), "{command}: {seen:#?}");
    }
}

#[test]
fn holders_in_other_namespaces_and_roots() {
    if namespaces("making namespaces") {
        check(TABLE);
    }
}
