//! Every unsafe situation is refused with its own code, quickly, and with nothing changed on disk.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use statehouse_sqlite::headers::{self, Headers, Journal};
use statehouse_sqlite::secure::{self, Purpose};
use statehouse_sqlite::{Error, Family, Member, Reason, side};

use crate::support::{Sibling, visitor, with};

/// All that can be seen of a directory: names, inodes, modes, owners, sizes, all three times, and content.
fn picture(directory: &Path) -> BTreeMap<PathBuf, String> {
    let mut seen = BTreeMap::new();
    let mut todo = vec![directory.to_owned()];
    while let Some(path) = todo.pop() {
        let m = std::fs::symlink_metadata(&path).unwrap();
        let times = (m.atime(), m.atime_nsec(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
        // The time of access of directories is left out, for this function itself lists them.
        let times =
            if m.is_dir() { format!("{:?}", (times.2, times.3, times.4, times.5)) } else { format!("{times:?}") };
        let line = format!("{} {:o} {} {} {} {times}", m.ino(), m.mode(), m.uid(), m.nlink(), m.len());
        if m.is_dir() {
            todo.extend(std::fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        }
        seen.insert(path, line);
    }
    seen
}

fn check(path: &Path, purpose: Purpose) -> Result<Headers, Error> {
    secure::inspect(&Family::of(path)?, purpose).and_then(|i| headers::check(&i))
}

#[track_caller]
fn refused(path: &Path, reason: Reason) {
    let before = picture(path.parent().unwrap());
    for purpose in [Purpose::Own, Purpose::Look] {
        let begun = Instant::now();
        let answer = check(path, purpose);
        assert!(begun.elapsed() < Duration::from_secs(1), "took {:?}", begun.elapsed());
        match answer {
            Err(e) => assert_eq!(e.reason(), Some(reason), "{purpose:?}: {e}"),
            Ok(fine) => panic!("{purpose:?}: accepted as {fine:?}"),
        }
    }
    assert_eq!(before, picture(path.parent().unwrap()), "a refusal changed something");
}

#[track_caller]
fn accepted(path: &Path) -> Headers {
    let before = picture(path.parent().unwrap());
    let answers = [Purpose::Own, Purpose::Look].map(|p| check(path, p).unwrap());
    assert_eq!(before, picture(path.parent().unwrap()), "looking changed something");
    assert_eq!(answers[0], answers[1]);
    answers[0]
}

/// A directory with a database in WAL mode that nobody has open; its log is gone.
fn closed() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    visitor(&path, "PRAGMA journal_mode=WAL; CREATE TABLE m(id INTEGER PRIMARY KEY, t); INSERT INTO m(t) VALUES('a')");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    (directory, path)
}

/// A copy of a database in WAL mode whose log holds `commits` and was never checkpointed.
fn with_log(commits: u32, page_size: u32) -> (tempfile::TempDir, PathBuf) {
    let (source, path) = (tempfile::tempdir().unwrap(), "s.db");
    let live = source.path().join(path);
    let mut holder = Sibling::connected(&live);
    holder.sql(&format!("PRAGMA page_size={page_size}"));
    holder.sql("PRAGMA journal_mode=WAL");
    holder.sql("PRAGMA wal_autocheckpoint=0");
    holder.sql("CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    holder.sql("PRAGMA wal_checkpoint(TRUNCATE)");
    for i in 0..commits {
        holder.sql(&format!("INSERT INTO m(t) VALUES('row {i}')"));
    }
    let directory = tempfile::tempdir().unwrap();
    for suffix in ["", "-wal"] {
        std::fs::copy(with(&live, suffix), with(&directory.path().join(path), suffix)).unwrap();
    }
    let copy = directory.path().join(path);
    (directory, copy)
}

#[test]
fn ordinary_databases_are_accepted_and_left_untouched() {
    let (_d, path) = closed();
    match accepted(&path) {
        Headers::Database { header, from_log: false } => {
            assert_eq!((header.page_size, header.journal), (4096, Journal::Wal));
        }
        other => panic!("{other:?}"),
    }
    let (_d, path) = with_log(3, 1024);
    assert!(matches!(accepted(&path), Headers::Database { .. }));
    let empty = tempfile::tempdir().unwrap();
    assert_eq!(accepted(&empty.path().join("new.db")), Headers::New);
}

#[test]
fn paths_with_strange_characters_are_names_like_any_other() {
    let base = tempfile::tempdir().unwrap();
    for name in ["a#b", "what?", "100%25", "two words", "数据 库", "new\nline", "quote'\"", "-wal"] {
        let home = base.path().join(name);
        std::fs::create_dir(&home).unwrap();
        let path = home.join(format!("{name}.db"));
        let family = Family::of(&path).unwrap();
        let made = secure::create_main(&secure::inspect(&family, Purpose::Own).unwrap()).unwrap();
        assert_eq!(made.get(Member::Main).unwrap().status.size, 0);
        assert!(path.exists(), "{name:?}");
    }
}

#[test]
fn a_link_at_any_member_is_refused() {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        for dangling in [false, true] {
            let (d, path) = closed();
            let link = with(&path, suffix);
            let target = d.path().join("target");
            if suffix.is_empty() {
                std::fs::rename(&path, &target).unwrap();
            } else {
                std::fs::write(&target, b"x").unwrap();
            }
            if dangling {
                std::fs::remove_file(&target).unwrap();
            }
            symlink(&target, &link).unwrap();
            refused(&path, Reason::Symlink);
        }
    }
}

#[test]
fn what_is_no_regular_file_is_refused_and_never_blocks() {
    for suffix in ["", "-wal", "-shm", "-journal"] {
        for kind in ["directory", "fifo", "socket", "device"] {
            let (_d, path) = closed();
            let place = with(&path, suffix);
            if suffix.is_empty() {
                std::fs::remove_file(&path).unwrap();
            }
            let _listener;
            match kind {
                "directory" => std::fs::create_dir(&place).unwrap(),
                "fifo" => assert!(Command::new("mkfifo").arg(&place).status().unwrap().success()),
                "socket" => _listener = std::os::unix::net::UnixListener::bind(&place).unwrap(),
                _ if rustix::process::geteuid().is_root() => {
                    let made = Command::new("mknod").arg(&place).args(["c", "1", "3"]).status().unwrap();
                    assert!(made.success());
                }
                // Only root makes a device; everybody has this one.
                _ => {
                    let answer = check(Path::new("/dev/null"), Purpose::Own);
                    assert_eq!(answer.unwrap_err().reason(), Some(Reason::NotRegular));
                    continue;
                }
            }
            refused(&path, Reason::NotRegular);
        }
    }
}

#[test]
fn a_second_hard_link_is_refused() {
    for suffix in ["", "-wal", "-journal"] {
        let (d, path) = with_log(1, 4096);
        if suffix == "-journal" {
            std::fs::write(with(&path, suffix), b"").unwrap();
        }
        std::fs::hard_link(with(&path, suffix), d.path().join("other name")).unwrap();
        refused(&path, Reason::HardLink);
    }
}

#[test]
fn an_empty_main_file_beside_a_log_is_refused() {
    let (_d, path) = with_log(2, 4096);
    std::fs::File::create(&path).unwrap();
    refused(&path, Reason::EmptyBesideWal);
    // The control: this is what it protects from.
    visitor(&path, "SELECT count(*) FROM sqlite_master");
    assert!(!with(&path, "-wal").exists(), "an open deletes the log");
}

#[test]
fn a_log_or_journal_without_a_main_file_is_refused() {
    for suffix in ["-wal", "-journal"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.db");
        std::fs::write(with(&path, suffix), b"content").unwrap();
        refused(&path, Reason::WalWithoutMain);
        std::fs::write(with(&path, suffix), b"").unwrap();
        assert_eq!(accepted(&path), Headers::New);
    }
}

#[test]
fn the_journal_of_a_creation_that_was_killed_is_no_obstacle_and_that_of_a_truncated_database_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    let mut journal = vec![0u8; 512];
    journal[..8].copy_from_slice(&[0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7]);
    std::fs::write(&path, b"").unwrap();
    std::fs::write(with(&path, "-journal"), &journal).unwrap();
    assert_eq!(accepted(&path), Headers::New);
    journal[19] = 7; // The database had seven pages when this transaction began.
    std::fs::write(with(&path, "-journal"), &journal).unwrap();
    refused(&path, Reason::EmptyBesideWal);
}

#[test]
fn another_engines_file_beside_it_is_refused() {
    for suffix in ["-tshm", ".wal2", "-wal2"] {
        let (_d, path) = closed();
        std::fs::write(with(&path, suffix), b"").unwrap();
        refused(&path, Reason::OtherEngine);
    }
}

#[test]
fn a_store_that_was_here_and_is_gone_is_not_a_new_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    let family = Family::of(&path).unwrap();
    let inspected = secure::inspect(&family, Purpose::Own).unwrap();
    assert_eq!(inspected.require_main().unwrap_err().reason(), Some(Reason::NoStore));
    side::mark_created(&inspected).unwrap();
    refused(&path, Reason::StoreMissing);
    std::fs::write(&path, b"").unwrap();
    refused(&path, Reason::StoreMissing);
}

