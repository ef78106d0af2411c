//! What stops a process, as a person would type it.
//!
//! A process that somebody supervises is started again when it is killed, so what to stop is the supervisor's unit: the
//! container or the systemd service that its control group (`/proc/PID/cgroup`, both versions) names. Nothing that cannot be
//! one harmless word of a shell gets into the text.

use crate::process::one_line;

/// What is known of a process.
pub(super) struct Process<'a> {
    pub(super) pid: i32,
    pub(super) command: &'a [String],
    /// The text of `/proc/PID/cgroup`.
    pub(super) cgroup: &'a [u8],
    /// Who the asking user is, if that is known: the services of another user are stopped by that user.
    pub(super) uid: Option<u32>,
}

/// Services that start things for others and are no supervisors of them: stopping one would stop what is not meant, and
/// mostly not even this.
const LAUNCHERS: [&str; 9] = [
    "cron.service",
    "crond.service",
    "cronie.service",
    "atd.service",
    "ssh.service",
    "sshd.service",
    "docker.service",
    "containerd.service",
    "dbus.service",
];

/// `name` tells the name of a Docker container by its whole id, where that can be read.
pub(super) fn stop(process: &Process<'_>, name: &dyn Fn(&str) -> Option<String>) -> String {
    let text = String::from_utf8_lossy(process.cgroup);
    let paths = text.lines().filter_map(|l| l.splitn(3, ':').nth(2));
    let mut unit = None;
    for path in paths {
        let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
        if let Some(container) = container(&parts, name) {
            return container;
        }
        unit = unit.or_else(|| service(&parts, process.uid));
    }
    if let Some(unit) = unit {
        return unit;
    }
    match one_line(process.command) {
        line if line.is_empty() => format!("kill {}", process.pid),
        line => format!("kill {}  # {line}", process.pid),
    }
}

/// The innermost container of a control group, by the marks that each engine leaves.
fn container(parts: &[&str], name: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    let pod = parts.iter().find_map(|p| pod(p));
    for (at, part) in parts.iter().enumerate().rev() {
        let above = at.checked_sub(1).and_then(|i| parts.get(i)).copied().unwrap_or("");
        let unscoped = part.strip_suffix(".scope").unwrap_or(part);
        let (engine, id) = match unscoped.rsplit_once('-') {
            Some((engine, id)) if is_id(id) => (engine, id),
            _ if is_id(unscoped) => (above, unscoped),
            _ => {
                if let Some(machine) = machine(parts, at) {
                    return Some(machine);
                }
                continue;
            }
        };
        let short = id.get(..12)?;
        if parts.iter().any(|p| p.starts_with("kubepods")) {
            let of = pod.map(|uid| format!(" with uid {uid}")).unwrap_or_default();
            return Some(format!("crictl stop {short}  # Kubernetes starts it again: scale its pod{of} down instead"));
        }
        return Some(match engine {
            "docker" => {
                let name = name(id).filter(|n| plain(n) && !n.starts_with('-'));
                format!("docker stop {}", name.as_deref().unwrap_or(short))
            }
            "libpod" | "libpod_parent" | "libpod-payload" => format!("podman stop {short}"),
            "nerdctl" | "default" => format!("nerdctl stop {short}"),
            "crio" | "cri-containerd" => format!("crictl stop {short}"),
            _ => format!("stop the container {short}"),
        });
    }
    None
}

/// A container that has a name instead of an id: of systemd-nspawn, or of LXC.
fn machine(parts: &[&str], at: usize) -> Option<String> {
    let part = *parts.get(at)?;
    let inside = at + 1 < parts.len();
    let nspawn = part
        .strip_prefix("systemd-nspawn@")
        .and_then(|p| p.strip_suffix(".service"))
        .filter(|_| inside)
        .or_else(|| part.strip_prefix("machine-").and_then(|p| p.strip_suffix(".scope")));
    if let Some(name) = nspawn.filter(|n| plain(n) && !n.starts_with('-')) {
        return Some(format!("machinectl stop {name}"));
    }
    let lxc = part.strip_prefix("lxc.payload.").or_else(|| {
        let above = at.checked_sub(1).and_then(|i| parts.get(i))?;
        (*above == "lxc" || *above == "lxc.payload").then_some(part)
    });
    lxc.filter(|n| plain(n)).map(|name| format!("stop the LXC container {name}"))
}

