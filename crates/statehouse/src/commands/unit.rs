//! `statehouse service print UNIT [PATH]`: a systemd unit on standard output.
//!
//! The hardening is chosen so that it breaks nothing. An anchor looks into the processes of others, so it needs `/proc` as it
//! is; and it must see the very directories that others see, also after one was removed and made again, so it gets no mount
//! namespace of its own (no `ProtectSystem`, `ProtectHome`, `PrivateTmp`). `up` starts commands that its user configured,
//! which would inherit every restriction, so it has none.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;
use statehouse_sqlite::files;

use super::Context;
use crate::args::{PrintUnit, Unit};
use crate::exit;
use crate::failure::{Failure, Result, code};
use crate::home::Place;
use crate::text::{escape_line, shell_word};

/// A unit, and the name under which it is best installed.
#[derive(Debug, Serialize)]
struct Printed {
    name: String,
    unit: String,
}

pub(crate) fn run(context: &Context, print: &PrintUnit) -> Result {
    let program = std::env::current_exe().map_err(|e| Failure::io("find", Path::new("/proc/self/exe"), e))?;
    if !program.is_file() {
        return Err(Failure::new(exit::FAILED, code::IO, format!("{} is not there any more", program.display()))
            .hint("Run the program that is to be started by the unit."));
    }
    let printed = match print.unit {
        Unit::Anchor => anchor(&program, &Place::of(print.path.as_deref(), &context.home).database, print.user),
        Unit::Up => {
            let home = match &print.path {
                Some(path) => std::path::absolute(path).map_err(|e| Failure::io("resolve", path, e))?,
                None => context.home.directory().to_owned(),
            };
            up(&program, &home, print.user)
        }
    };
    context.output.answer(&printed, |p| p.unit.clone());
    Ok(exit::OK)
}

fn anchor(program: &Path, database: &Path, user: bool) -> Printed {
    let owner = owner(database);
    let start = command(program, &[b"anchor", b"--wait", b"--", database.as_os_str().as_bytes()]);
    let mut service = format!(
        "Type=exec\n\
         ExecStart={start}\n\
         # What cannot be anchored yet is waited for. Status 2 and 4 need a person, and starting again would not help.\n\
         Restart=on-failure\n\
         RestartSec=1\n\
         RestartPreventExitStatus=2 4\n\
         TimeoutStopSec=15\n"
    );
    // The capabilities of root are cut down to those for reading files of others, handing over what it makes, and looking
    // into processes; another user has none.
    if !user {
        let (name, capabilities) = match owner {
            0 => (None, "CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_SYS_PTRACE"),
            uid => (Some(user_name(uid)), ""),
        };
        if let Some(name) = name {
            let _ = writeln!(service, "User={name}");
        }
        let _ = write!(service, "CapabilityBoundingSet={capabilities}\nOOMScoreAdjust=-500\n");
    }
    service.push_str(
        "UMask=0077\n\
         NoNewPrivileges=yes\n\
         LockPersonality=yes\n\
         MemoryDenyWriteExecute=yes\n\
         RestrictAddressFamilies=AF_UNIX\n\
         RestrictNamespaces=yes\n\
         RestrictRealtime=yes\n\
         RestrictSUIDSGID=yes\n\
         SystemCallArchitectures=native\n\
         SystemCallFilter=@system-service\n",
    );
    let what = format!("Statehouse anchor of {}", database.display());
    finish(Draft { unit: "anchor", subject: database, what, service, user })
}

fn up(program: &Path, home: &Path, user: bool) -> Printed {
    let start = command(program, &[b"up", b"--home", home.as_os_str().as_bytes()]);
    let mut service = format!(
        "Type=exec\n\
         ExecStart={start}\n\
         # Status 2 and 4 need a person, and starting again would not help.\n\
         Restart=on-failure\n\
         RestartSec=2\n\
         RestartPreventExitStatus=2 4\n\
         # It stops its services in order.\n\
         KillMode=mixed\n\
         TimeoutStopSec=45\n\
         UMask=0077\n"
    );
    let owner = owner(home);
    if !user && owner != 0 {
        let _ = writeln!(service, "User={}", user_name(owner));
    }
    let what = format!("Statehouse in {}", home.display());
    finish(Draft { unit: "up", subject: home, what, service, user })
}

