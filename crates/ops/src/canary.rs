//! A row that each live process of a house writes because somebody asks for it.
//!
//! A proof of health asks every member that it knows; the question is a file in `X.statehouse/canary/`, so that it reaches a
//! process whatever ports it has or has not. The member writes a row through its own handle and says in a file of its own
//! what it wrote. Whether anybody else sees that row is for the one who asked: he has it read by a fresh process
//! through the path. A member that is stopped, or whose handle hangs, does not answer, and that is an answer.
//!
//! One at a time asks, for the rows of two questions would overwrite each other. Files that somebody left are old in a minute and
//! are removed by the next one who asks.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use statehouse_sessions::Store;
use statehouse_sqlite::process::ProcessId;
use statehouse_sqlite::secure::{self, Purpose};
use statehouse_sqlite::{Error, Family, Result, files, side};

/// Roles whose processes answer.
pub const ROLES: [&str; 3] = ["gateway", "dashboard", "scheduler"];

const DIRECTORY: &str = "canary";
const QUESTION: &str = "ask";
const ANSWER: &str = "answer";

/// How often a member looks for a question, and how often somebody who asked looks for answers.
const LOOK: Duration = Duration::from_millis(200);
const WAIT: Duration = Duration::from_millis(20);

/// A question that is older is not answered any more.
const STALE: Duration = Duration::from_secs(60);

/// The longest file that is read.
const LONGEST: u64 = 64 * 1024;

/// Under which role of the table of canaries a member writes when it is asked. It has another one for its own readiness.
pub fn row_of(role: &str) -> String {
    format!("{role} when asked")
}

#[derive(Debug, Serialize, Deserialize)]
struct Question {
    id: String,
    of: Vec<ProcessId>,
}

/// What a member answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    /// The process.
    #[serde(flatten)]
    pub process: ProcessId,
    /// Its role.
    pub role: String,
    /// The token of the row that it wrote.
    pub token: Option<String>,
    /// Why it could not write.
    pub error: Option<String>,
}

fn directory(family: &Family) -> PathBuf {
    family.side_directory().join(DIRECTORY)
}

fn answer_name(id: &str, process: ProcessId) -> String {
    format!("{id}.{}-{}.{ANSWER}", process.pid, process.start_ticks)
}

fn is_fresh(path: &Path) -> bool {
    let modified = std::fs::symlink_metadata(path).and_then(|m| m.modified());
    modified.is_ok_and(|at| at.elapsed().unwrap_or_default() < STALE)
}

fn entries(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == ending)).collect()
}

/// Answers questions for as long as the store is there, on a thread of its own. A member without that thread is one that does not
/// answer.
///
/// # Errors
/// The system's answer when no thread can be started.
pub fn answer(store: &Arc<dyn Store>, database: &Path, role: &'static str) -> Result<()> {
    let family = Family::of(database)?;
    let store = Arc::downgrade(store);
    let named = std::thread::Builder::new().name("statehouse-canary".into());
    let started = named.spawn(move || answer_all(&store, &family, role));
    started.map(drop).map_err(|e| Error::io("start a thread for", database, e))
}

fn answer_all(store: &Weak<dyn Store>, family: &Family, role: &str) {
    let place = directory(family);
    let mut answered: VecDeque<String> = VecDeque::new();
    loop {
        std::thread::sleep(LOOK);
        let Some(store) = store.upgrade() else { return };
        for path in entries(&place, QUESTION).into_iter().filter(|p| is_fresh(p)) {
            let Some(question) = read::<Question>(&path) else { continue };
            let Ok(me) = ProcessId::own() else { continue };
            if !question.of.contains(&me) || answered.contains(&question.id) {
                continue;
            }
            let (token, error) = match store.write_canary(&row_of(role)) {
                Ok(token) => (Some(token), None),
                Err(e) => (None, Some(e.to_string())),
            };
            let answer = Answer { process: me, role: role.to_owned(), token, error };
            // One that cannot be written down is one that was not given.
            let _ = serde_json::to_vec(&answer)
                .map_err(std::io::Error::from)
                .and_then(|text| files::replace(&place.join(answer_name(&question.id, me)), &text));
            answered.push_back(question.id);
            if answered.len() > 64 {
                answered.pop_front();
            }
        }
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Option<T> {
    serde_json::from_str(&files::read_to_string(path, LONGEST).ok()?).ok()
}

/// Somebody who asks, alone.
pub struct Asking {
    family: Family,
    _lock: std::fs::File,
}

impl Asking {
    /// Waits until nobody else asks.
    ///
    /// # Errors
    /// [`Error::Busy`], a refusal, or the system's answer.
    pub fn begin(family: &Family, patience: Duration) -> Result<Asking> {
        let place = directory(family);
        let inspected = secure::inspect(family, Purpose::Own)?;
        let made = side::create(&inspected)?;
        side::subdirectory(&inspected, std::os::fd::AsFd::as_fd(&made), DIRECTORY, &place)?;
        let path = place.join("lock");
        let lock = files::open_private(&path).map_err(|e| Error::io("open", &path, e))?;
        let begun = Instant::now();
        while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            if begun.elapsed() >= patience {
                let holder = Some("another verification".to_owned());
                return Err(Error::Busy { waited: begun.elapsed(), holder });
            }
            std::thread::sleep(WAIT);
        }
        for old in entries(&place, QUESTION).into_iter().chain(entries(&place, ANSWER)) {
            let _ = std::fs::remove_file(old);
        }
        Ok(Asking { family: family.clone(), _lock: lock })
    }

    /// Asks these processes, of which no two have the same role, and waits for their answers. Whoever has not answered in
    /// time is not among them.
    ///
    /// # Errors
    /// The system's answer.
    pub fn ask(&self, of: &[ProcessId], patience: Duration) -> Result<Vec<Answer>> {
        let place = directory(&self.family);
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let id = format!("{}-{}", now.as_micros(), std::process::id());
        let path = place.join(format!("{id}.{QUESTION}"));
        let io = |e: std::io::Error| Error::io("write", &path, e);
        let text = serde_json::to_vec(&Question { id: id.clone(), of: of.to_vec() }).map_err(|e| io(e.into()))?;
        files::replace(&path, &text).map_err(io)?;
        let begun = Instant::now();
        let mut answers: Vec<Answer> = Vec::new();
        while answers.len() < of.len() && begun.elapsed() < patience {
            std::thread::sleep(WAIT);
            for process in of {
                if answers.iter().any(|a| a.process == *process) {
                    continue;
                }
                answers.extend(read::<Answer>(&place.join(answer_name(&id, *process))));
            }
        }
        for file in std::iter::once(path).chain(of.iter().map(|p| place.join(answer_name(&id, *p)))) {
            let _ = std::fs::remove_file(file);
        }
        Ok(answers)
    }
}