#[test]
fn garbage_is_no_database_unless_the_log_carries_a_good_first_page() {
    for content in [&[0u8; 8192][..], &[0x5a; 8192], b"short", b"SQLite format 3\0 and then nothing that fits"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.db");
        std::fs::write(&path, content).unwrap();
        refused(&path, Reason::NotDatabase);
    }
    // Page 1 is in the log when the schema changed after the last checkpoint.
    let source = tempfile::tempdir().unwrap();
    let live = source.path().join("s.db");
    let mut holder = Sibling::connected(&live);
    holder.sql("PRAGMA journal_mode=WAL");
    holder.sql("CREATE TABLE m(id INTEGER PRIMARY KEY, t)");
    holder.sql("INSERT INTO m(t) VALUES('kept')");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    std::fs::copy(with(&live, "-wal"), with(&path, "-wal")).unwrap();
    std::fs::write(&path, [0x5a; 4096]).unwrap();
    assert!(matches!(accepted(&path), Headers::Database { from_log: true, .. }));
    assert_eq!(visitor(&path, "SELECT t FROM m"), "kept", "SQLite agrees");
}

#[test]
fn the_newest_header_is_the_one_in_the_log() {
    let source = tempfile::tempdir().unwrap();
    let live = source.path().join("s.db");
    let mut holder = Sibling::connected(&live);
    holder.sql("PRAGMA journal_mode=WAL");
    holder.sql("PRAGMA application_id=1234");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.db");
    for suffix in ["", "-wal"] {
        std::fs::copy(with(&live, suffix), with(&path, suffix)).unwrap();
    }
    let inspected = secure::inspect(&Family::of(&path).unwrap(), Purpose::Own).unwrap();
    assert!(
        matches!(headers::check(&inspected).unwrap(), Headers::Database { header, .. } if header.application_id == 0)
    );
    assert_eq!(headers::in_log(&inspected).unwrap().unwrap().application_id, 1234);
    std::fs::remove_file(with(&path, "-wal")).unwrap();
    let inspected = secure::inspect(&Family::of(&path).unwrap(), Purpose::Own).unwrap();
    assert_eq!(headers::in_log(&inspected).unwrap(), None);
}

