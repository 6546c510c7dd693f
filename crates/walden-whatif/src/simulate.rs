//! A simulated server under other settings: its insert position and its checkpoints.
//!
//! Positions are counted in *usable* bytes, without page headers, like `XLogCtlInsert.CurrBytePos`
//! (`walden_format::geometry`).

use walden_explain::checkpoints::Cause;
use walden_format::geometry::Geometry;
use walden_format::lsn::Lsn;
use walden_format::record::{self, RECORD_HEADER};

use crate::buckets::{Bucket, Buckets};
use crate::outcome::{Basis, Prediction, SimulatedCheckpoint};
use crate::recovery::Work;
use crate::settings::Settings;

/// After a checkpoint was skipped, the time is checked again after this many microseconds
/// (`CheckpointerMain`).
const RECHECK_INTERVAL: i64 = 15_000_000;
const SECOND: i64 = 1_000_000;
/// Assumed relative error of estimated bytes ([`Basis::Estimated`]).
pub(crate) const ESTIMATE_ERROR: f64 = 0.25;
/// A checkpoint ahead of its schedule sleeps for this many microseconds at a time (`CheckpointWriteDelay`).
const WRITE_DELAY: u64 = 100_000;
/// Bytes of an `XLOG_SWITCH` record, which is a header only.
const SWITCH_RECORD: u64 = RECORD_HEADER as u64;

/// Returns the number of the segment that contains a usable position.
fn segment_of(geometry: Geometry, position: u64) -> u64 {
    position / geometry.usable_segment_bytes()
}

/// Returns the first usable position of the segment after the one that contains `position`.
fn next_segment(geometry: Geometry, position: u64) -> u64 {
    (segment_of(geometry, position) + 1) * geometry.usable_segment_bytes()
}

/// Bytes of the records that a checkpoint itself writes, without padding; 0 for a record that the checkpoint
/// does not write.
#[derive(Clone, Copy, Debug, Default)]
pub struct CheckpointRecords {
    /// `CHECKPOINT_REDO`
    pub redo: u64,
    /// `RUNNING_XACTS`
    pub running: u64,
    /// `CHECKPOINT_ONLINE`
    pub online: u64,
}

/// The bytes of one record in a simulation, by bucket and by basis.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordBytes {
    /// All bytes except full-page images.
    pub plain: u64,
    /// Full-page images in the order of [`Bucket::IMAGES`]: after checkpoints, forced, for hint bits, for
    /// consistency checks.
    pub images: [u64; 4],
    /// Number of images after checkpoints.
    pub image_count: u64,
    /// Number of images of all kinds that `wal_compression` is tried on.
    pub compressed_images: u64,
    /// All of these bytes by basis: exact, reconstructed, sampled, estimated.
    pub shares: [u64; 4],
}

impl RecordBytes {
    /// Adds bytes to this basis.
    #[inline]
    pub fn add_basis(&mut self, basis: Basis, bytes: u64) {
        self.shares[basis as usize] += bytes;
    }
}

/// The delay of a checkpoint that is requested by volume. PostgreSQL requests the checkpoint when it writes
/// the end of a segment to disk (`XLogWrite`): at the next commit, or, without a commit, when a process needs
/// WAL buffers or the WAL writer wakes up.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequestLag {
    /// Bytes that are written between the commit and the redo pointer, while the checkpointer wakes up.
    pub after_commit: u64,
    /// Bytes between the end of the segment and the redo pointer, if no commit precedes it.
    pub at_most: u64,
}

impl RequestLag {
    /// Returns the same for a checkpointer that wakes up `bytes` later.
    #[must_use]
    pub fn later(self, bytes: u64) -> RequestLag {
        RequestLag { after_commit: self.after_commit + bytes, at_most: self.at_most + bytes }
    }
}

/// The direction in which the insert position deviates from the sum of the records, by the error of their
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deviation {
    /// It does not deviate.
    None,
    /// The records have fewer bytes than predicted.
    Less,
    /// They have more.
    More,
}

