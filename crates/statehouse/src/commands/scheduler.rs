//! `statehouse scheduler`: one a home; it starts a worker process for each occurrence.

use std::collections::HashMap;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use statehouse_scheduler::{Launch, Options, Scheduler};
use statehouse_sessions::{Holder, JobKind, Occurrence, Store};

use super::{Context, service, worker};
use crate::failure::{Envelope, Result};
use crate::supervise::own_executable;
use crate::{exit, lock, signals, store};

const ROLE: &str = "scheduler";
/// How much of what a worker says is kept for the job's history.
const WORDS_LIMIT: u64 = 16 << 10;

pub(crate) fn run(context: &Context) -> Result {
    store::must_exist(&context.home.store())?;
    let config = context.home.config()?;
    let _role = lock::take(&context.home, ROLE)?;
    let store = service::open(context, ROLE)?;
    built_in(&*store, worker::HOUSEKEEPING, config.scheduler.housekeeping_every)?;
    // One that is switched off stays where it is; its worker finds that out.
    if config.snapshots.enabled {
        built_in(&*store, worker::SNAPSHOT, config.snapshots.every)?;
    }
    let launch = Arc::new(Workers { home: context.home.directory().to_owned(), state: Mutex::default() });
    let holder = Holder(format!("scheduler {} {}", std::process::id(), jiff::Timestamp::now()));
    let options =
        Options { holder, workers: usize::from(config.scheduler.workers), look_again: Duration::from_secs(5) };
    let scheduler = Scheduler::new(store.clone(), launch, options);
    let stop = scheduler.stopper();
    let mut asked = false;
    signals::on_stop(move || {
        stop.stop();
        if !std::mem::replace(&mut asked, true) {
            signals::limit_stop();
        }
    })?;
    service::ready(context, ROLE, None);
    scheduler.run();
    store.close();
    Ok(exit::OK)
}

/// Sees to it that a job of our own is there, as often as the configuration says.
fn built_in(store: &dyn Store, name: &str, every: Duration) -> Result<()> {
    let every = every.as_secs();
    let job = store.ensure_job(name, JobKind::Housekeeping { name: name.to_owned() }, every)?;
    if job.every_seconds != every {
        // The configuration was changed since the job was made.
        store.set_interval(job.id, every)?;
    }
    Ok(())
}

#[derive(Default)]
struct Running {
    stopping: bool,
    next: u64,
    workers: HashMap<u64, OwnedFd>,
}

/// Starts this program again as `worker run JOB`.
struct Workers {
    home: PathBuf,
    state: Mutex<Running>,
}

impl Workers {
    fn lock(&self) -> MutexGuard<'_, Running> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Launch for Workers {
    fn run(&self, occurrence: &Occurrence) -> std::result::Result<(), String> {
        let (mut process, number) = {
            let mut state = self.lock();
            if state.stopping {
                return Err("the scheduler was stopping".to_owned());
            }
            let process = own_executable()
                .args(["worker", "run", "--json"])
                .arg("--home")
                .arg(&self.home)
                .arg("--supervised-by")
                .arg(std::process::id().to_string())
                .arg("--")
                .arg(occurrence.job.id.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .process_group(0)
                .spawn()
                .map_err(|e| format!("no worker could be started: {e}"))?;
            let handle = i32::try_from(process.id())
                .ok()
                .and_then(Pid::from_raw)
                .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            let number = state.next;
            state.next += 1;
            if let Some(handle) = handle {
                state.workers.insert(number, handle);
            }
            (process, number)
        };
        let mut words = String::new();
        if let Some(stdout) = process.stdout.take() {
            let mut stdout = stdout.take(WORDS_LIMIT);
            let _ = stdout.read_to_string(&mut words);
        }
        let status = process.wait();
        self.lock().workers.remove(&number);
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                let said = serde_json::from_str::<Envelope<'_>>(words.trim()).ok().map(|e| e.error.into_owned());
                let said = said.map(|f| format!(": {}", f.message)).unwrap_or_default();
                Err(format!("the worker ended with {}{said}", signals::describe(status)))
            }
            Err(e) => Err(format!("the end of the worker could not be observed: {e}")),
        }
    }

    fn stop(&self) {
        let mut state = self.lock();
        state.stopping = true;
        for handle in state.workers.values() {
            let _ = pidfd_send_signal(handle, Signal::TERM);
        }
    }
}