#[test]
fn a_damaged_log_header_before_valid_frames_is_refused() {
    for page_size in [512, 4096, 65536] {
        for commits in [1, 2, 5] {
            let (_d, path) = with_log(commits, page_size);
            let wal = with(&path, "-wal");
            let good = std::fs::read(&wal).unwrap();
            assert!(good.len() > 32 + 24 + page_size as usize - 1);
            accepted(&path);
            // Each word of the header by itself, then all of it; a single frame survives the loss of any word but
            // needs its salts, which every frame repeats.
            for damage in [0..4, 4..8, 8..12, 12..16, 16..20, 20..24, 24..28, 0..32] {
                let mut bad = good.clone();
                bad[damage.clone()].fill(0xee);
                std::fs::write(&wal, &bad).unwrap();
                refused(&path, Reason::WalHeader);
                bad[damage.clone()].fill(0);
                std::fs::write(&wal, &bad).unwrap();
                // A zero is what the sequence number of a fresh log is anyway.
                if damage != (12..16) {
                    refused(&path, Reason::WalHeader);
                }
            }
            // The control: SQLite ignores such a log without a word.
            let mut bad = good.clone();
            bad[..4].fill(0);
            std::fs::write(&wal, &bad).unwrap();
            assert_eq!(visitor(&path, "SELECT count(*) FROM m"), "0");
        }
    }
}