/// The uid of a Kubernetes pod: `pod1234…` or `kubepods-burstable-pod1234_….slice`.
fn pod(part: &str) -> Option<String> {
    let uid = part.strip_suffix(".slice").unwrap_or(part).rsplit_once("pod").map(|(_, uid)| uid)?;
    let uid = uid.replace('_', "-");
    (uid.len() >= 32 && uid.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-')).then_some(uid)
}

fn service(parts: &[&str], uid: Option<u32>) -> Option<String> {
    let unit = parts.iter().rev().find(|p| p.ends_with(".service") && plain(p) && !p.starts_with('-'))?;
    let manager = parts.iter().find_map(|p| p.strip_prefix("user@")?.strip_suffix(".service"));
    let Some(owner) = manager else {
        return (!LAUNCHERS.contains(unit)).then(|| format!("systemctl stop {unit}"));
    };
    // The user's own service manager is above everything of the user, and stopping it is not meant.
    if unit.starts_with("user@") {
        return None;
    }
    let owner = owner.parse::<u32>().ok();
    Some(match (owner, uid) {
        (Some(owner), Some(uid)) if owner != uid => format!("systemctl --user stop {unit}  # as the user {owner}"),
        _ => format!("systemctl --user stop {unit}"),
    })
}

fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// True for a name that a shell takes as one word.
fn plain(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"@._-:\\".contains(&b))
}

/// The name of a Docker container, from what the engine keeps of it. Only the administrator may read that.
pub(super) fn docker_name(id: &str) -> Option<String> {
    // Configurations have some kilobytes; what has megabytes is none.
    const LONGEST: u64 = 1 << 20;
    let path = format!("/var/lib/docker/containers/{id}/config.v2.json");
    let status = rustix::fs::lstat(path.as_str()).ok()?;
    let regular = rustix::fs::FileType::from_raw_mode(status.st_mode) == rustix::fs::FileType::RegularFile;
    if !regular || u64::try_from(status.st_size).ok()? > LONGEST {
        return None;
    }
    let mut text = Vec::new();
    crate::process::read_file(rustix::fs::CWD, &path, &mut text).ok()?;
    container_name(&text)
}

