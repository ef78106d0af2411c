//! What a command line says about a process that may not be looked at.
//!
//! It is weak evidence, and never makes a holder where every lock has an owner; but a program that was told to use this very
//! database may have it open without a lock. In falling weight: the exact path of a member; the process's own choice of a home
//! or profile, which speaks for it when it is the home of this database and clears it when it is another; any other path.
//! The path of the program proves nothing, for several installations share one, and neither does a word that occurs.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::target::Target;

/// What a command line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Speaks {
    /// It chose another home or profile.
    Elsewhere,
    /// Nothing of this database.
    Nothing,
    /// It names something below the home of this database.
    Path,
    /// It chose the home of this database.
    Home,
    /// It names one of its files.
    Member,
}

/// Programs whose profiles are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Program {
    Hermes,
    Statehouse,
}

impl Program {
    /// Its home where nothing chooses one, below that of the user.
    fn default_home(self) -> &'static str {
        match self {
            Program::Hermes => ".hermes",
            Program::Statehouse => ".statehouse",
        }
    }
}

/// The options that choose a home.
const HOMES: [&str; 2] = ["--hermes-home", "--home"];
const HOME_SETTINGS: [&str; 2] = ["HERMES_HOME", "STATEHOUSE_HOME"];
const PROFILES: [&str; 2] = ["--profile", "-p"];

/// `user_home` is the home directory of the user that the process runs as, where that is known.
pub(super) fn speaks(target: &Target, words: &[String], user_home: Option<&Path>) -> Speaks {
    let (program, first) = program(words);
    let arguments = words.get(1..).unwrap_or(&[]);
    let names_member = |w: &String| {
        let named = |path: &[u8]| target.member_named(path).is_some();
        candidates(w).any(|path| named(path.as_bytes())) || uri(w).is_some_and(|path| named(&path))
    };
    if arguments.iter().any(names_member) {
        return Speaks::Member;
    }
    if let Some(chosen) = chosen(target, program, arguments, user_home) {
        return chosen;
    }
    let paths = words.get(first..).unwrap_or(&[]).iter().flat_map(|w| candidates(w));
    paths.map(|path| place(target, path)).max_by_key(|s| (*s != Speaks::Nothing, *s)).unwrap_or(Speaks::Nothing)
}

/// A word as it stands, and what is after the `=` in it.
fn candidates(word: &str) -> impl Iterator<Item = &str> {
    std::iter::once(word).chain(word.split_once('=').map(|(_, value)| value)).filter(|w| w.starts_with('/'))
}

/// The path of a URI as SQLite understands it (<https://www.sqlite.org/uri.html>), wherever in the word it begins.
fn uri(word: &str) -> Option<Vec<u8>> {
    let (_, rest) = word.split_once("file:")?;
    let path = match rest.strip_prefix("//") {
        Some(rest) => rest.find('/').map(|at| &rest[at..])?,
        None => rest,
    };
    let path = path.split(['?', '#']).next()?.as_bytes();
    let mut plain = Vec::with_capacity(path.len());
    let mut at = 0;
    while let Some(byte) = path.get(at) {
        let hex = path.get(at + 1..at + 3).and_then(|h| u8::from_str_radix(std::str::from_utf8(h).ok()?, 16).ok());
        match hex.filter(|_| *byte == b'%') {
            Some(decoded) => {
                plain.push(decoded);
                at += 3;
            }
            None => {
                plain.push(*byte);
                at += 1;
            }
        }
    }
    plain.starts_with(b"/").then_some(plain)
}

