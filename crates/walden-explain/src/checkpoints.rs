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
    /// The redo pointer: the LSN at which recovery starts. The first change of a page after this LSN logs a
    /// full-page image.
    pub redo: Lsn,
    /// Start of the checkpoint, in seconds since 1970-01-01 UTC.
    pub time: i64,
    /// Whether this is a shutdown checkpoint.
    pub shutdown: bool,
    /// Whether the WAL contains the record that ends the checkpoint. Otherwise a crash interrupted the
    /// checkpoint, or the WAL ends before the record. From 17 on, `CHECKPOINT_REDO` still shows the
    /// checkpoint's start. Pages have images after the redo pointer in either case.
    pub is_finished: bool,
    /// Evidence of a base backup or a segment switch before the checkpoint.
    pub begin: Begin,
}

impl CheckpointRecord {
    /// Whether the server wrote no WAL during the checkpoint except the checkpoint's own records, which
    /// include a snapshot of running transactions. An empty checkpoint was requested, or comes from an idle
    /// server: during a checkpoint by volume, the server writes a part of the distance to the next
    /// checkpoint.
    pub fn is_empty(&self) -> bool {
        const MAX_BYTES: u64 = 1024;
        self.is_finished && self.lsn.bytes_since(self.redo) <= MAX_BYTES
    }
}

/// Evidence in the WAL of the reason for a checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Begin {
    /// No evidence.
    #[default]
    Unmarked,
    /// A segment switch directly precedes the redo pointer, as before the checkpoint that a base backup
    /// requests (`do_pg_backup_start`). A switch also finishes a segment, which may trigger a checkpoint by
    /// volume.
    AfterSwitch,
    /// A base backup starts at the redo pointer.
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

    /// Returns all checkpoints, including unfinished checkpoints. A checkpoint of unknown time gets the next
    /// checkpoint's time, or else the last checkpoint's time.
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
    /// The cause of the first checkpoint in the WAL is unknown.
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

/// A checkpoint, with its distance from the previous checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Checkpoint {
    /// The checkpoint's record.
    pub record: CheckpointRecord,
    /// Bytes from the redo pointer of the previous checkpoint to the redo pointer of this checkpoint; `None`
    /// for the first.
    pub distance: Option<u64>,
    /// Seconds from the start of the previous checkpoint to the start of this checkpoint; `None` for the
    /// first.
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
    /// Returns the defaults of a version.
    pub fn default_of(version: Major) -> CheckpointSettings {
        CheckpointSettings {
            timeout: 300,
            max_wal_size: 1 << 30,
            completion_target_milli: if version >= Major::V14 { 900 } else { 500 },
            keeps_one: version >= Major::V11,
        }
    }

    /// Parses settings with values as in `pg_settings` (`300 s`, `1024 MB`); `None` if a setting is missing.
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

    /// Returns the minimum number of segments between the redo pointers of a checkpoint triggered by volume
    /// and of the previous checkpoint (`CalculateCheckpointSegments`).
    ///
    /// The server requests the checkpoint when it finishes the last segment before this distance
    /// (`XLogCheckpointNeeded`, called by `XLogWrite`). This segment is completely written by then, so the
    /// next insert position, and thus the new redo pointer, is after the segment.
    pub fn segments(&self, size: SegmentSize) -> u64 {
        let segments = self.max_wal_size / size.bytes();
        (segments * 1000 / self.kept_milli()).max(1)
    }

    /// Returns the checkpoint distances that `max_wal_size` has room for, in thousandths.
    fn kept_milli(&self) -> u64 {
        let kept = if self.keeps_one { 1000 } else { 2000 };
        kept + self.completion_target_milli
    }

    /// Returns the roundest of all values of `max_wal_size`, in bytes, under which checkpoints by volume have
    /// a distance of this many segments, with the other settings as they are.
    pub fn roundest_max_wal_size(&self, segments: u64, size: SegmentSize) -> u64 {
        let at_least = |segments: u64| (segments * self.kept_milli()).div_ceil(1000).max(2);
        let first = at_least(segments);
        let last = at_least(segments + 1).saturating_sub(1).max(first);
        let roundest = (first..=last).max_by_key(|number| (number.trailing_zeros(), u64::MAX - number));
        roundest.unwrap_or(first) * size.bytes()
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
    if settings.is_none() && is_volume_contradicted(&checkpoints, segment_size) {
        for checkpoint in checkpoints.iter_mut().filter(|checkpoint| checkpoint.cause == Cause::Volume) {
            checkpoint.cause = Cause::Requested;
        }
    }
    checkpoints
}

