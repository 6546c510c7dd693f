//! Determines what triggered each checkpoint.
//!
//! The WAL does not contain the trigger: a checkpoint's flags exist only in shared memory and in the server's
//! log. The WAL contains the start of each checkpoint and its redo pointer. With the server's settings,
//! interval and distance determine the trigger. Without them, the settings are inferred.

use std::collections::{BTreeMap, BTreeSet};

use walden_format::lsn::{Lsn, SegmentSize};
use walden_format::version::Major;

/// The fields of a checkpoint record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointRecord {
    /// LSN of the record. For an unfinished checkpoint, LSN of its `CHECKPOINT_REDO`.
    pub lsn: Lsn,
    /// The redo pointer, where recovery starts. The first change of a page after it logs a full-page image.
    pub redo: Lsn,
    /// Start of the checkpoint, in seconds since 1970-01-01 UTC.
    pub time: i64,
    /// Whether it is a shutdown checkpoint.
    pub shutdown: bool,
    /// Whether the WAL contains the record that ends it. Otherwise a crash interrupted the checkpoint, or the
    /// WAL ends before the record. From 17 on, `CHECKPOINT_REDO` still shows its start. Pages have images
    /// after its redo pointer in either case.
    pub is_finished: bool,
    /// Evidence of a base backup or a segment switch before it.
    pub begin: Begin,
}

/// Evidence in the WAL of the reason for a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Begin {
    /// Nothing.
    #[default]
    Unmarked,
    /// The segment before its redo pointer was switched, as a base backup does before it requests its
    /// checkpoint (`do_pg_backup_start`). A switch also finishes a segment, which may trigger a checkpoint by
    /// volume.
    AfterSwitch,
    /// A base backup starts at its redo pointer.
    Backup,
}

/// Checkpoints in the order of their records, as they are read.
#[derive(Clone, Debug, Default)]
pub struct CheckpointRecords {
    finished: Vec<CheckpointRecord>,
    /// LSN and time of each `CHECKPOINT_REDO` whose checkpoint has no record yet.
    begun: Vec<(Lsn, Option<i64>)>,
    /// Segment switches.
    switches: Vec<Lsn>,
    /// The starts of base backups that ended.
    backups: Vec<Lsn>,
}

impl CheckpointRecords {
    /// Notes a `CHECKPOINT_REDO`, written at about `time` (seconds since 1970-01-01 UTC).
    pub fn begin(&mut self, lsn: Lsn, time: Option<i64>) {
        self.begun.push((lsn, time));
    }

    /// Notes a checkpoint's record.
    pub fn finish(&mut self, record: CheckpointRecord) {
        self.begun.retain(|(lsn, _)| *lsn != record.redo);
        self.finished.push(record);
    }

    /// Notes a segment switch.
    pub fn note_switch(&mut self, lsn: Lsn) {
        self.switches.push(lsn);
    }

    /// Notes the end of a base backup, by its start.
    pub fn note_backup(&mut self, start: Lsn) {
        self.backups.push(start);
    }

    /// Returns all checkpoints, including unfinished ones. If the time of one is unknown, it gets the next
    /// checkpoint's time, or else the last one's.
    pub fn into_all(self, size: SegmentSize) -> Vec<CheckpointRecord> {
        let CheckpointRecords { finished: mut all, begun, switches, backups } = self;
        let of_neighbours = |lsn: Lsn| {
            let next = all.iter().find(|record| record.lsn > lsn).or(all.last());
            next.map_or(0, |record| record.time)
        };
        let unfinished = begun.into_iter().map(|(lsn, time)| CheckpointRecord {
            lsn,
            redo: lsn,
            time: time.unwrap_or_else(|| of_neighbours(lsn)),
            shutdown: false,
            is_finished: false,
            begin: Begin::Unmarked,
        });
        let unfinished: Vec<CheckpointRecord> = unfinished.collect();
        all.extend(unfinished);
        all.sort_by_key(|record| record.lsn);
        let switched: BTreeSet<u64> = switches.into_iter().map(|lsn| size.segment_of(lsn)).collect();
        let backups: BTreeSet<Lsn> = backups.into_iter().collect();
        for record in &mut all {
            let is_after_switch =
                size.segment_of(record.redo).checked_sub(1).is_some_and(|before| switched.contains(&before));
            if backups.contains(&record.redo) {
                record.begin = Begin::Backup;
            } else if is_after_switch {
                record.begin = Begin::AfterSwitch;
            }
        }
        all
    }
}