/// A checkpoint in progress.
#[derive(Clone, Copy, Debug)]
struct Running {
    redo: u64,
    /// All work up to the redo pointer.
    work: Work,
    /// The checkpoint completes once the insert position or the clock reaches these values. The clock is
    /// checked after each write delay, counted from `began`.
    until_position: u64,
    until_time: i64,
    began: i64,
    /// The time at which the insert position reached `until_position`.
    behind_since: Option<i64>,
}

/// A simulated server.
#[derive(Debug)]
pub struct Simulation {
    /// The server's settings.
    pub settings: Settings,
    /// Number of the current checkpoint cycle, starting at 1: a page last changed in an earlier cycle gets a
    /// full-page image.
    pub cycle: u32,
    geometry: Geometry,
    checkpoint_records: CheckpointRecords,
    checkpoint_segments: u64,
    request_lag: RequestLag,
    skipped_requests: Vec<bool>,
    unthrottled_micros: i64,
    /// Number of checkpoints that were requested while another checkpoint was in progress.
    queued: usize,
    start: u64,
    position: u64,
    deviation: Deviation,
    /// The error at the last call of `deviate`, in bytes, and the part of it that `position` contains: after
    /// a segment switch none.
    deviated_by: i64,
    deviation_in_position: i64,
    /// The end of the segment that contains `position`.
    full_at: u64,
    redo: u64,
    /// The position at which the redo pointer of a requested checkpoint will be.
    requested_at: Option<u64>,
    /// Whether a checkpoint is due, and will be requested when the end of the segment is written to disk.
    awaits_commit: bool,
    running: Option<Running>,
    last_complete: u64,
    /// All work up to that position.
    last_complete_work: Work,
    records: u64,
    last_began: i64,
    /// `checkpoint_timeout` is not checked before this time.
    next_timeout_check: i64,
    /// No event depends on the clock before this time.
    next_wakeup: i64,
    /// Whether records were written since the last checkpoint that warrant another checkpoint.
    has_important_wal: bool,
    last_switch: i64,
    /// Whether records were written since the last switch or the last full segment that warrant a switch.
    has_wal_to_switch: bool,
    prediction: Prediction,
}

impl Simulation {
    /// Creates a server whose insert position is at `start`, with the last checkpoint at `redo`, started at
    /// `time` (microseconds since 1970-01-01 UTC).
    pub fn new(
        settings: Settings,
        start: Lsn,
        redo: Lsn,
        time: i64,
        checkpoint_records: CheckpointRecords,
    ) -> Simulation {
        let geometry = Geometry::with_default_pages(settings.segment_size);
        let position = geometry.usable_position(start);
        Simulation {
            checkpoint_segments: settings.checkpoint_segments(),
            settings,
            cycle: 1,
            geometry,
            checkpoint_records,
            request_lag: RequestLag::default(),
            skipped_requests: Vec::new(),
            unthrottled_micros: 0,
            queued: 0,
            start: position,
            position,
            deviation: Deviation::None,
            deviated_by: 0,
            deviation_in_position: 0,
            full_at: next_segment(geometry, position),
            redo: geometry.usable_position(redo),
            requested_at: None,
            awaits_commit: false,
            running: None,
            last_complete: geometry.usable_position(redo),
            last_complete_work: Work::default(),
            records: 0,
            last_began: time,
            next_timeout_check: time,
            next_wakeup: i64::MIN,
            has_important_wal: false,
            last_switch: time,
            has_wal_to_switch: false,
            prediction: Prediction {
                bytes: 0,
                buckets: Buckets::default(),
                shares: [0; 4],
                sampling_error: 0.0,
                position_error: 0.0,
                phase_error: 0.0,
                delay_error: 0.0,
                race_error: 0.0,
                assumption_error: 0.0,
                checkpoints: Vec::new(),
                images: 0,
                compressed_images: 0,
                segments: 0,
                longest_redo: 0,
                longest_redo_work: Work::default(),
                work: Work::default(),
                hints_at_most: 0,
                unshown: 0,
                races: 0,
                growth: Vec::new(),
                dropped_records: 0,
            },
        }
    }