/// Returns the number of segments after which the server starts a checkpoint by volume, and the number of
/// checkpoints that show it; `None` if no checkpoint was triggered by volume. If `max_wal_size` changes
/// within the WAL, the distance with the most segments counts.
pub fn volume_segments(checkpoints: &[Checkpoint], size: SegmentSize) -> Option<(u64, u64)> {
    let by_volume = checkpoints.windows(2).filter_map(|pair| {
        let [before, one] = pair else { return None };
        let distance = one.distance.filter(|_| one.cause == Cause::Volume)?;
        Some((crossed_segments(one, distance, size), has_waited(before, one, size)))
    });
    let (waited, mut distances): (Vec<_>, Vec<_>) = by_volume.partition(|(_, has_waited)| *has_waited);
    // If all checkpoints had to wait, the shortest distance is nearest to the trigger.
    if distances.is_empty() {
        distances.extend(waited.iter().min());
    }
    distances.sort_unstable();
    // The first distance, the number of distances, and their sum.
    let mut groups: Vec<(u64, u64, u64)> = Vec::new();
    for (distance, _) in distances {
        match groups.last_mut().filter(|(first, ..)| distance <= *first + delay(*first)) {
            Some((_, count, sum)) => (*count, *sum) = (*count + 1, *sum + distance),
            None => groups.push((distance, 1, distance)),
        }
    }
    // Of several groups with this sum, the first.
    let (segments, count, _) = groups.into_iter().rev().max_by_key(|(_, _, sum)| *sum)?;
    (segments > 0).then_some((segments, count))
}

/// Returns the checkpoints that may have been triggered by volume or requested, and the WAL does not show
/// which. Causes were determined without the server's settings.
///
/// A request by volume puts the redo pointer near the start of a segment, where another request puts it only
/// by chance: the causes by volume are certain if all of their redo pointers together are so near that chance
/// is unlikely.
pub fn undecided(checkpoints: &[Checkpoint], size: SegmentSize) -> Vec<Checkpoint> {
    /// The largest probability of a coincidence that is neglected.
    const MAX_CHANCE: f64 = 1.0 / 64.0;
    let pairs =
        || checkpoints.windows(2).filter(|pair| !has_waited(&pair[0], &pair[1], size)).map(|pair| pair[1]);
    let offset = |one: &Checkpoint| size.offset_of(one.record.redo) as f64 / size.bytes() as f64;
    let by_volume: Vec<Checkpoint> =
        checkpoints.iter().filter(|one| one.cause == Cause::Volume).copied().collect();
    if !by_volume.is_empty() {
        let chance: f64 = pairs().filter(|one| one.cause == Cause::Volume).map(|one| offset(&one)).product();
        return if chance > MAX_CHANCE { by_volume } else { Vec::new() };
    }
    let is_near = |one: &Checkpoint| {
        let segments = one.distance.map_or(0, |distance| crossed_segments(one, distance, size));
        one.cause == Cause::Requested
            && one.record.begin == Begin::Unmarked
            && !one.record.is_empty()
            && segments > 0
            && offset(one) < 0.25
    };
    pairs().filter(is_near).collect()
}

/// Segments by which a checkpoint by volume may start late on a busy server, if it is due after this many.
fn delay(segments: u64) -> u64 {
    u64::from(segments >= 2)
}

/// Whether a checkpoint was due while the previous checkpoint `before` was in progress, and started when
/// `before` ended.
fn has_waited(before: &Checkpoint, one: &Checkpoint, size: SegmentSize) -> bool {
    size.segment_of(before.record.lsn) == size.segment_of(one.record.redo)
}

