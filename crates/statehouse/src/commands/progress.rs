//! What a person sees on a terminal while long work is done, and nobody in a pipe.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use statehouse_ops::progress::Progress;

use crate::text::escape_line;

/// How often something moves.
const TICK: Duration = Duration::from_millis(200);

/// One line that tells what is being done and how far it is.
pub(crate) struct Bar(ProgressBar);

impl Bar {
    pub(crate) fn new() -> Bar {
        let target =
            if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Bar(ProgressBar::with_draw_target(None, target))
    }

    /// Says a sentence that stays, above the line.
    pub(crate) fn say(&self, text: &str) {
        self.0.suspend(|| {
            let _ = writeln!(std::io::stderr(), "statehouse: {}", escape_line(text));
        });
    }

    /// What the work itself tells.
    pub(crate) fn told(&self, progress: Progress) {
        match progress {
            Progress::Begins { what, bytes } => self.begins(what, bytes),
            Progress::At(bytes) => self.0.set_position(bytes),
        }
    }

    /// Another step begins; `bytes` is how much there is to do, if that is known.
    pub(crate) fn begins(&self, what: &'static str, bytes: Option<u64>) {
        if self.0.is_hidden() {
            return;
        }
        let template = match bytes {
            Some(_) => "{msg} {bar:30} {bytes} of {total_bytes}, {elapsed}",
            None => "{spinner} {msg}, {elapsed}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.0.set_style(style);
        }
        self.0.set_message(what);
        self.0.enable_steady_tick(TICK);
        self.0.set_position(0);
        if let Some(bytes) = bytes {
            self.0.set_length(bytes);
        }
    }

    /// A thread that asks how far the work is, for work that cannot tell. `None` where nobody sees it; without the thread the
    /// bar stands still, and the work goes on.
    pub(crate) fn follow(&self, far: impl Fn() -> u64 + Send + 'static) -> Option<Following> {
        if self.0.is_hidden() {
            return None;
        }
        let (bar, end) = (self.0.clone(), Arc::new(AtomicBool::new(false)));
        let told = end.clone();
        let follow = move || {
            while !told.load(Ordering::Relaxed) {
                bar.set_position(far());
                std::thread::park_timeout(TICK);
            }
        };
        let thread = std::thread::Builder::new().name("progress".to_owned()).spawn(follow).ok()?;
        Some(Following { end, thread: Some(thread) })
    }

    pub(crate) fn clear(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Follows until it is dropped.
pub(crate) struct Following {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Following {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
