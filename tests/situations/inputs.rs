//! Paths that are no database, and systems that cannot be looked at.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;

use super::{Actor, FAILED, Group, HELD, NOBODY, ONLY_OPEN, Place, REFUSED, Scene, Situation, USER, check, namespaces};

fn at(place: &Place, name: &str) -> Option<Scene> {
    Some(Scene::of(place, [], ())?.at(place.join(name)))
}

fn without_proc(place: &Place, mount: &str) -> Option<Scene> {
    let actor = Actor::using(&place.path);
    let mount = format!("{mount} && exec \"$@\"");
    Some(Scene::of(place, [], actor)?.through(&["unshare", "--mount", "sh", "-c", &mount, "sh"]))
}

const NO_DATABASE: &str = "does not begin as a SQLite database does";

pub(super) const TABLE: &[Situation] = &[
    Situation {
        name: "there is nothing at the path",
        build: |p| at(p, "nothing.db"),
        verdict: "no_store",
        exit: REFUSED,
        ..NOBODY
    },
    Situation {
        name: "there is not even the directory",
        build: |p| at(p, "nowhere/s.db"),
        verdict: "no_store",
        exit: REFUSED,
        ..NOBODY
    },
    Situation {
        name: "the path is a directory",
        build: |p| {
            p.make("directory");
            at(p, "directory")
        },
        // It is taken for a home.
        verdict: "no_store",
        exit: REFUSED,
        ..NOBODY
    },
    Situation {
        name: "the path is a pipe",
        build: |p| {
            let path = p.join("pipe");
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
            at(p, "pipe")
        },
        verdict: "refused_not_regular",
        exit: REFUSED,
        ..NOBODY
    },
    Situation {
        name: "the path is a symlink to a database in use",
        build: |p| {
            symlink(&p.path, p.join("link.db")).unwrap();
            Some(Scene::with(p, Actor::using(&p.path))?.at(p.join("link.db")))
        },
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "the file is no database, and nobody has it",
        build: |p| {
            fs::write(p.join("notes.txt"), "not a database\n").unwrap();
            at(p, "notes.txt")
        },
        limits: &[NO_DATABASE],
        ..NOBODY
    },
    Situation {
        name: "the file is no database, and somebody has it",
        build: |p| {
            fs::write(p.join("notes.txt"), "not a database\n").unwrap();
            let mut actor = Actor::idle();
            actor.order(json!(["keep", p.join("notes.txt")]));
            Some(Scene::with(p, actor)?.at(p.join("notes.txt")))
        },
        verdict: "held",
        holders: &[ONLY_OPEN],
        exit: HELD,
        limits: &[NO_DATABASE],
    },
];

pub(super) const PROC: &[Situation] = &[
    Situation {
        name: "/proc is not mounted",
        build: |p| without_proc(p, "umount -l /proc"),
        verdict: "io",
        exit: FAILED,
        ..NOBODY
    },
    Situation {
        name: "something else is mounted on /proc",
        build: |p| without_proc(p, "mount -t tmpfs none /proc"),
        verdict: "io",
        exit: FAILED,
        ..NOBODY
    },
    Situation {
        name: "/proc shows processes and nothing else (subset=pid), so not the table of locks",
        build: |p| without_proc(p, "mount -t proc -o subset=pid proc /proc"),
        verdict: "io",
        exit: FAILED,
        ..NOBODY
    },
];

#[test]
fn paths_that_are_no_database() {
    check(TABLE);
}

#[test]
fn systems_without_a_list_of_processes() {
    if namespaces("hiding /proc") {
        check(PROC);
    }
}

/// Moved away and back all the time: each answer is one of the two that are true.
#[test]
fn a_database_that_vanishes_while_it_is_looked_at() {
    let group = Group::new();
    let place = group.place("s");
    let scene = Scene::of(&place, [], ()).unwrap();
    let aside = place.join("aside");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::rename(&place.path, &aside).unwrap();
                fs::rename(&aside, &place.path).unwrap();
            }
        });
        let mut answers = std::collections::BTreeMap::new();
        while answers.values().sum::<u32>() < 100 || answers.len() < 2 {
            let seen = group.look(&scene, &["--json"]);
            let document = seen.json();
            let said = document["verdict"].as_str().or(document["error"]["code"].as_str()).unwrap_or("").to_owned();
            *answers.entry((seen.code(), said)).or_insert(0_u32) += 1;
            assert!(answers.values().sum::<u32>() < 2000, "{answers:?}");
        }
        stop.store(true, Ordering::Relaxed);
        let allowed = [(0, "quiet".to_owned()), (4, "no_store".to_owned())];
        assert!(answers.keys().all(|k| allowed.contains(k)) && answers.len() == 2, "{answers:?}");
    });
}