/// Whether too many of the checkpoints that count as triggered by volume started later than `max_wal_size`
/// allows. These checkpoints were then requested at regular distances instead.
fn is_volume_contradicted(checkpoints: &[Checkpoint], size: SegmentSize) -> bool {
    let Some((usual, _)) = volume_segments(checkpoints, size) else { return false };
    let is_late = |pair: &&[Checkpoint]| {
        let [before, one] = pair else { return false };
        let segments = one.distance.map_or(0, |distance| crossed_segments(one, distance, size));
        segments > usual + delay(usual) && !has_waited(before, one, size)
    };
    let by_volume = checkpoints.iter().filter(|one| one.cause == Cause::Volume).count();
    4 * checkpoints.windows(2).filter(is_late).count() > by_volume
}

/// A setting for which the WAL shows another value than the server has now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Contradiction {
    /// Name of the setting.
    pub name: &'static str,
    /// The server's value.
    pub server: String,
    /// The value of the WAL.
    pub wal: String,
}

impl std::fmt::Display for Contradiction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Contradiction { name, server, wal } = self;
        write!(f, "{name}: the server has {server} now, the WAL shows {wal}, which counts")
    }
}

/// Replaces the checkpoint settings of a server, with values as in `pg_settings`, by the settings that the
/// checkpoints of the WAL show. Returns the settings that differ.
pub fn replace_contradicted(
    settings: &mut BTreeMap<String, String>,
    records: &[CheckpointRecord],
    size: SegmentSize,
    version: Major,
) -> Vec<Contradiction> {
    /// A single distance or interval may be a coincidence.
    const MIN_CHECKPOINTS: usize = 2;

    let Some(server) = CheckpointSettings::from_settings(settings, version) else { return Vec::new() };
    let inferred = explain_checkpoints(records, size, None);
    let mut contradictions = Vec::new();
    let mut replace = |name: &'static str, value: String| {
        let shown = |value: &str| value.replacen(' ', "", 1);
        let wal = shown(&value);
        let server = settings.insert(name.to_owned(), value).unwrap_or_default();
        contradictions.push(Contradiction { name, server: shown(&server), wal });
    };
    // Requested checkpoints come at any distance and anywhere in a segment. Checkpoints by volume start
    // directly after a segment was finished, unless another checkpoint was in progress.
    let requested = inferred.iter().filter(|one| one.cause == Cause::Requested).count() as u64;
    let is_late = |pair: &&[Checkpoint]| {
        let [before, one] = pair else { return false };
        let is_near_start = size.offset_of(one.record.redo) < size.bytes() / 4;
        one.cause == Cause::Volume && !is_near_start && !has_waited(before, one, size)
    };
    let late = inferred.windows(2).filter(is_late).count() as u64;
    let is_sure = |(_, count): &(u64, u64)| {
        *count >= MIN_CHECKPOINTS as u64 && *count > 2 * requested && *count > 4 * late
    };
    let volume = volume_segments(&inferred, size).filter(is_sure);
    if let Some((segments, _)) = volume.filter(|(segments, _)| *segments != server.segments(size)) {
        let bytes = server.roundest_max_wal_size(segments, size);
        replace("max_wal_size", format!("{} MB", bytes >> 20));
    }
    let timed: Vec<i64> =
        inferred.iter().filter(|one| one.cause == Cause::Time).filter_map(|one| one.interval).collect();
    if let Some(timeout) = usual_timeout_of(timed.iter().copied())
        && timed.len() >= MIN_CHECKPOINTS
        && !is_same_timeout(timeout, server.timeout)
    {
        replace("checkpoint_timeout", format!("{timeout} s"));
    }
    contradictions
}

/// Whether timers of these settings, in seconds, fire after the same time.
pub fn is_same_timeout(one: i64, other: i64) -> bool {
    one.abs_diff(other) <= 2 + one.min(other).unsigned_abs() / 50
}

/// Number of segments filled between the previous redo pointer and the redo pointer of this checkpoint.
pub fn crossed_segments(checkpoint: &Checkpoint, distance: u64, size: SegmentSize) -> u64 {
    let redo = checkpoint.record.redo;
    size.segment_of(redo) - size.segment_of(Lsn(redo.0 - distance))
}