#[test]
fn a_log_that_a_crash_left_empty_short_or_zero_is_legitimate() {
    for length in [0, 1, 31, 32, 4152, 1 << 20] {
        let (_d, path) = closed();
        std::fs::write(with(&path, "-wal"), vec![0u8; length]).unwrap();
        accepted(&path);
    }
    // A damaged header before frames that prove nothing is what SQLite makes of it: nothing.
    let (_d, path) = with_log(2, 4096);
    let wal = with(&path, "-wal");
    let mut bytes = std::fs::read(&wal).unwrap();
    bytes.fill(0x77);
    std::fs::write(&wal, &bytes).unwrap();
    accepted(&path);
}

#[test]
fn files_are_private_whatever_the_umask() {
    let (directory, path) = with_log(1, 4096);
    let family = Family::of(&path).unwrap();
    side::create(&secure::inspect(&family, Purpose::Own).unwrap()).unwrap();
    std::fs::set_permissions(family.side_directory(), std::fs::Permissions::from_mode(0o755)).unwrap();
    for suffix in ["", "-wal"] {
        std::fs::set_permissions(with(&path, suffix), std::fs::Permissions::from_mode(0o664)).unwrap();
    }
    secure::tighten(&secure::inspect(&family, Purpose::Own).unwrap()).unwrap();
    let mode = |p: &Path| std::fs::metadata(p).unwrap().mode() & 0o7777;
    assert_eq!((mode(&path), mode(&with(&path, "-wal")), mode(&family.side_directory())), (0o600, 0o600, 0o700));

    for umask in ["0", "777", "022"] {
        let new = directory.path().join(format!("new-{umask}.db"));
        let script = format!("umask {umask}; exec \"$0\" \"$@\"");
        let run = Command::new("sh").args(["-c", &script]).args(child_arguments("create", &new)).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stdout));
        assert_eq!(mode(&new), 0o600, "umask {umask}");
        assert_eq!(mode(&with(&new, ".statehouse")), 0o700, "umask {umask}");
        assert_eq!(mode(&with(&new, ".statehouse").join("created")) & 0o077, 0, "umask {umask}");
    }
}

/// A process that swaps the path for a hard link to somebody's file, between our look and our change of the mode.
#[test]
fn tightening_changes_the_checked_inode_even_while_the_path_is_swapped() {
    let directory = tempfile::tempdir().unwrap();
    let (path, parked, victim) =
        (directory.path().join("s.db"), directory.path().join("parked"), directory.path().join("victim"));
    let open_mode = || std::fs::Permissions::from_mode(0o644);
    let victim_mode = || std::fs::metadata(&victim).unwrap().mode() & 0o777;
    std::fs::write(&path, b"").unwrap();
    std::fs::write(&victim, b"precious").unwrap();
    let stop = AtomicBool::new(false);
    let family = Family::of(&path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::fs::rename(&path, &parked).unwrap();
                std::fs::rename(&victim, &path).unwrap();
                std::fs::rename(&path, &victim).unwrap();
                std::fs::rename(&parked, &path).unwrap();
            }
        });
        let inode = loop {
            // The real file is the empty one.
            if let Ok(i) = secure::inspect(&family, Purpose::Own)
                && let Some(main) = i.get(Member::Main)
                && main.status.size == 0
            {
                break main.status.identity.inode;
            }
        };
        let mut changed = 0;
        let begun = Instant::now();
        while changed < 300 && begun.elapsed() < Duration::from_secs(20) {
            let Ok(inspected) = secure::inspect(&family, Purpose::Own) else { continue };
            let Some(main) = inspected.get(Member::Main) else { continue };
            if main.status.identity.inode != inode {
                continue;
            }
            secure::tighten(&inspected).unwrap();
            let through = std::fs::metadata(main.magic_path()).unwrap();
            assert_eq!((through.ino(), through.mode() & 0o777), (inode, 0o600));
            std::fs::set_permissions(main.magic_path(), open_mode()).unwrap();
            changed += 1;
        }
        assert!(changed >= 100, "only {changed} rounds met the real file");
        // The control: a change by path, after the same check, does hit the other file.
        let mut hit = false;
        let victim_inode = loop {
            if let Ok(Some(s)) = statehouse_sqlite::Status::of(&victim)
                && s.size == 8
            {
                break s.identity.inode;
            }
        };
        let begun = Instant::now();
        while !hit && begun.elapsed() < Duration::from_secs(20) {
            let Ok(Some(s)) = statehouse_sqlite::Status::of(&path) else { continue };
            if s.identity.inode != inode {
                continue;
            }
            let _ = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600));
            for place in [&path, &victim] {
                if let Ok(Some(s)) = statehouse_sqlite::Status::of(place) {
                    hit |= s.identity.inode == victim_inode && s.mode & 0o777 == 0o600;
                }
            }
        }
        stop.store(true, Ordering::Relaxed);
        assert!(hit, "the control did not show the danger");
    });
    assert_eq!(victim_mode(), 0o600, "left by the control");
}