struct Draft<'a> {
    unit: &'static str,
    /// What it is for: a database or a home.
    subject: &'a Path,
    what: String,
    service: String,
    user: bool,
}

fn finish(draft: Draft<'_>) -> Printed {
    let Draft { unit, subject, what, service, user } = draft;
    let name = file_name(unit, subject);
    let (place, control, target) = match user {
        true => ("~/.config/systemd/user", "systemctl --user", "default.target"),
        false => ("/etc/systemd/system", "sudo systemctl", "multi-user.target"),
    };
    let flag = if user { " --user" } else { "" };
    let tee = if user { "tee" } else { "sudo tee" };
    let path = shell_word(&subject.to_string_lossy());
    // A mount that comes late would hide the directory that is looked at before.
    let directory = if unit == "up" { subject } else { subject.parent().unwrap_or(subject) };
    let mounts =
        if user { String::new() } else { format!("RequiresMountsFor={}\n", word(directory.as_os_str().as_bytes())) };
    let unit = format!(
        "# statehouse service print {unit} {path}{flag} | {tee} {place}/{name}\n\
         # {control} daemon-reload && {control} enable --now {name}\n\
         [Unit]\n\
         Description={}\n\
         {mounts}\
         StartLimitIntervalSec=300\n\
         StartLimitBurst=20\n\
         \n\
         [Service]\n\
         {service}\
         \n\
         [Install]\n\
         WantedBy={target}\n",
        escape_line(&what).replace('\\', "\\\\").replace('%', "%%"),
        path = escape_line(&path),
    );
    Printed { name, unit }
}

/// A name for the unit's file that a shell and systemd take as it is.
fn file_name(unit: &str, subject: &Path) -> String {
    let of = |p: &Path| p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let parent = subject.parent().map(of).unwrap_or_default();
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' || c == '_' { c } else { '-' };
    let text: String = format!("{parent}-{}", of(subject)).chars().map(plain).collect();
    let text: String = text.trim_matches(['-', '.']).chars().take(100).collect();
    format!("statehouse-{unit}-{text}.service")
}

/// A command line. The colon keeps `$` from meaning anything.
fn command(program: &Path, arguments: &[&[u8]]) -> String {
    let program = [b":", program.as_os_str().as_bytes()].concat();
    let words: Vec<String> = std::iter::once(program.as_slice()).chain(arguments.iter().copied()).map(word).collect();
    words.join(" ")
}

/// One word of a unit file, quoted where it must be. What is no printable ASCII is spelled out byte by byte where it is
/// not text, and `%` begins a specifier everywhere.
fn word(bytes: &[u8]) -> String {
    let mut out = String::new();
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '%' => out.push_str("%%"),
                '"' | '\\' => out.extend(['\\', c]),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                c if c.is_control() => c.to_string().bytes().for_each(|b| spell(&mut out, b)),
                c => out.push(c),
            }
        }
        chunk.invalid().iter().for_each(|b| spell(&mut out, *b));
    }
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.:=@+,%".contains(c);
    if !out.is_empty() && out.chars().all(plain) { out } else { format!("\"{out}\"") }
}

fn spell(out: &mut String, byte: u8) {
    let _ = write!(out, "\\x{byte:02x}");
}

/// Who owns what is there, or the nearest directory above it; this user where nothing can be seen.
fn owner(path: &Path) -> u32 {
    let seen = path.ancestors().find_map(|p: &Path| std::fs::symlink_metadata(p).ok());
    seen.map_or_else(|| rustix::process::geteuid().as_raw(), |m| m.uid())
}

