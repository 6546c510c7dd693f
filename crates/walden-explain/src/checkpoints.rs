//! Why each checkpoint came.
//!
//! The log does not say it: the flags of a checkpoint stay in memory and in the server's log. What the log has is when
//! each one began and how far its redo pointer is from the one before. With the server's settings that decides; without
//! them it is inferred, and said to be.

use std::collections::BTreeMap;

use walden_format::lsn::{Lsn, SegmentSize};
use walden_format::version::Major;

/// A checkpoint's record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointSeen {
    /// Where the record is.
    pub lsn: Lsn,
    /// Where recovery would start: what is after it writes images of pages it touches for the first time.
    pub redo: Lsn,
    /// When the checkpoint began, in seconds since 1970-01-01 UTC.
    pub time: i64,
    /// Written by a server that stops.
    pub shutdown: bool,
}

/// Why a checkpoint came.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// `checkpoint_timeout` had passed.
    Time,
    /// `max_wal_size` was reached.
    Volume,
    /// Somebody asked: CHECKPOINT, a base backup, CREATE DATABASE.
    Requested,
    /// The server stopped.
    Shutdown,
    /// The first one met: nothing to measure from.
    First,
}

impl Cause {
    /// Every cause, in the order of reports.
    pub const ALL: [Cause; 5] = [Cause::Volume, Cause::Time, Cause::Requested, Cause::Shutdown, Cause::First];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Time => "time",
            Cause::Volume => "volume",
            Cause::Requested => "requested",
            Cause::Shutdown => "shutdown",
            Cause::First => "first",
        }
    }
}

/// A checkpoint with what it is to the one before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Its record.
    pub seen: CheckpointSeen,
    /// Bytes from the redo pointer before to this one's; nothing for the first.
    pub distance: Option<u64>,
    /// Seconds from the beginning of the one before to this one's.
    pub interval: Option<i64>,
    /// Why it came.
    pub cause: Cause,
}

/// The settings that decide when checkpoints come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointSettings {
    /// `checkpoint_timeout`, in seconds.
    pub timeout: i64,
    /// `max_wal_size`, in bytes.
    pub max_wal_size: u64,
    /// `checkpoint_completion_target`, in thousandths.
    pub completion_target_milli: u64,
    /// The server is 11 or later, which keeps the log of one checkpoint instead of two.
    pub keeps_one: bool,
}

impl CheckpointSettings {
    /// From a server's settings as names have them, `300 s` and `1024 MB`; nothing if one is missing.
    pub fn from_settings(settings: &BTreeMap<String, String>, version: Major) -> Option<CheckpointSettings> {
        let split = |name: &str| settings.get(name)?.split_once(' ');
        let (timeout, seconds) = split("checkpoint_timeout")?;
        let (size, unit) = split("max_wal_size")?;
        // The unit has a number of its own in old versions: `16MB`.
        let digits = unit.find(|c: char| !c.is_ascii_digit())?;
        let factor: u64 = if digits == 0 { 1 } else { unit[..digits].parse().ok()? };
        let scale: u64 = match &unit[digits..] {
            "kB" => 1 << 10,
            "MB" => 1 << 20,
            "GB" => 1 << 30,
            _ => return None,
        };
        let target: f64 = settings.get("checkpoint_completion_target")?.parse().ok()?;
        (seconds == "s").then_some(CheckpointSettings {
            timeout: timeout.parse().ok()?,
            max_wal_size: size.parse::<u64>().ok()?.checked_mul(factor)?.checked_mul(scale)?,
            completion_target_milli: (target.clamp(0.0, 1.0) * 1000.0).round() as u64,
            keeps_one: version >= Major::V11,
        })
    }

    /// Segments from one redo pointer to where the next checkpoint is asked for (`CalculateCheckpointSegments`).
    pub fn segments(&self, size: SegmentSize) -> u64 {
        let kept = if self.keeps_one { 1000 } else { 2000 };
        let segments = self.max_wal_size / size.bytes();
        (segments * 1000 / (kept + self.completion_target_milli)).max(1)
    }
}

/// Shortest `checkpoint_timeout` that PostgreSQL accepts, in seconds.
const MIN_TIMEOUT: i64 = 30;
/// Timeouts that people set, in seconds; looked for when the setting is not known.
const USUAL_TIMEOUTS: [i64; 12] = [30, 60, 120, 180, 300, 600, 900, 1200, 1800, 2700, 3600, 86_400];

/// Says of each checkpoint why it came.
pub fn explain_checkpoints(
    seen: &[CheckpointSeen],
    segment_size: SegmentSize,
    settings: Option<CheckpointSettings>,
) -> Vec<Checkpoint> {
    let mut checkpoints: Vec<Checkpoint> = Vec::with_capacity(seen.len());
    for (index, one) in seen.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| seen[before]);
        checkpoints.push(Checkpoint {
            seen: *one,
            distance: before.map(|before| one.redo.0.saturating_sub(before.redo.0)),
            interval: before.map(|before| one.time - before.time),
            cause: if one.shutdown { Cause::Shutdown } else { Cause::First },
        });
    }
    let timeout = settings.map(|settings| settings.timeout).or_else(|| usual_timeout(&checkpoints));
    let trigger = match settings {
        // Asked for when a segment is full, so one segment earlier than the redo pointer's own.
        Some(settings) => Some(settings.segments(segment_size).saturating_sub(1).max(1)),
        None => usual_distance(&checkpoints, segment_size, timeout),
    };
    for checkpoint in &mut checkpoints {
        if let (Cause::First, Some(distance), Some(interval)) =
            (checkpoint.cause, checkpoint.distance, checkpoint.interval)
        {
            let segments = crossed_segments(checkpoint, distance, segment_size);
            checkpoint.cause = if timeout.is_some_and(|timeout| is_timed(interval, timeout)) {
                Cause::Time
            } else if trigger.is_some_and(|trigger| segments >= trigger) {
                Cause::Volume
            } else {
                Cause::Requested
            };
        }
    }
    checkpoints
}

