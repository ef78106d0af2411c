//! What the README tells a newcomer to type works as it stands there.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use statehouse_testkit::{Home, need, run};

use crate::house::{PATIENCE, Up, answer};

fn readme() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap()
}

/// The code block after this marker.
fn block<'a>(text: &'a str, marker: &str) -> &'a str {
    let after = text.split_once(marker).unwrap_or_else(|| panic!("the README has no {marker}")).1;
    after.split_once("```sh\n").and_then(|(_, rest)| rest.split_once("```")).expect("a block of shell").0.trim()
}

#[test]
fn the_curl_of_the_readme_gets_an_answer_that_is_in_the_store() {
    if need::command("curl").is_none() {
        return;
    }
    let readme = readme();
    let curl = block(&readme, "<!-- curl -->");
    let home = Home::new();
    let up = Up::start(&home, |_| {});
    // Only the address and the home differ from a newcomer's: tests use free ports and a home of their own.
    let line = curl
        .replace("http://127.0.0.1:7420", up.url("gateway"))
        .replace("~/.statehouse", home.path().to_str().unwrap());
    assert_ne!(line, curl, "the README names the usual port and home");
    let done = run(Command::new("sh").arg("-c").arg(&line), PATIENCE).success();
    let said: Value = serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {done:#?}"));
    let reply = said["reply"]["text"].as_str().expect("a reply");
    let shown = answer(&home, ["sessions", "show", said["session_id"].as_str().unwrap()]);
    let texts: Vec<&str> = shown["messages"].as_array().unwrap().iter().filter_map(|m| m["text"].as_str()).collect();
    assert_eq!(texts.len(), 2, "{shown}");
    assert_eq!(texts[1], reply, "{shown}");
    up.stop();
}

#[test]
fn the_first_screen_says_what_a_newcomer_must_know() {
    let readme = readme();
    // Paragraphs are wrapped, so a sentence may be broken over lines.
    let words: Vec<&str> = readme.lines().take(60).flat_map(str::split_whitespace).collect();
    let first_screen = words.join(" ");
    for sentence in [
        "cargo run --release -- up",
        "cargo xtask test",
        "Answers are echoes until a responder is configured",
        "nothing to an existing Hermes home",
    ] {
        assert!(first_screen.contains(sentence), "the first screen lacks: {sentence}");
    }
}

#[test]
fn every_promise_names_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let architecture = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let table = architecture.split_once("<!-- promises -->").expect("the table of promises").1;
    let named: Vec<&str> = table.split('`').skip(1).step_by(2).filter(|word| word.contains("::")).collect();
    assert!(named.len() >= 12, "{named:?}");
    for name in named {
        let (file, test) = name.rsplit_once("::").unwrap();
        let path = root.join(format!("{}.rs", file.replace("::", "/")));
        let source = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{name}: {}: {e}", path.display()));
        assert!(source.contains(&format!("fn {test}(")), "{name}: no such test");
    }
}
