//! One server under other settings: where its log has got to, and when its checkpoints come.
//!
//! Positions are counted in *usable* bytes, those that records can have; page headers come in where an LSN is asked for
//! (`walden_format::geometry`).

use walden_explain::checkpoints::Cause;
use walden_format::geometry::Geometry;
use walden_format::lsn::Lsn;
use walden_format::record::RECORD_HEADER;

use crate::outcome::{Bucket, Buckets, Prediction, Share, SimulatedCheckpoint};
use crate::settings::Settings;

/// After a checkpoint was not needed, the next look is this much later (`CheckpointerMain`), in microseconds.
const LOOK_AGAIN: i64 = 15_000_000;
const SECOND: i64 = 1_000_000;
/// A checkpoint that is ahead of its schedule sleeps this long before it looks again (`CheckpointWriteDelay`), in
/// microseconds.
const NAP: u64 = 100_000;
/// Bytes of a switch record, which is a header alone.
const SWITCH_RECORD: u64 = RECORD_HEADER as u64;

/// The number of the segment that a usable position lies in.
fn segment_of(geometry: Geometry, position: u64) -> u64 {
    position / geometry.usable_segment_bytes()
}

/// The first usable position of the segment after the one that `position` lies in.
fn next_segment(geometry: Geometry, position: u64) -> u64 {
    (segment_of(geometry, position) + 1) * geometry.usable_segment_bytes()
}

/// Bytes of the records that a checkpoint writes itself, without padding; 0 for one that it does not write.
#[derive(Clone, Copy, Debug, Default)]
pub struct OwnRecords {
    /// `CHECKPOINT_REDO`
    pub redo: u64,
    /// `RUNNING_XACTS`
    pub running: u64,
    /// `CHECKPOINT_ONLINE`
    pub online: u64,
}

/// What one record is here: bytes by bucket, and how they are known.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordBytes {
    /// Everything but images.
    pub plain: u64,
    /// Images, as [`Bucket::IMAGES`] has them: after checkpoints, forced, for hints, for consistency checks.
    pub images: [u64; 4],
    /// Images after checkpoints, counted.
    pub image_count: u64,
    /// Of all these, what is exact, reconstructed, sampled, estimated.
    pub shares: [u64; 4],
}

impl RecordBytes {
    /// Adds bytes that are known in this way.
    #[inline]
    pub fn share(&mut self, share: Share, bytes: u64) {
        self.shares[share as usize] += bytes;
    }
}

/// A checkpoint that is being made.
#[derive(Clone, Copy, Debug)]
struct Running {
    redo: u64,
    /// Done when the log has got here, or the clock there; the clock is looked at after naps, counted from `began`.
    until_position: u64,
    until_time: i64,
    began: i64,
    /// When the log got there.
    behind: Option<i64>,
}

/// A server under some settings.
#[derive(Debug)]
pub struct Simulation {
    /// The settings.
    pub settings: Settings,
    /// Counts checkpoints from 1 on: a page that was last changed in an earlier cycle gets an image.
    pub cycle: u32,
    geometry: Geometry,
    own: OwnRecords,
    checkpoint_segments: u64,
    lag: u64,
    skips: Vec<bool>,
    hurry: i64,
    /// Checkpoints that were asked for while another one was made.
    queued: usize,
    start: u64,
    position: u64,
    /// Where the segment of `position` is full.
    full_at: u64,
    redo: u64,
    /// Where the redo pointer of a checkpoint that was asked for will be.
    asked: Option<u64>,
    running: Option<Running>,
    last_complete: u64,
    last_began: i64,
    /// Before then nobody looks at the clock again.
    look_at: i64,
    /// Before then the clock brings nothing.
    wake: i64,
    /// What was written since the last checkpoint is worth another.
    important: bool,
    last_switch: i64,
    switched_position: u64,
    prediction: Prediction,
}

impl Simulation {
    /// A server whose log goes on from `start`, with a checkpoint there that began at `time`.
    pub fn new(settings: Settings, start: Lsn, redo: Lsn, time: i64, own: OwnRecords) -> Simulation {
        let geometry = Geometry::with_default_pages(settings.segment_size);
        let position = geometry.usable_position(start);
        Simulation {
            checkpoint_segments: settings.checkpoint_segments(),
            settings,
            cycle: 1,
            geometry,
            own,
            lag: 0,
            skips: Vec::new(),
            hurry: 0,
            queued: 0,
            start: position,
            position,
            full_at: next_segment(geometry, position),
            redo: geometry.usable_position(redo),
            asked: None,
            running: None,
            last_complete: geometry.usable_position(redo),
            last_began: time,
            look_at: time,
            wake: i64::MIN,
            important: false,
            last_switch: time,
            switched_position: position,
            prediction: Prediction {
                bytes: 0,
                buckets: Buckets::default(),
                shares: [0; 4],
                sampling_error: 0.0,
                checkpoints: Vec::new(),
                images: 0,
                segments: 0,
                longest_redo: 0,
                hints_at_most: 0,
                races: 0,
                growth: Vec::new(),
                dropped_records: 0,
            },
        }
    }