/// The program, if its profiles are known, and the number of the first word that is no part of the program.
fn program(words: &[String]) -> (Option<Program>, usize) {
    let base = |word: &str| word.rsplit('/').next().unwrap_or("").to_owned();
    let by_name = |name: &str| match name {
        "hermes" | "hermes-agent" | "hermes-acp" => Some(Program::Hermes),
        "statehouse" => Some(Program::Statehouse),
        _ => None,
    };
    let Some(zeroth) = words.first() else { return (None, 0) };
    let name = base(zeroth);
    let interpreter = ["python", "pypy", "node", "bash", "sh", "dash", "zsh", "perl", "ruby", "bun", "deno"];
    if !interpreter
        .iter()
        .any(|i| name.strip_prefix(i).is_some_and(|v| v.bytes().all(|b| b.is_ascii_digit() || b == b'.')))
    {
        return (by_name(&name), 1);
    }
    let mut at = 1;
    while let Some(word) = words.get(at).map(String::as_str) {
        match word {
            "-m" => {
                let module = words.get(at + 1).map_or("", |m| m.as_str());
                let hermes = matches!(module, "hermes_cli" | "hermes_cli.main" | "acp_adapter");
                return (hermes.then_some(Program::Hermes), at + 2);
            }
            "-c" | "-e" => return (None, at + 2),
            // Options of Python that have a value of their own.
            "-W" | "-X" => at += 2,
            _ if word.starts_with('-') => at += 1,
            script => {
                let hermes = ["hermes_cli/main.py", "run_agent.py"];
                let known = hermes.iter().any(|s| script == *s || script.ends_with(&format!("/{s}")));
                return (by_name(&base(script)).or(known.then_some(Program::Hermes)), at + 1);
            }
        }
    }
    (None, at)
}

/// What the process was told to use, the last word of it.
fn chosen(target: &Target, program: Option<Program>, arguments: &[String], user_home: Option<&Path>) -> Option<Speaks> {
    let value = |names: &[&str], spaced: bool| {
        let of = |(at, word): (usize, &String)| match word.split_once('=') {
            Some((name, value)) if names.contains(&name) => Some(value.to_owned()),
            None if spaced && names.contains(&word.as_str()) => arguments.get(at + 1).cloned(),
            _ => None,
        };
        arguments.iter().enumerate().rev().find_map(of)
    };
    let home = value(&HOMES, true).or_else(|| value(&HOME_SETTINGS, false));
    let profile = program.and_then(|_| value(&PROFILES, true));
    // What is relative depends on a directory that is not known.
    let home = match home {
        Some(home) if !home.starts_with('/') => return None,
        Some(home) => Some(Path::new(&home).to_owned()),
        None => None,
    };
    let home = match (home, profile) {
        (None, None) => return None,
        (Some(home), None) => home,
        (home, Some(profile)) => {
            let root = home.or_else(|| Some(user_home?.join(program?.default_home())))?;
            if profile == "default" { root } else { root.join("profiles").join(profile) }
        }
    };
    let ours = home == target.directory || target.leads_here(Path::new("/"), home.as_os_str().as_bytes());
    Some(if ours { Speaks::Home } else { Speaks::Elsewhere })
}