/// What triggered a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Cause {
    /// `checkpoint_timeout` had passed.
    Time,
    /// `max_wal_size` was reached.
    Volume,
    /// A request: CHECKPOINT, a base backup, CREATE DATABASE.
    Requested,
    /// Shutdown of the server.
    Shutdown,
    /// Unknown, as it is the first one in the WAL.
    First,
}

impl Cause {
    /// Every cause, in the order of reports.
    pub const ALL: [Cause; 5] = [Cause::Volume, Cause::Time, Cause::Requested, Cause::Shutdown, Cause::First];

    /// The name in JSON.
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

/// A checkpoint, relative to the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// Its record.
    pub record: CheckpointRecord,
    /// Bytes between the redo pointers of the one before and this one; `None` for the first.
    pub distance: Option<u64>,
    /// Seconds between the starts of the previous checkpoint and this one; `None` for the first.
    pub interval: Option<i64>,
    /// What triggered it.
    pub cause: Cause,
}

/// The settings that trigger checkpoints.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointSettings {
    /// `checkpoint_timeout`, in seconds.
    pub timeout: i64,
    /// `max_wal_size`, in bytes.
    pub max_wal_size: u64,
    /// `checkpoint_completion_target`, in thousandths.
    pub completion_target_milli: u64,
    /// Whether the server is version 11 or later, which keeps the WAL of one checkpoint. Earlier versions
    /// keep two.
    pub keeps_one: bool,
}

