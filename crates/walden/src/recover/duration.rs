//! The expected duration of a recovery, as a range.

use serde::Serialize;
use walden_report::units;

/// Bytes a second that a copy of files reaches: a disk or a network, and a fast solid-state drive. They are
/// not measured: a plan writes nothing.
const COPY: [f64; 2] = [0.1e9, 2e9];
/// The duration of a replay, as multiples of the duration that a sample at its start predicts. Later pages
/// may be cached, or be written to a temporary file.
const REPLAY: [f64; 2] = [0.5, 3.0];

/// The expected duration of Walden's part of a recovery, in seconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct ExpectedDuration {
    seconds_from: f64,
    /// `None` without a sample of replay: then the least duration is that of the copy.
    seconds_to: Option<f64>,
    copied_bytes: u64,
    /// The measured speed of replay.
    replayed_bytes_per_second: Option<f64>,
}

impl ExpectedDuration {
    /// `replay_rate` is in bytes of WAL a second.
    pub(super) fn new(copied_bytes: u64, replayed_bytes: u64, replay_rate: Option<f64>) -> ExpectedDuration {
        let [slow, fast] = COPY.map(|rate| copied_bytes as f64 / rate);
        let sample = replay_rate.filter(|&rate| rate > 0.0).map(|rate| replayed_bytes as f64 / rate);
        ExpectedDuration {
            seconds_from: fast + sample.unwrap_or_default() * REPLAY[0],
            seconds_to: sample.map(|sample| slow + sample * REPLAY[1]),
            copied_bytes,
            replayed_bytes_per_second: replay_rate,
        }
    }

    /// Returns a line for the plan, or nothing without a sample of replay.
    pub(super) fn text(&self) -> String {
        let (Some(to), Some(rate)) = (self.seconds_to, self.replayed_bytes_per_second) else {
            return String::new();
        };
        format!(
            "  Expected duration: {} to {}, for a copy of {} at {} to {} a second (not measured), and replay at {} a second (a sample)\n",
            rounded(self.seconds_from),
            rounded(to),
            units::bytes(self.copied_bytes),
            units::bytes(COPY[0] as u64),
            units::bytes(COPY[1] as u64),
            units::bytes(rate as u64),
        )
    }
}

/// Formats a duration without digits that would pretend precision.
fn rounded(seconds: f64) -> String {
    match seconds {
        ..1.0 => "less than 1 s".to_owned(),
        ..100.0 => format!("{seconds:.0} s"),
        ..6000.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.0} h", seconds / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_range_with_its_basis() {
        let expected = ExpectedDuration::new(10_000_000_000, 100_000_000_000, Some(200e6));
        assert_eq!((expected.seconds_from, expected.seconds_to), (5.0 + 250.0, Some(100.0 + 1500.0)));
        let text = expected.text();
        assert!(text.contains("4 min to 27 min") && text.contains("200.0 MB a second (a sample)"), "{text}");
        let unknown = ExpectedDuration::new(10_000_000_000, 1, None);
        assert_eq!((unknown.seconds_to, unknown.text()), (None, String::new()));
    }
}