    /// A checkpointer as the trace shows it: `lag` bytes after a segment was full it begins, and of checkpoints that were
    /// asked for while another one was made, `skips` are found to be for nothing. Without any to go by none is: on a server
    /// that waits for the disk, it was one of six. `hurry` is how long one takes, in microseconds, when it is behind.
    pub fn with_checkpointer(self, lag: u64, skips: Vec<bool>, hurry: i64) -> Simulation {
        Simulation { lag, skips, hurry, ..self }
    }

    /// Bytes since the start, as a distance of LSNs.
    pub fn distance(&self) -> u64 {
        self.geometry.start_at(self.position).bytes_since(self.geometry.start_at(self.start))
    }

    /// The clock moves on, before a record at this time is written.
    #[inline]
    pub fn clock(&mut self, now: i64) {
        if now >= self.wake {
            self.look(now);
        }
    }

    /// What the clock brings, each of it once.
    #[inline(never)]
    fn look(&mut self, now: i64) {
        if self.running.is_some_and(|running| now >= running.until_time) {
            self.complete_and_go_on(now);
        }
        if now >= self.due().max(self.look_at) {
            self.timed(self.due(), now);
        }
        if self.switch_due().is_some_and(|due| now >= due) {
            self.timed_switch(now);
        }
        let until = self.running.map(|running| running.until_time);
        let due = self.due().max(self.look_at);
        self.wake = [until, self.switch_due()].into_iter().flatten().fold(due, i64::min);
    }

    /// When the next checkpoint is due, if something was written.
    fn due(&self) -> i64 {
        self.last_began.saturating_add(self.settings.checkpoint_timeout * SECOND)
    }

    /// When the segment is switched, however full.
    fn switch_due(&self) -> Option<i64> {
        let timeout = self.settings.archive_timeout;
        (timeout > 0).then(|| self.last_switch.saturating_add(timeout.saturating_mul(SECOND)))
    }

    /// A record is written.
    #[inline]
    pub fn insert(&mut self, record: &RecordBytes, now: i64) {
        let images: u64 = record.images.iter().sum();
        self.prediction.buckets.add(Bucket::Records, record.plain);
        if images > 0 {
            for (bucket, bytes) in Bucket::IMAGES.into_iter().zip(record.images) {
                self.prediction.buckets.add(bucket, bytes);
            }
            self.prediction.images += record.image_count;
        }
        for (sum, bytes) in self.prediction.shares.iter_mut().zip(record.shares) {
            *sum += bytes;
        }
        self.important = true;
        self.advance(record.plain + images, now);
    }

    /// A record without images is written as the trace has it: `bytes` of it.
    #[inline]
    pub fn insert_same(&mut self, bytes: u64, now: i64) {
        self.prediction.buckets.add(Bucket::Records, bytes);
        self.prediction.shares[Share::Exact as usize] += bytes;
        self.important = true;
        self.advance(bytes, now);
    }

    /// Somebody asks for a checkpoint, or the server stops.
    pub fn requested(&mut self, cause: Cause, now: i64) {
        if self.running.is_some() {
            self.complete();
        }
        self.begin(cause, now);
        self.complete();
    }

    /// The log is switched to the next segment.
    pub fn switch(&mut self, now: i64) {
        // At a segment's start there is nothing to switch.
        if self.position.is_multiple_of(self.geometry.usable_segment_bytes()) {
            return;
        }
        self.prediction.buckets.add(Bucket::Records, SWITCH_RECORD);
        self.prediction.shares[Share::Exact as usize] += SWITCH_RECORD;
        self.advance(SWITCH_RECORD, now);
        if self.position.is_multiple_of(self.geometry.usable_segment_bytes()) {
            return;
        }
        let next = next_segment(self.geometry, self.position);
        let segment_end = self.geometry.end_at(next);
        let unused = segment_end.bytes_since(self.geometry.start_at(self.position));
        self.prediction.buckets.add(Bucket::Switches, unused);
        let finished = segment_of(self.geometry, self.position);
        self.position = next;
        self.full_at = next_segment(self.geometry, next);
        self.switched_position = next;
        self.finish_segment(finished);
    }

    /// Something that hints would have made larger.
    pub fn hint_bound(&mut self, bytes: u64) {
        self.prediction.hints_at_most += bytes;
    }

    /// A record that would not be written.
    pub fn drop_record(&mut self) {
        self.prediction.dropped_records += 1;
    }

    /// Notes how far the log has got.
    pub fn sample(&mut self, now: i64) {
        let distance = self.distance();
        self.prediction.growth.push((now, distance));
    }

