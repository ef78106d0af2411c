//! Connections in each state, in WAL and in rollback mode.

use serde_json::json;
use statehouse_testkit::visitor::Shell;
use statehouse_testkit::{kernel, until};

use super::{ALARM, Actor, HELD, NOBODY, ONLY_OPEN, Place, Scene, Situation, USER, Who, check};
use crate::house::PATIENCE;

/// A database in rollback mode, and a connection that has run `sql`.
fn in_rollback_mode(place: &Place, sql: &[&str]) -> Option<Scene> {
    let mut actor = Actor::idle();
    actor.order(json!(["connect", place.path]));
    actor.sql("PRAGMA journal_mode=DELETE");
    for text in sql {
        actor.sql(text);
    }
    Scene::with(place, actor)
}

fn in_wal_mode(place: &Place, sql: &[&str]) -> Option<Scene> {
    let mut actor = Actor::using(&place.path);
    for text in sql {
        actor.sql(text);
    }
    Scene::with(place, actor)
}

fn without(place: &Place, lost: &[&str]) -> Option<Scene> {
    let mut actor = Actor::using(&place.path);
    for suffix in lost {
        actor.stray(&[&place.member(suffix)]);
    }
    Scene::with(place, actor)
}

/// A checkpoint that waits for a reader, holding the checkpointer's lock and the writer's.
fn a_checkpoint_that_waits(place: &Place) -> Option<Scene> {
    let mut reader = Actor::using(&place.path);
    reader.sql("INSERT INTO m(t) VALUES('b')");
    reader.sql("BEGIN");
    reader.sql("SELECT count(*) FROM m");
    let mut checkpointer = Actor::using(&place.path);
    checkpointer.order(json!(["in_background", "PRAGMA wal_checkpoint(TRUNCATE)"]));
    let index = kernel::FileId::of(&place.member("-shm"));
    // WAL_CKPT_LOCK and WAL_WRITE_LOCK of SQLite's `wal.c` are bytes 121 and 120 of the index.
    until("the checkpointer has its locks", PATIENCE, || {
        kernel::locks().iter().any(|l| Some(l.file) == index && l.write && l.covers((120, 121)))
            || [120, 121].iter().all(|byte| {
                kernel::locks().iter().any(|l| Some(l.file) == index && l.write && l.covers((*byte, *byte)))
            })
    });
    Scene::of(place, [reader.pid(), checkpointer.pid()], (reader, checkpointer))
}

pub(super) const TABLE: &[Situation] = &[
    Situation { name: "nobody has it open", build: |p| Scene::of(p, [], ()), ..NOBODY },
    Situation {
        name: "a connection in WAL mode that rests",
        build: |p| in_wal_mode(p, &[]),
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a connection that never ran a statement",
        build: |p| {
            let mut actor = Actor::idle();
            actor.order(json!(["connect", p.path]));
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[ONLY_OPEN],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a reader inside a transaction in WAL mode",
        build: |p| in_wal_mode(p, &["BEGIN", "SELECT count(*) FROM m"]),
        verdict: "held",
        holders: &[Who { locks: "shared dms readers", ..USER }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a writer inside BEGIN IMMEDIATE in WAL mode",
        build: |p| in_wal_mode(p, &["BEGIN IMMEDIATE"]),
        verdict: "held",
        holders: &[Who { locks: "shared dms write readers", ..USER }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a checkpoint that waits for a reader",
        build: a_checkpoint_that_waits,
        verdict: "held",
        holders: &[Who { locks: "shared dms readers", ..USER }, Who { locks: "shared dms write checkpoint", ..USER }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a connection in exclusive locking mode, which has no shared index",
        build: |p| {
            let mut actor = Actor::idle();
            actor.order(json!(["connect", p.path]));
            actor.sql("PRAGMA locking_mode=EXCLUSIVE");
            actor.sql("INSERT INTO m(t) VALUES('b')");
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[Who { files: "main wal", locks: "shared", ..USER }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a read-only connection",
        build: |p| {
            let mut actor = Actor::idle();
            actor.order(json!(["connect", format!("file:{}?mode=ro", p.path.display()), "a", true]));
            actor.sql("SELECT count(*) FROM m");
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "the sqlite3 command",
        build: |p| {
            let mut shell = Shell::open(&p.path)?;
            shell.sql("SELECT count(*) FROM m;");
            Scene::of(p, [shell.pid()], shell)
        },
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a connection in rollback mode that rests, without any lock",
        build: |p| in_rollback_mode(p, &["SELECT count(*) FROM m"]),
        verdict: "held",
        holders: &[ONLY_OPEN],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a reader inside a transaction in rollback mode",
        build: |p| in_rollback_mode(p, &["BEGIN", "SELECT count(*) FROM m"]),
        verdict: "held",
        holders: &[Who { locks: "shared", ..ONLY_OPEN }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a writer inside a transaction in rollback mode",
        build: |p| in_rollback_mode(p, &["BEGIN IMMEDIATE", "INSERT INTO m(t) VALUES('b')"]),
        verdict: "held",
        holders: &[Who { files: "main journal", locks: "shared reserved", ..USER }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a connection that lost its lock on the main file",
        build: |p| without(p, &[""]),
        verdict: "held",
        holders: &[Who { locks: "dms", naked: true, ..USER }],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "a connection that lost its lock on the shared index",
        build: |p| without(p, &["-shm"]),
        verdict: "held",
        holders: &[Who { locks: "shared", naked: true, ..USER }],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "a connection that lost both locks, beside one that has them",
        build: |p| {
            let whole = Actor::using(&p.path);
            let mut naked = Actor::using(&p.path);
            naked.stray(&[&p.path, &p.member("-shm")]);
            Scene::of(p, [whole.pid(), naked.pid()], (whole, naked))
        },
        verdict: "held",
        holders: &[USER, Who { locks: "", naked: true, ..USER }],
        exit: ALARM,
        ..NOBODY
    },
];

#[test]
fn connections_in_every_state() {
    check(TABLE);
}