#[test]
fn a_foreign_owner_is_refused_for_root_the_owner_and_a_third_user() {
    if !rustix::process::geteuid().is_root() {
        // Without root no file can be given away; one that is not ours exists on every system.
        let answer = check(Path::new("/etc/passwd"), Purpose::Own);
        assert_eq!(answer.unwrap_err().reason(), Some(Reason::Owner));
        return;
    }
    let (directory, path) = closed();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    std::os::unix::fs::chown(&path, Some(2001), Some(2001)).unwrap();
    let before = picture(directory.path());
    // As root: refused as our own, and looked at.
    assert_eq!(check(&path, Purpose::Own).unwrap_err().reason(), Some(Reason::Owner));
    assert!(check(&path, Purpose::Look).is_ok());
    assert_eq!(before, picture(directory.path()));
    let as_user = |uid: u32| {
        let (program, arguments) =
            child_arguments("inspect", &path).split_first().map(|(p, a)| (p.clone(), a.to_vec())).unwrap();
        let run = Command::new(program).args(arguments).uid(uid).gid(uid).output().unwrap();
        let text = String::from_utf8_lossy(&run.stdout).into_owned();
        text.lines().find_map(|l| l.split_once("ANSWER ")).map(|(_, a)| a.to_owned()).unwrap_or(text)
    };
    assert_eq!(as_user(2001), "ok ok");
    assert_eq!(as_user(2002), "refused_owner refused_owner");
    // The owner may not, when the bits say so; root made the directory read-only for everybody else.
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(as_user(2001), "refused_permission ok");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    assert_eq!(as_user(2001), "refused_permission refused_permission");
    // What root makes while it looks belongs to the owner.
    let inspected = secure::inspect(&Family::of(&path).unwrap(), Purpose::Look).unwrap();
    side::create(&inspected).unwrap();
    assert_eq!(std::fs::metadata(inspected.family().side_directory()).unwrap().uid(), 2001);
}

#[test]
fn a_single_mounted_file_is_refused() {
    let (directory, path) = closed();
    let other = directory.path().join("mounted.db");
    std::fs::write(&other, b"").unwrap();
    let script = "mount --bind \"$0\" \"$1\" && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--map-root-user", "sh", "-c", script]).arg(&path).arg(&other);
    let run = command.args(child_arguments("inspect", &other)).output().unwrap();
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(
        text.contains("ANSWER refused_mounted_file refused_mounted_file"),
        "{text}\n{}",
        String::from_utf8_lossy(&run.stderr)
    );
}

/// How this binary is started again to do one thing as another user or in another namespace.
fn child_arguments(what: &str, path: &Path) -> Vec<std::ffi::OsString> {
    let mut arguments: Vec<std::ffi::OsString> = vec!["env".into()];
    let mut task = std::ffi::OsString::from("STATEHOUSE_TEST_PATH=");
    task.push(path);
    arguments.extend([task, format!("STATEHOUSE_TEST_TASK={what}").into(), std::env::current_exe().unwrap().into()]);
    arguments.extend(["secure::child", "--exact", "--ignored", "--nocapture"].map(Into::into));
    arguments
}

#[test]
#[ignore = "started by other tests in a process of its own"]
fn child() {
    let path = PathBuf::from(std::env::var_os("STATEHOUSE_TEST_PATH").unwrap());
    let family = Family::of(&path).unwrap();
    match std::env::var("STATEHOUSE_TEST_TASK").unwrap().as_str() {
        "create" => {
            let made = secure::create_main(&secure::inspect(&family, Purpose::Own).unwrap()).unwrap();
            side::mark_created(&made).unwrap();
        }
        "inspect" => {
            let answers = [Purpose::Own, Purpose::Look].map(|p| check(&path, p).map_or_else(|e| e.code(), |_| "ok"));
            println!("ANSWER {}", answers.join(" "));
        }
        other => panic!("{other}"),
    }
}