/// The name of a user as `/etc/passwd` has it, if systemd takes it; else the number.
fn user_name(uid: u32) -> String {
    let text = files::read_to_string(&PathBuf::from("/etc/passwd"), 16 << 20).unwrap_or_default();
    let name = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    let plain = |n: &String| {
        n.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && n.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    name.filter(plain).unwrap_or_else(|| uid.to_string())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, clippy::panic, reason = "a test")]

    use super::*;

    /// What systemd makes of a line of words (`systemd.syntax(7)`, `systemd.service(5)`), as bytes.
    fn understood(line: &str) -> Vec<Vec<u8>> {
        let mut words = Vec::new();
        let mut rest = line.as_bytes();
        while let Some(at) = rest.iter().position(|b| *b != b' ') {
            rest = &rest[at..];
            let quoted = rest[0] == b'"';
            let mut at = usize::from(quoted);
            let mut word = Vec::new();
            loop {
                match rest.get(at).copied() {
                    None => {
                        assert!(!quoted, "an open quote: {line}");
                        break;
                    }
                    Some(b'"') if quoted => {
                        at += 1;
                        assert!(rest.get(at).is_none_or(|b| *b == b' '), "something behind a quote: {line}");
                        break;
                    }
                    Some(b' ') if !quoted => break,
                    Some(b'\\') => {
                        let next = rest[at + 1];
                        at += 1;
                        word.push(match next {
                            b'n' => b'\n',
                            b't' => b'\t',
                            b'x' => {
                                let hex = std::str::from_utf8(&rest[at + 1..at + 3]).unwrap();
                                at += 2;
                                u8::from_str_radix(hex, 16).unwrap()
                            }
                            b'"' | b'\\' => next,
                            other => panic!("no escape: {}", char::from(other)),
                        });
                    }
                    Some(b'%') => {
                        assert_eq!(rest[at + 1], b'%', "a specifier: {line}");
                        at += 1;
                        word.push(b'%');
                    }
                    Some(byte) => {
                        assert!(byte >= b' ', "a control character: {line:?}");
                        word.push(byte);
                    }
                }
                at += 1;
            }
            words.push(word);
            rest = &rest[at..];
        }
        words
    }

    #[test]
    fn a_path_with_any_character_reaches_the_program_as_it_is() {
        let odd: [&[u8]; 10] = [
            b"/plain/state.db",
            b"/with a space/state.db",
            b"/100%/%h %n/state.db",
            b"/\"quoted\"/it's/state.db",
            b"/back\\slash\\n/state.db\\",
            b"/dollar $HOME ${HOME} $$/state.db",
            b"/line\nfeed\tand\x01\x7f/state.db",
            "/日本語/é/state.db".as_bytes(),
            b"/not\xfftext\xc3/state.db",
            b"/semi ; colon # hash/state.db",
        ];
        for path in odd {
            let database = PathBuf::from(std::ffi::OsStr::from_bytes(path));
            let program = database.with_file_name("state house");
            for user in [true, false] {
                let unit = anchor(&program, &database, user).unit;
                let start: Vec<&str> = unit.lines().filter_map(|l| l.strip_prefix("ExecStart=")).collect();
                let words = understood(start[0]);
                let colon = [b":", program.as_os_str().as_bytes()].concat();
                let all: [&[u8]; 5] = [&colon, b"anchor", b"--wait", b"--", path];
                assert_eq!((start.len(), words), (1, all.map(<[u8]>::to_vec).to_vec()), "{unit}");
                for line in unit.lines() {
                    let section = ["[Unit]", "[Service]", "[Install]"].contains(&line);
                    let setting = line.split_once('=').is_some_and(|(k, _)| k.chars().all(|c| c.is_ascii_alphabetic()));
                    assert!(line.is_empty() || line.starts_with("# ") || section || setting, "{line:?}");
                    assert!(!line.ends_with('\\') || line.ends_with("\\\\"), "it would continue: {line:?}");
                }
            }
        }
    }

    #[test]
    fn names_of_unit_files_are_plain() {
        assert_eq!(
            file_name("anchor", Path::new("/home/me/.hermes/state.db")),
            "statehouse-anchor-hermes-state.db.service"
        );
        assert_eq!(file_name("up", Path::new("/home/a b/é%")), "statehouse-up-a-b.service");
        assert_eq!(file_name("up", Path::new("/")), "statehouse-up-.service");
    }
}