    /// Sets the behavior of the checkpointer. `request_lag` is the delay of a requested checkpoint.
    /// `skipped_requests` determines, in turn, whether a request during a checkpoint is skipped; if it is
    /// empty, none is (on a server that waits for the disk, one of six was). A checkpoint that lags its
    /// schedule takes `unthrottled_micros` microseconds.
    pub fn with_checkpointer(
        self,
        request_lag: RequestLag,
        skipped_requests: Vec<bool>,
        unthrottled_micros: i64,
    ) -> Simulation {
        Simulation { request_lag, skipped_requests, unthrottled_micros, ..self }
    }

    /// Has the insert position deviate from the sum of the records by the error of their bytes. This moves
    /// checkpoints by volume; the outcome does not contain the deviation itself.
    #[must_use]
    pub fn with_deviation(self, deviation: Deviation) -> Simulation {
        Simulation { deviation, ..self }
    }

    /// Whether the insert position deviates.
    pub fn deviates(&self) -> bool {
        self.deviation != Deviation::None
    }

    /// Moves the insert position by what the error has grown since the last call. `sampling_error` is the
    /// error of sampled images so far, in bytes.
    pub fn deviate(&mut self, sampling_error: f64) {
        let estimated = self.prediction.shares[Basis::Estimated as usize] as f64;
        let error = (sampling_error + ESTIMATE_ERROR * estimated) as i64;
        let error = match self.deviation {
            Deviation::None => return,
            Deviation::Less => -error,
            Deviation::More => error,
        };
        let moved = self.position.saturating_add_signed(error - self.deviated_by).max(self.start);
        self.deviation_in_position += moved.cast_signed() - self.position.cast_signed();
        self.deviated_by = error;
        self.position = moved;
    }

    /// Returns the bytes since the start, as a distance of LSNs.
    pub fn distance(&self) -> u64 {
        self.geometry.start_at(self.position).bytes_since(self.geometry.start_at(self.start))
    }

    /// Advances the clock to the time of the next record.
    #[inline]
    pub fn advance_clock(&mut self, now: i64) {
        if now >= self.next_wakeup {
            self.perform_due_events(now);
        }
    }

    /// Performs the events that are due, each once.
    #[inline(never)]
    fn perform_due_events(&mut self, now: i64) {
        if self.running.is_some_and(|running| now >= running.until_time) {
            self.complete_and_start_next(now);
        }
        if now >= self.timeout_due().max(self.next_timeout_check) {
            self.begin_timed(self.timeout_due(), now);
        }
        // Near the largest possible time, the addition saturates.
        while let Some(due) = self.switch_due().filter(|due| now >= *due && *due > self.last_switch) {
            self.switch_on_timeout(due, now);
        }
        let until = self.running.map(|running| running.until_time);
        let due = self.timeout_due().max(self.next_timeout_check);
        self.next_wakeup = [until, self.switch_due()].into_iter().flatten().fold(due, i64::min);
    }

    /// Returns the time at which `checkpoint_timeout` triggers the next checkpoint, if WAL was written.
    fn timeout_due(&self) -> i64 {
        self.last_began.saturating_add(self.settings.checkpoint_timeout * SECOND)
    }

    /// Returns the time at which `archive_timeout` switches the segment.
    fn switch_due(&self) -> Option<i64> {
        let timeout = self.settings.archive_timeout;
        (timeout > 0).then(|| self.last_switch.saturating_add(timeout.saturating_mul(SECOND)))
    }

    /// Writes a record.
    #[inline]
    pub fn insert(&mut self, record: &RecordBytes, now: i64) {
        let images: u64 = record.images.iter().sum();
        self.prediction.buckets.add(Bucket::Records, record.plain);
        if images > 0 {
            for (bucket, bytes) in Bucket::IMAGES.into_iter().zip(record.images) {
                self.prediction.buckets.add(bucket, bytes);
            }
            self.prediction.images += record.image_count;
            self.prediction.compressed_images += record.compressed_images;
        }
        for (sum, bytes) in self.prediction.shares.iter_mut().zip(record.shares) {
            *sum += bytes;
        }
        self.records += 1;
        self.has_important_wal = true;
        self.has_wal_to_switch = true;
        self.advance(record.plain + images, now);
    }