/// Segments that were filled between the redo pointer before and this one's.
fn crossed_segments(checkpoint: &Checkpoint, distance: u64, size: SegmentSize) -> u64 {
    let redo = checkpoint.seen.redo;
    size.segment_of(redo) - size.segment_of(Lsn(redo.0 - distance))
}

/// The checkpointer looks at the clock in whole seconds and may be a little late; later than that and it waited for
/// something (an idle server writes none at all).
fn is_timed(interval: i64, timeout: i64) -> bool {
    interval >= timeout - 1 && (interval <= timeout + 2 || interval % timeout <= 2)
}

/// The usual timeout that most intervals fit, if any does.
fn usual_timeout(checkpoints: &[Checkpoint]) -> Option<i64> {
    let fits = |timeout: &i64| {
        let intervals = checkpoints.iter().filter(|checkpoint| checkpoint.cause == Cause::First);
        intervals.filter_map(|c| c.interval).filter(|i| (timeout - 1..=timeout + 1).contains(i)).count()
    };
    let best = USUAL_TIMEOUTS.iter().copied().max_by_key(|timeout| (fits(timeout), -timeout))?;
    (fits(&best) > 0 && best >= MIN_TIMEOUT).then_some(best)
}

/// The number of segments after which checkpoints came that were not timed: the smallest that came at least twice, if
/// most of those redo pointers are near the start of a segment, where a checkpoint for volume puts them.
fn usual_distance(checkpoints: &[Checkpoint], size: SegmentSize, timeout: Option<i64>) -> Option<u64> {
    let mut near_start = Vec::new();
    for checkpoint in checkpoints.iter().filter(|checkpoint| checkpoint.cause == Cause::First) {
        let (Some(distance), Some(interval)) = (checkpoint.distance, checkpoint.interval) else { continue };
        let timed = timeout.is_some_and(|timeout| is_timed(interval, timeout));
        let offset = size.offset_of(checkpoint.seen.redo);
        if !timed && offset < size.bytes() / 4 {
            near_start.push((crossed_segments(checkpoint, distance, size), offset));
        }
    }
    near_start.sort_unstable();
    let mut pairs = near_start.windows(2).map(|pair| (pair[0].0, pair[1].0));
    let twice = pairs.find(|(one, next)| *one > 0 && next - one <= 1).map(|(one, _)| one);
    // A single one that far apart is no coincidence either, if it is where a checkpointer gets that sets out at once.
    let is_sure = |&&(segments, offset): &&(u64, u64)| segments >= 4 && offset < size.bytes() / 64;
    twice.or_else(|| near_start.iter().find(is_sure).map(|(segments, _)| *segments))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: SegmentSize = SegmentSize::DEFAULT;

    fn seen(segment: u64, offset: u64, time: i64) -> CheckpointSeen {
        let redo = Lsn(segment * SIZE.bytes() + offset);
        CheckpointSeen { lsn: redo.plus(1000), redo, time, shutdown: false }
    }

    fn causes(seen: &[CheckpointSeen], settings: Option<CheckpointSettings>) -> Vec<Cause> {
        explain_checkpoints(seen, SIZE, settings).iter().map(|checkpoint| checkpoint.cause).collect()
    }

    #[test]
    fn settings_decide() {
        let settings = CheckpointSettings {
            timeout: 300,
            max_wal_size: 1 << 30,
            completion_target_milli: 900,
            keeps_one: true,
        };
        // 64 segments over 1.9: the figure of a default server, 33 segments.
        assert_eq!(settings.segments(SIZE), 33);
        let told = [
            ("checkpoint_timeout", "300 s"),
            ("max_wal_size", "1024 MB"),
            ("checkpoint_completion_target", "0.9"),
        ];
        let mut told: BTreeMap<String, String> = told.map(|(name, value)| (name.into(), value.into())).into();
        assert_eq!(CheckpointSettings::from_settings(&told, Major::V18), Some(settings));
        told.insert("max_wal_size".into(), "64 16MB".into());
        assert_eq!(CheckpointSettings::from_settings(&told, Major::V18), Some(settings));
        told.remove("checkpoint_timeout");
        assert_eq!(CheckpointSettings::from_settings(&told, Major::V18), None);
        let log = [seen(0, 0, 0), seen(33, 100, 60), seen(40, 9 << 20, 360), seen(41, 500, 370)];
        assert_eq!(
            causes(&log, Some(settings)),
            [Cause::First, Cause::Volume, Cause::Time, Cause::Requested]
        );
    }

    #[test]
    fn without_settings_it_is_inferred() {
        let log = [
            seen(0, 0, 0),
            seen(2, 9000, 7),
            seen(4, 24, 15),
            seen(4, 9 << 20, 45),
            seen(5, 9 << 20, 75),
            seen(5, 10 << 20, 80),
        ];
        use Cause::*;
        assert_eq!(causes(&log, None), [First, Volume, Volume, Time, Time, Requested]);
        let mut log = log.to_vec();
        log[5].shutdown = true;
        assert_eq!(causes(&log, None)[5], Shutdown);
        assert_eq!(causes(&[], None), []);
        // One alone is for volume if it is just behind a segment's start, else somebody may have asked.
        assert_eq!(causes(&[seen(0, 0, 0), seen(4, 100_000, 9)], None), [First, Volume]);
        assert_eq!(causes(&[seen(0, 0, 0), seen(4, 2_800_000, 9)], None), [First, Requested]);
    }
}
