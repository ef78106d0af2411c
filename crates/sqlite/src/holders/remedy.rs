//! What ends a process that uses a database and what must be done before, as a person would type it. Every form of output
//! takes its lines from here.
//!
//! Invariant: no line of these asks a process that writes into removed or replaced files to end in an orderly way. A program
//! that closes its database copies its log into the main file, and the log of a ghost is not the one that belongs there: it
//! would run over what others have written since. So such a process is ended by SIGKILL, which closes nothing. SIGSTOP comes
//! before the copy, so that nothing is written between the copy and the end.

use super::{Holder, capture_command};
use crate::family::{Family, Member};
use crate::holders::Standing;
use crate::process::one_line;

/// Why a ghost must not be asked to end.
pub const NOT_ORDERLY: &str =
    "not by an orderly stop, which could copy its old log over what others have written since";

/// Why every process that has one log with different main files must be ended, and none by itself.
pub const SHARED_LOG: &str = "with every program that has the database open, for all of them use its log with another main file, where each \
                      destroys rows that the other has committed";

/// What ends the first process of this pid namespace, which no signal from within ends.
const FROM_OUTSIDE: &str =
    "kill this container from outside (docker kill, not docker stop): its first process takes no signal from within";

impl Holder {
    /// Says what is to be typed, from what it has and how it can be reached.
    pub(super) fn with_remedy(mut self, family: &Family) -> Holder {
        let lost = self.files.iter().any(|f| {
            f.generation == Standing::Retired
                && f.descriptor.is_some()
                && matches!(f.member, Member::Main | Member::Wal)
        });
        // One of ours captures by itself what it has, and closes nothing over others.
        if !lost || self.fenced || self.is_self || !cfg!(target_os = "linux") {
            return self;
        }
        let by = self.signal.unwrap_or("kill");
        let sudo = if by.starts_with("sudo ") || self.stop.starts_with("sudo ") { "sudo " } else { "" };
        self.capture = self.pid.map(|pid| format!("{sudo}{}", capture_command(family, Some(pid))));
        let Some(pid) = self.pid.filter(|_| self.ghost) else { return self };
        if self.signal.is_none() {
            self.stop = FROM_OUTSIDE.to_owned();
            return self;
        }
        self.hold = (!self.halted).then(|| format!("{by} -STOP {pid}"));
        self.stop = match one_line(&self.command) {
            line if line.is_empty() => format!("{by} -KILL {pid}"),
            line => format!("{by} -KILL {pid}  # {line}"),
        };
        self
    }

    /// True if its main file was replaced while the log that it writes is the one at the path. A program that opens the database now
    /// uses the same log with the new main file, and each of the two takes what the other commits for pages of its own file: what
    /// one of them has copied out of the log the other does not see, and writes over.
    pub fn shares_log(&self) -> bool {
        let has = |member, generation| self.files.iter().any(|f| f.member == member && f.generation == generation);
        self.ghost
            && has(Member::Main, Standing::Retired)
            && !has(Member::Main, Standing::Current)
            && has(Member::Wal, Standing::Current)
            && !has(Member::Wal, Standing::Retired)
    }

    /// What is to be done about this process, in this order.
    pub fn remedy(&self) -> String {
        let Some(capture) = &self.capture else { return format!("stop it: {}", self.stop) };
        if !self.ghost {
            return format!("first copy what it has: {capture}; then stop it: {}", self.stop);
        }
        let why = if self.shares_log() { SHARED_LOG } else { NOT_ORDERLY };
        let hold = self.hold.as_ref().map(|hold| format!("first hold it: {hold}; then ")).unwrap_or_default();
        format!("{hold}copy what it has: {capture}; then end it, {why}: {}", self.stop)
    }

    /// The same for a sentence that only names the process.
    pub fn to_stop(&self) -> String {
        match self.capture {
            Some(_) => self.remedy(),
            None => format!("to stop it: {}", self.stop),
        }
    }
}

/// Of a process whose log others use with another main file: they are all held first, and all ended.
pub(super) fn together(holders: &mut [Holder]) {
    let uses = |h: &&Holder| h.files.iter().any(|f| f.member == Member::Wal && f.generation == Standing::Current);
    let all: Vec<Holder> = holders.iter().filter(uses).filter(|h| !h.is_self && !h.fenced).cloned().collect();
    if all.len() < 2 {
        return;
    }
    let by = if all.iter().any(|h| h.signal == Some("sudo kill")) { "sudo kill" } else { "kill" };
    let numbers = |of: &mut dyn Iterator<Item = &Holder>| {
        of.filter_map(|h| h.pid).map(|pid| pid.to_string()).collect::<Vec<_>>().join(" ")
    };
    let awake = numbers(&mut all.iter().filter(|h| !h.halted));
    let pids = numbers(&mut all.iter());
    for holder in holders.iter_mut().filter(|h| h.capture.is_some() && h.signal.is_some() && h.shares_log()) {
        holder.hold = (!awake.is_empty()).then(|| format!("{by} -STOP {awake}"));
        holder.stop = format!("{by} -KILL {pids}");
    }
}