    /// Writes a record of `bytes` bytes without full-page images, unchanged from the trace.
    #[inline]
    pub fn insert_unchanged(&mut self, bytes: u64, now: i64) {
        self.prediction.buckets.add(Bucket::Records, bytes);
        self.prediction.shares[Basis::Exact as usize] += bytes;
        self.records += 1;
        self.has_important_wal = true;
        self.has_wal_to_switch = true;
        self.advance(bytes, now);
    }

    /// Returns the end of the segment with the insert position, as a usable position.
    #[inline]
    pub fn segment_end(&self) -> u64 {
        self.full_at
    }

    /// Returns the number of that segment.
    pub fn segment_number(&self) -> u64 {
        segment_of(self.geometry, self.position)
    }

    /// Handles the commit of a transaction: all WAL before the commit is written to disk.
    #[inline]
    pub fn commit(&mut self, now: i64) {
        if std::mem::take(&mut self.awaits_commit)
            && let Some(requested_at) = &mut self.requested_at
        {
            *requested_at = (*requested_at).min(self.position + self.request_lag.after_commit);
            self.begin_requested(now);
        }
    }

    /// Performs a checkpoint on request or at shutdown.
    pub fn request_checkpoint(&mut self, cause: Cause, now: i64) {
        if self.running.is_some() {
            self.complete_checkpoint();
        }
        self.begin_checkpoint(cause, now);
        self.complete_checkpoint();
    }

    /// Switches to the next segment (`pg_switch_wal`).
    pub fn switch_segment(&mut self, now: i64) {
        // At a segment's start `RequestXLogSwitch` does nothing.
        if self.position.is_multiple_of(self.geometry.usable_segment_bytes()) {
            return;
        }
        self.prediction.buckets.add(Bucket::Records, SWITCH_RECORD);
        self.prediction.shares[Basis::Exact as usize] += SWITCH_RECORD;
        self.advance(SWITCH_RECORD, now);
        if self.position.is_multiple_of(self.geometry.usable_segment_bytes()) {
            return;
        }
        let next = next_segment(self.geometry, self.position);
        let segment_end = self.geometry.end_at(next);
        let unused = segment_end.bytes_since(self.geometry.start_at(self.position));
        self.prediction.buckets.add(Bucket::Switches, unused);
        let finished = segment_of(self.geometry, self.position);
        (self.position, self.deviation_in_position) = (next, 0);
        self.full_at = next_segment(self.geometry, next);
        self.has_wal_to_switch = false;
        self.finish_segment(finished);
    }

    /// Adds to the upper bound of the bytes that logging hint bits would add.
    pub fn add_hint_bound(&mut self, bytes: u64) {
        self.prediction.hints_at_most += bytes;
    }

    /// Multiplies that bound by a fraction.
    pub fn scale_hint_bound(&mut self, fraction: f64) {
        self.prediction.hints_at_most = (self.prediction.hints_at_most as f64 * fraction) as u64;
    }

    /// Adds bytes for which the trace does not show whether they are written.
    pub fn add_unshown(&mut self, bytes: u64) {
        self.prediction.unshown += bytes;
    }

    /// Counts a record that is not written.
    pub fn count_dropped_record(&mut self) {
        self.prediction.dropped_records += 1;
    }

    /// Adds a point to the growth over time.
    pub fn sample_growth(&mut self, now: i64) {
        let distance = self.distance();
        self.prediction.growth.push((now, distance));
    }

    /// Returns the outcome; `error` is the error of sampled images, in bytes.
    pub fn finish(mut self, error: f64) -> Prediction {
        self.position = self.position.saturating_add_signed(-self.deviation_in_position).max(self.start);
        self.update_longest_redo();
        self.prediction.work = self.work();
        self.prediction.bytes = self.distance();
        let framing = self.prediction.bytes.saturating_sub(self.prediction.buckets.total());
        self.prediction.buckets.add(Bucket::PageHeaders, framing);
        self.prediction.segments =
            segment_of(self.geometry, self.position) - segment_of(self.geometry, self.start);
        self.prediction.sampling_error = error;
        self.prediction
    }

