//! Limits the bandwidth of a store.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Spreads the transfers of all threads over time. On average, they take as long as at the limit; each one is
/// made at full speed.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Limit in bytes per second.
    limit: Option<u64>,
    /// When the next transfer may start.
    next: Mutex<Option<Instant>>,
}

impl Pace {
    /// Limits transfers to a number of bytes per second, or not at all.
    pub fn new(limit: Option<u64>) -> Pace {
        Pace { limit, next: Mutex::default() }
    }

    /// Makes a transfer of this many bytes: it starts after the earlier ones, and a successful one ends when
    /// its time at the limit is over.
    pub fn run<T, E>(&self, bytes: u64, transfer: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let Some(limit) = self.limit.filter(|_| bytes > 0) else { return transfer() };
        let time = Duration::from_secs_f64(bytes as f64 / limit.max(1) as f64);
        let start = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let start = next.map_or(now, |next| next.max(now));
            *next = Some(start + time);
            start
        };
        wait_until(start);
        let result = transfer()?;
        wait_until(start + time);
        Ok(result)
    }
}

fn wait_until(time: Instant) {
    thread::sleep(time.saturating_duration_since(Instant::now()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_share_the_limit() {
        let pace = Pace::new(Some(1 << 20));
        let began = Instant::now();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| pace.run(1 << 18, || Ok::<_, ()>(())));
            }
        });
        let took = began.elapsed();
        assert!((Duration::from_millis(900)..Duration::from_secs(30)).contains(&took), "{took:?}");
        // A failure is reported at once, and nothing waits without a limit.
        let began = Instant::now();
        assert!(pace.run(1 << 24, || Err::<(), _>(())).is_err());
        Pace::default().run(u64::MAX, || Ok::<_, ()>(())).unwrap();
        assert!(began.elapsed() < Duration::from_secs(10));
    }
}
