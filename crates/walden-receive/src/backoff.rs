//! Waiting times between attempts.

use std::time::Duration;

/// How long to wait before an operation that failed is tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    /// Wait after the first failure.
    pub first: Duration,
    /// Longest wait after repeated failures.
    pub max: Duration,
}

impl Backoff {
    /// Returns the wait after another failure, given that the previous wait was `pause`.
    pub fn after(&self, pause: Duration) -> Duration {
        (2 * pause).min(self.max)
    }
}
