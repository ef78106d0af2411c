//! Questions that only the binary can answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::Mutex;

use crate::problem::Problem;

/// A question that the binary answers as a JSON document: it may block, and runs on the blocking pool. The services ask
/// for readiness and for the holders this way, because only the binary may start the second process that either needs.
pub type Probe = Arc<dyn Fn() -> Value + Send + Sync>;

/// A probe with its last answer. It may start a process, so it does not run once for each of a hundred requests: those who
/// ask while it runs wait for it and get the same answer.
pub struct Asked {
    probe: Probe,
    last: Mutex<Option<(Instant, Value)>>,
}

impl Asked {
    /// A probe that was not asked yet.
    pub fn new(probe: Probe) -> Asked {
        Asked { probe, last: Mutex::new(None) }
    }

    /// The answer, at most `good_for` old.
    ///
    /// # Errors
    /// `internal` when the probe panicked.
    pub async fn ask(&self, good_for: Duration) -> Result<Value, Problem> {
        let mut last = self.last.lock().await;
        if let Some((at, document)) = &*last
            && at.elapsed() < good_for
        {
            return Ok(document.clone());
        }
        let probe = Arc::clone(&self.probe);
        let document = tokio::task::spawn_blocking(move || probe())
            .await
            .map_err(|e| Problem::internal(format!("the probe did not return: {e}")))?;
        *last = Some((Instant::now(), document.clone()));
        Ok(document)
    }

    /// Lets the next one who asks have a new answer, for something has changed.
    pub async fn forget(&self) {
        *self.last.lock().await = None;
    }
}
