//! Runs long work without the GIL, so that Ctrl-C can end it.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors::WaldenError;

/// Interval between checks for signals.
pub const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// Ends work whose caller was interrupted.
#[derive(Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

/// The payload with which a cancelled thread unwinds.
struct Cancelled;

impl Cancel {
    /// Unwinds the thread if the caller was interrupted; its worker threads end with it.
    pub fn check(&self) {
        if self.0.load(Ordering::Relaxed) {
            panic::resume_unwind(Box::new(Cancelled));
        }
    }
}

/// Runs `work` in a thread of its own, without the GIL. If a signal handler raises, as that of Ctrl-C does,
/// the wait ends immediately, and the work at its next [`Cancel::check`].
pub fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Cancel) -> T + Send + 'static,
) -> PyResult<T> {
    let cancel = Cancel::default();
    let (sender, mut receiver) = sync_channel(1);
    std::thread::Builder::new().name("walden".into()).spawn({
        let cancel = cancel.clone();
        move || {
            if let Ok(result) = panic::catch_unwind(AssertUnwindSafe(|| work(&cancel))) {
                // After an interrupt, the receiver is gone.
                let _ = sender.send(result);
            }
        }
    })?;
    loop {
        let received;
        (receiver, received) = py.detach(move || {
            let received = receiver.recv_timeout(SIGNALS_EVERY);
            (receiver, received)
        });
        match received {
            Ok(result) => return Ok(result),
            Err(RecvTimeoutError::Timeout) => {
                if let Err(interrupt) = py.check_signals() {
                    cancel.0.store(true, Ordering::Relaxed);
                    return Err(interrupt);
                }
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(WaldenError::new_err(
                    "cannot finish: a thread panicked; this is a bug in Walden",
                ));
            }
        }
    }
}
