//! Files that were removed, replaced, moved, linked or given strange names.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use serde_json::json;

use super::{
    ALARM, Actor, CUT_OFF, HELD, NOBODY, ONLY_OPEN, Place, REFUSED, STRANDED, Scene, Situation, USER, Who, check,
    strand,
};

/// A process that goes on in a log that the last closer has unlinked.
fn cut_off(path: &Path) -> Actor {
    let mut actor = Actor::using(path);
    strand(&mut actor, path, path);
    actor
}

fn removed(place: &Place, suffixes: &[&str]) -> Option<Scene> {
    let actor = Actor::using(&place.path);
    for suffix in suffixes {
        fs::remove_file(place.member(suffix)).unwrap();
    }
    Scene::with(place, actor)
}

/// A database in a directory with this name, used by a process that was cut off.
fn named(place: &Place, directory: &str, file: &str) -> Option<Scene> {
    let path = place.make(directory).join(file);
    place.another(&path);
    let actor = cut_off(&path);
    Some(Scene::with(place, actor)?.at(path))
}

pub(super) const TABLE: &[Situation] = &[
    Situation {
        name: "the sidecars were removed",
        build: |p| removed(p, &["-wal", "-shm"]),
        verdict: "held",
        holders: &[CUT_OFF],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "only the log was removed",
        build: |p| removed(p, &["-wal"]),
        verdict: "held",
        holders: &[Who { files: "main wal! shm", ..CUT_OFF }],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "all three files were removed and the path leads nowhere",
        build: |p| removed(p, &["", "-wal", "-shm"]),
        verdict: "held",
        holders: &[Who { files: "main! wal! shm!", ..CUT_OFF }],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "a process was cut off by the last closer",
        build: |p| Scene::with(p, cut_off(&p.path)),
        verdict: "held",
        holders: &[STRANDED],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "a process was cut off and another works with the new files",
        build: |p| {
            let ghost = cut_off(&p.path);
            let current = Actor::using(&p.path);
            Scene::of(p, [ghost.pid(), current.pid()], (ghost, current))
        },
        verdict: "held",
        holders: &[STRANDED, USER],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "the main file was replaced by a rename",
        build: |p| {
            let actor = Actor::using(&p.path);
            p.another(&p.join("restored"));
            fs::rename(p.join("restored"), &p.path).unwrap();
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[Who { files: "main! wal shm", ghost: true, ..USER }],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "the main file was moved aside and a copy took its place",
        build: |p| {
            let actor = Actor::using(&p.path);
            fs::rename(&p.path, p.join("s.db.old")).unwrap();
            p.another(&p.path);
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[Who { files: "main! wal shm", ghost: true, ..USER }],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "the directory was moved, looked at by its new name",
        build: |p| {
            let home = p.make("home");
            p.another(&home.join("s.db"));
            let actor = Actor::using(&home.join("s.db"));
            fs::rename(&home, p.join("elsewhere")).unwrap();
            Some(Scene::with(p, actor)?.at(p.join("elsewhere/s.db")))
        },
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "the directory was moved and made anew, looked at by its old name",
        build: |p| {
            let home = p.make("home");
            p.another(&home.join("s.db"));
            let actor = Actor::using(&home.join("s.db"));
            fs::rename(&home, p.join("elsewhere")).unwrap();
            p.another(&p.make("home").join("s.db"));
            Some(Scene::of(p, [], actor)?.at(home.join("s.db")))
        },
        ..NOBODY
    },
    Situation {
        name: "the directory was moved and nothing is where it was",
        build: |p| {
            let home = p.make("home");
            p.another(&home.join("s.db"));
            let actor = Actor::using(&home.join("s.db"));
            fs::rename(&home, p.join("elsewhere")).unwrap();
            Some(Scene::of(p, [], actor)?.at(home.join("s.db")))
        },
        verdict: "no_store",
        exit: REFUSED,
        ..NOBODY
    },
    Situation {
        name: "the holder came by another hard link",
        build: |p| {
            fs::hard_link(&p.path, p.join("second.db")).unwrap();
            let actor = Actor::using(&p.join("second.db"));
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[Who { files: "main", locks: "shared", ..USER }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "the holder came by a symlinked directory and was cut off",
        build: |p| {
            symlink(&p.directory, p.join("link")).unwrap();
            Scene::with(p, cut_off(&p.join("link/s.db")))
        },
        verdict: "held",
        holders: &[STRANDED],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "it is looked at by a symlinked directory and an odd spelling",
        build: |p| {
            symlink(&p.directory, p.make("sub").join("link")).unwrap();
            let actor = cut_off(&p.path);
            Some(Scene::with(p, actor)?.at(p.join("sub/.//../sub/link/./s.db")))
        },
        verdict: "held",
        holders: &[STRANDED],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "a name with a space, a newline and the mark of deletion",
        build: |p| named(p, "a b\n(deleted)", "s \n.db (deleted)"),
        verdict: "held",
        holders: &[STRANDED],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "a name with what means something in a URI, and a backslash",
        build: |p| named(p, "100%#?", "数\\040.db"),
        verdict: "held",
        holders: &[STRANDED],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "a file that is called as the kernel calls a removed log",
        build: |p| {
            fs::write(p.join("s.db-wal (deleted)"), b"x").unwrap();
            let mut actor = Actor::idle();
            actor.order(json!(["keep", p.join("s.db-wal (deleted)")]));
            Scene::of(p, [], actor)
        },
        ..NOBODY
    },
    Situation {
        name: "a removed log is only read, by somebody who copies it",
        build: |p| {
            let mut reader = Actor::idle();
            let writer = Actor::using(&p.path);
            reader.order(json!(["keep", p.member("-wal"), "RDONLY"]));
            drop(writer);
            fs::remove_file(p.member("-wal")).unwrap();
            Scene::with(p, reader)
        },
        verdict: "held",
        holders: &[Who { files: "wal!", locks: "", ..USER }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "the old main file is kept open for reading only",
        build: |p| {
            let mut reader = Actor::idle();
            reader.order(json!(["keep", p.path, "RDONLY"]));
            fs::remove_file(&p.path).unwrap();
            p.another(&p.path);
            Scene::with(p, reader)
        },
        verdict: "held",
        holders: &[Who { files: "main!", ..ONLY_OPEN }],
        exit: HELD,
        ..NOBODY
    },
];

#[test]
fn files_that_are_not_where_they_were() {
    check(TABLE);
}
