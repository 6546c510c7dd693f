//! The outcome of a prediction: bytes by bucket, checkpoints, and how each figure was obtained.

use serde::Serialize;
use walden_explain::checkpoints::Cause;
use walden_format::lsn::Lsn;

pub use crate::buckets::{Bucket, Buckets};
use crate::recovery::Work;

/// How a figure was obtained, in descending order of certainty.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Copied from the trace.
    Exact,
    /// Computed from pages that replay has reconstructed.
    Reconstructed,
    /// Extrapolated from a sample of the relation's images.
    Sampled,
    /// The mean of similar figures, or a typical size.
    Estimated,
}

/// A checkpoint of a simulated server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimulatedCheckpoint {
    /// Redo pointer of the checkpoint.
    pub redo: Lsn,
    /// Start of the checkpoint, in microseconds since 1970-01-01 UTC.
    pub time: i64,
    /// What triggered it.
    pub cause: Cause,
}

/// The WAL that the same work would write under some settings.
#[derive(Clone, Debug, Default)]
pub struct Prediction {
    /// Distance from the first record's start to the last record's end, in bytes.
    pub bytes: u64,
    /// `bytes` by bucket.
    pub buckets: Buckets,
    /// `bytes` by [`Basis`], without page headers and padding.
    pub shares: [u64; 4],
    /// Twice the standard error of sampled images, in bytes.
    pub sampling_error: f64,
    /// The difference in bytes if checkpoints by volume start earlier or later by that error; 0 if that was
    /// not predicted.
    pub position_error: f64,
    /// The difference in bytes if the work starts halfway between two checkpoints, by distance and by time,
    /// and in the middle of a segment; or, if the trace shows the distance to the checkpoints, half a segment
    /// later. 0 if this was not predicted, or if the trace shows the start.
    pub phase_error: f64,
    /// The difference in bytes if checkpoints start later; 0 if that was not predicted.
    pub delay_error: f64,
    /// The difference in bytes if checkpoints that lag their schedule take as long as on a busy server; 0 if
    /// this was not predicted. If the prediction is the mean for fast and slow checkpoints, half of the
    /// difference.
    pub race_error: f64,
    /// The difference in bytes if assumed settings have the smallest or the largest value that the trace
    /// allows; 0 if that was not predicted.
    pub assumption_error: f64,
    /// The checkpoints.
    pub checkpoints: Vec<SimulatedCheckpoint>,
    /// Number of checkpoints that were requested while another checkpoint was in progress: whether they take
    /// place is a race.
    pub races: u64,
    /// Number of images after checkpoints.
    pub images: u64,
    /// Number of images of all kinds that `wal_compression` is tried on.
    pub compressed_images: u64,
    /// Number of segments filled or switched.
    pub segments: u64,
    /// The longest distance that recovery may have to replay, in bytes: from the redo pointer of the last
    /// complete checkpoint.
    pub longest_redo: u64,
    /// The replay work for that distance.
    pub longest_redo_work: Work,
    /// The replay work for all of the WAL.
    pub work: Work,
    /// Upper bound of the bytes that logging hint bits would add, if the trace does not contain them.
    pub hints_at_most: u64,
    /// Bytes that may be added or omitted, because the trace does not show them.
    pub unshown: u64,
    /// Growth over time: microseconds since 1970-01-01 UTC, bytes since the start.
    pub growth: Vec<(i64, u64)>,
    /// Number of records of the trace that would not be written.
    pub dropped_records: u64,
}

impl Prediction {
    /// Replaces bytes and images by the mean of `self` and `other`, and the error by half of the difference.
    /// Checkpoints and their times stay; the redo distance becomes the longer of both.
    pub fn mean_with(&mut self, other: &Prediction) {
        self.race_error = self.bytes.abs_diff(other.bytes) as f64 / 2.0;
        self.buckets.mean_with(&other.buckets);
        for (one, other) in [
            (&mut self.images, other.images),
            (&mut self.compressed_images, other.compressed_images),
            (&mut self.segments, other.segments),
            (&mut self.hints_at_most, other.hints_at_most),
            (&mut self.unshown, other.unshown),
        ] {
            *one = one.midpoint(other);
        }
        self.bytes = self.buckets.total();
        self.shares.iter_mut().zip(other.shares).for_each(|(one, other)| *one = one.midpoint(other));
        self.sampling_error = self.sampling_error.max(other.sampling_error);
        if other.longest_redo > self.longest_redo {
            (self.longest_redo, self.longest_redo_work) = (other.longest_redo, other.longest_redo_work);
        }
    }

    /// Number of checkpoints with a cause.
    pub fn caused_by(&self, cause: Cause) -> u64 {
        self.checkpoints.iter().filter(|checkpoint| checkpoint.cause == cause).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_two_outcomes_adds_up() {
        let prediction = |records, images, longest_redo| {
            let mut buckets = Buckets::default();
            buckets.add(Bucket::Records, records);
            buckets.add(Bucket::CheckpointImages, images);
            Prediction { bytes: records + images, buckets, longest_redo, ..Prediction::default() }
        };
        let mut mean = prediction(1001, 4000, 70);
        mean.mean_with(&prediction(1000, 2001, 90));
        assert_eq!(mean.buckets.get(Bucket::CheckpointImages), 3000);
        assert_eq!((mean.bytes, mean.buckets.total(), mean.longest_redo), (4000, 4000, 90));
        assert_eq!(mean.race_error, 1000.0);
        let same = prediction(5, 6, 7);
        mean = same.clone();
        mean.mean_with(&same);
        assert_eq!((mean.bytes, mean.buckets, mean.longest_redo), (11, same.buckets, 7));
    }
}