    #[inline]
    fn advance(&mut self, bytes: u64, now: i64) {
        let padding = record::padding(bytes);
        self.prediction.buckets.add(Bucket::Alignment, padding);
        self.position += bytes + padding;
        if self.position >= self.full_at {
            self.fill_segments(now);
        }
        if let Some(running) = &mut self.running
            && self.position >= running.until_position
        {
            // The checkpointer checks the position after the current write delay.
            let elapsed = now.saturating_sub(running.began).max(0).cast_unsigned();
            let noticed_at =
                running.began.saturating_add(elapsed.next_multiple_of(WRITE_DELAY).cast_signed());
            running.until_time = running.until_time.min(noticed_at.saturating_add(self.unthrottled_micros));
            running.until_position = u64::MAX;
            running.behind_since = Some(now);
            self.next_wakeup = i64::MIN;
            if now >= running.until_time {
                self.complete_and_start_next(now);
            }
        }
        if self.requested_at.is_some() {
            self.begin_requested(now);
        }
    }

    /// Starts the requested checkpoint if its redo pointer is reached.
    #[inline(never)]
    fn begin_requested(&mut self, now: i64) {
        if self.requested_at.is_none_or(|requested_at| self.position < requested_at) {
            return;
        }
        match &mut self.running {
            // A request ends its write delay, which matters if it lags its schedule. A checkpoint that
            // started late in a segment does not lag when that segment is full, and keeps its schedule.
            Some(Running { behind_since: Some(behind_since), until_time, .. }) => {
                *until_time = (*until_time).min(behind_since.saturating_add(self.unthrottled_micros));
                self.next_wakeup = self.next_wakeup.min(*until_time);
                if now >= *until_time {
                    self.complete_and_start_next(now);
                }
            }
            Some(_) => {}
            None => self.begin_checkpoint(Cause::Volume, now),
        }
    }

    /// Completes the checkpoint in progress and starts the one requested in the meantime, unless it is
    /// skipped because no WAL was written since.
    fn complete_and_start_next(&mut self, now: i64) {
        self.complete_checkpoint();
        if self.requested_at.is_none_or(|requested_at| self.position < requested_at) {
            return;
        }
        let skipped = match self.skipped_requests.len() {
            0 => false,
            many => self.skipped_requests[self.queued % many],
        };
        self.queued += 1;
        self.prediction.races += 1;
        if skipped {
            self.requested_at = None;
        } else {
            self.begin_checkpoint(Cause::Volume, now);
        }
    }

    /// Finishes the segments up to the insert position. A separate function because finding a position's
    /// segment takes a division.
    #[cold]
    fn fill_segments(&mut self, now: i64) {
        (self.has_wal_to_switch, self.last_switch) = (false, now);
        let reached = segment_of(self.geometry, self.position);
        for finished in segment_of(self.geometry, self.full_at) - 1..reached {
            self.finish_segment(finished);
        }
        self.full_at = next_segment(self.geometry, self.position);
    }

    /// Requests a checkpoint at the end of a segment if it is due (`XLogCheckpointNeeded`).
    fn finish_segment(&mut self, finished: u64) {
        let from = segment_of(self.geometry, self.redo);
        if self.requested_at.is_none() && finished + 1 >= from + self.checkpoint_segments {
            let segment_end = (finished + 1) * self.geometry.usable_segment_bytes();
            self.requested_at = Some((segment_end + self.request_lag.at_most).max(self.position));
            self.awaits_commit = true;
        }
    }

