//! Limits the bandwidth of a store.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum number of bytes of a piece.
const MAX_PIECE: u64 = 64 << 10;
/// A piece takes at most this part of a second at the limit.
const PIECES_PER_SECOND: u64 = 16;
/// Transfer time that may be made up for, so that threads that wake late keep up with the limit.
const CREDIT: Duration = Duration::from_millis(50);

/// Spreads the transfers of all threads over time, in pieces.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Limit in bytes per second.
    limit: Option<u64>,
    /// When the next piece may be transferred.
    next: Mutex<Option<Instant>>,
}

impl Pace {
    /// Limits transfers to a number of bytes per second, or not at all.
    pub fn new(limit: Option<u64>) -> Arc<Pace> {
        Arc::new(Pace { limit, next: Mutex::default() })
    }

    /// Returns whether transfers are limited.
    #[cfg(feature = "s3")]
    pub fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Returns the maximum size in bytes of a piece.
    pub fn piece(&self) -> usize {
        let piece = self.limit.map_or(usize::MAX as u64, |limit| (limit / PIECES_PER_SECOND).min(MAX_PIECE));
        usize::try_from(piece).unwrap_or(usize::MAX).max(1)
    }

    /// Reserves the time of a piece after those of all threads. Returns when it may be transferred.
    fn reserve(&self, bytes: usize) -> Option<Instant> {
        let time = Duration::from_secs_f64(bytes as f64 / self.limit?.max(1) as f64);
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let earliest = now.checked_sub(CREDIT).unwrap_or(now);
        let start = next.map_or(now, |next| next.max(earliest));
        *next = Some(start + time);
        Some(start).filter(|start| *start > now)
    }

    fn wait(&self, bytes: usize) {
        if let Some(start) = self.reserve(bytes) {
            thread::sleep(start.saturating_duration_since(Instant::now()));
        }
    }

    /// Writes content in pieces.
    pub fn write(&self, target: &mut impl Write, content: &[u8]) -> io::Result<()> {
        content.chunks(self.piece()).try_for_each(|piece| {
            self.wait(piece.len());
            target.write_all(piece)
        })
    }

    /// Reads to the end of a source in pieces.
    pub fn read(&self, mut source: impl Read) -> io::Result<Vec<u8>> {
        let (mut content, piece) = (Vec::new(), self.piece());
        loop {
            let count = (&mut source).take(piece as u64).read_to_end(&mut content)?;
            if count < piece {
                return Ok(content);
            }
            self.wait(count);
        }
    }
}

/// The turns of one transfer, and how long it has waited for them: its time limit does not include that.
#[cfg(any(feature = "s3", feature = "sftp"))]
#[derive(Debug)]
pub(super) struct Turns {
    pace: Arc<Pace>,
    /// The time that it has waited for some of its pieces, and until when.
    waited: Mutex<(Duration, Option<Instant>)>,
}

#[cfg(any(feature = "s3", feature = "sftp"))]
impl Turns {
    pub fn new(pace: &Arc<Pace>) -> Arc<Turns> {
        Arc::new(Turns { pace: Arc::clone(pace), waited: Mutex::default() })
    }

    /// See [`Pace::piece`].
    pub fn piece(&self) -> usize {
        self.pace.piece()
    }

    /// Reserves the time of a piece. Returns when it may be transferred; `None` at once.
    pub fn reserve(&self, bytes: usize) -> Option<Instant> {
        let start = self.pace.reserve(bytes)?;
        let mut waited = self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        // Other pieces of the transfer may wait at the same time.
        let from = waited.1.map_or(now, |until| until.max(now));
        waited.0 += start.saturating_duration_since(from);
        waited.1 = Some(start.max(from));
        Some(start)
    }

    /// Waits until a piece may be transferred.
    #[cfg(feature = "sftp")]
    pub async fn wait(&self, bytes: usize) {
        if let Some(start) = self.reserve(bytes) {
            tokio::time::sleep_until(start.into()).await;
        }
    }