fn container_name(text: &[u8]) -> Option<String> {
    let configuration: serde_json::Value = serde_json::from_slice(text).ok()?;
    let name = configuration.get("Name")?.as_str()?;
    Some(name.strip_prefix('/').unwrap_or(name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops(cgroup: &str, name: Option<&str>) -> String {
        let command = ["python3".to_owned(), "gate\nway; rm -rf /".to_owned()];
        let process = Process { pid: 7, command: &command, cgroup: cgroup.as_bytes(), uid: Some(1000) };
        stop(&process, &|_| name.map(str::to_owned))
    }

    #[test]
    fn what_stops_a_process_is_its_unit_its_container_or_itself() {
        let id = "a".repeat(64);
        let itself = "kill 7  # python3 gate\\nway; rm -rf /";
        let user = "0::/user.slice/user-1000.slice/user@1000.service";
        for (cgroup, expected) in [
            ("0::/system.slice/hermes.service\n".to_owned(), "systemctl stop hermes.service"),
            ("0::/system.slice/hermes@a.service/worker\n".to_owned(), "systemctl stop hermes@a.service"),
            (format!("{user}/app.slice/gateway.service\n"), "systemctl --user stop gateway.service"),
            (
                user.replace("1000", "1001") + "/app.slice/gateway.service\n",
                "systemctl --user stop gateway.service  # as the user 1001",
            ),
            (format!("0::/system.slice/docker-{id}.scope\n"), "docker stop aaaaaaaaaaaa"),
            (format!("0::/../docker-{id}.scope\n"), "docker stop aaaaaaaaaaaa"),
            (format!("12:pids:/docker/{id}\n0::/\n"), "docker stop aaaaaaaaaaaa"),
            (format!("1:name=systemd:/system.slice/x.service\n12:pids:/docker/{id}\n"), "docker stop aaaaaaaaaaaa"),
            (format!("0::/docker/{id}/system.slice/inner.service\n"), "docker stop aaaaaaaaaaaa"),
            (format!("{user}/user.slice/docker-{id}.scope\n"), "docker stop aaaaaaaaaaaa"),
            (format!("0::/machine.slice/libpod-{id}.scope/container\n"), "podman stop aaaaaaaaaaaa"),
            (format!("0::/machine.slice/libpod-payload-{id}\n"), "podman stop aaaaaaaaaaaa"),
            (format!("5:pids:/libpod_parent/libpod-{id}\n"), "podman stop aaaaaaaaaaaa"),
            (format!("{user}/user.slice/libpod-{id}.scope\n"), "podman stop aaaaaaaaaaaa"),
            (format!("0::/system.slice/nerdctl-{id}.scope\n"), "nerdctl stop aaaaaaaaaaaa"),
            (format!("4:memory:/default/{id}\n"), "nerdctl stop aaaaaaaaaaaa"),
            (format!("0::/something/{id}\n"), "stop the container aaaaaaaaaaaa"),
            (
                format!(
                    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-\
                     pod01234567_89ab_cdef_0123_456789abcdef.slice/cri-containerd-{id}.scope\n"
                ),
                "crictl stop aaaaaaaaaaaa  # Kubernetes starts it again: scale its pod with uid \
                 01234567-89ab-cdef-0123-456789abcdef down instead",
            ),
            (
                format!("9:cpu:/kubepods/besteffort/pod01234567-89ab-cdef-0123-456789abcdef/{id}\n"),
                "crictl stop aaaaaaaaaaaa  # Kubernetes starts it again: scale its pod with uid \
                 01234567-89ab-cdef-0123-456789abcdef down instead",
            ),
            (
                "0::/machine.slice/systemd-nspawn@box.service/payload/system.slice/hermes.service\n".to_owned(),
                "machinectl stop box",
            ),
            ("0::/machine.slice/machine-box.scope/payload\n".to_owned(), "machinectl stop box"),
            ("0::/lxc.payload.box/system.slice/hermes.service\n".to_owned(), "stop the LXC container box"),
            ("3:cpu:/lxc/box\n".to_owned(), "stop the LXC container box"),
            // The monitor of a container is outside of it.
            (format!("0::/machine.slice/libpod-conmon-{}.scope\n", &id[..63]), itself),
            ("0::/system.slice/cron.service\n".to_owned(), itself),
            ("0::/system.slice/ssh.service\n".to_owned(), itself),
            (format!("{user}/app.slice/x.scope\n"), itself),
            (format!("{user}/init.scope\n"), itself),
            ("0::/evil;reboot.service\n".to_owned(), itself),
            (format!("0::/docker/{}\n", "g".repeat(64)), itself),
            (String::new(), itself),
            ("\u{0}::::\n::\n".to_owned(), itself),
        ] {
            assert_eq!(stops(&cgroup, None), expected, "{cgroup}");
        }
        assert_eq!(stop(&Process { pid: 7, command: &[], cgroup: b"", uid: None }, &|_| None), "kill 7");
    }

    #[test]
    fn a_docker_container_is_called_by_its_name_where_that_can_be_read() {
        let id = "b".repeat(64);
        let cgroup = format!("0::/system.slice/docker-{id}.scope\n");
        assert_eq!(stops(&cgroup, Some("hermes_gateway.1")), "docker stop hermes_gateway.1");
        for odd in ["", "--all", "a b", "$(reboot)", "é"] {
            assert_eq!(stops(&cgroup, Some(odd)), "docker stop bbbbbbbbbbbb", "{odd:?}");
        }
        assert_eq!(container_name(br#"{"State":{},"Name":"/hermes"}"#).as_deref(), Some("hermes"));
        for odd in [&b""[..], b"[]", b"{}", br#"{"Name":7}"#] {
            assert_eq!(container_name(odd), None);
        }
        assert_eq!(docker_name(&id), None);
    }
}
