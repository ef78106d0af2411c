//! The scheduler over a real store; only the worker process is replaced, by a record of what was started.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use statehouse_scheduler::{Launch, Options, Scheduler, Stop};
use statehouse_sessions::{Holder, JobKind, Occurrence, OpenMode, SqliteStore, Store};

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Inner {
    started: Vec<Occurrence>,
    running: usize,
    most: usize,
    /// Workers end only while this is true.
    open: bool,
    stopped: bool,
}

/// Stands for the worker processes: each start is recorded, and lasts until the test lets it end.
#[derive(Default)]
struct Workers {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Workers {
    fn until(&self, what: &str, mut condition: impl FnMut(&mut Inner) -> bool) {
        let begun = Instant::now();
        let mut inner = self.inner.lock().unwrap();
        while !condition(&mut inner) {
            assert!(begun.elapsed() < PATIENCE, "{what}");
            inner = self.changed.wait_timeout(inner, Duration::from_millis(50)).unwrap().0;
        }
    }

    fn open(&self) {
        self.inner.lock().unwrap().open = true;
        self.changed.notify_all();
    }
}

impl Launch for Workers {
    fn run(&self, occurrence: &Occurrence) -> Result<(), String> {
        let mut inner = self.inner.lock().unwrap();
        inner.started.push(occurrence.clone());
        inner.running += 1;
        inner.most = inner.most.max(inner.running);
        self.changed.notify_all();
        while !inner.open && !inner.stopped {
            inner = self.changed.wait(inner).unwrap();
        }
        inner.running -= 1;
        self.changed.notify_all();
        if inner.stopped && !inner.open { Err("was stopped".into()) } else { Ok(()) }
    }

    fn stop(&self) {
        self.inner.lock().unwrap().stopped = true;
        self.changed.notify_all();
    }
}

struct House {
    store: SqliteStore,
    workers: Arc<Workers>,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl House {
    fn new(jobs: &[&str]) -> House {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.db");
        let store = SqliteStore::open(&path, "test", OpenMode::create()).unwrap();
        for name in jobs {
            store.ensure_job(name, JobKind::Housekeeping { name: (*name).to_owned() }, 1).unwrap();
        }
        House { store, workers: Arc::default(), path, _directory: directory }
    }

    /// A scheduler on a thread of its own, with a handle of its own.
    fn scheduler(&self, workers: usize) -> (Stop, std::thread::JoinHandle<()>) {
        let store = SqliteStore::open(&self.path, "scheduler", OpenMode::existing()).unwrap();
        let options = Options {
            holder: Holder(format!("scheduler {:?}", Instant::now())),
            workers,
            look_again: Duration::from_secs(1),
        };
        let scheduler = Scheduler::new(Arc::new(store), self.workers.clone(), options);
        let stop = scheduler.stopper();
        (stop, std::thread::spawn(move || scheduler.run()))
    }

    /// Due time and error of every occurrence of a job that has ended.
    fn ended(&self) -> Vec<(i64, Option<String>)> {
        let read = |c: &statehouse_sqlite::rusqlite::Connection| {
            let mut all =
                c.prepare("SELECT due_at, error FROM occurrence WHERE finished_at IS NOT NULL ORDER BY due_at")?;
            let rows = all.query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?;
            Ok(rows.collect::<Result<_, _>>()?)
        };
        self.store.database().read(read).unwrap()
    }
}

#[test]
fn a_due_job_is_started_again_and_again_and_its_end_is_recorded() {
    let house = House::new(&["tidy"]);
    house.workers.open();
    let (stop, thread) = house.scheduler(2);
    house.workers.until("two occurrences", |w| w.started.len() >= 2);
    stop.stop();
    thread.join().unwrap();
    let started: Vec<i64> = house.workers.inner.lock().unwrap().started.iter().map(|o| o.due_at.0).collect();
    assert!(started.windows(2).all(|w| w[1] > w[0]), "each due time once, in order: {started:?}");
    let ended = house.ended();
    assert_eq!(ended.iter().map(|e| e.0).collect::<Vec<_>>(), started);
    assert!(ended.iter().all(|e| e.1.is_none()), "{ended:?}");
}

#[test]
fn no_more_workers_run_at_once_than_allowed() {
    let house = House::new(&["a", "b", "c", "d"]);
    let (stop, thread) = house.scheduler(2);
    house.workers.until("two workers", |w| w.running == 2);
    house.workers.open();
    house.workers.until("all four jobs", |w| w.started.len() >= 4);
    stop.stop();
    thread.join().unwrap();
    assert_eq!(house.workers.inner.lock().unwrap().most, 2);
}

#[test]
fn a_run_that_has_not_ended_keeps_the_next_one_of_its_job_away() {
    let house = House::new(&["slow"]);
    let (stop, thread) = house.scheduler(2);
    house.workers.until("the first run", |w| w.running == 1);
    let begun = Instant::now();
    while house.ended().is_empty() {
        assert!(begun.elapsed() < PATIENCE, "the occurrence that fell into the first run is recorded");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(house.workers.inner.lock().unwrap().started.len(), 1);
    assert!(house.ended()[0].1.as_deref().unwrap().contains("before"), "{:?}", house.ended());
    house.workers.open();
    house.workers.until("the next run", |w| w.started.len() >= 2);
    stop.stop();
    thread.join().unwrap();
}

#[test]
fn a_stop_ends_the_workers_and_records_that() {
    let house = House::new(&["long"]);
    let (stop, thread) = house.scheduler(1);
    house.workers.until("it runs", |w| w.running == 1);
    stop.stop();
    thread.join().unwrap();
    assert_eq!(house.ended().last().unwrap().1.as_deref(), Some("was stopped"));
}

#[test]
fn two_schedulers_never_run_one_occurrence_twice() {
    let house = House::new(&["a", "b", "c"]);
    house.workers.open();
    let (first, second) = (house.scheduler(3), house.scheduler(3));
    house.workers.until("enough", |w| w.started.len() >= 9);
    for (stop, thread) in [first, second] {
        stop.stop();
        thread.join().unwrap();
    }
    let started = &house.workers.inner.lock().unwrap().started;
    let mut all: Vec<(String, i64)> = started.iter().map(|o| (o.job.name.clone(), o.due_at.0)).collect();
    let n = all.len();
    all.sort();
    all.dedup();
    assert_eq!(all.len(), n);
}

#[test]
fn an_idle_scheduler_sleeps() {
    let house = House::new(&[]);
    let job = house.store.ensure_job("yearly", JobKind::Housekeeping { name: "x".into() }, 30_000_000).unwrap();
    let (stop, thread) = house.scheduler(1);
    let changes = house.store.change_counter().unwrap();
    let begun = Instant::now();
    // A stop must come through at once although nothing is due for a year.
    std::thread::sleep(Duration::from_millis(100));
    stop.stop();
    thread.join().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));
    assert_eq!(house.store.change_counter().unwrap(), changes, "looking writes nothing");
    assert_eq!(house.store.jobs().unwrap()[0].next_due_at, job.next_due_at);
}