/// Where a path lies. The directories of other profiles are below the home of the first one and are not its own.
fn place(target: &Target, path: &str) -> Speaks {
    let path = Path::new(path);
    if path.components().any(|c| c == std::path::Component::ParentDir) {
        return Speaks::Nothing;
    }
    if let Ok(below) = path.strip_prefix(&target.directory) {
        let other = below.starts_with("profiles") && below.components().count() > 1;
        return if other { Speaks::Elsewhere } else { Speaks::Path };
    }
    let siblings = target.directory.parent().filter(|p| p.file_name().is_some_and(|n| n == "profiles"));
    if siblings.is_some_and(|s| path.starts_with(s)) { Speaks::Elsewhere } else { Speaks::Nothing }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;
    use crate::family::Family;

    #[test]
    fn only_what_a_process_was_told_to_use_speaks() {
        let root = tempfile::tempdir().unwrap();
        let user = root.path().canonicalize().unwrap();
        let home = user.join(".hermes");
        let work = home.join("profiles/work");
        std::fs::create_dir_all(&work).unwrap();
        std::fs::create_dir_all(user.join("elsewhere")).unwrap();
        std::os::unix::fs::symlink(&home, user.join("link")).unwrap();
        let target =
            |directory: &std::path::Path| Target::of(&Family::of(&directory.join("state.db")).unwrap()).unwrap();
        let (of_home, of_work) = (target(&home), target(&work));
        let say = |target: &Target, line: &str| {
            let words: Vec<String> = line.split(' ').map(|w| w.replace("@", user.to_str().unwrap())).collect();
            speaks(target, &words, Some(&user))
        };
        use Speaks::{Elsewhere, Home, Member, Nothing, Path};
        for (line, in_home, in_work) in [
            ("grep hermes-agent gateway.log", Nothing, Nothing),
            ("sleep 60", Nothing, Nothing),
            ("sqlite3 @/.hermes/state.db", Member, Nothing),
            ("app --db=@/link/state.db-wal", Member, Nothing),
            ("app file:@/.hermes/state.db?mode=ro", Member, Nothing),
            ("app --db=file://localhost@/.hermes/%73tate.db#x", Member, Nothing),
            ("app file:state.db", Nothing, Nothing),
            ("app @/.hermes/profiles/work/state.db", Elsewhere, Member),
            ("app @/.hermes/state.db.bak", Path, Nothing),
            ("tail -f @/.hermes/logs/gateway.log", Path, Nothing),
            ("tail -f @/.hermes/profiles/work/log", Elsewhere, Path),
            ("tail -f @/.hermes/profiles/other/log", Elsewhere, Elsewhere),
            ("tail -f @/.hermes/../.hermes/x", Nothing, Nothing),
            // The program's own path is shared by every installation of it.
            ("@/.hermes/agent/venv/bin/python -m hermes_cli.main gateway", Nothing, Nothing),
            ("python3 @/.hermes/agent/hermes_cli/main.py gateway", Nothing, Nothing),
            ("@/.hermes/bin/hermes gateway", Nothing, Nothing),
            // The choice of a home.
            ("hermes --hermes-home @/.hermes gateway", Home, Elsewhere),
            ("hermes --hermes-home=@/link/ gateway", Home, Elsewhere),
            ("hermes --hermes-home=@/elsewhere --log @/.hermes/x", Elsewhere, Elsewhere),
            ("hermes --hermes-home=@/elsewhere --hermes-home @/.hermes", Home, Elsewhere),
            ("anything HERMES_HOME=@/.hermes gateway", Home, Elsewhere),
            ("statehouse gateway --home @/.hermes/profiles/work", Elsewhere, Home),
            ("env STATEHOUSE_HOME=@/elsewhere x", Elsewhere, Elsewhere),
            ("hermes --hermes-home relative gateway", Nothing, Nothing),
            ("hermes --hermes-home", Nothing, Nothing),
            // The choice of a profile.
            ("hermes -p work gateway", Elsewhere, Home),
            ("python3 -u -m hermes_cli.main --profile=work gateway", Elsewhere, Home),
            ("hermes --profile default gateway", Home, Elsewhere),
            ("hermes --hermes-home @/.hermes -p work", Elsewhere, Home),
            ("hermes --hermes-home @/elsewhere -p work", Elsewhere, Elsewhere),
            ("hermes -p other --log @/.hermes/x", Elsewhere, Elsewhere),
            ("statehouse gateway --profile work", Elsewhere, Elsewhere),
            // For any other program that option means something else.
            ("psql -p default", Nothing, Nothing),
            ("python3 -X dev -u serve.py -p work @/.hermes/x", Path, Nothing),
        ] {
            assert_eq!((say(&of_home, line), say(&of_work, line)), (in_home, in_work), "{line}");
        }
        // Of another user the same words choose that user's home.
        let words: Vec<String> = ["hermes", "-p", "work"].map(str::to_owned).to_vec();
        assert_eq!(speaks(&of_work, &words, Some(std::path::Path::new("/home/other"))), Elsewhere);
        assert_eq!(speaks(&of_work, &words, None), Nothing);
        assert_eq!(speaks(&of_work, &[], None), Nothing);
    }
}
