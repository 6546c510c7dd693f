//! The expected duration of a recovery, as a range.

use serde::Serialize;

/// Bytes a second that a copy of files reaches: a disk or a network, and a fast solid-state drive. They are
/// not measured: a plan writes nothing.
pub const COPY_BYTES_PER_SECOND: [f64; 2] = [0.1e9, 2e9];
/// The duration of a replay, as multiples of the duration that a sample at its start predicts. Later pages
/// may be cached, or be written to a temporary file.
const REPLAY: [f64; 2] = [0.5, 3.0];

/// The expected duration of Walden's part of a recovery, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct ExpectedDuration {
    /// The least duration.
    pub seconds_from: f64,
    /// The greatest duration; `None` without a sample of replay: then the least duration is that of the copy.
    pub seconds_to: Option<f64>,
    /// Bytes of the base backup.
    pub copied_bytes: u64,
    /// The measured speed of replay.
    pub replayed_bytes_per_second: Option<f64>,
}

impl ExpectedDuration {
    /// Computes the duration of a copy and a replay. `replay_rate` is in bytes of WAL a second.
    pub fn new(copied_bytes: u64, replayed_bytes: u64, replay_rate: Option<f64>) -> ExpectedDuration {
        let [slow, fast] = COPY_BYTES_PER_SECOND.map(|rate| copied_bytes as f64 / rate);
        let sample = replay_rate.filter(|&rate| rate > 0.0).map(|rate| replayed_bytes as f64 / rate);
        ExpectedDuration {
            seconds_from: fast + sample.unwrap_or_default() * REPLAY[0],
            seconds_to: sample.map(|sample| slow + sample * REPLAY[1]),
            copied_bytes,
            replayed_bytes_per_second: replay_rate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_range_with_its_basis() {
        let expected = ExpectedDuration::new(10_000_000_000, 100_000_000_000, Some(200e6));
        assert_eq!((expected.seconds_from, expected.seconds_to), (5.0 + 250.0, Some(100.0 + 1500.0)));
        let unknown = ExpectedDuration::new(10_000_000_000, 1, None);
        assert_eq!(unknown.seconds_to, None);
    }
}