    /// The outcome; `error` is what is known of its uncertainty, in bytes.
    pub fn finish(mut self, error: f64) -> Prediction {
        self.stretch();
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
        let padding = bytes.wrapping_neg() & 7;
        self.prediction.buckets.add(Bucket::Alignment, padding);
        self.position += bytes + padding;
        if self.position >= self.full_at {
            self.fill_segments(now);
        }
        if let Some(running) = &mut self.running
            && self.position >= running.until_position
        {
            // Found out when it wakes up.
            let slept = now.saturating_sub(running.began).max(0).cast_unsigned();
            let woken = running.began.saturating_add(slept.next_multiple_of(NAP).cast_signed());
            running.until_time = running.until_time.min(woken.saturating_add(self.hurry));
            running.until_position = u64::MAX;
            running.behind = Some(now);
            self.wake = i64::MIN;
            if now >= running.until_time {
                self.complete_and_go_on(now);
            }
        }
        if self.asked.is_some_and(|asked| self.position >= asked) {
            match &mut self.running {
                // Being asked wakes it up from its nap, which matters to one that is behind its schedule. One that began late
                // in a segment is not when that segment is full, and keeps to it.
                Some(Running { behind: Some(behind), until_time, .. }) => {
                    *until_time = (*until_time).min(behind.saturating_add(self.hurry));
                    self.wake = self.wake.min(*until_time);
                    if now >= *until_time {
                        self.complete_and_go_on(now);
                    }
                }
                Some(_) => {}
                None => self.begin(Cause::Volume, now),
            }
        }
    }

    /// The one being made is done; another one that was asked for meanwhile is next, unless nothing was written since.
    fn complete_and_go_on(&mut self, now: i64) {
        self.complete();
        if self.asked.is_none_or(|asked| self.position < asked) {
            return;
        }
        let skipped = match self.skips.len() {
            0 => false,
            many => self.skips[self.queued % many],
        };
        self.queued += 1;
        self.prediction.races += 1;
        if skipped {
            self.asked = None;
        } else {
            self.begin(Cause::Volume, now);
        }
    }

    /// The log has gone beyond the segment that it was in, for which each record would take a division to see.
    #[cold]
    fn fill_segments(&mut self, now: i64) {
        self.last_switch = now;
        let reached = segment_of(self.geometry, self.position);
        for finished in segment_of(self.geometry, self.full_at) - 1..reached {
            self.finish_segment(finished);
        }
        self.full_at = next_segment(self.geometry, self.position);
    }

    /// A segment is full: is it time (`XLogCheckpointNeeded`)?
    fn finish_segment(&mut self, finished: u64) {
        let from = segment_of(self.geometry, self.redo);
        if self.asked.is_none() && finished + 1 >= from + self.checkpoint_segments {
            self.asked =
                Some(((finished + 1) * self.geometry.usable_segment_bytes() + self.lag).max(self.position));
        }
    }

    fn timed(&mut self, due: i64, now: i64) {
        if !self.important {
            // An idle server skips what would be for nothing, and looks again a little later.
            let passed = now.saturating_sub(due.max(self.look_at)) / LOOK_AGAIN + 1;
            self.look_at = due.max(self.look_at).saturating_add(passed.saturating_mul(LOOK_AGAIN));
            return;
        }
        if self.running.is_some() {
            self.complete();
        }
        self.begin(Cause::Time, due.max(self.look_at));
        // Nothing was written since: what was due between then and now was skipped.
        let next = self.last_began.saturating_add(self.settings.checkpoint_timeout * SECOND);
        if now >= next {
            let passed = now.saturating_sub(next) / LOOK_AGAIN + 1;
            self.look_at = next.saturating_add(passed.saturating_mul(LOOK_AGAIN));
        }
    }

    /// `CheckArchiveTimeout`
    fn timed_switch(&mut self, now: i64) {
        if self.position != self.switched_position {
            self.switch(now);
        }
        self.last_switch = now;
    }

    fn begin(&mut self, cause: Cause, now: i64) {
        self.asked = None;
        self.stretch();
        let redo = self.position;
        self.write_own(self.own.redo);
        self.write_own(self.own.running);
        self.cycle += 1;
        self.redo = redo;
        self.last_began = now;
        self.look_at = now;
        self.wake = i64::MIN;
        self.important = false;
        // `IsCheckpointOnSchedule`: spread over part of the way to the next one, by volume and by time.
        let target = self.settings.completion_target_milli;
        let distance = self.checkpoint_segments * self.geometry.usable_segment_bytes() * target / 1000;
        self.running = Some(Running {
            redo,
            until_position: redo + distance,
            until_time: now.saturating_add(self.settings.checkpoint_timeout * SECOND / 1000 * target as i64),
            began: now,
            behind: None,
        });
        self.prediction.checkpoints.push(SimulatedCheckpoint {
            redo: self.geometry.start_at(redo),
            time: now,
            cause,
        });
    }

