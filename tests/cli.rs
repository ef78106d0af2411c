//! The command line keeps its contract: exit codes, JSON shapes, errors in two layers, and no trace where nothing was done.

use std::fs;
use std::process::Stdio;

use serde_json::Value;
use statehouse_testkit::{Home, Snapshot, run, wait::until};

use crate::house::{Client, PATIENCE, Service, Up, answer, cli, error_code, furnished, statehouse};

#[test]
fn what_cannot_be_understood_exits_2_in_the_shape_that_was_asked_for() {
    let home = Home::new();
    for line in [
        &["nonsense"][..],
        &["sessions", "list", "--limit", "many"],
        &["sessions"],
        &["status", "--patience", "-1"],
        &["up", "--gateway-port", "70000"],
        &["--profile", "../elsewhere", "status"],
        &["sessions", "show"],
        &["journal-mode"],
        &["journal-mode", "memory"],
        &["vacuum", "--drain", "soon"],
    ] {
        let plain = cli(&home, line);
        assert_eq!(plain.code(), 2, "{line:?}: {plain:#?}");
        assert_eq!(plain.stdout, "", "{line:?}");
        assert!(plain.stderr.contains("error") || plain.stderr.contains("Usage"), "{line:?}: {plain:#?}");
        let json = cli(&home, line.iter().chain(&["--json"]));
        assert_eq!(json.code(), 2, "{line:?}: {json:#?}");
        let error = &json.json()["error"];
        assert_eq!(error["code"], "usage", "{line:?}");
        for field in ["message", "detail", "hint"] {
            assert!(error[field].is_string(), "{line:?}: {error}");
        }
    }
    assert!(!home.path().exists());
}

#[test]
fn a_mistyped_command_is_not_sent_to_one_that_is_not_for_people() {
    let home = Home::new();
    let said = cli(&home, ["frob"]);
    assert_eq!((said.code(), said.stderr.contains("probe")), (2, false), "{said:#?}");
    // The control: what is for people is named.
    assert!(cli(&home, ["holdes"]).stderr.contains("'holders'"));
}

#[test]
fn help_and_version_are_answers() {
    let home = Home::new();
    for line in [&["--help"][..], &["help"], &["up", "--help"], &["sessions", "import", "hermes", "--help"], &["-V"]] {
        let done = cli(&home, line).success();
        assert!(!done.stdout.is_empty() && done.stderr.is_empty(), "{line:?}: {done:#?}");
    }
    let version = cli(&home, ["--version"]).success();
    assert_eq!(version.stdout.trim(), concat!("statehouse ", env!("CARGO_PKG_VERSION")));
    assert!(!cli(&home, ["--help"]).stdout.contains("supervised-by"), "what is not for people is not shown to them");
}

#[test]
fn without_a_home_everything_but_up_and_import_says_no_store_and_creates_nothing() {
    let home = Home::new();
    let before = Snapshot::of(home.around().path(), &[]);
    for line in [
        &["sessions", "list"][..],
        &["sessions", "show", "x"],
        &["sessions", "search", "x"],
        &["sessions", "rename", "x", "y"],
        &["sessions", "end", "x"],
        &["worker", "run", "housekeeping"],
        &["gateway", "--port", "0"],
        &["dashboard", "--port", "0"],
        &["scheduler"],
        &["anchor"],
        &["status"],
        &["verify"],
        &["holders"],
        &["checkpoint"],
        &["vacuum", "--dry-run"],
        &["optimize"],
        &["journal-mode", "wal"],
        &["--profile", "work", "sessions", "list"],
    ] {
        let done = cli(&home, line.iter().chain(&["--json"]));
        assert_eq!(done.code(), 4, "{line:?}: {done:#?}");
        assert_eq!(error_code(&done), "no_store", "{line:?}");
        let plain = cli(&home, line);
        assert_eq!((plain.code(), plain.stdout.as_str()), (4, ""), "{line:?}: {plain:#?}");
        assert!(plain.stderr.starts_with("error: ") && plain.stderr.contains("hint: "), "{line:?}: {}", plain.stderr);
        before.assert_unchanged(home.around().path(), &[]);
    }
}