    fn begin_timed(&mut self, due: i64, now: i64) {
        if !self.has_important_wal {
            // An idle server skips the checkpoint and checks again later.
            let intervals = now.saturating_sub(due.max(self.next_timeout_check)) / RECHECK_INTERVAL + 1;
            self.next_timeout_check =
                due.max(self.next_timeout_check).saturating_add(intervals.saturating_mul(RECHECK_INTERVAL));
            return;
        }
        if self.running.is_some() {
            self.complete_checkpoint();
        }
        self.begin_checkpoint(Cause::Time, due.max(self.next_timeout_check));
        // No WAL was written since then: checkpoints due in between were skipped.
        let next = self.last_began.saturating_add(self.settings.checkpoint_timeout * SECOND);
        if now >= next {
            let intervals = now.saturating_sub(next) / RECHECK_INTERVAL + 1;
            self.next_timeout_check = next.saturating_add(intervals.saturating_mul(RECHECK_INTERVAL));
        }
    }

    /// Simulates `CheckArchiveTimeout`: all WAL since the last switch was written before `due`, and the next
    /// record will be at `now`. A server without WAL to switch checks again after each `archive_timeout`.
    fn switch_on_timeout(&mut self, due: i64, now: i64) {
        if self.has_wal_to_switch {
            self.switch_segment(due);
            (self.has_wal_to_switch, self.last_switch) = (false, due);
            return;
        }
        let timeout = self.settings.archive_timeout.saturating_mul(SECOND);
        self.last_switch = due.saturating_add((now - due) / timeout * timeout);
    }

    fn begin_checkpoint(&mut self, cause: Cause, now: i64) {
        (self.requested_at, self.awaits_commit) = (None, false);
        self.update_longest_redo();
        let redo = self.position;
        self.write_checkpoint_record(self.checkpoint_records.redo);
        self.write_checkpoint_record(self.checkpoint_records.running);
        self.cycle += 1;
        self.redo = redo;
        self.last_began = now;
        self.next_timeout_check = now;
        self.next_wakeup = i64::MIN;
        self.has_important_wal = false;
        // `IsCheckpointOnSchedule`: the checkpoint is spread over a part of the distance and time to the next
        // one.
        let target = self.settings.completion_target_milli;
        let distance = self.checkpoint_segments * self.geometry.usable_segment_bytes() * target / 1000;
        self.running = Some(Running {
            redo,
            work: self.work(),
            until_position: redo + distance,
            until_time: now.saturating_add(self.settings.checkpoint_timeout * SECOND / 1000 * target as i64),
            began: now,
            behind_since: None,
        });
        self.prediction.checkpoints.push(SimulatedCheckpoint {
            redo: self.geometry.start_at(redo),
            time: now,
            cause,
        });
    }

    fn complete_checkpoint(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.update_longest_redo();
        self.write_checkpoint_record(self.checkpoint_records.online);
        (self.last_complete, self.last_complete_work) = (running.redo, running.work);
    }

    fn write_checkpoint_record(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let padding = record::padding(bytes);
        self.prediction.buckets.add(Bucket::Checkpoints, bytes);
        self.prediction.buckets.add(Bucket::Alignment, padding);
        // These records can fill a segment too, but in practice never request the next checkpoint.
        self.position += bytes + padding;
        self.full_at = next_segment(self.geometry, self.position);
    }

    fn update_longest_redo(&mut self) {
        let bytes =
            self.geometry.start_at(self.position).bytes_since(self.geometry.start_at(self.last_complete));
        if bytes > self.prediction.longest_redo {
            self.prediction.longest_redo = bytes;
            self.prediction.longest_redo_work = self.work().since(self.last_complete_work);
        }
    }

    /// Returns the work of all WAL written so far.
    fn work(&self) -> Work {
        let Prediction { images, buckets, .. } = &self.prediction;
        Work::new(self.records, *images, buckets, self.settings.wal_compression)
    }
}

#[cfg(test)]
mod tests {
    use walden_format::version::Major;

    use super::*;

    fn settings(max_wal_size: u64) -> Settings {
        Settings { max_wal_size, ..Settings::default_of(Major::V15) }
    }

