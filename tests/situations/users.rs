//! Other users: whom root sees, whom an ordinary user sees, and what is said about those that may not be looked at.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use statehouse_testkit::user::User;

use super::{
    ALARM, Actor, BY_LOCK, Group, HELD, NOBODY, OTHERS, Place, Scene, Situation, Stop, UNKNOWN, USER, Who, check,
    namespaces,
};

/// A database that belongs to an ordinary user, and to nobody else.
fn owned(place: &Place) -> Option<Scene> {
    place.give_to(User::OWNER);
    for file in [&place.path, &place.directory] {
        let mode = if file == &place.path { 0o600 } else { 0o755 };
        fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
    }
    Some(Scene::of(place, [], ())?.seen_by(User::OWNER))
}

/// The same beside a process that runs as `user` and has carried out `work`.
fn beside(place: &Place, user: User, arguments: &[&str], work: impl FnOnce(&mut Actor)) -> Option<Scene> {
    let scene = owned(place)?;
    let mut actor = Actor::with(&[], arguments);
    if user != User::ROOT {
        actor.order(json!(["become", user.0]));
    }
    work(&mut actor);
    Some(Scene { through: scene.through, ..Scene::with(place, actor)? })
}

/// `/proc` as `hidepid=2` shows it: a mount of its own, for a change of the present one would be one for everybody.
fn hidden(scene: Scene) -> Scene {
    mounted(scene, "hidepid=2")
}

fn mounted(scene: Scene, options: &str) -> Scene {
    let mount = format!("mount -t proc -o {options} proc /proc && exec \"$@\"");
    let mut command: Vec<String> = ["unshare", "--mount", "sh", "-c", &mount, "sh"].map(str::to_owned).to_vec();
    command.extend(scene.through.iter().cloned());
    scene.through(&command)
}