/// Whether a timed checkpoint may have this interval, in seconds. The checkpointer checks the clock in whole
/// seconds and may be a little late; an idle server skips checkpoints, so the interval may be a multiple.
fn is_timed(interval: i64, timeout: i64) -> bool {
    interval >= timeout - 1 && (interval <= timeout + 2 || interval % timeout <= 2)
}

/// Whether the timeout triggered a checkpoint although its redo pointer is as far from the previous redo
/// pointer as `max_wal_size` allows. The timeout did if it has passed and the redo pointer is in the segment
/// in which the previous checkpoint ended.
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
    let intervals = checkpoints.iter().filter(|checkpoint| checkpoint.cause == Cause::First);
    usual_timeout_of(intervals.filter_map(|one| one.interval))
}

fn usual_timeout_of(intervals: impl Iterator<Item = i64> + Clone) -> Option<i64> {
    let fits = |timeout: &i64| {
        let is_its = |interval: &i64| (timeout - 1..=timeout + 1).contains(interval);
        intervals.clone().filter(is_its).count()
    };
    let best = USUAL_TIMEOUTS.iter().copied().max_by_key(|timeout| (fits(timeout), -timeout))?;
    (fits(&best) > 0 && best >= MIN_TIMEOUT).then_some(best)
}

/// The number of segments between checkpoints triggered by volume. Candidates are checkpoints that are not
/// timed and whose redo pointer is near the start of a segment, where a request by volume puts it. The result
/// is the smallest distance that occurs at least twice, or the smaller of two that differ by one, as a
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
    let within = |delay: fn(u64) -> u64| {
        let mut pairs = near_start.windows(2).map(|pair| (pair[0].0, pair[1].0));
        pairs.find(|(one, next)| *one > 0 && next - one <= delay(*one)).map(|(one, _)| one)
    };
    let twice = within(delay).or_else(|| within(|_| 1));
    // A single one suffices if it is several segments away, right at the start of a segment, and no switch
    // finished the segment before. The fewer segments, the nearer it must be.
    let is_sure = |&&(segments, offset, is_after_switch): &&(u64, u64, bool)| {
        let near = if segments >= 4 { size.bytes() / 64 } else { (size.bytes() / 4096).max(1024) };
        segments >= 2 && offset < near && !is_after_switch
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

    /// The redo pointers of checkpoints at the starts of segments. Each ends right away, or in the segment
    /// before the next one starts.
    fn at_distances(distances: &[u64], is_slow: bool) -> Vec<CheckpointRecord> {
        let mut records = vec![seen(3, 100, 1000)];
        for (distance, time) in distances.iter().zip((1007..).step_by(7)) {
            let before = records.last_mut().unwrap();
            let segment = SIZE.segment_of(before.redo) + distance;
            if is_slow {
                before.lsn = Lsn(segment * SIZE.bytes() + 50);
            }
            records.push(seen(segment, 100, time));
        }
        records
    }

    #[test]
    fn distances_show_max_wal_size() {
        let learned = |distances: &[u64], is_slow| {
            volume_segments(&explain_checkpoints(&at_distances(distances, is_slow), SIZE, None), SIZE)
        };
        assert_eq!(learned(&[8, 8, 8], false), Some((8, 3)));
        // A busy server starts some checkpoints a segment late.
        assert_eq!(learned(&[8, 9, 9, 8, 9, 9], false), Some((8, 6)));
        assert_eq!(learned(&[33, 34, 34], false), Some((33, 3)));
        // The server cannot start a checkpoint while the previous checkpoint is in progress.
        assert_eq!(learned(&[2, 4, 5, 2, 6, 4], true), Some((2, 1)));
        // The setting was changed: most segments count.
        assert_eq!(learned(&[8, 8, 33, 33, 33], false), Some((33, 3)));
        // Checkpoints on request, after which more WAL than that had none.
        assert_eq!(learned(&[3, 3, 3, 5, 7], false), None);
        assert_eq!(learned(&[8, 12, 8, 15], false), None);
        assert_eq!(causes(&at_distances(&[3, 3, 3, 5, 7], false), None)[1..], [Cause::Requested; 5]);
        // One of twenty started late.
        assert_eq!(learned(&[&[1; 19][..], &[2]].concat(), false), Some((1, 19)));
    }

    #[test]
    fn the_wal_counts_where_it_contradicts_the_server() {
        let replaced = |max_wal_size: &str, timeout: &str, records: &[CheckpointRecord]| {
            let all = [
                ("max_wal_size", max_wal_size),
                ("checkpoint_timeout", timeout),
                ("checkpoint_completion_target", "0.9"),
            ];
            let mut all = all.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            let found = replace_contradicted(&mut all, records, SIZE, Major::V18);
            let settings = CheckpointSettings::from_settings(&all, Major::V18).unwrap();
            let found: Vec<String> = found.iter().map(Contradiction::to_string).collect();
            (settings.max_wal_size >> 20, settings.timeout, found)
        };
        let records = at_distances(&[8, 9, 8, 9], false);
        let expected =
            "max_wal_size: the server has 1024MB now, the WAL shows 256MB, which counts".to_owned();
        assert_eq!(replaced("1024 MB", "300 s", &records), (256, 300, vec![expected]));
        // Requested checkpoints at any distance, and anywhere in a segment, show nothing.
        let requested = [seen(3, 100, 1000), seen(4, 100, 1001), seen(5, 100, 1002), seen(5, 8 << 20, 1003)];
        assert_eq!(replaced("1024 MB", "300 s", &requested), (1024, 300, vec![]));
        let late =
            [3, 4, 5, 6, 7].map(|segment| seen(segment, if segment < 6 { 100 } else { 8 << 20 }, 1000));
        assert_eq!(replaced("1024 MB", "300 s", &late), (1024, 300, vec![]));
        // All checkpoints have the same distance.
        assert_eq!(replaced("270 MB", "300 s", &records), (270, 300, vec![]));
        assert_eq!(replaced("1024 MB", "300 s", &records[..2]), (1024, 300, vec![]));
        let timed =
            [seen(0, 5 << 20, 0), seen(1, 5 << 20, 900), seen(2, 5 << 20, 1800), seen(3, 5 << 20, 2700)];
        let expected =
            "checkpoint_timeout: the server has 300s now, the WAL shows 900s, which counts".to_owned();
        assert_eq!(replaced("1024 MB", "300 s", &timed), (1024, 900, vec![expected]));
        assert_eq!(replaced("1024 MB", "900 s", &timed), (1024, 900, vec![]));
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
        assert_eq!(causes(&[seen(0, 0, 0), seen(3, 864, 9)], None), [First, Volume]);
        assert_eq!(causes(&[seen(0, 0, 0), seen(3, 100_000, 9)], None), [First, Requested]);
    }

    #[test]
    fn coincidences_leave_the_cause_open() {
        let open = |records: &[(u64, u64)]| -> Vec<u64> {
            let records: Vec<CheckpointRecord> = records
                .iter()
                .map(|(segment, offset)| {
                    let record = seen(*segment, *offset, 7 * *segment as i64);
                    CheckpointRecord { lsn: record.redo.plus(100_000), ..record }
                })
                .collect();
            let all = explain_checkpoints(&records, SIZE, None);
            undecided(&all, SIZE).iter().map(|one| SIZE.segment_of(one.record.redo)).collect()
        };
        // By volume: one directly at the start, or several.
        assert!(open(&[(0, 0), (3, 864)]).is_empty());
        assert!(open(&[(0, 0), (3, 1 << 20), (6, 1 << 20), (9, 1 << 20)]).is_empty());
        // Two in the first quarter of their segments may be a coincidence, and so may a single one.
        assert_eq!(open(&[(0, 0), (3, 3 << 20), (6, 3 << 20)]), [3, 6]);
        assert_eq!(open(&[(0, 0), (3, 1 << 20)]), [3]);
        // Requested: late in a segment.
        assert!(open(&[(0, 0), (3, 9 << 20), (7, 13 << 20)]).is_empty());
    }
}