    fn complete(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.stretch();
        self.write_own(self.own.online);
        self.last_complete = running.redo;
    }

    fn write_own(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let padding = bytes.wrapping_neg() & 7;
        self.prediction.buckets.add(Bucket::Checkpoints, bytes);
        self.prediction.buckets.add(Bucket::Alignment, padding);
        // What a checkpoint writes can fill a segment too, but never asks for the next checkpoint in practice.
        self.position += bytes + padding;
        self.full_at = next_segment(self.geometry, self.position);
    }

    fn stretch(&mut self) {
        let bytes =
            self.geometry.start_at(self.position).bytes_since(self.geometry.start_at(self.last_complete));
        self.prediction.longest_redo = self.prediction.longest_redo.max(bytes);
    }
}

#[cfg(test)]
mod tests {
    use walden_format::version::Major;

    use super::*;

    fn settings(max_wal_size: u64) -> Settings {
        Settings { max_wal_size, ..Settings::default_of(Major::V15) }
    }

    fn simulation(settings: Settings) -> Simulation {
        Simulation::new(settings, Lsn(0x100_0028), Lsn(0x100_0028), 0, OwnRecords::default())
    }

    fn plain(bytes: u64) -> RecordBytes {
        RecordBytes { plain: bytes, ..RecordBytes::default() }
    }

    #[test]
    fn volume_brings_checkpoints() {
        // 48 MB are one segment, the default 33.
        for (megabytes, segments) in [(48, 1), (1024, 33)] {
            let mut simulation = simulation(settings(megabytes << 20));
            for _ in 0..100 * (16 << 20) / 8192 {
                simulation.clock(0);
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
    fn a_checkpoint_that_hurries_still_takes_its_time() {
        let checkpoints = |micros_a_page: i64, hurry| {
            let mut simulation = simulation(settings(48 << 20)).with_checkpointer(0, Vec::new(), hurry);
            for page in 0..100 * (16 << 20) / 8192 {
                simulation.clock(page * micros_a_page);
                simulation.insert(&plain(8192), page * micros_a_page);
            }
            simulation.finish(0.0).checkpoints.len()
        };
        // At 0.4 MB a second it is done long before the next segment is full.
        assert_eq!(checkpoints(20_000, 500_000), 100);
        // At 41 MB a second a segment takes 0.4 s, and all 100 of them 41 s.
        assert_eq!(checkpoints(200, 0), 100);
        let held_up = checkpoints(200, 500_000);
        assert!((45..=82).contains(&held_up), "{held_up}");
    }

    #[test]
    fn a_checkpoint_that_began_late_in_a_segment_keeps_its_schedule_when_that_is_full() {
        let mut simulation = simulation(settings(48 << 20));
        let mut write = |pages: i64, from: i64| {
            for page in 0..pages {
                simulation.clock(from + page * 200);
                simulation.insert(&plain(8192), from + page * 200);
            }
        };
        // Half a segment, then what is due after five minutes, then 41 MB a second.
        write(1024, 0);
        write(2800, 301 * SECOND);
        let began: Vec<u64> = simulation.finish(0.0).checkpoints.iter().map(|one| one.redo.0).collect();
        assert_eq!(began.len(), 2, "{began:x?}");
        assert!(began[1] - began[0] >= (16 << 20) / 10 * 9, "{began:x?}");
    }

    #[test]
    fn time_brings_checkpoints_if_something_was_written() {
        let mut simulation = simulation(settings(1 << 30));
        for second in 0..3000_i64 {
            if !(1000..2000).contains(&second) {
                simulation.clock(second * SECOND);
                simulation.insert(&plain(100), second * SECOND);
            }
        }
        let times: Vec<i64> =
            simulation.finish(0.0).checkpoints.iter().map(|checkpoint| checkpoint.time / SECOND).collect();
        // 1200 is for what was written up to 1000; then nothing is written until 2000.
        assert_eq!(&times[..4], [300, 600, 900, 1200]);
        assert!(times[4] >= 2000 && times[4] <= 2015, "{times:?}");
    }

    #[test]
    fn archive_timeout_pads_segments() {
        let mut simulation = simulation(Settings { archive_timeout: 60, ..settings(1 << 30) });
        for second in 0..600 {
            simulation.clock(second * SECOND);
            simulation.insert(&plain(1000), second * SECOND);
        }
        let prediction = simulation.finish(0.0);
        assert_eq!(prediction.segments, 9);
        assert!(prediction.buckets.get(Bucket::Switches) > 8 * (15 << 20));
        assert_eq!(prediction.buckets.total(), prediction.bytes);
    }
}
