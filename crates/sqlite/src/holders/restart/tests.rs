//! Answers of the Restart Manager, made up around a real file.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::*;

const OWN: u32 = 100;

fn user(pid: u32, name: &str, service: &str) -> User {
    // 2000-02-29T12:34:56Z, as Windows counts.
    User { pid, started: 125_963_012_960_000_000, name: name.to_owned(), service: service.to_owned() }
}

fn asked(member: Member, users: Result<Vec<User>, String>) -> Asked {
    let here = std::env::current_exe().unwrap();
    Asked { member, status: Status::of(&here).unwrap().unwrap(), users }
}

/// A machine on which everything can be seen.
fn seen(asked: Vec<Asked>) -> Found {
    Found { asked, proof: Ok(vec![user(OWN, "statehouse", "")]), uninspected: 0, own: OWN }
}

fn report(found: Found) -> Report {
    conclude(Path::new(r"\\?\C:\Users\me\state.db"), found)
}

#[test]
fn a_process_with_several_files_is_one_holder() {
    let users = || Ok(vec![user(9, "Backup", "bck-svc"), user(7, "Hermes", "")]);
    let report = report(seen(vec![
        asked(Member::Main, users()),
        asked(Member::Wal, users()),
        asked(Member::Shm, Ok(vec![user(7, "Hermes", "")])),
    ]));
    assert_eq!(report.verdict, Verdict::Held);
    assert_eq!(report.holders.iter().map(|h| h.pid).collect::<Vec<_>>(), [Some(7), Some(9)]);
    let hermes = &report.holders[0];
    assert_eq!(hermes.files.iter().map(|f| f.member).collect::<Vec<_>>(), [Member::Main, Member::Wal, Member::Shm]);
    assert_eq!(hermes.start_time.as_deref(), Some("2000-02-29T12:34:56.000000Z"));
    assert_eq!(
        (hermes.command.as_slice(), hermes.stop.as_str()),
        (["Hermes".to_owned()].as_slice(), "taskkill /PID 7")
    );
    assert_eq!(report.holders[1].stop, "sc stop bck-svc");
    assert!(!report.alarming());
    assert!(report.limits[0].contains("locks"), "{:?}", report.limits);
}

#[test]
fn a_process_that_is_named_once_for_each_of_its_services_is_one_holder() {
    let users = vec![user(7, "Host", "one"), user(7, "Host", "two")];
    let report = report(seen(vec![asked(Member::Main, Ok(users))]));
    assert_eq!((report.holders.len(), report.holders[0].files.len()), (1, 1));
}

#[test]
fn nobody_is_quiet_only_where_everything_was_seen() {
    let nobody = || vec![asked(Member::Main, Ok(Vec::new())), asked(Member::Wal, Ok(Vec::new()))];
    let quiet = report(seen(nobody()));
    assert_eq!((quiet.verdict, quiet.limits.len()), (Verdict::Quiet, 1));

    let unknown = |found: Found, word: &str| {
        let report = report(found);
        assert_eq!(report.verdict, Verdict::Unknown, "{word}");
        assert!(report.limits.iter().any(|l| l.contains(word)), "{word}: {:?}", report.limits);
    };
    unknown(Found { uninspected: 3, ..seen(nobody()) }, "3 processes");
    unknown(Found { proof: Err("RmStartSession: denied".to_owned()), ..seen(nobody()) }, "RmStartSession");
    // A Restart Manager that answers and knows nothing, as a stand-in for it does.
    unknown(Found { proof: Ok(Vec::new()), ..seen(nobody()) }, "does not name this process");
    unknown(Found { proof: Ok(vec![user(OWN + 1, "x", "")]), ..seen(nobody()) }, "does not name this process");
    let one_failed = vec![asked(Member::Main, Ok(Vec::new())), asked(Member::Wal, Err("no room".to_owned()))];
    unknown(seen(one_failed), "who uses wal");
    // Some are known, and there may be more.
    let some = vec![asked(Member::Main, Ok(vec![user(7, "x", "")])), asked(Member::Wal, Err("no room".to_owned()))];
    unknown(seen(some), "who uses wal");
    for path in [r"\\server\share\state.db", r"\\?\UNC\server\share\state.db"] {
        let report = conclude(Path::new(path), seen(nobody()));
        assert_eq!(report.verdict, Verdict::Unknown, "{path}");
        assert!(report.limits.iter().any(|l| l.contains("another machine")));
    }
}

#[test]
fn this_process_is_marked_as_such() {
    let report = report(seen(vec![asked(Member::Main, Ok(vec![user(OWN, "statehouse", "")]))]));
    assert!(report.holders[0].is_self);
}

#[test]
fn odd_answers_do_no_harm() {
    let odd = User { pid: u32::MAX, started: 0, name: String::new(), service: "x & shutdown /s".to_owned() };
    let report = report(seen(vec![asked(Member::Main, Ok(vec![odd]))]));
    let holder = &report.holders[0];
    assert_eq!((holder.start_time.as_deref(), holder.command.len()), (None, 0));
    assert_eq!(
        holder.stop,
        format!("taskkill /PID {}", u32::MAX),
        "a name that is more than a name is never a command"
    );
}

#[test]
fn names_end_at_their_zero() {
    let wide = |text: &str| text.encode_utf16().collect::<Vec<u16>>();
    assert_eq!(text(&[wide("Höme"), vec![0], wide("garbage")].concat()), "Höme");
    assert_eq!(text(&wide("no end")), "no end");
    assert_eq!(text(&[0xd800, 0]), "\u{fffd}");
    assert_eq!(text(&[]), "");
}

#[test]
fn paths_are_given_without_the_prefix_or_not_at_all() {
    assert_eq!(plain(r"\\?\C:\Users\me\state.db").as_deref(), Some(r"C:\Users\me\state.db"));
    assert_eq!(plain(r"\\?\UNC\server\share\state.db").as_deref(), Some(r"\\server\share\state.db"));
    assert_eq!(plain(r"C:\state.db").as_deref(), Some(r"C:\state.db"));
    assert_eq!(plain(r"\\?\Volume{0}\state.db"), None);
    let long = format!(r"C:\{}", "ä".repeat(256));
    assert_eq!(plain(&long).as_deref(), Some(long.as_str()));
    assert_eq!(plain(&format!("{long}x")), None, "it would be cut");
}