    /// A server's second checkpoint by volume starts just before or after the end of its work.
    #[test]
    fn a_deviation_moves_checkpoints_and_is_not_counted() {
        let outcome = |deviation, at_switch: bool| {
            let mut simulation = simulation(settings(48 << 20)).with_deviation(deviation);
            for page in 0..(32 << 20) / 8192 - 20 {
                simulation.insert(&plain(8192), 0);
                simulation.deviate(50.0 * f64::from(page));
                if at_switch && page == 3000 {
                    simulation.switch_segment(0);
                }
            }
            let prediction = simulation.finish(0.0);
            (prediction.checkpoints.len(), prediction.bytes)
        };
        let (checkpoints, bytes) = outcome(Deviation::None, false);
        assert_eq!(checkpoints, 1);
        assert_eq!(outcome(Deviation::More, false), (2, bytes));
        assert_eq!(outcome(Deviation::Less, false), (1, bytes));
        let (_, bytes) = outcome(Deviation::None, true);
        assert_eq!([Deviation::More, Deviation::Less].map(|one| outcome(one, true).1), [bytes; 2]);
    }

    fn simulation(settings: Settings) -> Simulation {
        Simulation::new(settings, Lsn(0x100_0028), Lsn(0x100_0028), 0, CheckpointRecords::default())
    }

    fn plain(bytes: u64) -> RecordBytes {
        RecordBytes { plain: bytes, ..RecordBytes::default() }
    }

    #[test]
    fn volume_triggers_checkpoints() {
        // The checkpoint distance is one segment for 48 MB and 33 for the default.
        for (megabytes, segments) in [(48, 1), (1024, 33)] {
            let mut simulation = simulation(settings(megabytes << 20));
            for _ in 0..100 * (16 << 20) / 8192 {
                simulation.advance_clock(0);
                simulation.insert(&plain(8192), 0);
            }
            let prediction = simulation.finish(0.0);
            assert_eq!(prediction.checkpoints.len() as u64, 100 / segments);
            assert!(prediction.checkpoints.iter().all(|checkpoint| checkpoint.cause == Cause::Volume));
            assert_eq!(prediction.buckets.total(), prediction.bytes);
            let distance = segments * (16 << 20);
            assert!(
                prediction.longest_redo > distance && prediction.longest_redo <= 2 * distance + 16384,
                "{} of {distance}",
                prediction.longest_redo
            );
        }
    }

    #[test]
    fn a_checkpoint_is_requested_when_the_end_of_a_segment_is_written_to_disk() {
        const PAGES: u64 = (16 << 20) / 8192;
        let lag = |after_commit, at_most| RequestLag { after_commit, at_most };
        // The pages that are written after the segment's end and before the redo pointer.
        let pages = |request_lag, commit_each: u64| {
            let mut simulation = simulation(settings(48 << 20)).with_checkpointer(request_lag, Vec::new(), 0);
            for page in 1..3 * PAGES {
                simulation.insert(&plain(8192), 0);
                if page.is_multiple_of(commit_each) {
                    simulation.commit(0);
                }
            }
            let redo = simulation.finish(0.0).checkpoints[0].redo;
            (redo.0 % (16 << 20)) / 8192
        };
        // A commit about 200 pages after the end of the segment.
        let rare = PAGES * 11 / 10;
        let behind = pages(lag(0, 8 << 20), rare);
        assert!((200..220).contains(&behind), "{behind}");
        assert_eq!(pages(lag(80 << 10, 8 << 20), rare), behind + 10);
        // Without a commit, the end is written to disk in another way.
        assert_eq!(pages(lag(0, 1 << 20), rare), 128);
        assert_eq!(pages(lag(0, 1 << 20), u64::MAX), 128);
        assert_eq!(pages(lag(0, 0), rare), 0);
        assert!(pages(lag(0, 8 << 20), 2) <= 2);
    }

