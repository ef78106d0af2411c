//! What is not safe to open is refused with its own code, within a second, and nothing on disk has changed.
//!
//! The table is run on a home of root's by root, on a user's home by that user, and on the same home by somebody else;
//! in each of them a regular home stands beside, so that "refused" does not come from the way there.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::fs::{CWD, FileType, Mode};
use statehouse_testkit::user::{User, runnable_by_all};
use statehouse_testkit::{Finished, Home, Snapshot, TestDir, need, run};

use crate::house::{Client, Service, beside, error_code, furnished, messages};

/// The longest that a refusal may take.
const SOON: Duration = Duration::from_secs(1);
const MEMBERS: [&str; 4] = ["", "-wal", "-shm", "-journal"];

/// A home whose store has committed messages in its log that no checkpoint has moved yet: what a `kill -9` leaves.
struct Template {
    directory: TestDir,
}

impl Template {
    fn get() -> &'static Template {
        static TEMPLATE: OnceLock<Template> = OnceLock::new();
        TEMPLATE.get_or_init(|| {
            let home = furnished(Home::new());
            let gateway = Service::start(&home, "gateway", |_| {});
            let client = Client::new(&gateway.url, &home.token());
            for i in 0..5 {
                client.talk("template", &format!("m{i}"), &format!("message {i} of the template"));
            }
            let directory = TestDir::new();
            // Copied by a process without a connection while the gateway is at rest, as a power cut would leave it.
            copy_tree(home.path(), &directory.join("home"));
            assert!(fs::metadata(directory.join("home/state.db-wal")).unwrap().len() > 32, "the log has commits");
            Template { directory }
        })
    }

    /// Puts a fresh copy at `path`.
    fn put(&self, path: &Path) {
        copy_tree(&self.directory.join("home"), path);
    }
}

fn copy_tree(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => copy_tree(&entry.path(), &target),
            kind if kind.is_file() => drop(fs::copy(entry.path(), target).unwrap()),
            _ => {}
        }
    }
}

/// One way in which a home is not as it should be.
struct Case {
    name: String,
    /// The code that the one who owns the home must see; `None` if it must open.
    code: Option<&'static str>,
    spoil: Box<dyn Fn(&Path)>,
}

fn case(name: impl Into<String>, code: impl Into<Option<&'static str>>, spoil: impl Fn(&Path) + 'static) -> Case {
    Case { name: name.into(), code: code.into(), spoil: Box::new(spoil) }
}