/// What ends processes that share the same removed or replaced files, a line each, in this order. `copied` says that their
/// files were copied a moment ago: whoever was held before that need not be copied once more.
pub fn steps(holders: &[Holder], copied: bool) -> Vec<String> {
    let holds: Vec<String> = holders.iter().filter_map(|h| h.hold.clone()).collect();
    let once_more = !copied || !holds.is_empty();
    let of_a_ghost = holders.iter().any(|h| h.ghost);
    let capture = holders.iter().find_map(|h| h.capture.clone()).filter(|_| once_more && (of_a_ghost || !copied));
    let mut lines: Vec<String> = Vec::new();
    for line in holds.into_iter().chain(capture).chain(holders.iter().map(|h| h.stop.clone())) {
        // Where several share one log, each has the same line.
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

#[cfg(all(test, target_os = "linux"))]
#[expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]
mod tests {
    use super::*;
    use crate::holders::{Evidence, HeldFile, HeldLocks, Namespace, Via};

    fn file(member: Member, generation: Standing) -> HeldFile {
        HeldFile {
            member,
            generation,
            deleted: generation == Standing::Retired,
            via: Via::Descriptor,
            descriptor: Some(3),
            writable: true,
            size: None,
            device: 1,
            inode: 1,
        }
    }

    fn ghost(pid: i32, files: Vec<HeldFile>) -> Holder {
        Holder {
            pid: Some(pid),
            start_ticks: Some(1),
            start_time: None,
            command: vec!["gate\nway".into()],
            user: None,
            role: None,
            fenced: false,
            parked: false,
            is_self: false,
            pid_namespace: Namespace::Same,
            files,
            locks: HeldLocks::default(),
            naked: false,
            ghost: true,
            kept_back: false,
            evidence: Evidence::Identity,
            held_bytes: 0,
            hold: None,
            capture: None,
            stop: "systemctl stop gateway.service".into(),
            signal: Some("kill"),
            halted: false,
        }
    }

    fn told(holder: Holder) -> Holder {
        holder.with_remedy(&Family::of(std::path::Path::new("/tmp/app.db")).unwrap())
    }

    #[test]
    fn a_ghost_is_held_copied_and_killed_whatever_supervises_it() {
        let retired = || vec![file(Member::Main, Standing::Current), file(Member::Wal, Standing::Retired)];
        let lines = |holder: Holder| steps(&[told(holder)], false);
        let capture = "statehouse retired capture --pid 7 /tmp/app.db";
        assert_eq!(lines(ghost(7, retired())), ["kill -STOP 7", capture, "kill -KILL 7  # gate\\nway"]);
        let halted = told(Holder { halted: true, ..ghost(7, retired()) });
        assert_eq!(steps(std::slice::from_ref(&halted), true), ["kill -KILL 7  # gate\\nway"]);
        assert!(halted.remedy().starts_with("copy what it has"), "{}", halted.remedy());
        let foreign = lines(Holder { signal: Some("sudo kill"), ..ghost(7, retired()) });
        assert_eq!(foreign[..2], ["sudo kill -STOP 7".to_owned(), format!("sudo {capture}")]);
        let first = lines(Holder { signal: None, ..ghost(1, retired()) });
        assert_eq!(first[1], FROM_OUTSIDE, "no signal reaches it from within");
        // Whoever can write nothing there is stopped as he is.
        let reader = told(Holder { ghost: false, ..ghost(7, retired()) });
        assert_eq!((reader.hold.as_deref(), reader.stop.as_str()), (None, "systemctl stop gateway.service"));
        // One of ours captures by itself.
        let ours = told(Holder { fenced: true, ..ghost(7, retired()) });
        assert_eq!((ours.capture, ours.hold), (None, None));
    }

    #[test]
    fn who_shares_one_log_with_another_main_file_is_ended_with_all_who_use_it() {
        let old = told(ghost(7, vec![file(Member::Main, Standing::Retired), file(Member::Wal, Standing::Current)]));
        let uses = vec![file(Member::Main, Standing::Current), file(Member::Wal, Standing::Current)];
        let new = told(Holder { ghost: false, ..ghost(8, uses) });
        assert!(old.shares_log() && !new.shares_log());
        let mut both = [old, new];
        together(&mut both);
        assert_eq!(
            steps(&both[..1], false),
            ["kill -STOP 7 8", "statehouse retired capture --pid 7 /tmp/app.db", "kill -KILL 7 8"]
        );
        assert!(both[0].remedy().contains("another main file"), "{}", both[0].remedy());
        assert_eq!(both[1].stop, "systemctl stop gateway.service");
    }
}
