//! Processes in unusual states, many of them, and those that end while somebody looks.

use rustix::process::Signal;
use serde_json::json;
use statehouse_testkit::until;

use super::{Actor, Group, HELD, NOBODY, Scene, Situation, Stop, USER, Who, check};
use crate::house::PATIENCE;

pub(super) const TABLE: &[Situation] = &[
    Situation {
        name: "a process that names the path in its arguments and has nothing open",
        build: |p| Scene::of(p, [], Actor::with(&[], &["--db", p.path.to_str().unwrap()])),
        ..NOBODY
    },
    Situation {
        name: "a second installation in another root, with the same arguments down to the path",
        build: |p| {
            let argument = p.path.to_str().unwrap();
            let mut first = Actor::with(&[], &["--db", argument]);
            first.uses(&p.path);
            let root = p.make("root");
            let inside = root.join(p.path.strip_prefix("/").unwrap());
            std::fs::create_dir_all(inside.parent().unwrap()).unwrap();
            p.another(&inside);
            let mut second = Actor::with(&[], &["--db", argument]);
            if rustix::process::geteuid().is_root() {
                second.order(json!(["chroot", root]));
                second.uses(&p.path);
            } else {
                second.uses(&inside);
            }
            Scene::of(p, [first.pid()], (first, second))
        },
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a zombie that had it open",
        build: |p| {
            let mut actor = Actor::idle();
            actor.starts(json!(["zombie", p.path]));
            Scene::of(p, [], actor)
        },
        ..NOBODY
    },
    Situation {
        name: "a stopped process",
        build: |p| {
            let actor = Actor::using(&p.path);
            actor.signal(Signal::STOP);
            let stat = format!("/proc/{}/stat", actor.pid());
            until("it stops", PATIENCE, || {
                std::fs::read_to_string(&stat).unwrap().rsplit_once(") ").unwrap().1.starts_with('T')
            });
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "a process whose first thread has ended",
        build: |p| {
            let mut actor = Actor::with(&[], &["--main-thread-ends"]);
            actor.uses(&p.path);
            Scene::with(p, actor)
        },
        verdict: "held",
        holders: &[Who { stop: Stop::Number, ..USER }],
        exit: HELD,
        ..NOBODY
    },
    Situation {
        name: "one holder among 300 processes with 30,000 descriptors",
        build: |p| {
            let mut crowd = Actor::idle();
            crowd.order(json!(["crowd", 300, 100]));
            let holder = Actor::using(&p.path);
            Scene::of(p, [holder.pid()], (crowd, holder))
        },
        verdict: "held",
        holders: &[USER],
        exit: HELD,
        ..NOBODY
    },
];

#[test]
fn processes_in_unusual_states() {
    check(TABLE);
}

/// Processes that end with the database open, one after the other, beside one that opens and closes all the time: half open
/// or half gone, none of them is an alarm or an error.
#[test]
fn holders_that_come_and_go_while_they_are_looked_at() {
    let group = Group::new();
    let place = group.place("s");
    // One that stays, so that no closer is the last one: what is unlinked under the feet of others is another matter.
    let rests = Actor::using(&place.path);
    let mut ending = Actor::idle();
    ending.order(json!(["come_and_go_as_processes", place.path]));
    let mut opening = Actor::idle();
    opening.order(json!(["come_and_go", place.path]));
    let scene = Scene::of(&place, [rests.pid()], ()).unwrap();
    let mut others = 0;
    let mut looks = 0;
    while looks < 100 || others < 20 {
        let seen = group.look(&scene, &["--json"]);
        looks += 1;
        let report = seen.json();
        assert_eq!((seen.code(), report["verdict"].as_str()), (0, Some("held")), "look {looks}: {report:#}");
        let holders = report["holders"].as_array().unwrap();
        assert!(holders.iter().any(|h| h["pid"] == rests.pid()), "look {looks}: {report:#}");
        others += holders.len() - 1;
        assert!(looks < 2000, "hardly anybody was seen: {others}");
    }
}
