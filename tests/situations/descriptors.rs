//! Descriptors and maps that came about in other ways than by opening a connection.

use serde_json::json;

use super::{ALARM, Actor, HELD, NOBODY, ONLY_OPEN, Place, Scene, Situation, USER, Who, check};

/// One process that has carried out this order.
fn ordered(place: &Place, order: serde_json::Value) -> Option<Scene> {
    let mut actor = Actor::idle();
    actor.order(order);
    Scene::with(place, actor)
}

pub(super) const TABLE: &[Situation] = &[
    Situation {
        name: "a descriptor that can only name the file (O_PATH)",
        build: |p| {
            let mut actor = Actor::idle();
            actor.order(json!(["keep", p.path, "PATH"]));
            Scene::of(p, [], actor)
        },
        ..NOBODY
    },
    Situation {
        name: "a descriptor for reading, as a backup has it",
        build: |p| ordered(p, json!(["keep", p.path, "RDONLY"])),
        verdict: "held",
        holders: &[ONLY_OPEN],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a copy of a descriptor whose first was closed",
        build: |p| ordered(p, json!(["only_a_copy", p.path])),
        verdict: "held",
        holders: &[ONLY_OPEN],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a descriptor that came over a socket",
        build: |p| {
            let mut actor = Actor::idle();
            let heir = actor.starts(json!(["pass_on", p.path]));
            Scene::of(p, [heir], actor)
        },
        verdict: "held",
        holders: &[ONLY_OPEN],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a child that closed the connection that it inherited",
        build: |p| {
            let mut actor = Actor::using(&p.path);
            actor.starts(json!(["child", ["close"]]));
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        // It has what SQLite takes for a connection in order, and no lock: those stay with the parent.
        name: "a child that keeps the connection that it inherited",
        build: |p| {
            let mut actor = Actor::using(&p.path);
            let child = actor.starts(json!(["child"]));
            Scene::of(p, [actor.pid(), child], actor)
        },
        verdict: "held",
        holders: &[USER, Who { locks: "", naked: true, ..USER }],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "a mapped index whose descriptor was closed",
        build: |p| {
            let user = Actor::using(&p.path);
            let mut mapper = Actor::idle();
            mapper.order(json!(["map_and_close", p.member("-shm")]));
            Scene::of(p, [user.pid(), mapper.pid()], (user, mapper))
        },
        verdict: "held",
        holders: &[USER, Who { files: "shm~", locks: "", naked: true, ..USER }],
        exit: ALARM,
        ..NOBODY
    },
    Situation {
        name: "a mapped main file whose descriptor was closed",
        build: |p| ordered(p, json!(["map_and_close", p.path])),
        verdict: "held",
        holders: &[Who { files: "main~", ..ONLY_OPEN }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "two connections in one process, one of them closed",
        build: |p| {
            let mut actor = Actor::using(&p.path);
            actor.order(json!(["connect", p.path, "b"]));
            actor.order(json!(["sql", "SELECT count(*) FROM m", "b"]));
            actor.order(json!(["close", "b"]));
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a connection with another database of the same name",
        build: |p| {
            let other = p.make("other").join("s.db");
            p.another(&other);
            Scene::of(p, [], Actor::using(&other))
        },
        ..NOBODY
    },
];

#[test]
fn descriptors_and_maps_of_every_origin() {
    check(TABLE);
}
