//! Predicts when the next checkpoint starts, and why.
//!
//! A checkpoint is requested when a segment is completed that is at least `CheckPointSegments - 1` segments
//! after the one with the redo pointer (`XLogCheckpointNeeded`; [`CheckpointSettings::segments`] computes the
//! number, also for explanations and predictions). A checkpoint also starts `checkpoint_timeout` after the
//! start of the last one, or after the start of the server (`CheckpointerMain`), unless nothing important was
//! written since then: an idle server skips it (`CreateCheckPoint`).

use serde::Serialize;
use walden_explain::checkpoints::{Cause, CheckpointSettings};
use walden_format::lsn::{Lsn, SegmentSize};

/// The current checkpoint cycle.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Cycle {
    /// The redo pointer at its start.
    pub redo: Lsn,
    /// When its checkpoint started, in seconds since 1970-01-01 UTC; `None` if that is not known.
    pub began: Option<f64>,
    /// When the server started, in seconds since 1970-01-01 UTC; `None` if that is not known.
    pub server_started: Option<f64>,
}

/// The next checkpoint, as far as it can be predicted.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Forecast {
    /// Bytes since the redo pointer of the last checkpoint.
    pub bytes_since: u64,
    /// Seconds since that checkpoint started.
    pub seconds_since: Option<f64>,
    /// Bytes until `max_wal_size` requests a checkpoint.
    pub bytes_left: Option<u64>,
    /// Seconds until then at the current rate; 0 once `max_wal_size` is reached, `None` if it is not reached
    /// and no WAL is written.
    pub seconds_left_by_volume: Option<f64>,
    /// Seconds until `checkpoint_timeout`; `None` once it has passed.
    pub seconds_left_by_time: Option<f64>,
    /// Whether `checkpoint_timeout` has passed without a checkpoint in the WAL. An idle server skips the
    /// checkpoint and does not report when it checks again, and before PostgreSQL 17, WAL does not show a
    /// checkpoint in progress.
    #[serde(rename = "timeout_passed")]
    pub is_timeout_passed: bool,
    /// Seconds until the next checkpoint, by volume or by time; `None` if unknown.
    pub seconds_left: Option<f64>,
    /// The cause of the next checkpoint: `volume` or `time`; `None` if unknown.
    pub cause: Option<&'static str>,
}

/// Predicts the next checkpoint. `rate` is in bytes of WAL per second, `now` in seconds since 1970-01-01 UTC.
pub fn forecast(
    cycle: Cycle,
    position: Lsn,
    size: SegmentSize,
    settings: Option<CheckpointSettings>,
    rate: f64,
    now: f64,
) -> Forecast {
    let seconds_since = cycle.began.map(|began| (now - began).max(0.0));
    let at = settings
        .map(|settings| size.start_of(size.segment_of(cycle.redo).saturating_add(settings.segments(size))));
    let bytes_left = at.map(|at| at.0.saturating_sub(position.0));
    // Once `max_wal_size` is reached, a checkpoint is due or in progress, at any rate.
    let by_volume = bytes_left.and_then(|bytes| match bytes {
        0 => Some(0.0),
        _ => (rate > 0.0).then(|| bytes as f64 / rate),
    });
    let timed =
        cycle.began.map(|began| now - cycle.server_started.map_or(began, |started| started.max(began)));
    let until_timeout = settings.zip(timed).map(|(settings, since)| settings.timeout as f64 - since.max(0.0));
    let is_timeout_passed = until_timeout.is_some_and(|seconds| seconds <= 0.0);
    let by_time = until_timeout.filter(|_| !is_timeout_passed);
    let first = match (by_volume, by_time) {
        // A checkpoint may start at any time, unless `max_wal_size` is reached already.
        (volume, None) if is_timeout_passed => {
            volume.filter(|volume| *volume <= 0.0).map(|volume| (volume, Cause::Volume))
        }
        (Some(volume), Some(time)) if volume <= time => Some((volume, Cause::Volume)),
        (_, Some(time)) => Some((time, Cause::Time)),
        (Some(volume), None) => Some((volume, Cause::Volume)),
        (None, None) => None,
    };
    Forecast {
        bytes_since: position.0.saturating_sub(cycle.redo.0),
        seconds_since,
        bytes_left,
        seconds_left_by_volume: by_volume,
        seconds_left_by_time: by_time,
        is_timeout_passed,
        seconds_left: first.map(|(seconds, _)| seconds),
        cause: first.map(|(_, cause)| cause.name()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_volume_and_time_comes_next() {
        let settings = CheckpointSettings {
            timeout: 300,
            max_wal_size: 1 << 30,
            completion_target_milli: 900,
            keeps_one: true,
        };
        let size = SegmentSize::DEFAULT;
        let segment = size.bytes();
        let cycle = Cycle { redo: Lsn(5 * segment + 100), began: Some(1000.0), server_started: None };
        // 33 segments: the checkpoint is requested when segment 37 is completed.
        let next = |position, rate, now| forecast(cycle, Lsn(position), size, Some(settings), rate, now);
        let fast = next(20 * segment, segment as f64, 1010.0);
        assert_eq!((fast.bytes_left, fast.cause), (Some(18 * segment), Some("volume")));
        assert_eq!((fast.seconds_left, fast.seconds_left_by_time), (Some(18.0), Some(290.0)));
        assert_eq!(fast.bytes_since, 15 * segment - 100);
        let slow = next(20 * segment, 1000.0, 1010.0);
        assert_eq!((slow.seconds_left, slow.cause), (Some(290.0), Some("time")));
        let idle = next(20 * segment, 0.0, 1290.0);
        assert_eq!((idle.seconds_left, idle.seconds_left_by_volume), (Some(10.0), None));
        // An idle server, and one that writes again.
        for rate in [0.0, 1000.0] {
            let passed = next(20 * segment, rate, 1300.0);
            assert_eq!((passed.is_timeout_passed, passed.cause), (true, None));
            assert_eq!((passed.seconds_left, passed.seconds_left_by_time), (None, None));
        }
        assert!(!idle.is_timeout_passed);
        // The server was started after the checkpoint.
        let restarted = Cycle { server_started: Some(1290.0), ..cycle };
        let restarted = forecast(restarted, Lsn(20 * segment), size, Some(settings), 1000.0, 1300.0);
        assert_eq!((restarted.seconds_left, restarted.cause), (Some(290.0), Some("time")));
        assert_eq!(restarted.seconds_since, Some(300.0));
        let due = next(50 * segment, 1.0, 9999.0);
        assert_eq!((due.bytes_left, due.seconds_left, due.cause), (Some(0), Some(0.0), Some("volume")));
        // The load that has written this WAL has ended meanwhile.
        let ended = next(50 * segment, 0.0, 1010.0);
        assert_eq!((ended.seconds_left, ended.cause), (Some(0.0), Some("volume")));
        let unknown = forecast(cycle, Lsn(6 * segment), size, None, 1.0, 1010.0);
        assert_eq!(
            (unknown.bytes_left, unknown.seconds_left, unknown.seconds_since),
            (None, None, Some(10.0))
        );
    }
}
