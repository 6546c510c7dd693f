//! Buckets: every byte of the WAL is counted in one. Sums over buckets.

use walden_format::record::{Compression, Image};
use walden_format::rmgr::{ImageClass, KindTable};

/// The purpose of a byte of WAL. Each byte is counted in exactly one bucket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(usize)]
pub enum Bucket {
    /// The fixed 24 bytes of each record.
    RecordHeader,
    /// Headers of references to blocks.
    BlockHeader,
    /// Headers of full-page images.
    ImageHeader,
    /// Images of pages changed for the first time since the redo pointer.
    ImageCheckpoint,
    /// Images that the record kind always contains: index builds, extensions, rewrites.
    ImageForced,
    /// Images written because a hint bit was set, with checksums or `wal_log_hints`.
    ImageHint,
    /// Images for `wal_consistency_checking`, which redo does not apply.
    ImageConsistency,
    /// Data that belongs to a block.
    BlockData,
    /// Headers of the main data, the replication origin and the toplevel transaction.
    MainHeader,
    /// Data that belongs to the record as a whole.
    MainData,
    /// Padding that aligns the next record.
    Alignment,
    /// Headers of pages.
    PageHeader,
    /// The unused end of a segment after a switch.
    SwitchPadding,
    /// The end of a record that started before the input.
    BegunBefore,
    /// The start of a record that a crash interrupted (`XLP_FIRST_IS_OVERWRITE_CONTRECORD`).
    Abandoned,
    /// The start of a record that continues after the input.
    CutRecord,
    /// Zeros at the end of the WAL, never written.
    ZeroTail,
    /// Old pages of a recycled segment at the end of the WAL.
    RecycledTail,
    /// A partly written record at the end of the WAL.
    TornTail,
}

/// One row per bucket: its name in JSON and CSV, and its description.
#[rustfmt::skip]
const BUCKETS: [(Bucket, &str, &str); 19] = [
    (Bucket::RecordHeader,     "record_header",     "record headers"),
    (Bucket::BlockHeader,      "block_header",      "block headers"),
    (Bucket::ImageHeader,      "image_header",      "image headers"),
    (Bucket::ImageCheckpoint,  "image_checkpoint",  "images: first touch after a checkpoint"),
    (Bucket::ImageForced,      "image_forced",      "images: forced (index build, rewrite)"),
    (Bucket::ImageHint,        "image_hint",        "images: hint bits"),
    (Bucket::ImageConsistency, "image_consistency", "images: consistency checking"),
    (Bucket::BlockData,        "block_data",        "block data"),
    (Bucket::MainHeader,       "main_header",       "main data headers"),
    (Bucket::MainData,         "main_data",         "main data"),
    (Bucket::Alignment,        "alignment",         "alignment"),
    (Bucket::PageHeader,       "page_header",       "page headers"),
    (Bucket::SwitchPadding,    "switch_padding",    "padding after segment switches"),
    (Bucket::BegunBefore,      "begun_before",      "end of a record that starts before the input"),
    (Bucket::Abandoned,        "abandoned",         "records cut off by a crash"),
    (Bucket::CutRecord,        "cut_record",        "record that continues after the input"),
    (Bucket::ZeroTail,         "zero_tail",         "unwritten end of the last segment"),
    (Bucket::RecycledTail,     "recycled_tail",     "old pages in the last segment"),
    (Bucket::TornTail,         "torn_tail",         "torn end of the WAL"),
];

impl Bucket {
    /// Number of buckets.
    pub const COUNT: usize = BUCKETS.len();

    /// Every bucket, in the order of a record and then of the framing around records.
    pub fn all() -> impl Iterator<Item = Bucket> {
        BUCKETS.iter().map(|row| row.0)
    }

    /// The name in JSON and CSV.
    pub fn name(self) -> &'static str {
        BUCKETS[self as usize].1
    }

    /// A short description.
    pub fn description(self) -> &'static str {
        BUCKETS[self as usize].2
    }

    /// Whether it counts full-page images.
    pub fn is_image(self) -> bool {
        (Bucket::ImageCheckpoint as usize..=Bucket::ImageConsistency as usize).contains(&(self as usize))
    }

    /// Whether it counts the unused end of the last segment: bytes of the files that are not WAL.
    pub fn is_unused(self) -> bool {
        matches!(self, Bucket::ZeroTail | Bucket::RecycledTail | Bucket::TornTail)
    }

    /// Whether it counts bytes outside of records.
    pub fn is_framing(self) -> bool {
        self as usize >= Bucket::PageHeader as usize
    }
}

/// Number of bytes in each bucket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Buckets([u64; Bucket::COUNT]);

impl Default for Buckets {
    fn default() -> Buckets {
        Buckets([0; Bucket::COUNT])
    }
}

impl Buckets {
    /// Adds `bytes` to a bucket.
    #[inline]
    pub fn add(&mut self, bucket: Bucket, bytes: u64) {
        self.0[bucket as usize] += bytes;
    }

    /// Adds the bytes of `other`.
    pub fn merge(&mut self, other: &Buckets) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }

    /// Bytes of a bucket.
    #[inline]
    pub fn get(&self, bucket: Bucket) -> u64 {
        self.0[bucket as usize]
    }

    /// Bytes of all buckets.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Bytes of the unused end of the last segment.
    pub fn unused(&self) -> u64 {
        Bucket::all().filter(|bucket| bucket.is_unused()).map(|bucket| self.get(bucket)).sum()
    }

    /// Bytes of full-page images.
    pub fn images(&self) -> u64 {
        Bucket::all().filter(|bucket| bucket.is_image()).map(|bucket| self.get(bucket)).sum()
    }
}

