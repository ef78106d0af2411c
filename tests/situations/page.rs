//! What `docs/containers.md` tells an operator to type works as it stands there.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use statehouse_testkit::run;

use super::{Actor, Group, namespaces};
use crate::house::PATIENCE;

/// The commands of the page, by their marker.
fn commands(page: &str) -> Vec<(&str, &str)> {
    let marked = page.split("<!-- ").skip(1);
    marked
        .map(|part| {
            let (marker, rest) = part.split_once(" -->\n```sh\n").expect("a marker before a block of shell");
            (marker, rest.split_once("```").expect("the end of the block").0.trim())
        })
        .collect()
}

#[test]
fn the_commands_of_the_page_about_containers_work() {
    if !namespaces("making namespaces") {
        return;
    }
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/containers.md");
    let page = fs::read_to_string(page).unwrap();
    let commands = commands(&page);
    assert_eq!(commands.iter().map(|c| c.0).collect::<Vec<_>>(), ["host", "through", "inside", "hidepid"]);

    let group = Group::new();
    let place = group.place("s");
    let inside = place.make("mnt");
    let wrapper =
        super::elsewhere::bound(&["--pid", "--fork", "--kill-child", "--mount-proc"], &place.directory, &inside);
    let mut actor = Actor::with(&wrapper, &[]);
    actor.order(json!(["connect", inside.join("s.db")]));
    actor.sql("SELECT count(*) FROM m");
    for (marker, command) in commands {
        assert!(command.starts_with("sudo "), "{marker}");
        // Only the names of this test differ from those of the page; it is root already.
        let command = command
            .replace("sudo ", "")
            .replace("/srv/app/data/state.db", place.path.to_str().unwrap())
            .replace("/mnt/state.db", inside.join("s.db").to_str().unwrap())
            .replace("statehouse holders", &format!("{} holders", group.program().display()));
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).env("PID", actor.pid().to_string());
        let seen = run(&mut shell, PATIENCE).success();
        assert!(seen.stdout.contains("is in use"), "{marker}: {seen:#?}");
        assert!(seen.stdout.contains("main,wal,shm"), "{marker}: {seen:#?}");
    }
}
