//! Progress on standard error: only on a terminal, and only for operations that take more than a second.

use std::io::IsTerminal;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A progress bar.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    shown: bool,
}

const SILENT: Duration = Duration::from_secs(1);

impl Progress {
    /// Creates a bar over `total` bytes.
    pub fn bytes(what: &'static str, total: u64) -> Progress {
        let template = "{msg} [{bar:30}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
        Progress::new(what, total, template)
    }

    /// Creates a bar over `total` items.
    pub fn count(what: &'static str, total: u64) -> Progress {
        Progress::new(what, total, "{msg} [{bar:30}] {pos}/{len} {per_sec} {eta}")
    }

    fn new(what: &'static str, total: u64, template: &str) -> Progress {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("█▌ "));
        }
        bar.set_message(what);
        Progress { bar, started: Instant::now(), shown: false }
    }

    /// Counts `bytes` bytes as done.
    pub fn advance(&mut self, bytes: u64) {
        if !self.shown && self.started.elapsed() > SILENT && std::io::stderr().is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.shown = true;
        }
        self.bar.inc(bytes);
    }

    /// Adds `bytes` bytes to the total.
    pub fn lengthen(&mut self, bytes: u64) {
        self.bar.inc_length(bytes);
    }

    /// Removes the bar.
    pub fn finish(self) {
        self.bar.finish_and_clear();
    }
}

/// A line on the terminal for work of unknown length, shown until this is dropped.
pub struct Waiting {
    bar: ProgressBar,
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Waiting {
    /// Shows a description of the work.
    pub fn new(what: String) -> Waiting {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template("{spinner} {wide_msg} {elapsed}") {
            bar.set_style(style);
        }
        bar.set_message(what);
        let (end, ended) = channel();
        let thread = std::io::stderr().is_terminal().then(|| {
            let bar = bar.clone();
            let wait = move || {
                if ended.recv_timeout(SILENT) == Err(RecvTimeoutError::Timeout) {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                    bar.enable_steady_tick(Duration::from_millis(100));
                }
            };
            std::thread::Builder::new().name("waiting".into()).spawn(wait).ok()
        });
        Waiting { bar, end: Some(end), thread: thread.flatten() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.bar.finish_and_clear();
    }
}