#[test]
fn home_and_json_stand_anywhere_on_the_line() {
    let home = furnished(Home::new());
    let elsewhere = Home::new();
    let path = home.path().to_str().unwrap();
    for line in [
        ["--home", path, "--json", "sessions", "list"],
        ["sessions", "--home", path, "--json", "list"],
        ["sessions", "list", "--json", "--home", path],
        ["--json", "sessions", "list", "--home", path],
    ] {
        let done = cli(&elsewhere, line).success();
        assert_eq!(done.json(), Value::Array(Vec::new()), "{line:?}");
    }
    assert!(!elsewhere.path().exists());
}

#[test]
fn conversations_are_documents_for_programs_and_harmless_text_for_people() {
    let home = furnished(Home::new());
    let gateway = Service::start(&home, "gateway", |_| {});
    let client = Client::new(&gateway.url, &home.token());
    let evil = "the word marmalade \u{1b}]0;owned\u{7} ends";
    let first = client.talk("c1", "1", evil);
    client.talk("c2", "1", "日本語の話 🎉");
    drop(gateway);

    let id = first["session_id"].as_str().unwrap();
    let list = answer(&home, ["sessions", "list"]);
    let sessions = list.as_array().unwrap();
    assert_eq!(sessions.len(), 2);
    let session = sessions.iter().find(|s| s["id"] == id).unwrap();
    for field in [
        "id",
        "parent_id",
        "origin",
        "title",
        "source",
        "started_at",
        "last_active_at",
        "messages",
        "archived",
        "pinned",
    ] {
        assert!(session.get(field).is_some(), "{field}: {session}");
    }
    assert_eq!((&session["messages"], &session["source"]), (&Value::from(2), &Value::from("http")));
    assert_eq!(answer(&home, ["sessions", "list", "--limit", "1"]).as_array().unwrap().len(), 1);
    assert_eq!(answer(&home, ["sessions", "list", "--source", "cli"]).as_array().unwrap().len(), 0);

    let shown = answer(&home, ["sessions", "show", id]);
    let messages = shown["messages"].as_array().unwrap();
    assert_eq!(messages.len(), 2);
    assert_eq!((&messages[0]["role"], &messages[0]["text"]), (&Value::from("user"), &Value::from(evil)));
    let first_message = messages[0]["id"].as_str().unwrap();
    let after = answer(&home, ["sessions", "show", id, "--after", first_message]);
    assert_eq!(after["messages"].as_array().unwrap().len(), 1);

    let found = answer(&home, ["sessions", "search", "marmalade", "--sort", "newest"]);
    assert_eq!(found.as_array().unwrap().len(), 2, "the message and its echo: {found}");
    assert_eq!(found[0]["session_id"], id);
    for field in ["message_id", "role", "snippet", "score", "created_at"] {
        assert!(found[0].get(field).is_some(), "{field}: {found}");
    }
    let of = |source| answer(&home, ["sessions", "search", "marmalade", "--source", source]).as_array().unwrap().len();
    assert_eq!((of("http"), of("telegram")), (2, 0));
    assert_eq!(answer(&home, ["sessions", "search", "日本"]).as_array().unwrap().len(), 2);

    assert_eq!(answer(&home, ["sessions", "rename", id, "a\u{1b}[31mred title"])["title"], "a\u{1b}[31mred title");
    assert!(answer(&home, ["sessions", "end", id, "--reason", "done"])["ended_at"].is_string());
    let people = cli(&home, ["sessions", "list"]).success();
    assert!(people.stdout.contains("a\\u{1b}[31mred title") && !people.stdout.contains('\u{1b}'), "{}", people.stdout);
    assert!(people.stdout.lines().all(|l| l == l.trim_end()), "no blanks at the ends of lines");
    assert!(cli(&home, ["sessions", "search", "marmalade"]).success().stdout.contains(id));
    assert!(answer(&home, ["sessions", "rename", id])["title"].is_null());

    for line in [["sessions", "show", "nothing"], ["sessions", "end", "nothing"], ["worker", "run", "nothing"]] {
        let done = cli(&home, line.iter().chain(&["--json"]));
        assert_eq!((done.code(), error_code(&done).as_str()), (1, "not_found"), "{line:?}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_accident() {
    let home = furnished(Home::new());
    for line in [&["sessions", "list"][..], &["status", "--json"], &["--help"], &["holders"]] {
        let mut child = statehouse(&home, line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let done = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(0), "{line:?}: {said}");
        assert_eq!(said, "", "{line:?}");
    }
}

#[test]
fn a_key_that_is_unknown_is_named_and_nothing_starts() {
    let home = furnished(Home::new());
    fs::write(home.path().join("config.toml"), "[gateway]\nprot = 1\n").unwrap();
    let before = Snapshot::of(home.path(), &[]);
    for line in [&["up"][..], &["gateway"], &["dashboard"], &["scheduler"]] {
        let done = cli(&home, line.iter().chain(&["--json"]));
        assert_eq!((done.code(), error_code(&done).as_str()), (2, "bad_config"), "{line:?}: {done:#?}");
        let detail = done.json()["error"]["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("prot") && detail.contains("line 2"), "{detail}");
    }
    before.assert_unchanged(home.path(), &[]);
}

#[test]
fn a_profile_is_a_home_of_its_own() {
    let home = Home::new();
    let up = Up::start(&home, |c| {
        c.args(["--profile", "work"]);
    });
    let profile = home.path().join("profiles/work");
    let token = fs::read_to_string(profile.join("token")).unwrap();
    Client::new(up.url("gateway"), token.trim()).talk("c", "1", "for the profile");
    up.stop();
    assert!(!home.store().exists() && profile.join("state.db").exists());
    assert_eq!(answer(&home, ["sessions", "list", "--profile", "work"]).as_array().unwrap().len(), 1);
    let named = profile.to_str().unwrap();
    assert_eq!(answer(&home, ["sessions", "list", "--home", named]).as_array().unwrap().len(), 1);
}

#[test]
fn the_scheduler_starts_a_worker_each_time_that_the_job_is_due() {
    let home = Home::new();
    fs::create_dir(home.path()).unwrap();
    fs::write(home.path().join("config.toml"), "[scheduler]\nhousekeeping_every = \"1s\"\n").unwrap();
    let up = Up::start(&home, |_| {});
    let log = home.path().join("logs/scheduler.log");
    until("three housekeeping runs are done", PATIENCE, || {
        fs::read_to_string(&log).is_ok_and(|t| t.matches("job housekeeping done").count() >= 3)
    });
    let second = run(statehouse(&home, ["scheduler", "--json"]).stdin(Stdio::null()), PATIENCE);
    assert_eq!((second.code(), error_code(&second).as_str()), (4, "already_running"));
    up.stop();
    assert!(!fs::read_to_string(&log).unwrap().contains("failed"));
}

#[test]
fn an_answer_that_cannot_be_written_is_an_error() {
    let home = furnished(Home::new());
    for line in [&["--version"][..], &["sessions", "list", "--json"], &["holders"]] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let done = statehouse(&home, line).stdout(full).output().unwrap();
        assert_eq!(done.status.code(), Some(1), "{line:?}: {done:?}");
        assert!(String::from_utf8_lossy(&done.stderr).contains("cannot be written"), "{line:?}: {done:?}");
    }
}

#[test]
fn what_cannot_be_imported_makes_no_home() {
    let home = Home::new();
    let beside = home.around().join("beside");
    fs::create_dir(&beside).unwrap();
    fs::write(beside.join("letter"), "no database").unwrap();
    fs::write(beside.join("state.db"), "").unwrap();
    let before = Snapshot::of(home.around().path(), &[]);
    for source in ["/nowhere", beside.to_str().unwrap(), beside.join("letter").to_str().unwrap(), "/dev/null"] {
        let done = cli(&home, ["sessions", "import", "hermes", source, "--json"]);
        assert_eq!((done.code(), error_code(&done).as_str()), (1, "bad_source"), "{source}: {done:#?}");
        before.assert_unchanged(home.around().path(), &[]);
    }
}