/// Bytes and counts over a group of records.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Number of records; a record is counted with its first block.
    pub records: u64,
    /// Number of full-page images.
    pub images: u64,
    /// Bytes, by bucket.
    pub buckets: Buckets,
}

impl Tally {
    /// Adds the bytes and counts of `other`.
    pub fn merge(&mut self, other: &Tally) {
        self.records += other.records;
        self.images += other.images;
        self.buckets.merge(&other.buckets);
    }

    /// Bytes in all buckets.
    pub fn bytes(&self) -> u64 {
        self.buckets.total()
    }

    /// Bytes in all buckets, without the unused end of the last segment.
    pub fn wal_bytes(&self) -> u64 {
        self.bytes() - self.buckets.unused()
    }
}

/// Why a full-page image was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
#[non_exhaustive]
pub enum ImageCause {
    /// The page was changed for the first time since the redo pointer.
    Checkpoint,
    /// The record kind always contains an image.
    Forced,
    /// A hint bit was set.
    Hint,
    /// `wal_consistency_checking`.
    Consistency,
}

impl ImageCause {
    /// Every cause.
    pub const ALL: [ImageCause; 4] =
        [ImageCause::Checkpoint, ImageCause::Forced, ImageCause::Hint, ImageCause::Consistency];

    /// Returns why a record of the kind with this index contains an image of the block with this ID.
    #[inline]
    pub fn classify(image: &Image, kinds: &KindTable, kind_index: usize, block_id: u8) -> ImageCause {
        if !image.apply {
            return ImageCause::Consistency;
        }
        match kinds.image_class(kind_index, block_id) {
            ImageClass::Checkpoint => ImageCause::Checkpoint,
            ImageClass::Forced => ImageCause::Forced,
            ImageClass::Hint => ImageCause::Hint,
        }
    }

    /// The bucket that counts its bytes.
    pub fn bucket(self) -> Bucket {
        match self {
            ImageCause::Checkpoint => Bucket::ImageCheckpoint,
            ImageCause::Forced => Bucket::ImageForced,
            ImageCause::Hint => Bucket::ImageHint,
            ImageCause::Consistency => Bucket::ImageConsistency,
        }
    }

    /// The name in JSON and CSV.
    pub fn name(self) -> &'static str {
        match self {
            ImageCause::Checkpoint => "checkpoint",
            ImageCause::Forced => "forced",
            ImageCause::Hint => "hint",
            ImageCause::Consistency => "consistency",
        }
    }
}

/// The compression methods of images, with their names in JSON.
pub const COMPRESSIONS: [(Compression, &str); 4] = [
    (Compression::None, "none"),
    (Compression::Pglz, "pglz"),
    (Compression::Lz4, "lz4"),
    (Compression::Zstd, "zstd"),
];

/// Bytes and counts over the images of one cause and compression.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ImageTally {
    /// Number of images.
    pub count: u64,
    /// Bytes as stored.
    pub bytes: u64,
    /// Bytes before compression; both without holes.
    pub uncompressed_bytes: u64,
}

impl ImageTally {
    /// Returns the sums of `self` and `other`.
    #[must_use]
    pub fn plus(self, other: ImageTally) -> ImageTally {
        ImageTally {
            count: self.count + other.count,
            bytes: self.bytes + other.bytes,
            uncompressed_bytes: self.uncompressed_bytes + other.uncompressed_bytes,
        }
    }
}

/// Images by cause and compression.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ImageTable([[ImageTally; 4]; 4]);

impl ImageTable {
    /// Counts one image.
    #[inline]
    pub fn add(&mut self, cause: ImageCause, compression: Compression, bytes: u64, uncompressed_bytes: u64) {
        let tally = &mut self.0[cause as usize][compression as usize];
        tally.count += 1;
        tally.bytes += bytes;
        tally.uncompressed_bytes += uncompressed_bytes;
    }

    /// Adds the bytes and counts of `other`.
    pub fn merge(&mut self, other: &ImageTable) {
        for (row, more) in self.0.iter_mut().zip(other.0) {
            for (sum, more) in row.iter_mut().zip(more) {
                *sum = sum.plus(more);
            }
        }
    }

    /// Returns the sums of one cause and compression.
    pub fn get(&self, cause: ImageCause, compression: Compression) -> ImageTally {
        self.0[cause as usize][compression as usize]
    }

    /// Returns the sums of all images that `wal_compression` would compress, without images of
    /// `wal_consistency_checking`, a setting for testing.
    pub fn compressible(&self) -> ImageTally {
        COMPRESSIONS
            .iter()
            .fold(ImageTally::default(), |sum, (compression, _)| sum.plus(self.compressible_by(*compression)))
    }

    /// Returns the sums as [`ImageTable::compressible`] does, for one compression.
    pub fn compressible_by(&self, compression: Compression) -> ImageTally {
        let causes = [ImageCause::Checkpoint, ImageCause::Forced, ImageCause::Hint];
        causes.iter().fold(ImageTally::default(), |sum, cause| sum.plus(self.get(*cause, compression)))
    }

    /// Returns the sums of one cause over all compressions.
    pub fn sum_by_cause(&self, cause: ImageCause) -> ImageTally {
        self.0[cause as usize].iter().fold(ImageTally::default(), |sum, more| sum.plus(*more))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_the_order_of_the_enums() {
        for (index, bucket) in Bucket::all().enumerate() {
            assert_eq!(bucket as usize, index);
        }
        for (index, (compression, _)) in COMPRESSIONS.into_iter().enumerate() {
            assert_eq!(compression as usize, index);
        }
    }
}
