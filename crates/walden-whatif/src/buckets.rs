//! Bytes of predicted WAL by use.

/// A use of WAL bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Bucket {
    /// Records without their images: headers, data.
    Records,
    /// Images at a page's first change after a checkpoint.
    CheckpointImages,
    /// Images that are written regardless of checkpoints: index builds, rewrites.
    ForcedImages,
    /// Images of pages whose hint bits changed (`FPI_FOR_HINT`).
    HintImages,
    /// Images for `wal_consistency_checking`.
    ConsistencyImages,
    /// Records that checkpoints themselves write.
    Checkpoints,
    /// Padding of records to 8 bytes.
    Alignment,
    /// Headers of WAL pages.
    PageHeaders,
    /// Unused bytes of a segment after a segment switch.
    Switches,
}

impl Bucket {
    /// All buckets, in the order of reports.
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

    /// The buckets of full-page images.
    pub const IMAGES: [Bucket; 4] =
        [Bucket::CheckpointImages, Bucket::ForcedImages, Bucket::HintImages, Bucket::ConsistencyImages];

    /// Returns its name in JSON.
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

    /// Returns its name in reports.
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

    /// Replaces the bytes of each bucket by the mean of `self` and `other`.
    pub(crate) fn mean_with(&mut self, other: &Buckets) {
        self.0.iter_mut().zip(other.0).for_each(|(one, other)| *one = one.midpoint(other));
    }

    /// Bytes of one bucket.
    pub fn get(&self, bucket: Bucket) -> u64 {
        self.0[bucket as usize]
    }

    /// Bytes of full-page images.
    pub fn images(&self) -> u64 {
        Bucket::IMAGES.into_iter().map(|bucket| self.get(bucket)).sum()
    }

    /// Bytes of all buckets.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