/// Everything of the table. `foreign` is a user who is not the owner of the home.
fn cases(foreign: User, root: bool) -> Vec<Case> {
    let mut cases = vec![case("regular control", None, |_| {})];
    for suffix in MEMBERS {
        let at = move |home: &Path| home.join(format!("state.db{suffix}"));
        let name = |what: &str| format!("{what} at state.db{suffix}");
        // The real file keeps its content, so that a product that followed the link would find a good database.
        let aside = move |home: &Path| {
            let real = home.with_extension("real");
            if fs::rename(at(home), &real).is_err() {
                fs::write(&real, "").unwrap();
            }
            real
        };
        cases.push(case(name("symlink"), "refused_symlink", move |home| symlink(aside(home), at(home)).unwrap()));
        cases.push(case(name("dangling symlink"), "refused_symlink", move |home| {
            let _ = fs::remove_file(at(home));
            symlink(home.join("nowhere"), at(home)).unwrap();
        }));
        cases.push(case(name("directory"), "refused_not_regular", move |home| {
            let _ = fs::remove_file(at(home));
            fs::create_dir(at(home)).unwrap();
        }));
        cases.push(case(name("FIFO"), "refused_not_regular", move |home| {
            let _ = fs::remove_file(at(home));
            rustix::fs::mknodat(CWD, at(home), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        }));
        cases.push(case(name("socket"), "refused_not_regular", move |home| {
            let _ = fs::remove_file(at(home));
            drop(UnixListener::bind(at(home)).unwrap());
        }));
        if root {
            cases.push(case(name("device"), "refused_not_regular", move |home| {
                let _ = fs::remove_file(at(home));
                let null = rustix::fs::makedev(1, 3);
                let mode = Mode::RUSR | Mode::WUSR;
                rustix::fs::mknodat(CWD, at(home), FileType::CharacterDevice, mode, null).unwrap();
            }));
            cases.push(case(name("foreign owner"), "refused_owner", move |home| {
                if !at(home).exists() {
                    fs::write(at(home), "").unwrap();
                }
                // The table gives the home to its owner after it was spoiled, but for what is marked by its group.
                std::os::unix::fs::chown(at(home), Some(foreign.0), Some(FOREIGN_GROUP)).unwrap();
            }));
        }
        cases.push(case(name("hard link"), "refused_hard_link", move |home| {
            if !at(home).exists() {
                fs::write(at(home), "").unwrap();
            }
            fs::hard_link(at(home), home.join("other-name")).unwrap();
        }));
    }
    cases.push(case("zero bytes beside a log", "refused_empty_beside_wal", |home| {
        fs::write(home.join("state.db"), "").unwrap();
    }));
    cases.push(case("a log without a main file", "refused_wal_without_main", |home| {
        fs::remove_file(home.join("state.db")).unwrap();
        let _ = fs::remove_dir_all(home.join("state.db.statehouse"));
    }));
    cases.push(case("garbage header before valid frames", "refused_wal_header", |home| {
        let wal = home.join("state.db-wal");
        let mut bytes = fs::read(&wal).unwrap();
        for (byte, noise) in bytes.iter_mut().zip((0..32).map(|i| 0x5a ^ (i * 37) as u8)) {
            *byte = noise;
        }
        fs::write(&wal, bytes).unwrap();
    }));
    for (name, content) in [("an empty", vec![]), ("a short", vec![7; 20]), ("an all-zero", vec![0; 8192])] {
        // What the log held is lost with it in these cases; the copy has a main file that stands on its own.
        cases.push(case(format!("{name} log"), None, move |home| {
            checkpointed(home);
            fs::write(home.join("state.db-wal"), &content).unwrap();
        }));
    }
    cases.push(case("not a database", "refused_not_database", |home| {
        fs::write(home.join("state.db"), "this is a letter to my aunt\n".repeat(400)).unwrap();
        let _ = fs::remove_file(home.join("state.db-wal"));
        let _ = fs::remove_file(home.join("state.db-shm"));
    }));
    cases
}

/// A group that marks a file as given away on purpose.
const FOREIGN_GROUP: u32 = 64_099;

/// Moves the log into the main file with Python's SQLite, which closes and removes both sidecars.
fn checkpointed(home: &Path) {
    let mut python = statehouse_testkit::visitor::Python::open(&home.join("state.db"));
    python.sql("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    python.quit();
}

/// Gives a whole room to its owner, but for what a case has given away on purpose.
fn give(room: &Path, owner: User) {
    use std::os::unix::fs::MetadataExt;
    let home = room.join("home");
    let entries = fs::read_dir(&home).unwrap().map(Result::unwrap);
    let foreign: Vec<(PathBuf, u32)> = entries
        .map(|e| (e.path(), e.metadata().unwrap()))
        .filter(|(_, status)| status.gid() == FOREIGN_GROUP)
        .map(|(path, status)| (path, status.uid()))
        .collect();
    owner.owns(room);
    for (path, uid) in foreign {
        std::os::unix::fs::chown(&path, Some(uid), Some(FOREIGN_GROUP)).unwrap();
    }
}

/// One run of the program on `home` by `user`.
fn open_as(user: Option<User>, program: &Path, home: &Path, arguments: &[&str]) -> Finished {
    let mut command = std::process::Command::new(program);
    command.args(arguments).arg("--json").arg("--home").arg(home).env_clear().env("TZ", "UTC").current_dir("/");
    if let Some(user) = user {
        user.runs(&mut command);
    }
    // The limit is checked by the caller; this one is for a program that hangs, as on a FIFO.
    run(&mut command, Duration::from_secs(20))
}

fn table(owner: Option<User>, visitor: Option<User>) {
    let root = rustix::process::geteuid().is_root();
    let foreign = if owner == Some(User::THIRD) { User::OWNER } else { User::THIRD };
    let stranger = owner != visitor;
    let around = TestDir::new();
    let program = runnable_by_all(crate::house::binary(), around.path());
    let mut wrong = Vec::new();
    for (i, case) in cases(foreign, root).iter().enumerate() {
        // A directory of its own for each case, because links lead beside the home.
        let room = around.join(i.to_string());
        fs::create_dir(&room).unwrap();
        let home = room.join("home");
        Template::get().put(&home);
        (case.spoil)(&home);
        if let Some(owner) = owner {
            give(&room, owner);
        }
        if stranger {
            open_to_looks(&home);
        }
        let before = Snapshot::of(&room, &[]);
        for command in [&["sessions", "list"][..], &["worker", "run", "housekeeping"]] {
            let done = open_as(visitor, &program, &home, command);
            let label = format!("{} ({command:?})", case.name);
            if done.took > SOON {
                wrong.push(format!("{label}: took {:?}", done.took));
            }
            match (case.code, stranger) {
                (None, false) => {
                    if !done.status.success() {
                        wrong.push(format!("{label}: must open: {done:#?}"));
                    }
                }
                (Some(code), false) => {
                    if done.status.code() != Some(4) || error_code(&done) != code {
                        wrong.push(format!("{label}: wanted {code}: {done:#?}"));
                    }
                }
                // Somebody else is refused in any case; which of two reasons comes first is not promised.
                (code, true) => {
                    let said = if done.status.code() == Some(4) { error_code(&done) } else { format!("{done:#?}") };
                    let allowed = ["refused_owner", "refused_permission"];
                    if !allowed.contains(&said.as_str()) && Some(said.as_str()) != code {
                        wrong.push(format!("{label}: wanted a refusal for the owner's sake: {said}"));
                    }
                }
            }
            if case.code.is_some() || stranger {
                let changed = before.differences(&Snapshot::of(&room, &[]));
                if !changed.is_empty() {
                    wrong.push(format!("{label}: changed on disk: {changed:#?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

/// Lets everybody read, so that a refusal for a stranger is the product's own.
fn open_to_looks(home: &Path) {
    for entry in fs::read_dir(home).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_file() {
            fs::set_permissions(entry.path(), fs::Permissions::from_mode(0o644)).unwrap();
        }
    }
    fs::set_permissions(home, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn the_table_on_a_home_of_this_user() {
    table(None, None);
}

#[test]
fn the_table_as_an_owner_who_is_not_root() {
    if need::root("running as another user") {
        table(Some(User::OWNER), Some(User::OWNER));
    }
}

#[test]
fn the_table_as_a_third_user() {
    if need::root("running as another user") {
        table(Some(User::OWNER), Some(User::THIRD));
    }
}

#[test]
fn a_refused_house_writes_nothing_but_its_log() {
    let around = TestDir::new();
    for (i, case) in cases(User::THIRD, rustix::process::geteuid().is_root()).iter().enumerate() {
        let Some(code) = case.code else { continue };
        let room = around.join(i.to_string());
        fs::create_dir(&room).unwrap();
        let home = room.join("home");
        Template::get().put(&home);
        (case.spoil)(&home);
        let before = Snapshot::of(&room, &["home/logs"]);
        let arguments = ["up", "--gateway-port", "0", "--dashboard-port", "0"];
        let mut done = open_as(None, crate::house::binary(), &home, &arguments);
        assert_eq!(done.status.code(), Some(4), "{}: {done:#?}", case.name);
        // The error is the last line of a stream of lines.
        done.stdout = done.stdout.lines().last().unwrap_or_default().to_owned();
        assert_eq!(error_code(&done), code, "{}", case.name);
        assert!(done.took < SOON, "{}: {:?}", case.name, done.took);
        before.assert_unchanged(&room, &["home/logs"]);
    }
}

#[test]
fn a_home_with_an_odd_name_is_opened_where_it_says() {
    for name in ["a#b", "a?mode=ro", "100%25", "with space", "状態の家", "two\nlines", "-dash", "quote'\"", "file:x"]
    {
        let home = furnished(Home::named(name));
        let gateway = Service::start(&home, "gateway", |_| {});
        Client::new(&gateway.url, &home.token()).talk("c", "1", "hello from an odd place");
        drop(gateway);
        let rows = messages(&home);
        assert!(rows.iter().any(|r| r.2 == "hello from an odd place"), "{name:?}: {rows:?}");
        assert!(home.store().is_file() && beside(&home.store(), "-wal").exists(), "{name:?}");
        // A path cut short at `#` or `?` would have made a file beside the home.
        let beside_it: Vec<PathBuf> = fs::read_dir(home.around().path())
            .unwrap()
            .map(|e| e.unwrap().path())
            .filter(|p| p != home.path())
            .collect();
        assert!(beside_it.is_empty(), "{name:?}: {beside_it:?}");
    }
    // A name that is not text is a path like any other.
    let home = furnished(Home::named(std::ffi::OsStr::from_bytes(b"caf\xe9")));
    let gateway = Service::start(&home, "gateway", |_| {});
    Client::new(&gateway.url, &home.token()).talk("c", "1", "bytes");
    assert!(home.store().is_file());
}
