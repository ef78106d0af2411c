//! The scheduler: it claims due occurrences from the store and starts a worker process for each.
//!
//! What is due is a row in the store, claimed in the same transaction that moves the job's next time on, so two
//! schedulers never run one occurrence twice and a restart forgets nothing. The scheduler itself does no work: whatever
//! a job does happens in a process that opens the store, works, closes and exits, behind the [`Launch`] door.

use std::collections::HashSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use statehouse_sessions::{Holder, JobId, Micros, Occurrence, Store};

/// How a worker is started; the binary knows its own executable, this crate does not.
pub trait Launch: Send + Sync + 'static {
    /// Runs the work of one occurrence in a process of its own and waits for its end. Called on a thread that stays
    /// until then.
    ///
    /// # Errors
    /// Why it did not go well, in words for the job's history.
    fn run(&self, occurrence: &Occurrence) -> Result<(), String>;

    /// Asks every worker that runs to end soon.
    fn stop(&self);
}

/// How a scheduler works.
#[derive(Debug, Clone)]
pub struct Options {
    /// Who claims: unique for each start of a process.
    pub holder: Holder,
    /// How many workers may run at once, at least 1.
    pub workers: usize,
    /// The longest time between two looks at the jobs: another process may have added one.
    pub look_again: Duration,
}

/// After an error of the store, the first and the longest time to the next try.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

#[derive(Default)]
struct State {
    running: HashSet<JobId>,
    stopping: bool,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something changes or `limit` is over; at once if the scheduler is to stop.
    fn sleep(&self, limit: Duration) {
        let state = self.lock();
        if !state.stopping {
            drop(self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner));
        }
    }
}

/// Stops the scheduler it belongs to. Clones do the same.
#[derive(Clone)]
pub struct Stop(Arc<Shared>);

impl Stop {
    /// No further occurrence is claimed; [`Scheduler::run`] returns when the workers that run have ended.
    pub fn stop(&self) {
        self.0.lock().stopping = true;
        self.0.changed.notify_all();
    }
}

/// The loop over what is due.
pub struct Scheduler {
    store: Arc<dyn Store>,
    launch: Arc<dyn Launch>,
    options: Options,
    shared: Arc<Shared>,
}

impl Scheduler {
    /// A scheduler over `store` that starts workers by `launch`.
    pub fn new(store: Arc<dyn Store>, launch: Arc<dyn Launch>, options: Options) -> Scheduler {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        Scheduler { store, launch, options, shared }
    }

    /// What stops it.
    pub fn stopper(&self) -> Stop {
        Stop(self.shared.clone())
    }

    /// Works until it is stopped and the last worker has ended. An error of the store is logged and tried again, later
    /// and later up to half a minute.
    pub fn run(&self) {
        let mut retry = RETRY.0;
        while self.wait_for_room() {
            match self.step() {
                Ok(Some(pause)) => {
                    retry = RETRY.0;
                    self.shared.sleep(pause);
                }
                Ok(None) => retry = RETRY.0,
                Err(e) => {
                    tracing::warn!("cannot look for due jobs: {e}; trying again in {retry:?}");
                    self.shared.sleep(retry);
                    retry = (retry * 2).min(RETRY.1);
                }
            }
        }
        self.launch.stop();
        let mut state = self.shared.lock();
        while !state.running.is_empty() {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until another worker may start; false if the scheduler is to stop.
    fn wait_for_room(&self) -> bool {
        let mut state = self.shared.lock();
        while !state.stopping && state.running.len() >= self.options.workers.max(1) {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        !state.stopping
    }

    /// Starts one due occurrence, or tells how long nothing will be due.
    fn step(&self) -> statehouse_sessions::Result<Option<Duration>> {
        let now = Micros::now();
        if let Some(occurrence) = self.store.claim_occurrence(&self.options.holder, now)? {
            self.start(occurrence);
            return Ok(None);
        }
        let next = self.store.jobs()?.into_iter().filter(|j| !j.paused).map(|j| j.next_due_at).min();
        let until = next.map_or(self.options.look_again, |due| {
            Duration::from_micros(u64::try_from(due.0.saturating_sub(now.0)).unwrap_or(0))
        });
        // A job that is due but was not given out belongs to another claimer; never look again at once.
        Ok(Some(until.clamp(Duration::from_millis(10), self.options.look_again)))
    }

    fn start(&self, occurrence: Occurrence) {
        let job = occurrence.job.id;
        if !self.shared.lock().running.insert(job) {
            let error = "the run before this one had not ended".to_owned();
            self.record(&occurrence, Some(error));
            return;
        }
        let (store, launch, shared) = (self.store.clone(), self.launch.clone(), self.shared.clone());
        let name = occurrence.job.name.clone();
        let due = occurrence.clone();
        let work = move || {
            let end = launch.run(&occurrence).err();
            record(&*store, &occurrence, end);
            shared.lock().running.remove(&job);
            shared.changed.notify_all();
        };
        if let Err(e) = std::thread::Builder::new().name(format!("job {name}")).spawn(work) {
            self.shared.lock().running.remove(&job);
            self.record(&due, Some(format!("no thread could be started: {e}")));
        }
    }

    fn record(&self, occurrence: &Occurrence, error: Option<String>) {
        record(&*self.store, occurrence, error);
    }
}

fn record(store: &dyn Store, occurrence: &Occurrence, error: Option<String>) {
    match &error {
        None => tracing::info!("job {} done", occurrence.job.name),
        Some(e) => tracing::warn!("job {} failed: {e}", occurrence.job.name),
    }
    if let Err(e) = store.finish_occurrence(occurrence.job.id, occurrence.due_at, error) {
        tracing::warn!("the end of job {} cannot be recorded: {e}", occurrence.job.name);
    }
}
