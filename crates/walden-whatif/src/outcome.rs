//! What a prediction says: bytes by bucket, checkpoints, and how sure each of them is.

use serde::Serialize;
use walden_explain::checkpoints::Cause;
use walden_format::lsn::Lsn;

/// How a number came about, from the surest on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Share {
    /// It is in the trace as it would be.
    Exact,
    /// It follows from pages that replay knows.
    Reconstructed,
    /// It follows from a sample of its relation's images.
    Sampled,
    /// It is the mean of others like it, or a usual size.
    Estimated,
}

/// What bytes are for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Bucket {
    /// Records without their images: headers, data.
    Records,
    /// Images at a page's first change after a checkpoint.
    CheckpointImages,
    /// Images that are always written: index builds, rewrites.
    ForcedImages,
    /// Images because of hints.
    HintImages,
    /// Images for `wal_consistency_checking`.
    ConsistencyImages,
    /// Records of the checkpoints themselves.
    Checkpoints,
    /// Padding of records to 8 bytes.
    Alignment,
    /// Headers of the log's pages.
    PageHeaders,
    /// What is left of a segment when it is switched.
    Switches,
}

impl Bucket {
    /// All of them, in the order of reports.
    pub const ALL: [Bucket; 9] = [
        Bucket::CheckpointImages,
        Bucket::Records,
        Bucket::ForcedImages,
        Bucket::HintImages,
        Bucket::ConsistencyImages,
        Bucket::Checkpoints,
        Bucket::Alignment,
        Bucket::PageHeaders,
        Bucket::Switches,
    ];

    /// Those of full-page images.
    pub const IMAGES: [Bucket; 4] =
        [Bucket::CheckpointImages, Bucket::ForcedImages, Bucket::HintImages, Bucket::ConsistencyImages];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Bucket::Records => "records",
            Bucket::CheckpointImages => "checkpoint_images",
            Bucket::ForcedImages => "forced_images",
            Bucket::HintImages => "hint_images",
            Bucket::ConsistencyImages => "consistency_images",
            Bucket::Checkpoints => "checkpoints",
            Bucket::Alignment => "alignment",
            Bucket::PageHeaders => "page_headers",
            Bucket::Switches => "switches",
        }
    }

    /// Its name for people.
    pub fn title(self) -> &'static str {
        match self {
            Bucket::Records => "records without images",
            Bucket::CheckpointImages => "images after checkpoints",
            Bucket::ForcedImages => "images always written",
            Bucket::HintImages => "images for hint bits",
            Bucket::ConsistencyImages => "images for consistency checks",
            Bucket::Checkpoints => "checkpoints' own records",
            Bucket::Alignment => "alignment",
            Bucket::PageHeaders => "page headers",
            Bucket::Switches => "unused ends of segments",
        }
    }
}

/// Bytes by bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Buckets([u64; 9]);

impl Buckets {
    /// Adds bytes.
    #[inline]
    pub fn add(&mut self, bucket: Bucket, bytes: u64) {
        self.0[bucket as usize] += bytes;
    }

    /// The mean of both.
    fn mean_with(&mut self, other: &Buckets) {
        self.0.iter_mut().zip(other.0).for_each(|(one, other)| *one = one.midpoint(other));
    }

    /// Bytes of one.
    pub fn get(&self, bucket: Bucket) -> u64 {
        self.0[bucket as usize]
    }

    /// Bytes of full-page images.
    pub fn images(&self) -> u64 {
        Bucket::IMAGES.into_iter().map(|bucket| self.get(bucket)).sum()
    }

    /// Bytes of all.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// A checkpoint that would come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SimulatedCheckpoint {
    /// Its redo pointer.
    pub redo: Lsn,
    /// When it begins, in microseconds since 1970-01-01 UTC.
    pub time: i64,
    /// Why.
    pub cause: Cause,
}

/// What the log would be under some settings.
#[derive(Clone, Debug, Default)]
pub struct Prediction {
    /// From the first record's start to the last one's end, in bytes.
    pub bytes: u64,
    /// Where they are.
    pub buckets: Buckets,
    /// Bytes by how they are known, page headers and padding aside: exact, reconstructed, sampled, estimated.
    pub shares: [u64; 4],
    /// Twice the standard error that sampling images brings, in bytes.
    pub sampling_error: f64,
    /// The checkpoints.
    pub checkpoints: Vec<SimulatedCheckpoint>,
    /// Checkpoints that were asked for while another one was made: whether one comes is a race.
    pub races: u64,
    /// Images after checkpoints.
    pub images: u64,
    /// Segments that would be filled or switched.
    pub segments: u64,
    /// The most that recovery could have to replay, in bytes: from the redo pointer of the last complete checkpoint on.
    pub longest_redo: u64,
    /// With hints logged that the trace does not have: at most so many bytes more.
    pub hints_at_most: u64,
    /// The log's position as time passes: microseconds since 1970-01-01 UTC, bytes since the start.
    pub growth: Vec<(i64, u64)>,
    /// Records that would not be written.
    pub dropped_records: u64,
}

impl Prediction {
    /// Makes bytes and images the mean of both; checkpoints and their times stay, and the longest way of recovery is the longer
    /// one.
    pub fn mean_with(&mut self, other: &Prediction) {
        self.buckets.mean_with(&other.buckets);
        for (one, other) in [
            (&mut self.images, other.images),
            (&mut self.segments, other.segments),
            (&mut self.hints_at_most, other.hints_at_most),
        ] {
            *one = one.midpoint(other);
        }
        self.bytes = self.buckets.total();
        self.shares.iter_mut().zip(other.shares).for_each(|(one, other)| *one = one.midpoint(other));
        self.sampling_error = self.sampling_error.max(other.sampling_error);
        self.longest_redo = self.longest_redo.max(other.longest_redo);
    }

    /// Checkpoints with a cause.
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
        let same = prediction(5, 6, 7);
        mean = same.clone();
        mean.mean_with(&same);
        assert_eq!((mean.bytes, mean.buckets, mean.longest_redo), (11, same.buckets, 7));
    }
}
