//! How long it is waited between attempts.

use std::time::Duration;

/// How long it is waited before something that failed is tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// After many failures.
    pub max: Duration,
}

impl Backoff {
    /// How long it is waited after the failure that follows a wait of `pause`.
    pub fn after(&self, pause: Duration) -> Duration {
        (2 * pause).min(self.max)
    }
}
