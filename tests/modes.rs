//! Files are private whatever the umask, and tightening reaches exactly the file that was checked.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use statehouse_testkit::{Home, run};

use crate::house::{Client, Up, binary, cli, furnished};

fn assert_private(directory: &Path) {
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o7777;
    assert_eq!(mode(directory), 0o700, "{}", directory.display());
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let kind = entry.file_type().unwrap();
        if kind.is_dir() {
            assert_private(&entry.path());
        } else if kind.is_file() {
            // A file may vanish between the listing and the look; what is there must be private.
            if let Ok(status) = fs::symlink_metadata(entry.path()) {
                assert_eq!(status.mode() & 0o7777, 0o600, "{}", entry.path().display());
            }
        }
    }
}

/// Makes `command` run with this umask.
fn with_umask(command: &mut Command, umask: &str) {
    let program = command.get_program().to_owned();
    let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let environment: Vec<_> = command.get_envs().map(|(k, v)| (k.to_owned(), v.map(ToOwned::to_owned))).collect();
    let directory = command.get_current_dir().map(Path::to_path_buf);
    *command = Command::new("/bin/sh");
    command.args(["-c", &format!("umask {umask}; exec \"$@\""), "sh"]).arg(program).args(arguments).env_clear();
    command.envs(environment.into_iter().filter_map(|(k, v)| Some((k, v?))));
    if let Some(directory) = directory {
        command.current_dir(directory);
    }
}

#[test]
fn everything_is_private_whatever_the_umask() {
    for umask in ["000", "077", "177", "777"] {
        let home = Home::new();
        let up = Up::start(&home, |c| with_umask(c, umask));
        Client::new(up.url("gateway"), &home.token()).talk("c", "1", "is this private?");
        assert_private(home.path());
        up.stop();
        assert_private(home.path());
        for file in fs::read_dir(home.path()).unwrap().map(Result::unwrap).filter(|e| e.file_type().unwrap().is_file())
        {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(0o666)).unwrap();
        }
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let up = Up::start(&home, |c| with_umask(c, umask));
        Client::new(up.url("gateway"), &home.token()).talk("c", "2", "and after it was opened wide?");
        assert_private(home.path());
        up.stop();
    }
}

/// Stops the swapper however the work beside it ends, so that a failure is seen and not waited for.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn tightening_never_reaches_what_a_swapped_path_leads_to() {
    let home = furnished(Home::new());
    let around = home.around();
    let victim = around.join("victim");
    fs::write(&victim, "somebody's letter").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o644)).unwrap();
    let before = fs::metadata(&victim).unwrap();

    // For each member in turn: the name alternates, without a gap, between the real file and a link to the victim.
    for suffix in ["", "-wal", "-shm"] {
        let member = home.member(suffix);
        let link = around.join(format!("link{suffix}"));
        symlink(&victim, &link).unwrap();
        let stop = AtomicBool::new(false);
        let swaps = AtomicU64::new(0);
        let (mut opened, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            let _end = Ends(&stop);
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if renameat_with(CWD, &member, CWD, &link, RenameFlags::EXCHANGE).is_ok() {
                        swaps.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
            for _ in 0..25 {
                // A generation that is replaced for ever is given up after the patience, and closing has as much again, twice.
                let worker = ["worker", "run", "housekeeping", "--json", "--patience", "1"];
                let done = run(home.command(binary()).args(worker), Duration::from_secs(60));
                match done.status.code() {
                    Some(0) => opened += 1,
                    Some(_) => refused += 1,
                    None => panic!("died: {done:#?}"),
                }
            }
        });
        assert!(swaps.load(Ordering::Relaxed) > 100, "the swapper ran");
        assert!(refused > 0, "{opened} opened, none refused: the swapper was never met at state.db{suffix}");
        let after = fs::metadata(&victim).unwrap();
        assert_eq!(after.mode(), before.mode(), "state.db{suffix}: the victim's mode");
        assert_eq!(after.len(), before.len(), "state.db{suffix}: the victim's content");
        assert_eq!(
            (after.ctime(), after.ctime_nsec()),
            (before.ctime(), before.ctime_nsec()),
            "nothing was done to it"
        );
        // Leave the real file under its own name.
        if fs::symlink_metadata(&member).is_ok_and(|s| s.file_type().is_symlink()) {
            renameat_with(CWD, &member, CWD, &link, RenameFlags::EXCHANGE).unwrap();
        }
        fs::remove_file(&link).unwrap();
    }
    let listed = cli(&home, ["sessions", "list"]).success();
    assert!(!listed.stdout.contains("letter"));
}
