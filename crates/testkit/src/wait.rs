//! Waiting for a condition, never for a time.

use std::time::{Duration, Instant};

/// Waits until `condition` holds, and panics with `what` when `deadline` passes first.
pub fn until(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    until_some(what, deadline, || condition().then_some(()));
}

/// Waits until `attempt` gives something, and panics with `what` when `deadline` passes first.
///
/// The pauses between two looks grow to 20 ms, so that a condition that holds soon is seen soon and a long wait costs
/// the process under test little.
pub fn until_some<T>(what: &str, deadline: Duration, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(begun.elapsed() < deadline, "waited {deadline:?} in vain: {what}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
