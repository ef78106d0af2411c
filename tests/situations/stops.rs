//! What would stop a holder, by the control group that it is in.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use statehouse_testkit::{need, until};

use super::{Actor, HELD, NOBODY, Place, Scene, Situation, Stop, USER, Who, check};

/// A control group that goes with the test. Its process must have ended by then.
struct Group {
    path: PathBuf,
    top: PathBuf,
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel empties a group a moment after its last process has ended.
        until("the control group is empty", Duration::from_secs(10), || fs::remove_dir(&self.path).is_ok());
        let mut above = self.path.parent();
        while let Some(directory) = above.filter(|d| d.starts_with(&self.top)) {
            let _ = fs::remove_dir(directory);
            above = directory.parent();
        }
    }
}

/// Where control groups can be made here: the hierarchy that systemd would use, of the second version or the first.
fn hierarchy() -> Option<&'static Path> {
    static FOUND: OnceLock<Option<PathBuf>> = OnceLock::new();
    let find = || {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let usable = |line: &str| {
            let fields: Vec<&str> = line.split(' ').collect();
            let kind = fields.get(2)?;
            let of_systemd = *kind == "cgroup" && fields.get(3)?.contains("name=systemd");
            let path = PathBuf::from(fields.get(1)?);
            let trial = path.join(format!("statehouse-trial-{}", std::process::id()));
            let writable = || fs::create_dir(&trial).and_then(|()| fs::remove_dir(&trial)).is_ok();
            ((*kind == "cgroup2" || of_systemd) && writable()).then_some(path)
        };
        mounts.lines().find_map(usable)
    };
    FOUND.get_or_init(find).as_deref()
}

/// A process with the database open in the control group of this name. Where none can be made, the look is one that is shown
/// such a name.
fn in_group(place: &Place, name: &str) -> Option<Scene> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let actor = Actor::using(&place.path);
    let pid = actor.pid().to_string();
    let Some(hierarchy) = hierarchy() else {
        let shown = place.join("cgroup");
        fs::write(&shown, format!("0::/{name}\n")).unwrap();
        let script = "mount --bind \"$1\" \"/proc/$2/cgroup\" && shift 2 && exec \"$@\"";
        let shown = shown.to_str().unwrap().to_owned();
        let scene = Scene::with(place, actor)?;
        return Some(scene.through(&["unshare", "--mount", "sh", "-c", script, "sh", &shown, &pid]));
    };
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let top = hierarchy.join(format!("statehouse-test-{}-{number}", std::process::id()));
    let group = Group { path: top.join(name), top };
    fs::create_dir_all(&group.path).unwrap();
    fs::write(group.path.join("cgroup.procs"), &pid).unwrap();
    let line = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
    assert!(line.lines().any(|l| l.ends_with(name)), "{line}");
    Scene::of(place, [actor.pid()], (actor, group))
}

macro_rules! stops {
    ($($name:literal: $group:literal => $text:literal,)*) => {
        &[$(Situation {
            name: $name,
            build: |p| in_group(p, $group),
            verdict: "held",
            holders: &[Who { stop: Stop::By($text), ..USER }],
            exit: HELD,
            ..NOBODY
        },)*]
    };
}

pub(super) const TABLE: &[Situation] = stops! {
    "a service of systemd":
        "system.slice/hermes.service" => "systemctl stop hermes.service",
    "one instance of a service of systemd":
        "system.slice/system-hermes.slice/hermes@work.service" => "systemctl stop hermes@work.service",
    "a part of a service of systemd":
        "system.slice/hermes.service/worker" => "systemctl stop hermes.service",
    "a service of a user":
        "user.slice/user-1000.slice/user@1000.service/app.slice/gateway.service" => "systemctl --user stop gateway.service",
    "a container of Docker under systemd":
        "system.slice/docker-0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d4e5f0a1b.scope" => "docker stop 0a1b2c3d4e5f",
    "a container of Docker without systemd":
        "docker/0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d4e5f0a1b" => "docker stop 0a1b2c3d4e5f",
    "a container of Podman":
        "machine.slice/libpod-0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d4e5f0a1b2c3d4e5f0a1b.scope/container" => "podman stop 0a1b2c3d4e5f",
};

#[test]
fn what_stops_a_holder() {
    if need::root("making control groups") {
        check(TABLE);
        // A scope that is no container, and a launcher that started the process and does not watch it.
        check(PLAIN);
    }
}

macro_rules! plain {
    ($($name:literal: $group:literal,)*) => {
        &[$(Situation {
            name: $name,
            build: |p| in_group(p, $group),
            verdict: "held",
            holders: &[USER],
            exit: HELD,
            ..NOBODY
        },)*]
    };
}

/// Where only the process itself can be stopped.
const PLAIN: &[Situation] = plain! {
    "a login of a user": "user.slice/user-1000.slice/session-3.scope",
    "what a user started on the desktop": "user.slice/user-1000.slice/user@1000.service/app.slice/app-editor-77.scope",
    "what cron started": "system.slice/cron.service",
    "a name that a shell would take apart": "system.slice/x;reboot.service",
};