    /// Awaits a transfer for this time and the time that it waits for its turns. Must be called in a runtime.
    ///
    /// # Errors
    /// The transfer takes longer.
    pub async fn within<T>(&self, limit: Duration, transfer: impl Future<Output = T>) -> Result<T, Duration> {
        let mut transfer = std::pin::pin!(transfer);
        let waited = || self.waited.lock().unwrap_or_else(PoisonError::into_inner).0;
        let (began, before) = (Instant::now(), waited());
        let end = || began + limit + (waited() - before);
        loop {
            let planned = end();
            match tokio::time::timeout_at(planned.into(), &mut transfer).await {
                Ok(result) => return Ok(result),
                Err(_) if end() > planned => {}
                Err(_) => return Err(limit),
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A source and target that keeps when bytes passed, and how many.
    #[derive(Clone, Default)]
    pub struct Meter(Arc<Mutex<Vec<(Instant, usize)>>>);

    impl Meter {
        pub fn pass(&self, bytes: usize) -> io::Result<usize> {
            self.0.lock().unwrap().push((Instant::now(), bytes));
            Ok(bytes)
        }

        /// Returns the most bytes that passed within half a second.
        pub fn most(&self) -> usize {
            let mut passed = self.0.lock().unwrap().clone();
            passed.sort();
            let until = |from: Instant| from + Duration::from_millis(500);
            let sum = |at: usize| {
                let within = passed[at..].iter().take_while(|(time, _)| *time < until(passed[at].0));
                within.map(|(_, bytes)| bytes).sum()
            };
            (0..passed.len()).map(sum).max().unwrap_or_default()
        }
    }

    impl Write for Meter {
        fn write(&mut self, content: &[u8]) -> io::Result<usize> {
            self.pass(content.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Meter {
        fn read(&mut self, content: &mut [u8]) -> io::Result<usize> {
            self.pass(content.len())
        }
    }

    #[test]
    fn threads_share_the_limit_at_every_moment() {
        let (pace, meter, began) = (Pace::new(Some(1 << 20)), Meter::default(), Instant::now());
        thread::scope(|scope| {
            for number in 0..4 {
                let (pace, mut meter) = (&pace, meter.clone());
                scope.spawn(move || match number {
                    0 | 1 => pace.write(&mut meter, &vec![0; 1 << 18]).unwrap(),
                    _ => assert_eq!(pace.read(meter.take(1 << 18)).unwrap().len(), 1 << 18),
                });
            }
        });
        let took = began.elapsed();
        assert!((Duration::from_millis(800)..Duration::from_secs(30)).contains(&took), "{took:?}");
        assert!(meter.most() < 900_000, "{} bytes in half a second", meter.most());
    }

    #[test]
    fn nothing_waits_without_a_limit() {
        let began = Instant::now();
        Pace::default().write(&mut Meter::default(), &vec![0; 1 << 24]).unwrap();
        assert!(began.elapsed() < Duration::from_secs(10));
    }

    #[cfg(any(feature = "s3", feature = "sftp"))]
    #[test]
    fn the_time_limit_of_a_transfer_leaves_out_its_turns() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let pace = Pace::new(Some(1000));
        let turns = Turns::new(&pace);
        let limit = Duration::from_millis(300);
        let waiting = async {
            for _ in 0..10 {
                if let Some(start) = turns.reserve(62) {
                    tokio::time::sleep_until(start.into()).await;
                }
            }
        };
        runtime.block_on(turns.within(limit, waiting)).unwrap();
        // Turns of another transfer do not extend the time of one that does nothing.
        pace.reserve(100_000);
        let began = Instant::now();
        let hanging = std::future::pending::<()>();
        assert_eq!(runtime.block_on(async { turns.within(limit, hanging).await }), Err(limit));
        assert!(began.elapsed() < Duration::from_secs(20));
    }
}