pub(super) const TABLE: &[Situation] = &[
    Situation {
        name: "root looks at the process of an ordinary user",
        build: |p| Some(beside(p, User::OWNER, &[], |a| a.uses(&p.path))?.through::<&str>(&[])),
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "an ordinary user beside the daemons of root",
        build: owned,
        limits: &[OTHERS, "sudo statehouse holders"],
        ..NOBODY
    },
    Situation {
        name: "an ordinary user looks at a process of theirs",
        build: |p| beside(p, User::OWNER, &[], |a| a.uses(&p.path)),
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        limits: &[OTHERS],
    },
    Situation {
        name: "an ordinary user looks at a process of root that uses the database",
        build: |p| beside(p, User::ROOT, &[], |a| a.uses(&p.path)),
        verdict: "held",
        holders: &[BY_LOCK],
        exit: HELD,
        limits: &[OTHERS],
    },
    Situation {
        name: "an ordinary user looks at a process of root that lost its lock on the main file",
        build: |p| {
            beside(p, User::ROOT, &[], |a| {
                a.uses(&p.path);
                a.stray(&[&p.path]);
            })
        },
        verdict: "held",
        holders: &[Who { files: "shm?", locks: "dms", naked: true, ..BY_LOCK }],
        exit: ALARM,
        limits: &[OTHERS],
    },
    Situation {
        // A lock on the main file alone is what a reader in rollback mode has: nothing can be said against it.
        name: "an ordinary user looks at a process of root that lost its lock on the shared index",
        build: |p| {
            beside(p, User::ROOT, &[], |a| {
                a.uses(&p.path);
                a.stray(&[&p.member("-shm")]);
            })
        },
        verdict: "held",
        holders: &[Who { files: "main?", locks: "shared", ..BY_LOCK }],
        exit: HELD,
        limits: &[OTHERS],
    },
    Situation {
        name: "an ordinary user, and a process of root that only names the path",
        build: |p| beside(p, User::ROOT, &["--db", p.path.to_str().unwrap()], |_| ()),
        verdict: "unknown",
        holders: &[Who { files: "", locks: "", evidence: "argv", ..USER }],
        exit: UNKNOWN,
        limits: &[OTHERS, "sudo statehouse holders", "not cleared: pid"],
    },
    Situation {
        name: "an ordinary user, and a process of a third user that names the path and may not open it",
        build: |p| {
            let scene = beside(p, User::THIRD, &["--db", p.path.to_str().unwrap()], |_| ())?;
            Some(Scene { pids: Vec::new(), ..scene })
        },
        limits: &[OTHERS],
        ..NOBODY
    },
    Situation {
        name: "an ordinary user, and a process of theirs that may not be looked at",
        build: |p| {
            let scene = owned(p)?;
            let mut actor = Actor::idle();
            actor.order(json!(["become", User::OWNER.0, false]));
            actor.uses(&p.path);
            Some(Scene { through: scene.through, ..Scene::with(p, actor)? })
        },
        verdict: "held",
        holders: &[BY_LOCK],
        exit: HELD,
        limits: &[OTHERS],
    },
    Situation {
        name: "root without the right to look into processes that have it, as in a container",
        build: |p| {
            let scene = Scene::with(p, Actor::using(&p.path))?;
            Some(scene.through(&["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-all"]))
        },
        verdict: "held",
        holders: &[BY_LOCK],
        exit: HELD,
        limits: &[OTHERS],
    },
    Situation {
        name: "from inside a user namespace, as in a rootless container",
        build: |p| {
            let scene = Scene::with(p, Actor::using(&p.path))?;
            Some(scene.through(&["unshare", "--user", "--map-root-user"]))
        },
        verdict: "held",
        holders: &[BY_LOCK],
        exit: HELD,
        limits: &[OTHERS],
    },
    Situation {
        name: "an ordinary user looks into a rootless container of theirs",
        build: |p| {
            beside(p, User::OWNER, &[], |a| {
                a.order(json!(["new_user_namespace"]));
                a.uses(&p.path);
            })
        },
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        limits: &[OTHERS],
    },
    Situation {
        name: "hidepid, and a process of root that uses the database",
        build: |p| Some(hidden(beside(p, User::ROOT, &[], |a| a.uses(&p.path))?)),
        verdict: "held",
        holders: &[Who { namespace: "unknown", stop: Stop::Number, ..BY_LOCK }],
        exit: HELD,
        limits: &["hidepid"],
    },
    Situation {
        name: "hidepid=1, which shows the numbers of processes and nothing else of them",
        build: |p| {
            let scene = beside(p, User::ROOT, &[], |a| a.uses(&p.path))?;
            Some(mounted(scene, "hidepid=1"))
        },
        verdict: "held",
        holders: &[Who { namespace: "unknown", stop: Stop::Number, ..BY_LOCK }],
        exit: HELD,
        limits: &[OTHERS],
    },
    Situation { name: "hidepid, and nobody", build: |p| Some(hidden(owned(p)?)), limits: &["hidepid"], ..NOBODY },
    Situation {
        name: "an ordinary user, and a lock of root's that names no process",
        build: |p| {
            Some(beside(p, User::ROOT, &[], |a| drop(a.order(json!(["lock_by_description", p.path]))))?.unnumbered())
        },
        verdict: "unknown",
        holders: &[Who {
            files: "main?",
            locks: "shared",
            namespace: "unknown",
            stop: Stop::By("sudo statehouse holders, run on the host, names it"),
            ..BY_LOCK
        }],
        exit: UNKNOWN,
        limits: &["not cleared: pid", "sudo statehouse holders"],
    },
    Situation {
        // Its locks name no process either, but it has left a record.
        name: "an ordinary user, and an anchor of root's",
        build: |p| {
            let scene = owned(p)?;
            let anchor = super::ours::anchor(&p.path);
            Some(Scene { through: scene.through, ..Scene::of(p, [anchor.pid()], anchor)? })
        },
        verdict: "held",
        holders: &[Who { role: Some("anchor"), ..BY_LOCK }],
        exit: HELD,
        limits: &[OTHERS],
    },
    Situation {
        name: "two installations with the same arguments, of two users, seen by one of them",
        build: |p| {
            let words = ["--profile", "work", "gateway", "run"];
            let first = beside(p, User::OWNER, &words, |a| a.uses(&p.path))?;
            let other = p.make("other").join("s.db");
            p.another(&other);
            User::THIRD.owns(&p.join("other"));
            let mut second = Actor::with(&[], &words);
            second.order(json!(["become", User::THIRD.0]));
            second.uses(&other);
            Some(Scene { _alive: vec![Box::new((first._alive, second))], ..first })
        },
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        limits: &[OTHERS],
    },
];

/// Processes of root that open and close all the time, seen by a user who may not look at them: between two of its locks each
/// is no alarm.
#[test]
fn holders_of_another_user_that_come_and_go() {
    if !namespaces("being two users") {
        return;
    }
    let group = Group::new();
    let place = group.place("s");
    let rests = Actor::using(&place.path);
    let scene = beside(&place, User::ROOT, &[], |a| drop(a.order(json!(["come_and_go", place.path])))).unwrap();
    for look in 0..60 {
        let seen = group.look(&scene, &["--json"]);
        let report = seen.json();
        assert_eq!((seen.code(), report["verdict"].as_str()), (0, Some("held")), "look {look}: {report:#}");
    }
    drop(rests);
}

#[test]
fn other_users() {
    if namespaces("being two users") {
        check(TABLE);
    }
}