impl CheckpointSettings {
    /// Parses settings in the form of `pg_settings` (`300 s`, `1024 MB`); `None` if one is missing.
    pub fn from_settings(settings: &BTreeMap<String, String>, version: Major) -> Option<CheckpointSettings> {
        let split = |name: &str| settings.get(name)?.split_once(' ');
        let (timeout, seconds) = split("checkpoint_timeout")?;
        let (size, unit) = split("max_wal_size")?;
        // The unit includes a factor in old versions: `16MB`.
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

    /// Returns the minimum number of segments from the previous redo pointer to that of a checkpoint
    /// triggered by volume (`CalculateCheckpointSegments`).
    ///
    /// The request comes when the last segment before this distance is finished (`XLogCheckpointNeeded`,
    /// called by `XLogWrite`). That segment is completely written by then, so the next insert position, and
    /// with it the new redo pointer, is after it.
    pub fn segments(&self, size: SegmentSize) -> u64 {
        let kept = if self.keeps_one { 1000 } else { 2000 };
        let segments = self.max_wal_size / size.bytes();
        (segments * 1000 / (kept + self.completion_target_milli)).max(1)
    }
}

/// Shortest `checkpoint_timeout` that PostgreSQL accepts, in seconds.
const MIN_TIMEOUT: i64 = 30;
/// Common values of `checkpoint_timeout`, in seconds, for inferring it.
const USUAL_TIMEOUTS: [i64; 12] = [30, 60, 120, 180, 300, 600, 900, 1200, 1800, 2700, 3600, 86_400];

/// Determines the cause of each checkpoint. Without `settings`, infers them from intervals and distances.
pub fn explain_checkpoints(
    records: &[CheckpointRecord],
    segment_size: SegmentSize,
    settings: Option<CheckpointSettings>,
) -> Vec<Checkpoint> {
    let mut checkpoints: Vec<Checkpoint> = Vec::with_capacity(records.len());
    for (index, one) in records.iter().enumerate() {
        let before = index.checked_sub(1).map(|before| records[before]);
        checkpoints.push(Checkpoint {
            record: *one,
            distance: before.map(|before| one.redo.0.saturating_sub(before.redo.0)),
            interval: before.map(|before| one.time.saturating_sub(before.time)),
            cause: match one {
                _ if one.shutdown => Cause::Shutdown,
                _ if one.begin == Begin::Backup && before.is_some() => Cause::Requested,
                _ => Cause::First,
            },
        });
    }
    let timeout = settings.map(|settings| settings.timeout).or_else(|| usual_timeout(&checkpoints));
    let trigger = match settings {
        Some(settings) => Some(settings.segments(segment_size)),
        None => usual_distance(&checkpoints, segment_size, timeout),
    };
    for (before, checkpoint) in records.iter().zip(checkpoints.iter_mut().skip(1)) {
        if let (Cause::First, Some(distance), Some(interval)) =
            (checkpoint.cause, checkpoint.distance, checkpoint.interval)
        {
            let segments = crossed_segments(checkpoint, distance, segment_size);
            let is_far = trigger.is_some_and(|trigger| segments >= trigger);
            let is_by_time = |timeout| {
                is_timed(interval, timeout)
                    || (is_far && is_after_skipped(before, checkpoint, interval, timeout, segment_size))
            };
            checkpoint.cause = if timeout.is_some_and(is_by_time) {
                Cause::Time
            } else if is_far {
                Cause::Volume
            } else {
                Cause::Requested
            };
        }
    }
    checkpoints
}

/// The fewest segments between a checkpoint triggered by volume and the one before it, from redo pointer to
/// redo pointer; `None` if no checkpoint was triggered by volume.
pub(crate) fn volume_segments(checkpoints: &[Checkpoint], size: SegmentSize) -> Option<u64> {
    let by_volume = checkpoints.iter().filter(|checkpoint| checkpoint.cause == Cause::Volume);
    by_volume.filter_map(|one| Some(crossed_segments(one, one.distance?, size))).min()
}

/// Segments filled between the previous redo pointer and this one.
fn crossed_segments(checkpoint: &Checkpoint, distance: u64, size: SegmentSize) -> u64 {
    let redo = checkpoint.record.redo;
    size.segment_of(redo) - size.segment_of(Lsn(redo.0 - distance))
}

/// Whether an interval is that of a timed checkpoint. The checkpointer checks the clock in whole seconds and
/// may be a little late; an idle server skips checkpoints, so the interval may be a multiple.
fn is_timed(interval: i64, timeout: i64) -> bool {
    interval >= timeout - 1 && (interval <= timeout + 2 || interval % timeout <= 2)
}

/// Whether the timeout triggered a checkpoint although its redo pointer is as far from the previous one as
/// `max_wal_size` allows. It did if the timeout has passed and the redo pointer is in the segment where the
/// previous checkpoint ended.
///
/// The request by volume came while the previous checkpoint was in progress, and was handled at its end. If
/// nothing was logged after its record, the requested checkpoint was skipped (`CreateCheckPoint`) and the
/// timeout restarted (`CheckpointerMain`). The interval is then longer by the duration of the previous
/// checkpoint. Another request requires another finished segment (`XLogWrite`), and no segment was finished.
fn is_after_skipped(
    before: &CheckpointRecord,
    checkpoint: &Checkpoint,
    interval: i64,
    timeout: i64,
    size: SegmentSize,
) -> bool {
    interval >= timeout - 1 && size.segment_of(before.lsn) == size.segment_of(checkpoint.record.redo)
}

/// The common timeout that most intervals fit, if any does.
fn usual_timeout(checkpoints: &[Checkpoint]) -> Option<i64> {
    let fits = |timeout: &i64| {
        let intervals = checkpoints.iter().filter(|checkpoint| checkpoint.cause == Cause::First);
        intervals.filter_map(|c| c.interval).filter(|i| (timeout - 1..=timeout + 1).contains(i)).count()
    };
    let best = USUAL_TIMEOUTS.iter().copied().max_by_key(|timeout| (fits(timeout), -timeout))?;
    (fits(&best) > 0 && best >= MIN_TIMEOUT).then_some(best)
}

/// The number of segments between checkpoints triggered by volume. Candidates are checkpoints that are not
/// timed and whose redo pointer is near the start of a segment, where a request by volume puts it. The result
/// is the smallest distance that occurs at least twice, or else the smaller of two that differ by one, as a
/// checkpoint may start late.
fn usual_distance(checkpoints: &[Checkpoint], size: SegmentSize, timeout: Option<i64>) -> Option<u64> {
    let mut near_start = Vec::new();
    for pair in checkpoints.windows(2) {
        let [before, checkpoint] = pair else { continue };
        let (Cause::First, Some(distance), Some(interval)) =
            (checkpoint.cause, checkpoint.distance, checkpoint.interval)
        else {
            continue;
        };
        let timed = timeout.is_some_and(|timeout| {
            is_timed(interval, timeout)
                || is_after_skipped(&before.record, checkpoint, interval, timeout, size)
        });
        let offset = size.offset_of(checkpoint.record.redo);
        if !timed && offset < size.bytes() / 4 {
            let is_after_switch = checkpoint.record.begin == Begin::AfterSwitch;
            near_start.push((crossed_segments(checkpoint, distance, size), offset, is_after_switch));
        }
    }
    near_start.sort_unstable();
    let within = |difference: u64| {
        let mut pairs = near_start.windows(2).map(|pair| (pair[0].0, pair[1].0));
        pairs.find(|(one, next)| *one > 0 && next - one <= difference).map(|(one, _)| one)
    };
    let twice = within(0).or_else(|| within(1));
    // A single one suffices if it is several segments away, right at the start of a segment, and no switch
    // finished the segment before.
    let is_sure = |&&(segments, offset, is_after_switch): &&(u64, u64, bool)| {
        segments >= 4 && offset < size.bytes() / 64 && !is_after_switch
    };
    twice.or_else(|| near_start.iter().find(is_sure).map(|(segments, ..)| *segments))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: SegmentSize = SegmentSize::DEFAULT;

    fn seen(segment: u64, offset: u64, time: i64) -> CheckpointRecord {
        let redo = Lsn(segment * SIZE.bytes() + offset);
        let begin = Begin::Unmarked;
        CheckpointRecord { lsn: redo.plus(1000), redo, time, shutdown: false, is_finished: true, begin }
    }

    fn settings(max_wal_size: u64) -> CheckpointSettings {
        CheckpointSettings { timeout: 300, max_wal_size, completion_target_milli: 900, keeps_one: true }
    }

    fn causes(seen: &[CheckpointRecord], settings: Option<CheckpointSettings>) -> Vec<Cause> {
        explain_checkpoints(seen, SIZE, settings).iter().map(|checkpoint| checkpoint.cause).collect()
    }

    /// The records of two checkpoints. One in between was interrupted by a crash, and another is in progress
    /// at the end.
    #[test]
    fn checkpoints_without_a_record_are_in_their_place() {
        let (first, last) = (seen(2, 0, 10), seen(7, 0, 50));
        let mut records = CheckpointRecords::default();
        records.begin(first.redo, Some(9));
        records.finish(first);
        records.begin(Lsn(5 * SIZE.bytes()), Some(31));
        // The end-of-recovery checkpoint logs no `CHECKPOINT_REDO` of its own.
        records.finish(last);
        records.begin(Lsn(9 * SIZE.bytes()), None);
        let all = records.into_all(SIZE);
        let seen: Vec<_> =
            all.iter().map(|one| (one.redo.0 / SIZE.bytes(), one.time, one.is_finished)).collect();
        assert_eq!(seen, [(2, 10, true), (5, 31, false), (7, 50, true), (9, 50, false)]);
    }

    /// A base backup switches the segment and requests a checkpoint at the start of the next one.
    #[test]
    fn the_checkpoint_of_a_base_backup_shows_no_max_wal_size() {
        let (before, backup) = (seen(2, 5 << 20, 10), seen(8, 40, 87));
        let causes_with = |notes: &dyn Fn(&mut CheckpointRecords), settings| {
            let mut records = CheckpointRecords::default();
            [before, backup, seen(20, 40, 107)].into_iter().for_each(|record| records.finish(record));
            notes(&mut records);
            causes(&records.into_all(SIZE), settings)
        };
        let is_backup = |records: &mut CheckpointRecords| records.note_backup(backup.redo);
        let is_switched =
            |records: &mut CheckpointRecords| records.note_switch(Lsn(backup.redo.0 - (3 << 20)));
        use Cause::*;
        assert_eq!(causes_with(&|_| {}, None), [First, Volume, Volume]);
        assert_eq!(causes_with(&is_backup, None), [First, Requested, Volume]);
        // The last checkpoint's distance is the only usable one.
        assert_eq!(causes_with(&is_switched, None), [First, Requested, Volume]);
        let known = Some(CheckpointSettings { max_wal_size: 128 << 20, ..settings(0) });
        assert_eq!(causes_with(&is_backup, known), [First, Requested, Volume]);
        assert_eq!(causes_with(&is_switched, known), [First, Volume, Volume]);
    }

    #[test]
    fn known_settings_determine_the_cause() {
        let settings = settings(1 << 30);
        // 64 segments / 1.9: the default settings yield 33.
        assert_eq!(settings.segments(SIZE), 33);
        let reported = [
            ("checkpoint_timeout", "300 s"),
            ("max_wal_size", "1024 MB"),
            ("checkpoint_completion_target", "0.9"),
        ];
        let mut reported: BTreeMap<String, String> =
            reported.map(|(name, value)| (name.into(), value.into())).into();
        assert_eq!(CheckpointSettings::from_settings(&reported, Major::V18), Some(settings));
        reported.insert("max_wal_size".into(), "64 16MB".into());
        assert_eq!(CheckpointSettings::from_settings(&reported, Major::V18), Some(settings));
        reported.remove("checkpoint_timeout");
        assert_eq!(CheckpointSettings::from_settings(&reported, Major::V18), None);
        let log = [seen(0, 0, 0), seen(33, 100, 60), seen(40, 9 << 20, 360), seen(41, 500, 370)];
        assert_eq!(
            causes(&log, Some(settings)),
            [Cause::First, Cause::Volume, Cause::Time, Cause::Requested]
        );
    }

    /// With N segments, the request comes when segment r + N - 1 is finished: it causes no redo pointer in
    /// that segment.
    #[test]
    fn volume_begins_in_the_segment_behind_the_finished_one() {
        for (max_wal_size, segments) in [(32 << 20, 1), (64 << 20, 2), (1 << 30, 33)] {
            let settings = settings(max_wal_size);
            assert_eq!(settings.segments(SIZE), segments);
            let cause =
                |segment, offset| causes(&[seen(7, 9000, 0), seen(segment, offset, 60)], Some(settings))[1];
            let last_before = SIZE.bytes() - 8;
            assert_eq!(cause(7 + segments - 1, last_before), Cause::Requested, "{segments}");
            assert_eq!(cause(7 + segments, 40), Cause::Volume, "{segments}");
            assert_eq!(cause(7 + segments + 1, 40), Cause::Volume, "{segments}");
        }
    }

    /// The first checkpoint ended 20 seconds later, in the segment given. A request that came in the meantime
    /// was skipped.
    #[test]
    fn a_skipped_request_starts_the_timeout_anew() {
        let settings = settings(64 << 20);
        assert_eq!(settings.segments(SIZE), 2);
        let ended_in = |segment: u64| {
            let lsn = Lsn(segment * SIZE.bytes() + 5000);
            CheckpointRecord { lsn, ..seen(7, 9000, 0) }
        };
        let cause =
            |ended, segment, time| causes(&[ended_in(ended), seen(segment, 6000, time)], Some(settings))[1];
        assert_eq!(cause(9, 9, 320), Cause::Time);
        // The request was not skipped, as the WAL continued.
        assert_eq!(cause(9, 9, 20), Cause::Volume);
        // Another segment was finished in the meantime: another request.
        assert_eq!(cause(9, 10, 320), Cause::Volume);
        // No segment was finished, so there was no request by volume.
        assert_eq!(cause(8, 8, 320), Cause::Requested);
        // Without settings, the other checkpoints show the timeout and the volume.
        let long = CheckpointRecord { lsn: Lsn(10 * SIZE.bytes() + 100), ..seen(7, 9 << 20, 680) };
        let log = [
            seen(0, 0, 0),
            seen(3, 50, 40),
            seen(6, 50, 80),
            seen(6, 9 << 20, 380),
            long,
            seen(10, 200, 1000),
        ];
        use Cause::*;
        assert_eq!(causes(&log, None), [First, Volume, Volume, Time, Time, Time]);
    }

    #[test]
    fn without_settings_the_cause_is_inferred() {
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
        // A requested checkpoint at the start of a segment, one segment nearer than all others.
        let nearer = [seen(0, 0, 0), seen(2, 90, 7), seen(3, 90, 10), seen(5, 90, 17), seen(8, 90, 26)];
        assert_eq!(causes(&nearer, None), [First, Volume, Requested, Volume, Volume]);
        let mut log = log.to_vec();
        log[5].shutdown = true;
        assert_eq!(causes(&log, None)[5], Shutdown);
        assert_eq!(causes(&[], None), []);
        // A single one counts as triggered by volume right after the start of a segment, otherwise as
        // requested.
        assert_eq!(causes(&[seen(0, 0, 0), seen(4, 100_000, 9)], None), [First, Volume]);
        assert_eq!(causes(&[seen(0, 0, 0), seen(4, 2_800_000, 9)], None), [First, Requested]);
    }
}