    #[test]
    fn an_unthrottled_checkpoint_takes_its_time() {
        let checkpoints = |micros_a_page: i64, unthrottled_micros| {
            let mut simulation = simulation(settings(48 << 20)).with_checkpointer(
                RequestLag::default(),
                Vec::new(),
                unthrottled_micros,
            );
            for page in 0..100 * (16 << 20) / 8192 {
                simulation.advance_clock(page * micros_a_page);
                simulation.insert(&plain(8192), page * micros_a_page);
            }
            simulation.finish(0.0).checkpoints.len()
        };
        // At 0.4 MB a second the checkpoint is done long before the next segment is full.
        assert_eq!(checkpoints(20_000, 500_000), 100);
        // At 41 MB a second a segment takes 0.4 s, and all 100 of them 41 s.
        assert_eq!(checkpoints(200, 0), 100);
        let delayed = checkpoints(200, 500_000);
        assert!((45..=82).contains(&delayed), "{delayed}");
    }

    #[test]
    fn a_checkpoint_that_began_late_in_a_segment_keeps_its_schedule_when_that_is_full() {
        let mut simulation = simulation(settings(48 << 20));
        let mut write = |pages: i64, from: i64| {
            for page in 0..pages {
                simulation.advance_clock(from + page * 200);
                simulation.insert(&plain(8192), from + page * 200);
            }
        };
        // Half a segment, then the checkpoint due after five minutes, then 41 MB a second.
        write(1024, 0);
        write(2800, 301 * SECOND);
        let began: Vec<u64> = simulation.finish(0.0).checkpoints.iter().map(|one| one.redo.0).collect();
        assert_eq!(began.len(), 2, "{began:x?}");
        assert!(began[1] - began[0] >= (16 << 20) / 10 * 9, "{began:x?}");
    }

    #[test]
    fn time_triggers_checkpoints_if_something_was_written() {
        let mut simulation = simulation(settings(1 << 30));
        for second in 0..3000_i64 {
            if !(1000..2000).contains(&second) {
                simulation.advance_clock(second * SECOND);
                simulation.insert(&plain(100), second * SECOND);
            }
        }
        let times: Vec<i64> =
            simulation.finish(0.0).checkpoints.iter().map(|checkpoint| checkpoint.time / SECOND).collect();
        // The checkpoint at 1200 covers WAL written up to 1000; then nothing is written until 2000.
        assert_eq!(&times[..4], [300, 600, 900, 1200]);
        assert!(times[4] >= 2000 && times[4] <= 2015, "{times:?}");
    }

    #[test]
    fn an_idle_server_switches_when_the_timeout_has_passed_and_not_at_the_next_record() {
        let switches = |gap: i64, timeout: i64| {
            let mut simulation = simulation(Settings { archive_timeout: timeout, ..settings(1 << 30) });
            for second in (0..=1200).step_by(gap as usize) {
                simulation.advance_clock(second * SECOND);
                simulation.insert(&plain(100), second * SECOND);
            }
            let prediction = simulation.finish(0.0);
            assert_eq!(prediction.buckets.total(), prediction.bytes);
            prediction.segments
        };
        // Each record is alone in its segment, except the last one.
        assert_eq!(switches(60, 5), 20);
        assert_eq!(switches(60, 45), 20);
        // Every 60 s, whatever is written in between; the last record is written at 1197 s.
        assert_eq!(switches(7, 60), 19);
        // A clock that advances without WAL to switch, and one that has overflowed.
        let mut simulation = simulation(Settings { archive_timeout: 1, ..settings(1 << 30) });
        simulation.insert(&plain(100), 0);
        simulation.advance_clock(i64::MAX / 2);
        simulation.insert(&plain(100), i64::MAX / 2);
        simulation.advance_clock(i64::MAX);
        assert_eq!(simulation.finish(0.0).segments, 2);
    }

    #[test]
    fn archive_timeout_pads_segments() {
        let mut simulation = simulation(Settings { archive_timeout: 60, ..settings(1 << 30) });
        for second in 0..600 {
            simulation.advance_clock(second * SECOND);
            simulation.insert(&plain(1000), second * SECOND);
        }
        let prediction = simulation.finish(0.0);
        assert_eq!(prediction.segments, 9);
        assert!(prediction.buckets.get(Bucket::Switches) > 8 * (15 << 20));
        assert_eq!(prediction.buckets.total(), prediction.bytes);
    }
}
