//! What the program said about a scene, beside what its row wants.

use std::fs;
use std::sync::OnceLock;

use serde_json::Value;
use statehouse_testkit::Finished;

use super::{OTHERS, Scene, Situation, Stop, Who};

/// True if this machine has processes that this test's own user may not look at.
fn unseen_by_this_user() -> bool {
    static UNSEEN: OnceLock<bool> = OnceLock::new();
    *UNSEEN.get_or_init(|| {
        let pids = fs::read_dir("/proc").unwrap().filter_map(|e| e.ok()?.file_name().to_str()?.parse::<u32>().ok());
        let denied = |e: std::io::Error| e.kind() == std::io::ErrorKind::PermissionDenied;
        let refused = |pid: u32| match fs::read_dir(format!("/proc/{pid}/fd")) {
            Ok(list) => list.flatten().any(|d| fs::read_link(d.path()).is_err_and(denied)),
            Err(e) => denied(e),
        };
        pids.into_iter().any(refused)
    })
}

/// All that is wrong with what was said.
pub(super) fn compare(row: &Situation, scene: &Scene, seen: &Finished) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut same = |what: &str, is: &dyn std::fmt::Debug, wanted: &dyn std::fmt::Debug| {
        let (is, wanted) = (format!("{is:?}"), format!("{wanted:?}"));
        if is != wanted {
            wrong.push(format!("{what} is {is} and should be {wanted}"));
        }
    };
    same("the exit status", &seen.code(), &row.exit.0);
    let Ok(document) = serde_json::from_str::<Value>(&seen.stdout) else {
        wrong.push("not one JSON document".into());
        return wrong;
    };
    let verdict = document["verdict"].as_str().or_else(|| document["error"]["code"].as_str());
    same("the verdict", &verdict.unwrap_or_default(), &row.verdict);
    let none = Vec::new();
    let listed = document["holders"].as_array().unwrap_or(&none);
    assert_eq!(scene.pids.len(), row.holders.len(), "{}: the row and what was built differ", row.name);
    same("the number of holders", &listed.len(), &row.holders.len());
    for (pid, who) in scene.pids.iter().zip(row.holders) {
        let name = pid.map_or_else(|| "who has no number".to_owned(), |p| format!("pid {p}"));
        let number = Value::from(*pid);
        match listed.iter().find(|h| h["pid"] == number) {
            Some(holder) => {
                for (what, is, wanted) in judged(holder, who, *pid, scene.is_foreign(&holder["user"])) {
                    same(&format!("{name}: {what}"), &is, &wanted);
                }
            }
            None => same(&name, &"missing", &"listed"),
        }
    }
    let limits: Vec<&str> = document["limits"].as_array().unwrap_or(&none).iter().filter_map(Value::as_str).collect();
    for words in row.limits {
        if !limits.iter().any(|l| l.contains(words)) {
            same("limits", &limits, words);
        }
    }
    // A machine may have processes that even this user may not look at; then that is rightly said each time.
    let usual = |l: &&str| unseen_by_this_user() && l.contains(OTHERS);
    if row.limits.is_empty() && !limits.iter().all(usual) {
        same("limits", &limits, &none);
    }
    wrong
}

/// What is said about one holder, beside what should be.
fn judged(holder: &Value, who: &Who, pid: Option<u32>, foreign: bool) -> Vec<(&'static str, String, String)> {
    let text = |key: &str| holder[key].as_str().unwrap_or_default().to_owned();
    let flag = |key: &str| holder[key].as_bool().map_or_else(|| "?".to_owned(), |b| b.to_string());
    let mut rows = vec![
        ("files", files(holder), who.files.to_owned()),
        ("locks", locks(holder), who.locks.to_owned()),
        ("naked", flag("naked"), who.naked.to_string()),
        ("ghost", flag("ghost"), who.ghost.to_string()),
        ("fenced", flag("fenced"), who.fenced.to_string()),
        ("role", text("role"), who.role.unwrap_or_default().to_owned()),
        ("evidence", text("evidence"), who.evidence.to_owned()),
        ("pid_namespace", text("pid_namespace"), who.namespace.to_owned()),
    ];
    let stop = text("stop");
    match who.stop {
        Stop::Number => {
            let sudo = if foreign { "sudo " } else { "" };
            rows.push(("stop", stop, format!("{sudo}kill {}", pid.unwrap_or_default())));
        }
        Stop::By(wanted) => rows.push(("stop", stop, wanted.to_owned())),
        Stop::There(words) if stop.contains(words) => {}
        Stop::There(words) => rows.push(("stop", stop, format!("… {words} …"))),
        Stop::Process | Stop::Killed => {
            let kill = match who.stop {
                // An orderly stop would let it copy its log over the database.
                _ if who.ghost => "kill -KILL",
                Stop::Killed => "kill -9",
                _ => "kill",
            };
            // Nobody but root stops a process of somebody else.
            let sudo = if foreign { "sudo " } else { "" };
            let begin = format!("{sudo}{kill} {}  # ", pid.unwrap_or_default());
            let shown = stop.strip_prefix(&begin).unwrap_or_default();
            let program = holder["command"][0].as_str().unwrap_or_default();
            if shown.is_empty() || program.is_empty() || !shown.starts_with(program) {
                rows.push(("stop", stop.clone(), format!("{begin}{program} …")));
            }
        }
    }
    rows
}

fn files(holder: &Value) -> String {
    let mut files: Vec<(usize, String)> = Vec::new();
    for file in holder["files"].as_array().into_iter().flatten() {
        let member = file["member"].as_str().unwrap_or_default();
        let order = ["main", "wal", "shm", "journal"].iter().position(|m| *m == member).unwrap_or(9);
        let gone = if file["generation"] == "retired" { "!" } else { "" };
        let via = match file["via"].as_str() {
            Some("mapping") => "~",
            Some("lock") => "?",
            _ => "",
        };
        files.push((order, format!("{member}{gone}{via}")));
    }
    files.sort();
    files.into_iter().map(|(_, f)| f).collect::<Vec<_>>().join(" ")
}

fn locks(holder: &Value) -> String {
    let held = &holder["locks"];
    let mut names: Vec<&str> =
        ["shared", "dms", "reserved", "write", "checkpoint"].into_iter().filter(|n| held[*n] == true).collect();
    if held["readers"].as_array().is_some_and(|r| !r.is_empty()) {
        names.push("readers");
    }
    names.join(" ")
}
