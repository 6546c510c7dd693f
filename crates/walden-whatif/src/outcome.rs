//! The outcome of a prediction: bytes by bucket, checkpoints, and how each figure was obtained.

use serde::Serialize;
use walden_explain::checkpoints::Cause;
use walden_format::lsn::Lsn;

pub use crate::buckets::{Bucket, Buckets};
use crate::recovery::Work;

/// How a figure was obtained, most certain first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Basis {
    /// Copied from the trace.
    Exact,
    /// Computed from pages that replay has reconstructed.
    Reconstructed,
    /// Extrapolated from a sample of the relation's images.
    Sampled,
    /// The mean of similar ones, or a typical size.
    Estimated,
}

/// A checkpoint of a simulated server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimulatedCheckpoint {
    /// Its redo pointer.
    pub redo: Lsn,
    /// When it begins, in microseconds since 1970-01-01 UTC.
    pub time: i64,
    /// What triggered it.
    pub cause: Cause,
}

/// The WAL that the same work would write under some settings.
#[derive(Clone, Debug, Default)]
pub struct Prediction {
    /// Distance from the first record's start to the last one's end, in bytes.
    pub bytes: u64,
    /// The same by bucket.
    pub buckets: Buckets,
    /// The same by [`Basis`], without page headers and padding.
    pub shares: [u64; 4],
    /// Twice the standard error of sampled images, in bytes.
    pub sampling_error: f64,
    /// Bytes by which it differs if the work begins in the middle between two checkpoints, by distance and by time, and in the
    /// middle of a segment, or, where the trace shows the former, half a segment further on; 0 if that was not predicted, or is
    /// known from the trace.
    pub phase_error: f64,
    /// Bytes by which it differs if checkpoints begin later; 0 if that was not predicted.
    pub delay_error: f64,
    /// Bytes by which it differs if checkpoints behind their schedule take as long as on a busy server; 0 if that was not predicted.
    /// If it is the mean of both, half of the difference.
    pub race_error: f64,
    /// Bytes by which it differs if assumed settings have the smallest or the largest value that the trace allows; 0 if that was not
    /// predicted.
    pub assumption_error: f64,
    /// The checkpoints.
    pub checkpoints: Vec<SimulatedCheckpoint>,
    /// Checkpoints that were requested while another one was in progress: whether they take place is a race.
    pub races: u64,
    /// Images after checkpoints.
    pub images: u64,
    /// Images of all kinds that `wal_compression` is tried on.
    pub compressed_images: u64,
    /// Segments filled or switched.
    pub segments: u64,
    /// The longest distance that recovery could have to replay, in bytes: from the redo pointer of the last complete checkpoint.
    pub longest_redo: u64,
    /// What replay has to do for that distance.
    pub longest_redo_work: Work,
    /// What replay has to do for all of it.
    pub work: Work,
    /// Upper bound of the bytes that logging hint bits would add, where the trace does not have them.
    pub hints_at_most: u64,
    /// Bytes that may be written in addition, or not be written, as the trace does not show it.
    pub unshown: u64,
    /// Growth over time: microseconds since 1970-01-01 UTC, bytes since the start.
    pub growth: Vec<(i64, u64)>,
    /// Records of the trace that would not be written.
    pub dropped_records: u64,
}

impl Prediction {
    /// Replaces bytes and images by the mean of both, and the error by half of the difference. Checkpoints and their times stay; the redo distance becomes the longer
    /// one.
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
